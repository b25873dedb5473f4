"""The trigger layer: registering a million jobs, firing them, and how late it is under load."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import asyncpg

from benchmarks.observe import PROJECT, resident
from benchmarks.product import environment, percentile
from hourhand import Hourhand
from hourhand.core.ring import SHARDS
from hourhand.core.schedule import Schedule
from hourhand.engine.firer import BATCH
from hourhand.engine.scheduler import Scheduler

ZONES = (
    "UTC", "Europe/Berlin", "Europe/London", "America/New_York", "America/Los_Angeles", "Asia/Tokyo", "Asia/Kolkata",
    "Australia/Sydney", "America/Sao_Paulo", "Africa/Cairo", "Asia/Shanghai", "Europe/Paris", "America/Chicago",
    "America/Toronto", "Asia/Singapore", "Europe/Madrid", "Europe/Rome", "Asia/Dubai", "Africa/Lagos", "America/Mexico_City",
    "Pacific/Auckland", "Asia/Seoul", "Europe/Warsaw", "America/Bogota", "Asia/Jakarta",
)  # fmt: skip
SHARED = 10
"""Schedules that a million jobs share."""


def shared_jobs(count: int) -> Iterator[dict[str, Any]]:
    for n in range(count):
        yield {
            "name": f"shared-{n}",
            "task": "noop",
            "schedule": f"{n % SHARED} 3 * * *",
            "timezone": "Europe/Berlin",
            "payload": {"n": n},
        }


def distinct_jobs(count: int) -> Iterator[dict[str, Any]]:
    """A million different cron schedules, each once a day: second, minute, hour, zone."""
    for n in range(count):
        minute, rest = n % 60, n // 60
        hour, rest = rest % 24, rest // 24
        second, zone = rest % 60, ZONES[rest // 60 % len(ZONES)]
        text = f"{second} {minute} {hour} * * *"
        yield {"name": f"distinct-{n}", "task": "noop", "schedule": text, "timezone": zone, "payload": {"n": n}}


async def register(app: Hourhand, jobs: Iterator[dict[str, Any]]) -> float:
    """Seconds."""
    began = time.perf_counter()
    await app.jobs.add_many(jobs)
    seconds = time.perf_counter() - began
    await asyncio.sleep(1.1)  # what is made due from now on, in whole seconds, is later than the last job
    return seconds


async def make_due(sql: asyncpg.Connection, schema: str, condition: str, limit: int) -> list[int]:
    """Some schedules are due since a moment ago; their jobs were there before."""
    rows = await sql.fetch(
        f"UPDATE {schema}.schedules SET next_run_at = date_trunc('second', clock_timestamp()) WHERE id IN"
        f" (SELECT id FROM {schema}.schedules WHERE {condition} LIMIT {limit}) RETURNING id"
    )
    return [row[0] for row in rows]


@contextlib.asynccontextmanager
async def one_scheduler(app: Hourhand) -> AsyncIterator[Scheduler]:
    """In this process, with every shard, its own clockwork standing still: what is fired is fired by hand."""
    scheduler = Scheduler(await app._database(), app.settings)
    await scheduler.node.start()
    await scheduler.elector.run_once()
    assert len(scheduler.elector.held) == SHARDS
    try:
        yield scheduler
    finally:
        await scheduler._shut_down()


async def fire(scheduler: Scheduler, hints: Sequence[int]) -> float:
    began, waiting = time.perf_counter(), list(hints)
    while waiting:
        await scheduler.firer.fire_all(waiting)
    return time.perf_counter() - began


async def shared_limit(url: str, schema: str, schedules: Sequence[int]) -> float:
    """Plain SQL: the runs of all jobs of these schedules, nothing else. Runs a second."""
    connection = await asyncpg.connect(url)
    began = time.perf_counter()
    done = await connection.execute(
        f"INSERT INTO {schema}.ready (seq, run_id, job_id, scheduled_at, lane, task, payload)"
        f" SELECT nextval('{schema}.run_numbers'), currval('{schema}.run_numbers'), id, clock_timestamp(), lane, task, payload"
        f" FROM {schema}.jobs WHERE schedule_id = ANY ($1::bigint[])",
        schedules,
    )
    seconds = time.perf_counter() - began
    await connection.close()
    return int(done.split()[-1]) / seconds


async def distinct_limit(url: str, schema: str, schedules: Sequence[int]) -> float:
    """Plain SQL for schedules of one job each: move the row, write the ledger, insert the run; nothing is fenced or computed."""
    connection = await asyncpg.connect(url)
    later = datetime.now(UTC) + timedelta(days=30)
    statement = (
        f"WITH moved AS (UPDATE {schema}.schedules s SET next_run_at = given.at FROM unnest($1::bigint[], $2::timestamptz[])"
        "  AS given (id, at) WHERE s.id = given.id RETURNING s.id),"
        f" ledger AS (INSERT INTO {schema}.firings (schedule_id, scheduled_at, until, fired_at, epoch, count, node, runs, late)"
        "  SELECT id, now(), now(), now(), 1, 1, 1, 1, false FROM moved)"
        f" INSERT INTO {schema}.ready (seq, run_id, job_id, scheduled_at, lane, task, payload)"
        f" SELECT nextval('{schema}.run_numbers'), currval('{schema}.run_numbers'), j.id, clock_timestamp(), j.lane, j.task, j.payload"
        f" FROM moved m CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE schedule_id = m.id OFFSET 0) AS j"
    )
    began = time.perf_counter()
    for begin in range(0, len(schedules), BATCH):
        part = schedules[begin : begin + BATCH]
        await connection.execute(statement, part, [later] * len(part))
    seconds = time.perf_counter() - began
    await connection.close()
    return len(schedules) / seconds


@contextlib.asynccontextmanager
async def schedulers(url: str, schema: str, sql: asyncpg.Connection, count: int) -> AsyncIterator[list[subprocess.Popen[bytes]]]:
    """Scheduler processes as users run them, all shards shared out."""
    command = [sys.executable, "-m", "hourhand", "scheduler", "--log-level", "warning"]
    processes = [subprocess.Popen(command, cwd=PROJECT, env=environment(url, schema)) for _ in range(count)]
    try:
        owners = f"SELECT count(DISTINCT owner) = {count} AND count(owner) = {SHARDS} FROM {schema}.shards"
        while not await sql.fetchval(owners):
            assert all(one.poll() is None for one in processes), "a scheduler did not start"
            await asyncio.sleep(0.02)
        yield processes
    finally:
        for one in processes:
            one.send_signal(signal.SIGTERM)
        for one in processes:
            one.wait(30)


async def start_up(url: str, schema: str, sql: asyncpg.Connection) -> tuple[float, float]:
    """With everything registered: seconds from starting a scheduler until it fires, and its memory at its highest, in MiB."""
    # Spread over an hour, as a million jobs would be: a sixth of them is within the wheel's horizon.
    await sql.execute(
        f"UPDATE {schema}.schedules SET next_run_at = date_trunc('second', clock_timestamp()) + make_interval(secs => 2 + id % 3600)"
    )
    before = await sql.fetchval(f"SELECT count(*) FROM {schema}.firings")
    began = time.perf_counter()
    async with schedulers(url, schema, sql, 1) as (process,):
        while await sql.fetchval(f"SELECT count(*) FROM {schema}.firings") == before:
            await asyncio.sleep(0.01)
        seconds = time.perf_counter() - began
        await asyncio.sleep(15)  # until the wheel is full
        return seconds, resident(process.pid)


async def hot_second(app: Hourhand, url: str, schema: str, sql: asyncpg.Connection, jobs: int) -> float:
    """Jobs in ten zones, all due in the same second, three schedulers: seconds until the last one is enqueued."""
    due = (datetime.now(UTC) + timedelta(seconds=25)).replace(microsecond=0)
    texts = {}
    for zone in ZONES[:10]:
        local = due.astimezone(ZoneInfo(zone))
        texts[zone] = f"{local.second} {local.minute} {local.hour} * * *"
        assert Schedule("cron", texts[zone], zone).next_after(due - timedelta(seconds=1)) == due
    zones = list(texts)
    given = (
        {"name": f"hot-{n}", "task": "noop", "schedule": texts[zones[n % 10]], "timezone": zones[n % 10]} for n in range(jobs)
    )
    await app.jobs.add_many(given)
    async with schedulers(url, schema, sql, 3):
        assert datetime.now(UTC) < due, "registering took too long"
        question = f"SELECT count(*) FROM {schema}.ready WHERE scheduled_at = $1"
        while await sql.fetchval(question, due) < jobs:
            await asyncio.sleep(0.1)
    row = await sql.fetchrow(
        f"SELECT count(*) AS runs, count(DISTINCT job_id) AS jobs, extract(epoch FROM max(enqueued_at) - $1)::float8 AS last"
        f" FROM {schema}.ready WHERE scheduled_at = $1",
        due,
    )
    assert row is not None
    assert row["runs"] == row["jobs"] == jobs, f"{row['runs']} runs for {row['jobs']} of {jobs} jobs"
    return float(row["last"])


async def steady(app: Hourhand, url: str, schema: str, sql: asyncpg.Connection, rate: int, seconds: int) -> tuple[float, int]:
    """`rate` firings a second for a while, from three schedulers: the 99th percentile of their lateness, in seconds; how many."""
    begin = (datetime.now(UTC) + timedelta(seconds=20)).replace(microsecond=0)
    await app.jobs.add_many(
        {"name": f"steady-{n}", "task": "noop", "schedule": "every 60s", "anchor": begin + timedelta(seconds=n % 60)}
        for n in range(rate * 60)
    )
    async with schedulers(url, schema, sql, 3):
        end = begin + timedelta(seconds=seconds)
        while await sql.fetchval("SELECT clock_timestamp()") < end + timedelta(seconds=3):
            await asyncio.sleep(0.5)
    rows = await sql.fetch(
        f"SELECT extract(epoch FROM enqueued_at - scheduled_at)::float8 FROM {schema}.ready WHERE scheduled_at >= $1 AND scheduled_at < $2",
        begin, end,
    )  # fmt: skip
    return percentile([row[0] for row in rows], 0.99), len(rows)


async def history(app: Hourhand, sql: asyncpg.Connection, schema: str, rows: int) -> float:
    """Milliseconds for a job's last twenty runs, with so many rows of history over ninety days."""
    await sql.execute(
        f"SELECT {schema}.add_partition('runs', (now() - make_interval(days => n))::date) FROM generate_series(1, 90) AS n"
    )
    await sql.execute(
        f"INSERT INTO {schema}.runs (run_id, job_id, scheduled_at, started_at, finished_at, lane, outcome, attempt, task, payload)"
        f" SELECT n, n % 20000 + 1, now() - make_interval(secs => 90.0 * 86400 * n / {rows}), now(), now(), 5, 'succeeded', 1, 'noop', '{{}}'"
        f" FROM generate_series(1, {rows}) AS n"
    )
    await sql.execute(f"ANALYZE {schema}.runs")
    name = await sql.fetchval(f"SELECT name FROM {schema}.jobs WHERE id BETWEEN 1 AND 20000 LIMIT 1")
    times = []
    for _ in range(60):
        began = time.perf_counter()
        assert len(await app.jobs.runs(name, 20)) == 20
        times.append((time.perf_counter() - began) * 1000)
    return percentile(times[10:], 0.5)
