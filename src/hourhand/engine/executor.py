"""Runs the handlers: N slots, each a long-lived asyncio task that takes runs from a local deque.

What survives a crash: nothing here needs to. A run that was taken but not finished is still in
`running`, under a claim that recovery will break.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection
from random import Random
from typing import Any

import msgspec
import structlog

from hourhand.core import failure, ids
from hourhand.core.context import Context
from hourhand.core.errors import Cancelled, HandlerTimeout, InvalidPayload, PermanentFailure
from hourhand.core.payload import check_report, dump
from hourhand.core.registry import Registry
from hourhand.core.settings import Settings
from hourhand.core.task import TaskDefinition
from hourhand.engine.completer import Completer
from hourhand.engine.isolation import Children
from hourhand.engine.node import Node
from hourhand.engine.threads import Threads
from hourhand.storage.queue import Claim
from hourhand.targets.python import Call, direct_call

log = structlog.get_logger("hourhand.executor")
_YIELD_EVERY = 32
_MISHAP_DELAY = 30.0


class Handler:
    """A task, ready to be called here."""

    __slots__ = ("call", "definition", "in_thread", "isolated")

    def __init__(self, definition: TaskDefinition, registry: Registry, threads: Threads) -> None:
        self.definition = definition
        self.isolated = definition.isolation == "process"
        self.in_thread = not definition.is_async and not self.isolated
        self.call: Call = direct_call(definition, registry.middleware, threads.run)


class Active:
    """A handler that is being executed, and why it was told to stop, if it was."""

    __slots__ = ("cause", "claim", "context", "in_thread", "reason", "started", "task")

    def __init__(self, claim: Claim, context: Context, task: asyncio.Task[None], in_thread: bool, started: float) -> None:
        self.claim = claim
        self.context = context
        self.task = task
        self.in_thread = in_thread
        self.started = started
        self.cause: str | None = None
        self.reason: str | None = None

    def stop(self, cause: str, reason: str | None = None) -> None:
        if self.cause is not None:
            return
        self.context._watch().set()
        self.reason = reason
        if cause == "cancelled" and self.in_thread:
            return  # it can only be told; it ends when it looks
        self.cause = cause
        self.task.cancel()


class Executor:
    def __init__(
        self, registry: Registry, node: Node, completer: Completer, settings: Settings, reference: str | None, concurrency: int
    ) -> None:
        self._registry = registry
        self._node = node
        self._completer = completer
        self._settings = settings
        self._threads = Threads()
        self._children = Children(reference, settings.environment())
        self._rng = Random()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._slots: list[asyncio.Task[None]] = []
        self._stopping = False
        self._unknown: set[str] = set()
        self.handlers = {name: Handler(one, registry, self._threads) for name, one in registry.tasks.items()}
        self.concurrency = concurrency
        self.deque: deque[Claim] = deque()
        self.active: dict[int, Active] = {}
        self.taken = 0
        self.progress: dict[int, dict[str, Any]] = {}
        self.on_hungry: Callable[[], None] = lambda: None
        self.hungry_below = 0

    @property
    def slots(self) -> list[asyncio.Task[None]]:
        return self._slots

    def start(self) -> None:
        self._slots = [asyncio.create_task(self._slot(), name=f"slot-{n}") for n in range(self.concurrency)]

    def feed(self, claims: list[Claim]) -> None:
        self.deque.extend(claims)
        for _ in range(min(len(claims), len(self._waiters))):
            waiter = self._waiters.pop()
            if not waiter.done():
                waiter.set_result(None)

    def wake_all(self) -> None:
        while self._waiters:
            waiter = self._waiters.pop()
            if not waiter.done():
                waiter.set_result(None)

    def known(self) -> list[int]:
        return [*(claim.run_number for claim in self.deque), *self.active]

    def cancel(self, run: int, reason: str | None = None) -> None:
        """Somebody asked this run to stop. In the deque it ends at once; running, it is told."""
        active = self.active.get(run)
        if active is not None:
            active.stop("cancelled", reason)
            return
        for claim in self.deque:
            if claim.run_number == run:
                self.deque.remove(claim)
                self._completer.end(claim, "cancelled", self._node.clock.now(), reason=reason or "cancelled", errors=claim.errors)
                return

    def forsake(self) -> int:
        """Every claim is lost: drop what waits, stop what runs, write nothing."""
        lost = len(self.deque) + len(self.active)
        self.deque.clear()
        for active in list(self.active.values()):
            active.stop("lost")
        return lost

    def give_back(self, queues: Collection[str]) -> None:
        """What waits here for a queue that was paused meanwhile."""
        for claim in [one for one in self.deque if one.queue in queues]:
            self.deque.remove(claim)
            self._completer.hand_back(claim)

    async def stop(self, finish_within: Callable[[], float]) -> None:
        """Hand back what has not started, wait for the rest, hand back what does not end in time."""
        self._stopping = True
        while self.deque:
            self._completer.hand_back(self.deque.pop())
        self.wake_all()
        pending = set(self._slots)
        while pending and finish_within() > 0:
            _, pending = await asyncio.wait(pending, timeout=min(0.1, max(0.01, finish_within())))
        for active in list(self.active.values()):
            active.stop("shutdown")
        if pending:
            _, pending = await asyncio.wait(pending, timeout=2.0)
        for active in list(self.active.values()):
            # It swallowed its cancellation. The process is about to end; its run goes to another.
            log.warning("run.ignores_cancellation", run=ids.run_id(active.claim.run_number), task=active.claim.task)
            self._completer.hand_back(active.claim)
        for slot in pending:
            slot.cancel()
        self._threads.close()
        await self._children.close()

    async def _slot(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        spins = 0
        while not self._stopping:
            if not self.deque or self._node.lease_deadline < self._node.clock.monotonic():
                await self._wait()
                continue
            claim = self.deque.popleft()
            if len(self.deque) < self.hungry_below:
                self.on_hungry()
            self.taken += 1
            try:
                handler = self.handlers.get(claim.task)
                if handler is None:
                    self._stranger(claim)
                elif (active := self._admit(claim, handler, me)) is not None:
                    await self._execute(active, handler)
            except Exception as error:
                # Whatever it is, the slot goes on, and the run is not left in limbo.
                self._mishap(claim, error)
            # A handler that never really waits would keep the loop from everything else.
            spins += 1
            if not spins % _YIELD_EVERY:
                await asyncio.sleep(0)

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self.on_hungry()
        await waiter

    def _admit(self, claim: Claim, handler: Handler, me: asyncio.Task[None]) -> Active | None:
        """What is decided before the handler starts."""
        now = self._node.clock.now()
        if claim.expires_at is not None and claim.expires_at.timestamp() <= now:
            self._completer.end(
                claim, "expired", now, errors=claim.errors,
                reason=f"expired at {claim.expires_at.isoformat()} before {'its next attempt' if claim.attempt else 'a worker could start it'}",
            )  # fmt: skip
            return None
        if claim.attempt >= self._max_attempts(claim, handler.definition):
            self._completer.bury(claim, None, claim.errors, "no attempt is left for it")
            return None
        context = Context(
            claim.run_number, claim.job_number, claim.task, claim.scheduled_at, claim.attempt + 1, claim,
            self._report, self._registry.state,
        )  # fmt: skip
        active = Active(claim, context, me, handler.in_thread and not claim.crashes, now)
        self.active[claim.run_number] = active
        return active

    async def _execute(self, active: Active, handler: Handler) -> None:
        claim, definition = active.claim, handler.definition
        timeout = definition.timeout
        if claim.options is not None:
            timeout = claim.options.get("timeout", timeout)
        timer = None if timeout is None else asyncio.get_running_loop().call_later(timeout, active.stop, "timeout")
        result, error = None, None
        try:
            # A run that comes from a dead process runs apart, so that if it was the culprit, it harms
            # only itself this time.
            if handler.isolated or (claim.crashes and self._children.possible):
                result = await self._children.run(claim, active.context.attempt, self._report)
            else:
                result = await handler.call(active.context, claim.payload)
        except BaseException as raised:
            error = raised
        finally:
            if timer is not None:
                timer.cancel()
            # After a rebirth the same run may be here a second time, under its new claim.
            if self.active.get(claim.run_number) is active:
                del self.active[claim.run_number]
        if active.cause is not None:
            active.task.uncancel()
        elif isinstance(error, asyncio.CancelledError) and active.task.cancelling():
            self._completer.hand_back(claim)
            raise error
        self._settle(active, definition, timeout, result, error)

    def _settle(
        self, active: Active, definition: TaskDefinition, timeout: float | None, result: Any, error: BaseException | None
    ) -> None:
        """What becomes of the run: why it was stopped, if it was, outweighs how it ended."""
        claim, cause = active.claim, active.cause
        if cause == "lost":
            log.warning("run.abandoned", run=active.context.run_id, task=claim.task, meaning="its claim was lost")
        elif error is None:
            self._succeeded(active, definition, result)
        elif cause == "shutdown":
            self._completer.hand_back(claim)
        elif cause == "timeout":
            self._timed_out(active, definition, timeout)
        elif cause == "cancelled" or isinstance(error, Cancelled):
            self._completer.end(
                claim, "cancelled", self._node.clock.now(), started=active.started, errors=claim.errors,
                reason=active.reason or "cancelled",
            )  # fmt: skip
        elif isinstance(error, (SystemExit, KeyboardInterrupt)):
            self._failed(active, definition, RuntimeError(f"the handler raised {error!r}"))
        else:
            self._failed(active, definition, error)

    def _succeeded(self, active: Active, definition: TaskDefinition, result: Any) -> None:
        text, remark = None, None
        if result is not None:
            text, remark = self._result(active, result)
        if remark is not None and _passes_on(active.claim):
            error = PermanentFailure(f"the next step of its chain takes the result, and that cannot be: {remark}")
            self._failed(active, definition, error)
            return
        now = self._node.clock.now()
        if remark is None and active.claim.errors is None:
            self._completer.succeed(active.claim, active.started, now, text)
        else:
            self._completer.end(
                active.claim, "succeeded", now, started=active.started, result=text, reason=remark, errors=active.claim.errors
            )

    def _result(self, active: Active, result: Any) -> tuple[str | None, str | None]:
        try:
            encoded = bytes(result) if isinstance(result, msgspec.Raw) else dump(result, "the result")
        except InvalidPayload as error:
            log.warning("run.result_not_kept", run=active.context.run_id, task=active.claim.task, error=str(error))
            return None, f"result not kept: {error}"
        if len(encoded) > self._settings.max_result:
            return None, f"result not kept: {len(encoded):,} bytes, over the limit of {self._settings.max_result:,}"
        if b"\\u0000" in encoded:
            return None, "result not kept: it contains a NUL character, which PostgreSQL cannot store"
        return encoded.decode(), None

    def _timed_out(self, active: Active, definition: TaskDefinition, timeout: float | None) -> None:
        message = f"ran longer than its timeout of {timeout:g} s"
        if active.in_thread:
            message += "; the thread cannot be killed and was left behind"
        self._failed(active, definition, HandlerTimeout(message))
        if active.in_thread:
            log.warning("run.thread_abandoned", run=active.context.run_id, task=active.claim.task, timeout=timeout)

    def _mishap(self, claim: Claim, error: Exception) -> None:
        """A fault of our own around a run. It is tried again later, and not for ever."""
        at = self._node.clock.instant().isoformat()
        errors = failure.append(claim.errors, failure.describe(error, claim.attempt + 1, at, self._node.name))
        self._completer.retry(claim, _MISHAP_DELAY, self._node.clock.now(), errors)
        with contextlib.suppress(Exception):
            log.error("run.mishap", run=ids.run_id(claim.run_number), task=claim.task, error=repr(error))

    def _failed(self, active: Active, definition: TaskDefinition, error: BaseException) -> None:
        claim, attempt = active.claim, active.context.attempt
        at = self._node.clock.instant().isoformat()
        errors = failure.append(claim.errors, failure.describe(error, attempt, at, self._node.name))
        limit = self._max_attempts(claim, definition)
        try:
            delay = definition.retry.next_delay(error, attempt, self._rng, limit)
        except Exception as bad:  # the user's own backoff function
            log.error("retry.backoff_failed", task=claim.task, error=repr(bad), meaning="waiting the cap instead")
            delay = definition.retry.cap
        event = log.bind(run=active.context.run_id, task=claim.task, attempt=attempt, error=errors[-1]["type"])
        if delay is None:
            reason = f"gave up after {attempt} of {limit} attempts" if attempt >= limit else "not worth another attempt"
            self._completer.bury(claim, active.started, errors, f"{reason}: {errors[-1]['type']}")
            event.error("run.dead", message=errors[-1]["message"], reason=reason)
        else:
            self._completer.retry(claim, delay, active.started, errors)
            event.warning("run.failed", message=errors[-1]["message"], retry_in=round(delay, 2))

    @staticmethod
    def _max_attempts(claim: Claim, definition: TaskDefinition) -> int:
        if claim.options is not None and "max_attempts" in claim.options:
            return int(claim.options["max_attempts"])
        return definition.retry.max_attempts

    def _stranger(self, claim: Claim) -> None:
        self._completer.park(claim)
        if claim.task not in self._unknown:
            self._unknown.add(claim.task)
            log.warning("task.unknown", task=claim.task, queue=claim.queue,
                        meaning="this worker's app has no such task; its runs are left for a worker that has it")  # fmt: skip

    def _report(self, run: int, data: dict[str, Any]) -> None:
        check_report(data)
        self.progress[run] = {**self.progress.get(run, {}), **data}


def _passes_on(claim: Claim) -> bool:
    """Whether another run will be given this one's result."""
    return claim.options is not None and bool(claim.options.get("then", {}).get("result"))
