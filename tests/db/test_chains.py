"""Chains: the next step is enqueued in the same transaction as the success of the one before."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from hourhand import Context, Hourhand, InvalidOption, InvalidPayload
from tests.db.test_worker import working
from tests.support.fleet import until, where


async def test_a_chain_passes_the_result_on(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    seen: list[Any] = []

    @app.task
    async def extract(n: int) -> dict[str, int]:
        return {"rows": n}

    @app.task(queue="load")
    async def load(result: dict[str, int], table: str) -> str:
        seen.append((result, table))
        return f"{result['rows']} rows into {table}"

    @app.task
    async def notify(ctx: Context, result: str) -> None:
        seen.append((ctx.claim.tags, result))

    last = notify.options(tags=["end"], priority="high")
    async with working(app):
        await extract.options(then=load.options(then=last).step(table="sales")).enqueue(n=3)

        async def done() -> bool:
            return len(seen) == 2

        await until(done, "the last step")
    assert seen == [({"rows": 3}, "sales"), (["end"], "3 rows into sales")]
    lanes = await sql.fetch(
        f"SELECT q.name, r.lane % 4 AS class FROM {schema}.runs r JOIN {schema}.queues q ON q.id = r.lane / 4 ORDER BY run_id"
    )
    assert [tuple(row) for row in lanes] == [("default", 1), ("load", 1), ("default", 0)]


async def test_a_step_without_a_result_parameter_gets_only_its_own_arguments(app: Hourhand) -> None:
    seen = []

    @app.task
    async def first() -> int:
        return 7

    @app.task
    async def second(word: str) -> None:
        seen.append(word)

    async with working(app):
        await first.options(then=second.step(word="x")).enqueue()

        async def done() -> bool:
            return seen == ["x"]

        await until(done, "the second step")


async def test_only_a_success_goes_on(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    @app.task(retry=1)
    async def fails() -> None:
        raise ValueError("no")

    @app.task
    async def after() -> None: ...

    run = await fails.options(then=after).enqueue()
    waiting = await fails.options(then=after, delay=3600).enqueue()
    async with working(app):

        async def dead() -> bool:
            return (await app.runs.show(run.id)).state == "dead"

        await until(dead, "the first to give up")
        await app.runs.cancel(waiting.id)
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.runs WHERE task = 'after'") == 0
    assert (await where(sql, schema))["ready"] == 0


async def test_the_step_and_the_success_are_one_transaction(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    """Rolled back together: what ended without its next step has not ended."""
    run = await app.enqueue("first", then="second")
    insert = (
        f"WITH gone AS (DELETE FROM {schema}.ready RETURNING *) INSERT INTO {schema}.runs"
        " (run_id, scheduled_at, started_at, finished_at, lane, outcome, attempt, task, payload, options, result)"
        " SELECT run_id, scheduled_at, now(), now(), lane, 'succeeded', 1, task, payload, options, '5' FROM gone"
    )
    transaction = sql.transaction()
    await transaction.start()
    await sql.execute(insert)
    assert await sql.fetchval(f"SELECT payload FROM {schema}.ready WHERE task = 'second'") == '{"result": 5}'
    await transaction.rollback()
    assert (await app.runs.show(run.id)).state == "ready"
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.ready WHERE task = 'second'") == 0


async def test_a_step_that_cannot_be_enqueued_becomes_a_dead_letter(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    options = '{"then": {"task": "second", "priority": "urgent"}}'
    await sql.execute(
        f"INSERT INTO {schema}.runs (run_id, scheduled_at, started_at, finished_at, lane, outcome, attempt, task, payload, options)"
        f" VALUES (1, now(), now(), now(), 5, 'succeeded', 1, 'first', '{{}}', '{options}')"
    )
    dead = (await app.dead.list())[0]
    assert dead.task == "second"
    assert "priority must be high, normal or low" in str(dead.reason)
    assert (await app.runs.show(1)).state == "succeeded"


async def test_a_result_that_cannot_be_kept_ends_the_chain_loudly(app: Hourhand) -> None:
    @app.task
    async def big() -> str:
        return "x" * 300_000

    @app.task
    async def takes(result: str) -> None: ...

    @app.task
    async def takes_nothing() -> None: ...

    async with working(app):
        lost = await big.options(then=takes).enqueue()
        kept = await big.options(then=takes_nothing).enqueue()

        async def ended() -> bool:
            return (await app.runs.show(lost.id)).state == "dead" and (await app.runs.show(kept.id)).state == "succeeded"

        await until(ended, "one to fail and the other to succeed")
    assert "the next step of its chain takes the result" in str((await app.runs.show(lost.id)).errors)


async def test_chains_are_checked_before_anything_is_written(app: Hourhand) -> None:
    @app.task
    async def step(result: int, word: str) -> None: ...

    with pytest.raises(InvalidPayload, match="missing argument `word`"):
        step.step()
    with pytest.raises(InvalidPayload, match="unknown argument `colour`"):
        step.step(word="x", colour="red")
    with pytest.raises(InvalidOption, match="a step of a chain can have"):
        step.options(key="k").step(word="x")
    with pytest.raises(InvalidOption, match="then takes"):
        await app.enqueue("first", then=5)
    long = step.step(word="x")
    for _ in range(19):
        long = step.options(then=long).step(word="x")
    with pytest.raises(InvalidOption, match="at most 20 steps"):
        step.options(then=step.options(then=long).step(word="x"))


async def test_sql_callers_can_chain_and_are_checked(sql: asyncpg.Connection, schema: str) -> None:
    then = '{"then": {"task": "second", "result": "result"}}'
    assert await sql.fetchval(f"SELECT run_id FROM {schema}.enqueue('first', options => '{then}')")
    for bad in ('{"then": 5}', '{"then": {}}', '{"then": {"task": "no way"}}'):
        with pytest.raises(asyncpg.InvalidParameterValueError, match="then must be"):
            await sql.fetchval(f"SELECT run_id FROM {schema}.enqueue('first', options => '{bad}')")
