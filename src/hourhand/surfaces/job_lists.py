"""Jobs by the page: found among millions by looking through a bounded part of them at a time.

A filter that matches rarely must not read everything for one page. So the jobs are gone through in their order, chunk by chunk, until the
page is full or time is up; then the page has what was found, and says where to go on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise, repeat

import asyncpg

from hourhand.core import ids
from hourhand.core.clock import Clock
from hourhand.core.errors import InvalidOption, NotPossible
from hourhand.storage.database import Database
from hourhand.surfaces.job_verbs import JobVerbs
from hourhand.surfaces.stored import EVER, StoredJob
from hourhand.surfaces.verbs import check
from hourhand.surfaces.views import JobView

SORTS = ("name", "next", "newest")
STATES = ("active", "paused", "finished")
PATIENCE = 0.04
"""Seconds of looking before a page is given as it is."""
_NAMES = (2_000, 5_000, 20_000)
"""How many names a chunk has: the first is small, since most pages are full at once."""
_JOBS = (200, 500, 1_000)
_LEAST = 200
"""Fewer are never looked at before time is up."""
_HEADS = 4
_FEW_PAUSED = 10_000
"""Paused jobs up to which they are sorted by name; of more there is one on every page."""
_LAST = 2**63 - 1
_PERIODS = (7, 35)
"""Days back in which to look for the latest outcomes, one period after the other."""
_AHEAD = timedelta(days=2)
"""Clocks differ, and what is done by hand may be for an instant to come."""


@dataclass(frozen=True, slots=True)
class JobPage:
    jobs: list[JobView]
    after: str | None
    """Where the next page begins; None: there is none."""
    looked: int
    """How many jobs were looked at."""
    full: bool
    """Otherwise time was up, or there are no more."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a firing of a job ended."""

    run_id: str | None
    """None: it was left out, so there was no run."""
    scheduled_at: datetime
    state: str
    at: datetime


@dataclass(frozen=True, slots=True)
class _Wanted:
    search: str | None
    task: str | None
    queue: int | None
    tag: str | None
    state: str | None
    numbers: list[int] | None
    prefixes: list[str] | None

    @property
    def by_name_alone(self) -> bool:
        others = (self.task, self.queue, self.tag, self.state, self.numbers)
        return all(one is None for one in others) and (self.search is not None or self.prefixes is not None)

    @property
    def arguments(self) -> tuple[object, ...]:
        return self.search, self.task, self.queue, self.tag, self.state, self.numbers, self.prefixes


@dataclass(frozen=True, slots=True)
class _Chunk:
    found: list[tuple[str, str]]
    """Names, each with the place after it."""
    place: str | None
    """After all that was looked at; None: there is no more."""
    looked: int


