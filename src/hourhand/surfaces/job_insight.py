"""What a page about one job shows: bounded looks at its runs, its calendar, its account and its changes, and what a change would do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from hourhand.core import ids
from hourhand.core.account import MOMENT, Line
from hourhand.core.actor import ACTOR
from hourhand.core.errors import InvalidOption
from hourhand.core.fairness import lane_of
from hourhand.core.job import JobDefinition, define_job, job_options
from hourhand.core.schedule import Schedule, latest_firings
from hourhand.storage.jobs import OwnDoor, present
from hourhand.surfaces.auditing import Change, changes_of
from hourhand.surfaces.job_past import JobPast
from hourhand.surfaces.job_payloads import JobPayloads
from hourhand.surfaces.stored import StoredJob, changed
from hourhand.surfaces.verbs import check
from hourhand.surfaces.views import RunView

SCALES = {"day": (timedelta(days=91), 900), "hour": (timedelta(days=7, hours=1), 900), "minute": (timedelta(hours=3), 60)}
"""How far back each goes, and the seconds of a step: no zone's midnight lies within a quarter of an hour."""
_MOST_RUNS = 12_000
_FEW_RUNS = 2_500
"""In all the weeks of the calendar: with more, its days look all alike."""
_OFTEN, _VERY_OFTEN = timedelta(minutes=45), timedelta(seconds=45)
_MOST_PERIODS = 1_000
LATE = 5.0
"""Seconds after its instant, and after its flexible window, from which on a run is late."""
_LONG_QUEUE = 16 * 1024 * 1024
"""Bytes of waiting runs that are read through for an account nobody has asked for."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Runs of one step of time that ended alike."""

    at: datetime
    state: str
    runs: int
    retried: int
    late: int
    latest: float


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Firings that the job did not have, from an instant until another."""

    since: datetime
    until: datetime
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Calendar:
    scale: str
    present: datetime
    tallies: list[Tally]
    left_out: list[LeftOut]
    pauses: list[tuple[datetime, datetime]]
    known_since: datetime | None
    """Where looking stopped because there were too many runs; None: all of them are in it."""


@dataclass(frozen=True, slots=True)
class Lately:
    lines: list[Line]
    since: datetime
    until: datetime
    cut: bool
    """There were more firings in the period; these are the latest."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What a job would do."""

    schedule: str
    timezone: str
    in_words: str
    firings: list[datetime]


