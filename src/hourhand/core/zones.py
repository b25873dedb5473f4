"""Time zones from the tzdata package, the same on every machine of a fleet, and their clock changes."""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from importlib.resources import files
from zoneinfo import ZoneInfo

import tzdata

from hourhand.core.errors import InvalidSchedule

_STEP = timedelta(hours=12)
_ZERO = timedelta(0)


def tzdata_version() -> str:
    return str(tzdata.IANA_VERSION)


@lru_cache
def zone_names() -> frozenset[str]:
    return frozenset(files("tzdata").joinpath("zones").read_text().split())


@lru_cache(maxsize=1024)
def load_zone(name: str) -> tzinfo:
    """An IANA zone by name. Never the machine's own data, which may be years apart from another's."""
    if name not in zone_names():
        close = sorted(one for one in zone_names() if name.lower().replace(" ", "_") in one.lower())[:3]
        hint = f"; did you mean {', '.join(close)}?" if close and name else "; names look like Europe/Berlin"
        raise InvalidSchedule(f"there is no time zone {name!r} in tzdata {tzdata_version()}{hint}")
    path = files("tzdata").joinpath("zoneinfo", *name.split("/"))
    with path.open("rb") as data:
        return ZoneInfo.from_file(data, key=name)


def offset_at(zone: tzinfo, instant: datetime) -> timedelta:
    return instant.astimezone(zone).utcoffset() or _ZERO


@lru_cache(maxsize=8192)
def _changes_of_year(zone: tzinfo, year: int) -> tuple[datetime, ...]:
    found = []
    at, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    offset = offset_at(zone, at)
    while at < end:
        later = min(at + _STEP, end)
        if offset_at(zone, later) != offset:
            found.append(_first_change(zone, at, later, offset))
            offset = offset_at(zone, later)
        at = later
    return tuple(found)


def _first_change(zone: tzinfo, low: datetime, high: datetime, offset: timedelta) -> datetime:
    """The first second with another offset, in (low, high]."""
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) // 2
        middle = middle.replace(microsecond=0)
        low, high = (middle, high) if offset_at(zone, middle) == offset else (low, middle)
    return high


def next_change(zone: tzinfo, after: datetime, until: datetime) -> datetime | None:
    """The first clock change in (after, until]."""
    for year in range(after.year, min(until.year, after.year + 60) + 1):
        changes = _changes_of_year(zone, year)
        place = bisect_right(changes, after)
        if place < len(changes):
            return changes[place] if changes[place] <= until else None
    return None
