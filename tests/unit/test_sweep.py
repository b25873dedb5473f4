"""Which shards a scheduler asks the table about, and when."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from hourhand.core.errors import DatabaseUnavailable
from hourhand.core.ring import SHARDS
from hourhand.core.settings import Settings
from hourhand.core.zones import tzdata_version
from hourhand.engine import scheduler as module
from hourhand.engine.scheduler import SWEEP_EVERY, Scheduler
from hourhand.storage.database import Database


class Fixture:
    """A scheduler of all shards that is not connected, and where it would ask."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.now = list[int](), 5_000_000.3
        self.meanwhile: Callable[[], None] = lambda: None
        monkeypatch.setattr(module.Clock, "monotonic", lambda: self.now)
        self.scheduler = Scheduler(Database(Settings()), Settings())
        self.own(dict.fromkeys(range(SHARDS), 1))
        monkeypatch.setattr(self.scheduler._shards, "near_schedules", self._near_schedules)

    def own(self, shards: dict[int, int], strange: Sequence[int] = ()) -> None:
        self.scheduler.elector._keep(shards, ["2020a" if shard in strange else tzdata_version() for shard in range(SHARDS)])

    async def _near_schedules(self, shards: Sequence[int], _seconds: float) -> list[tuple[int, int, float]]:
        self.asked += shards
        self.meanwhile()
        return []

    def look(self) -> list[int]:
        self.asked.clear()
        asyncio.run(self.scheduler._sweep())
        return list(self.asked)


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch) -> Fixture:
    return Fixture(monkeypatch)


def test_all_at_first_then_each_once_a_minute_and_few_at_a_time(shards: Fixture) -> None:
    assert shards.look() == list(range(SHARDS))
    for _ in range(3):
        asked = Counter[int]()
        for _ in range(int(SWEEP_EVERY)):
            shards.now += 1
            some = shards.look()
            assert len(some) <= SHARDS / SWEEP_EVERY + 1
            asked.update(some)
        assert asked == Counter(range(SHARDS))


def test_who_has_not_looked_for_long_asks_about_each_once(shards: Fixture) -> None:
    shards.look()
    shards.now += 10 * SWEEP_EVERY
    assert shards.look() == list(range(SHARDS))
    assert shards.look() == []


def test_what_others_say_while_it_asks_makes_it_ask_again(shards: Fixture) -> None:
    shards.look()
    shards.now += 10
    shards.meanwhile = lambda: shards.scheduler._hear("l:")
    assert shards.look() != []
    shards.meanwhile = lambda: None
    assert shards.look() == list(range(SHARDS))


def test_a_shard_that_goes_and_returns_is_asked_about_again(shards: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def elect() -> None:
        asked = asyncio.Event()
        shards.meanwhile = asked.set
        task = asyncio.create_task(shards.scheduler._elect())
        await asyncio.wait_for(asked.wait(), 20)
        task.cancel()

    async def taken() -> set[int]:
        shards.own({**shards.scheduler.elector.held, 7: 2})
        return {7}

    shards.look()
    shards.asked.clear()
    monkeypatch.setattr(shards.scheduler.elector, "run_once", taken)
    asyncio.run(elect())
    assert shards.asked == [7]


def test_what_could_not_be_asked_about_is_asked_about_again(shards: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def elect() -> None:
        complete = asyncio.Event()

        def lost() -> None:
            shards.meanwhile = found
            raise DatabaseUnavailable("gone")

        def found() -> None:
            if len(shards.asked) >= SHARDS + module.SHARDS_AT_ONCE:
                complete.set()

        shards.meanwhile = lost
        task = asyncio.create_task(shards.scheduler._elect())
        await asyncio.wait_for(complete.wait(), 20)
        task.cancel()

    async def nothing() -> set[int]:
        return set()

    monkeypatch.setattr(shards.scheduler.elector, "run_once", nothing)
    asyncio.run(elect())
    assert shards.asked == [*range(module.SHARDS_AT_ONCE), *range(SHARDS)]


def test_while_zones_are_minded_others_are_asked_about(shards: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    strange, minded = range(10, 40), list[int]()

    async def elect() -> None:
        complete = asyncio.Event()

        async def nothing() -> set[int]:
            return set()

        async def slow(shard: int) -> list[object]:
            assert shard not in shards.asked, "as another release had it"
            shards.now += 6
            minded.append(shard)
            if len(minded) == len(strange):
                complete.set()
            return []

        async def noted(*_: object) -> None:
            pass

        monkeypatch.setattr(shards.scheduler.elector, "run_once", nothing)
        monkeypatch.setattr(shards.scheduler._shards, "zoned_schedules", slow)
        monkeypatch.setattr(shards.scheduler._shards, "set_tzdata", noted)
        task = asyncio.create_task(shards.scheduler._elect())
        await asyncio.wait_for(complete.wait(), 20)
        task.cancel()

    shards.own(shards.scheduler.elector.owned, strange)
    asyncio.run(elect())
    assert minded == list(strange)
    asked = Counter(shards.asked)
    assert min(asked[0], asked[10]) >= len(strange) * 6 / SWEEP_EVERY, "once a minute, as ever; and what has been minded too"
