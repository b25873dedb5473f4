"""What this process has seen of its runs and firings: counted as it happens, for Prometheus and for the statistics.

Counting is on the path of every run, so plain successes are counted when they are written, many at once. The numbers only grow; what
the statistics have been told already is remembered apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hourhand.core.clock import Clock
from hourhand.core.fairness import queue_of
from hourhand.core.histogram import BOUNDS, CLASSES, tally
from hourhand.storage.queue import Claim
from hourhand.storage.schedules import Late

ATTEMPTS = 4
"""Attempts that are told apart; later ones count as this one."""
FIRINGS = 0
"""The number of no queue: firings are counted under it."""


class Measured:
    """The runs of one task in one queue."""

    __slots__ = (
        "durations",
        "first_successes",
        "late",
        "lateness",
        "latest",
        "others",
        "queue",
        "queue_number",
        "seconds",
        "task",
    )

    def __init__(self, task: str, queue: str, queue_number: int) -> None:
        self.task, self.queue, self.queue_number = task, queue, queue_number
        self.first_successes = 0
        """By far the most; the others are counted by status and attempt."""
        self.others: Counter[tuple[str, int]] = Counter()
        self.durations, self.seconds = [0] * CLASSES, 0.0
        self.lateness, self.late, self.latest = [0] * CLASSES, 0.0, 0.0

    def succeed(self, runs: Sequence[tuple[Claim, float, float]]) -> None:
        """First attempts, with nothing special about them."""
        took = [finished - started for _, started, finished in runs]
        late = [started - claim.scheduled for claim, started, _ in runs]
        self.first_successes += len(runs)
        self.seconds += sum(took)
        self.late += sum([one for one in late if one > 0.0])
        self.latest = max(self.latest, max(late))
        self.durations = _added(self.durations, tally(took))
        self.lateness = _added(self.lateness, tally(late))

    def add(self, other: Measured) -> None:
        self.first_successes += other.first_successes
        self.others.update(other.others)
        self.durations = _added(self.durations, other.durations)
        self.lateness = _added(self.lateness, other.lateness)
        self.seconds += other.seconds
        self.late += other.late

    def statuses(self) -> Iterator[tuple[str, int, int]]:
        """Status, attempt, and how many."""
        if self.first_successes:
            yield "succeeded", 1, self.first_successes
        for (status, attempt), count in self.others.items():
            yield status, attempt, count


class Measures:
    def __init__(self, now: Callable[[], float] = Clock.machine) -> None:
        self._now = now
        self._by: dict[tuple[str, str], Measured] = {}
        self._told: dict[int, dict[str, Any]] = {}
        self._telling: dict[int, dict[str, Any]] = {}
        self._worst: dict[Measured, float] = {}
        self.fired = 0
        """Runs that firings have made."""
        self.missed = 0
        """Firings that came later than their job's grace allows, whatever became of them."""
        self.coalesced = 0
        """Of these, left out because the last one ran for all."""
        self.skipped = 0
        """Of these, left out altogether."""

    def __iter__(self) -> Iterator[Measured]:
        return iter(list(self._by.values()))

    def _of(self, claim: Claim) -> Measured:
        one = self._by.get((claim.task, claim.queue))
        if one is None:
            one = self._by[claim.task, claim.queue] = Measured(claim.task, claim.queue, queue_of(claim.lane))
        return one

    def ended(self, claim: Claim, status: str, started: float | None, finished: float | None = None) -> None:
        """A run, or an attempt that is followed by another (`failed`)."""
        one = self._of(claim)
        first = not claim.attempt
        if first and status == "succeeded":
            one.first_successes += 1
        else:
            one.others[status, min(claim.attempt + 1, ATTEMPTS)] += 1
        if started is None:
            return
        took = (self._now() if finished is None else finished) - started
        one.seconds += took
        one.durations[bisect_left(BOUNDS, took)] += 1
        # What was backfilled or replayed is for an instant long past, and nobody expected it to start then.
        if first and not claim.crashes and not claim.errors and not (claim.options and "by_hand" in claim.options):
            late = started - claim.scheduled
            one.lateness[bisect_left(BOUNDS, late)] += 1
            if late > 0.0:
                one.late += late
                if late > one.latest:
                    one.latest = late

    def succeeded(self, runs: Sequence[tuple[Claim, float, float]]) -> None:
        """Many at once, of one task and one queue: claim, start and end of each."""
        odd = [run for run in runs if _is_odd(run[0])]
        for claim, started, finished in odd:
            self.ended(claim, "succeeded", started, finished)
        plain = runs if not odd else [run for run in runs if not _is_odd(run[0])]
        if plain:
            self._of(plain[0][0]).succeed(plain)

    def fired_late(self, late: Late) -> None:
        self.fired += late.runs
        self.missed += late.missed
        self.coalesced += late.coalesced
        self.skipped += late.skipped

    def untold(self) -> list[dict[str, Any]]:
        """What the statistics do not have yet, a row for each queue; they have it once `told` was called."""
        self._telling, self._worst = self._sums(), {}
        rows = []
        for queue, sums in self._telling.items():
            before = self._told.get(queue, {})
            row = {name: _minus(value, before.get(name)) for name, value in sums.items()}
            if any(any(value) if isinstance(value, list) else value for value in row.values()):
                worst = {one: one.latest for one in self if one.queue_number == queue}
                row["latest"] = max(worst.values(), default=0.0)
                self._worst |= worst
                rows.append({"queue": queue, **row})
        return rows

    def told(self) -> None:
        self._told = self._telling
        for one, worst in self._worst.items():
            if one.latest == worst:  # otherwise something worse has come meanwhile
                one.latest = 0.0

    def _sums(self) -> dict[int, dict[str, Any]]:
        sums: dict[int, dict[str, Any]] = {FIRINGS: {"fired": self.fired, "missed": self.missed}}
        for one in self:
            row = sums.setdefault(one.queue_number, {"seconds": 0.0, "lateness": [0] * CLASSES})
            for status, _, count in one.statuses():
                row[status] = row.get(status, 0) + count
            row["seconds"] += one.seconds
            row["lateness"] = _added(row["lateness"], one.lateness)
        return sums


def _is_odd(claim: Claim) -> Any:
    """It was tried before, or there is something special about it that may matter."""
    return claim.attempt or claim.crashes or claim.options or claim.errors


def _added(these: list[int], those: list[int]) -> list[int]:
    return [a + b for a, b in zip(these, those, strict=True)]


def _minus(value: Any, before: Any) -> Any:
    if before is None:
        return value
    return [a - b for a, b in zip(value, before, strict=True)] if isinstance(value, list) else value - before
