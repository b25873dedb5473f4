"""Handlers that are called once for many runs: collects the runs, calls, and gives each run its own outcome.

A batch has one slot. Each of its runs is claimed, cancelled, lost, handed back and settled by itself, as any other is; only the
call is common to them, and what stops the call stops all of them.

What survives a crash: nothing here needs to. Every run of the batch is in `running` under its own claim; recovery breaks each,
and each then runs alone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import structlog

from hourhand.core.batch import BatchCodec, outcomes
from hourhand.core.context import RUN, BatchContext
from hourhand.core.errors import Cancelled
from hourhand.core.sealing import SIGN, Sealer
from hourhand.engine.bench import Bench, joins
from hourhand.engine.caller import Active, Handler
from hourhand.engine.logs import about, is_chatty
from hourhand.engine.node import Node
from hourhand.engine.settler import Settler
from hourhand.storage.queue import Claim

if TYPE_CHECKING:
    from hourhand.engine.executor import Executor
    from hourhand.engine.tracing import Calling

log = structlog.get_logger("hourhand.executor")
_YIELD_EVERY = 100


class Member(Active, eq=False):
    """A run that is called together with others."""

    described: dict[str, Any] | None = None
    """Its error as it is kept, where several of them have the same one."""
    group: Group = cast("Group", None)
    """Set as soon as there is one."""

    @property
    def whole(self) -> Group:
        return self.group

    def stop(self, cause: str, reason: str | None = None) -> bool:
        return self.group.tell(self, reason) if cause == "cancelled" else self.group.stop(cause)


class Group:
    """A call that is being made for several runs."""

    transaction = None

    def __init__(self, members: list[Member], handler: Handler, task: asyncio.Task[None]) -> None:
        self.members = members
        self.handler = handler
        self.task = task
        self.context = BatchContext([one.context for one in members])
        self.claim = members[0].claim
        self.left = len(members)
        """Runs that are still to be settled."""
        self.told: set[Member] = set()
        """Those of them that were asked to stop, while the others go on."""
        self.cause: str | None = None
        self.closing = False
        """The call is over: what comes now comes too late."""
        self.left_behind = False
        for one in members:
            one.group = self

    @property
    def whole(self) -> Group:
        return self

    def tell(self, member: Member, reason: str | None) -> bool:
        """One run is to stop. The call goes on for the others; without others it stops, unless it is in a thread."""
        if self.cause is not None or self.closing:
            return False
        member.context._watch().set()
        member.reason = reason
        self.told.add(member)
        return len(self.told) == len(self.members) and not member.in_thread and self.stop("cancelled")

    def stop(self, cause: str, reason: str | None = None) -> bool:
        """False: there is nothing to stop any more."""
        if self.cause is not None or self.closing:
            return False
        self.cause = cause
        for one in self.members:
            one.context._watch().set()
            one.cause = "cancelled" if one in self.told and cause != "lost" else cause
        self.task.cancel()
        return True


class Batcher:
    def __init__(self, executor: Executor, bench: Bench, node: Node, settler: Settler, sealer: Sealer) -> None:
        self._executor = executor
        self._bench = bench
        self._node = node
        self._settler = settler
        self._sealer = sealer
        self._chatty = is_chatty()
        self._groups: set[Group] = set()

    @property
    def surplus(self) -> int:
        """Runs that share a slot with another one."""
        return sum(one.left - 1 for one in self._groups if one.left and not one.left_behind)

    def takes(self, claim: Claim) -> bool:
        return joins(claim)

    async def run(self, claim: Claim, handler: Handler, me: asyncio.Task[None]) -> bool:
        """A batch that begins with this run. True: it was left behind, and another slot has taken this one's place."""
        members, tracing = self._admitted(await self._collected(claim, handler), handler, me), self._executor.tracing
        if not members:
            return False
        calling = None if tracing is None else tracing.begin_call([one.claim for one in members])
        try:
            fit, items = self._opened(members, handler, calling)
            return bool(fit) and await self._called(Group(fit, handler, me), items)
        finally:
            if tracing is not None and calling is not None:
                tracing.end_call(calling)

    async def _called(self, group: Group, items: list[Any]) -> bool:
        self._groups.add(group)
        try:
            await self._execute(group, items)
        except Exception as error:
            for one in group.members:
                if self._executor.forget(one):
                    self._mishap(one, error)
        finally:
            self._groups.discard(group)
            group.members, group.told = [], set()  # who know it: it is not left to the garbage collector
        return group.left_behind

    async def _collected(self, first: Claim, handler: Handler) -> list[Claim]:
        bench, most, linger = self._bench, handler.batch, handler.definition.linger
        claims = [first, *bench.take(first.task, most - 1)]
        self._executor.on_hungry()
        if len(claims) < most and linger:
            claims = await bench.collect(claims, most, linger)
            if self._node.lease_deadline < self._node.clock.monotonic():
                bench.deque.extendleft(reversed(claims))
                return []
        self._executor.taken += len(claims) - 1
        return claims

    def _admitted(self, claims: list[Claim], handler: Handler, me: asyncio.Task[None]) -> list[Member]:
        members = []
        for claim in claims:
            try:
                member = self._executor.admit(claim, handler, me, Member)
            except Exception as error:
                self._settler.mishap(claim, error, None)
                continue
            if isinstance(member, Member):
                members.append(member)
        return members

    def _opened(self, members: list[Member], handler: Handler, calling: Calling | None) -> tuple[list[Member], list[Any]]:
        """The runs whose payloads fit, and their items. Those that do not have failed, and leave the others alone."""
        fit, items, tracing, codec = [], [], self._executor.tracing, handler.definition.codec
        assert isinstance(codec, BatchCodec)
        for one in members:
            claim = one.claim
            if tracing is not None:
                tracing.begin(one, calling)
            if self._chatty:
                log.debug("run.started", **about(claim), scheduled_at=claim.scheduled_at.isoformat())
            try:
                if SIGN in claim.payload:
                    claim.payload = self._sealer.open(claim.payload, claim.task)
                item = codec.read(claim.payload)
            except BaseException as error:
                self._executor.forget(one)
                self._settle_one(one, None, error)
            else:
                fit.append(one)
                items.append(item)
        return fit, items

    async def _execute(self, group: Group, items: list[Any]) -> None:
        timer, error, answers, timeout = None, None, [], group.members[0].timeout
        call = group.handler.call_batch
        assert call is not None
        RUN.set(group.context)
        try:
            if timeout is not None:
                timer = asyncio.get_running_loop().call_later(timeout, self._executor.interrupt, group, "timeout")
            answers = outcomes(await call(group.context, items), len(items))
        except BaseException as raised:
            error = raised
        finally:
            if timer is not None:
                timer.cancel()
            RUN.set(None)
            group.closing = True
        try:
            if any(one.context.spoke for one in group.members):
                self._executor.scribe.wake()
            if group.left_behind:
                self._executor.left_behind -= 1
                log.info("run.came_back", **about(group.claim), meaning="a handler that was left behind ended")
                return
            if group.cause is not None:
                group.task.uncancel()
            elif isinstance(error, asyncio.CancelledError) and group.task.cancelling():
                for one in group.members:
                    self._executor.forget(one)
                    self._settler.hand_back(one, "its worker was stopped before it ended")
                raise error
            await self._settle(group, answers, error)
        finally:
            del error, answers  # as for a single run

    async def _settle(self, group: Group, answers: list[Any], error: BaseException | None) -> None:
        members = group.members
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            error = RuntimeError(f"the handler raised {error!r}")
        if error is not None:
            answers = [error] * len(members)
        if group.cause is None:
            self._describe(members, answers)
        for place, (one, answer) in enumerate(zip(members, answers, strict=True), 1):
            self._executor.forget(one)
            group.left -= 1
            if isinstance(error, Cancelled) and group.told and one not in group.told:
                self._settler.hand_back(one, "another run of its batch was cancelled")
            elif isinstance(answer, BaseException):
                if one in group.told and one.cause is None:
                    one.cause = "cancelled"
                self._settle_one(one, None, answer)
            else:
                self._settle_one(one, answer, None)
            if not place % _YIELD_EVERY:
                await asyncio.sleep(0)

    def _describe(self, members: list[Member], answers: list[Any]) -> None:
        """An error that several of them have, of the call or of a part of it, may quote any of them."""
        sharers: dict[int, list[int]] = {}
        for place, answer in enumerate(answers):
            if isinstance(answer, BaseException):
                sharers.setdefault(id(answer), []).append(place)
        for places in sharers.values():
            if len(places) > 1:
                described = self._settler.describe(answers[places[0]], [one.claim for one in members])
                for place in places:
                    members[place].described = described

    def _settle_one(self, one: Member, result: Any, error: BaseException | None) -> None:
        try:
            self._settler.settle(one, result, error)
        except Exception as bad:
            # Whatever it is, the others are settled all the same, and this one is not left in limbo.
            self._mishap(one, bad)

    def _mishap(self, one: Member, error: Exception) -> None:
        one.described = self._settler.describe(error, [one.claim])
        self._settler.mishap(one.claim, error, one)
