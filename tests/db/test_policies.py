"""What a job says about exceptions: overlap, flexible windows, limits, pauses, changes at the moment of firing."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from hourhand import Context, Hourhand, NotPossible
from hourhand.core import ids
from hourhand.core.errors import LockTimeout
from hourhand.engine.firer import Plan
from hourhand.engine.scheduler import Scheduler
from hourhand.storage.schedules import Late, Planned, ScheduleGateway
from tests.db.test_firing import gateway, make_node
from tests.db.test_worker import working
from tests.support.fleet import until, where

pytestmark = pytest.mark.once

__all__ = ["gateway"]
T0 = datetime(2026, 3, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Bench:
    """Jobs whose schedule is fired by hand, hour by hour, from T0 on."""

    def __init__(self, app: Hourhand, gateway: ScheduleGateway, sql: asyncpg.Connection, schema: str) -> None:
        self.app, self.gateway, self.sql, self.schema = app, gateway, sql, schema
        self.node = 0
        self.epochs: dict[int, int] = {}

    async def add(self, name: str = "job", schedule: str = "0 * * * *", **options: Any) -> int:
        """As if it had been added an hour before T0."""
        if not self.node:
            self.node = await make_node(self.sql, self.schema)
            self.epochs = await self.gateway.take_shards(self.node, range(256), [self.node])
        await self.app.jobs.add(name, **{"task": "work", "schedule": schedule, **options})
        await self.rewind(name)
        number: int = await self.sql.fetchval(f"SELECT id FROM {self.schema}.jobs WHERE name = $1", name)
        return number

    async def rewind(self, name: str = "job", to: datetime = T0) -> None:
        await self.sql.execute(
            f"WITH j AS (UPDATE {self.schema}.jobs SET active_since = $2::timestamptz - interval '1 hour' WHERE name = $1 RETURNING schedule_id)"
            f" UPDATE {self.schema}.schedules s SET next_run_at = $2 FROM j WHERE s.id = j.schedule_id",
            name, to,
        )  # fmt: skip

    async def planned(self, name: str = "job") -> Planned:
        row = await self.sql.fetchrow(
            f"SELECT s.id, s.next_run_at, s.revision FROM {self.schema}.jobs j JOIN {self.schema}.schedules s ON s.id = j.schedule_id"
            " WHERE j.name = $1",
            name,
        )
        return Planned(row["id"], row["next_run_at"], row["next_run_at"] + HOUR, row["revision"])

    async def fire(self, name: str = "job") -> datetime:
        """The next firing, as if it were in time."""
        planned = await self.planned(name)
        await self.bear(planned, 1e9)
        assert set(await self.gateway.fire(self.node, self.epochs, [planned])) == {planned.id}
        await self.bear(planned, -1e9)
        return planned.due_at

    async def bear(self, planned: Planned, more: float) -> None:
        """Its jobs put up with so much more lateness than before."""
        await self.sql.execute(
            f"UPDATE {self.schema}.jobs SET misfire_grace = misfire_grace + $2 WHERE schedule_id = $1", planned.id, more
        )

    async def fire_late(self, count: int, name: str = "job") -> Late | None:
        one = await self.planned(name)
        instants = [one.due_at + n * HOUR for n in range(count)]
        moved = Planned(one.id, one.due_at, instants[-1] + HOUR, one.revision)
        return (await self.gateway.fire_late(self.node, self.epochs, [moved], [instants], 10.0)).get(one.id)

    async def runs(self, job: int) -> list[tuple[str, datetime]]:
        """Every run of a job: its state, and the instant it is for."""
        rows = await self.sql.fetch(
            " UNION ALL ".join(
                f"SELECT '{table}' AS state, scheduled_at, run_id FROM {self.schema}.{table} WHERE job_id = $1"
                for table in ("ready", "delayed", "running", "parked", "dead")
            )
            + f" UNION ALL SELECT outcome::text, scheduled_at, run_id FROM {self.schema}.runs WHERE job_id = $1 ORDER BY 3",
            job,
        )
        return [(row["state"], row["scheduled_at"]) for row in rows]


@pytest.fixture
def bench(app: Hourhand, gateway: ScheduleGateway, sql: asyncpg.Connection, schema: str) -> Bench:
    return Bench(app, gateway, sql, schema)


# Overlap


async def test_skip_leaves_out_what_comes_while_the_last_one_is_going(bench: Bench, sql: asyncpg.Connection, schema: str) -> None:
    job = await bench.add(overlap="skip")
    for _ in range(3):
        await bench.fire()
    assert await bench.runs(job) == [("ready", T0)]
    decided = await sql.fetch(f"SELECT scheduled_at, outcome, reason, run_id FROM {schema}.decisions ORDER BY 1")
    run = await sql.fetchval(f"SELECT run_id FROM {schema}.ready")
    assert [tuple(row) for row in decided] == [(T0 + n * HOUR, "skipped", "the run before it had not ended", run) for n in (1, 2)]
    await bench.app.runs.cancel(run)
    await bench.fire()
    assert (await bench.runs(job))[-1] == ("ready", T0 + 3 * HOUR)
    assert await sql.fetchval(f"SELECT sum(runs) FROM {schema}.firings") == 2


async def test_queue_runs_all_of_them_one_after_another(bench: Bench, app: Hourhand) -> None:
    order: list[datetime] = []
    going = 0
    gate = asyncio.Event()

    @app.task
    async def work(ctx: Context) -> None:
        nonlocal going
        going += 1
        assert going == 1, "never two at once"
        order.append(ctx.scheduled_at)
        await gate.wait()
        going -= 1

    job = await bench.add(overlap="queue")
    for _ in range(4):
        await bench.fire()
    assert [state for state, _ in await bench.runs(job)] == ["ready", "delayed", "delayed", "delayed"]
    held = (await app.jobs.runs("job"))[0]
    assert (held.due_at, held.reason) == (None, "waits for the run before it to end")
    with pytest.raises(NotPossible, match="waits for the run"):
        await app.runs.retry(held.run_id)
    async with working(app):

        async def begun() -> bool:
            return len(order) == 1

        await until(begun, "the first to start")
        assert len(order) == 1
        gate.set()

        async def all_done() -> bool:
            return [state for state, _ in await bench.runs(job)] == ["succeeded"] * 4

        await until(all_done, "all four, one after another")
    assert order == [T0 + n * HOUR for n in range(4)]
    assert await bench.sql.fetchval(f"SELECT count(*) FROM {bench.schema}.live") == 0


async def test_a_queued_run_that_is_cancelled_or_dead_lets_the_next_one_through(bench: Bench, sql: asyncpg.Connection) -> None:
    job = await bench.add(overlap="queue")
    for _ in range(3):
        await bench.fire()
    first, second, third = [one.run_id for one in reversed(await bench.app.jobs.runs("job"))]
    await bench.app.runs.cancel(second)
    await bench.app.runs.cancel(first)
    assert [state for state, _ in await bench.runs(job)] == ["cancelled", "cancelled", "ready"]
    await sql.execute(
        f"WITH gone AS (DELETE FROM {bench.schema}.ready RETURNING *) INSERT INTO {bench.schema}.dead"
        " (died_at, run_id, job_id, scheduled_at, lane, attempt, task, payload, options)"
        " SELECT now(), run_id, job_id, scheduled_at, lane, 1, task, payload, options FROM gone"
    )
    assert await sql.fetchval(f"SELECT count(*) FROM {bench.schema}.live") == 0, f"{third} is dead, and nobody waits"
    await bench.fire()
    assert (await bench.runs(job))[-1] == ("ready", T0 + 3 * HOUR)


async def test_replace_ends_what_waits_and_stops_what_runs(bench: Bench, app: Hourhand) -> None:
    started: list[datetime] = []

    @app.task
    async def work(ctx: Context) -> None:
        started.append(ctx.scheduled_at)
        await asyncio.sleep(3600 if len(started) < 2 else 0)

    job = await bench.add(overlap="replace")
    await bench.fire()
    await bench.fire()
    assert [state for state, _ in await bench.runs(job)] == ["cancelled", "ready"], "the first had not started"
    assert "replaced by the firing of 2026-03-02T13:00:00Z" in str((await app.jobs.runs("job"))[1].reason)
    async with working(app):

        async def running() -> bool:
            return len(started) == 1

        await until(running, "the second to start")
        await bench.fire()
        await bench.fire()

        async def replaced() -> bool:
            return [state for state, _ in await bench.runs(job)] == ["cancelled", "cancelled", "cancelled", "succeeded"]

        await until(replaced, "the running one to stop and the last to run")
    assert started == [T0 + HOUR, T0 + 3 * HOUR]


async def test_ends_and_firings_at_once_lose_nothing(bench: Bench, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    """Workers that end runs and a scheduler that fires the same jobs take the same locks, all the time."""

    @app.task
    async def work() -> None: ...

    jobs = [await bench.add(f"job-{n}", overlap="queue" if n % 2 else "skip", misfire_grace=10**8) for n in range(30)]
    async with working(app, concurrency=20):
        for _ in range(15):
            plans = {one.id: one for one in [await bench.planned(f"job-{n}") for n in range(30)]}
            assert set(await bench.gateway.fire(bench.node, bench.epochs, list(plans.values()))) == set(plans)

        async def idle() -> bool:
            counts = await where(sql, schema)
            return not counts["ready"] and not counts["delayed"] and not counts["running"]

        await until(idle, "everything to end")
    for n, job in enumerate(jobs):
        ran = [at for _, at in await bench.runs(job)]
        skipped = [row[0] for row in await sql.fetch(f"SELECT scheduled_at FROM {schema}.decisions WHERE job_id = $1", job)]
        assert sorted(ran + skipped) == [T0 + m * HOUR for m in range(15)]
        assert n % 2 == 0 or not skipped
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.live") == 0


@pytest.mark.parametrize("fired_late", [False, True], ids=["in time", "late"])
async def test_somebodys_open_transaction_holds_up_only_the_job_it_triggers(
    bench: Bench, app: Hourhand, url: str, sql: asyncpg.Connection, schema: str, fired_late: bool
) -> None:
    """It holds the job's live row: the scheduler and the worker go on with everything else, and with this when it ends."""

    @app.task
    async def work() -> None: ...

    held = await bench.add("held", overlap="queue", misfire_grace=10**8)
    free = await bench.add("free", schedule="30 * * * *", overlap="queue", misfire_grace=10**8)
    await bench.fire("held")
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    await app.jobs.trigger("held", connection=connection)
    scheduler = Scheduler(await app._database(), app.settings)
    scheduler.node.id = bench.node
    plans = [await bench.planned("held"), await bench.planned("free")]
    assert set(await scheduler.firer._fire_plain(bench.epochs, plans)) == {plans[1].id}
    assert scheduler.firer._blocked == {plans[0].id}
    late = Plan(0.0, bench.epochs, late=[(plans[0], [plans[0].due_at])])
    assert await scheduler.firer._fire_late(late, 0, 1) == 0, "nobody refused it: it waits"
    async with working(app):

        async def others_end() -> bool:
            return (await bench.runs(free)) == [("succeeded", T0)]

        await until(others_end, "the other job's run to end")
        assert [state for state, _ in await bench.runs(held)] == ["running"], "it has run, and its end waits"
        await transaction.commit()
        await connection.close()

        async def all_end() -> bool:
            return [state for state, _ in await bench.runs(held)] == ["succeeded", "succeeded"]

        await until(all_end, "the held one and the triggered one to end")
    assert scheduler.firer._blocked == {plans[0].id}
    if fired_late:
        assert await scheduler.firer._fire_late(late, 0, 1) == 0
    else:
        assert set(await scheduler.firer._fire_plain(bench.epochs, [plans[0]])) == {plans[0].id}
    assert scheduler.firer._blocked == set()
    await scheduler.firer.close()


