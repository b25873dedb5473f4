"""Holding runs back and letting them go, on a real database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from hourhand import Context, Hourhand
from hourhand.core.actor import ACTOR, Actor
from hourhand.core.errors import Forbidden, InvalidOption, UnknownHold, UnknownQueue
from hourhand.engine import maintainer
from hourhand.storage.queue import Claim, QueueGateway, queue_gateway
from tests.db.test_encryption import K1, WORD, holding, keep
from tests.db.test_limits import ended
from tests.db.test_worker import working
from tests.support.fleet import until

pytestmark = pytest.mark.once


async def held(app: Hourhand, many: int) -> None:
    async def there() -> bool:
        return sum(one.runs for one in await app.holds.list()) == many

    await until(there, f"{many} runs to be held back")


@asynccontextmanager
async def acting(actor: Actor) -> AsyncIterator[None]:
    token = ACTOR.set(actor)
    try:
        yield
    finally:
        ACTOR.reset(token)


class Hand:
    """A worker's statements, one at a time."""

    def __init__(self, gateway: QueueGateway, sql: asyncpg.Connection, schema: str, node: int, queue: int) -> None:
        self.gateway, self.node = gateway, node
        self._sql, self._schema = sql, schema
        self._lanes, self._names = [queue * 4 + 1], {queue: "default"}

    @classmethod
    @asynccontextmanager
    async def of(cls, app: Hourhand, sql: asyncpg.Connection) -> AsyncIterator[Hand]:
        schema = app.settings.schema
        node = await sql.fetchval(
            f"INSERT INTO {schema}.nodes (kind, name, lease_until, session, info) "
            "VALUES ('worker', 'x', now() + interval '1 hour', false, '{}') RETURNING id"
        )
        gateway = queue_gateway(await app._database(), "test")
        try:
            yield cls(gateway, sql, schema, node, await sql.fetchval(f"SELECT {schema}.queue_number('default')"))
        finally:
            await gateway.close()

    async def version(self) -> int:
        return int(await self._sql.fetchval(f"SELECT version FROM {self._schema}.rulebook"))

    async def claim(self, version: int) -> list[Claim]:
        return await self.gateway.claim(self._lanes, [0], [10], self.node, self._names, version)

    async def claim_parked(self, version: int) -> list[Claim]:
        return await self.gateway.claim_parked(["mail"], self._lanes, 10, self.node, self._names, version, probation=False)


async def test_a_task_is_held_and_let_go(app: Hourhand, sql: asyncpg.Connection) -> None:
    ran: list[int] = []

    @app.task
    async def mail(ctx: Context, n: int) -> None:
        ran.append(n)

    @app.task
    async def other(ctx: Context) -> None:
        pass

    hold = await app.holds.add(task="mail", reason="the server is down")
    runs = await mail.enqueue_many([{"n": n} for n in range(50)])
    async with working(app, concurrency=1):
        await held(app, 50)
        assert await (await other.enqueue()).result(30) is None
        assert not ran
        one = await app.runs.show(runs[0])
        assert (one.state, one.reason) == ("parked", f"held back by hold {hold.id}: the server is down")
        assert {one.reason for one in await app.runs.list(state="parked")} == {one.reason}
        released = await app.holds.release(hold.id)
        assert released.runs == 50
        await ended(app, 51)
    assert ran == list(range(50)), "ready again at their old places"
    assert await app.holds.list() == []
    assert await sql.fetchval(f"SELECT count(*) FROM {app.settings.schema}.parked") == 0


async def test_one_customer_is_held_and_others_go_on(app: Hourhand) -> None:
    ran: list[object] = []

    @app.task
    async def bill(ctx: Context, customer: dict[str, Any]) -> None:
        ran.append(customer["id"])

    @app.task
    async def remind(ctx: Context, customer_id: int) -> None:
        ran.append("reminded")

    hold = await app.holds.add(field="customer.id", value=42)
    tagged = await app.holds.add(tag="eu", queue="default")
    assert (hold.value, hold.in_words, tagged.in_words) == ("42", "customer.id = 42", "tag eu, queue default")
    await bill.enqueue_many([{"customer": {"id": n}} for n in (41, 42, 43, "42", 420)])
    await remind.options(tags=["eu", "x"]).enqueue(customer_id=1)
    await remind.options(tags=["us"]).enqueue(customer_id=42)
    async with working(app):
        await ended(app, 4)
        await held(app, 3)
        assert ran == [41, 43, 420, "reminded"]
        await app.holds.release(tagged.id)
        await ended(app, 5)
        await app.holds.release(hold.id)
        await ended(app, 7)


