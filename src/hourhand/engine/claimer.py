"""Takes runs out of the lanes, as many as the slots will soon need, and no more.

NOTIFY wakes it; a look at every lane each few seconds guarantees it. A claim whose answer was lost
may have taken rows that nobody here knows of: they are handed back as soon as the database answers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Collection
from operator import attrgetter

import structlog

from hourhand.core.clock import Clock
from hourhand.core.errors import DatabaseUnavailable, LockTimeout
from hourhand.core.fairness import LANES_PER_QUEUE, PRIORITIES, FairShare, queue_of
from hourhand.core.marks import LowWaterMark
from hourhand.core.settings import Settings
from hourhand.engine.admitter import Admitter
from hourhand.engine.completer import Completer
from hourhand.engine.executor import Executor
from hourhand.engine.node import Node
from hourhand.engine.stealer import Stealer
from hourhand.engine.waiting import heard
from hourhand.storage.database import Patience
from hourhand.storage.queue import Claim, QueueGateway, Survey

log = structlog.get_logger("hourhand.claimer")
LARGEST_CLAIM = 1_000
LARGEST_STOCK = 2_000
STOCK_SECONDS = 0.25
"""How much work to hold ahead, in seconds at the present rate: slow runs are not hoarded."""
ADMISSION_TIMEOUT = 0.25
"""Seconds that a claimer waits for whoever is deciding about limits just now: the plain runs are not to wait for that."""
DOUBT = 60.0
"""Seconds after a lost answer during which rows may still turn up under our name."""


class Claimer:
    def __init__(
        self, gateway: QueueGateway, admitter: Admitter, node: Node, executor: Executor, completer: Completer, settings: Settings,
        queues: Collection[str] | None, fair: FairShare | None = None,
    ) -> None:  # fmt: skip
        self._gateway = gateway
        self._admitter = admitter
        self._node = node
        self._executor = executor
        self._completer = completer
        self._settings = settings
        self._queues = None if queues is None else set(queues)
        self._tasks = sorted(executor.handlers)
        self._fair = fair or FairShare()
        self._survey = Survey(())
        self._marks: dict[int, LowWaterMark] = {}
        self._lanes: set[int] = set()
        self._parked = False
        self._probation = False
        self._wake = asyncio.Event()
        self._claiming = self._asked = False
        self._next_survey = 0.0
        self._doubt_until = 0.0
        self._rate = 0.0
        self._measured = (Clock.monotonic(), 0)
        self.stealer = Stealer(gateway, node, executor, completer, settings.poll, self._deliver)
        self._again_at = 0.0
        self.stopping = False
        self.claims = 0
        """Claiming statements that were answered."""
        self.claimed = 0
        """Runs that they brought."""

    async def make_queues(self, declared: Collection[str]) -> None:
        """So that they are there to look at and to pause before their first run."""
        with contextlib.suppress(DatabaseUnavailable):
            await self._gateway.make_queues(sorted({*declared, *(self._queues or ())}))

    def hear(self, word: str) -> None:
        """A notification: which lane got work, and from which place on."""
        kind, _, rest = word.partition(":")
        if kind == "r":
            lane, _, seq = rest.partition(":")
            number = int(lane)
            if queue_of(number) not in self._survey.names:
                self._next_survey = 0.0
            elif not self._serves(queue_of(number)):
                return
            self._mark(number).lower(int(seq))
            self._lanes.add(number)
        elif kind == "p" and rest in self._executor.handlers:
            self._parked = self._probation = True
        elif kind == "g":
            self._hear_of_room(rest)
        elif kind == "q":
            self._next_survey = 0.0
        elif kind not in ("w", "t") or not self.stealer.hear(kind, rest):
            return
        self._wake.set()

    def _hear_of_room(self, lane: str) -> None:
        """In this lane of a managed queue somebody can be admitted; or somewhere, nobody knows where."""
        if not lane:
            self._admitter.sweep()
        elif self._serves(queue_of(int(lane))):
            self._admitter.open.add(int(lane))

    def hungry(self) -> None:
        # Nearly every run of a busy worker comes here: not while the claimer is at it, or has been woken for it.
        if self._executor.deque and not self._probation and (self._claiming or self._wake.is_set()):
            self._asked = True
            return
        idle = self.stealer.hungry()
        if not self._wake.is_set() and (idle or self._lanes or self._parked or self._probation or self._admitter.pending):
            self._wake.set()

    def freed(self, gates: Collection[int]) -> bool:
        """Room at these gates. False: it is for others."""
        if not self.stopping:
            self._admitter.freed(gates)
            self._wake.set()
        return not self.stopping

    def forget(self) -> None:
        """The session was lost: words may have been missed."""
        self._admitter.doubtful = True
        self.stealer.forget()
        for mark in self._marks.values():
            mark.forget()
        self._next_survey = 0.0
        self._wake.set()

    async def run(self) -> None:
        patience = Patience()
        while not self.stopping:
            try:
                if Clock.monotonic() >= self._next_survey:
                    await self._look(Clock.monotonic())
                doubtful = Clock.monotonic() < self._doubt_until
                took = await self.stealer.run_once(doubtful=doubtful)
                took = await self.run_once() or took
                if not took and not doubtful:
                    await self.stealer.ask(self.claims)
                patience.reset()
            except DatabaseUnavailable as error:
                if patience.first:
                    log.warning("claims.waiting", error=str(error))
                self._doubt_until = Clock.monotonic() + DOUBT
                self.forget()
                await patience.wait()
                continue
            if not took:
                await self._pause()

    async def run_once(self) -> bool:
        """One round of claims. False: nothing to do until something happens."""
        now = Clock.monotonic()
        if now >= self._next_survey:
            await self._look(now)
        apart = 0
        if self._probation and self._executor.room_for_suspects > 0:
            apart = await self._claim_parked(self._executor.room_for_suspects, probation=True)
        want = self._want()
        if want <= 0 and self._admitter.room_elsewhere():
            await self._gateway.notify(["g"])
        if want <= 0:
            return await self._claim_urgent() + apart > 0
        if not (self._lanes or self._parked or self._admitter.pending):
            return apart > 0
        took = 0
        if self._parked:
            took += await self._claim_parked(want)
        news = await self._line_up()
        # A word may have named a queue that the survey has not met: it is met next time.
        lanes = {lane for lane in self._lanes if self._is_plain(lane)}
        ruled = self._admitter.open - lanes if news is not None else set()
        if ruled:
            # Nobody is admitted ahead; and if the others were claimed ahead beside it, shares would not be kept.
            want = min(want, took + self._room())
        plan = [(lane, min(share, LARGEST_CLAIM)) for lane, share in self._fair.split(lanes | ruled, want - took)]
        if ruled:
            took += await self._admit([one for one in plan if one[0] in ruled], bool(news))
        plain = [one for one in plan if one[0] in lanes]
        if plain:
            took += await self._claim(plain)
        return took + apart > 0

    async def _claim_urgent(self) -> int:
        """There is enough to do for a while; what is urgent does not wait for that, within its share."""
        urgent = [lane for lane in self._lanes if lane % LANES_PER_QUEUE == 0 and self._is_plain(lane)]
        most = self._executor.concurrency
        if not urgent or self._fair.overdrawn(0) >= most or self._executor.urgent >= most:
            return 0
        return await self._claim([(lane, -(-most // len(urgent))) for lane in urgent])

    async def _line_up(self) -> bool | None:
        """What has come into managed queues, in line; and who may be let in again. True: others should hear of it. None: somebody
        has been deciding for long, and is not waited for."""
        if Clock.monotonic() < self._again_at:
            return None
        lanes = [lane for lane in self._lanes if queue_of(lane) in self._survey.managed]
        self._lanes.difference_update(lanes)
        try:
            came = await self._admitter.line_up(lanes, self._mark) if lanes else False
            opened = await self._admitter.open_gates()
        except LockTimeout:
            self._lanes.update(lanes)
            self._again_at = Clock.monotonic() + ADMISSION_TIMEOUT
            return None
        elsewhere = {lane for lane in opened if not self._serves(queue_of(lane))}
        self._admitter.open |= opened - elsewhere
        if elsewhere:
            await self._gateway.notify([f"g:{lane}" for lane in sorted(elsewhere)])
        return bool(opened) or came

    def _room(self) -> int:
        """Whoever is admitted keeps others out: only as many as will start at once. Behind a stock of plain runs they go first."""
        executor = self._executor
        room = executor.concurrency + executor.appetite - executor.busy - executor.admitted
        return max(room, -(-executor.concurrency // 4) - executor.admitted) if executor.deque else room

    async def _admit(self, plan: list[tuple[int, int]], news: bool) -> int:
        node = self._node.id
        try:
            claims = await self._admitter.admit(plan, self._survey, max(0, self._executor.room_for_suspects))
        except LockTimeout:
            self._again_at = Clock.monotonic() + ADMISSION_TIMEOUT
            return 0
        self._count(claims)
        if node != self._node.id:
            return 0  # as with lanes: they were claimed by an incarnation that has been declared dead
        for claim in claims:
            self._fair.took(claim.lane, 1)
        await self._deliver(claims, first=True)
        if news and self._admitter.open:
            await self._gateway.notify([f"g:{lane}" for lane in sorted(self._admitter.open)])
        return len(claims)

    async def _claim(self, plan: list[tuple[int, int]]) -> int:
        lanes, limits = [lane for lane, _ in plan], [limit for _, limit in plan]
        # Out of the set before the claim: a word that comes while it is under way puts it back.
        self._lanes.difference_update(lanes)
        began = Clock.monotonic()
        lows = [self._mark(lane).start(began) for lane in lanes]
        node = self._node.id
        self._claiming, self._asked = True, False
        try:
            claims = await self._gateway.claim(lanes, lows, limits, node, self._survey.names, self._admitter.rules.version)
        finally:
            self._claiming = False
            if self._asked:
                self._wake.set()
        ended = Clock.monotonic()
        self._count(claims)
        if node != self._node.id:
            return 0  # they were claimed by an incarnation that has been declared dead; others have them now
        claims.sort(key=attrgetter("seq"))
        last = {claim.lane: claim.seq for claim in claims}
        counts = Counter(map(attrgetter("lane"), claims))
        for lane, low, limit in zip(lanes, lows, limits, strict=True):
            mark = self._mark(lane)
            if low == 0:
                mark.swept(ended - began, ended, last[lane] + 1 if counts[lane] == limit else None)
            if counts[lane]:
                mark.claimed(last[lane], ended)
                self._fair.took(lane, counts[lane])
            # Short of the limit: drained or paused; a word or the next survey brings it back.
            if counts[lane] == limit:
                self._lanes.add(lane)
        if len({lane % LANES_PER_QUEUE for lane in lanes}) > 1 or lanes[0] % LANES_PER_QUEUE == 0:
            few, claims = by_priority(claims, self._executor.concurrency)
            await self._deliver(few, first=True)
        await self._deliver(claims)
        return counts.total()

    async def _claim_parked(self, want: int, *, probation: bool = False) -> int:
        if probation:
            self._probation = False
        else:
            self._parked = False
        lanes = [queue * LANES_PER_QUEUE + place for queue in self._survey.names if self._serves(queue) for place in range(4)]
        node, limit = self._node.id, min(want, LARGEST_CLAIM)
        version = self._admitter.rules.version
        claims = await self._gateway.claim_parked(
            self._tasks, lanes, limit, node, self._survey.names, version, probation=probation
        )
        self._count(claims)
        if node != self._node.id:
            return 0  # as with lanes: they were claimed by an incarnation that has been declared dead
        if len(claims) == limit:
            self._parked, self._probation = self._parked or not probation, self._probation or probation
        for lane, seq in await self._admitter.return_parked([one for one in self._survey.managed if self._serves(one)]):
            self._mark(lane).lower(seq)
            self._lanes.add(lane)
        await self._deliver(claims)
        return len(claims)

    def _count(self, claims: list[Claim]) -> None:
        self.claims += 1
        self.claimed += len(claims)

    async def _deliver(self, claims: list[Claim], *, first: bool = False) -> None:
        claims = await self._admitter.sort_out(claims)
        if self.stopping:
            for claim in claims:
                self._completer.hand_back(claim)
        else:
            self._executor.feed(claims, first=first)

    async def _look(self, now: float) -> None:
        self._next_survey = now + self._settings.poll
        survey = await self._survey_from_marks()
        changed = self._admitter.doubtful or survey.version != self._admitter.rules.version
        if changed:
            # Once more after them: what is seen of the queues is never older than the rules.
            await self._admitter.look()
            survey = await self._survey_from_marks()
        self._survey = survey
        self._lanes = {lane for lane in self._lanes | survey.heads.keys() if self._serves(queue_of(lane))}
        self._parked = self._parked or any(self._serves(queue) for queue in survey.parked)
        self._probation = self._probation or any(self._serves(queue) for queue in survey.probation)
        self._admitter.open = {lane for lane in self._admitter.open | survey.open if self._serves(queue_of(lane))}
        if survey.managed:
            self._admitter.sweep()
        self._give_back_surplus()
        self._executor.give_back({survey.names[queue] for queue in survey.paused})
        self._admitter.managed = {survey.names[queue] for queue in survey.managed}
        if changed:
            # What is in stock and has not begun.
            rules = self._admitter
            await self._deliver(self._executor.take_out(lambda one: rules.passes_by(one) or rules.hold_on(one) is not None))
        if now < self._doubt_until:
            strays = await self._gateway.hand_back_strays(self._node.id, [*self._executor.known(), *self._completer.known()])
            if strays:
                log.warning("claims.strays", runs=strays, meaning="claimed just as the connection was lost; handed back")
        else:
            await self.stealer.adopt()

    async def _survey_from_marks(self) -> Survey:
        """From the very start where a sweep is due: whatever no word told of is found there."""
        began, known = Clock.monotonic(), self._survey.names
        lows = [0] * (LANES_PER_QUEUE * (max(known, default=-1) + 1))
        for queue in known:
            for lane in range(queue * LANES_PER_QUEUE, queue * LANES_PER_QUEUE + len(PRIORITIES)):
                lows[lane] = self._mark(lane).start(began)
        survey = await self._gateway.survey(self._tasks, lows)
        ended = Clock.monotonic()
        for lane, mark in self._marks.items():
            if lane < len(lows) and not lows[lane]:
                mark.swept(ended - began, ended)
            if lane in survey.heads:
                mark.lower(survey.heads[lane])
        return survey

    def _give_back_surplus(self) -> None:
        """Runs turned out slower than those before: let others have what would wait here for long."""
        self._measure()
        keep = max(self._executor.concurrency, int(self._rate * self._settings.poll))
        while len(self._executor.deque) > keep:
            self._completer.hand_back(self._executor.deque.pop())

    def _serves(self, queue: int) -> bool:
        name = self._survey.names.get(queue)
        return queue not in self._survey.paused and name is not None and (self._queues is None or name in self._queues)

    def _is_plain(self, lane: int) -> bool:
        return queue_of(lane) in self._survey.names and queue_of(lane) not in self._survey.managed

    def _mark(self, lane: int) -> LowWaterMark:
        mark = self._marks.get(lane)
        if mark is None:
            mark = self._marks[lane] = LowWaterMark()
        return mark

    def _want(self) -> int:
        executor = self._executor
        self._measure()
        stock = min(LARGEST_STOCK, int(self._rate * STOCK_SECONDS))
        waiting = len(executor.deque)
        executor.hungry_below = stock // 2
        appetite = executor.appetite
        # With just half of it here the other half is claimed: the database works while the slots do, instead of in turns.
        if waiting and waiting > stock // 2 and not appetite:
            return 0
        return executor.concurrency + stock + appetite - waiting - executor.busy

    def _measure(self) -> None:
        """Runs taken a second: up at once, down by and by."""
        now, taken = Clock.monotonic(), self._executor.taken
        since, before = self._measured
        if now - since >= 0.05:
            rate = (taken - before) / (now - since)
            self._rate = rate if rate > self._rate else self._rate * 0.7 + rate * 0.3
            self._measured = (now, taken)

    async def close(self) -> None:
        await self._gateway.close()

    async def _pause(self) -> None:
        now, until = Clock.monotonic(), self._next_survey
        for moment in (self._admitter.opens_at, self._again_at):
            if moment is not None and moment > now:  # what has opened already waits for a slot, which wakes us
                until = min(until, moment)
        if now >= self._doubt_until:
            until = min(until, self.stealer.next_look(self.claims))
        if await heard(self._wake, max(0.0, until - now)):
            self._wake.clear()


def by_priority(claims: list[Claim], few: int) -> tuple[list[Claim], list[Claim]]:
    """The urgent ones, if they are few: they go before what waits. And the others, each priority spread evenly over them, so that
    it has its share of any part, not only of the whole."""
    classes: dict[int, list[Claim]] = {}
    for claim in claims:
        classes.setdefault(claim.lane % LANES_PER_QUEUE, []).append(claim)
    urgent = classes.pop(0) if 0 in classes and len(classes[0]) <= few else []
    places = [
        ((place + 0.5) / len(members), index, claim) for index, members in classes.items() for place, claim in enumerate(members)
    ]
    return urgent, [claim for _, _, claim in sorted(places, key=lambda one: one[:2])]
