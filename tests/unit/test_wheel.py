"""The timing wheel delivers what is due, once, in order, for any sequence of operations."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hourhand.core.wheel import HORIZON, TimingWheel

START = 1_700_000_000


class WheelMachine(RuleBasedStateMachine):
    """Against a plain dict, with a clock that jumps by anything from a second to more than a day."""

    def __init__(self) -> None:
        super().__init__()
        self.wheel = TimingWheel(START)
        self.model: dict[int, int] = {}

    @rule(key=st.integers(0, 30), delay=st.one_of(st.integers(-5, 130), st.integers(0, HORIZON - 1)))
    def insert(self, key: int, delay: int) -> None:
        self.wheel.insert(key, self.wheel.now + delay)
        self.model[key] = self.wheel.now + delay

    @rule(key=st.integers(0, 30))
    def cancel(self, key: int) -> None:
        assert self.wheel.cancel(key) == (self.model.pop(key, None) is not None)

    @rule(seconds=st.one_of(st.integers(0, 130), st.integers(0, 8_000), st.sampled_from([3_600, HORIZON, HORIZON + 7])))
    def advance(self, seconds: int) -> None:
        now = self.wheel.now + seconds
        delivered = self.wheel.advance(now)
        expected = {key: due for key, due in self.model.items() if due <= now} if seconds else {}
        assert dict(delivered) == expected
        assert len(delivered) == len(expected), "nothing twice"
        late = [max(due, now - seconds + 1) for _, due in delivered]
        assert late == sorted(late), "in the order of time"
        for key in expected:
            del self.model[key]

    @invariant()
    def holds_the_same(self) -> None:
        assert len(self.wheel) == len(self.model)
        assert all(self.wheel.due(key) == due for key, due in self.model.items())


WheelMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestWheel = WheelMachine.TestCase


@given(delays=st.lists(st.integers(1, 7_300), max_size=200), step=st.integers(1, 400))
def test_everything_comes_out_in_its_second(delays: list[int], step: int) -> None:
    wheel = TimingWheel(START)
    for key, delay in enumerate(delays):
        wheel.insert(key, START + delay)
    out: list[tuple[int, int]] = []
    for now in range(START, START + 7_300 + step, step):
        batch = wheel.advance(now)
        assert all(due <= now for _, due in batch)
        out += batch
    assert sorted(out) == sorted((key, START + delay) for key, delay in enumerate(delays))
    assert len(wheel) == 0


def test_what_is_further_away_than_a_day_is_refused() -> None:
    with pytest.raises(ValueError, match="the wheel holds"):
        TimingWheel(START).insert(1, START + HORIZON)


def test_an_entry_costs_at_most_a_hundred_bytes() -> None:
    count = 200_000
    keys = [10**6 + n for n in range(count)]
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    wheel = TimingWheel(START)
    for key in keys:
        wheel.insert(key, START + 1 + key % 600)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The key itself belongs to the caller here; a whole number that large is 32 bytes.
    assert (after - before) / count + 32 <= 100


def test_cancelled_entries_do_not_come_back() -> None:
    wheel = TimingWheel(START)
    wheel.insert(1, START + 90)
    wheel.insert(2, START + 90)
    wheel.cancel(1)
    assert wheel.advance(START + 100) == [(2, START + 90)]


# Half minutes, so that full minutes and hours, at which entries move down, are met often.
@given(
    st.integers(0, 500).map(lambda halves: 30 * halves),
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 130).map(lambda halves: 30 * halves)), max_size=40),
    st.lists(st.integers(1, 50), max_size=10),
    st.integers(1, 130).map(lambda halves: 30 * halves),
)
def test_what_is_upcoming_is_what_the_next_second_delivers(
    now: int, entries: list[tuple[int, int]], cancelled: list[int], steps: int
) -> None:
    wheel = TimingWheel(now)
    for key, due in entries:
        wheel.insert(key, now + due)
    for key in cancelled:
        wheel.cancel(key)
    wheel.advance(now + steps - 1)
    told = wheel.upcoming()
    assert len(told) == len(set(told))
    assert set(told) == {key for key, _ in wheel.advance(now + steps)}


# Half minutes again; entries from before, which may have to move down yet, and later ones.
@given(
    st.integers(0, 500).map(lambda halves: 30 * halves),
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 130).map(lambda halves: 30 * halves)), max_size=40),
    st.integers(0, 130).map(lambda halves: 30 * halves),
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 6).map(lambda halves: 30 * halves)), max_size=40),
    st.sampled_from([2, 30, 60, 90, 120]),
)
def test_what_is_further_ahead_is_what_that_second_will_deliver(
    now: int, early: list[tuple[int, int]], passed: int, later: list[tuple[int, int]], ahead: int
) -> None:
    wheel = TimingWheel(now)
    for key, due in early:
        wheel.insert(key, now + due)
    wheel.advance(now + passed)
    for key, due in later:
        wheel.insert(key, now + passed + due)
    found, crowd = wheel.upcoming(ahead), wheel.crowd(ahead)
    wheel.advance(now + passed + ahead - 1)
    delivered = [key for key, _ in wheel.advance(now + passed + ahead)]
    assert sorted(found) == sorted(delivered)
    assert crowd >= len(found)


def test_what_is_overdue_leaves_nothing_behind() -> None:
    wheel = TimingWheel(7_200)
    for second in range(1_000):
        wheel.insert(second, 6_000 + second)
        wheel.insert(1_000 + second, 7_201 + second % 50)
    assert len(wheel.advance(7_300)) == 2_000
    assert wheel._moments == {}


def test_what_has_not_moved_down_yet_is_seen_further_ahead_too() -> None:
    wheel = TimingWheel(7_200)
    wheel.insert(1, 7_350)  # by the minute, for it is more than two ahead
    wheel.advance(7_300)
    assert wheel.upcoming(50) == [1]
    assert wheel.upcoming(49) == wheel.upcoming(51) == []
