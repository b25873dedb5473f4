"""What bad handlers do to their own process, and what that does to nobody else. Real processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.engine.watchdog import STUCK
from tests.cluster.test_crash import enqueue
from tests.support.fleet import Fleet, make_sink, until, where
from tests.support.jobs import app as jobs

pytestmark = pytest.mark.once


@pytest.fixture
async def fleet(url: str, schema: str, sql: asyncpg.Connection, tmp_path: Path) -> AsyncIterator[Fleet]:
    await make_sink(sql, schema)
    await sql.execute(f"CREATE TABLE {schema}.ledger (run bigint, amount int)")
    one = Fleet(url, schema, tmp_path)
    yield one
    one.close()


@pytest.fixture(autouse=True)
def known(app: Hourhand) -> None:
    app.registry.tasks.update(jobs.registry.tasks)


async def test_a_handler_that_computes_on_the_loop_is_interrupted_and_charged_alone(
    fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    worker = fleet.worker("--concurrency", "5", HOURHAND_LOOP_LIMIT="0.6")
    await fleet.alive(sql, 1)
    innocents = [await app.enqueue("nap", {"seconds": 1.0}) for _ in range(4)]
    spin = await app.enqueue("spin")
    run = await spin.wait(60)
    assert (run.state, run.attempt) == ("dead", 3)
    assert {error["type"] for error in run.errors} == {"LoopBlocked"}
    assert "spin" in run.errors[0]["traceback"]
    for one in innocents:
        ended = await one.wait(60)
        assert (ended.state, ended.attempt) == ("succeeded", 1)
    assert worker.process.poll() is None, "the same process"
    text = worker.text()
    assert "loop.blocked" in text
    assert "task=spin" in text


async def test_a_call_that_cannot_be_interrupted_ends_the_process_and_its_runs_go_on(
    fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    stuck = fleet.worker("--concurrency", "5", HOURHAND_LOOP_LIMIT="0.6")
    await fleet.alive(sql, 1)
    blocked = await app.enqueue("block")
    assert await stuck.ended() == STUCK
    assert "loop.lost" in stuck.text()
    assert "task=block" in stuck.text()
    fleet.worker()
    run = await blocked.wait(60)
    assert (run.state, run.result, run.attempt) == ("succeeded", "done", 1)


async def test_memory_a_giant_result_and_a_stubborn_handler(
    fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    worker = fleet.worker("--concurrency", "2", HOURHAND_CANCEL_GRACE="0.5")
    await fleet.alive(sql, 1)
    hog = await (await app.enqueue("hog")).wait(60)
    assert (hog.state, hog.attempt, hog.errors[-1]["type"]) == ("dead", 2, "MemoryError")
    for task in ("giant", "giant_here"):
        run = await (await app.enqueue(task, {"size": 100_000_000})).wait(60)
        assert (run.state, run.result, run.attempt) == ("succeeded", None, 1)
        assert "100,000,002 bytes, over the limit" in str(run.reason)
    # As many as there are slots: each is left behind, and another slot takes its place.
    stubborn = [await app.enqueue("stubborn") for _ in range(2)]
    for one in stubborn:
        run = await one.wait(60)
        assert (run.state, run.errors[0]["type"]) == ("dead", "HandlerTimeout")
        assert "ignored its cancellation" in run.errors[0]["message"]
    assert await (await app.enqueue("record", {"n": 5})).result(60) == 5
    worker.process.terminate()
    assert await worker.ended() == 0, "what was left behind does not keep the process"


async def test_no_child_is_left_without_an_owner(fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    worker = fleet.worker("--concurrency", "2")
    await fleet.alive(sql, 1)
    nonsense = await (await app.enqueue("reports_nonsense", timeout=30)).wait(60)
    assert nonsense.errors[0]["type"] == "InvalidPayload"
    # Its time is over while its process is still loading.
    run = await (await app.enqueue("isolated_nap", {"seconds": 0}, timeout=0.5, max_attempts=1, tags=["x"])).wait(60)
    second = await (await app.enqueue("isolated_nap", {"seconds": 3600}, timeout=0.5, max_attempts=1)).wait(60)
    assert {run.state, second.state} <= {"dead", "succeeded"}

    async def children() -> int:
        listing = subprocess.run(["ps", "-eo", "ppid,args"], capture_output=True, text=True, check=True).stdout
        return sum("hourhand.engine.child" in line and line.split()[0] == str(worker.pid) for line in listing.splitlines())

    async def few() -> bool:
        return await children() <= 1

    await until(few, "the children that were told to stop to be gone")


async def test_runs_on_probation_are_claimed_apart_and_do_not_hold_up_the_healthy(
    fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    victim = fleet.worker("--concurrency", "30")
    await fleet.alive(sql, 1)
    suspects = [await app.enqueue("nap", {"seconds": 3.0}) for _ in range(20)]

    async def running() -> bool:
        return int(await sql.fetchval(f"SELECT count(*) FROM {schema}.seen")) == 20

    await until(running, "all to run")
    victim.kill()
    fleet.worker("--concurrency", "2")

    async def apart() -> bool:
        return bool(await sql.fetchval(f"SELECT count(*) FROM {schema}.running WHERE crashes > 0"))

    await until(apart, "a run on probation")
    healthy = [await app.enqueue("record", {"n": n}) for n in range(20)]
    for one in healthy:
        await one.result(60)
    left = await sql.fetchval(f"SELECT count(*) FROM {schema}.parked WHERE crashes > 0")
    assert left > 0, "the healthy did not wait for those on probation"
    assert "on probation" in str((await app.runs.list(state="parked"))[0].reason)
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.running WHERE crashes > 0") <= 2
    for one in suspects[:3]:
        assert (await one.wait(60)).attempt == 1


async def test_at_most_once_through_kill_9(fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    victim = fleet.worker("--concurrency", "3")
    await fleet.alive(sql, 1)
    runs = [await app.enqueue("careful_nap", {"seconds": 3600}) for _ in range(3)]

    async def running() -> bool:
        return int(await sql.fetchval(f"SELECT count(*) FROM {schema}.seen")) == 3

    await until(running, "all to run")
    victim.kill()
    fleet.worker()
    for one in runs:
        run = await one.wait(60)
        assert (run.state, run.attempt) == ("lost", 1)
        assert "not known" in str(run.reason)
    dead_child = await (await app.enqueue("careful_death")).wait(60)
    assert (dead_child.state, dead_child.attempt) == ("lost", 1)
    assert int(await sql.fetchval(f"SELECT count(*) FROM {schema}.seen")) == 3, "none began a second time"
    answer = subprocess.run(
        [*_CLI, "doctor", "--database-url", fleet.url, "--schema", schema], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert "4 runs were lost" in answer.stdout


async def test_exactly_once_through_kill_9_and_on_probation(
    fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    fleet.worker("--concurrency", "10", "--processes", "2", "--queues", "default")
    await fleet.alive(sql, 2)
    await enqueue(app, "transfer", 20, amount=1)
    killer = await app.enqueue("transfer", {"amount": 100, "die": "inside"})
    await enqueue(app, "transfer", 20, amount=1)
    run = await killer.wait(60)
    assert (run.state, run.result) == ("succeeded", "True")

    async def all_done() -> bool:
        return (await where(sql, schema))["runs"] == 41

    await until(all_done, "all transfers")
    assert await sql.fetchval(f"SELECT sum(amount) FROM {schema}.ledger") == 140
    assert await sql.fetchval(f"SELECT count(DISTINCT run) FROM {schema}.ledger") == 41
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.effects") == 41
    assert (await where(sql, schema))["ready"] == 41, "each enqueued one run, together with its effect"
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.seen WHERE run = $1", killer._number) == 2


async def test_a_run_that_takes_far_too_long_is_pointed_at(
    fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    fleet.worker()
    await fleet.alive(sql, 1)
    long = await app.enqueue("nap", {"seconds": 3600})

    async def running() -> bool:
        return (await long.show()).state == "running"

    await until(running, "it to run")

    async def known_to_be_quick() -> bool:
        await sql.execute(f"UPDATE {schema}.tasks SET weight = 100, mean = 0.5, variance = 0.01 WHERE name = 'nap'")
        return bool(await sql.fetchval(f"SELECT count(*) FROM {schema}.tasks WHERE name = 'nap'"))

    await until(known_to_be_quick, "its worker to report its tasks")
    doctor = [*_CLI, "doctor", "--database-url", fleet.url, "--schema", schema]
    assert "no run takes far longer" in subprocess.run(doctor, capture_output=True, text=True, check=False).stdout
    await sql.execute(f"UPDATE {schema}.running SET claimed_at = now() - interval '10 minutes'")
    # Of a task of which little is known, only the timeout counts.
    await sql.execute(f"UPDATE {schema}.tasks SET weight = 5, timeout = 3600 WHERE name = 'nap'")
    assert "no run takes far longer" in subprocess.run(doctor, capture_output=True, text=True, check=False).stdout
    await sql.execute(f"UPDATE {schema}.tasks SET timeout = 60 WHERE name = 'nap'")
    assert long.id in subprocess.run(doctor, capture_output=True, text=True, check=False).stdout
    await sql.execute(f"UPDATE {schema}.tasks SET weight = 100, timeout = NULL WHERE name = 'nap'")
    said = subprocess.run(doctor, capture_output=True, text=True, check=False).stdout
    assert long.id in said
    assert "nap" in said


_CLI = [sys.executable, "-m", "hourhand"]
