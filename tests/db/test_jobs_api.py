"""`app.jobs`: adding, changing, looking, holding, starting, in one's own transaction too."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import pytest

from hourhand import Hourhand, InvalidOption, InvalidPayload, InvalidSchedule, JobConflict, UnknownJob
from hourhand.core import ids
from hourhand.storage.schedules import Planned, ScheduleGateway
from tests.db.test_firing import gateway, make_node
from tests.db.test_transactions import ASYNC, SYNC
from tests.support.fleet import until, where

pytestmark = pytest.mark.once

__all__ = ["gateway"]
HOURLY = {"task": "work", "schedule": "0 * * * *"}


async def number_of(app: Hourhand, name: str) -> int:
    number = ids.parse_job_id((await app.jobs.show(name)).job_id)
    assert number is not None
    return number


async def test_what_was_added_is_there_as_it_was_said(app: Hourhand) -> None:
    added = await app.jobs.add(
        "report", task="send_report", schedule="0 9 * * MON", timezone="America/New_York", payload={"kind": "weekly"},
        queue="reports", priority="low", dst="skip", missed_window="RUN_ALL", max_missed=7, misfire_grace="5m", overlap="queue",
        flexible_window=timedelta(minutes=10), start_at="2027-01-01T00:00:00Z", end_at=datetime(2028, 1, 1, tzinfo=UTC), max_runs=9,
        max_attempts=4, timeout=120, tags=["a", "b"], then="notify",
    )  # fmt: skip
    shown = await app.jobs.show("report")
    assert added.outcome == "added"
    assert shown == await app.jobs.show(added.job_id)
    assert (shown.schedule, shown.timezone, shown.dst) == ("0 9 * * MON", "America/New_York", "skip")
    assert (shown.task, shown.queue, shown.priority, shown.payload) == ("send_report", "reports", "low", {"kind": "weekly"})
    assert (shown.missed_window, shown.max_missed, shown.misfire_grace) == ("RUN_ALL", 7, 300)
    assert (shown.overlap, shown.flexible_window, shown.max_runs, shown.fired) == ("queue", 600, 9, 0)
    assert (shown.max_attempts, shown.timeout, shown.tags, shown.then) == (4, 120, ("a", "b"), ("notify",))
    assert shown.next_run_at == datetime(2027, 1, 4, 14, tzinfo=UTC), "the first Monday after start_at, nine in New York"
    assert "Monday" in shown.in_words
    assert "New_York" in shown.in_words
    assert await app.jobs.next("report", 2) == [datetime(2027, 1, 4, 14, tzinfo=UTC), datetime(2027, 1, 11, 14, tzinfo=UTC)]


async def test_the_same_again_is_nothing_another_is_a_conflict(app: Hourhand) -> None:
    first = await app.jobs.add("a", **HOURLY)
    assert (await app.jobs.add("a", **HOURLY)).outcome == "unchanged"
    with pytest.raises(JobConflict, match="replace=True"):
        await app.jobs.add("a", task="work", schedule="5 * * * *")
    assert await app.jobs.show("a") == (await app.jobs.list())[0]
    changed = await app.jobs.add("a", task="work", schedule="5 * * * *", replace=True)
    assert (changed.job_id, changed.outcome, changed.version) == (first.job_id, "replaced", 2)


async def test_a_delay_said_again_while_it_is_pending_is_the_same(app: Hourhand) -> None:
    first = await app.jobs.add("later", task="work", schedule="in 10m")
    again = await app.jobs.add("later", task="work", schedule="in 10m")
    assert (again.outcome, again.next_run_at) == ("unchanged", first.next_run_at)
    later = await app.jobs.update("later", schedule="in 2h")
    assert first.next_run_at is not None
    assert later.next_run_at is not None
    assert later.next_run_at > first.next_run_at + timedelta(hours=1), "said anew, it is meant anew"
    interval = await app.jobs.add("often", task="work", schedule="every 90s")
    assert (await app.jobs.add("often", task="work", schedule="every 90s")).anchor == interval.anchor


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"schedule": "0 0 30 2 *"}, InvalidSchedule, "never fire"),
        ({"schedule": "2027-01-01T09:00:00"}, InvalidSchedule, "offset"),
        ({"schedule": "2020-01-01T09:00:00Z"}, InvalidSchedule, "past"),
        ({"schedule": "0 9 15W * *"}, InvalidSchedule, "nW"),
        ({"schedule": "0 9 * * 1", "timezone": "Europe/Berlinn"}, InvalidSchedule, "time zone"),
        ({"schedule": None}, InvalidOption, "needs a schedule"),
        ({"schedule": "@hourly", "overlap": "maybe"}, InvalidOption, "overlap must be one of"),
        ({"schedule": "@hourly", "missed_window": "run_once"}, InvalidOption, "missed_window must be one of"),
        ({"schedule": "@hourly", "max_missed": 0}, InvalidOption, "max_missed"),
        ({"schedule": "@hourly", "max_runs": True}, InvalidOption, "max_runs"),
        ({"schedule": "@hourly", "flexible_window": "2d"}, InvalidOption, "flexible_window"),
        ({"schedule": "@hourly", "misfire_grace": -1}, InvalidOption, "misfire_grace"),
        ({"schedule": "@hourly", "start_at": datetime(2027, 1, 1)}, InvalidOption, "which instant"),
        ({"schedule": "@hourly", "start_at": "2027-01-02T00:00Z", "end_at": "2027-01-01T00:00Z"}, InvalidOption, "not after start_at"),
        ({"schedule": "@yearly", "end_at": "2026-12-01T00:00:00Z"}, InvalidOption, "never fire"),
        ({"schedule": "@hourly", "anchor": datetime(2027, 1, 1, tzinfo=UTC)}, InvalidOption, "anchor"),
        ({"schedule": "@hourly", "colour": "red"}, InvalidOption, "has no 'colour'"),
        ({"schedule": "@hourly", "payload": {"n": object()}}, InvalidPayload, "JSON"),
        ({"schedule": "@hourly", "queue": "no such name!"}, InvalidOption, "name of a queue"),
        ({"schedule": "@hourly", "then": 7}, InvalidOption, "then takes"),
        ({"schedule": "@hourly", "timezone": None}, InvalidOption, "timezone must be"),
        ({"schedule": "every 5m", "anchor": "yesterday"}, InvalidOption, "anchor"),
        ({"schedule": "@hourly", "payload": 5}, InvalidPayload, "mapping"),
        ({"schedule": "@hourly", "timeout": "soon"}, InvalidSchedule, "duration"),
        ({"schedule": 5}, InvalidSchedule, "schedule is needed"),
        ({"schedule": "@hourly", "task": "typed", "payload": {"m": 1}}, InvalidPayload, "argument"),
    ],
)  # fmt: skip
async def test_what_cannot_be_is_refused_and_nothing_is_stored(
    app: Hourhand, sql: asyncpg.Connection, schema: str, given: dict[str, Any], error: type[Exception], says: str
) -> None:
    @app.task
    async def typed(n: int) -> None: ...

    with pytest.raises(error, match=says):
        await app.jobs.add("bad", **{"task": "work", **given})
    with pytest.raises(InvalidOption, match="job number 2"):
        await app.jobs.add_many([{"name": "good", **HOURLY}, {"name": "bad", "task": "work", **given}])
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.jobs") == 0
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.schedules") == 0


async def test_an_update_changes_what_is_named_and_keeps_the_rest(app: Hourhand) -> None:
    await app.jobs.add(
        "a", task="work", schedule="every 90s", payload={"n": 1}, tags=["x"], end_at="2100-01-01T00:00:00Z", then="b"
    )
    before = await app.jobs.show("a")
    after = await app.jobs.update("a", payload={"n": 2}, queue="other", timeout=5)
    assert (after.payload, after.queue, after.timeout, after.tags, after.then) == ({"n": 2}, "other", 5, ("x",), ("b",))
    assert (after.anchor, after.next_run_at, after.active_since) == (before.anchor, before.next_run_at, before.active_since)
    assert (await app.jobs.update("a", end_at=None, then=None)).end_at is None
    assert (await app.jobs.show("a")).then == ()
    moved = await app.jobs.update("a", schedule="0 12 * * *", timezone="Asia/Tokyo")
    assert (moved.schedule, moved.timezone, moved.anchor) == ("0 12 * * *", "Asia/Tokyo", None)
    with pytest.raises(UnknownJob):
        await app.jobs.update("nobody", payload={})
    with pytest.raises(InvalidOption, match="has no"):
        await app.jobs.update("a", colour="red")


async def test_a_large_bulk_of_known_names_needs_no_lock_for_each(app: Hourhand) -> None:
    """PostgreSQL's table of locks is shared by everybody, and not large."""
    many = [{"name": f"job-{n}", **HOURLY} for n in range(12_000)]
    await app.jobs.add_many(many)
    assert (await app.jobs.add_many(many)).unchanged == 12_000


