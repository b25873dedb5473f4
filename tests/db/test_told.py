"""A run and the word that wakes a worker for it do not wait for the disk; whoever enqueues it does, and whoever claims it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.storage.enqueue import WAKE_EVERY
from tests.db.test_worker import working
from tests.support.fleet import until
from tests.support.servers import OwnServer, own_server

WRITE = "SELECT pg_logical_emit_message(true, 'probe', '')"
WAITING = "SELECT coalesce(array_agg(application_name), '{}') FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture(params=[15, 18])
async def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OwnServer]:
    async with own_server(request.param, tmp_path_factory.mktemp("own")) as one:
        yield one


@asynccontextmanager
async def slow_commits(server: OwnServer, sql: asyncpg.Connection) -> AsyncIterator[None]:
    """As with a disk that takes for ever: every commit waits for a standby that does not exist, until the end."""
    await sql.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    await sql.execute("SELECT pg_reload_conf()")
    probe = await asyncpg.connect(server.url, server_settings={"application_name": "probe"})
    probing = asyncio.create_task(probe.execute(WRITE))

    async def begun() -> bool:
        nonlocal probing
        if probing.done():  # the server had not heard of it yet
            probing = asyncio.create_task(probe.execute(WRITE))
        return "probe" in await sql.fetchval(WAITING)

    await until(begun, "commits to wait")
    try:
        yield
    finally:
        await sql.execute("ALTER SYSTEM RESET synchronous_standby_names")
        await sql.execute("SELECT pg_reload_conf()")
        await probing
        await probe.close()


async def silence(app: Hourhand) -> None:
    """Until the next run takes its word along."""
    waker = (await app._open()).gateway._waker

    async def silent() -> bool:
        return waker.silent

    await until(silent, "the pause after a word to be over")


async def words_of(sql: asyncpg.Connection) -> list[int]:
    """The numbers that were told, as they come in."""
    told: list[int] = []

    def hear(_connection: object, _pid: int, _channel: str, word: object) -> None:
        if str(word).startswith("r:"):
            told.append(int(str(word).split(":")[2]))

    await sql.add_listener("hourhand", hear)
    return told


async def test_the_word_goes_out_at_once_and_nothing_is_said_or_started_before_the_run_is_on_disk(server: OwnServer) -> None:
    sql = await asyncpg.connect(server.url)
    told = await words_of(sql)
    started: list[int] = []
    async with Hourhand(server.url) as app:

        @app.task
        async def note(n: int) -> None:
            started.append(n)

        async with working(app):
            await note.enqueue(n=0)  # what has to be opened is open, and both know the queue

            async def ran() -> bool:
                return started == [0]

            await until(ran, "the first one to run")
            await silence(app)
            told.clear()
            async with slow_commits(server, sql):
                enqueueing = asyncio.create_task(note.enqueue(n=1))

                async def both_wait() -> bool:
                    return {"hourhand enqueuer", "hourhand claimer"} <= {*await sql.fetchval(WAITING)}

                await until(both_wait, "the run to be put in, heard of and claimed, and both commits to wait")
                assert told, "NOTIFY did not wait"
                await asyncio.wait_for(sql.execute("NOTIFY others"), 10)  # nobody holds its lock meanwhile
                assert (enqueueing.done(), started) == (False, [0])
            await enqueueing

            async def ran_too() -> bool:
                return started == [0, 1]

            await until(ran_too, "the second one to run")
    await sql.close()


async def test_what_was_enqueued_survives_a_crash_at_once(server: OwnServer) -> None:
    """The log's writer comes by once in ten seconds here: nobody else brings it to the disk in time."""
    sql = await asyncpg.connect(server.url)
    await sql.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
    await sql.close()
    server.halt()
    server.again()
    async with Hourhand(server.url) as app:
        made = []
        for n in range(5):
            made.append((await app.enqueue("noop", {"n": n}))._number)
            await silence(app)
        server.halt("immediate")
    server.again()
    sql = await asyncpg.connect(server.url)
    assert [row[0] for row in await sql.fetch("SELECT run_id FROM hourhand.ready ORDER BY 1")] == made
    await sql.close()


