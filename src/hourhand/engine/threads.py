"""Threads for blocking handlers: reused, and left behind when a handler does not come back.

A thread cannot be killed. One that outlives its timeout is abandoned: it is counted, a fresh one
takes its place, and being a daemon it does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import Any


class _Job:
    __slots__ = ("call", "context", "future", "loop")

    def __init__(self, call: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.call = call
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.context = contextvars.copy_context()


class Threads:
    def __init__(self) -> None:
        self._jobs: deque[_Job] = deque()
        self._idle = 0
        self._ready = threading.Condition()
        self._closed = False
        self._count = 0
        self.abandoned = 0

    async def run(self, call: Callable[[], Any]) -> Any:
        """The result of `call()`, made in a thread. Cancelling the wait leaves the thread to itself."""
        job = _Job(call, asyncio.get_running_loop())
        with self._ready:
            self._jobs.append(job)
            if self._idle >= len(self._jobs):
                self._ready.notify()
            else:
                self._count += 1
                threading.Thread(target=self._work, name=f"hourhand-{self._count}", daemon=True).start()
        try:
            return await job.future
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        finally:
            del job  # its future knows the error, whose traceback knows this frame

    def close(self) -> None:
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    def _work(self) -> None:
        while True:
            with self._ready:
                self._idle += 1
                while not self._jobs and not self._closed:
                    self._ready.wait()
                self._idle -= 1
                if not self._jobs:
                    return
                job = self._jobs.popleft()
            try:
                outcome: tuple[Any, BaseException | None] = (job.context.run(job.call), None)
            except BaseException as error:  # a handler may raise anything; it belongs to the run
                outcome = (None, error)
            try:
                job.loop.call_soon_threadsafe(_settle, job.future, *outcome)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more
            del job, outcome  # an idle thread holds on to nothing


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if isinstance(error, StopIteration):
        error = RuntimeError(f"the handler raised {error!r}")
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
