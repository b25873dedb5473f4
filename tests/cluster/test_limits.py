"""Limits, rates and turns over a fleet of real processes that are killed and put to sleep: never exceeded, never stuck."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest

from hourhand import Hourhand, QueueFull
from tests.support.fleet import Fleet, Process, make_sink, until, where
from tests.support.ruled import ALL, EACH
from tests.support.ruled import app as ruled

pytestmark = pytest.mark.once


@dataclass
class Stay:
    key: str
    processes: tuple[str, str]
    began: float
    ended: float


class Ruled(Fleet):
    """Workers of the app with rules, and the book that they write."""

    @property
    def book(self) -> Path:
        return self.directory / "book"

    def ruled(self, *arguments: str) -> Process:
        return self.start("worker", "--app", "tests.support.ruled:app", *arguments, BOOK=str(self.book))

    def lines(self) -> list[list[str]]:
        """The last one may be half written."""
        whole = self.book.read_text().rpartition("\n")[0] if self.book.exists() else ""
        return [line.split() for line in whole.splitlines()]

    def starts(self) -> list[tuple[float, str]]:
        return sorted((float(at), key) for what, at, _, _, _, key in self.lines() if what == "in")

    def stays(self, killed: Mapping[int, float]) -> list[Stay]:
        """Who was inside from when to when; a process that was killed left everything at that moment."""
        inside: dict[tuple[str, str], Stay] = {}
        over: list[Stay] = []
        for what, at, pid, parent, run, key in self.lines():
            if what == "in":
                inside[pid, run] = Stay(key, (pid, parent), float(at), float("inf"))
            else:
                stay = inside.pop((pid, run))
                stay.ended = float(at)
                over.append(stay)
        for stay in inside.values():
            # Whoever is in a child process goes with its parent. One that is not in the list is still there, and that is a fault.
            stay.ended = min(killed.get(int(one), float("inf")) for one in stay.processes)
            over.append(stay)
        return over


def most_at_once(stays: Iterable[Stay]) -> int:
    changes = sorted(change for one in stays for change in ((one.began, 1), (one.ended, -1)))
    now = most = 0
    for _, step in changes:
        now += step
        most = max(most, now)
    return most


@pytest.fixture
async def fleet(url: str, schema: str, sql: asyncpg.Connection, tmp_path: Path) -> AsyncIterator[Ruled]:
    await make_sink(sql, schema)
    one = Ruled(url, schema, tmp_path)
    yield one
    one.close()


@pytest.fixture
def client(app: Hourhand) -> Hourhand:
    app.registry.tasks.update(ruled.registry.tasks)
    return app


async def finished(sql: asyncpg.Connection, schema: str, many: int, seconds: float = 90.0) -> None:
    async def over() -> bool:
        counts = await where(sql, schema)
        return counts["runs"] == many and sum(counts.values()) == many

    await until(over, f"the end of {many} runs", seconds)


async def test_limits_are_exact_under_eight_workers_and_kill_9(
    fleet: Ruled, client: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    dice = random.Random(5)
    workers = [fleet.ruled("--concurrency", "6") for _ in range(8)]
    await fleet.alive(sql, 8)
    for _ in range(6):
        await client.enqueue_many("limited", [{"customer": dice.randrange(6), "fails": dice.random() < 0.1} for _ in range(100)])
        await client.enqueue_many("free", [{}] * 50)
    killed: dict[int, float] = {}
    for victim in workers[:3]:
        before = len(fleet.starts())

        async def further(least: int = before + 60) -> bool:
            return len(fleet.starts()) >= least

        await until(further, "the runs to go on")
        # Asleep first: whatever it holds then is held until it is dead, and no moment is in doubt.
        victim.send(signal.SIGSTOP)
        killed[victim.pid] = time.monotonic()
        victim.kill()
        fleet.ruled("--concurrency", "6")
    await finished(sql, schema, 900)
    stays = [one for one in fleet.stays(killed) if one.key != "free"]
    by_customer = defaultdict(list)
    for one in stays:
        by_customer[one.key].append(one)
    assert most_at_once(stays) == ALL
    assert {key: most_at_once(theirs) for key, theirs in by_customer.items()} == dict.fromkeys("012345", EACH)
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.slots") == 0


async def test_a_queues_limit_is_free_again_when_its_holders_die(
    fleet: Ruled, client: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    victim = fleet.ruled("--concurrency", "10")
    await fleet.alive(sql, 1)
    await client.enqueue_many("narrow", [{"seconds": 600}] * 4)

    async def full() -> bool:
        return len(fleet.starts()) == 4

    await until(full, "the queue to be full")
    await client.enqueue_many("narrow", [{"seconds": 0}] * 20)
    fleet.ruled("--concurrency", "10")
    await fleet.alive(sql, 2)
    assert len(fleet.starts()) == 4
    died = time.monotonic()
    victim.kill()

    async def flowing() -> bool:
        return len(fleet.starts()) >= 8

    await until(flowing, "others to come in")
    await finished(sql, schema, 24)
    assert most_at_once(fleet.stays({victim.pid: died})) <= 4


async def test_a_rate_holds_over_the_fleet(fleet: Ruled, client: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    for _ in range(3):
        fleet.ruled("--concurrency", "10")
    await fleet.alive(sql, 3)
    for _ in range(2):
        # The second time the bucket is full again: what was not used while nothing came is not added up.
        await client.enqueue_many("paced", [{}] * 60)
        done = len(fleet.starts()) + 60

        async def ended(least: int = done) -> bool:
            return len(fleet.starts()) >= least and (await where(sql, schema))["runs"] >= least

        await until(ended, "the paced ones")
        await until(lambda: _refilled(sql, schema), "a full bucket")
        await sql.execute(f"UPDATE {schema}.gates SET filled_at = filled_at - interval '10 minutes'")
    starts = [at for at, _ in fleet.starts()]
    assert len(starts) == 120
    for first in range(len(starts)):
        for last in range(first, len(starts)):
            # A start is written down a moment after it was let in: by that much two may seem closer than they were.
            assert last - first + 1 <= 10 + 50 * (starts[last] - starts[first] + 0.5) + 1


async def _refilled(sql: asyncpg.Connection, schema: str) -> bool:
    return bool(await sql.fetchval(f"SELECT {schema}.tokens(g, clock_timestamp()) >= g.burst FROM {schema}.gates g"))


async def test_no_tenant_waits_behind_the_heap_of_another(
    fleet: Ruled, client: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    await client.enqueue_many("fair", ({"tenant": "large"} for _ in range(100_000)))
    fleet.ruled("--concurrency", "4")
    fleet.ruled("--concurrency", "4")
    await fleet.alive(sql, 2)

    async def under_way() -> bool:
        return len(fleet.starts()) >= 100

    await until(under_way, "the large one to be under way")
    before = len(fleet.starts())
    asked = time.monotonic()
    for n in range(5):
        await client.enqueue("fair", {"tenant": f"small{n}"})

    async def all_there() -> bool:
        return {f"small{n}" for n in range(5)} <= {key for _, key in fleet.starts()}

    await until(all_there, "the small ones' turns")
    order = [key for at, key in fleet.starts() if at >= asked]
    last = max(order.index(f"small{n}") for n in range(5))
    # What both workers had in hand, and a turn of each for the large one in between.
    assert last <= 60, (before, last)


@pytest.mark.parametrize(("arguments", "shares"), [((), (60, 30, 10)), (("--weights", "high=1,normal=1,low=2"), (25, 25, 50))])
async def test_priorities_get_their_shares(
    fleet: Ruled, client: Hourhand, sql: asyncpg.Connection, schema: str, arguments: tuple[str, ...], shares: tuple[int, ...]
) -> None:
    names = ("high", "normal", "low")
    for name in names:
        await client.enqueue_many("plain", ({"who": name} for _ in range(12_000)), priority=name)
    fleet.ruled("--concurrency", "20", *arguments)

    async def many() -> bool:
        return len(fleet.starts()) >= 10_000

    await until(many, "ten thousand starts")
    counts = Counter(key for _, key in fleet.starts()[:10_000])
    for name, share in zip(names, shares, strict=True):
        assert abs(counts[name] / 100 - share) <= 5, counts


async def test_strictly_the_most_urgent_first(fleet: Ruled, client: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    for name in ("low", "normal", "high"):
        await client.enqueue_many("plain", ({"who": name} for _ in range(500)), priority=name)
    fleet.ruled("--concurrency", "5", "--strict")
    await finished(sql, schema, 1_500)
    order = [key for _, key in fleet.starts()]
    assert order[:495] == ["high"] * 495
    assert set(order[1_005:]) == {"low"}


async def test_the_earliest_deadline_first_and_too_late_not_at_all(
    fleet: Ruled, client: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    minutes = list(range(1, 101))
    random.Random(3).shuffle(minutes)
    for n in minutes:
        await client.enqueue("urgent", {"who": f"{n:03}"}, expires=60 * n)
    late = [await client.enqueue("urgent", {"who": "late"}, expires=0.001) for _ in range(5)]
    await client.enqueue("urgent", {"who": "never"})
    fleet.ruled("--concurrency", "1")
    await finished(sql, schema, 106)
    assert [key for _, key in fleet.starts()] == [*(f"{n:03}" for n in range(1, 101)), "never"]
    assert {(await handle.show()).state for handle in late} == {"expired"}


async def test_a_stream_of_runs_into_a_shallow_queue(
    fleet: Ruled, client: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    first = fleet.ruled("--concurrency", "5")
    await fleet.alive(sql, 1)

    async def bounded() -> bool:
        return bool(await sql.fetchval(f"SELECT max_depth FROM {schema}.queues WHERE name = 'shallow'"))

    await until(bounded, "the rule to be in force")
    first.send(signal.SIGSTOP)
    with pytest.raises(QueueFull) as full:
        await client.enqueue_many("shallow", ({"n": n} for n in range(1_000)), commit_every=50)
    assert len(full.value.enqueued) == 200
    first.send(signal.SIGCONT)
    rest = await client.enqueue_many("shallow", ({"n": n} for n in range(200, 1_000)), commit_every=50, wait=60)
    assert len(rest) == 800
    await finished(sql, schema, 1_000)
    assert sorted(int(key) for _, key in fleet.starts()) == list(range(1_000))
