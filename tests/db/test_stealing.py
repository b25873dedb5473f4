"""Work stealing: the statement that moves claims from worker to worker, and two workers between which it does."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from hourhand import Context, Hourhand
from hourhand.core import ids
from hourhand.engine.worker import Worker, WorkerOptions
from hourhand.storage.queue import Claim, QueueGateway, queue_gateway
from hourhand.storage.statements import load
from tests.db.test_claim import explain, scans
from tests.db.test_metrics import of_worker
from tests.db.test_worker import working
from tests.support.fleet import until, where

pytestmark = pytest.mark.once

QUICK = 4_000


async def node(
    sql: asyncpg.Connection, schema: str, tasks: list[str], queues: list[str] | None = None, concurrency: int = 1
) -> int:
    info = json.dumps({"tasks": tasks, "queues": queues, "concurrency": concurrency})
    return int(
        await sql.fetchval(
            f"INSERT INTO {schema}.nodes (kind, name, lease_until, session, info)"
            " VALUES ('worker', 'test', now() + '1 hour', false, $1) RETURNING id",
            info,
        )
    )


class Hands:
    """Two workers that are only rows, and what the first of them has claimed."""

    def __init__(self, gateway: QueueGateway, victim: int, thief: int, claims: list[Claim]) -> None:
        self.gateway, self.victim, self.thief, self.claims = gateway, victim, thief, claims
        self.runs, self.tokens = [one.run_number for one in claims], [one.token for one in claims]

    async def give(self, limit: int = 100, tokens: list[int] | None = None) -> tuple[set[int], set[int]]:
        return await self.gateway.give(self.victim, self.thief, limit, self.runs, tokens or self.tokens)


@pytest.fixture
async def hands(app: Hourhand, sql: asyncpg.Connection, schema: str) -> AsyncIterator[Hands]:
    gateway = queue_gateway(await app._database(), "test")
    names = {}
    for task, queue in (("a", "default"), ("a", "default"), ("b", "default"), ("a", "other")):
        number = await sql.fetchval(f"SELECT {schema}.queue_number($1)", queue)
        names[number] = queue
        await sql.fetch(
            f"SELECT {schema}.enqueue($1, queue => $2, tags => ARRAY['x'], options => '{{\"timeout\": 9}}')", task, queue
        )
    victim, thief = await node(sql, schema, ["a", "b"]), await node(sql, schema, ["a", "b"])
    lanes = [number * 4 + 1 for number in names]
    claims = await gateway.claim(lanes, [0] * len(lanes), [10] * len(lanes), victim, names, 1)
    yield Hands(gateway, victim, thief, sorted(claims, key=lambda one: one.seq))
    await gateway.close()


async def owners(sql: asyncpg.Connection, schema: str) -> dict[int, int]:
    return dict(await sql.fetch(f"SELECT run_id, worker_id FROM {schema}.running"))


async def test_a_claim_moves_whole_and_under_a_new_token(hands: Hands, sql: asyncpg.Connection, schema: str) -> None:
    same = "run_id, seq, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes, task, payload, key, tags, options, errors, begun_at"
    before = await sql.fetch(f"SELECT {same} FROM {schema}.running ORDER BY run_id")
    assert await hands.give() == (set(hands.runs), set())
    assert await sql.fetch(f"SELECT {same} FROM {schema}.running ORDER BY run_id") == before
    assert await owners(sql, schema) == dict.fromkeys(hands.runs, hands.thief)
    gifts = await hands.gateway.gifts(hands.thief, [])
    assert {one.token for one in gifts}.isdisjoint(hands.tokens)
    assert len({one.token for one in gifts}) == 1
    for gift, claim in zip(gifts, hands.claims, strict=True):
        both = [
            [getattr(one, name) for name in Claim.__struct_fields__ if name not in ("token", "worker")] for one in (gift, claim)
        ]
        assert both[0] == both[1], "as the claim itself had brought it"
        assert gift.worker == hands.thief
    assert await hands.gateway.finish(hands.victim, hands.runs, hands.tokens, [1.0] * 4, [2.0] * 4, None, None, None, None) == 0
    tokens = [one.token for one in gifts]
    assert await hands.gateway.finish(hands.thief, hands.runs, tokens, [1.0] * 4, [2.0] * 4, None, None, None, None) == 4
    assert await sql.fetch(f"SELECT DISTINCT worker_id, attempt FROM {schema}.runs") == [(hands.thief, 1)]


async def test_no_more_than_was_asked_for_and_the_rest_stays(hands: Hands, sql: asyncpg.Connection, schema: str) -> None:
    moved, kept = await hands.give(limit=1)
    assert moved == {hands.runs[0]}
    assert kept == set(hands.runs[1:])
    assert Counter((await owners(sql, schema)).values()) == {hands.thief: 1, hands.victim: 3}


async def test_a_token_that_is_no_longer_the_runs_moves_nothing(hands: Hands, sql: asyncpg.Connection, schema: str) -> None:
    """As with a worker that was declared dead, whose runs others have: nothing moves, and nothing is said to be its own."""
    stale = [token - 1 for token in hands.tokens]
    assert await hands.give(tokens=stale) == (set(), set())
    assert await owners(sql, schema) == dict.fromkeys(hands.runs, hands.victim)
    assert await hands.gateway.give(hands.thief, hands.victim, 9, hands.runs, hands.tokens) == (set(), set()), "another's claims"


@pytest.mark.parametrize("end", ["died_at = now()", "stopped_at = now()", "lease_until = now() - interval '1 second'"])
async def test_nothing_is_given_to_who_has_ended(hands: Hands, sql: asyncpg.Connection, schema: str, end: str) -> None:
    await sql.execute(f"UPDATE {schema}.nodes SET {end} WHERE id = $1", hands.thief)
    assert await hands.give() == (set(), set(hands.runs)), "and all is still the giver's"
    assert await owners(sql, schema) == dict.fromkeys(hands.runs, hands.victim)


async def test_an_end_that_comes_meanwhile_is_seen(hands: Hands, sql: asyncpg.Connection, schema: str, url: str) -> None:
    """The other's row is locked: a death that commits before the gift is waited for, and then there is no gift."""
    other = await asyncpg.connect(url)
    async with other.transaction():
        await other.execute(f"UPDATE {schema}.nodes SET died_at = now() WHERE id = $1", hands.thief)
        giving = asyncio.create_task(hands.give())

        async def waits() -> bool:
            return giving.done() or bool(await sql.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))

        await until(waits, "the gift to wait for the death")
    assert await giving == (set(), set(hands.runs))
    await other.close()


