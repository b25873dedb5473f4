"""`make bench`: the machine's own limit, then the product, and their ratio."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit, urlunsplit

import asyncpg
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import api, dashboard, firing, limits, observe, product, ruled, stealing
from hourhand import Hourhand
from hourhand.storage.embedded import EmbeddedServer
from hourhand.storage.migrate import migrate

SCHEMA = "hourhand_bench"
API_RATE = 1_500
STEPS = (
    "drains", "batches", "enqueues", "latency", "idle", "memory", "stealing", "shared", "distinct", "hot_second", "steady", "history",
    "api", "dashboard", "blocked", "urgent",
)  # fmt: skip
console = Console(stderr=True)


@dataclass
class Figure:
    metric: str
    value: float
    unit: str
    limit: float | None = None
    ratio: float | None = None
    target: str = ""
    reached: bool = True


class Bench:
    def __init__(self, url: str, options: argparse.Namespace, figures: list[Figure], progress: Progress) -> None:
        self.url, self.runs, self.rounds, self.jobs, self.only = url, options.runs, options.rounds, options.jobs, options.only
        self.figures, self.progress = figures, progress
        self._json: TextIO | None = options.json and options.json.open("w")
        self.keep({**observe.stamp(), "machine": observe.machine()})

    def keep(self, line: dict[str, Any]) -> None:
        """As it comes, so that a run that is cut off has kept what it had."""
        if self._json:
            print(json.dumps(line), file=self._json, flush=True)

    def add(self, metric: str, value: float, unit: str, target: str, reached: bool, limit: float | None = None) -> None:
        ratio = None if limit is None else round(value / limit, 3)
        figure = Figure(metric, round(value, 3), unit, limit and round(limit, 3), ratio, target, reached)
        self.figures.append(figure)
        self.keep(asdict(figure))

    async def run(self) -> None:
        self.sql = await asyncpg.connect(self.url)
        await self.fresh()
        task = self.progress.add_task("", total=len(self.only))
        for step in STEPS:
            if step in self.only:
                self.progress.update(task, description=f"measuring {step}")
                await getattr(self, step)()
                self.progress.advance(task)
        await self.sql.execute(f"DROP SCHEMA {SCHEMA} CASCADE")
        await self.sql.close()

    async def fresh(self) -> None:
        await self.sql.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        await migrate(self.sql, SCHEMA)
        self.lane = await self.sql.fetchval(f"SELECT {SCHEMA}.queue_number('default')") * 4 + 1

    def app(self) -> Hourhand:
        return Hourhand(self.url, schema=SCHEMA)

    async def api(self) -> None:
        """POST /api/v1/runs: as many as are answered, then at half of what is to be reached."""
        await self.fresh()
        with api.Server(self.url, SCHEMA) as server:
            await asyncio.to_thread(server.load, 0.0, 3.0)
            most = [await asyncio.to_thread(server.load, 0.0, 10.0) for _ in range(self.rounds)]
            half = [await asyncio.to_thread(server.load, API_RATE / 2, 10.0) for _ in range(self.rounds)]
        refused = sum(one.refused for one in [*most, *half])
        rate, slow = statistics.median(one.rate for one in most), statistics.median(one.p99 for one in half)
        self.add("POST /runs, one server process", rate, "runs/s", f">= {API_RATE:,}/s", rate >= API_RATE and not refused)
        self.add(f"POST /runs at {API_RATE // 2}/s, p50", statistics.median(one.p50 for one in half), "ms", "", True)
        self.add(f"POST /runs at {API_RATE // 2}/s, p99", slow, "ms", "< 50 ms", slow < 50 and not refused)

    async def drains(self) -> None:
        """Limit and product take turns, each on fresh tables; medians."""
        measured: dict[str, list[float]] = {"limit": [], "one": [], "two": []}
        for _ in range(self.rounds):
            await self.fresh()
            await limits.copy_limit(self.url, SCHEMA, self.lane, self.runs)
            measured["limit"].append(await limits.drain_limit(self.url, SCHEMA, self.lane, self.runs))
            for name, processes in (("one", 1), ("two", 2)):
                await self.fresh()
                async with self.app() as app:
                    measured[name].append(await product.drain(app, self.url, SCHEMA, self.sql, self.runs, processes))
        limit, one, two = (statistics.median(values) for values in measured.values())
        self.add("drain, one worker process", one, "runs/s", "0.5 of the limit", one >= 0.5 * limit, limit)
        # Two processes share the cores with the database and with each other: within noise is not slower.
        slower = two < 0.95 * one
        self.add("drain, two worker processes", two, "runs/s", "the same, not slower", two >= 0.5 * limit and not slower, limit)

    async def blocked(self) -> None:
        """Plain runs alone, and beside 100,000 that wait behind a limit; in turns."""
        measured: dict[str, list[float]] = {"alone": [], "narrow": [], "keyed": []}
        for _ in range(self.rounds):
            for name in measured:
                await self.fresh()
                async with self.app() as app:
                    waiting = 0 if name == "alone" else 100_000
                    rate = await ruled.drain_beside(app, self.url, SCHEMA, self.sql, self.runs // 2, waiting, name)
                    measured[name].append(rate)
        alone, narrow, keyed = (statistics.median(values) for values in measured.values())
        self.add("drain beside 100,000 behind a queue's limit", narrow, "runs/s", "0.8 of alone", narrow >= 0.8 * alone, alone)
        self.add("drain beside 100,000 behind a key's limit", keyed, "runs/s", "0.8 of alone", keyed >= 0.8 * alone, alone)
        await self.fresh()
        async with self.app() as app:
            self.add(
                "runs with a limit for each of 1,000 keys",
                await ruled.admitted(app, self.url, SCHEMA, self.sql, 20_000),
                "runs/s",
                "",
                True,
            )

    async def urgent(self) -> None:
        await self.fresh()
        async with self.app() as app:
            values = await ruled.urgent(app, self.url, SCHEMA, self.sql, 50)
        worst = product.percentile(values, 0.99)
        self.add("urgent behind 100,000 others, to start, p50", product.percentile(values, 0.5), "ms", "", True)
        self.add("urgent behind 100,000 others, to start, p99", worst, "ms", "under 50 ms", worst < 50)

    async def batches(self) -> None:
        """A handler that writes a row for each run, and one that writes a hundred with one statement."""
        measured: dict[str, list[float]] = {"write": [], "write_many": []}
        for _ in range(self.rounds):
            for task, rates in measured.items():
                await self.fresh()
                await self.sql.execute(f"CREATE TABLE {SCHEMA}.written (n int)")
                async with self.app() as app:
                    rates.append(await product.drain(app, self.url, SCHEMA, self.sql, self.runs // 4, 1, task))
        single, batches = (statistics.median(values) for values in measured.values())
        self.add("a row for each run, one by one", single, "runs/s", "", True)
        self.add("a row for each run, batches of 100", batches, "runs/s", "twice as many", batches >= 2 * single)

    async def enqueues(self) -> None:
        many: dict[str, list[float]] = {"limit": [], "product": []}
        single: dict[str, list[float]] = {"limit": [], "product": []}
        async with self.app() as app:
            for _ in range(self.rounds):
                await self.sql.execute(f"TRUNCATE {SCHEMA}.ready")
                many["limit"].append(await limits.copy_limit(self.url, SCHEMA, self.lane, 100_000))
                await self.sql.execute(f"TRUNCATE {SCHEMA}.ready")
                many["product"].append(await product.enqueue_many(app, 100_000))
                single["limit"].append(await limits.insert_limit(self.url, SCHEMA, self.lane, 2_000))
                single["product"].append(await product.enqueue_single(app, 2_000))
        limit, value = (statistics.median(values) for values in many.values())
        self.add("enqueue_many of 100,000", value, "runs/s", "0.4 of COPY", value >= 0.4 * limit, limit)
        limit, value = (statistics.median(values) for values in single.values())
        self.add("enqueue, one at a time", value, "runs/s", "0.8 of a single insert", value >= 0.8 * limit, limit)

    async def latency(self) -> None:
        await self.fresh()
        async with self.app() as app:
            values = await product.latencies(app, self.url, SCHEMA, self.sql, 500)
        middle, worst = product.percentile(values, 0.5), product.percentile(values, 0.99)
        self.add("enqueue to start, p50", middle, "ms", "under 3 ms", middle < 3)
        self.add("enqueue to start, p99", worst, "ms", "under 12 ms", worst < 12)

    async def idle(self) -> None:
        # In a database of its own, so that nothing but these workers is counted. Who is alone has the fleet's duties too.
        await self.sql.execute(f"DROP DATABASE IF EXISTS {SCHEMA}")
        await self.sql.execute(f"CREATE DATABASE {SCHEMA}")
        url = urlunsplit(urlsplit(self.url)._replace(path=f"/{SCHEMA}"))
        # Nothing may be left to do for autovacuum, whose transactions would be counted too: two dozen after a migration, most of
        # them on the catalogues. It hears of what a connection has changed when that one closes.
        for command in (None, "VACUUM ANALYZE", "VACUUM pg_catalog.pg_statistic"):
            quiet = await asyncpg.connect(url)
            await (migrate(quiet, SCHEMA) if command is None else quiet.execute(command))
            await quiet.close()
        quiet = await asyncpg.connect(url)
        none, one, two, four = [
            await product.idle_statements(url, SCHEMA, quiet, self.sql, processes, 60) for processes in (0, 1, 2, 4)
        ]
        await quiet.close()
        await self.sql.execute(f"DROP DATABASE {SCHEMA}")
        self.add("statements of an idle worker, alone", one - none, "1/s", "under 2", one - none < 2)
        self.add("statements of a second one", two - one, "1/s", "", True)
        self.add("statements of each further one", (four - two) / 2, "1/s", "", True)

    async def memory(self) -> None:
        await self.fresh()
        async with self.app() as app:
            used = await product.pending_memory(app, self.url, SCHEMA, self.sql, 100_000)
        self.add("memory of a worker, 100,000 pending", used, "MiB", "under 150", used < 150)

    async def stealing(self) -> None:
        """Skewed runs over four workers, with and without what moves them from one to another, in turns; medians."""
        for order, lengths in stealing.orders().items():
            ratios: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(self.rounds):
                for on, values in ratios.items():
                    await self.fresh()
                    async with self.app() as app:
                        seconds = await stealing.makespan(app, self.url, SCHEMA, self.sql, lengths, stealing=on)
                    values.append(seconds / stealing.ideal(lengths))
            without, value = (statistics.median(values) for values in ratios.values())
            self.add(f"400 skewed runs, {order}, without stealing", without, "of ideal", "", True)
            self.add(f"400 skewed runs, {order}", value, "of ideal", "under 1.15", value < 1.15)
        await self.fresh()
        async with self.app() as app:
            waits = await stealing.handovers(app, self.url, SCHEMA, self.sql, 60)
        worst = product.percentile(waits, 0.99)
        self.add("idle to the start of a stolen run, p50", product.percentile(waits, 0.5), "ms", "", True)
        self.add("idle to the start of a stolen run, p99", worst, "ms", "under 100 ms", worst < 100)

    async def shared(self) -> None:
        """A million jobs on ten schedules: one schedule's jobs, fired; and as plain SQL."""
        await self.fresh()
        measured: dict[str, list[float]] = {"limit": [], "product": []}
        async with self.app() as app:
            seconds = await firing.register(app, firing.shared_jobs(self.jobs))
            self.add(f"register {self.jobs:,} jobs, ten schedules", seconds, "s", "under 60 s", seconds < 60)
            await self.sql.execute(f"VACUUM ANALYZE {SCHEMA}.jobs")
            await self.sql.execute(f"VACUUM ANALYZE {SCHEMA}.schedules")
            async with firing.one_scheduler(app) as scheduler:
                for turn in range(self.rounds * 2):
                    due = await firing.make_due(self.sql, SCHEMA, f"expression = '{turn} 3 * * *'", 256)
                    if turn % 2:
                        measured["limit"].append(await firing.shared_limit(self.url, SCHEMA, due))
                    else:
                        seconds = await firing.fire(scheduler, due)
                        fired = await self.sql.fetchval(f"SELECT count(*) FROM {SCHEMA}.ready")
                        assert fired == self.jobs // firing.SHARED, f"{fired} runs"
                        measured["product"].append(fired / seconds)
                    await self.sql.execute(f"TRUNCATE {SCHEMA}.ready")
        limit, value = (statistics.median(values) for values in measured.values())
        self.add("firing shared schedules", value, "runs/s", "0.5 of INSERT … SELECT", value >= 0.5 * limit, limit)

    async def distinct(self) -> None:
        """A million jobs, each with a schedule of its own."""
        await self.fresh()
        measured: dict[str, list[float]] = {"limit": [], "product": []}
        many = min(40_000, self.jobs // (2 * self.rounds))
        async with self.app() as app:
            seconds = await firing.register(app, firing.distinct_jobs(self.jobs))
            self.add(f"register {self.jobs:,} jobs, as many schedules", seconds, "s", "", True)
            await self.sql.execute(f"VACUUM ANALYZE {SCHEMA}.jobs")
            await self.sql.execute(f"VACUUM ANALYZE {SCHEMA}.schedules")
            async with firing.one_scheduler(app) as scheduler:
                for turn in range(self.rounds * 2):
                    due = await firing.make_due(self.sql, SCHEMA, f"id > {turn * many}", many)
                    if turn % 2:
                        measured["limit"].append(await firing.distinct_limit(self.url, SCHEMA, due))
                    else:
                        seconds = await firing.fire(scheduler, due)
                        fired = await self.sql.fetchval(f"SELECT count(*) FROM {SCHEMA}.ready")
                        # One whose own time comes in these very seconds fires for that as well.
                        assert fired >= len(due), f"{fired} runs of {len(due)}"
                        measured["product"].append(fired / seconds)
                    await self.sql.execute(f"TRUNCATE {SCHEMA}.ready")
        limit, value = (statistics.median(values) for values in measured.values())
        self.add("firing distinct schedules", value, "runs/s", "0.5 of the same in plain SQL", value >= 0.5 * limit, limit)
        seconds, used = await firing.start_up(self.url, SCHEMA, self.sql)
        self.add(f"scheduler, start to first firing, {self.jobs:,} jobs", seconds, "s", "under 5 s", seconds < 5)
        self.add(f"scheduler, memory, {self.jobs:,} jobs", used, "MiB", "under 250", used < 250)

    async def hot_second(self) -> None:
        await self.fresh()
        async with self.app() as app:
            last = await firing.hot_second(app, self.url, SCHEMA, self.sql, 100_000)
        self.add("100,000 jobs due in one second, the last one", last, "s", "within 3 s, each once", last < 3)

    async def steady(self) -> None:
        await self.fresh()
        async with self.app() as app:
            late, fired = await firing.steady(app, self.url, SCHEMA, self.sql, 1_000, 60)
        self.add("1,000 firings/s for 60 s, lateness p99", late, "s", "under 1 s", late < 1 and fired == 60_000)

    async def history(self) -> None:
        await self.fresh()
        async with self.app() as app:
            await app.jobs.add_many(firing.shared_jobs(20_000))
            value = await firing.history(app, self.sql, SCHEMA, 10 * self.jobs)
        self.add(f"a job's last 20 runs, {10 * self.jobs:,} in history", value, "ms", "under 5 ms", value < 5)

    async def dashboard(self) -> None:
        """Every page with a million jobs and ten million rows of history; and the forecast of the day."""
        for kind, made in (("distinct", firing.distinct_jobs), ("shared", firing.shared_jobs)):
            await self.fresh()
            async with self.app() as app:
                await firing.register(app, made(self.jobs))
                seconds = await dashboard.forecast(app)
            self.add(f"forecast of {self.jobs:,} jobs, {kind} schedules", seconds, "s", "under 10 s", seconds < 10)
        await dashboard.furnish(self.sql, SCHEMA, self.jobs)
        paths = await dashboard.pages(self.sql, SCHEMA, self.jobs)
        with api.Server(self.url, SCHEMA) as server:
            for path in paths:
                one = await asyncio.to_thread(dashboard.ask, server, path)
                self.add(
                    f"page {one.path}",
                    one.median,
                    f"ms, worst {one.worst:.0f}",
                    "under 100 ms",
                    one.status == 200 and one.median < 100,
                )


def show(figures: list[Figure], server: str) -> None:
    table = Table("figure", "value", "unit", "plain SQL", "ratio", "target", "", title=f"Hourhand on {server}", box=None)
    for one in figures:
        number = f"{one.value:,.0f}" if one.value >= 100 else f"{one.value:.2f}"
        limit = "" if one.limit is None else f"{one.limit:,.0f}"
        ratio = "" if one.ratio is None else f"{one.ratio:.2f}"
        table.add_row(one.metric, number, one.unit, limit, ratio, one.target, "[green]ok[/]" if one.reached else "[red]missed[/]")
    Console(width=130 if not sys.stdout.isatty() else None).print(table)


async def bench(url: str, options: argparse.Namespace) -> bool:
    """Shows the figures, those of a run that is cut off too, and returns whether all of them will do."""
    connection = await asyncpg.connect(url)
    version = await connection.fetchval("SHOW server_version")
    fsync = await connection.fetchval("SHOW fsync")
    await connection.close()
    columns = (SpinnerColumn(), TextColumn("{task.description}, {task.completed} of {task.total} done"), TimeElapsedColumn())
    figures: list[Figure] = []
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            await Bench(url, options, figures, progress).run()
    finally:
        show(figures, f"PostgreSQL {version}, fsync {fsync}, {os.cpu_count()} cores")
    return all(one.reached for one in figures)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.run", description=__doc__)
    parser.add_argument(
        "--json", type=Path, help="also write them here as they come: a line about commit and machine, then one for each figure"
    )
    parser.add_argument(
        "--runs", type=observe.at_least(1_000), default=200_000, help="preloaded runs for the drain (default: 200,000)"
    )
    parser.add_argument("--rounds", type=observe.at_least(1), default=3, help="rounds of which the median counts (default: 3)")
    parser.add_argument("--jobs", type=observe.at_least(1_000), default=1_000_000, help="registered jobs (default: 1,000,000)")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=STEPS, metavar="STEP", help=f"of {', '.join(STEPS)}")
    parser.add_argument(
        "--database-url",
        help=f"a server to be loaded, with a schema and a database {SCHEMA} of ours (default: a fresh embedded one)",
    )
    options = parser.parse_args()
    if options.json and not options.json.absolute().parent.is_dir():
        parser.error(f"--json {options.json}: there is no such folder")
    observe.begin()
    if options.database_url:
        reached = asyncio.run(bench(options.database_url, options))
    else:
        with observe.scratch("bench") as directory, EmbeddedServer(directory / "data") as url:
            reached = asyncio.run(bench(url, options))
    if not reached:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
