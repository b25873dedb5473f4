"""When a job fires: text in, instants out. Time is an argument.

Three kinds: cron (in a time zone), an interval from an anchor, a single instant. The next firing is
always computed from the text, the zone and the instant after which it is wanted; nothing is remembered.

Clock changes: a fixed local time (neither minute nor hour starts with `*`) that falls into a gap fires at
the end of the gap (`shift`) or not at all (`skip`); one that comes twice fires the first time. Schedules
with a wildcard minute or hour follow real time: they fire at every instant whose local time matches.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import islice

from cronsim import CronSim, CronSimError

from hourhand.core.errors import InvalidSchedule
from hourhand.core.zones import load_zone, next_change, offset_at

DST = ("shift", "skip")
_NAMED = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EVERY = re.compile(r"@?every\s+(.+)", re.IGNORECASE)
_IN = re.compile(r"in\s+(.+)", re.IGNORECASE)
_SPAN = re.compile(
    r"(\d+(?:\.\d+)?)\s*(milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d|weeks?|w)", re.IGNORECASE
)
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_SHORTEST = timedelta(seconds=1)
_LONGEST = timedelta(days=3_660)
_FOREVER = datetime(9000, 1, 1, tzinfo=UTC)
_PLAIN = re.compile(r"[\d\s*/,-]+")
"""Nothing but numbers, steps, ranges and lists: every cron has these."""
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_NEAR = timedelta(hours=26)
"""Further than any clock change has ever moved local time, date line included."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule in its canonical form: what is stored, and what two jobs must share to fire together."""

    kind: str
    """`cron`, `every` or `once`."""
    expression: str
    timezone: str = "UTC"
    dst: str = "shift"
    anchor: datetime | None = None
    """Of an interval: the instant from which it is counted. Of a single firing: that instant."""

    def next_after(self, instant: datetime) -> datetime | None:
        """The first firing after this instant, in UTC; None if there is none."""
        if self.kind == "once":
            return self.anchor if self.anchor is not None and self.anchor > instant else None
        if self.kind == "every":
            return _next_interval(self, instant)
        return _next_cron(self.expression, self.timezone, self.dst, instant)

    def firings(self, after: datetime, until: datetime | None = None) -> Iterator[datetime]:
        """Every firing in (after, until], in order."""
        at = self.next_after(after)
        while at is not None and (until is None or at <= until):
            yield at
            at = self.next_after(at)

    def in_words(self) -> str:
        if self.kind == "once":
            assert self.anchor is not None
            return f"Once, at {self.anchor.astimezone(load_zone(self.timezone)):%Y-%m-%d %H:%M:%S %Z}"
        if self.kind == "every":
            assert self.anchor is not None
            return f"Every {_span_in_words(interval_of(self))}, counted from {self.anchor:%Y-%m-%d %H:%M:%S} UTC"
        return f"{_parsed(self.expression).explain()} ({self.timezone})"


