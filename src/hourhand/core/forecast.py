"""How many runs each second of the next day will bring, from the schedules themselves. Time is an argument.

Schedules that fire alike are added up first: intervals by their length and phase, cron expressions by zone and time of day. What is
left is a few additions for each second of the day, however many jobs there are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import accumulate
from math import ceil

from hourhand.core.schedule import Schedule, cron_days, cron_times, interval_of
from hourhand.core.zones import load_zone, next_change, offset_at

DAY = 86_400
WINDOWS = (10, 30, 60, 120, 300, 600, 900, 1_800, 3_600)
"""Seconds that a suggested flexible window may have."""
_CALM = 10
"""A second is hot when it has this many times what the day has on average,"""
_FEW = 50
"""and more than so many runs."""
Limits = tuple[int, int]
"""From which second on, and before which, a group takes part."""


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs that share a schedule, or an interval's length and phase."""

    kind: str
    expression: str
    timezone: str
    dst: str
    next_at: datetime
    jobs: int
    flexible: float = 0.0
    start_at: datetime | None = None
    """Where they begin or end within the time in question."""
    end_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Hot:
    """A second in which very many runs start."""

    at: datetime
    runs: float
    rigid: int
    """Of these, runs of jobs without a flexible window."""
    window: int
    """A flexible window, in seconds, that would calm it."""
    after: float
    """The most runs in one second of that window, if those jobs had it."""
    schedules: list[tuple[str, int]] = field(default_factory=list)
    """What fires then, in words, and how many jobs that is; the largest first."""


@dataclass(frozen=True, slots=True)
class Forecast:
    start: datetime
    seconds: int
    runs: list[float]
    """For each second."""
    firings: int
    jobs: int
    hot: list[Hot]

    @property
    def mean(self) -> float:
        return sum(self.runs) / self.seconds

    @property
    def peak(self) -> float:
        return max(self.runs, default=0.0)

    def steps(self, width: int) -> list[tuple[datetime, float, float]]:
        """Of each step: when, runs a second on average, and its hottest second."""
        parts = (self.runs[begin : begin + width] for begin in range(0, self.seconds, width))
        return [
            (self.start + timedelta(seconds=place * width), sum(part) / len(part), max(part)) for place, part in enumerate(parts)
        ]


