"""`make bench-peers`: the same measures for Hourhand and its peers, one after another on one machine."""

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
        for peer in chosen:
            kept = results["peers"].setdefault(peer.name, {})
            for name in options.measures:
                progress.update(task, description=f"{peer.title}: {name}")
                kept[name] = {**about, **asyncio.run(one_measure(peer, name, addresses, scratch, options))}
                options.results.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
                progress.console.print(f"{peer.title}, {name}: {told(kept[name])}")
                progress.advance(task)


async def one_measure(peer: Peer, name: str, addresses: dict[str, str], scratch: Path, options: argparse.Namespace) -> Result:
    """Medians and all rounds, those that failed too; or why there is none."""
    stamp: Result = {**observe.stamp(), "versions": peer.versions()}
    if name in peer.no:
        return {**stamp, "no": peer.no[name]}
    if name == "held" and peer.server != "postgresql":
        return {**stamp, "no": "keeps its runs elsewhere than in PostgreSQL"}
    stage = measures.Stage(peer if options.runs is None else peer.of(options.runs), BUILD, addresses, scratch, name)
    take = getattr(measures, name)
    if name == "held":
        take = partial(take, seconds=options.held)
    rounds: list[dict[str, float]] = []
    failed: list[str] = []
    for _ in range(1 if name == "held" else options.rounds):
        try:
            rounds.append(await take(stage))
        except measures.Stalled as stalled:
            if not rounds:
                # Patience is long: who cannot do it once is not asked again.
                return {**stamp, "no": str(stalled), **stalled.so_far}
            failed.append(str(stalled))
        except Exception as error:  # one that breaks down must not take the hours of the others along
            failed.append(str(error) if isinstance(error, measures.Broken) else f"the bench broke down: {error!r}")
    if not rounds:
        return {**stamp, "no": failed[-1]}
    if failed:
        stamp["failed"] = failed
    return {**stamp, "rounds": rounds, **{key: statistics.median(one[key] for one in rounds) for key in rounds[0]}}


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
