"""What the database says in the end, read from outside: plain queries over the tables, none of the product's own statements."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import asyncpg

from hourhand.core import ids
from hourhand.core.clock import Clock
from hourhand.surfaces.verify.backends import admin
from hourhand.surfaces.verify.observations import (
    Decision,
    EffectRow,
    FinishedRun,
    Firing,
    Observations,
    Sighting,
    Transfer,
)
from hourhand.surfaces.verify.workload import ACCOUNTS, TRANSFERS, app

LIVE = ("ready", "delayed", "parked", "running")
_LOOK_EVERY = 3.0
_RUNS = """SELECT run_id, job_id, task, scheduled_at, enqueued_at, started_at, finished_at, worker_id, outcome::text, attempt, key,
    options->>'max_attempts' AS most, options->>'by_hand' IS NOT NULL AS by_hand, coalesce(jsonb_array_length(errors), 0) AS errors
    FROM {schema}.runs"""
_DEAD = """SELECT run_id, job_id, task, scheduled_at, enqueued_at, started_at, died_at AS finished_at, worker_id, 'dead' AS outcome, attempt,
    key, options->>'max_attempts' AS most, options->>'by_hand' IS NOT NULL AS by_hand, coalesce(jsonb_array_length(errors), 0) AS errors
    FROM {schema}.dead"""


class Witness:
    """Looks at runs that have ended while everything goes on, to see later that they have ended for good."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._seen: set[int] = set()
        self.sightings: list[Sighting] = []

    async def watch(self, url: Any) -> None:
        """Until cancelled. `url()` may change: a standby takes over at another address."""
        while True:
            with suppress(
                OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, asyncio.TimeoutError
            ):
                async with admin(url()) as connection:
                    await self.look(connection)
            await asyncio.sleep(_LOOK_EVERY)

    async def look(self, connection: asyncpg.Connection) -> None:
        rows = await connection.fetch(
            f"(SELECT run_id, outcome::text FROM {self._schema}.runs WHERE finished_at > now() - interval '10 seconds' LIMIT 500)"
            f" UNION ALL (SELECT run_id, 'dead' FROM {self._schema}.dead ORDER BY died_at DESC LIMIT 50)"
        )
        now = datetime.fromtimestamp(Clock.machine(), UTC)
        for run, outcome in rows:
            if run not in self._seen:
                self._seen.add(run)
                self.sightings.append(Sighting(now, ids.run_id(run), outcome))


async def leftovers(connection: asyncpg.Connection, schema: str) -> dict[str, int]:
    counts = ", ".join(f"(SELECT count(*) FROM {schema}.{table}) AS {table}" for table in LIVE)
    return dict((await connection.fetchrow(f"SELECT {counts}")) or {})


async def collect(connection: asyncpg.Connection, schema: str, names: Mapping[int, str], into: Observations) -> None:
    """`names` are the jobs' names, by their numbers."""
    ended = [*await connection.fetch(_RUNS.format(schema=schema)), *await connection.fetch(_DEAD.format(schema=schema))]
    into.runs = [_run(row, names) for row in ended]
    into.dead_rows = Counter(ids.run_id(row[0]) for row in await connection.fetch(f"SELECT run_id FROM {schema}.dead"))
    into.leftovers = await leftovers(connection, schema)
    into.firings = [
        Firing(*row)
        for row in await connection.fetch(
            f"SELECT f.schedule_id, s.shard, f.scheduled_at, f.fired_at, f.epoch, f.node FROM {schema}.firings f"
            f" JOIN {schema}.schedules s ON s.id = f.schedule_id"
        )
    ]
    into.decisions = [
        Decision(names.get(row[0], str(row[0])), *row[1:])
        for row in await connection.fetch(
            f"SELECT job_id, scheduled_at, until, count, outcome, reason, decided_at FROM {schema}.decisions"
        )
    ]
    into.effects = [
        EffectRow(row[0], ids.run_id(row[1]))
        for row in await connection.fetch(f"SELECT encode(token, 'hex'), run_id FROM {schema}.effects")
    ]
    into.transfers = [
        Transfer(ids.run_id(row[0]), *row[1:])
        for row in await connection.fetch(f"SELECT run_id, token, fence, amount, source, target FROM {schema}.{TRANSFERS}")
    ]
    ends = "SELECT id, extract(epoch FROM coalesce(died_at, stopped_at))::float8 FROM {schema}.nodes WHERE coalesce(died_at, stopped_at) IS NOT NULL"
    into.node_ends = {row[0]: row[1] for row in await connection.fetch(ends.format(schema=schema))}
    rows = await connection.fetch(f"SELECT name, balance FROM {schema}.{ACCOUNTS}")
    into.balances = {row[0]: row[1] for row in rows}


def _run(row: asyncpg.Record, names: Mapping[int, str]) -> FinishedRun:
    job = row["job_id"]
    return FinishedRun(
        run_id=ids.run_id(row["run_id"]), job=None if job is None else names.get(job, str(job)), task=row["task"],
        scheduled_at=row["scheduled_at"], finished_at=row["finished_at"], outcome=row["outcome"], attempt=row["attempt"],
        max_attempts=int(row["most"] or app.registry.tasks[row["task"]].retry.max_attempts), enqueued_at=row["enqueued_at"],
        started_at=row["started_at"], errors=row["errors"], worker_id=row["worker_id"], key=row["key"], by_hand=row["by_hand"],
    )  # fmt: skip
