"""The record: what became of every expected firing, and the proof that nothing is missing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from hourhand import Hourhand, InvalidOption, NotPossible
from hourhand.core.account import Line
from hourhand.core.clock import Clock
from hourhand.engine import maintainer as maintainer_module
from hourhand.engine.maintainer import Maintainer
from hourhand.engine.node import Node
from hourhand.storage.nodes import MaintenanceGateway
from tests.db.test_firing import gateway, make_node
from tests.db.test_policies import HOUR, T0, Bench, bench
from tests.support.fleet import until

pytestmark = pytest.mark.once

__all__ = ["bench", "gateway"]


async def outcomes(app: Hourhand, hours: int, name: str = "job") -> dict[int, Line]:
    lines = await app.jobs.why(name, since=T0, until=T0 + hours * HOUR)
    return {int((line.scheduled_at - T0) / HOUR): line for line in lines}


async def test_every_outcome_has_its_reason(bench: Bench, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    await sql.execute(f"SELECT {schema}.add_partition('runs', '2026-03-02')")
    await bench.add(overlap="skip")
    await bench.fire()
    await bench.fire()
    run = (await app.jobs.runs("job"))[0].run_id
    await app.runs.cancel(run, "not today")
    await bench.fire_late(4)  # hours 2 to 5: three coalesced, the last one runs
    await app.jobs.pause("job")
    await sql.execute(f"UPDATE {schema}.jobs SET paused_at = $1", T0 + 6 * HOUR - timedelta(minutes=1))
    await bench.fire()
    found = await outcomes(app, 8)
    assert {hour: line.outcome for hour, line in found.items()} == {
        0: "cancelled", 1: "skipped", 2: "coalesced", 3: "coalesced", 4: "coalesced", 5: "ready", 6: "paused", 7: "paused"
    }  # fmt: skip
    assert found[0].run_id == run
    assert "not today" in found[0].reason
    assert found[0].node == "s"
    assert found[0].late_seconds is not None
    assert found[0].late_seconds > 0
    assert run in found[1].reason
    assert "3 from 2026-03-02T14:00:00Z to 2026-03-02T16:00:00Z" in found[3].reason
    assert "first in its lane" in found[5].reason
    assert "late" in found[5].reason
    assert (await app.jobs.audit("job", T0, T0 + 8 * HOUR)).clean
    at = await app.jobs.why("job", at=T0)
    assert [line.outcome for line in at] == ["cancelled"]
    with pytest.raises(NotPossible, match="was not expected to fire"):
        await app.jobs.why("job", at=T0 + timedelta(minutes=5))
    with pytest.raises(InvalidOption, match="period is empty"):
        await app.jobs.why("job", since=T0, until=T0)


async def test_what_waits_says_behind_how_many(bench: Bench, app: Hourhand) -> None:
    for _ in range(3):
        await app.enqueue("work")
    await bench.add()
    await bench.fire()
    line = (await outcomes(app, 1))[0]
    assert line.outcome == "ready"
    assert "queued behind 3 runs" in line.reason


async def test_what_is_due_and_not_fired_says_why(bench: Bench, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    await bench.add()
    assert "its scheduler has not come to it yet" in (await outcomes(app, 1))[0].reason
    await sql.execute(f"UPDATE {schema}.nodes SET stopped_at = now()")
    line = (await outcomes(app, 1))[0]
    assert line.outcome == "due"
    assert "no scheduler is alive" in line.reason
    coming = await app.jobs.why("job", since=datetime.now(UTC), until=datetime.now(UTC) + 2 * HOUR)
    assert {one.outcome for one in coming} == {"expected"}


async def test_why_a_firing_came_late_names_who_died(bench: Bench, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    await bench.add()
    await bench.fire()
    old = bench.node
    await sql.execute(f"UPDATE {schema}.nodes SET died_at = now(), name = 'old-one' WHERE id = $1", old)
    bench.node = await make_node(sql, schema)
    await sql.execute(f"UPDATE {schema}.nodes SET name = 'new-one' WHERE id = $1", bench.node)
    bench.epochs = await bench.gateway.take_shards(bench.node, range(256), [bench.node])
    await bench.fire()
    line = (await outcomes(app, 2))[1]
    assert line.node == "new-one"
    assert "old-one died" in line.reason
    assert "new-one took over" in line.reason


async def test_a_lost_run_and_a_double_one_are_found(bench: Bench, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    """The audit is worth something only if it can fail."""
    await sql.execute(f"SELECT {schema}.add_partition('runs', '2026-03-02')")
    await bench.add()
    for _ in range(4):
        await bench.fire()
    assert (await app.jobs.audit("job", T0, T0 + 4 * HOUR)).expected == 4
    await sql.execute(f"DELETE FROM {schema}.ready WHERE scheduled_at = $1", T0 + HOUR)
    await sql.execute(
        f"INSERT INTO {schema}.ready SELECT (r).* FROM (SELECT jsonb_populate_record(r, jsonb_build_object('seq', 900, 'run_id', 900)) AS r"
        f" FROM {schema}.ready r WHERE scheduled_at = $1) AS copies",
        T0 + 2 * HOUR,
    )
    assert not (await app.jobs.audit("job", T0 + HOUR, T0 + 2 * HOUR)).clean, "however narrow the window"
    audit = await app.jobs.audit("job", T0, T0 + 4 * HOUR)
    assert (audit.unexplained, audit.doubles, audit.clean) == ((T0 + HOUR,), (T0 + 2 * HOUR,), False)
    await sql.execute(f"DELETE FROM {schema}.firings WHERE scheduled_at = $1", T0 + HOUR)
    assert (await app.jobs.audit("job", T0, T0 + 4 * HOUR)).unexplained == (T0 + HOUR,)


async def test_changes_are_remembered_so_that_the_past_can_be_told(
    bench: Bench, app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    await sql.execute(f"SELECT {schema}.add_partition('runs', '2026-03-02')")
    await bench.add()
    for _ in range(3):
        await bench.fire()
    await sql.execute(f"UPDATE {schema}.schedules SET next_run_at = clock_timestamp() + interval '1 hour'")
    await app.jobs.update("job", schedule="30 * * * *")
    await sql.execute(f"UPDATE {schema}.spans SET until = $1", T0 + 3 * HOUR - timedelta(minutes=1))
    assert [one.outcome for one in (await outcomes(app, 6)).values()] == ["ready"] * 3
    assert (await app.jobs.audit("job", T0, T0 + 6 * HOUR)).clean


async def test_a_job_that_was_committed_after_the_firing_is_not_a_gap(bench: Bench, app: Hourhand) -> None:
    """Its transaction was open while its schedule was fired: that is what the record says, and only at the beginning."""
    await bench.sql.execute(f"SELECT {bench.schema}.add_partition('runs', '2026-03-02')")
    await bench.add("old")
    await bench.fire("old")
    await bench.fire("old")
    shard = (await app.jobs.show("old")).shard
    sibling = await bench.sql.fetchval("SELECT min(n) FROM generate_series(2, 20000) AS n WHERE hashint8(n) & 255 = $1", shard)
    await bench.sql.execute(f"SELECT setval('{bench.schema}.job_numbers', {sibling - 1})")
    await app.jobs.add("late", task="work", schedule="0 * * * *")
    await bench.sql.execute(f"UPDATE {bench.schema}.jobs SET active_since = $1 WHERE name = 'late'", T0 + HOUR)
    await bench.fire("old")
    found = await outcomes(app, 3, "late")
    assert {hour: line.outcome for hour, line in found.items()} == {1: "unregistered", 2: "ready"}
    assert (await app.jobs.audit("late", T0, T0 + 3 * HOUR)).clean


async def test_a_gap_of_the_clock_is_told(bench: Bench, app: Hourhand) -> None:
    await bench.add(schedule="30 2 * * *", timezone="America/New_York", dst="skip")
    await bench.sql.execute(f"UPDATE {bench.schema}.jobs SET active_since = '2026-03-01'")
    lines = await app.jobs.why("job", at=datetime(2026, 3, 8, 7, tzinfo=UTC))
    assert [line.outcome for line in lines] == ["dst_gap"]
    assert "does not exist" in lines[0].reason


# Backfill


async def test_backfill_makes_each_run_once(bench: Bench, app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    job = await bench.add()
    until_ = T0 + 5 * HOUR
    plan = await app.jobs.backfill("job", T0, until_, dry_run=True)
    assert (plan.instants, plan.runs) == ([T0 + n * HOUR for n in range(5)], [])
    assert await bench.runs(job) == []
    done = await app.jobs.backfill("job", T0, until_, order="newest", rate=1000)
    assert [at for _, at in done.runs] == [T0 + n * HOUR for n in (4, 3, 2, 1, 0)]
    assert len(await bench.runs(job)) == 5
    again = await app.jobs.backfill("job", T0, until_)
    assert (again.runs, again.asked_already) == ([], 5)
    more = await app.jobs.backfill("job", T0, T0 + 6 * HOUR)
    assert [at for _, at in more.runs] == [T0 + 5 * HOUR]
    anew = await app.jobs.backfill("job", T0, until_, again=True)
    assert len(anew.runs) == 5
    with pytest.raises(InvalidOption, match="more than 3 firings"):
        await app.jobs.backfill("job", T0, until_, cap=3)
    with pytest.raises(InvalidOption, match="order must be"):
        await app.jobs.backfill("job", T0, until_, order="random")
    with pytest.raises(InvalidOption, match="period is empty"):
        await app.jobs.backfill("job", until_, T0)
    await bench.fire()
    audit = await app.jobs.audit("job", T0, T0 + HOUR)
    assert (audit.expected, audit.clean) == (1, True), "two runs by hand and one by the schedule are no double"
    assert len(await app.jobs.why("job", since=T0, until=T0 + HOUR)) == 3


async def test_backfill_leaves_out_what_has_succeeded_and_keeps_its_rate(
    bench: Bench, app: Hourhand, sql: asyncpg.Connection
) -> None:
    job = await bench.add()
    await sql.execute(
        f"INSERT INTO {bench.schema}.runs (run_id, job_id, scheduled_at, finished_at, lane, outcome, attempt, task)"
        " VALUES (1, $1, $2, now(), 5, 'succeeded', 1, 'work'), (2, $1, $3, now(), 5, 'cancelled', 1, 'work')",
        job, T0, T0 + HOUR,
    )  # fmt: skip
    done = await app.jobs.backfill("job", T0, T0 + 4 * HOUR, rate=0.5)
    assert (done.ran_already, [at for _, at in done.runs]) == (1, [T0 + n * HOUR for n in (1, 2, 3)])
    due = [row[0] for row in await sql.fetch(f"SELECT due_at FROM {bench.schema}.delayed ORDER BY due_at")]
    assert (due[1] - due[0]).total_seconds() == pytest.approx(2.0)


async def test_a_backfill_can_be_followed_and_called_off(bench: Bench, app: Hourhand) -> None:
    job = await bench.add(overlap="skip")
    done = await app.jobs.backfill("job", T0, T0 + 4 * HOUR)
    assert [state for state, _ in await bench.runs(job)] == ["ready", "delayed", "delayed", "delayed"], "one at a time"
    first = await anext(app.jobs.follow(done))
    assert (first.ended, first.succeeded) == (0, 0)
    assert await app.jobs.cancel_backfill("job", T0, T0 + 4 * HOUR) == 4
    async for look in app.jobs.follow(done):
        assert look.ended == 4
    assert len((await app.jobs.backfill("job", T0, T0 + 4 * HOUR)).runs) == 4, "it can be asked for again"
    assert len((await app.jobs.backfill("job", T0, T0 + 4 * HOUR, again=True)).runs) == 4
    assert await app.jobs.cancel_backfill("job", T0, T0 + 4 * HOUR) == 8, "those of both"
    with pytest.raises(InvalidOption, match="naive"):
        await app.jobs.cancel_backfill("job", datetime(2026, 1, 1), T0)


# Age


@pytest.fixture
async def maintainer(app: Hourhand) -> Maintainer:
    database = await app._database()
    return Maintainer(MaintenanceGateway(database.link("test")), Node(database, app.settings, "worker", {}), app.settings)


async def test_history_beyond_its_retention_is_dropped_by_the_day(
    app: Hourhand, maintainer: Maintainer, sql: asyncpg.Connection, schema: str
) -> None:
    for parent in ("runs", "firings"):
        for day in ("2026-01-01", "2026-01-02"):
            await sql.execute(f"SELECT {schema}.add_partition('{parent}', '{day}')")
    insert = f"INSERT INTO {schema}.runs (run_id, scheduled_at, finished_at, lane, outcome, attempt, task) VALUES "
    await sql.execute(insert + "(1, '2026-01-01 12:00Z', '2026-01-01 12:00Z', 5, 'succeeded', 1, 'x')")
    await sql.execute(insert + "(2, '2020-01-01 12:00Z', now(), 5, 'succeeded', 1, 'x')")  # a backfill of long ago
    await sql.execute(insert + "(3, '2020-01-01 12:00Z', '2020-01-01 12:00Z', 5, 'succeeded', 1, 'x')")
    await sql.execute(insert + "(4, now(), now(), 5, 'succeeded', 1, 'x')")
    await maintainer.forget()
    assert [row[0] for row in await sql.fetch(f"SELECT run_id FROM {schema}.runs ORDER BY 1")] == [2, 4]
    assert await sql.fetchval(f"SELECT to_regclass('{schema}.firings_20260101')") is None
    await maintainer.stop()


async def test_what_is_to_be_forgotten_is_looked_for_again_soon_where_there_was_some(
    app: Hourhand, maintainer: Maintainer, sql: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintainer_module, "BATCH", 2)
    await sql.execute(
        f"INSERT INTO {schema}.runs (run_id, scheduled_at, finished_at, lane, outcome, attempt, task)"
        " SELECT n, '2020-01-01', '2020-01-01', 5, 'succeeded', 1, 'x' FROM generate_series(1, 3) AS n"
    )
    pauses = []
    for _ in range(3):
        began = maintainer._forget_at = Clock.monotonic()
        await maintainer._tidy()
        pauses.append(round((maintainer._forget_at - began) / 60))
    assert pauses == [1, 1, 10]
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.runs") == 0
    await maintainer.stop()


async def test_dropping_gives_way_to_who_reads(
    app: Hourhand, maintainer: Maintainer, sql: asyncpg.Connection, schema: str
) -> None:
    await sql.execute(f"SELECT {schema}.add_partition('runs', '2026-01-01')")
    reading = sql.transaction()
    await reading.start()
    await sql.fetch(f"SELECT count(*) FROM {schema}.runs")
    assert await maintainer.forget()
    assert await sql.fetchval(f"SELECT to_regclass('{schema}.runs_20260101') IS NOT NULL"), "postponed"
    await reading.rollback()
    assert not await maintainer.forget()
    assert await sql.fetchval(f"SELECT to_regclass('{schema}.runs_20260101')") is None
    await maintainer.stop()


async def test_a_week_without_a_scheduler_is_one_run_and_one_line(
    app: Hourhand, sql: asyncpg.Connection, schema: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.db.test_scheduler import scheduling

    await app.jobs.add("often", task="work", schedule="* * * * * *")
    await sql.execute(f"UPDATE {schema}.schedules SET next_run_at = date_trunc('second', now()) - interval '7 days'")
    await sql.execute(f"UPDATE {schema}.jobs SET active_since = now() - interval '8 days'")
    async with scheduling(app):

        async def caught_up() -> bool:
            return bool(await sql.fetchval(f"SELECT count(*) FROM {schema}.firings") > 1)

        await until(caught_up, "the catch-up and a firing after it")
    rows = await sql.fetch(f"SELECT outcome, until - scheduled_at AS width FROM {schema}.decisions")
    assert [row["outcome"] for row in rows] == ["coalesced"]
    assert rows[0]["width"] > timedelta(days=6, hours=23)
    first = await sql.fetchrow(f"SELECT runs, late FROM {schema}.firings ORDER BY scheduled_at LIMIT 1")
    assert first["late"]
    assert first["runs"] in range(1, 70), "one for all that was missed, and what is within its grace"
    now = datetime.now(UTC)
    assert (await app.jobs.audit("often", now - timedelta(minutes=3), now - timedelta(seconds=3))).clean
