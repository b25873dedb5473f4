"""Awa: the Rust core claims, heartbeats and completes; the handlers are asynchronous Python functions."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import awa

from benchmarks.peers import kit

QUEUE = "bench"
WORKERS = 1024
CHUNK = 10_000
STRIPES = 2 if kit.MEASURE == "drain" else 1  # its call for a single run does not take them
# To be found dead soon: the timings that the documentation gives for noticing a crash within five seconds.
SIGNS = {"heartbeat_interval_ms": 1_000, "heartbeat_staleness_ms": 4_000, "heartbeat_rescue_interval_ms": 1_000}
if kit.MEASURE != "kill":
    SIGNS = {}


@dataclass
class Noop:
    n: int


@dataclass
class Stamp:
    n: int


@dataclass
class Hold:
    n: int


TASKS: dict[str, Any] = {"noop": Noop, "stamp": Stamp, "hold": Hold}


class Awa(kit.Peer):
    async def setup(self) -> None:
        """The first worker on an empty database switches it to the queue-storage engine, which bulk inserts need."""
        await self.open()
        await self.client.migrate()
        await self._start()
        await self.client.shutdown()
        await self.close()

    async def open(self) -> None:
        self.client = awa.AsyncClient(kit.URL, max_connections=20)

    async def close(self) -> None:
        await self.client.close()

    async def enqueue(self, task: str, n: int) -> None:
        await self.client.insert(TASKS[task](n), queue=QUEUE)

    async def enqueue_many(self, task: str, numbers: range) -> None:
        for first in range(0, len(numbers), CHUNK):
            await self.client.enqueue_many_copy(
                [TASKS[task](n) for n in numbers[first : first + CHUNK]], queue=QUEUE, queue_storage_queue_stripe_count=STRIPES
            )

    async def _start(self) -> None:

        @self.client.task(Noop, queue=QUEUE)
        async def noop(job: awa.Job[Noop]) -> None:
            kit.noop(job.args.n)

        @self.client.task(Stamp, queue=QUEUE)
        async def stamp(job: awa.Job[Stamp]) -> None:
            kit.stamp(job.args.n)

        @self.client.task(Hold, queue=QUEUE)
        async def hold(job: awa.Job[Hold]) -> None:
            await kit.hold(job.args.n)

        await self.client.start(
            [{"name": QUEUE, "max_workers": WORKERS, "claim_batch_size": WORKERS}],
            leader_election_interval_ms=1_000,
            queue_storage_queue_stripe_count=STRIPES,
            **SIGNS,
        )

    async def work(self) -> None:
        await self.open()
        await self._work()

    async def _work(self) -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await self._start()
        await stop.wait()
        await self.client.shutdown()

    def _declare(self, count: int, at: datetime) -> None:
        for name, n in kit.numbered(count):
            self.client.periodic(name, kit.cron_of(at), Stamp, Stamp(n), queue=QUEUE)

    async def register(self, count: int, at: datetime) -> None:
        """Declared in code; the worker that leads writes them to the database when it starts."""
        self._declare(count, at)
        await self._start()
        while await self._schedules() < count:
            await asyncio.sleep(0.02)
        await self.client.shutdown()

    async def _schedules(self) -> int:
        async with await self.client.transaction() as transaction:
            return int((await transaction.fetch_one("SELECT count(*) AS count FROM awa.cron_jobs"))["count"])

    async def work_schedules(self, count: int, at: datetime) -> None:
        await self.open()
        self._declare(count, at)
        await self._work()


if __name__ == "__main__":
    kit.run(Awa())
