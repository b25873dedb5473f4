"""The claim: its plan, its low-water mark, late committers."""

from __future__ import annotations

import json
import re
from typing import Any

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.core.fairness import lane_of
from hourhand.storage.statements import load
from tests.db.test_worker import working
from tests.support.fleet import until

NODE = "INSERT INTO {schema}.nodes (kind, name, lease_until, session) VALUES ('worker', 'test', now() + '1 hour', false) RETURNING id"


async def explain(connection: asyncpg.Connection, statement: str, *arguments: Any) -> dict[str, Any]:
    """What the statement reads, with its writes undone."""
    transaction = connection.transaction()
    await transaction.start()
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", *arguments)
    await transaction.rollback()
    return dict(json.loads(text)[0])


def scans(plan: Any) -> set[str]:
    found = set()
    if isinstance(plan, dict):
        if "Scan" in plan.get("Node Type", "") and "Relation Name" in plan:
            found.add(f"{plan['Node Type']} on {plan['Relation Name']}")
        for value in plan.values():
            found |= scans(value)
    elif isinstance(plan, list):
        for value in plan:
            found |= scans(value)
    return found


def buffers(plan: Any, relation: str) -> int:
    """Pages touched by the scans of one table and its index."""
    total = 0
    if isinstance(plan, dict):
        if plan.get("Relation Name") == relation and "Index" in plan.get("Node Type", ""):
            total += plan.get("Shared Hit Blocks", 0) + plan.get("Shared Read Blocks", 0)
        for value in plan.values():
            total += buffers(value, relation)
    elif isinstance(plan, list):
        total += sum(buffers(value, relation) for value in plan)
    return total


@pytest.mark.parametrize("analysed", [False, True], ids=["no statistics", "believed to be empty"])
async def test_hot_statements_go_by_index_whatever_the_statistics_say(
    app: Hourhand, sql: asyncpg.Connection, schema: str, analysed: bool
) -> None:
    database = await app._database()
    connection = await database.connect("test")
    if analysed:
        await sql.execute(f"VACUUM ANALYZE {schema}.ready; ")
        await sql.execute(f"VACUUM ANALYZE {schema}.running")
    node = await sql.fetchval(NODE.format(schema=schema))
    lane = await sql.fetchval(f"SELECT {schema}.queue_number('default') * 4 + 1")
    await sql.execute(
        f"INSERT INTO {schema}.ready (seq, run_id, scheduled_at, lane, task, payload)"
        f" SELECT n, n, now(), $1, 'x', '{{}}' FROM generate_series(1, 5000) AS n",
        lane,
    )
    statements = load(schema)
    plan = await explain(connection, statements["claim"], [lane], [0], [100], node, 1)
    assert "Index Scan on ready" in scans(plan)
    assert not [scan for scan in scans(plan) if scan.startswith("Seq Scan on r")], scans(plan)
    claimed = await connection.fetch(statements["claim"], [lane], [0], [1000], node, 1)
    runs, tokens = [row["run_id"] for row in claimed], [row["token"] for row in claimed]
    stamps = [1.0] * len(runs)
    for finish, more in (("finish", (None,) * 5), ("finish_plain", ())):
        plan = await explain(connection, statements[finish], node, runs, tokens, stamps, stamps, *more)
        assert not [scan for scan in scans(plan) if scan.startswith("Seq Scan on r")], scans(plan)
        (written,) = [one["Actual Rows"] for one in plan["Plan"]["Plans"] if one["Parent Relationship"] == "Outer"]
        assert written == 1000
        # Each claimed row is looked up once, by its own key: nothing is compared with everything.
        text = json.dumps(plan)
        assert max(int(found) for found in re.findall(r'"Rows Removed by (?:Join )?Filter": (\d+)', text) or [0]) <= 1000
    await connection.close()


async def test_the_low_water_mark_steps_over_dead_entries(app: Hourhand, sql: asyncpg.Connection, url: str, schema: str) -> None:
    """With 30,000 dead rows that a long transaction keeps, a claim and a survey at the mark touch a fraction of the pages."""
    database = await app._database()
    connection = await database.connect("test")
    node = await sql.fetchval(NODE.format(schema=schema))
    lane = await sql.fetchval(f"SELECT {schema}.queue_number('default') * 4 + 1")
    await sql.execute(
        f"INSERT INTO {schema}.ready (seq, run_id, scheduled_at, lane, task, payload)"
        f" SELECT n, n, now(), $1, 'x', '{{}}' FROM generate_series(1, 30100) AS n",
        lane,
    )
    long = await asyncpg.connect(url)
    await long.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
    await sql.execute(f"DELETE FROM {schema}.ready WHERE seq <= 30000")
    claim = load(schema)["claim"]
    from_start = buffers(await explain(connection, claim, [lane], [0], [10], node, 1), "ready")
    at_mark = buffers(await explain(connection, claim, [lane], [30_001], [10], node, 1), "ready")
    assert at_mark * 10 < from_start, f"{at_mark} pages at the mark, {from_start} from the start"
    survey = load(schema)["survey"]
    from_start = buffers(await explain(connection, survey, ["x"], []), "ready")
    at_mark = buffers(await explain(connection, survey, ["x"], [0] * lane + [30_001]), "ready")
    assert at_mark * 10 < from_start, f"{at_mark} pages at the mark, {from_start} from the start"
    await long.close()
    await connection.close()


