"""The app whose runs are measured."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import asyncpg

from hourhand import Context, Hourhand, Retry
from hourhand.engine.stealer import Stealer

app = Hourhand()


async def _content(stealer: Stealer, claims: int) -> None:
    """Asks nobody for anything."""


if os.environ.get("HOURHAND_BENCH_STEALING") == "off":
    Stealer.ask = _content  # type: ignore[method-assign]
    Stealer.next_look = lambda stealer, claims: float("inf")  # type: ignore[method-assign]


@app.task
async def noop(n: int = 0) -> None:
    """Nothing: what is measured is everything around it."""


@app.task
async def write(n: int) -> None:
    """A row, as handlers write them."""
    await (await pool()).execute(f"INSERT INTO {app.settings.schema}.written VALUES ($1)", n)


@app.task(batch=100)
async def write_many(items: list[dict[str, Any]]) -> None:
    """A hundred rows with one statement."""
    rows = [one["n"] for one in items]
    await (await pool()).execute(f"INSERT INTO {app.settings.schema}.written SELECT unnest($1::int[])", rows)


async def pool() -> asyncpg.Pool:
    if not hasattr(app.state, "pool"):
        app.state.pool = asyncpg.create_pool(app.settings.database_url, min_size=0, max_size=10)
    return await app.state.pool


@app.task
async def hold(n: int = 0) -> None:
    """Occupies its slot for as long as the benchmark looks."""
    await asyncio.sleep(3600)


@app.task
async def nap(seconds: float) -> None:
    await asyncio.sleep(seconds)


@app.task(retry=Retry(max_attempts=3, base=2.0))
async def flaky(ctx: Context, n: int) -> None:
    """Fails the first time."""
    if ctx.attempt == 1:
        raise ConnectionError("as if a service were away")
