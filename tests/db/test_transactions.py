"""Enqueueing inside the caller's own transaction: the run exists if and only if the caller commits."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import msgspec
import psycopg
import psycopg.rows
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from hourhand import Hourhand, InvalidOption, InvalidPayload, RunHandle, Task
from hourhand.core.ids import parse_run_id
from hourhand.storage import enqueue as enqueue_module
from hourhand.storage.migrate import migrate
from tests.support.fleet import until, where
from tests.support.outside import everything, lane_name, listening, row, script

pytestmark = pytest.mark.once

FUTURE = datetime(2100, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
OPTIONS: dict[str, Any] = {
    "at": FUTURE, "expires": FUTURE + timedelta(hours=1), "queue": "other", "priority": "low", "key": "k", "unique_for": 60,
    "tags": ["a", "b%s", ":c"], "max_attempts": 3, "timeout": 2.5,
}  # fmt: skip
PAYLOAD = {"n": 7, "note": "100 %s :p0 $1 ☃"}


@pytest.fixture
async def send(app: Hourhand) -> AsyncIterator[Task[Any, Any]]:
    @app.task
    async def send(n: int, note: str = "") -> None: ...

    yield send
    await asyncio.to_thread(app.close)


# Each driver: open, begin, enqueue, then commit or roll back.

Enqueue = Callable[[Any], Any]


async def on_asyncpg(url: str, enqueue: Enqueue, commit: bool) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await _in_asyncpg(connection, enqueue, commit)
    finally:
        await connection.close()


async def on_asyncpg_with_a_json_codec(url: str, enqueue: Enqueue, commit: bool) -> Any:
    """As many applications set it up: jsonb in and out as objects."""
    connection = await asyncpg.connect(url)
    try:
        await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        return await _in_asyncpg(connection, enqueue, commit)
    finally:
        await connection.close()


async def on_an_asyncpg_pool(url: str, enqueue: Enqueue, commit: bool) -> Any:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        return await _in_asyncpg(connection, enqueue, commit)


async def _in_asyncpg(connection: Any, enqueue: Enqueue, commit: bool) -> Any:
    transaction = connection.transaction()
    await transaction.start()
    result = await enqueue(connection)
    await (transaction.commit() if commit else transaction.rollback())
    return result


async def on_async_psycopg(url: str, enqueue: Enqueue, commit: bool) -> Any:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        result = await enqueue(connection)
        await (connection.commit() if commit else connection.rollback())
        return result


async def on_async_psycopg_with_dict_rows(url: str, enqueue: Enqueue, commit: bool) -> Any:
    async with await psycopg.AsyncConnection.connect(url, row_factory=psycopg.rows.dict_row) as connection:
        result = await enqueue(connection)
        await (connection.commit() if commit else connection.rollback())
        return result


async def on_an_async_sqlalchemy_connection(url: str, enqueue: Enqueue, commit: bool) -> Any:
    async with AsyncConnection(async_engine(url)) as connection:
        result = await enqueue(connection)
        await (connection.commit() if commit else connection.rollback())
        return result


async def on_an_async_sqlalchemy_session(url: str, enqueue: Enqueue, commit: bool) -> Any:
    async with AsyncSession(async_engine(url)) as session:
        result = await enqueue(session)
        await (session.commit() if commit else session.rollback())
        return result


def on_psycopg(url: str, enqueue: Enqueue, commit: bool) -> Any:
    with psycopg.connect(url) as connection:
        result = enqueue(connection)
        (connection.commit if commit else connection.rollback)()
        return result


def on_psycopg_with_dict_rows(url: str, enqueue: Enqueue, commit: bool) -> Any:
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as connection:
        result = enqueue(connection)
        (connection.commit if commit else connection.rollback)()
        return result


def on_a_sqlalchemy_connection(url: str, enqueue: Enqueue, commit: bool) -> Any:
    with engine(url).connect() as connection:
        result = enqueue(connection)
        (connection.commit if commit else connection.rollback)()
        return result


def on_a_sqlalchemy_session(url: str, enqueue: Enqueue, commit: bool) -> Any:
    with Session(engine(url)) as session:
        result = enqueue(session)
        (session.commit if commit else session.rollback)()
        return result


def on_a_scoped_sqlalchemy_session(url: str, enqueue: Enqueue, commit: bool) -> Any:
    session = scoped_session(sessionmaker(engine(url)))
    try:
        result = enqueue(session)
        (session.commit if commit else session.rollback)()
        return result
    finally:
        session.remove()


def engine(url: str) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sqlalchemy.NullPool)


def async_engine(url: str) -> AsyncEngine:
    return create_async_engine("postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(url), poolclass=sqlalchemy.NullPool)


ASYNC = [
    on_asyncpg, on_asyncpg_with_a_json_codec, on_an_asyncpg_pool, on_async_psycopg, on_async_psycopg_with_dict_rows,
    on_an_async_sqlalchemy_connection, on_an_async_sqlalchemy_session,
]  # fmt: skip
SYNC = [
    on_psycopg,
    on_psycopg_with_dict_rows,
    on_a_sqlalchemy_connection,
    on_a_sqlalchemy_session,
    on_a_scoped_sqlalchemy_session,
]
Driver = Callable[[str, Enqueue, bool], Any]
Check = Callable[[], Awaitable[None]]


async def enqueue_on(driver: Driver, url: str, task: Task[Any, Any], commit: bool, check: Check | None = None) -> RunHandle:
    """One run through this driver; `check` looks from outside before the transaction ends."""
    loop = asyncio.get_running_loop()

    async def awaited(connection: Any) -> RunHandle:
        handle = await task.options(connection=connection).enqueue(**PAYLOAD)
        if check is not None:
            await check()
        return handle

    def called(connection: Any) -> RunHandle:
        handle = task.options(connection=connection).enqueue_sync(**PAYLOAD)
        if check is not None:
            asyncio.run_coroutine_threadsafe(_wait(check), loop).result()
        return handle

    handle: RunHandle = await (
        driver(url, awaited, commit) if driver in ASYNC else asyncio.to_thread(driver, url, called, commit)
    )
    return handle


async def _wait(check: Check) -> None:
    await check()


@pytest.mark.parametrize("driver", [*ASYNC, *SYNC], ids=lambda one: one.__name__)
async def test_the_run_exists_if_and_only_if_the_caller_commits(
    send: Task[Any, Any], url: str, sql: asyncpg.Connection, schema: str, driver: Driver
) -> None:
    before = await everything(sql, schema)

    async def nothing_yet() -> None:
        assert await everything(sql, schema) == before

    await enqueue_on(driver, url, send, False, nothing_yet)
    await enqueue_on(driver, url, send.options(**OPTIONS), False, nothing_yet)
    await nothing_yet()

    plain = await enqueue_on(driver, url, send, True, nothing_yet)
    run = await row(sql, schema, plain.id)
    assert (run["table"], msgspec.json.decode(run["payload"])) == ("ready", PAYLOAD)
    assert {run[name] for name in ("key", "tags", "options", "expires_at", "enqueued_at")} == {None}

    handle = await enqueue_on(driver, url, send.options(**OPTIONS), True)
    run = await row(sql, schema, handle.id)
    assert not handle.duplicate
    assert (run["table"], run["due_at"], run["expires_at"]) == ("delayed", FUTURE, FUTURE + timedelta(hours=1))
    assert (run["key"], run["tags"]) == ("k", OPTIONS["tags"])
    assert msgspec.json.decode(run["payload"]) == PAYLOAD
    assert msgspec.json.decode(run["options"]) == {"max_attempts": 3, "timeout": 2.5, "unique_for": 60.0}
    assert await lane_name(sql, schema, run["lane"]) == ("other", "low")

    handle = await enqueue_on(driver, url, send.options(delay=90, expires=timedelta(days=40)), True)
    run = await row(sql, schema, handle.id)
    assert run["due_at"] - run["enqueued_at"] == timedelta(seconds=90)
    assert run["expires_at"] - run["enqueued_at"] == timedelta(days=40)


DJANGO = """
import sys
from datetime import UTC, datetime, timedelta

