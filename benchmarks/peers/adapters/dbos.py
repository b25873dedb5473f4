"""DBOS Transact: asynchronous workflows from a queue in the system database."""

from __future__ import annotations

import os
import signal
import threading
from datetime import datetime
from typing import Any

import sqlalchemy
from dbos import DBOS, DBOSClient, DBOSConfig

from benchmarks.peers import kit

QUEUE = "bench"
CONCURRENCY = 1_000
POLL_SECONDS = 0.01
ENQUEUE_MANY = sqlalchemy.text(
    "SELECT count(dbos.enqueue_workflow(:task, :queue, ARRAY[to_json(n)], application_name => 'bench')) "
    "FROM generate_series(CAST(:first AS integer), CAST(:last AS integer)) AS n"
)


@DBOS.workflow(name="noop")
async def noop(n: int) -> None:
    kit.noop(n)


@DBOS.workflow(name="stamp")
async def stamp(n: int) -> None:
    kit.stamp(n)


@DBOS.workflow(name="hold")
async def hold(n: int) -> None:
    await kit.hold(n)


@DBOS.workflow(name="on_schedule")
async def on_schedule(scheduled_at: datetime, context: Any) -> None:
    kit.stamp(context)


def _launch() -> None:
    """Each process has an id of its own: one that starts recovers what is unfinished under the same id."""
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": kit.URL,
        "application_version": "bench",
        "executor_id": f"worker-{os.getpid()}",
        "log_level": "WARNING",
        "enable_otlp": False,
    }
    DBOS(config=config)
    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=CONCURRENCY, polling_interval_sec=POLL_SECONDS)


class Dbos(kit.Peer):
    def setup(self) -> None:
        _launch()
        DBOS.destroy()

    def open(self) -> None:
        self.client = DBOSClient(system_database_url=kit.URL, application_name="bench")
        self.engine = sqlalchemy.create_engine(kit.URL.replace("postgresql:", "postgresql+psycopg:", 1))

    def close(self) -> None:
        self.engine.dispose()
        self.client.destroy()

    async def enqueue(self, task: str, n: int) -> None:
        await self.client.enqueue_async({"queue_name": QUEUE, "workflow_name": task}, n)

    def enqueue_many(self, task: str, numbers: range) -> None:
        bounds = {"first": numbers.start, "last": numbers.stop - 1}
        with self.engine.begin() as connection:
            connection.execute(ENQUEUE_MANY, {"task": task, "queue": QUEUE, **bounds})

    def work(self) -> None:
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        _launch()
        stop.wait()
        DBOS.destroy(workflow_completion_timeout_sec=0)

    def register(self, count: int, at: datetime) -> None:
        self.client.apply_schedules(
            [
                {
                    "schedule_name": name,
                    "workflow_name": "on_schedule",
                    "schedule": kit.cron_of(at),
                    "context": n,
                    "queue_name": QUEUE,
                }
                for name, n in kit.numbered(count)
            ]
        )

    def work_schedules(self, count: int, at: datetime) -> None:
        self.work()


if __name__ == "__main__":
    kit.run(Dbos())
