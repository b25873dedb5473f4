"""Which indexes the hot statements use, whatever PostgreSQL knows or believes about the tables."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import asyncpg
import pytest

from hourhand.storage.database import PLANNER
from hourhand.storage.migrate import migrate
from hourhand.storage.statements import load

Plan = dict[str, Any]
Plans = dict[tuple[str, str], Plan]

LARGE = ("ready", "running", "delayed", "parked", "streams", "steps", "schedules", "jobs", "runs", "firings", "lines", "dead")
STATES = ("never analysed", "analysed when empty", "analysed")
MODES = ("custom", "generic")

HELD = "7, '{100,101}', '{1,1}'"  # a worker, its runs, their tokens
DUE = "1, '{1,2}', '{1,1}', '{1,2}', '{2030-01-01,2030-01-01}', '{2030-01-02,2030-01-02}', '{0,0}'"
OWN_CLAIM = {"running": "running_pkey: worker_id run_id"}
FIRED = {"schedules": "schedules_pkey: id", "jobs": "jobs_schedule: schedule_id"}

# Each statement with its arguments, and by which index, under conditions on which of its columns, it reads each large
# table; several where it reads one in several ways. Rows that are taken by their place (ctid) are not listed.
EXPECTED: dict[str, tuple[str, dict[str, str | tuple[str, ...]]]] = {
    "enqueue_plain": ("5, 'task1', '{}', NULL", {}),
    "enqueue_plains": ("'{5,9}', '{task1,task1}', '{a,b}', NULL", {}),
    "reserve_runs": ("100, 5", {}),
    "claim": ("'{5,9}', '{0,100}', '{10,10}', 7, 1", {"ready": "ready_pkey: lane seq"}),
    "claim_parked": ("'{task1,task2}', '{5,9}', 10, 7, false, 1", {"parked": ("parked_strange: task", "parked_probation: ")}),
    "survey": (
        "'{task1,task2}', '{0,0,0,0,0,100}'",
        {
            "ready": "ready_pkey: lane seq",
            "streams": "streams_open: lane",
            "parked": ("parked_strange: task", "parked_probation: "),
        },
    ),
    "finish": (f"{HELD}, '{{1,1}}', '{{1,1}}', NULL, NULL, NULL, NULL, NULL", OWN_CLAIM),
    "finish_plain": (f"{HELD}, '{{1,1}}', '{{1,1}}'", OWN_CLAIM),
    "finish_once": ("7, 100, 1, 'ab', 1, NULL, NULL, NULL", OWN_CLAIM),
    "retry": (f"{HELD}, '{{1,1}}', '{{1,1}}', NULL", OWN_CLAIM),
    "bury": (f"{HELD}, '{{1,1}}', NULL, NULL", OWN_CLAIM),
    "hand_back": (HELD, OWN_CLAIM),
    "park": (f"{HELD}, NULL", OWN_CLAIM),
    "begin_runs": (HELD, OWN_CLAIM),
    "find_step": ("100, 'one'", {"steps": "steps_pkey: run_id name"}),
    "keep_step": ("7, 100, 1, 'one', NULL", OWN_CLAIM | {"steps": "steps_pkey: run_id name"}),
    "keep_lines": (
        "'{100}', '{2030-01-01}', '{2030-01-01}', '{1}', '{info}', '{said}', NULL, 1000, false",
        {"lines": "lines_run_id_number_scheduled_at_idx: run_id scheduled_at"},
    ),
    "give": ("7, 8, 10, '{100,101}', '{1,1}'", OWN_CLAIM),
    "gifts": ("7, '{100}'", {"running": "running_pkey: worker_id"}),
    "strays": ("7, '{100}'", {"running": "running_pkey: worker_id"}),
    "overloaded": ("7, 1", {"running": "running_pkey: worker_id"}),
    "heartbeat": ("7, 3, false, 0", OWN_CLAIM),
    "tick": (
        "'{maintainer}', 7, '{3}', '{0}', true",
        {
            "delayed": ("delayed_due: due_at", "delayed_expiry: expires_at"),
            "ready": "ready_expiry: expires_at",
            "parked": ("parked_expiry: expires_at", "parked_hold: "),
            "running": "running_pkey: worker_id",
        },
    ),
    "recover": ("3", {"running": "running_pkey: worker_id"}),
    "promote": ("1000", {"delayed": "delayed_due: due_at"}),
    "expire": (
        "1000",
        {
            "ready": "ready_expiry: expires_at",
            "delayed": "delayed_expiry: expires_at",
            "parked": "parked_expiry: expires_at",
        },
    ),
    "near_schedules": ("'{1,2,3}', 60", {"schedules": "schedules_due: shard next_run_at"}),
    "hinted_schedules": ("'{1,2,3}', 100", FIRED),
    "fire": (DUE, FIRED),
    "fire_late": (f"{DUE}, '{{1,2}}', '{{2030-01-01,2030-01-01}}', 10, true", FIRED),
    "zoned_schedules": (
        "1",
        {
            "schedules": ("schedules_identity: shard", "schedules_due: shard"),
            "jobs": "jobs_schedule: schedule_id",
            "firings": "firings_pkey: schedule_id",
        },
    ),
    "line_up": ("'{5,9}', '{0,0}', 100, 1", {"ready": "ready_pkey: lane seq"}),
    "return_parked": ("'{1,2}', '{task1}', 100", {"parked": "parked_strange: task lane"}),
    # Every few seconds, by whoever looks whether something is wrong, and whenever somebody asks for metrics.
    "begin_look": (
        "'{dead_growth,overdue,catch_up}', '{60,60,60}'",
        {
            "dead": "dead_died: ",
            "schedules": "schedules_due: shard",
            "firings": "firings_fired_at_idx: ",
        },
    ),
    "overdue_schedules": ("60", {"schedules": "schedules_due: shard next_run_at"}),
    "firing_state": ("", {"schedules": "schedules_due: shard next_run_at"}),
    "trigger_facts": ("60", {"schedules": "schedules_due: shard next_run_at", "jobs": ("Seq Scan", "jobs_")}),
    "caught_up": ("60, 100", {"firings": "firings_fired_at_idx: fired_at"}),
    "growing_dead": ("60, 100", {"dead": "dead_died: died_at"}),
    "lost_runs": ("60, 100", {"runs": "runs_finished_at_idx: finished_at"}),
    "waiting_runs": (
        "",
        {
            "ready": "ready_pkey: lane",
            "parked": ("parked_lane: lane", "parked_strange: "),
            "delayed": "delayed_due: due_at",
        },
    ),
    # Once a minute; what it reads whole belongs to runs that live.
    "tidy": (
        "",
        {
            "runs": "runs_pkey: run_id",
            "dead": "dead_pkey: run_id",
            "running": ("Seq Scan", "running_pkey: "),
            "steps": ("Seq Scan", "steps_pkey: "),
        },
    ),
}
ORDERED = {"claim", "line_up", "gifts", "recover", "promote"}
# On connections of users and of clients, which have none of the planner's settings.
ELSEWHERE = {"begin_look", "finish_once", "reserve_runs"}
# Of these, what may read a table whole for as long as PostgreSQL believes that it is empty, until it is analysed.
MISLED = {"begin_look"}

RUN = "scheduled_at, lane, attempt, crashes, task, payload"
DAY = "now() - n % 2 * interval '1 day'"
OF_RUN = f"{DAY}, (n % 5 + 1) * 4 + 1, 0, n % 100 / 99, 'task' || n % 20, '{{}}'::jsonb"
EXPIRY = "CASE WHEN n % 10 = 0 THEN now() + n * interval '1 second' END"
APART = "CASE WHEN n % 3 = 0 THEN n % 1000 END, CASE WHEN n % 3 = 1 THEN 1 END"
ZONED = (
    "CASE WHEN n % 2 = 0 THEN 'UTC' ELSE 'Europe/Berlin' END, '', CASE WHEN n % 20 > 0 THEN now() + n * interval '1 second' END"
)
HISTORY = "run_id, job_id, scheduled_at, finished_at, lane, outcome, attempt, task"
LEDGER = "schedule_id, scheduled_at, until, fired_at, epoch, count, node, runs, late"
JOB = "id, schedule_id, active_since, lane, shard, name, task, payload"
# What the tables are filled with: columns, their values in the n-th row, and how many rows.
ROWS = {
    "ready": (f"seq, run_id, expires_at, {RUN}", f"n, n - n % 2, {EXPIRY}, {OF_RUN}", 20_000),
    "running": (f"worker_id, token, claimed_at, seq, run_id, {RUN}", f"n % 50 + 1, n, now(), n, n, {OF_RUN}", 20_000),
    "delayed": (f"due_at, run_id, expires_at, {RUN}", f"now() + (n - 5000) * interval '1 second', n, {EXPIRY}, {OF_RUN}", 20_000),
    "parked": (f"seq, run_id, stream, hold, expires_at, {RUN}", f"n, n, {APART}, {EXPIRY}, {OF_RUN}", 20_000),
    "dead": (
        "run_id, died_at, scheduled_at, lane, attempt, task, payload",
        f"n, {DAY}, {DAY}, 5, 4, 'task' || n % 20, '{{}}'",
        20_000,
    ),
    "steps": ("run_id, name, result", "n, 'one', '1'", 20_000),
    "schedules": ("id, shard, kind, expression, timezone, dst, next_run_at", f"n, n % 256, 'cron', n, {ZONED}", 20_000),
    "jobs": (JOB, "n, n, now(), 5, n % 256, 'job' || n, 'task1', '{}'", 20_000),
    "runs": (HISTORY, f"n, n, {DAY}, now(), 5, 'succeeded', 1, 'task1'", 50_000),
    "firings": (LEDGER, f"n / 2, {DAY}, {DAY}, now(), 1, 1, 1, 1, false", 50_000),
    "lines": ("run_id, scheduled_at, number, at, attempt, level, text", f"n, {DAY}, 1, now(), 1, 'info', 'said'", 20_000),
}
# History goes by the day, and is not emptied otherwise.
PASSING = [table for table in ROWS if table not in ("runs", "firings", "lines")]


async def prepare(connection: asyncpg.Connection, schema: str) -> None:
    await migrate(connection, schema)
    await connection.execute(f"SET search_path = {schema}")
    tables = f"SELECT oid::regclass::text FROM pg_class WHERE relnamespace = '{schema}'::regnamespace AND relkind = 'r'"
    alter = [f"ALTER TABLE {table} SET (autovacuum_enabled = false)" for (table,) in await connection.fetch(tables)]
    await connection.execute("; ".join(alter))
    await connection.execute(
        "INSERT INTO queues (name) SELECT 'queue' || n FROM generate_series(1, 5) AS n;"
        "INSERT INTO nodes (kind, name, lease_until, session) SELECT 'worker', n, now(), false FROM generate_series(1, 50) AS n"
    )


async def fill(connection: asyncpg.Connection, tables: Iterable[str]) -> None:
    await connection.execute(
        "; ".join(
            f"INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {values} FROM generate_series(1, {rows}) AS n"
            for table, (columns, values, rows) in ROWS.items()
            if table in tables
        )
    )


async def explain(url: str, schema: str) -> Plans:
    """The plan of every statement, in both modes."""
    ours, bare = await asyncpg.connect(url, server_settings=PLANNER), await asyncpg.connect(url)
    plans, statements = {}, load(schema)
    for name, (arguments, _) in EXPECTED.items():
        connection = bare if name in ELSEWHERE else ours
        await connection.execute(f"PREPARE {name} AS {statements[name]}")
        for mode in MODES:
            await connection.execute(f"SET plan_cache_mode = force_{mode}_plan")
            text = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE {name} {arguments and f'({arguments})'}")
            plans[name, mode] = json.loads(text)[0]["Plan"]
    await ours.close()
    await bare.close()
    return plans


async def gather(url: str) -> dict[str, Plans]:
    """The plans in each state, one after the other on the same tables."""
    schema = f"t_plans_{uuid.uuid4().hex[:8]}"
    connection = await asyncpg.connect(url)
    try:
        await prepare(connection, schema)
        await fill(connection, ROWS)
        never = await explain(url, schema)
        # Of a table without pages PostgreSQL knows that it knows nothing; of one that was emptied it believes that every page is.
        await connection.execute("; ".join(f"DELETE FROM {table}; ANALYZE {table}" for table in PASSING))
        await fill(connection, PASSING)
        empty = await explain(url, schema)
        await connection.execute(f"ANALYZE queues, nodes, {', '.join(ROWS)}")
        return dict(zip(STATES, (never, empty, await explain(url, schema)), strict=True))
    finally:
        await connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        await connection.close()


@pytest.fixture(scope="module")
def plans(url: str) -> dict[str, Plans]:
    return asyncio.run(gather(url))


def nodes(plan: Plan, apart: tuple[str, ...] = ()) -> Iterator[Plan]:
    """A plan's nodes, without the sub-plans that are related to their parents in these ways."""
    yield plan
    for one in plan.get("Plans", ()):
        if one["Parent Relationship"] not in apart:
            yield from nodes(one, apart)


