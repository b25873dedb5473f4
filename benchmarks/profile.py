"""`make bench-profile`: where each microsecond of a run goes, in PostgreSQL and in Python: as it is enqueued, fired, claimed and
finished; and the plans of the statements."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import asyncpg
from rich.console import Console
from rich.table import Table

from benchmarks import firing, observe, population, product, servers
from hourhand import Hourhand
from hourhand.storage.database import PLANNER
from hourhand.storage.migrate import migrate
from hourhand.storage.statements import load

SCHEMA = "hourhand"
SINGLES = 3_000
SCHEDULES = 40_000
"""Each fires every ten seconds: as many as one scheduler fires in time."""
FIRING = 20.0
PLANNED = 500
"""Rows for which a statement's plan is shown."""
PARTS = (
    ("waiting for PostgreSQL, or for a run", r"select|epoll|run_forever"),
    ("asyncpg: sending and reading rows", r"asyncpg/|storage/database"),
    ("enqueueing: arguments, options, the COPY's rows", r"storage/(enqueue|carriers)|surfaces/"),
    (
        "planning: the wheel, and when each is due again",
        r"engine/(firer|scheduler|elector)|core/(schedule|wheel|zones|ring)|storage/schedules|cron",
    ),
    ("the handler and what is around it", r"benchmarks/|engine/(executor|caller|settler)|core/(context|payload|task|tracing)"),
    ("claiming", r"engine/(claimer|stealer|admitter)|storage/queue|core/(fairness|marks)"),
    ("completing", r"engine/completer|storage/nodes"),
    ("statistics and metrics", r"engine/(measures|bulletin)|core/histogram"),
    ("asyncio", r"asyncio/"),
)
"""The innermost frame that one of these knows decides. The first pattern is of the innermost frame alone: that waits."""


def with_statements() -> Path | None:
    """A PostgreSQL of the machine's that has pg_stat_statements; the wheel's has not."""
    for programs in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (programs / "initdb").exists() and any(Path(programs.parent).rglob("pg_stat_statements.so")):
            return programs
    return None


def part_of(stack: list[str]) -> str:
    if re.search(PARTS[0][1], stack[-1]):
        return PARTS[0][0]
    for frame in reversed(stack):
        for name, pattern in PARTS[1:]:
            if re.search(pattern, frame):
                return name
    return "other"


