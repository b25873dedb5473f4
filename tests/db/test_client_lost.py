"""What happens between a client and its server: answers that never arrive, connections that end, nobody there at all."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.client import AsyncClient, Client, DatabaseUnavailable, InvalidOption, Unauthorized
from tests.db.conftest import Served
from tests.db.test_cli import Cemetery, environment
from tests.support.api import ADMIN, ApiProcess
from tests.support.fleet import PROJECT
from tests.support.served import Proxy, between, blocking, client, near
from tests.support.servers import free_port

pytestmark = pytest.mark.once

__all__ = ["blocking", "client", "near"]
NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)


@pytest.fixture
async def proxy(served: Served) -> AsyncIterator[Proxy]:
    async with between(served.api.port) as one:
        yield one


@pytest.fixture
async def far(proxy: Proxy, served: Served) -> AsyncIterator[AsyncClient]:
    """Somebody at the other side of the proxy."""
    async with AsyncClient(proxy.base, ADMIN) as one:
        yield one


# A lost answer


async def test_a_lost_answer_makes_no_second_run(far: AsyncClient, proxy: Proxy, near: Hourhand) -> None:
    proxy.swallow = 1
    handle = await far.enqueue("lost", {"n": 1})
    assert b"201 Created" in proxy.swallowed[0]
    assert [one.run_id for one in await near.runs.list(task="lost")] == [handle.id]
    assert not handle.duplicate
    # Asked for twice it is two runs: only a repetition by the client itself is none.
    other = await far.enqueue("lost", {"n": 1})
    assert [one.run_id for one in await near.runs.list(task="lost")] == [other.id, handle.id]


async def test_no_lost_answer_of_any_verb_does_a_thing_twice(
    far: AsyncClient, proxy: Proxy, near: Hourhand, served: Served, sql: asyncpg.Connection
) -> None:
    schema = served.schema

    async def audited() -> int:
        return int(await sql.fetchval(f"SELECT count(*) FROM {schema}.audit"))

    async def once(work: Callable[[], Awaitable[Any]], changes: int = 1) -> Any:
        """The server does it, nobody hears of it, and it is asked again."""
        before, lost = await audited(), len(proxy.swallowed)
        proxy.swallow = 1
        done = await work()
        assert len(proxy.swallowed) == lost + 1
        assert await audited() == before + changes
        return done

    added = await once(lambda: far.jobs.add("once", schedule="0 0 * * *"))
    assert added.outcome == "added"
    changed = await once(lambda: far.jobs.update("once", version=1, timeout=5))
    assert (changed.outcome, changed.version) == ("replaced", 2)
    await once(lambda: far.jobs.pause("once"))
    await once(lambda: far.jobs.resume("once"))
    triggered = await once(lambda: far.jobs.trigger("once"))
    assert [one.run_id for one in await near.jobs.runs("once")] == [triggered.run_id]
    filled = await once(lambda: far.jobs.backfill("once", NOW - 3 * DAY, NOW))
    assert (len(filled.runs), filled.asked_already) == (3, 0)
    assert await once(lambda: far.jobs.cancel_backfill("once", NOW - 3 * DAY, NOW)) == 3
    assert (await once(lambda: far.jobs.add_many([{"name": "once-more", "schedule": "0 0 * * *"}]))).added == 1
    await once(lambda: far.jobs.delete("once", version=changed.version + 2))
    assert len(await once(lambda: far.enqueue_many("once", [{}, {}]), changes=0)) == 2
    assert len(await near.runs.list(task="once", state="ready")) == 3
    assert await once(lambda: far.runs.cancel(triggered.run_id)) == "cancelled"
    again = await once(lambda: far.runs.retry(triggered.run_id))
    assert again != triggered.run_id
    dead = await Cemetery(sql, schema).bury(queue="once")
    assert (await once(lambda: far.dead.edit(dead, {"invoice_id": 9}))).payload == {"invoice_id": 9}
    assert (await once(lambda: far.dead.replay(dead))).replayed == [dead]
    buried = await Cemetery(sql, schema).bury(queue="once")
    assert await once(lambda: far.dead.purge(buried)) == 1
    await once(lambda: far.queues.pause("once"))
    await once(lambda: far.queues.resume("once"))
    key = await far.keys.create("once")
    assert (await once(lambda: far.keys.revoke(key.key.key_id))).state == "revoked"


async def test_a_key_whose_secret_was_lost_is_told_as_lost(far: AsyncClient, proxy: Proxy, near: Hourhand) -> None:
    proxy.swallow = 1
    with pytest.raises(DatabaseUnavailable):
        await far.keys.create("never-heard-of")
    assert [one.name for one in await near.keys.list()].count("never-heard-of") == 1


async def test_looking_through_a_bad_line(far: AsyncClient, proxy: Proxy) -> None:
    proxy.swallow = 2
    assert (await far.whoami()).role == "admin"


# Nobody there


async def test_nobody_listens() -> None:
    port = free_port()
    async with AsyncClient(f"http://127.0.0.1:{port}", "hh_k_s", retries=1) as nobody:
        with pytest.raises(
            DatabaseUnavailable, match=f"the server http://127.0.0.1:{port} cannot be reached: Connection refused"
        ):
            await nobody.jobs.list()
        with pytest.raises(DatabaseUnavailable):
            await nobody.health()
        with pytest.raises(DatabaseUnavailable):
            await anext(nobody.events())
    async with AsyncClient("http://nowhere.invalid", retries=0) as nowhere:
        with pytest.raises(DatabaseUnavailable, match=r"nowhere\.invalid cannot be reached"):
            await nowhere.jobs.list()


async def test_a_server_that_does_not_answer(proxy: Proxy, served: Served) -> None:
    proxy.held = asyncio.Event()
    async with AsyncClient(proxy.base, ADMIN, timeout=0.2, retries=1) as impatient:
        with pytest.raises(DatabaseUnavailable, match="did not answer in time"):
            await impatient.jobs.list()


async def test_a_server_that_comes_back(url: str, schema: str, tmp_path: Any, served: Served) -> None:
    api = await ApiProcess(url, schema, tmp_path).started()
    async with between(api.port) as proxy, AsyncClient(proxy.base, ADMIN, retries=100) as patient:
        await patient.jobs.add("lasting", schedule="0 0 * * *")
        api.stop()
        looking = asyncio.create_task(patient.jobs.show("lasting"))
        again = ApiProcess(url, schema, tmp_path)
        proxy.target = again.port
        try:
            assert (await looking).name == "lasting"
        finally:
            again.stop()


async def test_wrong_keys(served: Served) -> None:
    async with AsyncClient(served.api.base, "hh_aaaaaaaaaaaaaaaa_nothing") as stranger:
        with pytest.raises(Unauthorized, match="unknown, expired or revoked"):
            await stranger.jobs.list()
        with pytest.raises(Unauthorized):
            await anext(stranger.events())
        assert await stranger.health() == {"status": "ok"}
    async with AsyncClient(served.api.base) as nobody:
        with pytest.raises(Unauthorized, match="HOURHAND_API_KEY"):
            await nobody.jobs.list()


# Events


async def heard(events: AsyncIterator[dict[str, Any]], client: AsyncClient, queue: str) -> dict[str, Any]:
    """The next event, with changes being made until one is heard: who has just begun to listen may miss the first."""
    listening = asyncio.ensure_future(anext(events))
    while not listening.done():
        await client.queues.pause(queue)
        await client.queues.resume(queue)
        await asyncio.wait([listening], timeout=0.05)
    return await listening


async def test_events_are_heard_and_heard_again_after_the_connection_was_lost(
    far: AsyncClient, client: AsyncClient, proxy: Proxy
) -> None:
    async with aclosing(far.events(types=["change"])) as events:
        first = await heard(events, client, "eventful")
        assert (first["type"], first["action"].partition(".")[0], first["subject"]) == ("change", "queue", "eventful")
        proxy.cut()
        seen = first
        while seen["type"] != "gap":
            seen = await heard(events, client, "eventful")
        assert (await heard(events, client, "eventful"))["type"] == "change"
    with pytest.raises(InvalidOption, match="no events of type 'news'"):
        await anext(far.events(types="news"))


def test_events_without_an_event_loop(blocking: Client, served: Served) -> None:
    enough = threading.Event()

    def change() -> None:
        with Client(served.api.base, ADMIN) as other:
            while not enough.is_set():
                other.queues.pause("noisy")
                other.queues.resume("noisy")

    changing = threading.Thread(target=change)
    changing.start()
    try:
        events = blocking.events()
        assert next(events)["type"] in ("change", "runs")
        assert next(events)["type"]
        events.close()
    finally:
        enough.set()
        changing.join()
    assert blocking.health() == {"status": "ok"}


# Processes and threads


def test_threads_share_a_client(blocking: Client) -> None:
    names: list[str] = []

    def ask() -> None:
        names.extend(blocking.whoami().name for _ in range(5))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert names == ["key:HOURHAND_ADMIN_KEY"] * 40


FORK = """
import os, signal, sys
from hourhand.client import Client

