"""Chancy: asynchronous jobs in the worker's process, woken by LISTEN/NOTIFY and by each job that ends."""

from __future__ import annotations

import logging
from datetime import datetime

from chancy import Chancy, Job, Queue, Worker, job
from chancy.plugins.cron import Cron
from chancy.plugins.leadership import Leadership
from chancy.plugins.recovery import Recovery

from benchmarks.peers import kit


@job()
async def noop(*, n: int) -> None:
    kit.noop(n)


@job()
async def stamp(*, n: int) -> None:
    kit.stamp(n)


@job()
async def hold(*, n: int) -> None:
    await kit.hold(n)


JOBS: dict[str, Job] = {"noop": noop.job, "stamp": stamp.job, "hold": hold.job}
# To be found dead soon: shorter than the defaults, of 30 and 90 s.
SIGNS = {"heartbeat_poll_interval": 1, "heartbeat_timeout": 3} if kit.MEASURE == "kill" else {}
QUEUE = Queue("default", executor=Chancy.Executor.Async, concurrency=1_000, polling_interval=1, eager_polling=True)


def _chancy() -> Chancy:
    """Plugins poll every second; a leader's time runs out after twice its interval, as the documentation advises."""
    return Chancy(
        kit.URL,
        plugins=[Leadership(poll_interval=1, timeout=2), Recovery(poll_interval=1), Cron(poll_interval=1)],
        log=logging.getLogger("chancy"),
    )


class ChancyPeer(kit.Peer):
    async def setup(self) -> None:
        async with _chancy() as chancy:
            await chancy.migrate()
            await chancy.declare(QUEUE)

    async def open(self) -> None:
        self.chancy = await _chancy().__aenter__()

    async def close(self) -> None:
        await self.chancy.__aexit__(None, None, None)

    async def enqueue(self, task: str, n: int) -> None:
        await self.chancy.push(JOBS[task].with_kwargs(n=n))

    async def enqueue_many(self, task: str, numbers: range) -> None:
        async for _ in self.chancy.push_many([JOBS[task].with_kwargs(n=n) for n in numbers]):
            pass

    async def work(self) -> None:
        async with _chancy() as chancy, Worker(chancy, shutdown_timeout=5, **SIGNS) as worker:
            worker.send_outgoing_interval = 0.05
            await worker.wait_for_shutdown()

    async def register(self, count: int, at: datetime) -> None:
        jobs = (stamp.job.with_unique_key(name).with_kwargs(n=n) for name, n in kit.numbered(count))
        await Cron.schedule(self.chancy, kit.cron_of(at), *jobs)

    async def work_schedules(self, count: int, at: datetime) -> None:
        await self.work()


if __name__ == "__main__":
    kit.run(ChancyPeer())
