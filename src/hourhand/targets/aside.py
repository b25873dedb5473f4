"""Calls of what is not ours and may never return."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any

from hourhand.core.errors import HourhandError


class StillBusy(HourhandError):
    """The call before has not returned."""


class Aside:
    """One call at a time, each in a daemon thread of its own: one that hangs takes no thread from anybody else, and the process
    can end without it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last: Future[Any] | None = None

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Who is cancelled, or waits no longer, leaves the thread to itself."""
        if self._last is not None and not self._last.done():
            raise StillBusy("its last call is still running")
        self._last = future = Future[Any]()
        # It counts as running from now on: whoever gives up waiting cannot take it back.
        future.set_running_or_notify_cancel()
        context = copy_context()

        def work() -> None:
            try:
                found = context.run(function, *args)
            except BaseException as error:
                # What would end a process or a generator must not do so on the event loop.
                harmless = isinstance(error, Exception) and not isinstance(error, StopIteration)
                future.set_exception(error if harmless else RuntimeError(f"{type(error).__name__}: {error}"))
            else:
                future.set_result(found)

        try:
            threading.Thread(target=work, name=f"hourhand-{self._name}", daemon=True).start()
        except RuntimeError as error:
            future.set_exception(error)
        return await asyncio.wrap_future(future)