async def test_only_what_the_other_one_serves(hands: Hands, sql: asyncpg.Connection, schema: str) -> None:
    hands.thief = await node(sql, schema, ["a"], ["default"])
    first, second, unknown_task, other_queue = hands.runs
    assert await hands.give() == ({first, second}, {unknown_task, other_queue})
    hands.thief = await node(sql, schema, ["b"], None)
    assert await hands.give() == ({unknown_task}, {other_queue}), (
        "no list of queues is all of them; the first two are lost claims"
    )


async def test_what_was_asked_to_stop_is_paused_or_has_begun_stays(hands: Hands, sql: asyncpg.Connection, schema: str) -> None:
    stopping, begun, plain, paused = hands.runs
    await sql.execute(f"SELECT {schema}.ask_to_stop($1, 'enough')", stopping)
    await sql.execute(f"UPDATE {schema}.running SET begun_at = now() WHERE run_id = $1", begun)
    await sql.execute(f"UPDATE {schema}.queues SET paused_at = now() WHERE name = 'other'")
    assert await hands.give() == ({plain}, {stopping, begun, paused})


async def test_what_is_on_probation_stays(hands: Hands, sql: asyncpg.Connection, schema: str) -> None:
    await sql.execute(f"UPDATE {schema}.running SET crashes = 1")
    assert await hands.give() == (set(), set(hands.runs))


async def test_a_worker_that_was_declared_dead_takes_up_nothing(hands: Hands, sql: asyncpg.Connection, schema: str) -> None:
    await hands.give()
    assert len(await hands.gateway.gifts(hands.thief, hands.runs[:3])) == 1, "what it does not know"
    await sql.execute(f"UPDATE {schema}.nodes SET died_at = now() WHERE id = $1", hands.thief)
    assert await hands.gateway.gifts(hands.thief, []) == []


