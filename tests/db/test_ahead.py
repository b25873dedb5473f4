"""What the next second brings is planned before it begins; and whatever happens in between, it fires as it should."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.core.errors import DatabaseUnavailable
from hourhand.core.wheel import TimingWheel
from hourhand.engine.scheduler import Scheduler
from hourhand.storage.schedules import Planned
from tests.support.fleet import until

pytestmark = pytest.mark.once


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine, there is time to plan."""
    monkeypatch.setattr("hourhand.engine.firer.AHEAD_UNTIL", -3_600.0)


class Ahead:
    """A scheduler that does nothing by itself, and a job that is due in a moment, for which it has a plan; and more like it if wanted."""

    def __init__(self, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
        self._app, self._sql, self._schema = app, sql, schema

    async def prepare(self, more: int = 0, ahead: int = 1, **options: Any) -> None:
        self.scheduler = Scheduler(await self._app._database(), self._app.settings)
        await self.scheduler.node.start()
        await self.scheduler.elector.run_once()
        while True:
            now: datetime = await self._sql.fetchval("SELECT clock_timestamp()")
            self.due = now.replace(microsecond=0) + timedelta(seconds=3)
            schedule = f"{self.due.second} {self.due.minute} * * * *"
            await self._app.jobs.add("one", task="noop", schedule=schedule, replace=True, **options)
            self.schedule: int = await self._sql.fetchval(f"SELECT schedule_id FROM {self._schema}.jobs WHERE name = 'one'")
            names = (f"{self.due.second}-{n}" for n in range(more))
            await self._app.jobs.add_many({"name": name, "task": "noop", "schedule": schedule, **options} for name in names)
            due = await self._sql.fetch(f"SELECT id FROM {self._schema}.schedules WHERE next_run_at = $1", self.due)
            self.hints = [row[0] for row in due]
            self.scheduler.firer.wheel = TimingWheel(int(self.due.timestamp()) - ahead)
            for hint in self.hints:
                self.scheduler.firer.wheel.insert(hint, int(self.due.timestamp()))
            await self.scheduler.firer.plan_ahead()
            if self.plans.keys() == {*self.hints}:
                return  # else the machine was slow, and its time came first

    @property
    def plans(self) -> dict[int, Planned]:
        found = self.scheduler.firer._ahead.get(int(self.due.timestamp()), {})
        return {number: plan for number, plan in found.items() if plan is not None}

    async def passed(self, late: float = 0.0) -> bool:
        return bool(await self._sql.fetchval("SELECT clock_timestamp() > $1", self.due + timedelta(seconds=late)))

    async def fire(self, late: float = 0.0) -> None:
        await until(lambda: self.passed(late), "its instant")
        self.scheduler.firer.wheel.now = int(self.due.timestamp())
        waiting = list(self.hints)
        while waiting:
            await self.scheduler.firer.fire_all(waiting)

    async def runs(self) -> int:
        count: int = await self._sql.fetchval(f"SELECT count(*) FROM {self._schema}.ready WHERE scheduled_at = $1", self.due)
        return count

    async def ledger(self) -> list[tuple[int, bool]]:
        rows = await self._sql.fetch(f"SELECT runs, late FROM {self._schema}.firings WHERE scheduled_at = $1", self.due)
        return [tuple(row) for row in rows]


@pytest.fixture
async def ahead(app: Hourhand, sql: asyncpg.Connection, schema: str) -> AsyncIterator[Ahead]:
    one = Ahead(app, sql, schema)
    try:
        yield one
    finally:
        await one.scheduler._shut_down()


@asynccontextmanager
async def without_a_look(app: Hourhand) -> AsyncIterator[None]:
    trips = (await app._database()).trips.by_statement
    before = trips["hinted_schedules"].count
    yield
    assert trips["hinted_schedules"].count == before, "the table was asked again"


async def test_at_its_time_it_is_fired_and_nothing_else(
    ahead: Ahead, app: Hourhand, sql: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hourhand.engine.firer.ON_TIME", 60.0)  # however slow the machine
    await ahead.prepare()
    async with without_a_look(app):
        await ahead.fire()
    assert await ahead.ledger() == [(1, False)]
    assert await ahead.runs() == 1
    assert await sql.fetchval(
        f"SELECT next_run_at FROM {schema}.schedules WHERE id = $1", ahead.schedule
    ) == ahead.due + timedelta(hours=1)
    await ahead.scheduler.firer.fire_all([ahead.schedule])
    assert await ahead.runs() == 1, "a hint that comes again finds nothing"


async def test_a_mountain_that_is_further_ahead_is_planned_too(
    ahead: Ahead, app: Hourhand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hourhand.engine.firer.MOUNTAIN", 50)
    await ahead.prepare(more=1_000, ahead=3)
    for kept in ("due_at", "next_at", "patience"):
        assert len({id(getattr(plan, kept)) for plan in ahead.plans.values()}) == 1, "what many plans have in common they share"
    async with without_a_look(app):
        await ahead.fire()
    assert await ahead.runs() == 1_001
    assert ahead.plans == {}


@pytest.mark.usefixtures("unhurried")
async def test_nothing_is_kept_of_seconds_that_have_passed(ahead: Ahead) -> None:
    await ahead.prepare()
    assert ahead.plans
    ahead.scheduler.firer.wheel.advance(int(ahead.due.timestamp()))
    await ahead.scheduler.firer.plan_ahead()
    assert ahead.plans == {}


@pytest.mark.usefixtures("unhurried")
async def test_a_few_that_are_further_ahead_wait_for_their_last_second(ahead: Ahead) -> None:
    await ahead.prepare()
    firer = ahead.scheduler.firer
    firer._ahead.clear()
    firer.wheel = TimingWheel(int(ahead.due.timestamp()) - 2)
    firer.wheel.insert(ahead.schedule, int(ahead.due.timestamp()))
    await firer.plan_ahead()
    assert ahead.plans == {}


@pytest.mark.usefixtures("unhurried")
async def test_no_more_is_planned_than_there_is_room_for(ahead: Ahead, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MOST_AHEAD", 20), ("AHEAD_AT_ONCE", 20), ("MOUNTAIN", 50)):
        monkeypatch.setattr(f"hourhand.engine.firer.{name}", value)
    await ahead.prepare(more=1_000)
    firer, due = ahead.scheduler.firer, int(ahead.due.timestamp())
    assert len(ahead.plans) > 20, "in its last second there is room for all"
    firer._ahead.clear()
    firer.wheel = TimingWheel(due - 3)
    for hint in ahead.hints:
        firer.wheel.insert(hint, due)
    firer.wheel.insert(ahead.schedule, due - 2)
    await firer.plan_ahead()
    assert len(ahead.plans) == 20
    firer._ahead.pop(due - 2)
    await firer.plan_ahead()
    assert due - 2 in firer._ahead, "a mountain that is further ahead leaves room for the next second"
    await ahead.fire()
    assert await ahead.runs() == 1_001


@pytest.mark.usefixtures("unhurried")
async def test_what_comes_after_the_others_were_planned_is_planned_too(ahead: Ahead, app: Hourhand) -> None:
    await ahead.prepare(more=50)
    firer, (first, *others) = ahead.scheduler.firer, ahead.hints
    firer._ahead.clear()
    firer.wheel = TimingWheel(int(ahead.due.timestamp()) - 1)
    for hint in others:
        firer.wheel.insert(hint, int(ahead.due.timestamp()))
    await firer.plan_ahead()
    assert ahead.plans.keys() == {*others}
    async with without_a_look(app):
        await firer.plan_ahead()
    firer.wheel.insert(first, int(ahead.due.timestamp()))
    await firer.plan_ahead()
    assert ahead.plans.keys() == {first, *others}


@pytest.mark.usefixtures("unhurried")
async def test_what_cannot_be_planned_is_asked_about_once(ahead: Ahead, app: Hourhand) -> None:
    await ahead.prepare()
    firer = ahead.scheduler.firer
    firer._ahead.clear()
    firer._blocked.add(ahead.schedule)
    await firer.plan_ahead()
    async with without_a_look(app):
        await firer.plan_ahead()
    assert ahead.plans == {}
    firer._blocked.clear()
    firer.forget(ahead.schedule)
    await firer.plan_ahead()
    assert ahead.plans.keys() == {ahead.schedule}, "unless it was changed"


async def test_however_late_while_its_jobs_put_up_with_it_its_plan_is_good(ahead: Ahead, app: Hourhand) -> None:
    await ahead.prepare()
    async with without_a_look(app):
        await ahead.fire(late=1.5)
    assert await ahead.ledger() == [(1, False)]
    assert await ahead.runs() == 1


async def test_a_stricter_job_that_comes_after_the_plan_is_judged_by_itself(
    ahead: Ahead, sql: asyncpg.Connection, schema: str
) -> None:
    await ahead.prepare()
    await sql.execute(f"UPDATE {schema}.jobs SET misfire_grace = 0.5, missed_window = 'SKIP'")
    await ahead.fire(late=1.5)
    assert (await ahead.ledger(), await ahead.runs()) == ([(0, True)], 0)


@pytest.mark.parametrize("more", [0, 150])
async def test_a_stricter_job_that_joins_after_the_plan_is_judged_by_itself(
    ahead: Ahead, app: Hourhand, sql: asyncpg.Connection, schema: str, more: int
) -> None:
    """It joins one job, or so many that nobody asked them all how patient they are."""
    await ahead.prepare()
    await sql.execute(
        f"INSERT INTO {schema}.jobs (id, schedule_id, lane, shard, name, task, payload, active_since, misfire_grace, missed_window)"
        f" SELECT nextval('{schema}.job_numbers'), schedule_id, lane, shard, 'other-' || n, task, payload, active_since,"
        " CASE n WHEN 0 THEN 0.5 ELSE 60 END, CASE n WHEN 0 THEN 'SKIP' ELSE 'RUN_ONCE' END"
        f" FROM {schema}.jobs, generate_series(0, $1) AS n WHERE name = 'one'",
        more,
    )
    await ahead.fire(late=1.5)
    assert (await ahead.ledger(), await ahead.runs()) == ([(more + 1, True)], more + 1)


async def test_the_word_of_a_change_takes_the_plan_back(ahead: Ahead, sql: asyncpg.Connection, schema: str) -> None:
    await ahead.prepare()
    shard = await sql.fetchval(f"SELECT shard FROM {schema}.jobs WHERE name = 'one'")
    ahead.scheduler._hear(f"s:{shard}:{ahead.schedule}:{ahead.due.timestamp()}")
    assert ahead.plans == {}


async def test_plans_for_shards_that_were_given_away_are_not_sent(ahead: Ahead) -> None:
    await ahead.prepare()
    ahead.scheduler.elector.held = {}
    await ahead.fire()
    assert (await ahead.ledger(), ahead.scheduler.firer.refused) == ([], 0)


@pytest.mark.parametrize("how", ["ahead", "when it is due", "late"])
async def test_a_mountain_is_made_in_parts(
    ahead: Ahead, sql: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    for name, value in (("ON_TIME", 1.0 if how == "late" else 60.0), ("RUNS_AT_ONCE", 10), ("MOST_INSTANTS", 10)):
        monkeypatch.setattr(f"hourhand.engine.firer.{name}", value)
    await ahead.prepare(more=1_000, **({"misfire_grace": 0.5, "missed_window": "RUN_ONCE"} if how == "late" else {}))
    firer = ahead.scheduler.firer
    if how != "ahead":
        firer._ahead.clear()
    rows = await sql.fetch(f"SELECT schedule_id, count(*) FROM {schema}.jobs GROUP BY 1")
    jobs, sent = {row[0]: row[1] for row in rows}, list[list[int]]()
    statement = "fire_late" if how == "late" else "fire"
    fire = getattr(firer._gateway, statement)

    async def watched(node: int, epochs: dict[int, int], planned: list[Planned], *rest: Any, **more: Any) -> Any:
        sent.append([one.id for one in planned])
        return await fire(node, epochs, planned, *rest, **more)

    monkeypatch.setattr(firer._gateway, statement, watched)
    await ahead.fire(late=1.5 if how == "late" else 0)
    assert sorted(one for part in sent for one in part) == sorted(ahead.hints), "each once"
    assert all(len(part) == 1 or sum(jobs[one] for one in part) <= 10 for part in sent), "none starts before all are made"
    order = [jobs[one] for part in sent for one in part]
    assert order == sorted(order), "the small ones first"
    assert await ahead.runs() == 1_001


@pytest.mark.parametrize("how", ["ahead", "when it is due"])
async def test_a_connection_that_is_lost_between_the_parts_loses_and_repeats_none(
    ahead: Ahead, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    for name, value in (("ON_TIME", 60.0), ("RUNS_AT_ONCE", 10)):
        monkeypatch.setattr(f"hourhand.engine.firer.{name}", value)
    await ahead.prepare(more=1_000)
    firer = ahead.scheduler.firer
    if how != "ahead":
        firer._ahead.clear()
    await until(ahead.passed, "its instant")
    fire, times = firer._gateway.fire, 0

    async def interrupted(node: int, epochs: dict[int, int], planned: list[Planned]) -> dict[int, int]:
        nonlocal times
        times += 1
        if times == 3:
            raise DatabaseUnavailable("cut off")
        return await fire(node, epochs, planned)

    monkeypatch.setattr(firer._gateway, "fire", interrupted)
    waiting = list(ahead.hints)
    with pytest.raises(DatabaseUnavailable):
        await firer.fire_all(waiting)
    assert 0 < await ahead.runs() < 1_001
    while waiting:
        await firer.fire_all(waiting)
    assert await ahead.runs() == 1_001


async def test_what_has_no_turn_while_its_plan_is_good_is_planned_again(ahead: Ahead, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RUNS_AT_ONCE", 10), ("GOOD_FOR", -1.0)):
        monkeypatch.setattr(f"hourhand.engine.firer.{name}", value)
    await ahead.prepare(more=1_000, misfire_grace=0.5, missed_window="SKIP")
    ahead.scheduler.firer._ahead.clear()
    await until(ahead.passed, "its instant")
    waiting = list(ahead.hints)
    await ahead.scheduler.firer.fire_all(waiting)
    first = await ahead.runs()
    assert 0 < first <= 10
    assert len(waiting) > 200
    assert ahead.scheduler.firer._look <= 10, "less is looked up at once from now on"
    await ahead.fire(late=1.5)
    assert await ahead.runs() == first, "the others are too late now, and left out"


@pytest.mark.parametrize("change", ["paused", "deleted", "moved"])
async def test_what_is_changed_meanwhile_counts(ahead: Ahead, app: Hourhand, change: str) -> None:
    await ahead.prepare()
    if change == "paused":
        await app.jobs.pause("one")
    elif change == "deleted":
        await app.jobs.delete("one")
    else:
        await app.jobs.update("one", schedule="0 0 1 1 *")
    await ahead.fire()
    assert await ahead.runs() == 0


async def test_a_job_that_joins_meanwhile_fires_too(ahead: Ahead, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    await ahead.prepare()
    shard = await sql.fetchval(f"SELECT shard FROM {schema}.jobs WHERE name = 'one'")
    schedule, number = f"{ahead.due.second} {ahead.due.minute} * * * *", 0
    while await sql.fetchval(f"SELECT count(*) FROM {schema}.jobs WHERE shard = $1", shard) < 2:
        number += 1
        await app.jobs.add_many([{"name": f"{number}-{n}", "task": "noop", "schedule": schedule} for n in range(100)])
    joined = await sql.fetchval(
        f"SELECT count(*) FROM {schema}.jobs WHERE schedule_id = $1 AND active_since <= $2", ahead.schedule, ahead.due
    )
    await ahead.fire()
    assert await ahead.runs() == joined


async def test_too_late_for_its_plan_it_is_judged_like_any_other(ahead: Ahead, sql: asyncpg.Connection, schema: str) -> None:
    await ahead.prepare(misfire_grace=0.5, missed_window="SKIP")
    await ahead.fire(late=1.5)
    assert await ahead.runs() == 0
    assert await ahead.ledger() == [(0, True)]
    assert await sql.fetchval(f"SELECT outcome FROM {schema}.decisions") == "skipped"
    assert ahead.scheduler.firer.refused == 0, "a plan that is known to be too late is not sent"


async def test_a_plan_for_a_shard_that_is_lost_fires_nothing(ahead: Ahead, sql: asyncpg.Connection, schema: str) -> None:
    await ahead.prepare()
    await sql.execute(f"UPDATE {schema}.shards SET epoch = epoch + 1")
    await ahead.fire()
    assert (await ahead.ledger(), await ahead.runs()) == ([], 0)
    assert ahead.scheduler.firer.refused == 2, "told of the plan made before, and of the one made anew"
