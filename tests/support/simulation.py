"""The trigger layer under simulation: years pass in seconds, and anything may happen between any two steps.

Each rule is one thing that happens. Time stands still unless a rule moves it; a process goes on only when a rule lets it, one
step at a time if need be. After each rule the judge looks at what was recorded; at the end all is made well, and it looks
at everything.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from random import Random
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.simulation_jobs import Database
from tests.support.simulation_process import SETTINGS, Process
from tests.support.simulation_rules import PACES, some_rule
from tests.support.simulation_server import FIRINGS, Request
from tests.support.simulation_tables import SECOND
from tests.support.simulation_world import LEAPS, World

STARTS = [
    datetime(2024, 2, 28, 20, tzinfo=UTC),  # before a leap day
    datetime(2026, 3, 28, 23, 50, tzinfo=UTC),  # clocks go forward in Berlin
    datetime(2026, 10, 24, 23, 50, tzinfo=UTC),  # and back
    datetime(2027, 3, 14, 6, 30, tzinfo=UTC),  # New York
    datetime(2025, 11, 2, 4, 45, tzinfo=UTC),
    datetime(2026, 4, 4, 14, 40, tzinfo=UTC),  # Lord Howe, and half a day later Santiago
    datetime(2027, 12, 31, 22, tzinfo=UTC),  # the end of a year, and a leap year to come
]
STATEMENTS = ("survey_shards", "take_shards", "near_schedules", "hinted_schedules", *FIRINGS, *FIRINGS)
SEEDS = st.integers(0, 2**20)
PLACES = st.integers(0, 40)
VERBS = st.sampled_from(["reschedule", "hold", "hold", "delete"])
AHEAD = st.sampled_from([-1.1, -2.0, 0.0, 0.5])
CLOCKS = st.sampled_from([0.0, 0.4, -2.0, 3.0, 40.0, -40.0, 4_000.0, 100_000.0, -100_000.0])
DELAYS = st.sampled_from([0.000_1, 0.3, 2.0, 20.0])


class Simulation(RuleBasedStateMachine):
    tables: ClassVar[type[Database]] = Database
    covered: ClassVar[Counter[str]] = Counter()
    """In all examples together: what there was."""
    world: World
    last_leap: float
    """How far it is from the last step to the end."""

    @initialize(
        pace=st.sampled_from([*PACES, "days"]), start=st.sampled_from(STARTS), nodes=st.integers(1, 4), jobs=st.integers(1, 60),
        seed=SEEDS,
    )  # fmt: skip
    def begin(self, pace: str, start: datetime, nodes: int, jobs: int, seed: int) -> None:
        rng = Random(seed)
        self.world = World(self.tables(start + rng.randint(0, 10**9) * SECOND / 10**6), pace, self.covered)
        for _ in range(nodes):
            self.world.start(rng.choice([0.0, 0.0, 1.5, -30.0]))
        self.world.settle()
        self.add_jobs(jobs, seed, 0.1, False)
        self.last_leap = rng.uniform(0.3, 1)

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.judge.check()
        self.world.judge.check_processes(self.world.living)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            if not self.world.judge.broken:
                if self.world.pace == "days":
                    self.leap(self.last_leap, False)
                self.world.heal(told=True)
                self.world.check_punctual()
                self.holds()
        finally:
            self.world.end()

    def one(self, place: int, *, running: bool | None = None) -> Process | None:
        some = [one for one in self.world.living if running is None or one.running == running]
        return some[place % len(some)] if some else None

    # Users

    @rule(count=st.integers(1, 40), seed=SEEDS, delay=DELAYS, lost=st.booleans())
    def add_jobs(self, count: int, seed: int, delay: float, lost: bool) -> None:
        rng = Random(seed)
        for _ in range(count):
            self.world.add(rng, some_rule(rng, self.world.pace, self.world.tables.now), delay / count)
        if lost:
            self.world.tables.words.clear()
        self.world.speak()

    @rule(place=PLACES, verb=VERBS, seed=SEEDS, delay=DELAYS, lost=st.booleans())
    def change_job(self, place: int, verb: str, seed: int, delay: float, lost: bool) -> None:
        if jobs := list(self.world.tables.jobs):
            self.world.change(Random(seed), jobs[place % len(jobs)], verb, delay)
        if lost:
            self.world.tables.words.clear()
        self.world.speak()

    @rule(place=PLACES)
    def open_transaction(self, place: int) -> None:
        """Somebody changes a job, and does not say yet whether it holds."""
        if rows := list(self.world.tables.schedules):
            self.world.tables.held.add(rows[place % len(rows)])

    @precondition(lambda self: self.world.tables.held)
    @rule(commit=st.booleans())
    def close_transactions(self, commit: bool) -> None:
        for schedule in self.world.tables.held:
            if commit:
                self.world.tables.bump(schedule)
        self.world.tables.held.clear()

    @rule()
    def collect_schedules(self) -> None:
        self.world.tables.collect_schedules()

    @rule(ahead=st.floats(-5, 5))
    def mislead(self, ahead: float) -> None:
        """Words that are wrong: schedules that are not due are said to be."""
        now = self.world.tables.now.timestamp()
        self.world.tables.words += [f"s:{row.shard}:{row.id}:{now + ahead}" for row in self.world.tables.schedules.values()]
        self.world.speak()

    # Processes

    @precondition(lambda self: len(self.world.living) < 5)
    @rule(skew=CLOCKS)
    def join(self, skew: float) -> None:
        self.world.start(skew)

    @rule(place=PLACES, seed=SEEDS)
    def kill(self, place: int, seed: int) -> None:
        if (one := self.one(place)) is not None:
            one.kill(Random(seed))
            self.covered["deaths"] += 1

    @rule(place=PLACES)
    def ask_to_stop(self, place: int) -> None:
        if (one := self.one(place, running=True)) is not None and not one.stopping and one.scheduler.started.is_set():
            one.ask_to_stop()
            self.covered["stops"] += 1

    @rule(place=PLACES)
    def pause(self, place: int) -> None:
        if (one := self.one(place, running=True)) is not None:
            one.running = False
            self.covered["pauses"] += 1

    @rule(seed=SEEDS, statement=st.sampled_from(STATEMENTS), begun=st.booleans(), ahead=AHEAD, replaced=st.booleans())
    def pause_at(self, seed: int, statement: str, begun: bool, ahead: float, replaced: bool) -> None:
        """The owner of what is due next falls asleep with this very statement under way, perhaps until others have its shards."""
        if (request := self._about_to(seed, (statement,), ahead)) is not None:
            if begun and statement in FIRINGS and request.begun is None:
                self.world.server.serve(request)
            request.process.running = False
            self.covered["pauses"] += 1
            self.covered["pauses with a statement under way"] += 1
            if replaced:
                self.world.coast(SETTINGS.lease + 1)

    @rule(seed=SEEDS, verb=VERBS, delay=DELAYS, asleep=st.booleans(), ahead=AHEAD)
    def change_job_as_it_fires(self, seed: int, verb: str, delay: float, asleep: bool, ahead: float) -> None:
        """Its firing has begun, and has read the job as it was."""
        if (request := self._about_to(seed, FIRINGS, ahead)) is None:
            return
        if request.begun is None:
            self.world.server.serve(request)
        assert request.begun is not None
        rng = Random(seed)
        jobs = [job.id for some in request.begun.jobs.values() for job in some if job.id in self.world.tables.jobs]
        if jobs:
            self.world.change(rng, rng.choice(jobs), verb, delay)
            self.covered["changes while firing"] += 1
        request.process.running = not asleep

    def _about_to(self, seed: int, statements: tuple[str, ...], ahead: float) -> Request | None:
        """The owner of what is due next goes on until it has asked for one of these."""
        shard = self.world.approach(ahead)
        one = None if shard is None else self.world.owner_of(shard)
        rng = Random(seed)
        for _ in range(300 if one is not None and one.healthy else 0):
            assert one is not None
            if found := [request for request in one.requests if request.statement in statements]:
                return found[0]
            if not one.step(rng.randrange):
                self.world.tables.now += 0.4 * SECOND
            self.world.speak()
        return None

    @rule(place=PLACES)
    def wake(self, place: int) -> None:
        if (one := self.one(place, running=False)) is not None:
            self.world.wake(one)

    @rule(place=PLACES, noticed=st.booleans(), seed=SEEDS)
    def cut_off(self, place: int, noticed: bool, seed: int) -> None:
        """Some of what was under way is done all the same, and nobody hears the answer."""
        if (one := self.one(place)) is not None and not one.cut_off:
            rng = Random(seed)
            for request in list(one.requests):
                if request in one.requests and rng.random() < 0.5:
                    self.world.server.perform(request, answered=False)
            one.cut(noticed=noticed)
            self.covered["partitions"] += 1

    @rule(place=PLACES)
    def reconnect(self, place: int) -> None:
        if (one := self.one(place)) is not None:
            one.cut_off = False

    @rule(place=PLACES)
    def lose_answers(self, place: int) -> None:
        if (one := self.one(place)) is not None and not one.cut_off:
            for request in list(one.requests):
                if request in one.requests:
                    self.world.server.perform(request, answered=False)
                    self.covered["lost answers"] += 1

    @rule(place=PLACES)
    def serve(self, place: int) -> None:
        """The database goes on with what it was asked for, whatever has become of who asked."""
        if (one := self.one(place)) is not None and not one.cut_off:
            for request in list(one.requests):
                if request in one.requests:
                    self.world.server.serve(request)
            self.world.speak()

    @rule(place=PLACES, skew=CLOCKS)
    def set_clock(self, place: int, skew: float) -> None:
        if (one := self.one(place)) is not None:
            one.skew = skew
            self.covered["wrong clocks"] += 1

    @rule(place=PLACES)
    def deafen(self, place: int) -> None:
        if (one := self.one(place)) is not None:
            one.deaf = True

    @rule(place=PLACES)
    def declare_dead(self, place: int) -> None:
        nodes = list(self.world.tables.nodes)
        if nodes and self.world.tables.declare_dead(nodes[place % len(nodes)]):
            self.covered["declared dead"] += 1

    @rule(place=PLACES, steps=st.integers(1, 80), seed=SEEDS)
    def proceed(self, place: int, steps: int, seed: int) -> None:
        """One of them goes on by so many steps, in any order that its tasks and statements allow."""
        if (one := self.one(place, running=True)) is not None:
            rng = Random(seed)
            for _ in range(steps):
                if one.gone or not one.step(rng.randrange):
                    break
                self.world.speak()

    # Time

    @rule(milliseconds=st.integers(1, 2_500))
    def tick(self, milliseconds: int) -> None:
        self.world.tables.now += milliseconds * SECOND / 1_000

    @rule(seconds=st.floats(0.5, 25))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(seconds=st.sampled_from([14.0, 16.0, 61.0, 300.0]))
    def coast(self, seconds: float) -> None:
        self.world.coast(seconds)

    @rule(ahead=st.sampled_from([300.0, 5.0, 0.000_1, 0.0, -0.2, -1.1]))
    def approach(self, ahead: float) -> None:
        self.world.approach(ahead)

    @rule(share=st.floats(0, 1), then=st.booleans())
    def leap(self, share: float, then: bool) -> None:
        """A machine that was suspended, a database that was away, or all schedulers that were."""
        least, most = LEAPS[self.world.pace]
        self.world.tables.now += int(least + share**2 * (most - least)) * SECOND
        if then:
            self.world.settle()

    @rule()
    def settle(self) -> None:
        self.world.settle()

    @rule(place=PLACES)
    def heal(self, place: int) -> None:
        if place < 8:
            self.world.heal()
            self.world.check_punctual()
