"""`POST /api/v1/runs`, over sockets, from another process: how many a second, and how long one takes at half of that.

The load comes from a process of its own that writes ready-made requests, so that what is measured is the server and not a client
library; it still shares the two cores with the server and PostgreSQL.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass

from benchmarks.product import environment
from benchmarks.servers import free_port

_BODY = b'{"task":"bench","payload":{"invoice_id":7,"customer":"c-1001"}}'
CONNECTIONS = 64


@dataclass(frozen=True)
class Load:
    answered: int
    refused: int
    seconds: float
    p50: float
    p99: float

    @property
    def rate(self) -> float:
        return self.answered / self.seconds


class Server:
    """`hourhand api` on a schema of its own, with one key."""

    def __init__(self, url: str, schema: str) -> None:
        self.port = free_port()
        self._environment = environment(url, schema)
        self.key = ""

    def __enter__(self) -> Server:
        made = subprocess.run(
            [sys.executable, "-m", "hourhand", "keys", "create", "bench", "--role", "operator"],
            env=self._environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        self.key = made.stdout.strip()
        command = [sys.executable, "-m", "hourhand", "api", "--port", str(self.port), "--log-level", "warning"]
        self._process = subprocess.Popen(command, env=self._environment)
        for _ in range(300):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=1)
                break
            except OSError:
                time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)

    def load(self, rate: float, seconds: float) -> Load:
        """`rate` requests a second, spread evenly; 0: as many as are answered."""
        command = [sys.executable, "-m", "benchmarks.api", str(self.port), self.key, str(rate), str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return Load(**json.loads(done.stdout))


class Line(asyncio.Protocol):
    """One connection: a request, its answer, the next one."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[bytes] | None = None
        self._heard = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    async def ask(self, request: bytes) -> bytes:
        self._heard, self._answer = b"", asyncio.get_running_loop().create_future()
        self._transport.write(request)  # type: ignore[attr-defined]
        return await self._answer

    def data_received(self, data: bytes) -> None:
        self._heard += data
        head, found, body = self._heard.partition(b"\r\n\r\n")
        if found and self._answer is not None and not self._answer.done():
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            if len(body) >= length:
                self._answer.set_result(head[9:12])

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionResetError("the server closed the connection"))


async def generate(port: int, key: str, rate: float, seconds: float) -> Load:
    request = (
        f"POST /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(_BODY)}\r\n\r\n"
    ).encode() + _BODY
    loop = asyncio.get_running_loop()
    lines = [(await loop.create_connection(Line, "127.0.0.1", port))[1] for _ in range(CONNECTIONS)]
    took: list[float] = []
    refused = 0
    began = time.perf_counter()
    numbers = iter(range(10**9))

    async def keep_asking(line: Line) -> None:
        nonlocal refused
        while True:
            # Counted from when it was due, not from when a connection was free: waiting is a part of it.
            due = began + next(numbers) / rate if rate else time.perf_counter()
            if due - began > seconds:
                return
            if (pause := due - time.perf_counter()) > 0:
                await asyncio.sleep(pause)
            status = await line.ask(request)
            took.append(time.perf_counter() - due)
            refused += status != b"201"

    await asyncio.gather(*(keep_asking(line) for line in lines))
    ended = time.perf_counter() - began
    took.sort()
    return Load(len(took), refused, ended, took[len(took) // 2] * 1000, took[int(len(took) * 0.99)] * 1000)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, kind in (("port", int), ("key", str), ("rate", float), ("seconds", float)):
        parser.add_argument(name, type=kind)
    given = parser.parse_args()
    import uvloop

    made = uvloop.run(generate(given.port, given.key, given.rate, given.seconds))
    print(json.dumps(made.__dict__))


if __name__ == "__main__":
    main()
