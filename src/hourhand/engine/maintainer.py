"""The chores of the queue, done by one node at a time: promoting what is due, judging who is dead,
recovering their runs, ending what expired, tidying.

Who holds the duty ticks once a second, and so does the node that is next in line, which takes it over
the moment its holder is gone; the others ask more seldom, in case both are. Everything here is safe to
do twice at once (SKIP LOCKED, conditions checked as they are written), so the duty needs no fence; it
only spares the database ten nodes doing the same.

A judge must have been connected for longer than the grace itself: after a restart of the database
everybody's lock is missing and leases may have run out, and everybody needs a moment to return.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable

import structlog

from hourhand.core import ids
from hourhand.core.clock import Clock
from hourhand.core.errors import DatabaseUnavailable, LockTimeout, StatementRefused
from hourhand.core.settings import Settings
from hourhand.engine.duty import ASK_EVERY, HELD, Duty
from hourhand.engine.measures import Measures
from hourhand.engine.node import Node
from hourhand.engine.paced import QUICK, Paced
from hourhand.engine.reindexer import Reindexer
from hourhand.engine.waiting import heard
from hourhand.storage.database import Database, Patience
from hourhand.storage.indexes import IndexGateway
from hourhand.storage.nodes import MaintenanceGateway

log = structlog.get_logger("hourhand.maintainer")
TICK = 1.0
DUTY = 5.0
STALE = HELD / 4
"""Seconds after which the answer to a tick, which walks over much, says too little of who has the other duties now."""
BATCH = 2_000
MOST_CRASHES = 10
"""After so many dead workers in a row a run goes to the dead letters."""
TIDY_EVERY = 60.0
FORGET_EVERY = 600.0
FACTS_EVERY = 10.0
RETURN_EVERY = 5.0
SAMPLE_EVERY = 10.0
TaskFacts = tuple[str, float | None, float, float, float]
PARTITIONS_EVERY = 3_600.0
REINDEX_EVERY = 180.0
DAY = 86_400.0


class Maintainer:
    def __init__(
        self, gateway: MaintenanceGateway, node: Node, settings: Settings, sampler: MaintenanceGateway | None = None,
        reindexer: Reindexer | None = None,
    ) -> None:  # fmt: skip
        self._gateway = gateway
        self._sampler = sampler
        """Looking over everything may take long: it has a connection of its own, so that nothing waits for it. None: nobody looks."""
        self._looks = [] if sampler is None else [
            Paced(lambda: self._sample(sampler), SAMPLE_EVERY), Paced(lambda: self._count_jobs(sampler), SAMPLE_EVERY),
            Paced(lambda: self._point_out(sampler), TIDY_EVERY),
        ]  # fmt: skip
        self._sampled = False
        self._jobs_apart = False
        self._looking: asyncio.Task[None] | None = None
        self._reindexer = reindexer
        self._reindexing: asyncio.Task[None] | None = None
        self._reindex_at = Clock.monotonic() + REINDEX_EVERY
        self._node = node
        self._settings = settings
        self._missing_since: dict[int, float] = {}
        self._tidy_at = 0.0
        self._forget_at = 0.0
        self._partitions_at = 0.0
        self._return_at = 0.0
        self._wake = asyncio.Event()
        self._held = False
        self._pointed_out: dict[int, float] = {}
        self._facts_at = 0.0
        self.facts: Callable[[], list[TaskFacts]] = list
        """What there is to report about tasks since it was last asked."""
        self.news: Callable[[], str | None] = lambda: None
        """What there is to tell whoever follows the events."""
        self._news_at = 0.0
        self.duties: list[Duty] = []
        """What else this process would do if it is its turn: asked for with every tick."""
        self.measures = Measures(node.clock.now)
        self.recovered = 0
        self.declared = 0
        self.ended: Counter[str] = Counter()
        """Runs that ended with no worker to count them, by status."""

    @classmethod
    def on(cls, database: Database, node: Node, settings: Settings) -> Maintainer:
        """With all its helpers."""
        gateways = (MaintenanceGateway(database.link(purpose)) for purpose in ("maintainer", "sampler"))
        return cls(next(gateways), node, settings, next(gateways), Reindexer(IndexGateway(database), settings.rebuild_indexes))

    def hear(self, word: str) -> None:
        if word == "d" and self._held:
            self._wake.set()

    async def run(self) -> None:
        patience = Patience()
        while True:
            try:
                pause = await self.run_once()
                patience.reset()
                await self._rest(pause)
            except DatabaseUnavailable:
                self._missing_since.clear()
                await self._ask_for_others()
                await patience.wait()
            except StatementRefused as error:
                log.error("maintenance.refused", error=str(error))
                await self._ask_for_others()
                await heard(self._wake, TICK)
            self._wake.clear()

    async def _ask_for_others(self) -> None:
        """What is wrong with a table of the queue is told by the alerts: they are not to end with it."""
        with contextlib.suppress(DatabaseUnavailable, StatementRefused):
            for duty in self.duties:
                asked = Clock.monotonic()
                duty.answer(await self._gateway.take_duty(duty.name, self._node.id, HELD, duty.rank), asked)

    async def _rest(self, seconds: float) -> None:
        """Until the next tick is wanted. What there is to tell is told meanwhile."""
        until = Clock.monotonic() + seconds
        while not await heard(self._wake, min(TICK, until - Clock.monotonic())) and Clock.monotonic() < until:
            await self._report()

    async def run_once(self) -> float:
        """One tick. Returns the seconds until the next one is wanted."""
        await self._report()
        asked = Clock.monotonic()
        others = [(duty.name, HELD, duty.rank) for duty in self.duties]
        returning = asked >= self._return_at
        tick = await self._gateway.tick(self._node.id, DUTY, others, returning=returning)
        self._held = tick.held
        if Clock.monotonic() - asked < STALE:
            for duty in self.duties:
                duty.answer(duty.name in tick.granted, asked)
        else:
            await self._ask_for_others()
        if not tick.held:
            self._missing_since.clear()
            return TICK if tick.next else ASK_EVERY
        orphans = tick.orphans
        for node in self._condemned(tick.silent, tick.unlocked):
            if await self._gateway.declare_dead(node):
                self.declared += 1
                orphans = True
                log.warning("node.dead", node=node, sign="lease ran out" if node in tick.silent else "session lock gone")
        if orphans:
            await self._recover()
        if tick.expired:
            count = await self._gateway.expire(BATCH)
            self.ended["expired"] += count
            log.info("runs.expired", runs=count)
        next_in = tick.next_in
        began = Clock.monotonic()
        while next_in is not None and next_in <= 0:
            moved, next_in = await self._gateway.promote(BATCH)
            if moved == BATCH:
                next_in = 0.0
            # A mountain of due runs must not keep the dead from being noticed.
            if Clock.monotonic() - began > TICK / 2:
                break
        if tick.held_back:
            await self._return_released()
        elif returning:
            self._return_at = asked + RETURN_EVERY
        if self._looks and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look_around(), name="sampler")
        if self._reindexer is not None and Clock.monotonic() >= self._reindex_at and (
            self._reindexing is None or self._reindexing.done()
        ):  # fmt: skip
            self._reindex_at = Clock.monotonic() + REINDEX_EVERY
            self._reindexing = asyncio.create_task(self._reindexer.run_once(), name="reindexer")
        await self._tidy()
        return max(0.001, min(TICK, self._next_verdict(), TICK if next_in is None else next_in))

    async def _report(self) -> None:
        """Every node says what its runs take; on this connection, since it needs one so seldom."""
        if Clock.monotonic() >= self._facts_at:
            self._facts_at = Clock.monotonic() + FACTS_EVERY
            if facts := self.facts():
                await self._gateway.report_tasks(facts)
            await self.tell()
        if Clock.monotonic() >= self._news_at and (news := self.news()) is not None:
            self._news_at = Clock.monotonic() + TICK
            await self._gateway.say_event(news)

    async def tell(self) -> None:
        """The statistics hear what this node has counted."""
        if rows := self.measures.untold():
            await self._gateway.add_statistics(self._node.id, rows)
            self.measures.told()

    async def _look_around(self) -> None:
        """How full the queues are, and how many jobs there are: looked at here, so that nobody else has to count. And what is stuck."""
        for look in self._looks:
            try:
                await look.ask()
            except (DatabaseUnavailable, StatementRefused) as error:
                log.warning("statistics.not_counted", error=str(error))

    def _condemned(self, silent: list[int], unlocked: list[int]) -> list[int]:
        now, grace = Clock.monotonic(), self._settings.grace
        self._missing_since = {node: self._missing_since.get(node, now) for node in unlocked}
        connected = now - self._gateway.connected_at
        if connected < grace * 2:
            return []
        gone = [node for node, since in self._missing_since.items() if now - since >= grace]
        return sorted({*silent, *gone} - {self._node.id})

    def _next_verdict(self) -> float:
        """Seconds until the next of those that are missing has been so for the whole grace."""
        now, grace = Clock.monotonic(), self._settings.grace
        return min((left for since in self._missing_since.values() if (left := since + grace - now) > 0), default=TICK)

    async def _recover(self) -> None:
        recovered, cancelled, buried, lost = await self._gateway.recover(MOST_CRASHES)
        self.recovered += recovered
        self.ended.update(cancelled=cancelled, dead=buried, lost=lost)
        if recovered or cancelled or buried:
            log.warning("runs.recovered", runs=recovered, cancelled=cancelled, dead=buried,
                        meaning="their worker died; they run again, on probation")  # fmt: skip
        if lost:
            log.error("runs.lost", runs=lost, meaning="at-most-once runs whose worker died after they had begun")

    async def _return_released(self) -> None:
        """What the release of a hold has left behind: whoever releases one returns its runs himself, unless he is cut off."""
        began, runs = Clock.monotonic(), 0
        if began < self._return_at:
            return
        while some := await self._gateway.return_released(BATCH):
            runs += some
            if some < BATCH or Clock.monotonic() - began > TICK / 2:
                break
        self._return_at = began + (0.0 if runs else RETURN_EVERY)
        if runs:
            log.info("holds.returned", runs=runs, meaning="their hold is released; they are ready again")

    async def _tidy(self) -> None:
        now = Clock.monotonic()
        if now >= self._partitions_at:
            self._partitions_at = now + TIDY_EVERY
            added = await self._gateway.add_partitions()
            self._partitions_at = now + PARTITIONS_EVERY
            if added:
                log.info("history.partitions_added", partitions=added)
        if now >= self._tidy_at:
            self._tidy_at = now + TIDY_EVERY
            await self._gateway.tidy()
            await self._gateway.tidy_gates(BATCH)
            await self._gateway.merge_statistics()
            await self.collect()
        if now >= self._forget_at:
            self._forget_at = now + TIDY_EVERY
            if not await self.forget():
                self._forget_at = now + FORGET_EVERY

    async def _sample(self, sampler: MaintenanceGateway) -> None:
        """With the jobs, as long as that is quick. After that each has a pace of its own."""
        began = Clock.monotonic()
        try:
            await sampler.take_sample(jobs=not self._jobs_apart)
        finally:
            # For the first one the connection was opened.
            self._jobs_apart = self._jobs_apart or (self._sampled and Clock.monotonic() - began > QUICK)
            self._sampled = True

    async def _count_jobs(self, sampler: MaintenanceGateway) -> None:
        if self._jobs_apart:
            await sampler.take_sample(queues=False)

    async def _point_out(self, sampler: MaintenanceGateway) -> None:
        """Runs that go on far too long while their worker lives: nobody else would notice."""
        for one in await sampler.stuck_runs():
            run, job = one["run_id"], {} if one["job_id"] is None else {"job": ids.job_id(one["job_id"])}
            if run not in self._pointed_out:
                log.warning("run.stuck", run=ids.run_id(run), **job, task=one["task"], queue=one["queue"],
                            attempt=one["attempt"] + 1, node=one["node"], status="running", duration=round(one["seconds"]),
                            meaning="far beyond its timeout, or beyond what its task usually takes")  # fmt: skip
            self._pointed_out[run] = Clock.monotonic()
        self._pointed_out = {run: at for run, at in self._pointed_out.items() if Clock.monotonic() - at < 3 * TIDY_EVERY}

    async def collect(self) -> None:
        """One-off jobs that have run, and schedules that no job has any more."""
        began, jobs, schedules = Clock.monotonic(), 0, 0
        # All there is, within a second: the queue's own chores come first.
        while some := await self._gateway.collect_jobs(self._settings.keep_finished * DAY, BATCH):
            jobs += some
            if some < BATCH or Clock.monotonic() - began > TICK:
                break
        while some := await self._gateway.collect_schedules(BATCH):
            schedules += some
            if some < BATCH or Clock.monotonic() - began > 2 * TICK:
                break
        if jobs or schedules:
            log.info("jobs.collected", jobs=jobs, schedules=schedules)

    async def forget(self) -> bool:
        """History beyond its retention: whole days at once, and never at the price of keeping the queue waiting. True: there may
        be more of it."""
        kept, postponed = self._settings.retention * DAY, False
        for part in await self._gateway.old_partitions(kept):
            try:
                await self._gateway.drop_partition(part)
            except LockTimeout:
                log.info("history.drop_postponed", partition=part, meaning="somebody reads it; tried again in a minute")
                postponed = True
                break
            log.info("history.dropped", partition=part)
        rows = await self._gateway.forget(kept, BATCH) + await self._gateway.forget_statistics(kept, BATCH)
        rows += await self._gateway.forget_incidents(kept, BATCH)
        if rows:
            log.info("history.forgotten", rows=rows)
        return postponed or rows > 0

    async def stop(self) -> None:
        with contextlib.suppress(DatabaseUnavailable, StatementRefused):
            await self.tell()
        for task in (self._looking, self._reindexing):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._held:
            with contextlib.suppress(DatabaseUnavailable):
                await self._gateway.drop_duty(self._node.id)
        await self._gateway.close()
        if self._sampler is not None:
            await self._sampler.close()
