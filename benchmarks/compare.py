"""`make compare REF=<commit>`: the same measurements before and after, in one run.

Both trees take turns on one server, figure by figure, each on fresh tables, so that a slow moment of the machine hits both.
What counts is the median of the ratios of neighbours.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import observe
from benchmarks.observe import PROJECT
from hourhand.storage.embedded import EmbeddedServer

FIGURES = ("drain, one worker process", "drain, two worker processes", "enqueue_many", "enqueue, one at a time")
# Runs in either tree, so it uses what both have: says a figure for each name that it reads.
_MEASURE = """
import asyncio, sys
import asyncpg
from benchmarks import product
from hourhand import Hourhand
from hourhand.storage.migrate import migrate

async def main(url, runs, schema):
    sql = await asyncpg.connect(url)
    for line in sys.stdin:
        await sql.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        await migrate(sql, schema)
        async with Hourhand(url, schema=schema) as app:
            if line.startswith("drain"):
                figure = await product.drain(app, url, schema, sql, runs, 2 if "two" in line else 1)
            elif line.startswith("enqueue_many"):
                figure = await product.enqueue_many(app, 4 * runs)
            else:
                figure = await product.enqueue_single(app, 3000)
        print("figure", figure, flush=True)

asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
"""


class Side:
    """One of the two trees: a process that measures what it is told to, on tables of its own."""

    def __init__(self, name: str, tree: Path, url: str, runs: int) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree)])}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MEASURE, url, str(runs), f"hourhand_{name}"],
            cwd=tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.measured: dict[str, list[float]] = {figure: [] for figure in FIGURES}

    def measure(self, figure: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(figure + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("figure "):
                self.measured[figure].append(float(line.split()[1]))
                return
        raise SystemExit(f"{figure}: the measuring process ended with {self._process.wait()}")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.compare", description=__doc__)
    parser.add_argument("ref", help="the commit to compare with")
    parser.add_argument(
        "--runs", type=observe.at_least(1_000), default=100_000, help="preloaded runs for the drain (default: 100,000)"
    )
    parser.add_argument("--rounds", type=observe.at_least(1), default=5, help="rounds of which the median counts (default: 5)")
    parser.add_argument("--only", action="append", choices=FIGURES, help="this figure (may be given again; default: all)")
    options = parser.parse_args()
    options.only = options.only or FIGURES
    git = ["git", "-C", str(PROJECT)]
    if subprocess.run(
        [*git, "rev-parse", "--quiet", "--verify", f"{options.ref}^{{commit}}"], stdout=subprocess.DEVNULL
    ).returncode:
        parser.error(f"{options.ref} is not a commit of this repository")
    observe.begin()
    with observe.scratch("compare") as directory, contextlib.ExitStack() as stack:
        trees = {"before": directory / "before", "after": PROJECT}
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(trees["before"]), options.ref], check=True)
        stack.callback(subprocess.run, [*git, "worktree", "remove", "--force", str(trees["before"])], check=True)
        url = stack.enter_context(EmbeddedServer(directory / "data"))
        sides = [Side(name, tree, url, options.runs) for name, tree in trees.items()]
        for side in sides:
            stack.callback(side.close)
        progress = stack.enter_context(Progress(console=Console(stderr=True), transient=True))
        task = progress.add_task("measuring", total=2 * options.rounds * len(options.only))
        for turn in range(options.rounds):
            for figure in options.only:
                progress.update(task, description=f"round {turn + 1} of {options.rounds}: {figure}")
                for side in sides if turn % 2 else reversed(sides):
                    side.measure(figure)
                    progress.advance(task)
    title = f"{options.ref} and now, runs a second: medians of {options.rounds}, and of the ratios of neighbours"
    table = Table("figure", "before", "after", "ratio", "all of them", title=title, box=None)
    for figure in options.only:
        before, after = (side.measured[figure] for side in sides)
        ratios = [one / other for one, other in zip(after, before, strict=True)]
        table.add_row(
            figure, f"{statistics.median(before):,.0f}", f"{statistics.median(after):,.0f}", f"{statistics.median(ratios):.3f}",
            " ".join(f"{ratio:.2f}" for ratio in sorted(ratios)),
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 130).print(table)


if __name__ == "__main__":
    main()
