"""`make bench-capacity`: what a cluster is planned for, on one machine: ten million jobs, 2,800 firings a second, half a million
due in one second, of one schedule and then each of its own; two schedulers, two workers and PostgreSQL."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import observe, population, servers
from benchmarks.observe import PROJECT
from benchmarks.product import environment, stop
from hourhand import Hourhand
from hourhand.storage.migrate import migrate

SCHEMA = "hourhand"
FIRINGS = 2_800 / 10_000_000
"""A second, of each job: what the steady load must reach."""
PART = 250_000
PATIENCE = 900.0
"""Seconds for catching up, and for the last outcomes of a phase: who takes longer has got stuck."""
OVERDUE = (
    "EXISTS (SELECT FROM generate_series(0, 255) AS mine CROSS JOIN LATERAL"
    f" (SELECT FROM {SCHEMA}.schedules WHERE shard = mine AND next_run_at < {{}} ORDER BY next_run_at LIMIT 1) AS due)"
)
"""Whether some schedule should have fired before an instant; by its index, as there are millions."""


class Capacity:
    def __init__(self, url: str, postmaster: int, options: argparse.Namespace, progress: Progress) -> None:
        self.url, self.postmaster, self.options, self.progress = url, postmaster, options, progress
        self.told: list[tuple[str, str, str]] = []
        self.figures: dict[str, Any] = {}
        self.missed = False

    def say(self, what: str, value: str, reached: bool | None = None, **figures: float) -> None:
        verdict = "" if reached is None else "[green]ok[/]" if reached else "[red]missed[/]"
        self.told.append((what, value, verdict))
        self.missed |= reached is False
        self.progress.console.print(f"{what}: {value} {verdict}")
        self.keep(**figures)

    def keep(self, **figures: Any) -> None:
        self.figures.update(figures)
        if self.options.json:
            observe.so_far(self.options.json).write_text(json.dumps(self.figures, indent=1) + "\n")

    def stage(self, description: str, total: float | None = None) -> TaskID:
        for task in self.progress.tasks:
            self.progress.update(task.id, visible=False)
        return self.progress.add_task(description, total=total)

    async def run(self) -> None:
        self.sql = await asyncpg.connect(self.url)
        await migrate(self.sql, SCHEMA)
        async with Hourhand(self.url, schema=SCHEMA) as app:
            await self.register(app)
            async with AsyncExitStack() as stack:
                self.schedulers = [self.start("scheduler", stack) for _ in range(2)]
                self.workers = [self.start("worker", stack, "--app", "benchmarks.jobs:app") for _ in range(2)]
                await self.catch_up()
                begin = await self.steady()
                await self.hot_second(app, "hot", "of one schedule")
                end = await self.hot_second(app, "own", "each of a schedule of its own")
                for number, process in enumerate(self.schedulers, 1):
                    memory = observe.resident(process.pid)
                    self.say(f"memory of scheduler {number}", f"{memory:,.0f} MiB", memory < 300, **{f"memory_{number}": memory})
                await self.ledger(begin, end)
        await self.sql.close()

    def start(self, kind: str, stack: AsyncExitStack, *words: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "hourhand", kind, "--log-level", "error", *words],
            cwd=PROJECT,
            env=environment(self.url, SCHEMA),
        )
        stack.callback(stop, process)
        return process

    async def register(self, app: Hourhand) -> None:
        count = self.options.jobs
        task = self.stage(f"registering {count:,} jobs", count)
        began = time.perf_counter()
        for first in range(0, count, PART):
            await app.jobs.add_many(
                population.jobs(first, min(first + PART, count)), progress=lambda many: self.progress.advance(task, many)
            )
        seconds = time.perf_counter() - began
        self.registering = count / seconds
        self.say(f"registered {count:,} jobs", f"in {seconds:,.0f} s", registering=seconds)
        self.stage("vacuum and analyze, as autovacuum would in time")
        await self.sql.execute(f"VACUUM ANALYZE {SCHEMA}.jobs")
        await self.sql.execute(f"VACUUM ANALYZE {SCHEMA}.schedules")
        before = await observe.tables(self.sql, SCHEMA)
        store = (before["jobs"].mebibytes + before["schedules"].mebibytes) / 1024
        rows = await self.sql.fetchval(f"SELECT count(*) FROM {SCHEMA}.schedules")
        self.say("schedule store", f"{store:.2f} GiB, {rows:,} schedules", store < 6 * 1e9 / 2**30, store=store, schedules=rows)

    async def catch_up(self) -> None:
        """Nobody fired while the jobs were registered, as after an outage: what was missed is made up for, once each."""
        self.stage("starting the fleet, and catching up")
        began, first = time.perf_counter(), None
        started = await self.sql.fetchval("SELECT clock_timestamp()")
        quiet = 0
        while quiet < 20:
            self.working(began)
            row = await self.sql.fetchrow(
                f"SELECT EXISTS (SELECT FROM {SCHEMA}.firings) AS fired,"
                f" {OVERDUE.format('now() - make_interval(secs => 2)')} OR"
                f" (SELECT count(*) FROM (SELECT FROM {SCHEMA}.ready LIMIT 20000) AS first_ones) = 20000 AS busy"
            )
            assert row is not None
            if first is None and row["fired"]:
                first = time.perf_counter() - began
            quiet = 0 if row["busy"] or first is None else quiet + 1
            await asyncio.sleep(0.1 if first is None else 0.5)
        seconds = time.perf_counter() - began - 10
        runs = await self.sql.fetchval(f"SELECT count(*) FROM {SCHEMA}.runs WHERE scheduled_at < $1", started)
        assert first is not None
        self.say("two schedulers, start to first firing", f"{first:.1f} s", starting=first)
        self.say(
            "catching up", f"{runs:,} runs that were missed meanwhile, in {seconds:,.0f} s", caught_up=runs, catching_up=seconds
        )

    async def pass_time(self, until: datetime, description: str) -> None:
        begin = datetime.now(UTC)
        task = self.stage(description, (until - begin).total_seconds())
        while (now := datetime.now(UTC)) < until:
            if (now - begin).seconds % 5 == 0:
                waiting = await self.sql.fetchval(f"SELECT count(*) FROM {SCHEMA}.ready")
                self.progress.update(task, description=f"{description}: {waiting:,} waiting")
            self.progress.update(task, completed=(now - begin).total_seconds())
            self.working()
            await asyncio.sleep(1)

    def working(self, since: float | None = None) -> None:
        """Or there is nothing to wait for."""
        for process in (*self.schedulers, *self.workers):
            if process.poll() is not None:
                raise observe.cut_off("a process of the fleet ended", self.options.json)
        if since is not None and time.perf_counter() - since > PATIENCE:
            raise observe.cut_off(f"it took longer than {PATIENCE:,.0f} s", self.options.json)

    async def settled(self, end: datetime) -> None:
        """Everything that was due before `end` has an outcome."""
        self.stage("waiting for the last outcomes")
        began = time.perf_counter()
        # In the order of their way: what has left one place is looked for in the next.
        left = [
            OVERDUE.format("$1"),
            *(f"EXISTS (SELECT FROM {SCHEMA}.{table} WHERE scheduled_at < $1)" for table in ("ready", "running")),
        ]
        for question in left:
            while await self.sql.fetchval(f"SELECT {question}", end):
                self.working(began)
                await asyncio.sleep(0.2)

    async def steady(self) -> datetime:
        """Returns when it began."""
        begin = (datetime.now(UTC) + timedelta(seconds=5)).replace(microsecond=0)
        end = begin + timedelta(seconds=self.options.steady)
        await self.pass_time(begin, "steady load")
        before = await observe.tables(self.sql, SCHEMA)
        python = [one.pid for one in (*self.schedulers, *self.workers)]
        theft = observe.Theft()
        used = {"PostgreSQL": observe.processor_seconds([self.postmaster]), "Python": observe.processor_seconds(python)}
        await self.pass_time(end, "steady load")
        for name, pids in (("PostgreSQL", [self.postmaster]), ("Python", python)):
            used[name] = (observe.processor_seconds(pids) - used[name]) / self.options.steady
        stolen, after = theft.share(), await observe.tables(self.sql, SCHEMA)
        await self.settled(end)
        enqueued, started = [
            await observe.lateness(self.sql, SCHEMA, column, begin, end) for column in ("enqueued_at", "started_at")
        ]
        rate = started.runs / self.options.steady
        planned = FIRINGS * self.options.jobs
        self.say("steady load", f"{rate:,.0f} firings/s for {self.options.steady} s", rate >= planned, rate=rate)
        self.say(
            "  lateness of enqueueing",
            str(enqueued),
            enqueue_p50=enqueued.p50,
            enqueue_p99=enqueued.p99,
            enqueue_max=enqueued.worst,
        )
        self.say(
            "  lateness of starting",
            str(started),
            started.p99 < 1,
            start_p50=started.p50,
            start_p99=started.p99,
            start_max=started.worst,
        )
        cores = ", ".join(f"{name} {seconds:.2f}" for name, seconds in used.items())
        self.say(f"  processor, of {os.cpu_count()} cores", f"{cores}; taken by the machine's host: {stolen:.1%} of all",
                 cpu_postgresql=used["PostgreSQL"], cpu_python=used["Python"], cpu_stolen=stolen)  # fmt: skip
        self.growth("steady", before, after)
        return begin

    def growth(self, phase: str, before: dict[str, observe.TableState], after: dict[str, observe.TableState]) -> None:
        table = Table("table", "MiB before", "after", "dead rows before", "after", box=None)
        for name in ("schedules", "jobs", "ready", "running", "runs", "firings"):
            old, new = before[name], after[name]
            table.add_row(name, f"{old.mebibytes:,.0f}", f"{new.mebibytes:,.0f}", f"{old.dead:,}", f"{new.dead:,}")
            self.keep(**{f"{phase}_{name}": [old.mebibytes, new.mebibytes, old.dead, new.dead]})
        self.progress.console.print(table)

    async def ledger(self, begin: datetime, end: datetime) -> None:
        """Every firing that the oracle expects, once, done, and no other; beside the hot seconds too, whose own are counted there.
        And the product's own account of them, its ledger, says the same."""
        task = self.stage("comparing with the oracle")
        owed = await asyncio.to_thread(population.expected, self.options.jobs, begin, end)
        # What belongs to no job, or to no schedule, is nobody's: it counts as unexpected.
        runs = await self.sql.fetch(
            f"SELECT s.expression, s.timezone, r.scheduled_at, count(*), count(DISTINCT r.job_id),"
            f" count(DISTINCT r.job_id) FILTER (WHERE r.outcome = 'succeeded') FROM {SCHEMA}.runs r"
            f" LEFT JOIN {SCHEMA}.jobs j ON j.id = r.job_id LEFT JOIN {SCHEMA}.schedules s ON s.id = j.schedule_id"
            " WHERE r.scheduled_at >= $1 AND r.scheduled_at < $2 AND (j.name LIKE 'job-%') IS NOT FALSE GROUP BY 1, 2, 3",
            begin, end,
        )  # fmt: skip
        ledger = await self.sql.fetch(
            f"SELECT s.expression, s.timezone, f.scheduled_at, sum(f.runs) FROM {SCHEMA}.firings f"
            f" LEFT JOIN {SCHEMA}.schedules s ON s.id = f.schedule_id WHERE f.scheduled_at >= $1 AND f.scheduled_at < $2"
            f" AND NOT EXISTS (SELECT FROM {SCHEMA}.jobs j WHERE j.schedule_id = f.schedule_id AND j.name NOT LIKE 'job-%')"
            " GROUP BY 1, 2, 3",
            begin, end,
        )  # fmt: skip
        made = {(row[0], row[1], row[2]): population.Made(*row[3:]) for row in runs}
        one = await asyncio.to_thread(population.account, owed, made, {(row[0], row[1], row[2]): row[3] for row in ledger})
        self.progress.remove_task(task)
        self.say(
            "firings against the oracle, from the steady load's beginning on",
            f"{one.expected:,} expected, {one.missed:,} missed, {one.doubled:,} doubled, {one.extra:,} unexpected;"
            f" instants of which the ledger tells something else: {one.disagreeing:,}",
            one.clean,
            **asdict(one),
        )

    async def hot_second(self, app: Hourhand, name: str, of: str) -> datetime:
        """Beside the steady load. Returns when it was over."""
        count = self.options.hot
        due = (datetime.now(UTC) + timedelta(seconds=30 + 4 * count / self.registering)).replace(microsecond=0)
        if not due.second:  # on a full hour it could be a schedule that others have, and be counted with theirs
            due += timedelta(seconds=1)
        task = self.stage(f"registering {count:,} jobs for one second, {of}", count)
        jobs = (
            {
                "name": f"{name}-{n}",
                "task": "noop",
                "schedule": population.at(due, 0 if name == "hot" else n),
                "payload": {"n": n},
            }
            for n in range(count)
        )
        await app.jobs.add_many(jobs, progress=lambda many: self.progress.advance(task, many))
        if datetime.now(UTC) >= due:
            raise observe.cut_off(f"registering {count:,} jobs took longer than until they were due", self.options.json)
        before = await observe.tables(self.sql, SCHEMA)
        await self.pass_time(due, f"{count:,} jobs will be due in one second, {of}")
        await self.settled(due + timedelta(seconds=1))
        recorded = (await self.sql.fetchval("SELECT clock_timestamp()") - due).total_seconds()
        row = await self.sql.fetchrow(
            "SELECT count(*) AS runs, count(DISTINCT r.job_id) FILTER (WHERE r.outcome = 'succeeded') AS jobs, max(extract(epoch FROM r.enqueued_at - $1))::float8 AS enqueued,"
            " max(extract(epoch FROM r.started_at - $1))::float8 AS started, max(extract(epoch FROM r.finished_at - $1))::float8 AS finished"
            f" FROM {SCHEMA}.runs r JOIN {SCHEMA}.jobs j ON j.id = r.job_id WHERE r.scheduled_at = $1 AND j.name LIKE $2",
            due, f"{name}-%",
        )  # fmt: skip
        if row is None or not row["runs"]:
            raise observe.cut_off(f"none of {count:,} jobs due in one second ran", self.options.json)
        self.say(
            f"{count:,} jobs due in one second, {of}",
            f"last enqueued after {row['enqueued']:.1f} s, started after {row['started']:.1f} s, finished after {row['finished']:.1f} s,"
            f" all recorded after {recorded:.1f} s",
            recorded < 25,
            **{f"{name}_{what}": row[what] for what in ("enqueued", "started", "finished")},
            **{f"{name}_recorded": recorded},
        )
        ledger = await self.sql.fetchval(
            f"SELECT coalesce(sum(f.runs), 0) FROM {SCHEMA}.firings f WHERE f.scheduled_at = $1"
            f" AND EXISTS (SELECT FROM {SCHEMA}.jobs j WHERE j.schedule_id = f.schedule_id AND j.name LIKE $2)",
            due, f"{name}-%",
        )  # fmt: skip
        self.say(
            "  of them",
            f"{row['runs']:,} runs of {row['jobs']:,} jobs; by the ledger {ledger:,}",
            row["runs"] == row["jobs"] == ledger == count,
            **{f"{name}_made": row["runs"], f"{name}_jobs_run": row["jobs"], f"{name}_ledger": int(ledger)},
        )
        self.growth(name, before, await observe.tables(self.sql, SCHEMA))
        return due + timedelta(seconds=1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.capacity", description=__doc__)
    parser.add_argument(
        "--jobs", type=observe.at_least(1_000), default=10_000_000,
        help="registered jobs; each fires about once an hour (default: 10,000,000)",
    )  # fmt: skip
    parser.add_argument("--steady", type=observe.at_least(1), default=600, help="seconds of steady load (default: 600)")
    parser.add_argument("--hot", type=observe.at_least(1), default=500_000, help="jobs due in one second (default: 500,000)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    observe.check_published(parser, options.json)
    observe.begin()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn())
    with (
        observe.scratch("capacity", 4 + 16 * options.jobs / 10_000_000) as directory,
        servers.postgresql(directory) as server,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        bench = Capacity(server.url + "/postgres", server.postmaster, options, progress)
        load = {name: getattr(options, name) for name in ("jobs", "steady", "hot")}
        trees = observe.trees()
        bench.keep(**observe.stamp(), machine={**observe.machine(), "postgresql": server.version}, load=load)
        asyncio.run(bench.run())
    table = Table(
        "", "", "", title=f"Capacity: PostgreSQL {server.version}, everything on one machine", box=None, show_header=False
    )
    for row in bench.told:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 150).print(table)
    if options.json:
        observe.check_unchanged(trees, options.json)
        observe.so_far(options.json).replace(options.json)
    if bench.missed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
