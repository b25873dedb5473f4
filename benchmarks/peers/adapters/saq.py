"""SAQ on Redis."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from saq import CronJob, Queue, Worker

from benchmarks.peers import kit

CONCURRENCY = 50
AT_ONCE = 1_000
# SAQ ends a run after 10 s and tries it once, unless told otherwise. The one that is held says every second that it is alive.
HELD = {"timeout": 0, "heartbeat": 5, "retries": 10}


async def noop(context: dict[str, Any], *, n: int) -> None:
    kit.noop(n)


async def stamp(context: dict[str, Any], *, n: int) -> None:
    kit.stamp(n)


async def hold(context: dict[str, Any], *, n: int) -> None:
    async def beat() -> None:
        while True:
            await asyncio.sleep(1)
            await context["job"].update()

    await asyncio.gather(kit.hold(n), beat())


def _cron_job(name: str, n: int, cron: str) -> CronJob[Any]:
    """SAQ tells its schedules apart by the name of their function."""

    async def function(context: dict[str, Any]) -> None:
        kit.stamp(n)

    function.__qualname__ = name
    return CronJob(function, cron=cron)


def _cron_jobs(count: int, at: datetime) -> list[CronJob[Any]]:
    return [_cron_job(name, n, kit.cron_of(at)) for name, n in kit.numbered(count)]


class SaqPeer(kit.Peer):
    queue: Queue

    async def open(self) -> None:
        self.queue = Queue.from_url(kit.URL)
        await self.queue.connect()

    async def close(self) -> None:
        await self.queue.disconnect()

    async def enqueue(self, task: str, n: int) -> None:
        await self.queue.enqueue(task, n=n, **(HELD if task == "hold" else {}))

    async def enqueue_many(self, task: str, numbers: range) -> None:
        for start in range(0, len(numbers), AT_ONCE):
            await asyncio.gather(*(self.enqueue(task, n) for n in numbers[start : start + AT_ONCE]))

    async def work(self) -> None:
        await self._work([])

    async def _work(self, cron_jobs: list[CronJob[Any]]) -> None:
        logging.basicConfig(level=logging.WARNING)
        await self.open()
        functions: list[Callable[..., Awaitable[None]]] = [noop, stamp, hold]
        worker = Worker(self.queue, functions, concurrency=CONCURRENCY, cron_jobs=cron_jobs, timers={"sweep": 5})
        await worker.start()
        await self.close()

    def register(self, count: int, at: datetime) -> None:
        # The queue is that of a worker which is never started: the declaration is checked, nothing is stored.
        Worker(self.queue, [], cron_jobs=_cron_jobs(count, at))

    async def work_schedules(self, count: int, at: datetime) -> None:
        await self._work(_cron_jobs(count, at))


if __name__ == "__main__":
    kit.run(SaqPeer())
