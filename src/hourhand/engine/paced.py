"""Questions that may take long, asked for a part of the time only.

Where a long transaction keeps what is over from being removed, whoever looks over a whole queue walks over millions of rows that
are dead: at every look that would cost more than the work itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from hourhand.core.clock import Clock

T = TypeVar("T")
PACE = 50.0
"""What takes longer than `QUICK` is asked for at most this part of the time."""
QUICK = 0.1


class Paced(Generic[T]):
    """A question with its last answer, which holds until it is asked again."""

    def __init__(self, ask: Callable[[], Awaitable[T]], answer: T, every: float = 0.0) -> None:
        self._ask = ask
        self._every = every
        self._next = 0.0
        self.answer = answer

    async def renewed(self) -> bool:
        """Whether it was time to ask again."""
        began = Clock.monotonic()
        if began < self._next:
            return False
        try:
            self.answer = await self._ask()
        finally:
            took = Clock.monotonic() - began
            self._next = began + took + max(self._every, PACE * took if took > QUICK else 0.0)
        return True
