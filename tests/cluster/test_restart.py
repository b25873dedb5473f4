"""The database goes away in the middle of a run, and comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from hourhand import Hourhand
from tests.support.fleet import Fleet, make_sink, until, where
from tests.support.servers import OwnServer, own_server

SCHEMA = "hourhand"


@pytest.fixture(params=[15, 18])
async def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OwnServer]:
    async with own_server(request.param, tmp_path_factory.mktemp("own")) as one:
        connection = await asyncpg.connect(one.url)
        await make_sink(connection, SCHEMA)
        await connection.close()
        yield one


async def outside(url: str) -> asyncpg.Connection:
    return await asyncpg.connect(url)


@pytest.mark.parametrize("how", ["fast", "immediate", "kill -9"])
async def test_a_restart_mid_run_loses_nothing_and_condemns_nobody(server: OwnServer, tmp_path: Path, how: str) -> None:
    fleet = Fleet(server.url, SCHEMA, tmp_path)
    # A lease shorter than the outage: when the database is back, every lease has run out.
    short = {"HOURHAND_LEASE": "2", "HOURHAND_GRACE": "0.9"}
    try:
        for _ in range(3):
            fleet.worker("--concurrency", "5", **short)
        sql = await outside(server.url)
        await fleet.alive(sql, 3)
        async with Hourhand(server.url) as app:
            for _ in range(10):
                await app.enqueue("quiet_nap", {"seconds": 4})

        async def ten_started() -> bool:
            return bool(await sql.fetchval(f"SELECT count(*) FROM {SCHEMA}.seen WHERE what = 'started'") == 10)

        await until(ten_started, "ten runs to start")
        expiry = await sql.fetchval(f"SELECT max(lease_until) FROM {SCHEMA}.nodes")
        nodes = await sql.fetchval(f"SELECT array_agg(id ORDER BY id) FROM {SCHEMA}.nodes")
        sql.terminate()
        if how == "kill -9":
            server.kill()
        else:
            server.halt(how)
        # Every lease runs out while the database is away.
        while time.time() < expiry.timestamp() + 0.2:
            await asyncio.sleep(0.05)
        server.again()
        sql = await outside(server.url)

        async def all_done() -> bool:
            return (await where(sql, SCHEMA))["runs"] == 10

        await until(all_done, "the runs that went on meanwhile to be recorded\n" + "\n".join(p.text() for p in fleet.processes))
        rows = await sql.fetch(f"SELECT outcome, attempt FROM {SCHEMA}.runs")
        assert {(row["outcome"], row["attempt"]) for row in rows} == {("succeeded", 1)}
        assert await sql.fetchval(f"SELECT count(*) FROM {SCHEMA}.nodes WHERE died_at IS NOT NULL") == 0
        assert await sql.fetchval(f"SELECT array_agg(id ORDER BY id) FROM {SCHEMA}.nodes") == nodes, "nobody was reborn"
        assert await sql.fetchval(f"SELECT count(*) FROM {SCHEMA}.seen WHERE what = 'started'") == 10, "nothing ran twice"
        async with Hourhand(server.url) as app:
            assert await (await app.enqueue("record", {"n": 7})).result(30) == 7
        await sql.close()
    finally:
        fleet.close()


async def test_schedulers_fire_everything_once_through_restarts_of_the_database(server: OwnServer, tmp_path: Path) -> None:
    """What waits for the database is hinted at again when it is back; late by several instants, each still fires once."""
    fleet = Fleet(server.url, SCHEMA, tmp_path)
    try:
        async with Hourhand(server.url) as app:
            every = {
                "task": "work",
                "schedule": "* * * * * *",
                "missed_window": "RUN_ALL",
                "max_missed": 1000,
                "misfire_grace": 3600,
            }
            await app.jobs.add_many([{"name": f"job-{n}", **every} for n in range(40)])
        for _ in range(2):
            fleet.start("scheduler")
        sql = await outside(server.url)
        await fleet.alive(sql, 2)
        began = await sql.fetchval(f"SELECT date_trunc('second', max(active_since)) + interval '1 second' FROM {SCHEMA}.jobs")
        for how in ("immediate", "fast", "kill -9"):
            firings = f"SELECT count(DISTINCT scheduled_at) FROM {SCHEMA}.ready"
            before = await sql.fetchval(firings)

            async def goes_on(before: int = before, firings: str = firings) -> bool:
                return bool(await sql.fetchval(firings) >= before + 2)  # noqa: B023

            await until(goes_on, "two more seconds to be fired")
            sql.terminate()
            if how == "kill -9":
                server.kill()
            else:
                server.halt(how)

            # Two seconds and more of what is due pass while nobody can be told.
            back = time.time() + 2.2
            while time.time() < back:
                await asyncio.sleep(0.05)
            server.again()
            sql = await outside(server.url)
        end = await sql.fetchval("SELECT date_trunc('second', clock_timestamp())")

        async def caught_up() -> bool:
            return not await sql.fetchval(f"SELECT count(*) FROM {SCHEMA}.schedules WHERE next_run_at <= $1", end)

        await until(caught_up, "everything up to now to be fired")
        rows = await sql.fetch(
            f"SELECT job_id, count(*) AS runs, count(DISTINCT scheduled_at) AS instants FROM {SCHEMA}.ready"
            " WHERE scheduled_at BETWEEN $1 AND $2 GROUP BY job_id",
            began, end,
        )  # fmt: skip
        expected = int((end - began).total_seconds()) + 1
        assert {(row["runs"], row["instants"]) for row in rows} == {(expected, expected)}
        assert len(rows) == 40
        await sql.close()
    finally:
        fleet.close()