class JobInsight(JobPayloads, JobPast):
    async def latest_runs(self, name: str, limit: int = 100) -> list[RunView]:
        """As `runs`, but without going through a long queue: what waits in the middle of it is not among them."""
        check(limit=limit)
        database = await self._app._database()
        stored = await self._find(OwnDoor(database), name)
        lane = lane_of(stored.queue_number, stored.definition.priority)
        rows = await database.fetch("job_latest_runs", stored.number, limit, lane)
        names = await self._names(database)
        return [RunView.of(row, names, database.sealer) for row in rows]

    async def calendar(self, name: str, scale: str | None = None) -> Calendar:
        """What became of its firings, for a picture of `day`s, `hour`s or `minute`s; by default what suits how often it fires."""
        if scale is not None and scale not in SCALES:
            raise InvalidOption(f"a calendar is by {', '.join(SCALES)}, not {scale!r}")
        database = await self._app._database()
        stored = await self._find(OwnDoor(database), name)
        number, now = stored.number, stored.present
        if scale is None:
            scale = await asyncio.to_thread(_scale_of, stored)
            # What was asked for by hand, or fired under another schedule, may be far more.
            if scale == "day" and await database.fetchval("job_pace", number, now - SCALES["day"][0], _FEW_RUNS) is not None:
                scale = "hour"
            if scale == "hour" and await database.fetchval("job_pace", number, now - SCALES["hour"][0], _MOST_RUNS) is not None:
                scale = "minute"
        back, step = SCALES[scale]
        since, allowed = now - back, stored.definition.flexible_window + LATE
        rows = await database.fetch("job_calendar", number, since, float(step), _MOST_RUNS, allowed)
        tallies = [
            Tally(
                row["at"],
                row["state"],
                row["runs"],
                row["retried"],
                row["late"],
                row["latest"].total_seconds() if row["late"] else 0.0,
            )
            for row in rows
        ]
        left_out = await database.fetch("job_left_out", number, since, _MOST_PERIODS)
        pauses = [(row[0], row[1]) for row in await database.fetch("job_pauses", number, since, _MOST_PERIODS)]
        if stored.paused_at is not None:
            pauses.append((stored.paused_at, now))
        # The dead are few, and all of them are known; it is the history of which there is too much.
        many = sum(one.runs for one in tallies) >= _MOST_RUNS
        known = min(row["first"] for row in rows if row["state"] != "dead") if many else None
        return Calendar(scale, now, tallies, [LeftOut(*row) for row in left_out], pauses, known)

    async def is_quick_to_explain(self) -> bool:
        """Whether so little waits that an account can be given without being asked for: it looks through all of that."""
        return bool(await (await self._app._database()).fetchval("waiting_bytes") <= _LONG_QUEUE)

    async def lately(self, name: str, *, since: datetime | None = None, until: datetime | None = None, most: int = 50) -> Lately:
        """As `why`, of at most so many firings: the latest of the period, which by default is the last day."""
        check(limit=most, since=since, until=until)
        database = await self._app._database()
        stored = await self._find(OwnDoor(database), name)
        high = until or stored.present
        low = since or high - timedelta(days=1)
        if low >= high:
            raise InvalidOption("the period is empty: until must be after since")
        spans = [
            (row["since"], row["until"], Schedule(*row[4:9]))
            for row in await database.fetch("job_spans", stored.number, low, high)
        ]
        spans.append((stored.active_since, high, stored.definition.schedule))
        instants = await asyncio.to_thread(_latest, spans, low, high, most + 1)
        cut = len(instants) > most
        low = instants[-most] if cut else low
        return Lately(await self.why(name, since=low, until=high), low, high, cut)

    async def changes(self, name: str, *, below: int | None = None, limit: int = 10) -> list[Change]:
        """Who changed it, the newest first. `below`: the last id of the page before."""
        check(limit=limit)
        database = await self._app._database()
        number, actor = await self._number(database, name), ACTOR.get()
        scope = [None if part is None else [*part] for part in (actor.queues, actor.prefixes)]
        return changes_of(await database.fetch("job_changes", ids.job_id(number), limit, below, *scope))

    async def would_fire(self, name: str, *, added: bool = False, limit: int = 10, **options: Any) -> Preview:
        """When a job would fire if it were changed so, or `added` so. Checks everything that changing it would check, but not
        whether addresses can be reached; nothing is stored."""
        check(limit=limit)
        door = await self._door(None)
        if added:
            now, fired = await present(door), 0
            job = define_job(name, job_options(options), now=now, registry=self._app.registry)
        else:
            stored = await self._find(door, name)
            now, fired = stored.present, stored.fired or 0
            job = changed(stored, self._restored(stored, options), self._app.registry)
        self._need(job, steps="then" in options)
        firings = await asyncio.to_thread(list, islice(_firings(job, now, fired), limit))
        return Preview(job.schedule.expression, job.schedule.timezone, job.schedule.in_words(), firings)


def _scale_of(stored: StoredJob) -> str:
    """By how long it is from one firing to the next."""
    instants = list(islice(stored.definition.schedule.firings(stored.present), 10))
    if len(instants) < 2:
        return "day"
    gap = (instants[-1] - instants[0]) / (len(instants) - 1)
    return "day" if gap >= _OFTEN else "hour" if gap >= _VERY_OFTEN else "minute"


def _latest(spans: list[tuple[datetime, datetime, Schedule]], low: datetime, high: datetime, most: int) -> list[datetime]:
    """The latest instants at which something was expected of a job in [low, high)."""
    found = [
        at
        for since, until, schedule in spans
        if max(since, low) < min(until, high)
        for at in latest_firings(schedule, max(since, low) - MOMENT, min(until, high) - MOMENT, most)
    ]
    return sorted(found)[-most:]


def _firings(job: JobDefinition, now: datetime, fired: int) -> Iterator[datetime]:
    left = None if job.max_runs is None else max(0, job.max_runs - fired)
    start = now if job.start_at is None else max(now, job.start_at - MOMENT)
    until = None if job.end_at is None else job.end_at - MOMENT
    return islice(job.schedule.firings(start, until), left)
