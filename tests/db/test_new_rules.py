"""A new release of the time zone rules: what another has computed is computed again, and only then fires."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.core.clock import Clock
from hourhand.core.ring import SHARDS
from hourhand.core.zones import tzdata_version
from hourhand.engine.scheduler import Scheduler
from tests.db.test_firing import make_node

HOUR = timedelta(hours=1)


@pytest.fixture
async def scheduler(app: Hourhand, sql: asyncpg.Connection, schema: str) -> AsyncIterator[Scheduler]:
    """One that has not looked around yet, where another release of the rules has put every firing an hour too late."""
    await app.jobs.add("berlin", task="work", schedule="0 9 * * *", timezone="Europe/Berlin")
    await app.jobs.add("rome", task="work", schedule="0 9 * * *", timezone="Europe/Rome")
    await app.jobs.add("utc", task="work", schedule="0 9 * * *")
    await sql.execute(f"UPDATE {schema}.schedules SET next_run_at = next_run_at + interval '1 hour'")
    await sql.execute(f"UPDATE {schema}.shards SET tzdata = '2020a'")
    one = Scheduler(await app._database(), app.settings)
    one.node.id = await make_node(sql, schema)
    yield one
    await one._shards.close()


async def next_runs(app: Hourhand) -> dict[str, datetime | None]:
    return {one.name: one.next_run_at for one in await app.jobs.list()}


async def mind_all(scheduler: Scheduler) -> None:
    while scheduler.elector.strangers():
        await scheduler._mind_zones()


async def test_new_time_zone_rules_move_what_is_ahead(
    app: Hourhand, scheduler: Scheduler, sql: asyncpg.Connection, schema: str
) -> None:
    wrong = await next_runs(app)
    await scheduler.elector.run_once()
    assert (len(scheduler.elector.owned), scheduler.elector.held) == (SHARDS, {}), "nothing fires as it is"
    await mind_all(scheduler)
    assert len(scheduler.elector.held) == SHARDS
    right = {name: at - HOUR for name, at in wrong.items() if at}
    assert await next_runs(app) == {**right, "utc": wrong["utc"]}, "only what goes by a zone's clock"
    assert await sql.fetchval(f"SELECT count(DISTINCT tzdata) FROM {schema}.shards") == 1
    decided = await sql.fetchrow(f"SELECT outcome, reason FROM {schema}.decisions")
    assert decided["outcome"] == "moved"
    assert "tzdata 2020a to" in decided["reason"]
    lines = await app.jobs.why("berlin", since=datetime.now(UTC), until=datetime.now(UTC) + timedelta(days=2))
    assert "moved" in {line.outcome for line in lines}


async def test_what_passes_while_a_shard_waits_for_its_zones_is_moved_too(
    app: Hourhand, scheduler: Scheduler, sql: asyncpg.Connection, schema: str
) -> None:
    wrong = await next_runs(app)
    await scheduler.elector.run_once()
    await sql.execute(f"UPDATE {schema}.schedules SET next_run_at = now() - interval '5 minutes'")
    await sql.execute(f"UPDATE {schema}.shards SET taken_at = now() - interval '10 minutes'")
    await mind_all(scheduler)
    assert wrong["berlin"] is not None
    assert (await next_runs(app))["berlin"] == wrong["berlin"] - HOUR


async def test_whoever_changes_a_job_holds_up_nobody_elses_new_rules(
    app: Hourhand, scheduler: Scheduler, sql: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = await next_runs(app)
    right = {name: at - HOUR for name, at in wrong.items() if at}
    await scheduler.elector.run_once()
    async with sql.transaction():
        await sql.execute(f"UPDATE {schema}.schedules SET revision = revision + 1 WHERE timezone = 'Europe/Berlin'")
        await asyncio.wait_for(mind_all(scheduler), 20)
        assert await next_runs(app) == {**wrong, "rome": right["rome"]}
        assert len(scheduler.elector.held) == SHARDS, "all others in its shard fire"
    await scheduler.elector.run_once()
    assert len(scheduler.elector.held) == SHARDS, "and go on to"
    later = Clock.monotonic() + 60
    monkeypatch.setattr(Clock, "monotonic", lambda: later)
    assert len(scheduler.elector.strangers()) == 1
    await mind_all(scheduler)
    assert await next_runs(app) == {**right, "utc": wrong["utc"]}


async def test_which_release_a_shard_has_is_asked_when_it_is_ours(
    scheduler: Scheduler, sql: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sql.execute(f"UPDATE {schema}.shards SET tzdata = $1", tzdata_version())
    take = scheduler._shards.take_shards

    async def late(*arguments: Any) -> dict[int, int]:
        """Who had them before writes it down before they are taken."""
        await sql.execute(f"UPDATE {schema}.shards SET tzdata = '2020a'")
        return await take(*arguments)

    monkeypatch.setattr(scheduler._shards, "take_shards", late)
    await scheduler.elector.run_once()
    assert scheduler.elector.held == {}
