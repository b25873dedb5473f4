"""Ten million jobs as a large company might have them, and by an oracle when each of them is due."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Asia/Tokyo")
When = tuple[str, str]
"""A cron expression, seconds first, and its zone."""
Instant = tuple[str, str, datetime]
"""An instant of such a schedule."""


def _stepped(first: int, step: int, end: int) -> str:
    return ",".join(str(value) for value in range(first, end, step))


def when(n: int) -> When:
    """Of 100 jobs: nine every 15 minutes, twelve every 30, 34 every hour, twenty every three hours, fifteen daily, six on working
    days, four monthly; on average a little more than one firing an hour. The frequent ones are spread over the seconds; the others
    come on the full minute, as people write them.
    """
    zone, kind, spot = ZONES[n % 5], n // 5 % 100, n * 2654435761 % 2**32 >> 8
    second, minute, hour = spot % 60, spot // 60 % 60, spot // 3600 % 24
    if kind < 9:
        return f"{second} {_stepped(minute % 15, 15, 60)} * * * *", zone
    if kind < 21:
        return f"{second} {_stepped(minute % 30, 30, 60)} * * * *", zone
    if kind < 55:
        return f"{second} {minute} * * * *", zone
    if kind < 75:
        return f"0 {minute} {_stepped(hour % 3, 3, 24)} * * *", zone
    if kind < 90:
        return f"0 {minute // 5 * 5} {hour} * * *", zone
    if kind < 96:
        return f"0 {minute // 5 * 5} {hour} * * 1-5", zone
    return f"0 0 {hour} {spot // 86400 % 28 + 1} * *", zone


def jobs(first: int, beyond: int) -> Iterator[dict[str, Any]]:
    for n in range(first, beyond):
        schedule, zone = when(n)
        yield {"name": f"job-{n}", "task": "noop", "schedule": schedule, "timezone": zone, "payload": {"n": n}}


def _some(n: int, always: set[int], others: Iterable[int]) -> str:
    """A list of values as a field has it: these always, and of the others those whose bit is set."""
    return ",".join(map(str, sorted(always | {value for bit, value in enumerate(others) if n >> bit & 1})))


def at(due: datetime, n: int) -> str:
    """Expression number n of those that are due at this instant, in UTC, and not again for some hours."""
    hours = _some(n % 1024, {due.hour}, [(due.hour + ahead) % 24 for ahead in range(8, 18)])
    days = _some(n // 1024, {due.day}, [day for day in range(1, 29) if day != due.day])
    return f"{due.second} {due.minute} {hours} {days} * *"


def often(n: int) -> str:
    """Expression number n of those that are due every ten seconds, today and tomorrow."""
    today = datetime.now(UTC)
    always = {today.day, (today + timedelta(days=1)).day}
    days = _some(n // 10, always, [day for day in range(1, 29) if day not in always])
    return f"{_stepped(n % 10, 10, 60)} * * {days} * *"


def expected(count: int, begin: datetime, end: datetime) -> Counter[Instant]:
    """How many runs each schedule owes for each instant from begin until before end; by cronsim, not by us."""
    owed: Counter[Instant] = Counter()
    for (expression, zone), many in Counter(map(when, range(count))).items():
        local = (begin - timedelta(seconds=1)).astimezone(ZoneInfo(zone))
        for instant in CronSim(expression, local):
            moment = instant.astimezone(UTC)
            if moment >= end:
                break
            owed[expression, zone, moment] += many
    return owed


@dataclass(frozen=True)
class Made:
    """What came of an instant: runs, however they ended, of so many jobs, of which so many succeeded."""

    runs: int
    jobs: int
    succeeded: int


_NOTHING = Made(0, 0, 0)


@dataclass(frozen=True)
class Account:
    expected: int
    missed: int
    doubled: int
    extra: int
    disagreeing: int
    """Instants of which the ledger tells another number of runs than is owed."""

    @property
    def clean(self) -> bool:
        return not (self.missed or self.doubled or self.extra or self.disagreeing)


def account(owed: Counter[Instant], made: Mapping[Instant, Made], ledger: Mapping[Instant, int]) -> Account:
    return Account(
        owed.total(),
        missed=sum(max(0, many - made.get(one, _NOTHING).succeeded) for one, many in owed.items()),
        doubled=sum(one.runs - one.jobs for one in made.values()),
        extra=sum(max(0, one.jobs - owed[instant]) for instant, one in made.items()),
        disagreeing=sum(owed[instant] != ledger.get(instant, 0) for instant in owed.keys() | ledger.keys()),
    )
