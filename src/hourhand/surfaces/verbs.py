"""The verbs on runs, queues and nodes: `app.runs`, `app.queues`, `app.nodes`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from hourhand.core import ids
from hourhand.core.actor import ACTOR, Actor
from hourhand.core.errors import InvalidOption, NotPossible, UnknownJob, UnknownQueue, UnknownRun
from hourhand.core.task import check_name
from hourhand.storage.database import Database
from hourhand.storage.jobs import OwnDoor
from hourhand.surfaces.auditing import current_actor, record
from hourhand.surfaces.run_search import EFFORT, MOST_EFFORT, Found, Wanted, look
from hourhand.surfaces.views import FINISHED, STATES, LineView, NodeView, QueueView, RunView, ShardView

Open = Callable[[], Awaitable[Database]]
AT_ONCE = (None, None, 0)
"""Of dead letters that go back: at no rate, from no instant on, the first of them."""

_NO_QUEUE = -1


class Verbs:
    def __init__(self, open_database: Open, app: str = "") -> None:
        self._open = open_database
        self._app_name = app

    @property
    def _actor(self) -> Actor:
        return current_actor(self._app_name)

    async def _record(self, database: Database, action: str, **about: Any) -> None:
        await record(OwnDoor(database), self._app_name, action, **about)

    async def _scope(self, database: Database) -> tuple[list[int] | None, list[str] | None]:
        """What the caller may see: numbers of queues, and beginnings of the names of jobs. None: everything."""
        actor, numbers = ACTOR.get(), None
        if actor.queues is not None:
            numbers = [number for number, name in (await self._names(database)).items() if name in actor.queues]
        return numbers, None if actor.prefixes is None else list(actor.prefixes)

    async def _permit(self, database: Database, run: RunView) -> RunView:
        """For a caller whose part it is not, it is not there."""
        actor = ACTOR.get()
        if actor.scoped:
            job = None
            if actor.prefixes is not None and run.job_id is not None:
                job = await database.fetchval("job_name", ids.parse_job_id(run.job_id))
            if not actor.may_touch(run.queue, job):
                raise UnknownRun(f"there is no run {run.run_id} among what {actor.name} may see")
        return run

    async def _names(self, database: Database) -> dict[int, str]:
        return {row["id"]: row["name"] for row in await database.fetch("queue_names")}

    async def _queue(self, database: Database, name: str | None) -> int | None:
        if name is None:
            return None
        actor, number = ACTOR.get(), await database.fetchval("queue_by_name", name)
        if number is None and actor.prefixes is not None:
            return _NO_QUEUE  # which queues there are is not for a key that opens a part of the jobs
        if number is None or (actor.queues is not None and name not in actor.queues):
            raise UnknownQueue(f"there is no queue {name!r}")
        return int(number)


def check(limit: int = 1, **instants: datetime | None) -> None:
    if not 1 <= limit <= 10_000:
        raise InvalidOption(f"limit must be from 1 to 10000, not {limit}")
    for name, instant in instants.items():
        if instant is not None and instant.tzinfo is None:
            raise InvalidOption(
                f"{name} is a naive datetime ({instant.isoformat()}): give it a time zone, for example tzinfo=UTC"
            )
        if instant is not None and not 1900 <= instant.year < 9000:
            raise InvalidOption(f"{name} is too far from now: {instant.isoformat()}")


class Runs(Verbs):
    async def show(self, run_id: str | int) -> RunView:
        database = await self._open()
        number = ids.parse_run_id(run_id)
        row = await database.fetchrow("find_run", number)
        if row is None:
            raise UnknownRun(f"there is no run {ids.run_id(number)}; it may be older than the history that is kept")
        return await self._permit(database, RunView.of(row, await self._names(database), database.sealer))

    async def logs(self, run_id: str | int, *, after: int = 0, limit: int = 1_000) -> list[LineView]:
        """What it said, in order, from the line after number `after` on."""
        check(limit=limit)
        if not 0 <= after < 2**31:
            raise InvalidOption(f"after must be the number of a line, or 0, not {after}")
        run = await self.show(run_id)
        database = await self._open()
        rows = await database.fetch("list_lines", ids.parse_run_id(run.run_id), run.scheduled_at, after, limit)
        return [LineView.of(row) for row in rows]

    async def list(
        self, *, state: str | Sequence[str] | None = None, task: str | None = None, queue: str | None = None,
        tag: str | None = None, key: str | None = None, job: str | None = None, node: int | None = None,
        since: datetime | None = None, below: str | None = None, limit: int = 20,
    ) -> list[RunView]:  # fmt: skip
        """The newest runs that match. `job`: its name or id. `below`: the last id of the page before."""
        filters: dict[str, Any] = {
            "state": state, "task": task, "queue": queue, "tag": tag, "key": key, "job": job, "node": node, "since": since,
        }  # fmt: skip
        found: list[RunView] = []
        effort = EFFORT
        while True:
            page = await self.look(below=below, limit=limit - len(found), effort=effort, **filters)
            found += page.runs
            if page.below is None or len(found) >= limit:
                return found
            below, effort = page.below, min(4 * effort, MOST_EFFORT)

    async def look(
        self, *, state: str | Sequence[str] | None = None, task: str | None = None, queue: str | None = None,
        tag: str | None = None, key: str | None = None, job: str | None = None, node: int | None = None,
        since: datetime | None = None, below: str | None = None, limit: int = 20, effort: int = EFFORT,
    ) -> Found:  # fmt: skip
        """The same, as far as can be seen at once: fewer than `limit` may be found where there are more."""
        states = None if state is None else (state,) if isinstance(state, str) else tuple(state)
        for one in states or ():
            if one not in STATES:
                raise InvalidOption(f"{one!r} is not a state; the states are {', '.join(STATES)}")
        check(limit=limit, since=since)
        if node is not None and not 0 < node < 2**31:
            raise InvalidOption(f"node must be the number of a node, not {node}")
        database = await self._open()
        names = await self._names(database)
        wanted = Wanted(
            states, task, await self._queue(database, queue), tag, key, since, await self._job(database, job), node,
            *await self._scope(database),
        )  # fmt: skip
        return await look(database, wanted, names, None if below is None else ids.parse_run_id(below), limit, effort)

    async def _job(self, database: Database, name: str | None) -> int | None:
        """Of a job that is gone, by its id: its runs may still be there."""
        if name is None:
            return None
        number = ids.parse_job_id(name)
        row = None if "\0" in name else await database.fetchrow("job_number", name, number)
        if row is not None and ACTOR.get().may_touch(row["queue"], row["name"]):
            return int(row["id"])
        if row is not None or number is None:
            raise UnknownJob(f"there is no job {name!r}")
        return number

    async def cancel(self, run_id: str | int, reason: str | None = None) -> str:
        """`cancelled` when it had not started; `asked` when it runs and was told to stop."""
        number = ids.parse_run_id(run_id)
        database = await self._open()
        async with database.together():
            # Between two looks the run may move from one table to the next; it cannot escape for ever.
            for _ in range(5):
                run = await self.show(number)
                if run.finished:
                    raise NotPossible(f"{run.run_id} has ended already: {run.state}")
                outcome = None
                if await database.fetchval("cancel_pending", number, reason):
                    outcome = "cancelled"
                elif await database.fetchval("cancel_running", number, reason):
                    outcome = "asked"
                if outcome is not None:
                    about = {"outcome": outcome, "reason": reason, "task": run.task}
                    await self._record(database, "run.cancel", subject=run.run_id, queue=run.queue, after=about)
                    return outcome
        raise NotPossible(f"{ids.run_id(number)} keeps moving; try again")

    async def retry(self, run_id: str | int) -> str:
        """Run it again now. Returns the id: the same for a dead or delayed run, a new one for an ended run."""
        database = await self._open()
        async with database.together():
            run = await self.show(run_id)
            again = await self._retry(database, run)
            await self._record(
                database, "run.retry", subject=run.run_id, queue=run.queue, after={"again_as": again, "task": run.task}
            )
        return again

    async def _retry(self, database: Database, run: RunView) -> str:
        number = ids.parse_run_id(run.run_id)
        if run.state == "dead" and run.payload is not None:
            rows = await database.fetch("replay_dead", [number], *[None] * 8, 1, *AT_ONCE)
            if not rows:
                raise NotPossible(f"{run.run_id} is not among the dead letters any more")
            if not rows[0]["replayed"]:
                raise NotPossible(f"{run.run_id} stays dead: another live run holds its key {run.key!r}")
            return run.run_id
        if run.state == "delayed":
            if await database.fetch("hurry_run", number):
                return run.run_id
            raise NotPossible(f"{run.run_id} waits for the run of its job before it to end; cancel that one instead")
        if run.state in FINISHED:
            fresh = await database.fetchval("repeat_run", number)
            if fresh is None:
                raise NotPossible(f"{run.run_id} was purged: its payload is gone, so it cannot run again")
            return ids.run_id(fresh)
        raise NotPossible(f"{run.run_id} is {run.state}; it will run without being asked again")


class Queues(Verbs):
    async def exists(self, name: str) -> bool:
        """Whether anything was ever enqueued to it, or it was paused."""
        return await (await self._open()).fetchval("queue_by_name", name) is not None

    async def list(self) -> list[QueueView]:
        database, actor = await self._open(), ACTOR.get()
        return [
            QueueView(**{name: row[name] for name in QueueView.__dataclass_fields__})
            for row in await database.fetch("list_queues")
            if actor.may_touch(row["name"], None)
        ]

    async def pause(self, name: str) -> datetime:
        """Nothing more is claimed from it; what runs goes on. Enqueueing stays possible."""
        check_name("queue", name)
        self._need(name)
        database = await self._open()
        await database.fetch("queue_number", name)
        async with database.together():
            before = await database.fetchval("lock_queue", name)
            paused: datetime = await database.fetchval("pause_queue", name)
            await self._note(database, "queue.pause", name, before, paused)
        return paused

    async def resume(self, name: str) -> None:
        self._need(name)
        database = await self._open()
        async with database.together():
            before = await database.fetchval("lock_queue", name)
            if not await database.fetch("resume_queue", name):
                raise UnknownQueue(f"there is no queue {name!r}")
            await self._note(database, "queue.resume", name, before, None)

    async def _note(self, database: Database, action: str, name: str, before: datetime | None, after: datetime | None) -> None:
        if before != after:
            about = {"before": {"paused_at": before}, "after": {"paused_at": after}}
            await self._record(database, action, subject=name, queue=name, **about)

    def _need(self, name: str) -> None:
        actor = self._actor
        if actor.prefixes is not None:
            actor.need_everything(f"queue {name!r}, which others' jobs use as well,")
        actor.need(name, None, f"queue {name!r}")


class Nodes(Verbs):
    async def list(self, *, gone: bool = False) -> list[NodeView]:
        """The live processes; with `gone`, also those that stopped or died."""
        self._actor.need_everything("the list of nodes")
        database = await self._open()
        views = []
        for row in await database.fetch("list_nodes", gone):
            fields = dict(row)
            fields["node"] = fields.pop("id")
            fields["info"] = msgspec.json.decode(fields["info"])
            views.append(NodeView(**fields))
        return views


class Shards(Verbs):
    async def list(self) -> list[ShardView]:
        """The 256 parts of all jobs: which scheduler fires each, and under which epoch."""
        self._actor.need_everything("the list of shards")
        return [ShardView(**dict(row)) for row in await (await self._open()).fetch("list_shards")]
