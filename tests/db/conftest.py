"""What the tests of the API share."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import asyncpg
import pytest

from hourhand.storage.migrate import migrate
from tests.support.api import ADMIN, ApiProcess, Client


@dataclass(frozen=True)
class Served:
    """A server that the tests of a file share, and where it keeps things."""

    api: ApiProcess
    url: str
    schema: str


@pytest.fixture(scope="module")
def served(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    schema = f"t_api_{uuid.uuid4().hex[:8]}"

    async def prepare(statement: str = "") -> None:
        connection = await asyncpg.connect(url)
        await (connection.execute(statement) if statement else migrate(connection, schema))
        await connection.close()

    asyncio.run(prepare())
    api = ApiProcess(url, schema, tmp_path_factory.mktemp("api"), HOURHAND_POLL="1")
    try:
        asyncio.run(api.started())
        yield Served(api, url, schema)
    finally:
        try:
            api.stop()
        finally:
            asyncio.run(prepare(f"DROP SCHEMA IF EXISTS {schema} CASCADE"))


@pytest.fixture
async def admin(served: Served) -> AsyncIterator[Client]:
    """Somebody who may do everything. What the server says meanwhile is shown if the test fails; a fault of its own is one."""
    served.api.news()
    async with Client(served.api.base, ADMIN) as client:
        yield client
    said = served.api.news()
    print(said)
    assert "Traceback" not in said
