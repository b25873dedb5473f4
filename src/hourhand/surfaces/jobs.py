"""The verbs on jobs: `app.jobs`.

Each comes in two forms: awaited, and for callers without an event loop through `app.sync(...)` or, inside a
transaction of theirs, `..._sync(connection=...)`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec

from hourhand.core import ids
from hourhand.core.account import MOMENT, UNEXPLAINED, Account, Decision, Facts, Firing, Line, Span, Trace
from hourhand.core.chain import steps_of
from hourhand.core.errors import InvalidOption, NotPossible, UnknownJob
from hourhand.core.fairness import lane_of, priority_of, queue_of
from hourhand.core.job import JobDefinition, define_job, job_options
from hourhand.core.options import EnqueueOptions, merge
from hourhand.core.payload import encode_untyped
from hourhand.core.schedule import Schedule, latest_firings
from hourhand.storage import foreign, statements
from hourhand.storage.database import Database
from hourhand.storage.jobs import BulkJobs, CallersDoor, CallersSyncDoor, Door, OwnDoor, present, put_job, run_now
from hourhand.surfaces.views import Audit, BulkAdded, JobView, Resumed, RunView, Triggered

if TYPE_CHECKING:
    from hourhand.surfaces.app import Hourhand

STATES = ("active", "paused", "finished")
MOST_LINES = 100_000
BACKFILL_CHUNK = 500
_BEYOND = timedelta(minutes=5)
_EVER = datetime(1, 1, 2, tzinfo=UTC)
JobViews = list[JobView]
RunViews = list[RunView]
Instants = list[datetime]
Lines = list[Line]


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job's row, its schedule's, and the database's clock."""

    number: int
    definition: JobDefinition
    queue_number: int
    schedule_id: int
    next_run_at: datetime | None
    active_since: datetime
    paused_at: datetime | None
    created_at: datetime
    updated_at: datetime
    version: int
    shard: int
    fired: int | None
    last_at: datetime | None
    present: datetime

    @classmethod
    def of(cls, text: str) -> StoredJob:
        row = msgspec.json.decode(text)
        schedule = Schedule(row["kind"], row["expression"], row["timezone"], row["dst"], _instant(row["anchor"]))
        definition = JobDefinition(
            name=row["name"], task=row["task"], schedule=schedule, payload=msgspec.json.encode(row["payload"]).decode(),
            queue=row["queue"], priority=priority_of(row["lane"]), missed_window=row["missed_window"],
            max_missed=row["max_missed"], misfire_grace=row["misfire_grace"], overlap=row["overlap"] or "allow",
            flexible_window=row["flexible"], start_at=_instant(row["start_at"]), end_at=_instant(row["end_at"]),
            max_runs=row["max_runs"], tags=tuple(row["tags"] or ()), options=row["options"], anchored=True,
            declared_by=row["declared_by"],
        )  # fmt: skip
        return cls(
            row["id"], definition, queue_of(row["lane"]), row["schedule_id"], _instant(row["next_run_at"]), _known(row["active_since"]),
            _instant(row["paused_at"]), _known(row["created_at"]), _known(row["updated_at"]), row["version"], row["shard"],
            row["fired"], _instant(row["last_at"]), _known(row["present"]),
        )  # fmt: skip

    @property
    def state(self) -> str:
        if self.paused_at is not None:
            return "paused"
        return "finished" if self.upcoming is None else "active"

    @property
    def upcoming(self) -> datetime | None:
        """When this job fires next, as things stand."""
        job, at = self.definition, self.next_run_at
        if at is not None and job.start_at is not None and at < job.start_at:
            at = job.schedule.next_after(job.start_at - MOMENT)
        over = at is None or (job.end_at is not None and at >= job.end_at)
        done = job.max_runs is not None and (self.fired or 0) >= job.max_runs
        return None if over or done else at

    def view(self, outcome: str | None = None) -> JobView:
        job, options = self.definition, self.definition.options or {}
        return JobView(
            job_id=ids.job_id(self.number), name=job.name, state=self.state, task=job.task, schedule=written(job.schedule),
            timezone=job.schedule.timezone, in_words=job.schedule.in_words(),
            next_run_at=None if self.paused_at else self.upcoming, queue=job.queue, priority=job.priority,
            payload=msgspec.json.decode(job.payload), dst=job.schedule.dst, anchor=job.schedule.anchor,
            missed_window=job.missed_window, max_missed=job.max_missed, misfire_grace=job.misfire_grace, overlap=job.overlap,
            flexible_window=job.flexible_window, start_at=job.start_at, end_at=job.end_at, max_runs=job.max_runs,
            fired=(self.fired or 0) if job.max_runs else None, max_attempts=options.get("max_attempts"),
            timeout=options.get("timeout"), tags=job.tags, then=tuple(steps_of(options)), declared_by=job.declared_by,
            created_at=self.created_at, updated_at=self.updated_at, active_since=self.active_since, paused_at=self.paused_at,
            version=self.version, shard=self.shard, outcome=outcome,
        )  # fmt: skip

    def upcoming_firings(self) -> Iterator[datetime]:
        job, at = self.definition, self.upcoming
        left = None if job.max_runs is None else job.max_runs - (self.fired or 0)
        while at is not None and (job.end_at is None or at < job.end_at) and left != 0:
            yield at
            at, left = job.schedule.next_after(at), None if left is None else left - 1