def parse_schedule(
    text: str, *, timezone: str = "UTC", dst: str = "shift", now: datetime, anchor: datetime | None = None, grace: float = 60.0
) -> Schedule:
    """A schedule from what a person wrote, or an error that says what is wrong with it."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidSchedule("a schedule is needed: a cron expression, 'every 90s', or an instant like 2027-01-01T09:00:00Z")
    if dst not in DST:
        raise InvalidSchedule(f"dst must be shift or skip, not {dst!r}")
    load_zone(timezone)
    words = " ".join(text.split())
    if len(words) > 500:
        raise InvalidSchedule("a schedule of more than 500 characters is not one")
    if match := _EVERY.fullmatch(words):
        span = parse_span(match[1])
        if not _SHORTEST <= span <= _LONGEST:
            raise InvalidSchedule(f"an interval must be from one second to ten years, not {match[1]!r}")
        return Schedule(
            "every",
            f"every {_number(span.total_seconds())}s",
            "UTC",
            "shift",
            _aware(anchor or now, "anchor").replace(microsecond=0),
        )
    if match := _IN.fullmatch(words):
        return Schedule("once", "once", "UTC", "shift", now + parse_span(match[1]))
    if re.match(r"\d{4}-\d\d|\d{8}T", words):
        return _parse_instant(words, now, grace)
    schedule = _parse_cron(words, timezone, dst)
    if schedule.next_after(now) is None:
        raise InvalidSchedule(f"{text!r} can never fire: there is no such date")
    return schedule


def parse_span(text: str) -> timedelta:
    """`90s`, `15m`, `1h30m`, `2 days`."""
    parts, rest = _SPAN.findall(text), _SPAN.sub("", text).strip(" ,")
    if not parts or rest:
        raise InvalidSchedule(f"{text!r} is not a duration; write 90s, 15m, 2h, 1h30m or 7d")
    total = 0.0
    for number, unit in parts:
        milli = unit.lower().startswith(("ms", "milli"))
        total += float(number) * (0.001 if milli else _UNITS[unit[0].lower()])
    if total > 10**10:
        raise InvalidSchedule(f"{text!r} is too long")
    return timedelta(seconds=total)


def _number(value: float) -> str:
    """Without an exponent, and without a point where none is needed."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def latest_firings(schedule: Schedule, after: datetime, until: datetime, most: int = 10_000) -> list[datetime]:
    """The firings in (after, until]; of very many, about the last `most`, without going through all of them."""
    found = list(islice(schedule.firings(after, until), most + 1))
    if len(found) <= most:
        return found
    # What took this long at the start takes about as long at the end; if nothing is there, more.
    stretch, latest = found[-1] - after, list[datetime]()
    while not latest:
        at = max(found[0], until - stretch)
        while chunk := list(islice(schedule.firings(at, until), most)):
            latest, at = [*latest, *chunk][-most:], chunk[-1]
        stretch *= 4
    return latest


def interval_of(schedule: Schedule) -> timedelta:
    return parse_span(schedule.expression.removeprefix("every "))


def _parse_instant(text: str, now: datetime, grace: float) -> Schedule:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidSchedule(f"{text!r} looks like an instant but is not ISO 8601; write 2027-01-01T09:00:00+01:00") from None
    if instant.tzinfo is None:
        raise InvalidSchedule(
            f"{text!r} does not say which instant it means: add an offset (2027-01-01T09:00:00+01:00) or Z for UTC"
        )
    try:
        instant = instant.astimezone(UTC)
    except OverflowError:
        raise InvalidSchedule(f"{text} is too far from now") from None
    if instant < now - timedelta(seconds=grace):
        raise InvalidSchedule(f"{text} is past, and by more than the grace of {grace:g} s: it would never fire")
    return Schedule("once", "once", "UTC", "shift", instant)


@lru_cache(maxsize=16_384)
def _parse_cron(text: str, timezone: str, dst: str) -> Schedule:
    expression = _NAMED.get(text.lower(), text)
    if expression.startswith("@"):
        raise InvalidSchedule(f"{text!r} is not known; there are {', '.join(_NAMED)} and @every 90s")
    fields = expression.split()
    _refuse_dialects(text, fields)
    try:
        _fields(canonical := " ".join(fields).upper())
    except CronSimError as error:
        if _reads([*fields[:-2], "*", fields[-1]]) and _reads([*fields[:-3], "*", *fields[-2:]]):
            raise InvalidSchedule(f"{text!r} can never fire: there is no such date") from None
        raise InvalidSchedule(f"{text!r} is not a cron expression: {str(error).lower()}") from None
    return Schedule("cron", canonical, timezone, dst)


def _reads(fields: list[str]) -> bool:
    """Whether this is in order: with any month, every day exists."""
    try:
        _parsed(" ".join(fields))
    except CronSimError:
        return False
    return True


