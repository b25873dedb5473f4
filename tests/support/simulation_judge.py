"""The judge of a simulation: what has to hold after every step, and what once everything is well again.

It knows what the users did and when, and each job's own rule. From the tables it takes what was recorded, and nothing else.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from hourhand.core.account import MOMENT, UNEXPLAINED, Account, Facts, Span, Trace
from tests.support.simulation_jobs import Database, Policies
from tests.support.simulation_process import Process
from tests.support.simulation_rules import Rule
from tests.support.simulation_tables import SHARDS, Fired

EVER = datetime(1, 1, 2, tzinfo=UTC)
NO_ANSWERS = {UNEXPLAINED, "due", "unregistered", "unknown", "expected"}


@dataclass(slots=True)
class Part:
    """How a job took part from an instant until another."""

    rule: Rule
    schedule: int
    since: datetime
    paused: bool = False
    until: datetime | None = None
    resumed: bool = False
    """A pause that ended: what it left out was made up for, or decided."""


@dataclass(slots=True)
class KnownJob:
    number: int
    policies: Policies
    parts: list[Part]
    deleted_at: datetime | None = None
    runs: set[datetime] = field(default_factory=set)

    @property
    def paused(self) -> bool:
        return self.parts[-1].paused

    def within(self, instants: Sequence[datetime]) -> list[datetime]:
        start, end = self.policies.start_at, self.policies.end_at
        return [at for at in instants if (start is None or start <= at) and (end is None or at < end)]

    def expected(self, part: Part, now: datetime) -> list[datetime]:
        return self.within(part.rule.between(part.since, now + MOMENT if part.until is None else part.until))


class Judge:
    def __init__(self, tables: Database, covered: Counter[str]) -> None:
        self._tables = tables
        self._covered = covered
        self._rules: dict[int, Rule] = {}
        self._epochs: dict[int, int] = {}
        self._owners: dict[tuple[int, int], int] = {}
        self._fired_until: dict[int, datetime] = {}
        self.jobs: dict[int, KnownJob] = {}
        self.broken = False

    # What users did

    def added(self, number: int, rule: Rule, policies: Policies) -> None:
        self.jobs[number] = KnownJob(number, policies, [])
        self._enters(number, rule, paused=False)

    def rescheduled(self, number: int, rule: Rule) -> None:
        job, now = self.jobs[number], self._tables.now
        job.parts[-1].until = now
        self._enters(number, rule, paused=job.paused)

    def paused(self, number: int) -> None:
        last, now = self.jobs[number].parts[-1], self._tables.now
        last.until = now
        self.jobs[number].parts.append(Part(last.rule, last.schedule, now, paused=True))

    def resumed(self, number: int) -> None:
        last, now = self.jobs[number].parts[-1], self._tables.now
        last.until, last.resumed = now, True
        self.jobs[number].parts.append(Part(last.rule, last.schedule, now))

    def deleted(self, number: int, pending: datetime | None) -> None:
        """What was due and not fired at that moment goes with it."""
        job, now = self.jobs[number], self._tables.now
        job.deleted_at = now
        ended = now if pending is None else min(now, pending)
        for part in job.parts:
            part.until = ended if part.until is None else min(ended, part.until)

    def _enters(self, number: int, rule: Rule, *, paused: bool) -> None:
        schedule, now = self._tables.jobs[number].schedule_id, self._tables.now
        self._rules[schedule] = rule
        single = getattr(rule, "at", None)
        since = now if single is None or paused else min(now, single)
        self.jobs[number].parts.append(Part(rule, schedule, since, paused))

    # After every step

    def check(self) -> None:
        self.broken = True
        for event in self._tables.journal:
            if isinstance(event, Fired):
                self._check_firing(event)
                continue
            number, at = event
            known = self.jobs[number].runs
            assert at not in known, f"job {number} has two runs for {at}"
            assert at <= self._tables.now, f"job {number} runs at {self._tables.now}, before {at}"
            known.add(at)
        self._tables.journal.clear()
        self.broken = False

    def check_processes(self, living: Sequence[Process]) -> None:
        self.broken = True
        for one in living:
            assert not one.loop.failures, one.loop.failures
            assert not one.main.done(), f"process {one.number} ended by itself: {one.main}"
        self.broken = False

    def _check_firing(self, fired: Fired) -> None:
        one, place = fired.firing, (fired.shard, fired.firing.epoch)
        told = f"schedule {one.schedule_id} of shard {fired.shard}, {one.scheduled_at} to {one.until}, fired at {one.fired_at}"
        assert one.until <= one.fired_at, f"early: {told}"
        assert self._epochs.get(fired.shard, 0) <= one.epoch, f"under an epoch that is over: {told}"
        assert self._owners.setdefault(place, one.node) == one.node, f"two owners under one epoch: {told}"
        assert fired.owner == one.node, f"by somebody who does not own the shard: {told}"
        before = self._fired_until.get(one.schedule_id)
        assert before is None or before < one.scheduled_at, f"out of order, after {before}: {told}"
        instants = self._rules[one.schedule_id].between(one.scheduled_at, one.until + MOMENT)
        assert instants, f"never expected: {told}"
        assert (instants[0], instants[-1], len(instants)) == (one.scheduled_at, one.until, one.count), f"other instants: {told}"
        self._epochs[fired.shard], self._fired_until[one.schedule_id] = one.epoch, one.until
        self._covered["firings"] += len(instants)
        self._covered["late firings"] += len(instants) if one.late else 0
        self._check_runs(fired, instants)

    def _check_runs(self, fired: Fired, instants: list[datetime]) -> None:
        schedule, left = fired.firing.schedule_id, dict(fired.runs)
        for number in self._tables.jobs_of[schedule]:
            found = left.pop(number, [])
            expected = self._expected_runs(self.jobs[number], fired, instants, len(found))
            assert found == expected, f"job {number}, {fired.firing}: expected {expected[:5]}, found {found[:5]}"
        for number, runs in left.items():
            # Deleted while the statement ran: it was still there when the statement began.
            gone = self.jobs[number].deleted_at
            assert gone is not None, f"job {number} is not of schedule {schedule}"
            assert max(runs) <= gone, f"job {number} was deleted at {gone} and runs for {runs}"

    def _expected_runs(self, job: KnownJob, fired: Fired, instants: list[datetime], found: int) -> list[datetime]:
        part = job.parts[-1]
        if part.paused:
            part = job.parts[-2] if len(job.parts) > 1 else part
        if part.paused or part.schedule != fired.firing.schedule_id:
            return []
        mine = job.within([at for at in instants if part.since <= at and (part.until is None or at < part.until)])
        policies = job.policies
        if not fired.firing.late:
            patience = timedelta(seconds=max(1.0, policies.misfire_grace))
            assert all(fired.started_at - at <= patience for at in mine), f"in time, by job {job.number}: {fired.firing}"
        else:
            oldest = fired.started_at - timedelta(seconds=policies.misfire_grace)
            missed = [at for at in mine if at < oldest]
            most = {"SKIP": 0, "RUN_ONCE": 1, "RUN_ALL": policies.max_missed}[policies.missed_window]
            mine = missed[max(0, len(missed) - most) :] + mine[len(missed) :]
        return mine if policies.max_runs is None else mine[: policies.max_runs - (len(job.runs) - found)]

    # Once everything is well again

    def check_healed(self, processes: Sequence[Process], *, told: bool) -> None:
        self.broken = True
        tables = self._tables
        late = [row for row in tables.schedules.values() if row.next_run_at is not None and row.next_run_at <= tables.now]
        assert not late, f"still due at {tables.now}: {late[:3]}"
        live = {one.scheduler.node.id: one for one in processes if not one.gone}
        assert not any(one.stopping for one in live.values()), "asked to stop, and does not"
        alive = {number for number, node in tables.nodes.items() if tables.alive(node)}
        assert set(live) == alive, f"processes {sorted(live)} live, and the tables know {sorted(alive)}: {tables.nodes}"
        for shard, row in enumerate(tables.shards):
            assert row.owner in live, f"shard {shard} belongs to {row.owner}, and {sorted(live)} are alive"
            believers = {
                number: one.scheduler.elector.held[shard] for number, one in live.items() if shard in one.scheduler.elector.held
            }
            assert believers == {row.owner: row.epoch}, f"shard {shard} is {row}, and they believe {believers}"
        assert sum(len(one.scheduler.elector.held) for one in live.values()) == SHARDS
        for job in self.jobs.values():
            expected = self._check_outcomes(job)
            # The account is slow; of the jobs that never changed, some will do.
            if told and job.deleted_at is None and (len(job.parts) > 1 or job.number % 4 == 0):
                self._check_account(job, expected)
        self.broken = False

    def _check_outcomes(self, job: KnownJob) -> set[datetime]:
        """Every expected firing has one outcome, and there is no run that was not expected. Returns what was expected."""
        tables = self._tables
        assert Counter(tables.runs[job.number]) == Counter(job.runs), f"job {job.number} has runs that nobody has seen start"
        decided = sorted((one.scheduled_at, one.until) for one in tables.decisions[job.number].values())
        starts = [since for since, _ in decided]
        most = job.policies.max_runs
        # The count of a job goes with the job: one that is deleted as it fires may run once more.
        assert most is None or len(job.runs) <= most + (job.deleted_at is not None), f"job {job.number} has more runs than {most}"
        finished = None if most is None or len(job.runs) < most else sorted(job.runs)[most - 1]
        accounted, paused = set[datetime](), set[datetime]()
        for part in job.parts:
            for at in job.expected(part, tables.now):
                place = bisect_right(starts, at) - 1
                outcomes = (at in job.runs) + (place >= 0 and at <= decided[place][1])
                if part.paused and not part.resumed:
                    assert not outcomes, f"job {job.number} was paused at {at}, and has {outcomes} outcomes"
                    paused.add(at)
                    continue
                # A job that has had all of its runs may have missed some more besides.
                least = 0 if finished is not None and at > finished else 1
                assert least <= outcomes <= 1, f"job {job.number}, {part}: {outcomes} outcomes for {at}"
                accounted.add(at)
        unexpected = job.runs - accounted
        assert not unexpected or job.deleted_at is not None, f"job {job.number} has runs for {sorted(unexpected)[:3]}"
        self._covered["outcomes"] += len(accounted)
        return accounted | paused

    def _check_account(self, job: KnownJob, expected: set[datetime]) -> None:
        """What the product says about its past is what it was."""
        tables, row = self._tables, self._tables.jobs[job.number]
        plan = tables.schedules[row.schedule_id]
        spans = list(tables.spans[job.number])
        for since, until, paused in ((row.active_since, row.paused_at, False), (row.paused_at, None, True)):
            if since is not None:
                spans.append(Span(since, until, plan.id, paused, plan.schedule, row.start_at, row.end_at))
        traces = [Trace(1, at, "ready", None, None, None, None, None, None, None) for at in tables.runs[job.number]]
        firings = [one for schedule in {span.schedule_id for span in spans} for one in sorted(tables.firings[schedule].items())]
        fired, last_at = tables.counters.get(job.number, (0, None))
        account = Account(
            Facts(
                spans, traces, list(tables.decisions[job.number].values()), [one for _, one in firings], tables.now, plan.next_run_at,
                last_at if row.max_runs is not None and fired >= row.max_runs else None, EVER, 1, {}, {},
            )
        )  # fmt: skip
        assert not account.doubles, f"job {job.number}: {account.doubles}"
        lines = [line for line in account.lines(EVER, tables.now + MOMENT) if line.outcome != "dst_gap"]
        unclear = [line for line in lines if line.outcome in NO_ANSWERS]
        assert not unclear, f"job {job.number}: {unclear[:3]}"
        told = {line.scheduled_at for line in lines}
        assert told == expected, f"job {job.number}: {sorted(told ^ expected)[:3]} are told of and not expected, or the reverse"
