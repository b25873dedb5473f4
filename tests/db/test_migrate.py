"""The schema's versions, the statements that rely on them, and the indexes those rely on."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator

import asyncpg
import pytest

from hourhand import Hourhand, RunHandle, SchemaMismatch
from hourhand.storage import migrate as module
from hourhand.storage import statements
from hourhand.storage.migrate import Migration, applied_version, check_version, migrate, migrations, newest
from tests.db.test_worker import working


@pytest.fixture
async def fresh(sql: asyncpg.Connection) -> AsyncIterator[str]:
    """The name of a schema that does not exist yet; dropped afterwards."""
    name = f"t_fresh_{uuid.uuid4().hex[:8]}"
    yield name
    await sql.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


async def objects(sql: asyncpg.Connection, schema: str) -> set[str]:
    rows = await sql.fetch("SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace($1)", schema)
    return {one["relname"] for one in rows}


async def test_an_empty_database_gets_every_migration_once(sql: asyncpg.Connection, fresh: str) -> None:
    assert await applied_version(sql, fresh) == 0
    applied = await migrate(sql, fresh)
    assert [one.version for one in applied] == [one.version for one in migrations(fresh)]
    assert await applied_version(sql, fresh) == newest(fresh)
    before = await objects(sql, fresh)
    assert await migrate(sql, fresh) == []
    assert await objects(sql, fresh) == before
    await check_version(sql, fresh)


def test_versions_are_consecutive_from_one() -> None:
    assert [one.version for one in migrations("hourhand")] == list(range(1, newest("hourhand") + 1))


async def test_of_ten_that_migrate_at_once_one_applies(url: str, sql: asyncpg.Connection, fresh: str) -> None:
    connections = await asyncio.gather(*(asyncpg.connect(url) for _ in range(10)))
    try:
        applied = await asyncio.gather(*(migrate(one, fresh) for one in connections))
    finally:
        await asyncio.gather(*(one.close() for one in connections))
    assert sorted(map(len, applied)) == [0] * 9 + [newest(fresh)]
    assert await sql.fetchval(f"SELECT count(*) FROM {fresh}.migrations") == newest(fresh)


async def test_work_that_waits_in_an_older_schema_goes_on_in_the_new_one(
    url: str, sql: asyncpg.Connection, fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "migrations", lambda schema: migrations(schema)[:4])
    await migrate(sql, fresh)
    await sql.execute(f"SELECT {fresh}.enqueue('count', '{{\"n\": 20}}')")
    # A worker died under the old release: its run waits in its lane, as suspects did then.
    await sql.execute(f"UPDATE {fresh}.ready SET crashes = 1")
    monkeypatch.undo()
    assert [one.version for one in await migrate(sql, fresh)] == [one.version for one in migrations(fresh)][4:]
    async with Hourhand(url, schema=fresh) as app:

        @app.task(delivery="exactly_once")
        async def count(n: int) -> int:
            return n + 1

        async with working(app):
            assert await RunHandle(app, 1, False).result(20) == 21


async def test_a_newer_database_is_refused_and_left_alone(url: str, sql: asyncpg.Connection, schema: str) -> None:
    await sql.execute(f"INSERT INTO {schema}.migrations (version, name) VALUES (9999, 'from_the_future')")
    for work in (migrate, check_version):
        with pytest.raises(
            SchemaMismatch, match=r"at schema version 9999, .* knows only \d+.*Upgrade this process; nothing was changed"
        ):
            await work(sql, schema)
    with pytest.raises(SchemaMismatch, match="9999"):
        async with Hourhand(url, schema=schema):
            pass
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.migrations") == newest(schema) + 1


async def test_an_older_database_is_told_to_migrate(
    url: str, sql: asyncpg.Connection, schema: str, fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SchemaMismatch, match=rf"has no schema '{fresh}' yet.*Run `hourhand migrate`; nothing was changed"):
        await check_version(sql, fresh)
    with pytest.raises(SchemaMismatch, match="`hourhand migrate`"):
        async with Hourhand(url, schema=fresh):
            pass
    assert await sql.fetchval("SELECT to_regnamespace($1) IS NULL", fresh)
    known = migrations(schema)
    monkeypatch.setattr(module, "migrations", lambda schema: [*known, Migration(known[-1].version + 1, "next", "SELECT 1")])
    with pytest.raises(SchemaMismatch, match=rf"is at schema version {known[-1].version}, .* needs .*Run `hourhand migrate`"):
        await check_version(sql, schema)


async def test_a_migration_that_fails_half_way_leaves_nothing(
    sql: asyncpg.Connection, fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = migrations(fresh)
    broken = f"CREATE TABLE {fresh}.half (id int); SELECT 1 / 0;"
    monkeypatch.setattr(module, "migrations", lambda schema: [*good, Migration(good[-1].version + 1, "broken", broken)])
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(sql, fresh)
    assert await sql.fetchval("SELECT to_regnamespace($1) IS NULL", fresh)

    monkeypatch.undo()
    await migrate(sql, fresh)
    before = await objects(sql, fresh)
    monkeypatch.setattr(module, "migrations", lambda schema: [*good, Migration(good[-1].version + 1, "broken", broken)])
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(sql, fresh)
    assert await objects(sql, fresh) == before
    assert await applied_version(sql, fresh) == good[-1].version


async def test_a_server_that_is_too_old_is_refused(sql: asyncpg.Connection, fresh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OLDEST_SERVER", 990000)
    with pytest.raises(SchemaMismatch, match=r"this is PostgreSQL \d\d; Hourhand needs 14 or newer"):
        await migrate(sql, fresh)
    assert await sql.fetchval("SELECT to_regnamespace($1) IS NULL", fresh)


@pytest.fixture
async def own_database(url: str, sql: asyncpg.Connection) -> AsyncIterator[asyncpg.Connection]:
    """A database of the test's own, for the schema `hourhand` itself."""
    name = f"t_{uuid.uuid4().hex[:8]}"
    await sql.execute(f"CREATE DATABASE {name}")
    connection = await asyncpg.connect(url, database=name)
    yield connection
    await connection.close()
    await sql.execute(f"DROP DATABASE {name}")