def _refuse_dialects(text: str, fields: list[str]) -> None:
    """What other crons have and this one has not, by name."""
    if len(fields) == 7:
        raise InvalidSchedule(
            f"{text!r} has seven fields: a year field, as Quartz has it, is not supported; use start_at and end_at"
        )
    if "=" in fields[0]:
        raise InvalidSchedule(f"{text!r}: the time zone is not part of the expression; give it as timezone")
    if len(fields) not in (5, 6):
        raise InvalidSchedule(
            f"{text!r} has {len(fields)} field{'s' * (len(fields) != 1)}; cron has five (minute hour day month weekday), or six with seconds first"
        )
    if _PLAIN.fullmatch(text):
        return
    day = fields[-3].upper()
    if re.search(r"\d+W", day) or re.fullmatch(r"W\d+", day):
        raise InvalidSchedule(f"{text!r}: nW (the weekday nearest to a day) is not supported; LW (the last weekday) is")
    if re.search(r"L-\d", day):
        raise InvalidSchedule(f"{text!r}: L-n (days before the last) is not supported; L (the last day) is")
    for field in fields:
        if "?" in field:
            raise InvalidSchedule(f"{text!r}: '?' belongs to Quartz; write * instead")
        if re.search(r"(^|,)H", field.upper()):
            raise InvalidSchedule(f"{text!r}: H (a hashed minute) belongs to Jenkins; use a flexible window instead")
        if "~" in field:
            raise InvalidSchedule(f"{text!r}: '~' (a random value) is not supported; use a flexible window instead")


@lru_cache(maxsize=65_536)
def _parsed(expression: str) -> CronSim:
    return CronSim(expression, datetime(2000, 1, 1))


@dataclass(frozen=True, slots=True)
class _Fields:
    """An expression as cronsim has read it, sorted for looking up."""

    hours: tuple[int, ...]
    minutes: tuple[int, ...]
    seconds: tuple[int, ...]
    months: frozenset[int]
    match_day: Callable[[date], bool]

    def time_from(self, hour: int, minute: int, second: int) -> tuple[int, int, int] | None:
        """The first matching time of day, this one included."""
        place = bisect_left(self.hours, hour)
        if place < len(self.hours) and self.hours[place] == hour:
            inner = bisect_left(self.minutes, minute)
            if inner < len(self.minutes) and self.minutes[inner] == minute:
                last = bisect_left(self.seconds, second)
                if last < len(self.seconds):
                    return hour, minute, self.seconds[last]
                inner += 1
            if inner < len(self.minutes):
                return hour, self.minutes[inner], self.seconds[0]
            place += 1
        return (self.hours[place], self.minutes[0], self.seconds[0]) if place < len(self.hours) else None


@lru_cache(maxsize=65_536)
def _fields(expression: str) -> _Fields:
    """Put together from fields that were read before: there are millions of expressions, and few fields that they are made of."""
    *times, day, month, weekday = expression.split()
    seconds = _values("seconds", times[0]) if len(times) == 3 else (0,)
    minutes, hours = _values("minutes", times[-2]), _values("hours", times[-1])
    days = _parsed(f"0 0 {day} {month} {weekday}")
    return _Fields(hours, minutes, seconds, frozenset(days.months), days.match_day)


@lru_cache(maxsize=16_384)
def _values(unit: str, field: str) -> tuple[int, ...]:
    parsed = _parsed({"hours": "0 {} * * *", "minutes": "{} 0 * * *", "seconds": "{} 0 0 * * *"}[unit].format(field))
    return tuple(sorted(getattr(parsed, unit)))


@lru_cache(maxsize=65_536)
def cron_times(times: str) -> tuple[int, ...]:
    """The seconds of a day at which the first fields of an expression match (minute and hour, perhaps with seconds), in order."""
    one = _fields(f"{times} * * *")
    return tuple(hour * 3_600 + minute * 60 + second for hour in one.hours for minute in one.minutes for second in one.seconds)


@lru_cache(maxsize=65_536)
def cron_days(days: str, day: date) -> bool:
    """Whether the last three fields of an expression match a day."""
    one = _fields(f"0 0 {days}")
    return day.month in one.months and one.match_day(day)