# Windows and limits


async def test_a_flexible_window_spreads_by_a_hash_and_keeps_the_nominal_time(
    bench: Bench, sql: asyncpg.Connection, schema: str
) -> None:
    jobs = [await bench.add(f"job-{n}", flexible_window=600, misfire_grace=10**8) for n in range(60)]
    for n in range(60):
        await bench.rewind(f"job-{n}")
    plans = {one.id: one for one in [await bench.planned(f"job-{n}") for n in range(60)]}
    await bench.gateway.fire(bench.node, bench.epochs, list(plans.values()))
    rows = await sql.fetch(f"SELECT job_id, scheduled_at, due_at FROM {schema}.delayed ORDER BY job_id")
    assert [row["job_id"] for row in rows] == jobs
    assert {row["scheduled_at"] for row in rows} == {T0}
    offsets = [(row["due_at"] - T0).total_seconds() for row in rows]
    assert all(0 <= one < 600 for one in offsets)
    assert sum(one < 300 for one in offsets) in range(15, 46), "spread over the window"
    await bench.fire("job-0")
    again = await sql.fetchval(f"SELECT max(due_at) FROM {schema}.delayed WHERE job_id = $1", jobs[0])
    assert (again - T0 - HOUR).total_seconds() == pytest.approx(offsets[0]), "the same every time"


