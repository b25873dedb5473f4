"""The verbs on jobs: `app.jobs`.

Each comes in two forms: awaited, and for callers without an event loop through `app.sync(...)` or, inside a
transaction of theirs, `..._sync(connection=...)`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import count, islice
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg
import msgspec

from hourhand.core import ids
from hourhand.core.account import MOMENT, UNEXPLAINED, Account, Line
from hourhand.core.actor import ACTOR
from hourhand.core.chain import need_steps
from hourhand.core.errors import Forbidden, InvalidOption, InvalidPayload, NotPossible, PreconditionFailed, UnknownJob
from hourhand.core.fairness import lane_of
from hourhand.core.job import MISSED, JobDefinition, JobOptions, define_job, job_options
from hourhand.core.options import EnqueueOptions, merge
from hourhand.core.payload import encode_untyped
from hourhand.core.redaction import REDACTED, check_destination, marks_in, mentions, redact, restore
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
from hourhand.surfaces.auditing import changing, described, differences, payload_for_record, record, record_many
from hourhand.surfaces.past import Backfill, gather_facts, not_expected, plan_backfill
from hourhand.surfaces.stored import StoredJob, changed
from hourhand.surfaces.verbs import Verbs, check
from hourhand.surfaces.views import Audit, BulkAdded, JobView, Resumed, RunView, Triggered

if TYPE_CHECKING:
    from hourhand.surfaces.app import Hourhand

T = TypeVar("T")
STATES = ("active", "paused", "finished")
MOST_LINES = 100_000
MOST_PROVEN = 200_000
"""More than the firings of 90 days, one each minute."""
BACKFILL_CHUNK = 500
EACH_RECORDED = 20_000
"""Jobs of one `add_many` up to which the audit log has an entry for each."""
VETTED_AT_ONCE = 200
JobViews = list[JobView]
RunViews = list[RunView]
Instants = list[datetime]
Lines = list[Line]


class Jobs(Verbs):
    def __init__(self, app: Hourhand) -> None:
        super().__init__(app._database, app.name)
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
        timeout, delivery, retry_backoff, retry_base, retry_cap, idempotency_key_template, tags, secret, then. `connection`: a transaction of yours; the job exists if and only if it commits.
        """
        given = job_options({"task": task, "schedule": schedule, **options})
        await self._queue_number(given.queue, given.task or name)
        await self._vet(given.task or name, given.payload)
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
        self._app.sync(self._vet(given.task or name, given.payload))
        view: JobView = run_now(self._add(self._sync_door(connection), name, given, replace, True))
        return view

    async def _add(self, door: Door, name: str, given: JobOptions, replace: bool, foreign: bool) -> JobView:
        now = await present(door)
        hides = mentions(given.payload)
        if hides:
            given = await self._unredacted(door, name, given)
        job = define_job(name, given, now=now, registry=self._app.registry)
        self._need(job)
        if hides:
            await self._vet_stored(door, job)
        prepared = await self._prepare(door, job, now) if foreign else {}
        async with changing(door):
            row = await door.row("find_job", name, None) if replace else None
            before = None if row is None else StoredJob.of(row[0], self._app._sealer)
            if before is not None:
                self._actor.need(before.definition.queue, name, f"job {name!r} in queue {before.definition.queue!r}")
                prepared["due"] = before.due()
            outcome = await put_job(door, job, self._lane(job), now, sealer=self._app._sealer, replace=replace, prepared=prepared)
            view = (await self._find(door, name)).view(outcome)
            if outcome != "unchanged":
                await self._note(door, "job.add" if outcome == "added" else "job.update", before.view() if before else None, view)
        return view

    async def _note(self, door: Door, action: str, before: JobView | None, after: JobView | None) -> None:
        """For the record: of a job that changed, what changed."""
        job = after or before
        assert job is not None
        names, sealer = self._app.settings.secret_names, self._app._sealer
        was, now = (None if one is None else described(one, names, sealer) for one in (before, after))
        if was is not None and now is not None:
            payloads = was["payload"], now["payload"]
            was, now = differences(was, now)
            if before is not None and after is not None and before.payload != after.payload:
                # Also where a secret was all that changed, and both look alike.
                was["payload"], now["payload"] = payloads
        await record(door, self._app.name, action, subject=job.job_id, name=job.name, queue=job.queue, before=was, after=now)

    async def update(self, name: str, *, version: int | None = None, connection: Any = None, **changes: Any) -> JobView:
        """Change what is named and leave the rest. A job whose schedule stays keeps its pending firing.

        `version`: only if it is still this one.
        """
        await self._queue_number(changes.get("queue"), changes.get("task"))
        connection = connection or await joined()
        return await self._update(await self._door(connection), name, changes, connection is not None, version)

    def update_sync(self, name: str, *, connection: Any = None, **changes: Any) -> JobView:
        connection = connection or joined_sync()
        if connection is None:
            return self._app.sync(self.update(name, **changes))
        self._app.sync(self._queue_number(changes.get("queue"), changes.get("task")))
        view: JobView = run_now(self._update(self._sync_door(connection), name, changes, True))
        return view

    async def _update(self, door: Door, name: str, changes: dict[str, Any], foreign: bool, version: int | None = None) -> JobView:
        for _ in range(10):
            stored = await self._find(door, name)
            _check_version(stored, version)
            job, now = changed(stored, self._restored(stored, changes), self._app.registry), stored.present
            if "payload" in changes or "task" in changes:
                await self._vet_stored(door, job)
            prepared = {**(await self._prepare(door, job, now, stored.number) if foreign else {}), "due": stored.due()}
            self._need(job, steps="then" in changes)
            async with changing(door):
                outcome = await put_job(
                    door, job, self._lane(job), now, sealer=self._app._sealer, replace=True, expected=stored.version,
                    prepared=prepared,
                )  # fmt: skip
                if outcome != "changed":
                    view = (await self._find(door, job.name)).view(outcome)
                    if outcome != "unchanged":
                        await self._note(door, "job.update", stored.view(), view)
                    return view
        raise NotPossible(f"job {name!r} is being changed by others all the time; try again")

    async def delete(self, name: str, *, version: int | None = None, connection: Any = None) -> None:
        """The job goes; its runs, waiting or ended, stay. `version`: only if it is still this one."""
        await self._delete(await self._door(connection or await joined()), name, version)

    def delete_sync(self, name: str, *, connection: Any = None) -> None:
        self._now(connection, lambda door: self._delete(door, name))

    async def _delete(self, door: Door, name: str, version: int | None = None) -> None:
        async with changing(door):
            stored = await self._find(door, name)
            if version is not None:
                # As it is now that nobody else can change it any more.
                await door.row("lock_job", stored.number)
                stored = await self._find(door, name)
                _check_version(stored, version)
            if not (await door.row("delete_job", stored.number))[0]:
                raise UnknownJob(f"there is no job {name!r}")
            await self._note(door, "job.delete", stored.view(), None)

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
        checked, loop = count(1), asyncio.get_running_loop()

        def define(part: Sequence[Mapping[str, Any]]) -> list[JobDefinition]:
            numbered = [(place, self._numbered(place, one, now)) for one in part for place in [next(checked)]]
            # This is a thread; what vets a payload may have to wait for others.
            asyncio.run_coroutine_threadsafe(self._vet_many(numbered), loop).result()
            if replace and self._actor.scoped:
                asyncio.run_coroutine_threadsafe(self._permit_many(database, numbered), loop).result()
            return [job for _, job in numbered]

        named = [str(one.get("name")) for one in jobs] if isinstance(jobs, list) and len(jobs) <= EACH_RECORDED else None

        async def work(own: asyncpg.Connection) -> dict[str, int]:
            async with own.transaction():
                before = await self._views(own, named) if named is not None else {}
                counts = await BulkJobs(database, own, gateway.queue_number, now, own=connection is None).put(
                    iter(jobs), define, replace, tell
                )
                if counts["added"] or counts["replaced"]:
                    await self._note_many(own, named, before, counts)
                return counts

        counts = await (work(connection) if connection is not None else database.using(work))
        return BulkAdded(**counts)

    async def _views(self, own: asyncpg.Connection, names: list[str]) -> dict[str, JobView]:
        rows = await own.fetch((await self._app._database()).sql["find_jobs"], names)
        sealer = self._app._sealer
        return await asyncio.to_thread(lambda: {one.name: one for one in (StoredJob.of(row[0], sealer).view() for row in rows)})

    async def _note_many(
        self, own: asyncpg.Connection, named: list[str] | None, before: dict[str, JobView], counts: dict[str, int]
    ) -> None:
        """Each of them, if they came as a list that is not too long; of a stream of a million, how many."""
        door = CallersDoor(own, (await self._app._database()).sql)
        if named is None:
            await record(door, self._app.name, "jobs.add", after=counts)
            return
        after, names, sealer = await self._views(own, named), self._app.settings.secret_names, self._app._sealer

        def entries() -> list[dict[str, Any]]:
            found = []
            for job in after.values():
                was, now = before.get(job.name), described(job, names, sealer)
                old, new = (None, now) if was is None else differences(described(was, names, sealer), now)
                if was is None or was.version != job.version:
                    action = "job.add" if was is None else "job.update"
                    about = {"subject": job.job_id, "name": job.name, "queue": job.queue}
                    found.append({"action": action, **about, "before": old, "after": new})
            return found

        await record_many(door, self._app.name, await asyncio.to_thread(entries))

    def _numbered(self, place: int, given: Mapping[str, Any], now: datetime) -> JobDefinition:
        try:
            rest = dict(given)
            if "payload" in rest:
                rest["payload"] = restore(rest["payload"], None)
            job = define_job(rest.pop("name", ""), job_options(rest), now=now, registry=self._app.registry)
            self._need(job)
            return job
        except Forbidden as error:
            raise Forbidden(f"job number {place}: {error}. Nothing was added") from None
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
        actor = ACTOR.get()
        scope = [None if part is None else [*part] for part in (actor.queues, actor.prefixes)]
        rows = await database.fetch("list_jobs", after, task, number, tag, search, state, limit, *scope)
        return [StoredJob.of(row[0], database.sealer).view() for row in rows]

    async def next(self, name: str, limit: int = 10) -> Instants:
        """The next firings of a job, within its own limits."""
        check(limit=limit)
        stored = await self._find(await self._door(None), name)
        return [] if stored.paused_at else await asyncio.to_thread(list, islice(stored.upcoming_firings(), limit))

    async def runs(self, name: str, limit: int = 20, *, below: tuple[datetime, str] | None = None) -> RunViews:
        """The job's latest runs, by the instant they are for. `below`: that of the last of the page before, and its id."""
        check(limit=limit)
        database = await self._app._database()
        number = await self._number(database, name)
        start = (None, None) if below is None else (below[0], ids.parse_run_id(below[1]))
        rows = await database.fetch("job_runs", number, limit, *start)
        names = await self._names(database)
        return [RunView.of(row, names, database.sealer) for row in rows]

    # Holding and starting

    async def pause(self, name: str, *, connection: Any = None) -> JobView:
        """From now on it does not fire. A firing that is due at this moment still is its own."""
        return await self._pause(await self._door(connection or await joined()), name)

    def pause_sync(self, name: str, *, connection: Any = None) -> JobView:
        return self._now(connection, lambda door: self._pause(door, name))

    async def _pause(self, door: Door, name: str) -> JobView:
        async with changing(door):
            stored = await self._find(door, name)
            await door.row("pause_job", stored.number)
            view = (await self._find(door, stored.definition.name)).view()
            if stored.paused_at is None:
                await self._note(door, "job.pause", stored.view(), view)
        return view

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
        async with changing(door):
            row = await door.row("resume_job", stored.number, instants, missed)
            view = (await self._find(door, stored.definition.name)).view()
            if stored.paused_at is not None:
                await self._note(door, "job.resume", stored.view(), view)
        return Resumed(view, row[1], row[2])

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
            if mentions(payload):
                # Whoever may start a job may say with what, and must not be able to send its secrets somewhere with that.
                raise InvalidPayload(f"a run that is triggered gets this payload as it is: give the value in place of {REDACTED}")
            text = task.codec.encode(payload) if task else encode_untyped(stored.definition.task, payload)
            text = self._app._sealer.seal(text, stored.definition.task)
        async with changing(door):
            run, outcome = tuple(await door.row("trigger_job", stored.number, text, force))[:2]
            done = Triggered(None if run is None else ids.run_id(run), outcome)
            about = {"run_id": done.run_id, "outcome": outcome, "force": force}
            if payload is not None:
                marks, names = marks_in(stored.definition.options), self._app.settings.secret_names
                about["payload"] = payload_for_record(redact(payload, marks, names), self._app._sealer)
            await self._act(door, "job.trigger", stored, about)
        return done

    async def _act(self, door: Door, action: str, stored: StoredJob, after: dict[str, Any]) -> None:
        job = stored.definition
        await record(door, self._app.name, action, subject=ids.job_id(stored.number), name=job.name, queue=job.queue, after=after)

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
            async with database.together():
                rows = await database.fetch("backfill_job", stored.number, part, rate, begun, again)
                if not begun:
                    about = {"since": since, "until": until, "runs": len(planned.instants), "rate": rate, "again": again}
                    await self._act(OwnDoor(database), "job.backfill", stored, about)
            planned.runs += [(row[0], row[1]) for row in rows]
            if progress is not None:
                progress(planned)
        return planned

    async def follow(self, backfill: Backfill) -> AsyncIterator[Backfill]:
        """A look at how far a backfill is, each time the caller asks; ends when all of its runs have."""
        database = await self._app._database()
        while backfill.ended < len(backfill.runs):
            backfill.ended, backfill.succeeded = await _ended(database, backfill.runs, None)
            yield backfill

    async def ended(self, name: str, runs: Sequence[tuple[int, datetime]]) -> tuple[int, int]:
        """Of these runs of the job, each with the instant it is for: how many have ended, and how many of them well."""
        database = await self._app._database()
        return await _ended(database, runs, await self._number(database, name))

    async def cancel_backfill(self, name: str, since: datetime, until: datetime) -> int:
        """Call off what backfills of this period have not started yet, and forget it, so that it can be asked for again."""
        check(since=since, until=until)
        database = await self._app._database()
        stored = await self._find(OwnDoor(database), name)
        number = stored.number
        async with database.together():
            # The last first: of runs that wait for each other, none moves up to be called off.
            runs = sorted((row["run_id"] for row in await database.fetch("pending_backfill", number, since, until)), reverse=True)
            called_off = [run for run in runs if await database.fetchval("cancel_pending", run, "the backfill was called off")]
            await database.fetch("forget_backfill", number, called_off)
            about = {"since": since, "until": until, "called_off": len(called_off)}
            await self._act(OwnDoor(database), "job.cancel_backfill", stored, about)
        return len(called_off)

    # The record

    async def why(self, name: str, *, at: datetime | None = None, since: datetime | None = None, until: datetime | None = None) -> Lines:  # fmt: skip
        """What became of every firing expected at `at`, or from `since` (default: a day ago) until `until` (default: now)."""
        stored, account, low, high = await self._account(name, at, since, until)
        lines = await _counted(account.lines(low, high), MOST_LINES)
        lines = sorted([*lines, *account.besides()], key=lambda line: line.scheduled_at)
        if at is not None and not lines:
            raise NotPossible(not_expected(stored, at))
        return lines

    async def audit(self, name: str, since: datetime, until: datetime) -> Audit:
        """The proof: every firing expected in [since, until) has exactly one recorded outcome, or these have not."""
        _, account, low, high = await self._account(name, None, since, until)
        expected, due, unexplained = 0, 0, []
        for line in await _counted(account.lines(low, high), MOST_PROVEN):
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
        stored = StoredJob.of(row[0], self._app._sealer)
        if not ACTOR.get().may_touch(stored.definition.queue, stored.definition.name):
            raise UnknownJob(f"there is no job {name!r} among what {ACTOR.get().name} may see")
        self._queues[stored.definition.queue] = stored.queue_number
        return stored

    def _restored(self, stored: StoredJob, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Changes by somebody who may have seen the payload redacted: what was hidden from him stays what it is, and hidden."""
        made, job = dict(changes), stored.definition
        marks = marks_in(job.options)
        hides = mentions(made.get("payload"))
        if isinstance(made.get("secret"), (list, tuple)) and (hides or "payload" not in made):
            # A value that he has not given himself is not shown to him because he says that it is no secret.
            made["secret"] = (*marks, *made["secret"])
        if hides:
            every, original = (*marks, *self._app.registry.marks_of(job.task)), msgspec.json.decode(job.payload)
            made["payload"] = restore(made["payload"], original, every, self._app.settings.secret_names)
            check_destination(made.get("task") or job.task, original, made["payload"])
        return made

    async def _unredacted(self, door: Door, name: str, given: JobOptions) -> JobOptions:
        """The same for a job that is given whole: what it hides is what the job of its name has there."""
        row = await door.row("find_job", name, None)
        stored = None if row is None else StoredJob.of(row[0], self._app._sealer)
        if stored is None or not self._actor.may_touch(stored.definition.queue, name):
            return dataclasses.replace(given, payload=restore(given.payload, None))
        return dataclasses.replace(given, **self._restored(stored, {"payload": given.payload, "secret": given.secret}))

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

    async def _vet(self, task: Any, payload: Any) -> None:
        """What a target has against a payload, beyond its types: known before any transaction of the caller's is touched."""
        name = getattr(task, "name", task)
        definition = self._app.registry.find(name) if isinstance(name, str) else None
        # What hides something is vetted when that has been put back.
        if definition is not None and definition.vet is not None and not mentions(payload):
            await definition.vet({} if payload is None else payload)

    async def _vet_stored(self, door: Door, job: JobDefinition) -> None:
        """The same for a payload that is known only when the stored one has been looked at."""
        vetting = self._vet(job.task, msgspec.json.decode(job.payload))
        self._app.sync(vetting) if isinstance(door, CallersSyncDoor) else await vetting

    def _need(self, job: JobDefinition, steps: bool = True) -> None:
        """Whether this one may make a job such as this."""
        self._actor.need(job.queue, job.name, f"job {job.name!r} in queue {job.queue!r}")
        if steps and self._actor.scoped:
            need_steps(self._actor, job.options)

    async def _permit_many(self, database: Database, jobs: Sequence[tuple[int, JobDefinition]]) -> None:
        """Whether those that would be replaced are his to replace."""
        rows = await database.apart("queues_of_jobs", [job.name for _, job in jobs])
        queues = {row["name"]: row["queue"] for row in rows}
        for place, job in jobs:
            if (queue := queues.get(job.name)) is not None and not self._actor.may_touch(queue, job.name):
                raise Forbidden(
                    f"job number {place}: {job.name!r} is the name of a job outside of what {self._actor.name} may touch. "
                    "Nothing was added"
                )

    async def _vet_many(self, jobs: Sequence[tuple[int, JobDefinition]]) -> None:
        """The same, once for each host of a URL, however many jobs call it: all else about them has been checked."""
        distinct: dict[tuple[str, str], tuple[int, JobDefinition, dict[str, Any]]] = {}
        for place, job in jobs:
            definition = self._app.registry.find(job.task)
            if definition is not None and definition.vet is not None:
                payload = msgspec.json.decode(job.payload)
                host = "/".join(str(payload.get("url", "")).split("/", 3)[:3])
                distinct.setdefault((job.task, host or job.payload), (place, job, payload))

        async def vet(place: int, job: JobDefinition, payload: dict[str, Any]) -> None:
            try:
                await self._vet(job.task, payload)
            except ValueError as error:
                raise InvalidOption(f"job number {place}: {error}. Nothing was added") from error

        waiting = list(distinct.values())
        for begun in range(0, len(waiting), VETTED_AT_ONCE):
            await asyncio.gather(*(vet(*one) for one in waiting[begun : begun + VETTED_AT_ONCE]))

    def _lane(self, job: JobDefinition) -> int:
        return lane_of(self._queues[job.queue], job.priority)


async def _ended(database: Database, runs: Sequence[tuple[int, datetime]], job: int | None) -> tuple[int, int]:
    row = await database.fetchrow("ended_runs", [run for run, _ in runs], [at for _, at in runs], job)
    assert row is not None
    return row["ended"], row["succeeded"]


async def _counted(lines: Iterator[Line], most: int) -> Lines:
    """All of them, unless they are too many; in a thread, since that takes seconds, in which others want to be served."""
    found = await asyncio.to_thread(list, islice(lines, most + 1))
    if len(found) > most:
        raise InvalidOption(f"the period has more than {most:,} firings; narrow it")
    return found


def _check_version(stored: StoredJob, version: int | None) -> None:
    if version is not None and stored.version != version:
        raise PreconditionFailed(
            f"job {stored.definition.name!r} has been changed: it is at version {stored.version}, not {version}. Look at it again"
        )
