"""What the page about one job reads: bounded, and right."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.core import ids
from hourhand.core.errors import Forbidden, InvalidOption, InvalidPayload, InvalidSchedule, UnknownJob
from tests.db.test_dashboard_jobs import acting

pytestmark = pytest.mark.once
YEARLY = {"task": "t", "schedule": "0 0 1 1 *"}


async def put(app: Hourhand, sql: asyncpg.Connection, name: str, ago: timedelta, many: int = 1, **columns: Any) -> None:
    """Runs of a job that ended, for instants a second apart, the last so long ago."""
    number = ids.parse_job_id((await app.jobs.show(name)).job_id)
    given = {"outcome": "succeeded", "attempt": 1, "late": 0.1, "options": None, **columns}
    await sql.execute(
        f"INSERT INTO {app.settings.schema}.runs (run_id, job_id, scheduled_at, enqueued_at, started_at, finished_at, worker_id, lane, outcome,"
        " attempt, task, payload, options)"
        f" SELECT nextval('{app.settings.schema}.run_numbers'), $1, at, at, at + make_interval(secs => $4), at + make_interval(secs => $4 + 1), 1, 5,"
        f" $5::{app.settings.schema}.outcome, $6, 't', '{{}}', $7::jsonb"
        " FROM (SELECT clock_timestamp() - $2::interval - make_interval(secs => n) AS at FROM generate_series(0, $3 - 1) AS n) AS made",
        number, ago, many, given["late"], given["outcome"], given["attempt"], given["options"],
    )  # fmt: skip


async def leave_out(app: Hourhand, sql: asyncpg.Connection, name: str, ago: timedelta, lasting: timedelta, many: int) -> None:
    number, at = ids.parse_job_id((await app.jobs.show(name)).job_id), datetime.now(UTC) - ago
    await sql.execute(
        f"INSERT INTO {app.settings.schema}.decisions (job_id, scheduled_at, until, count, outcome, reason) VALUES ($1, $2, $3, $4, 'skipped', 'x')",
        number, at, at + lasting, many,
    )  # fmt: skip


async def test_the_latest_runs_are_found_wherever_they_are(app: Hourhand, sql: asyncpg.Connection) -> None:
    await app.jobs.add("one", **YEARLY)
    await put(app, sql, "one", timedelta(hours=1), 3)
    waiting = (await app.jobs.trigger("one")).run_id
    schema = app.settings.schema
    dead = (await app.jobs.trigger("one")).run_id
    held = (await app.jobs.trigger("one")).run_id
    for table, run, columns, values in (
        ("dead", dead, "died_at", "clock_timestamp()"),
        ("delayed", held, "due_at", "clock_timestamp() + interval '1 hour'"),
    ):
        await sql.execute(
            f"WITH gone AS (DELETE FROM {schema}.ready WHERE run_id = $1 RETURNING *) INSERT INTO {schema}.{table}"
            f" ({columns}, run_id, job_id, scheduled_at, lane, attempt, task, payload)"
            f" SELECT {values}, run_id, job_id, scheduled_at, lane, attempt, task, payload FROM gone", ids.parse_run_id(str(run)),
        )  # fmt: skip
    found = await app.jobs.latest_runs("one")
    assert [(one.run_id, one.state) for one in found[:3]] == [(held, "delayed"), (dead, "dead"), (waiting, "ready")]
    assert [one.state for one in found[3:]] == ["succeeded"] * 3
    assert [one.scheduled_at for one in found] == sorted((one.scheduled_at for one in found), reverse=True)
    assert len(await app.jobs.latest_runs("one", 2)) == 2


async def test_a_long_queue_is_not_read_for_the_latest_runs(app: Hourhand, sql: asyncpg.Connection) -> None:
    await app.jobs.add("one", **YEARLY)
    await app.jobs.trigger("one")
    await app.jobs.add("other", **YEARLY)
    number = ids.parse_job_id((await app.jobs.show("other")).job_id)
    await sql.execute(
        f"INSERT INTO {app.settings.schema}.ready (seq, run_id, job_id, scheduled_at, lane, task, payload)"
        f" SELECT n, n, $1, now(), (SELECT min(lane) FROM {app.settings.schema}.ready), 't', '{{}}' FROM generate_series(1000, 7000) AS n", number,
    )  # fmt: skip
    assert await app.jobs.latest_runs("one") == []
    assert len(await app.jobs.latest_runs("other")) == 100


async def test_the_calendar_counts_what_became_of_firings(app: Hourhand, sql: asyncpg.Connection) -> None:
    await app.jobs.add("one", task="t", schedule="0 5 * * *", flexible_window=30)
    await put(app, sql, "one", timedelta(days=3))
    await put(app, sql, "one", timedelta(days=4), late=34.0)
    await put(app, sql, "one", timedelta(days=5), late=36.0)
    await put(app, sql, "one", timedelta(days=6), late=3_600.0, attempt=3)
    await put(app, sql, "one", timedelta(days=7), late=3_600.0, options='{"by_hand": "backfilled"}')
    await put(app, sql, "one", timedelta(days=8), outcome="expired")
    await put(app, sql, "one", timedelta(days=120))
    await leave_out(app, sql, "one", timedelta(days=10), timedelta(days=2), 3)
    await app.jobs.pause("one")
    calendar = await app.jobs.calendar("one")
    assert (calendar.scale, calendar.known_since) == ("day", None)
    assert sum(one.runs for one in calendar.tallies) == 6
    assert [round(one.latest) for one in calendar.tallies if one.late] == [36]
    assert sum(one.retried for one in calendar.tallies) == 1
    assert [one.count for one in calendar.left_out] == [3]
    assert len(calendar.pauses) == 1
    assert (await app.jobs.calendar("one", "hour")).scale == "hour"
    with pytest.raises(InvalidOption, match="day, hour, minute"):
        await app.jobs.calendar("one", "year")


@pytest.mark.parametrize(("schedule", "scale"), [("0 5 * * *", "day"), ("0 * * * *", "day"), ("*/5 * * * *", "hour"), ("every 10s", "minute"),
                                                 ("2090-01-01T00:00:00Z", "day")])  # fmt: skip
async def test_the_calendar_goes_as_the_job_does(app: Hourhand, schedule: str, scale: str) -> None:
    await app.jobs.add("one", task="t", schedule=schedule)
    assert (await app.jobs.calendar("one")).scale == scale


async def test_of_very_many_runs_the_newest_are_in_it_and_it_says_so(app: Hourhand, sql: asyncpg.Connection) -> None:
    await app.jobs.add("one", task="t", schedule="0 5 * * *")
    await put(app, sql, "one", timedelta(0), 15_000)
    chosen = await app.jobs.calendar("one")
    assert chosen.scale == "minute"
    for scale in ("day", "hour", "minute"):
        calendar = await app.jobs.calendar("one", scale)
        assert sum(one.runs for one in calendar.tallies) == (12_000 if scale != "minute" else pytest.approx(10_800, abs=60))
        assert (calendar.known_since is None) == (scale == "minute")
    day = await app.jobs.calendar("one", "day")
    assert day.known_since is not None
    assert abs((datetime.now(UTC) - day.known_since).total_seconds() - 12_000) < 120


async def test_the_account_of_late_is_that_of_the_latest_firings(app: Hourhand, sql: asyncpg.Connection) -> None:
    await app.jobs.add("often", task="t", schedule="every 1s", anchor="2026-01-01T00:00:00Z")
    await sql.execute(f"UPDATE {app.settings.schema}.jobs SET active_since = now() - interval '1 day'")
    found = await app.jobs.lately("often", most=20)
    assert found.cut
    assert len(found.lines) == 20
    assert found.until - found.since < timedelta(seconds=22)
    await app.jobs.add("seldom", **YEARLY)
    found = await app.jobs.lately("seldom", most=20)
    assert (found.cut, found.lines) == (False, [])
    assert found.until - found.since == timedelta(days=1)
    with pytest.raises(InvalidOption, match="empty"):
        await app.jobs.lately("seldom", since=datetime.now(UTC), until=datetime.now(UTC) - timedelta(1))
    assert await app.jobs.is_quick_to_explain()


async def test_the_account_of_late_minds_what_the_job_was_before(app: Hourhand, sql: asyncpg.Connection) -> None:
    await app.jobs.add("one", task="t", schedule="every 1s", anchor="2026-01-01T00:00:00Z")
    await sql.execute(f"UPDATE {app.settings.schema}.jobs SET active_since = now() - interval '1 day'")
    await app.jobs.update("one", schedule="0 0 1 1 *")
    found = await app.jobs.lately("one", most=30)
    assert found.cut
    assert len([line for line in found.lines if line.by_hand is None]) == 30


async def test_the_ends_of_a_job_are_in_order_and_as_far_back_as_they_must_be(app: Hourhand, sql: asyncpg.Connection) -> None:
    views = [await app.jobs.add(name, **YEARLY) for name in ("recent", "monthly", "yearly", "never", "skipping")]
    await put(app, sql, "recent", timedelta(days=2), 20)
    await put(app, sql, "recent", timedelta(days=1), outcome="lost")
    await put(app, sql, "recent", timedelta(days=20))
    await put(app, sql, "monthly", timedelta(days=30))
    await put(app, sql, "yearly", timedelta(days=300))
    await put(app, sql, "skipping", timedelta(days=2))
    await leave_out(app, sql, "skipping", timedelta(days=1), timedelta(0), 1)
    ends = await app.jobs.last_outcomes(views)
    recent, monthly, yearly, never, skipping = (ends[one.job_id] for one in views)
    assert [one.state for one in recent] == ["succeeded"] * 11 + ["lost"]
    assert [len(one) for one in (monthly, yearly, never)] == [1, 1, 0]
    assert [(one.state, one.run_id is None) for one in skipping] == [("succeeded", False), ("skipped", True)]
    assert await app.jobs.last_outcomes([]) == {}


async def test_changes_are_those_of_the_job_and_of_the_callers_part(app: Hourhand) -> None:
    await app.jobs.add("one", **YEARLY, queue="before")
    await app.jobs.add("two", **YEARLY, queue="before")
    await app.jobs.update("one", queue="after")
    await app.jobs.pause("one")
    actions = ["job.pause", "job.update", "job.add"]
    found = await app.jobs.changes("one")
    assert [one.action for one in found] == actions
    assert [one.action for one in await app.jobs.changes("one", below=found[0].id)] == actions[1:]
    assert len(await app.jobs.changes("one", limit=1)) == 1
    with acting(queues=("after",)):
        assert [one.action for one in await app.jobs.changes("one")] == actions[:2]
        for looking in (app.jobs.changes, app.jobs.calendar, app.jobs.lately, app.jobs.latest_runs, app.jobs.would_fire):
            with pytest.raises(UnknownJob):
                await looking("two")


async def test_what_a_change_would_do_is_what_it_does_and_nothing_is_stored(app: Hourhand) -> None:
    before = await app.jobs.add("one", task="t", schedule="0 5 * * *", payload={"password": "hush"}, max_runs=30)
    now = await app.jobs.would_fire("one")
    assert now.firings == await app.jobs.next("one")
    assert now.in_words == before.in_words
    changes: dict[str, Any] = {"schedule": "30 6 * * MON", "timezone": "Europe/Berlin", "start_at": "2080-01-01T00:00:00Z", "max_runs": 4,
                               "payload": {"password": "[redacted]"}}  # fmt: skip
    planned = await app.jobs.would_fire("one", **changes)
    assert await app.jobs.show("one") == before.__class__(**{**before.to_dict(), "outcome": None})
    await app.jobs.update("one", **changes)
    assert planned.firings == await app.jobs.next("one")
    assert len(planned.firings) == 4
    for wrong, error in (
        ({"schedule": "66 * * * *"}, InvalidSchedule),
        ({"payload": {"other": "[redacted]"}}, InvalidPayload),
        ({"max_runs": 0}, InvalidOption),
        ({"end_at": "2026-01-01T00:00:00Z"}, InvalidOption),
    ):
        with pytest.raises(error):
            await app.jobs.would_fire("one", **wrong)


async def test_what_a_new_job_would_do(app: Hourhand) -> None:
    planned = await app.jobs.would_fire("fresh", added=True, limit=3, task="t", schedule="0 5 * * *", timezone="Asia/Tokyo")
    assert [at.hour for at in planned.firings] == [20, 20, 20]
    with pytest.raises(UnknownJob):
        await app.jobs.show("fresh")
    with pytest.raises(InvalidOption, match="needs a schedule"):
        await app.jobs.would_fire("fresh", added=True)
    with acting(queues=("mine",)), pytest.raises(Forbidden):
        await app.jobs.would_fire("fresh", added=True, task="t", schedule="0 5 * * *", queue="theirs")
