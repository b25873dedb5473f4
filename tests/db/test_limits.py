"""Queues and tasks with rules: how many at once, how many in a time, in whose turn; on a real database."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import asyncpg
import pytest

from hourhand import Context, Hourhand, Limit, Rate, Retry
from hourhand.core.limits import make_rule
from hourhand.storage.admission import AdmissionGateway
from hourhand.storage.nodes import MaintenanceGateway
from hourhand.storage.queue import QueueGateway
from tests.db.test_worker import working
from tests.support.fleet import until

pytestmark = pytest.mark.once


@pytest.fixture
async def app(url: str, schema: str) -> AsyncIterator[Hourhand]:
    """Nobody looks around while a test lasts: what goes on does so because somebody was told."""
    async with Hourhand(url, schema=schema, lease=30.0, grace=0.5, poll=600.0) as one:
        yield one


class Inside:
    """Who is in a handler, and how many were at most."""

    def __init__(self) -> None:
        self.now: Counter[object] = Counter()
        self.most: Counter[object] = Counter()
        self.order: list[object] = []

    async def stay(self, who: object, pause: float = 0.01) -> None:
        self.order.append(who)
        self.now[who] += 1
        self.most[who] = max(self.most[who], self.now[who])
        await asyncio.sleep(pause)
        self.now[who] -= 1


async def all_ended(app: Hourhand, many: int) -> bool:
    rows = await (await app._database()).using(lambda one: one.fetch(f"SELECT count(*) FROM {app.settings.schema}.runs"))
    return int(rows[0][0]) >= many


async def ended(app: Hourhand, many: int) -> None:
    await until(lambda: all_ended(app, many), f"the end of {many} runs")


async def left_behind(app: Hourhand, sql: asyncpg.Connection) -> list[int]:
    """Slots, streams and runs that are still about."""
    tables = ("slots", "parked", "running", "ready")
    return [await sql.fetchval(f"SELECT count(*) FROM {app.settings.schema}.{table}") for table in tables]


async def test_at_most_so_many_of_a_task_at_once(app: Hourhand, sql: asyncpg.Connection) -> None:
    inside = Inside()

    @app.task(concurrency=3)
    async def careful(ctx: Context) -> None:
        await inside.stay("all")

    async with working(app, concurrency=20), working(app, concurrency=20):
        await careful.enqueue_many([{}] * 60)
        await ended(app, 60)
    assert inside.most["all"] == 3
    assert await left_behind(app, sql) == [0, 0, 0, 0]


async def test_at_most_so_many_for_each_value_of_a_key(app: Hourhand) -> None:
    inside = Inside()

    @app.task(concurrency=[Limit(5), Limit(2, key="customer")])
    async def careful(ctx: Context, customer: int) -> None:
        await asyncio.gather(inside.stay("all"), inside.stay(customer))

    async with working(app, concurrency=20):
        await careful.enqueue_many([{"customer": n % 4} for n in range(80)])
        await ended(app, 80)
    assert inside.most["all"] == 5
    assert all(inside.most[customer] == 2 for customer in range(4))


async def test_a_queues_limit_holds_for_all_of_its_tasks(app: Hourhand) -> None:
    inside = Inside()
    app.queue("narrow", concurrency=2)

    @app.task(queue="narrow")
    async def one(ctx: Context) -> None:
        await inside.stay("all")

    @app.task(queue="narrow", priority="high")
    async def other(ctx: Context) -> None:
        await inside.stay("all")

    async with working(app, concurrency=20):
        await one.enqueue_many([{}] * 20)
        await other.enqueue_many([{}] * 20)
        await ended(app, 40)
    assert inside.most["all"] == 2


async def test_a_limited_task_in_a_queue_that_has_no_rules(app: Hourhand) -> None:
    inside = Inside()

    @app.task(concurrency=2)
    async def careful(ctx: Context) -> None:
        await inside.stay("careful")

    @app.task
    async def free(ctx: Context) -> None:
        await inside.stay("free")

    async with working(app, concurrency=20):
        for _ in range(20):
            await careful.options(queue="elsewhere").enqueue()
            await free.options(queue="elsewhere").enqueue()
        await ended(app, 40)
    assert inside.most["careful"] == 2


async def test_a_failed_run_gives_its_slot_away_until_it_is_tried_again(app: Hourhand, sql: asyncpg.Connection) -> None:
    @app.task(concurrency=1, retry=Retry(max_attempts=3, base=0.05, cap=0.05))
    async def shaky(ctx: Context, n: int) -> None:
        if ctx.attempt < 2:
            raise ValueError("not yet")

    async with working(app):
        await shaky.enqueue_many([{"n": n} for n in range(5)])
        await ended(app, 5)
    assert await left_behind(app, sql) == [0, 0, 0, 0]


async def test_a_bucket_lets_its_burst_through_and_then_its_rate(app: Hourhand) -> None:
    starts: list[float] = []

    @app.task(rate=Rate("20/s", burst=5))
    async def call(ctx: Context) -> None:
        starts.append(asyncio.get_running_loop().time())

    async with working(app):
        await call.enqueue_many([{}] * 25)
        await ended(app, 25)
    # Within any span there are at most the bucket and what flowed in meanwhile; a start may come late, and never early.
    for first in range(len(starts)):
        for last in range(first, len(starts)):
            assert last - first + 1 <= 5 + 20 * (starts[last] - starts[first]) + 2


async def test_tenants_take_turns(app: Hourhand, sql: asyncpg.Connection) -> None:
    order = []

    @app.task(fair_key="tenant")
    async def work(ctx: Context, tenant: str) -> None:
        order.append(tenant)
        if len(order) == 20:
            await work.enqueue(tenant="small")
            await until(in_line, "the small one to be in line")

    async def in_line() -> bool:
        waits = await sql.fetchval(f"SELECT count(*) FROM {app.settings.schema}.streams WHERE fair = 'small'")
        return bool(waits) or "small" in order

    # As many large ones as there is room: who comes third must not wait for both to be through.
    await work.enqueue_many([{"tenant": tenant} for tenant in ("large", "other")] * 150)
    async with working(app, concurrency=2):
        await ended(app, 301)
    assert order.index("small") <= 40


async def _reached(order: Sequence[object], many: int) -> bool:
    return len(order) >= many


async def _has(order: Sequence[object], who: object) -> bool:
    return who in order


async def test_the_earliest_deadline_comes_first(app: Hourhand) -> None:
    order = []
    app.queue("urgent", order="deadline")

    @app.task(queue="urgent")
    async def work(ctx: Context, n: int) -> None:
        order.append(n)

    @app.task(queue="urgent", concurrency=5)
    async def other(ctx: Context, n: int) -> None:
        order.append(n)

    async with working(app, concurrency=1):
        await app.queues.pause("urgent")
        for n in (7, 3, 9, 1, 5):
            await work.options(expires=100 * n).enqueue(n=n)
        await work.enqueue(n=100)
        for n in (8, 2, 6, 4):
            await other.options(expires=100 * n).enqueue(n=n)
        await work.enqueue(n=101)
        await app.queues.resume("urgent")
        await ended(app, 11)
    assert order == [1, 2, 3, 4, 5, 6, 7, 8, 9, 100, 101]


async def test_a_rule_that_changes_while_runs_wait(app: Hourhand, sql: asyncpg.Connection) -> None:
    inside = Inside()

    @app.task(queue="busy")
    async def work(ctx: Context, customer: int) -> None:
        await asyncio.gather(inside.stay("all"), inside.stay(customer))

    async def order(text: str) -> None:
        await sql.execute(f"SELECT {app.settings.schema}.set_rule('queue', 'busy', NULL, $1::jsonb)", text)

    await order('{"limits": [{"key": "", "slots": 3}]}')
    async with working(app, concurrency=20):
        await work.enqueue_many([{"customer": n % 3} for n in range(60)])
        await until(lambda: _reached(inside.order, 20), "some of them")
        assert inside.most["all"] == 3
        # Another number for the same limit, then another limit altogether, then none.
        await order('{"limits": [{"key": "", "slots": 1}]}')
        await ended(app, 60)
        await order('{"limits": [{"key": "customer", "slots": 2}]}')
        inside.most.clear()
        await work.enqueue_many([{"customer": n % 3} for n in range(60)])
        await ended(app, 120)
        assert [inside.most[customer] for customer in range(3)] == [2, 2, 2]
        assert inside.most["all"] == 6
        await order("{}")
        inside.most.clear()
        await work.enqueue_many([{"customer": n % 3} for n in range(60)])
        await ended(app, 180)
        assert inside.most["all"] > 6
    assert await left_behind(app, sql) == [0, 0, 0, 0]


async def test_a_new_limit_holds_for_those_that_wait_already(app: Hourhand, sql: asyncpg.Connection) -> None:
    inside = Inside()
    app.queue("busy", fair_key="customer")

    @app.task(queue="busy")
    async def work(ctx: Context, customer: int) -> None:
        await inside.stay("all")

    gateway = AdmissionGateway((await app._database()).link("test"))
    await gateway.declare_rule("queue", "busy", app.registry.queues["busy"])
    await work.enqueue_many([{"customer": n % 3} for n in range(40)])
    number = await sql.fetchval(f"SELECT {app.settings.schema}.queue_number('busy')")
    version = (await gateway.read_rules()).version
    assert [one.runs for one in await gateway.line_up([4 * number + 1], [0], 100, version)] == [40]
    app.registry.queues["busy"] = make_rule(fair_key="customer", concurrency=2)
    async with working(app, concurrency=10):
        await ended(app, 40)
    assert inside.most["all"] == 2
    await gateway._link.close()


async def test_what_the_code_no_longer_says_is_over(app: Hourhand, sql: asyncpg.Connection) -> None:
    async def rules() -> dict[str, str]:
        rows = await sql.fetch(f"SELECT name, settings FROM {app.settings.schema}.rules WHERE settings <> '{{}}'")
        return {row["name"]: row["settings"] for row in rows}

    app.queue("narrow", concurrency=2)

    @app.task(concurrency=1)
    async def careful() -> None: ...

    labels = {"app": "shop"}
    async with working(app, labels=labels):
        assert set(await rules()) == {"narrow", "careful"}
    app.registry.queues.clear()
    app.registry.tasks.clear()

    @app.task
    async def other() -> None: ...

    async with working(app, labels={"app": "another"}):
        assert set(await rules()) == {"narrow", "careful"}
    async with working(app, labels=labels):
        assert await rules() == {}
        assert not await sql.fetchval(f"SELECT bool_or(managed) FROM {app.settings.schema}.queues")
        await (await other.enqueue()).result(10)


async def test_an_urgent_run_goes_before_what_is_in_stock(app: Hourhand) -> None:
    """The only slot is taken, and more waits for it than is asked for: still it comes, and comes next."""
    order: list[str] = []

    @app.task
    async def work(ctx: Context, who: str, n: int) -> None:
        order.append(who)
        if (who, n) == ("low", 2_000):
            stock.append(len(worker.executor.deque))
            await work.options(priority="high").enqueue(who="high", n=0)
            await until(first_is_urgent, "the urgent one to be in front")

    async def first_is_urgent() -> bool:
        return bool(worker.executor.deque) and worker.executor.deque[0].lane % 4 == 0

    stock: list[int] = []
    await work.options(priority="low").enqueue_many([{"who": "low", "n": n} for n in range(4_000)])
    async with working(app, concurrency=1) as worker:
        await ended(app, 4_001)
    assert stock[0] > 1
    assert order.index("high") == 2_001


async def test_no_word_is_needed_for_the_next(app: Hourhand) -> None:
    """Whoever ends one of a limit lets the next one in by itself: ten one after another take no look around in between."""

    @app.task(concurrency=1)
    async def careful(ctx: Context, n: int) -> None: ...

    async with working(app) as worker:
        await careful.enqueue_many([{"n": n} for n in range(10)])
        await ended(app, 1)
        worker.claimer._next_survey = float("inf")
        await ended(app, 10)


async def test_a_dead_holders_slots_are_told_of(app: Hourhand, sql: asyncpg.Connection) -> None:
    """Recovery says that there is room; nobody has to look around for it."""

    @app.task(concurrency=1)
    async def careful(ctx: Context) -> None: ...

    schema = app.settings.schema
    async with working(app) as worker:
        dead = await sql.fetchval(
            f"INSERT INTO {schema}.nodes (kind, name, lease_until, session) VALUES ('worker', 'gone', now() + '1 hour', false) RETURNING id"
        )
        await app.queues.pause("default")
        first = await careful.enqueue()
        gateway = AdmissionGateway((await app._database()).link("test"))
        version = (await gateway.read_rules()).version
        lane = 4 * await sql.fetchval(f"SELECT {schema}.queue_number('default')") + 1
        await gateway.line_up([lane], [0], 10, version)
        await sql.execute(f"UPDATE {schema}.queues SET paused_at = NULL")
        (claim,) = await gateway.admit(dead, version, [(lane, 1)], ["careful"], {lane // 4: "default"})
        assert claim.run_number == first._number
        second = await careful.enqueue()
        worker.claimer.hear("q")

        async def waits() -> bool:
            return bool(await sql.fetchval(f"SELECT count(*) FROM {schema}.streams WHERE waits_for IS NOT NULL"))

        await until(waits, "the second to wait")
        worker.claimer._next_survey = float("inf")
        await sql.execute(f"UPDATE {schema}.nodes SET died_at = now() WHERE id = $1", dead)
        await second.result(30)
        await gateway._link.close()


async def test_nothing_of_a_managed_queue_is_claimed_plainly(app: Hourhand, sql: asyncpg.Connection) -> None:
    """Nor by a worker whose rules are old. What waits on probation needs a slot like the others."""

    @app.task
    async def work(n: int) -> None: ...

    schema, database = app.settings.schema, await app._database()
    plain, ruled = QueueGateway(database.link("plain")), AdmissionGateway(database.link("ruled"))
    node = await sql.fetchval(
        f"INSERT INTO {schema}.nodes (kind, name, lease_until, session) VALUES ('worker', 'x', now() + '1 hour', false) RETURNING id"
    )
    number = await sql.fetchval(f"SELECT {schema}.queue_number('default')")
    lane, names = 4 * number + 1, {number: "default"}
    await work.enqueue_many([{"n": n} for n in range(6)])
    old = (await ruled.read_rules()).version
    assert len(await plain.claim([lane], [0], [1], node, names, old)) == 1
    await ruled.declare_rule("queue", "default", make_rule(concurrency=2))
    new = (await ruled.read_rules()).version
    assert new > old
    assert await plain.claim([lane], [0], [1], node, names, old) == []
    assert await plain.claim([lane], [0], [1], node, names, new) == []
    assert await ruled.line_up([lane], [0], 100, old) == []
    assert [one.runs for one in await ruled.line_up([lane], [0], 100, new)] == [5]
    assert await ruled.admit(node, old, [(lane, 5)], ["work"], names) == []
    assert await ruled.admit(node, new, [(lane, 5)], ["another"], names) == []
    assert len(await ruled.admit(node, new, [(lane, 5)], ["work"], names)) == 2
    assert await ruled.admit(node, new, [(lane, 5)], ["work"], names) == []
    await plain._link.close()
    await ruled._link.close()


async def test_who_is_on_probation_needs_a_slot_too(app: Hourhand, sql: asyncpg.Connection) -> None:
    @app.task(concurrency=1)
    async def careful(n: int) -> None: ...

    schema, database = app.settings.schema, await app._database()
    plain, ruled = QueueGateway(database.link("plain")), AdmissionGateway(database.link("ruled"))
    node = await sql.fetchval(
        f"INSERT INTO {schema}.nodes (kind, name, lease_until, session) VALUES ('worker', 'x', now() + '1 hour', false) RETURNING id"
    )
    number = await sql.fetchval(f"SELECT {schema}.queue_number('default')")
    lane, names = 4 * number + 1, {number: "default"}
    await ruled.declare_rule("task", "careful", careful._definition.rule)
    await ruled.manage_queues(["default"])
    version = (await ruled.read_rules()).version
    await careful.enqueue_many([{"n": n} for n in range(2)])
    await ruled.line_up([lane], [0], 100, version)
    (held,) = await ruled.admit(node, version, [(lane, 5)], ["careful"], names)
    await sql.execute(f"UPDATE {schema}.parked SET crashes = 1, stream = NULL")
    for probation in (True, False):
        assert await plain.claim_parked(["careful"], [lane], 5, node, names, version, probation=probation) == []
    assert [place for place, _ in await ruled.return_parked([number], ["careful"], 10)] == [lane]
    await ruled.line_up([lane], [0], 100, version)
    assert await ruled.admit(node, version, [(lane, 5)], ["careful"], names) == []
    assert await plain.hand_back(node, [held.run_number], [held.token]) == 1
    assert await ruled.open_gates(held.gates or [], sweep=False) == ({lane}, None)
    assert await ruled.admit(node, version, [(lane, 5)], ["careful"], names) == []
    (other,) = await ruled.admit(node, version, [(lane, 5)], ["careful"], names, suspects=1)
    assert other.crashes == 1
    await plain._link.close()
    await ruled._link.close()


async def test_gates_are_cleared_away_when_nobody_needs_them(app: Hourhand, sql: asyncpg.Connection) -> None:
    """And if somebody comes just then, he lines up again and finds a gate."""

    @app.task(concurrency=Limit(1, key="customer"))
    async def careful(customer: int) -> None: ...

    schema, database = app.settings.schema, await app._database()
    plain, ruled = QueueGateway(database.link("plain")), AdmissionGateway(database.link("ruled"))
    chores = MaintenanceGateway(database.link("chores"))
    node = await sql.fetchval(
        f"INSERT INTO {schema}.nodes (kind, name, lease_until, session) VALUES ('worker', 'x', now() + '1 hour', false) RETURNING id"
    )
    number = await sql.fetchval(f"SELECT {schema}.queue_number('default')")
    lane, names = 4 * number + 1, {number: "default"}
    await ruled.declare_rule("task", "careful", careful._definition.rule)
    await ruled.manage_queues(["default"])
    version = (await ruled.read_rules()).version

    async def gates() -> int:
        await chores.tidy_gates(100)
        return int(await sql.fetchval(f"SELECT count(*) FROM {schema}.gates"))

    await careful.enqueue_many([{"customer": n} for n in (1, 1, 2)])
    await ruled.line_up([lane], [0], 100, version)
    assert await gates() == 2
    claims = await ruled.admit(node, version, [(lane, 5)], ["careful"], names)
    assert sorted(claim.payload for claim in claims) == ['{"customer": 1}', '{"customer": 2}']
    assert await gates() == 2
    await sql.execute(f"DELETE FROM {schema}.gates")
    await ruled.open_gates([], sweep=True)
    assert await ruled.admit(node, version, [(lane, 5)], ["careful"], names) == []
    assert [one.runs for one in await ruled.line_up([lane], [0], 100, version)] == [1]
    assert await ruled.admit(node, version, [(lane, 5)], ["careful"], names) == []
    await plain.hand_back(node, [claim.run_number for claim in claims], [claim.token for claim in claims])
    await sql.execute(f"DELETE FROM {schema}.ready")
    await ruled.open_gates([], sweep=True)
    (last,) = await ruled.admit(node, version, [(lane, 5)], ["careful"], names)
    await plain.hand_back(node, [last.run_number], [last.token])
    assert await gates() == 0
    for link in (plain._link, ruled._link, chores._link):
        await link.close()


async def test_the_earliest_deadlines_of_all_tasks_are_admitted_together(app: Hourhand, sql: asyncpg.Connection) -> None:
    app.queue("default", order="deadline")

    @app.task
    async def odd(n: int) -> None: ...

    @app.task(concurrency=5)
    async def even(n: int) -> None: ...

    schema, ruled = app.settings.schema, AdmissionGateway((await app._database()).link("ruled"))
    node = await sql.fetchval(
        f"INSERT INTO {schema}.nodes (kind, name, lease_until, session) VALUES ('worker', 'x', now() + '1 hour', false) RETURNING id"
    )
    await ruled.declare_rule("task", "even", even._definition.rule)
    await ruled.declare_rule("queue", "default", app.registry.queues["default"])
    number = await sql.fetchval(f"SELECT {schema}.queue_number('default')")
    lane, version = 4 * number + 1, (await ruled.read_rules()).version
    for n in range(1, 11):
        await (odd if n % 2 else even).options(expires=100 * n).enqueue(n=n)
    await ruled.line_up([lane], [0], 100, version)
    for expected in ({1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10}):
        claims = await ruled.admit(node, version, [(lane, 4)], ["odd", "even"], {number: "default"})
        assert {int(claim.payload.partition(":")[2].strip(" }")) for claim in claims} == expected
    await ruled._link.close()


async def test_nobody_looks_all_the_time_while_a_rate_is_waited_for(app: Hourhand, sql: asyncpg.Connection) -> None:
    """Neither at a bucket that fills slowly, nor at one that is full while its slots are taken."""
    gate = asyncio.Event()

    @app.task(rate=Rate("1/hour", burst=2), concurrency=2, fair_key="n")
    async def seldom(ctx: Context, n: int) -> None: ...

    @app.task(queue="long", rate=Rate("100/s", burst=1), concurrency=2, fair_key="n")
    async def long(ctx: Context, n: int) -> None:
        await gate.wait()

    trips = (await app._database()).trips.by_statement
    async with working(app, concurrency=4):
        await seldom.enqueue_many([{"n": n} for n in range(5)])
        await long.enqueue_many([{"n": n} for n in range(4)])
        await ended(app, 2)
        # A stretch of time, not a deadline: whoever looks without pause does so hundreds of times in it.
        before = trips["open_gates"].count + trips["admit"].count
        heartbeats = trips["tick"].count

        async def later() -> bool:
            return trips["tick"].count >= heartbeats + 3

        await until(later, "three ticks of the maintainer")
        assert trips["open_gates"].count + trips["admit"].count - before < 60
        opening = await sql.fetchval(f"SELECT max(opens_at) - now() FROM {app.settings.schema}.gates")
        assert opening > timedelta(minutes=30)
        gate.set()
        await ended(app, 6)


async def test_whom_a_dissolved_stream_left_behind_comes_back(app: Hourhand, sql: asyncpg.Connection, url: str) -> None:
    """Somebody's open transaction has a run in hand while a rule changes: neither waits for the other."""

    @app.task(queue="busy")
    async def work(n: int) -> None: ...

    schema, database = app.settings.schema, await app._database()
    ruled, chores = AdmissionGateway(database.link("ruled")), MaintenanceGateway(database.link("chores"))
    await ruled.declare_rule("queue", "busy", make_rule(concurrency=2))
    await work.enqueue_many([{"n": n} for n in range(3)])
    number = await sql.fetchval(f"SELECT {schema}.queue_number('busy')")
    await ruled.line_up([4 * number + 1], [0], 100, (await ruled.read_rules()).version)
    other = await asyncpg.connect(url)
    transaction = other.transaction()
    await transaction.start()
    await other.execute(f"DELETE FROM {schema}.parked WHERE payload @> '{{\"n\": 1}}'")
    await ruled.declare_rule("queue", "busy", make_rule(fair_key="n"))
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.ready") == 2
    await transaction.rollback()
    await other.close()
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.parked") == 1
    await chores.tidy_gates(100)
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.ready") == 3
    await ruled._link.close()
    await chores._link.close()


