"""An event loop that runs one callback at a time, on a clock that somebody else moves.

Whoever drives it may stop between any two callbacks: for the code inside, that is a pause of its process.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from heapq import heappop, heappush
from itertools import count
from typing import Any


class SteppedLoop(asyncio.AbstractEventLoop):
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = count()
        self.failures: list[str] = []
        """What no caller has heard of: exceptions in callbacks, and in tasks that nobody waits for."""

    # What asyncio asks of a loop

    def time(self) -> float:
        return self._clock()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._timers, (when, next(self._order), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays where it is, and is passed over when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        return asyncio.Task(coro, loop=self, **options)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    # What drives it

    def next_timer(self) -> float | None:
        """When something happens by itself; None: never."""
        while self._timers and self._timers[0][2].cancelled():
            heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def busy(self) -> bool:
        if self._ready:
            return True
        due = self.next_timer()
        return due is not None and due <= self._clock()

    def step(self) -> bool:
        """One callback; False: there is none."""
        now = self._clock()
        while self._timers and (self._timers[0][0] <= now or self._timers[0][2].cancelled()):
            handle = heappop(self._timers)[2]
            if not handle.cancelled():
                self._ready.append(handle)
        while self._ready:
            next_one = self._ready.popleft()
            if next_one.cancelled():
                continue
            before = events._get_running_loop()
            events._set_running_loop(self)
            try:
                next_one._run()
            finally:
                events._set_running_loop(before)
            return True
        return False
