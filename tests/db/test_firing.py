"""The firing statement: fenced, compared, due by the database's clock, once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.core.ring import SHARDS
from hourhand.storage.schedules import Late, Planned, ScheduleGateway
from tests.support.fleet import until

PAST = datetime(2026, 1, 1, 12, tzinfo=UTC)
NEXT = PAST + timedelta(days=36_500)


@pytest.fixture
async def gateway(app: Hourhand) -> AsyncIterator[ScheduleGateway]:
    one = ScheduleGateway((await app._database()).link("test"))
    yield one
    await one.close()


async def make_node(sql: asyncpg.Connection, schema: str) -> int:
    return int(
        await sql.fetchval(
            f"INSERT INTO {schema}.nodes (kind, name, lease_until, session) VALUES ('scheduler', 's', now() + '1 hour', false) RETURNING id"
        )
    )


async def make_schedule(sql: asyncpg.Connection, schema: str, shard: int, due: datetime, jobs: int = 1, **job: str) -> int:
    schedule: int = await sql.fetchval(
        f"INSERT INTO {schema}.schedules (shard, kind, expression, timezone, dst, anchor, next_run_at)"
        " VALUES ($1, 'every', 'every 60s', 'UTC', 'shift', $2, $2) RETURNING id",
        shard, due,
    )  # fmt: skip
    values = {"misfire_grace": "1e9", "active_since": "'-infinity'", "start_at": "NULL", "end_at": "NULL", **job}
    await sql.execute(
        f"INSERT INTO {schema}.jobs (id, schedule_id, lane, shard, name, task, payload, {', '.join(values)})"
        f" SELECT nextval('{schema}.job_numbers'), $1::bigint, 5, $2, $1::bigint || '-' || n, 'work', '{{}}', {', '.join(values.values())}"
        " FROM generate_series(1, $3) AS n",
        schedule, shard, jobs,
    )  # fmt: skip
    return schedule


async def fired(sql: asyncpg.Connection, schema: str) -> tuple[int, int]:
    return await sql.fetchval(f"SELECT count(*) FROM {schema}.ready"), await sql.fetchval(
        f"SELECT count(*) FROM {schema}.firings"
    )


async def test_every_job_of_a_schedule_gets_its_run_and_the_ledger_says_so(
    gateway: ScheduleGateway, sql: asyncpg.Connection, schema: str
) -> None:
    node = await make_node(sql, schema)
    epochs = await gateway.take_shards(node, [7], [node])
    schedule = await make_schedule(sql, schema, 7, PAST, jobs=5)
    assert set(await gateway.fire(node, epochs, [Planned(schedule, PAST, NEXT)])) == {schedule}
    runs = await sql.fetch(f"SELECT job_id, scheduled_at, task, seq = run_id AS plain FROM {schema}.ready ORDER BY job_id")
    assert [row["job_id"] for row in runs] == [1, 2, 3, 4, 5]
    assert {(row["scheduled_at"], row["task"], row["plain"]) for row in runs} == {(PAST, "work", True)}
    ledger = await sql.fetchrow(f"SELECT schedule_id, scheduled_at, node, runs, late, epoch FROM {schema}.firings")
    assert tuple(ledger) == (schedule, PAST, node, 5, False, epochs[7])
    assert await sql.fetchval(f"SELECT next_run_at FROM {schema}.schedules") == NEXT


async def test_a_deposed_owner_fires_nothing(gateway: ScheduleGateway, sql: asyncpg.Connection, schema: str) -> None:
    old, new = await make_node(sql, schema), await make_node(sql, schema)
    stale = await gateway.take_shards(old, [7], [old])
    schedule = await make_schedule(sql, schema, 7, PAST)
    fresh = await gateway.take_shards(new, [7], [new])
    assert fresh[7] > stale[7]
    assert set(await gateway.fire(old, stale, [Planned(schedule, PAST, NEXT)])) == set()
    assert set(await gateway.fire(old, fresh, [Planned(schedule, PAST, NEXT)])) == set(), "another's epoch does not help"
    assert await fired(sql, schema) == (0, 0)
    assert set(await gateway.fire(new, fresh, [Planned(schedule, PAST, NEXT)])) == {schedule}


async def test_a_change_of_hands_waits_for_a_firing_under_way_and_is_seen_by_the_next(
    gateway: ScheduleGateway, app: Hourhand, sql: asyncpg.Connection, url: str, schema: str, request: pytest.FixtureRequest
) -> None:
    """The old owner's statement holds the shard until it commits; the new owner starts after it."""
    old, new = await make_node(sql, schema), await make_node(sql, schema)
    held = await gateway.take_shards(old, [7], [old])
    schedule = await make_schedule(sql, schema, 7, PAST)
    database = await app._database()
    firing = await asyncpg.connect(url)
    request.addfinalizer(firing.terminate)
    transaction = firing.transaction()
    await transaction.start()
    rows = await firing.fetch(database.sql["fire"], old, [7], [held[7]], [schedule], [PAST], [NEXT], [0])
    assert len(rows) == 1
    takeover = asyncio.create_task(gateway.take_shards(new, [7], [new]))
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%shards SET owner%'"
    await until(lambda: sql.fetchval(waiting), "the takeover to wait for the firing", 20)
    await transaction.commit()
    taken = await takeover
    assert set(await gateway.fire(new, taken, [Planned(schedule, PAST, NEXT)])) == set(), "it has moved already"
    assert await fired(sql, schema) == (1, 1)
    await firing.close()


