"""What the overview says needs attention."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hourhand.surfaces.alerts import AlertView
from hourhand.surfaces.dashboard.attention import Facts, remarks
from hourhand.surfaces.holds import HoldView
from hourhand.surfaces.statistics import Moment, QueueFigures, Trend

NOW = datetime(2026, 11, 15, 3, tzinfo=UTC)
QUEUE = QueueFigures("billing", None, 0, 0, 0, 0, 0, None, NOW, 1.0, 0.0, 0.0, 0.5)


def node(number: int, kind: str = "worker", state: str = "alive", **more: Any) -> dict[str, Any]:
    return {"id": number, "kind": kind, "name": f"web{number}", "state": state, "skew": 0.0, "info": {"queues": None}, **more}


WELL = Facts([QUEUE], Trend("1h", 60, [Moment(NOW)]), [node(1), node(2, "scheduler")], 0, 5, [], [], NOW)


def texts(**changes: Any) -> list[str]:
    return [one.text for one in remarks(replace(WELL, **changes))]


def test_when_all_is_well_it_says_so() -> None:
    found = remarks(WELL)
    assert [one.tone for one in found] == ["good"]
    assert found[0].text.startswith("Everything is on time")


def test_a_queue_that_waits_names_the_workers_that_are_gone() -> None:
    waiting = replace(QUEUE, oldest_seconds=840.0, ready=1_200)
    nodes = [
        node(1),
        node(2),
        node(3),
        node(4, state="died"),
        node(5, state="died"),
        node(6, "scheduler"),
        node(7, info={"queues": ["mail"]}),
    ]
    found = remarks(replace(WELL, queues=[waiting], nodes=nodes))
    assert [one.text for one in found] == ["Queue billing: the oldest run waits 14 min, 1,200 in line; 2 of 5 workers gone."]
    assert found[0].tone == "bad"
    assert found[0].link == "/runs?state=ready&queue=billing"
    alone = [node(1, state="died"), node(2, "scheduler"), node(3, info={"queues": ["mail"]})]
    assert texts(queues=[waiting], nodes=alone)[0].endswith("; no worker that is alive serves it.")


def test_a_queue_that_is_paused_is_not_called_slow() -> None:
    assert texts(queues=[replace(QUEUE, paused_at=NOW, oldest_seconds=9_000.0, ready=1)]) == [
        "Queue billing is paused, and 1 run waits in it."
    ]
    assert remarks(replace(WELL, queues=[replace(QUEUE, paused_at=NOW)]))[0].tone == "good"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nodes": [node(2, "scheduler")]}, "No worker is alive: runs are not started."),
        ({"nodes": [node(1)]}, "No scheduler is alive: nothing is fired."),
        ({"nodes": [node(1), node(2, "scheduler"), node(3, state="silent")]}, "1 process silent for longer than the lease: web3."),
        ({"nodes": [node(1, skew=-40.0), node(2, "scheduler")]}, "The clock of web1 is off by 40 s; the database's is used."),
        ({"nodes": [node(1), node(2, "scheduler"), node(3, state="died")]}, "1 process died within the last hour: web3. Their runs were taken over."),
        ({"unowned": 3}, "3 of 256 shards have no scheduler: their jobs are not fired."),
        ({"hour": Trend("1h", 60, [Moment(NOW, missed=2)])}, "2 firings were missed within the last hour; each job's missed_window decided what became of it."),
        ({"hour": Trend("1h", 60, [Moment(NOW, dead=1)])}, "1 run gave up within the last hour."),
        ({"hour": Trend("1h", 60, [Moment(NOW, lost=2)])}, "2 at-most-once runs cut off within the last hour: how far each came is not known."),
        ({"stuck": [{"task": "export", "seconds": 7200, "run_id": 7}]}, "A run of export has gone on for 2 h, far beyond what is usual."),
        ({"parked": [{"task": "export", "queue": "mail", "parked_at": NOW}]}, "Task export in queue mail: no worker knows it; its runs wait since Nov 15 03:00 UTC."),
    ],
)  # fmt: skip
def test_each_trouble_in_words(changes: dict[str, Any], words: str) -> None:
    assert texts(**changes) == [words]


def test_a_hold_that_is_forgotten_is_told_of() -> None:
    fresh = HoldView(3, None, "mail", None, "customer", "42", "slow", NOW - timedelta(hours=23), "ops", 1)
    assert texts(holds=[fresh])[0].startswith("Everything is on time")
    old = replace(fresh, held_at=NOW - timedelta(hours=25))
    assert texts(holds=[old]) == ["Hold 3 on task mail, customer = 42 (slow) is older than a day, and keeps 1 run back."]


def test_who_may_not_see_the_processes_is_told_of_queues_only() -> None:
    assert texts(nodes=None, jobs=None, unowned=None, queues=[replace(QUEUE, oldest_seconds=90.0, ready=2)]) == [
        "Queue billing: the oldest run waits 90 s, 2 in line."
    ]


def test_an_alert_is_said_unless_something_says_it_better_already() -> None:
    one = AlertView(
        1, "slow", "queue_age", "billing", "critical", "open", "it waits", 9.0, None, NOW - timedelta(minutes=5), NOW, None, None
    )
    other = replace(one, kind="job_silent", subject="nightly", message="nightly has not succeeded for 26 h")
    found = texts(queues=[replace(QUEUE, oldest_seconds=90.0, ready=2)], incidents=[one, other])
    assert found[0] == "nightly has not succeeded for 26 h (since Nov 15 02:55 UTC)"
    assert found[1].startswith("Queue billing")
    assert len(found) == 2
    assert texts(incidents=[one])[0].startswith("it waits")


def test_the_worst_comes_first() -> None:
    found = remarks(replace(WELL, parked=[{"task": "a", "queue": "b", "parked_at": NOW}], unowned=1))
    assert [one.tone for one in found] == ["bad", "warn"]


def test_what_was_not_looked_at_is_not_called_well() -> None:
    assert texts(nodes=None, jobs=None, unowned=None) == ["Nothing needs attention in the queues that you may see."]
    assert texts(nodes=None, jobs=None, unowned=None, queues=[])[0].startswith("Nothing needs attention that can be told")
