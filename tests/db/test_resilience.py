"""What once went wrong, or could: each shown to be handled."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest
import structlog
from pydantic import BaseModel, model_serializer

from hourhand import Context, Hourhand, InvalidPayload, Retry
from hourhand.core.clock import Clock
from hourhand.storage.nodes import MaintenanceGateway
from tests.db.test_worker import working
from tests.support.fleet import until, where

pytestmark = pytest.mark.once

AT_ONCE = Retry(max_attempts=3, base=0, cap=0)


class Sulky(BaseModel):
    @model_serializer
    def refuse(self) -> Any:
        raise RuntimeError("not today")


async def test_a_result_whose_own_serialiser_fails_costs_only_the_result(app: Hourhand) -> None:
    @app.task
    async def sulk() -> Sulky:
        return Sulky()

    @app.task
    async def fine() -> str:
        return "fine"

    async with working(app, concurrency=1):
        run = await (await sulk.enqueue()).wait(20)
        assert (run.state, run.result) == ("succeeded", None)
        assert await (await fine.enqueue()).result(20) == "fine", "the only slot is still there"


async def test_a_handler_that_disguises_its_timeout_leaves_nothing_in_its_slot(app: Hourhand) -> None:
    @app.task(timeout=0.05, retry=1)
    async def disguise() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ValueError("something else") from None

    @app.task(retry=1)
    async def cancels_itself() -> None:
        raise asyncio.CancelledError

    @app.task
    async def fine() -> str:
        return "fine"

    async with working(app, concurrency=1):
        run = await (await disguise.enqueue()).wait(20)
        assert run.errors[0]["type"] == "HandlerTimeout"
        assert (await (await cancels_itself.enqueue()).wait(20)).state == "dead"
        assert await (await fine.enqueue()).result(20) == "fine"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("odd")])
async def test_whatever_a_handler_raises_is_its_own_failure(app: Hourhand, error: BaseException) -> None:
    @app.task(retry=1)
    async def odd() -> None:
        raise error

    async with working(app, concurrency=1) as worker:
        assert (await (await odd.enqueue()).wait(20)).state == "dead"
        assert not [slot for slot in worker.executor.slots if slot.done()]


async def test_a_run_claimed_again_by_its_reborn_worker_while_the_old_handler_cleans_up(
    app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    starts, release = [], asyncio.Event()

    @app.task
    async def slow_to_leave(ctx: Context) -> str:
        starts.append(ctx.attempt)
        if len(starts) > 1:
            return "second"
        try:
            await asyncio.sleep(600)
        finally:
            await release.wait()
        return "first"

    async with working(app) as worker:
        handle = await slow_to_leave.enqueue()

        async def started() -> bool:
            return bool(starts)

        await until(started, "the handler")
        node = worker.node.id
        await sql.execute(f"UPDATE {schema}.nodes SET died_at = clock_timestamp() WHERE id = $1", node)
        assert await handle.result(30) == "second"
        assert worker.node.id != node
        release.set()
        await asyncio.sleep(0)
        assert not [slot for slot in worker.executor.slots if slot.done()]
    assert (await where(sql, schema))["runs"] == 1


async def test_many_callers_of_enqueue_many_do_not_wait_for_each_other(
    app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    @app.task(queue="fresh")
    async def work(n: int) -> None: ...

    async with asyncio.timeout(30):
        await asyncio.gather(*(work.enqueue_many([{"n": n}]) for n in range(30)))
    assert (await where(sql, schema))["ready"] == 30


async def test_progress_that_cannot_be_kept_is_the_handlers_error(app: Hourhand) -> None:
    seen: list[str] = []

    @app.task
    async def work(ctx: Context) -> None:
        for bad in ({"thing": object()}, {"message": "a\0b"}, {"message": "\udc80"}, {"text": "x" * 20_000}):
            with pytest.raises(InvalidPayload) as raised:
                ctx.progress(0.5, **bad)  # type: ignore[arg-type]
            seen.append(str(raised.value))

    async with working(app) as worker:
        await (await work.enqueue()).result(20)
        assert not [task for task in worker._tasks if task.done()]
    assert len(seen) == 4


async def test_a_callers_open_transaction_does_not_hold_up_the_end_of_the_run_whose_key_it_met(
    app: Hourhand, url: str, request: pytest.FixtureRequest
) -> None:
    go = asyncio.Event()

    @app.task
    async def work(n: int = 0) -> int:
        if n == 0:
            await go.wait()
        return n

    async with working(app):
        holder = await work.options(key="k").enqueue()
        slow = await asyncpg.connect(url)
        request.addfinalizer(slow.terminate)
        async with slow.transaction():
            duplicate = await work.options(key="k", connection=slow).enqueue()
            assert duplicate.duplicate
            assert duplicate.id == holder.id
            go.set()
            assert await holder.result(20) == 0
            assert await (await work.enqueue(n=5)).result(20) == 5
        await slow.close()


@pytest.mark.parametrize(
    "argument", ["at => 'infinity'", "expires_at => '20000-01-01'", "at => '-infinity'", "expires_at => 'infinity'"]
)
async def test_instants_that_no_worker_could_read_are_refused(sql: asyncpg.Connection, schema: str, argument: str) -> None:
    with pytest.raises(asyncpg.DatetimeFieldOverflowError, match="between the years"):
        await sql.execute(f"SELECT {schema}.enqueue('x', {argument})")


async def claimed_by(sql: asyncpg.Connection, schema: str, ended: str, crashes: int = 0) -> int:
    """A run in the hands of a node that has ended."""
    node = await sql.fetchval(
        f"INSERT INTO {schema}.nodes (kind, name, lease_until, session, died_at) VALUES ('worker', 'gone', now(), false, {ended}) RETURNING id"
    )
    run: int = await sql.fetchval(f"SELECT nextval('{schema}.run_numbers')")
    await sql.execute(
        f"INSERT INTO {schema}.running (worker_id, token, claimed_at, seq, run_id, scheduled_at, lane, attempt, crashes, task, payload)"
        f" VALUES ($1, 0, now(), $2, $2, now(), {schema}.queue_number('default') * 4 + 1, 0, $3, 'work', '{{}}')",
        node, run, crashes,
    )  # fmt: skip
    return run


async def maintenance(app: Hourhand) -> MaintenanceGateway:
    return MaintenanceGateway((await app._database()).link("test"))


async def test_runs_of_a_node_that_ended_long_ago_are_recovered_too(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    await claimed_by(sql, schema, "now() - interval '20 days'")
    gateway = await maintenance(app)
    await gateway.tidy()
    assert (await gateway.tick(1, 5.0)).orphans
    assert await gateway.recover(10) == (1, 0, 0, 0)
    await gateway.tidy()
    assert not (await gateway.tick(1, 5.0)).orphans
    assert await sql.fetchval(f"SELECT settled FROM {schema}.nodes")
    await gateway.close()


async def test_crashes_of_others_charge_no_attempt_but_are_not_endless(
    app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    innocent = await claimed_by(sql, schema, "now()", crashes=3)
    cursed = await claimed_by(sql, schema, "now()", crashes=9)
    gateway = await maintenance(app)
    assert await gateway.recover(10) == (1, 0, 1, 0)
    row = await sql.fetchrow(f"SELECT run_id, attempt, crashes FROM {schema}.parked")
    assert tuple(row) == (innocent, 0, 4)
    row = await sql.fetchrow(f"SELECT run_id, reason FROM {schema}.dead")
    assert tuple(row) == (cursed, "10 workers in a row died while they held it")
    await gateway.close()


async def test_a_run_asked_to_stop_does_not_come_back_when_its_worker_dies_or_hands_it_back(
    app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    started = asyncio.Event()

    @app.task
    async def deaf() -> None:
        started.set()
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                if deaf_no_more:
                    raise

    deaf_no_more = False
    orphan = await claimed_by(sql, schema, "now()")
    await sql.execute(f"INSERT INTO {schema}.cancels (run_id, reason) VALUES ($1, 'enough')", orphan)
    gateway = await maintenance(app)
    assert await gateway.recover(10) == (0, 1, 0, 0)
    async with working(app):
        handle = await deaf.enqueue()
        await started.wait()
        assert await app.runs.cancel(handle.id, "enough") == "asked"
    deaf_no_more = True
    rows = await sql.fetch(f"SELECT outcome, reason FROM {schema}.runs")
    assert [tuple(row) for row in rows] == [("cancelled", "enough")] * 2
    await gateway.close()


async def test_the_reason_of_a_cancelled_run_is_kept(app: Hourhand) -> None:
    started = asyncio.Event()

    @app.task
    async def wait_for_ever() -> None:
        started.set()
        await asyncio.sleep(600)

    async with working(app):
        handle = await wait_for_ever.enqueue()
        await started.wait()
        await app.runs.cancel(handle.id, "wrong customer")
        assert (await handle.wait(20)).reason == "wrong customer"


async def test_a_replayed_run_is_not_stopped_by_an_old_request(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    fail = True

    @app.task(retry=1)
    async def work() -> str:
        if fail:
            raise ValueError
        await asyncio.sleep(0.05)
        return "done"

    async with working(app):
        handle = await work.enqueue()
        await handle.wait(20)
        await sql.execute(f"INSERT INTO {schema}.cancels (run_id) VALUES ($1)", handle._number)
        fail = False
        await app.dead.replay(handle.id)
        assert await sql.fetchval(f"SELECT count(*) FROM {schema}.cancels") == 0
        assert await handle.result(20) == "done"


async def test_a_heartbeat_that_the_database_leaves_unanswered_is_told_and_nothing_starts_meanwhile(
    app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    row = asyncio.Lock()

    @app.task
    async def look() -> bool:
        return row.locked()

    async def told() -> bool:
        return any(one["event"] == "heartbeat.unanswered" for one in logs)

    async with working(app):
        assert await (await look.enqueue()).result(20) is False
        with structlog.testing.capture_logs() as logs:
            async with row, sql.transaction():
                await sql.execute(f"SELECT FROM {schema}.nodes FOR UPDATE")
                await until(told, "that it is told")
                handle = await look.enqueue()
                await until(lambda: sql.fetchval(f"SELECT count(*) FROM {schema}.running"), "its claim")
        assert await handle.result(20) is False


async def test_a_lease_that_ran_out_while_its_renewal_was_under_way_is_noticed_by_who_waits_for_it(
    app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    go = asyncio.Event()

    @app.task
    async def wait() -> None:
        await go.wait()

    async with working(app, concurrency=1) as worker:
        first, second = await wait.enqueue(), await wait.enqueue()
        node, held = worker.node, f"SELECT FROM {schema}.nodes FOR UPDATE"

        async def begun() -> bool:
            return bool(worker.executor.active)

        async def renewed() -> bool:
            return node.lease_deadline > before

        async def passed(moment: float) -> bool:
            return Clock.monotonic() > moment

        async def claimed() -> bool:
            return bool(worker.executor.stock)

        await until(begun, "the first run")
        # One renewal takes a second, so that the next is asked for later, and is under way when the lease ends.
        async with sql.transaction():
            await sql.execute(held)
            before = node.lease_deadline
            await until(lambda: passed(before - app.settings.lease + app.settings.heartbeat + 1), "a slow renewal")
        await until(renewed, "its answer")
        async with sql.transaction():
            await sql.execute(held)
            await until(lambda: passed(node.lease_deadline), "the end of the lease")
            go.set()
            await until(claimed, "the second run, which the slot must not begin")
        for handle in (first, second):
            assert (await handle.wait(20)).state == "succeeded"


async def test_a_word_about_a_queue_nobody_has_met_is_harmless(app: Hourhand) -> None:
    @app.task
    async def work() -> str:
        return "done"

    async with working(app) as worker:
        worker.claimer._lanes.add(987_654)
        worker.claimer._wake.set()
        assert await (await work.enqueue()).result(20) == "done"
        assert not [task for task in worker._tasks if task.done()]


async def test_pausing_a_queue_takes_back_what_waits_in_the_worker(app: Hourhand) -> None:
    started = asyncio.Event()

    @app.task(queue="held")
    async def work(n: int) -> None:
        started.set()
        await asyncio.sleep(600)

    async with working(app, concurrency=1) as worker:
        handles = [await work.enqueue(n=n) for n in range(2)]
        await started.wait()
        # One runs; put the other into the deque as a worker with a stock has it.
        worker.claimer._rate = 100.0

        async def stocked() -> bool:
            worker.claimer._lanes |= set(worker.claimer._marks)
            worker.claimer._wake.set()
            return len(worker.executor.deque) == 1

        await until(stocked, "a stock")
        await app.queues.pause("held")

        async def back() -> bool:
            return (await handles[1].show()).state == "ready"

        await until(back, "the waiting one to be handed back")
        assert (await handles[0].show()).state == "running"


async def test_a_stop_during_a_start_up_hook_is_obeyed(app: Hourhand) -> None:
    from hourhand.engine.worker import Worker, WorkerOptions

    @app.on_startup
    async def slow_hook() -> None:
        await asyncio.sleep(600)

    @app.task
    async def work() -> None: ...

    worker = Worker(await app._database(), app.settings, app.registry, WorkerOptions())
    task = asyncio.create_task(worker.run())
    await asyncio.sleep(0)
    worker.ask_to_stop()
    await asyncio.wait_for(task, 20)


async def test_a_mountain_of_due_runs_does_not_keep_the_maintainer_from_its_tick(
    app: Hourhand, sql: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hourhand.engine import maintainer as module

    await sql.execute(
        f"INSERT INTO {schema}.delayed (due_at, run_id, scheduled_at, lane, task, payload)"
        f" SELECT now(), n, now(), 5, 'x', '{{}}' FROM generate_series(1, 50) AS n"
    )
    monkeypatch.setattr(module, "BATCH", 10)
    monkeypatch.setattr(module, "TICK", 0.0)

    class Idle:
        id = 1
        clock = Clock()

    one = module.Maintainer(await maintenance(app), Idle(), app.settings)  # type: ignore[arg-type]
    await one.run_once()
    assert (await where(sql, schema))["delayed"] == 40, "one batch, then back to looking who is dead"
    await one.stop()


async def test_the_duty_goes_to_one_and_moves_when_its_holder_is_gone(
    app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    gateway = await maintenance(app)
    nodes = [
        await sql.fetchval(
            f"INSERT INTO {schema}.nodes (kind, name, lease_until, session) VALUES ('worker', 'n', now() + '1 hour', false) RETURNING id"
        )
        for _ in range(2)
    ]
    assert (await gateway.tick(nodes[0], 60.0)).held
    assert not (await gateway.tick(nodes[1], 60.0)).held
    assert (await gateway.tick(nodes[0], 60.0)).held
    await sql.execute(f"UPDATE {schema}.nodes SET died_at = now() WHERE id = $1", nodes[0])
    assert (await gateway.tick(nodes[1], 60.0)).held
    await gateway.close()


async def test_one_is_next_in_line_and_the_others_ask_more_seldom(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    from hourhand.engine import maintainer as module

    node = f"INSERT INTO {schema}.nodes (kind, name, lease_until, session) VALUES ('worker', 'n', now() + '1 hour', false) RETURNING id"
    nodes = [await sql.fetchval(node) for _ in range(4)]
    told: list[str] = []

    class Idle:
        clock = Clock()

        def __init__(self, number: int) -> None:
            self.id = number

    fleet = [module.Maintainer(await maintenance(app), Idle(number), app.settings) for number in nodes]  # type: ignore[arg-type]
    first, second, third, fourth = fleet
    pauses = [await one.run_once() for one in (second, first, third, fourth)]
    assert pauses == [module.TICK, module.TICK, module.ASK_EVERY, module.ASK_EVERY], "the second has it, the first is next"
    assert await sql.fetchval(f"SELECT node FROM {schema}.duties WHERE name = 'maintainer'") == nodes[1]
    await sql.execute(f"UPDATE {schema}.nodes SET lease_until = now() WHERE id = $1", nodes[0])
    assert await third.run_once() == module.TICK, "the first does not answer"
    await sql.execute(f"UPDATE {schema}.nodes SET stopped_at = now() WHERE id = ANY ($1)", nodes[:2])
    assert await fourth.run_once() == module.TICK, "both are gone: who asks has it"
    assert await sql.fetchval(f"SELECT node FROM {schema}.duties WHERE name = 'maintainer'") == nodes[3]
    assert await third.run_once() == module.TICK, "and the third is next"
    # What there is to tell is told once a second, however seldom it ticks.
    fifth = module.Maintainer(await maintenance(app), Idle(await sql.fetchval(node)), app.settings)  # type: ignore[arg-type]
    fifth.news = lambda: told.append("asked")
    assert await fifth.run_once() == module.ASK_EVERY
    await fifth._rest(2.5 * module.TICK)
    assert len(told) > 1
    for one in (*fleet, fifth):
        await one.stop()


async def test_other_duties_are_held_though_the_chores_cannot_be_done(
    app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    from hourhand.engine import maintainer as module

    class Idle:
        id = 1
        clock = Clock()

    one = module.Maintainer(await maintenance(app), Idle(), app.settings)  # type: ignore[arg-type]
    one.duties = [module.Duty("other")]
    await sql.execute(f"ALTER TABLE {schema}.delayed RENAME TO elsewhere")
    running = asyncio.create_task(one.run())
    await asyncio.wait_for(one.duties[0].wait(), 20)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await sql.execute(f"ALTER TABLE {schema}.elsewhere RENAME TO delayed")
    await one.stop()


def test_a_judge_that_has_just_connected_condemns_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart of the database every lock is missing and leases may have run out."""
    from types import SimpleNamespace

    from hourhand.core.settings import Settings
    from hourhand.engine.maintainer import Maintainer

    moment = 1000.0
    monkeypatch.setattr(Clock, "monotonic", staticmethod(lambda: moment))
    gateway = SimpleNamespace(connected_at=moment)
    judge = Maintainer(gateway, SimpleNamespace(id=1, clock=Clock()), Settings(grace=1.5))  # type: ignore[arg-type]
    assert judge._condemned(silent=[5], unlocked=[6]) == []
    moment += 2.9
    assert judge._condemned(silent=[5], unlocked=[6]) == [], "not before twice the grace"
    moment += 0.2
    assert judge._condemned(silent=[1, 5], unlocked=[6, 7]) == [5, 6], "never itself, and 7 was missed only now"
    moment += 1.6
    assert judge._condemned(silent=[], unlocked=[7]) == [7]
