"""A word on whether this node is well, for load balancers and people: GET /healthz, and for Prometheus: GET /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from hourhand.core.errors import ConfigurationError, HourhandError
from hourhand.surfaces.metrics import CONTENT_TYPE

Check = Callable[[], Awaitable[dict[str, Any]]]
Measure = Callable[[], Awaitable[bytes]]


async def serve_health(host: str, port: int, check: Check, measure: Measure) -> asyncio.Server:
    """Answers 200 while `check` says status ok, 503 otherwise; `measure` gives the metrics."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await asyncio.wait_for(reader.readline(), 5)
            while (await asyncio.wait_for(reader.readline(), 5)).strip():
                pass
            parts = request.decode("latin-1").split()
            path = parts[1].partition("?")[0] if len(parts) > 1 and parts[0] in ("GET", "HEAD") else ""
            kind = "application/json"
            if path == "/metrics":
                status, kind, text = await _measured(measure)
            elif path == "/healthz":
                body = await check()
                status, text = "200 OK" if body["status"] == "ok" else "503 Service Unavailable", msgspec.json.encode(body)
            else:
                status, text = "404 Not Found", msgspec.json.encode({"status": "not found", "try": "/healthz or /metrics"})
            if parts[:1] == ["HEAD"]:
                text = b""
            head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
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


async def _measured(measure: Measure) -> tuple[str, str, bytes]:
    try:
        return "200 OK", CONTENT_TYPE, await measure()
    except HourhandError as error:
        return "503 Service Unavailable", "text/plain; charset=utf-8", str(error).encode()
