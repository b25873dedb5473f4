"""The REST API as a process of its own, and somebody who speaks to it over a socket."""

from __future__ import annotations

import asyncio
import atexit
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import aiohttp
import asyncpg
from yarl import URL

from hourhand.core import ids
from tests.support.fleet import PROJECT, Process, until
from tests.support.servers import free_port

ADMIN = "Zm9yIHRlc3RzIG9ubHk7IG5vdGhpbmcgb2YgdmFsdWU"
"""What HOURHAND_ADMIN_KEY is where a test needs a key at once."""
ROOT = "/api/v1"
PROBLEM = "application/problem+json"
_NEXT = re.compile(r'<([^>]+)>; rel="next"')


class ApiProcess:
    """`hourhand api` on a database and a schema. Without `admin` it is open, until somebody makes a key."""

    def __init__(
        self, url: str, schema: str, directory: Path, *arguments: str, admin: str | None = ADMIN, **environment: str
    ) -> None:
        self.port = free_port()
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HOURHAND_")}
        settings = {"HOURHAND_DATABASE_URL": url, "HOURHAND_SCHEMA": schema}
        if admin is not None:
            settings["HOURHAND_ADMIN_KEY"] = admin
        log = directory / f"api-{self.port}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "hourhand", "api", "--port", str(self.port), *arguments],
                cwd=PROJECT, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env={**clean, **settings, **environment}, start_new_session=True,
            )  # fmt: skip
        self.process = Process(process, log)
        self._shown = 0
        atexit.register(self.kill)  # a test that fails may leave it behind

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def started(self) -> Self:
        async with Client(self.base) as client:

            async def well() -> bool:
                if self.process.process.poll() is not None:
                    raise AssertionError(f"the API has ended; its log:\n{self.process.text()}")
                try:
                    return (await client.get("/healthz")).status == 200
                except aiohttp.ClientConnectionError:
                    return False

            await until(well, lambda: f"the API; its log:\n{self.process.text()}")
        return self

    def stop(self) -> None:
        """Streams that are open do not hold it up for long."""
        if self.process.process.poll() is None:
            self.process.send(signal.SIGTERM)
            try:
                self.process.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise

    def kill(self) -> None:
        if self.process.process.poll() is None:
            self.process.kill()

    def news(self) -> str:
        """What the log says since the last time: printed, it is shown with a test that fails."""
        text = self.process.text()
        fresh, self._shown = text[self._shown :], len(text)
        return fresh


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float = 0.0

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> dict[str, Any]:
        """What went wrong, as every error is told."""
        assert self.headers["content-type"] == PROBLEM, (self.status, self.headers, self.body[:500])
        told: dict[str, Any] = self.json
        assert {"type", "title", "status", "detail"} <= told.keys()
        assert told["status"] == self.status
        assert isinstance(told["detail"], str)
        assert told["detail"]
        return told

    @property
    def next(self) -> str | None:
        """Where the page after this one is."""
        found = _NEXT.search(self.headers.get("Link", ""))
        return None if found is None else found[1]

    def ok(self, status: int = 200) -> Any:
        """The answer's JSON, if that is what was expected."""
        assert self.status == status, (self.status, self.body[:2_000])
        return self.json if self.body else None


