"""When jobs are expected: rules that know nothing of cron libraries, and the texts a user would write for them.

A clock is walked through day by day, and minute by minute on a day on which it changes. What it shows between two changes
is plain; a local time that it shows twice counts the first time, one that it jumps over counts at the jump.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from random import Random

from hourhand.core.zones import load_zone

SECOND, MINUTE, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)
ZONES = (
    "UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Asia/Kolkata", "Africa/Casablanca",
    "America/St_Johns",
)  # fmt: skip
PACES = ("seconds", "minutes", "days")
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


@lru_cache(maxsize=4096)
def changes(zone: str, year: int) -> tuple[datetime, ...]:
    """Where the offset changes, found by looking."""
    clock, found = load_zone(zone), []
    day = datetime(year, 1, 1, tzinfo=UTC)
    while day.year == year:
        if day.astimezone(clock).utcoffset() != (day + DAY).astimezone(clock).utcoffset():
            minutes = [day + n * MINUTE for n in range(1, 1441)]
            found += [at for at in minutes if at.astimezone(clock).utcoffset() != (at - MINUTE).astimezone(clock).utcoffset()]
        day += DAY
    return tuple(found)


def stretches(zone: str, since: datetime, until: datetime) -> Iterator[tuple[datetime, datetime, timedelta]]:
    """From when until when the clock was off from UTC by how much."""
    edges = [at for year in range(since.year, until.year + 1) for at in changes(zone, year) if since < at < until]
    for start, end in zip([since, *edges], [*edges, until], strict=True):
        yield start, end, start.astimezone(load_zone(zone)).utcoffset() or timedelta(0)


@dataclass(frozen=True, slots=True)
class Once:
    text: str
    at: datetime
    zone: str = "UTC"
    dst: str = "shift"
    anchor: datetime | None = None

    def between(self, since: datetime, until: datetime) -> list[datetime]:
        """Every instant in [since, until)."""
        return [self.at] if since <= self.at < until else []


@dataclass(frozen=True, slots=True)
class Every:
    text: str
    seconds: int
    anchor: datetime
    zone: str = "UTC"
    dst: str = "shift"

    def between(self, since: datetime, until: datetime) -> list[datetime]:
        step = self.seconds * SECOND
        found, at = [], self.anchor + max(0, (since - self.anchor) // step - 1) * step
        while at < until:
            if at >= since:
                found.append(at)
            at += step
        return found


@dataclass(frozen=True, slots=True)
class Cron:
    text: str
    zone: str
    dst: str
    fixed: bool
    """Neither minute nor hour is a wildcard: a time of day, and not a rhythm."""
    times: tuple[timedelta, ...] = field(repr=False)
    """Of the day, in order."""
    months: frozenset[int]
    days: frozenset[int] | None
    """Of the month; 0 is the last one. None: any."""
    weekdays: frozenset[tuple[int, int]] | None
    """Of the week, from Sunday, and the how many-th in its month, or 0 for each."""
    anchor: datetime | None = None

    def between(self, since: datetime, until: datetime) -> list[datetime]:
        found: set[datetime] = set()
        furthest: datetime | None = None
        for start, end, offset in stretches(self.zone, since - 2 * DAY, until + 2 * DAY):
            low, high = (start + offset).replace(tzinfo=None), (end + offset).replace(tzinfo=None)
            shown = low
            if self.fixed and furthest is not None:
                if self.dst == "shift" and furthest < low and any(self._shown(furthest, low)):
                    found.add(start)
                shown = max(low, furthest)
            shown = max(shown, (since + offset).replace(tzinfo=None))
            ended = min(high, (until + offset).replace(tzinfo=None))
            found.update(local.replace(tzinfo=UTC) - offset for local in self._shown(shown, ended))
            furthest = high if furthest is None else max(furthest, high)
        return sorted(at for at in found if since <= at < until)

    def _shown(self, low: datetime, high: datetime) -> Iterator[datetime]:
        day = low.date()
        while day <= high.date():
            if self._day(day):
                midnight = datetime(day.year, day.month, day.day)
                first, last = bisect_left(self.times, low - midnight), bisect_left(self.times, high - midnight)
                for time in self.times[first:last]:
                    yield midnight + time
            day += DAY

    def _day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_month = self.days is not None and (day.day in self.days or (0 in self.days and (day + DAY).day == 1))
        weekday, place = day.isoweekday() % 7, (day.day + 6) // 7
        by_week = self.weekdays is not None and bool({(weekday, 0), (weekday, place)} & self.weekdays)
        return by_month or by_week or (self.days is None and self.weekdays is None)


Rule = Once | Every | Cron


def some_rule(rng: Random, pace: str, now: datetime) -> Rule:
    """One of any kind, that fires about as often as its pace says."""
    kind = rng.random()
    whole = now.replace(microsecond=0)
    if kind < 0.15:
        span = {"seconds": 240, "minutes": 36_000, "days": 100 * 86_400}[pace]
        at = whole + (5 + int(rng.random() ** 2 * span)) * SECOND
        return once(at.replace(second=0) if rng.random() < 0.3 and at.replace(second=0) > whole else at)
    if kind < 0.35:
        seconds = {
            "seconds": rng.randint(1, 90), "minutes": rng.randint(4, 400) * 60, "days": rng.randint(20, 500) * 3_600,
        }[pace]  # fmt: skip
        anchor = whole + rng.randint(-5 * seconds, 2 * seconds) * SECOND
        return Every(f"every {seconds}s", seconds, anchor)
    return some_cron(rng, pace)


def once(at: datetime) -> Once:
    return Once(at.isoformat().replace("+00:00", "Z"), at)


def some_cron(rng: Random, pace: str) -> Cron:
    second, minute, hour, day, month, weekday = "0", "*", "*", "*", "*", "*"
    seconds, minutes, hours, months = [0], list(range(60)), list(range(24)), list(range(1, 13))
    days: frozenset[int] | None = None
    weekdays: frozenset[tuple[int, int]] | None = None
    if pace == "seconds":
        second, seconds = _field(rng, 60, 3)
        if rng.random() < 0.3:
            minute, minutes = _field(rng, 60, 20)
    elif pace == "minutes":
        minute, minutes = _field(rng, 60, 4)
        if rng.random() < 0.6:
            hour, hours = _field(rng, 24, 2)
    else:
        chosen = sorted(rng.sample([0, 15, 30, 45, rng.randint(0, 59)], rng.choice([1, 1, 2])))
        minute, minutes = ",".join(map(str, chosen)), chosen
        chosen = sorted({rng.choice([0, 1, 2, 2, 3, rng.randint(0, 23)]) for _ in range(rng.choice([1, 1, 2]))})
        hour, hours = ",".join(map(str, chosen)), chosen
        day, days, weekday, weekdays = _days(rng)
        if rng.random() < 0.15:
            months = sorted(rng.sample(months, rng.randint(2, 6)))
            month = ",".join(map(str, months))
        elif rng.random() < 0.05:
            day, days, month, months, weekday, weekdays = "29", frozenset({29}), "2", [2], "*", None
    times = times_of_day(tuple(hours), tuple(minutes), tuple(seconds))
    fields = [minute, hour, day, month, weekday]
    text = " ".join([second, *fields] if pace == "seconds" else fields)
    fixed = not minute.startswith("*") and not hour.startswith("*")
    return Cron(text, rng.choice(ZONES), rng.choice(["shift", "skip"]), fixed, times, frozenset(months), days, weekdays)


@lru_cache
def times_of_day(hours: tuple[int, ...], minutes: tuple[int, ...], seconds: tuple[int, ...]) -> tuple[timedelta, ...]:
    return tuple(
        timedelta(hours=hour, minutes=minute, seconds=second) for hour in hours for minute in minutes for second in seconds
    )


def _field(rng: Random, size: int, least: int) -> tuple[str, list[int]]:
    """A rhythm, a range or a list."""
    kind = rng.random()
    if kind < 0.4:
        step = rng.choice([one for one in (2, 3, 5, 7, 10, 15, 20, 30) if least <= one < size])
        return f"*/{step}", list(range(0, size, step))
    if kind < 0.6:
        first = rng.randrange(0, 4 if size == 24 else size - 4)
        return f"{first}-{first + 2}", list(range(first, first + 3))
    chosen = sorted(rng.sample(range(4 if size == 24 and kind < 0.8 else size), rng.randint(1, 3)))
    return ",".join(map(str, chosen)), chosen


def _days(rng: Random) -> tuple[str, frozenset[int] | None, str, frozenset[tuple[int, int]] | None]:
    kind = rng.random()
    if kind < 0.4:
        return "*", None, "*", None
    if kind < 0.5:
        return "L", frozenset({0}), "*", None
    if kind < 0.6:
        weekday, place = rng.randint(0, 6), rng.randint(1, 4)
        return "*", None, f"{WEEKDAYS[weekday]}#{place}", frozenset({(weekday, place)})
    chosen = sorted(rng.sample(range(1, 32), rng.randint(1, 3)))
    some = sorted(rng.sample(range(7), rng.randint(1, 5)))
    days = ",".join(map(str, chosen)), frozenset(chosen)
    weekdays = ",".join(WEEKDAYS[one] for one in some), frozenset((one, 0) for one in some)
    if kind < 0.7:
        return *days, *weekdays
    return (*days, "*", None) if kind < 0.85 else ("*", None, *weekdays)
