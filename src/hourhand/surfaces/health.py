"""A word on whether this node is well, for load balancers and people: GET /healthz."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from hourhand.core.errors import ConfigurationError

Check = Callable[[], Awaitable[dict[str, Any]]]


async def serve_health(host: str, port: int, check: Check) -> asyncio.Server:
    """Answers 200 while `check` says status ok, 503 otherwise."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await asyncio.wait_for(reader.readline(), 5)
            while (await asyncio.wait_for(reader.readline(), 5)).strip():
                pass
            parts = request.decode("latin-1").split()
            if len(parts) < 2 or parts[0] not in ("GET", "HEAD") or parts[1].partition("?")[0] != "/healthz":
                status, body = "404 Not Found", {"status": "not found", "try": "/healthz"}
            else:
                body = await check()
                status = "200 OK" if body["status"] == "ok" else "503 Service Unavailable"
            text = b"" if parts[:1] == ["HEAD"] else msgspec.json.encode(body)
            head = (
                f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + text)
            await writer.drain()
        except (OSError, asyncio.TimeoutError, ValueError):
            pass
        finally:
            writer.close()

    try:
        return await asyncio.start_server(answer, host, port)
    except OSError as error:
        raise ConfigurationError(f"port {port} cannot be used: {error.strerror}; choose another with --port") from error
