"""The database goes away again and again while a process starts."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from tests.support.fleet import Fleet, until
from tests.support.servers import free_port

pytestmark = pytest.mark.parametrize("url", ["server"], indirect=True)
READY = b"Z\x00\x00\x00\x05I"
"""With this the server ends its greeting."""


class Door:
    """Before the database. Of two who come, one is sent away: at once, or with the first question."""

    def __init__(self, host: str, port: int, when: str) -> None:
        self._host, self._port, self._when = host, port, when
        self._serving: set[asyncio.Task[None]] = set()
        self.came = 0
        self.sent_away = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.came += 1
        unwelcome = self.came % 2 == 1
        if unwelcome and self._when == "at once":
            self.sent_away += 1
            writer.close()
            return
        inner, outer = await asyncio.open_connection(self._host, self._port)
        greeted = False

        async def answers() -> None:
            nonlocal greeted
            while data := await inner.read(65536):
                greeted = greeted or data.endswith(READY)
                writer.write(data)

        async def questions() -> None:
            while data := await reader.read(65536):
                if unwelcome and greeted:
                    self.sent_away += 1
                    return
                outer.write(data)

        ways = [asyncio.create_task(way()) for way in (answers, questions)]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            writer.close()
            outer.close()

    async def welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self.serve(reader, writer))
        self._serving.add(task)
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await task
        self._serving.discard(task)

    async def close(self) -> None:
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)


@pytest.fixture(params=["at once", "with the first question"])
async def door(request: pytest.FixtureRequest, url: str) -> AsyncIterator[tuple[Door, str]]:
    parts = urlsplit(url)
    door = Door(parts.hostname or "127.0.0.1", parts.port or 5432, request.param)
    server = await asyncio.start_server(door.welcome, "127.0.0.1", 0)
    user = f"{parts.username}@" if parts.username else ""
    place = f"{user}127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield door, urlunsplit(parts._replace(netloc=place, query="sslmode=disable"))
    server.close()
    await door.close()


@pytest.mark.parametrize("kind", ["worker", "scheduler", "api"])
async def test_a_process_that_starts_as_the_database_goes_away_waits_for_it(
    kind: str, door: tuple[Door, str], schema: str, tmp_path: Path
) -> None:
    doorkeeper, way_in = door
    fleet = Fleet(way_in, schema, tmp_path)
    words = {"worker": [], "scheduler": ["--app", "hourhand.demo:app"], "api": ["--port", str(free_port())]}
    process = fleet.start(kind, *words[kind])

    async def started() -> bool:
        assert process.process.poll() is None, process.text()
        return f"{kind}.started" in process.text()

    try:
        await until(started, lambda: f"its start; its log:\n{process.text()}")
        assert doorkeeper.sent_away > 1
        process.send(signal.SIGTERM)
        assert await process.ended() == 0
    finally:
        fleet.close()
