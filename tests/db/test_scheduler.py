"""Schedulers in this process, on a real database: every firing once, whoever comes and goes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.core.ring import SHARDS
from hourhand.engine import scheduler as module
from hourhand.engine.scheduler import Scheduler
from tests.db.test_firing import make_schedule
from tests.support.fleet import until


@asynccontextmanager
async def scheduling(app: Hourhand) -> AsyncIterator[Scheduler]:
    scheduler = Scheduler(await app._database(), app.settings)
    task = asyncio.create_task(scheduler.run())
    await scheduler.started.wait()
    try:
        yield scheduler
    finally:
        scheduler.ask_to_stop()
        await task


async def tick(sql: asyncpg.Connection, schema: str, shard: int) -> int:
    """A job of every second, from the next one on."""
    due = await sql.fetchval("SELECT date_trunc('second', clock_timestamp()) + interval '2 seconds'")
    schedule = await make_schedule(sql, schema, shard, due)
    await sql.execute(f"UPDATE {schema}.schedules SET expression = 'every 1s' WHERE id = $1", schedule)
    return schedule


async def gaps(sql: asyncpg.Connection, schema: str, schedule: int) -> list[timedelta]:
    """Between what the ledger has, in order, a range counting as one."""
    rows = await sql.fetch(
        f"SELECT scheduled_at, until FROM {schema}.firings WHERE schedule_id = $1 ORDER BY scheduled_at", schedule
    )
    return [later["scheduled_at"] - earlier["until"] for earlier, later in itertools.pairwise(rows)]


async def test_every_second_fires_once_while_schedulers_come_and_go(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    schedules = [await tick(sql, schema, shard) for shard in range(0, SHARDS, 16)]

    async def fired(count: int) -> None:
        async def enough() -> bool:
            return bool(
                await sql.fetchval(f"SELECT count(DISTINCT schedule_id) FROM {schema}.firings") == len(schedules)
                and await sql.fetchval(
                    f"SELECT min(n) FROM (SELECT sum(count) AS n FROM {schema}.firings GROUP BY schedule_id) AS x"
                )
                >= count
            )

        await until(enough, f"{count} firings of each schedule")

    async with scheduling(app) as first:
        await fired(2)
        async with scheduling(app) as second:

            async def shared() -> bool:
                return (
                    bool(first.elector.held)
                    and bool(second.elector.held)
                    and len(first.elector.held) + len(second.elector.held) == SHARDS
                )

            await until(shared, "the shards to be shared")
            await fired(5)
        await fired(8)
        assert len(first.elector.held) == SHARDS
    for schedule in schedules:
        assert set(await gaps(sql, schema, schedule)) == {timedelta(seconds=1)}
    ledger = await sql.fetchval(f"SELECT sum(runs) FROM {schema}.firings")
    runs = await sql.fetchrow(f"SELECT count(*), count(DISTINCT (job_id, scheduled_at)) FROM {schema}.ready")
    assert tuple(runs) == (ledger, ledger), "one firing, one run"


async def test_a_schedule_that_was_behind_is_judged_and_goes_on(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    due = await sql.fetchval("SELECT date_trunc('minute', clock_timestamp()) - interval '3 hours'")
    schedule = await make_schedule(sql, schema, 9, due, misfire_grace="60")
    async with scheduling(app):

        async def moved() -> bool:
            return bool(
                await sql.fetchval(f"SELECT next_run_at > clock_timestamp() FROM {schema}.schedules WHERE id = $1", schedule)
            )

        await until(moved, "the schedule to catch up")
    row = await sql.fetchrow(f"SELECT count, runs, late FROM {schema}.firings")
    assert row["count"] >= 180
    assert row["late"]
    decided = await sql.fetchrow(f"SELECT outcome, count FROM {schema}.decisions")
    assert decided["outcome"] == "coalesced"
    assert decided["count"] + row["runs"] == row["count"], "every instant either ran or is on record"


async def test_a_new_schedule_reaches_its_owner_by_its_word(
    app: Hourhand, sql: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_EVERY", float("inf"))
    async with scheduling(app) as scheduler:

        async def swept() -> bool:
            return len(scheduler._swept) == SHARDS

        await until(swept, "a look at all shards")
        schedule = await tick(sql, schema, 3)
        due = await sql.fetchval(
            f"SELECT extract(epoch FROM next_run_at)::float8 FROM {schema}.schedules WHERE id = $1", schedule
        )
        await sql.execute("SELECT pg_notify($1, $2)", schema, f"s:3:{schedule}:{due}")

        async def fired() -> bool:
            return bool(await sql.fetchval(f"SELECT count(*) FROM {schema}.firings") > 1)

        await until(fired, "two firings")


async def test_a_hint_that_comes_twice_fires_once(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    """After an outage a schedule may be waited for and hinted at again; it is late by several instants then."""
    due = await sql.fetchval("SELECT date_trunc('minute', clock_timestamp()) - interval '5 minutes'")
    schedule = await make_schedule(sql, schema, 3, due, missed_window="'RUN_ALL'", misfire_grace="1e6")
    async with scheduling(app) as scheduler:

        async def fired() -> bool:
            return bool(await sql.fetchval(f"SELECT count(*) FROM {schema}.firings"))

        await until(fired, "it to catch up")
        await sql.execute(f"DELETE FROM {schema}.firings")
        await sql.execute(f"TRUNCATE {schema}.ready")
        await sql.execute(f"UPDATE {schema}.schedules SET next_run_at = $1", due)
        await scheduler.firer.fire_all([schedule, schedule])
    rows = await sql.fetch(f"SELECT scheduled_at, count(*) AS runs FROM {schema}.ready GROUP BY 1")
    assert len(rows) >= 5
    assert {row["runs"] for row in rows} == {1}


async def test_one_bad_schedule_stops_nobody(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    """A zone that this machine does not know; an instant that the ledger has already."""
    good = await tick(sql, schema, 5)
    bad = await tick(sql, schema, 6)
    await sql.execute(
        f"UPDATE {schema}.schedules SET kind = 'cron', expression = '* * * * * *', timezone = 'Mars/Olympus' WHERE id = $1", bad
    )
    twice = await tick(sql, schema, 7)
    await sql.execute(
        f"INSERT INTO {schema}.firings SELECT id, next_run_at, next_run_at, now(), 1, 1, 1, 1, false FROM {schema}.schedules WHERE id = $1",
        twice,
    )
    async with scheduling(app):

        async def goes_on() -> bool:
            return bool(await sql.fetchval(f"SELECT count(*) FROM {schema}.firings WHERE schedule_id = $1", good) >= 6)

        await until(goes_on, "the good one to be fired on and on")
    assert len(await app.jobs.list()) == 3
