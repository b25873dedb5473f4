"""Runs the handlers: N slots, each a long-lived asyncio task that takes runs from a local deque.

A few more slots serve the runs on probation, whose last worker died: each runs in a child process, and healthy runs neither
wait for them nor share a process with them.

What survives a crash: nothing here needs to. A run that was taken but not finished is still in
`running`, under a claim that recovery will break.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import structlog

from hourhand.core.context import RUN, Context, Support
from hourhand.core.fairness import LANES_PER_QUEUE
from hourhand.core.registry import Registry
from hourhand.core.sealing import SIGN
from hourhand.engine.batcher import Batcher, Group
from hourhand.engine.bench import Bench
from hourhand.engine.caller import Active, Caller, Handler
from hourhand.engine.completer import Completer
from hourhand.engine.delivery import AT_LEAST_ONCE
from hourhand.engine.isolation import Children
from hourhand.engine.logs import about, ended, is_chatty
from hourhand.engine.node import Node
from hourhand.engine.scribe import Scribe
from hourhand.engine.secrecy import Secrecy
from hourhand.engine.settler import Settler, max_attempts
from hourhand.engine.threads import Threads
from hourhand.engine.tracing import Tracing
from hourhand.storage.database import Database
from hourhand.storage.queue import Claim, queue_gateway

log = structlog.get_logger("hourhand.executor")
PROBATION_SLOTS = 8
_YIELD_EVERY = 32
_PATIENCE = 5.0
"""Seconds that a handler may ask for at most when its worker stops, beyond what everybody gets."""


class Executor:
    def __init__(
        self, registry: Registry, node: Node, completer: Completer, database: Database, reference: str | None, concurrency: int
    ) -> None:
        settings = database.settings
        self._registry = registry
        self._node = node
        self._completer = completer
        self._settings = settings
        self._threads = Threads()
        self._sealer = database.sealer
        secrecy = Secrecy(registry, settings.secret_names)
        self.scribe = Scribe(queue_gateway(database, "scribe"), node.clock, settings.log_lines, secrecy)
        self._children = Children(reference, settings, self.scribe.report)
        self._caller = Caller(database, settings, self._threads, self._children)
        self._support = Support(self.scribe.report, registry.state, self._caller.office, self.scribe.pen)
        self._settler = Settler(node, completer, settings, secrecy)
        self.tracing: Tracing | None = None
        """None: runs are not traced here."""
        self._slots: list[asyncio.Task[None]] = []
        self._stopping = False
        self._unknown: set[str] = set()
        self._chatty = is_chatty()
        self._healthy, self._suspects = Bench(), Bench()
        self._batcher = Batcher(self, self._healthy, node, self._settler, self._sealer)
        self.handlers = {name: Handler(one, registry, self._threads) for name, one in registry.everything().items()}
        self.concurrency = concurrency
        self.deque = self._healthy.deque
        self.active: dict[int, Active] = {}
        self._on_probation = 0
        self._light: set[asyncio.Task[None]] = set()
        self.left_behind = 0
        """Handlers that ignored their cancellation and are still there."""
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """A slot ended by itself: a fault of ours, and the process must say so."""
        self.taken = 0
        self.on_hungry: Callable[[], None] = lambda: None
        self.hungry_below = 0

    @property
    def slots(self) -> list[asyncio.Task[None]]:
        return self._slots

    @property
    def room_for_suspects(self) -> int:
        # Where no child can be made, a suspect is at least alone with the healthy, not among its like.
        most = self.probation_slots if self._children.possible else 1
        return most - len(self._suspects.deque) - self._on_probation

    @property
    def busy(self) -> int:
        """Slots for healthy runs that have one, or a batch of them."""
        return len(self.active) - self._on_probation - len(self._light) - self._batcher.surplus + self._healthy.collecting

    @property
    def appetite(self) -> int:
        """Runs that batches still wait for."""
        return self._healthy.appetite

    @property
    def on_probation(self) -> int:
        """Slots for suspects that have one."""
        return self._on_probation

    @property
    def light(self) -> int:
        """Runs that only wait for others, and take no slot."""
        return len(self._light)

    @property
    def admitted(self) -> int:
        """Runs that wait for a slot here while they hold one of a limit."""
        return sum(claim.gates is not None for claim in self.deque)

    @property
    def urgent(self) -> int:
        """Runs of the highest priority that wait for a slot; they are in front."""
        waiting = 0
        for claim in self.deque:
            if claim.lane % LANES_PER_QUEUE and claim.gates is None:
                break
            waiting += 1
        return waiting

    @property
    def stock(self) -> int:
        """Claimed runs that wait for a slot."""
        return len(self._healthy) + len(self._suspects)

    @property
    def probation_slots(self) -> int:
        return min(PROBATION_SLOTS, self.concurrency)

    def start(self) -> None:
        self._settler.tracing = self.tracing
        for _ in range(self.concurrency):
            self._start_slot(self._healthy)
        for _ in range(self.probation_slots):
            self._start_slot(self._suspects)

    def _start_slot(self, bench: Bench) -> None:
        slot = asyncio.create_task(self._slot(bench), name=f"slot-{len(self._slots)}")
        slot.add_done_callback(self._slot_ended)
        self._slots.append(slot)

    def _slot_ended(self, slot: asyncio.Task[None]) -> None:
        if not slot.cancelled() and (error := slot.exception()) is not None and not self.broken.done():
            self.broken.set_exception(error)

    def feed(self, claims: list[Claim], *, first: bool = False) -> None:
        """`first`: before those that wait already."""
        if any(one.crashes for one in claims):
            self._suspects.feed([one for one in claims if one.crashes])
            claims = [one for one in claims if not one.crashes]
        self._healthy.feed(claims, first=first)

    def wake_all(self) -> None:
        self._healthy.wake_all()
        self._suspects.wake_all()

    def known(self) -> list[int]:
        return [*(claim.run_number for bench in (self._healthy, self._suspects) for claim in bench.claims()), *self.active]

    def cancel(self, run: int, reason: str | None = None) -> None:
        """Somebody asked this run to stop. Waiting, it ends at once; running, it is told."""
        active = self.active.get(run)
        if active is not None:
            self.interrupt(active, "cancelled", reason)
            return
        for bench in (self._healthy, self._suspects):
            for claim in bench.claims():
                if claim.run_number == run:
                    bench.remove(claim)
                    why = reason or "cancelled"
                    self._completer.end(claim, "cancelled", self._node.clock.now(), reason=why, errors=claim.errors)
                    log.info("run.cancelled", **ended(claim, "cancelled", None, 0.0), reason=why)
                    return

    def forsake(self) -> int:
        """Every claim is lost: drop what waits, stop what runs, write nothing."""
        lost = len(self.known())
        self._healthy.clear()
        self._suspects.clear()
        for active in list(self.active.values()):
            self.interrupt(active, "lost")
        return lost

    def give_back(self, queues: Collection[str]) -> None:
        """What waits here for a queue that was paused meanwhile."""
        for claim in self.take_out(lambda one: one.queue in queues):
            self._completer.hand_back(claim)

    def take_out(self, unwanted: Callable[[Claim], Any]) -> list[Claim]:
        """What waits here and must not start."""
        out = []
        for bench in (self._healthy, self._suspects):
            for claim in [one for one in bench.claims() if unwanted(one)]:
                bench.remove(claim)
                out.append(claim)
        return out

    async def stop(self, finish_within: Callable[[], float]) -> None:
        """Hand back what has not started, wait for the rest, hand back what does not end in time."""
        self._stopping = True
        for bench in (self._healthy, self._suspects):
            for claim in bench.clear():
                self._completer.hand_back(claim)
        self.wake_all()
        pending = {*self._slots, *self._light}
        while pending and finish_within() > 0:
            _, pending = await asyncio.wait(pending, timeout=min(0.1, max(0.01, finish_within())))
        patience = 0.0
        for active in list(self.active.values()):
            active.stop("shutdown")
            patience = max(patience, min(_PATIENCE, active.context.patience))
        if pending:
            _, pending = await asyncio.wait(pending, timeout=2.0 + patience)
        for active in list(self.active.values()):
            # It swallowed its cancellation. The process is about to end; its run goes to another.
            log.warning("run.ignores_cancellation", **ended(active.claim, "handed_back", active.started, self._node.clock.now()))
            self._settler.hand_back(active, "its worker was stopped, and it ignored its cancellation")
            self.left_behind += 1
        for slot in pending:
            slot.cancel()
        self._threads.close()
        await self._children.close()
        await self._caller.close()

    async def _slot(self, bench: Bench) -> None:
        me = asyncio.current_task()
        assert me is not None
        spins, claim, active = 0, None, None
        while not self._stopping:
            if not bench.deque or self._node.lease_deadline < self._node.clock.monotonic():
                self.on_hungry()
                claim = active = None  # an idle slot holds on to nothing
                await bench.wait()
                continue
            claim = bench.deque.popleft()
            # Also at zero: a word that came while the last claims waited for their slots found the worker sated.
            if len(self.deque) <= self.hungry_below or bench is self._suspects:
                self.on_hungry()
            self.taken += 1
            active = None
            try:
                handler = self.handlers.get(claim.task)
                if handler is None:
                    self._stranger(claim)
                elif handler.batch and self._batcher.takes(claim):
                    if await self._batcher.run(claim, handler, me):
                        return  # as below
                elif (active := self.admit(claim, handler, me)) is None:
                    pass
                elif handler.light and not active.apart and len(self._light) < self._settings.http_concurrency:
                    self._set_apart(active)
                else:
                    await self._execute(active)
                    if active.left_behind:
                        return  # another slot has taken this one's place
            except Exception as error:
                # Whatever it is, the slot goes on, and the run is not left in limbo.
                self._settler.mishap(claim, error, active)
            # A handler that never really waits would keep the loop from everything else.
            spins += 1
            if not spins % _YIELD_EVERY:
                await asyncio.sleep(0)

    def admit(self, claim: Claim, handler: Handler, me: asyncio.Task[None], kind: type[Active] = Active) -> Active | None:
        """What is decided before the handler starts."""
        now = self._node.clock.now()
        if claim.expires_at is not None and claim.expires_at.timestamp() <= now:
            self._completer.end(
                claim, "expired", now, errors=claim.errors,
                reason=f"expired at {claim.expires_at.isoformat()} before {'its next attempt' if claim.attempt else 'a worker could start it'}",
            )  # fmt: skip
            if self._chatty:
                log.debug("run.expired", **ended(claim, "expired", None, now))
            return None
        if claim.attempt and claim.attempt >= max_attempts(claim, handler.definition):
            self._completer.bury(claim, None, claim.errors, "no attempt is left for it")
            log.error("run.dead", **ended(claim, "dead", None, now), reason="no attempt is left for it")
            return None
        # A run that comes from a dead process runs apart, so that if it was the culprit, it harms only itself this time.
        apart = handler.isolated or (claim.crashes > 0 and self._children.possible)
        timeout, delivery = handler.timeout, handler.delivery
        if claim.options is not None:
            timeout, delivery = claim.options.get("timeout", timeout), claim.options.get("delivery", delivery)
        active = kind(claim, Context(claim, self._support), handler, me, now, apart, timeout, delivery)
        before = self.active.get(claim.run_number)
        if before is not None:
            self.forget(before)
        self.active[claim.run_number] = active
        self._on_probation += claim.crashes > 0
        return active

    async def _execute(self, active: Active) -> None:
        timer, result, error = None, None, None
        if self.tracing is not None:
            self.tracing.begin(active)
        RUN.set(active.context)
        if self._chatty:
            log.debug("run.started", **about(active.claim), scheduled_at=active.claim.scheduled_at.isoformat())
        try:
            if SIGN in active.claim.payload:
                active.claim.payload = self._sealer.open(active.claim.payload, active.claim.task)
            if active.delivery != AT_LEAST_ONCE:
                result = await self._caller.admit(active)
            if result is None:
                if active.timeout is not None:
                    timer = asyncio.get_running_loop().call_later(active.timeout, self.interrupt, active, "timeout")
                if active.apart or active.delivery != AT_LEAST_ONCE:
                    result = await self._caller.call(active)
                else:
                    result = await active.handler.call(active.context, active.claim.payload)
        except BaseException as raised:
            error = raised
        finally:
            if timer is not None:
                timer.cancel()
            RUN.set(None)
            self.forget(active)
            if active.attempt is not None:
                active.attempt.leave()
        try:
            if active.context.spoke:
                self.scribe.wake()
            if active.left_behind:
                self.left_behind -= 1
                log.info("run.came_back", **about(active.claim), meaning="a handler that was left behind ended")
                return
            if active.cause is not None:
                active.task.uncancel()
            elif isinstance(error, asyncio.CancelledError) and active.task.cancelling():
                self._settler.hand_back(active, "its worker was stopped before it ended")
                raise error
            self._settler.settle(active, result, error)
        finally:
            del error  # its traceback knows this frame: all that the handler had would stay until the garbage collector came

    def _set_apart(self, active: Active) -> None:
        """A run that only waits for others takes no slot: a task of its own does the waiting."""
        active.task = asyncio.create_task(self._execute_apart(active), name=f"light-{active.claim.run_number}")
        self._light.add(active.task)
        active.task.add_done_callback(self._light.discard)

    async def _execute_apart(self, active: Active) -> None:
        try:
            await self._execute(active)
        except Exception as error:
            self._settler.mishap(active.claim, error, active)

    def forget(self, active: Active) -> bool:
        # After a rebirth the same run may be here a second time, under its new claim.
        if self.active.get(active.claim.run_number) is not active:
            return False
        del self.active[active.claim.run_number]
        self._on_probation -= active.claim.crashes > 0
        return True

    def interrupt(self, active: Active | Group, cause: str, reason: str | None = None) -> None:
        if active.stop(cause, reason):
            patience = self._settings.cancel_grace + active.whole.context.patience
            asyncio.get_running_loop().call_later(patience, self._leave_behind, active.whole)

    def _leave_behind(self, active: Active | Group) -> None:
        """It ignores its cancellation: it is given up as it stands, and another slot takes the place of the one it sits in."""
        if active.closing or self._stopping or not (members := [one for one in active.members if self.forget(one)]):
            return
        RUN.set(None)  # the new slot is none of its
        active.left_behind = True
        self.left_behind += 1
        if active.transaction is not None:
            active.closing = True
            self._undoing = asyncio.create_task(active.transaction.undo())
        for one in members:
            one.left_behind = True
            log.error("run.ignores_cancellation", **about(one.claim),
                      meaning="it was left behind and may still be doing things; its claim is given up")  # fmt: skip
            self._settler.settle(one, None, asyncio.CancelledError())
        if active.task in self._light:
            self._light.remove(active.task)
            return
        self._slots.remove(active.task)
        self._start_slot(self._suspects if active.claim.crashes else self._healthy)

    def _stranger(self, claim: Claim) -> None:
        self._completer.park(claim)
        if claim.task not in self._unknown:
            self._unknown.add(claim.task)
            log.warning("task.unknown", task=claim.task, queue=claim.queue,
                        meaning="this worker's app has no such task; its runs are left for a worker that has it")  # fmt: skip
