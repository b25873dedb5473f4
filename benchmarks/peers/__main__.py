"""`make bench-peers`: the same measures for Hourhand and its peers, by turns on one machine."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import observe, servers
from benchmarks.observe import PROJECT, QUIET
from benchmarks.peers import measures, report
from benchmarks.peers.field import MEASURES, Peer, peers

RESULTS = PROJECT / "docs" / "benchmarks.json"
BUILD = PROJECT / "build" / "peers"
Result = dict[str, Any]


def main() -> None:
    everyone = {one.name: one for one in peers()}
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=everyone, default=list(everyone), metavar="PEER",
        help=f"of {', '.join(everyone)}; Hourhand is always among those that are published, so that there is something to compare with",
    )  # fmt: skip
    parser.add_argument(
        "--measures", nargs="+", choices=MEASURES, default=list(MEASURES), metavar="MEASURE", help=f"of {', '.join(MEASURES)}"
    )
    parser.add_argument("--rounds", type=observe.at_least(1), default=3, help="rounds of which the median counts (default: 3)")
    parser.add_argument("--held", type=float, default=600, help="seconds for which a transaction is held open (default: 600)")
    parser.add_argument("--runs", type=observe.at_least(1_000), help="runs for bulk and drain (default: by peer, see adapters)")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="what is measured replaces what is there (default: docs/benchmarks.json)"
    )
    parser.add_argument("--report", action="store_true", help="write the page and the charts from the results; measure nothing")
    options = parser.parse_args()
    if published := options.results.resolve() == RESULTS:
        if options.runs is not None or (options.rounds, options.held) != (3, 600):
            parser.error("other --runs, --rounds or --held than the page tells of are a trial: give --results another file")
        options.only = ["hourhand", *options.only]
    if not options.report:
        observe.check_published(parser, options.results)
        observe.begin()
        measure([peer for name, peer in everyone.items() if name in options.only], options)
    if not options.results.exists():
        parser.error(f"{options.results} is not there: nothing has been measured")
    results, present = json.loads(options.results.read_text()), list(everyone.values())
    told = report.verdicts(results, present, whole=published)
    report.show(results, present, told)
    if published:
        report.write(results, present, told)
    if not all(one.good for one in told):
        raise SystemExit(1)


def measure(chosen: list[Peer], options: argparse.Namespace) -> None:
    results: dict[str, Any] = json.loads(options.results.read_text()) if options.results.exists() else {"peers": {}}
    trees = observe.trees()
    with ExitStack() as stack:
        scratch = stack.enter_context(observe.scratch("peers"))
        progress = stack.enter_context(
            Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=Console(stderr=True))
        )
        task = progress.add_task("installing", total=None)
        for peer in chosen:
            progress.update(task, description=f"installing {peer.title}")
            peer.install(BUILD)
            peer.prepare(BUILD)
            results.setdefault("installed", {})[peer.name] = peer.installed(BUILD)
        needed = {peer.server for peer in chosen}
        addresses = {name: stack.enter_context(getattr(servers, name)(scratch)).url for name in sorted(needed)}
        about = {**observe.machine(), **asyncio.run(programs(addresses)), "run": observe.stamp()["at"]}
        takings = [Taking(peer, name, addresses, scratch, options) for name in options.measures for peer in chosen]
        progress.update(task, total=sum(one.left for one in takings))
        for name in options.measures:
            for one in by_turns([one for one in takings if one.measure == name]):
                left = one.left
                progress.update(task, description=f"{name}, {one.peer.title}, {told_left(left)}")
                asyncio.run(one.round())
                observe.check_unchanged(trees, options.results)
                progress.advance(task, left - one.left)
                keep(results, one, about, options.results)
                if not one.left:
                    progress.console.print(f"{one.peer.title}, {name}: {told(one.result())}")
        observe.so_far(options.results).unlink(missing_ok=True)


def by_turns(takings: list[Taking]) -> Iterator[Taking]:
    """Round by round, so that a slow hour of the machine's is everybody's; there and back, so that nobody is always the first."""
    turn = 1
    while waiting := [one for one in takings if one.left][::turn]:
        yield from waiting
        turn = -turn


def keep(results: dict[str, Any], taking: Taking, about: dict[str, str], path: Path) -> None:
    """What is whole replaces what is there, if the bench did not break down; what has rounds to come is kept apart."""
    measured = {**about, **taking.result()}
    if taking.left:
        kept = observe.so_far(path)
        parts = json.loads(kept.read_text()) if kept.exists() else {}
        parts[f"{taking.peer.name}, {taking.measure}"] = measured
        observe.write(kept, json.dumps(parts, indent=1, sort_keys=True) + "\n")
    elif not (taking.broke_down and taking.measure in results["peers"].get(taking.peer.name, {})):
        results["peers"].setdefault(taking.peer.name, {})[taking.measure] = measured
        observe.write(path, json.dumps(results, indent=1, sort_keys=True) + "\n")


def told_left(rounds: int) -> str:
    return "the last round" if rounds == 1 else f"{rounds} rounds to go"


class Taking:
    """One measure of one peer: medians and all rounds, those that failed too; or why there is none."""

    def __init__(self, peer: Peer, name: str, addresses: dict[str, str], scratch: Path, options: argparse.Namespace) -> None:
        self.peer = peer
        self.measure = name
        self._stage = measures.Stage(peer if options.runs is None else peer.of(options.runs), BUILD, addresses, scratch, name)
        self._take = partial(measures.held, seconds=options.held) if name == "held" else getattr(measures, name)
        self.left = self._asked = 1 if name == "held" else options.rounds
        self._again = 1 if name == "held" else options.rounds
        """How many more there may be, for those in which the host took too much of the machine, or a program ended."""
        self._rounds: list[dict[str, float]] = []
        self._stolen: list[float] = []
        """What the host took in each of them."""
        self._failed: list[str] = []
        why = peer.cannot(name)
        self._no: Result | None = None if why is None else {"no": why}

    async def round(self) -> None:
        self.left -= 1
        if self._no is None:
            theft = observe.Theft()
            try:
                self._count(await self._take(self._stage), theft.share())
            except measures.Stalled as stalled:
                self._failed.append(str(stalled))
                if not self._rounds:
                    # Patience is long: who cannot do it once is not asked again.
                    self._no = {"no": str(stalled), **stalled.so_far}
                self._count(stalled.so_far, theft.share())
            except Exception as error:  # one that breaks down must not take the hours of the others along
                self._failed.append(str(error) if isinstance(error, measures.Broken) else f"the bench broke down: {error!r}")
                self._one_more()
        if self._no is not None:
            self.left = 0

    def _count(self, figures: dict[str, float], stolen: float) -> None:
        self._rounds.append(figures)
        self._stolen.append(stolen)
        if stolen > QUIET and self.measure != "held":
            self._one_more()

    def _one_more(self) -> None:
        if self._again:
            self._again -= 1
            self.left += 1

    def result(self) -> Result:
        stamp: Result = {**observe.stamp(), "versions": self.peer.versions(), "adapter": self.peer.fingerprint()}
        if self._no is not None:
            return {**stamp, **self._no}
        if self._failed:
            stamp["failed"] = self._failed
        if not self._rounds:
            return {**stamp, "no": self._failed[-1]}
        quietest = sorted(range(len(self._rounds)), key=self._stolen.__getitem__)[: self._asked]
        rounds = [self._rounds[turn] for turn in sorted(quietest)]
        medians = {key: report.median(key, rounds) for key in dict.fromkeys(key for one in rounds for key in one)}
        if math.inf in map(abs, medians.values()):
            stamp["no"] = self._failed[-1]
        stamp |= {
            "rounds": rounds,
            "stolen": [round(self._stolen[turn], 4) for turn in sorted(quietest)],
            "noisy": [
                {**figures, "stolen": round(stolen, 4)}
                for turn, (figures, stolen) in enumerate(zip(self._rounds, self._stolen, strict=True))
                if turn not in quietest
            ],
        }
        return {**stamp, **{key: value for key, value in medians.items() if math.isfinite(value)}}

    @property
    def broke_down(self) -> bool:
        """Says nothing of the peer."""
        return self._no is None and not self._rounds


def told(result: Result) -> str:
    if "no" in result:
        return f"no: {result['no']}"
    failed = f"; {len(result['failed'])} rounds failed" if "failed" in result else ""
    return ", ".join(f"{key} {report.number(value)}" for key, value in result.items() if isinstance(value, float)) + failed


async def programs(addresses: dict[str, str]) -> dict[str, str]:
    found = {}
    if "postgresql" in addresses:
        sql = await asyncpg.connect(addresses["postgresql"] + "/postgres")
        found["postgresql"] = await sql.fetchval("SHOW server_version")
        await sql.close()
    if "redis" in addresses:
        words = subprocess.run(["redis-server", "--version"], capture_output=True, text=True).stdout.split()
        found["redis"] = words[2].removeprefix("v=")
    return found


if __name__ == "__main__":
    main()
