"""The verdict: what was observed goes in, what must not be comes out. Pure; nothing here asks the product."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hourhand.surfaces.verify.accounting import (
    check_at_least_once,
    check_at_most_once,
    check_attempts,
    check_dead_letters,
    check_epochs,
    check_outcomes,
    check_terminal_states,
    check_unknown_enqueues,
)
from hourhand.surfaces.verify.claims import check_innocents, check_needless, check_zombies
from hourhand.surfaces.verify.effects import check_balances, check_exactly_once, check_fences
from hourhand.surfaces.verify.observations import Finding, Observations
from hourhand.surfaces.verify.sink import Event
from hourhand.surfaces.verify.windows import WindowCheck, WindowCount, check_windows

CHECKS: tuple[Callable[[Observations], list[Finding]], ...] = (
    check_outcomes, check_unknown_enqueues, check_terminal_states, check_dead_letters, check_attempts,
    check_at_most_once, check_at_least_once, check_exactly_once, check_balances, check_fences, check_epochs,
    check_zombies, check_needless, check_innocents,
)  # fmt: skip
"""Besides the two of the windows."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds from a fault until all was well again."""

    count: int
    p50: float
    p99: float
    longest: float


@dataclass(frozen=True, slots=True)
class FaultReport:
    injected: int
    effects: dict[str, int]
    recovery: Recovery | None


@dataclass(frozen=True, slots=True)
class Rate:
    """How often something happened among so many; if never, what it is below with 95 % confidence."""

    count: int
    among: int
    per_million: float
    below: float | None

    @staticmethod
    def of(count: int, among: int) -> Rate:
        # The rule of three: at a higher rate than 3/N, N times without it would come about less than one time in twenty.
        return Rate(count, among, count / among * 1e6 if among else 0.0, 3 / among if among and not count else None)


@dataclass(frozen=True, slots=True)
class Numbers:
    by_key: WindowCount
    by_time: WindowCount
    accepted: int
    """Enqueued directly; besides what jobs fired, and enqueues whose answer was lost."""
    unknown: int
    runs: int
    outcomes: dict[str, int]
    losses: Rate
    """Windows without a run and accepted runs without an outcome, among both."""
    doubles: Rate
    """Runs that should not be, outcomes and exactly-once effects beyond the first, among all runs."""
    duplicate_attempts: Rate
    """Attempts that began again, among all that began: what at-least-once allows."""
    duplicate_effects: Rate
    """Effects of exactly-once runs beyond the first, among all of them."""
    repeated_effects: Rate
    """Effects that the sink took again for the same run, among all: what at-least-once allows."""
    refusals: int
    sink_refusals: int


@dataclass(slots=True)
class Verdict:
    findings: list[Finding]
    void: list[str]
    """Why this run proves nothing, in words."""
    numbers: Numbers
    faults: dict[str, FaultReport] = field(default_factory=dict)
    asked: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        """A violation stands, however little else was proved."""
        return "violated" if self.findings else "void" if self.void else "verified"

    def by_check(self) -> dict[str, list[Finding]]:
        grouped: dict[str, list[Finding]] = {}
        for finding in self.findings:
            grouped.setdefault(finding.check, []).append(finding)
        return grouped


def check(observations: Observations) -> Verdict:
    """Every check there is."""
    by_key, by_time = check_windows(observations)
    findings = [*by_key.findings, *by_time.findings]
    for one in CHECKS:
        findings += one(observations)
    numbers = count_up(observations, by_key, by_time)
    return Verdict(findings, void_reasons(observations, numbers), numbers, report_faults(observations), observations.faults)


def void_reasons(observations: Observations, numbers: Numbers) -> list[str]:
    """A fault that did not happen, or that nothing felt, has tested nothing."""
    reasons = []
    if not numbers.by_key.expected and not numbers.runs:
        reasons.append("nothing was due and nothing ran")
    for fault in observations.faults:
        trace = observations.traces.get(fault)
        if trace is None or not trace.injected:
            reasons.append(f"{fault}: it was asked for and never injected")
        elif not any(trace.effects.values()):
            looked = f" (looked for: {', '.join(trace.effects)})" if trace.effects else ""
            times = "once" if trace.injected == 1 else f"{trace.injected:,} times"
            reasons.append(f"{fault}: it was injected {times} and left no trace{looked}")
    return reasons


def report_faults(observations: Observations) -> dict[str, FaultReport]:
    names = dict.fromkeys([*observations.faults, *observations.traces, *observations.injections, *observations.recoveries])
    reports = {}
    for name in names:
        trace = observations.traces.get(name)
        recovery = summarise(observations.recoveries.get(name, []))
        reports[name] = FaultReport(
            trace.injected if trace else observations.injections.get(name, 0), dict(trace.effects) if trace else {}, recovery
        )
    return reports


def summarise(seconds: Sequence[float]) -> Recovery | None:
    if not seconds:
        return None
    ordered = sorted(seconds)
    return Recovery(len(ordered), _percentile(ordered, 50), _percentile(ordered, 99), ordered[-1])


def count_up(observations: Observations, by_key: WindowCheck, by_time: WindowCheck) -> Numbers:
    runs = Counter(run.run_id for run in observations.runs)
    accepted = len(observations.accepted)
    lost = sum(run_id not in runs for run_id in observations.accepted)
    begun = Counter((event.run, event.attempt) for event in observations.events if event.kind == "begin")
    taken = Counter(_subject(event) for event in observations.events if event.kind == "effect")
    transferred = Counter(transfer.token for transfer in observations.transfers)
    doubled = _beyond_one(runs) + _beyond_one(Counter(effect.run_id for effect in observations.effects))
    count = by_key.count
    return Numbers(
        by_key=count,
        by_time=by_time.count,
        accepted=accepted,
        unknown=len(observations.unknown),
        runs=len(runs),
        outcomes=dict(Counter(run.outcome for run in observations.runs).most_common()),
        losses=Rate.of(count.missed + lost, count.expected - count.excused + accepted),
        doubles=Rate.of(count.extra + doubled, len(runs)),
        duplicate_attempts=Rate.of(_beyond_one(begun), begun.total()),
        duplicate_effects=Rate.of(_beyond_one(transferred), transferred.total()),
        repeated_effects=Rate.of(_beyond_one(taken), taken.total()),
        refusals=observations.refusals,
        sink_refusals=sum(event.kind == "refused" for event in observations.events),
    )


def _subject(event: Event) -> str:
    """What an effect is for: the token is the same over every try, and over every run for one window."""
    return event.token or event.run


def _beyond_one(counts: Counter[str] | Counter[tuple[str, int]]) -> int:
    return counts.total() - len(counts)


def _percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest value that so many per cent are not above."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
