"""Notices that the event loop stands still, says which task holds it, and ends that task's hold.

A handler that computes for long, or waits in a blocking call, keeps a worker from everything: from its other runs, from its
heartbeat, and in the end from its lease. A thread beside the loop sees it. First it raises an exception in the handler, which
charges the culprit and nobody else; a call that never comes back to Python cannot be reached so, and then, in a process that is
nothing but a worker, the process ends: its runs go to others within seconds, on probation.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from types import FrameType

import structlog

from hourhand.core.clock import Clock
from hourhand.core.errors import LoopBlocked
from hourhand.engine.caller import Active
from hourhand.engine.logs import about
from hourhand.targets import python

log = structlog.get_logger("hourhand.watchdog")
STUCK = 70
"""The exit code of a process that ended because its loop could not be freed (EX_SOFTWARE)."""
_HANDLERS = python.__file__


class Watchdog:
    def __init__(self, active: Mapping[int, Active], limit: float, *, may_exit: bool) -> None:
        self._active = active
        self._limit = limit
        self._may_exit = may_exit
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._stopped = threading.Event()
        self._beat = Clock.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self.exit: Callable[[int], None] = os._exit
        self.interrupted = 0

    def start(self) -> None:
        self._tick()
        threading.Thread(target=self._watch, name="hourhand-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._beat = Clock.monotonic()
        self._timer = self._loop.call_later(min(0.5, self._limit / 4), self._tick)

    def _watch(self) -> None:
        pause = min(0.5, self._limit / 4)
        looked = awake = Clock.monotonic()
        patience = self._limit
        while not self._stopped.wait(pause):
            now = Clock.monotonic()
            if now - looked > 4 * pause:
                # This thread was held up as well: the process was stopped, or starved, and the loop is not to blame.
                awake = now
            looked = now
            still = now - max(self._beat, awake)
            if still < self._limit:
                patience = self._limit
            elif still >= patience:
                self._intervene(still, last=patience > self._limit)
                patience = still + self._limit

    def _intervene(self, still: float, *, last: bool) -> None:
        exits = last and self._may_exit
        culprit = self._culprit()
        interrupted = not exits and culprit is not None and self._interrupt(culprit)
        frames = sys._current_frames().get(self._thread_id)
        where = traceback.extract_stack(frames)[-1] if frames is not None else None
        event = log.bind(
            seconds=round(still, 1),
            **(about(culprit.claim) if culprit else {"run": None, "task": None}),
            at=f"{where.filename}:{where.lineno} in {where.name}" if where else None,
        )
        if exits:
            event.error("loop.lost", meaning="the call cannot be interrupted; this process ends, and its runs go to others")
            self.exit(STUCK)
        elif interrupted:
            event.error("loop.blocked", meaning="the handler blocks the event loop: it is interrupted, its attempt has failed")
            self.interrupted += 1
        else:
            event.error("loop.blocked", meaning="nothing else runs in this process, its heartbeat included")

    def _interrupt(self, culprit: Active) -> bool:
        """Raise LoopBlocked where the loop's thread stands, if that is in the handler. Nothing here lets go of the interpreter's
        lock for long enough to move on; should it have moved on all the same, the exception is taken back."""
        raise_in, thread = ctypes.pythonapi.PyThreadState_SetAsyncExc, ctypes.c_ulong(self._thread_id)
        if not self._inside_handler(sys._current_frames().get(self._thread_id)):
            return False
        raise_in(thread, ctypes.py_object(LoopBlocked))
        if self._culprit() is not culprit:
            raise_in(thread, None)
            return False
        return True

    def _culprit(self) -> Active | None:
        task = asyncio.current_task(self._loop)
        return next((one for one in list(self._active.values()) if one.task is task), None)

    def _inside_handler(self, frame: FrameType | None) -> bool:
        """Only there: an exception that arrived between two handlers would be ours to bear."""
        inside = False
        while frame is not None:
            if frame.f_code.co_filename == _HANDLERS:
                return inside
            inside = inside or not frame.f_code.co_filename.startswith(_ASYNCIO)
            frame = frame.f_back
        return False


_ASYNCIO = os.path.dirname(asyncio.__file__)
