"""A scheduler process: fires the schedules of its shards, and runs none of their jobs.

What survives a crash: everything. A schedule's row says when it fires next; it moves in the same statement that
inserts the runs.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping

import structlog

from hourhand.core.clock import Clock
from hourhand.core.errors import DatabaseUnavailable, InvalidSchedule
from hourhand.core.registry import Registry
from hourhand.core.ring import SHARDS
from hourhand.core.settings import Settings
from hourhand.core.zones import tzdata_version
from hourhand.engine.alerting import Alerting
from hourhand.engine.elector import Elector
from hourhand.engine.firer import HORIZON, Firer
from hourhand.engine.maintainer import Maintainer
from hourhand.engine.node import Node
from hourhand.engine.waiting import heard
from hourhand.storage.database import Database, Patience
from hourhand.storage.schedules import ScheduleGateway

log = structlog.get_logger("hourhand.scheduler")
LOOK_AROUND = 1.0
SWEEP_EVERY = 60.0
"""Seconds in which each shard has its turn once. They are spread over them: all at once would hold up what is due meanwhile."""
SHARDS_AT_ONCE = 8
BREATH = 200
"""Schedules that are computed before others have their turn in this process: some milliseconds."""


class Scheduler:
    def __init__(
        self, database: Database, settings: Settings, labels: Mapping[str, str] | None = None, registry: Registry | None = None
    ) -> None:
        self.node = Node(database, settings, "scheduler", {"tzdata": tzdata_version(), **(labels or {})})
        self._shards = ScheduleGateway(database.link("elector"))
        self.elector = Elector(self._shards, self.node)
        self.maintainer = Maintainer.on(database, self.node, settings)
        self.alerting = Alerting(database, settings, registry)
        self.maintainer.duties = self.alerting.duties
        self.firer = Firer(database, self.node, self.elector, self.maintainer.measures, settings.catch_up_rate)
        self.firer.on_start = self._returned
        self._look = asyncio.Event()
        self._stop_asked = asyncio.Event()
        self._swept: dict[int, tuple[int, int]] = {}
        """The last turn of each shard that has had one, and the epoch. What is not in here is loaded at the next look."""
        self.started = asyncio.Event()

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
        self.firer.start()
        log.info("scheduler.started", node=self.node.id, name=self.node.name)
        services = (self.node.run(), self._elect(), self.firer.run(), self.maintainer.run(), self.alerting.run())
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
        await self.firer.close()
        await self._shards.close()
        log.info("scheduler.stopped", node=self.node.id)

    # Which shards

    async def _elect(self) -> None:
        patience = Patience(cap=0.5)
        while True:
            try:
                await self.elector.run_once()
                await self._mind_zones()
                await self._sweep()
                patience.reset()
            except DatabaseUnavailable:
                await patience.wait()
                continue
            if await heard(self._look, LOOK_AROUND):
                self._look.clear()

    async def _sweep(self) -> None:
        """Hints for what shards have soon that have come to us, or whose turn it is; a few shards at a time, so that a million
        of them pass through lightly."""
        minutes = Clock.monotonic() / SWEEP_EVERY
        turns = {shard: (int(minutes + shard / SHARDS), epoch) for shard, epoch in sorted(self.elector.held.items())}
        due = [shard for shard, turn in turns.items() if self._swept.get(shard) != turn]
        for begin in range(0, len(due), SHARDS_AT_ONCE):
            some = due[begin : begin + SHARDS_AT_ONCE]
            # Before they are read: who asks for them meanwhile takes it back.
            self._swept.update({shard: turns[shard] for shard in some})
            try:
                found = await self._shards.near_schedules(some, HORIZON)
            except DatabaseUnavailable:
                for shard in some:
                    self._swept.pop(shard, None)
                raise
            for schedule, _, at in found:
                self.firer.hint(schedule, at)

    async def _mind_zones(self) -> None:
        """What was computed with another release of the time zone rules is computed again; shard by shard, and with a look
        at those whose turn it is every second or so: with millions of schedules it takes a while."""
        until = Clock.monotonic() + LOOK_AROUND
        for shard, known in self.elector.strangers().items():
            if Clock.monotonic() >= until:
                self._look.set()
                return
            await self._mind_zones_of(shard, known)

    async def _mind_zones_of(self, shard: int, known: str) -> None:
        epoch, release = self.elector.owned.get(shard), tzdata_version()
        if epoch is None:
            return
        moves = []
        for number, (schedule, plan, stored, since) in enumerate(await self._shards.zoned_schedules(shard) if known else ()):
            if number % BREATH == 0:
                await asyncio.sleep(0)
            try:
                fresh = plan.next_after(since)
            except InvalidSchedule:
                continue
            if fresh is not None and fresh != stored:
                moves.append((schedule, stored, fresh))
        if moves:
            moved = await self._shards.move_schedules(self.node.id, shard, epoch, moves, f"tzdata {known} to {release}")
            for number, one in enumerate(moved):
                if number % BREATH == 0:
                    await asyncio.sleep(0)
                log.warning("job.moved", job=one.job, before=one.before.isoformat(), after=one.after.isoformat(),
                            tzdata=release, meaning="the rules of its time zone changed")  # fmt: skip
            for schedule, _, after in moves:
                self.firer.forget(schedule)
                self.firer.hint(schedule, after.timestamp())
            if left := {schedule for schedule, _, _ in moves} - {one.schedule for one in moved}:
                log.warning("shard.held_up", shard=shard, schedules=len(left), tzdata=release,
                            meaning="somebody's open transaction keeps them as they were; tried again soon")  # fmt: skip
                self.elector.excuse(shard, epoch)
                return
        await self._shards.set_tzdata(self.node.id, shard, epoch, release)
        self.elector.minded(shard, epoch)

    # What others say

    def _hear(self, word: str) -> None:
        kind, _, rest = word.partition(":")
        if kind == "s":
            shard, schedule, due = rest.split(":")
            if int(shard) in self.elector.held:
                self.firer.forget(int(schedule))
                self.firer.hint(int(schedule), float(due))
        elif kind == "o":
            self._look.set()
        elif kind == "l":
            self._swept.clear()
            self._look.set()
        elif word == "d":
            self.maintainer.hear(word)

    async def _died(self) -> None:
        self.elector.lose_all()
        log.error("scheduler.lost_its_shards", node=self.node.id)

    def _returned(self) -> None:
        self._swept.clear()
        self._look.set()
