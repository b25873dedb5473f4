"""What users do to jobs, as the SQL functions do it: add, change, pause, resume, delete, and collecting what is left over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hourhand.core.account import Span
from hourhand.core.schedule import Schedule
from hourhand.surfaces.stored import StoredJob
from tests.support.simulation_tables import JobRow, ScheduleRow, Tables

SOON = timedelta(seconds=3)


@dataclass(frozen=True, slots=True)
class Policies:
    missed_window: str
    max_missed: int
    misfire_grace: float
    max_runs: int | None = None
    start_at: datetime | None = None
    end_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class StoredPart:
    """As much of a job as a client has to know about its past. What it makes of it is the client's own code."""

    definition: ScheduleRow
    next_run_at: datetime | None
    paused_at: datetime | None
    present: datetime

    def due(self) -> list[datetime]:
        return StoredJob.due(self)  # type: ignore[arg-type]

    def firings_since(self, instant: datetime) -> list[datetime]:
        return StoredJob.firings_since(self, instant)  # type: ignore[arg-type]

    def since_pause(self) -> list[datetime]:
        return self.firings_since(min(one for one in (self.paused_at, self.next_run_at) if one is not None))


class Database(Tables):
    """The tables, and the verbs on jobs. Each verb is what one transaction does."""

    # What a client reads before it writes

    def read(self, job: JobRow) -> StoredPart:
        row = self.schedules[job.schedule_id]
        return StoredPart(row, row.next_run_at, job.paused_at, self.now)

    # What it writes

    def add_job(self, number: int, schedule: Schedule, first: datetime | None, policies: Policies) -> JobRow:
        job = JobRow(
            number, 0, self.now, policies.missed_window, policies.max_missed, policies.misfire_grace, policies.max_runs, None,
            policies.start_at, policies.end_at,
        )  # fmt: skip
        return self._join(job, schedule, first)

    def reschedule_job(self, number: int, schedule: Schedule, first: datetime | None, due: Sequence[datetime]) -> JobRow:
        """Due, not fired yet, and its schedule is about to lose this job: the job has it now."""
        old = self.jobs[number]
        row = self.schedules[old.schedule_id]
        if row.schedule == schedule:
            return old
        self.bump(row.id)
        pending = row.next_run_at
        boundary = max(one for one in (self.now, old.active_since, old.paused_at) if one is not None)
        if pending is not None and pending <= boundary:
            mine = sorted({at for at in [*due, pending] if pending <= at <= boundary and old.takes_part(at)})
            for at in self.make_up(old, mine, old.missed_window, old.misfire_grace, self.now):
                self.fire_one(old, at)
        self._close_span(old, row.schedule, boundary)
        self.loose.append(row.id)
        del self.jobs_of[row.id][number]
        paused_at = None if old.paused_at is None else boundary
        return self._join(replace(old, active_since=boundary, paused_at=paused_at), schedule, first)

    def pause_job(self, number: int) -> JobRow:
        old = self.jobs[number]
        self.bump(old.schedule_id)
        return self._put(replace(old, paused_at=max(self.now, old.active_since)))

    def resume_job(self, number: int, instants: Sequence[datetime], policy: str | None) -> JobRow:
        old = self.jobs[number]
        assert old.paused_at is not None
        row = self.schedules[old.schedule_id]
        self.bump(row.id)
        boundary = max(self.now, old.paused_at)
        self._close_span(old, row.schedule, boundary)
        fresh = self._put(replace(old, paused_at=None, active_since=boundary))
        mine = [at for at in instants if at < boundary and replace(old, paused_at=None).takes_part(at)]
        pending = row.next_run_at
        before = [at for at in mine if pending is not None and pending <= at < old.paused_at]
        during = [at for at in mine if at >= old.paused_at]
        for at in self.make_up(old, before, old.missed_window, old.misfire_grace, self.now):
            self.fire_one(old, at)
        for at in self.make_up(old, during, policy or old.missed_window, 0, self.now):
            self.fire_one(old, at)
        self._tell(fresh)
        return fresh

    def delete_job(self, number: int) -> None:
        old = self.jobs.pop(number)
        del self.jobs_of[old.schedule_id][number]
        self.counters.pop(number, None)
        self.loose.append(old.schedule_id)

    def collect_schedules(self) -> None:
        for number in set(self.loose):
            if number in self.schedules and number not in self.held and not self.jobs_of[number]:
                row = self.schedules.pop(number)
                del self.identities[row.shard, row.schedule]
        self.loose.clear()

    def bump(self, schedule: int) -> None:
        """How a job takes part has changed: who planned a firing before, plans it again."""
        self.schedules[schedule].revision += 1

    def _join(self, job: JobRow, schedule: Schedule, first: datetime | None) -> JobRow:
        row = self._schedule(job.shard, schedule, first)
        since = job.active_since
        if schedule.kind == "once" and job.paused_at is None:
            assert schedule.anchor is not None
            since = min(since, schedule.anchor)
        fresh = self._put(replace(job, schedule_id=row.id, active_since=since))
        if schedule.kind == "once" and schedule.anchor is not None and schedule.anchor < self.now + SOON:
            # It may be fired at this very moment, without this job: then the job comes too late for it and starts by itself.
            self.bump(row.id)
            if row.next_run_at is None and fresh.paused_at is None:
                self.fire_one(fresh, schedule.anchor)
        self._tell(fresh)
        return fresh

    def _schedule(self, shard: int, schedule: Schedule, first: datetime | None) -> ScheduleRow:
        """Made on first use, and shared by all who want the same."""
        if (number := self.identities.get((shard, schedule))) is None:
            number = self.identities[shard, schedule] = self.last_schedule = self.last_schedule + 1
            self.schedules[number] = ScheduleRow(number, shard, schedule, first)
        return self.schedules[number]

    def _put(self, job: JobRow) -> JobRow:
        self.jobs[job.id] = self.jobs_of[job.schedule_id][job.id] = job
        return job

    def _close_span(self, old: JobRow, schedule: Schedule, boundary: datetime) -> None:
        ended = boundary if old.paused_at is None else old.paused_at
        parts = [(old.active_since, ended, False), (ended, boundary, True)]
        for since, until, paused in parts:
            if since < until:
                self.spans[old.id].append(Span(since, until, old.schedule_id, paused, schedule, old.start_at, old.end_at))

    def _tell(self, job: JobRow) -> None:
        row = self.schedules[job.schedule_id]
        if row.next_run_at is not None:
            self.words.append(f"s:{row.shard}:{row.id}:{row.next_run_at.timestamp()}")
