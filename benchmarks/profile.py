"""`make bench-profile`: where each microsecond of a run goes, in PostgreSQL and in Python; and the plans of the statements."""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
from rich.console import Console
from rich.table import Table

from benchmarks import observe, product, servers
from hourhand import Hourhand
from hourhand.storage.database import PLANNER
from hourhand.storage.migrate import migrate
from hourhand.storage.statements import load

SCHEMA = "hourhand"
PARTS = (
    ("waiting for PostgreSQL, or for a run", r"select|epoll|run_forever"),
    ("asyncpg: sending and reading rows", r"asyncpg/|storage/database"),
    ("the handler and what is around it", r"benchmarks/|engine/(executor|caller|settler)|core/(context|payload|task|tracing)"),
    ("claiming", r"engine/(claimer|stealer|admitter)|storage/queue|core/(fairness|marks)"),
    ("completing", r"engine/completer|storage/nodes"),
    ("statistics and metrics", r"engine/(measures|bulletin)|core/histogram"),
    ("asyncio", r"asyncio/"),
)
"""The innermost frame that one of these knows decides; the first pattern is of whole stacks that wait."""


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


async def profile(url: str, postmaster: int, runs: int, scratch: Path, console: Console) -> None:
    sql = await asyncpg.connect(url)
    await migrate(sql, SCHEMA)
    counted = bool(await sql.fetchval("SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_stat_statements'"))
    if counted:
        await sql.execute("CREATE EXTENSION pg_stat_statements SCHEMA public")
    async with Hourhand(url, schema=SCHEMA) as app, AsyncExitStack() as stack:
        await app.queues.pause("default")
        await app.enqueue_many("noop", ({"n": n} for n in range(runs)))
        worker = await stack.enter_async_context(product.workers(url, SCHEMA, sql, 1))
        if counted:
            await sql.execute("SELECT public.pg_stat_statements_reset()")
        what = ("record", "--pid", str(worker.pid), "--rate", "500", "--duration", "60", "--nonblocking", "--threads")
        where = ("--format", "raw", "--output", str(scratch / "stacks"))
        spy = subprocess.Popen(
            [Path(sys.executable).with_name("py-spy"), *what, *where], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        await asyncio.sleep(1)
        used = observe.processor_seconds([postmaster]), observe.processor_seconds([worker.pid])
        began = time.perf_counter()
        await app.queues.resume("default")
        while await sql.fetchval(f"SELECT EXISTS (SELECT FROM {SCHEMA}.ready) OR EXISTS (SELECT FROM {SCHEMA}.running)"):
            await asyncio.sleep(0.02)
        seconds = time.perf_counter() - began
        server, python = observe.processor_seconds([postmaster]) - used[0], observe.processor_seconds([worker.pid]) - used[1]
        spy.send_signal(2)
        spy.wait(20)
        console.print(
            f"{runs:,} runs that do nothing, one worker process: {runs / seconds:,.0f} a second;"
            f" for each {1e6 * seconds / runs:.1f} µs, of which PostgreSQL computes {1e6 * server / runs:.1f} and Python {1e6 * python / runs:.1f}\n"
        )
        told = shares((scratch / "stacks").read_text())
        working = {name: many for name, many in told.items() if name != PARTS[0][0]}
        table = Table("Python", "share of what it computes", "µs a run", box=None)
        for name, many in sorted(working.items(), key=lambda one: -one[1]):
            share = many / sum(working.values())
            table.add_row(name, f"{share:.0%}", f"{1e6 * python / runs * share:.1f}")
        console.print(table, "")
        if counted:
            await show_statements(sql, runs, console)
        await show_plans(url, sql, console)
    await sql.close()


async def show_statements(sql: asyncpg.Connection, runs: int, console: Console) -> None:
    rows = await sql.fetch(
        "SELECT left(regexp_replace(query, '\\s+', ' ', 'g'), 60) AS query, calls, rows, mean_exec_time, total_exec_time, wal_bytes"
        " FROM public.pg_stat_statements ORDER BY total_exec_time DESC LIMIT 8"
    )
    table = Table("statement", "calls", "rows a call", "ms a call", "µs a run", "WAL bytes a run", box=None)
    for row in rows:
        table.add_row(
            row["query"], f"{row['calls']:,}", f"{row['rows'] / row['calls']:,.0f}", f"{row['mean_exec_time']:.2f}",
            f"{1000 * row['total_exec_time'] / runs:.2f}", f"{row['wal_bytes'] / runs:,.0f}",
        )  # fmt: skip
    console.print(table, "")


async def show_plans(url: str, sql: asyncpg.Connection, console: Console) -> None:
    """Claim and finish of 500 runs, as they are executed; undone afterwards."""
    statements = load(SCHEMA)
    link = await asyncpg.connect(url, server_settings=PLANNER)
    lane = await sql.fetchval(f"SELECT {SCHEMA}.queue_number('default')") * 4 + 1
    node = await sql.fetchval(f"SELECT min(id) FROM {SCHEMA}.nodes WHERE died_at IS NULL")
    await sql.execute(
        f"INSERT INTO {SCHEMA}.ready (seq, run_id, scheduled_at, lane, task, payload)"
        f" SELECT n, n, now(), {lane}, 'nobody', '{{}}' FROM generate_series(10000000, 10099999) AS n"
    )
    async with link.transaction():
        claimed = await link.fetch(
            f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, SUMMARY) {statements['claim']}", [lane], [10_000_000], [500], node, 1
        )
        rows = await link.fetch(f"SELECT run_id, token FROM {SCHEMA}.running WHERE worker_id = $1 AND run_id >= 10000000", node)
        ids, tokens, stamps = [row[0] for row in rows], [row[1] for row in rows], [time.time()] * len(rows)
        finished = await link.fetch(
            f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, SUMMARY) {statements['finish']}",
            node,
            ids,
            tokens,
            stamps,
            stamps,
            None,
            None,
            None,
            None,
            None,
        )
    for name, plan in (("claim of 500", claimed), ("finish of 500", finished)):
        console.print(f"[bold]{name}[/]", *(row[0] for row in plan), "", sep="\n", highlight=False)
    await link.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.profile", description=__doc__)
    parser.add_argument("--runs", type=int, default=400_000, help="runs that are drained (default: 400,000)")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 150)
    with tempfile.TemporaryDirectory(prefix="hourhand-profile-") as directory:
        Path(directory).chmod(0o755)
        programs = with_statements()
        settings = {"shared_preload_libraries": "pg_stat_statements"} if programs else {}
        with servers.postgresql(Path(directory), programs, **settings) as server:
            console.print(
                f"PostgreSQL {server.version}" + ("" if programs else "; without pg_stat_statements, which the wheel has not")
            )
            asyncio.run(profile(server.url + "/postgres", server.postmaster, options.runs, Path(directory), console))


if __name__ == "__main__":
    main()
