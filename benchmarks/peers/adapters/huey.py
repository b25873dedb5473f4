"""Huey on Redis."""

from __future__ import annotations

import logging
import threading
from datetime import datetime

from huey import RedisHuey, crontab

from benchmarks.peers import kit

WORKERS = 2
huey = RedisHuey("bench", url=kit.URL, results=False)
counting = threading.Lock()


@huey.task(name="noop")
def noop(n: int) -> None:
    with counting:  # the count is made for one thread
        kit.noop(n)


@huey.task(name="stamp")
def stamp(n: int) -> None:
    kit.stamp(n)


TASKS = {"noop": noop, "stamp": stamp}


def _declare(count: int, at: datetime) -> None:
    def periodic(n: int) -> None:
        huey.periodic_task(due, name=f"periodic-{n}")(lambda: kit.stamp(n))

    due = crontab(minute=str(at.minute), hour=str(at.hour), day=str(at.day), month=str(at.month))
    for _, n in kit.numbered(count):
        periodic(n)


class HueyPeer(kit.Peer):
    def enqueue(self, task: str, n: int) -> None:
        TASKS[task](n)

    def enqueue_many(self, task: str, numbers: range) -> None:
        TASKS[task].map(numbers)

    def work(self) -> None:
        logging.basicConfig(level=logging.WARNING)
        huey.create_consumer(workers=WORKERS, worker_type="thread", scheduler_interval=1).run()

    def register(self, count: int, at: datetime) -> None:
        _declare(count, at)

    def work_schedules(self, count: int, at: datetime) -> None:
        _declare(count, at)
        self.work()


if __name__ == "__main__":
    kit.run(HueyPeer())