def table_of(node: Plan) -> str:
    """Of a partition, the table that it is a part of."""
    return re.sub(r"_(\d{8}|default)$", "", node.get("Relation Name", "")) if "Scan" in node["Node Type"] else ""


def way(node: Plan) -> str:
    """How a scan finds its rows. One that looks at all of them goes by no column."""
    if "Index Name" not in node:
        return str(node["Node Type"])
    index = re.sub(r"_(\d{8}|default)_", "_", node["Index Name"])
    columns = dict.fromkeys(re.findall(r"\((?:\w+\.)?(\w+) (?:[=<>]|IS )", node.get("Index Cond", "")))
    return f"{index}: {' '.join(columns)}"


def reads(plan: Plan) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for node in nodes(plan):
        if table_of(node) in LARGE and node["Node Type"] != "Tid Scan":
            found.setdefault(table_of(node), set()).add(way(node))
    return found


def sorted_tables(plan: Plan) -> set[str]:
    sorts = [node for node in nodes(plan) if "Sort" in node["Node Type"]]
    return {table_of(below) for sort in sorts for below in nodes(sort, ("InitPlan", "SubPlan"))} & set(LARGE)


CASES = [(state, name) for state in STATES for name in EXPECTED if state != STATES[1] or name not in MISLED]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("state", "name"), CASES)
def test_hot_statements_go_by_their_indexes(plans: dict[str, Plans], state: str, name: str, mode: str) -> None:
    plan, expected = plans[state][name, mode], EXPECTED[name][1]
    found = reads(plan)
    assert found.keys() == expected.keys(), found
    for table, ways in found.items():
        # A condition on more columns is welcome.
        assert all(one.startswith(expected[table]) for one in ways), f"{table} is read by {ways}"
    if name in ORDERED:
        assert not sorted_tables(plan)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("state", [STATES[0], STATES[2]])
def test_the_latest_of_many_is_the_end_of_an_index(plans: dict[str, Plans], state: str, mode: str) -> None:
    assert not [node for node in nodes(plans[state]["begin_look", mode]) if node["Node Type"] == "Aggregate"]
