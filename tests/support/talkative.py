"""An app whose runs end in every way, and whose handlers say something."""

from __future__ import annotations

import asyncio
import logging
import os

import structlog

from hourhand import Context, Hourhand, Retry

app = Hourhand()
plain = logging.getLogger("shop.mail")
structured = structlog.get_logger("shop.orders")
AGAIN = Retry(max_attempts=2, base=0, cap=0)
ONCE = Retry(max_attempts=1)


@app.task(retry=ONCE)
async def fine() -> int:
    return 1


@app.task(retry=AGAIN)
async def flaky(ctx: Context) -> None:
    if ctx.attempt == 1:
        raise ConnectionError("no route")


@app.task(retry=AGAIN)
async def hopeless() -> None:
    raise ValueError("never")


@app.task(retry=ONCE, timeout=0.2)
async def slow() -> None:
    await asyncio.sleep(60)


@app.task(retry=ONCE)
async def patient(ctx: Context) -> None:
    ctx.log.info("patient.waits")
    await asyncio.sleep(60)


@app.task(retry=ONCE, delivery="at_most_once", isolation="process")
def cut_off() -> None:
    os._exit(7)


def speak(how: str) -> None:
    plain.info("sent to %s", "you", extra={"how": how})
    structured.warning("order.odd", how=how)


@app.task(queue="talk")
async def talk_here() -> None:
    await asyncio.gather(asyncio.to_thread(speak, "task"))


@app.task(queue="talk")
def talk_in_a_thread(ctx: Context) -> None:
    speak("thread")
    ctx.log.info("order.kept", how="ctx")


@app.task(queue="talk", isolation="process")
def talk_apart() -> None:
    speak("child")
