"""Where a claim may start to look, and why no run is stepped over for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourhand.core.marks import GUARD, SWEEP_EVERY, SWEEP_SHARE, LowWaterMark


@pytest.fixture
def mark() -> LowWaterMark:
    """One that has just swept, at time 0."""
    one = LowWaterMark()
    one.swept(0.0, 0.0)
    return one


def test_the_first_look_is_a_sweep() -> None:
    assert LowWaterMark().start(0.0) == 0


def test_the_mark_trails_what_was_claimed_by_the_guard(mark: LowWaterMark) -> None:
    mark.claimed(100, 0.0)
    assert mark.start(GUARD - 0.01) == 0
    assert mark.start(GUARD) == 101


def test_claims_that_follow_closely_are_remembered_by_the_first_of_them(mark: LowWaterMark) -> None:
    mark.claimed(100, 0.0)
    mark.claimed(200, 0.05)
    mark.claimed(300, 0.2)
    assert mark.start(GUARD + 0.1) == 101
    assert mark.start(GUARD + 0.2) == 301


def test_a_lower_place_lowers_the_mark_and_a_higher_one_does_not(mark: LowWaterMark) -> None:
    mark.claimed(100, 0.0)
    assert mark.start(GUARD) == 101
    mark.lower(500)
    assert mark.start(GUARD) == 101
    mark.lower(50)
    assert mark.start(GUARD) == 50


def test_a_lower_place_also_unsettles_claims_that_are_still_guarded(mark: LowWaterMark) -> None:
    mark.claimed(100, 0.0)
    mark.claimed(200, 1.0)
    mark.lower(150)
    assert mark.start(GUARD + 1.0) == 101


@pytest.mark.parametrize("cost", [0.0, 0.01, 1.0])
def test_sweeps_come_every_few_seconds_and_cost_at_most_their_share(cost: float) -> None:
    mark = LowWaterMark()
    mark.claimed(100, -GUARD)
    mark.swept(cost, 0.0)
    pause = max(SWEEP_EVERY, cost / SWEEP_SHARE)
    assert mark.start(pause - 0.01) == 101
    assert mark.start(pause) == 0


def test_a_sweep_that_was_full_goes_on_behind_what_it_took(mark: LowWaterMark) -> None:
    mark.claimed(100, 0.0)
    assert mark.start(GUARD) == 101
    mark.swept(0.0, GUARD, unseen_from=41)
    assert mark.start(GUARD) == 41


def test_forgetting_starts_over(mark: LowWaterMark) -> None:
    mark.claimed(100, 0.0)
    assert mark.start(GUARD) == 101
    mark.claimed(200, GUARD)
    mark.forget()
    assert mark.start(GUARD) == 0
    mark.swept(0.0, GUARD)
    assert mark.start(2 * GUARD) == 0


class Lane:
    """A lane as a claimer meets it. Places are numbered early and may be filled late."""

    def __init__(self) -> None:
        self.mark, self.now = LowWaterMark(), 0.0
        self.next_place = 1
        self.open: list[int] = []
        self.live: set[int] = set()

    def take_numbers(self, count: int) -> None:
        self.open += range(self.next_place, self.next_place + count)
        self.next_place += count

    def commit(self, which: int, count: int, told: bool) -> None:
        """Some of the open transactions commit; the word may be lost."""
        for _ in range(min(count, len(self.open))):
            place = self.open.pop(which % len(self.open))
            self.live.add(place)
            if told:
                self.mark.lower(place)

    def claim(self, limit: int) -> bool:
        """What `Claimer._claim` does. False when the lane looks drained."""
        low = self.mark.start(self.now)
        took = sorted(place for place in self.live if place >= low)[:limit]
        full = len(took) == limit
        if low == 0:
            self.mark.swept(0.0, self.now, unseen_from=took[-1] + 1 if full else None)
        if took:
            self.mark.claimed(took[-1], self.now)
            self.live.difference_update(took)
        return full


steps = st.lists(
    st.one_of(
        st.tuples(st.just("number"), st.integers(1, 20)),
        st.tuples(st.just("commit"), st.integers(0, 40), st.integers(1, 20), st.booleans()),
        st.tuples(st.just("claim"), st.integers(1, 5)),
        st.tuples(st.just("wait"), st.sampled_from([0.05, 0.3, GUARD, SWEEP_EVERY])),
    ),
    max_size=60,
)


@given(steps=steps, limit=st.integers(1, 5))
def test_after_a_sweep_no_live_place_is_left_behind(steps: list[tuple[str, int]], limit: int) -> None:
    lane = Lane()
    for kind, *arguments in steps:
        if kind == "number":
            lane.take_numbers(*arguments)
        elif kind == "commit":
            lane.commit(*arguments)  # type: ignore[arg-type]
        elif kind == "claim":
            lane.claim(*arguments)
        else:
            lane.now += arguments[0]
    lane.commit(0, len(lane.open), told=False)
    lane.now += SWEEP_EVERY
    while lane.claim(limit):
        lane.now += 0.01
    assert not lane.live
