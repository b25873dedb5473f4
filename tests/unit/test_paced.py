"""Questions that may take long."""

from __future__ import annotations

import pytest

from hourhand.core.clock import Clock
from hourhand.engine.paced import PACE, Paced


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
    one = Paced(walk, 0)
    walk.takes = 0.09
    assert [await one.renewed() for _ in range(3)] == [True] * 3
    assert one.answer == walk.asked == 3


async def test_what_takes_long_is_asked_for_a_part_of_the_time(walk: Walk) -> None:
    one = Paced(walk, 0)
    walk.takes = 4.0
    assert await one.renewed()
    for _ in range(19):
        walk.now += PACE * 4 / 20
        assert not await one.renewed()
    assert one.answer == walk.asked == 1, "the answer holds"
    walk.now += PACE * 4 / 20
    assert await one.renewed()


async def test_what_has_an_interval_is_asked_no_more_often(walk: Walk) -> None:
    one = Paced(walk, 0, every=30)
    assert await one.renewed()
    walk.now += 29
    assert not await one.renewed()
    walk.now += 2
    assert await one.renewed()


async def test_what_fails_after_long_is_not_asked_again_at_once(walk: Walk) -> None:
    one = Paced(walk, 0)
    walk.takes, walk.fails = 30.0, True
    with pytest.raises(TimeoutError):
        await one.renewed()
    walk.now += 10
    assert not await one.renewed()
    assert one.answer == 0
