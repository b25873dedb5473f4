"""Looking at a server from outside, and ending its connections through SQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from random import Random

import asyncpg

from hourhand.core.clock import Clock
from hourhand.core.errors import HourhandError

OURS = "hourhand %"
"""What the connections of the product's processes call themselves, as a LIKE pattern."""
PATIENCE = 60.0


async def connect(url: str) -> asyncpg.Connection:
    return await asyncpg.connect(url, timeout=10, statement_cache_size=0, server_settings={"application_name": "verify"})


@asynccontextmanager
async def admin(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection for ourselves, which does not mind being lost."""
    connection = await connect(url)
    try:
        yield connection
    finally:
        connection.terminate()


async def find_backend(
    connection: asyncpg.Connection, pattern: str = OURS, rng: Random | None = None, ports: Collection[int] | None = None
) -> int:
    """The process of one connection whose application_name is LIKE the pattern; of those that come from `ports`, if given:
    on a server that others use too, nobody else's."""
    rows = await connection.fetch(
        "SELECT pid FROM pg_stat_activity WHERE application_name LIKE $1 AND pid <> pg_backend_pid()"
        " AND datname = current_database() AND backend_type = 'client backend' AND ($2::integer[] IS NULL OR client_port = ANY ($2))"
        " ORDER BY application_name, pid",
        pattern,
        None if ports is None else list(ports),
    )
    if not rows:
        raise LookupError(f"no connection is called {pattern!r}")
    return int((rng or Random()).choice(rows)["pid"])


async def terminate_backend(
    url: str, pattern: str = OURS, rng: Random | None = None, ports: Collection[int] | None = None
) -> int:
    """End one connection through SQL, which harms nobody else; its process."""
    async with admin(url) as connection:
        pid = await find_backend(connection, pattern, rng, ports)
        await connection.execute("SELECT pg_terminate_backend($1)", pid)
        return pid


async def wait_until(connection: asyncpg.Connection, question: str, *arguments: object) -> None:
    """Ask until the answer is yes."""
    deadline = Clock.monotonic() + PATIENCE
    while not await connection.fetchval(question, *arguments):
        if Clock.monotonic() > deadline:
            raise HourhandError(f"waited {PATIENCE:g} s in vain for the database to say yes to: {question}")
        await asyncio.sleep(0.02)
