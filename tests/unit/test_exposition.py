"""What is counted of runs, and how it is told: few numbers, never fewer than before."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourhand.core.errors import ConfigurationError
from hourhand.core.histogram import BOUNDS
from hourhand.engine.exposition import MOST, Taken, named
from hourhand.engine.measures import Measures
from hourhand.engine.metrics_server import Address
from hourhand.surfaces.metrics import bounded_queues
from tests.support.metrics import Scrape
from tests.support.servers import free_port

NOW = datetime(2027, 3, 1, 14, tzinfo=UTC)
START = NOW.timestamp()


def claim(task: str = "mail", queue: str = "default", *, attempt: int = 0, crashes: int = 0, **more: Any) -> Any:
    known = {"errors": None, "options": None, **more}
    return SimpleNamespace(task=task, queue=queue, lane=5, attempt=attempt, crashes=crashes, scheduled=START, **known)


def scraped(measures: Measures) -> Scrape:
    return Scrape(Taken([], named(measures)))


def test_runs_by_task_queue_status_and_attempt() -> None:
    measures = Measures(lambda: START + 2)
    for _ in range(3):
        measures.ended(claim(), "succeeded", START + 0.02, START + 0.04)
    measures.ended(claim(), "failed", START)
    measures.ended(claim(attempt=1), "succeeded", START, START + 1)
    for attempt in (3, 4, 99):
        measures.ended(claim(attempt=attempt), "dead", START)
    measures.ended(claim(queue="other-queue"), "expired", None, START)
    scrape = scraped(measures)
    found = {labels: value for (name, labels), value in scrape.samples.items() if name == "hourhand_runs_total"}
    assert {(dict(one)["queue"], dict(one)["status"], dict(one)["attempt"]): count for one, count in found.items()} == {
        ("default", "succeeded", "1"): 3,
        ("default", "failed", "1"): 1,
        ("default", "succeeded", "2"): 1,
        ("default", "dead", "4+"): 3,
        ("other-queue", "expired", "1"): 1,
    }


@given(st.lists(st.tuples(st.floats(-5, 2_000), st.floats(0, 2_000), st.sampled_from([{}, {"attempt": 1}, {"crashes": 1}, {"errors": [{}]},
       {"options": {"by_hand": "backfilled"}}, {"options": {"timeout": 9}}])), min_size=1))  # fmt: skip
def test_many_at_once_come_to_the_same_as_one_by_one(runs: list[tuple[float, float, dict[str, Any]]]) -> None:
    together, apart = Measures(), Measures()
    ended = [(claim(**more), START + late, START + late + took) for late, took, more in runs]
    together.succeeded(ended)
    for one, started, finished in ended:
        apart.ended(one, "succeeded", started, finished)
    (many,), (few,) = together, apart
    assert (many.first_successes, many.others) == (few.first_successes, few.others)
    assert (many.durations, many.lateness, many.latest) == (few.durations, few.lateness, few.latest)
    assert (many.seconds, many.late) == pytest.approx((few.seconds, few.late))


def test_histograms_are_sums_from_below() -> None:
    measures = Measures()
    for took in (0.001, 0.005, 0.006, 0.3, 4_000.0):
        measures.ended(claim(attempt=1), "succeeded", 0.0, took)
    scrape, name = scraped(measures), "hourhand_run_duration_seconds"
    labels = {"task": "mail", "queue": "default"}
    counts = [scrape.value(f"{name}_bucket", le=str(bound), **labels) for bound in BOUNDS]
    assert counts == sorted(counts)
    assert [counts[0], counts[1], counts[-1]] == [2, 3, 4]
    assert scrape.value(f"{name}_bucket", le="+Inf", **labels) == scrape.value(f"{name}_count", **labels) == 5
    assert scrape.value(f"{name}_sum", **labels) == pytest.approx(4_000.312)


def test_only_a_first_start_is_late() -> None:
    """A retry starts later on purpose, after a crash it is not the queue that was slow, and what is backfilled or replayed is for
    an instant long past."""
    measures = Measures()
    measures.ended(claim(), "failed", START + 2)
    measures.ended(claim(attempt=1), "succeeded", START + 900, START + 901)
    measures.ended(claim(crashes=1), "succeeded", START + 60, START + 61)
    measures.ended(claim(errors=[{}]), "succeeded", START + 9_000, START + 9_001)
    measures.ended(claim(options={"by_hand": "backfilled"}), "succeeded", START + 9_000, START + 9_001)
    measures.ended(claim(), "succeeded", START - 0.5, START)  # the clock was put right in between
    scrape, labels = scraped(measures), {"task": "mail", "queue": "default"}
    assert scrape.value("hourhand_start_lateness_seconds_count", **labels) == 2
    assert scrape.value("hourhand_start_lateness_seconds_sum", **labels) == pytest.approx(2)
    assert scrape.value("hourhand_start_lateness_seconds_bucket", le="0.005", **labels) == 1


def test_however_many_tasks_and_queues_there_are_few_are_named() -> None:
    measures = Measures()
    before = 0.0
    for number in range(5 * MOST):
        measures.ended(claim("mail", f"tenant-{number}"), "succeeded", START, START + 1)
        if number in (0, MOST - 1, MOST, 2 * MOST, 5 * MOST - 1):
            scrape = scraped(measures)
            queues = scrape.labels("hourhand_runs_total", "queue")
            assert len(queues) <= MOST + 1
            others = scrape.sum("hourhand_runs_total", queue="other")
            assert others >= before, "a count never falls"
            assert "tenant-0" in queues, "who has a name keeps it"
            before = others
    assert scrape.sum("hourhand_runs_total") == scrape.sum("hourhand_run_duration_seconds_count") == 5 * MOST
    assert others == 4 * MOST
    assert scrape.labels("hourhand_runs_total", "task") == {"mail", "other"}


def test_a_task_that_is_called_other_is_told_once() -> None:
    measures = Measures()
    for number in range(MOST + 5):
        measures.ended(claim("other", "other" if number == 3 else f"q{number}"), "succeeded", START, START + 1)
    assert scraped(measures).sum("hourhand_runs_total") == MOST + 5


def test_what_is_told_is_a_copy() -> None:
    measures = Measures()
    measures.ended(claim(), "succeeded", START, START + 1)
    taken = Taken([], named(measures))
    measures.ended(claim(), "succeeded", START, START + 1)
    assert Scrape(taken).sum("hourhand_runs_total") == 1


def test_of_many_queues_the_oldest_are_named() -> None:
    rows = [
        {
            "id": number, "name": "other" if number == 7 else f"q{number}", "paused_at": NOW if number == MOST + 9 else None,
            "ready": 1, "delayed": 0, "parked": 0, "running": 2, "dead": 3, "ended": 0.5, "failed": 0.25,
            "oldest_seconds": None if number % 2 else float(number),
        }
        for number in range(MOST + 50)
    ]  # fmt: skip
    shown = bounded_queues(reversed(rows))
    assert len(shown) == MOST
    assert len({row["name"] for row in shown}) == MOST
    assert sum(row["ready"] for row in shown) == MOST + 50
    rest = next(row for row in shown if row["name"] == "other")
    assert (rest["dead"], rest["oldest_seconds"], rest["paused"]) == (3 * 51, MOST + 48, 1.0)
    assert [row["name"] for row in shown][:3] == ["q0", "q1", "q2"]


def test_addresses() -> None:
    assert Address().row(3) == [Address()] * 3, "no port is no port for anybody"
    port = free_port()
    assert [one.port for one in Address(port=port).row(1)] == [port]
    for wrong in (-1, 65_536, "http"):
        with pytest.raises(ConfigurationError, match="from 1 to 65535"):
            Address(port=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="beyond 65535"):
        Address(port=65_530).row(10)
    with pytest.raises(ConfigurationError, match="cannot be used for metrics"):
        Address("no.such.host.invalid", port).row(1)


def test_lateness_sums_are_told_to_the_statistics_too() -> None:
    measures = Measures()
    measures.ended(claim(), "succeeded", (NOW + timedelta(seconds=3)).timestamp(), START + 4)
    (row,) = [one for one in measures.untold() if one["queue"]]
    assert (row["latest"], sum(row["lateness"])) == (pytest.approx(3), 1)
