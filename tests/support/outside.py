"""Looking at the tables from outside, and scripts that run in a process of their own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from hourhand.core import ids
from tests.support.fleet import PROJECT, until

TABLES = ("ready", "delayed", "parked", "running", "runs", "dead")


async def row(sql: asyncpg.Connection, schema: str, run: str | int) -> dict[str, Any]:
    """The one row of a run, with the name of the table it is in."""
    found = []
    for table in TABLES:
        rows = await sql.fetch(f"SELECT * FROM {schema}.{table} WHERE run_id = $1", ids.parse_run_id(run))
        found += [{"table": table, **dict(one)} for one in rows]
    assert len(found) == 1, found
    return found[0]


async def everything(sql: asyncpg.Connection, schema: str) -> dict[str, int]:
    """How many rows each table of the schema holds; but for queues, which are only names, and made in passing."""
    tables = await sql.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1 AND tablename <> 'queues' ORDER BY 1", schema)
    return {name: await sql.fetchval(f"SELECT count(*) FROM {schema}.{name}") for (name,) in tables}


async def lane_name(sql: asyncpg.Connection, schema: str, lane: int) -> tuple[str, str]:
    queue = await sql.fetchval(f"SELECT name FROM {schema}.queues WHERE id = $1", lane // 4)
    return queue, ("high", "normal", "low")[lane % 4]


@asynccontextmanager
async def listening(url: str, schema: str) -> AsyncIterator[Words]:
    connection = await asyncpg.connect(url)
    words = Words(connection, schema)
    await connection.add_listener(schema, words.hear)
    try:
        yield words
    finally:
        await connection.close()


class Words:
    """What was said on a schema's channel."""

    def __init__(self, connection: asyncpg.Connection, schema: str) -> None:
        self._connection, self._schema = connection, schema
        self._heard: list[str] = []
        self._marker = 0

    def hear(self, _connection: Any, _pid: int, _channel: str, word: Any) -> None:
        self._heard.append(word)

    async def so_far(self) -> list[str]:
        """All that was committed before now: a word of our own comes after them."""
        self._marker += 1
        marker = f"marker {self._marker}"
        await self._connection.execute("SELECT pg_notify($1, $2)", self._schema, marker)

        async def arrived() -> bool:
            return marker in self._heard

        await until(arrived, "our own word")
        return [word for word in self._heard if not word.startswith("marker")]


async def script(text: str, *arguments: str, timeout: float = 60) -> str:
    """Run a Python script in a process of its own; its output. Warnings count as errors, but are only printed:
    raised in a finalizer they would keep it from doing its harm."""

    def run() -> str:
        done = subprocess.run(
            [sys.executable, "-W", "always", "-c", text, *arguments],
            cwd=PROJECT, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert not done.stderr, done.stderr
        return done.stdout

    return await asyncio.to_thread(run)
