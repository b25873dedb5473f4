"""When jobs are due, worked out anew.

Shares nothing with the schedules of the product, neither code nor library: it counts, or walks through time step by step
and looks at the local clock as the standard library shows it. What it has no way of telling, it does not offer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

_SECOND = timedelta(seconds=1)
_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Every:
    """An interval, counted from an anchor; the anchor is the first."""

    seconds: int
    anchor: datetime

    def __post_init__(self) -> None:
        if self.seconds < 1 or self.anchor.microsecond:
            raise ValueError("an interval is of whole seconds, from a whole second")

    def text(self) -> str:
        return f"every {self.seconds}s"

    def due(self, first: datetime, last: datetime) -> list[datetime]:
        """Every instant in [first, last)."""
        span = timedelta(seconds=self.seconds)
        # Rounded up: the first multiple that is not before `first`.
        place = max(0, -((self.anchor - first) // span))
        found, at = [], self.anchor.astimezone(UTC) + place * span
        while at < last:
            found.append(at)
            at += span
        return found


@dataclass(frozen=True, slots=True)
class Seconds:
    """These seconds of every minute, by the clock on the wall of a zone."""

    seconds: frozenset[int]
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        _check(self.seconds)

    def text(self) -> str:
        return f"{_field(self.seconds)} * * * * *"

    def due(self, first: datetime, last: datetime) -> list[datetime]:
        """Every instant in [first, last)."""
        zone = ZoneInfo(self.timezone)
        return [at for at in _walk(first, last, _SECOND) if at.astimezone(zone).second in self.seconds]


@dataclass(frozen=True, slots=True)
class Minutes:
    """These minutes of every hour, by the clock on the wall of a zone."""

    minutes: frozenset[int]
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        _check(self.minutes)

    def text(self) -> str:
        return f"{_field(self.minutes)} * * * *"

    def due(self, first: datetime, last: datetime) -> list[datetime]:
        """Every instant in [first, last)."""
        zone = ZoneInfo(self.timezone)
        return [at for at in _walk(first, last, _MINUTE) if at.astimezone(zone).minute in self.minutes]


@dataclass(frozen=True, slots=True)
class Once:
    at: datetime

    def text(self) -> str:
        return self.at.astimezone(UTC).isoformat().replace("+00:00", "Z")

    def due(self, first: datetime, last: datetime) -> list[datetime]:
        """Every instant in [first, last)."""
        return [self.at.astimezone(UTC)] if first <= self.at < last else []


Rule = Every | Seconds | Minutes | Once


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it was added, and from when until when it took part. A job whose rule was changed is two of these."""

    name: str
    task: str
    rule: Rule
    since: datetime
    until: datetime | None = None
    missed_window: str = "RUN_ONCE"
    max_missed: int = 100
    misfire_grace: float = 60.0
    overlap: str = "allow"
    delivery: str = "at_least_once"
    start_at: datetime | None = None
    end_at: datetime | None = None
    max_runs: int | None = None


def instants(job: Job, last: datetime) -> list[datetime]:
    """Every instant before `last` at which the job takes part, however many runs it may have."""
    # One that is a little past when it is added is still due: a single instant has nothing before it.
    begin = job.rule.at if isinstance(job.rule, Once) else job.since
    first = max(one for one in (begin, job.start_at) if one is not None)
    end = min(one for one in (last, job.until, job.end_at) if one is not None)
    return job.rule.due(first, end)


def limit(job: Job, due: Sequence[datetime], left_out: Collection[datetime] = ()) -> list[datetime]:
    """Those before the job has had all of its `max_runs`; what was left out made no run, and does not count."""
    if job.max_runs is None:
        return list(due)
    taken = 0
    for place, at in enumerate(due):
        if at in left_out:
            continue
        if taken == job.max_runs:
            return list(due[:place])
        taken += 1
    return list(due)


def windows(job: Job, first: datetime, last: datetime) -> list[datetime]:
    """What is expected of the job in [first, last), if nothing is left out."""
    return [at for at in limit(job, instants(job, last)) if at >= first]


def _walk(first: datetime, last: datetime, step: timedelta) -> list[datetime]:
    """The whole steps of [first, last), in UTC."""
    begin = first.astimezone(UTC)
    at = begin.replace(microsecond=0) if step == _SECOND else begin.replace(second=0, microsecond=0)
    if at < begin:
        at += step
    found = []
    while at < last:
        found.append(at)
        at += step
    return found


def _check(numbers: frozenset[int]) -> None:
    if not numbers or not numbers <= set(range(60)):
        raise ValueError("numbers from 0 to 59 are needed")


def _field(numbers: frozenset[int]) -> str:
    return "*" if len(numbers) == 60 else ",".join(map(str, sorted(numbers)))
