"""What the verbs on jobs share: finding a job, the way to the database, whose it is, and what goes on record about it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from hourhand.core import ids
from hourhand.core.actor import ACTOR
from hourhand.core.chain import need_steps
from hourhand.core.errors import UnknownJob
from hourhand.core.fairness import lane_of
from hourhand.core.job import JobDefinition
from hourhand.core.options import EnqueueOptions, merge
from hourhand.storage import statements
from hourhand.storage.atomic import joined_sync
from hourhand.storage.database import Database
from hourhand.storage.jobs import (
    CallersDoor,
    CallersSyncDoor,
    Door,
    OwnDoor,
    prepare,
    run_now,
    sees_commits,
)
from hourhand.surfaces.auditing import job_entry, record
from hourhand.surfaces.stored import StoredJob
from hourhand.surfaces.verbs import Verbs
from hourhand.surfaces.views import JobView

if TYPE_CHECKING:
    from hourhand.surfaces.app import Hourhand

T = TypeVar("T")


class JobVerbs(Verbs):
    def __init__(self, app: Hourhand) -> None:
        super().__init__(app._database, app.name)
        self._app = app
        self._queues: dict[str, int] = {}

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

    async def _number(self, database: Database, name: str) -> int:
        return (await self._find(OwnDoor(database), name)).number

    def _need(self, job: JobDefinition, steps: bool = True) -> None:
        """Whether this one may make a job such as this."""
        self._actor.need(job.queue, job.name, f"job {job.name!r} in queue {job.queue!r}")
        if steps and self._actor.scoped:
            need_steps(self._actor, job.options)

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

    async def _door(self, connection: Any) -> Door:
        database = await self._app._database()
        return OwnDoor(database) if connection is None else CallersDoor(connection, database.sql)

    def _sync_door(self, connection: Any) -> Door:
        return CallersSyncDoor(connection, statements.load(self._app.settings.schema))

    def _now(self, connection: Any, work: Callable[[Door], Coroutine[Any, Any, T]]) -> T:
        """For callers without an event loop: on the connection they gave, or on one of ours."""
        connection = connection or joined_sync()
        if connection is not None:
            result: T = run_now(work(self._sync_door(connection)))
            return result

        async def own() -> T:
            return await work(await self._door(None))

        return self._app.sync(own())

    async def _prepare(self, door: Door, job: JobDefinition, now: datetime, number: int | None = None) -> dict[str, Any]:
        sees = await sees_commits(door)

        async def work() -> dict[str, Any]:
            return await prepare(await self._app._database(), job, now, number, sees_commits=sees)

        return self._app.sync(work()) if isinstance(door, CallersSyncDoor) else await work()

    async def _note(self, door: Door, action: str, before: JobView | None, after: JobView | None) -> None:
        """For the record: of a job that changed, what changed."""
        entry = job_entry(action, before, after, self._app.settings.secret_names, self._app._sealer)
        await record(door, self._app.name, **entry)

    async def _act(self, door: Door, action: str, stored: StoredJob, after: dict[str, Any]) -> None:
        job = stored.definition
        await record(door, self._app.name, action, subject=ids.job_id(stored.number), name=job.name, queue=job.queue, after=after)
