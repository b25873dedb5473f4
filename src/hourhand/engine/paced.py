"""Questions that may take long, asked for a part of the time only.

Where a long transaction keeps what is over from being removed, whoever looks over a whole queue walks over millions of rows that
are dead: at every look that would cost more than the work itself.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from hourhand.core.clock import Clock

T = TypeVar("T")
PACE = 50.0
"""What takes longer than `QUICK` is asked for at most this part of the time."""
QUICK = 0.1
FAILED = 60.0
"""Seconds after which what has failed is asked again, however long that took."""


class Paced(Generic[T]):
    def __init__(self, question: Callable[[], Awaitable[T]], every: float = 0.0, most: float = math.inf) -> None:
        self._question = question
        self._every = every
        self._most = most
        """Seconds that it is put off at most, for what somebody counts on being told in time."""
        self._next = 0.0
        self._look: object = None
        self._answer: T | None = None
        self._error: Exception | None = None

    async def ask(self, look: object = None) -> T | None:
        """The answer, if it is time to ask, or if it was asked in this look already; None: it is not, and nothing new is known."""
        if look is None or look != self._look:
            began = Clock.monotonic()
            if began < self._next:
                return None
            self._look = look
            try:
                self._answer, self._error = await self._question(), None
            except Exception as error:
                self._answer, self._error = None, error
            took = Clock.monotonic() - began
            pause = min(PACE * took, self._most if self._error is None else FAILED) if took > QUICK else 0.0
            self._next = began + took + max(self._every, pause)
        if self._error is not None:
            raise self._error
        return self._answer
