"""A worker in this process, on a real database: what becomes of a run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from hourhand import Context, Hourhand, PermanentFailure, Retry, RetryAfter
from hourhand.core.errors import NotPossible, RunFailed, UnknownRun
from hourhand.engine.claimer import LARGEST_CLAIM, LARGEST_STOCK
from hourhand.engine.worker import Worker, WorkerOptions
from tests.support.fleet import until, where

pytestmark = pytest.mark.once

AT_ONCE = Retry(max_attempts=3, base=0, cap=0)


@asynccontextmanager
async def working(app: Hourhand, **options: object) -> AsyncIterator[Worker]:
    worker = Worker(await app._database(), app.settings, app.registry, WorkerOptions(**options))  # type: ignore[arg-type]
    task = asyncio.create_task(worker.run())
    try:
        started = asyncio.create_task(worker.started.wait())
        await asyncio.wait([task, started], return_when=asyncio.FIRST_COMPLETED)
        yield worker
    finally:
        if not task.done():
            worker.ask_to_stop()
            worker.ask_to_stop()
        await task


async def test_while_the_slots_have_one_claim_to_run_the_next_is_under_way(app: Hourhand) -> None:
    @app.task
    async def noop() -> None: ...

    await noop.enqueue_many([{}] * (3 * LARGEST_CLAIM))
    worker = Worker(await app._database(), app.settings, app.registry, WorkerOptions())
    claimer = worker.claimer
    await worker.node.start()
    try:
        claimer._rate = 1e6  # as it is where runs do nothing; here no slot takes any
        stock = []
        while await claimer.run_once():
            stock.append(len(worker.executor.deque))
        assert stock == [LARGEST_CLAIM, LARGEST_STOCK]
    finally:
        await worker.node.stop()
        await claimer.close()
        await worker.completer.close()


async def test_an_async_handler_a_thread_and_their_results(app: Hourhand) -> None:
    loop_thread = threading.get_ident()

    @app.task
    async def double(ctx: Context, n: int) -> dict[str, object]:
        return {"n": 2 * n, "attempt": ctx.attempt, "here": threading.get_ident() == loop_thread}

    @app.task
    def half(n: int) -> dict[str, object]:
        return {"n": n / 2, "here": threading.get_ident() == loop_thread}

    async with working(app):
        assert await (await double.enqueue(n=21)).result(10) == {"n": 42, "attempt": 1, "here": True}
        assert await (await half.enqueue(n=21)).result(10) == {"n": 10.5, "here": False}


async def test_context_tells_the_run(app: Hourhand) -> None:
    seen: dict[str, object] = {}

    @app.task
    async def look(ctx: Context) -> None:
        seen.update(run=ctx.run_id, token=ctx.token, at=ctx.scheduled_at, queue=ctx.queue, tags=ctx.tags, job=ctx.job_id)

    when = datetime.now(UTC) - timedelta(minutes=1)
    async with working(app):
        handle = await look.options(at=when, queue="elsewhere", tags=["a"]).enqueue()
        await handle.result(10)
    assert seen["run"] == handle.id
    assert seen["at"] == when
    assert len(str(seen["token"])) == 64
    assert (seen["queue"], seen["tags"], seen["job"]) == ("elsewhere", ("a",), None)


async def test_every_attempts_error_is_kept_until_the_run_is_dead(app: Hourhand) -> None:
    @app.task(retry=AT_ONCE)
    async def fail(ctx: Context) -> None:
        raise ValueError(f"attempt {ctx.attempt}")

    async with working(app):
        handle = await fail.enqueue()
        run = await handle.wait(20)
        with pytest.raises(RunFailed, match="attempt 3"):
            await handle.result(10)
    assert run.state == "dead"
    assert [error["message"] for error in run.errors] == ["attempt 1", "attempt 2", "attempt 3"]
    assert all("ValueError" in error["traceback"] for error in run.errors)
    assert run.attempt == 3


async def test_a_retry_that_succeeds_keeps_the_errors_in_history(app: Hourhand) -> None:
    tokens = []

    @app.task(retry=AT_ONCE)
    async def second_time(ctx: Context) -> int:
        tokens.append(ctx.token)
        if ctx.attempt == 1:
            raise OSError("once")
        return ctx.attempt

    async with working(app):
        run = await (await second_time.enqueue()).wait(20)
    assert (run.state, run.result, run.attempt) == ("succeeded", 2, 2)
    assert [error["type"] for error in run.errors] == ["OSError"]
    assert tokens[0] == tokens[1], "the token is the same over retries"


@pytest.mark.parametrize(
    ("error", "attempts"),
    [(PermanentFailure("no"), 1), (KeyError("listed"), 1), (RetryAfter(0), 3), (LookupError("other"), 3)],
)
async def test_which_errors_are_tried_again(app: Hourhand, error: Exception, attempts: int) -> None:
    @app.task(retry=Retry(max_attempts=3, base=0, cap=0, give_up_on=(KeyError,)))
    async def fail() -> None:
        raise error

    async with working(app):
        run = await (await fail.enqueue()).wait(20)
    assert (run.state, run.attempt) == ("dead", attempts)


async def test_max_attempts_of_one_enqueue_wins(app: Hourhand) -> None:
    @app.task(retry=AT_ONCE)
    async def fail() -> None:
        raise ValueError

    async with working(app):
        assert (await (await fail.options(max_attempts=1).enqueue()).wait(20)).attempt == 1


async def test_a_broken_backoff_function_does_not_lose_the_run(app: Hourhand) -> None:
    @app.task(retry=Retry(max_attempts=2, cap=0, backoff=lambda attempt: 1 / 0))
    async def fail() -> None:
        raise ValueError

    async with working(app):
        assert (await (await fail.enqueue()).wait(20)).state == "dead"


async def test_timeouts_cancel_async_and_abandon_threads(app: Hourhand) -> None:
    release = threading.Event()
    cancelled = asyncio.Event()

    @app.task(timeout=0.05, retry=1)
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    @app.task(timeout=0.05, retry=1)
    def stuck() -> None:
        release.wait(60)

    async with working(app):
        run = await (await slow.enqueue()).wait(20)
        assert (run.state, run.errors[0]["type"]) == ("dead", "HandlerTimeout")
        assert cancelled.is_set()
        run = await (await stuck.enqueue()).wait(20)
        assert "left behind" in run.errors[0]["message"]
        release.set()


async def test_timeout_of_one_enqueue_wins(app: Hourhand) -> None:
    @app.task(timeout=60, retry=1)
    async def slow() -> None:
        await asyncio.sleep(60)

    async with working(app):
        assert (await (await slow.options(timeout=0.05).enqueue()).wait(20)).state == "dead"


async def test_cancelling_what_waits_and_what_runs(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    started = asyncio.Event()
    thread_started = threading.Event()

    @app.task
    async def wait_for_ever() -> None:
        started.set()
        await asyncio.sleep(600)

    @app.task
    def look_around(ctx: Context) -> None:
        thread_started.set()
        while True:
            ctx.check_cancelled()
            time.sleep(0.005)

    pending = await wait_for_ever.options(queue="nobody").enqueue()
    delayed = await wait_for_ever.options(delay=3600).enqueue()
    assert await app.runs.cancel(pending.id, "not needed") == "cancelled"
    assert await app.runs.cancel(delayed.id) == "cancelled"
    assert (await pending.show()).reason == "not needed"
    async with working(app):
        handle = await wait_for_ever.enqueue()
        await started.wait()
        assert await app.runs.cancel(handle.id, "changed my mind") == "asked"
        assert (await handle.wait(20)).state == "cancelled"
        handle = await look_around.enqueue()
        await asyncio.to_thread(thread_started.wait)
        assert await app.runs.cancel(handle.id) == "asked"
        assert (await handle.wait(20)).state == "cancelled"
    with pytest.raises(NotPossible, match="ended already"):
        await app.runs.cancel(handle.id)
    with pytest.raises(UnknownRun):
        await app.runs.cancel("r_zzzz")
    assert (await where(sql, schema))["runs"] == 4


async def test_a_cancel_request_whose_word_was_lost_is_honoured_at_the_next_heartbeat(
    app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    started = asyncio.Event()

    @app.task
    async def wait_for_ever() -> None:
        started.set()
        await asyncio.sleep(600)

    async with working(app):
        handle = await wait_for_ever.enqueue()
        await started.wait()
        await sql.execute(f"INSERT INTO {schema}.cancels (run_id) VALUES ($1)", handle._number)
        assert (await handle.wait(20)).state == "cancelled"


async def test_progress_is_shown_while_it_runs(app: Hourhand) -> None:
    @app.task
    async def work(ctx: Context) -> None:
        ctx.progress(0.25, message="a quarter", rows=10)
        await asyncio.sleep(600)

    async with working(app):
        handle = await work.enqueue()

        async def shown() -> bool:
            return (await handle.show()).progress == {"value": 0.25, "message": "a quarter", "rows": 10}

        await until(shown, "the progress report")
        await app.runs.cancel(handle.id)
        await handle.wait(20)


async def test_hooks_and_middleware_go_around_the_runs(app: Hourhand) -> None:
    order: list[str] = []

    @app.on_startup
    async def open_client() -> None:
        app.state.client = "open"
        order.append("startup")

    @app.on_shutdown
    def close_client() -> None:
        order.append("shutdown")

    @app.middleware
    async def outer(ctx: Context, call_next):  # type: ignore[no-untyped-def]
        order.append("outer in")
        result = await call_next()
        order.append("outer out")
        return result + 1

    @app.middleware
    async def inner(ctx: Context, call_next):  # type: ignore[no-untyped-def]
        order.append("inner in")
        return await call_next()

    @app.task
    async def work(ctx: Context) -> int:
        order.append(ctx.state.client)
        return 41

    async with working(app):
        assert await (await work.enqueue()).result(10) == 42
    assert order == ["startup", "outer in", "inner in", "open", "outer out", "shutdown"]


async def test_a_task_the_worker_does_not_know_waits_for_one_that_does(app: Hourhand, url: str, schema: str) -> None:
    other = Hourhand(url, schema=schema, poll=1.0, lease=3.0, grace=0.5)

    @app.task
    async def known() -> str:
        return "done"

    @other.task
    async def elsewhere() -> str:
        return "done there"

    async with other, working(app):
        stranger = await app.enqueue("elsewhere")
        await (await known.enqueue()).result(20)

        async def parked() -> bool:
            return (await stranger.show()).state == "parked"

        await until(parked, "the unknown task to be set aside")
        async with working(other):
            run = await stranger.wait(20)
            assert (run.state, run.result, run.attempt) == ("succeeded", "done there", 1)
            # Both are alive now; whichever claims it, it ends where it is known.
            assert await (await app.enqueue("elsewhere")).result(20) == "done there"


async def test_expired_runs_end_unstarted_claimed_or_not(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    ran = []

    @app.task
    async def work() -> None:
        ran.append(1)

    claimed = await work.options(expires=3600).enqueue()
    unclaimed = await work.options(expires=3600, queue="nobody").enqueue()
    await app.queues.pause("nobody")
    await sql.execute(f"UPDATE {schema}.ready SET expires_at = now() - interval '1 second'")
    async with working(app):
        assert (await claimed.wait(20)).state == "expired"
        assert (await unclaimed.wait(20)).state == "expired"
    assert not ran


async def test_stopping_hands_back_what_has_not_ended_with_no_attempt_charged(
    app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    started = asyncio.Event()

    @app.task
    async def wait_for_ever() -> None:
        started.set()
        await asyncio.sleep(600)

    handles = [await wait_for_ever.enqueue() for _ in range(5)]
    async with working(app, concurrency=2, shutdown_grace=600) as worker:
        await started.wait()
        worker.ask_to_stop()  # waits for its grace of ten minutes
        worker.ask_to_stop()  # does not
    assert await where(sql, schema) == {"ready": 5, "delayed": 0, "parked": 0, "running": 0, "dead": 0, "runs": 0}
    rows = await sql.fetch(f"SELECT run_id, seq, attempt, crashes FROM {schema}.ready ORDER BY seq")
    assert [row["run_id"] for row in rows] == [handle._number for handle in handles], "at their old places"
    assert all(row["attempt"] == row["crashes"] == 0 for row in rows)
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.nodes WHERE stopped_at IS NOT NULL") == 1


async def test_stopping_lets_running_handlers_finish(app: Hourhand) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> str:
        started.set()
        await go.wait()
        return "finished"

    handle = await work.enqueue()
    async with working(app, shutdown_grace=600) as worker:
        await started.wait()
        worker.ask_to_stop()
        go.set()
        assert await handle.result(20) == "finished"


async def test_a_paused_queue_is_left_alone_until_resumed(app: Hourhand) -> None:
    @app.task(queue="held")
    async def work() -> str:
        return "done"

    @app.task
    async def free() -> str:
        return "done"

    await app.queues.pause("held")
    async with working(app):
        held = await work.enqueue()
        assert await (await free.enqueue()).result(20) == "done"
        assert (await held.show()).state == "ready"
        await app.queues.resume("held")
        assert await held.result(20) == "done"


async def test_a_worker_serves_only_its_queues(app: Hourhand) -> None:
    @app.task
    async def work() -> str:
        return "done"

    async with working(app, queues=["mine"]):
        other = await work.options(queue="other").enqueue()
        assert await (await work.options(queue="mine").enqueue()).result(20) == "done"
        assert (await other.show()).state == "ready"


async def test_results_that_cannot_be_kept_do_not_fail_the_run(app: Hourhand) -> None:
    @app.task
    async def give(what: str) -> object:
        return {"large": "x" * 300_000, "object": object(), "nul": "a\0b"}[what]

    async with working(app):
        for what in ("large", "object", "nul"):
            run = await (await give.enqueue(what=what)).wait(20)
            assert (run.state, run.result) == ("succeeded", None)
            assert run.reason is not None
            assert run.reason.startswith("result not kept")


async def test_a_payload_that_no_longer_fits_is_dead_at_once(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    @app.task(retry=AT_ONCE)
    async def typed(n: int) -> None:
        pass

    handle = await typed.enqueue(n=1)
    await sql.execute(f"""UPDATE {schema}.ready SET payload = '{{"n": "many"}}'""")
    async with working(app):
        run = await handle.wait(20)
    assert (run.state, run.attempt) == ("dead", 1)
    assert "Expected `int`, got `str`" in run.errors[0]["message"]


async def test_delays_become_due_in_order(app: Hourhand) -> None:
    order: list[int] = []

    @app.task
    async def work(n: int) -> None:
        order.append(n)

    async with working(app, concurrency=1):
        last = await work.options(delay=0.3).enqueue(n=3)
        await work.options(delay=0.2).enqueue(n=2)
        await work.options(delay=0.1).enqueue(n=1)
        await last.result(20)
    assert order == [1, 2, 3]


async def test_broken_connections_lose_nothing(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def work(n: int) -> int:
        started.set()
        await go.wait()
        return n

    async with working(app, concurrency=20) as worker:
        handles = [await work.enqueue(n=n) for n in range(20)]
        await started.wait()
        node = worker.node.id
        for _ in range(3):
            await sql.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name ~ '^hourhand (claimer|completer|session|maintainer)'"
                " AND pid <> pg_backend_pid()"
            )
            go.set()
            await handles[0].wait(20)
        assert [await handle.result(20) for handle in handles] == list(range(20))
        assert worker.node.id == node, "nobody declared it dead"
    assert (await where(sql, schema))["runs"] == 20


async def test_claims_whose_answer_was_lost_are_handed_back(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    @app.task
    async def work() -> str:
        return "done"

    async with working(app) as worker:
        # As if a claim had committed just before its connection broke: rows under our name, unknown to us.
        await sql.execute(
            f"INSERT INTO {schema}.running (worker_id, token, claimed_at, seq, run_id, scheduled_at, lane, attempt, crashes, task, payload)"
            f" SELECT $1, 0, now(), 900, 900, now(), {schema}.queue_number('default') * 4 + 1, 0, 0, 'work', '{{}}'",
            worker.node.id,
        )

        async def cut() -> bool:
            """In the middle of a statement: a connection that is cut while it is idle is opened again without a word."""
            ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'hourhand claimer' AND datname = current_database()"
            return bool(await sql.fetch(f"{ended} AND wait_event_type = 'Lock'"))

        async def done() -> bool:
            return bool(await sql.fetchval(f"SELECT count(*) FROM {schema}.runs WHERE run_id = 900 AND outcome = 'succeeded'"))

        async with sql.transaction():
            await sql.execute(f"LOCK TABLE {schema}.ready")
            await until(cut, "a connection of the claimer to cut")
        await until(done, "the stray run")


async def test_dead_letters_edit_replay_purge(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    @app.task(retry=1)
    async def strict(n: int) -> int:
        if n < 0:
            raise ValueError("negative")
        return n

    async with working(app):
        handles = [await strict.options(tags=["batch"], key=f"k{n}").enqueue(n=-n) for n in range(1, 4)]
        for handle in handles:
            assert (await handle.wait(20)).state == "dead"
        assert await app.dead.count(task="strict", tag="batch", error="ValueError") == 3
        await app.dead.edit(handles[0].id, {"n": 5})
        answer = await app.dead.replay(handles[0].id)
        assert answer.replayed == [handles[0].id]
        assert await handles[0].result(20) == 5
        # A key that another live run has taken meanwhile keeps the dead one where it is.
        await app.queues.pause("default")
        rival = await strict.options(key="k2").enqueue(n=2)
        assert not rival.duplicate
        answer = await app.dead.replay(task="strict")
        assert answer.blocked == [handles[1].id]
        assert answer.replayed == [handles[2].id]
        await app.queues.resume("default")
        await handles[2].wait(20)
        assert await app.dead.purge(task="strict") == 2
    rows = await sql.fetch(f"SELECT outcome, payload FROM {schema}.runs WHERE reason LIKE '%purged%'")
    assert [(row["outcome"], row["payload"]) for row in rows] == [("dead", None)] * 2
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.dead") == 0


async def test_retry_of_an_ended_run_is_a_new_one(app: Hourhand) -> None:
    @app.task
    async def work(n: int) -> int:
        return n

    async with working(app):
        first = await work.enqueue(n=4)
        await first.result(20)
        again = await app.runs.retry(first.id)
        assert again != first.id

        async def succeeded() -> bool:
            return (await app.runs.show(again)).state == "succeeded"

        await until(succeeded, "the repeated run")
        later = await work.options(delay=3600).enqueue(n=5)
        assert await app.runs.retry(later.id) == later.id
        assert await later.result(20) == 5


async def test_lane_shares_let_the_urgent_pass(app: Hourhand) -> None:
    order: list[str] = []

    @app.task
    async def work(which: str) -> None:
        order.append(which)

    await work.options(priority="low").enqueue_many([{"which": "low"}] * 300)
    await work.options(priority="high").enqueue_many([{"which": "high"}] * 100)
    async with working(app, concurrency=10):

        async def done() -> bool:
            return len(order) == 400

        await until(done, "all runs")
    first = order[:150]
    assert first.count("high") > first.count("low") > 0, "the urgent go first, nobody starves"
