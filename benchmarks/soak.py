"""`make bench-soak`: mixed load for half an hour, with a transaction that somebody holds open for a third of it. Throughput, claim
time and table size, over time; they must return to where they were."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import aiohttp
import asyncpg
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks import observe, product, servers
from hourhand import Hourhand
from hourhand.storage.migrate import migrate

SCHEMA = "hourhand"
HOT = ("ready", "delayed", "running", "parked")
EVERY = 5.0
"""Seconds between two looks."""
TICK = 0.05
SETTLED = 120.0
"""Seconds after the long transaction's end from which on all should be as before; and at the end, those that count for sizes."""
REACHED = 0.95
"""Of the planned load, what there is before the long transaction; the rest is how the samples fall."""
BESIDE = 0.6
"""Of its throughput, what is left beside the long transaction."""
BACK = 0.9
"""Of throughput and claim time, what they are back to within two minutes; of the tables' size, at the end."""


@dataclass
class Sample:
    at: float
    """Seconds since the load began."""
    asked: float
    """Runs that were asked for, a second."""
    done: float
    """Runs that got an outcome, a second."""
    claim: float
    """Milliseconds that a claim took, on average."""
    size: float
    """MiB of the tables that runs pass through, with their indexes."""
    dead: int
    held: bool
    sizes: dict[str, float] = field(default_factory=dict)
    """Of each table and each index."""


async def load(app: Hourhand, rate: int, asked: list[int], stop: asyncio.Event) -> None:
    """Of fifty runs 34 plain, seven delayed, seven that fail once, two cancelled."""
    rng, given, began = random.Random(7), 0.0, time.monotonic()
    while not stop.is_set():
        due = (time.monotonic() - began) * rate
        if due - given < rate * TICK:
            await asyncio.sleep(TICK / 2)
            continue
        part = int(due - given)
        given += part
        cancelled, delayed, flaky = part // 20, part * 3 // 20, part * 3 // 20
        await app.enqueue_many("noop", ({"n": n} for n in range(part - cancelled - delayed - flaky)))
        await app.enqueue_many("noop", ({"n": n} for n in range(delayed)), delay=rng.uniform(1, 30))
        await app.enqueue_many("flaky", ({"n": n} for n in range(flaky)))
        handles = await asyncio.gather(*(app.enqueue("noop", {"n": n}, delay=rng.uniform(1, 30)) for n in range(cancelled)))
        await asyncio.gather(*(app.runs.cancel(handle.id) for handle in handles))
        asked[0] += part


class Watch:
    def __init__(self, sql: asyncpg.Connection, ports: list[int], asked: list[int]) -> None:
        self._sql, self._ports, self._asked = sql, ports, asked
        self._began = self._last = time.monotonic()
        self._before = (0, 0, 0.0, 0.0)

    async def look(self, held: bool) -> Sample:
        seconds = claims = 0.0
        async with aiohttp.ClientSession() as session:
            for port in self._ports:
                async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                    text = await answer.text()
                seconds += _metric(text, "hourhand_database_round_trip_seconds_total", 'statement="claim"')
                claims += _metric(text, "hourhand_database_round_trips_total", 'statement="claim"')
        tables, sizes = await observe.tables(self._sql, SCHEMA), await observe.relations(self._sql, SCHEMA, HOT)
        done = tables["runs"].inserted
        now, present = time.monotonic(), (self._asked[0], done, seconds, claims)
        past, before = now - self._last, self._before
        self._last, self._before = now, present
        return Sample(
            at=now - self._began,
            asked=(present[0] - before[0]) / past,
            done=(done - before[1]) / past,
            claim=1000 * (seconds - before[2]) / max(1, claims - before[3]),
            size=sum(sizes.values()),
            dead=sum(tables[name].dead for name in HOT),
            held=held,
            sizes=sizes,
        )