async def test_max_runs_ends_a_job_and_triggers_do_not_count(bench: Bench, app: Hourhand) -> None:
    job = await bench.add(max_runs=2)
    await app.jobs.trigger("job")
    for _ in range(4):
        await bench.fire()
    assert [at for _, at in await bench.runs(job) if at < T0 + 9 * HOUR] == [T0, T0 + HOUR]
    shown = await app.jobs.show("job")
    assert (shown.state, shown.fired, shown.next_run_at) == ("finished", 2, None)
    assert [one.name for one in await app.jobs.list(state="finished")] == ["job"]
    more = await app.jobs.update("job", max_runs=3)
    assert (more.state, more.fired) == ("active", 2)
    await bench.fire()
    assert (await app.jobs.show("job")).state == "finished"


async def test_max_runs_and_overlap_hold_when_firing_late_too(bench: Bench) -> None:
    job = await bench.add("limited", max_runs=2, missed_window="RUN_ALL")
    await bench.fire_late(5, "limited")
    assert [at for _, at in await bench.runs(job)] == [T0, T0 + HOUR]
    queued = await bench.add("queued", schedule="0,30 * * * *", overlap="queue", missed_window="RUN_ALL")
    await bench.fire_late(3, "queued")
    assert [state for state, _ in await bench.runs(queued)] == ["ready", "delayed", "delayed"]