async def test_few_words_however_many_are_enqueued_and_none_is_forgotten(server: OwnServer) -> None:
    sql = await asyncpg.connect(server.url)
    told = await words_of(sql)
    async with Hourhand(server.url) as app:
        began = time.monotonic()
        for _ in range(300):
            await app.enqueue("noop")
        seconds = time.monotonic() - began

        async def up_to(number: int) -> bool:
            return bool(told) and max(told) >= number

        assert len(told) <= seconds / WAKE_EVERY + 2
        await silence(app)
        first, second = (await app.enqueue("noop"))._number, (await app.enqueue("noop"))._number
        await until(lambda: up_to(second), "a word of the second one, which has none of its own")
        await silence(app)
        together = sorted(one._number for one in await asyncio.gather(*(app.enqueue("noop") for _ in range(10))))
        await until(lambda: up_to(together[1]), "a word of those that shared a statement")
        assert {first, together[0]} <= {*told}
    await sql.close()


async def test_a_run_does_not_wait_for_those_who_keep_its_word_waiting(server: OwnServer) -> None:
    """Somebody's NOTIFY is a part of a commit that takes its time: its lock is not to be had, and the run goes in without its word."""
    sql, other = (
        await asyncpg.connect(server.url),
        await asyncpg.connect(server.url, server_settings={"application_name": "other"}),
    )
    told = await words_of(sql)
    async with Hourhand(server.url) as app:
        await app.enqueue("noop")
        await silence(app)
        async with slow_commits(server, sql):
            telling = asyncio.create_task(other.execute(f"{WRITE}; NOTIFY others"))

            async def it_waits(name: str) -> bool:
                return name in await sql.fetchval(WAITING)

            await until(lambda: it_waits("other"), "its commit to wait")
            enqueueing = asyncio.create_task(app.enqueue("noop"))
            await until(lambda: it_waits("hourhand enqueuer"), "the run to be put in")
        await telling
        number = (await enqueueing)._number

        async def heard() -> bool:
            return number in told

        await until(heard, "its word, later")
    await other.close()
    await sql.close()


async def test_who_gives_up_waiting_does_not_keep_others_from_enqueueing(server: OwnServer) -> None:
    sql = await asyncpg.connect(server.url)
    async with Hourhand(server.url) as app:
        first = (await app.enqueue("noop"))._number
        await silence(app)
        async with slow_commits(server, sql):
            enqueueing = asyncio.create_task(app.enqueue("noop"))

            async def it_waits() -> bool:
                return "hourhand enqueuer" in await sql.fetchval(WAITING)

            await until(it_waits, "its commit to wait")
            enqueueing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await enqueueing
        last = (await app.enqueue("noop"))._number
    assert [row[0] for row in await sql.fetch("SELECT run_id FROM hourhand.ready ORDER BY 1")] == [first, first + 1, last]
    await sql.close()


async def test_without_the_right_to_take_its_word_along_a_run_goes_without(server: OwnServer) -> None:
    sql = await asyncpg.connect(server.url)
    for (function,) in await sql.fetch("SELECT oid::regprocedure::text FROM pg_proc WHERE proname = 'pg_logical_emit_message'"):
        await sql.execute(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC")
    await sql.execute("CREATE ROLE web LOGIN")
    await sql.execute("GRANT USAGE ON SCHEMA hourhand TO web; GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA hourhand TO web")
    await sql.execute("GRANT USAGE ON SEQUENCE hourhand.run_numbers TO web")
    told = await words_of(sql)
    async with Hourhand(server.url.replace("postgres@", "web@")) as app:
        number = (await app.enqueue("noop"))._number

        async def heard() -> bool:
            return number in told

        await until(heard, "its word")
    assert [row[0] for row in await sql.fetch("SELECT run_id FROM hourhand.ready")] == [number], "once"
    await sql.close()