def _metric(text: str, name: str, label: str) -> float:
    found = re.findall(rf"^{name}{{[^}}]*{re.escape(label)}[^}}]*}} (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


async def soak(url: str, options: argparse.Namespace, progress: Progress) -> list[Sample]:
    sql = await asyncpg.connect(url)
    await migrate(sql, SCHEMA)
    ports = [servers.free_port() for _ in range(2)]
    samples: list[Sample] = []
    held: asyncpg.Connection | None = None
    seconds, first, last = 60 * options.minutes, 60 * options.hold_from, 60 * (options.hold_from + options.hold)
    async with AsyncExitStack() as stack:
        fleet = [
            # Not a line for each of the runs that fail on purpose.
            await stack.enter_async_context(
                product.workers(url, SCHEMA, sql, 1, "--metrics-port", str(port), "--log-level", "error")
            )
            for port in ports
        ]
        app = await stack.enter_async_context(Hourhand(url, schema=SCHEMA))
        asked, stop = [0], asyncio.Event()
        watch = Watch(sql, ports, asked)
        loading = asyncio.create_task(load(app, options.rate, asked, stop))
        task = progress.add_task("", total=seconds)
        while not samples or samples[-1].at < seconds:
            await asyncio.sleep(EVERY)
            if loading.done():
                loading.result()
            if any(one.poll() is not None for one in fleet):
                raise observe.cut_off("a worker ended", options.json)
            samples.append(one := await watch.look(held is not None))
            if options.json:
                observe.so_far(options.json).write_text(json.dumps([asdict(one) for one in samples]) + "\n")
            if held is None and first <= one.at < last:
                held = await asyncpg.connect(url)
                await held.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                await held.execute("SELECT txid_current()")
            elif held is not None and one.at >= last:
                await held.execute("ROLLBACK")
                await held.close()
                held = None
            state = "a transaction is held open" if held else "no long transaction"
            progress.update(
                task, completed=one.at,
                description=f"{state}: {one.done:,.0f} runs/s, claim {one.claim:.2f} ms, {one.size:,.0f} MiB, {one.dead:,} dead rows",
            )  # fmt: skip
        stop.set()
        await loading
    await sql.close()
    return samples


@dataclass
class Verdict:
    """Medians of a minute or more each."""

    before: Sample
    beside: Sample
    worst: float
    """The least throughput of any half minute beside the long transaction, of that before."""
    after: Sample
    """From two minutes after its end."""
    back: float
    """The least throughput of any half minute since then, of that before."""
    end: Sample
    """The last two minutes: vacuum and rebuilds come every few minutes, so a table takes some to become small again."""


def judge(samples: list[Sample]) -> Verdict:
    open_ = [one for one in samples if one.held]
    begin, end = open_[0].at, open_[-1].at
    # The first minute is that of empty tables; a short trial has no other.
    before = [one for one in samples if 60 <= one.at < begin] or [one for one in samples if one.at < begin]
    usual, later = _median(before), [one for one in samples if one.at > end + SETTLED]
    return Verdict(
        before=usual,
        beside=_median(open_),
        worst=_least(open_) / usual.done,
        after=_median(later),
        back=_least(later) / usual.done,
        end=_median([one for one in samples if one.at > samples[-1].at - SETTLED]),
    )


def _least(samples: list[Sample]) -> float:
    """Throughput of the half minute in which it was lowest."""
    window = round(30 / EVERY)
    return min(statistics.mean(one.done for one in samples[n : n + window]) for n in range(max(1, len(samples) - window + 1)))


def _median(samples: list[Sample]) -> Sample:
    values = {
        name: statistics.median(getattr(one, name) for one in samples)
        for name in ("at", "asked", "done", "claim", "size", "dead")
    }
    return Sample(held=samples[-1].held, **values)


def findings(verdict: Verdict, rate: int) -> list[tuple[str, float, bool]]:
    """What is judged, a share of what, and whether that will do."""
    before, after, end = verdict.before, verdict.after, verdict.end
    reached = min(before.asked, before.done) / rate
    return [
        ("throughput before it, of the planned", reached, reached >= REACHED),
        ("throughput beside it, worst half minute, of before", verdict.worst, verdict.worst >= BESIDE),
        ("throughput from two minutes after it on, worst half minute, of before", verdict.back, verdict.back >= BACK),
        ("claim time after it, of before", after.claim / before.claim, after.claim / before.claim <= 2 - BACK),
        ("tables at the end, of before", end.size / before.size, end.size / before.size <= 2 - BACK),
    ]


def show(verdict: Verdict, rate: int, title: str) -> None:
    table = Table("medians", "asked/s", "done/s", "claim, ms", "MiB", "dead rows", box=None, title=title)
    for name, one in (
        ("before", verdict.before),
        ("beside a long transaction", verdict.beside),
        ("two minutes after it, and on", verdict.after),
        ("the last two minutes", verdict.end),
    ):
        table.add_row(name, f"{one.asked:,.0f}", f"{one.done:,.0f}", f"{one.claim:.2f}", f"{one.size:,.1f}", f"{one.dead:,.0f}")
    console = Console(width=None if sys.stdout.isatty() else 130)
    console.print(table)
    for what, value, good in findings(verdict, rate):
        console.print(f"{what}: {value:.2f}", "[green]ok[/]" if good else "[red]missed[/]")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="of load (default: 30)")
    # Below, a part of a second has too few runs for some of them to be cancelled.
    parser.add_argument(
        "--rate", type=observe.at_least(round(20 / TICK)), default=1_000, help="runs a second (default: 1,000; 400 or more)"
    )
    parser.add_argument("--hold-from", type=float, help="minute at which the long transaction begins (default: 8 of 30)")
    parser.add_argument("--hold", type=float, help="minutes for which it is open (default: 10 of 30)")
    parser.add_argument("--json", type=Path, help="also write every sample here")
    parser.add_argument("--chart", type=Path, help="draw them here, as SVG")
    options = parser.parse_args()
    if options.hold_from is None:
        options.hold_from = options.minutes * 8 / 30
    if options.hold is None:
        options.hold = options.minutes / 3
    if options.minutes < options.hold_from + options.hold + SETTLED / 60 + 0.5 or min(options.hold_from, options.hold) < 0.5:
        parser.error(
            "the long transaction wants half a minute before it, half a minute of its own, and two and a half after it:"
            " give more --minutes (7 or more), or less to --hold-from and --hold"
        )
    observe.check_published(parser, options.json)
    return options


def main() -> None:
    options = arguments()
    observe.begin()
    trees, theft = observe.trees(), observe.Theft()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with (
        observe.scratch("soak") as directory,
        servers.postgresql(directory) as server,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        samples = asyncio.run(soak(server.url + "/postgres", options, progress))
    verdict = judge(samples)
    if options.json:
        observe.check_unchanged(trees, options.json)
        load = {name: getattr(options, name) for name in ("minutes", "rate", "hold_from", "hold")}
        whole = {
            **observe.stamp(),
            "machine": {**observe.machine(), "postgresql": server.version},
            "load": load,
            "stolen": theft.share(),
        }
        whole |= {"verdict": asdict(verdict), "samples": [asdict(one) for one in samples]}
        observe.write(options.json, json.dumps(whole, indent=1) + "\n")
        observe.so_far(options.json).unlink(missing_ok=True)
    if options.chart:
        from benchmarks import charts  # needs matplotlib, which the tests of what is judged have not

        charts.soak(samples, options.chart)
    show(verdict, options.rate, f"{options.rate:,} runs/s, {options.minutes:g} min")
    if not all(good for _, _, good in findings(verdict, options.rate)):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
