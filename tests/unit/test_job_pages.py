"""The calendar of a job and the form that changes it, without a database."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from hourhand.core.clock import Clock
from hourhand.core.errors import InvalidOption, InvalidSchedule
from hourhand.core.zones import load_zone
from hourhand.surfaces.dashboard import job_form
from hourhand.surfaces.dashboard.calendar import HeatMap, heat_map
from hourhand.surfaces.dashboard.jobs import overdue
from hourhand.surfaces.job_insight import Calendar, LeftOut, Tally
from hourhand.surfaces.views import JobView

NOON = datetime(2026, 3, 31, 12, 0, tzinfo=UTC)
"""A Tuesday, two days after clocks went forward in Europe."""


def drawn(scale: str, zone: str = "UTC", now: datetime = NOON, **given: Any) -> HeatMap:
    calendar = Calendar(
        scale, now, given.get("tallies", []), given.get("left_out", []), given.get("pauses", []), given.get("known_since")
    )
    return heat_map(calendar, load_zone(zone), zone, lambda since, until: f"/?since={since:%d}&until={until:%d}")


@pytest.mark.parametrize(
    "zone",
    ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "America/Santiago", "Asia/Kathmandu"],
)
@pytest.mark.parametrize(
    "now",
    [
        NOON,
        datetime(2026, 10, 26, 3, 59, tzinfo=UTC),
        datetime(2026, 4, 6, 0, 0, tzinfo=UTC),
        datetime(2026, 9, 7, 4, tzinfo=UTC),
    ],
)
@pytest.mark.parametrize("scale", ["day", "hour", "minute"])
def test_cells_follow_each_other_without_gaps_up_to_now(scale: str, zone: str, now: datetime) -> None:
    cells = drawn(scale, zone, now).cells
    assert all(one.until == other.since for one, other in pairwise(cells))
    assert cells[-1].since <= now < cells[-1].until
    places = [(cell.column, cell.row) for cell in cells]
    assert len(set(places)) == len(places)


def test_a_day_with_a_clock_change_has_the_hours_it_has() -> None:
    cells = [cell for cell in drawn("hour", "Europe/Berlin").cells if "29 Mar" in cell.name]
    assert [cell.column for cell in cells] == [0, 1, *range(3, 24)]
    autumn = [
        cell for cell in drawn("hour", "Europe/Berlin", datetime(2026, 10, 26, 12, tzinfo=UTC)).cells if "25 Oct" in cell.name
    ]
    assert [(cell.until - cell.since) / timedelta(hours=1) for cell in autumn] == [1, 1, 2] + [1] * 21


def test_a_run_stands_in_the_cell_of_its_own_zone() -> None:
    late = datetime(2026, 3, 30, 23, 30, tzinfo=UTC)
    for zone, day in (("UTC", "Monday, 30 March 2026"), ("Europe/Berlin", "Tuesday, 31 March 2026")):
        told = drawn("day", zone, tallies=[Tally(late, "succeeded", 1, 0, 0, 0.0)]).told
        assert [(cell.name, cell.said) for cell in told] == [(day, "1 succeeded")]


def test_the_worst_gives_the_colour_and_shapes_say_the_rest() -> None:
    at = NOON - timedelta(hours=2)
    picture = drawn(
        "day",
        tallies=[Tally(at, "succeeded", 5, 1, 2, 90.0), Tally(at, "dead", 1, 0, 0, 0.0)],
        left_out=[LeftOut(at, at, 3, "x")],
    )
    cell = picture.cells[-1]
    assert cell.style == "bad"
    assert cell.said == "1 dead letter, 5 succeeded, 1 of them after a retry, 2 late, by up to 90 s, 3 skipped"
    assert picture.summary == "6 runs, 1 failed, 2 late, 3 skipped"
    assert all(f'class="{mark}"' in picture.svg for mark in ("bad", "cross", "corner", "skipped"))
    for states, style in (
        ({"expired": 1, "succeeded": 9}, "warn"),
        ({"succeeded": 1}, "good"),
        ({"cancelled": 1}, "quiet"),
        ({}, "none"),
        ({"lost": 1}, "bad"),
    ):
        cell.runs = states
        assert cell.style == style


def test_what_was_left_out_for_days_is_marked_on_each_of_them() -> None:
    picture = drawn(
        "day",
        left_out=[LeftOut(NOON - timedelta(days=4), NOON - timedelta(days=2), 49, "x")],
        pauses=[(NOON - timedelta(days=8), NOON - timedelta(days=7))],
    )
    assert [cell.said for cell in picture.told] == ["some skipped"] * 3 + ["paused"] * 2


def test_what_was_not_looked_at_says_so() -> None:
    picture = drawn("hour", known_since=NOON - timedelta(hours=3))
    assert [cell.known for cell in picture.cells[-5:]] == [False, True, True, True, True]
    assert picture.told == []


def test_nothing_in_the_picture_needs_another_policy() -> None:
    svg = str(drawn("minute", tallies=[Tally(NOON, "lost", 1, 0, 1, 9.0)]).svg)
    assert not re.search(r"style=|<style|<script|\son\w+=", svg)
    assert 'tabindex="-1"' in svg
    assert "&amp;until=" in svg


def job(**given: Any) -> JobView:
    plain: dict[str, Any] = dict.fromkeys(JobView.__dataclass_fields__)
    plain |= {"name": "one", "task": "t", "schedule": "0 5 * * *", "timezone": "Europe/Berlin", "queue": "default", "priority": "normal",
              "payload": {"a": 1, "b": [2]}, "dst": "shift", "missed_window": "RUN_ONCE", "max_missed": 100, "misfire_grace": 60.0,
              "overlap": "allow", "flexible_window": 0.0, "tags": (), "then": (), "secret": (), "version": 3}  # fmt: skip
    return JobView(**{**plain, **given})


def form(view: JobView, **typed: str) -> tuple[dict[str, str], dict[str, str]]:
    before = job_form.written(view, load_zone(view.timezone))
    # As browsers send it.
    sent = {name: text.replace("\n", "\r\n") for name, text in {**before, **typed}.items()}
    return sent, before


@pytest.mark.parametrize("given", [
    {}, {"payload": {"text": "two\nlines", "deep": {"x": [1, {"y": None}]}}}, {"start_at": NOON, "end_at": NOON + timedelta(microseconds=5)},
    {"timeout": 0.25, "retry_base": 0.0, "retry_cap": 5_400.0, "flexible_window": 86_400.0}, {"tags": ("a", "b c"), "secret": ("x.y",), "then": ("u", "v")},
    {"schedule": "every 90s", "timezone": "UTC", "anchor": NOON},
])  # fmt: skip
def test_a_form_that_nobody_touched_changes_nothing(given: dict[str, Any]) -> None:
    sent, before = form(job(**given))
    assert job_form.changes(sent, before) == {}


@pytest.mark.parametrize(("name", "text", "value"), [
    ("timeout", "90", 90.0), ("timeout", "1h30m", "1h30m"), ("timeout", "", None), ("misfire_grace", "", 60.0), ("max_runs", "7", 7), ("max_runs", "x", "x"),
    ("tags", "a, b c,,", ["a", "b c"]), ("tags", "", None), ("timezone", "", "UTC"), ("queue", "", None), ("delivery", "at_most_once", "at_most_once"),
    ("start_at", "2026-07-01 09:00", datetime(2026, 7, 1, 7, tzinfo=UTC)), ("start_at", "2026-07-01T09:00:00Z", datetime(2026, 7, 1, 9, tzinfo=UTC)),
    ("payload", '{"b": [2], "a": 2}', {"a": 2, "b": [2]}), ("payload", "", None),
])  # fmt: skip
def test_what_is_typed_is_read(name: str, text: str, value: Any) -> None:
    view = job(timeout=5.0, misfire_grace=90.0, tags=("x",), queue="q")
    assert job_form.changes(*form(view, **{name: text})) == {name: value}


def test_the_same_payload_written_another_way_is_the_same() -> None:
    assert job_form.changes(*form(job(), payload='{"b":[2],"a":1}')) == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("payload", "{"),
        ("payload", "[]"),
        ("start_at", "soon"),
        ("end_at", "2026-13-01"),
        ("end_at", "9999-12-31T23:59:59-05:00"),
    ],
)
def test_what_cannot_be_read_names_its_field(name: str, text: str) -> None:
    sent, before = form(job(), **{name: text})
    with pytest.raises(job_form.WrongField) as caught:
        job_form.changes(sent, before)
    assert job_form.culprit(caught.value, sent) == name


def test_an_error_is_put_to_the_field_that_it_is_about() -> None:
    sent, _ = form(job(), timeout="soon", timezone="Mars")
    assert job_form.culprit(InvalidSchedule("'soon' is not a duration"), sent) == "timeout"
    assert job_form.culprit(InvalidSchedule("there is no time zone 'Mars'"), sent) == "timezone"
    assert job_form.culprit(InvalidSchedule("'x y' has 2 fields"), sent) == "schedule"
    assert job_form.culprit(InvalidOption("max_missed must be a whole number"), sent) == "max_missed"
    assert job_form.culprit(InvalidOption("something else"), sent) is None


def test_a_job_is_overdue_when_its_instant_has_passed_by_more_than_a_moment() -> None:
    now = Clock().instant()
    assert [overdue(job(next_run_at=at)) for at in (None, now + timedelta(hours=1), now - timedelta(seconds=1), now - timedelta(minutes=1))] == [
        False, False, False, True,
    ]  # fmt: skip
