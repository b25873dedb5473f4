"""Every zone, ten years, around every clock change: against an oracle that shares no code.

The oracle walks through UTC minute by minute, looks at the local clock as the standard library shows it, and
knows nothing of cron libraries, transitions or offsets.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib.resources import files
from zoneinfo import ZoneInfo

import pytest

from hourhand.core.schedule import parse_schedule
from hourhand.core.zones import load_zone, zone_names

FIRST, LAST = datetime(2025, 1, 1, tzinfo=UTC), datetime(2035, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
BEFORE, AFTER = timedelta(hours=8), timedelta(hours=20)

# (expression, minutes, hours); None stands for every value.
WILD = [
    ("*/30 * * * *", range(0, 60, 30), None),
    ("10 */3 * * *", [10], range(0, 24, 3)),
    ("*/20 1-2 * * *", range(0, 60, 20), [1, 2]),
]
FIXED = [
    ("30 2 * * *", [30], [2]),
    ("0 0 * * *", [0], [0]),
    ("15,45 0-3 * * *", [15, 45], [0, 1, 2, 3]),
]


@lru_cache
def signature(name: str) -> tuple[tuple[datetime, timedelta], ...]:
    """The offset every twelve hours for ten years: zones that look alike need one check."""
    zone = load_zone(name)
    found: list[tuple[datetime, timedelta]] = []
    at = FIRST
    while at < LAST:
        offset = at.astimezone(zone).utcoffset() or timedelta(0)
        if not found or found[-1][1] != offset:
            found.append((at, offset))
        at += timedelta(hours=12)
    return tuple(found)


def distinct_zones() -> list[str]:
    """Alike in what they show and in the rule they end with: then they are alike to the second."""
    seen: dict[object, str] = {}
    for name in sorted(zone_names()):
        rule = files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes().rstrip(b"\n").rpartition(b"\n")[2]
        seen.setdefault((rule, signature(name)), name)
    return sorted(name for name in seen.values() if len(signature(name)) > 1)


def walk(zone: ZoneInfo, start: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    minutes, at = [], start
    while at <= end:
        minutes.append((at, at.astimezone(zone).replace(tzinfo=None)))
        at += MINUTE
    return minutes


def wild_oracle(clock: list[tuple[datetime, datetime]], minutes: object, hours: object) -> list[datetime]:
    return [at for at, local in clock if local.minute in minutes and (hours is None or local.hour in hours)]  # type: ignore[operator]


def fixed_oracle(clock: list[tuple[datetime, datetime]], minutes: list[int], hours: list[int], dst: str) -> list[datetime]:
    """Each local time the first time the clock shows it; one that it never shows, when it jumps over it."""
    fired: set[datetime] = set()
    shown: set[datetime] = set()
    furthest = clock[0][1]
    for at, local in clock:
        # What lies between the furthest time shown and this one was jumped over.
        missed = furthest + MINUTE
        while missed < local:
            if missed.minute in minutes and missed.hour in hours and dst == "shift":
                fired.add(at)
            missed += MINUTE
        if local not in shown and local >= furthest and local.minute in minutes and local.hour in hours:
            fired.add(at)
        shown.add(local)
        furthest = max(furthest, local)
    return sorted(fired)


@pytest.mark.parametrize("dst", ["shift", "skip"])
@pytest.mark.timeout(300)
def test_every_zone_and_every_clock_change_of_ten_years(dst: str) -> None:
    checked = 0
    zones = distinct_zones()
    assert len(zones) > 30
    for name in zones:
        zone = load_zone(name)
        for near, _ in signature(name)[1:]:
            start, end = (near - BEFORE - timedelta(hours=12)), near + AFTER
            clock = walk(zone, start, end)  # type: ignore[arg-type]
            # The walk needs a run-up to know what it has shown; only what comes after it is compared.
            begin = start + timedelta(hours=6)
            for text, minutes, hours in FIXED:
                expected = [at for at in fixed_oracle(clock, minutes, hours, dst) if begin < at <= end]
                actual = list(parse_schedule(text, timezone=name, dst=dst, now=begin).firings(begin, end))
                assert actual == expected, f"{text} in {name} from {begin}"
            if dst == "shift":
                for text, some, hours in WILD:
                    expected = [at for at in wild_oracle(clock, some, hours) if begin < at <= end]
                    actual = list(parse_schedule(text, timezone=name, now=begin).firings(begin, end))
                    assert actual == expected, f"{text} in {name} from {begin}"
            checked += 1
    assert checked > 500
