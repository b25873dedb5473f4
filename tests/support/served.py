"""Clients of the server that the tests of a file share, and what may stand between it and them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from hourhand import Hourhand
from hourhand.client import AsyncClient, Client
from tests.db.conftest import Served
from tests.support.api import ADMIN


@pytest.fixture
async def near(served: Served) -> AsyncIterator[Hourhand]:
    """An app that looks at the server's database itself."""
    async with Hourhand(served.url, schema=served.schema, lease=3.0, grace=0.5, poll=1.0) as app:
        yield app


@pytest.fixture
async def client(served: Served) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(served.api.base, ADMIN) as one:
        yield one


@pytest.fixture
def blocking(served: Served) -> Iterator[Client]:
    with Client(served.api.base, ADMIN) as one:
        yield one


@dataclass
class Proxy:
    """Passes bytes on. Of the next connections it swallows the answers: the server has done it, and nobody hears of it."""

    target: int
    port: int = 0
    swallow: int = 0
    swallowed: list[bytes] = field(default_factory=list)
    """What the server had answered, and nobody heard."""
    held: asyncio.Event | None = None
    """While it is set to an event that has not happened, requests wait here."""
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Every connection that is open."""
        for writer in self._open:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            await asyncio.gather(self._forward(reader, there_writer), self._back(there_reader, writer))
        except OSError:
            pass
        finally:
            self._open.discard(writer)
            for one in (writer, there_writer):
                one.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            if self.held is not None:
                await self.held.wait()
            writer.write(data)
            await writer.drain()
        writer.close()

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            if self.swallow:
                self.swallow -= 1
                self.swallowed.append(data)
                raise ConnectionAbortedError
            writer.write(data)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def between(target: int) -> AsyncIterator[Proxy]:
    proxy = Proxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        proxy.cut()
        server.close()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(server.wait_closed(), 10)
