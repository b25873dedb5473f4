"""The app that `hourhand up` runs when none is given: one task of each kind, and jobs that fire by themselves."""

from __future__ import annotations

import time

from hourhand import Context, Hourhand, Retry

app = Hourhand()


@app.task
async def greet(ctx: Context, name: str) -> str:
    """An `async def` handler runs on the worker's event loop."""
    ctx.log.info("demo.greet", says=f"Hello, {name}!")
    return f"Hello, {name}!"


@app.task(queue="reports", timeout=30)
def count_words(ctx: Context, text: str) -> int:
    """A plain `def` handler runs in a thread, so it may block."""
    time.sleep(0.2)
    words = len(text.split())
    ctx.log.info("demo.count_words", words=words)
    return words


@app.task(queue="reports", isolation="process", timeout=60)
def crunch(ctx: Context, steps: int) -> int:
    """`isolation="process"` runs it in a child process that can be killed."""
    for step in range(steps):
        ctx.progress((step + 1) / steps, message=f"step {step + 1} of {steps}")
        time.sleep(0.1)
    return sum(number * number for number in range(100_000))


@app.task(retry=Retry(max_attempts=3, base=1, cap=5))
async def flaky(ctx: Context) -> str:
    """Fails once, and is tried again after a second or so."""
    if ctx.attempt == 1:
        raise ConnectionError("the first attempt always fails")
    ctx.log.info("demo.flaky", succeeded_on_attempt=ctx.attempt)
    return f"succeeded on attempt {ctx.attempt}"


@app.task(retry=Retry(max_attempts=1))
async def hopeless() -> None:
    """Gives up at once and ends in the dead letters: see `hourhand dead list`."""
    raise ValueError("nothing can be done")


@app.every("15s", overlap="skip")
async def heartbeat(ctx: Context) -> str:
    """A declared job: it fires every 15 seconds, never twice at once. See `hourhand why heartbeat`."""
    ctx.log.info("demo.heartbeat", scheduled_at=ctx.scheduled_at.isoformat())
    return f"fired for {ctx.scheduled_at:%H:%M:%S}"


@app.cron("0 9 * * 1-5", timezone="America/New_York", payload={"kind": "daily"}, then=greet.step(name="whoever reads reports"))
async def report(kind: str) -> str:
    """Nine o'clock in New York on working days; when it has succeeded, somebody is greeted."""
    return f"the {kind} report"


async def enqueue_samples(app: Hourhand) -> None:
    await greet.enqueue(name="world")
    await greet.options(delay=5, tags=["later"]).enqueue(name="five seconds later")
    await count_words.enqueue(text="every run of this demo is in the history now")
    await crunch.enqueue(steps=10)
    await flaky.enqueue()
    await hopeless.options(priority="low").enqueue()