async def test_who_holds_more_than_its_slots_take_is_found(hands: Hands, sql: asyncpg.Connection, schema: str) -> None:
    roomy = await node(sql, schema, ["a"], concurrency=4)
    assert await hands.gateway.overloaded(hands.thief, 4) == [hands.victim]
    assert await hands.gateway.overloaded(hands.victim, 4) == [], "not oneself"
    await sql.execute(f"UPDATE {schema}.running SET worker_id = $1", roomy)
    assert await hands.gateway.overloaded(hands.thief, 4) == [], "four runs in four slots"
    await sql.execute(f"UPDATE {schema}.running SET worker_id = $1", hands.victim)
    await sql.execute(f"UPDATE {schema}.nodes SET died_at = now() WHERE id = $1", hands.victim)
    assert await hands.gateway.overloaded(hands.thief, 4) == []


async def test_it_goes_by_index(hands: Hands, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    await sql.execute(
        f"INSERT INTO {schema}.running (worker_id, token, claimed_at, seq, run_id, scheduled_at, lane, attempt, crashes, task, payload)"
        f" SELECT 1000000 + n % 50, n, now(), n, 1000000 + n, now(), 5, 0, 0, 'x', '{{}}' FROM generate_series(1, 5000) AS n"
    )
    connection = await (await app._database()).connect("test")
    statements = load(schema)
    questions: list[tuple[str, tuple[Any, ...]]] = [
        ("give", (hands.victim, hands.thief, 2, hands.runs, hands.tokens)), ("gifts", (hands.thief, [1])), ("overloaded", (hands.thief, 4)),
    ]  # fmt: skip
    for name, arguments in questions:
        found = scans(await explain(connection, statements[name], *arguments))
        assert not [scan for scan in found if scan.startswith("Seq Scan on running")], (name, found)
    await connection.close()


class Shop:
    """A task whose runs end when they are told to, and who has run what."""

    def __init__(self, app: Hourhand) -> None:
        self.app = app
        self.began: list[int] = []
        self.doors: dict[int, asyncio.Event] = defaultdict(asyncio.Event)

        @app.task
        async def quick() -> None:
            pass

        @app.task
        async def slow(ctx: Context) -> None:
            self.began.append(ctx.run_number)
            await self.doors[ctx.run_number].wait()

        self.quick, self.slow = quick, slow

    @asynccontextmanager
    async def loaded(self, many: int) -> AsyncIterator[tuple[Worker, list[int]]]:
        """A worker with one slot that holds this many slow runs: quick ones came first, so it has claimed ahead."""
        await self.quick.enqueue_many([{}] * QUICK)
        runs = [ids.parse_run_id(one) for one in await self.slow.enqueue_many([{}] * many)]
        async with working(self.app, concurrency=1) as worker:

            async def waiting() -> bool:
                return [one.run_number for one in worker.executor.deque] == runs[1:] and self.began == runs[:1]

            await until(waiting, lambda: f"{many - 1} runs in the deque, not {len(worker.executor.deque)}")
            try:
                yield worker, runs
            finally:
                self.open(*runs)

    def open(self, *runs: int) -> None:
        for run in runs:
            self.doors[run].set()

    async def ended(self, sql: asyncpg.Connection, schema: str, runs: list[int]) -> dict[int, int]:
        """Who has run each of them, once all have ended; each once, and with no attempt charged."""

        async def over() -> bool:
            return bool(await sql.fetchval(f"SELECT count(*) FROM {schema}.runs WHERE run_id = ANY ($1)", runs) == len(runs))

        await until(over, "every run to end")
        rows = await sql.fetch(f"SELECT run_id, worker_id, attempt, outcome FROM {schema}.runs WHERE run_id = ANY ($1)", runs)
        assert {(row["attempt"], row["outcome"]) for row in rows} == {(1, "succeeded")}
        assert Counter(run for run in self.began if run in runs) == Counter(runs), "each has begun once"
        return {row["run_id"]: row["worker_id"] for row in rows}


async def test_an_idle_worker_gets_the_far_end_of_another_ones_deque(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    shop = Shop(app)
    async with shop.loaded(9) as (victim, runs), working(app, concurrency=2) as thief:

        async def taken() -> bool:
            return len(shop.began) >= 3

        await until(taken, "the idle slots to have work")
        assert set(shop.began[-2:]) == set(runs[-2:]), "those that would have waited longest"
        assert [one.run_number for one in victim.executor.deque] == runs[1:7], "the rest is there in its order"
        shop.open(*runs)
        by = await shop.ended(sql, schema, runs)
        assert {by[run] for run in runs[-2:]} == {thief.node.id}
        assert (await of_worker(app, victim)).value("hourhand_steals_total", direction="given") >= 2
        assert (await of_worker(app, thief)).value("hourhand_steals_total", direction="taken") >= 2
        assert victim.maintainer.recovered + thief.maintainer.recovered == 0


async def test_what_was_being_claimed_when_an_idle_one_looked_is_seen_at_its_next_look(
    sql: asyncpg.Connection, schema: str, url: str
) -> None:
    """No word comes, and the next poll is far away: who has just run out of work looks more than once."""
    heard: list[str] = []
    await sql.add_listener(schema, lambda *said: heard.append(said[-1]))
    other = await asyncpg.connect(url)
    async with Hourhand(url, schema=schema, lease=60.0, poll=600.0) as app:
        Shop(app)
        await other.execute("BEGIN")
        loaded = await node(other, schema, ["slow"])
        await other.execute(
            f"INSERT INTO {schema}.running (worker_id, token, claimed_at, seq, run_id, scheduled_at, lane, attempt, crashes, task, payload)"
            f" SELECT $1, 1, now(), 900 + n, 900 + n, now(), 5, 0, 0, 'slow', '{{}}' FROM generate_series(1, 2) AS n",
            loaded,
        )
        async with working(app, concurrency=1) as thief:
            trips = (await app._database()).trips.by_statement

            async def looked() -> bool:
                return "overloaded" in trips and trips["overloaded"].count > 0

            await until(looked, "its first look")
            assert not [word for word in heard if word.startswith("w:")]
            await other.execute("COMMIT")

            async def asked() -> bool:
                await sql.fetch("SELECT 1")
                return f"w:{loaded}:{thief.node.id}:1" in heard

            await until(asked, "its wish", 20)
    await other.close()


class Held:
    """A worker that is only a row, and that row held by an open transaction: what is given to it waits."""

    def __init__(self, connection: asyncpg.Connection, sql: asyncpg.Connection, schema: str, thief: int) -> None:
        self.connection, self.sql, self.schema, self.thief = connection, sql, schema, thief

    async def asks(self, victim: Worker, slots: int) -> None:
        await self.sql.execute("SELECT pg_notify($1, $2)", self.schema, f"w:{victim.node.id}:{self.thief}:{slots}")
        await until(self.giving, "a gift that waits")

    async def giving(self) -> Any:
        return await self.waiting("thief AS MATERIALIZED")

    async def waiting(self, statement: str) -> Any:
        """The process of this statement of ours that waits for a lock."""
        return await self.sql.fetchval(
            "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND position($1 IN query) > 0 AND position($2 IN query) > 0",
            statement,
            f"{self.schema}.",
        )

    async def let_go(self, end: str = "stopped_at = stopped_at") -> None:
        await self.connection.execute(f"UPDATE {self.schema}.nodes SET {end} WHERE id = $1", self.thief)
        await self.connection.execute("COMMIT")


@pytest.fixture
def waits_for_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long somebody holds one: what is shown is what happens while a statement waits."""
    monkeypatch.setattr("hourhand.engine.worker.ADMISSION_TIMEOUT", None)


@asynccontextmanager
async def held(url: str, sql: asyncpg.Connection, schema: str, thief: int | None = None) -> AsyncIterator[Held]:
    connection = await asyncpg.connect(url)
    thief = thief or await node(sql, schema, ["slow"], None, 4)
    await connection.execute("BEGIN")
    await connection.execute(f"SELECT FROM {schema}.nodes WHERE id = $1 FOR NO KEY UPDATE", thief)
    try:
        yield Held(connection, sql, schema, thief)
    finally:
        await connection.close()


@pytest.mark.usefixtures("waits_for_locks")
async def test_what_is_being_given_is_not_started_here(app: Hourhand, sql: asyncpg.Connection, schema: str, url: str) -> None:
    """The statement is under way, and the slot is free: the far end has left the deque before."""
    shop = Shop(app)
    async with shop.loaded(5) as (victim, runs), held(url, sql, schema) as other:
        await other.asks(victim, 4)
        shop.open(*runs)
        await shop.ended(sql, schema, runs[:3])
        await other.let_go()

        async def given() -> bool:
            return victim.claimer.stealer.given == 2

        await until(given, "the gift")
        assert shop.began[-3:] == runs[:3]
        assert {run for run, owner in (await owners(sql, schema)).items() if owner == other.thief} == set(runs[3:])


@pytest.mark.usefixtures("waits_for_locks")
async def test_what_the_other_one_cannot_have_goes_back_to_its_place(
    app: Hourhand, sql: asyncpg.Connection, schema: str, url: str
) -> None:
    shop = Shop(app)
    async with shop.loaded(6) as (victim, runs), held(url, sql, schema) as other:
        await other.asks(victim, 4)
        assert [one.run_number for one in victim.executor.deque] == runs[1:3]
        await other.let_go("stopped_at = now()")

        async def back() -> bool:
            return [one.run_number for one in victim.executor.deque] == runs[1:]

        await until(back, "the rest of the deque")
        assert victim.claimer.stealer.given == 0
        shop.open(*runs)
        await shop.ended(sql, schema, runs)


@pytest.mark.usefixtures("waits_for_locks")
async def test_an_answer_that_is_lost_leaves_nothing_behind(
    app: Hourhand, sql: asyncpg.Connection, schema: str, url: str
) -> None:
    """The connection is gone and the statement is still under way: what has not moved is handed back, so that it cannot."""
    shop = Shop(app)
    async with shop.loaded(5) as (victim, runs), held(url, sql, schema) as other:
        await other.asks(victim, 4)
        giving = await other.giving()
        victim.claimer._gateway._link.drop()

        async def back() -> bool:
            return {one.run_number for one in victim.executor.deque} == set(runs[1:])

        await until(back, "the runs to be claimed again")
        await other.let_go()

        async def over() -> bool:
            return not await sql.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", giving)

        await until(over, "the end of the statement")
        assert other.thief not in (await owners(sql, schema)).values()
        shop.open(*runs)
        assert set((await shop.ended(sql, schema, runs)).values()) == {victim.node.id}
        assert victim.claimer.stealer.given == victim.maintainer.recovered == 0


@pytest.mark.usefixtures("waits_for_locks")
async def test_a_giver_that_dies_meanwhile_takes_nothing_back(
    app: Hourhand, sql: asyncpg.Connection, schema: str, url: str
) -> None:
    """The statement began before its death and says what was true then: that they are its own."""
    shop = Shop(app)
    async with shop.loaded(4) as (victim, runs), held(url, sql, schema) as other:
        await other.asks(victim, 4)
        shop.open(*runs[1:])
        before = victim.node.id
        await sql.execute(f"UPDATE {schema}.nodes SET died_at = now() WHERE id = $1", before)

        async def apart() -> bool:
            return victim.node.id != before and before not in (await owners(sql, schema)).values()

        await until(apart, "its runs to be set apart, and itself to be another")
        await other.let_go("stopped_at = now()")
        trips = (await app._database()).trips.by_statement

        async def answered() -> bool:
            return trips["give"].count == 1

        await until(answered, "the answer")
        shop.open(*runs)
        # The first one was going on when its worker died, and may begin again.
        await shop.ended(sql, schema, runs[1:])


@asynccontextmanager
async def deaf(app: Hourhand, **options: Any) -> AsyncIterator[Worker]:
    """A worker to which no word gets through."""
    worker = Worker(await app._database(), app.settings, app.registry, WorkerOptions(**options))
    worker._hear = lambda word: None  # type: ignore[method-assign]
    task = asyncio.create_task(worker.run())
    try:
        await worker.started.wait()
        yield worker
    finally:
        worker.ask_to_stop()
        worker.ask_to_stop()
        await task


async def test_a_gift_whose_word_is_lost_is_found(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    shop = Shop(app)
    async with shop.loaded(5) as (victim, runs), deaf(app, concurrency=1) as thief:

        async def taken() -> bool:
            return thief.claimer.stealer.taken > 0

        await until(taken, "the gift to be found")
        shop.open(*runs)
        assert thief.node.id in (await shop.ended(sql, schema, runs)).values()
        assert victim.maintainer.recovered == thief.maintainer.recovered == 0


async def test_a_run_whose_outcome_is_being_written_is_not_taken_up_again(
    app: Hourhand, sql: asyncpg.Connection, schema: str, url: str
) -> None:
    """It is under our name until the outcome is in the database, and no slot has it any more."""
    shop = Shop(app)
    # Nothing else is left to steal: the thief has this one run, and then none.
    async with shop.loaded(2) as (_, runs), working(app, concurrency=1) as thief:

        async def begun() -> bool:
            return runs[-1] in shop.began

        await until(begun, "the stolen run to begin")
        other = await asyncpg.connect(url)
        async with other.transaction():
            await other.fetch(f"SELECT FROM {schema}.running WHERE run_id = $1 FOR UPDATE", runs[-1])
            shop.open(runs[-1])

            async def unwritten() -> bool:
                return thief.executor.busy == 0 and thief.completer.pending > 0

            await until(unwritten, "the outcome to wait for the row")
            trips = (await app._database()).trips.by_statement

            async def put_aside() -> bool:
                return trips["finish_plain"].failed > 0

            await until(put_aside, "the outcome to be put aside, since the lock is held for long")
            looks = trips["gifts"]
            before = looks.count
            await sql.execute("SELECT pg_notify($1, $2)", schema, f"t:{thief.node.id}:1")

            async def looked() -> bool:
                return looks.count > before

            await until(looked, "a look for gifts")
        await other.close()
        shop.open(*runs)
        await shop.ended(sql, schema, runs)


async def test_what_is_given_to_one_that_stops_is_handed_back(sql: asyncpg.Connection, schema: str, url: str) -> None:
    """Its end waits for the gift that is under way, and then gives it back: nobody has died, and nothing goes on probation."""
    async with Hourhand(url, schema=schema, lease=60.0, grace=0.5, poll=1.0) as app:
        shop = Shop(app)
        async with shop.loaded(6) as (victim, runs):
            async with working(app, concurrency=1) as thief:

                async def busy() -> bool:
                    return thief.executor.busy == 1

                await until(busy, "the thief to have its first gift")
                gifts = (await app._database()).trips.by_statement["give"]
                before = gifts.count
                async with held(url, sql, schema, thief.node.id) as other:
                    await other.asks(victim, 1)
                    thief.ask_to_stop()
                    thief.ask_to_stop()
                    await until(lambda: other.waiting("SET stopped_at"), "the thief's end")
                    await other.let_go()

                    async def stopped() -> bool:
                        return bool(await sql.fetchval(f"SELECT stopped_at FROM {schema}.nodes WHERE id = $1", thief.node.id))

                    await until(stopped, "the thief's end to be on record")

            async def answered() -> bool:
                return gifts.count > before

            # Either the gift came first, and was given back, or the end did, and nothing was given.
            await until(answered, "the victim to hear what became of the gift")
            shop.open(*runs)
            counts = await where(sql, schema)
            assert (counts["parked"], counts["running"] + counts["ready"] + counts["runs"]) == (0, QUICK + 6), counts

            async def over() -> bool:
                return (await where(sql, schema))["runs"] == QUICK + 6

            await until(over, "every run to end")
            assert victim.maintainer.recovered == 0


async def test_a_run_that_holds_a_slot_of_a_limit_stays(hands: Hands, sql: asyncpg.Connection, schema: str) -> None:
    first, *others = hands.runs
    await sql.execute(f"UPDATE {schema}.running SET stream = 1 WHERE run_id = $1", first)
    assert await hands.give() == (set(others), {first})
