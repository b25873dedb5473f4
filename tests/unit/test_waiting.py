"""A cancellation that comes just as the event does is not swallowed."""

from __future__ import annotations

import asyncio

import pytest

from hourhand.engine.waiting import heard


@pytest.mark.parametrize("turns", range(5))
@pytest.mark.parametrize("first", ["event", "cancel"])
async def test_a_cancellation_beside_the_event_ends_the_loop(turns: int, first: str) -> None:
    event = asyncio.Event()

    async def service() -> None:
        while True:
            if await heard(event, 3600):
                event.clear()

    task = asyncio.create_task(service())
    await asyncio.sleep(0)
    for step in ("event", "cancel") if first == "event" else ("cancel", "event"):
        if step == "event":
            event.set()
        else:
            task.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
    done, _ = await asyncio.wait([task], timeout=5)
    assert done, "the cancellation was swallowed"


async def test_it_says_whether_it_was_heard() -> None:
    event = asyncio.Event()
    assert not await heard(event, 0.01)
    event.set()
    assert await heard(event, 0)
