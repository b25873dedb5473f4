"""Schedulers in a world of their own: years, thousands of schedules, anything between any two steps; and a judge that can fail."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from hourhand.core import schedule as schedule_module
from hourhand.core.wheel import TimingWheel
from hourhand.engine import elector as elector_module
from hourhand.engine import scheduler as scheduler_module
from tests.support.simulation import Simulation
from tests.support.simulation_jobs import Database
from tests.support.simulation_process import virtual_machines
from tests.support.simulation_tables import SECOND, SHARDS, JobRow, Planned, Row, ScheduleRow

EXAMPLES = int(os.environ.get("HOURHAND_SIMULATION_EXAMPLES", "100"))


def simulate(tables: type[Database], examples: int) -> Counter[str]:
    class Run(Simulation):
        pass

    Run.tables, Run.covered = tables, Counter()
    with virtual_machines() as events:
        run_state_machine_as_test(
            Run,
            settings=settings(
                max_examples=examples, stateful_step_count=50, deadline=None, derandomize=True, database=None,
                phases=[Phase.generate], suppress_health_check=list(HealthCheck), print_blob=False,
            ),
        )  # fmt: skip
    return Run.covered + events


class Trusting(Database):
    """No epoch is compared, and a schedule moves from wherever it is."""

    def fence(self, node: int, shards: Sequence[int], epochs: Sequence[int]) -> dict[int, int]:
        return dict(zip(shards, epochs, strict=True))

    def may_move(self, row: ScheduleRow, one: Planned) -> bool:
        return one.due_at <= self.clock()


class Usurped(Trusting):
    """Who comes late takes the shard back, and the ledger takes an instant twice."""

    def fence(self, node: int, shards: Sequence[int], epochs: Sequence[int]) -> dict[int, int]:
        for shard in shards:
            if self.shards[shard].owner != node:
                self.shards[shard].owner, self.shards[shard].epoch = node, self.shards[shard].epoch + 1
        return {shard: self.shards[shard].epoch for shard in shards}

    def fired_before(self, schedule: int, at: datetime) -> bool:
        return False


class OnlyTheWheel(Database):
    """What the wheel gives out is taken to be due."""

    def hinted_schedules(self, hints: Iterable[int]) -> list[Row]:
        return [(*row[:9], max(row[9], row[7]), row[10]) for row in super().hinted_schedules(hints)]

    def may_move(self, row: ScheduleRow, one: Planned) -> bool:
        return row.revision == one.revision and row.next_run_at == one.due_at


class LocalClock(Database):
    """Due-ness is what the machine's clock says."""

    def clock(self) -> datetime:
        return self.now + (0 if self.asker is None else self.asker.skew) * SECOND


class NothingMissed(Database):
    """Who takes a shard starts from the present."""

    def take_shards(self, number: int, shards: Sequence[int], live: Sequence[int]) -> list[Row]:
        taken = super().take_shards(number, shards, live)
        mine = {shard for shard, _ in taken}
        for row in self.schedules.values():
            if row.shard in mine and row.next_run_at is not None and row.next_run_at < self.now:
                row.next_run_at = row.schedule.next_after(self.now)
        return taken


class NoRevision(Database):
    """A job may change between plan and firing."""

    def bump(self, schedule: int) -> None:
        pass


class EpochsStay(Database):
    """A change of hands does not raise the epoch, and who owns the shard is not asked."""

    def take_shards(self, number: int, shards: Sequence[int], live: Sequence[int]) -> list[Row]:
        taken = super().take_shards(number, shards, live)
        for shard, _ in taken:
            self.shards[shard].epoch = 1
        return [(shard, 1) for shard, _ in taken]

    def fence(self, node: int, shards: Sequence[int], epochs: Sequence[int]) -> dict[int, int]:
        return {shard: epoch for shard, epoch in zip(shards, epochs, strict=True) if self.shards[shard].epoch == epoch}


class FirstOfAll(Database):
    """Of what was missed, the oldest runs."""

    def make_up(self, job: JobRow, instants: Sequence[datetime], policy: str, grace: float, present: datetime) -> list[datetime]:
        chosen = super().make_up(job, instants, policy, grace, present)
        return chosen if policy != "RUN_ONCE" or len(chosen) != 1 else sorted(instants)[:1]


class Silent(Database):
    """What is left out is not on record."""

    def make_up(self, job: JobRow, instants: Sequence[datetime], policy: str, grace: float, present: datetime) -> list[datetime]:
        chosen = super().make_up(job, instants, policy, grace, present)
        self.decisions[job.id].clear()
        return chosen


def leaves_some(node: int, nodes: Sequence[int]) -> set[int]:
    return {shard for shard in range(SHARDS) if shard % (len(nodes) + 1) == sorted(nodes).index(node)}


CODE: dict[str, tuple[Any, str, Any]] = {
    "a ring that leaves shards to nobody": (elector_module, "shards_of", leaves_some),
    "no sweep": (scheduler_module, "SWEEP_EVERY", float("inf")),
    "a wheel that stands still at full minutes": (TimingWheel, "_descend", lambda self: None),
    "clocks that never change": (schedule_module, "next_change", lambda *_: None),
    "a fired schedule is not hinted at again": (scheduler_module.Scheduler, "_again", lambda *_: None),
    "the first missed instant is left out": (scheduler_module, "latest_firings", lambda *given: schedule_module.latest_firings(*given)[1:]),
}


def test_years():
    start=time.time()
    covered=simulate(Database, EXAMPLES)
    print(dict(covered), time.time() - start)

@pytest.mark.parametrize("tables", [Trusting, Usurped, OnlyTheWheel, LocalClock, NothingMissed, NoRevision, EpochsStay, FirstOfAll, Silent])
def test_model(tables):
    with pytest.raises(AssertionError) as failed:
        simulate(tables, 300)
    print(str(failed.value)[:200])

@pytest.mark.parametrize("name", CODE)
def test_code(name):
    schedule_module._next_cron.cache_clear()
    with pytest.raises(AssertionError) as failed, patch.object(*CODE[name]):
        simulate(Database, 300)
    schedule_module._next_cron.cache_clear()
    print(str(failed.value)[:200])
