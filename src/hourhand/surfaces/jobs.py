"""The verbs on jobs: `app.jobs`.

Each comes in two forms: awaited, and for callers without an event loop through `app.sync(...)` or, inside a
transaction of theirs, `..._sync(connection=...)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import count, islice
from typing import Any

import asyncpg

from hourhand.core import ids
from hourhand.core.actor import ACTOR
from hourhand.core.errors import Forbidden, InvalidOption, InvalidPayload, NotPossible, PreconditionFailed, UnknownJob
from hourhand.core.job import MISSED, JobDefinition, JobOptions, define_job, job_options
from hourhand.core.payload import encode_untyped
from hourhand.core.redaction import REDACTED, marks_in, mentions, redact, restore
from hourhand.storage import foreign
from hourhand.storage.atomic import joined, joined_sync
from hourhand.storage.database import Database
from hourhand.storage.jobs import (
    BulkJobs,
    CallersDoor,
    Door,
    OwnDoor,
    present,
    put_job,
    run_now,
)
from hourhand.surfaces.auditing import changing, job_entry, payload_for_record, record, record_many
from hourhand.surfaces.job_insight import JobInsight
from hourhand.surfaces.job_lists import JobLists
from hourhand.surfaces.stored import StoredJob, changed
from hourhand.surfaces.verbs import check
from hourhand.surfaces.views import BulkAdded, JobView, Resumed, RunView, Triggered

STATES = ("active", "paused", "finished")
EACH_RECORDED = 20_000
"""Jobs of one `add_many` up to which the audit log has an entry for each."""
JobViews = list[JobView]
RunViews = list[RunView]
Instants = list[datetime]


class Jobs(JobLists, JobInsight):
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
            changes = [(before.get(name), job) for name, job in after.items()]
            return [
                job_entry("job.add" if was is None else "job.update", was, job, names, sealer)
                for was, job in changes
                if was is None or was.version != job.version
            ]

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


def _check_version(stored: StoredJob, version: int | None) -> None:
    if version is not None and stored.version != version:
        raise PreconditionFailed(
            f"job {stored.definition.name!r} has been changed: it is at version {stored.version}, not {version}. Look at it again"
        )
