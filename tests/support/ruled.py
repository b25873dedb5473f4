"""The app of the tests of limits. Its handlers write down when they came in and went out, on one clock for all processes."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from hourhand import Context, Hourhand, Limit, Rate, Retry

app = Hourhand(name="ruled")
app.queue("narrow", concurrency=4)
app.queue("shared")
app.queue("urgent", order="deadline")
app.queue("shallow", max_depth=200)
BOOK = Path(os.environ.get("BOOK", os.devnull))
"""Lines of a few bytes go to the end of a file one after another, whoever else writes; who reads may see half of the last one."""
ALL, EACH = 7, 2
again = Retry(max_attempts=3, base=0.01, cap=0.02)


def write(*words: object) -> None:
    with BOOK.open("a") as book:
        book.write(f"{' '.join(map(str, words))}\n")


async def stay(ctx: Context, key: object, seconds: float) -> None:
    me = os.getpid(), os.getppid(), ctx.run_number, key
    write("in", time.monotonic(), *me)
    try:
        await asyncio.sleep(seconds)
    finally:
        write("out", time.monotonic(), *me)


@app.task(queue="shared", concurrency=[Limit(ALL), Limit(EACH, key="customer")], retry=again)
async def limited(ctx: Context, customer: int, seconds: float = 0.02, fails: bool = False) -> None:
    await stay(ctx, customer, seconds)
    if fails and ctx.attempt == 1:
        raise ValueError("once")


@app.task(queue="shared", retry=again)
async def free(ctx: Context) -> None:
    await stay(ctx, "free", 0.0)


@app.task(queue="narrow", retry=again)
async def narrow(ctx: Context, seconds: float = 0.02) -> None:
    """Stays long the first time only."""
    before = BOOK.read_text() if BOOK.exists() else ""
    again = f" {ctx.run_number} narrow\n" in before
    await stay(ctx, "narrow", 0.0 if again else seconds)


@app.task(queue="paced", rate=Rate("50/s", burst=10), retry=again)
async def paced(ctx: Context) -> None:
    await stay(ctx, "paced", 0.0)


@app.task(queue="fair", fair_key="tenant", retry=again)
async def fair(ctx: Context, tenant: str) -> None:
    await stay(ctx, tenant, 0.005)


@app.task(queue="plain", retry=again)
async def plain(ctx: Context, who: str) -> None:
    await stay(ctx, who, 0.0)


@app.task(queue="urgent", retry=again)
async def urgent(ctx: Context, who: str) -> None:
    await stay(ctx, who, 0.0)


@app.task(queue="shallow", retry=again)
async def shallow(ctx: Context, n: int) -> None:
    await stay(ctx, n, 0.001)
