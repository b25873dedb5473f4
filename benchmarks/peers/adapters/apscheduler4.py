"""APScheduler 4: asynchronous jobs from a PostgreSQL data store, woken by its event broker."""

from __future__ import annotations

import asyncio
from datetime import datetime

from apscheduler import AsyncScheduler, TaskDefaults
from apscheduler.datastores.sqlalchemy import SQLAlchemyDataStore
from apscheduler.eventbrokers.asyncpg import AsyncpgEventBroker
from apscheduler.triggers.cron import CronTrigger
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.peers import kit

AT_ONCE = 20
"""Calls on the way at the same time where there is none for many."""


async def noop(n: int) -> None:
    kit.noop(n)


async def stamp(n: int) -> None:
    kit.stamp(n)


async def hold(n: int) -> None:
    await kit.hold(n)


TASKS = {"noop": noop, "stamp": stamp, "hold": hold}


def _scheduler() -> AsyncScheduler:
    """By default a task has one job running at a time; here there is no such limit."""
    engine = create_async_engine(kit.URL.replace("postgresql:", "postgresql+asyncpg:", 1), pool_size=AT_ONCE)
    return AsyncScheduler(
        SQLAlchemyDataStore(engine),
        AsyncpgEventBroker.from_async_sqla_engine(engine),
        max_concurrent_jobs=100,
        task_defaults=TaskDefaults(job_executor="async", max_running_jobs=None),
    )


class APScheduler4(kit.Peer):
    async def setup(self) -> None:
        async with _scheduler() as scheduler:
            await self._configure(scheduler)

    async def _configure(self, scheduler: AsyncScheduler) -> None:
        for name, function in TASKS.items():
            await scheduler.configure_task(name, func=function)

    async def open(self) -> None:
        self.scheduler = await _scheduler().__aenter__()
        await self._configure(self.scheduler)

    async def close(self) -> None:
        await self.scheduler.__aexit__(None, None, None)

    async def enqueue(self, task: str, n: int) -> None:
        await self.scheduler.add_job(task, args=(n,))

    async def enqueue_many(self, task: str, numbers: range) -> None:
        waiting = iter(numbers)

        async def some() -> None:
            for n in waiting:
                await self.enqueue(task, n)

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))

    async def work(self) -> None:
        async with _scheduler() as scheduler:
            await self._configure(scheduler)
            await scheduler.run_until_stopped()

    async def register(self, count: int, at: datetime) -> None:
        waiting = kit.numbered(count)

        async def some() -> None:
            for name, n in waiting:
                trigger = CronTrigger.from_crontab(kit.cron_of(at), timezone="UTC")
                await self.scheduler.add_schedule("stamp", trigger, id=name, args=(n,))

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))

    async def work_schedules(self, count: int, at: datetime) -> None:
        await self.work()


if __name__ == "__main__":
    kit.run(APScheduler4())
