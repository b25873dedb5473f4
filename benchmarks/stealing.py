"""Runs of very different lengths over four workers: when the last one ends, beside when it could have."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from random import Random

import asyncpg

from benchmarks import product
from hourhand import Hourhand

RUNS = 400
WORKERS = 4
CONCURRENCY = 2
LENGTHS = ((0.80, 0.02), (0.15, 0.1), (0.05, 0.5))
"""Which part of the runs takes how many seconds."""


def orders() -> dict[str, list[float]]:
    lengths = [seconds for part, seconds in LENGTHS for _ in range(round(part * RUNS))]
    shuffled = list(lengths)
    Random(7).shuffle(shuffled)
    return {"shuffled": shuffled, "long ones last": lengths}


def ideal(lengths: Sequence[float]) -> float:
    """In this order, each on the slot that is free first, with nothing in between: as if one worker had all the slots."""
    slots = [0.0] * (WORKERS * CONCURRENCY)
    for seconds in lengths:
        heapq.heapreplace(slots, slots[0] + seconds)
    return max(slots)


async def makespan(
    app: Hourhand, url: str, schema: str, sql: asyncpg.Connection, lengths: Sequence[float], *, stealing: bool
) -> float:
    """Seconds from the first start to the last end."""
    without = {} if stealing else {"HOURHAND_BENCH_STEALING": "off"}
    async with product.workers(url, schema, sql, WORKERS, "--concurrency", str(CONCURRENCY), **without):
        await app.enqueue_many("nap", [{"seconds": seconds} for seconds in lengths])
        while await sql.fetchval(f"SELECT count(*) FROM {schema}.runs") < len(lengths):
            await asyncio.sleep(0.05)
    return float(await sql.fetchval(f"SELECT extract(epoch FROM max(finished_at) - min(started_at)) FROM {schema}.runs"))


async def handovers(app: Hourhand, url: str, schema: str, sql: asyncpg.Connection, count: int) -> list[float]:
    """One worker has claimed everything and is busy; another has one slot: ms from the end of a run there to the start of the next."""
    await app.enqueue_many("noop", [{"n": n} for n in range(4_000)])
    await app.enqueue_many("nap", [{"seconds": 0.2 * count}, *[{"seconds": 0.1}] * count])
    slots = ("--concurrency", "1")
    async with product.workers(url, schema, sql, 1, *slots, HOURHAND_POLL="600"):
        while await sql.fetchval(f"SELECT EXISTS (SELECT FROM {schema}.ready) OR count(*) > $1 FROM {schema}.running", count + 1):
            await asyncio.sleep(0.01)
        async with product.workers(url, schema, sql, 1, *slots):
            while await sql.fetchval(f"SELECT EXISTS (SELECT FROM {schema}.running)"):
                await asyncio.sleep(0.05)
    rows = await sql.fetch(
        "SELECT extract(epoch FROM started_at - lag(finished_at) OVER (ORDER BY started_at))::float8 * 1000 AS ms"
        f" FROM {schema}.runs WHERE worker_id = (SELECT max(id) FROM {schema}.nodes WHERE kind = 'worker') ORDER BY started_at"
    )
    return [row["ms"] for row in rows[1:]]
