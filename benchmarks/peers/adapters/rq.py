"""RQ, with its cron scheduler."""

from __future__ import annotations

import os
from datetime import datetime

from redis import Redis
from rq import Queue, Retry, SimpleWorker, Worker
from rq.cron import CronScheduler

from benchmarks.peers import kit

MODULE = "benchmarks.peers.adapters.rq"
AT_ONCE = 1_000
# To be found dead soon, for which only the worker that forks for each run has settings. A minute is added to the first of them.
SIGNS = {"job_monitoring_interval": 1, "maintenance_interval": 1, "worker_ttl": 20}
# What is held may take an hour, and is tried again if its worker is lost.
OPTIONS = {"noop": {}, "stamp": {}, "hold": {"job_timeout": 3_700, "retry": Retry(max=10)}}


def noop(n: int) -> None:
    kit.noop(n)


def stamp(n: int) -> None:
    kit.stamp(n)


def hold(n: int) -> None:
    kit.hold_blocking(n)


def _scheduler(count: int, at: datetime) -> CronScheduler:
    scheduler = CronScheduler(Redis.from_url(kit.URL), logging_level="WARNING")
    for _, n in kit.numbered(count):
        scheduler.register(stamp, "default", args=(n,), cron=kit.cron_of(at))
    return scheduler


class RqPeer(kit.Peer):
    def open(self) -> None:
        self.queue = Queue(connection=Redis.from_url(kit.URL))

    def enqueue(self, task: str, n: int) -> None:
        self.queue.enqueue(f"{MODULE}.{task}", n, **OPTIONS[task])

    def enqueue_many(self, task: str, numbers: range) -> None:
        for start in range(0, len(numbers), AT_ONCE):
            some = numbers[start : start + AT_ONCE]
            self.queue.enqueue_many([Queue.prepare_data(f"{MODULE}.{task}", (n,), **OPTIONS[task]) for n in some])

    def work(self) -> None:
        self.open()
        kind, signs = (Worker, SIGNS) if kit.MEASURE == "kill" else (SimpleWorker, {})
        kind([self.queue], connection=self.queue.connection, log_job_description=False, **signs).work(logging_level="WARNING")

    def register(self, count: int, at: datetime) -> None:
        _scheduler(count, at)

    def work_schedules(self, count: int, at: datetime) -> None:
        if os.fork():
            self.work()
        else:
            _scheduler(count, at).start()


if __name__ == "__main__":
    # Workers import functions by the name of their module, and this one is called __main__ here.
    from benchmarks.peers.adapters import rq as imported

    kit.run(imported.RqPeer())
