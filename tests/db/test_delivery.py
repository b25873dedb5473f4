"""At most once, exactly once, steps, fences and idempotency keys, on a real database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from hourhand import ConfigurationError, Context, Hourhand, PermanentFailure, Retry, RetryAfter
from hourhand.core.errors import InvalidOption
from hourhand.storage.carriers import Asyncpg
from hourhand.storage.nodes import MaintenanceGateway
from tests.db.test_worker import working
from tests.support.fleet import until, where

pytestmark = pytest.mark.once

AT_ONCE = Retry(max_attempts=3, base=0, cap=0)


@pytest.fixture
async def ledger(sql: asyncpg.Connection, schema: str) -> str:
    """A table of the user's own."""
    await sql.execute(f"CREATE TABLE {schema}.ledger (id serial PRIMARY KEY, run bigint, what text)")
    return f"{schema}.ledger"


async def written(sql: asyncpg.Connection, ledger: str) -> list[str]:
    return [row[0] for row in await sql.fetch(f"SELECT what FROM {ledger} ORDER BY id")]


async def effects(sql: asyncpg.Connection, schema: str) -> int:
    return int(await sql.fetchval(f"SELECT count(*) FROM {schema}.effects"))


async def take_away(sql: asyncpg.Connection, schema: str) -> None:
    """What recovery does to the runs of a worker that was declared dead, and another worker does then."""
    await sql.execute(f"DELETE FROM {schema}.running")


async def put_back(sql: asyncpg.Connection, schema: str, run: int) -> None:
    """The same run again, as if its history had never been written."""
    await sql.execute(
        f"""WITH old AS (DELETE FROM {schema}.runs WHERE run_id = $1 RETURNING *)
        INSERT INTO {schema}.ready (seq, run_id, scheduled_at, lane, task, payload)
        SELECT run_id, run_id, scheduled_at, lane, task, payload FROM old""", run,
    )  # fmt: skip
    await sql.execute(f"SELECT pg_notify('{schema}', 'q')")