async def test_updates_at_once_do_not_lose_each_other(app: Hourhand) -> None:
    await app.jobs.add("a", **HOURLY, payload={})
    await asyncio.gather(app.jobs.update("a", tags=["t"]), app.jobs.update("a", timeout=7), app.jobs.update("a", max_missed=3))
    after = await app.jobs.show("a")
    assert (after.tags, after.timeout, after.max_missed, after.version) == (("t",), 7, 3, 4)


async def test_listing_filters_and_pages(app: Hourhand) -> None:
    await app.jobs.add_many([{"name": f"job-{n:02}", **HOURLY, "tags": ["even"] if n % 2 == 0 else []} for n in range(20)])
    await app.jobs.add("special", task="other", schedule="in 1h", queue="q2")
    await app.jobs.pause("job-03")
    assert [one.name for one in await app.jobs.list(limit=3)] == ["job-00", "job-01", "job-02"]
    assert [one.name for one in await app.jobs.list(limit=2, after="job-02")] == ["job-03", "job-04"]
    assert [one.name for one in await app.jobs.list(state="paused")] == ["job-03"]
    assert len(await app.jobs.list(tag="even")) == 10
    assert [one.name for one in await app.jobs.list(search="SPEC", task="other", queue="q2")] == ["special"]
    assert [one.name for one in await app.jobs.list(state="finished")] == []
    with pytest.raises(InvalidOption, match="no queue"):
        await app.jobs.list(queue="nope")


