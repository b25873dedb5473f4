"""Looking for runs, in whatever table they are: the newest first, page by page.

What an index finds is looked for to the end. What none does (a task, a queue, a tag, a key, a node, an instant) is looked for
in a stretch of run numbers at a time, so that no look takes long however much there is; whoever wants it all goes on below.
Since a run keeps its number, it is in one stretch and in no other, wherever it moves meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import asyncpg

from hourhand.core import ids
from hourhand.storage.database import Database
from hourhand.surfaces.views import FINISHED, RunView

EVER = datetime(1, 1, 1, tzinfo=UTC)
EFFORT = 15_000
"""Rows of each table that are looked at, at most."""
MOST_EFFORT = 6_400_000
_SCATTERED = 5
"""Rows that do not lie together take so many times as long to read."""
_FEW = 5_000
"""So many runs of a job are all read and sorted."""
_TOP = 2**63 - 1
_LIVE = ("ready", "delayed", "parked", "running", "dead")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked for; None: whatever. Jobs and queues by number."""

    states: tuple[str, ...] | None = None
    task: str | None = None
    queue: int | None = None
    tag: str | None = None
    key: str | None = None
    since: datetime | None = None
    job: int | None = None
    node: int | None = None
    queues: list[int] | None = None
    """What the caller may see."""
    prefixes: list[str] | None = None

    @property
    def day(self) -> datetime:
        """From which on there may be something of it; the history is kept by days."""
        if self.since is None:
            return EVER
        return self.since.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)

    @property
    def live(self) -> list[str]:
        """The states in which it may be without having ended; what no node has, none has had."""
        known = _LIVE if self.node is None else ("running", "dead")
        return [one for one in known if self.states is None or one in self.states]

    @property
    def ended(self) -> list[str]:
        """The outcomes that are wanted."""
        return [one for one in FINISHED if self.states is None or one in self.states]

    @property
    def only_trouble(self) -> bool:
        return "succeeded" not in self.ended

    @property
    def narrow(self) -> bool:
        """Whether there may be little of it among much else."""
        filters = (self.task, self.queue, self.tag, self.key, self.since, self.job, self.node, self.queues, self.prefixes)
        return any(one is not None for one in filters) or (not self.only_trouble and len(self.ended) < len(FINISHED))

    def arguments(self, limit: int, below: int, floor: int) -> tuple[Any, ...]:
        """As the statements take them."""
        states = None if self.states is None else list(self.states)
        return (
            states, self.task, self.queue, self.tag, self.key, self.since or EVER, limit, below, floor, self.job, self.node, self.queues,
            self.prefixes,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    runs: list[RunView]
    below: str | None = None
    """Where to go on; None: this is all."""
    back_to: datetime | None = None
    """For when the run was at which the look stopped, with room for more on the page."""
    errors: dict[str, str] = field(default_factory=dict)
    """The type of the last error, by run."""


async def look(database: Database, wanted: Wanted, names: dict[int, str], below: int | None, limit: int, effort: int) -> Found:
    """The newest that match, below a number: a page of them, or what a certain effort finds."""
    top = _TOP if below is None else below
    async with database.together():
        await database.fetch("plan_by_index")
        few = await _has_few(database, wanted)
        floor = await _floor(database, wanted, few, top, effort) if wanted.narrow else 0
        rows = await _rows(database, wanted, few, wanted.arguments(limit, top, floor), limit)
        back_to = await database.fetchval("instant_near", floor) if floor and len(rows) < limit else None
    runs = [RunView.of(row, names, database.sealer) for row in rows]
    errors = {ids.run_id(row["run_id"]): row["error"] for row in rows if row["error"]}
    if len(runs) == limit:
        return Found(runs, runs[-1].run_id, None, errors)
    return Found(runs, ids.run_id(floor) if floor else None, back_to, errors)


async def _has_few(database: Database, wanted: Wanted) -> bool:
    """Whether it is of a job whose runs can all be read."""
    if wanted.job is None or not wanted.ended:
        return False
    return bool(await database.fetchval("has_few_runs", wanted.job, wanted.since or EVER, _FEW))


async def _rows(database: Database, wanted: Wanted, few: bool, arguments: tuple[Any, ...], limit: int) -> list[asyncpg.Record]:
    """First those that live: one that ends between the two questions is found by both, and none by neither."""
    found: dict[int, asyncpg.Record] = {}
    if wanted.live:
        found |= {row["run_id"]: row for row in await database.fetch("list_live", *arguments)}
    if wanted.ended:
        way = "list_history_of_job" if few else "list_trouble" if wanted.only_trouble else "list_history"
        found |= {row["run_id"]: row for row in await database.fetch(way, wanted.ended, *arguments[1:])}
    return [found[number] for number in sorted(found, reverse=True)[:limit]]


async def _floor(database: Database, wanted: Wanted, few: bool, top: int, effort: int) -> int:
    """The lowest number that this effort reaches in every table that is looked at; 0: everything."""
    floors = [0]
    if wanted.live:
        floors.append(await database.fetchval("floor_of_live", top, effort, wanted.live) or 0)
    if wanted.ended and not few:
        if wanted.only_trouble:
            floors.append(await database.fetchval("floor_of_trouble", top, max(1, effort // _SCATTERED), wanted.ended) or 0)
        else:
            floors.append(await database.fetchval("floor_of_history", top, effort, wanted.day) or 0)
    return max(floors)
