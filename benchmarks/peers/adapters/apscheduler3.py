"""APScheduler 3 with its jobs in PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import BaseScheduler
from apscheduler.schedulers.blocking import BlockingScheduler
from apscheduler.triggers.cron import CronTrigger

from benchmarks.peers import kit

MODULE = "benchmarks.peers.adapters.apscheduler3"


def noop(n: int) -> None:
    kit.noop(n)


def stamp(n: int) -> None:
    kit.stamp(n)


def _of(kind: type[BaseScheduler]) -> BaseScheduler:
    return kind(
        timezone=UTC,
        jobstores={"default": SQLAlchemyJobStore(kit.URL.replace("postgresql:", "postgresql+psycopg:"))},
        executors={"default": ThreadPoolExecutor(20)},
        job_defaults={"misfire_grace_time": None, "coalesce": True},  # a run that is late is still wanted
    )


class APSchedulerPeer(kit.Peer):
    def setup(self) -> None:
        self.open()  # makes the table
        self.close()

    def open(self) -> None:
        # Paused: it writes jobs to the store, and leaves them to the scheduler that runs them.
        self.scheduler = _of(BackgroundScheduler)
        self.scheduler.start(paused=True)

    def close(self) -> None:
        self.scheduler.shutdown()

    def enqueue(self, task: str, n: int) -> None:
        self.scheduler.add_job(f"{MODULE}:{task}", args=(n,))  # without a trigger: once, now

    def enqueue_many(self, task: str, numbers: range) -> None:
        for n in numbers:
            self.enqueue(task, n)

    def register(self, count: int, at: datetime) -> None:
        due = CronTrigger.from_crontab(kit.cron_of(at), timezone=UTC)
        for name, n in kit.numbered(count):
            self.scheduler.add_job(f"{MODULE}:stamp", due, args=(n,), id=name)

    def work_schedules(self, count: int, at: datetime) -> None:
        _of(BlockingScheduler).start()


if __name__ == "__main__":
    kit.run(APSchedulerPeer())
