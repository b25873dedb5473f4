"""The world of a simulation: the tables, the scheduler processes, the users, and a clock that moves when it is told to."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, datetime
from random import Random

from hourhand.core.account import MOMENT
from hourhand.core.schedule import Schedule, parse_schedule
from tests.support.simulation_jobs import Database, Policies
from tests.support.simulation_judge import Judge
from tests.support.simulation_process import SETTINGS, Process
from tests.support.simulation_rules import Rule, some_rule
from tests.support.simulation_server import Server
from tests.support.simulation_tables import SECOND

DAY = 86_400
LEAPS = {"seconds": (5, 1_500), "minutes": (60, 200_000), "days": (90_000, 300 * DAY)}


class World:
    def __init__(self, tables: Database, pace: str, covered: Counter[str]) -> None:
        self.tables = tables
        self.pace = pace
        self.covered = covered
        self.server = Server(tables)
        self.judge = Judge(tables, covered)
        self.processes: list[Process] = []
        self.began = tables.now
        self._jobs = 0

    # Processes

    @property
    def living(self) -> list[Process]:
        return [one for one in self.processes if not one.gone]

    def start(self, skew: float = 0.0) -> Process:
        process = Process(self.server, len(self.processes), skew)
        self.processes.append(process)
        self.covered["processes"] += 1
        return process

    def owner_of(self, shard: int) -> Process | None:
        return next((one for one in self.living if one.scheduler.node.id == self.tables.shards[shard].owner), None)

    def wake(self, process: Process) -> None:
        if not process.running:
            process.running = True
            self.covered["wake-ups"] += 1
            self.covered["wake-ups of zombies"] += process.deposed

    def settle(self) -> None:
        """Everybody who can goes on until nobody has anything to do at this moment."""
        for _ in range(100):
            busy = [one for one in self.living if one.busy()]
            if not busy:
                return
            for one in busy:
                for _ in range(20_000):
                    if not one.busy() or not one.step(lambda count: count - 1):
                        break
                    self.speak()
        raise AssertionError("somebody works on and on at one moment")

    def speak(self) -> None:
        """Words reach everybody who listens."""
        for word in self.tables.words:
            for one in self.living:
                one.hear(word)
        self.tables.words.clear()

    # Time

    def pass_time(self, seconds: float) -> None:
        """As it does when all is well: everybody wakes up when they want to."""
        until = self.tables.now + seconds * SECOND
        while True:
            self.settle()
            if self.tables.now >= until:
                return
            timers = [at for one in self.living if one.running and (at := one.loop.next_timer()) is not None]
            soonest = datetime.fromtimestamp(math.ceil(min(timers, default=math.inf) * 1e6) / 1e6, UTC) if timers else until
            self.tables.now = min(until, max(soonest, self.tables.now + MOMENT))

    def coast(self, seconds: float) -> None:
        """The same in one stride: who is well keeps its lease, and looks around again at the end."""
        tables = self.tables
        nodes = [(one, tables.nodes[one.scheduler.node.id]) for one in self.living if one.healthy and one.scheduler.node.id]
        well = [(one, node) for one, node in nodes if tables.alive(node)]
        tables.now += seconds * SECOND
        for one, node in well:
            node.lease_until = tables.now + SETTINGS.lease * SECOND
            one.scheduler.node.lease_deadline = one.monotonic() + SETTINGS.lease
        self.settle()

    def next_due(self) -> tuple[datetime, int] | None:
        """The next instant ahead, and the shard it is in."""
        rows = self.tables.schedules.values()
        return min(
            ((row.next_run_at, row.shard) for row in rows if row.next_run_at and row.next_run_at > self.tables.now), default=None
        )

    def approach(self, ahead: float) -> int | None:
        """Until shortly before the next instant that something is due at."""
        due = self.next_due()
        if due is None:
            return None
        left = (due[0] - self.tables.now).total_seconds() - ahead
        if left > 0:
            self.coast(left)
        return due[1]

    # Jobs

    def add(self, rng: Random, rule: Rule, delay: float) -> None:
        self._jobs += 1
        policies = some_policies(rng, self.tables.now, self.pace)
        schedule, first = self._read(rule)
        self.tables.now += delay * SECOND
        self.tables.add_job(self._jobs, schedule, first, policies)
        self.judge.added(self._jobs, rule, policies)
        self.covered["jobs"] += 1

    def _read(self, rule: Rule) -> tuple[Schedule, datetime | None]:
        now = self.tables.now
        schedule = parse_schedule(rule.text, timezone=rule.zone, dst=rule.dst, now=now, anchor=rule.anchor)
        return schedule, schedule.anchor if schedule.kind == "once" else schedule.next_after(now)

    def change(self, rng: Random, number: int, verb: str, delay: float) -> None:
        """A client reads, takes its time, and writes."""
        job, tables = self.tables.jobs[number], self.tables
        if job.schedule_id in tables.held:
            return
        # What was fired up to now was fired for the job as it was.
        self.judge.check()
        tables.now += MOMENT
        self.covered[verb] += 1
        if verb == "reschedule":
            rule = some_rule(rng, self.pace, tables.now)
            (schedule, first), due = self._read(rule), tables.read(job).due()
            # Somebody's lock may be in the way of what was read, for a while.
            tables.now += delay * SECOND
            if schedule != tables.schedules[job.schedule_id].schedule:
                tables.reschedule_job(number, schedule, first, due)
                self.judge.rescheduled(number, rule)
        elif verb == "delete":
            pending = tables.schedules[job.schedule_id].next_run_at
            tables.delete_job(number)
            self.judge.deleted(number, pending)
        elif job.paused_at is None:
            tables.pause_job(number)
            self.judge.paused(number)
        else:
            instants, policy = tables.read(job).since_pause(), rng.choice([None, "SKIP", "RUN_ONCE", "RUN_ALL"])
            tables.now += delay * SECOND
            tables.resume_job(number, instants, policy)
            self.judge.resumed(number)

    # All is well

    def heal(self, *, told: bool = False) -> None:
        """`told`: what the product says about the jobs' past is looked at, too."""
        tables = self.tables
        tables.held.clear()
        for one in self.living:
            self.wake(one)
            one.cut_off, one.deaf, one.skew = False, False, 0.0
        for node in tables.nodes.values():
            if node.lock is not None and not node.lock.connected:  # type: ignore[attr-defined]
                node.lock = None
        if not [one for one in self.living if not one.stopping]:
            self.start()
        # A heartbeat; the leases of those who went without a word; a sweep; and what the sweep has found.
        self.pass_time(SETTINGS.heartbeat + 1)
        self.coast(SETTINGS.lease + 1)
        self.pass_time(2.1)
        for _ in range(3):
            self.coast(20.5)  # in one stride they would seem to have been asleep, and ask for everything anew
        self.pass_time(2.1)
        # To the middle of a second: what is due in it was due at its beginning.
        self.pass_time(1.5 - self.tables.now.microsecond / 1e6)
        self.judge.check()
        self.judge.check_healed(self.processes, told=told)
        self.covered["recoveries"] += 1

    def check_punctual(self) -> None:
        """When all is well, what is due fires in its second."""
        if self.approach(30) is None:
            return
        self.pass_time(3)
        due = self.next_due()
        assert due is not None
        self.pass_time((due[0] - self.tables.now).total_seconds() + 1.1)
        fired = [one for rows in self.tables.firings.values() for one in rows.values() if one.scheduled_at == due[0]]
        assert fired, f"not fired at {due[0]}"
        assert all(one.fired_at - due[0] < 1.1 * SECOND for one in fired), f"late: {fired}"

    def end(self) -> None:
        for one in self.living:
            one.end()
        self.covered["schedules"] += self.tables.last_schedule
        self.covered["days"] += (self.tables.now - self.began).days


def some_policies(rng: Random, now: datetime, pace: str) -> Policies:
    span = LEAPS[pace][1]
    start = now + rng.randint(0, span) * SECOND if rng.random() < 0.1 else None
    end = (start or now) + rng.randint(1, 2 * span) * SECOND if rng.random() < 0.1 else None
    return Policies(
        rng.choice(["SKIP", "RUN_ONCE", "RUN_ALL"]), rng.choice([1, 3, 100, 10_000]), rng.choice([0.0, 1.0, 5.0, 60.0, 3_600.0, 3.0 * DAY]),
        rng.randint(1, 6) if rng.random() < 0.15 else None, start, end,
    )  # fmt: skip
