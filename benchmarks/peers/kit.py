"""What an adapter is: the contract, and the verbs that are the same for every peer.

An adapter is a small program in the peer's own environment, so this file uses the standard library only. It subclasses `Peer`,
whose methods may be plain or `async`, and ends with `run(ItsPeer())`. The bench starts it with one verb at a time:

    setup                     tables and queues in an empty database
    enqueue-many N            N runs of noop, the fastest documented way
    enqueue-bulk N            the same, over and over for two seconds               -> seconds for N
    enqueue-single N          N runs of noop, each accepted before the next one     -> seconds
    ask N                     N runs of stamp, one every 10 to 30 ms; writes down when each was asked for
    hold                      one run of hold
    feed SECONDS              keeps some thousand runs of noop waiting
    work                      one worker, until SIGTERM
    limit N                   what plain SQL needs to claim and finish N runs, for who can tell -> seconds
    register N AT             N schedules, each due at the instant AT                -> seconds
    work-schedules N AT       what fires and runs them, until SIGTERM

`noop(n)`, `stamp(n)` and `hold(n)` below are what the peer's handlers call. What they do is written down outside of the peer, in
files of $BENCH_METER, so that all are measured by the same means.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import mmap
import os
import random
import struct
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

URL = os.environ.get("BENCH_URL", "")
METER = Path(os.environ.get("BENCH_METER", "."))
MEASURE = os.environ.get("BENCH_MEASURE", "")
"""What is being measured: where a peer must choose between speed and another virtue, it may choose for each."""
FEED_AHEAD = 5_000
FEED_AT_ONCE = 1_000
BULK_SECONDS = 2.0


_count: memoryview | None = None
_making = threading.Lock()


def _counter() -> memoryview:
    """How many runs this process has done, in a file that others map. One for each process, also after a fork."""
    global _count
    with _making:
        if _count is None:
            path = METER / f"count-{os.getsid(0)}-{os.getpid()}"
            # Under another name until it has its 8 bytes: whoever finds it can read it.
            fresh = path.with_name(f"new-{path.name}")
            fresh.write_bytes(bytes(8))
            fresh.rename(path)
            with path.open("r+b") as file:
                _count = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")
    return _count


def _forget() -> None:
    global _count, _making
    _count, _making = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def noop(n: int = 0) -> None:
    """Counted; nothing else. Peers that run handlers in several threads must hold a lock around it."""
    (_count or _counter())[0] += 1


def stamp(n: int) -> None:
    """Written down with the time at which it started."""
    _write("stamp", f"{n} {time.time():.6f}\n")


async def hold(n: int = 0) -> None:
    stamp(n)
    await asyncio.sleep(3600)


def hold_blocking(n: int = 0) -> None:
    stamp(n)
    time.sleep(3600)


def _write(kind: str, line: str) -> None:
    descriptor = os.open(METER / f"{kind}-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def counts(directory: Path = METER) -> dict[int, int]:
    """Runs done so far, by the session (one for each worker that was started)."""
    done: dict[int, int] = {}
    for path in directory.glob("count-*"):
        session = int(path.name.split("-")[1])
        done[session] = done.get(session, 0) + struct.unpack("<Q", path.read_bytes())[0]
    return done


def moments(kind: str, directory: Path = METER) -> list[tuple[int, float]]:
    """What was written down: numbers and times."""
    lines = (line.split() for path in directory.glob(f"{kind}-*") for line in path.read_text().splitlines())
    return [(int(number), float(moment)) for number, moment in lines]


class Peer:
    """To be filled in for each peer."""

    def setup(self) -> Any:
        """Make tables and the like."""

    def open(self) -> Any:
        """Connect, so that runs can be put in."""

    def close(self) -> Any:
        """Leave."""

    def enqueue(self, task: str, n: int) -> Any:
        raise NotImplementedError

    def enqueue_many(self, task: str, numbers: range) -> Any:
        raise NotImplementedError

    def work(self) -> Any:
        raise NotImplementedError

    def register(self, count: int, at: datetime) -> Any:
        raise NotImplementedError

    def work_schedules(self, count: int, at: datetime) -> Any:
        raise NotImplementedError

    async def limit(self, count: int) -> float:
        raise NotImplementedError


async def _settled(value: Any) -> None:
    if inspect.isawaitable(value):
        await value


async def _put_in(peer: Peer, verb: str, arguments: list[str]) -> float | None:
    await _settled(peer.open())
    taken: float | None = None
    if verb == "enqueue-many":
        await _settled(peer.enqueue_many("noop", range(int(arguments[0]))))
    elif verb == "enqueue-bulk":
        await _settled(peer.enqueue_many("noop", range(40)))  # the first one opens connections
        taken = await _bulk(peer, int(arguments[0]))
    elif verb == "enqueue-single":
        await _settled(peer.enqueue("noop", 0))  # the first one opens connections
        began = time.perf_counter()
        for n in range(int(arguments[0])):
            await _settled(peer.enqueue("noop", n))
        taken = time.perf_counter() - began
    elif verb == "hold":
        await _settled(peer.enqueue("hold", 0))
    elif verb == "ask":
        await _ask(peer, int(arguments[0]))
    elif verb == "feed":
        await _feed(peer, float(arguments[0]))
    elif verb == "limit":
        taken = await peer.limit(int(arguments[0]))
    elif verb == "register":
        began = time.perf_counter()
        await _settled(peer.register(int(arguments[0]), _instant(arguments[1])))
        taken = time.perf_counter() - began
    else:
        raise SystemExit(f"unknown verb {verb}")
    await _settled(peer.close())
    return taken


async def _bulk(peer: Peer, count: int) -> float:
    """Seconds for so many. Who needs less than two of them is given as many again and again, and this is the mean."""
    began, times = time.perf_counter(), 0
    while (taken := time.perf_counter() - began) < BULK_SECONDS:
        await _settled(peer.enqueue_many("noop", range(count)))
        times += 1
    return taken / times


async def _ask(peer: Peer, count: int) -> None:
    rng = random.Random(1)
    for n in range(count):
        asked = time.time()
        await _settled(peer.enqueue("stamp", n))
        _write("asked", f"{n} {asked:.6f}\n")
        await asyncio.sleep(rng.uniform(0.01, 0.03))


async def _feed(peer: Peer, seconds: float) -> None:
    until, given, before = time.monotonic() + seconds, 0, sum(counts().values())
    while time.monotonic() < until:
        if given - (sum(counts().values()) - before) >= FEED_AHEAD:
            await asyncio.sleep(0.005)
            continue
        await _settled(peer.enqueue_many("noop", range(FEED_AT_ONCE)))
        if given and sum(counts().values()) - before >= given:
            # All that was there before these has been done while they were put in.
            _write("dry", f"{given} {time.time():.6f}\n")
        given += FEED_AT_ONCE


def _instant(text: str) -> datetime:
    return datetime.fromtimestamp(int(text), UTC)


def cron_of(at: datetime) -> str:
    """Five fields that are due at this minute, and not again within the year."""
    return f"{at.minute} {at.hour} {at.day} {at.month} *"


def numbered(count: int) -> Iterator[tuple[str, int]]:
    return ((f"job-{n}", n) for n in range(count))


def run(peer: Peer) -> None:
    verb, *arguments = sys.argv[1:]
    if verb == "work":
        outcome = peer.work()
    elif verb == "work-schedules":
        outcome = peer.work_schedules(int(arguments[0]), _instant(arguments[1]))
    elif verb == "setup":
        outcome = peer.setup()
    else:
        taken = asyncio.run(_put_in(peer, verb, arguments))
        if taken is not None:
            print(json.dumps({"seconds": taken}), flush=True)
        return
    if inspect.isawaitable(outcome):
        asyncio.run(_settled(outcome))
