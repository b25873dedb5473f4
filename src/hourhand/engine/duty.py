"""Something that one process does at a time, as that process sees it."""

from __future__ import annotations

import asyncio

from hourhand.core.clock import Clock

HELD = 15.0
"""Seconds for which a duty is had once it is asked for."""
ASK_EVERY = 3.0
"""Seconds between two questions of one that is not next in line."""


class Duty:
    """Only a belief: whoever has it does what is safe to be done twice at once."""

    def __init__(self, name: str, rank: int = 0) -> None:
        self.name = name
        self.rank = rank
        """How much of it this process can do: who can do more takes it from who can do less."""
        self._until = 0.0
        self._granted = asyncio.Event()

    @property
    def held(self) -> bool:
        return Clock.monotonic() < self._until

    def answer(self, granted: bool, asked: float) -> None:
        """What the database said to who asked at this time."""
        # It holds for half of the time at least; for how much longer, the answer does not say.
        self._until = asked + HELD / 2 if granted else 0.0
        if granted:
            self._granted.set()

    async def wait(self) -> None:
        while not self.held:
            self._granted.clear()
            await self._granted.wait()
