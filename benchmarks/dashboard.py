"""How long the dashboard's pages take with a million jobs and ten million rows of history."""

from __future__ import annotations

import time
import urllib.request
from dataclasses import dataclass

import asyncpg

from benchmarks.api import Server
from benchmarks.product import percentile
from hourhand import Hourhand
from hourhand.core import ids
from hourhand.surfaces.forecasting import make_forecast

QUEUES = 20
DAYS = 30
_TIMES = 15
_SLOTS = """SELECT minute FROM (
    SELECT DISTINCT CASE WHEN minute < now() - interval '2 days' THEN date_trunc('hour', minute)
                         WHEN minute < now() - interval '3 hours' THEN date_bin('10 minutes', minute, '2001-01-01Z') ELSE minute END AS minute
    FROM generate_series(date_trunc('minute', now()) - interval '8 days', now(), interval '1 minute') AS minute) AS slots"""
"""As the maintainer leaves them."""


async def furnish(sql: asyncpg.Connection, schema: str, jobs: int) -> None:
    """Ten runs of history for each job over a month, one in fifty of them in trouble; a backlog; dead letters; a week of statistics."""
    rows = 10 * jobs
    await sql.execute(f"SELECT {schema}.queue_number('queue-' || n) FROM generate_series(1, {QUEUES}) AS n")
    await sql.execute(
        f"SELECT {schema}.add_partition('runs', (now() - make_interval(days => n))::date) FROM generate_series(1, {DAYS}) AS n"
    )
    await sql.execute(
        f"INSERT INTO {schema}.runs (run_id, job_id, scheduled_at, started_at, finished_at, worker_id, lane, outcome, attempt, task, payload)"
        f" SELECT n, n % {jobs} + 1, at, at + interval '20 ms', at + interval '70 ms', 1, (n % {QUEUES} + 1) * 4 + 1,"
        f" (CASE WHEN n % 50 = 0 THEN (ARRAY['dead', 'cancelled', 'expired', 'lost'])[1 + n / 50 % 4] ELSE 'succeeded' END)::{schema}.outcome,"
        f" 1, 'task-' || n % 200, '{{}}'"
        f" FROM (SELECT n, now() - make_interval(secs => {DAYS}.0 * 86400 * ({rows} - n) / {rows}) AS at FROM generate_series(1, {rows}) AS n) AS made"
    )
    await sql.execute(f"SELECT setval('{schema}.run_numbers', {rows + 1})")
    await sql.execute(
        f"INSERT INTO {schema}.ready (seq, run_id, scheduled_at, lane, task, payload)"
        f" SELECT n, n, now(), (n % {QUEUES} + 1) * 4 + 1, 'task-' || n % 200, '{{}}' FROM generate_series({rows} + 10, {rows} + 200000) AS n"
    )
    await sql.execute(
        f"INSERT INTO {schema}.dead (died_at, run_id, scheduled_at, lane, attempt, task, payload, errors, reason)"
        f" SELECT now() - n * interval '1 second', {rows} + 500000 + n, now(), (n % {QUEUES} + 1) * 4 + 1, 3, 'task-' || n % 50, '{{}}',"
        f" jsonb_build_array(jsonb_build_object('type', 'Error' || n % 4, 'message', 'no', 'attempt', 3)), 'gave up'"
        f" FROM generate_series(1, 100000) AS n"
    )
    await sql.execute(
        f"INSERT INTO {schema}.statistics (minute, queue, node, succeeded, failed, dead, seconds, latest, lateness)"
        f" SELECT minute, queue, 0, 100, 2, 1, 5, 0.5, ARRAY[10,20,30,20,10,5,3,2,0,0,0,0,0,0,0,0]"
        f" FROM ({_SLOTS}) AS slots (minute), generate_series(1, {QUEUES}) AS queue"
    )
    await sql.execute(
        f"INSERT INTO {schema}.samples (minute, queue, taken_at, ready, delayed, parked, running, dead, oldest)"
        f" SELECT minute, queue, minute, 10000, 5, 0, 10, 5000, 3"
        f" FROM ({_SLOTS}) AS slots (minute), generate_series(1, {QUEUES}) AS queue"
    )
    for table in ("runs", "ready", "dead", "statistics", "samples", "jobs", "schedules"):
        await sql.execute(f"VACUUM ANALYZE {schema}.{table}")


@dataclass(frozen=True, slots=True)
class Timing:
    path: str
    status: int
    median: float
    worst: float


async def pages(sql: asyncpg.Connection, schema: str, jobs: int) -> list[str]:
    name = await sql.fetchval(f"SELECT name FROM {schema}.jobs WHERE id = {jobs // 2}")
    run = ids.run_id(10 * jobs - 7)
    letter = ids.run_id(await sql.fetchval(f"SELECT run_id FROM {schema}.dead LIMIT 1"))
    return [
        "/", "/?period=24h", "/?period=7d", "/queues", "/queues?period=7d", "/nodes", "/shards",
        "/jobs", "/jobs?sort=next", "/jobs?sort=newest", "/jobs?q=rare-name", "/jobs?q=9999", "/jobs?state=paused", "/jobs?queue=queue-7",
        f"/jobs/{name}", f"/jobs/{name}/edit",
        "/runs", "/runs?state=dead", "/runs?state=lost", "/runs?state=ready", "/runs?state=succeeded", "/runs?task=task-7", "/runs?task=no-such-task",
        "/runs?queue=queue-3&state=cancelled", f"/runs?job={name}", "/runs?node=1", f"/runs/{run}",
        "/dead", "/dead?task=task-7", f"/dead/{letter}",
    ]  # fmt: skip


def ask(server: Server, path: str) -> Timing:
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}{path}", headers={"Authorization": f"Bearer {server.key}", "Accept": "text/html"}
    )
    times, status = [], 0
    for _ in range(_TIMES):
        began = time.perf_counter()
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                answer.read()
                status = answer.status
        except urllib.error.HTTPError as error:
            status = error.code
        times.append((time.perf_counter() - began) * 1_000)
    # The first one plans its statements.
    return Timing(path, status, percentile(times[1:], 0.5), max(times[1:]))


async def forecast(app: Hourhand) -> float:
    began = time.perf_counter()
    await make_forecast(app)
    return time.perf_counter() - began