# Pausing


@pytest.mark.parametrize(
    ("policy", "override", "started", "left_out"),
    [("RUN_ONCE", None, [3], 3), ("SKIP", None, [], 4), ("RUN_ALL", None, [0, 1, 2, 3], 0), ("RUN_ALL", "SKIP", [], 4),
     ("SKIP", "RUN_ALL", [0, 1, 2, 3], 0)],
)  # fmt: skip
async def test_resuming_treats_the_pause_by_the_policy(
    bench: Bench, app: Hourhand, sql: asyncpg.Connection, schema: str, policy: str, override: str | None, started: list[int], left_out: int
) -> None:  # fmt: skip
    job = await bench.add(missed_window=policy)
    first = await last_hours(sql, 5)
    await bench.rewind(to=first)
    await app.jobs.pause("job")
    await sql.execute(f"UPDATE {schema}.jobs SET paused_at = $1", first + timedelta(minutes=30))
    assert (await app.jobs.show("job")).state == "paused"
    await bench.fire()  # due before the pause: still its own
    for _ in range(4):
        await bench.fire()
    assert await bench.runs(job) == [("ready", first)]
    resumed = await app.jobs.resume("job", missed=override)
    assert (resumed.started, resumed.left_out, resumed.job.state) == (len(started), left_out, "active")
    assert sorted(at for _, at in await bench.runs(job)) == [first, *(first + (n + 1) * HOUR for n in started)]
    assert (await app.jobs.resume("job")).started == 0, "a second time is nothing"
    audit = await app.jobs.audit("job", first, datetime.now(UTC))
    assert (audit.expected, audit.due, audit.clean) == (5, 0, True)


