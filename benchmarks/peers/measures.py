"""The measures, the same for every peer: its adapter is started with a verb, and what its handlers did is read from outside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks import observe
from benchmarks.observe import PROJECT
from benchmarks.peers import kit
from benchmarks.peers.field import Peer

STALLED = 90.0
"""Seconds without any progress after which a peer is given up."""
UP = 20.0
"""Seconds in which every peer's worker has come up."""
KILL_PATIENCE = 90.0
DUE_PATIENCE = 240.0
SINGLES = 1_000
ASKED = 1_000


class Broken(Exception):
    """A program of the peer's ended by itself, which says little about what the peer can do: it is asked again."""


class Stalled(Exception):
    """What was asked of the peer did not happen; but some of it may have."""

    def __init__(self, complaint: str, so_far: dict[str, float] | None = None) -> None:
        super().__init__(complaint)
        self.so_far = so_far or {}


@dataclass
class Stage:
    """One peer, on a database of its own that is empty at first."""

    peer: Peer
    build: Path
    servers: dict[str, str]
    scratch: Path
    measure: str
    database: str = "bench"
    registering: dict[int, float] = field(default_factory=dict)
    """Seconds that so many schedules take, so that they are not due before they are there."""

    @property
    def url(self) -> str:
        base = self.servers[self.peer.server]
        return f"{base}/{self.database}" if self.peer.server == "postgresql" else base

    async def fresh(self) -> None:
        """An empty database or keyspace, and nothing counted."""
        if self.peer.server == "postgresql":
            sql = await asyncpg.connect(self.servers["postgresql"] + "/postgres")
            await sql.execute(f"DROP DATABASE IF EXISTS {self.database} WITH (FORCE)")
            await sql.execute(f"CREATE DATABASE {self.database}")
            await sql.execute("CHECKPOINT")
            await sql.close()
        else:
            self._redis("flushall")
            self._redis("bgrewriteaof")
            while "aof_rewrite_in_progress:0" not in self._redis("info", "persistence"):
                await asyncio.sleep(0.02)
        os.sync()  # what the measure before has left to write is not to be in this one's way
        self.meter = Path(tempfile.mkdtemp(dir=self.scratch))
        self.ask("setup")

    async def analyze(self) -> None:
        """As autovacuum would within a minute of that much being put in; until then who leaves plans to PostgreSQL may have bad ones."""
        if self.peer.server == "postgresql":
            sql = await asyncpg.connect(self.url)
            await sql.execute("ANALYZE")
            await sql.close()

    def _redis(self, *words: str) -> str:
        port = self.url.split(":")[-1].partition("/")[0]
        return subprocess.run(["redis-cli", "-p", port, *words], check=True, capture_output=True, text=True).stdout

    def start(self, verb: str, *arguments: object) -> subprocess.Popen[str]:
        log = (self.scratch / f"{self.peer.name}-{verb}.log").open("a")
        return subprocess.Popen(
            self.peer.command(self.build, verb, *arguments),
            cwd=PROJECT, env=self.peer.environment(self.url, self.meter, self.measure), stdout=subprocess.PIPE if verb not in WORKING else log,
            stderr=log, start_new_session=True, text=True,
        )  # fmt: skip

    def ask(self, verb: str, *arguments: object) -> Any:
        """What it printed last, as JSON."""
        process = self.start(verb, *arguments)
        try:
            printed, _ = process.communicate(timeout=600)
        except subprocess.TimeoutExpired as late:
            raise Stalled(f"{verb} took more than 600 s") from late
        finally:
            _end(process, signal.SIGKILL)
        if process.returncode:
            log = (self.scratch / f"{self.peer.name}-{verb}.log").read_text()
            raise Broken(f"{verb} ended with {process.returncode}: {log[-1500:]}")
        lines = [line for line in printed.splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else None

    @contextlib.contextmanager
    def working(self, processes: int = 1, verb: str = "work", *arguments: object) -> Iterator[list[subprocess.Popen[str]]]:
        started = [self.start(verb, *arguments) for _ in range(processes)]
        try:
            yield started
        finally:
            for one in started:
                _end(one, signal.SIGTERM, 10)

    def done(self) -> int:
        return sum(kit.counts(self.meter).values())

    async def warm(self, workers: list[subprocess.Popen[str]], held: int = 0, enough: float | None = None) -> None:
        """Every worker has done something, or has been there for what is `enough`; and nothing but what is held is left to do."""
        given, began = 0, time.monotonic()
        while idle := {one.pid for one in workers} - set(kit.counts(self.meter)):
            self.alive(workers)
            past = time.monotonic() - began
            if enough is not None and past > enough:
                break
            if past > STALLED:
                raise Stalled(f"{len(idle)} of {len(workers)} workers did nothing for {STALLED:.0f} s")
            if self.done() == given:
                self.ask("enqueue-many", 40)
                given += 40
            await asyncio.sleep(0.2)
        await self.reach(given, workers)
        await self.finished(held)

    def alive(self, workers: list[subprocess.Popen[str]]) -> None:
        for one in workers:
            if one.poll() is not None:
                logs = "".join(path.read_text()[-1500:] for path in self.scratch.glob(f"{self.peer.name}-work*.log"))
                raise Broken(f"a worker ended with {one.returncode}: {logs}")

    async def reach(self, total: int, workers: list[subprocess.Popen[str]]) -> None:
        seen, since = -1, time.monotonic()
        while (done := self.done()) < total:
            if done != seen:
                seen, since = done, time.monotonic()
            elif time.monotonic() - since > STALLED:
                raise Stalled(f"{done} of {total} runs were done, and no more for {STALLED:.0f} s")
            self.alive(workers)
            await asyncio.sleep(0.002)

    async def finished(self, held: int = 0) -> None:
        """Every outcome is on record, for those who keep one; but for those that are held."""
        if self.peer.unfinished is None:
            return
        sql = await asyncpg.connect(self.url)
        deadline = time.monotonic() + STALLED
        while (left := await sql.fetchval(self.peer.unfinished)) > held:
            if time.monotonic() > deadline:
                raise Stalled(f"{left} runs were done but have no outcome")
            await asyncio.sleep(0.005)
        await sql.close()


WORKING = ("work", "work-schedules")


def _end(process: subprocess.Popen[str], how: signal.Signals, grace: float = 0.0) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, how)
    with contextlib.suppress(subprocess.TimeoutExpired):
        if grace:
            process.wait(grace)
    _kill(process)
    process.wait()