async def test_every_statement_prepares_in_the_default_schema_and_in_another(
    sql: asyncpg.Connection, schema: str, own_database: asyncpg.Connection
) -> None:
    await migrate(own_database, "hourhand")
    for connection, name in ((own_database, "hourhand"), (sql, schema)):
        for statement, text in statements.load(name).items():
            try:
                await connection.prepare(text)
            except asyncpg.PostgresError as error:
                pytest.fail(f"{statement} in {name}: {error}")


@pytest.mark.parametrize("table", ["ready", "delayed", "running", "parked", "keys", "nodes", "duties", "progress"])
async def test_a_hot_table_is_vacuumed_by_settings_of_its_own(sql: asyncpg.Connection, schema: str, table: str) -> None:
    options = await sql.fetchval("SELECT reloptions FROM pg_class WHERE oid = to_regclass($1)", f"{schema}.{table}")
    settings = dict(one.split("=") for one in options or ())
    assert float(settings["autovacuum_vacuum_scale_factor"]) <= 0.02
    assert int(settings["autovacuum_vacuum_threshold"]) <= 5000


async def test_schedules_are_vacuumed_when_many_have_fired(sql: asyncpg.Connection, schema: str) -> None:
    """Each time, every entry of three indexes is read: of millions, not for some thousands."""
    options = await sql.fetchval("SELECT reloptions FROM pg_class WHERE oid = to_regclass($1)", f"{schema}.schedules")
    assert "autovacuum_vacuum_scale_factor=0.2" in options


ROWS = 20_000


async def test_looking_a_run_up_scans_no_hot_table(sql: asyncpg.Connection, schema: str) -> None:
    await sql.execute(f"SELECT {schema}.queue_number('q' || n) FROM generate_series(1, 8) n")
    await sql.execute(
        f"INSERT INTO {schema}.nodes (kind, name, lease_until, session)"
        " SELECT 'worker', 'n', now(), false FROM generate_series(1, 5)"
    )
    columns = "run_id, scheduled_at, lane, task, payload"
    row = "n, now(), 4 + n % 30, 't', '{}'"
    numbers = f"FROM generate_series(1, {ROWS}) n"
    await sql.execute(f"INSERT INTO {schema}.delayed (due_at, {columns}) SELECT now(), {row} {numbers}")
    await sql.execute(f"INSERT INTO {schema}.parked (seq, {columns}) SELECT n, {row} {numbers}")
    await sql.execute(f"INSERT INTO {schema}.dead (died_at, attempt, {columns}) SELECT now(), 1, {row} {numbers}")
    await sql.execute(
        f"INSERT INTO {schema}.running (worker_id, token, claimed_at, seq, attempt, crashes, {columns})"
        f" SELECT 1 + n % 5, n, now(), n, 0, 0, {row} {numbers}"
    )
    await sql.execute(
        f"INSERT INTO {schema}.runs (finished_at, outcome, attempt, {columns}) SELECT now(), 'succeeded', 1, {row} {numbers}"
    )
    lanes = [one["id"] * 4 + 1 for one in await sql.fetch(f"SELECT id FROM {schema}.queues")]
    now = await sql.fetchval("SELECT now()")
    await sql.copy_records_to_table(
        "ready", schema_name=schema, columns=("seq", "run_id", "scheduled_at", "lane", "task", "payload"),
        # Every tenth came back from `delayed`, at another place in its lane.
        records=[(n, n - ROWS if n % 10 == 0 else n, now, lanes[n % len(lanes)], "t", "{}") for n in range(ROWS, 2 * ROWS)],
    )  # fmt: skip
    for table in ("ready", "delayed", "parked", "running", "dead", "runs", "queues", "nodes"):
        await sql.execute(f"ANALYZE {schema}.{table}")

    history = await sql.fetch(f"SELECT DISTINCT c.relname FROM {schema}.runs r JOIN pg_class c ON c.oid = r.tableoid")
    large = {"ready", "delayed", "parked", "running", "dead", *(one["relname"] for one in history)}
    run = 2 * ROWS - 7
    for name in ("find_run", "cancel_pending", "cancel_running"):
        text = statements.load(schema)[name].replace("$1", str(run)).replace("$2", "'why'")
        plan = "\n".join(one[0] for one in await sql.fetch(f"EXPLAIN {text}"))
        assert not large & set(re.findall(r"Seq Scan on (\w+)", plan)), plan
    found = await sql.fetch(statements.load(schema)["find_run"], run)
    assert [one["state"] for one in found] == ["ready"]
