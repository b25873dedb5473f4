"""The app that the tests' worker processes run. What its handlers do, they write to the table `seen`."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import asyncpg
import msgspec

from hourhand import BatchContext, Context, Hourhand, PermanentFailure, Retry, RetryAfter

app = Hourhand()
quick = Retry(max_attempts=3, base=0, cap=0)


@app.on_startup
async def connect() -> None:
    app.state.sink = await asyncpg.create_pool(app.settings.database_url, min_size=0, max_size=4, statement_cache_size=0)


@app.on_shutdown
async def disconnect() -> None:
    await app.state.sink.close()


async def note(ctx: Context, what: str) -> None:
    await app.state.sink.execute(
        f"INSERT INTO {app.settings.schema}.seen (run, attempt, pid, what) VALUES ($1, $2, $3, $4)",
        ctx.run_number, ctx.attempt, os.getpid(), what,
    )  # fmt: skip


@app.task(retry=quick)
async def noop(n: int = 0) -> None:
    pass


@app.task(retry=quick)
async def record(ctx: Context, n: int = 0) -> int:
    await note(ctx, "ran")
    return n


@app.task(retry=quick)
async def nap(ctx: Context, seconds: float) -> str:
    """Says when it starts and, if it gets that far, when it ends."""
    await note(ctx, "started")
    await asyncio.sleep(seconds)
    await note(ctx, "ended")
    return "rested"


@app.task(retry=quick)
async def stuck_at_first(ctx: Context) -> str:
    """The first time it never ends; whoever gets it next is done at once."""
    again = await app.state.sink.fetchval(f"SELECT count(*) FROM {app.settings.schema}.seen WHERE run = $1", ctx.run_number)
    await note(ctx, "started")
    if not again:
        await asyncio.sleep(3600)
    return "done"


@app.task(retry=quick)
async def quiet_nap(ctx: Context, seconds: float) -> str:
    """Needs no database once it has started."""
    await note(ctx, "started")
    await asyncio.sleep(seconds)
    return "rested"


@app.task(retry=quick)
def blocking_nap(ctx: Context, seconds: float) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ctx.check_cancelled()
        time.sleep(0.01)
    return "rested"


@app.task(retry=quick, isolation="process")
def isolated_nap(ctx: Context, seconds: float) -> int:
    ctx.progress(0.5, message="half")
    time.sleep(seconds)
    return os.getpid()


@app.task(retry=quick, isolation="process")
def isolated_enqueue() -> list[str | None]:
    """A blocking handler may enqueue and may run a loop of its own, in a child process too."""
    app.enqueue_sync("noop")
    return [app.settings.database_url, app.settings.schema, asyncio.run(asyncio.sleep(0, "looped"))]


@app.task(retry=Retry(max_attempts=2, base=0, cap=0), isolation="process")
def isolated_death(how: str) -> None:
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), signal.SIGSEGV)


@app.task(retry=Retry(max_attempts=3, base=0, cap=0, give_up_on=(KeyError,)), isolation="process")
def isolated_error(kind: str) -> None:
    raise {"key": KeyError, "value": ValueError, "permanent": PermanentFailure}[kind]("as told")


@app.task(retry=quick, isolation="process")
def isolated_retry_after(ctx: Context) -> int:
    if ctx.attempt < 2:
        raise RetryAfter(0)
    return ctx.attempt


@app.task(retry=quick)
async def poison(ctx: Context) -> None:
    """Takes its process down."""
    await note(ctx, "started")
    os._exit(9)


@app.task(retry=quick)
async def spin(ctx: Context) -> None:
    """Computes for ever on the event loop, and lets no ordinary exception out of it."""
    await note(ctx, "started")
    n = 0
    while True:
        try:
            n += 1
        except Exception:
            continue


@app.task(retry=quick, timeout=5)
async def block(ctx: Context) -> str:
    """The first time it waits in a call that Python cannot interrupt, on the event loop."""
    again = await app.state.sink.fetchval(f"SELECT count(*) FROM {app.settings.schema}.seen WHERE run = $1", ctx.run_number)
    await note(ctx, "started")
    if not again:
        time.sleep(3600)
    return "done"


@app.task(retry=Retry(max_attempts=2, base=0, cap=0), isolation="process", max_memory="400MB")
def hog() -> int:
    return len([bytearray(50_000_000) for _ in range(100)])


@app.task(retry=quick, isolation="process")
def giant(size: int) -> str:
    return "x" * size


@app.task(retry=quick)
async def giant_here(size: int) -> str:
    return "x" * size


@app.task(retry=Retry(max_attempts=1), timeout=0.2)
async def stubborn(ctx: Context) -> None:
    """Does not stop when it is told to."""
    await note(ctx, "started")
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


@app.task(retry=quick, delivery="at_most_once")
async def careful_nap(ctx: Context, seconds: float) -> str:
    await note(ctx, "started")
    await asyncio.sleep(seconds)
    return "rested"


@app.task(retry=quick, delivery="at_most_once", isolation="process")
def careful_death() -> None:
    os._exit(7)


@app.task(retry=quick, delivery="exactly_once")
async def transfer(ctx: Context, amount: int, die: str = "") -> str:
    """Writes into `ledger`; `die` says where the first attempt's process is killed."""
    first = not await app.state.sink.fetchval(f"SELECT count(*) FROM {app.settings.schema}.seen WHERE run = $1", ctx.run_number)
    await note(ctx, "started")
    charged = await ctx.once("charge", lambda: ctx.fence)
    async with ctx.transaction() as connection:
        await connection.execute(
            f"INSERT INTO {app.settings.schema}.ledger (run, amount) VALUES ($1, $2)", ctx.run_number, amount
        )  # fmt: skip
        await app.enqueue("noop", queue="later")
        if die == "inside" and first:
            os.kill(os.getpid(), signal.SIGKILL)
    return f"{charged <= ctx.fence}"


@app.task(retry=Retry(max_attempts=1), isolation="process")
def reports_nonsense(ctx: Context) -> None:
    ctx.progress(float("nan"))


@app.task(retry=quick, isolation="process")
def isolated_talk(ctx: Context, count: int) -> None:
    for place in range(count):
        ctx.log.info("from a child", place=place)


class Piece(msgspec.Struct):
    n: int
    poison: bool = False


@app.task(retry=quick, batch=20, linger=30)
async def mill(ctx: BatchContext, items: list[Piece]) -> list[int]:
    """A batch of several never ends; one alone is done at once. Poison takes its process down."""
    for one in ctx.items:
        await note(one, f"one of {len(items)}")
    if any(one.poison for one in items):
        os._exit(9)
    if len(items) > 1:
        await asyncio.sleep(3600)
    return [one.n for one in items]
