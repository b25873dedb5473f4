"""What a page says about a run: put in order from what is known of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hourhand.surfaces.auditing import Change
from hourhand.surfaces.dashboard.run import progress_of, words_for_again, words_for_waiting
from hourhand.surfaces.dashboard.timeline import timeline
from hourhand.surfaces.run_insight import Circumstances, StepDone
from hourhand.surfaces.views import RunView

NOW = datetime(2027, 3, 1, 14, tzinfo=UTC)
QUIET = Circumstances(None, None, 1, 1, None)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def run(state: str, **more: Any) -> RunView:
    return RunView("r_1", state, "t", "mail", "normal", more.pop("attempt", 0), NOW, **more)


def error(attempt: int, seconds: float) -> dict[str, Any]:
    return {
        "attempt": attempt,
        "at": later(seconds).isoformat(),
        "node": "web:1",
        "type": "ValueError",
        "message": "no",
        "traceback": "T",
    }


def titles(one: RunView, steps: list[StepDone] | None = None, changes: list[Change] | None = None) -> list[str]:
    return [event.title for event in timeline(one, steps or [], changes or [], {3: "web:1"})]


def change(action: str, seconds: float, **after: Any) -> Change:
    return Change(1, later(seconds), "ann", "api", action, "r_1", None, "mail", None, after)


def test_a_run_from_its_beginning_to_its_end() -> None:
    one = run("succeeded", attempt=2, errors=[error(1, 1)], started_at=later(9), finished_at=later(10), node=3)
    events = timeline(one, [StepDone("pay", later(0.5))], [], {3: "web:1"})
    assert [event.title for event in events] == [
        "Enqueued",
        "Step pay done",
        "Attempt 1 failed",
        "Attempt 2 started",
        "Succeeded",
    ]
    assert (events[2].detail, events[2].traceback, events[2].node) == ("ValueError: no", "T", "web:1")
    assert events[3].node == "web:1"


def test_an_attempt_that_failed_last_is_not_told_twice() -> None:
    """A dead run tells when its last attempt began, and its error when that ended."""
    one = run(
        "dead",
        attempt=1,
        errors=[error(1, 2)],
        started_at=later(1),
        finished_at=later(2),
        node=3,
        reason="gave up after 1 of 1 attempts",
    )
    assert titles(one) == ["Enqueued", "Attempt 1 failed", "Gave up"]
    assert timeline(one, [], [], {})[-1].detail == "after 1 of 1 attempts"


@pytest.mark.parametrize(
    ("one", "last"),
    [
        (run("ready"), "Waits for a worker"),
        (run("parked", reason="no worker knows it"), "Set apart"),
        (run("delayed", due_at=later(60)), "Due"),
        (run("delayed", due_at=later(60), attempt=2, errors=[error(1, 1), error(2, 2)]), "Attempt 3 is due"),
        (run("delayed", reason="waits for the run before it to end"), "Waits for the run before it"),
        (run("running", attempt=1, started_at=later(1)), "Attempt 1 started"),
        (run("running", attempt=1, started_at=later(1), reason="asked to stop: enough"), "Asked to stop"),
        (run("cancelled", finished_at=later(1), reason="no need"), "Cancelled"),
        (run("expired", finished_at=later(1)), "Expired"),
        (run("lost", attempt=1, started_at=later(1), finished_at=later(2)), "Lost"),
        (run("skipped", finished_at=later(2)), "Skipped"),
    ],
)
def test_where_it_is_now_comes_last(one: RunView, last: str) -> None:
    assert titles(one)[-1] == last


def test_where_it_comes_from() -> None:
    fired = run("ready", job_id="j_1", enqueued_at=later(5))
    assert titles(fired)[:2] == ["Scheduled for", "Fired by its schedule"]
    assert timeline(fired, [], [], {})[0].detail == "made 5.0 s after it"
    assert titles(run("ready", job_id="j_1", options={"by_hand": "triggered"}))[0] == "Started by hand"
    assert titles(run("ready", job_id="j_1", options={"by_hand": "backfilled"}))[0] == "Asked for afterwards"
    assert titles(run("delayed", enqueued_at=later(-60), due_at=NOW))[:2] == ["Enqueued", "Scheduled for"]


def test_what_people_ordered_is_told_with_who_it_was() -> None:
    changes = [
        change("dead.replay", 5, rate=3), change("dead.edit", 4), change("run.cancel", 6, outcome="asked", reason="enough"),
        change("run.retry", 7, again_as="r_9"), change("job.update", 1),
    ]  # fmt: skip
    events = timeline(run("ready", errors=[error(1, 3)]), [], changes, {})
    assert [(event.title, event.detail) for event in events[2:-1]] == [
        ("Payload changed", "by ann"), ("Sent back to its queue", "by ann"), ("Asked to stop", "by ann: enough"), ("Run again", "by ann, as r_9"),
    ]  # fmt: skip


def test_errors_of_other_languages_and_old_releases_do_no_harm() -> None:
    """A time that cannot be read, none at all, no error where one should be."""
    odd: list[Any] = [{"type": "E", "at": "yesterday"}, {}, None, {"at": "2027-03-01T14:00:09", "message": "m"}]
    events = timeline(run("dead", errors=odd, finished_at=later(10)), [], [], {})
    assert [event.title for event in events] == ["Enqueued", *["Attempt ? failed"] * 4, "Gave up"]
    assert [event.at for event in events[1:5]] == [None, None, None, later(9)]


@pytest.mark.parametrize(
    ("report", "share"),
    [({"value": 0.4}, 0.4), ({"done": 3, "total": 4}, 0.75), ({"value": 40}, None), ({"value": "much"}, None), ({"done": 1, "total": 0}, None),
     ({"done": True, "total": 2}, None), ({"message": "soon"}, None), ({"value": -1}, None)],
)  # fmt: skip
def test_how_far_it_is(report: dict[str, Any], share: float | None) -> None:
    found = progress_of(run("running", progress=report))
    assert found is not None
    assert found.share == share


def test_what_running_it_again_is_called() -> None:
    payload: Any = {}
    assert words_for_again(run("dead", payload=payload)) == "Replay"
    assert words_for_again(run("dead")) is None, "purged: its payload is gone"
    assert words_for_again(run("succeeded", payload=payload)) == "Run again"
    assert words_for_again(run("delayed", due_at=NOW)) == "Run now"
    assert words_for_again(run("delayed")) is None
    assert words_for_again(run("running", payload=payload)) is None


@pytest.mark.parametrize(
    ("one", "facts", "said"),
    [
        (run("ready"), QUIET, ["It is about to start."]),
        (run("ready"), Circumstances(NOW, None, 1, 1, None), ["Queue mail is paused: nothing is started from it until it is resumed."]),
        (run("ready"), Circumstances(None, None, 0, 0, None), ["No live worker serves queue mail."]),
        (run("ready"), Circumstances(None, None, 2, 0, None), ["No live worker that serves queue mail has the code of task t."]),
        (run("ready"), Circumstances(None, 90.0, 1, 1, None), ["The first run of its queue has been due for 90 s: others are before it."]),
        (run("delayed", due_at=NOW), QUIET, ["It is not due yet."]),
        (run("delayed", due_at=NOW, attempt=1), QUIET, ["Its last attempt failed; the next one is due at the time below."]),
        (run("delayed"), Circumstances(None, None, 1, 1, "r_7"), ["It waits for the run of its job before it to end: r_7."]),
        (run("parked", reason="no worker knows this task"), Circumstances(None, None, 1, 0, None), ["It is set apart: no worker knows this task."]),
    ],
)  # fmt: skip
def test_why_it_waits(one: RunView, facts: Circumstances, said: list[str]) -> None:
    assert words_for_waiting(one, facts) == said