async def test_firing_twice_from_one_plan_fires_once(gateway: ScheduleGateway, sql: asyncpg.Connection, schema: str) -> None:
    """As after a commit whose answer was lost."""
    node = await make_node(sql, schema)
    epochs = await gateway.take_shards(node, [7], [node])
    schedule = await make_schedule(sql, schema, 7, PAST)
    plan = [Planned(schedule, PAST, NEXT)]
    assert set(await gateway.fire(node, epochs, plan)) == {schedule}
    assert set(await gateway.fire(node, epochs, plan)) == set()
    assert await fired(sql, schema) == (1, 1)


async def test_the_ledger_is_the_second_barrier(gateway: ScheduleGateway, sql: asyncpg.Connection, schema: str) -> None:
    """Even if a schedule were moved back, the same instant cannot be fired again."""
    from hourhand.core.errors import StatementRefused

    node = await make_node(sql, schema)
    epochs = await gateway.take_shards(node, [7], [node])
    schedule = await make_schedule(sql, schema, 7, PAST)
    await gateway.fire(node, epochs, [Planned(schedule, PAST, NEXT)])
    await sql.execute(f"UPDATE {schema}.schedules SET next_run_at = $1", PAST)
    with pytest.raises(StatementRefused, match="firings"):
        await gateway.fire(node, epochs, [Planned(schedule, PAST, NEXT)])
    assert await fired(sql, schema) == (1, 1)


async def test_what_the_database_says_is_not_due_does_not_fire(
    gateway: ScheduleGateway, sql: asyncpg.Connection, schema: str
) -> None:
    node = await make_node(sql, schema)
    epochs = await gateway.take_shards(node, [7], [node])
    soon = await sql.fetchval("SELECT clock_timestamp() + interval '1 hour'")
    schedule = await make_schedule(sql, schema, 7, soon)
    assert set(await gateway.fire(node, epochs, [Planned(schedule, soon, NEXT)])) == set()
    assert await fired(sql, schema) == (0, 0)


@pytest.mark.parametrize(
    "job",
    [
        {"paused_at": f"'{PAST}'"},
        {"active_since": f"'{PAST + timedelta(seconds=1)}'"},
        {"start_at": f"'{PAST + timedelta(seconds=1)}'"},
        {"end_at": f"'{PAST}'"},
    ],
    ids=["paused", "added later", "not begun", "over"],
)
async def test_jobs_that_do_not_take_part_get_no_run(
    gateway: ScheduleGateway, sql: asyncpg.Connection, schema: str, job: dict[str, str]
) -> None:
    node = await make_node(sql, schema)
    epochs = await gateway.take_shards(node, [7], [node])
    schedule = await make_schedule(sql, schema, 7, PAST, **job)
    assert set(await gateway.fire(node, epochs, [Planned(schedule, PAST, NEXT)])) == {schedule}
    assert await fired(sql, schema) == (0, 1), "the firing is on record all the same"


async def test_shards_go_to_who_should_have_them_and_only_from_the_dead_or_the_willing(
    gateway: ScheduleGateway, sql: asyncpg.Connection, schema: str
) -> None:
    one, two = await make_node(sql, schema), await make_node(sql, schema)
    assert len(await gateway.take_shards(one, range(SHARDS), [one])) == SHARDS
    survey = await gateway.survey_shards()
    assert survey.live == [one, two]
    assert set(survey.owners) == {one}
    assert await gateway.take_shards(two, [1, 2, 3], survey.live) == {}, "not from the living"
    assert await gateway.release_shards(one, [1, 2]) == [1, 2]
    assert set(await gateway.take_shards(two, [1, 2, 3], survey.live)) == {1, 2}
    await sql.execute(f"UPDATE {schema}.nodes SET died_at = now() WHERE id = $1", one)
    assert (await gateway.survey_shards()).live == [two]
    assert len(await gateway.take_shards(two, range(SHARDS), [two])) == SHARDS - 2
    assert await gateway.take_shards(one, range(SHARDS), [one]) == {}, "the dead take nothing"


