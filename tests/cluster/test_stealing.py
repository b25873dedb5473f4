"""Real worker processes, one with too much and one with nothing: what is moved runs once, whoever is killed or paused meanwhile."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from hourhand import Hourhand
from tests.support.fleet import Fleet, Process, make_sink, until, where
from tests.support.jobs import app as jobs

pytestmark = pytest.mark.once
QUICK, SHORT = 4_000, 10
LONG = 6.0
PATIENT = {"HOURHAND_POLL": "600"}
"""Nothing is handed back to the queue meanwhile, and nothing is found by looking: what moves is stolen."""


@dataclass
class Pair:
    """One that has claimed everything and is busy with a long run, and one that has stolen a long run from it."""

    fleet: Fleet
    app: Hourhand
    sql: asyncpg.Connection
    schema: str
    victim: Process
    victim_id: int
    thief: Process
    thief_id: int

    async def held_by(self, node: int) -> int:
        return int(await self.sql.fetchval(f"SELECT count(*) FROM {self.schema}.running WHERE worker_id = $1", node))

    async def word(self, slots: int = 4) -> None:
        """What the thief would say if it had idle slots."""
        await self.sql.execute("SELECT pg_notify($1, $2)", self.schema, f"w:{self.victim_id}:{self.thief_id}:{slots}")

    async def giving(self) -> Any:
        return await self.sql.fetchval(
            "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%thief AS MATERIALIZED%'"
            " AND position($1 IN query) > 0",
            f"{self.schema}.",
        )

    async def declared_dead(self, node: int) -> None:
        async def dead() -> Any:
            return await self.sql.fetchval(f"SELECT died_at FROM {self.schema}.nodes WHERE id = $1", node)

        await until(dead, "the death of a node")

    async def hold(self) -> asyncpg.Connection:
        """Hold up what is given to the thief, and have it asked for."""
        connection = await asyncpg.connect(self.fleet.url)
        await connection.execute("BEGIN")
        await connection.execute(f"SELECT FROM {self.schema}.nodes WHERE id = $1 FOR NO KEY UPDATE", self.thief_id)
        await self.word()
        await until(self.giving, "a gift that waits")
        return connection

    async def judge(self, *ended: int) -> None:
        """Each run has ended once, with no attempt charged; only what a process was in the middle of has begun again."""

        async def over() -> bool:
            counts = await where(self.sql, self.schema)
            return counts["runs"] == QUICK + SHORT + 2 and sum(counts.values()) == counts["runs"]

        await until(over, lambda: f"every run to end; logs:\n{self.victim.text()}\n{self.thief.text()}", 90)
        outcomes = await self.sql.fetch(f"SELECT outcome, attempt, count(*) FROM {self.schema}.runs GROUP BY 1, 2")
        assert [tuple(row) for row in outcomes] == [("succeeded", 1, QUICK + SHORT + 2)]
        twice = f"SELECT run, array_agg(pid) AS pids FROM {self.schema}.seen WHERE what = $1 GROUP BY run HAVING count(*) > 1"
        assert await self.sql.fetch(twice, "ended") == [], "nothing had its effect twice"
        again = await self.sql.fetch(twice, "started")
        assert len(again) <= len(ended), "one at a time was going on in each"
        assert all(set(row["pids"]) & set(ended) for row in again), "what began again was begun by one that was killed or paused"


async def start(fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str) -> tuple[Process, int]:
    """A worker with one slot that has claimed all there is: quick runs first, so that it claims ahead."""
    app.registry.tasks.update(jobs.registry.tasks)
    await app.enqueue_many("noop", [{}] * QUICK)
    await app.enqueue_many("nap", [{"seconds": LONG}, *[{"seconds": 0.05}] * SHORT, {"seconds": LONG}])
    victim = fleet.worker("--concurrency", "1", **PATIENT)

    async def loaded() -> bool:
        counts = await where(sql, schema)
        return counts["ready"] == 0 and counts["running"] == SHORT + 2

    await until(loaded, lambda: f"a worker with a deque; its log:\n{victim.text()}")
    return victim, await sql.fetchval(f"SELECT max(id) FROM {schema}.nodes")


@pytest.fixture
async def fleet(url: str, schema: str, sql: asyncpg.Connection, tmp_path: Path) -> AsyncIterator[Fleet]:
    await make_sink(sql, schema)
    one = Fleet(url, schema, tmp_path)
    yield one
    one.close()


@pytest.fixture
async def pair(fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str) -> Pair:
    victim, victim_id = await start(fleet, app, sql, schema)
    thief = fleet.worker("--concurrency", "1", **PATIENT)

    async def stolen() -> Any:
        return await sql.fetchval(
            f"SELECT r.worker_id FROM {schema}.running r JOIN {schema}.seen s ON s.run = r.run_id WHERE r.worker_id <> $1",
            victim_id,
        )

    thief_id = await until(stolen, lambda: f"the idle one to begin what it has stolen; its log:\n{thief.text()}")
    one = Pair(fleet, app, sql, schema, victim, victim_id, thief, thief_id)
    assert await one.held_by(victim_id) == SHORT + 1, "one slot, one run"
    return one


async def test_an_idle_process_takes_over_what_another_has_claimed(pair: Pair) -> None:
    await pair.judge()
    by = dict(await pair.sql.fetch(f"SELECT worker_id, count(*) FROM {pair.schema}.runs WHERE task = 'nap' GROUP BY 1"))
    assert set(by) == {pair.victim_id, pair.thief_id}
    assert "runs.stolen" in pair.thief.text()
    assert await pair.sql.fetchval(f"SELECT count(*) FROM {pair.schema}.nodes WHERE died_at IS NOT NULL") == 0


async def test_the_giver_is_killed_while_its_statement_goes_on(pair: Pair) -> None:
    """The server carries it out all the same: what moved is the thief's, the rest is recovered."""
    holder = await pair.hold()
    pair.victim.kill()
    await holder.close()

    async def moved() -> bool:
        return await pair.held_by(pair.thief_id) > 1

    await until(moved, "the gift of a dead process")
    await pair.judge(pair.victim.pid)


