"""Zombies and needless repetitions, found in what a fleet left behind."""

from __future__ import annotations

from datetime import UTC, datetime

from hourhand.surfaces.verify.checker import check
from hourhand.surfaces.verify.observations import FinishedRun, Observations
from hourhand.surfaces.verify.sink import Event

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
AT = NOON.timestamp()


def observed(worker: int, *begins: tuple[int, int, int, float], ends: dict[int, float]) -> Observations:
    """A run that `worker` ended, and who began it: node, attempt, fence, seconds."""
    seen = Observations(until=NOON, ended_at=NOON, accepted={"r_1": "at_least_once"})
    seen.runs = [FinishedRun("r_1", None, "tick", NOON, NOON, "succeeded", 2, 5, worker_id=worker)]
    seen.events = [
        Event(id=str(n), kind="begin", run="r_1", task="tick", worker=node, attempt=attempt, fence=fence, at=AT + at, n=n)
        for n, (node, attempt, fence, at) in enumerate(begins)
    ]
    seen.events.append(Event(id="end", kind="end", run="r_1", task="tick", n=99))
    seen.node_ends = {node: AT + at for node, at in ends.items()}
    return seen


def found(seen: Observations) -> list[str]:
    return [finding.check for finding in check(seen).findings]


def test_what_is_taken_from_the_dead_is_well() -> None:
    assert found(observed(2, (1, 1, 10, 0), (2, 1, 20, 5), ends={1: 3})) == []
    assert found(observed(2, (1, 1, 10, 0), (2, 2, 20, 5), ends={})) == [], "a retry may go to anybody"


def test_a_zombie_may_begin_late_what_another_has_by_now() -> None:
    assert found(observed(2, (2, 1, 20, 5), (1, 1, 10, 6), ends={1: 3})) == []


def test_an_earlier_holder_that_ends_it_is_a_zombie() -> None:
    assert found(observed(1, (1, 1, 10, 0), (2, 1, 20, 5), ends={1: 3})) == ["zombies"]


def test_a_success_on_record_before_its_last_holder_is_done_is_a_zombies() -> None:
    seen = observed(2, (1, 1, 10, 0), (2, 1, 20, 5), ends={1: 3})
    seen.runs = [FinishedRun("r_1", None, "tick", NOON, datetime.fromtimestamp(AT + 6, UTC), "succeeded", 1, 5, worker_id=2)]
    seen.events[-1].fence, seen.events[-1].at = 20, AT + 6
    assert found(seen) == []
    seen.events[-1].at = AT + 9
    assert found(seen) == ["zombies"]


def test_whoever_ends_it_without_having_begun_it_is_none() -> None:
    assert found(observed(3, (1, 1, 10, 0), (2, 1, 20, 5), ends={1: 3, 2: 8})) == []


def test_an_attempt_taken_from_the_living_is_needless() -> None:
    assert found(observed(2, (1, 1, 10, 0), (2, 1, 20, 5), ends={})) == ["needless"]
    assert found(observed(2, (1, 1, 10, 0), (2, 1, 20, 5), ends={1: 60})) == ["needless"], "it died later"
    assert found(observed(1, (1, 1, 10, 0), (1, 1, 20, 5), ends={})) == ["needless"], "from itself, too"
