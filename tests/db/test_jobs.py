"""Jobs: added, found unchanged, in conflict, replaced; their schedules shared."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import asyncpg
import msgspec

from hourhand.core.job import JobOptions, define_job
from hourhand.core.registry import Registry

NOW = datetime(2026, 11, 15, tzinfo=UTC)


async def put(
    sql: asyncpg.Connection, schema: str, name: str, text: str = "0 9 * * 1", *, timezone: str = "UTC", payload: Any = None,
    replace: bool = False, now: datetime = NOW, **settings: Any,
) -> asyncpg.Record:  # fmt: skip
    given = JobOptions(task="work", schedule=text, timezone=timezone, payload=payload, **settings)
    plain = define_job(name, given, now=now, registry=Registry()).plain(5, now)
    definition = msgspec.json.encode(plain).decode()
    return await sql.fetchrow(f"SELECT * FROM {schema}.put_job($1::text::jsonb, $2)", definition, replace)


async def test_the_same_again_changes_nothing_another_is_a_conflict_unless_replaced(sql: asyncpg.Connection, schema: str) -> None:
    first = await put(sql, schema, "report")
    assert (first["outcome"], first["next_at"]) == ("added", datetime(2026, 11, 16, 9, tzinfo=UTC))
    again = await put(sql, schema, "report")
    assert tuple(again) == (first["job_id"], "unchanged", first["next_at"])
    assert (await put(sql, schema, "report", payload={"n": 1}))["outcome"] == "conflict"
    assert await sql.fetchval(f"SELECT payload FROM {schema}.jobs") == "{}"
    changed = await put(sql, schema, "report", payload={"n": 1}, replace=True)
    assert (changed["job_id"], changed["outcome"]) == (first["job_id"], "replaced")
    assert await sql.fetchval(f"SELECT version FROM {schema}.jobs") == 2


async def test_a_change_that_leaves_the_schedule_alone_keeps_the_pending_firing(sql: asyncpg.Connection, schema: str) -> None:
    await put(sql, schema, "report", "every 90s")
    before = await sql.fetchrow(f"SELECT schedule_id, active_since FROM {schema}.jobs")
    later = datetime(2026, 11, 15, 0, 1, tzinfo=UTC)
    assert (await put(sql, schema, "report", "every 90s", now=later))["outcome"] == "unchanged", "an interval keeps its anchor"
    await put(sql, schema, "report", "every 90s", payload={"n": 2}, replace=True, now=later)
    assert await sql.fetchrow(f"SELECT schedule_id, active_since FROM {schema}.jobs") == before
    await put(sql, schema, "report", "every 60s", replace=True, now=later)
    after = await sql.fetchrow(f"SELECT schedule_id, active_since FROM {schema}.jobs")
    assert after["schedule_id"] != before["schedule_id"]
    assert after["active_since"] > before["active_since"]


async def test_jobs_of_a_shard_share_the_row_of_their_schedule(sql: asyncpg.Connection, schema: str) -> None:
    for n in range(600):
        await put(sql, schema, f"job-{n}")
    rows = await sql.fetchrow(
        f"SELECT (SELECT count(*) FROM {schema}.jobs) AS jobs, (SELECT count(*) FROM {schema}.schedules) AS schedules,"
        f" (SELECT count(*) FROM {schema}.jobs j JOIN {schema}.schedules s ON s.id = j.schedule_id AND s.shard = j.shard) AS matching"
    )
    assert rows["jobs"] == rows["matching"] == 600
    assert 150 < rows["schedules"] <= 256


async def test_two_that_add_one_name_at_once_make_one_job(url: str, sql: asyncpg.Connection, schema: str) -> None:
    connections = [await asyncpg.connect(url) for _ in range(8)]
    answers = await asyncio.gather(*(put(one, schema, "only") for one in connections))
    assert sorted(answer["outcome"] for answer in answers) == ["added", *["unchanged"] * 7]
    assert len({answer["job_id"] for answer in answers}) == 1
    for one in connections:
        await one.close()


async def test_an_open_transaction_that_adds_a_job_does_not_keep_its_schedule_from_firing(
    url: str, sql: asyncpg.Connection, schema: str
) -> None:
    first = await put(sql, schema, "one")
    shard = await sql.fetchval(f"SELECT shard FROM {schema}.jobs WHERE id = $1", first["job_id"])
    slow = await asyncpg.connect(url)
    async with slow.transaction():
        # Into the very row that is about to fire.
        number = await slow.fetchval(
            f"SELECT {schema}.schedule_number($1, 'cron', '0 9 * * 1', 'UTC', 'shift', NULL, $2)", shard, first["next_at"]
        )
        moved = await sql.execute(
            f"UPDATE {schema}.schedules SET next_run_at = next_run_at + interval '7 days' WHERE id = $1", number, timeout=10
        )
        assert moved == "UPDATE 1"
    await slow.close()
