"""Writes the outcomes of runs, in batches, each under its claim token.

What survives a crash: an outcome counts once its statement committed. A process that dies before
leaves its rows in `running`, and recovery returns them. While the database is away, outcomes wait
here, however long; the claims they carry decide whether they are accepted when it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import structlog

from hourhand.core.errors import DatabaseUnavailable, LockTimeout, StatementRefused
from hourhand.engine.bulletin import NAMED, Bulletin
from hourhand.engine.caller import Active, Handler
from hourhand.engine.measures import Measures
from hourhand.storage.database import Patience
from hourhand.storage.queue import Claim, QueueGateway

log = structlog.get_logger("hourhand.completer")
MOST_TOGETHER = 2_000
"""Plain successes that are counted together, at most: that takes a millisecond."""
LOCK_TIMEOUT = 0.5
"""How long an outcome waits for somebody's open transaction before it lets others go first."""
Write = Callable[[int, list[Any]], Awaitable[int]]
Success = tuple[Handler, Claim, float, float, str | None]
"""Whose, which run, when it started and ended, and its result."""


class Batch:
    """Outcomes of one worker's claims, as the columns their statements take."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.successes: list[Success] = []
        """Plain ones, as they come: when each ended, and its result. They join the columns when those are written."""
        self.runs: list[int] = []
        self.tokens: list[int] = []
        self.started: list[float | None] = []
        self.finished: list[float] = []
        self.results: list[str | None] = []
        self.endings: dict[int, tuple[str, str | None, str | None]] = {}
        self.onward: dict[int, str] = {}
        self.retries: list[tuple[int, int, float, float, str]] = []
        self.deaths: list[tuple[int, int, float | None, str | None, str]] = []
        self.returns: list[tuple[int, int]] = []
        self.strangers: list[tuple[int, int, int | None]] = []
        self.alone: set[int] = set()
        """Runs whose end takes a lock that firing takes too: never two of them in one statement."""
        self.gates: dict[int, list[int]] = {}
        """Where the ends of which make room."""

    def __len__(self) -> int:
        ended, left = len(self.successes) + len(self.runs), len(self.returns) + len(self.strangers)
        return ended + len(self.retries) + len(self.deaths) + left

    def known(self) -> list[int]:
        parts = (self.retries, self.deaths, self.returns, self.strangers)
        plain = (one[1].run_number for one in self.successes)
        return [*plain, *self.runs, *(one[0] for part in parts for one in part)]

    def note(self, claim: Claim) -> None:
        if claim.alone:
            self.alone.add(claim.run_number)
        if claim.gates:
            self.gates[claim.run_number] = claim.gates

    def only(self, places: list[int]) -> Batch:
        """Some of the endings."""
        part = Batch(self.worker)
        part.runs, part.tokens = [self.runs[one] for one in places], [self.tokens[one] for one in places]
        part.started, part.finished = [self.started[one] for one in places], [self.finished[one] for one in places]
        part.results = [self.results[one] for one in places]
        part.endings = {run: self.endings[run] for run in part.runs if run in self.endings}
        part.onward = {run: self.onward[run] for run in part.runs if run in self.onward}
        return part


class Completer:
    def __init__(self, gateway: QueueGateway, worker: int) -> None:
        self._gateway = gateway
        self._batch = Batch(worker)
        self._waiting: list[Batch] = []
        self._postponed: list[Batch] = []
        self._flushing: Batch | None = None
        self._wake = asyncio.Event()
        self._flushed = asyncio.Event()
        self.bulletin = Bulletin()
        self.measures = Measures()
        self.completed = 0
        self.on_freed: Callable[[set[int]], bool] = lambda _gates: False
        self.refused = 0
        """Outcomes the database did not take because the claim was lost."""

    def rebase(self, worker: int) -> None:
        """From now on under another incarnation; what is pending keeps the one it was claimed by."""
        if worker == self._batch.worker:
            return
        if len(self._batch):
            self._waiting.append(self._batch)
        self._batch = Batch(worker)

    def known(self) -> list[int]:
        return [run for batch in self._batches() for run in batch.known()]

    @property
    def pending(self) -> int:
        """Outcomes that are not written yet."""
        return sum(map(len, self._batches()))

    def _batches(self) -> list[Batch]:
        return [*self._waiting, *self._postponed, self._batch, *([self._flushing] if self._flushing else [])]

    def succeed(self, active: Active, finished: float, result: str | None) -> None:
        """A plain success: by far the most, so nothing is done with it here that can be done with many at once."""
        successes = self._batch.successes
        successes.append((active.handler, active.claim, active.started, finished, result))
        if len(successes) >= MOST_TOGETHER:
            self._gather(self._batch)  # the database is slow: claims, with their payloads, do not wait for it
        if not self._wake.is_set():
            self._wake.set()

    def end(
        self, claim: Claim, outcome: str, finished: float, *, started: float | None = None,
        reason: str | None = None, errors: Any = None, result: str | None = None, onward: str | None = None,
    ) -> None:  # fmt: skip
        """Any ending but a plain success: cancelled, expired, or a success with a remark or with a trace that goes on."""
        batch = self._batch
        batch.runs.append(claim.run_number)
        batch.tokens.append(claim.token)
        batch.started.append(started)
        batch.finished.append(finished)
        batch.results.append(result)
        batch.endings[claim.run_number] = (outcome, _json(errors), reason)
        if onward is not None:
            batch.onward[claim.run_number] = onward
        self.bulletin.note(claim, outcome)
        self.measures.ended(claim, outcome, started, finished)
        self._batch.note(claim)
        self._wake.set()

    def retry(self, claim: Claim, delay: float, started: float, errors: Any) -> None:
        self._batch.retries.append((claim.run_number, claim.token, delay, started, _json(errors) or "[]"))
        self.bulletin.note(claim, "delayed")
        self.measures.ended(claim, "failed", started)
        self._batch.note(claim)
        self._wake.set()

    def bury(self, claim: Claim, started: float | None, errors: Any, reason: str) -> None:
        self._batch.deaths.append((claim.run_number, claim.token, started, _json(errors), reason))
        self.bulletin.note(claim, "dead")
        self.measures.ended(claim, "dead", started)
        self._batch.note(claim)
        self._wake.set()

    def hand_back(self, claim: Claim) -> None:
        self._batch.returns.append((claim.run_number, claim.token))
        self._batch.note(claim)
        self._wake.set()

    def park(self, claim: Claim, hold: int | None = None) -> None:
        """Set aside: its task is not known here, or it is held back."""
        self._batch.strangers.append((claim.run_number, claim.token, hold))
        self._batch.note(claim)
        self._wake.set()

    async def run(self) -> None:
        patience = Patience()
        while True:
            await self._wake.wait()
            try:
                await self.run_once()
                patience.reset()
            except DatabaseUnavailable as error:
                if patience.first:
                    log.warning("outcomes.waiting", error=str(error), runs=len(self.known()))
                await patience.wait()

    async def run_once(self) -> None:
        """Write what is there. What could not be written stays, and the next call tries again."""
        self._wake.clear()
        self._waiting += self._postponed
        self._postponed = []
        again = self._flushing is not None
        while True:
            if self._flushing is None:
                if self._waiting:
                    self._flushing = self._waiting.pop(0)
                elif len(self._batch):
                    self._flushing, self._batch = self._batch, Batch(self._batch.worker)
                else:
                    break
            try:
                await self._flush(self._flushing, again)
            except DatabaseUnavailable:
                self._wake.set()
                raise
            self._flushing, again = None, False
        self._flushed.set()

    async def drained(self) -> None:
        """Until everything is written."""
        while self.known():
            self._flushed.clear()
            await self._flushed.wait()

    async def close(self) -> None:
        await self._gateway.close()

    def _gather(self, batch: Batch) -> None:
        """Count the plain successes, and put them into the columns."""
        successes, batch.successes = batch.successes, []
        _, claims, started, finished, results = zip(*successes, strict=True)
        batch.runs += [claim.run_number for claim in claims]
        batch.tokens += [claim.token for claim in claims]
        batch.started += started
        batch.finished += finished
        batch.results += results
        for claim in [claim for claim in claims if claim.marked]:
            batch.note(claim)
        self.bulletin.succeeded(claims[-NAMED:], len(claims))
        alike: dict[tuple[Handler, str], list[Success]] = {}
        for one in successes:
            alike.setdefault((one[0], one[1].queue), []).append(one)
        for (handler, _), members in alike.items():
            handler.took([finished - started for _, _, started, finished, _ in members])
            self.measures.succeeded([one[1:4] for one in members])

    async def _flush(self, batch: Batch, again: bool) -> None:
        worker, gateway = batch.worker, self._gateway
        if batch.successes:
            self._gather(batch)
        # Each part is forgotten as soon as it is written, so a retry repeats only the rest.
        if batch.runs:
            accepted = tried = 0
            for part in self._parts(batch):
                try:
                    accepted += await self._finish(part)
                    tried += len(part.runs)
                except LockTimeout:
                    # Of the batch itself a copy: what is in it is about to be forgotten.
                    self._postpone(batch, batch.only(list(range(len(batch.runs)))) if part is batch else part)
            self._count(tried, accepted, again, worker)
            batch.runs = []
        if batch.retries:
            soon = min(one[2] for one in batch.retries) < 2
            self._count(*await self._in_parts(self._retry, batch, "retries"), again, worker)
            batch.retries = []
            if soon:
                await gateway.notify(["d"])
        if batch.deaths:
            self._count(*await self._in_parts(self._bury, batch, "deaths"), again, worker)
            batch.deaths = []
        if batch.returns:
            self._count(*await self._in_parts(self._hand_back, batch, "returns"), again, worker, 0)
            batch.returns = []
        if batch.strangers:
            runs, tokens, holds = _columns(batch.strangers)
            self._count(len(runs), await gateway.park(worker, runs, tokens, holds), again, worker, 0)
            batch.strangers = []
        if batch.gates and not self.on_freed({gate for gates in batch.gates.values() for gate in gates}):
            await gateway.notify(["g"])

    @staticmethod
    def _parts(batch: Batch) -> list[Batch]:
        if not batch.alone:
            return [batch]
        together = [place for place, run in enumerate(batch.runs) if run not in batch.alone]
        parts = [batch.only(together)] if together else []
        return parts + [batch.only([place]) for place, run in enumerate(batch.runs) if run in batch.alone]

    def _postpone(self, batch: Batch, part: Batch) -> None:
        """Somebody's open transaction minds the overlap of the same job: this one waits for it, and nobody else does."""
        part.alone = set(part.known())
        part.gates = {run: batch.gates.pop(run) for run in part.known() if run in batch.gates}
        self._postponed.append(part)
        asyncio.get_running_loop().call_later(LOCK_TIMEOUT, self._wake.set)

    async def _in_parts(self, write: Write, batch: Batch, kind: str) -> tuple[int, int]:
        """How many runs were tried, and how many of them the database took."""
        rows = getattr(batch, kind)
        together = [row for row in rows if row[0] not in batch.alone]
        tried = len(together)
        accepted = await self._one_by_one(write, batch.worker, together) if together else 0
        for row in (row for row in rows if row[0] in batch.alone):
            try:
                accepted += await self._one_by_one(write, batch.worker, [row])
                tried += 1
            except LockTimeout:
                part = Batch(batch.worker)
                setattr(part, kind, [row])
                self._postpone(batch, part)
        return tried, accepted

    async def _finish(self, batch: Batch) -> int:
        try:
            return await self._finish_all(batch)
        except StatementRefused as error:
            # One result that PostgreSQL cannot store must not hold up the others.
            accepted = 0
            for place, run in enumerate(batch.runs):
                one = batch.only([place])
                try:
                    accepted += await self._finish_all(one)
                except StatementRefused:
                    outcome = batch.endings.get(run, ("succeeded",))[0]
                    one.results, one.endings = [None], {run: (outcome, None, f"result not kept: {error}")}
                    accepted += await self._finish_all(one)
            return accepted

    async def _finish_all(self, batch: Batch) -> int:
        if not batch.endings and batch.results.count(None) == len(batch.results):
            return await self._gateway.finish_plain(batch.worker, batch.runs, batch.tokens, batch.started, batch.finished)
        outcomes: list[str | None] | None = None
        errors: list[str | None] | None = None
        reasons: list[str | None] | None = None
        if batch.endings:
            plain = ("succeeded", None, None)
            columns = zip(*(batch.endings.get(run, plain) for run in batch.runs), strict=True)
            outcomes, errors, reasons = (list(column) for column in columns)
        return await self._gateway.finish(
            batch.worker, batch.runs, batch.tokens, batch.started, batch.finished,
            outcomes, batch.results, errors, reasons, [batch.onward.get(run) for run in batch.runs] if batch.onward else None,
        )  # fmt: skip

    async def _retry(self, worker: int, rows: list[Any]) -> int:
        return await self._gateway.retry(worker, *_columns(rows))

    async def _bury(self, worker: int, rows: list[Any]) -> int:
        return await self._gateway.bury(worker, *_columns(rows))

    async def _hand_back(self, worker: int, rows: list[Any]) -> int:
        return await self._gateway.hand_back(worker, *_columns(rows))

    async def _one_by_one(self, write: Write, worker: int, rows: list[Any]) -> int:
        """All at once; if PostgreSQL cannot store somebody's error text, each by itself, without it if need be."""
        try:
            return await write(worker, rows)
        except StatementRefused as error:
            log.error("outcomes.text_refused", error=str(error))
        accepted = 0
        for row in rows:
            try:
                accepted += await write(worker, [row])
            except StatementRefused:
                bare = tuple("[]" if isinstance(value, str) and value.startswith("[") else value for value in row)
                accepted += await write(worker, [bare])
        return accepted

    def _count(self, tried: int, accepted: int, again: bool, worker: int, weight: int = 1) -> None:
        self.completed += accepted * weight
        # After a lost answer a missing row may also mean that the first try went through.
        if accepted < tried and not again:
            self.refused += tried - accepted
            log.warning("outcomes.refused", node=worker, runs=tried - accepted, meaning="another worker has these runs now")


def _columns(rows: list[Any]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