async def test_what_waits_in_a_worker_is_held_too(app: Hourhand) -> None:
    """Claimed long before, and not begun."""
    begun: list[int] = []
    go_on = asyncio.Event()

    @app.task
    async def slow(ctx: Context, n: int) -> None:
        begun.append(n)
        await go_on.wait()

    async with working(app, concurrency=1) as worker:
        worker.claimer._want = lambda: 50 - len(worker.executor.deque)  # type: ignore[method-assign]
        await slow.enqueue_many([{"n": n} for n in range(10)])

        async def stocked() -> bool:
            return len(worker.executor.deque) == 9

        await until(stocked, "a stock")
        hold = await app.holds.add(task="slow")
        await held(app, 9)
        go_on.set()
        await ended(app, 1)
        assert begun == [0]
        await app.holds.release(hold.id)
        await ended(app, 10)


async def test_who_knows_older_rules_claims_nothing(app: Hourhand, sql: asyncpg.Connection) -> None:
    """It is told by the version: words may be lost, and a survey may be seconds away."""

    @app.task
    async def mail(ctx: Context) -> None:
        pass

    await mail.enqueue()
    async with Hand.of(app, sql) as hand:
        known = await hand.version()
        hold = await app.holds.add(task="mail")
        assert await hand.claim(known) == []
        now = await hand.version()
        (claim,) = await hand.claim(now)
        await hand.gateway.park(hand.node, [claim.run_number], [claim.token], [hold.id])
        assert await hand.claim_parked(now) == [], "it is held"
        await sql.execute(f"UPDATE {app.settings.schema}.parked SET hold = NULL")
        assert await hand.claim_parked(known) == []
        assert len(await hand.claim_parked(now)) == 1


async def test_a_release_and_a_run_that_is_just_put_aside(app: Hourhand, sql: asyncpg.Connection, url: str) -> None:
    """The release waits for it; or has gone before, and then it is not held."""

    @app.task
    async def mail(ctx: Context) -> None:
        pass

    schema = app.settings.schema
    park = (await app._database()).sql["park"]
    await mail.enqueue()
    other = await asyncpg.connect(url)
    try:
        async with Hand.of(app, sql) as hand:
            hold = await app.holds.add(task="mail")
            (claim,) = await hand.claim(await hand.version())
            async with other.transaction():
                assert await other.fetch(park, hand.node, [claim.run_number], [claim.token], [hold.id])
                releasing = asyncio.create_task(app.holds.release(hold.id))
                await until(lambda: _waits(sql), "the release to wait")
            assert (await releasing).runs == 1
            assert await sql.fetchval(f"SELECT seq FROM {schema}.ready") == claim.seq, "at its old place"
            hold = await app.holds.add(task="mail")
            (claim,) = await hand.claim(await hand.version())
            await app.holds.release(hold.id)
            assert await other.fetch(park, hand.node, [claim.run_number], [claim.token], [hold.id])
            assert await sql.fetchval(f"SELECT hold FROM {schema}.parked") is None
    finally:
        await other.close()


async def test_a_release_returns_its_own_and_no_others(app: Hourhand, sql: asyncpg.Connection) -> None:
    holds = {task: (await app.holds.add(task=task)).id for task in ("mail", "bill")}
    for task in holds:
        await app.enqueue(task)
    async with Hand.of(app, sql) as hand:
        for claim in await hand.claim(await hand.version()):
            await hand.gateway.park(hand.node, [claim.run_number], [claim.token], [holds[claim.task]])
    await app.holds.release(holds["mail"])
    schema = app.settings.schema
    assert [row[0] for row in await sql.fetch(f"SELECT task FROM {schema}.ready")] == ["mail"]
    assert [row[0] for row in await sql.fetch(f"SELECT hold FROM {schema}.parked")] == [holds["bill"]]


async def _waits(sql: asyncpg.Connection) -> bool:
    return bool(
        await sql.fetchval("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%holds%'")
    )