def written(schedule: Schedule) -> str:
    """A schedule as a person would write it."""
    if schedule.kind == "once":
        assert schedule.anchor is not None
        return schedule.anchor.isoformat().replace("+00:00", "Z")
    return schedule.expression


@dataclass(slots=True)
class Backfill:
    """A backfill as it goes: what was planned, and what has become of it."""

    job: str
    instants: list[datetime]
    """What is to run, in the order in which it will start."""
    ran_already: int
    """Instants left out because a run of theirs has succeeded."""
    asked_already: int
    """Instants left out because an earlier backfill has them."""
    runs: list[tuple[int, datetime]]
    dry_run: bool
    succeeded: int = 0
    ended: int = 0

    @property
    def run_ids(self) -> list[str]:
        return [ids.run_id(number) for number, _ in self.runs]


class Jobs:
    def __init__(self, app: Hourhand) -> None:
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
        timeout, tags, then. `connection`: a transaction of yours; the job exists if and only if it commits.
        """
        given = job_options({"task": task, "schedule": schedule, **options})
        await self._queue_number(given.queue, given.task or name)
        return await self._add(await self._door(connection), name, given, replace)

    def add_sync(
        self, name: str, *, task: Any = None, schedule: str | None = None, replace: bool = False, connection: Any = None,
        **options: Any,
    ) -> JobView:  # fmt: skip
        """The same for callers without an event loop."""
        if connection is None:
            return self._app.sync(self.add(name, task=task, schedule=schedule, replace=replace, **options))
        given = job_options({"task": task, "schedule": schedule, **options})
        self._app.sync(self._queue_number(given.queue, given.task or name))
        view: JobView = run_now(self._add(self._sync_door(connection), name, given, replace))
        return view

    async def _add(self, door: Door, name: str, given: Any, replace: bool) -> JobView:
        now = await present(door)
        job = define_job(name, given, now=now, registry=self._app.registry)
        outcome = await put_job(door, job, self._lane(job), now, replace=replace)
        return (await self._find(door, name)).view(outcome)

    async def update(self, name: str, *, connection: Any = None, **changes: Any) -> JobView:
        """Change what is named and leave the rest. A job whose schedule stays keeps its pending firing."""
        await self._queue_number(changes.get("queue"), changes.get("task"))
        return await self._update(await self._door(connection), name, changes)

    def update_sync(self, name: str, *, connection: Any = None, **changes: Any) -> JobView:
        if connection is None:
            return self._app.sync(self.update(name, **changes))
        self._app.sync(self._queue_number(changes.get("queue"), changes.get("task")))
        view: JobView = run_now(self._update(self._sync_door(connection), name, changes))
        return view

    async def _update(self, door: Door, name: str, changes: dict[str, Any]) -> JobView:
        for _ in range(10):
            stored = await self._find(door, name)
            job = changed(stored, changes, self._app.registry)
            outcome = await put_job(door, job, self._lane(job), stored.present, replace=True, expected=stored.version)
            if outcome != "changed":
                return (await self._find(door, job.name)).view(outcome)
        raise NotPossible(f"job {name!r} is being changed by others all the time; try again")

    async def delete(self, name: str, *, connection: Any = None) -> None:
        """The job goes; its runs, waiting or ended, stay."""
        await self._delete(await self._door(connection), name)

    def delete_sync(self, name: str, *, connection: Any = None) -> None:
        if connection is None:
            return self._app.sync(self.delete(name))
        run_now(self._delete(self._sync_door(connection), name))
        return None

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
                return await BulkJobs(database, own, gateway.queue_number, now).put(iter(jobs), define, replace, tell)

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
        if not 1 <= limit <= 10_000:
            raise InvalidOption(f"limit must be from 1 to 10000, not {limit}")
        database = await self._app._database()
        number = None
        if queue is not None:
            number = await database.fetchval("queue_by_name", queue)
            if number is None:
                raise InvalidOption(f"there is no queue {queue!r}")
        rows = await database.fetch("list_jobs", after, task, number, tag, search, state, limit)
        return [StoredJob.of(row[0]).view() for row in rows]

    async def next(self, name: str, limit: int = 10) -> Instants:
        """The next firings of a job, within its own limits."""
        if not 1 <= limit <= 10_000:
            raise InvalidOption(f"limit must be from 1 to 10000, not {limit}")
        stored = await self._find(await self._door(None), name)
        return [] if stored.paused_at else list(islice(stored.upcoming_firings(), limit))

    async def runs(self, name: str, limit: int = 20) -> RunViews:
        """The job's latest runs, by the instant they are for."""
        if not 1 <= limit <= 10_000:
            raise InvalidOption(f"limit must be from 1 to 10000, not {limit}")
        database = await self._app._database()
        number = await self._number(database, name)
        rows = await database.fetch("job_runs", number, limit)
        names = {row["id"]: row["name"] for row in await database.fetch("queue_names")}
        return [RunView.of(row, names) for row in rows]

    # Holding and starting

    async def pause(self, name: str, *, connection: Any = None) -> JobView:
        """From now on it does not fire. A firing that is due at this moment still is its own."""
        door = await self._door(connection)
        stored = await self._find(door, name)
        await door.row("pause_job", stored.number)
        return (await self._find(door, stored.definition.name)).view()

    async def resume(self, name: str, *, missed: str | None = None, connection: Any = None) -> Resumed:
        """It fires again. What it missed is treated by its missed-window policy, or by `missed`."""
        if missed is not None and missed not in ("SKIP", "RUN_ONCE", "RUN_ALL"):
            raise InvalidOption(f"missed must be SKIP, RUN_ONCE or RUN_ALL, not {missed!r}")
        door = await self._door(connection)
        stored = await self._find(door, name)
        instants: Instants = []
        if stored.paused_at is not None:
            # A little beyond the present: the database knows best where the pause ends.
            end = stored.present + _BEYOND
            instants = latest_firings(stored.definition.schedule, stored.paused_at - MOMENT, end)
        row = await door.row("resume_job", stored.number, instants, missed)
        return Resumed((await self._find(door, stored.definition.name)).view(), row[1], row[2])

    async def trigger(self, name: str, *, payload: Mapping[str, Any] | None = None, force: bool = False, connection: Any = None) -> Triggered:  # fmt: skip
        """A run here and now, besides the schedule. `force`: even if the job's overlap policy would hold or skip it."""
        door = await self._door(connection)
        stored = await self._find(door, name)
        text = None
        if payload is not None:
            task = self._app.registry.tasks.get(stored.definition.task)
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
        planned = await self._plan_backfill(name, since, until, cap, rate, order, again)
        planned.dry_run = dry_run
        if dry_run:
            return planned
        database = await self._app._database()
        number = await self._number(database, name)
        for begun in range(0, len(planned.instants), BACKFILL_CHUNK):
            part = planned.instants[begun : begun + BACKFILL_CHUNK]
            rows = await database.fetch("backfill_job", number, part, rate, begun, again)
            planned.runs += [(row[0], row[1]) for row in rows]
            if progress is not None:
                progress(planned)
        return planned

    async def _plan_backfill(
        self, name: str, since: datetime, until: datetime, cap: int, rate: float, order: str, again: bool
    ) -> Backfill:
        _check_instants(since=since, until=until)
        if order not in ("oldest", "newest"):
            raise InvalidOption(f"order must be oldest or newest, not {order!r}")
        if not 1 <= cap <= 1_000_000 or not 0 < rate <= 100_000:
            raise InvalidOption("cap must be from 1 to 1000000, and rate above 0 and at most 100000 a second")
        database = await self._app._database()
        stored = await self._find(OwnDoor(database), name)
        job = stored.definition
        until = min(until, stored.present)
        low = max(one for one in (since, job.start_at) if one is not None)
        high = min(one for one in (until, job.end_at) if one is not None)
        if low >= high:
            raise InvalidOption(
                "the period is empty: until must be after since, and both within the past and the job's own limits"
            )
        instants = list(islice(job.schedule.firings(low - MOMENT, high - MOMENT), cap + 1))
        if len(instants) > cap:
            raise InvalidOption(f"the period has more than {cap} firings; narrow it, or raise the cap")
        ran = asked = 0
        if not again:
            done = {row[0] for row in await database.fetch("succeeded_instants", stored.number, low, high)}
            wanted = {row[0] for row in await database.fetch("backfilled", stored.number, low, high)}
            ran, asked = len(done.intersection(instants)), len((wanted - done).intersection(instants))
            instants = [one for one in instants if one not in done and one not in wanted]
        if order == "newest":
            instants.reverse()
        return Backfill(job.name, instants, ran, asked, [], False)

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
        _check_instants(since=since, until=until)
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
        lines = sorted([*lines, *account.by_hand()], key=lambda line: line.scheduled_at)
        if at is not None and not lines:
            raise NotPossible(_not_expected(stored, at))
        return lines

    async def audit(self, name: str, since: datetime, until: datetime) -> Audit:
        """The proof: every firing expected in [since, until) has exactly one recorded outcome, or these have not."""
        _, account, low, high = await self._account(name, None, since, until)
        expected, unexplained = 0, []
        for line in account.lines(low, high):
            expected += 1
            if line.outcome == UNEXPLAINED:
                unexplained.append(line.scheduled_at)
        return Audit(expected, tuple(unexplained), tuple(sorted(account.doubles)))

    async def _account(
        self, name: str, at: datetime | None, since: datetime | None, until: datetime | None
    ) -> tuple[StoredJob, Account, datetime, datetime]:
        _check_instants(at=at, since=since, until=until)
        database = await self._app._database()
        stored = await self._find(OwnDoor(database), name)
        if at is not None:
            low, high = at, at + timedelta(seconds=1) if not at.microsecond else at + MOMENT
        else:
            low = since or stored.present - timedelta(days=1)
            high = until or stored.present
        if low >= high:
            raise InvalidOption("the period is empty: until must be after since")
        return stored, Account(await self._facts(database, stored, low, high)), low, high

    async def _facts(self, database: Database, stored: StoredJob, low: datetime, high: datetime) -> Facts:
        number, job = stored.number, stored.definition
        spans = [
            Span(row[0], row[1], row[2], row[3], Schedule(*row[4:9]), row[9], row[10])
            for row in await database.fetch("job_spans", number, low, high)
        ]
        begin = stored.active_since
        if stored.paused_at is not None:
            spans.append(Span(begin, stored.paused_at, stored.schedule_id, False, job.schedule, job.start_at, job.end_at))
            spans.append(Span(stored.paused_at, None, stored.schedule_id, True, job.schedule, job.start_at, job.end_at))
        else:
            spans.append(Span(begin, None, stored.schedule_id, False, job.schedule, job.start_at, job.end_at))
        # The ledger first: a run that ends meanwhile moves on to the history, and is found there.
        firings = [Firing(*row) for row in await database.fetch("ledger", sorted({one.schedule_id for one in spans}), low, high)]
        decisions = [Decision(*row) for row in await database.fetch("job_decisions", number, low, high)]
        traces = [Trace(*row) for row in await database.fetch("job_traces", number, low, high)]
        # As the schedule stood before the ledger was read, or later: what it says is due was due then.
        again = await self._find(OwnDoor(database), stored.definition.name)
        done = job.max_runs is not None and (again.fired or 0) >= job.max_runs
        nodes = sorted({one.node for one in firings})
        return Facts(
            spans, traces, decisions, firings, stored.present, stored.next_run_at, again.last_at if done else None,
            await database.fetchval("oldest_history") or _EVER, await database.fetchval("schedulers_alive"),
            {row["id"]: (row["name"], row["stopped_at"], row["died_at"]) for row in await database.fetch("node_ends", nodes)},
        )  # fmt: skip

    # Helpers

    async def _door(self, connection: Any) -> Door:
        database = await self._app._database()
        return OwnDoor(database) if connection is None else CallersDoor(connection, database.sql)

    def _sync_door(self, connection: Any) -> Door:
        return CallersSyncDoor(connection, statements.load(self._app.settings.schema))

    async def _find(self, door: Door, name: str) -> StoredJob:
        if not isinstance(name, str):
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
        definition = self._app.registry.tasks.get(name) if isinstance(name, str) else None
        for one in {queue, definition.queue if definition else "default"} - {None}:
            if isinstance(one, str) and one not in self._queues:
                checked = merge(EnqueueOptions(), {"queue": one}).queue
                self._queues[one] = await (await self._app._open()).gateway.queue_number(checked or one)

    def _lane(self, job: JobDefinition) -> int:
        return lane_of(self._queues[job.queue], job.priority)


