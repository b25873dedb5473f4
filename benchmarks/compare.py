"""`make compare REF=<commit>`: the same measurements before and after, in one run.

Both trees take turns on one server, each on fresh tables, so that a slow minute of the machine hits both. What counts is the
ratio of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from hourhand.storage.embedded import EmbeddedServer

PROJECT = Path(__file__).parent.parent
_MEASURE = """
import asyncio, json, sys
import asyncpg
from benchmarks import product
from hourhand import Hourhand
from hourhand.storage.migrate import migrate

async def main(url, runs, schema="hourhand_compare"):
    sql, figures = await asyncpg.connect(url), {}
    async def fresh():
        await sql.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        await migrate(sql, schema)
    for name, processes in (("drain, one worker process", 1), ("drain, two worker processes", 2)):
        await fresh()
        async with Hourhand(url, schema=schema) as app:
            figures[name] = await product.drain(app, url, schema, sql, runs, processes)
    await fresh()
    async with Hourhand(url, schema=schema) as app:
        figures["enqueue_many"] = await product.enqueue_many(app, runs)
        figures["enqueue, one at a time"] = await product.enqueue_single(app, 1000)
    print(json.dumps(figures))

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def measure(tree: Path, url: str, runs: int) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree)])}
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, url, str(runs)], cwd=tree, env=environment, stdout=subprocess.PIPE, check=True, text=True
    )
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.compare", description=__doc__)
    parser.add_argument("ref", help="the commit to compare with")
    parser.add_argument("--runs", type=int, default=100_000, help="preloaded runs for the drain (default: 100,000)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of which the median counts (default: 5)")
    options = parser.parse_args()
    measured: dict[str, list[dict[str, float]]] = {"before": [], "after": []}
    with tempfile.TemporaryDirectory(prefix="hourhand-compare-") as directory:
        os.chmod(directory, 0o755)
        trees = {"before": Path(directory) / "before", "after": PROJECT}
        git = ["git", "-C", str(PROJECT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(trees["before"]), options.ref], check=True)
        try:
            with (
                EmbeddedServer(Path(directory) / "data") as url,
                Progress(console=Console(stderr=True), transient=True) as progress,
            ):
                task = progress.add_task("measuring", total=2 * options.rounds)
                for turn in range(options.rounds):
                    for name in ("before", "after") if turn % 2 else ("after", "before"):
                        progress.update(task, description=f"round {turn + 1} of {options.rounds}: {name}")
                        measured[name].append(measure(trees[name], url, options.runs))
                        progress.advance(task)
        finally:
            subprocess.run([*git, "remove", "--force", str(trees["before"])], check=True)
    table = Table(
        "figure", "before", "after", "ratio", title=f"{options.ref} and now, runs a second, medians of {options.rounds}", box=None
    )
    for figure in measured["after"][0]:
        before, after = (statistics.median(one[figure] for one in measured[name]) for name in ("before", "after"))
        table.add_row(figure, f"{before:,.0f}", f"{after:,.0f}", f"{after / before:.3f}")
    Console(width=None if sys.stdout.isatty() else 130).print(table)


if __name__ == "__main__":
    main()
