"""The checker on a history that is in order, and on the same history with one thing wrong: exactly that is found."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hourhand.surfaces.verify.checker import Rate, Verdict, check, summarise
from hourhand.surfaces.verify.observations import (
    Decision,
    EffectRow,
    FaultTrace,
    Finding,
    FinishedRun,
    Firing,
    Observations,
    Sighting,
    Transfer,
)
from hourhand.surfaces.verify.oracle import Every, Job, Once, Seconds, windows
from hourhand.surfaces.verify.report import print_report, to_json
from hourhand.surfaces.verify.sink import Event, Kind
from hourhand.surfaces.verify.windows import match_by_deadline

NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
LENGTH = 300


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def every(seconds: int, begin: int, end: int) -> tuple[datetime, ...]:
    return tuple(after(n) for n in range(begin, end, seconds))


JOBS = [
    Job("tick", "note", Every(7, NOON), NOON, missed_window="RUN_ALL"),
    Job("beat", "note", Seconds(frozenset({5, 20, 40}), "Europe/Berlin"), NOON, missed_window="RUN_ALL", delivery="at_most_once"),
    Job("pay", "pay", Every(5, NOON), NOON, missed_window="RUN_ALL", delivery="exactly_once"),
    Job("line", "note", Every(9, NOON), NOON, missed_window="RUN_ALL", overlap="queue"),
    Job("busy", "note", Every(6, NOON), NOON, overlap="skip"),
    Job("digest", "note", Every(4, NOON), NOON, misfire_grace=5.0),
    Job("lazy", "note", Every(4, NOON), NOON, misfire_grace=5.0, missed_window="SKIP"),
    Job("flood", "note", Every(2, NOON), NOON, misfire_grace=5.0, missed_window="RUN_ALL", max_missed=10),
    Job("few", "note", Every(3, NOON), NOON, missed_window="RUN_ALL", max_runs=12),
    Job("reminder", "note", Once(after(33.5)), NOON, missed_window="RUN_ALL"),
]

LEFT_OUT = {
    "busy": every(18, 12, LENGTH),
    "digest": every(4, 40, 80),
    "lazy": every(4, 40, 84),
    "flood": every(2, 40, 100),
}
DECISIONS = [
    *(Decision("busy", at, at, 1, "skipped", "the run before it had not ended") for at in LEFT_OUT["busy"]),
    Decision("digest", after(40), after(76), 10, "coalesced", "the last of them ran for all", after(88)),
    Decision("lazy", after(40), after(80), 11, "skipped", "missed", after(88)),
    Decision("flood", after(40), after(98), 30, "skipped", "beyond max_missed", after(124)),
]


class History:
    """Runs as a fleet would have them, with all that they leave behind."""

    def __init__(self) -> None:
        self.seen = Observations(
            until=after(LENGTH), ended_at=after(LENGTH + 100), jobs=list(JOBS), decisions=list(DECISIONS),
            leftovers={"ready": 0, "delayed": 0, "parked": 0, "probation": 0, "running": 0},
            initial_balances={"a": 1_000, "b": 1_000, "c": 0}, balances={"a": 1_000, "b": 1_000, "c": 0},
            faults=("kill worker", "pause scheduler"),
            traces={"kill worker": FaultTrace(3, {"recovered": 5}), "pause scheduler": FaultTrace(2, {"refused": 0, "taken over": 4})},
            recoveries={"kill worker": [0.4, 2.0, 1.0], "pause scheduler": [3.5]}, refusals=4,
        )  # fmt: skip
        self._numbers = count(1)

    def event(self, kind: Kind, run: FinishedRun, seconds: float, attempt: int, fence: int, delivery: str) -> None:
        number = len(self.seen.events) + 1
        self.seen.events.append(
            Event(
                id=str(number), n=number, at=run.scheduled_at.timestamp() + seconds, kind=kind, run=run.run_id, job=run.job,
                task=run.task, scheduled_at=run.scheduled_at.isoformat(), attempt=attempt, fence=fence, token=f"t{run.run_id}",
                delivery=delivery,
            )
        )  # fmt: skip

    def add(
        self, at: datetime, delivery: str, *, job: str | None = None, outcome: str = "succeeded", tries: int = 1,
        begins: bool = True, key: str | None = None, most: int = 3,
    ) -> FinishedRun:  # fmt: skip
        number = next(self._numbers)
        run = FinishedRun(
            f"r_{number}", job, "pay" if delivery == "exactly_once" else "note", at, at + timedelta(seconds=2), outcome, tries,
            1 if delivery == "at_most_once" else most, at, key=key,
        )  # fmt: skip
        self.seen.runs.append(run)
        if job is None and key is None:
            self.seen.accepted[run.run_id] = delivery
        for attempt in range(1, tries + 1) if begins else ():
            self.event("begin", run, 0.1 * attempt, attempt, 10 * number + attempt, delivery)
        if begins and outcome == "succeeded":
            self.event("effect", run, 0.5, tries, 10 * number + tries, delivery)
            self.event("end", run, 0.6, tries, 10 * number + tries, delivery)
        if outcome == "dead":
            self.seen.dead_rows[run.run_id] += 1
        if outcome == "succeeded" and delivery == "exactly_once":
            self.pay(run, number)
        if number % 3 == 0:
            self.seen.terminal_sightings += [Sighting(after(n), run.run_id, outcome) for n in (LENGTH, LENGTH + 5)]
        return run

    def pay(self, run: FinishedRun, number: int) -> None:
        source, target = ("a", "b") if number % 2 else ("b", "c")
        self.seen.effects.append(EffectRow(f"t{run.run_id}", run.run_id))
        self.seen.transfers.append(Transfer(run.run_id, f"t{run.run_id}", 10 * number + 1, number, source, target))
        self.seen.balances[source] -= number
        self.seen.balances[target] += number


def clean() -> Observations:
    history = History()
    for place, job in enumerate(JOBS):
        due = [at for at in windows(job, NOON, after(LENGTH)) if at not in LEFT_OUT.get(job.name, ())]
        for turn, at in enumerate(due):
            tries = 2 if job.delivery == "at_least_once" and turn % 11 == 5 else 1
            history.add(at, job.delivery, job=job.name, tries=tries)
            epoch = 1 + (at - NOON) // timedelta(minutes=1)
            fired = at + timedelta(seconds=0.05)
            history.seen.firings.append(Firing(place, place % 4, at, fired, epoch, 1 + epoch % 2))
    for n in range(60):
        history.add(after(n), "at_least_once", tries=1 + n % 3)
    for n in range(12):
        history.add(after(n), "at_most_once")
        history.add(after(n), "exactly_once")
    for n in range(4):
        history.add(after(n), "at_least_once", outcome="dead", tries=3)
        history.add(after(n), "at_least_once", outcome="cancelled", tries=0, begins=False)
        history.add(after(n), "at_least_once", outcome="expired", tries=0, begins=False)
        history.add(after(n), "at_most_once", outcome="lost")
        history.add(after(n), "exactly_once", outcome="dead", tries=3)
    for n in range(5):
        history.seen.unknown[f"key-{n}"] = "at_least_once"
    for n in range(3):
        history.add(after(n), "at_least_once", key=f"key-{n}")
    return history.seen


def shown(verdict: Verdict) -> str:
    stream = StringIO()
    print_report(verdict, Console(file=stream, width=130), "hourhand verify --seed 7")
    return stream.getvalue()


def test_a_history_in_order_is_verified() -> None:
    seen = clean()
    verdict = check(seen)
    assert verdict.findings == []
    assert verdict.void == []
    assert verdict.status == "verified"
    numbers = verdict.numbers
    assert numbers.runs == len(seen.runs) > 400
    assert numbers.by_key.expected == numbers.by_key.matched + numbers.by_key.excused
    assert numbers.by_key.excused == sum(map(len, LEFT_OUT.values()))
    assert numbers.by_key.missed == numbers.by_key.extra == 0
    # Those that may leave nothing out, and those that may and did not need to.
    assert numbers.by_time.expected == numbers.by_time.matched == 43 + 15 + 60 + 34 + 12 + 1
    assert sum(numbers.outcomes.values()) == numbers.runs


# One thing wrong, and which checks see it.

Tamper = Callable[[Observations], object]


def runs_of(
    seen: Observations, job: str | None, delivery: str = "at_least_once", outcome: str = "succeeded"
) -> list[FinishedRun]:
    deliveries = seen.deliveries()
    return [
        run
        for run in seen.runs
        if run.job == job and run.outcome == outcome and deliveries[run.run_id] == delivery and not run.key
    ]


def change(seen: Observations, run: FinishedRun, **changes: object) -> None:
    seen.runs[seen.runs.index(run)] = replace(run, **changes)  # type: ignore[arg-type]


def forget(seen: Observations, run: FinishedRun) -> None:
    """As if it had never been."""
    seen.runs.remove(run)
    seen.events = [event for event in seen.events if event.run != run.run_id]
    seen.terminal_sightings = [one for one in seen.terminal_sightings if one.run_id != run.run_id]


def again(seen: Observations, run: FinishedRun, run_id: str = "r_again") -> None:
    """A second run that did all the first one did."""
    seen.runs.append(replace(run, run_id=run_id))
    for event in [event for event in seen.events if event.run == run.run_id]:
        repeat(seen, event, run=run_id)


def repeat(seen: Observations, event: Event, **changes: object) -> None:
    number = len(seen.events) + 1
    known = {name: getattr(event, name) for name in Event.__struct_fields__}
    seen.events.append(Event(**{**known, "id": str(number), "n": number, **changes}))  # type: ignore[arg-type]


def event_of(seen: Observations, run: FinishedRun, kind: str) -> Event:
    return next(event for event in seen.events if event.run == run.run_id and event.kind == kind)


def decide(job: str, since: float, until: float, count: int, outcome: str, decided: float | None = None) -> Tamper:
    """The runs of these windows are gone, and it is on record that this was meant to be."""

    def tamper(seen: Observations) -> None:
        for run in [run for run in seen.runs if run.job == job and after(since) <= run.scheduled_at <= after(until)]:
            forget(seen, run)
        moment = after(decided) if decided is not None else None
        seen.decisions.append(Decision(job, after(since), after(until), count, outcome, "on purpose", moment))

    return tamper


def redecide(job: str, **changes: object) -> Tamper:
    def tamper(seen: Observations) -> None:
        place = next(place for place, one in enumerate(seen.decisions) if one.job == job)
        seen.decisions[place] = replace(seen.decisions[place], **changes)  # type: ignore[arg-type]

    return tamper


def put_balance(seen: Observations, **changes: int) -> None:
    for account, difference in changes.items():
        seen.balances[account] += difference


def fire(seen: Observations, **changes: object) -> None:
    last = max((one for one in seen.firings if one.shard == 0), key=lambda one: one.fired_at)
    seen.firings.append(replace(last, fired_at=after(LENGTH), **changes))  # type: ignore[arg-type]


BOTH = {"windows_by_key", "windows_by_time"}
KEY = {"windows_by_key"}
WRONG: dict[str, tuple[Tamper, set[str]]] = {
    # Windows
    "a run is not in the history": (lambda seen: seen.runs.remove(runs_of(seen, "tick")[9]), {"windows_by_key", "outcomes"}),
    "a window was never run": (lambda seen: forget(seen, runs_of(seen, "tick")[9]), BOTH),
    "the last window was never run": (lambda seen: forget(seen, runs_of(seen, "tick")[-1]), BOTH),
    "a single instant was never run": (lambda seen: forget(seen, runs_of(seen, "reminder")[0]), BOTH),
    "a window ran twice": (lambda seen: again(seen, runs_of(seen, "tick")[9]), BOTH),
    "a window ran twice, of a job that leaves some out": (lambda seen: again(seen, runs_of(seen, "busy")[4]), KEY),
    "a run is for another instant": (
        lambda seen: change(seen, runs_of(seen, "tick")[9], scheduled_at=after(64)), KEY,
    ),
    "a run is for the window before": (
        lambda seen: change(seen, runs_of(seen, "tick")[9], scheduled_at=runs_of(seen, "tick")[8].scheduled_at), KEY,
    ),
    "a run began before its window": (
        lambda seen: setattr(event_of(seen, runs_of(seen, "tick")[0], "begin"), "at", after(-1).timestamp()), {"windows_by_time"},
    ),
    "a run began after the last look": (
        lambda seen: setattr(event_of(seen, runs_of(seen, "tick")[9], "begin"), "at", after(LENGTH + 101).timestamp()), {"windows_by_time"},
    ),
    "more than max_runs": (lambda seen: seen.jobs.__setitem__(8, replace(JOBS[8], max_runs=11)), BOTH),
    "less than max_runs": (lambda seen: seen.jobs.__setitem__(8, replace(JOBS[8], max_runs=13)), BOTH),
    "a job that nobody added": (lambda seen: (again(seen, runs_of(seen, "busy")[4]), change(seen, seen.runs[-1], job="ghost")), KEY),
    # Excuses
    "nothing says why": (lambda seen: seen.decisions.pop(0), KEY),
    "skipped, where all are to run": (decide("tick", 63, 63, 1, "skipped"), BOTH),
    "coalesced, where all are to run": (decide("tick", 63, 70, 2, "coalesced"), BOTH),
    "skipped, where they are to queue": (decide("line", 63, 63, 1, "skipped"), BOTH),
    "skipped, where the last is to run for all": (decide("digest", 120, 120, 1, "skipped"), KEY),
    "coalesced, where none is to run": (decide("lazy", 120, 124, 2, "coalesced"), KEY),
    "skipped for overlap before anything ran": (decide("busy", 0, 0, 1, "skipped"), KEY),
    "two skipped for overlap as one": (decide("busy", 72, 78, 2, "skipped"), KEY),
    "coalesced within the grace": (redecide("digest", decided_at=after(80)), KEY),
    "skipped within the grace": (redecide("lazy", decided_at=after(84)), KEY),
    "skipped within max_missed": (redecide("flood", decided_at=after(122)), BOTH),
    "skipped with less than max_missed after it": (decide("flood", 290, 290, 1, "skipped"), KEY),
    "one more is gone than the record says": (redecide("digest", count=9), KEY),
    "one more is gone than the record covers": (lambda seen: forget(seen, runs_of(seen, "digest")[10]), KEY),
    "a window that was left out ran": (lambda seen: again(seen, replace(runs_of(seen, "lazy")[0], scheduled_at=after(60))), KEY),
    # Accounting
    "an accepted run is gone": (lambda seen: forget(seen, runs_of(seen, None)[7]), {"outcomes"}),
    "an accepted run ended twice": (lambda seen: seen.runs.append(runs_of(seen, None)[7]), {"outcomes"}),
    "a run of a job ended twice": (lambda seen: seen.runs.append(runs_of(seen, "tick")[7]), {"outcomes"}),
    "nobody enqueued it": (lambda seen: again(seen, runs_of(seen, None, outcome="cancelled")[0]), {"outcomes"}),
    "it ran and is not on record": (lambda seen: repeat(seen, seen.events[-1], run="r_ghost", job=None), {"outcomes"}),
    "a way to end that there is not": (lambda seen: change(seen, runs_of(seen, None, outcome="expired")[0], outcome="ended"), {"outcomes"}),
    "something is left over": (lambda seen: seen.leftovers.update(parked=2), {"outcomes"}),
    "one enqueue made two runs": (
        lambda seen: again(seen, next(run for run in seen.runs if run.key == "key-1")), {"unknown_enqueues"},
    ),
    "a terminal state changed": (
        lambda seen: change(seen, next(run for run in seen.runs if run.run_id == seen.terminal_sightings[0].run_id), outcome="cancelled"),
        {"terminal_states"},
    ),
    "a terminal state changed in the end": (
        lambda seen: seen.terminal_sightings.append(Sighting(after(301), runs_of(seen, None)[7].run_id, "cancelled")), {"terminal_states"},
    ),
    "a terminal state changed while it ran": (
        lambda seen: seen.terminal_sightings.insert(0, Sighting(after(1), seen.terminal_sightings[0].run_id, "lost")), {"terminal_states"},
    ),
    "a terminal state is gone": (
        lambda seen: seen.terminal_sightings.append(Sighting(after(301), "r_gone", "succeeded")), {"terminal_states"},
    ),
    "a dead run is no dead letter": (
        lambda seen: seen.dead_rows.pop(runs_of(seen, None, outcome="dead")[0].run_id), {"dead_letters"},
    ),
    "a dead run is two dead letters": (
        lambda seen: seen.dead_rows.update([runs_of(seen, None, outcome="dead")[0].run_id]), {"dead_letters"},
    ),
    "a dead letter did not die": (lambda seen: seen.dead_rows.update([runs_of(seen, "tick")[3].run_id]), {"dead_letters"}),
    "one attempt too many on record": (lambda seen: change(seen, runs_of(seen, "tick")[3], attempt=4), {"attempts"}),
    "one attempt too many at the sink": (
        lambda seen: repeat(seen, event_of(seen, runs_of(seen, "tick")[3], "begin"), attempt=4), {"attempts"},
    ),
    "at most once, begun twice": (
        lambda seen: repeat(seen, event_of(seen, runs_of(seen, "beat", "at_most_once")[3], "begin")), {"at_most_once"},
    ),
    "at most once, lost and begun twice": (
        lambda seen: repeat(seen, event_of(seen, runs_of(seen, None, "at_most_once", "lost")[0], "begin")), {"at_most_once"},
    ),
    "a success whose end nobody saw": (
        lambda seen: seen.events.remove(event_of(seen, runs_of(seen, "tick")[3], "end")), {"at_least_once"},
    ),
    "a success at most once whose end nobody saw": (
        lambda seen: seen.events.remove(event_of(seen, runs_of(seen, None, "at_most_once")[3], "end")), {"at_least_once"},
    ),
    "given up as lost, where it is to run again": (
        lambda seen: change(seen, runs_of(seen, None, outcome="cancelled")[1], outcome="lost"), {"at_least_once"},
    ),
    # Effects
    "an effect is missing": (lambda seen: seen.effects.pop(7), {"exactly_once"}),
    "an effect is there twice": (lambda seen: seen.effects.append(seen.effects[7]), {"exactly_once"}),
    "an effect under another token": (lambda seen: seen.effects.__setitem__(7, replace(seen.effects[7], token="x")), {"exactly_once"}),
    "two runs under one token": (
        lambda seen: (
            seen.effects.__setitem__(7, replace(seen.effects[7], token=seen.effects[8].token)),
            seen.transfers.__setitem__(7, replace(seen.transfers[7], token=seen.effects[8].token)),
        ), {"exactly_once"},
    ),
    "an effect of a run that died": (
        lambda seen: seen.effects.append(EffectRow("x", runs_of(seen, None, "exactly_once", "dead")[0].run_id)), {"exactly_once"},
    ),
    "an effect of another kind of run": (
        lambda seen: seen.effects.append(EffectRow("x", runs_of(seen, "tick")[0].run_id)), {"exactly_once"},
    ),
    "a transfer of nobody": (
        lambda seen: seen.transfers.append(Transfer("r_gone", "x", 1, 0, "a", "b")), {"exactly_once"},
    ),
    "a transfer is missing": (
        lambda seen: (
            put_balance(seen, **{seen.transfers[7].source: seen.transfers[7].amount}),
            put_balance(seen, **{seen.transfers[7].target: -seen.transfers[7].amount}),
            seen.transfers.pop(7),
        ), {"exactly_once"},
    ),
    "a transfer was made twice": (lambda seen: seen.transfers.append(seen.transfers[7]), {"exactly_once", "balances"}),
    "a balance is off by one": (lambda seen: put_balance(seen, a=1), {"balances"}),
    "two balances are off, and the total is not": (lambda seen: put_balance(seen, a=1, b=-1), {"balances"}),
    "an account out of nothing": (lambda seen: seen.balances.update(d=0, e=5), {"balances"}),
    "a fence went down": (
        lambda seen: repeat(seen, event_of(seen, runs_of(seen, "tick")[5], "effect"), fence=1), {"fences"},
    ),
    # Epochs
    "an old epoch fired later": (lambda seen: fire(seen, epoch=1, node=2), {"epochs"}),
    "one epoch of two nodes": (lambda seen: fire(seen, node=9), {"epochs"}),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_one_thing_wrong_is_found_by_its_check(name: str) -> None:
    seen = clean()
    tamper, checks = WRONG[name]
    tamper(seen)
    verdict = check(seen)
    assert {finding.check for finding in verdict.findings} == checks
    assert verdict.status == "violated"
    assert verdict.void == []


def test_money_that_is_gone_and_money_that_went_astray_are_told_apart() -> None:
    gone, astray = clean(), clean()
    put_balance(gone, a=-1)
    put_balance(astray, a=-1, b=1)
    assert [finding.subject for finding in check(gone).findings] == ["a", "total"]
    assert [finding.subject for finding in check(astray).findings] == ["a", "b"]


def test_every_check_has_been_seen_to_find_something() -> None:
    assert {one for _, checks in WRONG.values() for one in checks} == {
        "windows_by_key", "windows_by_time", "outcomes", "unknown_enqueues", "terminal_states", "dead_letters", "attempts",
        "at_most_once", "at_least_once", "exactly_once", "balances", "fences", "epochs",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (lambda seen: seen.traces.pop("kill worker"), "kill worker: it was asked for and never injected"),
        (lambda seen: seen.traces.update({"kill worker": FaultTrace(0, {"recovered": 5})}), "never injected"),
        (
            lambda seen: seen.traces.update({"kill worker": FaultTrace(3, {"recovered": 0})}),
            "kill worker: it was injected 3 times and left no trace (looked for: recovered)",
        ),
        (lambda seen: seen.traces.update({"kill worker": FaultTrace(1)}), "it was injected once and left no trace"),
    ],
)
def test_a_fault_that_nothing_felt_proves_nothing(tamper: Tamper, reason: str) -> None:
    seen = clean()
    tamper(seen)
    verdict = check(seen)
    assert verdict.status == "void"
    [found] = verdict.void
    assert reason in found
    assert shown(verdict).splitlines()[-1].startswith(f"void: {found}")


def test_a_run_of_nothing_proves_nothing() -> None:
    verdict = check(Observations(until=after(10), ended_at=after(20)))
    assert verdict.void == ["nothing was due and nothing ran"]
    assert verdict.numbers.losses == Rate(0, 0, 0.0, None)


def test_a_violation_stands_even_if_a_fault_left_no_trace() -> None:
    seen = clean()
    seen.traces.clear()
    seen.leftovers["ready"] = 1
    assert check(seen).status == "violated"


# What is not wrong


NOT_WRONG: dict[str, Tamper] = {
    "an attempt that began again is what at-least-once allows": lambda seen: again_begun(seen, 3),
    "a stale effect that the sink refused": lambda seen: repeat(
        seen, event_of(seen, runs_of(seen, "tick")[5], "effect"), fence=1, kind="refused"
    ),
    "a run by hand belongs to no window": lambda seen: (
        again(seen, runs_of(seen, "tick")[5]), change(seen, seen.runs[-1], by_hand=True, scheduled_at=after(1.5)),
    ),
    "a run that was lost before it began": lambda seen: (
        change(seen, run := runs_of(seen, "beat", "at_most_once")[4], outcome="lost"),
        setattr(seen, "events", [event for event in seen.events if event.run != run.run_id]),
        setattr(seen, "terminal_sightings", []),
    ),
    "two epochs in one moment": lambda seen: (fire(seen, epoch=99, node=8), fire(seen, epoch=98, node=9)),
    "a log that is not in order": lambda seen: (
        repeat(seen, event_of(seen, runs_of(seen, "tick")[5], "effect"), fence=10**6), seen.events.reverse(),
    ),
    "what was decided about something that is no window": lambda seen: seen.decisions.append(
        Decision("tick", after(1.5), after(1.5), 1, "skipped", "a trigger")
    ),
    "a skip for overlap, of a job with a limit": lambda seen: (
        seen.jobs.__setitem__(4, replace(JOBS[4], max_runs=20)),
        [forget(seen, run) for run in runs_of(seen, "busy")[20:]],
    ),
    "a job whose rule was changed": lambda seen: (
        seen.jobs.__setitem__(0, replace(JOBS[0], until=after(140))),
        seen.jobs.append(replace(JOBS[0], rule=Every(7, after(140)), since=after(140))),
    ),
    "a sink whose clock is behind within its tolerance": lambda seen: (
        [setattr(event, "at", event.at - 0.3) for event in seen.events], setattr(seen, "clock_tolerance", 0.25),
    ),
}  # fmt: skip


def again_begun(seen: Observations, times: int) -> None:
    for run in runs_of(seen, "tick")[:times]:
        repeat(seen, event_of(seen, run, "begin"))


@pytest.mark.parametrize("name", NOT_WRONG)
def test_what_is_allowed_is_no_finding(name: str) -> None:
    seen = clean()
    NOT_WRONG[name](seen)
    assert check(seen).findings == []


# Numbers


def test_numbers() -> None:
    seen = clean()
    again_begun(seen, 3)
    effect = event_of(seen, runs_of(seen, "tick")[5], "effect")
    repeat(seen, effect)
    repeat(seen, effect, kind="refused", fence=1)
    numbers = check(seen).numbers
    begins = sum(event.kind == "begin" for event in seen.events)
    effects = sum(event.kind == "effect" for event in seen.events)
    assert numbers.duplicate_attempts == Rate(3, begins, 3 / begins * 1e6, None)
    assert numbers.repeated_effects == Rate(1, effects, 1 / effects * 1e6, None)
    assert numbers.duplicate_effects == Rate.of(0, len(seen.transfers))
    assert numbers.losses.below == pytest.approx(3 / (numbers.by_key.matched + len(seen.accepted)))
    assert numbers.doubles.below == pytest.approx(3 / len(seen.runs))
    assert (numbers.refusals, numbers.sink_refusals) == (4, 1)
    assert numbers.outcomes == Counter(run.outcome for run in seen.runs)


def test_what_was_seen_has_no_bound_but_a_rate() -> None:
    seen = clean()
    forget(seen, runs_of(seen, "tick")[9])
    forget(seen, runs_of(seen, None)[9])
    again(seen, runs_of(seen, "busy")[4])
    seen.effects.append(seen.effects[0])
    numbers = check(seen).numbers
    assert (numbers.losses.count, numbers.losses.below) == (2, None)
    assert (numbers.doubles.count, numbers.doubles.below) == (2, None)
    assert numbers.losses.per_million > 0


def test_recovery_times() -> None:
    recovery = summarise([float(n) for n in range(1, 201)])
    assert recovery is not None
    assert (recovery.count, recovery.p50, recovery.p99, recovery.longest) == (200, 100.0, 198.0, 200.0)
    assert summarise([]) is None
    faults = check(clean()).faults
    assert faults["kill worker"].recovery == summarise([2.0, 1.0, 0.4])
    assert faults["kill worker"].effects == {"recovered": 5}


# The report


def test_the_report_of_a_clean_run() -> None:
    text = shown(check(clean()))
    assert "none of" in text
    assert "with 95 % confidence" in text
    assert "4 by the product" in text
    assert "taken over 4" in text
    assert "3.5 s" in text
    assert text.splitlines()[-1].startswith("verified: ")
    assert "--seed" not in text


def test_the_report_of_a_violation_names_the_first_and_how_to_see_it_again() -> None:
    seen = clean()
    for run in runs_of(seen, "busy"):
        forget(seen, run)
    seen.leftovers["[red]ready"] = 1
    text = shown(check(seen))
    assert text.count("missed: there is no run for it") == 20
    assert f"and {50 - 20} more" in text
    assert "[red]ready  1 left over" in text
    assert text.splitlines()[-1] == "VIOLATED: 50 windows_by_key, 1 outcomes; again with: hourhand verify --seed 7"


def test_the_report_for_programs_is_plain_json() -> None:
    seen = clean()
    for run in runs_of(seen, "busy"):
        forget(seen, run)
    told = json.loads(json.dumps(to_json(check(seen))))
    assert told["verdict"] == "violated"
    assert len(told["findings"]) == 50
    assert told["findings"][0].keys() == {"check", "subject", "message"}
    assert told["numbers"]["by_key"]["missed"] == 50
    assert told["faults"]["pause scheduler"]["recovery"]["p50"] == 3.5
    assert Finding(**told["findings"][0]).check == "windows_by_key"


# The matching


def most_pairs(windows: Sequence[tuple[int, int]], points: Sequence[int]) -> int:
    """The most there can be, by trying: each point looks for a window, and whoever has it for another."""
    owner: dict[int, int] = {}

    def place(point: int, tried: set[int]) -> bool:
        for number, (begin, deadline) in enumerate(windows):
            if begin <= points[point] <= deadline and number not in tried:
                tried.add(number)
                if number not in owner or place(owner[number], tried):
                    owner[number] = point
                    return True
        return False

    return sum(place(point, set()) for point in range(len(points)))


spans = st.tuples(st.integers(0, 20), st.integers(0, 8)).map(lambda one: (one[0], one[0] + one[1]))


@given(st.lists(spans, max_size=9), st.lists(st.integers(0, 25), max_size=9))
def test_the_nearest_deadline_first_leaves_the_fewest_without(some: list[tuple[int, int]], points: list[int]) -> None:
    pairs, missed, extra = match_by_deadline(some, points)
    assert len(pairs) == most_pairs(some, points)
    assert all(some[window][0] <= points[point] <= some[window][1] for window, point in pairs)
    assert sorted([window for window, _ in pairs] + missed) == list(range(len(some)))
    assert sorted([point for _, point in pairs] + extra) == list(range(len(points)))


def test_the_matching_takes_a_hundred_thousand_in_its_stride() -> None:
    many = [(float(n), float(n + 1_000)) for n in range(100_000)]
    pairs, missed, extra = match_by_deadline(many, [n + 0.5 for n in range(100_000)])
    assert (len(pairs), missed, extra) == (100_000, [], [])
