"""Taskiq on Redis streams, with schedules in Redis."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from datetime import datetime

from taskiq import TaskiqScheduler
from taskiq_redis import ListRedisScheduleSource, RedisStreamBroker

from benchmarks.peers import kit

MODULE = "benchmarks.peers.adapters.taskiq"
AT_ONCE = 1_000
# No timeouts: a scheduler that sends thousands of runs at once is busy for seconds before it looks at its connections, and a
# worker that was stopped for as long still takes what Redis has sent meanwhile. After redis-py's 5 s such runs would be lost.
POOL = {"max_connection_pool_size": 20, "timeout": None, "socket_timeout": None, "socket_connect_timeout": None}

broker = RedisStreamBroker(kit.URL, **POOL)
source = ListRedisScheduleSource(kit.URL, **POOL)
scheduler = TaskiqScheduler(broker, [source])


@broker.task(task_name="noop")
async def noop(n: int) -> None:
    kit.noop(n)


@broker.task(task_name="stamp")
async def stamp(n: int) -> None:
    kit.stamp(n)


@broker.task(task_name="hold")
async def hold(n: int) -> None:
    await kit.hold(n)


TASKS = {"noop": noop, "stamp": stamp, "hold": hold}


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "taskiq", *words, "--log-level", "WARNING"]


class TaskiqPeer(kit.Peer):
    async def setup(self) -> None:
        await broker.startup()  # makes the stream and its group of consumers
        await broker.shutdown()

    async def open(self) -> None:
        await broker.startup()

    async def close(self) -> None:
        await broker.shutdown()

    async def enqueue(self, task: str, n: int) -> None:
        await TASKS[task].kiq(n)

    async def enqueue_many(self, task: str, numbers: range) -> None:
        for start in range(0, len(numbers), AT_ONCE):
            await asyncio.gather(*(TASKS[task].kiq(n) for n in numbers[start : start + AT_ONCE]))

    def work(self) -> None:
        command = _command(
            "worker", f"{MODULE}:broker", "--workers", "1", "--max-async-tasks", "100", "--max-prefetch", "100", "--no-parse"
        )
        os.execv(command[0], command)

    async def register(self, count: int, at: datetime) -> None:
        cron, schedules = kit.cron_of(at), list(kit.numbered(count))
        for start in range(0, count, AT_ONCE):
            some = schedules[start : start + AT_ONCE]
            await asyncio.gather(*(stamp.kicker().with_schedule_id(name).schedule_by_cron(source, cron, n) for name, n in some))

    def work_schedules(self, count: int, at: datetime) -> None:
        subprocess.Popen(_command("scheduler", f"{MODULE}:scheduler"))
        self.work()


if __name__ == "__main__":
    kit.run(TaskiqPeer())
