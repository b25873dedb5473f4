"""The proxy that the fault checker puts between a process and PostgreSQL, on a real server."""

from __future__ import annotations

import asyncio
import re
import shutil
import ssl
import struct
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from hourhand.surfaces.verify.pair import PIECE
from hourhand.surfaces.verify.passage import Mode
from hourhand.surfaces.verify.proxy import Proxy, address_of, reroute
from tests.conftest import missing
from tests.support.fleet import until

LOST = (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError)


@pytest.fixture
async def proxy(url: str) -> AsyncIterator[Proxy]:
    async with Proxy.to(url) as one:
        yield one


@pytest.fixture
async def client(url: str, proxy: Proxy) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(proxy.url(url), timeout=10)
    yield connection
    connection.terminate()


@pytest.fixture
async def table(sql: asyncpg.Connection) -> AsyncIterator[str]:
    name = f"proxied_{uuid.uuid4().hex[:8]}"
    await sql.execute(f"CREATE TABLE {name} (n int)")
    yield name
    await sql.execute(f"DROP TABLE {name}")


async def holds(condition: Callable[[], object], what: str) -> None:
    async def check() -> bool:
        return bool(condition())

    await until(check, what, 20)


async def numbers(sql: asyncpg.Connection, table: str) -> list[int]:
    return [row[0] for row in await sql.fetch(f"SELECT n FROM {table} ORDER BY n")]


async def test_everything_passes_in_both_directions_and_large_too(client: asyncpg.Connection, proxy: Proxy, table: str) -> None:
    text = "x" * 3_000_000
    assert await client.fetchval("SELECT $1::text", text) == text
    await client.copy_records_to_table(table, records=[(n,) for n in range(50_000)])
    assert await client.fetchval(f"SELECT count(*) FROM {table}") == 50_000
    assert len(await client.fetch(f"SELECT * FROM {table}")) == 50_000
    assert (proxy.counters.connections, proxy.counters.dropped, proxy.standing) == (1, 0, 1)
    await client.close()
    await holds(lambda: proxy.standing == 0, "the proxy to forget a closed connection")


async def test_a_black_hole_holds_what_is_sent_and_delivers_it_when_healed(
    client: asyncpg.Connection, proxy: Proxy, table: str, sql: asyncpg.Connection
) -> None:
    proxy.blackhole()
    insert = asyncio.create_task(client.execute(f"INSERT INTO {table} VALUES (1)"))
    await holds(lambda: proxy.counters.bytes_held, "the statement to be held")
    assert await numbers(sql, table) == []
    assert not insert.done()
    proxy.passing()
    await asyncio.wait_for(insert, 20)
    assert await numbers(sql, table) == [1]


async def test_a_statement_may_arrive_after_its_client_has_given_up(
    client: asyncpg.Connection, proxy: Proxy, table: str, sql: asyncpg.Connection
) -> None:
    proxy.blackhole()
    insert = asyncio.create_task(client.execute(f"INSERT INTO {table} VALUES (1)"))
    await holds(lambda: proxy.counters.bytes_held, "the statement to be held")
    client.terminate()
    with pytest.raises(LOST):
        await insert
    assert proxy.standing == 1, "the server does not know yet"
    proxy.passing()

    async def arrived() -> bool:
        return await numbers(sql, table) == [1]

    await until(arrived, "the late statement", 20)
    await holds(lambda: proxy.standing == 0, "the connection's end")


async def test_new_connections_to_a_black_hole_are_accepted_and_hear_nothing(url: str, proxy: Proxy) -> None:
    proxy.blackhole()
    connecting = asyncio.create_task(asyncpg.connect(proxy.url(url), timeout=60))
    await holds(lambda: proxy.counters.bytes_held, "the first message to be held")
    assert not connecting.done()
    proxy.passing()
    connection = await asyncio.wait_for(connecting, 20)
    assert await connection.fetchval("SELECT 1") == 1
    await connection.close()


async def test_a_black_hole_pushes_back_on_a_sender(proxy: Proxy, url: str) -> None:
    proxy.blackhole()
    _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.transport.set_write_buffer_limits(high=1)
    for _ in range(1000):
        writer.write(b"x" * 1_000_000)
        try:
            await asyncio.wait_for(writer.drain(), 1)
        except asyncio.TimeoutError:
            break
    else:
        pytest.fail("a gigabyte disappeared in the proxy's memory")
    writer.transport.abort()


