"""What is counted as it happens: by the workers, by the schedulers, by the database itself; and what is made of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from hourhand import Context, Hourhand, Retry
from hourhand.core import ids
from hourhand.core.errors import InvalidOption, UnknownQueue
from hourhand.engine import maintainer as maintainer_module
from hourhand.engine.maintainer import Maintainer
from hourhand.engine.node import Node
from hourhand.storage.nodes import MaintenanceGateway
from tests.db.test_worker import working

AT_ONCE = Retry(max_attempts=2, base=0, cap=0)


async def statistics(app: Hourhand, sql: asyncpg.Connection) -> dict[str, int]:
    names = ("succeeded", "failed", "dead", "cancelled", "expired", "lost")
    sums = ", ".join(f"coalesce(sum({name}), 0)::int AS {name}" for name in names)
    row = await sql.fetchrow(f"SELECT {sums} FROM {app.settings.schema}.statistics")
    return {name: row[name] for name in names if row[name]}


async def add(
    app: Hourhand, sql: asyncpg.Connection, ago: str, queue: int = 1, node: int = 1, lateness: str = "{}", **counts: int
) -> None:
    names, values = (
        ["minute", "queue", "node", "lateness", *counts],
        [f"now() - interval '{ago}'", queue, node, f"'{lateness}'", *counts.values()],
    )
    values[0] = f"date_trunc('minute', {values[0]})"
    await sql.execute(f"INSERT INTO {app.settings.schema}.statistics ({', '.join(names)}) VALUES ({', '.join(map(str, values))})")


async def chores(app: Hourhand) -> MaintenanceGateway:
    return MaintenanceGateway((await app._database()).link("maintainer"))


async def test_a_worker_tells_what_it_has_ended_the_last_of_it_when_it_stops(app: Hourhand, sql: asyncpg.Connection) -> None:
    @app.task
    async def fine() -> None: ...

    @app.task(retry=AT_ONCE)
    async def bad(ctx: Context) -> None:
        raise ValueError

    async with working(app):
        for _ in range(5):
            await (await fine.enqueue()).result(10)
        await (await bad.enqueue()).wait(10)
        await (await fine.options(queue="other").enqueue()).result(10)
    assert await statistics(app, sql) == {"succeeded": 6, "failed": 1, "dead": 1}
    trend = await app.statistics.over("1h")
    assert sum(one.succeeded for one in trend.moments) == 6
    assert len(trend.moments) == 60
    assert max(one.lateness_max or 0 for one in trend.moments) > 0
    assert sum(one.succeeded for one in (await app.statistics.over("24h", queue="other")).moments) == 1


async def test_what_the_database_ends_by_itself_is_counted_there(app: Hourhand, sql: asyncpg.Connection) -> None:
    @app.task
    async def late() -> None: ...

    handle = await late.enqueue()
    await app.runs.cancel(handle.id)
    await late.options(expires=0.001).enqueue()
    await late.options(queue="other", expires=0.001).enqueue()
    gateway = await chores(app)
    assert await gateway.expire(100) == 2
    await gateway.close()
    assert await statistics(app, sql) == {"cancelled": 1, "expired": 2}


async def test_what_was_not_taken_is_told_again_and_what_was_is_not(app: Hourhand, sql: asyncpg.Connection) -> None:
    database = await app._database()
    gateway = await chores(app)
    maintainer = Maintainer(gateway, Node(database, app.settings, "worker", {}), app.settings)
    measures = maintainer.measures
    measures.fired += 3
    assert measures.untold() == measures.untold() != []
    await maintainer.tell()
    assert measures.untold() == []
    measures.fired += 2
    await maintainer.tell()
    await gateway.close()
    assert await sql.fetchval(f"SELECT sum(fired) FROM {app.settings.schema}.statistics WHERE queue = 0") == 5


async def test_minutes_are_merged_over_nodes_and_days_into_hours_and_nothing_is_lost(
    app: Hourhand, sql: asyncpg.Connection
) -> None:
    for node in (1, 2, -77):
        await add(app, sql, "10 minutes", node=node, succeeded=node + 100, lateness="{1,2}")
        await add(app, sql, "3 days", node=node, succeeded=1000)
        await add(app, sql, "3 days 7 minutes", node=node, succeeded=1000, lateness="{0,0,1}")
    await add(app, sql, "0 minutes", node=5, succeeded=1)
    before = await sql.fetchval(f"SELECT sum(succeeded) FROM {app.settings.schema}.statistics")
    gateway = await chores(app)
    for _ in range(2):
        await gateway.merge_statistics()
    await gateway.close()
    rows = await sql.fetch(f"SELECT * FROM {app.settings.schema}.statistics ORDER BY minute")
    assert sum(row["succeeded"] for row in rows) == before
    assert [row["node"] for row in rows if row["node"]] == [5]
    old = [row for row in rows if row["minute"] < datetime.now(UTC) - timedelta(days=2)]
    assert all(row["minute"].minute == 0 for row in old)
    assert len(old) in (1, 2)  # the two minutes may lie in two hours
    merged = next(row for row in rows if row not in old and not row["node"])
    assert merged["lateness"] == [3, 6]
    trend = await app.statistics.over("7d")
    assert sum(one.succeeded for one in trend.moments) == before


async def test_jobs_are_counted_with_the_queues_until_that_takes_long(
    app: Hourhand, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def looked(maintainer: Maintainer) -> tuple[int, int, int]:
        """Statements, and what they have counted anew: queues, and numbers of jobs."""
        await sql.execute(f"DELETE FROM {schema}.samples; DELETE FROM {schema}.totals")
        before = trips["take_sample"].count if "take_sample" in trips else 0
        for look in maintainer._looks:
            look._next = 0.0
        await maintainer._look_around()
        rows = [await sql.fetchval(f"SELECT count(*) FROM {schema}.{table}") for table in ("samples", "totals")]
        return trips["take_sample"].count - before, rows[0], rows[1]

    await app.enqueue("x")
    database, schema = await app._database(), app.settings.schema
    trips, gateway = database.trips.by_statement, await chores(app)
    maintainer = Maintainer(gateway, Node(database, app.settings, "worker", {}), app.settings, gateway)
    assert [await looked(maintainer) for _ in range(2)] == [(1, 1, 4)] * 2
    monkeypatch.setattr(maintainer_module, "QUICK", 0.0)
    assert [await looked(maintainer) for _ in range(2)] == [(2, 1, 4)] * 2
    await gateway.close()


async def test_a_sample_says_how_full_queues_are(app: Hourhand, sql: asyncpg.Connection) -> None:
    @app.task
    async def wait() -> None: ...

    await wait.options(at=datetime.now(UTC) - timedelta(minutes=5), queue="billing").enqueue()
    await wait.options(delay=60, queue="billing").enqueue()
    await wait.options(at=datetime.now(UTC) - timedelta(days=9), queue="late-order").enqueue()
    await sql.execute(
        f"UPDATE {app.settings.schema}.ready SET enqueued_at = NULL WHERE lane / 4 = (SELECT id FROM {app.settings.schema}.queues WHERE name = 'billing')"
    )
    gateway = await chores(app)
    for _ in range(2):
        await gateway.take_sample()
    await app.jobs.add("one", task="wait", schedule="@hourly")
    await gateway.take_sample()
    await gateway.close()
    billing = next(one for one in await app.statistics.queues() if one.name == "billing")
    assert (billing.ready, billing.delayed, billing.running) == (1, 1, 0)
    assert billing.oldest_seconds is not None
    assert 299 < billing.oldest_seconds < 600
    # What is ordered for an instant long past has waited since it was ordered.
    assert next(one.oldest_seconds for one in await app.statistics.queues() if one.name == "late-order") < 3_600
    assert (await app.statistics.totals())["jobs"] == 1
    newest = (await app.statistics.over("1h")).moments[-1]
    assert newest.ready == 2 or (await app.statistics.over("1h")).moments[-2].ready == 2


async def test_old_numbers_are_forgotten_with_the_history(app: Hourhand, sql: asyncpg.Connection) -> None:
    await add(app, sql, "91 days", succeeded=1)
    await add(app, sql, "1 day", succeeded=1)
    gateway = await chores(app)
    assert await gateway.forget_statistics(90 * 86_400, 100) == 1
    await gateway.close()


async def test_periods_and_queues_that_do_not_exist(app: Hourhand) -> None:
    with pytest.raises(InvalidOption, match="1h, 24h, 7d"):
        await app.statistics.over("2h")
    with pytest.raises(UnknownQueue):
        await app.statistics.over(queue="nowhere")


async def test_the_steps_of_a_chain_know_each_other(app: Hourhand, sql: asyncpg.Connection) -> None:
    @app.task
    async def first() -> int:
        return 1

    @app.task
    async def second(result: int) -> None: ...

    async with working(app):
        handle = await first.options(then=second).enqueue()
        await handle.result(10)
    row = await sql.fetchrow(f"SELECT run_id, next_id FROM {app.settings.schema}.follows")
    assert ids.run_id(row["run_id"]) == handle.id
    assert (await app.runs.show(row["next_id"])).task == "second"
