"""Periodic tasks of Celery, made by Celery itself, and rows as django-celery-beat keeps them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest
from celery import schedules
from celery.beat import ScheduleEntry
from celery.schedules import crontab, schedule
from hypothesis import given
from hypothesis import strategies as st

from hourhand import Hourhand
from hourhand.surfaces.importing.celery_beat import translate_beat_schedule, translate_tables
from hourhand.surfaces.importing.checking import Import, check
from hourhand.surfaces.importing.translation import Translation

NOW = datetime(2027, 1, 1, tzinfo=UTC)


def checked(translation: Translation) -> Import:
    return check(translation, Hourhand("postgresql://nowhere/none").registry, NOW)


def beat(when: Any, *, deadline: float | None = None, **entry: Any) -> Translation:
    whole = {"task": "shop.tasks.report", "schedule": when, **entry}
    return translate_beat_schedule({"report": whole}, timezone="Europe/Berlin", deadline=deadline)


def only(translation: Translation) -> dict[str, Any]:
    done = checked(translation)
    assert done.untranslated == []
    (job,) = done.jobs
    return job.given


def reason(translation: Translation) -> str:
    done = checked(translation)
    assert done.jobs == []
    (told,) = done.untranslated
    return told.reason


def remarks(translation: Translation) -> str:
    return "\n".join(one.text for one in translation.notes)


# Apps


def test_an_entry() -> None:
    done = beat(crontab(hour=7, minute=30, day_of_week=1), kwargs={"days": 7}, options={"queue": "low", "time_limit": 90})
    assert only(done) == {
        "name": "report", "task": "shop.tasks.report", "payload": {"days": 7}, "schedule": "30 7 * * 1", "timezone": "Europe/Berlin",
        "queue": "low", "timeout": 90.0,
    }  # fmt: skip
    assert remarks(done) == ""


@pytest.mark.parametrize(
    ("fields", "expression"),
    [
        ({}, "* * * * *"),
        ({"minute": "*/15", "hour": "8-17"}, "*/15 8-17 * * *"),
        ({"minute": [0, 30], "hour": {6, 18}}, "0,30 6,18 * * *"),
        ({"minute": range(0, 60, 5)}, "*/5 * * * *"),
        ({"minute": 0, "hour": "22-2"}, "0 0-2,22,23 * * *"),
        ({"minute": 0, "hour": 0, "day_of_week": "monday-friday"}, "0 0 * * 1-5"),
        ({"minute": 0, "hour": 0, "day_of_week": "sat,sun"}, "0 0 * * 0,6"),
        ({"minute": 0, "hour": 0, "day_of_month": "1,15", "month_of_year": "jan-mar"}, "0 0 1,15 1-3 *"),
        ({"minute": 0, "hour": 0, "day_of_month": "1-7", "day_of_week": "mon"}, "0 0 * * 1#1"),
        ({"minute": 0, "hour": 0, "day_of_month": "*/2", "day_of_week": "mon"}, "0 0 */2 * 1"),
        ({"minute": "0-59/20", "nowfun": datetime.now}, "0-59/20 * * * *"),
    ],
)
def test_crontabs(fields: dict[str, Any], expression: str) -> None:
    assert only(beat(crontab(**fields)))["schedule"] == expression


SETS = {"minute": (0, 59), "hour": (0, 23), "day_of_month": (1, 31), "month_of_year": (1, 12), "day_of_week": (0, 6)}


@given(st.fixed_dictionaries({}, optional={name: st.sets(st.integers(*ends), min_size=1) for name, ends in SETS.items()}))
def test_it_fires_when_celery_would(fields: dict[str, set[int]]) -> None:
    try:
        made = crontab(**fields)
    except ValueError:
        return
    done = checked(translate_beat_schedule({"x": {"task": "t", "schedule": made}}, timezone="UTC"))
    if done.untranslated:
        assert "at once" in done.untranslated[0].reason
        return
    days = (NOW + timedelta(days=count) for count in range(12_000))
    matching = (
        one for one in days
        if one.month in made.month_of_year and one.day in made.day_of_month and one.isoweekday() % 7 in made.day_of_week
    )  # fmt: skip
    times = (
        day.replace(hour=hour, minute=minute) for day in matching for hour in sorted(made.hour) for minute in sorted(made.minute)
    )
    expected = list(islice((at for at in times if at > NOW), 5))
    assert list(islice(done.jobs[0].definition.schedule.firings(NOW), len(expected))) == expected


@pytest.mark.parametrize("every", [90, 90.0, timedelta(seconds=90), schedule(90), schedule(timedelta(seconds=90))])
def test_intervals(every: Any) -> None:
    done = beat(every)
    job = only(done)
    assert job["schedule"] == "every 90s"
    assert "timezone" not in job
    assert "counted from the moment of the import" in remarks(done)


def test_relative_intervals_are_told() -> None:
    assert "rounded to its unit by Celery" in remarks(beat(schedule(timedelta(hours=1), relative=True)))
    assert "rounded to its unit by Celery" in remarks(beat(3600, relative=True))


def test_a_deadline_for_what_was_missed() -> None:
    job = only(beat(crontab(hour=7, minute=0), deadline=600))
    assert (job["missed_window"], job["misfire_grace"]) == ("SKIP", 600.0)
    assert "missed_window" not in only(beat(90, deadline=600))


def test_options_that_are_not_carried_over_are_told() -> None:
    options = {"expires": 60, "priority": 3, "countdown": 5, "exchange": "x", "headers": {"a": 1}, "serializer": None}
    done = beat(90, options=options)
    assert set(only(done)) == {"name", "task", "schedule"}
    said = remarks(done)
    assert "expires is not carried over" in said
    assert "priority 3 is not carried over" in said
    assert "not carried over: countdown, exchange, headers" in said


def test_entries_may_be_objects() -> None:
    entry = ScheduleEntry(
        "x", "shop.tasks.report", schedule=schedule(90), kwargs={"a": 1}, options={"queue": "low"}, last_run_at=NOW
    )
    (job,) = translate_beat_schedule({"x": entry}).jobs
    assert (job["task"], job["schedule"], job["payload"], job["queue"]) == ("shop.tasks.report", "every 90s", {"a": 1}, "low")


class Sunset:
    pass


Sunset.__module__, Sunset.__name__ = schedules.__name__, "solar"


class Clocked:
    def __init__(self, at: datetime) -> None:
        self.clocked_time = at


Clocked.__module__, Clocked.__name__ = "django_celery_beat.clockedschedule", "clocked"


class ZonedCrontab(crontab):
    def __init__(self, zone: str, **fields: Any) -> None:
        super().__init__(**fields)
        self.tz = zone


def test_schedules_of_django() -> None:
    assert only(beat(Clocked(datetime(2027, 5, 1, 9, tzinfo=UTC))))["schedule"] == "2027-05-01T09:00:00Z"
    job = only(beat(ZonedCrontab("Asia/Tokyo", minute=0, hour=9)))
    assert (job["schedule"], job["timezone"]) == ("0 9 * * *", "Asia/Tokyo")


def test_names_are_made_fit() -> None:
    entries = {
        "send report, every monday!": {"task": "a", "schedule": 90}, "send report every monday": {"task": "a", "schedule": 90},
        "shop.tasks.add()": {"task": "a", "schedule": 90}, "x" * 150: {"task": "a", "schedule": 90}, "…": {"task": "a", "schedule": 90},
    }  # fmt: skip
    names = [one.name for one in checked(translate_beat_schedule(entries)).jobs]
    assert len(set(names)) == 5
    assert all(one.startswith("send-report-every-monday-") for one in names[:2])
    assert names[2] == "shop.tasks.add"
    assert names[3].startswith("xxx")
    assert len(names[3]) < 80
    assert names[4] == "job"


@pytest.mark.parametrize(
    ("translation", "said"),
    [
        (beat(Sunset()), "the sun decides"),
        (beat(crontab(day_of_month=13, day_of_week=5)), "at once"),
        (beat(90, args=(16, 16)), "positional arguments (16, 16)"),
        (beat(90, kwargs=[1]), "no mapping"),
        (beat(90, kwargs={"x": object()}), "cannot be stored as JSON"),
        (beat(0.5), "from one second"),
        (beat(90, task=None), "names no task"),
        (beat(90, task="two words"), "cannot be the name of a task"),
        (beat("hourly"), "type str is not known"),
        (beat(None), "type NoneType is not known"),
        (beat(True), "type bool is not known"),
        (beat(90, options={"queue": "no such queue!"}), "cannot be the name of a queue"),
        (translate_beat_schedule({"x": {"task": "a", "schedule": crontab()}}, timezone="Mars/Base"), "no time zone"),
    ],
)
def test_what_cannot_be_translated_says_why(translation: Translation, said: str) -> None:
    assert said in reason(translation)


# Tables

CRONTAB = {
    "id": 1,
    "minute": "*/5",
    "hour": "8-17",
    "day_of_month": "*",
    "month_of_year": "*",
    "day_of_week": "mon-fri",
    "timezone": "Asia/Tokyo",
}
SCHEDULES: dict[str, dict[Any, dict[str, Any]]] = {
    "crontab": {1: CRONTAB, 2: {**CRONTAB, "timezone": ""}},
    "interval": {1: {"id": 1, "every": 10, "period": "minutes"}, 2: {"id": 2, "every": 10, "period": "moons"}},
    "solar": {1: {"id": 1, "event": "sunset", "latitude": 1, "longitude": 1}},
    "clocked": {1: {"id": 1, "clocked_time": "2027-05-01 09:00:00"}, 2: {"id": 2, "clocked_time": "2020-05-01 09:00:00"}},
}


def row(**columns: Any) -> Translation:
    whole = {
        "id": 1, "name": "report", "task": "shop.tasks.report", "args": "[]", "kwargs": "{}", "queue": None, "exchange": None,
        "routing_key": None, "headers": "{}", "priority": None, "expires": None, "expire_seconds": None, "one_off": 0, "start_time": None,
        "enabled": 1, "last_run_at": None, "crontab_id": None, "interval_id": None, "solar_id": None, "clocked_id": None, **columns,
    }  # fmt: skip
    return translate_tables([whole], SCHEDULES)


def test_a_row() -> None:
    job = only(row(crontab_id=1, kwargs='{"days": 7}', queue="low"))
    assert job == {
        "name": "report", "task": "shop.tasks.report", "payload": {"days": 7}, "schedule": "*/5 8-17 * * 1-5", "timezone": "Asia/Tokyo",
        "queue": "low",
    }  # fmt: skip
    silent = row(crontab_id=2)
    assert only(silent)["timezone"] == "UTC"
    assert "no zone is said" in remarks(silent)


def test_rows_of_the_other_kinds() -> None:
    assert only(row(interval_id=1))["schedule"] == "every 600s"
    assert only(row(clocked_id=1, one_off=1)) == {
        "name": "report",
        "task": "shop.tasks.report",
        "schedule": "2027-05-01T09:00:00Z",
    }
    assert only(row(crontab_id=1, one_off=True))["max_runs"] == 1


def test_when_it_starts_and_ends() -> None:
    job = only(row(crontab_id=1, start_time="2027-02-01 00:00:00", expires=datetime(2027, 3, 1, tzinfo=UTC)))
    assert (job["start_at"], job["end_at"]) == ("2027-02-01T00:00:00Z", "2027-03-01T00:00:00Z")
    every = only(row(interval_id=1, start_time=datetime(2027, 2, 1, 8, 0, 0, 7)))
    assert every["anchor"] == "2027-02-01T08:00:00Z"
    assert "start_at" not in every


def test_the_last_run_of_an_interval_is_told() -> None:
    """It is no part of the job: it changes while the import is tried out, and a second import is to change nothing."""
    done = row(interval_id=1, last_run_at="2026-12-31 23:55:00.123456")
    assert "anchor" not in only(done)
    assert "hourhand jobs update JOB --anchor 2026-12-31T23:55:00Z" in remarks(done)


def test_disabled_rows_are_added_paused() -> None:
    done = row(crontab_id=1, enabled=0)
    assert done.paused == {"report"}
    assert "added and paused" in remarks(done)


def test_columns_that_are_not_carried_over_are_told() -> None:
    said = remarks(row(crontab_id=1, priority=0, expire_seconds=60, routing_key="x", headers='{"a": 1}', exchange=""))
    assert "priority 0 is not carried over" in said
    assert "expires is not carried over" in said
    assert "not carried over: headers, routing_key" in said
    assert remarks(row(crontab_id=1)) == ""


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"solar_id": 1}, "the sun decides when it fires (sunset)"),
        ({}, "it has no schedule"),
        ({"crontab_id": 99}, "(crontab 99) is missing"),
        ({"interval_id": 2}, "'moons' is not known"),
        ({"interval_id": 1, "args": "[1]"}, "positional arguments"),
        ({"interval_id": 1, "kwargs": "{'a': 1}"}, "kwargs are not JSON"),
        ({"interval_id": 1, "kwargs": "[1]"}, "no mapping"),
        ({"interval_id": 1, "expires": "soon"}, "'soon' is no instant"),
        ({"interval_id": 1, "expires": "2020-01-01 00:00:00"}, "would never fire"),
        ({"clocked_id": 2, "one_off": 1}, "is past"),
        ({"crontab_id": 1, "task": "celery.backend_cleanup"}, "cleans up the results of Celery"),
    ],
)
def test_rows_that_cannot_be_translated_say_why(columns: dict[str, Any], said: str) -> None:
    assert said in reason(row(**columns))
