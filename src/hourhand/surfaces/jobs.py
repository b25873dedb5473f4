"""The verbs on jobs: `app.jobs`.

Each comes in two forms: awaited, and for callers without an event loop through `app.sync(...)` or, inside a
transaction of theirs, `..._sync(connection=...)`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import count, islice
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

from hourhand.core import ids
from hourhand.core.account import MOMENT, UNEXPLAINED, Account, Line
from hourhand.core.errors import InvalidOption, NotPossible, UnknownJob
from hourhand.core.fairness import lane_of
from hourhand.core.job import MISSED, JobDefinition, JobOptions, define_job, job_options
from hourhand.core.options import EnqueueOptions, merge
from hourhand.core.payload import encode_untyped
from hourhand.storage import foreign, statements
from hourhand.storage.atomic import joined, joined_sync
from hourhand.storage.database import Database
from hourhand.storage.jobs import (
    BulkJobs,
    CallersDoor,
    CallersSyncDoor,
    Door,
    OwnDoor,
    prepare,
    present,
    put_job,
    run_now,
    sees_commits,
)
from hourhand.surfaces.past import Backfill, gather_facts, not_expected, plan_backfill
from hourhand.surfaces.stored import StoredJob, changed
from hourhand.surfaces.verbs import Verbs, check
from hourhand.surfaces.views import Audit, BulkAdded, JobView, Resumed, RunView, Triggered

if TYPE_CHECKING:
    from hourhand.surfaces.app import Hourhand

T = TypeVar("T")
STATES = ("active", "paused", "finished")
MOST_LINES = 100_000
BACKFILL_CHUNK = 500
JobViews = list[JobView]
RunViews = list[RunView]
Instants = list[datetime]
Lines = list[Line]


class Jobs(Verbs):
    def __init__(self, app: Hourhand) -> None:
        super().__init__(app._database)
        self._app = app
        self._queues: dict[str, int] = {}

    # Adding and changing

    async def add(
        self, name: str, *, task: Any = None, schedule: str | None = None, replace: bool = False, connection: Any = None,
        **options: Any,
    ) -> JobView:  # fmt: skip
        """Register a job. The same definition again changes nothing; another one is a conflict, unless `replace`.

        `schedule`: cron, `every 90s`, `in 10m`, or an ISO 8601 instant. Options: timezone, payload, queue, priority, dst,
        anchor, missed_window, max_missed, misfire_grace, overlap, flexible_window, start_at, end_at, max_runs, max_attempts,
        timeout, delivery, idempotency_key_template, tags, then. `connection`: a transaction of yours; the job exists if and only if it commits.
        """
        given = job_options({"task": task, "schedule": schedule, **options})
        await self._queue_number(given.queue, given.task or name)
        connection = connection or await joined()
        return await self._add(await self._door(connection), name, given, replace, connection is not None)

    def add_sync(
        self, name: str, *, task: Any = None, schedule: str | None = None, replace: bool = False, connection: Any = None,
        **options: Any,
    ) -> JobView:  # fmt: skip
        """The same for callers without an event loop."""
        connection = connection or joined_sync()
        if connection is None:
            return self._app.sync(self.add(name, task=task, schedule=schedule, replace=replace, **options))
        given = job_options({"task": task, "schedule": schedule, **options})
        self._app.sync(self._queue_number(given.queue, given.task or name))
        view: JobView = run_now(self._add(self._sync_door(connection), name, given, replace, True))
        return view

    async def _add(self, door: Door, name: str, given: JobOptions, replace: bool, foreign: bool) -> JobView:
        now = await present(door)
        job = define_job(name, given, now=now, registry=self._app.registry)
        prepared = await self._prepare(door, job, now) if foreign else {}
        if replace and (row := await door.row("find_job", name, None)) is not None:
            prepared["due"] = StoredJob.of(row[0]).due()
        outcome = await put_job(door, job, self._lane(job), now, replace=replace, prepared=prepared)
        return (await self._find(door, name)).view(outcome)

    async def update(self, name: str, *, connection: Any = None, **changes: Any) -> JobView:
        """Change what is named and leave the rest. A job whose schedule stays keeps its pending firing."""
        await self._queue_number(changes.get("queue"), changes.get("task"))
        connection = connection or await joined()
        return await self._update(await self._door(connection), name, changes, connection is not None)

    def update_sync(self, name: str, *, connection: Any = None, **changes: Any) -> JobView:
        connection = connection or joined_sync()
        if connection is None:
            return self._app.sync(self.update(name, **changes))
        self._app.sync(self._queue_number(changes.get("queue"), changes.get("task")))
        view: JobView = run_now(self._update(self._sync_door(connection), name, changes, True))
        return view

    async def _update(self, door: Door, name: str, changes: dict[str, Any], foreign: bool) -> JobView:
        for _ in range(10):
            stored = await self._find(door, name)
            job, now = changed(stored, changes, self._app.registry), stored.present
            prepared = {**(await self._prepare(door, job, now, stored.number) if foreign else {}), "due": stored.due()}
            outcome = await put_job(
                door, job, self._lane(job), now, replace=True, expected=stored.version, prepared=prepared
            )  # fmt: skip
            if outcome != "changed":
                return (await self._find(door, job.name)).view(outcome)
        raise NotPossible(f"job {name!r} is being changed by others all the time; try again")

    async def delete(self, name: str, *, connection: Any = None) -> None:
        """The job goes; its runs, waiting or ended, stay."""
        await self._delete(await self._door(connection or await joined()), name)

    def delete_sync(self, name: str, *, connection: Any = None) -> None:
        self._now(connection, lambda door: self._delete(door, name))

    async def _delete(self, door: Door, name: str) -> None:
        stored = await self._find(door, name)
        if not (await door.row("delete_job", stored.number))[0]:
            raise UnknownJob(f"there is no job {name!r}")

    async def add_many(
        self, jobs: Iterable[Mapping[str, Any]], *, replace: bool = False, connection: asyncpg.Connection | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> BulkAdded:  # fmt: skip
        """Register many jobs by COPY: all of them, or, if one cannot be, none. Each is a mapping of what `add` takes.

        `progress` is called with the number of jobs of each part that is in.
        """
        if connection is not None and foreign.driver_of(connection) != "asyncpg":
            raise InvalidOption("add_many copies over asyncpg; in another driver's transaction use add in a loop")
        database, gateway = (opened := await self._app._open()).database, opened.gateway
        now = await present(OwnDoor(database))
        tell = progress or (lambda count: None)
        checked = count(1)

        def define(part: Sequence[Mapping[str, Any]]) -> list[JobDefinition]:
            return [self._numbered(next(checked), one, now) for one in part]

        async def work(own: asyncpg.Connection) -> dict[str, int]:
            async with own.transaction():
                return await BulkJobs(database, own, gateway.queue_number, now, own=connection is None).put(
                    iter(jobs), define, replace, tell
                )

        counts = await (work(connection) if connection is not None else database.using(work))
        return BulkAdded(**counts)

    def _numbered(self, place: int, given: Mapping[str, Any], now: datetime) -> JobDefinition:
        try:
            rest = dict(given)
            return define_job(rest.pop("name", ""), job_options(rest), now=now, registry=self._app.registry)
        except (ValueError, TypeError) as error:
            raise InvalidOption(f"job number {place}: {error}. Nothing was added") from error

    # Looking

    async def show(self, name: str) -> JobView:
        """By name, or by id (`j_…`)."""
        return (await self._find(await self._door(None), name)).view()

    async def list(
        self, *, state: str | None = None, task: str | None = None, queue: str | None = None, tag: str | None = None,
        search: str | None = None, after: str | None = None, limit: int = 100,
    ) -> JobViews:  # fmt: skip
        """By name. `search`: a part of the name; `after`: the last name of the page before."""
        if state is not None and state not in STATES:
            raise InvalidOption(f"{state!r} is no state of a job; there are {', '.join(STATES)}")
        check(limit=limit)
        database = await self._app._database()
        number = await self._queue(database, queue)
        rows = await database.fetch("list_jobs", after, task, number, tag, search, state, limit)
        return [StoredJob.of(row[0]).view() for row in rows]

    async def next(self, name: str, limit: int = 10) -> Instants:
        """The next firings of a job, within its own limits."""
        check(limit=limit)
        stored = await self._find(await self._door(None), name)
        return [] if stored.paused_at else list(islice(stored.upcoming_firings(), limit))

    async def runs(self, name: str, limit: int = 20) -> RunViews:
        """The job's latest runs, by the instant they are for."""
        check(limit=limit)
        database = await self._app._database()
        number = await self._number(database, name)
        rows = await database.fetch("job_runs", number, limit)
        names = await self._names(database)
        return [RunView.of(row, names) for row in rows]

    # Holding and starting

    async def pause(self, name: str, *, connection: Any = None) -> JobView:
        """From now on it does not fire. A firing that is due at this moment still is its own."""
        return await self._pause(await self._door(connection or await joined()), name)

    def pause_sync(self, name: str, *, connection: Any = None) -> JobView:
        return self._now(connection, lambda door: self._pause(door, name))

    async def _pause(self, door: Door, name: str) -> JobView:
        stored = await self._find(door, name)
        await door.row("pause_job", stored.number)
        return (await self._find(door, stored.definition.name)).view()

    async def resume(self, name: str, *, missed: str | None = None, connection: Any = None) -> Resumed:
        """It fires again. What it missed is treated by its missed-window policy, or by `missed`."""
        return await self._resume(await self._door(connection or await joined()), name, missed)

    def resume_sync(self, name: str, *, missed: str | None = None, connection: Any = None) -> Resumed:
        return self._now(connection, lambda door: self._resume(door, name, missed))

    async def _resume(self, door: Door, name: str, missed: str | None) -> Resumed:
        if missed is not None and missed not in MISSED:
            raise InvalidOption(f"missed must be one of {', '.join(MISSED)}, not {missed!r}")
        stored = await self._find(door, name)
        instants: Instants = []
        if stored.paused_at is not None:
            instants = stored.firings_since(min(one for one in (stored.paused_at, stored.next_run_at) if one is not None))
        row = await door.row("resume_job", stored.number, instants, missed)
        return Resumed((await self._find(door, stored.definition.name)).view(), row[1], row[2])

    async def trigger(
        self, name: str, *, payload: Mapping[str, Any] | None = None, force: bool = False, connection: Any = None
    ) -> Triggered:
        """A run here and now, besides the schedule. `force`: even if the job's overlap policy would hold or skip it."""
        return await self._trigger(await self._door(connection or await joined()), name, payload, force)

    def trigger_sync(
        self, name: str, *, payload: Mapping[str, Any] | None = None, force: bool = False, connection: Any = None
    ) -> Triggered:
        return self._now(connection, lambda door: self._trigger(door, name, payload, force))

    async def _trigger(self, door: Door, name: str, payload: Mapping[str, Any] | None, force: bool) -> Triggered:
        stored = await self._find(door, name)
        text = None
        if payload is not None:
            task = self._app.registry.find(stored.definition.task)
            text = task.codec.encode(payload) if task else encode_untyped(stored.definition.task, payload)
        run, outcome = tuple(await door.row("trigger_job", stored.number, text, force))[:2]
        return Triggered(None if run is None else ids.run_id(run), outcome)

    # The past, again

    async def backfill(
        self, name: str, since: datetime, until: datetime, *, dry_run: bool = False, cap: int = 1_000, rate: float = 10.0,
        order: str = "oldest", again: bool = False, progress: Callable[[Backfill], None] | None = None,
    ) -> Backfill:  # fmt: skip
        """Runs for the firings of a past period, [since, until), that have not succeeded.

        `cap`: more than that is refused. `rate`: how many start in a second. `order`: `oldest` or `newest` first. Asked for
        twice, it makes each run once; `again` makes them all anew, those that succeeded included.
        """
        database = await self._app._database()
        stored = await self._find(OwnDoor(database), name)
        planned = await plan_backfill(database, stored, since, until, cap=cap, rate=rate, order=order, again=again)
        planned.dry_run = dry_run
        if dry_run:
            return planned
        for begun in range(0, len(planned.instants), BACKFILL_CHUNK):
            part = planned.instants[begun : begun + BACKFILL_CHUNK]
            rows = await database.fetch("backfill_job", stored.number, part, rate, begun, again)
            planned.runs += [(row[0], row[1]) for row in rows]
            if progress is not None:
                progress(planned)
        return planned

    async def follow(self, backfill: Backfill) -> AsyncIterator[Backfill]:
        """A look at how far a backfill is, each time the caller asks; ends when all of its runs have."""
        database = await self._app._database()
        runs, instants = [run for run, _ in backfill.runs], [at for _, at in backfill.runs]
        while backfill.ended < len(runs):
            row = await database.fetchrow("ended_runs", runs, instants)
            assert row is not None
            backfill.succeeded, backfill.ended = row["succeeded"], row["ended"]
            yield backfill

    async def cancel_backfill(self, name: str, since: datetime, until: datetime) -> int:
        """Call off what backfills of this period have not started yet, and forget it, so that it can be asked for again."""
        check(since=since, until=until)
        database = await self._app._database()
        number = await self._number(database, name)
        # The last first: of runs that wait for each other, none moves up to be called off.
        runs = sorted((row["run_id"] for row in await database.fetch("pending_backfill", number, since, until)), reverse=True)
        called_off = [run for run in runs if await database.fetchval("cancel_pending", run, "the backfill was called off")]
        await database.fetch("forget_backfill", number, called_off)
        return len(called_off)

    # The record

    async def why(self, name: str, *, at: datetime | None = None, since: datetime | None = None, until: datetime | None = None) -> Lines:  # fmt: skip
        """What became of every firing expected at `at`, or from `since` (default: a day ago) until `until` (default: now)."""
        stored, account, low, high = await self._account(name, at, since, until)
        lines = list(islice(account.lines(low, high), MOST_LINES + 1))
        if len(lines) > MOST_LINES:
            raise InvalidOption(f"the period has more than {MOST_LINES:,} firings; narrow it")
        lines = sorted([*lines, *account.besides()], key=lambda line: line.scheduled_at)
        if at is not None and not lines:
            raise NotPossible(not_expected(stored, at))
        return lines

    async def audit(self, name: str, since: datetime, until: datetime) -> Audit:
        """The proof: every firing expected in [since, until) has exactly one recorded outcome, or these have not."""
        _, account, low, high = await self._account(name, None, since, until)
        expected, due, unexplained = 0, 0, []
        for line in account.lines(low, high):
            expected += 1
            due += line.outcome == "due"
            if line.outcome == UNEXPLAINED:
                unexplained.append(line.scheduled_at)
        return Audit(expected, due, tuple(unexplained), tuple(sorted(account.doubles)))

    async def _account(
        self, name: str, at: datetime | None, since: datetime | None, until: datetime | None
    ) -> tuple[StoredJob, Account, datetime, datetime]:
        check(at=at, since=since, until=until)
        database = await self._app._database()
        stored = await self._find(OwnDoor(database), name)
        if at is not None:
            low, high = at, at + timedelta(seconds=1) if not at.microsecond else at + MOMENT
        else:
            low = since or stored.present - timedelta(days=1)
            high = until or stored.present
        if low >= high:
            raise InvalidOption("the period is empty: until must be after since")
        return stored, Account(await gather_facts(database, stored, low, high)), low, high

    # Helpers

    async def _door(self, connection: Any) -> Door:
        database = await self._app._database()
        return OwnDoor(database) if connection is None else CallersDoor(connection, database.sql)

    def _now(self, connection: Any, work: Callable[[Door], Coroutine[Any, Any, T]]) -> T:
        """For callers without an event loop: on the connection they gave, or on one of ours."""
        connection = connection or joined_sync()
        if connection is not None:
            result: T = run_now(work(self._sync_door(connection)))
            return result

        async def own() -> T:
            return await work(await self._door(None))

        return self._app.sync(own())

    def _sync_door(self, connection: Any) -> Door:
        return CallersSyncDoor(connection, statements.load(self._app.settings.schema))

    async def _prepare(self, door: Door, job: JobDefinition, now: datetime, number: int | None = None) -> dict[str, Any]:
        sees = await sees_commits(door)

        async def work() -> dict[str, Any]:
            return await prepare(await self._app._database(), job, now, number, sees_commits=sees)

        return self._app.sync(work()) if isinstance(door, CallersSyncDoor) else await work()

    async def _find(self, door: Door, name: str) -> StoredJob:
        if not isinstance(name, str) or "\0" in name:
            raise UnknownJob(f"{name!r} is neither the name nor the id of a job")
        row = await door.row("find_job", name, ids.parse_job_id(name))
        if row is None:
            raise UnknownJob(f"there is no job {name!r}")
        stored = StoredJob.of(row[0])
        self._queues[stored.definition.queue] = stored.queue_number
        return stored

    async def _number(self, database: Database, name: str) -> int:
        return (await self._find(OwnDoor(database), name)).number

    async def _queue_number(self, queue: str | None, task: Any) -> None:
        """Known before any transaction of the caller's is touched: a new queue must not wait for its end."""
        name = getattr(task, "name", task)
        definition = self._app.registry.find(name) if isinstance(name, str) else None
        for one in {queue, definition.queue if definition else "default"} - {None}:
            if isinstance(one, str) and one not in self._queues:
                checked = merge(EnqueueOptions(), {"queue": one}).queue
                self._queues[one] = await (await self._app._open()).gateway.queue_number(checked or one)

    def _lane(self, job: JobDefinition) -> int:
        return lane_of(self._queues[job.queue], job.priority)
