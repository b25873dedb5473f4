"""The verbs on dead letters: `app.dead`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from hourhand.core import ids
from hourhand.core.errors import InvalidOption, UnknownRun
from hourhand.core.payload import encode_untyped
from hourhand.core.redaction import check_destination, marks_in, mentions, restore
from hourhand.core.registry import Registry
from hourhand.storage.database import Database
from hourhand.surfaces.auditing import MOST_NAMES, payload_for_record
from hourhand.surfaces.verbs import AT_ONCE, Open, Verbs, check
from hourhand.surfaces.views import RunView

Filter = list[Any]
"""The first nine parameters of the statements on dead letters."""
FILTERS = ("task", "queue", "tag", "error", "since", "before")
BATCH = 1_000
LEAST_RATE, MOST_RATE = 0.001, 100_000.0
_BEFORE = 6


class Replayed(msgspec.Struct, frozen=True):
    replayed: list[str]
    blocked: list[str]
    """Their key belongs to another live run."""
    until: datetime | None = None
    """When the last of them is due, if they were spread over time."""


class Dead(Verbs):
    """Runs that gave up. Filters: ids, task, queue, tag, error type, died since/before."""

    def __init__(self, open_database: Open, registry: Registry, app: str = "") -> None:
        super().__init__(open_database, app)
        self._registry = registry

    async def list(
        self, *run_ids: str | int, limit: int = 50, below: tuple[datetime, str] | None = None, **filters: Any
    ) -> list[RunView]:
        """The latest to die first. `below`: when the last of the page before died, and its id."""
        check(limit=limit)
        database = await self._open()
        start = (None, None) if below is None else (below[0], ids.parse_run_id(below[1]))
        where = await self._filter(database, run_ids, filters)
        async with database.together():
            await database.fetch("plan_anew")
            rows = await database.fetch("list_dead", *where, limit, *start)
        names = await self._names(database)
        return [RunView.of(row, names, database.sealer, "dead") for row in rows]

    async def count(self, *run_ids: str | int, **filters: Any) -> int:
        database = await self._open()
        where = await self._filter(database, run_ids, filters)
        async with database.together():
            await database.fetch("plan_anew")
            return int(await database.fetchval("count_dead", *where))

    async def show(self, run_id: str | int) -> RunView:
        found = await self.list(run_id)
        if not found:
            raise UnknownRun(f"{run_id} is not among the dead letters")
        return found[0]

    async def edit(self, run_id: str | int, payload: dict[str, Any]) -> RunView:
        """Replace the payload; checked against the task's signature when this app has the task.

        Where it has the word that stands for a secret, the value that was hidden stays.
        """
        run = await self.show(run_id)
        database = await self._open()
        names, sealer = database.settings.secret_names, database.sealer
        hides = mentions(payload)
        payload = restore(payload, run.payload, (*marks_in(run.options), *self._registry.marks_of(run.task)), names)
        if hides:
            check_destination(run.task, run.payload, payload)
        definition = self._registry.find(run.task)
        text = definition.codec.encode(payload) if definition else encode_untyped(run.task, payload)
        async with database.together():
            if not await database.fetch("edit_dead", ids.parse_run_id(run_id), sealer.seal(text, run.task)):
                raise UnknownRun(f"{run_id} is not among the dead letters any more")
            edited = await self.show(run_id)
            was, now = (payload_for_record(one.redacted(names).payload, sealer) for one in (run, edited))
            await self._record(
                database, "dead.edit", subject=run.run_id, queue=run.queue, before={"payload": was}, after={"payload": now}
            )
        return edited

    async def replay(
        self, *run_ids: str | int, limit: int | None = None, rate: float | None = None, start: datetime | None = None,
        progress: Callable[[int], None] | None = None, **filters: Any,
    ) -> Replayed:  # fmt: skip
        """Back into their queues with fresh attempts, the oldest first; those whose key another run holds stay.

        `rate`: so many become due in a second, the first at `start` (default: now). That is settled here and now, in the
        database: nobody has to stay for it.
        """
        check_rate(rate, start)
        database = await self._open()
        where = await self._filter(database, run_ids, filters)
        present: datetime = await database.fetchval("present")
        if where[_BEFORE] is None:
            # A run that dies again while we replay must not be replayed for ever.
            where[_BEFORE] = present
        first = None if rate is None else max(start or present, present)
        done: list[str] = []
        blocked: set[str] = set()
        until: datetime | None = None
        while limit is None or len(done) < limit:
            size = BATCH if limit is None else min(BATCH, limit - len(done))
            # The blocked ones stay in place and come up again each time; beyond them there are new ones.
            asked = size + len(blocked)
            async with database.together():
                await database.fetch("plan_anew")
                pace = AT_ONCE if rate is None else (float(rate), first, len(done))
                rows = await database.fetch("replay_dead", *where, asked, *pace)
                revived = [ids.run_id(row["run_id"]) for row in rows if row["replayed"]]
                if revived:
                    await self._record(database, "dead.replay", **_many(revived, **({} if rate is None else {"rate": rate})))
            done += revived
            blocked |= {ids.run_id(row["run_id"]) for row in rows if not row["replayed"]}
            until = max((row["due_at"] for row in rows if row["due_at"] is not None), default=until)
            if progress is not None:
                progress(len(done))
            if len(rows) < asked:
                break
        if run_ids and not done and not blocked:
            raise UnknownRun(f"{', '.join(map(str, run_ids))}: not among the dead letters")
        return Replayed(done, sorted(blocked.difference(done)), until)

    async def purge(
        self, *run_ids: str | int, limit: int | None = None, progress: Callable[[int], None] | None = None, **filters: Any
    ) -> int:
        """Out of the dead letters for good: outcome and errors stay in history, the payload goes."""
        database = await self._open()
        where = await self._filter(database, run_ids, filters)
        done = 0
        while limit is None or done < limit:
            size = BATCH if limit is None else min(BATCH, limit - done)
            async with database.together():
                await database.fetch("plan_anew")
                purged = [ids.run_id(row["run_id"]) for row in await database.fetch("purge_dead", *where, size)]
                if purged:
                    await self._record(database, "dead.purge", **_many(purged))
            count = len(purged)
            done += count
            if progress is not None:
                progress(done)
            if count < size:
                break
        if run_ids and not done:
            raise UnknownRun(f"{', '.join(map(str, run_ids))}: not among the dead letters")
        return done

    async def _filter(self, database: Database, run_ids: Sequence[str | int], filters: dict[str, Any]) -> Filter:
        for name in filters:
            if name not in FILTERS:
                raise InvalidOption(f"unknown filter {name!r}; the filters are {', '.join(FILTERS)}")
        check(since=filters.get("since"), before=filters.get("before"))
        queue = await self._queue(database, filters.get("queue"))
        numbers = [ids.parse_run_id(one) for one in run_ids] or None
        return [
            numbers, filters.get("task"), queue, filters.get("tag"), filters.get("error"),
            filters.get("since"), filters.get("before"), *await self._scope(database),
        ]  # fmt: skip


def check_rate(rate: float | None, start: datetime | None) -> None:
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, (int, float)) or not LEAST_RATE <= rate <= MOST_RATE):
        raise InvalidOption(f"rate is how many become due in a second, from {LEAST_RATE} to {MOST_RATE:,.0f}, not {rate!r}")
    if start is not None and rate is None:
        raise InvalidOption("start is for those that are spread over time: give a rate as well")
    check(start=start)


def _many(runs: list[str], **more: Any) -> dict[str, Any]:
    """What the record says of many at once: how many, and the first of them."""
    return {"subject": runs[0] if len(runs) == 1 else None, "after": {"count": len(runs), "runs": runs[:MOST_NAMES], **more}}
