"""What a worker that has nothing to do asks of the database."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.core.clock import Clock
from hourhand.engine import stealer as module
from hourhand.engine.stealer import Stealer
from hourhand.engine.worker import Worker, WorkerOptions
from hourhand.storage.admission import Rulebook
from tests.db.test_worker import working
from tests.support.fleet import until

pytestmark = pytest.mark.once


async def counts(app: Hourhand) -> dict[str, int]:
    return {name: trip.count for name, trip in (await app._database()).trips.by_statement.items()}


async def test_a_worker_that_is_alone_and_idle_asks_little(url: str, schema: str) -> None:
    app = Hourhand(url, schema=schema)

    @app.task
    async def noop() -> None: ...

    async with app, working(app):
        await asyncio.sleep(4)  # past its start
        before = await counts(app)
        await asyncio.sleep(10)
        asked = {name: count - before.get(name, 0) for name, count in (await counts(app)).items() if count != before.get(name, 0)}
    # Two a second, and what happens to fall into these ten. A machine that is slow asks less.
    assert sum(asked.values()) <= 24, asked


async def test_rules_are_read_when_they_change(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    @app.task
    async def noop() -> None: ...

    async with working(app) as worker:
        await (await noop.enqueue()).result(20)
        read = (await counts(app))["read_rules"]
        await look(worker)
        assert (await counts(app))["read_rules"] == read, "they are as they were"
        await app.holds.add(task="noop")

        async def known(holds: int) -> bool:
            return len(worker.admitter.rules.holds) == holds

        await until(lambda: known(1), "the worker to know of the hold")
        # The primary is gone, and with it the last page of the rulebook; that of the other one has the same number.
        async with sql.transaction():
            await sql.execute(f"INSERT INTO {schema}.holds (task) VALUES ('other')")
            await sql.execute(f"UPDATE {schema}.rulebook SET version = $1", worker.admitter.rules.version)
        await look(worker)
        assert await known(1), "by its number it is the page that is known"
        worker.claimer.forget()
        await until(lambda: known(2), "the worker to know the rules of the other database")


async def test_queues_are_never_seen_as_they_were_before_the_rules(
    app: Hourhand, sql: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(await app._database(), app.settings, app.registry, WorkerOptions())
    await worker.claimer.make_queues(["default"])
    read = worker.admitter._gateway.read_rules

    async def changed_just_before() -> Rulebook:
        await sql.execute(f"UPDATE {schema}.queues SET managed = true")
        return await read()

    monkeypatch.setattr(worker.admitter._gateway, "read_rules", changed_just_before)
    await worker.claimer._look(Clock.monotonic())
    assert worker.claimer._survey.managed == worker.claimer._survey.names.keys()
    await worker.claimer.close()


async def look(worker: Worker) -> None:
    before = worker.claimer._survey
    worker.claimer.hear("q")

    async def done() -> bool:
        return worker.claimer._survey is not before

    await until(done, "another survey")


class Idle:
    """A worker without work, which finds nobody who has too much, unless it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, hears: bool = True) -> None:
        self.now, self.loaded = 1_000.0, list[int]()
        monkeypatch.setattr(Clock, "monotonic", staticmethod(lambda: self.now))
        executor: Any = SimpleNamespace(deque=[], busy=0, concurrency=5, known=tuple)
        node: Any = SimpleNamespace(id=1, hears=hears, lease_deadline=float("inf"))
        gateway: Any = SimpleNamespace(overloaded=self._overloaded, notify=self._say, gifts=self._gifts)
        self.stealer = Stealer(gateway, node, executor, SimpleNamespace(known=tuple), 5.0, self._say)  # type: ignore[arg-type]

    async def _overloaded(self, worker: int, most: int) -> list[int]:
        return self.loaded

    async def _say(self, words: object) -> None: ...

    async def _gifts(self, worker: int, known: object) -> list[object]:
        return []

    async def pauses(self, count: int, claims: int) -> list[float]:
        found = []
        for _ in range(count):
            began, self.now = self.now, self.stealer.next_look(claims)
            found.append(round(self.now - began, 3))
            await self.stealer.ask(claims)
        return found


async def test_one_that_stays_idle_looks_for_others_work_more_and_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Idle(monkeypatch)
    await one.stealer.ask(0)
    assert await one.pauses(4, 0) == [0.1, 0.2, 0.4, 0.8]
    assert await one.pauses(7, 0) == [5, 10, 15, 20, 25, 30, 30]
    assert await one.pauses(3, 1) == [module.AGAIN, 5, 10], "somebody claimed"
    one.loaded = [7]
    assert await one.pauses(3, 1) == [15, module.AGAIN, module.AGAIN]
    one.loaded = []
    assert await one.pauses(3, 1) == [module.AGAIN, 10, 15]
    one.stealer.forget()
    assert await one.pauses(2, 1) == [5, 10], "words may have been missed"


async def test_who_hears_nothing_looks_at_every_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Idle(monkeypatch, hears=False)
    await one.stealer.ask(0)
    assert await one.pauses(8, 0) == [0.1, 0.2, 0.4, 0.8, 5, 5, 5, 5]