client = Client()
client.whoami()
child = os.fork()
signal.alarm(60)  # only keeps a broken test from hanging
assert client.enqueue("forked", {"child": child == 0}).id
assert client.whoami().role == "admin"
if not child:
    client.close()
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert client.whoami().role == "admin"
sys.exit(code)
"""


async def test_a_forked_child_has_connections_of_its_own(served: Served, near: Hourhand) -> None:
    variables = environment(served.url, served.schema, HOURHAND_SERVER=served.api.base, HOURHAND_API_KEY=ADMIN)
    # Newer Pythons warn of any fork beside a thread.
    quiet = ["-W", "error", "-W", "ignore:This process:DeprecationWarning"]
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, *quiet, "-c", FORK], env=variables, cwd=PROJECT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    runs = await near.runs.list(task="forked")
    assert sorted([(await near.runs.show(one.run_id)).payload["child"] for one in runs]) == [False, True]


FORGOTTEN = """
from hourhand.client import Client
print(Client().whoami().role)
"""


async def test_a_client_that_nobody_closes_ends_in_silence(served: Served) -> None:
    variables = environment(served.url, served.schema, HOURHAND_SERVER=served.api.base, HOURHAND_API_KEY=ADMIN)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-W", "error", "-c", FORGOTTEN],
        env=variables,
        cwd=PROJECT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "admin\n", "")