async def test_reset_ends_every_connection_and_refuses_new_ones(client: asyncpg.Connection, proxy: Proxy, url: str) -> None:
    sleeping = asyncio.create_task(client.execute("SELECT pg_sleep(60)"))
    await holds(lambda: proxy.standing == 1, "the connection")
    proxy.reset()
    with pytest.raises(LOST):
        await sleeping
    with pytest.raises(LOST):
        await asyncpg.connect(proxy.url(url), timeout=10)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(1), 10)
    writer.transport.abort()
    assert proxy.counters.dropped >= 3
    proxy.passing()
    connection = await asyncpg.connect(proxy.url(url), timeout=10)
    await connection.close()


async def test_delay_makes_each_way_longer_but_not_each_piece(client: asyncpg.Connection, proxy: Proxy) -> None:
    await client.fetchval("SELECT repeat('x', $1)", 1)
    proxy.delay(0.2)
    began = time.monotonic()
    assert len(await client.fetchval("SELECT repeat('x', $1)", 8_000_000)) == 8_000_000
    took = time.monotonic() - began
    # Each way once, and not once for each of the pieces in which the answer comes: that would be many times as long.
    assert 0.4 <= took < 0.2 * (8_000_000 / PIECE) / 2
    proxy.passing()


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("how", ["simple", "prepared", "transaction", "copy"])
async def test_a_cut_after_commit_commits_and_does_not_tell(
    client: asyncpg.Connection, proxy: Proxy, table: str, sql: asyncpg.Connection, answered: bool, how: str
) -> None:
    async def write() -> None:
        if how == "simple":
            await client.execute(f"INSERT INTO {table} VALUES (1)")
        elif how == "prepared":
            await client.execute(f"INSERT INTO {table} VALUES ($1)", 1)
        elif how == "copy":
            await client.copy_records_to_table(table, records=[(1,)])
        else:
            async with client.transaction():
                await client.execute(f"INSERT INTO {table} VALUES (0)")
                await client.execute(f"UPDATE {table} SET n = $1", 1)
                assert proxy.counters.cuts == 0, "nothing is committed yet"

    proxy.cut_after_commit(answered=answered, matching=lambda text: table in text)
    with pytest.raises(LOST):
        await write()
    if answered:
        assert await numbers(sql, table) == [1]

    async def committed() -> bool:
        return await numbers(sql, table) == [1]

    await until(committed, "the commit", 20)
    assert proxy.counters.cuts == 1
    assert table in proxy.counters.cut_statements[0]
    assert proxy.mode is Mode.passing
    await holds(lambda: proxy.standing == 0, "the server's connection to be closed too")


async def test_a_cut_looks_at_the_text_of_a_statement_that_was_prepared_long_before(
    client: asyncpg.Connection, proxy: Proxy, table: str, sql: asyncpg.Connection
) -> None:
    insert = await client.prepare(f"INSERT INTO {table} VALUES ($1)")
    other = await client.prepare("SELECT $1::int")
    await insert.fetch(1)
    proxy.cut_after_commit(answered=True, matching=lambda text: re.match("INSERT", text) is not None)
    assert await other.fetchval(5) == 5
    assert await client.fetchval("SELECT 6") == 6
    with pytest.raises(LOST):
        await insert.fetch(2)
    assert await numbers(sql, table) == [1, 2]
    assert proxy.counters.cut_statements == [f"INSERT INTO {table} VALUES ($1)"]


async def test_a_cut_leaves_refused_statements_and_rollbacks_alone(
    client: asyncpg.Connection, proxy: Proxy, table: str, sql: asyncpg.Connection
) -> None:
    proxy.cut_after_commit(answered=True, matching=lambda text: table in text)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await client.execute(f"INSERT INTO {table} VALUES (1 / $1::int)", 0)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await client.execute(f"INSERT INTO {table} VALUES (1 / 0)")
    transaction = client.transaction()
    await transaction.start()
    await client.execute(f"INSERT INTO {table} VALUES (1)")
    await transaction.rollback()
    transaction = client.transaction()
    await transaction.start()
    with pytest.raises(asyncpg.DivisionByZeroError):
        await client.execute(f"INSERT INTO {table} VALUES (1 / 0)")
    await client.execute("COMMIT")
    assert proxy.counters.cuts == 0
    with pytest.raises(LOST):
        await client.execute(f"INSERT INTO {table} VALUES ($1)", 2)
    assert await numbers(sql, table) == [2]


async def test_so_many_cuts_and_no_more(url: str, proxy: Proxy, table: str, sql: asyncpg.Connection) -> None:
    proxy.cut_after_commit(3, matching=lambda text: table in text)
    for n in range(3):
        client = await asyncpg.connect(proxy.url(url), timeout=10)
        with pytest.raises(LOST):
            await client.execute(f"INSERT INTO {table} VALUES ($1)", n)
        client.terminate()
    client = await asyncpg.connect(proxy.url(url), timeout=10)
    await client.execute(f"INSERT INTO {table} VALUES ($1)", 3)
    await client.close()

    async def all_there() -> bool:
        return await numbers(sql, table) == [0, 1, 2, 3]

    await until(all_there, "what was committed unheard of", 20)
    assert proxy.counters.cuts == 3


