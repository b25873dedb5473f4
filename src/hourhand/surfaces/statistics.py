"""What happened, in numbers, and how full it is now: `app.statistics`.

Everything here was counted as it happened; nothing is counted to answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from hourhand.core.actor import ACTOR
from hourhand.core.errors import InvalidOption
from hourhand.core.histogram import quantile
from hourhand.storage.database import Database
from hourhand.surfaces.verbs import Verbs

PERIODS = {"1h": (3_600, 60), "24h": (86_400, 600), "7d": (604_800, 7_200)}
"""Each in seconds, and its step."""
RECENT = 300
"""Seconds over which rates are taken."""
_ORIGIN = datetime(2001, 1, 1, tzinfo=UTC)
FIRINGS = 0
"""What schedulers do belongs to no queue."""
_ENDINGS = ("succeeded", "failed", "dead", "cancelled", "skipped", "expired", "lost", "fired", "missed")
_DEPTHS = ("ready", "delayed", "parked", "running", "dead_letters", "oldest_seconds")


@dataclass(frozen=True, slots=True)
class Moment:
    """One step of a period."""

    at: datetime
    succeeded: int = 0
    failed: int = 0
    """Attempts that were followed by another."""
    dead: int = 0
    cancelled: int = 0
    skipped: int = 0
    expired: int = 0
    lost: int = 0
    fired: int = 0
    """Runs that schedules made."""
    missed: int = 0
    """Firings that were not made in time."""
    seconds: float = 0.0
    """Spent in handlers."""
    lateness_p50: float | None = None
    lateness_p99: float | None = None
    lateness_max: float | None = None
    ready: int | None = None
    """At the fullest moment; None: nobody looked."""
    delayed: int | None = None
    parked: int | None = None
    running: int | None = None
    dead_letters: int | None = None
    oldest_seconds: float | None = None

    @property
    def ended(self) -> int:
        return self.succeeded + self.dead + self.cancelled + self.skipped + self.expired + self.lost


@dataclass(frozen=True, slots=True)
class Trend:
    period: str
    step: int
    """Seconds."""
    moments: list[Moment]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """A queue as it was found a few seconds ago, and what it did in the last minutes."""

    name: str
    paused_at: datetime | None
    ready: int
    delayed: int
    parked: int
    running: int
    dead: int
    oldest_seconds: float | None
    """For how long the run at its head has been due, now."""
    taken_at: datetime | None
    ended_per_second: float
    failed_per_second: float
    lateness_max: float
    busy: float
    """Handlers at work, on average."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Statistics(Verbs):
    async def over(self, period: str = "1h", *, queue: str | None = None) -> Trend:
        """The last hour, day or week (`1h`, `24h`, `7d`), step by step."""
        seconds, step = check_period(period)
        database = await self._open()
        numbers = await self._numbers(database, queue)
        counted = await database.fetch("statistics_over", float(seconds), float(step), numbers)
        full = await database.fetch("samples_over", float(seconds), float(step), numbers)
        present: datetime = await database.fetchval("present")
        return Trend(period, step, _moments(present, seconds, step, counted, full))

    async def by_queue(self, period: str, queues: Sequence[str]) -> dict[str, Trend]:
        """What each of these has ended (`succeeded`), and what failed there: every failed attempt, and every run that gave up."""
        seconds, step = check_period(period)
        database = await self._open()
        numbers = {await self._queue(database, name): name for name in queues}
        rows = await database.fetch("statistics_by_queue", float(seconds), float(step), list(numbers))
        present: datetime = await database.fetchval("present")
        found = {name: {at: Moment(at) for at in _times(present, seconds, step)} for name in numbers.values()}
        for row in rows:
            moments = found[numbers[row["queue"]]]
            if row["at"] in moments:
                moments[row["at"]] = Moment(row["at"], succeeded=row["succeeded"], failed=row["failed"])
        return {name: Trend(period, step, list(moments.values())) for name, moments in found.items()}

    async def queues(self) -> list[QueueFigures]:
        """Every queue that the caller may see, by name."""
        database, actor = await self._open(), ACTOR.get()
        rates = {row["queue"]: row for row in await database.fetch("queue_rates", float(RECENT))}
        return [
            _figures(row, rates.get(row["id"]))
            for row in await database.fetch("latest_samples", None)
            if actor.may_touch(row["name"], None)
        ]

    async def totals(self) -> dict[str, int]:
        """Numbers of jobs, paused jobs and schedules, as they were a moment ago."""
        self._actor.need_everything("the number of jobs")
        return {row["name"]: row["value"] for row in await (await self._open()).fetch("totals")}

    async def _numbers(self, database: Database, queue: str | None) -> list[int] | None:
        number = await self._queue(database, queue)
        numbers, prefixes = await self._scope(database)
        if prefixes is not None:
            return []  # of a queue it is known what all its jobs did, and not what some of them did
        return numbers if number is None else [number]


def check_period(period: str) -> tuple[int, int]:
    """Its seconds, and those of its steps."""
    if period not in PERIODS:
        raise InvalidOption(f"there is no period {period!r}; there are {', '.join(PERIODS)}")
    return PERIODS[period]


def _times(present: datetime, seconds: int, step: int) -> list[datetime]:
    width = timedelta(seconds=step)
    last = _ORIGIN + (present - _ORIGIN) // width * width
    return [last - width * back for back in reversed(range(seconds // step))]


def _moments(
    present: datetime, seconds: int, step: int, counted: Sequence[asyncpg.Record], full: Sequence[asyncpg.Record]
) -> list[Moment]:
    """Every step of the period, whether something happened in it or not."""
    by_counted, by_full = {row["at"]: row for row in counted}, {row["at"]: row for row in full}
    return [Moment(at, **_counts(by_counted.get(at)), **_depths(by_full.get(at))) for at in _times(present, seconds, step)]


def _counts(row: asyncpg.Record | None) -> dict[str, Any]:
    if row is None:
        return {}
    lateness, most = row["lateness"], row["latest"]
    return {
        **{name: row[name] for name in _ENDINGS}, "seconds": row["seconds"],
        "lateness_p50": quantile(lateness, 0.5, most), "lateness_p99": quantile(lateness, 0.99, most),
        "lateness_max": most if any(lateness) else None,
    }  # fmt: skip


def _depths(row: asyncpg.Record | None) -> dict[str, Any]:
    if row is None:
        return {}
    return dict(zip(_DEPTHS, (row[name] for name in ("ready", "delayed", "parked", "running", "dead", "oldest")), strict=True))


def _figures(row: asyncpg.Record, rate: asyncpg.Record | None) -> QueueFigures:
    plain = ("name", "paused_at", "ready", "delayed", "parked", "running", "dead", "oldest_seconds", "taken_at")
    ended = 0 if rate is None else _sum(rate, ("succeeded", "dead", "stopped", "lost"))
    return QueueFigures(
        **{name: row[name] for name in plain},
        ended_per_second=ended / RECENT,
        failed_per_second=0.0 if rate is None else _sum(rate, ("failed", "dead", "lost")) / RECENT,
        lateness_max=0.0 if rate is None else rate["latest"],
        busy=0.0 if rate is None else rate["seconds"] / RECENT,
    )


def _sum(row: asyncpg.Record, names: Iterable[str]) -> int:
    return sum(row[name] for name in names)
