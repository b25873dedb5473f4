"""Fires what is due, second by second, and knows beforehand what the next one brings.

The wheel is a heap of hints: losing it costs a look at the table, and a wrong hint is found out by the statement that acts on it.
That compares instant, revision and epoch, and moves the schedule as it inserts the runs: a crash at any point loses nothing and
fires nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog

from hourhand.core.errors import DatabaseUnavailable, InvalidSchedule, LockTimeout, StatementRefused
from hourhand.core.schedule import Schedule, latest_firings
from hourhand.core.wheel import TimingWheel
from hourhand.engine.elector import Elector
from hourhand.engine.measures import Measures
from hourhand.engine.node import Node
from hourhand.storage.database import Database, Patience
from hourhand.storage.schedules import Hinted, Planned, ScheduleGateway

log = structlog.get_logger("hourhand.scheduler")
HORIZON = 120.0
"""Seconds that the wheel knows of: two of the sweep's turns, so that one may fail."""
AGAIN = 60.0
"""Seconds after which a schedule that cannot be read here is tried again."""
BATCH = 2_000
RUNS_AT_ONCE = 20_000
"""Runs that one statement makes, if they are of several schedules: none of them starts before it commits."""
MANY_JOBS = 2_000
"""A schedule with so many or more is fired by itself; so they need not be counted any further."""
GOOD_FOR = 0.5
"""Seconds for which a plan is carried out. What has no turn in that time is looked up again: by then it may be late."""
MOST_INSTANTS = 10_000
BLOCKED_AT_ONCE = 10
LOCK_TIMEOUT = 0.3
"""How long a batch waits for somebody's open transaction that changes one of its schedules' jobs."""
LARGE_CATCH_UP = 100
ON_TIME = 1.0
"""Up to so many seconds after its instant a firing is in time, whatever its jobs say about lateness."""
AHEAD = 30
"""Seconds that a mountain is planned ahead; what a usual second brings is planned in the last one before it."""
MOUNTAIN = 2_000
"""Schedules of one second, in one scheduler."""
MOST_AHEAD = 300_000
"""Plans at a time; each takes 200 bytes."""
AHEAD_AT_ONCE = 500
AHEAD_UNTIL = 0.05
"""Seconds before the next one begins at which planning for it ends: what is left is planned when it is due."""


@dataclass(slots=True)
class Plan:
    """What the table says is due, to be fired in one go under the epochs that were held when it was asked."""

    made_at: float
    epochs: dict[int, int]
    plain: list[Planned] = field(default_factory=list)
    late: list[tuple[Planned, list[datetime]]] = field(default_factory=list)
    large: dict[int, Schedule] = field(default_factory=dict)
    """Late ones that missed so much that somebody should hear of it."""

    def late_parts(self, alone: set[int]) -> Iterator[tuple[int, int]]:
        """Slices of `late` with a bounded number of runs each, if every job wants all of them; those in `alone`, at the end, one by one."""
        begin = total = 0
        for place, (one, instants) in enumerate(self.late):
            runs = len(instants) * max(1, one.jobs)
            if total and (total + runs > MOST_INSTANTS or one.id in alone):
                yield begin, place
                begin, total = place, 0
            total += runs
        if total:
            yield begin, len(self.late)


def parts(planned: list[Planned]) -> Iterator[list[Planned]]:
    """Whether a schedule has one job or thousands, about as many runs in each; the small ones first, which need not wait for a mountain."""
    planned = sorted(planned, key=lambda one: one.jobs)
    begin = total = 0
    for place, one in enumerate(planned):
        if place > begin and (total + one.jobs > RUNS_AT_ONCE or one.jobs >= MANY_JOBS or place - begin == BATCH):
            yield planned[begin:place]
            begin, total = place, 0
        total += one.jobs
    if begin < len(planned):
        yield planned[begin:]


def _bearable(late: float, patience: float | None) -> bool:
    return late < ON_TIME or patience is None or late <= patience


def _in_time(one: Planned, now: float) -> bool:
    """Fired by now it is neither early nor late, and no further instant of it has been missed."""
    late = now - one.due_at.timestamp()
    return late >= 0 and _bearable(late, one.patience) and (one.next_at is None or one.next_at.timestamp() > now)


