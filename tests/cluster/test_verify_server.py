"""The fault checker's own PostgreSQL: killed, restarted, replaced by its standby."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from hourhand.core.errors import EmbeddedServerError
from hourhand.storage.embedded import find_owner
from hourhand.surfaces.verify import process_table
from hourhand.surfaces.verify.backends import terminate_backend
from hourhand.surfaces.verify.proxy import Proxy
from hourhand.surfaces.verify.server import ScratchServer
from tests.support.fleet import until

LOST = (OSError, asyncpg.PostgresConnectionError, asyncpg.PostgresError, asyncpg.InterfaceError)


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScratchServer]:
    one = ScratchServer(tmp_path_factory.mktemp("scratch") / "server", max_connections=40)
    yield one
    asyncio.run(one.close())


@pytest.fixture
async def server(one_server: ScratchServer) -> ScratchServer:
    """One for all tests here: each leaves it as if it had just been made, or down."""
    await one_server.start()
    return one_server


async def connected(url: str, name: str = "hourhand test") -> asyncpg.Connection:
    return await asyncpg.connect(url, timeout=10, server_settings={"application_name": name})


async def test_restarts_and_kills_lose_nothing(server: ScratchServer) -> None:
    sql = await connected(server.url())
    assert await sql.fetchval("SHOW max_connections") == "40"
    assert await sql.fetchval("SHOW fsync") == "on"
    await sql.execute("CREATE TABLE kept (n int)")
    for n, again in enumerate((server.restart, server.kill_postmaster, server.kill_postmaster, server.kill_backend)):
        await sql.execute("INSERT INTO kept VALUES ($1)", n)
        began = time.monotonic()
        accepted = await again()
        assert began < accepted <= time.monotonic()
        assert accepted - began < 30
        with pytest.raises(LOST):
            await sql.execute("SELECT 1")
        sql.terminate()
        sql = await connected(server.url())
        assert await sql.fetchval("SELECT count(*) FROM kept") == n + 1
    await sql.execute("DROP TABLE kept")
    await sql.close()


async def test_a_stale_lock_file_whose_number_lives_again_does_not_stop_the_next_server(server: ScratchServer) -> None:
    """As if the killed server's number had been given to another process of the same user."""
    await server.kill()
    lock = server.cluster / "postmaster.pid"
    old = lock.read_text().splitlines()
    owner = find_owner()
    as_owner = {"user": owner.uid, "group": owner.gid, "extra_groups": []} if owner.switch else {}
    stranger = await asyncio.create_subprocess_exec("sleep", "60", **as_owner)
    try:
        lock.write_text("\n".join([str(stranger.pid), *old[1:]]) + "\n")
        await server.start()
    finally:
        stranger.kill()
        await stranger.wait()


async def test_one_connection_can_be_ended_without_the_others(server: ScratchServer) -> None:
    victim, other = await connected(server.url(), "hourhand worker"), await connected(server.url(), "elsewhere")
    await terminate_backend(server.url())

    async def ended() -> bool:
        return victim.is_closed()

    await until(ended, "the connection's end", 20)
    assert await other.fetchval("SELECT 1") == 1
    await other.close()
    with pytest.raises(LookupError, match="no connection"):
        await terminate_backend(server.url())
    with pytest.raises(LookupError, match="no connection"):
        await server.kill_backend()


async def test_a_synchronous_standby_takes_over_everything_that_was_acknowledged(server: ScratchServer, tmp_path: Path) -> None:
    sql = await connected(server.url())
    await sql.execute("CREATE TABLE kept (n int)")
    standby = await server.make_standby(tmp_path / "standby", synchronous=True)
    acknowledged: list[int] = []

    async def write(proxy: Proxy, writer: int) -> None:
        connection = await connected(proxy.url(server.url()))
        try:
            for n in range(writer * 1_000_000, (writer + 1) * 1_000_000):
                await connection.execute("INSERT INTO kept VALUES ($1)", n)
                acknowledged.append(n)
        except LOST:
            connection.terminate()

    async with Proxy(server.host, server.port) as proxy:
        try:
            writers = [asyncio.create_task(write(proxy, writer)) for writer in range(4)]

            async def hundreds() -> bool:
                return len(acknowledged) > 300

            await until(hundreds, "hundreds of writes", 20)
            await server.kill()
            await standby.promote()
            proxy.upstream = (standby.host, standby.port)
            await asyncio.wait_for(asyncio.gather(*writers), 20)
            sql = await connected(proxy.url(standby.url()))
            kept = {row[0] for row in await sql.fetch("SELECT n FROM kept")}
            assert not set(acknowledged) - kept
            await sql.execute("INSERT INTO kept VALUES (-1)")
            await sql.close()
        finally:
            sql.terminate()
            pid, cluster = standby.pid, standby.cluster
            await standby.close()
            await server.start()
            sql = await connected(server.url())
            await sql.execute("ALTER SYSTEM RESET synchronous_standby_names")
            await sql.execute("SELECT pg_reload_conf(), pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
            await sql.execute("DROP TABLE kept")
            await sql.close()
    assert not [one for one in process_table.snapshot() if one.pid == pid]
    assert not cluster.exists()
    assert list(standby.directory.iterdir()) == [standby.log]


async def test_its_port_is_none_that_outgoing_connections_get(tmp_path: Path) -> None:
    server = ScratchServer(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        assert probe.getsockname()[1] > server.port


async def test_a_server_that_cannot_start_says_why(server: ScratchServer) -> None:
    server.max_connections = 0
    with pytest.raises(EmbeddedServerError, match="max_connections"):
        await server.restart()
    with pytest.raises(EmbeddedServerError, match="does not run"):
        await server.kill_postmaster()
    server.max_connections = 40


async def test_a_busy_orphan_does_not_keep_the_next_server_from_starting(
    server: ScratchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hourhand.surfaces.verify.server._ORPHANS_PATIENCE", 0.2)
    busy, sql = await connected(server.url()), await connected(server.url())
    computing = asyncio.create_task(busy.execute("DO $$ BEGIN LOOP END LOOP; END $$"))

    async def computes() -> bool:
        return bool(await sql.fetchval("SELECT state = 'active' FROM pg_stat_activity WHERE pid = $1", busy.get_server_pid()))

    await until(computes, "the endless loop", 20)
    orphan = [one for one in process_table.snapshot() if one.pid == busy.get_server_pid()]
    assert orphan
    await server.kill_postmaster()
    with pytest.raises(LOST):
        await computing
    assert not process_table.alive(orphan)
    sql.terminate()
