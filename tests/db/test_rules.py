"""What people see of queues with rules, and what they order about them; on a real database."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import asyncpg
import pytest

from hourhand import Context, Hourhand, Limit, Rate
from hourhand.core.errors import InvalidOption, NotPossible
from hourhand.surfaces.metrics import exposition
from hourhand.surfaces.run_search import EVER
from tests.db.test_limits import Inside, ended
from tests.db.test_worker import working
from tests.support.fleet import until

pytestmark = pytest.mark.once


async def _is(work: Any, wanted: Any) -> bool:
    return bool(await work() == wanted)


async def test_what_waits_is_ready_and_says_for_what(app: Hourhand, sql: asyncpg.Connection) -> None:
    go_on = asyncio.Event()

    @app.task(queue="narrow", concurrency=[Limit(2), Limit(1, key="customer")])
    async def careful(ctx: Context, customer: str) -> None:
        await go_on.wait()

    @app.task(queue="metered", rate=Rate("1/hour", burst=1))
    async def call(ctx: Context) -> None: ...

    async with working(app, concurrency=20):
        first = await careful.enqueue(customer="a")
        await until(lambda: _is(lambda: _state(app, first.id), "running"), "the first")
        second = await careful.enqueue(customer="a")
        await until(
            lambda: _is(lambda: _reason(app, second.id), "waits for the limit of task careful: 1 at once for each customer"), "a"
        )
        other = await careful.enqueue(customer="b")
        await until(lambda: _is(lambda: _state(app, other.id), "running"), "the other customer's")
        third = await careful.enqueue(customer="c")
        await until(lambda: _is(lambda: _reason(app, third.id), "waits for the limit of task careful: 2 at once"), "c")
        calls = await call.enqueue_many([{}] * 3)
        await ended(app, 1)
        await until(lambda: _is(lambda: _reason(app, calls[2]), "waits for the rate of task call: 1/hour"), "the rate")

        assert await _state(app, third.id) == "ready"
        listed = {one.run_id: one for one in await app.runs.list(state="ready")}
        assert set(listed) == {second.id, third.id, *calls[1:]}
        assert listed[third.id].reason == "waits for the limit of task careful: 2 at once"
        assert await app.runs.list(state="parked") == []
        assert {one.run_id for one in await app.runs.list(state="ready", queue="narrow")} == {second.id, third.id}
        queues = {one.name: one for one in await app.queues.list()}
        assert (queues["narrow"].ready, queues["narrow"].parked, queues["narrow"].running) == (2, 0, 2)
        assert (queues["narrow"].oldest_seconds or 0) > 0
        database = await app._database()
        await database.fetch("take_sample", True, False)
        assert {one.name: (one.ready, one.parked) for one in await app.statistics.queues()}["metered"] == (2, 0)
        assert await database.fetch("parked_tasks") == await database.fetch("parked_names") == []
        heads = {(row["queue"], row["state"], row["task"]) for row in await database.fetch("waiting_runs")}
        assert heads == {("narrow", "ready", "careful"), ("metered", "ready", "call")}

        rules = {one.name: one for one in await app.limits.list()}
        assert rules["careful"].in_words == ("2 at once", "1 at once for each customer")
        assert (rules["careful"].slots, rules["careful"].in_use, rules["careful"].waiting) == (2, 2, 2)
        assert (rules["call"].slots, rules["call"].in_use, rules["call"].waiting) == (None, 0, 2)
        await database.fetch("take_sample", False, True)
        told = (await exposition(database)).decode()
        assert 'hourhand_limit_slots{name="careful",scope="task"} 2.0' in told
        assert 'hourhand_limit_slots_in_use{name="careful",scope="task"} 2.0' in told
        assert 'name="call"' not in told
        assert "hourhand_held_runs 0.0" in told
        assert await app.runs.cancel(third.id) == "cancelled"
        go_on.set()


async def _state(app: Hourhand, run: str) -> str:
    return (await app.runs.show(run)).state


async def _reason(app: Hourhand, run: str) -> str | None:
    return (await app.runs.show(run)).reason


async def test_a_job_says_what_its_run_waits_for(app: Hourhand) -> None:
    @app.task(queue="metered", rate="1/hour")
    async def call(ctx: Context) -> None: ...

    await app.jobs.add("calls", task="call", schedule="0 9 * * 1", queue="metered")
    hold = await app.holds.add(task="other", reason="x")
    await app.jobs.add("others", task="other", schedule="0 9 * * 1")
    async with working(app):
        await app.jobs.trigger("calls")
        await ended(app, 1)
        run = await app.jobs.trigger("calls", force=True)
        waits = "waits for the rate of task call: 1/hour"
        await until(lambda: _is(lambda: _reason(app, str(run.run_id)), waits), "the rate")
        shown = (await app.jobs.runs("calls"))[0]
        assert (shown.state, shown.reason) == ("ready", waits)
        line = [one for one in await app.jobs.why("calls") if one.run_id == run.run_id]
        assert [one.outcome for one in line] == ["ready"]
        assert waits in line[0].reason
        held = await app.jobs.trigger("others")
        await until(lambda: _is(lambda: _state(app, str(held.run_id)), "parked"), "the hold")
        said = f"held back by hold {hold.id}: x"
        assert (await app.jobs.runs("others"))[0].reason == said
        assert said in (await app.jobs.why("others"))[-1].reason
        rows = await (await app._database()).fetch("parked_tasks")
        assert rows == [], "no want of code"


async def test_an_order_stands_above_what_is_declared(app: Hourhand) -> None:
    inside = Inside()

    @app.task(concurrency=6, fair_key="who")
    async def careful(ctx: Context, who: str = "all") -> None:
        await inside.stay("all")

    async with working(app, concurrency=20, labels=app.deployment.labels):
        before = (await app.limits.list())[0]
        assert (before.declared, before.ordered, before.declared_by) == (before.in_words, (), app.name)
        view = await app.limits.set("task", "careful", concurrency=2)
        assert view.in_words == ("2 at once", "in turns by who")
        assert (view.declared, view.ordered) == (("6 at once", "in turns by who"), ("2 at once",))
        await careful.enqueue_many([{}] * 30)
        await ended(app, 30)
        assert inside.most["all"] == 2
        assert (await app.limits.set("task", "careful", concurrency=None, fair_key=None)).in_words == ()
        cleared = await app.limits.clear("task", "careful")
        assert (cleared.in_words, cleared.ordered) == (cleared.declared, ())
        await careful.enqueue_many([{}] * 60)
        await ended(app, 90)
        assert inside.most["all"] == 6
    actions = [(one.action, one.subject) for one in await app.audit.list(action="limit")]
    assert actions == [("limit.clear", "careful"), ("limit.set", "careful"), ("limit.set", "careful")]


async def test_a_limit_on_a_task_of_a_fleet_that_runs(app: Hourhand) -> None:
    """Its queue had no rules until then."""
    inside = Inside()

    @app.task
    async def plain(ctx: Context) -> None:
        await inside.stay("all")

    async with working(app, concurrency=20):
        await app.limits.set("task", "plain", concurrency=3)
        await plain.enqueue_many([{}] * 40)
        await ended(app, 40)
    assert inside.most["all"] == 3


async def test_parts_that_are_not_given_stay(app: Hourhand) -> None:
    await app.limits.set("queue", "q", concurrency=5, max_depth=10)
    view = await app.limits.set("queue", "q", overflow="drop_oldest")
    assert view.in_words == ("5 at once", "at most 10 wait, then the oldest are dropped")
    assert (await app.limits.set("queue", "q", rate="1/s")).rule["limits"] == [
        {"key": "", "rate": 1.0, "burst": 1.0, "text": "1/s"}
    ], "limits are said as a whole"
    with pytest.raises(InvalidOption, match="nothing is ordered"):
        await app.limits.set("queue", "q")
    with pytest.raises(InvalidOption, match="give max_depth"):
        await app.limits.set("queue", "other", overflow="reject")
    await app.limits.clear("queue", "q")
    with pytest.raises(NotPossible):
        await app.limits.clear("queue", "q")
    assert await app.limits.list() == []


async def test_many_that_wait_cost_no_more_than_few(app: Hourhand, sql: asyncpg.Connection) -> None:
    """Nothing that a list or an idle worker asks goes through all of what waits in streams, or is held."""
    schema = app.settings.schema
    await app.limits.set("queue", "narrow", concurrency=1)
    await app.enqueue("t", queue="narrow")
    for part, columns in (("stream", "1, NULL"), ("hold", "NULL, 7")):
        await sql.execute(
            f"INSERT INTO {schema}.parked (seq, run_id, scheduled_at, lane, task, payload, stream, hold) SELECT n, n, now(), "
            f"(SELECT id FROM {schema}.queues WHERE name = 'narrow') * 4 + 1, 't' || n % 5, '{{}}', {columns} "
            f"FROM generate_series({1_000_000 if part == 'hold' else 2_000_000}::bigint, {1_030_000 if part == 'hold' else 2_030_000}) AS n"
        )
    await sql.execute(f"ANALYZE {schema}.parked")
    database = await app._database()
    for name, arguments in (("parked_names", ()), ("survey", (["t1"], [])), ("waiting_runs", ()), ("latest_samples", (None,)),
                            ("return_released", (0,)), ("runs_on_probation", ())):  # fmt: skip
        assert await _read(sql, database.sql[name], *arguments) < 2_000, name
    wanted: tuple[Any, ...] = (None, None, None, None, None, EVER, 20, 2**62, 0, None, None, None, None)
    for states in (["ready"], ["parked"], ["ready", "parked"]):
        async with sql.transaction():
            await sql.execute(database.sql["plan_by_index"])
            assert await _read(sql, database.sql["list_live"], states, *wanted[1:]) < 2_000, states


async def _read(sql: asyncpg.Connection, statement: str, *arguments: Any) -> int:
    """Rows that it looks at, in all."""
    plan = await sql.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", *arguments)
    return _rows(json.loads(plan)[0]["Plan"])


def _rows(node: dict[str, Any]) -> int:
    looked = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    return int(looked) + sum(_rows(one) for one in node.get("Plans", ()))
