"""Streams of runs: a part at a time in memory, and no faster than their queue takes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from hourhand.core.clock import Clock
from hourhand.core.errors import InvalidOption, QueueFull

T = TypeVar("T")
Payloads = Iterable[str] | AsyncIterable[str]
COPY_CHUNK = 20_000
_LEAST_WAIT = 0.02


@dataclass(frozen=True, slots=True)
class Flow:
    """How a stream of runs is put in: so many to a commit, and for how long to wait where the queue is full."""

    commit_every: int | None = None
    wait: float = 0.0

    def __post_init__(self) -> None:
        if self.commit_every is not None and not 1 <= self.commit_every <= COPY_CHUNK:
            raise InvalidOption(f"commit_every must be a whole number from 1 to {COPY_CHUNK}, not {self.commit_every!r}")
        if not 0 <= self.wait < 10**9:
            raise InvalidOption(f"wait must be a number of seconds, 0 or more, not {self.wait!r}")
        if self.wait and self.commit_every is None:
            raise InvalidOption("wait lets a stream go on when there is room again: say commit_every as well, so that it is one")

    async def with_room(self, put: Callable[[], Awaitable[T]]) -> T:
        """As soon as the queue takes it, if it does so in time."""
        deadline, pause = Clock.monotonic() + self.wait, _LEAST_WAIT
        while True:
            try:
                return await put()
            except QueueFull:
                if Clock.monotonic() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(1.0, pause * 2)


async def chunks(items: Iterable[T] | AsyncIterable[T], size: int) -> AsyncIterator[list[T]]:
    """No more than a chunk at a time is in memory."""
    if isinstance(items, AsyncIterable):
        chunk: list[T] = []
        async for one in items:
            chunk.append(one)
            if len(chunk) == size:
                yield chunk
                chunk = []
        if chunk:
            yield chunk
    else:
        waiting = iter(items)
        while chunk := list(islice(waiting, size)):
            yield chunk
