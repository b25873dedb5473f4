"""A scheduler process: fires the schedules of its shards, and runs none of their jobs.

What survives a crash: everything. A schedule's row says when it fires next; it moves in the same statement that
inserts the runs. The wheel is a heap of hints: losing it costs a look at the table, and a wrong hint is
found out by the statement that acts on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from hourhand.core.clock import Clock
from hourhand.core.errors import DatabaseUnavailable, InvalidSchedule, LockTimeout, StatementRefused
from hourhand.core.registry import Registry
from hourhand.core.schedule import Schedule, latest_firings
from hourhand.core.settings import Settings
from hourhand.core.wheel import TimingWheel
from hourhand.core.zones import tzdata_version
from hourhand.engine.alerting import Alerting
from hourhand.engine.elector import Elector
from hourhand.engine.maintainer import Maintainer
from hourhand.engine.node import Node
from hourhand.engine.waiting import heard
from hourhand.storage.database import Database, Patience
from hourhand.storage.nodes import MaintenanceGateway
from hourhand.storage.schedules import Hinted, Planned, ScheduleGateway

log = structlog.get_logger("hourhand.scheduler")
LOOK_AROUND = 1.0
HORIZON = 600.0
SWEEP_EVERY = 60.0
BATCH = 2_000
RUNS_AT_ONCE = 20_000
MOST_INSTANTS = 10_000
SHARDS_AT_ONCE = 8
BLOCKED_AT_ONCE = 10
LOCK_TIMEOUT = 0.3
"""How long a batch waits for somebody's open transaction that changes one of its schedules' jobs."""
LARGE_CATCH_UP = 100
ON_TIME = 1.0
"""Up to so many seconds after its instant a firing is in time, whatever its jobs say about lateness."""
AHEAD_AT_ONCE = 500
AHEAD_UNTIL = 0.05
"""Seconds before the next one begins at which planning for it ends: what is left is planned when it is due."""


@dataclass(slots=True)
class Plan:
    """What is to be fired in one go, under the epochs that were held when it was planned."""

    epochs: dict[int, int]
    plain: list[Planned] = field(default_factory=list)
    late: list[tuple[Planned, list[datetime]]] = field(default_factory=list)
    large: dict[int, Schedule] = field(default_factory=dict)
    """Late ones that missed so much that somebody should hear of it."""

    def late_parts(self, alone: set[int]) -> Iterator[tuple[int, int]]:
        """Slices of `late` with a bounded number of instants each; those in `alone`, at the end, one by one."""
        begin = total = 0
        for place, (one, instants) in enumerate(self.late):
            if total and (total + len(instants) > MOST_INSTANTS or one.id in alone):
                yield begin, place
                begin, total = place, 0
            total += len(instants)
        if total:
            yield begin, len(self.late)


def _in_time(one: Planned, now: float) -> bool:
    """Fired by now it is neither early nor late, and no further instant of it has been missed."""
    return 0 <= now - one.due_at.timestamp() < ON_TIME and (one.next_at is None or one.next_at.timestamp() > now)


class Scheduler:
    def __init__(
        self, database: Database, settings: Settings, labels: Mapping[str, str] | None = None, registry: Registry | None = None
    ) -> None:
        self._settings = settings
        self.node = Node(database, settings, "scheduler", {"tzdata": tzdata_version(), **(labels or {})})
        self._gateway = ScheduleGateway(database.link("scheduler", LOCK_TIMEOUT))
        self._impatient = ScheduleGateway(database.link("scheduler", LOCK_TIMEOUT / 20))
        self._planner = ScheduleGateway(database.link("planner"))
        self._shards = ScheduleGateway(database.link("elector"))
        self.elector = Elector(self._shards, self.node)
        self.maintainer = Maintainer(
            MaintenanceGateway(database.link("maintainer")), self.node, settings, MaintenanceGateway(database.link("sampler"))
        )
        self.alerting = Alerting(database, settings, registry)
        self.maintainer.duties = self.alerting.duties
        self.wheel = TimingWheel(int(self.node.clock.now()))
        self._look = asyncio.Event()
        self._stop_asked = asyncio.Event()
        self._sweep_at = 0.0
        self._batch = BATCH
        self._ahead: dict[int, Planned] = {}
        """What the next second will bring, as it was planned before it began."""
        self._blocked: set[int] = set()
        """Schedules that somebody's open transaction was in the way of: fired one by one until it is gone."""
        self.refused = 0
        """Firings that the database did not take: another scheduler has the shard now, or a job was changed meanwhile."""
        self.started = asyncio.Event()

    @property
    def blocked(self) -> int:
        """Schedules that somebody's open transaction holds up."""
        return len(self._blocked)

    def ask_to_stop(self) -> None:
        self._stop_asked.set()

    async def run(self, *, handle_signals: bool = False) -> None:
        """Until asked to stop; then the shards are handed over at once."""
        if handle_signals:
            loop = asyncio.get_running_loop()
            for one in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(one, self.ask_to_stop)
        self.node.on_notify = self._hear
        self.node.on_death = self._died
        self.node.on_return = self._returned
        await self.node.start()
        self.wheel = TimingWheel(int(self.node.clock.now()))
        log.info("scheduler.started", node=self.node.id, name=self.node.name)
        services = (self.node.run(), self._elect(), self._fire_when_due(), self.maintainer.run(), self.alerting.run())
        tasks = [asyncio.create_task(service) for service in services]
        asked = asyncio.create_task(self._stop_asked.wait())
        self.started.set()
        try:
            done, _ = await asyncio.wait([asked, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {asked}:
                await task
        finally:
            for task in (asked, *tasks):
                task.cancel()
            await asyncio.gather(asked, *tasks, return_exceptions=True)
            await self._shut_down()

    async def _shut_down(self) -> None:
        try:
            # First out of the ring, then the shards out of our hands: who hears of it takes them at once.
            await self.node.leave()
            await self.elector.release_all()
        except DatabaseUnavailable:
            log.warning("shards.not_released", node=self.node.id, meaning="others will notice by the lock or lease")
        await self.alerting.stop(self.node.id)
        await self.maintainer.stop()
        await self.node.stop()
        await self._gateway.close()
        await self._impatient.close()
        await self._planner.close()
        await self._shards.close()
        log.info("scheduler.stopped", node=self.node.id)

    # Which shards

    async def _elect(self) -> None:
        patience = Patience(cap=0.5)
        while True:
            try:
                taken = await self.elector.run_once()
                now = Clock.monotonic()
                if now >= self._sweep_at:
                    taken = set(self.elector.held)
                    self._sweep_at = now + SWEEP_EVERY
                await self._mind_zones()
                if taken:
                    await self.load(sorted(taken))
                patience.reset()
            except DatabaseUnavailable:
                await patience.wait()
                continue
            if await heard(self._look, LOOK_AROUND):
                self._look.clear()

    async def load(self, shards: Sequence[int]) -> None:
        """Hints for what these shards have soon; a few shards at a time, so that a million of them pass through lightly."""
        for begin in range(0, len(shards), SHARDS_AT_ONCE):
            for schedule, _, due in await self._shards.near_schedules(shards[begin : begin + SHARDS_AT_ONCE], HORIZON):
                self._hint(schedule, due)

    async def _mind_zones(self) -> None:
        """What was computed with another release of the time zone rules is computed again."""
        release = tzdata_version()
        for shard, known in self.elector.strangers(release).items():
            epoch = self.elector.held.get(shard)
            if epoch is None:
                continue
            moves = []
            for schedule, plan, stored, since in await self._shards.zoned_schedules(shard) if known else ():
                try:
                    fresh = plan.next_after(since)
                except InvalidSchedule:
                    continue
                if fresh is not None and fresh != stored:
                    moves.append((schedule, stored, fresh))
            if moves:
                moved = await self._shards.move_schedules(self.node.id, shard, epoch, moves, f"tzdata {known} to {release}")
                for one in moved:
                    log.warning("job.moved", job=one.name, before=one.before.isoformat(), after=one.after.isoformat(),
                                tzdata=release, meaning="the rules of its time zone changed")  # fmt: skip
                for schedule, _, after in moves:
                    self._hint(schedule, after.timestamp())
            await self._shards.set_tzdata(self.node.id, shard, epoch, release)
            self.elector.tzdata[shard] = release

    # What is due

    async def _fire_when_due(self) -> None:
        patience = Patience(cap=0.5)
        waiting: list[int] = []
        while True:
            now = self.node.clock.now()
            if now < self.wheel.now - 1:
                # The machine's clock had run ahead and was put right: a wheel does not turn back.
                self.wheel = TimingWheel(int(now))
                self._returned()
            due = [key for key, _ in self.wheel.advance(int(now))]
            # What waited for the database may have been hinted at again.
            waiting[:] = dict.fromkeys([*waiting, *due])
            try:
                await self.fire_all(waiting)
                patience.reset()
            except DatabaseUnavailable as error:
                if patience.first:
                    log.warning("firing.waiting", error=str(error), schedules=len(waiting))
                await patience.wait()
                continue
            with contextlib.suppress(DatabaseUnavailable):
                await self.plan_ahead()
            now = self.node.clock.now()
            await asyncio.sleep(math.floor(now) + 1.001 - now)

    async def plan_ahead(self) -> None:
        """What the next second brings is looked up and computed while there is time. The firing statement compares instant,
        revision and epoch: what was changed meanwhile is not fired by such a plan, but planned anew."""
        self._ahead.clear()
        begins, hints = self.wheel.now + 1, self.wheel.upcoming()
        for begin in range(0, len(hints), AHEAD_AT_ONCE):
            if self.node.clock.now() > begins - AHEAD_UNTIL:
                break
            for one in await self._planner.hinted_schedules(hints[begin : begin + AHEAD_AT_ONCE]):
                if one.shard in self.elector.held and one.id not in self._blocked and one.due_at.timestamp() <= begins:
                    with contextlib.suppress(InvalidSchedule):
                        self._ahead[one.id] = Planned(one.id, one.due_at, one.schedule.next_after(one.due_at), one.revision)

    async def _fire_ahead(self, waiting: list[int]) -> None:
        """What was planned before and is in time; the rest stays in `waiting`."""
        ready = [planned for hint in waiting if (planned := self._ahead.pop(hint, None)) is not None]
        for begin in range(0, len(ready), self._batch):
            now = self.node.clock.now()
            part = [one for one in ready[begin : begin + self._batch] if _in_time(one, now)]
            moved = await self._fire_plain(dict(self.elector.held), part) if part else {}
            self._fired(moved)
            for one in part:
                if one.id in moved:
                    self._again(one, True)
            waiting[:] = [hint for hint in waiting if hint not in moved]

    async def fire_all(self, waiting: list[int]) -> None:
        """Fire what is due among these, and put each back for its next time. While the database fires one batch, the next
        is planned. Hints leave `waiting` as they are dealt with; what the database could not be asked about stays."""
        if self._ahead:
            await self._fire_ahead(waiting)
        under_way: asyncio.Task[None] | None = None
        held: list[int] = []
        try:
            while waiting:
                hints = waiting[: self._batch]
                plan = await self.plan(hints)
                if under_way is not None:
                    await under_way
                held = hints
                del waiting[: len(hints)]
                under_way = asyncio.create_task(self._carry_out(plan))
            if under_way is not None:
                await under_way
        except BaseException as error:
            if under_way is not None and not under_way.done():
                if isinstance(error, asyncio.CancelledError):
                    under_way.cancel()
                await asyncio.wait([under_way])
            if under_way is not None and (under_way.cancelled() or under_way.exception() is not None):
                waiting[:0] = held
            raise

    async def plan(self, hints: Sequence[int]) -> Plan:
        """What the table says about these: due and in time, late, or not yet."""
        plan, blocked = Plan(dict(self.elector.held)), list[Hinted]()
        for one in await self._planner.hinted_schedules(hints):
            if one.shard not in plan.epochs:
                self._blocked.discard(one.id)
                continue
            if one.due_at > one.present:
                self._hint(one.id, one.due_at.timestamp())
                continue
            if one.id in self._blocked:
                blocked.append(one)
                continue
            self._plan_one(plan, one)
        # Each of these may cost a moment in vain: a few at a time, and the others in the next second.
        for one in blocked[:BLOCKED_AT_ONCE]:
            self._plan_one(plan, one)
        for one in blocked[BLOCKED_AT_ONCE:]:
            self._hint(one.id, one.due_at.timestamp())
        return plan

    def _plan_one(self, plan: Plan, one: Hinted) -> None:
        try:
            next_at = one.schedule.next_after(one.due_at)
            late = (one.present - one.due_at).total_seconds()
            if (next_at is None or next_at > one.present) and (one.patience is None or late <= one.patience):
                plan.plain.append(Planned(one.id, one.due_at, next_at, one.revision))
                return
            missed = latest_firings(one.schedule, one.due_at, one.present, MOST_INSTANTS)
            last = missed[-1] if missed else one.due_at
            planned = Planned(one.id, one.due_at, one.schedule.next_after(last), one.revision)
        except InvalidSchedule as error:
            # A zone that this machine's tzdata does not have yet, perhaps. Everybody else's schedules go on.
            log.error("schedule.unreadable", schedule=one.id, error=str(error), meaning="it is not fired here; upgrade tzdata")
            self._hint(one.id, one.present.timestamp() + SWEEP_EVERY)
            return
        plan.late.append((planned, [one.due_at, *missed]))
        if len(missed) >= LARGE_CATCH_UP:
            plan.large[one.id] = one.schedule

    async def _carry_out(self, plan: Plan) -> None:
        refused = 0
        if plan.plain:
            moved = await self._fire_plain(plan.epochs, plan.plain)
            for planned in plan.plain:
                self._again(planned, planned.id in moved)
            refused += sum(one.id not in moved and one.id not in self._blocked for one in plan.plain)
            self._fired(moved)
        plan.late.sort(key=lambda one: one[0].id in self._blocked)
        for begin, end in plan.late_parts(self._blocked):
            refused += await self._fire_late(plan, begin, end)
        if refused:
            self.refused += refused
            log.warning("firing.refused", schedules=refused, node=self.node.id,
                        meaning="another scheduler has them now, or their jobs are being changed; planned again")  # fmt: skip

    def _fired(self, moved: dict[int, int]) -> None:
        if moved:
            self.maintainer.measures.fired += sum(moved.values())
            # About as many runs in each statement, whether a schedule has one job or thousands.
            self._batch = int(min(BATCH, max(8, RUNS_AT_ONCE * len(moved) / max(1, sum(moved.values())))))

    async def _fire_plain(self, epochs: dict[int, int], plain: list[Planned]) -> dict[int, int]:
        together = [one for one in plain if one.id not in self._blocked]
        try:
            moved = await self._gateway.fire(self.node.id, epochs, together) if together else {}
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
                moved |= await self._impatient.fire(self.node.id, epochs, [one])
                self._blocked.discard(one.id)
            except LockTimeout:
                self._block(one)
            except StatementRefused:
                log.error("firing.twice", schedule=one.id, at=one.due_at.isoformat(), meaning="it has been fired already")
        return moved

    def _block(self, one: Planned) -> None:
        if one.id not in self._blocked:
            self._blocked.add(one.id)
            log.warning("firing.blocked", schedule=one.id, at=one.due_at.isoformat(),
                        meaning="somebody's open transaction is changing one of its jobs; fired when that ends")  # fmt: skip

    async def _fire_late(self, plan: Plan, begin: int, end: int) -> int:
        """How many were refused."""
        planned, instants = [one for one, _ in plan.late[begin:end]], [many for _, many in plan.late[begin:end]]
        names = any(one.id in plan.large for one in planned)
        try:
            late = await self._gateway.fire_late(
                self.node.id, plan.epochs, planned, instants, self._settings.catch_up_rate, names=names
            )
        except (LockTimeout, StatementRefused) as error:
            if len(planned) > 1:
                return sum([await self._fire_late(plan, place, place + 1) for place in range(begin, end)])
            late = {}
            if isinstance(error, LockTimeout):
                self._block(planned[0])
            else:
                log.error("firing.twice", schedule=planned[0].id, at=planned[0].due_at.isoformat(), error=str(error))
        for one, many in zip(planned, instants, strict=True):
            self._again(one, one.id in late)
            if one.id in late:
                self.maintainer.measures.fired_late(late[one.id])
            if one.id in plan.large and one.id in late and late[one.id].jobs:
                log.warning("firing.catch_up", jobs=late[one.id].jobs, schedule=plan.large[one.id].in_words(),
                            since=one.due_at.isoformat(), missed=f"{'at least ' if len(many) > MOST_INSTANTS else ''}{len(many)}",
                            runs=late[one.id].runs, meaning="nobody fired this for long; each job's missed_window decides")  # fmt: skip
        return sum(one.id not in late and one.id not in self._blocked for one in planned)

    def _again(self, planned: Planned, moved: bool) -> None:
        if not moved:
            # Whose it is now will fire it; if it is still ours, the next second tells why not.
            self._hint(planned.id, planned.due_at.timestamp())
        elif planned.next_at is not None:
            self._hint(planned.id, planned.next_at.timestamp())

    def _hint(self, schedule: int, due: float) -> None:
        if due - self.wheel.now <= HORIZON:
            self.wheel.insert(schedule, math.ceil(due))

    # What others say

    def _hear(self, word: str) -> None:
        kind, _, rest = word.partition(":")
        if kind == "s":
            shard, schedule, due = rest.split(":")
            if int(shard) in self.elector.held:
                self._hint(int(schedule), float(due))
        elif kind == "o":
            self._look.set()
        elif kind == "l":
            self._sweep_at = 0.0
            self._look.set()
        elif word == "d":
            self.maintainer.hear(word)

    async def _died(self) -> None:
        self.elector.held = {}
        log.error("scheduler.lost_its_shards", node=self.node.id)

    def _returned(self) -> None:
        self._sweep_at = 0.0
        self._look.set()
