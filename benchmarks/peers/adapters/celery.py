"""Celery on Redis, with Celery beat."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime

from celery import Celery
from celery.schedules import crontab

from benchmarks.peers import kit

MODULE = "benchmarks.peers.adapters.celery"
POOL = ("--pool", "solo")

app = Celery("bench", broker=kit.URL)
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,  # else a run is forgotten by Redis before it starts
    worker_prefetch_multiplier=128,
    broker_connection_retry_on_startup=True,
)


@app.task(name="noop")
def noop(n: int) -> None:
    kit.noop(n)


@app.task(name="stamp")
def stamp(n: int) -> None:
    kit.stamp(n)


@app.task(name="hold")
def hold(n: int) -> None:
    kit.hold_blocking(n)


def _declare(count: int, at: datetime) -> None:
    due = crontab(minute=at.minute, hour=at.hour, day_of_month=at.day, month_of_year=at.month)
    for name, n in kit.numbered(count):
        app.add_periodic_task(due, stamp.s(n), name=name)


# Beat reads its schedules from the application, so the process that runs it declares them.
if "BENCH_SCHEDULES" in os.environ:
    _count, _at = os.environ["BENCH_SCHEDULES"].split()
    _declare(int(_count), datetime.fromisoformat(_at))


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "celery", "--app", MODULE, *words, "--loglevel", "warning"]


class CeleryPeer(kit.Peer):
    def enqueue(self, task: str, n: int) -> None:
        app.tasks[task].delay(n)

    def enqueue_many(self, task: str, numbers: range) -> None:
        send = app.tasks[task].apply_async
        with app.producer_pool.acquire(block=True) as producer, producer.batch(max_size=1_000):
            for n in numbers:
                send((n,), producer=producer)

    def work(self) -> None:
        # Two workers on one machine need names of their own.
        command = _command("worker", *POOL, "--hostname", f"{os.getpid()}@%h", "--without-gossip", "--without-mingle")
        os.execv(command[0], command)

    def register(self, count: int, at: datetime) -> None:
        _declare(count, at)
        app.finalize()

    def work_schedules(self, count: int, at: datetime) -> None:
        subprocess.Popen(
            _command("beat", "--schedule", str(kit.METER / "beat"), "--pidfile", ""),
            env={**os.environ, "BENCH_SCHEDULES": f"{count} {at.isoformat()}"},
        )
        self.work()


if __name__ == "__main__":
    kit.run(CeleryPeer())
