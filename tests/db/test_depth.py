"""Queues that hold no more than is said: who comes too late is refused, or the oldest go; and streams that wait for room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import psycopg
import pytest

from hourhand import Context, Hourhand, QueueFull
from hourhand.core.errors import InvalidOption
from hourhand.storage.admission import AdmissionGateway
from tests.db.test_worker import working
from tests.support.fleet import until

pytestmark = pytest.mark.once


async def declare(app: Hourhand) -> None:
    """As a worker does when it starts."""
    gateway = AdmissionGateway((await app._database()).link("test"))
    for name, rule in app.registry.queues.items():
        await gateway.declare_rule("queue", name, rule)
    await gateway._link.close()


async def waiting(app: Hourhand, sql: asyncpg.Connection) -> list[int]:
    rows = await sql.fetch(f"SELECT payload FROM {app.settings.schema}.ready ORDER BY seq")
    return [int(row["payload"].partition(":")[2].strip(" }")) for row in rows]


async def test_a_full_queue_refuses_by_every_way_in(app: Hourhand, sql: asyncpg.Connection, url: str) -> None:
    app.queue("small", max_depth=5)

    @app.task(queue="small")
    async def work(n: int) -> None: ...

    await declare(app)
    for n in range(5):
        await work.enqueue(n=n)
    with pytest.raises(QueueFull, match=r"queue small is full: 5 wait in it, and max_depth is 5; try again later"):
        await work.enqueue(n=5)
    with pytest.raises(QueueFull):
        await work.options(tags=["a"]).enqueue(n=5)
    with pytest.raises(QueueFull):
        await work.enqueue_many([{"n": 5}])
    # Many at the same time share statements, and each is told.
    outcomes = await asyncio.gather(*(work.enqueue(n=5) for _ in range(10)), return_exceptions=True)
    assert all(isinstance(one, QueueFull) for one in outcomes)
    async with await psycopg.AsyncConnection.connect(url) as other:
        with pytest.raises(QueueFull):
            await work.options(connection=other).enqueue(n=5)
    with pytest.raises(asyncpg.PostgresError, match="queue small is full"):
        await sql.execute(f"SELECT {app.settings.schema}.enqueue('work', '{{\"n\": 5}}', 'small')")
    assert await waiting(app, sql) == [0, 1, 2, 3, 4]
    # What was accepted for later comes in when it is due; it counts then.
    await work.options(delay=timedelta(hours=1)).enqueue(n=6)


async def test_all_or_none_of_many(app: Hourhand, sql: asyncpg.Connection) -> None:
    app.queue("small", max_depth=5)

    @app.task(queue="small")
    async def work(n: int) -> None: ...

    await declare(app)
    with pytest.raises(QueueFull) as full:
        await work.enqueue_many([{"n": n} for n in range(6)])
    assert (await waiting(app, sql), list(full.value.enqueued)) == ([], [])
    await work.enqueue_many([{"n": n} for n in range(5)])
    assert await waiting(app, sql) == [0, 1, 2, 3, 4]


async def test_the_oldest_go_and_it_is_on_record(app: Hourhand, sql: asyncpg.Connection) -> None:
    app.queue("small", max_depth=3, overflow="drop_oldest")

    @app.task(queue="small")
    async def work(n: int) -> None: ...

    await declare(app)
    first = [await work.options(key=f"k{n}").enqueue(n=n) for n in range(3)]
    await work.enqueue(n=3)
    await work.enqueue_many([{"n": 4}])
    assert await waiting(app, sql) == [2, 3, 4]
    run = await first[0].show()
    assert run.state == "cancelled"
    assert run.reason == "dropped: queue small is full (max_depth 3), and newer runs came"
    # Its key is free again.
    assert not (await work.options(key="k0").enqueue(n=9)).duplicate
    assert await waiting(app, sql) == [3, 4, 9]
    with pytest.raises(QueueFull):
        await work.enqueue_many([{"n": n} for n in range(4)])
    assert await waiting(app, sql) == [3, 4, 9]


async def test_the_next_step_of_a_chain_comes_in_however_full_it_is(app: Hourhand, sql: asyncpg.Connection) -> None:
    app.queue("small", max_depth=1)

    @app.task
    async def first() -> None: ...

    @app.task(queue="small")
    async def second(n: int) -> None: ...

    await declare(app)
    await second.enqueue(n=1)
    handle = await first.options(then=second.step(n=2)).enqueue()
    async with working(app, queues=["default"]):
        await handle.result(20)
    assert await waiting(app, sql) == [1, 2]
    with pytest.raises(QueueFull):
        await second.enqueue(n=3)


async def test_a_stream_waits_for_room_and_ends_with_all_of_it(app: Hourhand) -> None:
    app.queue("small", max_depth=20)
    done = []

    @app.task(queue="small")
    async def work(ctx: Context, n: int) -> None:
        done.append(n)

    async def source() -> AsyncIterator[dict[str, int]]:
        for n in range(300):
            yield {"n": n}

    await declare(app)
    async with working(app, concurrency=5):
        made = await work.enqueue_many(source(), commit_every=10, wait=30)
        assert len(made) == len(set(made)) == 300

        async def all_done() -> bool:
            return len(done) == 300

        await until(all_done, "all of them")
    assert sorted(done) == list(range(300))


async def test_a_stream_that_waited_in_vain_says_what_came_in(app: Hourhand, sql: asyncpg.Connection) -> None:
    app.queue("small", max_depth=25)

    @app.task(queue="small")
    async def work(n: int) -> None: ...

    await declare(app)
    with pytest.raises(QueueFull) as full:
        await work.enqueue_many(({"n": n} for n in range(100)), commit_every=10)
    assert len(full.value.enqueued) == 20
    assert await waiting(app, sql) == list(range(20))
    assert (await app.runs.show(full.value.enqueued[0])).payload == {"n": 0}


async def test_a_stream_takes_no_more_than_it_can_hold(app: Hourhand) -> None:
    """Its source is asked for a chunk when the one before is written."""

    @app.task
    async def work(n: int) -> None: ...

    asked = 0

    def source():  # type: ignore[no-untyped-def]
        nonlocal asked
        for n in range(100):
            asked += 1
            yield {"n": n} if n < 55 else {"n": "not a number"}

    with pytest.raises(Exception, match="n"):
        await work.enqueue_many(source(), commit_every=10)
    assert asked == 56
    with pytest.raises(InvalidOption, match="wait lets a stream"):
        await work.enqueue_many([], wait=3)
    with pytest.raises(InvalidOption, match="commit_every must be"):
        await work.enqueue_many([], commit_every=0)
