"""Batches whose worker dies, in real processes: each run goes on by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from hourhand import Hourhand
from tests.support.fleet import Fleet, make_sink, until, where
from tests.support.jobs import app as jobs

pytestmark = pytest.mark.once


@pytest.fixture
async def fleet(url: str, schema: str, sql: asyncpg.Connection, tmp_path: Path, app: Hourhand) -> AsyncIterator[Fleet]:
    await make_sink(sql, schema)
    app.registry.tasks.update(jobs.registry.tasks)
    one = Fleet(url, schema, tmp_path)
    yield one
    one.close()


async def seen(sql: asyncpg.Connection, schema: str, what: str) -> int:
    return int(await sql.fetchval(f"SELECT count(DISTINCT run) FROM {schema}.seen WHERE what = $1", what))


async def test_kill_9_in_the_middle_of_a_batch(fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    victim = fleet.worker("--concurrency", "1")
    await fleet.alive(sql, 1)
    runs = [await app.enqueue("mill", {"n": n}) for n in range(20)]

    async def called() -> bool:
        return await seen(sql, schema, "one of 20") == 20

    await until(called, "all of them to be called together")
    victim.kill()
    fleet.worker()
    for n, one in enumerate(runs):
        run = await one.wait(100)
        assert (run.state, run.result, run.attempt) == ("succeeded", n, 1)
    assert await seen(sql, schema, "one of 1") == 20
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.runs") == 20
    assert sum((await where(sql, schema)).values()) == 20


async def test_poison_in_a_batch_kills_only_itself(fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    victim = fleet.worker("--concurrency", "1")
    await fleet.alive(sql, 1)
    runs = [await app.enqueue("mill", {"n": n, "poison": n == 7}) for n in range(20)]
    assert await victim.ended() == 9
    survivor = fleet.worker()
    for n, one in enumerate(runs):
        run = await one.wait(100)
        if n == 7:
            assert (run.state, run.attempt) == ("dead", 3)
            assert {error["type"] for error in run.errors} == {"ProcessDied"}
        else:
            assert (run.state, run.result, run.attempt) == ("succeeded", n, 1)
    assert survivor.process.poll() is None
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.runs") == 19
