"""Queues with rules beside queues without: what the first cost the second; and how soon what is urgent starts."""

from __future__ import annotations

import asyncio
import subprocess
import time
from contextlib import AbstractAsyncContextManager

import asyncpg

from benchmarks import product
from hourhand import Hourhand, Limit

app = Hourhand()
app.queue("narrow", concurrency=1)


@app.task
async def noop(n: int = 0) -> None: ...


@app.task
async def slow(n: int = 0) -> None:
    await asyncio.sleep(0.001)


@app.task(queue="narrow")
async def narrow(n: int = 0, seconds: float = 0.0) -> None:
    await asyncio.sleep(seconds)


@app.task(queue="keyed", concurrency=Limit(1, key="customer"))
async def keyed(customer: int, seconds: float = 0.0) -> None:
    await asyncio.sleep(seconds)


def worker(url: str, schema: str, sql: asyncpg.Connection, *options: str) -> AbstractAsyncContextManager[subprocess.Popen[bytes]]:
    return product.workers(url, schema, sql, 1, "--app", "benchmarks.ruled:app", *options)


async def drain_beside(
    client: Hourhand, url: str, schema: str, sql: asyncpg.Connection, runs: int, blocked: int, task: str
) -> float:
    """Plain runs, a second, while so many others wait behind a limit that lets nobody through."""
    client.registry.tasks.update(app.registry.tasks)
    await client.queues.pause("default")
    async with worker(url, schema, sql):
        if blocked:
            first, *_ = await client.enqueue_many(task, [{"seconds": 3600, **({"customer": 1} if task == "keyed" else {})}])
            while (await client.runs.show(first)).state != "running":
                await asyncio.sleep(0.05)
            await client.enqueue_many(task, [{"customer": 1} if task == "keyed" else {}] * blocked)
            while (
                await sql.fetchval(f"SELECT count(*) FROM {schema}.ready")
                or await sql.fetchval(f"SELECT count(*) FROM {schema}.parked") != blocked
            ):
                await asyncio.sleep(0.05)
        await client.enqueue_many("noop", ({"n": n} for n in range(runs)))
        began = time.perf_counter()
        await client.queues.resume("default")
        while await sql.fetchval(
            f"SELECT EXISTS (SELECT FROM {schema}.ready) OR (SELECT count(*) FROM {schema}.running) > $1", bool(blocked)
        ):
            await asyncio.sleep(0.005)
        return runs / (time.perf_counter() - began)


async def admitted(client: Hourhand, url: str, schema: str, sql: asyncpg.Connection, runs: int) -> float:
    """Limited runs of a thousand customers, a second."""
    client.registry.tasks.update(app.registry.tasks)
    await client.queues.pause("keyed")
    async with worker(url, schema, sql):
        await client.enqueue_many("keyed", ({"customer": n % 1000} for n in range(runs)))
        began = time.perf_counter()
        await client.queues.resume("keyed")
        while await sql.fetchval(f"SELECT count(*) FROM {schema}.runs") < runs:
            await asyncio.sleep(0.02)
        return runs / (time.perf_counter() - began)


async def urgent(client: Hourhand, url: str, schema: str, sql: asyncpg.Connection, count: int) -> list[float]:
    """Milliseconds from enqueueing to start of urgent runs, one after another, behind 100,000 others on a busy worker."""
    client.registry.tasks.update(app.registry.tasks)
    await client.enqueue_many("slow", ({"n": n} for n in range(100_000)), priority="low")
    async with worker(url, schema, sql, "--concurrency", "10"):
        while await sql.fetchval(f"SELECT count(*) FROM {schema}.runs") < 500:
            await asyncio.sleep(0.02)
        handles = []
        for _ in range(count):
            handles.append(await client.enqueue("noop", {}, priority="high"))
            await asyncio.sleep(0.1)
        runs = [await handle.wait(60) for handle in handles]
    return [(run.started_at - run.scheduled_at).total_seconds() * 1000 for run in runs if run.started_at is not None]
