"""Questions that may take long."""

from __future__ import annotations

import pytest

from hourhand.core.clock import Clock
from hourhand.engine.paced import FAILED, PACE, Paced


class Walk:
    """A question that takes as long as it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.takes, self.asked, self.fails = 1_000.0, 0.0, 0, False
        monkeypatch.setattr(Clock, "monotonic", staticmethod(lambda: self.now))

    async def __call__(self) -> int:
        self.now += self.takes
        self.asked += 1
        if self.fails:
            raise TimeoutError
        return self.asked


@pytest.fixture
def walk(monkeypatch: pytest.MonkeyPatch) -> Walk:
    return Walk(monkeypatch)


async def test_what_is_quick_is_asked_whenever_it_is_wanted(walk: Walk) -> None:
    one = Paced(walk)
    walk.takes = 0.09
    assert [await one.ask() for _ in range(3)] == [1, 2, 3]


async def test_in_one_look_it_is_asked_once(walk: Walk) -> None:
    one = Paced(walk)
    walk.takes = 1.0
    assert [await one.ask("a"), await one.ask("a"), await one.ask("b"), await one.ask()] == [1, 1, None, None]
    walk.now += PACE
    assert [await one.ask("c"), await one.ask("c")] == [2, 2]


async def test_what_takes_long_is_asked_for_a_part_of_the_time(walk: Walk) -> None:
    one = Paced(walk)
    walk.takes = 4.0
    assert await one.ask() == 1
    for _ in range(19):
        walk.now += PACE * 4 / 20
        assert await one.ask() is None
    walk.now += PACE * 4 / 20
    assert await one.ask() == 2


async def test_what_somebody_counts_on_is_put_off_for_so_long_at_most(walk: Walk) -> None:
    one = Paced(walk, most=60)
    walk.takes = 20.0
    assert await one.ask() == 1
    walk.now += 59
    assert await one.ask() is None
    walk.now += 2
    assert await one.ask() == 2


async def test_what_has_an_interval_is_asked_no_more_often(walk: Walk) -> None:
    one = Paced(walk, every=30)
    assert await one.ask() == 1
    walk.now += 29
    assert await one.ask() is None
    walk.now += 2
    assert await one.ask() == 2


async def test_what_has_failed_is_known_in_that_look_and_asked_again_after_a_while(walk: Walk) -> None:
    one = Paced(walk)
    assert await one.ask("a") == 1
    walk.takes, walk.fails = 30.0, True
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await one.ask("b")
    assert walk.asked == 2
    walk.now += FAILED - 1
    assert await one.ask("c") is None, "and not what was known before"
    walk.now += 2
    walk.fails = False
    assert await one.ask("d") == 3
