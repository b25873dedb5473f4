"""A translation, checked before it is added."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from hourhand import Hourhand
from hourhand.surfaces.importing.checking import check, compare
from hourhand.surfaces.importing.translation import Note, Translation, unique_names
from hourhand.surfaces.plans.comparing import seen_as

NOW = datetime(2027, 1, 1, tzinfo=UTC)


def app() -> Hourhand:
    one = Hourhand("postgresql://nowhere/none")

    @one.task
    def report(days: int = 1) -> None: ...

    return one


def checked(*jobs: dict[str, Any], **more: Any) -> Any:
    return check(
        Translation(jobs=list(jobs), origins={"bad": ("here", "as written")}, notes=[Note("x", "bad"), Note("y")]),
        app().registry,
        NOW,
        **more,
    )


def test_what_would_not_be_added_is_not_promised() -> None:
    done = checked(
        {"name": "good", "task": "report", "schedule": "@daily", "payload": {"days": 3}},
        {"name": "bad", "task": "report", "schedule": "@daily", "payload": {"days": "many"}},
        {"name": "other", "schedule": "@daily", "colour": "red"},
    )
    assert [one.name for one in done.jobs] == ["good"]
    assert [(one.where, one.what) for one in done.untranslated] == [("here", "as written"), ("", "other")]
    assert "Expected `int`" in done.untranslated[0].reason
    assert done.notes == [Note("y")]


def test_the_next_firing_minds_the_start() -> None:
    (job,) = checked({"name": "a", "task": "report", "schedule": "@daily", "start_at": "2027-06-01T12:00:00Z"}).jobs
    assert job.next_at == datetime(2027, 6, 2, tzinfo=UTC)


def test_tasks_that_the_app_does_not_have() -> None:
    jobs = [{"name": "a", "task": "report", "schedule": "@daily"}, {"name": "b", "task": "other", "schedule": "@daily"}]
    assert [one.job for one in checked(*jobs, has_code=True).notes if "has no task" in one.text] == ["b"]
    assert not any("has no task" in one.text for one in checked(*jobs).notes)


def test_programs_that_have_to_be_allowed() -> None:
    jobs = [{"name": name, "task": "command", "schedule": "@daily", "payload": {"argv": [name]}} for name in ("b", "a", "b2")]
    assert any(one.text.endswith("HOURHAND_ALLOW_COMMANDS=a,b,b2") for one in checked(*jobs).notes)


@pytest.mark.parametrize(
    "job",
    [
        {"schedule": "@daily"},
        {"schedule": "0 0 * * mon", "timezone": "Asia/Tokyo", "max_attempts": 3, "timeout": 5.5, "tags": ["b", "a"]},
        {"schedule": "every 90s"},
        {"schedule": "every 90s", "anchor": "2026-01-01T00:00:07Z"},
        {"schedule": "2027-05-01T09:00:00Z"},
        {
            "schedule": "@daily",
            "misfire_grace": 0.1,
            "missed_window": "SKIP",
            "flexible_window": "7m",
            "overlap": "skip",
            "max_runs": 1,
        },
        {
            "schedule": "@daily",
            "start_at": "2027-02-01T00:00:00Z",
            "end_at": "2028-02-01T00:00:00Z",
            "payload": {"x": [1.5, None]},
        },
    ],
)
def test_comparing_with_what_is_there(job: dict[str, Any]) -> None:
    done = checked({"name": "a", "task": "elsewhere", **job})
    there = seen_as(done.jobs[0].definition, datetime(2026, 12, 1, tzinfo=UTC))

    def state(**changes: Any) -> str | None:
        compare(done, {"a": replace(there, **changes)}, NOW)
        found: str | None = done.jobs[0].state
        return found

    assert state() == "unchanged"
    for change in ({"task": "x"}, {"queue": "x"}, {"max_attempts": 9}, {"tags": ("managed:me", *there.tags)}, {"declared_by": "shop"},
                   {"payload": {"y": 1}}, {"misfire_grace": 99.0}, {"end_at": NOW}):  # fmt: skip
        assert state(**change) == "different"
    compare(done, {}, NOW)
    assert done.jobs[0].state == "new"


def test_names_do_not_depend_on_their_order() -> None:
    wanted = [("a", "1"), ("b", "2"), ("a", "3"), ("", "4"), ("x!", "5"), ("x?", "6")]
    names = dict(zip(wanted, unique_names(wanted), strict=True))
    assert dict(zip(wanted[::-1], unique_names(wanted[::-1]), strict=True)) == names
    assert names["b", "2"] == "b"
    assert names["", "4"] == "job"
    assert len(set(names.values())) == 6
