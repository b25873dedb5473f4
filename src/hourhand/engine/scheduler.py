"""A scheduler process: fires the schedules of its shards, and runs none of their jobs.

What survives a crash: everything. A schedule's row says when it fires next; it moves in the same statement that
inserts the runs. The wheel is a heap of hints: losing it costs a look at the table, and a wrong hint is
found out by the statement that acts on it.
"""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Sequence
from datetime import timedelta
from itertools import islice

import structlog

from hourhand.core.clock import Clock
from hourhand.core.errors import DatabaseUnavailable, StatementRefused
from hourhand.core.settings import Settings
from hourhand.core.wheel import TimingWheel
from hourhand.engine.elector import Elector
from hourhand.engine.maintainer import Maintainer
from hourhand.engine.node import Node
from hourhand.storage.database import Database, Patience
from hourhand.storage.nodes import MaintenanceGateway
from hourhand.storage.schedules import Hinted, Planned, ScheduleGateway

log = structlog.get_logger("hourhand.scheduler")
LOOK_AROUND = 1.0
HORIZON = 600.0
SWEEP_EVERY = 60.0
BATCH = 2_000
LATE = timedelta(seconds=1)
"""Beyond this a firing is judged by each job's own grace."""
MOST_INSTANTS = 10_000
CATCH_UP_RATE = 10.0
"""Runs a second and schedule at which RUN_ALL makes up for what was missed."""
LARGE_CATCH_UP = 100


class Scheduler:
    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self.node = Node(database, settings, "scheduler", {})
        self._gateway = ScheduleGateway(database.link("scheduler"))
        self._shards = ScheduleGateway(database.link("elector"))
        self.elector = Elector(self._shards, self.node)
        self.maintainer = Maintainer(MaintenanceGateway(database.link("maintainer")), self.node, settings)
        self.wheel = TimingWheel(int(self.node.clock.now()))
        self._look = asyncio.Event()
        self._stop_asked = asyncio.Event()
        self._sweep_at = 0.0
        self.started = asyncio.Event()
        self.refused = 0
        """Firings that the database did not take from us: not ours any more, or fired already."""

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
        log.info("scheduler.started", node=self.node.id, name=self.node.name)
        services = (self.node.run(), self._elect(), self._fire_when_due(), self.maintainer.run())
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
            await self.elector.release_all()
        except DatabaseUnavailable:
            log.warning("shards.not_released", node=self.node.id, meaning="others will notice by the lock or lease")
        await self.maintainer.stop()
        await self.node.stop()
        await self._gateway.close()
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
                if taken:
                    await self.load(sorted(taken))
                patience.reset()
            except DatabaseUnavailable:
                await patience.wait()
                continue
            try:
                await asyncio.wait_for(self._look.wait(), LOOK_AROUND)
            except asyncio.TimeoutError:
                continue
            self._look.clear()

    async def load(self, shards: Sequence[int]) -> None:
        for schedule, _, due in await self._shards.near_schedules(shards, HORIZON):
            self._hint(schedule, due)

    # What is due

    async def _fire_when_due(self) -> None:
        patience = Patience(cap=0.5)
        waiting: list[int] = []
        while True:
            now = self.node.clock.now()
            waiting += [key for key, _ in self.wheel.advance(int(now))]
            try:
                while waiting:
                    await self.fire(waiting[:BATCH])
                    del waiting[:BATCH]
                patience.reset()
            except DatabaseUnavailable as error:
                if patience.first:
                    log.warning("firing.waiting", error=str(error), schedules=len(waiting))
                await patience.wait()
                continue
            now = self.node.clock.now()
            await asyncio.sleep(math.floor(now) + 1.001 - now)

    async def fire(self, hints: Sequence[int]) -> None:
        """Fire what is due among these, and put each back for its next time."""
        epochs = dict(self.elector.held)
        plain: list[Planned] = []
        for one in await self._gateway.hinted_schedules(hints):
            if one.shard not in epochs:
                continue
            if one.due_at > one.present:
                self._hint(one.id, one.due_at.timestamp())
                continue
            next_at = one.schedule.next_after(one.due_at)
            if one.present - one.due_at <= LATE and (next_at is None or next_at > one.present):
                plain.append(Planned(one.id, one.due_at, next_at))
            else:
                await self._fire_late(one, epochs)
        if plain:
            moved = await self._fire_plain(epochs, plain)
            for planned in plain:
                self._again(planned, planned.id in moved)

    async def _fire_plain(self, epochs: dict[int, int], plain: list[Planned]) -> set[int]:
        try:
            return await self._gateway.fire(self.node.id, epochs, plain)
        except StatementRefused as error:
            # The ledger has one of these instants already. One by one, so that only that one is left.
            log.error("firing.refused", error=str(error))
        moved: set[int] = set()
        for one in plain:
            try:
                moved |= await self._gateway.fire(self.node.id, epochs, [one])
            except StatementRefused:
                log.error("firing.twice", schedule=one.id, at=one.due_at.isoformat(), meaning="it has been fired already")
        return moved

    async def _fire_late(self, one: Hinted, epochs: dict[int, int]) -> None:
        instants = list(islice(one.schedule.firings(one.due_at, one.present), MOST_INSTANTS))
        last = instants[-1] if instants else one.due_at
        planned = Planned(one.id, one.due_at, one.schedule.next_after(last))
        answer = await self._gateway.fire_late(self.node.id, epochs, planned, [one.due_at, *instants], CATCH_UP_RATE)
        if answer is not None and len(instants) >= LARGE_CATCH_UP:
            log.warning("firing.catch_up", schedule=one.id, expression=one.schedule.expression, missed=len(instants) + 1,
                        since=one.due_at.isoformat(), runs=answer[0])  # fmt: skip
        self._again(planned, answer is not None)

    def _again(self, planned: Planned, moved: bool) -> None:
        if not moved:
            self.refused += 1
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
        elif word == "d":
            self.maintainer.hear(word)

    async def _died(self) -> None:
        self.elector.held = {}
        log.error("scheduler.lost_its_shards", node=self.node.id)

    def _returned(self) -> None:
        self._sweep_at = 0.0
        self._look.set()