async def test_healing_before_the_answer_delivers_it(
    client: asyncpg.Connection, proxy: Proxy, table: str, sql: asyncpg.Connection
) -> None:
    async with sql.transaction():
        await sql.execute(f"LOCK TABLE {table}")
        proxy.cut_after_commit(answered=True, matching=lambda text: table in text)
        insert = asyncio.create_task(client.execute(f"INSERT INTO {table} VALUES (1)"))

        async def waits() -> bool:
            return bool(await sql.fetchval("SELECT count(*) FROM pg_locks WHERE relation = $1::regclass AND NOT granted", table))

        await until(waits, "the statement to reach the server", 20)
        proxy.passing()
    assert await asyncio.wait_for(insert, 20) == "INSERT 0 1"
    assert proxy.counters.cuts == 0


async def test_an_encryption_request_is_declined(url: str, proxy: Proxy) -> None:
    connection = await asyncpg.connect(proxy.url(url), ssl="prefer", timeout=10)
    assert await connection.fetchval("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") is False
    await connection.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    request = struct.pack("!II", 8, 80877103)
    writer.write(request[:3])
    await writer.drain()
    writer.write(request[3:])
    assert await asyncio.wait_for(reader.readexactly(1), 10) == b"N"
    writer.close()
    await writer.wait_closed()


async def test_the_way_to_the_server_can_be_encrypted(url: str, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        missing("no openssl to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    async with Proxy.to(url) as plain, encrypted(plain.port, context) as port:
        for mode, database in (("require", "127.0.0.1"), ("verify-full", "localhost")):
            tls_url = f"postgresql://postgres@{database}:{port}/postgres?sslmode={mode}&sslrootcert={certificate}"
            async with Proxy.to(tls_url) as proxy:
                connection = await asyncpg.connect(proxy.url(tls_url), timeout=10)
                assert await connection.fetchval("SELECT $1::int", 7) == 7
                await connection.close()
        async with Proxy.to(tls_url.replace("localhost", "127.0.0.1")) as proxy:
            with pytest.raises(LOST):
                await asyncpg.connect(proxy.url(tls_url), timeout=10)


@asynccontextmanager
async def encrypted(target: int, context: ssl.SSLContext) -> AsyncIterator[int]:
    """A server that insists on TLS, as some managed ones do; what is inside goes to `target`."""
    running: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        running.add(asyncio.current_task())  # type: ignore[arg-type]
        inner: asyncio.StreamWriter | None = None
        try:
            assert await reader.readexactly(8) == struct.pack("!II", 8, 80877103)
            writer.write(b"S")
            await writer.start_tls(context)
            inside, inner = await asyncio.open_connection("127.0.0.1", target)
            await asyncio.wait(
                [asyncio.create_task(pump(reader, inner)), asyncio.create_task(pump(inside, writer))],
                return_when=asyncio.FIRST_COMPLETED,
            )
        except OSError:
            pass  # a client that does not trust us
        finally:
            writer.transport.abort()
            if inner is not None:
                inner.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
    if running:
        await asyncio.wait(running)


async def test_another_upstream_is_for_new_connections_and_a_missing_one_drops_them(
    client: asyncpg.Connection, proxy: Proxy, url: str, tmp_path: Path
) -> None:
    right = proxy.upstream
    proxy.upstream = (str(tmp_path), 5432)
    assert await client.fetchval("SELECT 1") == 1
    with pytest.raises(LOST):
        await asyncpg.connect(proxy.url(url), timeout=10)
    assert proxy.counters.dropped == 1
    proxy.upstream = right
    again = await asyncpg.connect(proxy.url(url), timeout=10)
    await again.close()


async def test_a_cancel_request_passes(client: asyncpg.Connection) -> None:
    with pytest.raises(asyncio.TimeoutError):
        await client.execute("SELECT pg_sleep(60)", timeout=0.2)
    assert await client.fetchval("SELECT 1") == 1


def test_addresses() -> None:
    assert address_of("postgresql://me:secret@db.example:6000/shop") == ("db.example", 6000)
    assert address_of("postgresql://me@first:1,second:2/shop") == ("first", 1)
    assert address_of("postgresql://postgres@/postgres?host=/var/run/x&port=5433") == ("/var/run/x", 5433)
    assert address_of("postgresql://[::1]/shop") == ("::1", 5432)
    assert reroute("postgresql://me:s%40@db:6000/shop?sslmode=require&application_name=a", "127.0.0.1", 7) == (
        "postgresql://me:s%40@127.0.0.1:7/shop?application_name=a"
    )
