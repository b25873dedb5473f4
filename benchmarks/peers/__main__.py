"""`make bench-peers`: the same measures for Hourhand and its peers, by turns on one machine."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import observe, servers
from benchmarks.peers import measures, report
from benchmarks.peers.field import MEASURES, PROJECT, Peer, peers

RESULTS = PROJECT / "docs" / "benchmarks.json"
BUILD = PROJECT / "build" / "peers"
Result = dict[str, Any]


def main() -> None:
    everyone = {one.name: one for one in peers()}
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=everyone, default=list(everyone), metavar="PEER", help=f"of {', '.join(everyone)}"
    )
    parser.add_argument(
        "--measures", nargs="+", choices=MEASURES, default=list(MEASURES), metavar="MEASURE", help=f"of {', '.join(MEASURES)}"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of which the median counts (default: 3)")
    parser.add_argument("--held", type=float, default=600, help="seconds for which a transaction is held open (default: 600)")
    parser.add_argument("--runs", type=int, help="runs for bulk and drain (default: by peer, see adapters)")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="what is measured replaces what is there (default: docs/benchmarks.json)"
    )
    parser.add_argument("--report", action="store_true", help="write the page and the charts from the results; measure nothing")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that no worker is left behind
    if not options.report:
        measure([everyone[name] for name in options.only], options)
    results, present = json.loads(options.results.read_text()), list(everyone.values())
    if options.results == RESULTS:
        report.write(results, present)
    else:
        report.show(results, present)
    if not all(one.good for one in report.verdicts(results, present)):
        raise SystemExit(1)


def measure(chosen: list[Peer], options: argparse.Namespace) -> None:
    results: dict[str, Any] = json.loads(options.results.read_text()) if options.results.exists() else {"peers": {}}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hourhand-peers-")))
        scratch.chmod(0o755)
        progress = stack.enter_context(
            Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=Console(stderr=True))
        )
        task = progress.add_task("installing", total=len(chosen) * len(options.measures))
        for peer in chosen:
            progress.update(task, description=f"installing {peer.title}")
            peer.install(BUILD)
            peer.prepare(BUILD)
            results.setdefault("installed", {})[peer.name] = peer.installed(BUILD)
        needed = {peer.server for peer in chosen}
        addresses = {name: stack.enter_context(getattr(servers, name)(scratch)).url for name in sorted(needed)}
        about = {**observe.machine(), **asyncio.run(programs(addresses))}
        for name in options.measures:
            takings = [Taking(peer, name, addresses, scratch, options) for peer in chosen]
            # Round by round, so that a slow hour of the machine's is everybody's.
            while waiting := [one for one in takings if not one.over]:
                for one in waiting:
                    progress.update(task, description=f"{one.peer.title}: {name}")
                    asyncio.run(one.round())
                    if one.over:
                        kept = results["peers"].setdefault(one.peer.name, {})
                        kept[name] = {**about, **one.result()}
                        options.results.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
                        progress.console.print(f"{one.peer.title}, {name}: {told(kept[name])}")
                        progress.advance(task)


class Taking:
    """One measure of one peer: medians and all rounds, those that failed too; or why there is none."""

    def __init__(self, peer: Peer, name: str, addresses: dict[str, str], scratch: Path, options: argparse.Namespace) -> None:
        self.peer = peer
        self._stage = measures.Stage(peer if options.runs is None else peer.of(options.runs), BUILD, addresses, scratch, name)
        self._take = partial(measures.held, seconds=options.held) if name == "held" else getattr(measures, name)
        self._left = 1 if name == "held" else options.rounds
        self._rounds: list[dict[str, float]] = []
        self._failed: list[str] = []
        self._no: Result | None = None
        if name in peer.no:
            self._no = {"no": peer.no[name]}
        elif name == "held" and peer.server != "postgresql":
            self._no = {"no": "keeps its runs elsewhere than in PostgreSQL"}

    @property
    def over(self) -> bool:
        return self._left == 0

    async def round(self) -> None:
        self._left -= 1
        if self._no is None:
            try:
                self._rounds.append(await self._take(self._stage))
            except measures.Stalled as stalled:
                self._failed.append(str(stalled))
                if not self._rounds:
                    # Patience is long: who cannot do it once is not asked again.
                    self._no = {"no": str(stalled), **stalled.so_far}
            except Exception as error:  # one that breaks down must not take the hours of the others along
                self._failed.append(str(error) if isinstance(error, measures.Broken) else f"the bench broke down: {error!r}")
        if self._no is not None:
            self._left = 0

    def result(self) -> Result:
        stamp: Result = {**observe.stamp(), "versions": self.peer.versions()}
        if self._no is not None:
            return {**stamp, **self._no}
        if not self._rounds:
            return {**stamp, "no": self._failed[-1]}
        if self._failed:
            stamp["failed"] = self._failed
        medians = {key: statistics.median(one[key] for one in self._rounds) for key in self._rounds[0]}
        return {**stamp, "rounds": self._rounds, **medians}


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