class Client:
    """Somebody with a key, or without. Paths that do not begin with a slash are below the API's root."""

    def __init__(self, base: str, key: str | None = None, session: aiohttp.ClientSession | None = None) -> None:
        self.base, self.key = base, key
        self._own = session is None
        # Each request on a connection of its own: a server that is killed meanwhile leaves nothing behind.
        self.session = session or aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._own:
            await self.session.close()

    def holding(self, key: str | None) -> Client:
        """The same with another key."""
        return Client(self.base, key, self.session)

    async def call(
        self, method: str, path: str, *, json: Any = None, data: Any = None, params: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:  # fmt: skip
        given = dict(headers or {})
        if self.key is not None:
            given.setdefault("Authorization", f"Bearer {self.key}")
        if json is not None:
            data = _dumps(json)
        if isinstance(data, bytes):
            data = io.BytesIO(data)
        if data is not None:
            given.setdefault("Content-Type", "application/json")
        # What is given encoded stays as it is.
        url = URL(self.base + (path if path.startswith("/") else f"{ROOT}/{path}"), encoded=params is None)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with self.session.request(
            method, url, data=data, params=params, headers=given, allow_redirects=False, timeout=aiohttp.ClientTimeout(100)
        ) as response:
            body = await response.read()
            return Answer(response.status, response.headers, body, loop.time() - begun)

    async def get(self, path: str, **more: Any) -> Answer:
        return await self.call("GET", path, **more)

    async def post(self, path: str, json: Any = None, **more: Any) -> Answer:
        return await self.call("POST", path, json=json, **more)

    async def patch(self, path: str, json: Any = None, **more: Any) -> Answer:
        return await self.call("PATCH", path, json=json, **more)

    async def put(self, path: str, json: Any = None, **more: Any) -> Answer:
        return await self.call("PUT", path, json=json, **more)

    async def delete(self, path: str, **more: Any) -> Answer:
        return await self.call("DELETE", path, **more)

    async def pages(self, path: str) -> list[list[Any]]:
        """All pages of a list, from this one on."""
        pages, at = [], path
        while True:
            answer = await self.get(at)
            pages.append(answer.ok())
            if answer.next is None:
                return pages
            at = answer.next

    async def make_key(self, name: str, role: str = "admin", **scope: Any) -> Client:
        """Somebody with a new key."""
        made = (await self.post("keys", {"name": name, "role": role, **scope})).ok(201)
        return self.holding(made["secret"])

    @asynccontextmanager
    async def events(self, *kinds: str, headers: Mapping[str, str] | None = None) -> AsyncIterator[Events]:
        given = dict(headers or {})
        if self.key is not None:
            given.setdefault("Authorization", f"Bearer {self.key}")
        async with self.session.get(
            f"{self.base}{ROOT}/events", params=[("type", one) for one in kinds], headers=given,
            timeout=aiohttp.ClientTimeout(None),
        ) as response:  # fmt: skip
            assert response.status == 200, await response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            heard = Events(response)
            await heard.block()  # the word with which the stream begins: from here on nothing is missed
            yield heard


class Events:
    """Server-sent events as they come in."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.heard: list[dict[str, Any]] = []

    async def block(self, seconds: float = 60.0) -> list[str] | None:
        """The lines up to the next empty one; None at the end of the stream."""
        lines: list[str] = []
        while True:
            raw = await asyncio.wait_for(self._response.content.readline(), seconds)
            if not raw:
                return None
            line = raw.decode().rstrip("\n")
            if not line:
                return lines
            lines.append(line)

    async def next(self) -> dict[str, Any] | None:
        while (lines := await self.block()) is not None:
            fields = dict(line.split(": ", 1) for line in lines if not line.startswith(":"))
            if "data" in fields:
                event: dict[str, Any] = json.loads(fields["data"])
                assert fields["event"] == event["type"]
                self.heard.append(event)
                return event
        return None

    async def until(self, wanted: Any) -> dict[str, Any]:
        """The next event for which this holds."""
        while (event := await self.next()) is not None:
            if wanted(event):
                return event
        raise AssertionError(f"the stream has ended; heard: {self.heard}")


def _dumps(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


async def raw_exchange(port: int, request: bytes, *, seconds: float = 30.0) -> bytes:
    """Bytes as they are, for what no client would send; what comes back until the other side closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        await writer.drain()
        return await asyncio.wait_for(reader.read(), seconds)
    finally:
        writer.close()


async def bury(
    sql: asyncpg.Connection, schema: str, run_id: str, *, error: str = "ConnectionError", died_at: datetime | None = None
) -> None:
    """As if a worker had tried a ready run four times, in vain."""
    done = await sql.execute(
        f"WITH gone AS (DELETE FROM {schema}.ready WHERE run_id = $1 RETURNING *) "
        f"INSERT INTO {schema}.dead (died_at, run_id, job_id, scheduled_at, enqueued_at, lane, attempt, task, payload, key, tags,"
        " options, errors, reason) "
        "SELECT coalesce($2, clock_timestamp()), run_id, job_id, scheduled_at, enqueued_at, lane, 4, task, payload, key, tags,"
        " options, jsonb_build_array(jsonb_build_object('attempt', 4, 'type', $3::text, 'message', 'no route')), 'gave up' FROM gone",
        ids.parse_run_id(run_id), died_at, error,
    )  # fmt: skip
    assert done == "INSERT 0 1"


async def settle(sql: asyncpg.Connection, schema: str, run_id: str) -> None:
    """As if a worker had done a ready run."""
    done = await sql.execute(
        f"WITH gone AS (DELETE FROM {schema}.ready WHERE run_id = $1 RETURNING *) "
        f"INSERT INTO {schema}.runs (run_id, job_id, scheduled_at, started_at, finished_at, lane, outcome, attempt, task, payload,"
        " key, tags, options) "
        "SELECT run_id, job_id, scheduled_at, clock_timestamp(), clock_timestamp(), lane, 'succeeded', 1, task, payload, key, tags,"
        " options FROM gone",
        ids.parse_run_id(run_id),
    )  # fmt: skip
    assert done == "INSERT 0 1"