@pytest.mark.parametrize("policy", ["SKIP", "RUN_ALL"])
async def test_resuming_while_no_scheduler_is_alive_judges_the_pause_all_the_same(
    bench: Bench, app: Hourhand, sql: asyncpg.Connection, schema: str, policy: str
) -> None:
    """Two were due before the pause and not fired; three came during it. Nobody fires any of them later."""
    job = await bench.add(missed_window="RUN_ALL", misfire_grace=10**8)
    first = await last_hours(sql, 5)
    await bench.rewind(to=first)
    await app.jobs.pause("job")
    await sql.execute(f"UPDATE {schema}.jobs SET paused_at = $1", first + timedelta(minutes=90))
    await app.jobs.resume("job", missed=policy)
    wanted = [first + n * HOUR for n in range(2 if policy == "SKIP" else 5)]
    assert sorted(at for _, at in await bench.runs(job)) == wanted
    await bench.fire_late(5)
    assert sorted(at for _, at in await bench.runs(job)) == wanted, "and none is fired twice"
    assert (await app.jobs.audit("job", first, datetime.now(UTC))).clean


async def test_a_change_during_a_pause_does_not_forget_its_beginning(
    bench: Bench, app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    job = await bench.add(missed_window="RUN_ALL")
    first = await last_hours(sql, 4)
    await bench.rewind(to=first)
    await app.jobs.pause("job")
    await sql.execute(f"UPDATE {schema}.jobs SET paused_at = $1", first - timedelta(minutes=1))
    for _ in range(4):
        await bench.fire()
    await app.jobs.update("job", end_at=datetime(2100, 1, 1, tzinfo=UTC), payload={})
    assert (await app.jobs.resume("job")).started == 4
    assert len(await bench.runs(job)) == 4


async def last_hours(sql: asyncpg.Connection, count: int) -> datetime:
    """So many full hours lie between this one, itself included, and now."""
    hour: datetime = await sql.fetchval("SELECT date_trunc('hour', clock_timestamp())")
    return hour - (count - 1) * HOUR


# Changes at the moment of firing


async def test_a_plan_from_before_a_change_is_refused(bench: Bench, app: Hourhand) -> None:
    """The firing was planned, then the job paused or left: the plan is void, and a new one sees the change."""
    job = await bench.add(misfire_grace=10**8)
    stale = await bench.planned()
    await app.jobs.pause("job")
    assert set(await bench.gateway.fire(bench.node, bench.epochs, [stale])) == set()
    assert await bench.fire_late(1) is not None
    assert await bench.runs(job) == [("ready", T0)], "due before the pause"


async def test_a_firing_under_way_when_its_job_leaves_is_not_repeated(
    bench: Bench, app: Hourhand, url: str, sql: asyncpg.Connection, schema: str
) -> None:
    """The firing holds the schedule; the change waits for it, finds it done, and starts behind it."""
    job = await bench.add(misfire_grace=10**8)
    database = await app._database()
    planned = await bench.planned()
    firing = await asyncpg.connect(url)
    transaction = firing.transaction()
    await transaction.start()
    epochs = bench.epochs
    rows = await firing.fetch(
        database.sql["fire"], bench.node, list(epochs), list(epochs.values()), [planned.id], [planned.due_at],
        [datetime(2100, 1, 1, tzinfo=UTC)], [planned.revision],
    )  # fmt: skip
    assert len(rows) == 1
    change = asyncio.create_task(app.jobs.update("job", schedule="0 12 * * *"))

    async def waits() -> bool:
        return bool(
            await sql.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%put_job%'"
            )
        )

    await until(waits, "the change to wait for the firing")
    await transaction.commit()
    await firing.close()
    await change
    assert await bench.runs(job) == [("ready", T0)]