def changed(stored: StoredJob, changes: Mapping[str, Any], registry: Any) -> JobDefinition:
    """The stored definition with changes over it, checked as a new one would be."""
    job = stored.definition
    options = job.options or {}
    schedule = job.schedule
    base: dict[str, Any] = {
        "task": job.task, "schedule": written(schedule), "timezone": schedule.timezone, "dst": schedule.dst,
        "anchor": schedule.anchor if schedule.kind == "every" else None, "payload": msgspec.json.decode(job.payload),
        "queue": job.queue, "priority": job.priority, "missed_window": job.missed_window, "max_missed": job.max_missed,
        "misfire_grace": job.misfire_grace, "overlap": job.overlap, "flexible_window": job.flexible_window,
        "start_at": job.start_at, "end_at": job.end_at, "max_runs": job.max_runs, "max_attempts": options.get("max_attempts"),
        "timeout": options.get("timeout"), "tags": job.tags,
    }  # fmt: skip
    if "schedule" in changes and "anchor" not in changes:
        base["anchor"] = None
    given = job_options({**base, **changes})
    # A one-off whose instant is past stays what it is while other things about it change.
    now = stored.present
    if schedule.kind == "once" and "schedule" not in changes and schedule.anchor is not None:
        now = min(now, schedule.anchor)
    fresh = define_job(job.name, given, now=now, registry=registry, declared_by=job.declared_by)
    if "then" not in changes and "then" in options:
        fresh = replace(fresh, options={**(fresh.options or {}), "then": options["then"]})
    return fresh


def _check_instants(**given: datetime | None) -> None:
    for name, one in given.items():
        if one is not None and one.tzinfo is None:
            raise InvalidOption(f"{name} is a naive datetime ({one.isoformat()}): give it a time zone")
        if one is not None and not 1900 <= one.year < 9000:
            raise InvalidOption(f"{name} is too far from now: {one.isoformat()}")


def _not_expected(stored: StoredJob, at: datetime) -> str:
    job, after = stored.definition, stored.definition.schedule.next_after(at)
    text = f"job {job.name!r} ({job.schedule.in_words()}) was not expected to fire at {at.isoformat()}"
    if at < stored.created_at:
        return f"{text}: it was added at {stored.created_at.isoformat(timespec='seconds')}"
    return f"{text}; the next after it is {after.isoformat()}" if after else text


def _instant(text: str | None) -> datetime | None:
    if text is None:
        return None
    if text.endswith("infinity"):
        return _EVER if text.startswith("-") else None
    return datetime.fromisoformat(text).astimezone(UTC)


def _known(text: str) -> datetime:
    instant = _instant(text)
    assert instant is not None
    return instant
