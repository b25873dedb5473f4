"""What Hourhand does on the same machine: worker processes as users run them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import asyncpg

from benchmarks import observe
from benchmarks.observe import PROJECT
from hourhand import Hourhand


def environment(url: str, schema: str) -> dict[str, str]:
    return {**os.environ, "HOURHAND_DATABASE_URL": url, "HOURHAND_SCHEMA": schema}


def stop(process: subprocess.Popen[bytes]) -> None:
    """At once: the second signal does not wait for handlers."""
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    process.wait(60)


@contextlib.asynccontextmanager
async def workers(
    url: str, schema: str, sql: asyncpg.Connection, processes: int, *options: str, **settings: str
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Worker processes, registered and idle. `options` may name another app than that of no-ops: the last one counts."""
    before = await sql.fetchval(f"SELECT count(*) FROM {schema}.nodes")
    command = [sys.executable, "-m", "hourhand", "worker", "--app", "benchmarks.jobs:app", "--log-level", "warning"]
    process = subprocess.Popen(
        [*command, "--processes", str(processes), *options], cwd=PROJECT, env={**environment(url, schema), **settings}
    )
    try:
        while await sql.fetchval(f"SELECT count(*) FROM {schema}.nodes WHERE session") < before + processes:
            assert process.poll() is None, "the worker did not start"
            await asyncio.sleep(0.02)
        yield process
    finally:
        stop(process)


async def drain(
    app: Hourhand, url: str, schema: str, sql: asyncpg.Connection, runs: int, processes: int, task: str = "noop"
) -> float:
    """Preloaded runs, workers ready: from letting them go until nothing is left."""
    await app.queues.pause("default")
    await app.enqueue_many(task, ({"n": n} for n in range(runs)))
    before = await sql.fetchval(f"SELECT count(*) FROM {schema}.runs")
    async with workers(url, schema, sql, processes):
        empty = f"SELECT NOT EXISTS (SELECT FROM {schema}.ready) AND NOT EXISTS (SELECT FROM {schema}.running)"
        began = time.perf_counter()
        await app.queues.resume("default")
        while not await sql.fetchval(empty):
            await asyncio.sleep(0.005)
        seconds = time.perf_counter() - began
    done = await sql.fetchval(f"SELECT count(*) FROM {schema}.runs") - before
    assert done == runs, f"{done} of {runs} runs are in history"
    return runs / seconds


async def enqueue_many(app: Hourhand, runs: int) -> float:
    task = app.task(_noop)
    payloads = [{"n": n} for n in range(runs)]
    began = time.perf_counter()
    await task.enqueue_many(payloads)
    return runs / (time.perf_counter() - began)


async def enqueue_single(app: Hourhand, runs: int) -> float:
    task = app.task(_noop)
    await task.enqueue(n=0)
    began = time.perf_counter()
    for n in range(runs):
        await task.enqueue(n=n)
    return runs / (time.perf_counter() - began)


async def latencies(app: Hourhand, url: str, schema: str, sql: asyncpg.Connection, count: int) -> list[float]:
    """Milliseconds from calling enqueue to the handler's start, on an idle worker."""
    task = app.task(_noop)
    rng = random.Random(1)
    asked: dict[int, float] = {}
    async with workers(url, schema, sql, 1):
        for n in range(count + 20):
            moment = time.time()
            handle = await task.enqueue(n=n)
            if n >= 20:  # the first ones open connections
                asked[handle._number] = moment
            await asyncio.sleep(rng.uniform(0.01, 0.03))
        while await sql.fetchval(f"SELECT count(*) FROM {schema}.runs WHERE run_id = ANY ($1)", list(asked)) < count:
            await asyncio.sleep(0.05)
    rows = await sql.fetch(
        f"SELECT run_id, extract(epoch FROM started_at)::float8 AS started FROM {schema}.runs WHERE run_id = ANY ($1)",
        list(asked),
    )
    return sorted((row["started"] - asked[row["run_id"]]) * 1000 for row in rows)


async def idle_statements(
    url: str, schema: str, sql: asyncpg.Connection, elsewhere: asyncpg.Connection, processes: int, seconds: float
) -> float:
    """Transactions a second beside so many idle workers; each of their statements is one. The server has some of its own."""
    database = await sql.fetchval("SELECT current_database()")

    async def count() -> int:
        """From another database: a connection's own transactions are counted late."""
        committed = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1"
        return int(await elsewhere.fetchval(committed, database))

    async with workers(url, schema, sql, processes) if processes else contextlib.nullcontext():
        await asyncio.sleep(15)  # past their start, and past what was counted late of it
        first = await count()
        await asyncio.sleep(seconds)
        return (await count() - first) / seconds


async def pending_memory(app: Hourhand, url: str, schema: str, sql: asyncpg.Connection, runs: int) -> float:
    """MiB of a worker whose slots are taken while `runs` more wait in the table."""
    task = app.task(_hold)
    await task.enqueue_many({"n": n} for n in range(runs))
    async with workers(url, schema, sql, 1) as process:
        while not await sql.fetchval(f"SELECT EXISTS (SELECT FROM {schema}.running)"):
            await asyncio.sleep(0.05)
        await asyncio.sleep(3)
        return observe.resident(process.pid)


def percentile(values: list[float], share: float) -> float:
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]


async def _noop(n: int = 0) -> None: ...


async def _hold(n: int = 0) -> None: ...


_noop.__name__ = "noop"
_hold.__name__ = "hold"