async def test_the_giver_is_killed_and_its_runs_are_recovered_before_its_statement_goes_on(pair: Pair) -> None:
    holder = await pair.hold()
    pair.victim.kill()
    await pair.declared_dead(pair.victim_id)

    async def recovered() -> bool:
        return await pair.held_by(pair.victim_id) == 0

    await until(recovered, "its runs to be recovered")
    await holder.close()
    await pair.judge(pair.victim.pid)


async def test_the_thief_is_killed_with_what_it_was_given(pair: Pair) -> None:
    await pair.word()

    async def moved() -> bool:
        return await pair.held_by(pair.thief_id) > 1

    await until(moved, "the gift")
    pair.thief.kill()
    await pair.judge(pair.thief.pid)


async def test_the_giver_is_paused_past_its_lease_before_its_answer_comes(pair: Pair) -> None:
    holder = await pair.hold()
    pair.victim.send(signal.SIGSTOP)
    await holder.close()
    await pair.declared_dead(pair.victim_id)
    await pair.judge(pair.victim.pid)
    await come_back(pair)


async def test_the_giver_is_paused_past_its_lease_before_it_hears_the_word(pair: Pair) -> None:
    pair.victim.send(signal.SIGSTOP)
    await pair.word()
    await pair.declared_dead(pair.victim_id)
    await pair.judge(pair.victim.pid)
    await come_back(pair)


async def come_back(pair: Pair) -> None:
    """Awake again, it changes nothing, and works on as another."""
    before = await pair.sql.fetch(f"SELECT * FROM {pair.schema}.runs ORDER BY run_id")
    pair.victim.send(signal.SIGCONT)

    async def noticed() -> bool:
        return "node.declared_dead" in pair.victim.text()

    await until(noticed, "the zombie to notice")
    handle = await pair.app.enqueue("nap", {"seconds": 0.01})
    await handle.wait(30)
    assert await pair.sql.fetch(f"SELECT * FROM {pair.schema}.runs WHERE run_id < $1 ORDER BY run_id", handle._number) == before
    begun = f"SELECT count(DISTINCT run) FROM {pair.schema}.seen WHERE pid = $1 AND run < $2"
    assert await pair.sql.fetchval(begun, pair.victim.pid, handle._number) == 1, "nothing but what it was in the middle of"
