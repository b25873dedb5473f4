"""Procrastinate: asynchronous tasks in one worker process, woken by LISTEN/NOTIFY."""

from __future__ import annotations

from datetime import datetime

import procrastinate
import psycopg

from benchmarks.peers import kit

CONCURRENCY = 10
# To be found dead soon: shorter than the defaults, of 10 and 30 s.
SIGNS = {"update_heartbeat_interval": 2.0, "stalled_worker_timeout": 6.0} if kit.MEASURE == "kill" else {}


async def _configure(connection: psycopg.AsyncConnection) -> None:
    await connection.set_autocommit(True)  # one statement is one round trip


# For short jobs the documentation asks for as many connections as there are sub-workers, plus one.
app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=kit.URL, min_size=1, max_size=CONCURRENCY + 1, configure=_configure)
)


@app.task(name="noop")
async def noop(n: int) -> None:
    kit.noop(n)


@app.task(name="stamp")
async def stamp(n: int, timestamp: int = 0) -> None:
    kit.stamp(n)


@app.task(name="hold")
async def hold(n: int) -> None:
    await kit.hold(n)


@app.task(name="retry_stalled_jobs", queueing_lock="retry_stalled_jobs", pass_context=True)
async def retry_stalled_jobs(context: procrastinate.JobContext, timestamp: int) -> None:
    """As documented: without it the jobs of a killed worker stay with it for ever."""
    for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=SIGNS["stalled_worker_timeout"]):
        await app.job_manager.retry_job(job)


if SIGNS:
    app.periodic(cron="* * * * * */5")(retry_stalled_jobs)


class Procrastinate(kit.Peer):
    async def setup(self) -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        await app.open_async()

    async def close(self) -> None:
        await app.close_async()

    async def enqueue(self, task: str, n: int) -> None:
        await app.tasks[task].defer_async(n=n)

    async def enqueue_many(self, task: str, numbers: range) -> None:
        await app.tasks[task].batch_defer_async(*({"n": n} for n in numbers))

    async def work(self) -> None:
        async with app.open_async():
            await app.run_worker_async(concurrency=CONCURRENCY, **SIGNS)

    def register(self, count: int, at: datetime) -> None:
        for name, n in kit.numbered(count):
            app.periodic(cron=kit.cron_of(at), periodic_id=name, task_kwargs={"n": n})(stamp)

    async def work_schedules(self, count: int, at: datetime) -> None:
        self.register(count, at)
        await self.work()


if __name__ == "__main__":
    kit.run(Procrastinate())