async def test_firing_goes_by_index_with_many_jobs_registered(
    gateway: ScheduleGateway, app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    from tests.db.test_claim import explain, scans

    node = await make_node(sql, schema)
    epochs = await gateway.take_shards(node, [7], [node])
    schedule = await make_schedule(sql, schema, 7, PAST, jobs=20_000)
    other = await make_schedule(sql, schema, 7, PAST + timedelta(seconds=1), jobs=3)
    await sql.execute(f"ANALYZE {schema}.jobs")
    database = await app._database()
    connection = await database.connect("test")
    plan = await explain(
        connection, database.sql["fire"], node, [7], [epochs[7]], [other], [PAST + timedelta(seconds=1)], [NEXT], [0]
    )
    assert "Seq Scan on jobs" not in scans(plan)
    assert "Index Scan on jobs" in scans(plan)
    await connection.close()
    assert schedule != other


@pytest.mark.parametrize("jobs", [0, 1, 3])
@pytest.mark.parametrize(("strictest", "fires"), [("600", True), ("4", False)])
async def test_what_is_later_than_one_of_its_jobs_puts_up_with_is_not_fired_as_if_in_time(
    gateway: ScheduleGateway, sql: asyncpg.Connection, schema: str, jobs: int, strictest: str, fires: bool
) -> None:
    """However old the plan is, by the database's clock, and whatever was known of the jobs when it was made."""
    node = await make_node(sql, schema)
    epochs = await gateway.take_shards(node, [7], [node])
    due = await sql.fetchval("SELECT clock_timestamp() - interval '5 seconds'")
    schedule = await make_schedule(sql, schema, 7, due, jobs=jobs, misfire_grace="60")
    await sql.execute(f"UPDATE {schema}.jobs SET misfire_grace = {strictest} WHERE id = (SELECT max(id) FROM {schema}.jobs)")
    fires |= not jobs
    moved = await gateway.fire(node, epochs, [Planned(schedule, due, NEXT)])
    assert moved == ({schedule: jobs} if fires else {})
    assert await fired(sql, schema) == ((jobs, 1) if fires else (0, 0))


async def test_in_its_first_second_it_is_in_time_whatever_its_jobs_say(
    gateway: ScheduleGateway, sql: asyncpg.Connection, schema: str
) -> None:
    node = await make_node(sql, schema)
    epochs = await gateway.take_shards(node, [7], [node])
    while True:
        due = await sql.fetchval("SELECT clock_timestamp()")
        schedule = await make_schedule(sql, schema, 7, due, misfire_grace="0")
        moved = await gateway.fire(node, epochs, [Planned(schedule, due, NEXT)])
        if await sql.fetchval("SELECT clock_timestamp() < $1", due + timedelta(seconds=1)):
            break  # else the machine was slow, and it was not its first second
    assert moved == {schedule: 1}


MINUTES = [PAST + timedelta(minutes=n) for n in range(5)]


@pytest.mark.parametrize(
    ("policy", "most", "runs", "left_out"),
    [
        ("SKIP", 100, [], [("skipped", 0, 4, 5)]),
        ("RUN_ONCE", 100, [4], [("coalesced", 0, 3, 4)]),
        ("RUN_ALL", 100, [0, 1, 2, 3, 4], []),
        ("RUN_ALL", 2, [3, 4], [("skipped", 0, 2, 3)]),
    ],
)
async def test_missed_windows_are_treated_as_the_job_asks(
    gateway: ScheduleGateway,
    sql: asyncpg.Connection,
    schema: str,
    policy: str,
    most: int,
    runs: list[int],
    left_out: list[tuple[str, int, int, int]],
) -> None:
    node = await make_node(sql, schema)
    epochs = await gateway.take_shards(node, [7], [node])
    schedule = await make_schedule(sql, schema, 7, PAST, misfire_grace="60", missed_window=f"'{policy}'", max_missed=str(most))
    answer = (await gateway.fire_late(node, epochs, [Planned(schedule, PAST, NEXT)], [MINUTES], 10.0))[schedule]
    assert (answer.runs, answer.left_out) == (len(runs), len(left_out))
    found = await sql.fetch(
        f"SELECT scheduled_at FROM {schema}.ready UNION ALL SELECT scheduled_at FROM {schema}.delayed ORDER BY 1"
    )
    assert [row[0] for row in found] == [MINUTES[n] for n in runs]
    decided = await sql.fetch(f"SELECT outcome, scheduled_at, until, count FROM {schema}.decisions")
    assert [tuple(row) for row in decided] == [
        (what, MINUTES[first], MINUTES[last], count) for what, first, last, count in left_out
    ]
    ledger = await sql.fetchrow(f"SELECT scheduled_at, until, count, runs, late FROM {schema}.firings")
    assert tuple(ledger) == (MINUTES[0], MINUTES[-1], 5, len(runs), True)
    assert await sql.fetchval(f"SELECT next_run_at FROM {schema}.schedules") == NEXT
    assert await gateway.fire_late(node, epochs, [Planned(schedule, PAST, NEXT)], [MINUTES], 10.0) == {}, "once"


async def test_what_is_within_the_grace_fires_whatever_the_policy(
    gateway: ScheduleGateway, sql: asyncpg.Connection, schema: str
) -> None:
    node = await make_node(sql, schema)
    epochs = await gateway.take_shards(node, [7], [node])
    schedule = await make_schedule(sql, schema, 7, PAST, missed_window="'SKIP'", misfire_grace="1e9")
    late = await gateway.fire_late(node, epochs, [Planned(schedule, PAST, NEXT)], [MINUTES], 10.0, names=True)
    assert late == {schedule: Late(5, 0, [f"{schedule}-1"])}


async def test_a_large_catch_up_is_spread_over_time(gateway: ScheduleGateway, sql: asyncpg.Connection, schema: str) -> None:
    node = await make_node(sql, schema)
    epochs = await gateway.take_shards(node, [7], [node])
    schedule = await make_schedule(sql, schema, 7, PAST, misfire_grace="60", missed_window="'RUN_ALL'")
    await gateway.fire_late(node, epochs, [Planned(schedule, PAST, NEXT)], [MINUTES], 2.0)
    rows = await sql.fetch(f"SELECT due_at, scheduled_at FROM {schema}.delayed ORDER BY due_at")
    gaps = [(later["due_at"] - earlier["due_at"]).total_seconds() for earlier, later in pairwise(rows)]
    assert all(0.45 < gap < 0.55 for gap in gaps)
    assert [row["scheduled_at"] for row in rows] == MINUTES, "the oldest first"


async def test_a_deposed_owner_fires_nothing_late_either(gateway: ScheduleGateway, sql: asyncpg.Connection, schema: str) -> None:
    old, new = await make_node(sql, schema), await make_node(sql, schema)
    stale = await gateway.take_shards(old, [7], [old])
    schedule = await make_schedule(sql, schema, 7, PAST)
    await gateway.take_shards(new, [7], [new])
    assert await gateway.fire_late(old, stale, [Planned(schedule, PAST, NEXT)], [MINUTES], 10.0) == {}
    assert await fired(sql, schema) == (0, 0)


async def test_late_schedules_are_judged_together_and_each_by_itself(
    gateway: ScheduleGateway, sql: asyncpg.Connection, schema: str
) -> None:
    node = await make_node(sql, schema)
    epochs = await gateway.take_shards(node, [7], [node])
    hours = [PAST + timedelta(hours=n) for n in range(3)]
    first = await make_schedule(sql, schema, 7, PAST, misfire_grace="60", missed_window="'RUN_ALL'")
    second = await make_schedule(sql, schema, 7, PAST + timedelta(hours=1), jobs=2, misfire_grace="60")
    stale = await make_schedule(sql, schema, 7, PAST + timedelta(hours=2))
    plans = [Planned(first, PAST, NEXT), Planned(second, hours[1], NEXT), Planned(stale, PAST, NEXT)]
    late = await gateway.fire_late(node, epochs, plans, [MINUTES, hours[1:], hours], 10.0)
    assert {schedule: one.runs for schedule, one in late.items()} == {first: 5, second: 2}
    ledger = await sql.fetch(f"SELECT schedule_id, scheduled_at, until, count FROM {schema}.firings ORDER BY 1")
    assert [tuple(row) for row in ledger] == [(first, PAST, MINUTES[-1], 5), (second, hours[1], hours[2], 2)]
    turns = await sql.fetch(f"SELECT scheduled_at FROM {schema}.delayed ORDER BY due_at")
    assert [row[0] for row in turns] == MINUTES