async def test_more_streams_than_are_looked_at_in_one_time(app: Hourhand) -> None:
    """Behind hundreds that find their gate closed there is one that may pass: it does, without anybody's look around."""
    passed = asyncio.Event()

    @app.task(queue="wide", concurrency=1, fair_key="n")
    async def closed(ctx: Context, n: int) -> None:
        await passed.wait()

    @app.task(queue="wide", fair_key="n")
    async def open_(ctx: Context, n: int) -> None:
        passed.set()

    await closed.enqueue_many([{"n": n} for n in range(5_000)])
    await open_.enqueue(n=0)
    async with working(app, concurrency=5):
        await asyncio.wait_for(passed.wait(), 60)


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once", "exactly_once"])
async def test_a_rate_and_a_limit_are_used_to_the_full(app: Hourhand, delivery: str) -> None:
    """Runs that end at once: whoever waits for a token or a slot has it as soon as it is there."""
    starts: list[float] = []

    @app.task(rate=Rate("20/s", burst=1), concurrency=1, delivery=delivery)
    async def call(ctx: Context) -> None:
        starts.append(asyncio.get_running_loop().time())

    async with working(app):
        await call.enqueue_many([{}] * 15)
        await ended(app, 15)
    # A start may come late, so that the next one seems early; on the whole none does.
    assert starts[-1] - starts[0] > 0.9 * 14 / 20


