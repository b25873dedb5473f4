"""Schedulers in a world of their own: years and thousands of schedules in seconds, whatever happens between any two steps.

What runs is the product's own scheduler, elector, node, wheel, ring, schedules and account; the tables are a model of the SQL.
HOURHAND_SIMULATION_EXAMPLES=5000 goes deeper, goes another way each time, and makes what it finds small.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from hourhand.core import schedule as schedules
from hourhand.core.wheel import TimingWheel
from hourhand.engine import elector, firer, scheduler
from tests.support.simulation import Simulation
from tests.support.simulation_jobs import Database
from tests.support.simulation_process import virtual_machines
from tests.support.simulation_tables import SECOND, SHARDS, Begun, JobRow, Planned, Row, ScheduleRow

USUAL = 90
WAYS = 6
DEEPER = os.environ.get("HOURHAND_SIMULATION_EXAMPLES")
# There is two to six times as much in `USUAL` examples.
LEAST = {
    "days": 3_650, "schedules": 2_500, "firings": 80_000, "outcomes": 80_000, "processes": 150, "deaths": 25, "stops": 15,
    "pauses": 35, "pauses with a statement under way": 10, "wake-ups of zombies": 20, "partitions": 20, "lost answers": 2,
    "wrong clocks": 25, "declared dead": 8, "hold": 25, "reschedule": 10, "delete": 10, "changes while firing": 15,
    "firing.refused": 40, "firing.blocked": 2,
}  # fmt: skip


def simulate(tables: type[Database], examples: int, way: int = 0, *, deeper: bool = False) -> Counter[str]:
    """What there was in all of the examples, and what the schedulers' logs said. What is tried depends on the way, and on all that
    is imported."""

    class Run(Simulation):
        """Counts for itself."""

    Run.tables, Run.covered = tables, Counter()
    if not deeper:
        Run._hypothesis_internal_use_seed = way  # type: ignore[attr-defined]
    phases = [Phase.generate, Phase.shrink] if deeper else [Phase.generate]
    with virtual_machines() as events:
        run_state_machine_as_test(
            Run,
            settings=settings(
                max_examples=examples, stateful_step_count=50, phases=phases, database=None, deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )  # fmt: skip
    return Run.covered + events


@pytest.mark.timeout(0 if DEEPER else 120)
def test_every_expected_firing_has_one_outcome_whatever_happens() -> None:
    examples = int(DEEPER or USUAL)
    covered, missing = Counter[str](), dict[str, int]()
    for way in range(1 if DEEPER else WAYS):
        covered += simulate(Database, examples, way, deeper=DEEPER is not None)
        assert not covered["firing.twice"] + covered["firing.ledger_refused"], "the second barrier was never needed"
        missing = {name: covered[name] for name, least in LEAST.items() if covered[name] < least}
        if not missing:
            return
    assert examples < USUAL, f"there was too little of {missing}"


def search(tables: type[Database]) -> None:
    """Until something is wrong: seldom far, and where it is, another way."""
    for way in range(WAYS):
        simulate(tables, USUAL, way)


def test_the_same_again_is_the_same() -> None:
    assert simulate(Database, 6) == simulate(Database, 6)


# What the judge has to find. Each of these breaks one thing.


class NoFence(Database):
    """No epoch is compared, and a schedule moves from wherever it is."""

    def fence(self, node: int, shards: Sequence[int], epochs: Sequence[int]) -> dict[int, int]:
        return dict(zip(shards, epochs, strict=True))

    def may_move(self, row: ScheduleRow, one: Planned) -> bool:
        return row.revision == one.revision and one.due_at <= self.clock()


class NoLedgerKey(NoFence):
    """Who comes with an old plan has the shard again, and the ledger takes an instant twice."""

    def finish(self, begun: Begun) -> list[Row]:
        for shard in begun.fence:
            row = self.shards[shard]
            row.owner, row.epoch = begun.node, row.epoch + (row.owner != begun.node)
            begun.fence[shard] = row.epoch
        return super().finish(begun)

    def fired_before(self, schedule: int, at: datetime) -> bool:
        return False


class EpochStays(Database):
    """A change of hands does not raise the epoch, and the owner is not compared."""

    def take_shards(self, number: int, shards: Sequence[int], live: Sequence[int]) -> list[Row]:
        taken = [shard for shard, _ in super().take_shards(number, shards, live)]
        for shard in taken:
            self.shards[shard].epoch = 1
        return [(shard, 1) for shard in taken]

    def fence(self, node: int, shards: Sequence[int], epochs: Sequence[int]) -> dict[int, int]:
        return {shard: epoch for shard, epoch in zip(shards, epochs, strict=True) if self.shards[shard].epoch == epoch}


class WheelTrusted(Database):
    """What the wheel gives out is due."""

    def hinted_schedules(self, hints: Iterable[int], most_jobs: int) -> list[Row]:
        return [(*row[:9], max(row[9], row[7]), *row[10:]) for row in super().hinted_schedules(hints, most_jobs)]

    def may_move(self, row: ScheduleRow, one: Planned) -> bool:
        return row.revision == one.revision and row.next_run_at == one.due_at


class MachineClock(Database):
    """What is due is for the clock of the scheduler's machine to say."""

    def clock(self) -> datetime:
        return self.now + (0.0 if self.asker is None else self.asker.skew) * SECOND


