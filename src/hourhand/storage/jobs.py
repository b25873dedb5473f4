"""Adding and changing jobs, on our own connections or inside a transaction of the caller's."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Protocol

import asyncpg
import msgspec

from hourhand.core.errors import InvalidOption, JobConflict, PayloadUnreadable
from hourhand.core.fairness import lane_of
from hourhand.core.job import JobDefinition
from hourhand.core.sealing import Sealer
from hourhand.storage import foreign
from hourhand.storage.database import Database

CHUNK = 10_000
_SOON = timedelta(seconds=3)
_SOME = datetime(2000, 1, 1, tzinfo=UTC)
_COLUMNS = (
    "id", "schedule_id", "active_since", "start_at", "end_at", "created_at", "updated_at", "lane", "max_missed", "misfire_grace",
    "flexible", "max_runs", "shard", "name", "task", "payload", "missed_window", "overlap", "tags", "options",
)  # fmt: skip
Progress = Callable[[int], None]


class Door(Protocol):
    """Where a statement goes through."""

    async def row(self, name: str, *arguments: Any) -> Any: ...


class OwnDoor:
    def __init__(self, database: Database) -> None:
        self.database = database

    async def row(self, name: str, *arguments: Any) -> Any:
        return await self.database.fetchrow(name, *arguments)


class CallersDoor:
    """On a connection that is awaited."""

    def __init__(self, connection: Any, sql: dict[str, str]) -> None:
        self._connection, self._sql = connection, sql

    async def row(self, name: str, *arguments: Any) -> Any:
        return await foreign.fetch_async(self._connection, self._sql[name], arguments)


class CallersSyncDoor:
    """On a connection that is not: nothing here ever waits for the event loop, so `run_now` can drive it."""

    def __init__(self, connection: Any, sql: dict[str, str]) -> None:
        self._connection, self._sql = connection, sql

    async def row(self, name: str, *arguments: Any) -> Any:
        return foreign.fetch_sync(self._connection, self._sql[name], arguments)


def run_now(work: Any) -> Any:
    """The result of a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    work.close()
    raise AssertionError("a synchronous call waited for the event loop")


async def present(door: Door) -> datetime:
    """The database's clock: due-ness is nobody else's to say."""
    row = await door.row("present")
    instant: datetime = row[0]
    return instant


async def sees_commits(door: Door) -> bool:
    """Whether the caller's transaction sees what others commit meanwhile, as READ COMMITTED does."""
    return bool((await door.row("isolation"))[0] == "read committed")


async def put_job(
    door: Door, job: JobDefinition, lane: int, now: datetime, *, sealer: Sealer, replace: bool, expected: int | None = None,
    prepared: Mapping[str, Any] | None = None,
) -> str:  # fmt: skip
    """`added`, `unchanged` or `replaced`; a conflict is an error."""
    given = {**job.plain(lane, now), **(prepared or {})}
    outcome = "conflict"
    # A seal is never the same twice, so whether a job is the same is asked with the seals that it has: before it is written,
    # and once more if somebody adds it at that very moment.
    for _ in range(2 if sealer.has_keys else 1):
        if sealer.has_keys and await _is_the_same(door, job, given, sealer):
            return "unchanged"
        sealed = {"payload": msgspec.Raw(sealer.seal(job.payload, job.task).encode()), "options": sealer.seal_steps(job.options)}
        outcome = await _put(door, {**given, **sealed}, replace, expected)
        if outcome != "conflict":
            return outcome
    raise JobConflict(f"there is a job {job.name!r} with another definition; replace=True changes it")


async def _put(door: Door, given: Mapping[str, Any], replace: bool, expected: int | None) -> str:
    return str((await door.row("put_job", msgspec.json.encode(given).decode(), replace, expected))[1])