async def test_a_run_committed_late_is_found_by_its_word_not_by_the_sweep(
    app: Hourhand, url: str, request: pytest.FixtureRequest
) -> None:
    """Enqueued in a slow transaction, its place is far below the mark when it appears."""

    @app.task
    async def work(n: int) -> int:
        return n

    async with working(app) as worker:
        slow = await asyncpg.connect(url)
        request.addfinalizer(slow.terminate)
        transaction = slow.transaction()
        await transaction.start()
        late = await work.options(connection=slow).enqueue(n=-1)
        for n in range(50):
            await (await work.enqueue(n=n)).result(20)
        mark = worker.claimer._mark(lane_of(await (await app._database()).fetchval("queue_number", "default"), "normal"))
        # As it is after a while of work: nothing pending, the mark above, no sweep and no survey near.
        mark._low, mark._sweep_at = late._number + 40, float("inf")
        mark._pending.clear()
        worker.claimer._next_survey = float("inf")
        await transaction.commit()
        assert await late.result(20) == -1
        await slow.close()


async def test_a_survey_begins_at_the_marks(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    @app.task
    async def work() -> None: ...

    asked: list[list[int]] = []
    async with working(app) as worker:
        await (await work.enqueue()).result(20)
        lane = await sql.fetchval(f"SELECT {schema}.queue_number('default') * 4 + 1")
        mark = worker.claimer._mark(lane)
        mark._low, mark._sweep_at = 777, float("inf")
        mark._pending.clear()
        survey = worker.claimer._gateway.survey

        async def listen(tasks: Any, lows: Any) -> Any:
            asked.append(list(lows))
            return await survey(tasks, lows)

        worker.claimer._gateway.survey = listen  # type: ignore[method-assign]

        async def surveyed() -> bool:
            return bool(asked)

        await until(surveyed, "a survey")
    assert asked[0][lane] == 777
    assert set(asked[0]) == {0, 777}, "the others are swept"


async def test_a_run_below_the_mark_is_found_by_the_sweep_when_no_word_came(
    app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    @app.task
    async def work() -> str:
        return "done"

    async with working(app) as worker:
        await (await work.enqueue()).result(20)
        for mark in worker.claimer._marks.values():
            mark._low = 10**9
        lane = next(iter(worker.claimer._marks))
        await sql.execute(
            f"INSERT INTO {schema}.ready (seq, run_id, scheduled_at, lane, task, payload) VALUES (500, 500, now(), $1, 'work', '{{}}')",
            lane,
        )

        async def done() -> bool:
            return bool(await sql.fetchval(f"SELECT count(*) FROM {schema}.runs WHERE run_id = 500"))

        await until(done, "the sweep")


async def test_history_lets_a_run_end_once(sql: asyncpg.Connection, schema: str) -> None:
    row = f"INSERT INTO {schema}.runs (run_id, scheduled_at, finished_at, lane, outcome, attempt, task) VALUES (1, '2026-01-01Z', now(), 5, 'succeeded', 1, 'x')"
    await sql.execute(row)
    with pytest.raises(asyncpg.UniqueViolationError):
        await sql.execute(row)


async def test_history_of_days_without_a_partition_is_kept_and_moved(sql: asyncpg.Connection, schema: str) -> None:
    """A cancelled run of a far day lands in the default partition; its day's partition takes it over."""
    await sql.execute(
        f"INSERT INTO {schema}.runs (run_id, scheduled_at, finished_at, lane, outcome, attempt, task, key)"
        " VALUES (1, '2031-05-05 12:00Z', now(), 5, 'cancelled', 0, 'x', 'k')"
    )
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.runs_default") == 1
    assert await sql.fetchval(f"SELECT {schema}.add_partition('runs', '2031-05-05')")
    assert not await sql.fetchval(f"SELECT {schema}.add_partition('runs', '2031-05-05')")
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.runs_default") == 0
    assert await sql.fetchval(f"SELECT tableoid::regclass::text FROM {schema}.runs WHERE run_id = 1") == f"{schema}.runs_20310505"
