"""One event loop in a thread of its own, for callers that have none.

Flask, Django views and scripts call `app.sync(...)` and the `..._sync` methods from any thread; the
connections stay open between calls. After a fork the child starts a loop of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Portal:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = 0

    @property
    def started(self) -> bool:
        return self._loop is not None and self._process == os.getpid()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._process != os.getpid():
                self._loop = asyncio.new_event_loop()
                self._process = os.getpid()
                self._thread = threading.Thread(target=self._loop.run_forever, name="hourhand-sync", daemon=True)
                self._thread.start()
            return self._loop

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not None:
            work.close()
            raise RuntimeError(
                "this thread runs an event loop, which a synchronous call would block: await the async form instead"
            )
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        finally:
            # After Ctrl-C nobody waits for it any more. One that is done does not mind.
            future.cancel()

    def close(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None and self._process == os.getpid():
            loop.call_soon_threadsafe(loop.stop)
            if self._thread is not None:
                self._thread.join(timeout=5)
            loop.close()