async def test_deleting_leaves_the_runs_and_the_schedule_is_collected(
    app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    await app.jobs.add("a", **HOURLY)
    run = (await app.jobs.trigger("a")).run_id
    assert run is not None
    await app.jobs.delete("a")
    with pytest.raises(UnknownJob):
        await app.jobs.delete("a")
    assert (await app.runs.show(run)).state == "ready"
    await sql.execute(f"UPDATE {schema}.loose SET since = now() - interval '2 minutes'")
    assert await sql.fetchval(f"SELECT {schema}.collect_schedules(10)") == 1
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.schedules") == 0


async def test_a_schedule_is_not_collected_under_somebodys_open_transaction(
    app: Hourhand, url: str, sql: asyncpg.Connection, schema: str, request: pytest.FixtureRequest
) -> None:
    """Whoever adds a job holds the schedule; collecting skips it, and finds the job once it is committed."""
    await app.jobs.add("a", task="work", schedule="in 1h")
    shard = (await app.jobs.show("a")).shard
    anchor = (await app.jobs.show("a")).anchor
    await app.jobs.delete("a")
    await sql.execute(f"UPDATE {schema}.loose SET since = now() - interval '2 minutes'")
    other = await asyncpg.connect(url)
    request.addfinalizer(other.terminate)
    transaction = other.transaction()
    await transaction.start()
    number = await other.fetchval(
        f"SELECT {schema}.schedule_number($1::smallint, 'once', 'once', 'UTC', 'shift', $2, $2)", shard, anchor
    )
    collected = sql.fetchval(f"SELECT {schema}.collect_schedules(10)", timeout=10)
    assert await collected == 0, "and not kept waiting"
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.loose") == 1, "tried again later"
    await other.execute(
        f"INSERT INTO {schema}.jobs (id, schedule_id, lane, shard, active_since, name, task, payload)"
        " VALUES (999, $1, 5, $2, now(), 'b', 'work', '{}')",
        number, shard,
    )  # fmt: skip
    await transaction.commit()
    await sql.execute(f"UPDATE {schema}.loose SET since = now() - interval '2 minutes'")
    assert await sql.fetchval(f"SELECT {schema}.collect_schedules(10)") == 0
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.schedules") == 1
    await other.close()


# In the caller's own transaction


@pytest.mark.parametrize("driver", ASYNC, ids=lambda one: one.__name__)
async def test_a_job_exists_if_and_only_if_the_caller_commits(app: Hourhand, url: str, driver: Any) -> None:
    async def change(connection: Any) -> Any:
        await app.jobs.add("kept", **HOURLY, payload={"note": "100 % :p0 $1"}, queue="new-queue", connection=connection)
        return await app.jobs.update("kept", timeout=3, connection=connection)

    await driver(url, change, False)
    assert await app.jobs.list() == []
    view = await driver(url, change, True)
    assert await app.jobs.show("kept") == await app.jobs.show(view.job_id)
    assert (await app.jobs.show("kept")).timeout == 3
    assert (await app.jobs.show("kept")).payload == {"note": "100 % :p0 $1"}

    async def hold(connection: Any) -> Any:
        await app.jobs.pause("kept", connection=connection)
        await app.jobs.resume("kept", connection=connection)
        await app.jobs.trigger("kept", connection=connection)
        await app.jobs.delete("kept", connection=connection)

    await driver(url, hold, False)
    assert len(await app.jobs.list()) == 1
    await driver(url, hold, True)
    assert await app.jobs.list() == []


@pytest.mark.parametrize("driver", SYNC, ids=lambda one: one.__name__)
async def test_the_same_without_an_event_loop(app: Hourhand, url: str, driver: Any) -> None:
    def change(connection: Any) -> Any:
        app.jobs.add_sync("kept", **HOURLY, queue="new-queue", connection=connection)
        return app.jobs.update_sync("kept", timeout=3, connection=connection)

    await asyncio.to_thread(driver, url, change, False)
    assert await app.jobs.list() == []
    view = await asyncio.to_thread(driver, url, change, True)
    assert await app.jobs.show("kept") == await app.jobs.show(view.job_id)

    def hold(connection: Any) -> Any:
        app.jobs.pause_sync("kept", connection=connection)
        app.jobs.resume_sync("kept", connection=connection)
        return app.jobs.trigger_sync("kept", connection=connection)

    assert (await asyncio.to_thread(driver, url, hold, True)).outcome == "started"
    await asyncio.to_thread(driver, url, lambda connection: app.jobs.delete_sync("kept", connection=connection), True)
    assert await app.jobs.list() == []
    await asyncio.to_thread(lambda: app.jobs.add_sync("own", **HOURLY))
    await asyncio.to_thread(lambda: app.jobs.update_sync("own", timeout=1))
    assert (await app.jobs.show("own")).timeout == 1
    await asyncio.to_thread(lambda: app.jobs.delete_sync("own"))
    await asyncio.to_thread(app.close)


async def test_add_many_in_the_callers_transaction(app: Hourhand, url: str) -> None:
    connection = await asyncpg.connect(url)
    many = [{"name": f"job-{n}", **HOURLY} for n in range(50)]
    transaction = connection.transaction()
    await transaction.start()
    await app.jobs.add_many(many, connection=connection)
    await transaction.rollback()
    assert await app.jobs.list() == []
    async with connection.transaction():
        assert (await app.jobs.add_many(many, connection=connection)).added == 50
    assert len(await app.jobs.list()) == 50
    await connection.close()
    with psycopg.connect(url) as other, pytest.raises(InvalidOption, match="add_many copies"):
        await app.jobs.add_many(many, connection=other)  # type: ignore[arg-type]


async def test_add_many_is_add_many_times(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    many = [
        {"name": f"job-{n}", "task": "work", "schedule": f"{n % 7} * * * *", "timezone": "Europe/Berlin", "payload": {"n": n},
         "overlap": "skip" if n % 3 else "allow", "tags": ["t"], "max_attempts": 2, "flexible_window": n}
        for n in range(500)
    ]  # fmt: skip
    told: list[int] = []
    first = await app.jobs.add_many(many, progress=told.append)
    assert (first.added, sum(told)) == (500, 500)
    bulk = {one.name: one for one in await app.jobs.list(limit=1000)}
    again = await app.jobs.add_many(many[:40])
    assert (again.added, again.unchanged) == (0, 40)
    with pytest.raises(JobConflict, match="job-3"):
        await app.jobs.add_many([{**many[3], "payload": {"n": 0}}])
    assert (await app.jobs.add_many([{**many[3], "payload": {"n": 0}}, {"name": "new", **HOURLY}], replace=True)).replaced == 1
    with pytest.raises(InvalidOption, match="comes twice"):
        await app.jobs.add_many([{"name": "x", **HOURLY}, {"name": "x", **HOURLY}])
    for name in ("job-5", "job-7"):
        single = {**next(one for one in many if one["name"] == name), "name": name + "-single"}
        view = await app.jobs.add(single.pop("name"), **single)
        skip = {"job_id", "name", "created_at", "updated_at", "active_since", "shard", "outcome"}
        there = {key: value for key, value in bulk[name].to_dict().items() if key not in skip}
        assert there == {key: value for key, value in view.to_dict().items() if key not in skip}
    shared = await sql.fetchval(f"SELECT count(*) FROM {schema}.schedules")
    assert shared <= 256 * 7 + 3
    assert shared == await sql.fetchval(f"SELECT count(DISTINCT schedule_id) FROM {schema}.jobs")


async def test_an_open_transaction_that_adds_a_job_keeps_nobody_waiting(
    app: Hourhand, gateway: ScheduleGateway, url: str, sql: asyncpg.Connection, schema: str
) -> None:
    """Others add to the same schedule, and it fires, while somebody's transaction with a new job of it is open."""
    await app.jobs.add("first", **HOURLY)
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    for n in range(300):
        await app.jobs.add(f"pending-{n}", **HOURLY, connection=connection)
    shard, schedule, due = await sql.fetchrow(
        f"SELECT s.shard, s.id, s.next_run_at FROM {schema}.jobs j JOIN {schema}.schedules s ON s.id = j.schedule_id WHERE j.name = 'first'"
    )
    await sql.execute(f"UPDATE {schema}.schedules SET next_run_at = next_run_at - interval '1 day' WHERE id = $1", schedule)
    await sql.execute(f"UPDATE {schema}.jobs SET active_since = active_since - interval '2 days', misfire_grace = 1e9")
    node = await make_node(sql, schema)
    epochs = await gateway.take_shards(node, [shard], [node])
    planned = Planned(schedule, due - timedelta(days=1), due)
    assert set(await asyncio.wait_for(gateway.fire(node, epochs, [planned]), 10)) == {schedule}
    await transaction.commit()
    await connection.close()
    assert (await where(sql, schema))["ready"] == 1


@pytest.mark.parametrize("bulk", [False, True])
async def test_a_new_schedule_in_an_open_transaction_keeps_nobody_waiting(app: Hourhand, url: str, bulk: bool) -> None:
    """Hundreds of jobs, so that every shard has the new schedule: somebody else's are added all the same."""
    many = [{"name": f"mine-{n}", "task": "work", "schedule": "7 7 * * *"} for n in range(400)]
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    if bulk:
        await app.jobs.add_many(many, connection=connection)
    else:
        for one in many:
            await app.jobs.add(**one, connection=connection)
    others = [{**one, "name": one["name"].replace("mine", "others")} for one in many]
    assert (await asyncio.wait_for(app.jobs.add_many(others), 20)).added == 400
    await transaction.rollback()
    await connection.close()
    assert len(await app.jobs.list(limit=1000)) == 400


@pytest.mark.parametrize("bulk", [False, True])
async def test_a_one_off_whose_transaction_commits_after_its_instant_is_not_lost(
    app: Hourhand, url: str, sql: asyncpg.Connection, schema: str, bulk: bool
) -> None:
    from tests.db.test_scheduler import scheduling

    at = await sql.fetchval("SELECT date_trunc('second', clock_timestamp()) + interval '2 seconds'")
    once = {"task": "work", "schedule": at.isoformat()}
    async with scheduling(app):
        # One in every shard, so that the instant is shared by whoever would share it.
        await app.jobs.add_many([{"name": f"other-{n}", **once} for n in range(1500)])
        connection = await asyncpg.connect(url)
        transaction = connection.transaction()
        await transaction.start()
        if bulk:
            await app.jobs.add_many([{"name": "late", **once}], connection=connection)
        else:
            await app.jobs.add("late", **once, connection=connection)
        question = f"SELECT count(*) FROM {schema}.ready"

        async def others_fired() -> bool:
            return bool(await sql.fetchval(question) == 1500)

        await until(others_fired, "the others to fire")
        await transaction.commit()
        await connection.close()

        async def all_fired() -> bool:
            return bool(await sql.fetchval(question) == 1501)

        await until(all_fired, "the late one to fire too")
    assert (await app.jobs.add("late", **once)).outcome == "unchanged"
    assert (await app.jobs.show("late")).schedule == at.isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize("level", ["repeatable_read", "serializable"])
async def test_jobs_can_be_added_in_a_transaction_with_an_old_snapshot(app: Hourhand, url: str, level: str) -> None:
    connection = await asyncpg.connect(url)
    async with connection.transaction(isolation=level):  # type: ignore[arg-type]
        await connection.fetchval("SELECT count(*) FROM pg_class")
        await app.jobs.add("a", **HOURLY, connection=connection)
        await app.jobs.add("b", task="work", schedule="in 1h", connection=connection)
        await app.jobs.add_many([{"name": "c", "task": "work", "schedule": "9 9 * * *"}], connection=connection)
    await connection.close()
    assert len(await app.jobs.list()) == 3


async def test_a_slow_add_many_does_not_lose_one_offs_whose_instant_comes_meanwhile(
    app: Hourhand, url: str, sql: asyncpg.Connection, schema: str
) -> None:
    at = await sql.fetchval("SELECT date_trunc('second', clock_timestamp()) + interval '2 seconds'")
    once = {"task": "work", "schedule": at.isoformat()}
    await app.jobs.add_many([{"name": f"there-{n}", **once} for n in range(1500)])

    def chunk_is_in(_: int) -> None:
        # Their instant is fired, without those that nobody sees yet.
        with psycopg.connect(url) as other:
            other.execute(f"UPDATE {schema}.schedules SET next_run_at = NULL")

    from hourhand.storage import jobs as bulk

    await app.jobs.add_many(({"name": f"slow-{n}", **once} for n in range(bulk.CHUNK)), progress=chunk_is_in)
    slow = await sql.fetchval(
        f"SELECT count(DISTINCT j.id) FROM {schema}.jobs j JOIN (SELECT job_id FROM {schema}.ready UNION ALL"
        f" SELECT job_id FROM {schema}.delayed) AS r ON r.job_id = j.id WHERE j.name LIKE 'slow%'"
    )
    assert slow == bulk.CHUNK
