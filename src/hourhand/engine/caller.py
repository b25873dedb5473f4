"""How a handler is called: here or in a child process, and under which promise about its effects."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from hourhand.core.context import Context
from hourhand.core.errors import ClaimLost
from hourhand.core.registry import Registry
from hourhand.core.settings import Settings
from hourhand.core.task import TaskDefinition
from hourhand.engine.delivery import AT_MOST_ONCE, EXACTLY_ONCE, KNOWN, RECORDED, Recorded, atomically
from hourhand.engine.gate import Gate
from hourhand.engine.isolation import Children
from hourhand.engine.office import StepOffice
from hourhand.engine.threads import Threads
from hourhand.engine.tracing import Attempt
from hourhand.storage.atomic import Holder, RunTransaction
from hourhand.storage.database import Database
from hourhand.storage.effects import effect_gateway
from hourhand.storage.queue import Claim
from hourhand.targets.python import BatchCall, Call, batch_call, direct_call

_RECORD = 5.0
"""Seconds that a beginning which is on its way to the record is waited for."""


class Handler:
    """A task, ready to be called here; and how long its runs took since that was last reported."""

    __slots__ = (
        "batch", "call", "call_batch", "definition", "delivery", "in_thread", "isolated", "light", "runs", "seconds", "squares",
        "timeout",
    )  # fmt: skip

    def __init__(self, definition: TaskDefinition, registry: Registry, threads: Threads) -> None:
        self.definition = definition
        self.delivery = definition.delivery
        self.isolated = definition.isolation == "process"
        self.light = definition.light
        self.timeout = definition.timeout
        self.in_thread = not definition.is_async and not self.isolated
        self.call: Call = direct_call(definition, registry.middleware, threads.run)
        self.batch = definition.batch or 0
        """Runs that it is called for at once, at most; 0: its task knows no batches."""
        self.call_batch: BatchCall | None = None
        if self.batch:
            self.call_batch = batch_call(definition, registry.middleware, threads.run)
        self.runs, self.seconds, self.squares = 0, 0.0, 0.0

    def took(self, seconds: Sequence[float]) -> None:
        """Each of these runs."""
        self.runs += len(seconds)
        self.seconds += sum(seconds)
        self.squares += sum([one * one for one in seconds])

    def facts(self) -> tuple[str, float | None, float, float, float]:
        """What there is to report, once: name, timeout, and the number, mean and variance of durations."""
        runs, mean = self.runs, self.seconds / self.runs if self.runs else 0.0
        variance = max(0.0, self.squares / runs - mean * mean) if runs else 0.0
        self.runs, self.seconds, self.squares = 0, 0.0, 0.0
        return self.definition.name, self.definition.timeout, float(runs), mean, variance


class Active(msgspec.Struct, eq=False):
    """A handler that is being executed, and why it was told to stop, if it was."""

    claim: Claim
    context: Context
    handler: Handler
    task: asyncio.Task[None]
    started: float
    apart: bool
    """In a child process."""
    timeout: float | None
    delivery: str
    begun: bool = False
    """On record as begun, so that it must not begin again."""
    closing: bool = False
    """Its transaction is being committed or undone: what comes now comes too late."""
    left_behind: bool = False
    transaction: RunTransaction | None = None
    cause: str | None = None
    reason: str | None = None
    attempt: Attempt | None = None
    """Its span, where runs are traced."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of run {self.claim.run_number}, task {self.claim.task}>"

    @property
    def in_thread(self) -> bool:
        return self.handler.in_thread and not self.apart

    @property
    def onward(self) -> str | None:
        """What the next step of its chain is told of its trace."""
        return None if self.attempt is None else self.attempt.onward

    @property
    def whole(self) -> Any:
        """What is stopped if this is: itself, or the batch that it is called with."""
        return self

    @property
    def members(self) -> list[Active]:
        return [self]

    def stop(self, cause: str, reason: str | None = None) -> bool:
        """False: there is nothing to stop any more, or it can only be told."""
        if self.cause is not None or self.closing:
            return False
        self.context._watch().set()
        self.reason = reason
        if cause == "cancelled" and self.in_thread:
            return False  # it ends when it looks
        self.cause = cause
        self.task.cancel()
        return True


class Caller:
    def __init__(self, database: Database, settings: Settings, threads: Threads, children: Children) -> None:
        self._database = database
        self._settings = settings
        self._threads = threads
        self._children = children
        self._gateway = effect_gateway(database)
        self._gate = Gate(self._gateway)
        self.office = StepOffice(self._gateway, asyncio.get_running_loop())

    async def admit(self, active: Active) -> Recorded | None:
        """What must be known before a run that is not at-least-once starts. Something back: it is over already."""
        claim = active.claim
        if active.delivery == AT_MOST_ONCE:
            asking = asyncio.ensure_future(self._gate.begin(_holder(claim)))
            try:
                begun = await asyncio.shield(asking)
            except asyncio.CancelledError:
                # The record is on its way. What becomes of the run is written after it, not at the same time: of two
                # statements that change the same row, the one that looked first may miss it.
                await asyncio.wait([asking], timeout=_RECORD)
                raise
            if not begun:
                raise ClaimLost("another worker has this run now")
            active.begun = True
            return None
        claim.alone = claim.marked = True
        there, result = await self._gate.effect(active.context.token)
        return Recorded(KNOWN, result) if there else None

    async def call(self, active: Active) -> Any:
        if active.apart:
            result = await self._children.run(active)
        elif active.delivery == EXACTLY_ONCE:
            result = await self._atomically(active)
        else:
            return await active.handler.call(active.context, active.claim.payload)
        if isinstance(result, Recorded) and result is not RECORDED:
            _, result.result = await self._gate.effect(active.context.token)
        return result

    async def _atomically(self, active: Active) -> Recorded:
        claim, context = active.claim, active.context
        active.transaction = RunTransaction(self._database, _holder(claim), context.token, self._threads.run)
        return await atomically(active, active.transaction, active.handler.call, claim.payload, self._settings.max_result)

    async def close(self) -> None:
        await self._gateway.close()


def _holder(claim: Claim) -> Holder:
    return Holder(claim.worker, claim.run_number, claim.token)