class JobLists(JobVerbs):
    async def page(
        self, *, sort: str = "name", state: str | None = None, task: str | None = None, queue: str | None = None,
        tag: str | None = None, search: str | None = None, after: str | None = None, limit: int = 50, patience: float = PATIENCE,
    ) -> JobPage:  # fmt: skip
        """Jobs in an order: `name`, `next` (the next to fire first; others are not among them), `newest`. `search` is a part of
        the name; `after` is where the page before ended. Looks for `patience` seconds and gives what it has found by then."""
        if sort not in SORTS or (state is not None and state not in STATES):
            raise InvalidOption(f"jobs are sorted by {', '.join(SORTS)}, and their states are {', '.join(STATES)}")
        check(limit=limit)
        if sort == "next" and state in ("paused", "finished"):
            sort = "name"  # they fire no more, or not now
        database = await self._app._database()
        wanted = _Wanted(search, task, await self._queue(database, queue), tag, state, *await self._scope(database))
        begun, found, looked, place = Clock.monotonic(), list[tuple[str, str]](), 0, None
        async with aclosing(self._chunks(database, sort, wanted, after, limit + 1)) as chunks:
            async for chunk in chunks:
                found, looked, place = [*found, *chunk.found], looked + chunk.looked, chunk.place
                if len(found) > limit or place is None or (looked >= _LEAST and Clock.monotonic() - begun > patience):
                    break
        full = len(found) > limit
        if full:
            place = found[limit - 1][1]
        elif sort == "name" and place is not None and self._actor.scoped:
            place = await self._number_of(database, place)
        return JobPage(await self._named(database, [name for name, _ in found[:limit]]), place, looked, full)

    async def last_outcomes(self, jobs: Sequence[JobView], most: int = 12) -> dict[str, list[Ending]]:
        """The latest ends of each of these jobs, by their ids, the oldest first.

        The last days are looked at for all of them, and further back only for those that had nothing since: history has a part
        for each day, and each part that is looked at costs. So of a job that had some within a week, only those are there.
        """
        database, now = await self._app._database(), Clock().instant()
        ends: dict[int, list[Ending]] = {ids.parse_job_id(one.job_id) or 0: [] for one in jobs}
        bounds = [now + _AHEAD, *(now - timedelta(days=days) for days in _PERIODS), EVER]
        for until, since in pairwise(bounds):
            if not (quiet := [number for number, found in ends.items() if not found]):
                break
            for row in await database.fetch("last_outcomes", quiet, most, since, until):
                run = None if row["run_id"] is None else ids.run_id(row["run_id"])
                ends[row["job_id"]].append(Ending(run, row["scheduled_at"], row["state"], row["at"]))
        return {ids.job_id(number): sorted(found, key=lambda one: one.scheduled_at) for number, found in ends.items()}

    async def queue_names(self) -> list[str]:
        """Those the caller may see."""
        names = await self._names(await self._app._database())
        return sorted(name for name in names.values() if self._actor.may_touch(name, None))

    async def _named(self, database: Database, names: list[str]) -> list[JobView]:
        """In this order, without those that have gone meanwhile, or are not the caller's any more."""
        stored = [StoredJob.of(row[0], database.sealer) for row in await database.fetch("find_jobs", names)]
        views = {
            one.definition.name: one.view() for one in stored if self._actor.may_touch(one.definition.queue, one.definition.name)
        }
        return [views[name] for name in names if name in views]

    def _chunks(
        self, database: Database, sort: str, wanted: _Wanted, after: str | None, most: int
    ) -> AsyncGenerator[_Chunk, None]:
        if sort == "next":
            return self._by_firing(database, wanted, after, most)
        if sort == "newest":
            return self._by_number(database, wanted, after, most)
        return self._by_name(database, wanted, after, most)

    async def _by_name(self, database: Database, wanted: _Wanted, after: str | None, most: int) -> AsyncGenerator[_Chunk, None]:
        place = await self._name_at(database, after)
        if wanted.by_name_alone:
            for size in _growing(_NAMES):
                row = await database.fetchrow("look_through_names", place, size, wanted.search or "", wanted.prefixes, most)
                assert row is not None
                found = [(name, name) for name in row["names"]]
                last = row["last"]
                yield _Chunk(found, last, row["looked"])
                most, place = most - len(found), last
                if last is None:
                    return
        order = "name"
        if wanted.state == "paused" and await database.fetchval("paused_jobs", _FEW_PAUSED + 1) <= _FEW_PAUSED:
            order = "paused name"
        for size in _growing(_JOBS):
            row = await self._look(database, order, place, 0, size, most, None, wanted)
            found = [(name, name) for name in row["names"]]
            last = row["last"]
            yield _Chunk(found, last, row["looked"])
            most, place = most - len(found), last
            if last is None:
                return

    async def _by_number(self, database: Database, wanted: _Wanted, after: str | None, most: int) -> AsyncGenerator[_Chunk, None]:
        place = _LAST if after is None else ids.parse_job_id(after)
        if place is None:
            raise InvalidOption(f"{after!r} is no place in this list; begin at its start")
        order = "paused newest" if wanted.state == "paused" else "newest"
        for size in _growing(_JOBS):
            row = await self._look(database, order, "", place, size, most, None, wanted)
            found = [(name, ids.job_id(number)) for name, number in zip(row["names"], row["ids"], strict=True)]
            last = row["last_id"]
            yield _Chunk(found, None if last is None else ids.job_id(last), row["looked"])
            most, place = most - len(found), last
            if last is None:
                return

    async def _by_firing(self, database: Database, wanted: _Wanted, after: str | None, most: int) -> AsyncGenerator[_Chunk, None]:
        """Schedule by schedule, over all shards; the jobs of each by number."""
        wanted = replace(wanted, state="active")
        at, schedule, job = _read_place(after)
        many, heads = 1, _HEADS
        while True:
            rows = await database.fetch("next_schedules", at, schedule, heads)
            instants = {row["id"]: row["next_run_at"] for row in rows}
            waiting = [one for one in instants if (one, job) != (schedule, _LAST)]
            while waiting:
                part = waiting[:many]
                # What was seen of the first schedule is not seen again.
                begun = job if part[0] == schedule else 0
                row = await self._look(database, "schedules", "", begun, _JOBS[-1], most, part, wanted)
                found = [
                    (name, _write_place(instants[one], one, number))
                    for name, number, one in zip(row["names"], row["ids"], row["schedules"], strict=True)
                ]
                schedule, job = part[-1], _LAST
                if row["last"] is not None:
                    schedule, job = row["last_schedule"], row["last_id"]
                at = instants[schedule]
                waiting = waiting[waiting.index(schedule) + (job == _LAST) :]
                ended = not waiting and not rows[0]["more"]
                yield _Chunk(found, None if ended else _write_place(at, schedule, job), row["looked"])
                most -= len(found)
                # As many schedules at a time as have about a chunk of jobs.
                many = max(1, min(500, 4 * many, _JOBS[-1] * len(part) // max(1, row["looked"])))
            if not rows or not rows[0]["more"]:
                yield _Chunk([], None, 0)
                return
            heads = min(4 * heads, 64)

    async def _look(
        self, database: Database, order: str, name: str, number: int, size: int, most: int, schedules: list[int] | None, wanted: _Wanted
    ) -> asyncpg.Record:  # fmt: skip
        row = await database.fetchrow("look_through_jobs", order, name, number, size, most, schedules, *wanted.arguments)
        assert row is not None
        return row

    async def _name_at(self, database: Database, after: str | None) -> str:
        number = None if after is None else ids.parse_job_id(after)
        if number is None:
            return after or ""
        name: str | None = await database.fetchval("job_name", number)
        if name is None:
            raise InvalidOption("the job at which the list was to go on is gone; begin at its start")
        return name

    async def _number_of(self, database: Database, name: str) -> str:
        """A place for somebody who may not see all jobs: the name of one that is not his is not for him to read."""
        number = await database.fetchval("number_of_job", name)
        if number is None:
            raise NotPossible("the list is changing at this moment; load it again")
        return ids.job_id(number)


def _growing(sizes: Sequence[int]) -> Iterator[int]:
    return chain(sizes, repeat(sizes[-1]))


def _write_place(at: datetime, schedule: int, job: int) -> str:
    return f"{at.astimezone(UTC).isoformat()}_{schedule}_{job}"


def _read_place(text: str | None) -> tuple[datetime, int, int]:
    if text is None:
        return EVER, 0, 0
    try:
        at, schedule, job = text.split("_")
        instant, numbers = datetime.fromisoformat(at), (int(schedule), int(job))
        if instant.tzinfo is None or not all(0 <= one <= _LAST for one in numbers):
            raise ValueError
        return instant, *numbers
    except ValueError:
        raise InvalidOption(f"{text!r} is no place in this list; begin at its start") from None
