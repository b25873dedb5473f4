"""Waiting for a word, but not for ever."""

from __future__ import annotations

import asyncio


async def heard(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event came within so many seconds.

    Not by `wait_for`: in Python 3.11 it swallows a cancellation that comes just as the event does, and whoever waits for this
    task to end waits for ever.
    """
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