class Firer:
    def __init__(self, database: Database, node: Node, elector: Elector, measures: Measures, catch_up_rate: float) -> None:
        self._gateway = ScheduleGateway(database.link("scheduler", LOCK_TIMEOUT))
        self._impatient = ScheduleGateway(database.link("scheduler", LOCK_TIMEOUT / 20))
        self._planner = ScheduleGateway(database.link("planner"))
        self._node = node
        self._elector = elector
        self._measures = measures
        self._catch_up_rate = catch_up_rate
        self.wheel = TimingWheel(int(node.clock.now()))
        self.on_start: Callable[[], None] = lambda: None
        """The wheel is empty: what is near must be hinted at again."""
        self._look = BATCH
        """Hints that are looked up at once: as many as are fired while the answer is good."""
        self._ahead: dict[int, dict[int, Planned | None]] = {}
        """What seconds will bring, as it was planned before they began; or None of what cannot be planned yet."""
        self._blocked: set[int] = set()
        """Schedules that somebody's open transaction was in the way of: fired one by one until it is gone."""
        self.refused = 0
        """Firings that the database did not take: another scheduler has the shard now, or a job was changed meanwhile."""

    @property
    def blocked(self) -> int:
        """Schedules that somebody's open transaction holds up."""
        return len(self._blocked)

    def start(self) -> None:
        self.wheel = TimingWheel(int(self._node.clock.now()))
        self._ahead.clear()

    async def close(self) -> None:
        for gateway in (self._gateway, self._impatient, self._planner):
            await gateway.close()

    async def run(self) -> None:
        patience = Patience(cap=0.5)
        waiting: list[int] = []
        while True:
            now = self._node.clock.now()
            if now < self.wheel.now - 1:
                # The machine's clock had run ahead and was put right: a wheel does not turn back.
                self.start()
                self.on_start()
            elif now > self.wheel.now + HORIZON / 2:
                # It has been busy or asleep for so long that the sweeps meanwhile have hinted at too little.
                self.on_start()
            due = [key for key, _ in self.wheel.advance(int(now))]
            # What waited for the database may have been hinted at again.
            waiting[:] = dict.fromkeys([*waiting, *due])
            try:
                await self.fire_all(waiting)
                patience.reset()
                if waiting:
                    continue  # with what has become due meanwhile
            except DatabaseUnavailable as error:
                if patience.first:
                    log.warning("firing.waiting", error=str(error), schedules=len(waiting))
                await patience.wait()
                continue
            with contextlib.suppress(DatabaseUnavailable):
                await self.plan_ahead()
            # Until the next second, or not at all if it has begun meanwhile; and no longer, should the clock have been put back.
            await asyncio.sleep(min(1.001, max(0, self.wheel.now + 1.001 - self._node.clock.now())))

    async def plan_ahead(self) -> None:
        """What the next second brings is looked up and computed while there is time, and then mountains that are further ahead.
        The firing statement compares instant, revision and epoch, and how late it is with what the jobs put up with: what was
        changed meanwhile is not fired by such a plan, but planned anew."""
        begins = self.wheel.now + 1
        self._ahead = {second: plans for second, plans in self._ahead.items() if second >= begins}
        for ahead in range(1, AHEAD + 1):
            wanted = ahead == 1 or self.wheel.crowd(ahead) >= MOUNTAIN
            if wanted and not await self._plan_second(begins - 1 + ahead, begins - AHEAD_UNTIL):
                break

    async def _plan_second(self, second: int, until: float) -> bool:
        """Whether there is time left, and room; for the next second there is always room."""

        def over() -> bool:
            full = second > self.wheel.now + 1 and sum(map(len, self._ahead.values())) >= MOST_AHEAD
            return full or self._node.clock.now() > until

        if over():
            return False
        plans, ahead = self._ahead.setdefault(second, {}), second - self.wheel.now
        if len(plans) >= self.wheel.crowd(ahead):
            return True  # each of them has been asked about
        hints = [hint for hint in self.wheel.upcoming(ahead) if hint not in plans]
        for begin in range(0, len(hints), AHEAD_AT_ONCE):
            if over():
                return False
            some = hints[begin : begin + AHEAD_AT_ONCE]
            found = await self._planner.hinted_schedules(some, MANY_JOBS)
            plans |= dict.fromkeys(some)
            same: dict[object, Any] = {}
            for one in found:
                if one.shard in self._elector.held and one.id not in self._blocked and one.due_at.timestamp() <= second:
                    with contextlib.suppress(InvalidSchedule):
                        plans[one.id] = one.to(one.schedule.next_after(one.due_at), same)
        return True

    def forget(self, schedule: int) -> None:
        """It was changed: what is planned for it is of no use."""
        for plans in self._ahead.values():
            plans.pop(schedule, None)

    async def _fire_ahead(self, waiting: list[int]) -> None:
        """What was planned before and is in time; the rest stays in `waiting`."""
        plans = dict[int, Planned | None]()
        for second in [second for second in self._ahead if second <= self.wheel.now]:
            plans |= self._ahead.pop(second)
        held = self._elector.held
        ready = [plan for hint in waiting if (plan := plans.get(hint)) is not None and plan.shard in held]
        fired = set[int]()
        try:
            for part in parts(ready):
                now = self._node.clock.now()
                if punctual := [one for one in part if _in_time(one, now)]:
                    moved = await self._fire_plain(dict(self._elector.held), punctual)
                    fired.update(moved)
                    self._tell_refused(self._refused_of(punctual, moved))
                    for one in punctual:
                        if one.id in moved:
                            self._again(one, True)
        finally:
            waiting[:] = [hint for hint in waiting if hint not in fired]

    async def fire_all(self, waiting: list[int]) -> None:
        """Fire what is due among these, and put each back for its next time. While the database fires one batch, the next
        is planned. Hints leave `waiting` as they are dealt with; what the database could not be asked about stays, and what
        had no turn while its plan was good."""
        if self._ahead:
            await self._fire_ahead(waiting)
        under_way: asyncio.Task[list[int]] | None = None
        held, left = list[int](), list[int]()
        try:
            while waiting:
                hints = waiting[: self._look]
                plan = await self.plan(hints)
                if under_way is not None:
                    left += self._had_no_turn(held, await under_way)
                held = hints
                del waiting[: len(hints)]
                under_way = asyncio.create_task(self._carry_out(plan))
            if under_way is not None:
                left += self._had_no_turn(held, await under_way)
        except BaseException as error:
            if under_way is not None and not under_way.done():
                if isinstance(error, asyncio.CancelledError):
                    under_way.cancel()
                await asyncio.wait([under_way])
            if under_way is not None and (under_way.cancelled() or under_way.exception() is not None):
                waiting[:0] = held
            raise
        finally:
            waiting[:0] = left

    def _had_no_turn(self, hints: list[int], left: list[int]) -> list[int]:
        self._look = max(8, len(hints) - len(left)) if left else min(BATCH, 2 * self._look)
        return left

    async def plan(self, hints: Sequence[int]) -> Plan:
        """What the table says about these: due and in time, late, or not yet."""
        plan, blocked = Plan(self._node.clock.now(), dict(self._elector.held)), list[Hinted]()
        found = await self._planner.hinted_schedules(hints, MANY_JOBS)
        self._blocked -= {*hints} - {one.id for one in found}  # whoever blocked them has deleted them
        for one in found:
            if one.shard not in plan.epochs:
                self._blocked.discard(one.id)
                continue
            if one.due_at > one.present:
                self.hint(one.id, one.due_at.timestamp())
                continue
            if one.id in self._blocked:
                blocked.append(one)
                continue
            self._plan_one(plan, one)
        # Each of these may cost a moment in vain: a few at a time, and the others in the next second.
        for one in blocked[:BLOCKED_AT_ONCE]:
            self._plan_one(plan, one)
        for one in blocked[BLOCKED_AT_ONCE:]:
            self.hint(one.id, one.due_at.timestamp())
        return plan

    def _plan_one(self, plan: Plan, one: Hinted) -> None:
        try:
            next_at = one.schedule.next_after(one.due_at)
            late = (one.present - one.due_at).total_seconds()
            if (next_at is None or next_at > one.present) and _bearable(late, one.patience):
                plan.plain.append(one.to(next_at))
                return
            missed = latest_firings(one.schedule, one.due_at, one.present, MOST_INSTANTS)
            last = missed[-1] if missed else one.due_at
            planned = one.to(one.schedule.next_after(last))
        except InvalidSchedule as error:
            # A zone that this machine's tzdata does not have yet, perhaps. Everybody else's schedules go on.
            log.error("schedule.unreadable", schedule=one.id, error=str(error), meaning="it is not fired here; upgrade tzdata")
            self.hint(one.id, one.present.timestamp() + AGAIN)
            return
        plan.late.append((planned, [one.due_at, *missed]))
        if len(missed) >= LARGE_CATCH_UP:
            plan.large[one.id] = one.schedule

    async def _carry_out(self, plan: Plan) -> list[int]:
        """Returns those that had no turn while the plan was good; the first ones always have."""
        refused, left = 0, list[int]()
        for place, part in enumerate(parts(plan.plain)):
            if place and self._node.clock.now() > plan.made_at + GOOD_FOR:
                left += [one.id for one in part]
                continue
            moved = await self._fire_plain(plan.epochs, part)
            for planned in part:
                self._again(planned, planned.id in moved)
            refused += self._refused_of(part, moved)
        plan.late.sort(key=lambda one: (one[0].id in self._blocked, one[0].jobs))
        for begin, end in plan.late_parts(self._blocked):
            refused += await self._fire_late(plan, begin, end)
        self._tell_refused(refused)
        return left

    def _refused_of(self, planned: Sequence[Planned], moved: Mapping[int, int]) -> int:
        return sum(one.id not in moved and one.id not in self._blocked for one in planned)

    def _tell_refused(self, count: int) -> None:
        if count:
            self.refused += count
            log.warning("firing.refused", schedules=count, node=self._node.id,
                        meaning="another scheduler has them now, or their jobs are being changed; planned again")  # fmt: skip

    async def _fire_plain(self, epochs: dict[int, int], plain: list[Planned]) -> dict[int, int]:
        together = [one for one in plain if one.id not in self._blocked]
        try:
            moved = await self._gateway.fire(self._node.id, epochs, together) if together else {}
            alone = [one for one in plain if one.id in self._blocked]
        except LockTimeout:
            # Somebody's open transaction is in the way of one of these; the others need not wait for it again.
            moved, alone = {}, plain
        except StatementRefused as error:
            # The ledger has one of these instants already: only that one is left.
            log.error("firing.ledger_refused", error=str(error))
            moved, alone = {}, plain
        for one in alone:
            try:
                moved |= await self._impatient.fire(self._node.id, epochs, [one])
                self._blocked.discard(one.id)
            except LockTimeout:
                self._block(one)
            except StatementRefused:
                log.error("firing.twice", schedule=one.id, at=one.due_at.isoformat(), meaning="it has been fired already")
        self._measures.fired += sum(moved.values())
        return moved

    def _block(self, one: Planned) -> None:
        if one.id not in self._blocked:
            self._blocked.add(one.id)
            log.warning("firing.blocked", schedule=one.id, at=one.due_at.isoformat(),
                        meaning="somebody's open transaction is changing one of its jobs; fired when that ends")  # fmt: skip

    async def _fire_late(self, plan: Plan, begin: int, end: int, *, impatient: bool = False) -> int:
        """How many were refused."""
        planned, instants = [one for one, _ in plan.late[begin:end]], [many for _, many in plan.late[begin:end]]
        names = any(one.id in plan.large for one in planned)
        gateway = self._impatient if impatient or planned[0].id in self._blocked else self._gateway
        try:
            late = await gateway.fire_late(self._node.id, plan.epochs, planned, instants, self._catch_up_rate, names=names)
            self._blocked -= late.keys()
        except (LockTimeout, StatementRefused) as error:
            if len(planned) > 1:
                return sum([await self._fire_late(plan, place, place + 1, impatient=True) for place in range(begin, end)])
            late = {}
            if isinstance(error, LockTimeout):
                self._block(planned[0])
            else:
                log.error("firing.twice", schedule=planned[0].id, at=planned[0].due_at.isoformat(), error=str(error))
        for one, many in zip(planned, instants, strict=True):
            self._again(one, one.id in late)
            if one.id in late:
                self._measures.fired_late(late[one.id])
            if one.id in plan.large and one.id in late and late[one.id].jobs:
                log.warning("firing.catch_up", jobs=late[one.id].jobs, schedule=plan.large[one.id].in_words(),
                            since=one.due_at.isoformat(), missed=f"{'at least ' if len(many) > MOST_INSTANTS else ''}{len(many)}",
                            runs=late[one.id].runs, meaning="nobody fired this for long; each job's missed_window decides")  # fmt: skip
        return sum(one.id not in late and one.id not in self._blocked for one in planned)

    def _again(self, planned: Planned, moved: bool) -> None:
        if not moved:
            # Whose it is now will fire it; if it is still ours, the next second tells why not.
            self.hint(planned.id, planned.due_at.timestamp())
        elif planned.next_at is not None:
            self.hint(planned.id, planned.next_at.timestamp())

    def hint(self, schedule: int, due: float) -> None:
        if due - self.wheel.now <= HORIZON:
            self.wheel.insert(schedule, math.ceil(due))
