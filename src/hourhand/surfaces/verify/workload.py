"""The app that workers run under `hourhand verify`. What its handlers do, they tell a sink that no fault touches."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

from hourhand.core.backoff import Retry
from hourhand.core.context import Context
from hourhand.surfaces.app import Hourhand
from hourhand.surfaces.verify.sink import SinkClient, StaleFence

SINK = "HOURHAND_VERIFY_SINK"
ACCOUNTS, TRANSFERS = "verify_accounts", "verify_transfers"
POISON = 9
"""The exit code of a process that a poison run took down."""
QUICK = Retry(max_attempts=8, base=0.3, cap=3)

app = Hourhand(name="verify")


@app.on_startup
def open_sink() -> None:
    app.state.sink = SinkClient(os.environ[SINK])


def _event(ctx: Context, kind: str, delivery: str) -> dict[str, Any]:
    return {
        "kind": kind, "run": ctx.run_id, "task": ctx.task, "job": ctx.job_id, "scheduled_at": ctx.scheduled_at.isoformat(),
        "attempt": ctx.attempt, "fence": ctx.fence, "token": ctx.token, "delivery": delivery,
        "worker": ctx.claim.worker,
    }  # fmt: skip


async def tell(ctx: Context, kind: str, delivery: str = "at_least_once") -> None:
    await app.state.sink.record_async(**_event(ctx, kind, delivery))


@app.task(retry=QUICK)
async def tick(ctx: Context, work: float = 0.0) -> None:
    await tell(ctx, "begin")
    if work:
        await asyncio.sleep(work)
    try:
        await tell(ctx, "effect")
    except StaleFence:
        return  # somebody else has this run by now, and the outside has heard from them
    await tell(ctx, "end")


@app.task(retry=QUICK)
def thread(ctx: Context, work: float = 0.0) -> None:
    sink: SinkClient = app.state.sink
    sink.record(**_event(ctx, "begin", "at_least_once"))
    # Not time.sleep, which fails under a library that fakes the clock.
    threading.Event().wait(work)
    sink.record(**_event(ctx, "end", "at_least_once"))


@app.task(retry=QUICK)
async def flaky(ctx: Context) -> None:
    """Fails once or twice, by its token, and then does not."""
    await tell(ctx, "begin")
    if ctx.attempt <= int(ctx.token[:8], 16) % 3:
        raise ValueError("not yet")
    await tell(ctx, "end")


@app.task(retry=Retry(max_attempts=2, base=0.2, cap=0.5))
async def doomed(ctx: Context) -> None:
    await tell(ctx, "begin")
    raise ValueError("never")


@app.task(delivery="at_most_once")
async def careful(ctx: Context, work: float = 0.0) -> None:
    await tell(ctx, "begin", "at_most_once")
    await asyncio.sleep(work)
    await tell(ctx, "end", "at_most_once")


@app.task(delivery="exactly_once", retry=Retry(max_attempts=50, base=0.3, cap=3))
async def transfer(ctx: Context, source: str, target: str, amount: int, work: float = 0.0, held: bool = False) -> None:
    """Money from one account to another: the sum must hold, and each transfer is made once. `held`: all is written before the
    work, so that a zombie has nothing left to do but to commit."""
    await tell(ctx, "begin", "exactly_once")
    schema = app.settings.schema
    async with ctx.transaction() as connection:
        await connection.execute(
            f"INSERT INTO {schema}.{TRANSFERS} (run_id, token, fence, amount, source, target) VALUES ($1, $2, $3, $4, $5, $6)",
            ctx.run_number, ctx.token, ctx.fence, amount, source, target,
        )  # fmt: skip
        if not held:
            await asyncio.sleep(work)
        # In the order of their names: two transfers between the same accounts must not wait for each other.
        await connection.execute(
            f"SELECT FROM {schema}.{ACCOUNTS} WHERE name IN ($1, $2) ORDER BY name FOR UPDATE", source, target
        )
        for name, change in ((source, -amount), (target, amount)):
            await connection.execute(f"UPDATE {schema}.{ACCOUNTS} SET balance = balance + $2 WHERE name = $1", name, change)
        if held:
            await asyncio.sleep(work)


@app.task(retry=QUICK)
async def endless(ctx: Context) -> None:
    """To be cancelled."""
    await tell(ctx, "begin")
    await asyncio.sleep(3600)


@app.task(retry=Retry(max_attempts=2, base=0.2, cap=0.5))
async def poison(ctx: Context) -> None:
    """Takes its process down."""
    await tell(ctx, "begin")
    os._exit(POISON)
