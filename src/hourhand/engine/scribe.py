"""Writes what runs say while they go on: their progress and their log lines, once a second and soon after a run has ended.

What survives a crash: what was written. While the database is away, the latest progress and the lines wait here, up to a bound;
a line beyond it is dropped, and its run says so. A statement whose answer was lost is repeated without doubling any line.
"""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import structlog

from hourhand.core import ids
from hourhand.core.clock import Clock
from hourhand.core.context import Context
from hourhand.core.errors import DatabaseUnavailable, StatementRefused
from hourhand.core.lines import Line, Pen
from hourhand.core.payload import check_report
from hourhand.engine.secrecy import Secrecy
from hourhand.engine.waiting import heard
from hourhand.storage.database import Patience
from hourhand.storage.queue import KeptLine, QueueGateway

log = structlog.get_logger("hourhand.scribe")
EVERY = 1.0
SOON = 0.1
"""Seconds between two statements, when runs keep ending: they share the next one."""
MOST_WAITING = 32 * 2**20
"""Bytes of lines that wait for the database."""
BATCH = 2_000
BATCH_BYTES = 4 * 2**20
_OVERHEAD = 200
"""Bytes that a line takes here beside its text and fields, about."""
_TICK = timedelta(microseconds=1)
_LONG_AGO = datetime(1, 1, 1, tzinfo=UTC)


class Scribe:
    def __init__(self, gateway: QueueGateway, clock: Clock, most: int, secrecy: Secrecy | None = None) -> None:
        self._secrecy = secrecy
        self._gateway = gateway
        self._clock = clock
        self._most = most
        self._lock = threading.Lock()
        """Handlers write from their threads, too."""
        self._waiting: list[KeptLine] = []
        self._writing: list[KeptLine] = []
        self._again = False
        """The answer to the last statement was lost: what it wrote must not be written twice."""
        self._size = 0
        self._last = _LONG_AGO
        self._overflowed: set[int] = set()
        self._wake = asyncio.Event()
        self.progress: dict[int, dict[str, Any]] = {}
        self.dropped = 0

    def report(self, run: int, data: dict[str, Any]) -> None:
        check_report(data)
        self.progress[run] = {**self.progress.get(run, {}), **data}

    def pen(self, context: Context) -> Pen:
        clean = None if self._secrecy is None else self._secrecy.clean(context.claim, context.task)
        # Of what it needs, not of the context, which has the pen: no circle for the garbage collector.
        run, scheduled_at, attempt = context.run_number, context.scheduled_at, context.attempt
        return Pen(self._most, lambda line: self._keep(run, scheduled_at, attempt, line), clean)

    def wake(self) -> None:
        """A run that has said something has ended: who waits for it wants to read that now."""
        self._wake.set()

    def _keep(self, run: int, scheduled_at: datetime, attempt: int, line: Line) -> None:
        size = _OVERHEAD + len(line.text) + len(line.fields or "")
        with self._lock:
            # No two at the same instant: that is how a line is known again.
            self._last = at = max(self._clock.instant(), self._last + _TICK)
            if self._size + size > MOST_WAITING:
                self.dropped += 1
                if run in self._overflowed:
                    return
                self._overflowed.add(run)
                line = Line("warning", "lines are missing here: too many waited for the database", None)
                size = _OVERHEAD + len(line.text)
            self._size += size
            self._waiting.append(
                KeptLine(run, scheduled_at, at, attempt, line.level, line.text, line.fields, size)
            )  # fmt: skip

    async def run(self) -> None:
        patience = Patience()
        while True:
            await heard(self._wake, EVERY)
            try:
                await self.run_once()
                patience.reset()
            except DatabaseUnavailable as error:
                if patience.first and self._size:
                    log.warning("lines.waiting", error=str(error), bytes=self._size)
                await patience.wait()
                continue
            await asyncio.sleep(SOON)

    async def run_once(self) -> None:
        """Write what is there. What could not be written stays, and the next call tries again."""
        self._wake.clear()
        await self._write_progress()
        while await self._write_lines():
            pass

    async def finish(self, seconds: float) -> None:
        """What is still here, at the end of the process."""
        try:
            await asyncio.wait_for(self.run_once(), seconds)
        except (DatabaseUnavailable, asyncio.TimeoutError):
            if lines := len(self._waiting) + len(self._writing):
                log.warning("lines.unwritten", lines=lines, meaning="they are lost with this process")
        await self._gateway.close()

    async def _write_progress(self) -> None:
        if not self.progress:
            return
        reports, self.progress = self.progress, {}
        runs = sorted(reports)
        try:
            await self._gateway.report_progress(runs, [msgspec.json.encode(reports[run]).decode() for run in runs])
        except DatabaseUnavailable:
            self.progress = {**reports, **self.progress}
            raise
        except StatementRefused as error:
            log.warning("progress.refused", error=str(error))

    async def _write_lines(self) -> bool:
        """One statement; false if there was nothing to write."""
        if not self._writing:
            self._take()
        if not self._writing:
            return False
        again, self._again = self._again, True
        try:
            await self._gateway.keep_lines(self._writing, self._most, again=again)
        except StatementRefused as error:
            await self._one_by_one(error)
        self._again = False
        with self._lock:
            self._size -= sum(line.size for line in self._writing)
            if not self._waiting:
                self._overflowed.clear()
        self._writing = []
        return True

    def _take(self) -> None:
        with self._lock:
            count = room = 0
            while count < min(BATCH, len(self._waiting)) and room < BATCH_BYTES:
                room += self._waiting[count].size
                count += 1
            self._writing, self._waiting = self._waiting[:count], self._waiting[count:]

    async def _one_by_one(self, error: StatementRefused) -> None:
        """What the database cannot store must not hold up what it can."""
        log.warning("lines.refused", error=str(error))
        for run in dict.fromkeys(line.run for line in self._writing):
            try:
                await self._gateway.keep_lines([line for line in self._writing if line.run == run], self._most, again=True)
            except StatementRefused as refused:
                log.warning("lines.refused", run=ids.run_id(run), error=str(refused))
