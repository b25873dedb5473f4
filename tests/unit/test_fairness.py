"""Weighted shares for the priorities, turns for the queues."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourhand.core.fairness import PRIORITIES, FairShare, lane_of, priority_of, queue_of

WANTS = [1, 2, 3, 7, 10, 50, 1_000]


def claim(fair: FairShare, lanes: set[int], want: int, total: int) -> Counter[int]:
    """Claims of `want` until `total` are taken, with more than enough work in every lane."""
    taken: Counter[int] = Counter()
    while taken.total() < total:
        for lane, count in fair.split(lanes, want):
            fair.took(lane, count)
            taken[lane] += count
    return taken


def shares(taken: Counter[int]) -> dict[str, float]:
    by_class: Counter[str] = Counter()
    for lane, count in taken.items():
        by_class[priority_of(lane)] += count
    return {name: 100 * by_class[name] / taken.total() for name in PRIORITIES}


def lanes(*queues: int, priorities: tuple[str, ...] = PRIORITIES) -> set[int]:
    return {lane_of(queue, priority) for queue in queues for priority in priorities}


@pytest.mark.parametrize("want", WANTS)
@pytest.mark.parametrize("queues", [(1,), (1, 2, 3)])
def test_under_load_the_classes_get_60_30_10(want: int, queues: tuple[int, ...]) -> None:
    found = shares(claim(FairShare(), lanes(*queues), want, 10_000))
    assert found == pytest.approx({"high": 60, "normal": 30, "low": 10}, abs=5)


@pytest.mark.parametrize("want", WANTS)
def test_the_weights_can_be_chosen(want: int) -> None:
    fair = FairShare({"high": 1, "normal": 1, "low": 2})
    assert shares(claim(fair, lanes(1), want, 10_000)) == pytest.approx({"high": 25, "normal": 25, "low": 50}, abs=5)


@pytest.mark.parametrize("want", WANTS)
def test_a_class_without_work_leaves_its_share_to_the_others(want: int) -> None:
    found = shares(claim(FairShare(), lanes(1, priorities=("normal", "low")), want, 10_000))
    assert found == pytest.approx({"high": 0, "normal": 75, "low": 25}, abs=5)
    assert shares(claim(FairShare(), lanes(1, priorities=("low",)), want, 1_000))["low"] == 100


@pytest.mark.parametrize("want", WANTS)
def test_a_class_that_was_idle_comes_back_without_arrears(want: int) -> None:
    fair = FairShare()
    claim(fair, lanes(1, priorities=("high",)), want, 10_000)
    assert shares(claim(fair, lanes(1), want, 10_000)) == pytest.approx({"high": 60, "normal": 30, "low": 10}, abs=5)


@pytest.mark.parametrize("want", WANTS)
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("priorities", [("low",), ("high", "low"), PRIORITIES])
def test_queues_within_a_class_take_turns(want: int, count: int, priorities: tuple[str, ...]) -> None:
    queues = range(1, count + 1)
    taken = claim(FairShare(), lanes(*queues, priorities=priorities), want, 10_000)
    for priority in priorities:
        counts = [taken[lane_of(queue, priority)] for queue in queues]
        assert max(counts) - min(counts) <= 0.05 * sum(counts), priority


@given(
    rounds=st.lists(
        st.tuples(st.sets(st.sampled_from(sorted(lanes(1, 2, 3)))), st.integers(-3, 40), st.floats(0, 1)), max_size=40
    )
)
def test_all_that_is_wanted_is_granted_never_more_and_only_where_there_is_work(
    rounds: list[tuple[set[int], int, float]],
) -> None:
    fair = FairShare()
    for busy, want, found in rounds:
        grants = fair.split(busy, want)
        assert sum(count for _, count in grants) == (max(0, want) if busy else 0)
        assert {lane for lane, _ in grants} <= busy
        assert all(count > 0 for _, count in grants)
        assert len({lane for lane, _ in grants}) == len(grants)
        for lane, count in grants:
            fair.took(lane, int(count * found))


def test_the_most_urgent_class_is_claimed_first() -> None:
    order = [priority_of(lane) for lane, _ in FairShare().split(lanes(1, 2), 100)]
    assert order == sorted(order, key=PRIORITIES.index)


@pytest.mark.parametrize("priority", PRIORITIES)
def test_a_lane_is_a_queue_and_a_priority(priority: str) -> None:
    assert (queue_of(lane_of(7, priority)), priority_of(lane_of(7, priority))) == (7, priority)
