"""Real worker processes, to be killed and paused."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg

PROJECT = Path(__file__).parent.parent.parent


async def until(condition: Callable[[], Awaitable[Any]], what: str | Callable[[], str], seconds: float = 60.0) -> Any:
    """Wait for something another process does. The limit only keeps a broken test from hanging."""
    deadline = time.monotonic() + seconds
    while True:
        value = await condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for: {what if isinstance(what, str) else what()}")
        await asyncio.sleep(0.02)


class Process:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, one: signal.Signals) -> None:
        self.process.send_signal(one)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    async def ended(self, seconds: float = 30.0) -> int:
        async def poll() -> bool:
            return self.process.poll() is not None

        await until(poll, lambda: f"the end of process {self.pid}; its log:\n{self.text()}", seconds)
        return int(self.process.returncode)

    def text(self) -> str:
        return self.log.read_text(errors="replace")


class Fleet:
    """Workers on one schema. Settings are short so that a test need not be long."""

    def __init__(self, url: str, schema: str, directory: Path) -> None:
        self.url, self.schema, self.directory = url, schema, directory
        self.processes: list[Process] = []

    def worker(self, *arguments: str, **environment: str) -> Process:
        return self.start("worker", "--app", "tests.support.jobs:app", *arguments, **environment)

    def start(self, *arguments: str, module: str = "hourhand", **environment: str) -> Process:
        log = self.directory / f"process-{len(self.processes)}.log"
        settings = {
            "HOURHAND_DATABASE_URL": self.url, "HOURHAND_SCHEMA": self.schema,
            "HOURHAND_LEASE": "3", "HOURHAND_GRACE": "0.8", "HOURHAND_POLL": "1",
        }  # fmt: skip
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=PROJECT, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env={**os.environ, **settings, **environment}, start_new_session=True,
            )  # fmt: skip
        self.processes.append(Process(process, log))
        return self.processes[-1]

    async def alive(self, sql: asyncpg.Connection, count: int) -> None:
        """Until that many nodes have registered and hold their session lock."""
        question = f"SELECT count(*) FROM {self.schema}.nodes WHERE stopped_at IS NULL AND died_at IS NULL AND session"

        async def registered() -> bool:
            return bool(await sql.fetchval(question) >= count)

        await until(registered, lambda: f"{count} live nodes; logs:\n" + "\n".join(one.text() for one in self.processes))

    def close(self) -> None:
        for one in self.processes:
            if one.process.poll() is None:
                one.send(signal.SIGCONT)
                one.kill()


async def make_sink(sql: asyncpg.Connection, schema: str) -> None:
    await sql.execute(
        f"CREATE TABLE {schema}.seen (id serial PRIMARY KEY, run bigint, attempt int, pid int, what text,"
        " at timestamptz DEFAULT clock_timestamp())"
    )


async def where(sql: asyncpg.Connection, schema: str) -> dict[str, int]:
    """How many runs are in which table."""
    tables = ("ready", "delayed", "parked", "running", "dead", "runs")
    counts = ", ".join(f"(SELECT count(*) FROM {schema}.{table}) AS {table}" for table in tables)
    return dict(await sql.fetchrow(f"SELECT {counts}"))
