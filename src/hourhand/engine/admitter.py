"""Takes runs out of queues that have rules: lines them up, and admits as many as may start.

What is admitted holds a slot of each of its limits from then on, so no more is admitted than there are slots here for it to start.
What survives a crash: everything is in the tables. A slot goes with the claim that holds it; recovery frees both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
import structlog

from hourhand.core.clock import Clock
from hourhand.core.errors import ConfigurationError, DatabaseUnavailable, LockTimeout
from hourhand.core.limits import Hold, binds, keys_of
from hourhand.core.marks import LowWaterMark
from hourhand.core.registry import Registry
from hourhand.core.sealing import SIGN, Sealer
from hourhand.engine.completer import Completer
from hourhand.engine.node import Node
from hourhand.storage.admission import AdmissionGateway, Rulebook
from hourhand.storage.database import Patience
from hourhand.storage.queue import Claim, Survey

log = structlog.get_logger("hourhand.admitter")
LARGEST_LINE = 2_000
"""Nobody is admitted anywhere while they are lined up: some 30 ms."""
_LEAST_PAUSE = 0.001


class Admitter:
    def __init__(self, gateway: AdmissionGateway, node: Node, completer: Completer, tasks: Sequence[str], sealer: Sealer) -> None:
        self._gateway = gateway
        self._node = node
        self._completer = completer
        self._tasks = tasks
        self._sealer = sealer
        self._freed: set[int] = set()
        self._sweep = False
        self.rules = Rulebook()
        self.doubtful = True
        """Whether the database may be another one than that which the rules were read from, with other rules of the same version."""
        self.open: set[int] = set()
        """Lanes in which somebody may be admitted."""
        self.opens_at: float | None = None
        """When a rate will let somebody through, by this process's clock."""
        self.managed: set[str] = set()
        """Queues whose runs are only ever admitted."""
        self.admitted = 0

    async def declare(self, registry: Registry, app: str) -> None:
        """What the code says about its tasks and queues comes into force, and what it no longer says is over."""
        rules = {("task", one.name): one.rule for one in registry.tasks.values()}
        rules |= {("queue", name): rule for name, rule in registry.queues.items()}
        keyed = next((name for (_, name), rule in rules.items() if self._sealer.active and keys_of(rule)), None)
        if keyed is not None:
            raise ConfigurationError(
                f"{keyed!r} has a limit or a fair key that goes by an argument, and payloads are encrypted here: the database, "
                "which counts, cannot see it. Give it a limit without a key, or leave this worker without HOURHAND_ENCRYPTION_KEYS"
            )
        patience = Patience()
        while True:
            # Not without them: nobody would notice that limits do not hold.
            try:
                before = await self._gateway.declared_rules(app)
                for scope, name in sorted({*before, *rules}):
                    rule = rules.get((scope, name)) or {}
                    if rule or (scope, name) in before:
                        await self._gateway.declare_rule(scope, name, {**rule, "app": app} if rule else {})
                await self._gateway.manage_queues(sorted({one.queue for one in registry.tasks.values() if binds(one.rule)}))
                return
            except DatabaseUnavailable as error:
                if patience.first:
                    log.warning("rules.waiting", error=str(error))
                await patience.wait()

    @property
    def pending(self) -> bool:
        return bool(self.open or self._freed) or self._sweep or self._due

    @property
    def _due(self) -> bool:
        return self.opens_at is not None and self.opens_at <= Clock.monotonic()

    def room_elsewhere(self) -> bool:
        """Whether there is room for runs that this worker has no time for now."""
        freed, self._freed = self._freed, set()
        return bool(freed)

    def freed(self, gates: Collection[int]) -> None:
        self._freed.update(gates)

    async def look(self) -> None:
        """The rules as they are now."""
        self.rules = await self._gateway.read_rules()
        self.doubtful = False

    def sweep(self) -> None:
        """Whatever has room, whether anybody said so or not."""
        self._sweep = True

    async def open_gates(self) -> set[int]:
        """Where there is room again: in which lanes."""
        if not (self._freed or self._sweep or self._due):
            return set()
        freed, sweep = self._freed, self._sweep
        self._freed, self._sweep, self.opens_at = set(), False, None
        try:
            lanes, opening = await self._gateway.open_gates(sorted(freed), sweep=sweep)
        except LockTimeout:
            self._freed, self._sweep = self._freed | freed, True
            raise
        self._wait_for(opening)
        return lanes

    def _wait_for(self, opening: float | None) -> None:
        self.opens_at = None if opening is None else Clock.monotonic() + max(_LEAST_PAUSE, opening)

    async def line_up(self, lanes: Sequence[int], mark: Callable[[int], LowWaterMark]) -> bool:
        """Out of their lanes, all of them: whose turn it is shows only when everybody is there. True: there were some."""
        began, some = Clock.monotonic(), False
        while lanes:
            lows = [mark(lane).start(began) for lane in lanes]
            moved = {one.lane: one for one in await self._gateway.line_up(lanes, lows, LARGEST_LINE, self.rules.version)}
            ended = Clock.monotonic()
            more = []
            for lane, low in zip(lanes, lows, strict=True):
                one = moved.get(lane)
                full = one is not None and one.runs == LARGEST_LINE
                if low == 0:
                    mark(lane).swept(ended - began, ended, one.last + 1 if one is not None and full else None)
                if one is not None:
                    mark(lane).claimed(one.last, ended)
                    self.open.add(lane)
                    some = True
                if full:
                    more.append(lane)
            lanes, began = more, ended
        return some

    async def admit(self, plan: Sequence[tuple[int, int]], survey: Survey, suspects: int) -> list[Claim]:
        """At most so many of each lane. A lane that gives less has nobody left to admit, for now."""
        if not plan:
            return []
        self.open.difference_update(lane for lane, _ in plan)
        try:
            claims = await self._gateway.admit(self._node.id, self.rules.version, plan, self._tasks, survey.names, suspects)
        except LockTimeout:
            self.open.update(lane for lane, _ in plan)
            raise
        counts = dict.fromkeys((lane for lane, _ in plan), 0)
        for claim in claims:
            counts[claim.lane] += 1
        self.open.update(lane for lane, most in plan if counts[lane] == most)
        if len(claims) < sum(most for _, most in plan):
            self._wait_for(await self._gateway.next_opening())
        self.admitted += len(claims)
        return claims

    async def return_parked(self, queues: Sequence[int]) -> list[tuple[int, int]]:
        """Runs that were set aside before their queue had rules, or on probation: with the others, in turn."""
        return await self._gateway.return_parked(queues, self._tasks, 1_000) if queues else []

    async def sort_out(self, claims: list[Claim]) -> list[Claim]:
        """Those that may start here. The others go where the rules have them wait."""
        if not (self.rules.tasks or self.rules.holds or self.managed):
            return claims
        good, strays = [], set()
        for claim in claims:
            if (hold := self.hold_on(claim)) is not None:
                self._completer.park(claim, hold.id)
            elif self.passes_by(claim):
                strays.add(claim.queue)
                self._completer.hand_back(claim)
            else:
                good.append(claim)
        if strays:
            # From now on its runs are lined up.
            await self._gateway.manage_queues(sorted(strays))
        return good

    def hold_on(self, claim: Claim) -> Hold | None:
        return next(
            (one for one in self.rules.holds if one.covers(claim.queue, claim.task, claim.tags, lambda: self._read(claim))), None
        )

    def passes_by(self, claim: Claim) -> bool:
        """Whether it would start without the slots that the rules want it to have."""
        return claim.gates is None and (claim.task in self.rules.tasks or claim.queue in self.managed)

    def _read(self, claim: Claim) -> Any:
        try:
            text = self._sealer.open(claim.payload, claim.task) if SIGN in claim.payload else claim.payload
            return msgspec.json.decode(text)
        except Exception:
            return {}  # it will say so itself when it is run