def _next_local(expression: str, local: datetime) -> datetime | None:
    """The first local time after `local` that matches, as if clocks never changed. What the fields mean is cronsim's to say;
    stepping through them second by second, as it does, would cost ten times as much."""
    one = _fields(expression)
    try:
        at = local.replace(microsecond=0) + _SECOND
        day, time = at.date(), one.time_from(at.hour, at.minute, at.second)
        if time is None:
            day, time = day + _DAY, one.time_from(0, 0, 0)
        while not (day.month in one.months and one.match_day(day)):
            # A whole month at a time where the month is wrong; fifty years without a match are for ever.
            day = day + _DAY if day.month in one.months else (day.replace(day=1) + 32 * _DAY).replace(day=1)
            time = one.time_from(0, 0, 0)
            if day.year > local.year + 50:
                return None
    except OverflowError:
        return None
    assert time is not None
    return datetime(day.year, day.month, day.day, *time)


@lru_cache(maxsize=16_384)
def _next_cron(expression: str, timezone: str, dst: str, instant: datetime) -> datetime | None:
    instant = instant.astimezone(UTC).replace(microsecond=0)
    fields = expression.split()
    minute, hour = fields[-5], fields[-4]
    if minute.startswith("*") or hour.startswith("*"):
        return _next_elapsed(expression, timezone, instant)
    return _next_fixed(expression, timezone, dst, instant)


def _next_elapsed(expression: str, timezone: str, instant: datetime) -> datetime | None:
    """The first instant whose local time matches: between two clock changes local time is plain."""
    zone = load_zone(timezone)
    while True:
        offset = offset_at(zone, instant)
        local = _next_local(expression, _naive(instant, offset))
        if local is None:
            return None
        candidate = local.replace(tzinfo=UTC) - offset
        change = next_change(zone, instant, candidate)
        if change is None:
            return candidate
        # Local time jumps before the candidate is reached: look again from there, itself included.
        offset = offset_at(zone, change)
        before = _naive(change, offset) - timedelta(seconds=1)
        local = _next_local(expression, before)
        if local == before + timedelta(seconds=1):
            return change
        instant = change


def _next_fixed(expression: str, timezone: str, dst: str, instant: datetime) -> datetime | None:
    """The first matching local time whose instant lies ahead."""
    zone = load_zone(timezone)
    local = _naive(instant, offset_at(zone, instant))
    # As far back as clocks have moved around this instant: local times may come in another order than instants.
    before, end = instant - _NEAR, instant + _NEAR
    while (change := next_change(zone, before, end)) is not None:
        local -= abs(offset_at(zone, change) - offset_at(zone, change - _SECOND))
        before = change
    while True:
        found = _next_local(expression, local)
        if found is None:
            return None
        local = found
        at = local.replace(tzinfo=zone, fold=0)
        candidate = at.astimezone(UTC)
        if candidate.astimezone(zone).replace(tzinfo=None) != local:
            if dst == "skip":
                continue
            # In a gap: the change that opens it is the first one after the time as it was before.
            candidate = next_change(zone, candidate - _NEAR, candidate) or candidate
        if candidate > instant:
            return candidate


def _naive(instant: datetime, offset: timedelta) -> datetime:
    return (instant + offset).replace(tzinfo=None)


def _next_interval(schedule: Schedule, instant: datetime) -> datetime | None:
    assert schedule.anchor is not None
    span = interval_of(schedule)
    if instant < schedule.anchor:
        return schedule.anchor
    following = schedule.anchor + ((instant - schedule.anchor) // span + 1) * span
    return following if following < _FOREVER else None


def _span_in_words(span: timedelta) -> str:
    seconds = span.total_seconds()
    for unit, size in (("week", 604_800), ("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= size and seconds % size == 0:
            count = int(seconds // size)
            return f"{count} {unit}s" if count > 1 else unit
    return f"{seconds:g} seconds" if seconds != 1 else "second"


def _aware(instant: datetime, name: str) -> datetime:
    if instant.tzinfo is None:
        raise InvalidSchedule(f"{name} is a naive datetime: give it a time zone")
    return instant.astimezone(UTC)
