"""Real worker processes, killed, paused, cut off: every run ends exactly once."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from hourhand import Hourhand
from tests.support.fleet import Fleet, make_sink, until, where
from tests.support.jobs import app as jobs

pytestmark = pytest.mark.once


@pytest.fixture
async def fleet(url: str, schema: str, sql: asyncpg.Connection, tmp_path: Path) -> AsyncIterator[Fleet]:
    await make_sink(sql, schema)
    one = Fleet(url, schema, tmp_path)
    yield one
    one.close()


async def enqueue(app: Hourhand, task: str, count: int = 1, **payload: object) -> None:
    """By name, with the definitions of the app that the workers run."""
    app.registry.tasks.update(jobs.registry.tasks)
    for _ in range(count):
        await app.enqueue(task, payload)


async def seen(sql: asyncpg.Connection, schema: str, what: str) -> int:
    return int(await sql.fetchval(f"SELECT count(*) FROM {schema}.seen WHERE what = $1", what))


async def test_kill_9_in_the_middle_of_a_run(fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    """The session lock tells: with a lease of an hour, the runs still start elsewhere."""
    patient = {"HOURHAND_LEASE": "3600"}
    victim = fleet.worker("--concurrency", "5", **patient)
    await fleet.alive(sql, 1)
    await enqueue(app, "stuck_at_first", 5)
    await enqueue(app, "record", 20, n=1)

    async def five_started() -> bool:
        return await seen(sql, schema, "started") == 5

    await until(five_started, "five runs to start")
    fleet.worker("--concurrency", "5", **patient)
    await fleet.alive(sql, 2)
    victim.kill()

    async def all_done() -> bool:
        counts = await where(sql, schema)
        return counts["runs"] == 25 and sum(counts.values()) == 25

    await until(all_done, "every run to end")
    outcomes = await sql.fetch(f"SELECT outcome, count(*), count(DISTINCT run_id) AS runs FROM {schema}.runs GROUP BY outcome")
    assert [tuple(row) for row in outcomes] == [("succeeded", 25, 25)]
    crashed = await sql.fetchval(f"SELECT count(*) FROM {schema}.runs WHERE attempt > 1")
    assert crashed == 0, "the first crash is nobody's fault: no attempt is charged"
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.nodes WHERE died_at IS NOT NULL") == 1


async def test_a_worker_paused_past_its_lease_has_every_write_refused(
    fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    zombie = fleet.worker("--concurrency", "5")
    await fleet.alive(sql, 1)
    await enqueue(app, "stuck_at_first", 5)

    async def five_started() -> bool:
        return await seen(sql, schema, "started") == 5

    await until(five_started, "five runs to start")
    zombie.send(signal.SIGSTOP)
    heir = fleet.worker("--concurrency", "5")

    async def all_done() -> bool:
        return (await where(sql, schema))["runs"] == 5

    await until(all_done, f"the heir to finish the runs; its log:\n{heir.text()}")
    before = await sql.fetch(f"SELECT * FROM {schema}.runs ORDER BY run_id")
    zombie.send(signal.SIGCONT)

    async def noticed() -> bool:
        return "node.declared_dead" in zombie.text()

    await until(noticed, "the zombie to notice")

    async def reborn() -> bool:
        return bool(await sql.fetchval(f"SELECT count(*) FROM {schema}.nodes WHERE died_at IS NULL AND stopped_at IS NULL") == 2)

    await until(reborn, "the zombie to come back as a new node")
    assert await sql.fetch(f"SELECT * FROM {schema}.runs ORDER BY run_id") == before, "a zombie changes nothing"
    text = zombie.text()
    assert "outcomes.refused" in text or "run.abandoned" in text, "its handlers were stopped or their outcomes refused"
    # The new incarnation works.
    await enqueue(app, "record", 10, n=1)

    async def more_done() -> bool:
        return (await where(sql, schema))["runs"] == 15

    await until(more_done, "new runs")


async def test_a_zombies_outcome_is_refused_by_the_database(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    """The same without luck: complete, fail, bury, hand back and park with a token that is no longer the run's."""
    from hourhand.storage.queue import queue_gateway

    database = await app._database()
    gateway = queue_gateway(database, "test")
    await enqueue(app, "noop", 1)
    lane = await sql.fetchval(f"SELECT lane FROM {schema}.ready")
    node = await sql.fetchval(
        f"INSERT INTO {schema}.nodes (kind, name, lease_until, session) VALUES ('worker', 'test', now() + '1 hour', false) RETURNING id"
    )
    (first,) = await gateway.claim([lane], [0], [10], node, {lane // 4: "default"}, 1)
    assert await gateway.hand_back(node, [first.run_number], [first.token]) == 1
    (second,) = await gateway.claim([lane], [0], [10], node, {lane // 4: "default"}, 1)
    assert (second.run_number, second.attempt) == (first.run_number, first.attempt), "the same run, no attempt charged"
    assert second.token > first.token
    run, stale = [first.run_number], [first.token]
    assert await gateway.finish(node, run, stale, [1.0], [2.0], None, None, None, None) == 0
    assert await gateway.finish_plain(node, run, stale, [1.0], [2.0]) == 0
    assert await gateway.retry(node, run, stale, [0.0], [1.0], ["[]"]) == 0
    assert await gateway.bury(node, run, stale, [1.0], ["[]"], ["x"]) == 0
    assert await gateway.hand_back(node, run, stale) == 0
    assert await gateway.park(node, run, stale, [None]) == 0
    assert await gateway.finish(node + 1, run, [second.token], [1.0], [2.0], None, None, None, None) == 0, "another worker's"
    assert await gateway.finish_plain(node + 1, run, [second.token], [1.0], [2.0]) == 0, "another worker's"
    assert (await where(sql, schema))["running"] == 1
    finish = gateway.finish_plain(node, run, [second.token], [1.0], [2.0])
    assert (await finish, (await where(sql, schema))["runs"]) == (1, 1)
    await gateway.close()


async def test_a_node_declared_dead_claims_nothing(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    from hourhand.storage.queue import queue_gateway

    gateway = queue_gateway(await app._database(), "test")
    await enqueue(app, "noop", 1)
    lane = await sql.fetchval(f"SELECT lane FROM {schema}.ready")
    node = await sql.fetchval(
        f"INSERT INTO {schema}.nodes (kind, name, lease_until, session, died_at) VALUES ('worker', 'test', now(), false, now()) RETURNING id"
    )
    assert await gateway.claim([lane], [0], [10], node, {lane // 4: "default"}, 1) == []
    await gateway.close()


async def test_a_poison_run_uses_up_its_own_attempts_and_nobody_elses(
    fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    fleet.worker("--concurrency", "5", "--processes", "2")
    await fleet.alive(sql, 2)
    await enqueue(app, "nap", 4, seconds=0.5)
    await enqueue(app, "poison", 1)
    await enqueue(app, "nap", 4, seconds=0.5)

    async def all_done() -> bool:
        counts = await where(sql, schema)
        return counts["runs"] == 8 and counts["dead"] == 1

    await until(all_done, "the innocent to finish and the poison to die")
    poison = await sql.fetchrow(f"SELECT task, attempt, errors FROM {schema}.dead")
    assert (poison["task"], poison["attempt"]) == ("poison", 3)
    assert "exit code 9" in poison["errors"]
    assert await sql.fetchval(f"SELECT max(attempt) FROM {schema}.runs") == 1, "no innocent run was charged"


async def test_isolated_handlers_die_alone(fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    worker = fleet.worker("--concurrency", "4")
    await fleet.alive(sql, 1)
    for how in ("exit", "segfault"):
        await enqueue(app, "isolated_death", 1, how=how)
    for kind in ("key", "value", "permanent"):
        await enqueue(app, "isolated_error", 1, kind=kind)
    await enqueue(app, "isolated_retry_after", 1)
    await enqueue(app, "isolated_nap", 2, seconds=0)

    async def all_done() -> bool:
        counts = await where(sql, schema)
        return counts["dead"] == 5 and counts["runs"] == 3

    await until(all_done, f"all to end; log:\n{worker.text()}")
    rows = await sql.fetch(f"SELECT task, payload->>'kind' AS kind, payload->>'how' AS how, attempt, errors FROM {schema}.dead")
    attempts = {row["kind"] or row["how"]: row["attempt"] for row in rows}
    assert attempts == {"exit": 2, "segfault": 2, "key": 1, "value": 3, "permanent": 1}
    errors = {row["kind"] or row["how"]: row["errors"] for row in rows}
    assert "exit code 7" in errors["exit"]
    assert "SIGSEGV" in errors["segfault"]
    assert "KeyError" in errors["key"]
    assert worker.process.poll() is None


async def test_an_isolated_handler_is_killed_on_timeout_and_on_cancel(
    fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    fleet.worker()
    await fleet.alive(sql, 1)
    app.registry.tasks.update(jobs.registry.tasks)
    slow = await app.enqueue("isolated_nap", {"seconds": 3600}, timeout=1.0, max_attempts=1)
    run = await slow.wait(60)
    assert (run.state, run.errors[0]["type"]) == ("dead", "HandlerTimeout")
    other = await app.enqueue("isolated_nap", {"seconds": 3600})

    async def reported() -> bool:
        return (await other.show()).progress is not None

    await until(reported, "progress out of the child")
    await app.runs.cancel(other.id)
    assert (await other.wait(60)).state == "cancelled"

    async def children_gone() -> bool:
        listing = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
        return not [line for line in listing.splitlines() if "hourhand.engine.child tests.support.jobs:app" in line]

    await until(children_gone, "the children to be gone")


async def test_a_child_process_has_its_parents_settings_and_may_block(
    fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, url: str, schema: str
) -> None:
    """Also when they were given on the command line, and not by the environment."""
    nothing = {"HOURHAND_DATABASE_URL": "", "HOURHAND_SCHEMA": ""}
    fleet.worker("--database-url", url, "--schema", schema, **nothing)
    await fleet.alive(sql, 1)
    app.registry.tasks.update(jobs.registry.tasks)
    assert await (await app.enqueue("isolated_enqueue")).result(60) == [url, schema, "looped"]
    assert (
        await sql.fetchval(f"SELECT count(*) FROM {schema}.ready")
        + await sql.fetchval(f"SELECT count(*) FROM {schema}.runs WHERE task = 'noop'")
        == 1
    )


async def test_a_worker_whose_log_nobody_reads_goes_on(fleet: Fleet, app: Hourhand, url: str, schema: str) -> None:
    """Its log goes into a pipe whose reader is gone."""
    import os
    import sys

    from tests.support.fleet import PROJECT

    read, write = os.pipe()
    os.close(read)
    settings = {"HOURHAND_DATABASE_URL": url, "HOURHAND_SCHEMA": schema}
    process = subprocess.Popen(
        [sys.executable, "-m", "hourhand", "worker", "--app", "tests.support.jobs:app", "--concurrency", "1"],
        cwd=PROJECT, stdout=write, stderr=write, stdin=subprocess.DEVNULL, env={**os.environ, **settings},
    )  # fmt: skip
    os.close(write)
    try:
        app.registry.tasks.update(jobs.registry.tasks)
        dead = await app.enqueue("isolated_error", {"kind": "permanent"})
        assert (await dead.wait(60)).state == "dead"
        fine = await app.enqueue("noop")
        assert (await fine.wait(60)).state == "succeeded"
    finally:
        process.kill()
        process.wait()


async def test_twenty_workers_on_one_queue(fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    """50,000 runs, workers killed meanwhile: each run has exactly one terminal row."""
    from hourhand.surfaces.task import Task

    noop: Task[..., object] = app.task(jobs.registry.tasks["noop"].function)
    fleet.worker("--concurrency", "10", "--processes", "10")
    others = [fleet.worker("--concurrency", "10") for _ in range(10)]
    await fleet.alive(sql, 20)
    await noop.enqueue_many({"n": n} for n in range(25_000))
    for victim in others[:3]:
        victim.kill()
    await noop.enqueue_many({"n": n} for n in range(25_000))

    async def all_done() -> bool:
        counts = await where(sql, schema)
        return counts["runs"] + counts["dead"] >= 50_000

    await until(all_done, "50,000 runs", 110)
    assert (await where(sql, schema))["running"] == 0
    facts = await sql.fetchrow(
        f"SELECT count(*) AS rows, count(DISTINCT run_id) AS runs, count(*) FILTER (WHERE outcome <> 'succeeded') AS others FROM {schema}.runs"
    )
    assert tuple(facts) == (50_000, 50_000, 0)


async def test_sigterm_hands_back_and_a_supervisor_stops_its_children(
    fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    parent = fleet.worker("--concurrency", "2", "--processes", "2", "--grace", "3600")
    await fleet.alive(sql, 2)
    await enqueue(app, "nap", 10, seconds=3600)

    async def started() -> bool:
        return await seen(sql, schema, "started") == 4

    await until(started, "four to start")
    parent.send(signal.SIGTERM)

    async def six_back() -> bool:
        # Both must have heard: two signals sent before the first is handled are one signal.
        return parent.text().count("worker.stopping") == 2 and (await where(sql, schema))["ready"] == 6

    await until(six_back, "what has not started to be handed back")
    assert parent.process.poll() is None, "the grace period runs"
    parent.send(signal.SIGTERM)
    assert await parent.ended() == 0
    assert (await where(sql, schema))["ready"] == 10
    assert await sql.fetchval(f"SELECT max(attempt + crashes) FROM {schema}.ready") == 0
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.nodes WHERE stopped_at IS NULL") == 0


async def test_children_of_a_killed_supervisor_stop_in_order(
    fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    parent = fleet.worker("--processes", "2", "--grace", "1")
    await fleet.alive(sql, 2)
    parent.kill()

    async def stopped() -> bool:
        return bool(await sql.fetchval(f"SELECT count(*) FROM {schema}.nodes WHERE stopped_at IS NOT NULL") == 2)

    await until(stopped, "both children to stop")


async def test_a_supervisor_replaces_a_child_that_died(fleet: Fleet, sql: asyncpg.Connection, schema: str) -> None:
    fleet.worker("--processes", "2")
    await fleet.alive(sql, 2)
    name = await sql.fetchval(f"SELECT name FROM {schema}.nodes ORDER BY id LIMIT 1")
    subprocess.run(["kill", "-9", name.rpartition(":")[2]], check=True)

    async def replaced() -> bool:
        return bool(await sql.fetchval(f"SELECT count(*) FROM {schema}.nodes") == 3)

    await until(replaced, "a third node")


async def test_nobody_is_declared_dead_while_everybody_works(
    fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    for _ in range(3):
        fleet.worker()
    await fleet.alive(sql, 3)
    leases = f"SELECT min(lease_until) FROM {schema}.nodes"
    first = await sql.fetchval(leases)
    await enqueue(app, "record", 50, n=1)

    async def renewed_thrice() -> bool:
        return (await sql.fetchval(leases) - first).total_seconds() > 6

    await until(renewed_thrice, "leases of 3 s to be renewed for two lifetimes")
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.nodes WHERE died_at IS NOT NULL") == 0
    assert (await where(sql, schema))["runs"] == 50
