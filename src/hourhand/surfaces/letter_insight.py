"""What the pages about dead letters show: groups of them by task and error, and lists, with a bound on what is looked through."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hourhand.core import ids
from hourhand.storage.database import Database
from hourhand.surfaces.dead_letters import Dead
from hourhand.surfaces.views import RunView

MOST_COUNTED = 10_000
"""Letters of a group that are counted, or that match, at most."""
_MOST_GROUPS = 1_000
_EFFORT = 40_000
"""Entries of the index that are counted for one page."""
_SCATTERED = 3
"""Letters that the index alone does not tell about take so many times as long to read."""
_LOOKED = 10_000
"""Letters that are looked through for one page, where no index finds what is wanted."""


@dataclass(frozen=True, slots=True)
class Group:
    """Dead letters of one task with one error."""

    task: str
    error: str
    """The type of the last error; empty: they died without one."""
    letters: int
    more: bool
    """There are more than were counted."""
    oldest: datetime | None
    newest: datetime | None
    latest: RunView | None = None
    """The last that died, without its payload where that is long."""


@dataclass(frozen=True, slots=True)
class Groups:
    groups: list[Group]
    total: int
    """Of groups, before those without a letter that matches are left out."""
    cut: bool
    """There are more groups than were looked at."""


@dataclass(frozen=True, slots=True)
class Letters:
    letters: list[RunView]
    below: tuple[datetime, str] | None = None
    """Where to go on; None: these are all."""
    stopped: bool = False
    """The page has room, and the look ended before everything was seen."""


class LetterInsight(Dead):
    async def groups(self, *, skip: int = 0, limit: int = 50, **filters: Any) -> Groups:
        """The groups whose latest letter died last come first."""
        database = await self._open()
        where = await self._filter(database, (), filters)
        async with database.together():
            await database.fetch("plan_by_index")
            rows = await database.fetch("dead_groups", _MOST_GROUPS, where[1], where[4], where[5], where[6])
            found = sorted(rows, key=lambda row: row["newest"], reverse=True)
            shown = found[skip : skip + limit]
            effort = _EFFORT if all(one is None for one in (*where[2:4], *where[7:])) else _EFFORT // _SCATTERED
            most = min(MOST_COUNTED, effort // max(1, len(shown)))
            tasks, errors = [row["task"] for row in shown], [row["error"] for row in shown]
            counted = await database.fetch("count_groups", tasks, errors, *where[2:4], *where[5:], most)
            latest = await self._latest(database, [row["latest"] for row in counted if row["latest"] is not None])
        return Groups(
            [_group(row, latest.get(row["latest"])) for row in counted if row["letters"] or row["more"]], len(found),
            any(row["cut"] for row in rows),
        )  # fmt: skip

    async def _latest(self, database: Database, numbers: list[int]) -> dict[int, RunView]:
        names = await self._names(database)
        rows = await database.fetch("short_letters", numbers) if numbers else []
        return {row["run_id"]: RunView.of(row, names, database.sealer, "dead") for row in rows}

    async def letters(self, *, limit: int = 50, below: tuple[datetime, str] | None = None, **filters: Any) -> Letters:
        """The latest to die first, each with its last error; the payload only where it is short."""
        database = await self._open()
        where = await self._filter(database, (), filters)
        start = (None, None) if below is None else (below[0], ids.parse_run_id(below[1]))
        together = (where[1] is None) == (where[4] is None)
        looked = limit if together and all(one is None for one in (*where[2:4], *where[7:])) else _LOOKED
        async with database.together():
            await database.fetch("plan_by_index")
            rows = await database.fetch("find_letters", *where[1:], limit, *start, looked)
            letters = await self._latest(database, [row["run_id"] for row in rows if row["run_id"] is not None])
        found = [letters[row["run_id"]] for row in rows if row["run_id"] in letters]
        if len(found) == limit and found[-1].finished_at is not None:
            return Letters(found, (found[-1].finished_at, found[-1].run_id))
        if rows and rows[0]["looked"] == looked:
            return Letters(found, (rows[0]["last_at"], ids.run_id(rows[0]["last_id"])), stopped=True)
        return Letters(found)

    async def up_to(self, *run_ids: str | int, most: int = MOST_COUNTED, **filters: Any) -> int:
        """How many match, counted no further than one beyond `most`."""
        database = await self._open()
        where = await self._filter(database, run_ids, filters)
        async with database.together():
            await database.fetch("plan_anew")
            return int(await database.fetchval("count_dead_up_to", *where, most + 1))


def _group(row: Any, latest: RunView | None) -> Group:
    return Group(row["task"], row["error"], row["letters"], row["more"], row["oldest"], row["newest"], latest)
