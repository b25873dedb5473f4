"""Hourhand, by the same rules as the others."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime

from benchmarks import limits, population
from benchmarks.peers import kit
from hourhand import Hourhand

MODULE = "benchmarks.peers.adapters.hourhand:app"
os.environ["HOURHAND_DATABASE_URL"] = kit.URL
app = Hourhand()


@app.task
async def noop(n: int) -> None:
    kit.noop(n)


@app.task
async def stamp(n: int) -> None:
    kit.stamp(n)


@app.task
async def hold(n: int) -> None:
    await kit.hold(n)


def _run(*words: str) -> None:
    os.execv(sys.executable, [sys.executable, "-m", "hourhand", *words])


class HourhandPeer(kit.Peer):
    def setup(self) -> None:
        _run("migrate")

    async def open(self) -> None:
        await app.__aenter__()

    async def close(self) -> None:
        await app.aclose()

    async def enqueue(self, task: str, n: int) -> None:
        await app.enqueue(task, {"n": n})

    async def enqueue_many(self, task: str, numbers: range) -> None:
        await app.enqueue_many(task, ({"n": n} for n in numbers))

    def work(self) -> None:
        _run("worker", "--app", MODULE, "--log-level", "warning")

    async def register(self, count: int, at: datetime) -> None:
        await app.jobs.add_many(
            {"name": name, "task": "stamp", "schedule": population.at(at, n), "payload": {"n": n}}
            for name, n in kit.numbered(count)
        )

    async def limit(self, count: int) -> float:
        """Seconds for the same statements with next to no Python around them."""
        await self.enqueue_many("noop", range(count))
        pool = await (await app._database()).pool()
        lane = await pool.fetchval("SELECT hourhand.queue_number('default')") * 4 + 1
        return count / await limits.drain_limit(kit.URL, "hourhand", lane, count)

    def work_schedules(self, count: int, at: datetime) -> None:
        subprocess.Popen([sys.executable, "-m", "hourhand", "scheduler", "--log-level", "warning"])
        self.work()


if __name__ == "__main__":
    kit.run(HourhandPeer())
