"""Dramatiq on Redis."""

from __future__ import annotations

import os
import sys
import threading

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers import kit

MODULE = "benchmarks.peers.adapters.dramatiq"

# To be found dead soon costs speed: a worker is after 5 s of silence, and every tenth command looks for such. Else the defaults.
LOOKS = {"heartbeat_timeout": 5_000, "maintenance_chance": 100_000} if kit.MEASURE == "kill" else {}
dramatiq.set_broker(RedisBroker(url=kit.URL, **LOOKS))
counting = threading.Lock()


@dramatiq.actor
def noop(n: int) -> None:
    with counting:  # the count is made for one thread
        kit.noop(n)


@dramatiq.actor
def stamp(n: int) -> None:
    kit.stamp(n)


@dramatiq.actor
def hold(n: int) -> None:
    kit.hold_blocking(n)


ACTORS = {"noop": noop, "stamp": stamp, "hold": hold}


class DramatiqPeer(kit.Peer):
    def enqueue(self, task: str, n: int) -> None:
        ACTORS[task].send(n)

    def enqueue_many(self, task: str, numbers: range) -> None:
        send = ACTORS[task].send
        for n in numbers:
            send(n)

    def work(self) -> None:
        command = [sys.executable, "-m", "dramatiq", MODULE, "--processes", "1", "--threads", "8"]
        # The longest pause between two looks at an idle queue, in milliseconds; and how many runs are taken ahead.
        os.execve(command[0], command, {**os.environ, "dramatiq_worker_timeout": "10", "dramatiq_queue_prefetch": "256"})


if __name__ == "__main__":
    kit.run(DramatiqPeer())