class TestAtMostOnce:
    async def test_it_is_on_record_before_it_starts(self, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
        @app.task(delivery="at_most_once")
        async def look() -> bool:
            return bool(await sql.fetchval(f"SELECT begun_at IS NOT NULL FROM {schema}.running"))

        async with working(app):
            assert await (await look.enqueue()).result(10) is True

    @pytest.mark.parametrize("error", [ValueError("no"), RetryAfter(0), PermanentFailure("no")])
    async def test_an_error_is_not_tried_again(self, app: Hourhand, error: Exception) -> None:
        calls = []

        @app.task(delivery="at_most_once", retry=AT_ONCE)
        async def fail() -> None:
            calls.append(1)
            raise error

        async with working(app):
            run = await (await fail.enqueue()).wait(10)
        assert (run.state, run.attempt, len(calls)) == ("dead", 1, 1)
        assert "at most once" in str(run.reason)

    async def test_what_had_begun_when_its_worker_died_is_lost(self, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
        for begun in ("now()", "NULL"):
            node = await sql.fetchval(
                f"INSERT INTO {schema}.nodes (kind, name, lease_until, session, died_at) VALUES ('worker', 'x', now(), false, now()) RETURNING id"
            )
            await sql.execute(
                f"""INSERT INTO {schema}.running (worker_id, token, claimed_at, begun_at, seq, run_id, scheduled_at, lane, attempt, crashes,
                task, payload) VALUES ($1::integer, 1, now(), {begun}, $1, $1, now(), 5, 0, 0, 'x', '{{}}')""", node,
            )  # fmt: skip
        gateway = MaintenanceGateway((await app._database()).link("test"))
        assert await gateway.recover(10) == (1, 0, 0, 1)
        lost = await sql.fetchrow(f"SELECT outcome, attempt, started_at IS NOT NULL AS started, reason FROM {schema}.runs")
        assert tuple(lost)[:3] == ("lost", 1, True)
        assert "not known" in lost["reason"]
        assert await sql.fetchval(f"SELECT crashes FROM {schema}.parked") == 1
        await gateway.close()

    async def test_recovery_that_looked_before_it_began_leaves_it(
        self, app: Hourhand, sql: asyncpg.Connection, url: str, schema: str
    ) -> None:
        """Recovery has read the row, then it begins, then recovery locks it: it must not go back as if it had not begun."""
        node = await sql.fetchval(
            f"INSERT INTO {schema}.nodes (kind, name, lease_until, session, died_at) VALUES ('worker', 'x', now(), false, now()) RETURNING id"
        )
        await sql.execute(
            f"""INSERT INTO {schema}.running (worker_id, token, claimed_at, seq, run_id, scheduled_at, lane, attempt, crashes, task, payload)
            VALUES ($1, 7, now(), 1, 1, now(), 5, 0, 0, 'x', '{{}}')""", node,
        )  # fmt: skip
        statements = (await app._database()).sql
        # It stands still between reading the row and locking it, until the advisory lock is free.
        slow = statements["recover"].replace(
            "WHERE r.worker_id = n.id ORDER BY", "WHERE r.worker_id = n.id AND pg_advisory_xact_lock(4711) IS NOT NULL ORDER BY"
        )
        assert slow != statements["recover"]
        await sql.execute("SELECT pg_advisory_lock(4711)")
        other = await asyncpg.connect(url)
        try:
            recovering = asyncio.create_task(other.fetchrow(slow, 10))

            async def standing() -> bool:
                return bool(
                    await sql.fetchval(
                        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted"
                    )
                )

            await until(standing, "recovery to stand still")
            assert [row[0] for row in await sql.fetch(statements["begin_runs"], node, [1], [7])] == [1]
            await sql.execute("SELECT pg_advisory_unlock(4711)")
            assert dict(await recovering)["recovered"] == 0
            assert dict(await other.fetchrow(statements["recover"], 10)) == {
                "recovered": 0,
                "cancelled": 0,
                "buried": 0,
                "lost": 1,
            }
        finally:
            await other.close()

    async def test_without_its_claim_it_does_not_start(
        self, app: Hourhand, sql: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = []

        @app.task(delivery="at_most_once")
        async def run() -> None:
            calls.append(1)

        from hourhand.storage.effects import EffectGateway

        begin = EffectGateway.begin_runs

        async def robbed(self: EffectGateway, *arguments: Any) -> set[int]:
            await take_away(sql, schema)
            return await begin(self, *arguments)

        monkeypatch.setattr(EffectGateway, "begin_runs", robbed)
        async with working(app) as worker:
            await run.enqueue()

            async def taken() -> bool:
                return worker.executor.taken == 1 and not worker.executor.active

            await until(taken, "the run to be given up")
        assert calls == []

    async def test_cancelled_while_it_is_put_on_record(
        self, app: Hourhand, sql: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from hourhand.storage.effects import EffectGateway

        begin, calls, workers = EffectGateway.begin_runs, [], []

        async def told_to_stop() -> bool:
            return all(one.cause == "cancelled" for one in workers[0].executor.active.values())

        async def slow(self: EffectGateway, *arguments: Any) -> set[int]:
            await app.runs.cancel(arguments[1][0])
            await until(told_to_stop, "the worker to hear of it")
            return await begin(self, *arguments)

        monkeypatch.setattr(EffectGateway, "begin_runs", slow)

        @app.task(delivery="at_most_once")
        async def run() -> None:
            calls.append(1)

        async with working(app) as worker:
            workers.append(worker)
            assert (await (await run.enqueue()).wait(10)).state == "cancelled"
        assert calls == []
        assert (await where(sql, schema))["running"] == 0

    async def test_stopped_before_it_ended_it_is_lost_and_not_handed_back(
        self, app: Hourhand, sql: asyncpg.Connection, schema: str
    ) -> None:
        started = asyncio.Event()

        @app.task(delivery="at_most_once")
        async def long() -> None:
            started.set()
            await asyncio.Event().wait()

        async with working(app):
            handle = await long.enqueue()
            await started.wait()
        run = await app.runs.show(handle.id)
        assert (run.state, run.attempt) == ("lost", 1)
        assert (await where(sql, schema))["ready"] == 0

    async def test_by_option_and_by_job(self, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
        @app.task(retry=AT_ONCE)
        async def fail() -> None:
            raise ValueError

        await app.jobs.add("careful", task=fail, schedule="0 0 1 1 *", delivery="at_most_once")
        assert (await app.jobs.show("careful")).delivery == "at_most_once"
        async with working(app):
            run = await (await fail.options(delivery="at_most_once").enqueue()).wait(10)
            assert (run.state, run.attempt) == ("dead", 1)
            triggered = await app.jobs.trigger("careful")

            async def dead() -> bool:
                return (await app.runs.show(str(triggered.run_id))).state == "dead"

            await until(dead, "the job's run to be dead")
            assert (await app.runs.show(str(triggered.run_id))).attempt == 1

    async def test_a_wrong_word_is_refused(self, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
        with pytest.raises(ConfigurationError, match="exactly_once"):
            app.task(name="x", delivery="twice")(lambda: None)
        with pytest.raises(InvalidOption, match="at_most_once"):
            await app.enqueue("x", delivery="twice")
        with pytest.raises(InvalidOption, match="at_most_once"):
            await app.jobs.add("x", schedule="0 0 1 1 *", delivery="twice")
        with pytest.raises(asyncpg.PostgresError, match="delivery must be"):
            await sql.fetch(f"SELECT {schema}.enqueue('x', options => '{{\"delivery\": \"twice\"}}')")


class TestExactlyOnce:
    async def test_its_writes_its_end_its_token_and_what_it_enqueues_are_one(
        self, app: Hourhand, sql: asyncpg.Connection, schema: str, ledger: str
    ) -> None:
        seen: dict[str, Any] = {}

        @app.task(queue="later")
        async def follow(n: int) -> None: ...

        @app.task(delivery="exactly_once")
        async def pay(ctx: Context, n: int) -> dict[str, int]:
            async with ctx.transaction() as connection:
                await connection.execute(f"INSERT INTO {ledger} (run, what) VALUES ($1, 'paid')", ctx.run_number)
                await follow.enqueue(n=1)
            await follow.enqueue_many([{"n": 2}, {"n": 3}])
            await app.jobs.add("follow-up", task=follow, schedule="0 0 1 1 *", payload={"n": 4})
            seen.update(
                await where(sql, schema),
                ledger=await written(sql, ledger),
                jobs=await sql.fetchval(f"SELECT count(*) FROM {schema}.jobs"),
            )
            return {"paid": n}

        async with working(app, queues=["default"]):
            handle = await pay.enqueue(n=5)
            assert await handle.result(10) == {"paid": 5}
        assert (seen["ready"], seen["runs"], seen["running"], seen["ledger"], seen["jobs"]) == (0, 0, 1, [], 0)
        assert await written(sql, ledger) == ["paid"]
        assert (await where(sql, schema))["ready"] == 3
        assert await sql.fetchval(f"SELECT count(*) FROM {schema}.jobs") == 1
        assert await sql.fetchval(f"SELECT run_id FROM {schema}.effects") == handle._number
        run = await app.runs.show(handle.id)
        assert (run.state, run.attempt, run.started_at is not None) == ("succeeded", 1, True)

    async def test_nothing_of_an_attempt_that_failed_is_left(
        self, app: Hourhand, sql: asyncpg.Connection, schema: str, ledger: str
    ) -> None:
        @app.task(queue="later")
        async def follow() -> None: ...

        @app.task(delivery="exactly_once", retry=AT_ONCE)
        async def pay(ctx: Context) -> None:
            async with ctx.transaction() as connection:
                await connection.execute(f"INSERT INTO {ledger} (what) VALUES ('try ' || $1::int)", ctx.attempt)
            await follow.enqueue()
            if ctx.attempt < 3:
                raise ValueError("not yet")

        async with working(app, queues=["default"]):
            run = await (await pay.enqueue()).wait(10)
        assert (run.state, run.attempt, len(run.errors)) == ("succeeded", 3, 2)
        assert await written(sql, ledger) == ["try 3"]
        assert (await where(sql, schema))["ready"] == 1
        assert await effects(sql, schema) == 1

    async def test_a_second_execution_of_the_token_does_not_run_the_body(
        self, app: Hourhand, sql: asyncpg.Connection, schema: str
    ) -> None:
        calls = []

        @app.task(delivery="exactly_once")
        async def pay() -> int:
            calls.append(1)
            return 42

        async with working(app):
            handle = await pay.enqueue()
            await handle.result(10)
            await put_back(sql, schema, handle._number)
            run = await handle.wait(10)
        assert calls == [1]
        assert (run.state, run.result) == ("succeeded", 42)
        assert "on record already" in str(run.reason)
        assert await effects(sql, schema) == 1

    async def test_of_two_that_run_at_once_one_has_its_effect(
        self, app: Hourhand, sql: asyncpg.Connection, schema: str, ledger: str
    ) -> None:
        token = asyncio.get_running_loop().create_future()

        @app.task(delivery="exactly_once")
        async def pay(ctx: Context) -> None:
            async with ctx.transaction() as connection:
                await connection.execute(f"INSERT INTO {ledger} (what) VALUES ('second')")
            token.set_result(ctx.token)
            await gone_on.wait()

        gone_on = asyncio.Event()
        async with working(app):
            handle = await pay.enqueue()
            async with sql.transaction():
                # The other execution: it has had its effect, and has not committed yet.
                await sql.execute(f"INSERT INTO {schema}.effects (token, run_id) VALUES (decode($1, 'hex'), 1)", await token)
                await sql.execute(f"INSERT INTO {ledger} (what) VALUES ('first')")
                gone_on.set()
            run = await handle.wait(10)
        assert run.state == "succeeded"
        assert "undone" in str(run.reason)
        assert await written(sql, ledger) == ["first"]

    async def test_a_zombie_writes_nothing(self, app: Hourhand, sql: asyncpg.Connection, schema: str, ledger: str) -> None:
        @app.task(delivery="exactly_once")
        async def pay(ctx: Context) -> None:
            async with ctx.transaction() as connection:
                await connection.execute(f"INSERT INTO {ledger} (what) VALUES ('mine')")
            await take_away(sql, schema)

        async with working(app) as worker:
            await pay.enqueue()

            async def over() -> bool:
                return worker.executor.taken == 1 and not worker.executor.active

            await until(over, "the zombie to end")
        assert await written(sql, ledger) == []
        assert await effects(sql, schema) == 0
        assert sum((await where(sql, schema)).values()) == 0

    async def test_a_block_that_is_left_by_an_exception_is_undone_by_itself(
        self, app: Hourhand, sql: asyncpg.Connection, ledger: str
    ) -> None:
        @app.task(delivery="exactly_once")
        async def pay(ctx: Context) -> None:
            async with ctx.transaction() as connection:
                await connection.execute(f"INSERT INTO {ledger} (what) VALUES ('before')")
            with pytest.raises(ZeroDivisionError):  # noqa: PT012
                async with ctx.transaction() as connection:
                    await connection.execute(f"INSERT INTO {ledger} (what) VALUES ('undone')")
                    _ = 1 / 0
            async with ctx.transaction() as connection:
                await connection.execute(f"INSERT INTO {ledger} (what) VALUES ('after')")

        async with working(app):
            await (await pay.enqueue()).result(10)
        assert await written(sql, ledger) == ["before", "after"]

    async def test_the_answer_to_commit_is_lost(
        self, app: Hourhand, sql: asyncpg.Connection, schema: str, ledger: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first time it was committed all the same, the second time it was not: one effect each."""
        commit, tries = Asyncpg.commit, []

        async def cut_off(self: Asyncpg) -> None:
            tries.append(1)
            if len(tries) == 1:
                await commit(self)
            elif len(tries) == 2:
                await self.undo()
            else:
                return await commit(self)
            raise ConnectionResetError("cut off")

        monkeypatch.setattr(Asyncpg, "commit", cut_off)

        @app.task(delivery="exactly_once", retry=AT_ONCE)
        async def pay(ctx: Context) -> None:
            async with ctx.transaction() as connection:
                await connection.execute(f"INSERT INTO {ledger} (run, what) VALUES ($1, 'paid')", ctx.run_number)

        async with working(app):
            first = await pay.enqueue()
            assert (await first.wait(10)).state == "succeeded"
            second = await pay.enqueue()
            assert (await second.wait(10)).attempt == 2
        assert [row[0] for row in await sql.fetch(f"SELECT run FROM {ledger} ORDER BY run")] == [first._number, second._number]
        assert await effects(sql, schema) == 2

    async def test_a_task_that_outlives_its_run_is_told_so_and_nobody_hangs(self, app: Hourhand) -> None:
        helpers: list[asyncio.Task[None]] = []
        asked = asyncio.Event()

        @app.task(queue="later")
        async def follow() -> None: ...

        async def helper() -> None:
            await asked.wait()
            await follow.enqueue()

        @app.task(delivery="exactly_once")
        async def first() -> None:
            helpers.append(asyncio.create_task(helper()))

        @app.task(retry=1)
        async def second() -> None:
            asked.set()
            await helpers[0]

        async with working(app, queues=["default"]):
            await (await first.enqueue()).result(10)
            run = await (await second.enqueue()).wait(10)
        assert run.state == "dead"
        assert "outlives its run" in run.errors[0]["message"]

    async def test_a_timeout_undoes_it_and_gives_the_connection_back(
        self, url: str, schema: str, sql: asyncpg.Connection, ledger: str
    ) -> None:
        async with Hourhand(url, schema=schema, lease=3.0, grace=0.5, poll=1.0, transactions=2) as app:

            @app.task(delivery="exactly_once", timeout=0.2, retry=1)
            async def hang(ctx: Context) -> None:
                async with ctx.transaction() as connection:
                    await connection.execute(f"INSERT INTO {ledger} (what) VALUES ('hung')")
                    await connection.execute("SELECT pg_sleep(60)")

            @app.task(delivery="exactly_once")
            async def quick(ctx: Context) -> str:
                async with ctx.transaction() as connection:
                    return str(await connection.fetchval("SELECT 'done'"))

            async with working(app):
                for _ in range(2):
                    runs = [await hang.enqueue() for _ in range(2)]
                    assert {(await run.wait(20)).state for run in runs} == {"dead"}
                assert await (await quick.enqueue()).result(10) == "done"
        assert await written(sql, ledger) == []

    async def test_at_other_levels_of_isolation(self, app: Hourhand) -> None:
        @app.task(delivery="exactly_once")
        async def level(ctx: Context, wanted: str) -> str:
            async with ctx.transaction(isolation=wanted) as connection:
                return str(await connection.fetchval("SELECT current_setting('transaction_isolation')"))

        async with working(app):
            assert await (await level.enqueue(wanted="serializable")).result(10) == "serializable"
            assert await (await level.enqueue(wanted="repeatable_read")).result(10) == "repeatable read"
            run = await (await level.options(max_attempts=1).enqueue(wanted="chaos")).wait(10)
            assert "isolation must be" in run.errors[0]["message"]

    async def test_a_second_execution_keeps_the_result_and_does_not_go_on_again(
        self, app: Hourhand, sql: asyncpg.Connection, schema: str
    ) -> None:
        @app.task(queue="later")
        async def follow(result: int) -> None: ...

        @app.task(delivery="exactly_once")
        async def pay(ctx: Context) -> int:
            return 42

        async with working(app, queues=["default"]):
            handle = await pay.options(then=follow).enqueue()
            await handle.result(10)
            options = await sql.fetchval(f"SELECT options FROM {schema}.runs")
            await put_back(sql, schema, handle._number)
            await sql.execute(f"UPDATE {schema}.ready SET options = $1 WHERE run_id = $2", options, handle._number)
            assert (await handle.wait(10)).result == 42
        assert (await where(sql, schema))["ready"] == 1, "the step after it came with the effect, once"

    async def test_a_session_that_commits_by_itself_is_told_so(
        self, app: Hourhand, sql: asyncpg.Connection, schema: str, ledger: str, url: str
    ) -> None:
        engine = sqlalchemy.create_engine(_sqlalchemy_url(url, "psycopg"))

        @app.task(delivery="exactly_once", retry=1)
        def pay(ctx: Context) -> None:
            with ctx.transaction(engine) as connection:
                connection.execute(sqlalchemy.text(f"INSERT INTO {ledger} (what) VALUES ('paid')"))
            connection.commit()

        async with working(app):
            run = await (await pay.enqueue()).wait(10)
        engine.dispose()
        assert run.state == "dead"
        assert "ended its transaction by itself" in run.errors[0]["message"]

    async def test_a_transaction_that_has_begun_does_not_change_its_connection_or_level(self, app: Hourhand, url: str) -> None:
        @app.task(queue="later")
        async def follow() -> None: ...

        @app.task(delivery="exactly_once", retry=1)
        async def pay(ctx: Context) -> None:
            await follow.enqueue()
            async with ctx.transaction(isolation="serializable"):
                pass

        async with working(app, queues=["default"]):
            run = await (await pay.enqueue()).wait(10)
        assert "has begun already, at another level" in run.errors[0]["message"]

    async def test_a_chain_goes_on(self, app: Hourhand) -> None:
        @app.task(delivery="exactly_once")
        async def first() -> int:
            return 20

        @app.task
        async def second(result: int) -> int:
            done.set_result(result + 1)
            return result + 1

        done = asyncio.get_running_loop().create_future()
        async with working(app):
            await first.options(then=second).enqueue()
            assert await asyncio.wait_for(done, 10) == 21

    async def test_elsewhere_there_is_no_transaction(self, app: Hourhand) -> None:
        @app.task(retry=1)
        async def plain(ctx: Context) -> None:
            async with ctx.transaction():
                pass

        async with working(app):
            run = await (await plain.enqueue()).wait(10)
        assert 'delivery="exactly_once"' in run.errors[0]["message"]

    async def test_effects_are_forgotten_with_the_history(self, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
        await sql.execute(
            f"INSERT INTO {schema}.effects (token, run_id, made_at) VALUES ('\\x01', 1, now() - interval '91 days'), ('\\x02', 2, now())"
        )
        gateway = MaintenanceGateway((await app._database()).link("test"))
        assert await gateway.forget(90 * 86400.0, 100) == 1
        await gateway.close()


def _sqlalchemy_url(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


class TestInThreads:
    @pytest.mark.parametrize("form", ["psycopg", "engine", "session"])
    @pytest.mark.parametrize("fails", [False, True])
    async def test_sync_handlers(
        self, app: Hourhand, sql: asyncpg.Connection, schema: str, ledger: str, url: str, form: str, fails: bool
    ) -> None:
        engine = sqlalchemy.create_engine(_sqlalchemy_url(url, "psycopg"))
        source: Any = {"psycopg": None, "engine": engine, "session": sessionmaker(engine)}[form]
        statement: Callable[[str], Any] = str if form == "psycopg" else sqlalchemy.text

        @app.task(queue="later")
        async def follow(n: int) -> None: ...

        @app.task(delivery="exactly_once", retry=1)
        def pay(ctx: Context) -> str:
            with ctx.transaction(source) as connection:
                connection.execute(statement(f"INSERT INTO {ledger} (what) VALUES ('paid')"))
                follow.enqueue_sync(n=1)
            with pytest.raises(ZeroDivisionError), ctx.transaction(source) as connection:  # noqa: PT012
                connection.execute(statement(f"INSERT INTO {ledger} (what) VALUES ('undone')"))
                _ = 1 / 0
            follow.enqueue_many_sync([{"n": 2}])
            app.jobs.add_sync("follow-up", task=follow, schedule="0 0 1 1 *", payload={"n": 3})
            if fails:
                raise ValueError("no")
            return type(connection).__name__

        async with working(app, queues=["default"]):
            run = await (await pay.enqueue()).wait(20)
        engine.dispose()
        assert run.state == ("dead" if fails else "succeeded"), run.errors
        if not fails:
            assert run.result == ("Session" if form == "session" else "Connection")
        assert await written(sql, ledger) == ([] if fails else ["paid"])
        assert (await where(sql, schema))["ready"] == (0 if fails else 2)
        assert await sql.fetchval(f"SELECT count(*) FROM {schema}.jobs") == (0 if fails else 1)
        assert await effects(sql, schema) == (0 if fails else 1)

    @pytest.mark.parametrize("form", ["engine", "session"])
    async def test_async_sqlalchemy(self, app: Hourhand, sql: asyncpg.Connection, ledger: str, url: str, form: str) -> None:
        engine = create_async_engine(_sqlalchemy_url(url, "asyncpg"))
        source: Any = engine if form == "engine" else async_sessionmaker(engine)

        @app.task(delivery="exactly_once", retry=AT_ONCE)
        async def pay(ctx: Context) -> str:
            async with ctx.transaction(source) as connection:
                await connection.execute(sqlalchemy.text(f"INSERT INTO {ledger} (what) VALUES ('paid')"))
            if ctx.attempt == 1:
                raise ValueError("not yet")
            return type(connection).__name__

        async with working(app):
            name = await (await pay.enqueue()).result(20)
        await engine.dispose()
        assert name == (AsyncSession.__name__ if form == "session" else "AsyncConnection")
        assert await written(sql, ledger) == ["paid"]

    async def test_a_thread_that_is_left_behind_writes_nothing_more(
        self, app: Hourhand, sql: asyncpg.Connection, ledger: str
    ) -> None:
        go_on, failed = threading.Event(), threading.Event()

        @app.task(delivery="exactly_once", timeout=0.3, retry=1)
        def hang(ctx: Context) -> None:
            try:
                with ctx.transaction() as connection:
                    connection.execute(f"INSERT INTO {ledger} (what) VALUES ('hung')")
                    go_on.wait(30)
                    connection.execute(f"INSERT INTO {ledger} (what) VALUES ('more')")
            finally:
                failed.set()

        async with working(app):
            run = await (await hang.enqueue()).wait(10)
            assert run.state == "dead"

            async def undone() -> bool:
                question = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'hourhand run' AND state = 'idle in transaction'"
                return not await sql.fetchval(question)

            await until(undone, "the server to undo it")
            go_on.set()
            await asyncio.to_thread(failed.wait, 10)
        assert await written(sql, ledger) == []

    async def test_no_place_in_the_pool_is_lost(self, url: str, schema: str, sql: asyncpg.Connection, ledger: str) -> None:
        """Neither to a connection that broke while nobody used it, nor to a thread that is left behind, nor to one that got
        its connection when its run was over."""
        async with Hourhand(url, schema=schema, lease=3.0, grace=0.5, poll=1.0, transactions=1) as app:
            go_on = threading.Event()

            @app.task(delivery="exactly_once", retry=AT_ONCE)
            def quick(ctx: Context) -> int:
                with ctx.transaction() as connection:
                    return int(connection.execute("SELECT 1").fetchone()[0])

            @app.task(delivery="exactly_once", timeout=0.3, retry=1)
            def hang(ctx: Context) -> None:
                with ctx.transaction() as connection:
                    connection.execute(f"INSERT INTO {ledger} (what) VALUES ('hung')")
                    go_on.wait(20)

            async with working(app):
                assert await (await quick.enqueue()).result(10) == 1
                await sql.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'hourhand run' AND datname = current_database() AND state = 'idle'"
                )
                assert await (await quick.enqueue()).result(20) == 1
                # The second of them waits for the only connection, and its run is over before it has it.
                both = [await hang.enqueue() for _ in range(2)]
                assert {(await run.wait(10)).state for run in both} == {"dead"}
                assert await (await quick.enqueue()).result(20) == 1
                go_on.set()
        assert await written(sql, ledger) == []

    @pytest.mark.parametrize("wrong", ["async engine", "text", "with in async", "sync engine in async"])
    async def test_the_wrong_form_is_refused_in_words(self, app: Hourhand, url: str, wrong: str) -> None:
        engine, awaited = (
            sqlalchemy.create_engine(_sqlalchemy_url(url, "psycopg")),
            create_async_engine(_sqlalchemy_url(url, "asyncpg")),
        )

        @app.task(delivery="exactly_once", retry=1)
        def threaded(ctx: Context) -> None:
            with ctx.transaction("postgresql://" if wrong == "text" else awaited):
                pass

        @app.task(delivery="exactly_once", retry=1)
        async def on_the_loop(ctx: Context) -> None:
            if wrong == "with in async":
                with ctx.transaction():
                    pass
            async with ctx.transaction(engine):
                pass

        async with working(app):
            run = await (await (on_the_loop if wrong.endswith("async") else threaded).enqueue()).wait(10)
        await awaited.dispose()
        words = {
            "async engine": "asynchronous",
            "text": "SQLAlchemy engine",
            "with in async": "async with",
            "sync engine in async": "synchronous",
        }
        assert words[wrong] in run.errors[0]["message"]


class TestSteps:
    async def test_a_retry_does_not_repeat_it(self, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
        calls: list[str] = []

        @app.task(retry=AT_ONCE)
        async def buy(ctx: Context) -> list[Any]:
            async def charge() -> tuple[int, None]:
                calls.append("charge")
                return (7, None)

            def mail() -> None:
                calls.append("mail")

            charged = await ctx.once("charge", charge)
            await ctx.once("mail", mail)
            if ctx.attempt < 3:
                raise ValueError("not yet")
            return [charged, ctx.attempt]

        async with working(app):
            assert await (await buy.enqueue()).result(10) == [[7, None], 3]
        assert calls == ["charge", "mail"]

    async def test_in_a_thread(self, app: Hourhand) -> None:
        calls: list[int] = []

        @app.task(retry=AT_ONCE)
        def buy(ctx: Context) -> Any:
            charged = ctx.once_sync("charge", lambda: calls.append(1) or {"id": 7})  # type: ignore[func-returns-value]
            if ctx.attempt < 2:
                raise ValueError("not yet")
            return charged

        async with working(app):
            assert await (await buy.enqueue()).result(10) == {"id": 7}
        assert calls == [1]

    async def test_it_stays_when_an_exactly_once_attempt_is_undone(
        self, app: Hourhand, sql: asyncpg.Connection, ledger: str
    ) -> None:
        calls: list[int] = []

        @app.task(delivery="exactly_once", retry=AT_ONCE)
        async def buy(ctx: Context) -> None:
            async with ctx.transaction() as connection:
                await ctx.once("charge", lambda: calls.append(1))
                await connection.execute(f"INSERT INTO {ledger} (what) VALUES ('bought')")
            if ctx.attempt < 2:
                raise ValueError("not yet")

        async with working(app):
            await (await buy.enqueue()).result(10)
        assert calls == [1]
        assert await written(sql, ledger) == ["bought"]

    async def test_what_was_done_when_the_run_was_told_to_stop_is_kept(
        self, app: Hourhand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from hourhand.storage.effects import EffectGateway

        keep, calls, contexts = EffectGateway.keep_step, [], []

        async def told_to_stop() -> bool:
            return bool(contexts[0].cancelled)

        async def slow(self: EffectGateway, *arguments: Any) -> str:
            await until(told_to_stop, "its time to be over")
            return await keep(self, *arguments)

        monkeypatch.setattr(EffectGateway, "keep_step", slow)

        @app.task(retry=AT_ONCE, timeout=0.2)
        async def buy(ctx: Context) -> int:
            contexts.append(ctx)
            return await ctx.once("charge", lambda: calls.append(1) or 7)  # type: ignore[func-returns-value, return-value]

        async with working(app):
            assert await (await buy.enqueue()).result(10) == 7
        assert calls == [1]

    async def test_a_zombies_result_is_not_kept(self, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
        @app.task
        async def buy(ctx: Context) -> None:
            await take_away(sql, schema)
            await ctx.once("charge", lambda: 1)

        async with working(app) as worker:
            await buy.enqueue()

            async def over() -> bool:
                return worker.executor.taken == 1 and not worker.executor.active

            await until(over, "the zombie to end")
        assert await sql.fetchval(f"SELECT count(*) FROM {schema}.steps") == 0

    async def test_they_go_with_the_run_but_stay_with_a_dead_letter(
        self, app: Hourhand, sql: asyncpg.Connection, schema: str
    ) -> None:
        @app.task(retry=1)
        async def buy(ctx: Context, fails: bool) -> None:
            await ctx.once("charge", lambda: 1)
            if fails:
                raise ValueError

        async with working(app):
            await (await buy.enqueue(fails=False)).wait(10)
            dead = await buy.enqueue(fails=True)
            await dead.wait(10)
        await sql.execute(f"UPDATE {schema}.steps SET made_at = now() - interval '1 hour'")
        gateway = MaintenanceGateway((await app._database()).link("test"))
        await gateway.tidy()
        await gateway.close()
        assert [row[0] for row in await sql.fetch(f"SELECT run_id FROM {schema}.steps")] == [dead._number]

    @pytest.mark.parametrize(("name", "make", "words"), [
        ("", lambda: 1, "name of a step"), ("x", 5, "lambda"), ("x", lambda: float("nan"), "JSON"), ("x", lambda: "x" * 2**21, "1 MiB"),
        ("x", lambda: {"a": object()}, "cannot be stored"),
    ])  # fmt: skip
    async def test_what_cannot_be_is_refused_in_words(self, app: Hourhand, name: str, make: Any, words: str) -> None:
        @app.task(retry=1)
        async def buy(ctx: Context) -> None:
            await ctx.once(name, make)

        async with working(app):
            run = await (await buy.enqueue()).wait(10)
        assert words in run.errors[0]["message"]


class TestFence:
    async def test_it_grows_with_each_claim_and_refuses_who_came_before(
        self, app: Hourhand, sql: asyncpg.Connection, schema: str
    ) -> None:
        await sql.execute(f"CREATE TABLE {schema}.reports (run text PRIMARY KEY, fence bigint, body text)")
        upsert = f"""INSERT INTO {schema}.reports (run, fence, body) VALUES ($1, $2, $3) ON CONFLICT (run) DO UPDATE
            SET fence = excluded.fence, body = excluded.body WHERE reports.fence <= excluded.fence"""
        fences: list[int] = []

        @app.task(retry=AT_ONCE)
        async def report(ctx: Context) -> None:
            fences.append(ctx.fence)
            await sql.execute(upsert, ctx.run_id, ctx.fence, f"attempt {ctx.attempt}")
            if ctx.attempt < 3:
                raise ValueError

        async with working(app):
            handle = await report.enqueue()
            await handle.result(10)
        assert fences == sorted(set(fences))
        assert len(fences) == 3
        assert await sql.execute(upsert, handle.id, fences[0], "from a zombie") == "INSERT 0 0"
        assert await sql.fetchval(f"SELECT body FROM {schema}.reports") == "attempt 3"


class TestIdempotencyKey:
    async def test_from_the_jobs_template(self, app: Hourhand) -> None:
        keys: list[str] = []

        @app.task
        async def report(ctx: Context, customer: int) -> None:
            keys.append(ctx.idempotency_key)

        template = "report-{{week}}-{{ date }}-{{payload.customer}}-{{customer}}-{{job}}-{{month}}-{{quarter}}"
        await app.jobs.add("weekly", task=report, schedule="0 9 * * 1", timezone="Pacific/Auckland", payload={"customer": 7},
                           idempotency_key_template=template)  # fmt: skip
        assert (await app.jobs.show("weekly")).idempotency_key_template == template
        since = datetime(2026, 1, 4, tzinfo=UTC)
        async with working(app):
            await app.jobs.backfill("weekly", since, since + timedelta(days=2))

            async def rendered() -> bool:
                return bool(keys)

            await until(rendered, "the run")
        # Nine o'clock on Monday in Auckland is still Sunday in UTC.
        assert keys == ["report-2026-W02-2026-01-05-7-7-weekly-2026-01-2026-Q1"]

    async def test_without_a_template_it_is_the_token(self, app: Hourhand) -> None:
        @app.task
        async def report(ctx: Context) -> list[str]:
            return [ctx.idempotency_key, ctx.token]

        async with working(app):
            key, token = await (await report.enqueue()).result(10)
        assert key == token

    @pytest.mark.parametrize(("template", "words"), [
        ("{{wek}}", "wek}}, which is not known; it can have"), ("{{payload.none}}", "not known"), ("", "1 to 500"), ("{{week", "other half"),
        ("{{deep}}", "not a text"), (5, "1 to 500"),
    ])  # fmt: skip
    async def test_unknown_names_are_refused_at_registration(self, app: Hourhand, template: Any, words: str) -> None:
        with pytest.raises(InvalidOption, match=words):
            await app.jobs.add("x", schedule="0 0 1 1 *", payload={"deep": {}}, idempotency_key_template=template)
        assert await app.jobs.list() == []

    async def test_it_is_checked_again_when_the_payload_changes(self, app: Hourhand) -> None:
        await app.jobs.add("x", schedule="0 0 1 1 *", payload={"a": 1}, idempotency_key_template="{{a}}")
        with pytest.raises(InvalidOption, match="not known"):
            await app.jobs.update("x", payload={"b": 1})
        assert (await app.jobs.update("x", payload={"a": 2})).idempotency_key_template == "{{a}}"
        assert (await app.jobs.update("x", idempotency_key_template=None)).idempotency_key_template is None
