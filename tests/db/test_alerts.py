"""Alerts on a real database: what opens an incident, what ends it, and that it is told once to each who is to hear of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import structlog

from hourhand import Hourhand, Retry
from hourhand.core.alerts import default_alerts, parse_alerts
from hourhand.core.clock import Clock
from hourhand.core.errors import DatabaseUnavailable
from hourhand.engine import lookout as lookout_module
from hourhand.engine.maintainer import Maintainer
from hourhand.engine.node import Node
from hourhand.engine.scheduler import Scheduler
from hourhand.engine.watchman import OTHERS, Watchman
from hourhand.storage.alerts import AlertGateway, Noted
from hourhand.storage.nodes import MaintenanceGateway
from tests.db.test_worker import working
from tests.support.api import bury, settle
from tests.support.fleet import until

pytestmark = pytest.mark.once

AT_ONCE = Retry(max_attempts=1)


def rule(kind: str, name: str = "r", **options: Any) -> str:
    """A file with this rule alone, which opens and closes at once."""
    said = {"for": 0, "clear": 0, **options}
    lines = "\n".join(f"{option} = {_toml(value)}" for option, value in said.items())
    return f'defaults = false\n[[rule]]\nname = "{name}"\nkind = "{kind}"\n{lines}\n'


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


class Watch:
    """Somebody who looks, by a file, when he is told to."""

    def __init__(self, app: Hourhand, gateway: AlertGateway, text: str) -> None:
        self.app = app
        self.watchman = Watchman(gateway, parse_alerts(text, "test"), whole=True)

    async def look(self) -> list[tuple[str, str]]:
        """What is open after another look: subjects and messages."""
        await self.watchman.run_once()
        return sorted((one.subject, one.message) for one in await self.app.alerts.list())

    async def subjects(self) -> list[str]:
        return [subject for subject, _ in await self.look()]

    async def endings(self) -> list[str]:
        return [one.ending or "" for one in await self.app.alerts.list(open=False) if one.state == "closed"]


@pytest.fixture
async def gateway(app: Hourhand) -> AlertGateway:
    return AlertGateway(await app._database())


# Each kind of rule


@pytest.mark.once
async def test_dead_letters_that_come_in_numbers(app: Hourhand, gateway: AlertGateway) -> None:
    @app.task(retry=AT_ONCE, queue="billing")
    async def bad() -> None:
        raise ValueError

    watch = Watch(app, gateway, rule("dead_growth", threshold=3, window="10m"))
    async with working(app):
        for _ in range(2):
            await (await bad.enqueue()).wait(20)
        assert await watch.look() == [], "two are below three"
        await (await bad.enqueue()).wait(20)
    assert await watch.look() == [("billing", "queue billing: 3 dead letters in 10 min, most of task bad")]
    assert await watch.look() != [], "the same incident"
    assert len(await app.alerts.list(open=False)) == 1
    await app.dead.purge(task="bad")
    assert await watch.look() == []
    assert await watch.endings() == ["queue billing: fewer than 3 dead letters in 10 min"]


async def test_dead_letters_of_long_ago_and_of_other_queues_do_not_count(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    watch = Watch(app, gateway, rule("dead_growth", threshold=2, window="10m", queues=["*", "!test-*"]))
    for queue, ago in (("a", 11), ("a", 9), ("b", 1), ("b", 2), ("test-c", 1), ("test-c", 1)):
        run = await app.enqueue("x", queue=queue)
        await bury(sql, schema, run.id, died_at=datetime.now(UTC) - timedelta(minutes=ago))
    assert await watch.subjects() == ["b"]


async def aged(sql: asyncpg.Connection, schema: str, table: str, minutes: int) -> None:
    await sql.execute(
        f"UPDATE {schema}.{table} SET scheduled_at = scheduled_at - $1::interval, enqueued_at = enqueued_at - $1::interval",
        timedelta(minutes=minutes),
    )


@pytest.mark.once
async def test_runs_that_wait_too_long(app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str) -> None:
    watch = Watch(app, gateway, rule("queue_age", threshold="5m"))
    await app.enqueue("sit", queue="billing", priority="low")
    assert await watch.look() == []
    await aged(sql, schema, "ready", 6)
    assert await watch.look() == [("billing", "queue billing: a run of task sit has been ready for 6 min")]
    await app.queues.pause("billing")
    assert await watch.look() == [], "who pauses a queue knows that it waits"
    strict = Watch(app, gateway, rule("queue_age", threshold="5m", paused=True))
    assert await strict.subjects() == ["billing"]
    await app.queues.resume("billing")

    @app.task
    async def sit() -> None: ...

    async with working(app):

        async def drained() -> bool:
            return await watch.look() == []

        await until(drained, "the worker to have done it")


async def test_what_was_never_promoted_or_is_known_to_no_worker_waits_too(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    watch = Watch(app, gateway, rule("queue_age", threshold="5m"))
    for queue in ("late", "fine"):
        await app.enqueue("later", queue=queue, delay=3600)
    await sql.execute(
        f"UPDATE {schema}.delayed d SET due_at = now() - interval '7 minutes' FROM {schema}.queues q WHERE q.id = d.lane / 4 AND q.name = 'late'"
    )
    lane = await sql.fetchval(f"SELECT {schema}.queue_number('strange') * 4 + 1")
    for number, (task, minutes) in enumerate((("a", 1), ("a", 2), ("b", 8), ("b", 3)), 1):
        await sql.execute(
            f"INSERT INTO {schema}.parked (parked_at, seq, run_id, scheduled_at, lane, task, payload)"
            " VALUES (now() - $1::interval, $2, $2, now(), $3, $4, '{}')",
            timedelta(minutes=minutes), 10_000 + number, lane, task,
        )  # fmt: skip
    assert await watch.look() == [
        ("late", "queue late: a run of task later has been due, and not promoted, for 7 min"),
        ("strange", "queue strange: a run of task b has been set apart for 8 min: no worker that serves the queue can run it"),
    ]


async def test_a_letter_of_last_week_that_is_replayed_now_has_not_waited_for_a_week(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    watch = Watch(app, gateway, rule("queue_age", threshold="5m"))
    run = await app.enqueue("x")
    await aged(sql, schema, "ready", 7 * 24 * 60)
    await bury(sql, schema, run.id)
    await app.enqueue("y", queue="other")  # or nothing that waits now could have waited for long
    assert await watch.look() == []
    await app.dead.replay(run.id)
    assert await watch.look() == []


@pytest.mark.once
async def test_starts_that_are_late(app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str) -> None:
    @app.task(queue="billing")
    async def work() -> None: ...

    watch = Watch(app, gateway, rule("lateness", threshold="1m", window="10m", quantile="max"))
    async with working(app):
        await (await work.enqueue()).result(20)
    assert await watch.look() == []
    async with working(app):
        await (await work.options(at=datetime.now(UTC) - timedelta(minutes=4)).enqueue()).result(20)
    [(queue, message)] = await watch.look()
    assert queue == "billing"
    assert message.startswith("queue billing: the worst lateness is 4 min over 10 min (2 starts")
    median = Watch(app, gateway, rule("lateness", name="m", threshold="1m", window="10m", quantile="p50"))
    assert ("billing", "") not in await median.look(), "half of them were on time"
    few = Watch(app, gateway, rule("lateness", threshold="1m", window="10m", quantile="max", starts=3))
    assert await few.subjects() == []
    assert await watch.subjects() == ["billing"]
    await sql.execute(f"UPDATE {schema}.statistics SET minute = minute - interval '12 minutes'")
    assert await watch.look() == []
    assert "queue billing: the worst lateness is not above 60 s any more" in await watch.endings()


@pytest.mark.once
async def test_what_is_backfilled_or_replayed_is_not_late(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    @app.task
    async def work() -> None: ...

    watch = Watch(app, gateway, rule("lateness", threshold="1m", quantile="max"))
    letter = await work.enqueue()
    await aged(sql, schema, "ready", 60)
    await bury(sql, schema, letter.id)
    await app.dead.replay(letter.id)
    await app.jobs.add("job", task="work", schedule="@hourly")
    now = datetime.now(UTC)
    filled = await app.jobs.backfill("job", now - timedelta(hours=48), now - timedelta(hours=45), rate=1000)
    async with working(app):
        await letter.result(20)

        async def done() -> bool:
            return await sql.fetchval(f"SELECT count(*) FROM {schema}.runs WHERE job_id IS NOT NULL") == len(filled.runs)

        await until(done, "the backfill")
    assert await sql.fetchval(f"SELECT sum(succeeded) FROM {schema}.statistics") == 4
    assert await watch.look() == []


@asynccontextmanager
async def scheduling(app: Hourhand) -> AsyncIterator[None]:
    scheduler = Scheduler(await app._database(), app.settings)
    task = asyncio.create_task(scheduler.run())
    await scheduler.started.wait()
    try:
        yield
    finally:
        scheduler.ask_to_stop()
        await task


@pytest.mark.once
async def test_what_nobody_fires_and_what_is_made_up_for(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    overdue = Watch(app, gateway, rule("overdue", "o", threshold="1m"))
    catch_up = Watch(app, gateway, rule("catch_up", "c", threshold=100, window="1h"))
    for name, missed in (("once", "RUN_ONCE"), ("all", "RUN_ALL"), ("none", "SKIP")):
        await app.jobs.add(name, task="x", schedule="* * * * *", missed_window=missed, max_missed=10)
    assert await overdue.look() == []
    await sql.execute(f"UPDATE {schema}.jobs SET active_since = active_since - interval '70 minutes'")
    await sql.execute(f"UPDATE {schema}.schedules SET next_run_at = next_run_at - interval '62 minutes'")
    [(_, message)] = await overdue.look()
    assert message.startswith("3 schedules are due and not fired, the first for 6")
    assert message.endswith("; no scheduler is alive")
    assert await catch_up.look() == []
    async with scheduling(app):

        async def fired() -> bool:
            return await overdue.look() == []

        await until(fired, "the scheduler to have come to them")
    assert "what is due is being fired" in await overdue.endings()
    [(subject, message)] = await catch_up.look()
    assert subject == ""
    assert message.startswith("at least 1")
    assert "were left out by the jobs' missed-window policies" in message
    for table, column in (("firings", "fired_at"), ("decisions", "decided_at")):
        await sql.execute(f"UPDATE {schema}.{table} SET {column} = {column} - interval '61 minutes'")
    assert await catch_up.look() == []


async def test_what_was_skipped_for_other_reasons_is_no_catch_up(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    watch = Watch(app, gateway, rule("catch_up", threshold=5))
    for number, (outcome, reason) in enumerate(
        (("skipped", "the run before it had not ended"), ("coalesced", "the job was paused; the last of them ran for all"),
         ("backfilled", "asked for afterwards"), ("skipped", "missed while no scheduler fired it"))
    ):  # fmt: skip
        await sql.execute(
            f"INSERT INTO {schema}.decisions (job_id, scheduled_at, until, count, outcome, reason) VALUES ($1, now(), now(), 4, $2, $3)",
            number, outcome, reason,
        )  # fmt: skip
    assert await watch.look() == []
    await sql.execute(f"UPDATE {schema}.decisions SET count = 5 WHERE reason LIKE 'missed%'")
    assert await watch.subjects() == [""]


async def test_what_came_late_and_ran_is_a_catch_up_by_itself(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    watch = Watch(app, gateway, rule("catch_up", threshold=5))
    await sql.execute(
        f"INSERT INTO {schema}.firings (schedule_id, scheduled_at, until, fired_at, epoch, count, node, runs, late)"
        " SELECT n, now(), now(), now(), 1, 1, 1, 2, n <= 2 FROM generate_series(1, 9) AS n"
    )
    assert await watch.look() == [], "four runs came late, fourteen in time"
    await sql.execute(f"UPDATE {schema}.firings SET late = true")
    assert await watch.subjects() == [""]


async def older(sql: asyncpg.Connection, schema: str, hours: float, *names: str) -> None:
    """As if these jobs had been there for longer."""
    await sql.execute(
        f"UPDATE {schema}.jobs SET created_at = created_at - $1::interval, active_since = active_since - $1::interval WHERE name = ANY ($2)",
        timedelta(hours=hours), names,
    )  # fmt: skip


async def test_a_job_that_does_not_succeed(app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str) -> None:
    watch = Watch(app, gateway, rule("job_silent", jobs=["nightly-*", "backup", "!nightly-test"], after="26h"))
    names = ("nightly-a", "nightly-b", "nightly-test", "nightly-new", "backup", "other")
    for name in names:
        await app.jobs.add(name, task="x", schedule="0 2 * * *")
    assert await watch.look() == [], "they were just added"
    await older(sql, schema, 27, *(name for name in names if name != "nightly-new"))
    assert await watch.subjects() == ["backup", "nightly-a", "nightly-b"]
    triggered = await app.jobs.trigger("nightly-a")
    assert triggered.run_id is not None
    await settle(sql, schema, triggered.run_id)
    assert await watch.subjects() == ["backup", "nightly-b"]
    [ending] = await watch.endings()
    assert ending.startswith("job nightly-a has succeeded at 20")
    await sql.execute(
        f"UPDATE {schema}.runs SET scheduled_at = scheduled_at - interval '27 h', finished_at = finished_at - interval '27 h'"
    )
    [_, (job, message), _] = await watch.look()
    assert job == "nightly-a"
    assert "has not succeeded within 26 h; the last time was at 20" in message


async def test_a_failure_is_no_success_and_a_dead_letter_neither(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    watch = Watch(app, gateway, rule("job_silent", jobs="j*", after="1h"))
    await app.jobs.add("job", task="x", schedule="@hourly")
    await older(sql, schema, 2, "job")
    run = (await app.jobs.trigger("job")).run_id
    assert run is not None
    await app.runs.cancel(run)
    again = (await app.jobs.trigger("job")).run_id
    assert again is not None
    await bury(sql, schema, again)
    assert await watch.subjects() == ["job"]


async def test_a_job_that_is_paused_is_left_alone_and_counts_from_its_resume(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    watch = Watch(app, gateway, rule("job_silent", jobs="job", after="1h"))
    await app.jobs.add("job", task="x", schedule="@hourly")
    await older(sql, schema, 5, "job")
    assert await watch.subjects() == ["job"]
    await app.jobs.pause("job")
    assert await watch.subjects() == []
    assert await watch.endings() == ["job job is paused"]
    await app.jobs.resume("job", missed="SKIP")
    assert await watch.subjects() == [], "an hour from now on"
    await sql.execute(f"UPDATE {schema}.spans SET until = until - interval '2 hours'")
    await sql.execute(f"UPDATE {schema}.jobs SET active_since = active_since - interval '30 minutes'")
    assert await watch.subjects() == ["job"], "a change of its schedule is no success"
    await app.jobs.delete("job")
    assert await watch.subjects() == []
    assert (await watch.endings())[0] == "job job is gone, or nothing is ahead of it"


async def test_a_job_with_nothing_ahead_of_it_is_not_missed(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    watch = Watch(app, gateway, rule("job_silent", jobs="*", after="1h"))
    soon, ages = datetime.now(UTC) + timedelta(hours=3), datetime.now(UTC) + timedelta(days=900)
    await app.jobs.add("later", task="x", schedule=soon.isoformat())
    await app.jobs.add("begins", task="x", schedule="@hourly", start_at=soon)
    await app.jobs.add("ended", task="x", schedule="@hourly", end_at=ages)
    await app.jobs.add("counted", task="x", schedule="@hourly", max_runs=1)
    names = ("later", "begins", "ended", "counted")
    await older(sql, schema, 5, *names)
    assert await watch.subjects() == ["counted", "ended"]
    await sql.execute(f"UPDATE {schema}.jobs SET end_at = now() - interval '1 minute' WHERE name = 'ended'")
    await sql.execute(
        f"INSERT INTO {schema}.counters (job_id, fired, last_at) SELECT id, 1, now() FROM {schema}.jobs WHERE name = 'counted'"
    )
    assert await watch.subjects() == []
    await sql.execute(
        f"UPDATE {schema}.schedules SET anchor = anchor - interval '5 hours', next_run_at = next_run_at - interval '5 hours'"
        " WHERE kind = 'once'"
    )
    assert await watch.subjects() == ["later"], "it should have run two hours ago"


async def test_very_many_jobs_are_gone_through_in_turns(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout_module, "NAMES", 7)
    monkeypatch.setattr(lookout_module, "JUDGED", 3)
    monkeypatch.setattr(lookout_module, "BUDGET", -1.0)  # one part at each look
    monkeypatch.setattr(lookout_module, "MANY", 20)
    names = [f"many-{number:02}" for number in range(30)]
    await app.jobs.add_many([{"name": name, "task": "x", "schedule": "@daily"} for name in names])
    await older(sql, schema, 30, "many-02", "many-28")
    watch = Watch(app, gateway, rule("job_silent", jobs="many-*", after="1d"))
    assert await watch.subjects() == ["many-02"]
    for _ in range(4):
        found = await watch.subjects()
    assert found == ["many-02", "many-28"]
    await app.jobs.delete("many-02")
    assert await watch.subjects() == ["many-28"], "what is open is looked at each time"
    for _ in range(12):
        assert await watch.subjects() == ["many-28"]
    assert watch.watchman._lookout._turns["r"].warned


async def test_a_storm_of_silent_jobs_is_one_incident_for_most_of_them(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    names = [f"job-{number:02}" for number in range(30)]
    await app.jobs.add_many([{"name": name, "task": "x", "schedule": "@daily"} for name in names])
    await older(sql, schema, 30, *names)
    watch = Watch(app, gateway, rule("job_silent", jobs="job-*", after="1d", limit=4))
    found = await watch.look()
    assert [subject for subject, _ in found] == [OTHERS, *names[:4]]
    assert found[0][1].startswith("26 besides those that are told one by one: job-04, job-05, ")
    await app.jobs.pause("job-00")
    assert await watch.subjects() == [OTHERS, *names[1:4]]
    for name in names[4:]:
        await app.jobs.pause(name)
    assert await watch.subjects() == names[1:4]
    assert "there are no others any more" in await watch.endings()


async def make_node(sql: asyncpg.Connection, schema: str, name: str, kind: str = "worker", **columns: str) -> int:
    values = {"lease_until": "now() + interval '1 hour'", "session": "false", "started_at": "now() - interval '1 day'", **columns}
    return int(
        await sql.fetchval(
            f"INSERT INTO {schema}.nodes (kind, name, {', '.join(values)}) VALUES ('{kind}', '{name}', {', '.join(values.values())})"
            " RETURNING id"
        )
    )


async def test_a_node_that_died_until_it_is_replaced(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    watch = Watch(app, gateway, rule("node_lost"))
    one, two, three = [await make_node(sql, schema, name) for name in ("one", "two", "three")]
    await make_node(sql, schema, "sched", "scheduler")
    assert await watch.look() == []
    await sql.execute(f"UPDATE {schema}.nodes SET stopped_at = now() - interval '50 seconds' WHERE id = $1", one)
    assert await watch.look() == [], "it stopped in order"
    await sql.execute(f"UPDATE {schema}.nodes SET died_at = now() - interval '40 seconds' WHERE id = $1", two)
    [(subject, message)] = await watch.look()
    assert subject == f"worker two #{two}"
    assert message.startswith(f"worker two (node {two}) is dead since 20")
    assert message.endswith("of 3 workers, 1 are alive"), "the one that stopped was there a moment before"
    await make_node(sql, schema, "four", started_at="now() - interval '20 seconds'")
    assert len(await watch.look()) == 1
    await make_node(sql, schema, "five", started_at="now()")
    assert await watch.look() == [], "as many as before"
    await passed(sql, schema, 1)
    await sql.execute(f"UPDATE {schema}.nodes SET died_at = clock_timestamp() WHERE id = $1", three)
    assert await watch.subjects() == [f"worker three #{three}"], "what was made good stays so"
    await passed(sql, schema, 59)
    assert await watch.subjects() == [f"worker three #{three}"]
    await passed(sql, schema, 2)
    assert await watch.look() == [], "an hour later it is how things are"


async def passed(sql: asyncpg.Connection, schema: str, minutes: float) -> None:
    """As if so many minutes had gone by."""
    await sql.execute(
        f"UPDATE {schema}.nodes SET started_at = started_at - $1::interval, died_at = died_at - $1::interval,"
        " stopped_at = stopped_at - $1::interval",
        timedelta(minutes=minutes),
    )


async def test_a_node_that_is_replaced_before_its_death_is_noticed_is_told_of_and_soon_over(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    watch = Watch(app, gateway, rule("node_lost"))
    await make_node(sql, schema, "one")
    two = await make_node(sql, schema, "two", died_at="now() - interval '10 seconds'")
    await make_node(sql, schema, "three", started_at="now() - interval '11 seconds'")
    [(subject, message)] = await watch.look()
    assert subject == f"worker two #{two}"
    assert message.endswith("of 2 workers, 2 are alive")
    await passed(sql, schema, 0.5)
    assert await watch.look() == []


async def test_a_node_whose_lease_ran_out_is_lost_though_nobody_has_said_so(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    watch = Watch(app, gateway, rule("node_lost"))
    node = await make_node(sql, schema, "one", lease_until="now() - interval '40 seconds'")
    [(subject, message)] = await watch.look()
    assert subject == f"worker one #{node}"
    assert message.endswith("of 1 workers, 0 are alive")


async def test_only_nodes_of_these_kinds(app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str) -> None:
    watch = Watch(app, gateway, rule("node_lost", nodes="scheduler"))
    await make_node(sql, schema, "one", died_at="now()")
    assert await watch.look() == []


async def test_a_clock_that_is_off(app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str) -> None:
    watch = Watch(app, gateway, rule("clock_skew", threshold="2s"))
    await make_node(sql, schema, "fine", skew="1.9")
    node = await make_node(sql, schema, "slow", skew="-3.25")
    assert await watch.look() == [("worker slow", "worker slow: its clock is 3.2 s behind the database's")]
    await sql.execute(f"UPDATE {schema}.nodes SET skew = 0 WHERE id = $1", node)
    assert await watch.look() == []


async def test_runs_that_are_stuck(app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str) -> None:
    text = rule("stuck_runs", threshold=2, tasks="slow*")
    watch = Watch(app, gateway, text)
    node = await make_node(sql, schema, "one")
    lane = await sql.fetchval(f"SELECT {schema}.queue_number('default') * 4 + 1")
    for number, (task, minutes) in enumerate((("slow", 9), ("slow", 30), ("slower", 9), ("other", 9), ("other", 9)), 1):
        await sql.execute(
            f"INSERT INTO {schema}.running (worker_id, token, claimed_at, seq, run_id, scheduled_at, lane, attempt, crashes, task,"
            " payload, options) VALUES ($1, $2, now() - $3::interval, $2, $2, now(), $4, 0, 0, $5, '{}', '{\"timeout\": 60}')",
            node, number, timedelta(minutes=minutes), lane, task,
        )  # fmt: skip
    [(task, message)] = await watch.look()
    assert task == "slow"
    assert message.startswith("task slow: 2 runs go on far beyond their timeout")
    assert message.endswith("for 30 min")
    await sql.execute(f"DELETE FROM {schema}.running WHERE task = 'slow'")
    assert len(await watch.look()) == 1, "what was seen holds for a while"
    assert await Watch(app, gateway, text).look() == []


async def test_runs_that_are_lost(app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str) -> None:
    watch = Watch(app, gateway, rule("lost_runs", threshold=2))
    queue = await sql.fetchval(f"SELECT {schema}.queue_number('billing')")
    await sql.execute(f"SELECT {schema}.tally($1, 'lost', 1)", queue)
    assert await watch.look() == []
    await sql.execute(f"SELECT {schema}.tally($1, 'lost', 1)", queue)
    assert await watch.subjects() == ["billing"]
    await sql.execute(f"UPDATE {schema}.statistics SET minute = minute - interval '62 minutes'")
    assert await watch.look() == []


async def asked(app: Hourhand, watchman: Watchman) -> dict[str, int]:
    """Statements of one look."""
    trips = (await app._database()).trips.by_statement
    before = {name: trip.count for name, trip in trips.items()}
    await watchman.run_once()
    return {name: trip.count - before.get(name, 0) for name, trip in trips.items() if trip.count != before.get(name, 0)}


async def test_where_there_is_nothing_to_find_one_question_is_enough(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    watchman = Watchman(gateway, default_alerts(), whole=False)
    await make_node(sql, schema, "one", skew="0.9")
    await make_node(sql, schema, "two", stopped_at="now()")
    assert await asked(app, watchman) == {"begin_look": 1, "waiting_runs": 1, "stuck_runs": 1}
    assert await asked(app, watchman) == {"begin_look": 1}, "nothing waited, and nothing ran, a moment ago"
    await make_node(sql, schema, "three", skew="-1.1")
    assert await asked(app, watchman) == {"begin_look": 1, "skewed_nodes": 1, "note_incidents": 1}


async def test_several_rules_of_a_kind_are_asked_by_the_one_that_sees_most(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    await make_node(sql, schema, "one", skew="3")
    strict = rule("clock_skew", "strict", threshold="2s")
    for other in ("1m", "1s"):
        text = strict + rule("clock_skew", "other", threshold=other).removeprefix("defaults = false\n")
        assert "worker one" in await Watch(app, gateway, text).subjects()
    run = await app.enqueue("x")
    await bury(sql, schema, run.id, died_at=datetime.now(UTC) - timedelta(minutes=50))
    letters = rule("dead_growth", "hour", threshold=1, window="1h") + rule(
        "dead_growth", "minute", threshold=1, window="1m"
    ).removeprefix("defaults = false\n")
    assert "default" in await Watch(app, gateway, letters).subjects()


async def test_what_is_open_stays_open_while_nobody_can_see_whether_it_is_so(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, slow = list[asyncpg.Record](), False

    async def waiting_runs() -> list[asyncpg.Record]:
        if slow:
            await asyncio.sleep(0.2)
            raise DatabaseUnavailable("the database did not answer in time")
        return rows

    monkeypatch.setattr(gateway, "waiting_runs", waiting_runs)
    two = rule("queue_age", threshold="1m") + rule("queue_age", "s", threshold="2m").removeprefix("defaults = false\n")
    watch = Watch(app, gateway, two)
    await app.enqueue("x")
    await aged(sql, schema, "ready", 6)
    rows = await AlertGateway(await app._database()).waiting_runs()
    assert await watch.subjects() == ["default"] * 2
    slow = True
    for _ in range(2):
        assert await watch.subjects() == ["default"] * 2


async def test_a_look_that_takes_long_is_put_off_for_a_minute_at_most_and_said_to_fail_once(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.enqueue("x")
    await aged(sql, schema, "ready", 6)
    rows, passed, asked, fails, monotonic = await gateway.waiting_runs(), 0.0, 0, False, Clock.monotonic

    async def waiting_runs() -> list[asyncpg.Record]:
        nonlocal passed, asked
        passed += 20
        asked += 1
        if fails:
            raise DatabaseUnavailable("the database did not answer in time")
        return rows

    monkeypatch.setattr(Clock, "monotonic", staticmethod(lambda: monotonic() + passed))
    monkeypatch.setattr(gateway, "waiting_runs", waiting_runs)
    watch = Watch(app, gateway, rule("queue_age", threshold="1m"))
    for count in (1, 2):
        for _ in range(2):
            assert await watch.subjects() == ["default"]
            assert asked == count
        passed += lookout_module.MOST_BLIND
    fails = True
    with structlog.testing.capture_logs() as logs:
        for count in (3, 4):
            for _ in range(2):
                assert await watch.subjects() == ["default"]
                assert asked == count
            passed += lookout_module.MOST_BLIND
    assert [one["event"] for one in logs] == ["alert.rule_failed"]


async def test_what_came_after_nothing_waited_is_found_once_it_may_have_waited_too_long(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    watch = Watch(app, gateway, rule("queue_age", threshold="2s"))
    assert await watch.look() == []
    await app.enqueue("x")

    async def found() -> bool:
        return await watch.subjects() == ["default"]

    await until(found, "it to have waited for two seconds")


# Opening and closing


async def test_it_must_be_so_for_a_while_and_not_be_so_for_a_while(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    text = rule("clock_skew", threshold="1s", **{"for": "1m", "clear": "1m"})
    watch = Watch(app, gateway, text)
    node = await make_node(sql, schema, "one", skew="5")
    assert await watch.look() == []
    await sql.execute(f"UPDATE {schema}.nodes SET skew = 0")
    assert await watch.look() == []
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.incidents") == 0, "it leaves no trace"
    await sql.execute(f"UPDATE {schema}.nodes SET skew = 5")
    assert await watch.look() == []
    await sql.execute(f"UPDATE {schema}.incidents SET since = since - interval '61 seconds'")
    # Whoever takes over goes on from there.
    watch = Watch(app, gateway, text)
    assert len(await watch.look()) == 1
    await sql.execute(f"UPDATE {schema}.nodes SET skew = 7 WHERE id = $1", node)
    assert "7.0 s ahead" in (await watch.look())[0][1]
    await sql.execute(f"UPDATE {schema}.nodes SET skew = 0")
    assert len(await watch.look()) == 1, "not yet"
    await sql.execute(f"UPDATE {schema}.incidents SET seen_at = seen_at - interval '61 seconds'")
    assert await watch.look() == []
    await sql.execute(f"UPDATE {schema}.nodes SET skew = 5")
    await watch.look()
    await sql.execute(f"UPDATE {schema}.incidents SET since = since - interval '61 seconds' WHERE closed_at IS NULL")
    await watch.look()
    assert len(await app.alerts.list(open=False)) == 2, "another time, another incident"


async def test_one_incident_whoever_looks_at_the_same_time(
    app: Hourhand, gateway: AlertGateway, url: str, sql: asyncpg.Connection, schema: str
) -> None:
    await make_node(sql, schema, "one", skew="5")
    watch = Watch(app, gateway, rule("clock_skew"))
    other = await asyncpg.connect(url)
    transaction = other.transaction()
    await transaction.start()
    # Another has just opened it, and has not committed.
    await other.execute(
        f"INSERT INTO {schema}.incidents (rule, kind, subject, severity, message, hooks, opened_at)"
        " VALUES ('r', 'clock_skew', 'worker one', 'warning', 'm', true, clock_timestamp())"
    )
    looking = asyncio.create_task(watch.look())

    async def waits_or_done() -> bool:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1 || '.incidents%'"
        return looking.done() or bool(await sql.fetchval(waiting, schema))

    await until(waits_or_done, "the second one to come to it")
    await transaction.commit()
    await other.close()
    assert len(await looking) == 1
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.incidents") == 1


async def test_many_who_look_at_once_open_and_close_once(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    nodes = [await make_node(sql, schema, f"n{number}", skew="5") for number in range(10)]
    watchers = [Watch(app, gateway, rule("clock_skew")) for _ in range(5)]
    counts = await asyncio.gather(*(one.watchman.run_once() for one in watchers))
    assert sum(counts) == len(nodes)
    await sql.execute(f"UPDATE {schema}.nodes SET skew = 0")
    counts = await asyncio.gather(*(one.watchman.run_once() for one in watchers))
    assert sum(counts) == len(nodes)
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.incidents") == len(nodes)


async def test_one_who_looked_long_ago_does_not_close_what_another_sees(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    await make_node(sql, schema, "one", skew="5")
    watch = Watch(app, gateway, rule("clock_skew", clear="1m"))
    await watch.look()
    begun = (await gateway.begin_look({})).at
    assert not await gateway.end_incidents("r", {"worker one": "an old belief"}, 60.0, begun)
    assert len(await watch.look()) == 1


async def test_a_look_says_nothing_of_what_came_after_it_began(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    watch, noted = Watch(app, gateway, rule("clock_skew")), [Noted("worker one", "m", 5.0, None)]
    beginning = await gateway.begin_look({})
    before = beginning.at
    assert beginning.standing == {}
    await make_node(sql, schema, "one", skew="5")
    assert await watch.subjects() == ["worker one"]
    assert not await gateway.end_incidents("r", {"worker one": "an old belief"}, 0.0, before)
    assert len(await watch.look()) == 1
    during = (await gateway.begin_look({})).at
    await sql.execute(f"UPDATE {schema}.nodes SET skew = 0")
    assert await watch.look() == []
    assert await gateway.note_incidents("r", "clock_skew", "warning", None, True, 0.0, noted, during) == {}
    after = (await gateway.begin_look({})).at
    assert list(await gateway.note_incidents("r", "clock_skew", "warning", None, True, 0.0, noted, after)) == ["worker one"]


async def test_what_is_not_open_yet_is_not_forgotten_by_an_older_look(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    before = (await gateway.begin_look({})).at
    await make_node(sql, schema, "one", skew="5")
    await Watch(app, gateway, rule("clock_skew", **{"for": "1m"})).look()
    await gateway.end_incidents("r", {"worker one": "an old belief"}, 0.0, before)
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.incidents") == 1


async def test_the_incidents_of_a_rule_that_is_gone_end_but_not_by_who_has_no_file(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    await make_node(sql, schema, "one", skew="5")
    await Watch(app, gateway, rule("clock_skew", "mine", clear="1h")).look()
    bare = Watchman(gateway, parse_alerts("defaults = false", "none"), whole=False)
    assert await bare.run_once() == 0
    assert len(await app.alerts.list()) == 1
    gone = Watch(app, gateway, rule("clock_skew", "mine", enabled=False))
    assert await gone.look() == []
    assert await gone.endings() == ["its rule was removed or disabled"]


async def test_a_rule_that_fails_leaves_the_others_alone(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    await make_node(sql, schema, "one", skew="5")
    await sql.execute(f"ALTER TABLE {schema}.statistics RENAME TO elsewhere")
    text = rule("lateness", "broken") + '[[rule]]\nname = "works"\nkind = "clock_skew"\nfor = 0\n'
    assert await Watch(app, gateway, text).subjects() == ["worker one"]
    await sql.execute(f"ALTER TABLE {schema}.elsewhere RENAME TO statistics")


async def test_a_rule_that_gets_no_answer_stops_neither_the_others_nor_the_telling(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_node(sql, schema, "one", skew="5")
    more = '[[rule]]\nname = "works"\nkind = "clock_skew"\nfor = 0\n[[channel]]\nname = "c"\nslack = "https://host/x"\n'
    watch = Watch(app, gateway, rule("lateness", "slow") + more)
    await sql.execute(f"SELECT {schema}.tally(1, 'dead', 1)")

    async def never(window: float) -> list[asyncpg.Record]:
        raise DatabaseUnavailable("the database did not answer in time")

    with structlog.testing.capture_logs() as logs:
        with monkeypatch.context() as patch:
            patch.setattr(gateway, "late_starts", never)
            for _ in range(2):
                assert await watch.subjects() == ["worker one"]
        [one] = await app.alerts.list()
        assert [told.channel for told in one.told] == ["c"]
        failed = [one["rule"] for one in logs if one["event"] == "alert.rule_failed"]
        assert failed == ["slow"], "said once"
        await watch.look()
        monkeypatch.setattr(gateway, "late_starts", never)
        await watch.look()
    assert len([one for one in logs if one["event"] == "alert.rule_failed"]) == 2, "it had worked in between"


async def test_what_is_open_is_told_though_nobody_can_look(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_node(sql, schema, "one", skew="5")
    await Watch(app, gateway, rule("clock_skew")).look()
    watch = Watch(app, gateway, rule("clock_skew") + '[[channel]]\nname = "c"\nslack = "https://host/x"\n')

    async def never(bounds: object) -> None:
        raise DatabaseUnavailable("the database did not answer in time")

    monkeypatch.setattr(gateway, "begin_look", never)
    with pytest.raises(DatabaseUnavailable):
        await watch.watchman.run_once()
    assert [told.channel for told in (await app.alerts.list())[0].told] == ["c"]


async def test_a_job_that_is_named_and_is_not_there_is_said_once(app: Hourhand, gateway: AlertGateway) -> None:
    watch = Watch(app, gateway, rule("job_silent", jobs=["backup", "bakcup", "night*", "!other", "other"], after="26h"))
    await app.jobs.add("backup", task="x", schedule="0 2 * * *")
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            assert await watch.look() == []
    assert [(one["rule"], one["job"]) for one in logs if one["event"] == "alert.job_unknown"] == [("r", "bakcup")]


async def test_old_incidents_are_forgotten_with_the_history(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    for name in ("old", "new", "open"):
        await make_node(sql, schema, name, skew="5")
    watch = Watch(app, gateway, rule("clock_skew"))
    await watch.look()
    await gateway.add_notices([("r", "ops")])
    await sql.execute(f"UPDATE {schema}.nodes SET skew = 0 WHERE name <> 'open'")
    await watch.look()
    await sql.execute(f"UPDATE {schema}.incidents SET closed_at = now() - interval '91 days' WHERE subject = 'worker old'")
    await sql.execute(f"UPDATE {schema}.incidents SET opened_at = now() - interval '91 days' WHERE subject = 'worker open'")
    chores = MaintenanceGateway((await app._database()).link("test"))
    await Maintainer(chores, Node(await app._database(), app.settings, "worker", {}), app.settings).forget()
    await chores.close()
    assert sorted(one.subject for one in await app.alerts.list(open=False)) == ["worker new", "worker open"]
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.notices") == 2


async def test_the_list(app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str) -> None:
    for number in range(5):
        await make_node(sql, schema, f"n{number}", skew="5")
    watch = Watch(app, gateway, rule("clock_skew"))
    await watch.look()
    await sql.execute(f"UPDATE {schema}.nodes SET skew = 0 WHERE name IN ('n0', 'n1')")
    await watch.look()
    everything = await app.alerts.list(open=False)
    assert [one.id for one in everything] == sorted((one.id for one in everything), reverse=True)
    assert [one.state for one in everything].count("closed") == 2
    first = await app.alerts.list(open=False, limit=2)
    assert [one.id for one in first + await app.alerts.list(open=False, limit=9, below=first[-1].id)] == [
        one.id for one in everything
    ]
    assert await app.alerts.list(rule="other") == []
    assert len(await app.alerts.list(open=False, since=datetime.now(UTC) + timedelta(hours=1))) == 3
    one = (await app.alerts.list())[0]
    assert (one.rule, one.kind, one.severity, one.value, one.told) == ("r", "clock_skew", "warning", 5.0, ())
    assert one.since <= one.opened_at


# Whose turn it is


async def test_a_duty_passes_on_when_its_holder_is_gone_and_to_who_can_do_more(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    one, two, three = [await make_node(sql, schema, name) for name in ("one", "two", "three")]
    assert await gateway.take_duty("d", one, 15.0, 0)
    assert await gateway.take_duty("d", one, 15.0, 0)
    assert not await gateway.take_duty("d", two, 15.0, 0)
    await sql.execute(f"UPDATE {schema}.nodes SET died_at = now() WHERE id = $1", one)
    assert await gateway.take_duty("d", two, 15.0, 0)
    assert await gateway.take_duty("d", three, 15.0, 1), "this one has a file"
    assert not await gateway.take_duty("d", two, 15.0, 0)
    await gateway.drop_duty("d", three)
    assert await gateway.take_duty("d", two, 15.0, 0)
    alone = await gateway.number_for_duties()
    assert not await gateway.take_duty("d", alone, 15.0, 0)
    await sql.execute(f"UPDATE {schema}.duties SET until = now() - interval '1 second'")
    assert await gateway.take_duty("d", alone, 15.0, 0), "a process that is no node"
    assert not await gateway.take_duty("d", two, 15.0, 0)
    written = await sql.fetchval(f"SELECT xmin::text FROM {schema}.duties WHERE name = 'd'")
    assert not await gateway.take_duty("d", two, 15.0, 0)
    assert await gateway.take_duty("d", alone, 15.0, 0)
    assert await sql.fetchval(f"SELECT xmin::text FROM {schema}.duties WHERE name = 'd'") == written, "nothing is written"


async def test_a_node_asks_for_its_duties_as_it_ticks(
    app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str
) -> None:
    one, two, three = [await make_node(sql, schema, name) for name in ("one", "two", "three")]
    chores = MaintenanceGateway((await app._database()).link("test"))

    async def granted(node: int, **ranks: int) -> list[str]:
        return sorted((await chores.tick(node, 5.0, [(name, 15.0, rank) for name, rank in ranks.items()])).granted)

    assert await granted(one, d=0, e=0) == ["d", "e", "maintainer"]
    assert await granted(two, d=0, f=0) == ["f"]
    written = await sql.fetch(f"SELECT name, xmin::text FROM {schema}.duties ORDER BY name")
    assert await granted(one, d=0, e=0) == ["d", "e", "maintainer"]
    assert await granted(two, d=0, e=0, f=0) == ["f"]
    assert await sql.fetch(f"SELECT name, xmin::text FROM {schema}.duties ORDER BY name") == written, "nothing is written"
    assert await granted(three, d=1) == ["d"], "this one has a file"
    assert await granted(one, d=0) == ["maintainer"]
    assert not await gateway.take_duty("d", one, 15.0, 0)
    await sql.execute(f"UPDATE {schema}.nodes SET session = true WHERE id = $1", one)
    assert await granted(two, d=0, e=0) == ["e", "maintainer"], "its session lock is gone"
    await sql.execute(f"UPDATE {schema}.nodes SET stopped_at = now() WHERE id = $1", three)
    assert await granted(two, d=0) == ["d", "maintainer"]
    alone = await gateway.number_for_duties()
    await gateway.drop_duty("d", two)
    assert await gateway.take_duty("d", alone, 15.0, 0)
    assert await granted(two, d=0) == ["maintainer"], "a process that is no node has it"
    await chores.close()


async def test_many_who_ask_at_once(app: Hourhand, gateway: AlertGateway, sql: asyncpg.Connection, schema: str) -> None:
    nodes = [await make_node(sql, schema, f"n{number}") for number in range(12)]
    assert sum(await asyncio.gather(*(gateway.take_duty("d", node, 15.0, 0) for node in nodes))) == 1


async def test_many_who_tick_at_once(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    nodes = [await make_node(sql, schema, f"n{number}") for number in range(8)]
    database = await app._database()
    chores = [MaintenanceGateway(database.link("test")) for _ in nodes]
    gone = await make_node(sql, schema, "gone", died_at="now()")
    for _ in range(10):
        await sql.execute(f"DELETE FROM {schema}.duties")
        await sql.execute(f"INSERT INTO {schema}.duties (name, node, until) SELECT name, $1, now() + '1 hour' FROM unnest($2::text[]) AS name",
                          gone, ["d", "maintainer"])  # fmt: skip
        ticks = await asyncio.gather(*(one.tick(node, 5.0, [("d", 15.0, 0)]) for one, node in zip(chores, nodes, strict=True)))
        assert sorted(name for tick in ticks for name in tick.granted) == ["d", "maintainer"]
        assert sum(tick.held for tick in ticks) == 1
    for one in chores:
        await one.close()


def test_the_example_in_the_guide_is_right(project: Path) -> None:
    text = (project / "docs" / "alerts.md").read_text()
    example = text.partition("```toml\n")[2].partition("```")[0]
    found = parse_alerts(example, "docs/alerts.md")
    assert len(found.channels) >= 3
    assert {one.kind for one in found.rules} >= {"job_silent", "dead_growth", "lateness"}