async def test_what_a_release_left_behind_is_returned(
    app: Hourhand, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the process had died between the release and the return of the last batch."""
    monkeypatch.setattr(maintainer, "RETURN_EVERY", 0.0)
    ran: list[int] = []

    @app.task
    async def mail(ctx: Context, n: int) -> None:
        ran.append(n)

    hold, kept = await app.holds.add(task="mail"), await app.holds.add(task="kept")
    await mail.enqueue_many([{"n": n} for n in range(20)])
    await app.enqueue("kept")
    schema = app.settings.schema
    async with working(app):
        await held(app, 21)
        await sql.execute(f"UPDATE {schema}.parked SET crashes = 1 WHERE payload->>'n' = '7'")
        await sql.execute(f"DELETE FROM {schema}.holds WHERE id = $1", hold.id)
        await ended(app, 20)
    assert sorted(ran) == list(range(20))
    assert [one.id for one in await app.holds.list()] == [kept.id]
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.parked WHERE hold = $1", kept.id) == 1


async def test_the_same_hold_twice_is_one(app: Hourhand, sql: asyncpg.Connection) -> None:
    first = await app.holds.add(task="mail", reason="one")
    version = await sql.fetchval(f"SELECT version FROM {app.settings.schema}.rulebook")
    assert await app.holds.add(task="mail", reason="another") == first
    many = await asyncio.gather(*(app.holds.add(tag="eu") for _ in range(5)))
    assert len({one.id for one in many}) == 1
    assert len(await app.holds.list()) == 2
    assert await sql.fetchval(f"SELECT version FROM {app.settings.schema}.rulebook") >= version + 1
    assert [one.action for one in await app.audit.list()] == ["hold.add", "hold.add"]
    await app.holds.release(first.id)
    last = (await app.audit.list(action="hold.release"))[0]
    assert (last.subject, last.before) == (str(first.id), {"task": "mail", "reason": "one", "runs": 0})
    with pytest.raises(UnknownHold):
        await app.holds.release(first.id)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"queue": "default"}, "a hold needs a task"),
        ({"field": "a"}, "go together"),
        ({"task": "t", "value": 1}, "go together"),
        ({"field": "a b", "value": 1}, "names an argument"),
        ({"field": "a", "value": [1]}, "value must be"),
        ({"task": "no name"}, "cannot be the name|task"),
        ({"tag": ""}, "tag must be"),
        ({"task": "t", "reason": "x" * 501}, "reason must be"),
        ({"field": "login.Pass-word", "value": "x"}, "is secret"),
    ],
)
async def test_what_cannot_be_held(app: Hourhand, given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        await app.holds.add(**given)
    assert await app.holds.list() == []


async def test_a_part_is_held_by_whose_part_it_is(app: Hourhand) -> None:
    await app.enqueue("t", queue="billing")
    everything = await app.holds.add(task="t")
    async with acting(Actor("key:b", "api", "operator", queues=("billing",))):
        with pytest.raises(Forbidden):
            await app.holds.add(task="u")
        with pytest.raises(Forbidden):
            await app.holds.add(task="u", queue="default")
        own = await app.holds.add(task="u", queue="billing")
        assert await app.holds.list() == [own]
        with pytest.raises(UnknownHold):
            await app.holds.release(everything.id)
        await app.holds.release(own.id)
    async with acting(Actor("key:j", "api", "operator", prefixes=("x",))):
        with pytest.raises(Forbidden):
            await app.holds.add(task="u", queue="billing")
    with pytest.raises(UnknownQueue):
        await app.holds.add(task="t", queue="nowhere")


async def test_what_is_held_takes_nobodys_token(app: Hourhand, sql: asyncpg.Connection) -> None:
    """In a queue with a rate, runs of the one who is held leave the line at once."""
    app.queue("metered", rate="1/hour", fair_key="customer")
    ran: list[str] = []

    @app.task(queue="metered")
    async def call(ctx: Context, customer: str) -> None:
        ran.append(customer)

    await call.enqueue_many([{"customer": "bad"}] * 30)
    schema = app.settings.schema
    async with working(app):
        await ended(app, 1)
        await call.enqueue(customer="good")
        await until(lambda: _streams(sql, schema, 2), "both to wait")
        one = await app.holds.add(field="customer", value="bad")
        assert one.runs == 29
        await sql.execute(f"UPDATE {schema}.gates SET tokens = 1")
        await ended(app, 2)
        assert ran == ["bad", "good"]
        await app.holds.release(one.id)
        await until(lambda: _streams(sql, schema, 1), "them to be in line again")
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.parked WHERE stream IS NOT NULL") == 29


async def test_an_encrypted_run_is_held_by_what_it_carries(url: str, schema: str, sql: asyncpg.Connection) -> None:
    """Workers that have the key open it to see; the record does not tell."""
    async with holding(url, schema, K1) as app:
        hold = await app.holds.add(field="word", value=WORD)
        run, other = await keep(app).enqueue(word=WORD), await keep(app).enqueue(word=f"{WORD}s")
        async with working(app):
            assert await other.result(30) == len(WORD) + 1
            await held(app, 1)
            assert WORD not in str((await app.audit.list(action="hold.add"))[0].after)
            await app.holds.release(hold.id)
            assert await run.result(30) == len(WORD)


async def _streams(sql: asyncpg.Connection, schema: str, many: int) -> bool:
    return bool(await sql.fetchval(f"SELECT count(DISTINCT stream) FROM {schema}.parked") == many)
