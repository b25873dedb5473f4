"""Indexes that have outgrown their contents become small again, while the queue goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.core.clock import Clock
from hourhand.core.errors import ConfigurationError, DatabaseUnavailable, LockTimeout
from hourhand.engine import maintainer, reindexer
from hourhand.engine.reindexer import Reindexer
from hourhand.storage import indexes
from hourhand.storage.indexes import IndexGateway, Outgrown
from tests.db.test_worker import working
from tests.support.fleet import until

pytestmark = pytest.mark.once

MANY = 100_000
Size = Callable[[], Awaitable[int]]


@pytest.fixture
async def size(app: Hourhand, sql: asyncpg.Connection, schema: str) -> Size:
    """Bytes of the indexes of what is ready."""
    await app.enqueue_many("noop", ({"n": n} for n in range(3)))

    async def bytes_() -> int:
        return int(await sql.fetchval("SELECT pg_indexes_size($1::text::regclass)", f"{schema}.ready"))

    return bytes_


async def grow(app: Hourhand, sql: asyncpg.Connection, schema: str, *, emptied: bool = True) -> None:
    """All that passed through is gone, and vacuum has been there; others' tests may keep it from being removed for a while."""
    await app.enqueue_many("passing", ({} for _ in range(MANY)))
    if emptied:
        await sql.execute(f"DELETE FROM {schema}.ready WHERE task = 'passing'")
    await sql.execute(f"VACUUM ANALYZE {schema}.ready")


@pytest.fixture
async def one(app: Hourhand, monkeypatch: pytest.MonkeyPatch) -> Reindexer:
    """That has looked already, and does not rest."""
    monkeypatch.setattr(reindexer, "AT_MOST_EVERY", 0.0)
    monkeypatch.setattr(reindexer, "AFTER_FAILURE", 0.0)
    made = Reindexer(IndexGateway(await app._database()), 1)
    await made.run_once()
    return made


async def leftovers(sql: asyncpg.Connection, schema: str) -> list[str]:
    rows = await sql.fetch(
        "SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = indrelid "
        "WHERE c.relnamespace = $1::text::regnamespace AND NOT i.indisvalid",
        schema,
    )
    return [row[0] for row in rows]


async def test_an_emptied_index_is_rebuilt(
    app: Hourhand, sql: asyncpg.Connection, schema: str, size: Size, one: Reindexer
) -> None:
    await grow(app, sql, schema)
    grown = await size()

    async def small() -> bool:
        await sql.execute(f"VACUUM {schema}.ready")
        await one.run_once()
        return await size() < grown / 10

    await until(small, "a small index")
    assert not await leftovers(sql, schema)
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.ready") == 3

    async def let_go() -> bool:
        return not await sql.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'hourhand reindexer' AND datname = current_database()"
        )

    await until(let_go, "its connection to be closed: it is held only while it is needed")


async def test_a_full_index_is_left_alone(app: Hourhand, sql: asyncpg.Connection, schema: str, size: Size) -> None:
    await grow(app, sql, schema, emptied=False)
    gateway = IndexGateway(await app._database())
    assert await gateway.outgrown(2**20) == []
    await gateway.close()


@asynccontextmanager
async def busy(url: str, begun_by: str) -> AsyncIterator[None]:
    """A transaction that is held open."""
    other = await asyncpg.connect(url)
    try:
        async with other.transaction(isolation="repeatable_read" if begun_by.startswith("SELECT FROM") else "read_committed"):
            await other.execute(begun_by)
            yield
    finally:
        await other.close()


READS, WRITES = "SELECT FROM pg_class LIMIT 1", "SELECT txid_current()"


@pytest.mark.parametrize("begun_by", [READS, WRITES], ids=["reads", "writes"])
async def test_nothing_is_done_beside_a_long_transaction(
    app: Hourhand, sql: asyncpg.Connection, schema: str, size: Size, url: str, one: Reindexer, begun_by: str
) -> None:
    async with busy(url, begun_by):
        await sql.execute("SELECT txid_current()")
        await one.run_once()  # from now on it is of before the last look
        await grow(app, sql, schema)
        grown = await size()
        await one.run_once()
        await one.run_once()
        assert await size() == grown
        assert not await leftovers(sql, schema)

    async def small() -> bool:
        await sql.execute(f"VACUUM {schema}.ready")
        await one.run_once()
        return await size() < grown / 10

    await until(small, "a small index")


async def test_what_a_rebuild_leaves_that_was_cut_off_is_dropped(
    app: Hourhand, sql: asyncpg.Connection, schema: str, size: Size, url: str, one: Reindexer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "PATIENCE", 0.2)
    await grow(app, sql, schema)

    async def cut_off() -> bool:
        """By a transaction that began after the look before."""
        await sql.execute(f"VACUUM {schema}.ready")
        hasty = Reindexer(IndexGateway(await app._database()), 1)
        await hasty.run_once()
        await sql.execute("SELECT txid_current()")
        async with busy(url, READS), asyncio.timeout(30):
            await hasty.run_once()
        return bool(await leftovers(sql, schema))

    await until(cut_off, "a rebuild that is cut off")
    assert all("_ccnew" in name for name in await leftovers(sql, schema))
    await app.enqueue("noop", {"n": 4})

    async def clean() -> bool:
        await one.run_once()
        return not await leftovers(sql, schema)

    await until(clean, "no remains")
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.ready") == 4


