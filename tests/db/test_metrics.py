"""What Prometheus is told: by a worker, by a scheduler, by the API; and that rules, dashboard and documentation ask for nothing else."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from hourhand import Context, Hourhand, Retry
from hourhand.core.errors import ConfigurationError
from hourhand.engine.exposition import LoopLag, scheduler_moment, worker_moment
from hourhand.engine.metrics_server import Address, MetricsServer
from hourhand.engine.worker import Worker
from hourhand.surfaces.metrics import exposition
from tests.db.test_firing import make_schedule
from tests.db.test_scheduler import scheduling
from tests.db.test_statistics import chores
from tests.db.test_worker import working
from tests.support.fleet import until
from tests.support.metrics import Scrape, get, panel_expressions, plain, rule_expressions, series_in
from tests.support.servers import free_port

pytestmark = pytest.mark.once

AT_ONCE = Retry(max_attempts=2, base=0, cap=0)
HERE = "127.0.0.1"


async def of_worker(app: Hourhand, worker: Worker) -> Scrape:
    return Scrape(worker_moment(worker, [await app._database()], LoopLag())())


async def of_api(app: Hourhand) -> Scrape:
    return Scrape(await exposition(await app._database()))


async def test_a_worker_tells_what_its_runs_came_to(app: Hourhand) -> None:
    @app.task(queue="mail")
    async def fine() -> None: ...

    @app.task(retry=AT_ONCE)
    async def bad() -> None:
        raise ValueError

    async with working(app, concurrency=5) as worker:
        for _ in range(3):
            await (await fine.enqueue()).result(10)
        await (await bad.enqueue()).wait(10)
        scrape = await of_worker(app, worker)
    assert scrape.value("hourhand_runs_total", task="fine", queue="mail", status="succeeded", attempt="1") == 3
    assert scrape.value("hourhand_runs_total", task="bad", queue="default", status="failed", attempt="1") == 1
    assert scrape.value("hourhand_runs_total", task="bad", queue="default", status="dead", attempt="2") == 1
    assert scrape.value("hourhand_run_duration_seconds_count", task="bad", queue="default") == 2
    assert scrape.value("hourhand_start_lateness_seconds_count", task="bad", queue="default") == 1
    assert scrape.value("hourhand_claimed_runs_total") == 5
    assert 0 < scrape.value("hourhand_claims_total") <= 20
    assert scrape.value("hourhand_slots", kind="regular") == scrape.value("hourhand_slots", kind="probation") == 5
    assert scrape.value("hourhand_refusals_total", kind="outcome") == 0
    assert 0 <= scrape.value("hourhand_lease_age_seconds") < 60
    assert scrape.value("hourhand_database_round_trips_total", statement="claim") >= 5
    assert scrape.value("hourhand_database_round_trips_total", statement="heartbeat") >= 1
    assert scrape.value("hourhand_database_round_trip_seconds_total", statement="finish_plain") > 0
    assert scrape.sum("hourhand_database_failures_total") == 0
    assert scrape.sum("hourhand_node_info", kind="worker", node=str(worker.node.id)) == 1


async def test_an_outcome_that_is_refused_is_counted(app: Hourhand, sql: asyncpg.Connection) -> None:
    """Another worker has the run meanwhile."""
    taken = asyncio.Event()

    @app.task
    async def slow(ctx: Context) -> None:
        await sql.execute(f"UPDATE {app.settings.schema}.running SET token = token + 1 WHERE run_id = $1", ctx.run_number)
        taken.set()

    async with working(app) as worker:
        await slow.enqueue()

        async def refused() -> bool:
            return (await of_worker(app, worker)).value("hourhand_refusals_total", kind="outcome") == 1

        await until(refused, "a refusal")
        assert taken.is_set()


async def test_statements_that_fail_are_counted(app: Hourhand) -> None:
    database = await app._database()
    with pytest.raises(Exception, match=r"invalid input|expected str"):
        await database.fetch("queue_by_name", 7)
    trip = database.trips.by_statement["queue_by_name"]
    assert (trip.count, trip.failed) == (1, 1)


async def test_a_scheduler_tells_what_it_fired_and_what_it_missed(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    past = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=30)
    for shard, policy, jobs in ((1, "RUN_ONCE", 2), (2, "SKIP", 1), (3, "RUN_ALL", 1)):
        job = {"missed_window": f"'{policy}'", "max_missed": "2", "misfire_grace": "60"}
        one = await make_schedule(sql, schema, shard, past, jobs=jobs, **job)
        await sql.execute(f"UPDATE {schema}.schedules SET expression = 'every 600s' WHERE id = $1", one)
    async with scheduling(app) as scheduler:
        moment = scheduler_moment(scheduler, [await app._database()], LoopLag())

        async def fired() -> bool:
            return Scrape(moment()).value("hourhand_firings_total") >= 8

        await until(fired, "the firings")
        scrape = Scrape(moment())
    # Of four jobs, three instants each are missed; what has just come due is within the grace.
    assert scrape.value("hourhand_firings_missed_total") == 4 * 3
    assert scrape.value("hourhand_firings_coalesced_total") == 2 * 2
    assert scrape.value("hourhand_firings_skipped_total") == 3 + 1
    assert scrape.value("hourhand_firings_total") == 2 * (1 + 1) + (0 + 1) + (2 + 1)
    assert scrape.value("hourhand_shards_owned") == scrape.value("hourhand_epoch_changes_total") == 256
    assert scrape.value("hourhand_blocked_schedules") == 0
    assert (await of_api(app)).value("hourhand_missed_firings_last_hour") == 4 * 3


async def test_a_firing_that_is_refused_is_counted(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    async with scheduling(app) as scheduler:
        due = await sql.fetchval("SELECT date_trunc('second', clock_timestamp()) - interval '1 second'")
        schedule = await make_schedule(sql, schema, 7, due)

        async def owned() -> bool:
            return 7 in scheduler.elector.held

        await until(owned, "the shard")
        scheduler.elector.held[7] -= 1  # what it believes to hold is another's
        await scheduler.firer.fire_all([schedule])
        scrape = Scrape(scheduler_moment(scheduler, [], LoopLag())())
    assert scrape.value("hourhand_refusals_total", kind="firing") >= 1


async def test_the_api_tells_how_the_fleet_is(app: Hourhand, sql: asyncpg.Connection) -> None:
    @app.task
    async def wait() -> None: ...

    scrape = await of_api(app)
    assert scrape.value("hourhand_nodes", kind="scheduler", state="alive") == 0, "an alert on none finds a zero"
    assert scrape.value("hourhand_shards_unowned") == 256
    await wait.options(at=datetime.now(UTC) - timedelta(minutes=5), queue="billing").enqueue()
    await sql.execute(f"UPDATE {app.settings.schema}.ready SET enqueued_at = NULL")
    await wait.options(delay=60, queue="billing").enqueue()
    await app.queues.pause("billing")
    await app.jobs.add("one", task="wait", schedule="@hourly")
    await app.jobs.add("two", task="wait", schedule="@hourly")
    await app.jobs.pause("two")
    gateway = await chores(app)
    await gateway.take_sample()
    await gateway.close()
    async with working(app):
        scrape = await of_api(app)
    assert scrape.value("hourhand_queue_depth", queue="billing", state="ready") == 1
    assert scrape.value("hourhand_queue_depth", queue="billing", state="delayed") == 1
    assert scrape.value("hourhand_queue_oldest_seconds", queue="billing") >= 300
    assert scrape.value("hourhand_queue_paused", queue="billing") == 1
    assert scrape.value("hourhand_dead_letters", queue="billing") == 0
    assert (scrape.value("hourhand_jobs", state="active"), scrape.value("hourhand_jobs", state="paused")) == (1, 1)
    assert scrape.value("hourhand_nodes", kind="worker", state="alive") == 1
    assert scrape.sum("hourhand_node_lease_left_seconds", kind="worker") > 0
    assert scrape.value("hourhand_firing_overdue_seconds") == 0
    await sql.execute(f"UPDATE {app.settings.schema}.schedules SET next_run_at = now() - interval '90 seconds'")
    assert (await of_api(app)).value("hourhand_firing_overdue_seconds") >= 90


async def test_everything_that_is_asked_for_is_told(app: Hourhand, project: Path) -> None:
    """By the alert rules, by the dashboard; and what is told is what the documentation says."""
    database = await app._database()
    async with working(app) as worker, scheduling(app) as scheduler:
        await until(lambda: database.fetch("totals"), "the number of schedules")
        parts = [
            await of_worker(app, worker),
            Scrape(scheduler_moment(scheduler, [database], LoopLag())()),
            await of_api(app),
        ]
    told = set[str]().union(*(one.names for one in parts))
    recorded = {name for name in rule_expressions() if ":" in name}
    for source, expressions in ({**{name: [one] for name, one in rule_expressions().items()}, **panel_expressions()}).items():
        for expression in expressions:
            asked = series_in(expression)
            assert asked or "ALERTS" in expression or expression.startswith("up{"), (source, expression)
            for name in asked:
                assert name in recorded or plain(name) in told, f"{source} asks for {name}, which nobody tells"
    page = (project / "docs" / "metrics.md").read_text()
    documented = {plain(name) for name in re.findall(r"^\| `(hourhand_[a-z_]+)", page, re.MULTILINE)}
    assert documented == {name for name in told if name.startswith("hourhand_")}
    alerts = {name for name in rule_expressions() if ":" not in name}
    assert set(re.findall(r"^\| `(Hourhand[A-Za-z]+)`", page, re.MULTILINE)) == alerts


async def test_a_port_for_prometheus(app: Hourhand) -> None:
    @app.task
    async def fine() -> None: ...

    port = free_port()
    working = asyncio.create_task(app.work(handle_signals=False, metrics_port=port))
    await (await fine.enqueue()).result(10)

    async def counted() -> bool:
        status, body = await get(HERE, port)
        return status == 200 and Scrape(body).sum("hourhand_runs_total", task="fine", status="succeeded") == 1

    await until(counted, "the run")
    assert (await get(HERE, port, b"GET /healthz HTTP/1.1\r\n\r\n")) == (200, b"ok\n")
    assert (await get(HERE, port, b"HEAD /metrics HTTP/1.1\r\n\r\n")) == (200, b"")
    assert (await get(HERE, port, b"GET /metrics?a=b HTTP/1.0\r\n\r\n"))[0] == 200
    assert (await get(HERE, port, b"GET / HTTP/1.1\r\n\r\n"))[0] == 404
    assert (await get(HERE, port, b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n"))[0] == 405
    assert (await get(HERE, port, b"\x16\x03\x01 this is TLS\r\n\r\n"))[0] == 400
    assert (await get(HERE, port, b"GET /metrics HTTP/1.1\r\nA: " + b"a" * 20_000 + b"\r\n\r\n"))[0] == 0
    with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1:{port} cannot be used for metrics: Address already in use"):
        await app.schedule(handle_signals=False, metrics_port=port)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    with pytest.raises(ConnectionRefusedError):
        await get(HERE, port)
    again = MetricsServer(Address(HERE, port))
    async with again:
        assert (await get(HERE, port, b"GET /healthz HTTP/1.1\r\n\r\n"))[0] == 503, "it serves nobody yet"
        assert Scrape((await get(HERE, port))[1]).names >= {"hourhand_build_info"}


async def test_many_who_ask_and_say_nothing_keep_nobody_from_asking_later() -> None:
    port = free_port()
    async with MetricsServer(Address(HERE, port)):
        silent = [await asyncio.open_connection(HERE, port) for _ in range(30)]

        async def refused() -> bool:
            return (await get(HERE, port))[0] == 0

        await until(refused, "the end of patience")
        for _, writer in silent:
            writer.close()

        async def answered() -> bool:
            return (await get(HERE, port))[0] == 200

        await until(answered, "an answer")


async def test_a_scrape_while_it_stops_harms_nobody(app: Hourhand) -> None:
    port = free_port()
    server = MetricsServer(Address(HERE, port))
    async with server:
        async with working(app) as worker:
            server.show_worker(worker, [await app._database()])
        # The worker has stopped; what it has counted is still there.
        assert Scrape((await get(HERE, port))[1]).value("hourhand_claimed_runs_total") == 0
        asked = [asyncio.create_task(get(HERE, port)) for _ in range(5)]
        _, hanging = await asyncio.open_connection(HERE, port)
        await asyncio.sleep(0)
    for status, _ in await asyncio.gather(*asked):
        assert status in (0, 200)
    hanging.close()