class NoRevision(Database):
    """A change of a job does not keep a firing away that was planned before it."""

    def bump(self, schedule: int) -> None:
        """Nothing."""


class MissedForgotten(Database):
    """Who takes a shard starts from the present."""

    def take_shards(self, number: int, shards: Sequence[int], live: Sequence[int]) -> list[Row]:
        taken = super().take_shards(number, shards, live)
        for row in self.schedules.values():
            if any(row.shard == shard for shard, _ in taken) and row.next_run_at is not None and row.next_run_at < self.now:
                row.next_run_at = row.schedule.next_after(self.now)
        return taken


class LateAsInTime(Database):
    """A plan is good however late its statement begins."""

    def may_be_late(self, begun: Begun, one: Planned) -> bool:
        return True


class OldestRuns(Database):
    """Of what was missed, the first runs and not the last."""

    def make_up(self, job: JobRow, instants: Sequence[datetime], policy: str, grace: float, present: datetime) -> list[datetime]:
        chosen = super().make_up(job, instants, policy, grace, present)
        return sorted(instants)[:1] if policy == "RUN_ONCE" and len(chosen) == 1 else chosen


class NothingOnRecord(Database):
    """What is left out is not written down."""

    def make_up(self, job: JobRow, instants: Sequence[datetime], policy: str, grace: float, present: datetime) -> list[datetime]:
        chosen = super().make_up(job, instants, policy, grace, present)
        self.decisions[job.id].clear()
        return chosen


@pytest.mark.parametrize(
    ("tables", "finding"),
    [
        (NoFence, "does not own the shard|an epoch that is over"),
        (NoLedgerKey, "two runs|out of order"),
        (EpochStays, "two owners|does not own the shard"),
        (WheelTrusted, "early|runs at .* before"),
        (MachineClock, "early|runs at .* before"),
        (NoRevision, "two runs|is not of schedule"),
        (MissedForgotten, "0 outcomes"),
        (LateAsInTime, "in time, by job"),
        (OldestRuns, "expected .* found"),
        (NothingOnRecord, "0 outcomes"),
    ],
)
def test_the_judge_finds_what_the_tables_no_longer_guarantee(tables: type[Database], finding: str) -> None:
    with pytest.raises(AssertionError, match=finding):
        search(tables)


def leaves_some(node: int, nodes: Sequence[int]) -> set[int]:
    return {shard for shard in range(SHARDS) if shard % (len(nodes) + 1) == sorted(nodes).index(node)}


def not_the_first(*given: Any) -> list[datetime]:
    return schedules.latest_firings(*given)[1:]


def lost_slot(wheel: TimingWheel, key: int, at: int) -> None:
    """Nowhere, where its time would find it."""


@pytest.fixture
def forgets() -> Iterator[None]:
    """What was computed by other code is computed again: before, so that the broken code is asked, and afterwards."""
    remembered = [one for one in vars(schedules).values() if hasattr(one, "cache_clear")]
    for one in remembered:
        one.cache_clear()
    yield
    for one in remembered:
        one.cache_clear()


@pytest.mark.usefixtures("forgets")
@pytest.mark.parametrize(
    ("where", "name", "instead", "finding"),
    [
        pytest.param(elector, "shards_of", leaves_some, "still due|belongs to", id="a ring that leaves shards to nobody"),
        pytest.param(scheduler, "SWEEP_EVERY", float("inf"), "still due|not fired", id="no sweep"),
        pytest.param(firer, "latest_firings", not_the_first, "other instants", id="a missed instant is left out"),
        pytest.param(firer.Firer, "_again", lambda *_: None, "still due|not fired", id="no hint for the next time"),
        pytest.param(TimingWheel, "_place", lost_slot, "still due|not fired", id="a wheel that loses what is put into it"),
        pytest.param(
            schedules,
            "next_change",
            lambda *_: None,
            r"never expected|other instants|outcomes|expected .* found|told of and not expected",
            id="clocks never change",
        ),
    ],
)
def test_the_judge_finds_what_the_code_does_wrong(where: Any, name: str, instead: Any, finding: str) -> None:
    with patch.object(where, name, instead), pytest.raises(AssertionError, match=finding):
        search(Database)
