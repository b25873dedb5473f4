"""What this machine's PostgreSQL does with the same tables and statements and next to no Python."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import asyncpg

from hourhand.storage.database import PLANNER
from hourhand.storage.statements import load

CONNECTIONS = 4
BATCH = 1_000
"""As many as a worker claims at most."""


async def connect(url: str) -> asyncpg.Connection:
    return await asyncpg.connect(url, server_settings=PLANNER)


async def drain_limit(url: str, schema: str, lane: int, runs: int) -> float:
    """Claim and finish into history, over four connections in batches: runs a second."""
    statements = load(schema)
    setup = await connect(url)
    nodes = [
        await setup.fetchval(
            f"INSERT INTO {schema}.nodes (kind, name, lease_until, session) VALUES ('bench', 'limit', now() + '1 hour', false) RETURNING id"
        )
        for _ in range(CONNECTIONS)
    ]
    links = [await connect(url) for _ in range(CONNECTIONS)]

    async def one(link: asyncpg.Connection, node: int) -> int:
        done = low = 0
        while True:
            rows = await link.fetch(statements["claim"], [lane], [low], [BATCH], node, 1)
            if not rows and not low:
                return done
            # From where the last one ended, as a worker does; and from the start once more, for what others had locked.
            low = max((row[0] for row in rows), default=0)
            stamp = [time.time()] * len(rows)
            ids, tokens = [row[1] for row in rows], [row[2] for row in rows]
            finished = await link.execute(statements["finish_plain"], node, ids, tokens, stamp, stamp)
            done += int(finished.split()[-1])

    began = time.perf_counter()
    done = sum(await asyncio.gather(*(one(link, node) for link, node in zip(links, nodes, strict=True))))
    seconds = time.perf_counter() - began
    assert done == runs, f"{done} of {runs} runs were drained"
    for link in (setup, *links):
        await link.close()
    return runs / seconds


async def copy_limit(url: str, schema: str, lane: int, runs: int) -> float:
    link = await connect(url)
    now = datetime.now(UTC)
    first = await link.fetchval(
        f"SELECT max(n) FROM (SELECT nextval('{schema}.run_numbers') AS n FROM generate_series(1, $1)) AS x", runs
    )
    records = [(first - place, first - place, now, lane, "noop", f'{{"n":{place}}}') for place in range(runs)]
    began = time.perf_counter()
    await link.copy_records_to_table(
        "ready", schema_name=schema, columns=("seq", "run_id", "scheduled_at", "lane", "task", "payload"), records=records
    )
    seconds = time.perf_counter() - began
    await link.close()
    return runs / seconds


async def insert_limit(url: str, schema: str, lane: int, runs: int) -> float:
    """One row, one commit, one after the other, on one connection."""
    link = await connect(url)
    statement = await link.prepare(
        f"INSERT INTO {schema}.ready (seq, run_id, scheduled_at, lane, task, payload) SELECT n, n, now(), $1, 'noop', $2"
        f" FROM nextval('{schema}.run_numbers') AS n RETURNING run_id"
    )
    began = time.perf_counter()
    for place in range(runs):
        await statement.fetchval(lane, f'{{"n":{place}}}')
    seconds = time.perf_counter() - began
    await link.close()
    return runs / seconds