async def _is_the_same(door: Door, job: JobDefinition, given: Mapping[str, Any], sealer: Sealer) -> bool:
    """Whether the stored job, opened, is this one. Nothing is written: a version is expected, and nothing may be replaced."""
    row = await door.row("find_job", job.name, None)
    if row is None:
        return False
    stored = msgspec.json.decode(row[0])
    options, opened = stored["options"] or {}, sealer.open_steps(stored["options"]) or {}
    try:
        payload = sealer.opened(stored["payload"], stored["task"])
    except PayloadUnreadable:
        return False
    mine = job.options or {}
    if payload != msgspec.json.decode(job.payload) or opened.get("then") != mine.get("then"):
        return False
    kept = {**mine, "then": options["then"]} if "then" in options else job.options
    as_stored = {**given, "payload": stored["payload"], "options": kept}
    return await _put(door, as_stored, False, stored["version"]) == "unchanged"


Define = Callable[[Sequence[Mapping[str, Any]]], list[JobDefinition]]


async def prepare(
    database: Database, job: JobDefinition, now: datetime, number: int | None, *, sees_commits: bool
) -> dict[str, Any]:
    """What is settled before a transaction of the caller's, so that it keeps nobody waiting and loses nothing."""
    if job.schedule.kind == "once":
        return {"apart": True}
    if not sees_commits:
        return {}
    # What the job does is no matter of its schedule's, and not to be seen in passing.
    plain = msgspec.json.encode({**job.plain(0, now), "payload": None, "options": None}).decode()
    return {"id": await database.fetchval("reserve_schedule", plain, number)}