class Forecaster:
    """Takes groups, in any number of portions."""

    def __init__(self, start: datetime, seconds: int = DAY) -> None:
        self.start = start.astimezone(UTC).replace(microsecond=0)
        self.seconds = seconds
        self._end = self.start + timedelta(seconds=seconds)
        self._rigid = [0] * seconds
        self._slope = [0.0] * (seconds + 1)
        self._even: Counter[tuple[float, int, float, Limits]] = Counter()
        self._cron: Counter[tuple[str, str, str, float, Limits]] = Counter()
        self._once: Counter[int] = Counter()
        self._jobs = 0
        self._firings = 0

    def add(self, groups: Iterable[Group]) -> None:
        for one in groups:
            self._jobs += one.jobs
            limits = (
                0 if one.start_at is None else self._place(one.start_at),
                self.seconds if one.end_at is None else self._place(one.end_at),
            )
            if one.kind == "cron":
                self._cron[one.expression, one.timezone, one.dst, one.flexible, limits] += one.jobs
                continue
            place = self._place(one.next_at)
            if one.kind == "every":
                self._even[_interval(one.expression), place, one.flexible, limits] += one.jobs
            elif place < self.seconds:
                self._count(place, one.jobs, one.flexible)
                self._once[place] += one.jobs

    def forecast(self, most: int = 10) -> Forecast:
        for (span, place, flexible, (low, high)), jobs in self._even.items():
            for at in _every(span, place, high):
                if at >= low:
                    self._count(at, jobs, flexible)
        for (expression, timezone, dst, flexible, (low, high)), jobs in self._alike().items():
            for at in self._places(expression, timezone, dst):
                if low <= at < high:
                    self._count(at, jobs, flexible)
        runs = [one + soft for one, soft in zip(self._rigid, accumulate(self._slope), strict=False)]
        return Forecast(self.start, self.seconds, runs, self._firings, self._jobs, self._hot(runs, most))

    def _place(self, at: datetime) -> int:
        return min(self.seconds, max(0, ceil((at - self.start).total_seconds())))

    def _count(self, place: int, jobs: int, flexible: float) -> None:
        self._firings += jobs
        if flexible < 1:
            self._rigid[place] += jobs
            return
        width = min(int(flexible), self.seconds - place)
        self._slope[place] += jobs / int(flexible)
        self._slope[place + width] -= jobs / int(flexible)

    def _alike(self) -> Counter[tuple[str, str, str, float, Limits]]:
        """Expressions that mean the same on the days in question are one."""
        alike: Counter[tuple[str, str, str, float, Limits]] = Counter()
        for (expression, timezone, dst, flexible, limits), jobs in self._cron.items():
            times, days = _halves(expression)
            matching = tuple(day for day in self._days(timezone) if cron_days(days, day))
            if matching:
                alike[times + _spelled(matching, len(self._days(timezone))), timezone, dst, flexible, limits] += jobs
        return alike

    def _days(self, timezone: str) -> tuple[date, ...]:
        return _local_days(timezone, self.start, self._end)

    def _places(self, expression: str, timezone: str, dst: str) -> Iterator[int]:
        """The seconds at which a cron expression fires, from 0 on."""
        zone = load_zone(timezone)
        if next_change(zone, self.start - timedelta(days=1), self._end + timedelta(days=1)) is not None:
            # The clocks change: every instant is worked out.
            one = Schedule("cron", expression, timezone, dst)
            for at in one.firings(self.start - timedelta(seconds=1), self._end - timedelta(seconds=1)):
                yield int((at - self.start).total_seconds())
            return
        times, days = _halves(expression)
        seconds, offset = cron_times(times), int(offset_at(zone, self.start).total_seconds())
        for day in self._days(timezone):
            if cron_days(days, day):
                midnight = int((datetime(day.year, day.month, day.day, tzinfo=UTC) - self.start).total_seconds()) - offset
                low, high = bisect_left(seconds, -midnight), bisect_left(seconds, self.seconds - midnight)
                for second in seconds[low:high]:
                    yield midnight + second

    # Where it is hot

    def _hot(self, runs: list[float], most: int) -> list[Hot]:
        calm = max(float(_FEW), _CALM * sum(runs) / self.seconds)
        hottest = sorted((place for place, value in enumerate(runs) if value > calm), key=lambda place: (-runs[place], place))[
            :most
        ]
        who = self._who(set(hottest)) if hottest else {}
        found = []
        for place in hottest:
            window, after = self._suggest(runs, place, calm)
            at = self.start + timedelta(seconds=place)
            found.append(Hot(at, runs[place], self._rigid[place], window, after, who.get(place, [])))
        return found

    def _suggest(self, runs: list[float], place: int, calm: float) -> tuple[int, float]:
        """The smallest window that calms it, or the largest there is; and what is left then."""
        rigid, window, after = self._rigid[place], 0, runs[place]
        for window in WINDOWS:
            around = runs[place + 1 : place + window]
            after = max([runs[place] - rigid, *around]) + rigid / window
            if after <= max(calm, runs[place] / 10):
                break
        return window, after

    def _who(self, places: set[int]) -> dict[int, list[tuple[str, int]]]:
        """The largest groups that fire at these seconds. Only the largest groups of all are looked at."""
        found: dict[int, list[tuple[str, int]]] = {place: [] for place in places}
        for (expression, timezone, dst, _, (low, high)), jobs in self._cron.most_common(1_000):
            for place in places.intersection(self._places(expression, timezone, dst)):
                if low <= place < high:
                    found[place].append((f"{expression} ({timezone})", jobs))
        for (span, phase, _, (low, high)), jobs in self._even.most_common(1_000):
            for place in places.intersection(_every(span, phase, high)):
                if place >= low:
                    found[place].append((f"every {span:g} s", jobs))
        for place in places:
            if self._once[place]:
                found[place].append(("one-off", self._once[place]))
        return {place: sorted(who, key=lambda one: -one[1])[:5] for place, who in found.items()}


def _every(span: float, first: int, end: int) -> Iterable[int]:
    if span == int(span):
        return range(first, end, int(span))
    return (ceil(first + turn * span) for turn in range(max(0, ceil((end - first) / span))))


@lru_cache(maxsize=4_096)
def _interval(expression: str) -> float:
    return interval_of(Schedule("every", expression)).total_seconds()


@lru_cache(maxsize=1_024)
def _local_days(timezone: str, start: datetime, end: datetime) -> tuple[date, ...]:
    zone = load_zone(timezone)
    first, last = start.astimezone(zone).date(), end.astimezone(zone).date()
    return tuple(first + timedelta(days=ahead) for ahead in range((last - first).days + 1))


def _halves(expression: str) -> tuple[str, str]:
    """The times of day, and the days."""
    fields = expression.rsplit(" ", 3)
    return fields[0], " ".join(fields[1:])


def _spelled(days: tuple[date, ...], of: int) -> str:
    """These days as the last fields of an expression: those of a window are few, and never the same day of two months."""
    if len(days) == of:
        return " * * *"
    return f" {','.join(str(day.day) for day in days)} * *"
