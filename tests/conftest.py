"""Every database test runs twice: on the server of the machine and on the embedded one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit
from zlib import crc32

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.storage.embedded import ROOT_HOME, EmbeddedServer
from hourhand.storage.migrate import migrate

# Processes of pytest-xdist are given one; consoles that are made under it keep its width whatever a test asks for.
os.environ.pop("COLUMNS", None)
# Whoever starts the tests in the background of a shell has them, and every process that they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
REQUIRED = os.environ.get("HOURHAND_REQUIRE_SERVICES") == "1"
SERVER = os.environ.get("HOURHAND_TEST_DATABASE_URL", "postgresql://postgres@127.0.0.1:5432/postgres")


def missing(what: str) -> None:
    """Skip where a service is not there; fail where every service is required."""
    if REQUIRED:
        pytest.fail(f"{what}, and HOURHAND_REQUIRE_SERVICES=1 demands it")
    pytest.skip(what)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `once` are about what lies above the statements: half of them run on each server, by their names."""
    if os.environ.get("HOURHAND_EVERY_SERVER") == "1":
        return
    left_out = [item for item in items if item.get_closest_marker("once") and not _is_turn(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _is_turn(item: pytest.Item) -> bool:
    server = getattr(item, "callspec", None) and item.callspec.params.get("url")  # type: ignore[attr-defined]
    if server is None or not item.get_closest_marker("once"):
        return True
    name = item.nodeid.replace(f"[{server}]", "").replace(f"{server}-", "").replace(f"-{server}", "")
    return server == ("server", "embedded")[crc32(name.encode()) % 2]


async def _reachable(url: str) -> bool:
    try:
        connection = await asyncpg.connect(url, timeout=3)
    except (OSError, asyncpg.PostgresError, asyncio.TimeoutError):
        return False
    await connection.close()
    return True


@pytest.fixture(scope="session", autouse=True)
def own_clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """As root, clusters of closed directories are folders elsewhere: those our directories point at are ours to remove."""
    yield
    for link in tmp_path_factory.getbasetemp().rglob("pgdata"):
        if link.is_symlink() and link.resolve().parent == ROOT_HOME:
            shutil.rmtree(link.resolve(), ignore_errors=True)


@pytest.fixture(scope="session")
def embedded_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedServer(tmp_path_factory.mktemp("embedded")) as url:
        yield url


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """The machine's server. Where tests run in several processes, each has a database of its own there: session locks,
    notifications and connections that a test cuts are then its own."""
    if not asyncio.run(_reachable(SERVER)):
        missing(f"no PostgreSQL at {SERVER}")
    process = os.environ.get("PYTEST_XDIST_WORKER")
    if process is None:
        yield SERVER
        return
    name = f"hourhand_test_{process}_{uuid.uuid4().hex[:8]}"
    asyncio.run(_execute(f"CREATE DATABASE {name}"))
    yield urlsplit(SERVER)._replace(path=f"/{name}").geturl()
    asyncio.run(_execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))


async def _execute(statement: str) -> None:
    connection = await asyncpg.connect(SERVER)
    await connection.execute(statement)
    await connection.close()


@pytest.fixture(scope="session", params=["server", "embedded"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
async def schema(url: str, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A schema of the test's own, migrated; dropped afterwards."""
    name = "t_" + re.sub(r"\W+", "_", request.node.name.lower())[:20].strip("_") + "_" + uuid.uuid4().hex[:8]
    # Two thousand of them are made: whether its functions can be read is asked where migrating itself is tested.
    connection = await asyncpg.connect(url, server_settings={"check_function_bodies": "off"})
    await migrate(connection, name)
    await connection.close()
    yield name
    connection, left_open = await asyncpg.connect(url, server_settings={"lock_timeout": "10s"}), False
    for _ in range(5):
        # Somebody who was cut off may still be reading in it.
        with contextlib.suppress(asyncpg.DeadlockDetectedError):
            try:
                await connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
                break
            except asyncpg.LockNotAvailableError:
                # So that the other tests go on.
                left_open = True
                await connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM (SELECT DISTINCT l.pid FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
                    f" WHERE c.relnamespace = '{name}'::regnamespace AND l.pid <> pg_backend_pid()) AS holders"
                )
    await connection.close()
    assert not left_open, "the test has left a transaction open"


@pytest.fixture
async def sql(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the test's own, to look from outside."""
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


@pytest.fixture
async def app(url: str, schema: str) -> AsyncIterator[Hourhand]:
    """An app on the test's schema, with short times."""
    one = Hourhand(url, schema=schema, lease=3.0, grace=0.5, poll=1.0)
    async with one:
        yield one


@pytest.fixture
def project() -> Path:
    return Path(__file__).parent.parent
