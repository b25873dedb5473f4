"""Real servers on real sockets, for HTTP jobs to call: one that answers, one that does not."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from aiohttp import web

Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Endpoint:
    """Answers with what `respond` says, and remembers what it was asked."""

    port: int = 0
    requests: list[Request] = field(default_factory=list)

    def url(self, path: str = "/", host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"


async def fine(_: web.Request) -> web.Response:
    return web.json_response({"fine": True})


@asynccontextmanager
async def answering(
    respond: Respond = fine, *, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()

    async def handle(request: web.Request) -> web.StreamResponse:
        endpoint.requests.append(Request(request.method, request.path_qs, dict(request.headers), await request.read()))
        return await respond(request)

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, host, port, ssl_context=tls)
    await site.start()
    endpoint.port = runner.addresses[0][1]
    try:
        yield endpoint
    finally:
        await runner.cleanup()


@dataclass
class Silent:
    """Takes connections and says only what it is told to say. `open` are those that the caller has not closed."""

    port: int = 0
    open: int = 0
    taken: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a caller has closed a connection."""

    def url(self, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}/"


Speak = Callable[[asyncio.StreamWriter], Awaitable[None]]


async def nothing(_: asyncio.StreamWriter) -> None:
    pass


@asynccontextmanager
async def silent(speak: Speak = nothing) -> AsyncIterator[Silent]:
    endpoint = Silent()
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        endpoint.open += 1
        endpoint.taken += 1
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            with suppress(ConnectionError, asyncio.CancelledError):
                await reader.readuntil(b"\r\n\r\n")
                await speak(writer)
                while await reader.read(65_536):
                    pass
        finally:
            serving.discard(task)
            endpoint.open -= 1
            endpoint.left.set()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1_000)
    endpoint.port = server.sockets[0].getsockname()[1]
    try:
        yield endpoint
    finally:
        server.close()
        for task in list(serving):
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
