"""A few lines of HTTP for Prometheus and for whoever asks whether this process is well: `GET /metrics` and `GET /healthz`.

On the event loop of the process: if that stands still, so does this, and the scrape fails, as it should. Nobody can hold it up:
what is asked is short, answered once and closed, a few at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

import structlog

from hourhand.core.clock import Clock
from hourhand.core.errors import ConfigurationError
from hourhand.engine.exposition import CONTENT_TYPE, LoopLag, Moment, Taken, build_info, scheduler_moment, text, worker_moment
from hourhand.engine.node import Node
from hourhand.engine.scheduler import Scheduler
from hourhand.engine.worker import Worker
from hourhand.storage.database import Database

log = structlog.get_logger("hourhand.metrics")
HOST = "127.0.0.1"
HIGHEST = 65_535
_PATIENCE = 5.0
_LARGEST = 8 * 1024
_AT_ONCE = 16
_WORDS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_PLAIN = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Address:
    host: str = HOST
    port: int = 0
    """0: nowhere."""

    def __post_init__(self) -> None:
        if not isinstance(self.port, int) or not 0 <= self.port <= HIGHEST:
            raise ConfigurationError(f"the port for metrics must be from 1 to {HIGHEST}, or 0 for none, not {self.port!r}")

    def plus(self, places: int) -> Address:
        """That of another process on this machine."""
        return Address(self.host, self.port + places) if self.port else self

    def row(self, count: int) -> list[Address]:
        """One for each of so many processes, all of them free just now."""
        if self.port and self.port + count - 1 > HIGHEST:
            raise ConfigurationError(f"{count} processes from port {self.port} on would need ports beyond {HIGHEST}")
        addresses = [self.plus(place) for place in range(count)]
        for one in addresses:
            if one.port:
                _listen(one).close()
        return addresses


class MetricsServer:
    def __init__(self, address: Address) -> None:
        self.address = address
        self.lag = LoopLag()
        self._socket = _listen(address)
        self._server: asyncio.Server | None = None
        self._asking: set[asyncio.Task[None]] = set()
        self._moment: Moment = lambda: Taken([build_info()])
        self._well: Callable[[], bool] = lambda: False
        # Not the one that all share: whoever fills that up would take the metrics away just when they are needed.
        self._writer = ThreadPoolExecutor(1, "hourhand-metrics")

    def show_worker(self, worker: Worker, databases: Sequence[Database]) -> None:
        self._moment, self._well = worker_moment(worker, databases, self.lag), lambda: _holds(worker.node)

    def show_scheduler(self, scheduler: Scheduler, databases: Sequence[Database]) -> None:
        self._moment, self._well = scheduler_moment(scheduler, databases, self.lag), lambda: _holds(scheduler.node)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, sock=self._socket, limit=_LARGEST)
        self.lag.start()
        log.info("metrics.served", host=self.address.host, port=self.address.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.lag.stop()
        if self._server is not None:
            self._server.close()
        if self._asking:
            await asyncio.wait(self._asking, timeout=1.0)
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        self._writer.shutdown(wait=False, cancel_futures=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        me = asyncio.current_task()
        assert me is not None
        self._asking.add(me)
        try:
            if len(self._asking) <= _AT_ONCE:
                async with asyncio.timeout(_PATIENCE):
                    await self._answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.TimeoutError, asyncio.CancelledError):
            pass  # whoever asks so, or so late, is not answered
        finally:
            self._asking.discard(me)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, _, rest = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0].decode("latin-1").partition(" ")
        target, _, protocol = rest.partition(" ")
        status, body, kind = await self._respond(method, target.partition("?")[0], protocol)
        head = (
            f"HTTP/1.1 {status} {_WORDS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + (b"" if method == "HEAD" else body))
        await writer.drain()

    async def _respond(self, method: str, path: str, protocol: str) -> tuple[int, bytes, str]:
        if not protocol.startswith("HTTP/1."):
            return 400, b"this is no HTTP request\n", _PLAIN
        if path not in ("/metrics", "/healthz"):
            return 404, b"there are /metrics and /healthz\n", _PLAIN
        if method not in ("GET", "HEAD"):
            return 405, b"only GET\n", _PLAIN
        if path == "/healthz":
            return (200, b"ok\n", _PLAIN) if self._well() else (503, b"its lease does not hold\n", _PLAIN)
        rendered = await asyncio.get_running_loop().run_in_executor(self._writer, text, self._moment())
        return 200, rendered, CONTENT_TYPE


@contextlib.asynccontextmanager
async def served(address: Address) -> AsyncIterator[MetricsServer | None]:
    """A server, or none if the address has no port."""
    if not address.port:
        yield None
        return
    async with MetricsServer(address) as server:
        yield server


def _holds(node: Node) -> bool:
    return node.lease_deadline > Clock.monotonic()


def _listen(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        # At once: of two sockets that are bound and do not listen yet, both may believe to have the port.
        listener.listen()
        listener.setblocking(False)
    except (OSError, UnicodeError) as error:
        listener.close()
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(
            f"{address.host}:{address.port} cannot be used for metrics: {why}; choose another --metrics-port or --metrics-host"
        ) from error
    return listener