async def test_a_due_firing_is_not_lost_when_its_job_leaves(bench: Bench, app: Hourhand, sql: asyncpg.Connection) -> None:
    """Due, not fired yet, and the schedule changes: the job has its firing before it goes."""
    job = await bench.add()
    first = await last_hours(sql, 1)
    await bench.rewind(to=first)
    stale = await bench.planned()
    await app.jobs.update("job", schedule="0 12 * * *", timezone="Asia/Tokyo")
    assert await bench.runs(job) == [("ready", first)]
    assert set(await bench.gateway.fire(bench.node, bench.epochs, [stale])) == set()
    assert (await app.jobs.audit("job", first, datetime.now(UTC))).clean


@pytest.mark.parametrize(
    ("policy", "grace", "runs"),
    [("RUN_ONCE", 0, [3]), ("SKIP", 0, []), ("RUN_ALL", 0, [0, 1, 2, 3]), ("SKIP", 10**8, [0, 1, 2, 3])],
)
async def test_a_job_that_leaves_a_schedule_that_is_behind_is_judged_by_its_policy(
    bench: Bench, app: Hourhand, sql: asyncpg.Connection, policy: str, grace: float, runs: list[int]
) -> None:
    job = await bench.add(missed_window=policy, misfire_grace=grace)
    first = await last_hours(sql, 4)
    await bench.rewind(to=first)
    await app.jobs.update("job", schedule="30 0 1 1 *")
    assert sorted(at for _, at in await bench.runs(job)) == [first + n * HOUR for n in runs]
    assert (await app.jobs.audit("job", first, datetime.now(UTC))).clean


async def test_new_limits_of_a_job_that_is_behind_hold_from_what_is_due(
    bench: Bench, app: Hourhand, sql: asyncpg.Connection
) -> None:
    """The schedule's next instant lies before start_at; what is due after it is not lost."""
    first = await last_hours(sql, 4)
    job = await bench.add(missed_window="RUN_ALL", misfire_grace=10**8, start_at=first + timedelta(minutes=1))
    await bench.rewind(to=first)
    await app.jobs.update("job", end_at=datetime(2100, 1, 1, tzinfo=UTC))
    await bench.fire_late(4)
    assert sorted(at for _, at in await bench.runs(job)) == [first + n * HOUR for n in (1, 2, 3)]
    assert (await app.jobs.audit("job", first, datetime.now(UTC))).clean


async def test_raising_max_runs_leaves_no_gap(bench: Bench, app: Hourhand, sql: asyncpg.Connection) -> None:
    first = await last_hours(sql, 4)
    await bench.add(max_runs=1)
    await bench.rewind(to=first)
    for _ in range(4):
        await bench.fire()
    await app.jobs.update("job", max_runs=3)
    lines = await app.jobs.why("job", since=first, until=datetime.now(UTC))
    assert [line.outcome for line in lines] == ["ready", "finished", "finished", "finished"]
    await app.jobs.update("job", max_runs=None)
    assert (await app.jobs.audit("job", first, datetime.now(UTC))).clean


async def test_a_change_in_an_open_transaction_keeps_only_its_own_schedule_waiting(bench: Bench, app: Hourhand, url: str) -> None:
    job = await bench.add(misfire_grace=10**8)
    other = await bench.add("other", schedule="30 * * * *", misfire_grace=10**8)
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    await app.jobs.update("job", schedule="0 12 * * *", connection=connection)
    plans = [await bench.planned(), await bench.planned("other")]
    scheduler = Scheduler(await app._database(), app.settings)
    scheduler.node.id = bench.node
    with pytest.raises(LockTimeout):
        await scheduler.firer._gateway.fire(bench.node, bench.epochs, plans)
    assert set(await scheduler.firer._fire_plain(bench.epochs, plans)) == {plans[1].id}
    assert [len(await bench.runs(one)) for one in (job, other)] == [0, 1]
    await transaction.rollback()
    assert set(await scheduler.firer._fire_plain(bench.epochs, [plans[0]])) == {plans[0].id}
    await connection.close()
    await scheduler.firer.close()


