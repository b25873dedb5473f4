"""One proxied connection: the client's, and the one to the server that was made for it.

Each direction is two tasks with a short queue between them: one notes when bytes arrive, the other delivers them when the
mode allows it. A full queue stops the reading, so a held connection pushes back on its sender as a real one does.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable

from hourhand.core.clock import Clock
from hourhand.surfaces.verify.passage import Cut, Passage
from hourhand.surfaces.verify.wire import (
    CANCEL_REQUEST,
    GSS_REQUEST,
    SSL_REQUEST,
    BackendReader,
    FrontendReader,
    Opening,
    Session,
)  # fmt: skip

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
PIECE = 64 * 1024
_QUEUED = 16


class _Flow:
    """One direction: what has arrived and is not delivered yet."""

    def __init__(self, passage: Passage, reader: asyncio.StreamReader) -> None:
        self._passage, self._reader = passage, reader
        self._queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUED)

    async def receive(self) -> None:
        while True:
            try:
                data = await self._reader.read(PIECE)
            except OSError:
                data = b""
            await self._queue.put((Clock.monotonic(), data))
            if not data:
                return

    async def next(self) -> bytes:
        """The next piece, when the mode allows it; empty at the end."""
        arrived, data = await self._queue.get()
        await self._passage.allowed(arrived, len(data))
        return data


class Pair:
    """One client's connection and the one to the server that was made for it."""

    def __init__(self, passage: Passage, client: Streams, connect: Callable[[], Awaitable[Streams]]) -> None:
        self._passage, self._connect = passage, connect
        self._requests = _Flow(passage, client[0])
        self._client = client[1]
        self._server: asyncio.StreamWriter | None = None
        self._session = Session()
        self._planned: Cut | None = None
        self._dead = False
        """The client was cut off."""
        self._tasks: list[asyncio.Task[None]] = []
        self.ended = asyncio.Event()

    @property
    def upstream_port(self) -> int | None:
        name = self._server.get_extra_info("sockname") if self._server is not None else None
        return int(name[1]) if isinstance(name, tuple) else None

    def reset(self) -> None:
        for writer in (self._client, self._server):
            if writer is not None:
                reset_connection(writer)
        self._stop()

    def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def run(self) -> None:
        """Until either side is gone."""
        serving = asyncio.create_task(self._serve())
        self._tasks = [serving, asyncio.create_task(self._requests.receive())]
        try:
            await asyncio.wait([serving])
        finally:
            self._stop()
            if self._planned is not None and not self._dead:
                self._passage.drop_plan(self._planned)
            results = await asyncio.gather(*self._tasks, return_exceptions=True)
            for writer in (self._server, self._client):
                if writer is not None:
                    writer.close()
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()
            self.ended.set()
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, OSError):
                raise result

    async def _serve(self) -> None:
        first = await self._first_message()
        if not first:
            return
        try:
            reader, self._server = await self._connect()
        except (OSError, EOFError):
            self._passage.counters.dropped += 1
            reset_connection(self._client)
            return
        answers = _Flow(self._passage, reader)
        ways = [
            asyncio.create_task(self._deliver_requests(first, self._server)),
            asyncio.create_task(self._deliver_answers(answers)),
        ]
        self._tasks += [asyncio.create_task(answers.receive()), *ways]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        if self._dead:
            # Whom the client has lost still works: it keeps its connection until it has answered.
            await asyncio.wait(ways)

    async def _first_message(self) -> bytes:
        """The startup message. Encryption is declined here: the proxy could not see through it."""
        opening = Opening()
        while data := await self._requests.next():
            message = opening.feed(data)
            if message is None:
                continue
            code, everything = message
            if code not in (SSL_REQUEST, GSS_REQUEST):
                if code != CANCEL_REQUEST:
                    self._session.requests += 1
                return everything
            self._client.write(b"N")
            await self._client.drain()
        return b""

    async def _deliver_requests(self, first: bytes, server: asyncio.StreamWriter) -> None:
        frontend = FrontendReader(self._session)
        server.write(first)
        while not self._dead and (data := await self._requests.next()):
            for commit in frontend.feed(data):
                self._planned = self._planned or self._passage.plan_cut(commit)
                if self._planned is not None and not self._planned.order.answered:
                    data = data[: commit.end]
                    self._cut(self._planned)
                    break
            server.write(data)
            await server.drain()

    async def _deliver_answers(self, answers: _Flow) -> None:
        backend = BackendReader(self._session)
        withheld = b""
        while data := await answers.next():
            start, passed = 0, []
            for answer in backend.feed(data):
                piece, start = data[start : answer.end], answer.end
                if self._planned is not None and answer.number == self._planned.answer:
                    if self._dead:
                        return
                    if answer.committed and self._passage.stands(self._planned):
                        self._cut(self._planned)
                        return
                    self._passage.drop_plan(self._planned)
                    self._planned = None
                passed.append(withheld + piece)
                withheld = b""
            if self._planned is not None and self._session.answers + 1 == self._planned.answer:
                withheld += data[start:]
            else:
                passed.append(data[start:])
            if not self._dead:
                self._client.write(b"".join(passed))
                await self._client.drain()

    def _cut(self, cut: Cut) -> None:
        self._dead = True
        self._passage.note_cut(cut)
        reset_connection(self._client)


def reset_connection(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    if raw is not None and raw.fileno() >= 0:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
