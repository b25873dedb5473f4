"""How much a caller may say, and how long he may take, before his request is whole."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from hourhand.surfaces.rest import protocol
from hourhand.surfaces.rest.protocol import LARGEST_HEAD, MOST_HEADERS, BoundedProtocol
from hourhand.surfaces.rest.server import _Server
from tests.support.api import raw_exchange
from tests.support.fleet import until

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse(f"{len(await Request(scope, receive).body())} bytes")(scope, receive, send)


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(protocol, "PATIENCE", 0.3)
    listener = socket.create_server(("127.0.0.1", 0))
    server = _Server(uvicorn.Config(_echo, http=BoundedProtocol, lifespan="off", log_config=None, ws="none", access_log=False))
    serving = asyncio.create_task(server.serve(sockets=[listener]))

    async def started() -> bool:
        return server.started

    await until(started, "the server")
    yield listener.getsockname()[1]
    server.should_exit = True
    await serving
    listener.close()


def _problem(answer: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/problem+json" in head
    detail: str = json.loads(body)["detail"]
    return detail


async def test_what_is_whole_is_answered(port: int) -> None:
    head = HEAD + b"".join(b"X-%d: a\r\n" % number for number in range(MOST_HEADERS - 5)) + b"X-Large: " + b"a" * 50_000 + b"\r\n"
    answer = await raw_exchange(port, head + b"Content-Length: 5\r\n\r\n12345")
    assert answer.endswith(b"5 bytes")


@pytest.mark.parametrize(
    "sent", [b"X: " + b"a" * 3 * LARGEST_HEAD, b"\r\n".join([b"X: a"] * LARGEST_HEAD), b"a" * 3 * LARGEST_HEAD]
)
async def test_headers_that_are_too_large(port: int, sent: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # it may be closed before all is sent
        assert _problem(await raw_exchange(port, HEAD + sent)) in ("The headers are too large.", "Invalid HTTP request received.")


async def test_too_many_headers(port: int) -> None:
    answer = await raw_exchange(port, HEAD + b"a: b\r\n" * MOST_HEADERS + b"\r\n")
    assert "Invalid" in _problem(answer)


async def test_a_trailer_that_does_not_end(port: int) -> None:
    """Behind a body there may be headers again."""
    start = HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: "
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(start)
    try:
        for _ in range(100):
            writer.write(b"a" * LARGEST_HEAD)
            await writer.drain()
        assert await reader.read() == b""
    except ConnectionError:
        pass
    finally:
        writer.close()
    assert reader.at_eof() or reader.exception() is not None


@pytest.mark.parametrize("sent", [b"", b"G", HEAD, HEAD + b"X: a"])
async def test_who_does_not_come_to_the_point(port: int, sent: bytes) -> None:
    assert "too long" in _problem(await raw_exchange(port, sent))


async def test_a_slow_body_is_waited_for(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD + b"Content-Length: 2\r\n\r\n1")
    await raw_exchange(port, b"G")  # this one is given up, so that much time has passed
    writer.write(b"2")
    assert (await reader.read()).endswith(b"2 bytes")
    writer.close()