class BulkJobs:
    """Jobs by COPY, all of them or none. Those whose name is taken go the ordinary way, one by one.

    While the database takes in one part, the next one is being checked, in a thread: most of either time is the other's to use.
    """

    def __init__(
        self,
        database: Database,
        connection: asyncpg.Connection,
        lane: Callable[[str], Awaitable[int]],
        now: datetime,
        *,
        own: bool,
    ) -> None:
        self._database = database
        self._own = own
        """Whether the transaction is ours and ends when we are done."""
        self._sql = database.sql
        self._schema = database.schema
        self._connection = connection
        self._lane = lane
        self._defined_at = now
        self._once: list[tuple[datetime, int, int]] = []

    async def put(self, given: Iterator[Mapping[str, Any]], define: Define, replace: bool, progress: Progress) -> dict[str, int]:
        counts = {"added": 0, "replaced": 0, "unchanged": 0}
        part = list(islice(given, CHUNK))
        checking = asyncio.ensure_future(asyncio.to_thread(define, part))
        try:
            while part:
                jobs = await checking
                part = list(islice(given, CHUNK))
                checking = asyncio.ensure_future(asyncio.to_thread(define, part))
                await self._put(jobs, replace, counts)
                progress(len(jobs))
        finally:
            await asyncio.wait([checking])
            checking.cancelled() or checking.exception()
        await self._mind_the_moment()
        # One word for all of them: every scheduler looks at its shards.
        await self._connection.execute(self._sql["notify"], ["l"])
        return counts

    async def _mind_the_moment(self) -> None:
        """One-offs whose instant has come while all this went on may have been fired without these jobs, which nobody could
        see yet: those start by themselves."""
        now: datetime = await self._connection.fetchval(self._sql["present"])
        soon = [(number, schedule) for anchor, number, schedule in self._once if anchor < now + _SOON]
        if soon:
            await self._connection.execute(self._sql["bump_schedules"], sorted({schedule for _, schedule in soon}))
            await self._connection.fetch(self._sql["late_jobs"], [number for number, _ in soon])

    async def _put(self, jobs: list[JobDefinition], replace: bool, counts: dict[str, int]) -> None:
        names = [job.name for job in jobs]
        if len(set(names)) < len(names):
            raise InvalidOption(f"the name {next(one for one in names if names.count(one) > 1)!r} comes twice")
        taken = {row[0] for row in await self._connection.fetch(self._sql["taken_names"], names)}
        fresh = [job for job in jobs if job.name not in taken]
        if fresh:
            await self._copy(fresh)
            counts["added"] += len(fresh)
        door = CallersDoor(self._connection, self._sql)
        for job in jobs:
            if job.name in taken:
                # This transaction may last: a one-off must not share a schedule that is fired meanwhile.
                apart = {"apart": job.schedule.kind == "once"}
                lane = lane_of(await self._lane(job.queue), job.priority)
                outcome = await put_job(
                    door, job, lane, await present(door), sealer=self._database.sealer, replace=replace, prepared=apart
                )
                counts[outcome] += 1

    async def _copy(self, jobs: Sequence[JobDefinition]) -> None:
        connection, sql = self._connection, self._sql
        now: datetime = await connection.fetchval(sql["present"])
        places = [(row[0], row[1]) for row in await connection.fetch(sql["reserve_jobs"], len(jobs))]
        rows = {}
        for job, (number, shard) in zip(jobs, places, strict=True):
            key = self._key(job, number, shard)
            if key not in rows:
                # As it was computed when the job was checked, unless that instant has come meanwhile.
                first = job.first_run_at(self._defined_at)
                rows[key] = first if first is not None and first > now else job.first_run_at(now)
        keys = sorted(rows, key=_in_order)
        schedules = dict(zip(keys, await self._schedules(keys, [rows[key] for key in keys]), strict=True))
        lanes = {kind: lane_of(await self._lane(kind[0]), kind[1]) for kind in {(job.queue, job.priority) for job in jobs}}
        records = []
        sealed = await asyncio.to_thread(self._sealed, jobs) if self._database.sealer.active else jobs
        for job, (number, shard) in zip(sealed, places, strict=True):
            one = job.schedule
            schedule = schedules[self._key(job, number, shard)]
            active = now
            if one.kind == "once" and one.anchor is not None:
                active = min(now, one.anchor)
                if self._own:
                    self._once.append((one.anchor, number, schedule))
            records.append((
                number, schedule, active, job.start_at, job.end_at, now, now, lanes[job.queue, job.priority], job.max_missed,
                job.misfire_grace, job.flexible_window, job.max_runs, shard, job.name, job.task, job.payload, job.missed_window,
                None if job.overlap == "allow" else job.overlap, list(job.tags) or None,
                None if job.options is None else msgspec.json.encode(job.options).decode(),
            ))  # fmt: skip
        try:
            await connection.copy_records_to_table("jobs", schema_name=self._schema, columns=_COLUMNS, records=records)
        except asyncpg.UniqueViolationError as error:
            raise JobConflict(f"somebody else is adding one of these jobs at this moment: {error.detail}") from None

    def _sealed(self, jobs: Sequence[JobDefinition]) -> Sequence[JobDefinition]:
        sealer = self._database.sealer
        return [
            dataclasses.replace(job, payload=sealer.seal(job.payload, job.task), options=sealer.seal_steps(job.options))
            for job in jobs
        ]

    def _key(self, job: JobDefinition, number: int, shard: int) -> tuple[Any, ...]:
        one = job.schedule
        # In a transaction that may commit after its instant, a one-off must not share a schedule that is fired meanwhile.
        expression = f"once {number}" if one.kind == "once" and not self._own else one.expression
        return shard, one.kind, expression, one.timezone, one.dst, one.anchor

    async def _schedules(self, keys: list[tuple[Any, ...]], first: list[datetime | None]) -> list[int]:
        """Their numbers; made where they are not there yet, and held against removal."""
        columns = [list(column) for column in zip(*keys, strict=True)]
        shareable = not self._own and any(key[1] != "once" for key in keys)
        if shareable and await sees_commits(CallersDoor(self._connection, self._sql)):
            # Outside of the caller's transaction, which would keep everybody else from the same new schedules.
            shared = [place for place, key in enumerate(keys) if key[1] != "once"]
            some = [[column[place] for place in shared] for column in (*columns, first)]
            made = await self._database.fetch("make_schedules", *some)
            await self._database.fetch("mark_loose", [row[0] for row in made])
        made = await self._connection.fetch(self._sql["make_schedules"], *columns, first)
        # All new, as a rule; if not, they are looked up.
        found = made if len(made) == len(keys) else await self._connection.fetch(self._sql["schedule_numbers"], *columns)
        if len(found) < len(keys):
            raise InvalidOption("a schedule was removed while its jobs were being added; try again")
        return [row[0] for row in found]


def _in_order(key: tuple[Any, ...]) -> tuple[Any, ...]:
    *rest, anchor = key
    return (*rest, anchor is not None, anchor or _SOME)