def shares(recorded: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for line in recorded.splitlines():
        stack, _, count = line.rpartition(" ")
        if "MainThread" in stack or "thread" not in stack:
            found[part_of(stack.split(";"))] += int(count)
    return found


class Profiler:
    def __init__(self, sql: asyncpg.Connection, postmaster: int, scratch: Path, console: Console, counted: bool) -> None:
        self.sql, self._postmaster, self._scratch, self._console, self._counted = sql, postmaster, scratch, console, counted

    @asynccontextmanager
    async def watched(self, what: str, pid: int) -> AsyncIterator[list[int]]:
        """What is done meanwhile, in this process and in PostgreSQL; for each of the runs whose number is put into the list."""
        if self._counted:
            await self.sql.execute("SELECT public.pg_stat_statements_reset()")
        stacks, said = self._scratch / "stacks", self._scratch / "py-spy"
        stacks.unlink(missing_ok=True)
        words = ("record", "--pid", str(pid), "--rate", "500", "--duration", "300", "--nonblocking", "--threads")
        with said.open("w") as saying:
            spy = subprocess.Popen(
                [Path(sys.executable).with_name("py-spy"), *words, "--format", "raw", "--output", str(stacks)],
                stdout=saying, stderr=saying,
            )  # fmt: skip
        await asyncio.sleep(1)
        count: list[int] = []
        used, began = self._used(pid, spy.pid), time.perf_counter()
        try:
            yield count
            seconds, now = time.perf_counter() - began, self._used(pid, spy.pid)
        finally:
            spy.send_signal(signal.SIGINT)
            spy.wait(20)
        if not stacks.exists():
            raise SystemExit(f"py-spy could not look at the process: {said.read_text()}")
        runs, server, python = count[0], now[0] - used[0], now[1] - used[1]
        self._console.print(
            f"[bold]{what}[/]: {runs / seconds:,.0f} a second; for each {1e6 * seconds / runs:.1f} µs,"
            f" in which PostgreSQL computes {1e6 * server / runs:.1f} and Python {1e6 * python / runs:.1f}\n"
        )
        self._show_parts(shares(stacks.read_text()), 1e6 * python / runs)
        if self._counted:
            await self._show_statements(runs)

    def _used(self, pid: int, spy: int) -> tuple[float, float]:
        """By PostgreSQL, and by the process; not by who looks at it, even if that is its child."""
        watching = observe.processor_seconds([spy]) if pid == os.getpid() else 0.0
        return observe.processor_seconds([self._postmaster]), observe.processor_seconds([pid]) - watching

    def _show_parts(self, told: Counter[str], microseconds: float) -> None:
        working = {name: many for name, many in told.items() if name != PARTS[0][0]}
        table = Table("Python", "share of what it computes", "µs a run", box=None)
        for name, many in sorted(working.items(), key=lambda one: -one[1]):
            share = many / sum(working.values())
            table.add_row(name, f"{share:.0%}", f"{microseconds * share:.1f}")
        self._console.print(table, "")

    async def _show_statements(self, runs: int) -> None:
        """Their time is that from beginning to end, waits for the disk and for the other core's work included."""
        rows = await self.sql.fetch(
            "SELECT left(regexp_replace(query, '\\s+', ' ', 'g'), 60) AS query, calls, rows, mean_exec_time, total_exec_time, wal_bytes"
            " FROM public.pg_stat_statements ORDER BY total_exec_time DESC LIMIT 8"
        )
        table = Table("statement", "calls", "rows a call", "ms a call", "µs a run", "WAL bytes a run", box=None)
        for row in rows:
            table.add_row(
                row["query"], f"{row['calls']:,}", f"{row['rows'] / row['calls']:,.0f}", f"{row['mean_exec_time']:.2f}",
                f"{1000 * row['total_exec_time'] / runs:.2f}", f"{row['wal_bytes'] / runs:,.0f}",
            )  # fmt: skip
        self._console.print(table, "")


async def profile(url: str, postmaster: int, runs: int, scratch: Path, console: Console) -> None:
    sql = await asyncpg.connect(url)
    await migrate(sql, SCHEMA)
    counted = bool(await sql.fetchval("SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_stat_statements'"))
    if counted:
        await sql.execute("CREATE EXTENSION pg_stat_statements SCHEMA public")
    profiler = Profiler(sql, postmaster, scratch, console, counted)
    async with Hourhand(url, schema=SCHEMA) as app:
        await app.queues.pause("default")
        await enqueue(profiler, app, runs)
        await drain(profiler, app, url, runs)
        await show_queue_plans(url, sql, console)
        await fire(profiler, app, url)
        await show_firing_plan(url, sql, console)
    await sql.close()


async def enqueue(profiler: Profiler, app: Hourhand, runs: int) -> None:
    async with profiler.watched("enqueue, one after the other", os.getpid()) as count:
        for n in range(SINGLES):
            await app.enqueue("noop", {"n": n})
        count.append(SINGLES)
    async with profiler.watched("enqueue_many", os.getpid()) as count:
        await app.enqueue_many("noop", ({"n": n} for n in range(runs - SINGLES)))
        count.append(runs - SINGLES)


async def drain(profiler: Profiler, app: Hourhand, url: str, runs: int) -> None:
    async with (
        product.workers(url, SCHEMA, profiler.sql, 1) as worker,
        profiler.watched("runs that do nothing, one worker process", worker.pid) as count,
    ):
        await app.queues.resume("default")
        left = f"SELECT EXISTS (SELECT FROM {SCHEMA}.ready) OR EXISTS (SELECT FROM {SCHEMA}.running)"
        while await profiler.sql.fetchval(left):
            await asyncio.sleep(0.02)
        count.append(runs)


async def fire(profiler: Profiler, app: Hourhand, url: str) -> None:
    """Nobody runs them: what is looked at is the scheduler."""
    await app.jobs.add_many({"name": f"own-{n}", "task": "nobody", "schedule": population.often(n)} for n in range(SCHEDULES))
    overdue = f"SELECT EXISTS (SELECT FROM {SCHEMA}.schedules WHERE next_run_at < clock_timestamp() - interval '1 second')"
    fired = f"SELECT count(*) FROM {SCHEMA}.ready WHERE job_id IS NOT NULL"
    async with firing.schedulers(url, SCHEMA, profiler.sql, 1) as (scheduler,):
        while await profiler.sql.fetchval(overdue):
            await asyncio.sleep(0.5)
        async with profiler.watched("firings, each job with a schedule of its own, one scheduler", scheduler.pid) as count:
            before = await profiler.sql.fetchval(fired)
            await asyncio.sleep(FIRING)
            count.append(await profiler.sql.fetchval(fired) - before)


async def show_queue_plans(url: str, sql: asyncpg.Connection, console: Console) -> None:
    """Claim and finish of 500 runs, as they are executed; undone afterwards."""
    lane = await sql.fetchval(f"SELECT {SCHEMA}.queue_number('default')") * 4 + 1
    node = await sql.fetchval(f"SELECT min(id) FROM {SCHEMA}.nodes WHERE died_at IS NULL")
    await sql.execute(
        f"INSERT INTO {SCHEMA}.ready (seq, run_id, scheduled_at, lane, task, payload)"
        f" SELECT n, n, now(), {lane}, 'nobody', '{{}}' FROM generate_series(10000000, 10099999) AS n"
    )
    async with undone(url) as link:
        await show_plan(console, link, "claim", [lane], [10_000_000], [PLANNED], node, 1)
        rows = await link.fetch(f"SELECT run_id, token FROM {SCHEMA}.running WHERE worker_id = $1 AND run_id >= 10000000", node)
        stamps = [time.time()] * len(rows)
        await show_plan(console, link, "finish_plain", node, [row[0] for row in rows], [row[1] for row in rows], stamps, stamps)


async def show_firing_plan(url: str, sql: asyncpg.Connection, console: Console) -> None:
    """Firing 500 schedules, as it is executed; undone afterwards."""
    due = f"SELECT id, next_run_at, revision FROM {SCHEMA}.schedules WHERE next_run_at <= clock_timestamp() LIMIT {PLANNED}"
    while len(rows := await sql.fetch(due)) < PLANNED:
        await asyncio.sleep(0.1)
    node = await sql.fetchval(f"SELECT max(id) FROM {SCHEMA}.nodes WHERE kind = 'scheduler'")
    await sql.execute(f"UPDATE {SCHEMA}.shards SET owner = $1", node)
    shards = await sql.fetch(f"SELECT shard, epoch FROM {SCHEMA}.shards")
    async with undone(url) as link:
        await show_plan(
            console, link, "fire", node, [row[0] for row in shards], [row[1] for row in shards],
            [row[0] for row in rows], [row[1] for row in rows], [row[1] + timedelta(days=1) for row in rows], [row[2] for row in rows],
        )  # fmt: skip


@asynccontextmanager
async def undone(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection that plans as the product's do, and whose work is undone."""
    link = await asyncpg.connect(url, server_settings=PLANNER)
    transaction = link.transaction()
    await transaction.start()
    try:
        yield link
    finally:
        await transaction.rollback()
        await link.close()


async def show_plan(console: Console, link: asyncpg.Connection, name: str, *arguments: object) -> None:
    plan = await link.fetch(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, SUMMARY) {load(SCHEMA)[name]}", *arguments)
    console.print(f"[bold]{name} {PLANNED}[/]", *(row[0] for row in plan), "", sep="\n", highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.profile", description=__doc__)
    parser.add_argument("--runs", type=int, default=400_000, help="runs that are enqueued and drained (default: 400,000)")
    options = parser.parse_args()
    observe.begin()
    console = Console(width=None if sys.stdout.isatty() else 150)
    with observe.scratch("profile") as directory:
        programs = with_statements()
        settings = {"shared_preload_libraries": "pg_stat_statements"} if programs else {}
        with servers.postgresql(directory, programs, **settings) as server:
            console.print(
                f"PostgreSQL {server.version}" + ("" if programs else "; without pg_stat_statements, which the wheel has not")
            )
            asyncio.run(profile(server.url + "/postgres", server.postmaster, options.runs, directory, console))


if __name__ == "__main__":
    main()
