"""PgQueuer: asyncpg and uvloop, jobs fetched and finished in batches, woken by LISTEN/NOTIFY."""

from __future__ import annotations

import asyncio
import signal
from datetime import datetime, timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.models import Job, Schedule
from pgqueuer.queries import Queries

from benchmarks.peers import kit

BATCH = 300
DEQUEUE_TIMEOUT = timedelta(seconds=1)
# To be found dead soon: shorter than the default, of 30 s.
SIGNS = {"heartbeat_timeout": timedelta(seconds=5)} if kit.MEASURE == "kill" else {}


async def _work(count: int = 0, at: datetime | None = None) -> None:
    """A pool, as the documentation advises where much is to be done."""
    pgq = PgQueuer.from_asyncpg_pool(await asyncpg.create_pool(kit.URL, min_size=5, max_size=20))

    @pgq.entrypoint("noop")
    async def noop(job: Job) -> None:
        kit.noop(int(job.payload or b""))

    @pgq.entrypoint("stamp")
    async def stamp(job: Job) -> None:
        kit.stamp(int(job.payload or b""))

    @pgq.entrypoint("hold")
    async def hold(job: Job) -> None:
        await kit.hold(int(job.payload or b""))

    if at:
        _declare(pgq, count, at)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, pgq.shutdown.set)
    await pgq.run(
        batch_size=BATCH,
        dequeue_timeout=DEQUEUE_TIMEOUT,
        log_aggregation_interval=timedelta(0),  # statistics are made when they are read
        **SIGNS,
    )


def _declare(pgq: PgQueuer, count: int, at: datetime) -> None:
    for name, _ in kit.numbered(count):
        pgq.schedule(name, kit.cron_of(at))(on_schedule)


async def on_schedule(schedule: Schedule) -> None:
    kit.stamp(int(schedule.entrypoint.removeprefix("job-")))


class PgQueuerPeer(kit.Peer):
    async def setup(self) -> None:
        await self.open()
        await self.queries.install()
        await self.queries.optimize_autovacuum()
        await self.close()

    async def open(self) -> None:
        self.connection = await asyncpg.connect(kit.URL)
        self.pgq = PgQueuer.from_asyncpg_connection(self.connection)
        self.queries = Queries.from_asyncpg_connection(self.connection)

    async def close(self) -> None:
        await self.connection.close()

    async def enqueue(self, task: str, n: int) -> None:
        await self.queries.enqueue(task, str(n).encode())

    async def enqueue_many(self, task: str, numbers: range) -> None:
        count = len(numbers)
        await self.queries.enqueue([task] * count, [str(n).encode() for n in numbers], [0] * count)

    def work(self) -> None:
        uvloop.run(_work())

    async def register(self, count: int, at: datetime) -> None:
        """Declared in code; the rows are written as a worker writes them when it starts."""
        _declare(self.pgq, count, at)
        await self.queries.insert_schedule({key: executor.next_in() for key, executor in self.pgq.sm.registry.items()})

    def work_schedules(self, count: int, at: datetime) -> None:
        uvloop.run(_work(count, at))


if __name__ == "__main__":
    kit.run(PgQueuerPeer())