async def test_room_goes_to_whoever_can_use_it(app: Hourhand) -> None:
    """Others are before them: whose own limit is reached, whose runs were cancelled, who are in a queue that others serve."""
    gate, seen = asyncio.Event(), list[str]()

    @app.task(concurrency=[Limit(7), Limit(1, key="who")])
    async def work(ctx: Context, who: str, wait: bool = False) -> None:
        seen.append(who)
        if wait:
            await gate.wait()

    async def started(*who: str) -> None:
        async def there() -> bool:
            return {*who} <= {*seen}

        await until(there, f"{who} to start")

    leave = asyncio.Event()

    @app.task(concurrency=[Limit(1), Limit(1, key="who")])
    async def narrow(ctx: Context, who: str) -> None:
        seen.append(who)
        if who == "first":
            await leave.wait()

    async with working(app, concurrency=20, queues=["default"]), working(app, concurrency=20, queues=["other"]):
        for n in range(6):
            await work.enqueue(who=f"x{n}", wait=True)
        await work.enqueue(who="z", wait=False)
        await started(*(f"x{n}" for n in range(6)), "z")
        for n in range(6):
            await work.enqueue(who=f"x{n}")
        await work.enqueue(who="z")
        for n in range(3):
            await work.enqueue(who=f"y{n}")
            await work.options(queue="other").enqueue(who=f"w{n}")
        await started("y0", "y1", "y2", "w0", "w1", "w2")
        await narrow.enqueue(who="first")
        await started("first")
        before = [await narrow.enqueue(who=f"gone{n}") for n in range(5)]
        last = await narrow.enqueue(who="last")
        for handle in before:
            await app.runs.cancel(handle.id)
        leave.set()
        await last.result(30)
        gate.set()


async def test_managed_and_plain_queues_keep_their_shares(app: Hourhand) -> None:
    order: list[str] = []
    app.queue("managed", fair_key="tenant")

    @app.task(queue="managed", priority="high")
    async def urgent(ctx: Context, tenant: int) -> None:
        order.append("high")
        await asyncio.sleep(0.001)

    @app.task(queue="plain", priority="low")
    async def plain(ctx: Context) -> None:
        order.append("low")
        await asyncio.sleep(0.001)

    await urgent.enqueue_many([{"tenant": n % 5} for n in range(1_500)])
    await plain.enqueue_many([{}] * 1_500)
    async with working(app, concurrency=10):
        await until(lambda: _reached(order, 1_500), "the first of them")
    for part in range(300, 1_500, 300):
        assert 20 <= order[part : part + 300].count("low") <= 80, [order[n : n + 300].count("low") for n in range(0, 1_500, 300)]