# By hand


async def test_trigger_starts_a_run_besides_the_schedule(bench: Bench, app: Hourhand) -> None:
    job = await bench.add(overlap="skip", payload={"n": 1})
    before = await app.jobs.show("job")
    first = await app.jobs.trigger("job", payload={"n": 2})
    assert first.outcome == "started"
    assert first.run_id is not None
    assert (await app.runs.show(first.run_id)).payload == {"n": 2}
    assert (await app.jobs.trigger("job")).outcome == "skipped"
    forced = await app.jobs.trigger("job", force=True)
    assert forced.outcome == "started"
    assert await app.jobs.show("job") == before
    await app.jobs.pause("job")
    await app.runs.cancel(first.run_id)
    assert (await app.jobs.trigger("job")).outcome == "started", "a paused job too"
    assert len(await bench.runs(job)) == 3


# One-offs


@pytest.mark.parametrize("bulk", [False, True])
async def test_a_one_off_whose_instant_was_fired_a_moment_ago_starts_by_itself(
    bench: Bench, app: Hourhand, sql: asyncpg.Connection, schema: str, bulk: bool
) -> None:
    at = await sql.fetchval("SELECT date_trunc('second', clock_timestamp())")
    await bench.add("first", schedule=at.isoformat())
    await sql.execute(f"UPDATE {schema}.schedules SET next_run_at = NULL")
    shard = (await app.jobs.show("first")).shard
    sibling = "SELECT min(n) FROM generate_series(2, 20000) AS n WHERE hashint8(n) & 255 = $1"
    await sql.execute(f"SELECT setval('{schema}.job_numbers', {await sql.fetchval(sibling, shard) - 1})")
    one = {"task": "work", "schedule": at.isoformat()}
    await (app.jobs.add_many([{"name": "second", **one}]) if bulk else app.jobs.add("second", **one))
    job = ids.parse_job_id((await app.jobs.show("second")).job_id)
    assert job is not None
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.schedules") == 1, "they share it"
    assert await bench.runs(job) == [("ready", at)]
    assert (await app.jobs.show("second")).state == "finished"


async def test_one_off_jobs_are_collected_when_their_runs_have_ended(
    bench: Bench, app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    from hourhand.storage.nodes import MaintenanceGateway

    maintenance = MaintenanceGateway((await app._database()).link("test"))
    at = (await sql.fetchval("SELECT clock_timestamp()")) - timedelta(seconds=30)
    job = await bench.add("once", schedule="in 1h")
    await sql.execute(f"UPDATE {schema}.schedules SET anchor = $1, next_run_at = $1", at)
    await sql.execute(f"UPDATE {schema}.jobs SET active_since = $1", at)
    planned = await bench.planned("once")
    await bench.gateway.fire(bench.node, bench.epochs, [Planned(planned.id, planned.due_at, None, planned.revision)])
    assert (await app.jobs.show("once")).state == "finished"
    assert await maintenance.collect_jobs(10.0, 100) == 0, "its run has not ended"
    run = (await app.jobs.runs("once"))[0].run_id
    await app.runs.cancel(run)
    assert await maintenance.collect_jobs(3600.0, 100) == 0, "kept for a while"
    assert await maintenance.collect_jobs(10.0, 100) == 1
    assert await app.jobs.list() == []
    assert await bench.runs(job) == [("cancelled", at)], "its runs stay"
    await sql.execute(f"UPDATE {schema}.loose SET since = now() - interval '2 minutes'")
    assert await maintenance.collect_schedules(100) == 1
    await maintenance.close()