async def test_who_does_not_own_the_tables_leaves_them_alone(
    app: Hourhand, sql: asyncpg.Connection, schema: str, size: Size
) -> None:
    gateway = IndexGateway(await app._database())
    await grow(app, sql, schema)

    async def found() -> bool:
        await sql.execute(f"VACUUM {schema}.ready")
        return bool(await gateway.outgrown(2**20))

    await until(found, "an outgrown index")
    role = f"stranger_{schema}"
    await sql.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA {schema} TO {role}")
    try:
        await gateway._link.command(f"SET ROLE {role}", 5)
        assert not await found()
    finally:
        await gateway.close()
        await sql.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_one_at_a_time(app: Hourhand) -> None:
    database = await app._database()
    first, second = IndexGateway(database), IndexGateway(database)
    assert await first.begin()
    assert not await second.begin()
    await first.close()
    await until(second.begin, "the first to be gone")
    await second.close()


async def test_a_table_that_is_being_vacuumed_is_left_alone(
    app: Hourhand, sql: asyncpg.Connection, schema: str, size: Size, url: str
) -> None:
    gateway = IndexGateway(await app._database())
    await grow(app, sql, schema)

    async def found() -> bool:
        return bool(await gateway.outgrown(2**20))

    async def vacuumed() -> bool:
        await sql.execute(f"VACUUM {schema}.ready")
        return await found()

    await until(vacuumed, "an outgrown index")
    async with busy(url, f"LOCK TABLE {schema}.ready IN SHARE UPDATE EXCLUSIVE MODE"):
        assert not await found()
    await until(found, "an outgrown index again")
    await gateway.close()


class Paper:
    """Indexes of which we say how large they are."""

    possible = True

    def __init__(self) -> None:
        self.found = [Outgrown("ready", True, 2**30, "")]
        self.oldest = self.next = 0
        self.done: list[str] = []
        self.error: Exception | None = None

    async def begin(self) -> bool:
        return True

    async def horizon(self) -> tuple[int, int]:
        self.next += 10
        return self.next, self.oldest or self.next

    async def outgrown(self, least: int) -> list[Outgrown]:
        return self.found

    async def rebuild(self, index: Outgrown) -> int:
        self.done.append(index.name)
        if self.error:
            raise self.error
        return 0

    async def close(self) -> None:
        pass


async def test_an_index_is_rebuilt_once_an_hour_and_sooner_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    paper, now = Paper(), 1_000.0
    monkeypatch.setattr(Clock, "monotonic", staticmethod(lambda: now))
    tired = Reindexer(paper, 1)  # type: ignore[arg-type]
    for seconds, error, times in (
        (0, None, 0),  # what was open at the last look is not known yet
        (180, None, 1), (180, None, 1), (3_100, None, 1), (300, None, 1), (100, LockTimeout("no"), 2), (300, None, 2), (300, None, 2),
        (300, DatabaseUnavailable("away"), 3), (300, None, 3), (300, None, 3), (300, None, 4), (300, None, 4), (300, None, 4),
        (7_200, None, 4),  # what was open a little while ago is not known any more
        (180, None, 5),
    ):  # fmt: skip
        now += seconds
        paper.error = error
        await tired.run_once()
        assert len(paper.done) == times, seconds


async def test_remains_are_dropped_at_once_and_every_time() -> None:
    paper = Paper()
    paper.found = [Outgrown("ready_ccnew", False, 10, "")]
    one = Reindexer(paper, 1)  # type: ignore[arg-type]
    await one.run_once()
    await one.run_once()
    assert paper.done == ["ready_ccnew", "ready_ccnew"]


async def test_it_can_be_turned_off() -> None:
    paper = Paper()
    for one in (Reindexer(paper, 0), Reindexer(paper, 1)):  # type: ignore[arg-type]
        await one.run_once()
        await one.run_once()
        paper.possible = False
    assert paper.done == []
    with pytest.raises(ConfigurationError, match="rebuild_indexes"):
        Hourhand(rebuild_indexes=-1)


async def test_a_worker_does_it(
    app: Hourhand, sql: asyncpg.Connection, schema: str, size: Size, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintainer, "REINDEX_EVERY", 0.2)
    await sql.execute(f"DELETE FROM {schema}.ready")
    await grow(app, sql, schema)
    grown = await size()

    async def small() -> bool:
        await sql.execute(f"VACUUM {schema}.ready")
        return await size() < grown / 10

    async with Hourhand(url, schema=schema, rebuild_indexes=1) as mine, working(mine):
        await until(small, "a small index")