host, port, name, url, schema = sys.argv[1:]
from django.conf import settings
server = {"ENGINE": "django.db.backends.postgresql", "NAME": name, "USER": "postgres", "HOST": host, "PORT": port}
settings.configure(
    DATABASES={"default": server, "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    USE_TZ=True, TIME_ZONE="Asia/Kolkata",
)
import django
django.setup()
from django.db import connection, connections, transaction
from hourhand import Hourhand, InvalidOption

app = Hourhand(url, schema=schema)

@app.task
def send(n: int, note: str = "") -> None: ...

def committed() -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT (SELECT count(*) FROM {schema}.ready) + (SELECT count(*) FROM {schema}.delayed)")
        return cursor.fetchone()[0]

try:
    with transaction.atomic():
        send.options(connection=connection).enqueue_sync(n=1)
        assert committed() == 1
        raise KeyError
except KeyError:
    pass
assert committed() == 0

with transaction.atomic():
    send.options(connection=connection).enqueue_sync(n=2, note="100 %s")
    try:
        with transaction.atomic():
            send.options(connection=connection).enqueue_sync(n=3)
            raise KeyError
    except KeyError:
        pass
    at = datetime(2100, 1, 31, 12, tzinfo=UTC)
    send.options(connection=connections["default"], at=at, expires=at + timedelta(1), tags=["a"], key="k").enqueue_sync(n=4)
    assert send.options(connection=connection, key="k", delay=5).enqueue_sync(n=5).duplicate
assert committed() == 2

try:
    send.options(connection=connections["lite"]).enqueue_sync(n=6)
except InvalidOption as error:
    print(error)
connections.close_all()
app.close()
"""


async def test_django_transactions_and_savepoints_carry_runs(url: str, sql: asyncpg.Connection, schema: str) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(url)
    said = await script(DJANGO, str(parts["host"]), str(parts.get("port", 5432)), str(parts["dbname"]), url, schema)
    assert said == "the Django connection goes to sqlite; Hourhand lives in PostgreSQL\n"
    plain = await sql.fetchrow(f"SELECT * FROM {schema}.ready")
    assert msgspec.json.decode(plain["payload"]) == {"n": 2, "note": "100 %s"}
    timed = await sql.fetchrow(f"SELECT * FROM {schema}.delayed")
    assert (timed["due_at"], timed["tags"], timed["key"]) == (datetime(2100, 1, 31, 12, tzinfo=UTC), ["a"], "k")


# What does not go together


@pytest.mark.parametrize("driver", SYNC, ids=lambda one: one.__name__)
async def test_a_synchronous_connection_is_not_awaited(send: Task[Any, Any], url: str, driver: Driver) -> None:
    def refused(connection: Any) -> None:
        with pytest.raises(InvalidOption, match=r"this is a synchronous (psycopg|sqlalchemy) connection: use the _sync form"):
            asyncio.run(enqueue(connection))

    async def enqueue(connection: Any) -> None:
        async with send._app:
            await send.options(connection=connection).enqueue(n=1)

    await asyncio.to_thread(driver, url, refused, False)


@pytest.mark.parametrize("driver", ASYNC, ids=lambda one: one.__name__)
async def test_an_asynchronous_connection_has_to_be_awaited(
    send: Task[Any, Any], url: str, sql: asyncpg.Connection, schema: str, driver: Driver
) -> None:
    async def refused(connection: Any) -> RunHandle:
        with pytest.raises(
            InvalidOption, match=r"asynchronous (asyncpg|psycopg|sqlalchemy) connection: use the form that is awaited"
        ):
            send.options(connection=connection).enqueue_sync(n=1)
        return await send.options(connection=connection).enqueue(n=2)

    run = await row(sql, schema, (await driver(url, refused, True)).id)
    assert msgspec.json.decode(run["payload"]) == {"n": 2}


async def test_what_is_no_connection_to_postgresql_is_refused(
    send: Task[Any, Any], url: str, sql: asyncpg.Connection, schema: str
) -> None:
    before = await everything(sql, schema)
    memory = sqlalchemy.create_engine("sqlite://")
    with sqlite3.connect(":memory:") as lite, memory.connect() as sqlalchemy_lite, Session(memory) as session:
        async with asyncpg.create_pool(url, min_size=0, max_size=1) as pool, await psycopg.AsyncConnection.connect(url) as apg:
            others: list[Any] = [
                lite, lite.cursor(), sqlalchemy_lite, session, memory, engine(url), async_engine(url), pool, apg.cursor(),
                sessionmaker(memory), url, 7, object(), asyncpg, Hourhand(url),
            ]  # fmt: skip
            for other in others:
                task = send.options(connection=other)
                for attempt in (task.enqueue, task.enqueue_sync):
                    with pytest.raises(
                        InvalidOption, match=r"connection= takes an asyncpg|lives in PostgreSQL|use the _sync form"
                    ):
                        await attempt(n=1)
                with pytest.raises(InvalidOption):
                    await task.enqueue_many([{"n": 1}])
    lite.close()
    memory.dispose()
    assert await everything(sql, schema) == before


async def test_enqueue_many_on_another_driver_says_what_to_do_instead(send: Task[Any, Any], url: str) -> None:
    with psycopg.connect(url) as connection, pytest.raises(InvalidOption, match=r"enqueue_many copies over asyncpg.*in a loop"):
        await send.options(connection=connection).enqueue_many([{"n": 1}])


async def test_enqueue_many_with_a_json_codec_says_what_to_do_instead(
    send: Task[Any, Any], url: str, sql: asyncpg.Connection, schema: str
) -> None:
    async def enqueue(connection: Any) -> None:
        with pytest.raises(InvalidOption, match=r"no binary format encoder for type jsonb.*enqueue one by one"):
            await send.options(connection=connection).enqueue_many([{"n": 1}])

    before = await everything(sql, schema)
    await on_asyncpg_with_a_json_codec(url, enqueue, True)
    assert await everything(sql, schema) == before


# Many in the caller's transaction


async def test_many_runs_exist_if_and_only_if_the_caller_commits(
    send: Task[Any, Any], url: str, sql: asyncpg.Connection, schema: str
) -> None:
    before = await everything(sql, schema)

    async def enqueue(connection: Any) -> Any:
        runs = await send.options(connection=connection).enqueue_many([{"n": n} for n in range(50)])
        assert await everything(sql, schema) == before
        return runs

    await on_asyncpg(url, enqueue, False)
    assert await everything(sql, schema) == before
    runs: Any = await on_an_asyncpg_pool(url, enqueue, True)
    assert len(runs) == (await where(sql, schema))["ready"] == 50


@pytest.mark.parametrize("inside", [True, False], ids=["in a transaction", "without one"])
async def test_many_runs_on_the_callers_connection_are_all_or_none_even_if_the_caller_goes_on(
    send: Task[Any, Any], url: str, sql: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    monkeypatch.setattr(enqueue_module, "COPY_CHUNK", 10)
    bad = [{"n": n} for n in range(25)] + [{"n": "bad"}]

    async def survive(connection: Any) -> RunHandle:
        with pytest.raises(InvalidPayload):
            await send.options(connection=connection, queue="other").enqueue_many(bad)
        return await send.options(connection=connection).enqueue(n=99)

    if inside:
        await on_asyncpg(url, survive, True)
    else:
        connection = await asyncpg.connect(url)
        await survive(connection)
        await connection.close()
    rows = await sql.fetch(f"SELECT payload FROM {schema}.ready")
    assert [msgspec.json.decode(run["payload"])["n"] for run in rows] == [99]


# Keys and words in transactions


@pytest.mark.parametrize("first_commits", [True, False])
async def test_a_key_in_an_open_transaction_makes_rivals_wait_for_its_outcome(
    send: Task[Any, Any], url: str, sql: asyncpg.Connection, schema: str, first_commits: bool
) -> None:
    first_connection = await asyncpg.connect(url)
    transaction = first_connection.transaction()
    await transaction.start()
    first = await send.options(key="k", connection=first_connection).enqueue(n=1)
    rival = asyncio.create_task(send.options(key="k").enqueue(n=2))

    async def rival_waits() -> bool:
        blocked = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)))"
        return bool(await sql.fetchval(blocked, first_connection.get_server_pid()))

    await until(rival_waits, "the rival to wait")
    await (transaction.commit() if first_commits else transaction.rollback())
    second = await rival
    await first_connection.close()
    assert (second.duplicate, second.id == first.id) == (first_commits, first_commits)
    (run,) = await sql.fetch(f"SELECT run_id, payload FROM {schema}.ready")
    assert run["run_id"] == parse_run_id(second.id)
    assert msgspec.json.decode(run["payload"]) == {"n": 1 if first_commits else 2}


async def test_a_thousand_runs_in_one_transaction_send_one_word_for_each_lane(
    send: Task[Any, Any], url: str, sql: asyncpg.Connection, schema: str
) -> None:
    async with listening(url, schema) as words:

        async def thousand(connection: Any) -> RunHandle:
            high, low = (send.options(connection=connection, priority=one) for one in ("high", "low"))
            for n in range(500):
                await high.enqueue(n=n)
                handle = await low.enqueue(n=n)
            assert [word for word in await words.so_far() if word.startswith("r")] == []
            return handle

        await on_asyncpg(url, thousand, False)
        assert [word for word in await words.so_far() if word.startswith("r")] == []
        await on_asyncpg(url, thousand, True)
        firsts = await sql.fetch(
            f"SELECT lane, min(seq) AS seq, count(*) AS runs FROM {schema}.ready GROUP BY lane ORDER BY lane"
        )
        assert [one["runs"] for one in firsts] == [500, 500]
        said = [word for word in await words.so_far() if word.startswith("r")]
        assert sorted(said) == sorted(f"r:{one['lane']}:{one['seq']}" for one in firsts)


async def test_the_next_transaction_on_a_connection_has_a_word_of_its_own(send: Task[Any, Any], url: str, schema: str) -> None:
    connection = await asyncpg.connect(url)
    async with listening(url, schema) as words:
        for transactions in (1, 2, 3):
            async with connection.transaction():
                await send.options(connection=connection).enqueue(n=1)
                await send.options(connection=connection).enqueue(n=2)
            assert len([word for word in await words.so_far() if word.startswith("r")]) == transactions
    await connection.close()


async def test_a_word_that_a_savepoint_took_back_is_said_again(
    send: Task[Any, Any], url: str, sql: asyncpg.Connection, schema: str
) -> None:
    async def enqueue(connection: asyncpg.Connection) -> RunHandle:
        savepoint = connection.transaction()
        await savepoint.start()
        await send.options(connection=connection).enqueue(n=1)
        await savepoint.rollback()
        return await send.options(connection=connection).enqueue(n=2)

    async with listening(url, schema) as words:
        handle = await on_asyncpg(url, enqueue, True)
        lane = (await row(sql, schema, handle.id))["lane"]
        assert [word for word in await words.so_far() if word.startswith("r")] == [f"r:{lane}:{parse_run_id(handle.id)}"]


async def test_two_schemas_in_one_transaction_each_hear_their_word(
    send: Task[Any, Any], url: str, sql: asyncpg.Connection, schema: str
) -> None:
    other = f"{schema[:30]}_other"
    await migrate(sql, other)
    try:
        async with listening(url, schema) as here, listening(url, other) as there:
            async with sql.transaction():
                await sql.execute(f"SELECT {schema}.enqueue('t'), {other}.enqueue('t')")
            assert [word for word in await here.so_far() if word.startswith("r:")]
            assert [word for word in await there.so_far() if word.startswith("r:")]
    finally:
        await sql.execute(f"DROP SCHEMA {other} CASCADE")
