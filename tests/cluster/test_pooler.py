"""PgBouncer in transaction mode: no session survives a statement, so leases alone must do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from hourhand import Hourhand
from tests.conftest import missing
from tests.support.fleet import Fleet, make_sink, until, where
from tests.support.servers import Pooler, have_pooler

pytestmark = pytest.mark.once


@pytest.fixture
async def pooler(url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pooler]:
    if not have_pooler():
        missing("no pgbouncer on this machine")
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    target = {"host": query.get("host", [parts.hostname or "127.0.0.1"])[0], "port": str(parts.port or 5432)}
    directory = Path("/tmp") / tmp_path_factory.mktemp("pooler").name
    directory.mkdir(exist_ok=True)
    one = Pooler(target, directory)

    async def accepts() -> bool:
        try:
            await (await asyncpg.connect(one.url, statement_cache_size=0, timeout=2)).close()
        except (OSError, asyncio.TimeoutError, asyncpg.PostgresError):
            return False
        return True

    await until(accepts, "the pooler")
    yield one
    one.close()


async def test_runs_end_once_and_a_killed_worker_is_noticed_by_its_lease(
    pooler: Pooler, schema: str, sql: asyncpg.Connection, tmp_path: Path
) -> None:
    await make_sink(sql, schema)
    fleet = Fleet(pooler.url, schema, tmp_path)
    try:
        victim = fleet.worker("--concurrency", "5")

        async def registered() -> bool:
            return bool(await sql.fetchval(f"SELECT count(*) FROM {schema}.nodes") == len(fleet.processes))

        await until(registered, "the worker to register")
        async with Hourhand(pooler.url, schema=schema) as app:
            for _ in range(5):
                await app.enqueue("stuck_at_first")
            for n in range(50):
                await app.enqueue("record", {"n": n})

            async def started() -> bool:
                return bool(await sql.fetchval(f"SELECT count(*) FROM {schema}.seen WHERE what = 'started'") == 5)

            await until(started, "five runs to start")
            fleet.worker("--concurrency", "5")
            await until(registered, "the second worker to register")
            victim.kill()

            async def all_done() -> bool:
                return (await where(sql, schema))["runs"] == 55

            await until(all_done, "every run to end\n" + "\n".join(one.text() for one in fleet.processes))
        assert await sql.fetchval(f"SELECT count(DISTINCT run_id) FROM {schema}.runs WHERE outcome = 'succeeded'") == 55
        assert not await sql.fetchval(f"SELECT bool_or(session) FROM {schema}.nodes"), "no session lock was claimed"
        assert "lease_only" in victim.text(), "and it says so"
    finally:
        fleet.close()


async def test_a_direct_url_brings_the_session_lock_back(
    pooler: Pooler, url: str, schema: str, sql: asyncpg.Connection, tmp_path: Path
) -> None:
    await make_sink(sql, schema)
    fleet = Fleet(pooler.url, schema, tmp_path)
    try:
        worker = fleet.worker(HOURHAND_DIRECT_URL=url)
        await fleet.alive(sql, 1)
        assert "lease_only" not in worker.text()
        async with Hourhand(pooler.url, schema=schema) as app:
            assert await (await app.enqueue("record", {"n": 3})).result(30) == 3
    finally:
        fleet.close()