def _kill(process: subprocess.Popen[str]) -> None:
    """With all that it started: it leads a session, in which some make groups of their own."""
    for pid in observe.session(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def many(stage: Stage) -> dict[str, float]:
    """Runs a second, put in at once."""
    await stage.fresh()
    return {"many": stage.peer.runs / stage.ask("enqueue-bulk", stage.peer.runs)["seconds"]}


async def single(stage: Stage) -> dict[str, float]:
    """Runs a second, put in one after the other."""
    await stage.fresh()
    return {"single": SINGLES / stage.ask("enqueue-single", SINGLES)["seconds"]}


async def drain(stage: Stage) -> dict[str, float]:
    """Runs a second by one worker process, and by two. They are up and idle, then stopped while the runs are put in."""
    rates = {}
    for processes in (1, 2):
        await stage.fresh()
        with stage.working(processes) as workers:
            await stage.warm(workers)
            before = stage.done()
            for one in workers:
                os.killpg(one.pid, signal.SIGSTOP)
            stage.ask("enqueue-many", stage.peer.runs)
            await stage.analyze()
            for one in workers:
                os.killpg(one.pid, signal.SIGCONT)
            await stage.reach(before + 1, workers)
            first, began = stage.done(), time.perf_counter()
            await stage.reach(before + stage.peer.runs, workers)
            await stage.finished()
            seconds = time.perf_counter() - began
        rates[f"drain {processes}"] = (before + stage.peer.runs - first) / seconds
    if stage.peer.limited:
        await stage.fresh()
        rates["limit"] = stage.peer.runs / stage.ask("limit", stage.peer.runs)["seconds"]
    return rates


async def latency(stage: Stage) -> dict[str, float]:
    """Milliseconds from asking for a run to its start, on an idle worker."""
    await stage.fresh()
    with stage.working() as workers:
        await stage.warm(workers)
        stage.ask("ask", ASKED)
        deadline = time.monotonic() + STALLED
        while len(kit.moments("stamp", stage.meter)) < ASKED:
            if time.monotonic() > deadline:
                raise Stalled("not every run started")
            await asyncio.sleep(0.05)
    asked = dict(kit.moments("asked", stage.meter))
    waits = sorted((moment - asked[n]) * 1000 for n, moment in kit.moments("stamp", stage.meter))
    points = statistics.quantiles(waits, n=100, method="inclusive")
    return {"latency p50": points[49], "latency p99": points[98]}


async def register(stage: Stage) -> dict[str, float]:
    """Seconds for 10,000 schedules."""
    await stage.fresh()
    return {"register": stage.ask("register", 10_000, _minute(after=600))["seconds"]}


def _minute(after: float) -> int:
    """The first full minute that is at least so many seconds away."""
    return int((time.time() + after) // 60 + 1) * 60


async def due(stage: Stage) -> dict[str, float]:
    """Seconds from the instant at which all are due until the last one has started."""
    lateness = {}
    for count in (1_000, 10_000):
        if count not in stage.registering:
            await stage.fresh()
            stage.registering[count] = stage.ask("register", count, _minute(after=600))["seconds"]
        await stage.fresh()
        at = _minute(after=15 + 2 * stage.registering[count])
        stage.ask("register", count, at)
        if time.time() > at - 10:
            raise Broken("registering took much longer than before, and they were due")
        with stage.working(1, "work-schedules", count, at) as workers:
            while time.time() < at:
                stage.alive(workers)
                processes = len(observe.session(workers[0].pid))
                await asyncio.sleep(0.1)
            while len(started := dict(kit.moments("stamp", stage.meter))) < count:
                stage.alive(workers)
                if time.time() > at + DUE_PATIENCE:
                    if len(observe.session(workers[0].pid)) < processes:
                        raise Broken("its scheduler or its worker ended by itself")
                    raise Stalled(f"{len(started):,} of {count:,} started within {DUE_PATIENCE:.0f} s", lateness)
                await asyncio.sleep(0.2)
        lateness[f"due {count}"] = max(started.values()) - at
    return lateness


async def kill(stage: Stage) -> dict[str, float]:
    """Seconds from kill -9 of a worker until another one has started its run."""
    await stage.fresh()
    with stage.working() as (first,):
        stage.ask("hold")
        await _stamps(stage, 1, STALLED, "the run did not start")
        with stage.working() as (second,):
            # Where the first one takes all that comes, nothing is left for it to show that it is up.
            await stage.warm([second], held=1, enough=UP)
            _kill(first)
            killed = time.time()
            await _stamps(stage, 2, KILL_PATIENCE, f"its run did not start elsewhere within {KILL_PATIENCE:.0f} s")
    return {"kill": max(moment for _, moment in kit.moments("stamp", stage.meter)) - killed}


async def _stamps(stage: Stage, count: int, patience: float, complaint: str) -> None:
    deadline = time.monotonic() + patience
    while len(kit.moments("stamp", stage.meter)) < count:
        if time.monotonic() > deadline:
            raise Stalled(complaint)
        await asyncio.sleep(0.01)


async def held(stage: Stage, seconds: float = 600) -> dict[str, float]:
    """Runs a second under steady load, before and at the end of so many seconds beside a transaction that is held open."""
    settled, window, dry = 15.0, min(60.0, seconds / 4), 0
    await stage.fresh()
    with stage.working() as workers:
        await stage.warm(workers)
        feeder = stage.start("feed", settled + window + seconds + 5)
        try:
            await asyncio.sleep(settled)
            before = await _rate(stage, workers, window)
            dry += _dry(stage, window)
            if not before:
                raise Stalled("nothing was done under steady load")
            sql = await asyncpg.connect(stage.url)
            async with sql.transaction(isolation="repeatable_read"):
                await sql.execute("SELECT txid_current()")
                await asyncio.sleep(seconds - window)
                beside = await _rate(stage, workers, window)
                dry += _dry(stage, window)
            await sql.close()
            if feeder.poll() is not None:
                raise Broken("what kept runs waiting has ended")
        finally:
            _end(feeder, signal.SIGKILL)
    return {"held before": before, "held beside": beside, "held ratio": beside / before, "dry": dry}


def _dry(stage: Stage, window: float) -> int:
    """How often in the window that is over nothing was left to do."""
    return sum(moment > time.time() - window for _, moment in kit.moments("dry", stage.meter))


async def _rate(stage: Stage, workers: list[subprocess.Popen[str]], seconds: float) -> float:
    first, began = stage.done(), time.perf_counter()
    await asyncio.sleep(seconds)
    stage.alive(workers)
    return (stage.done() - first) / (time.perf_counter() - began)
