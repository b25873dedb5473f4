"""What needs attention, in words: from figures that are at hand to sentences that somebody can act on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from hourhand.core import ids
from hourhand.surfaces.alerts import AlertView
from hourhand.surfaces.dashboard.pages import link
from hourhand.surfaces.dashboard.words import number, plural, seconds_in_words
from hourhand.surfaces.holds import HoldView
from hourhand.surfaces.statistics import QueueFigures, Trend

LONG_WAIT = 60.0
"""Seconds after which a run that waits is worth a word."""
LONG_HOLD = timedelta(days=1)
SKEW = 1.0
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Remark:
    tone: str
    """`bad`, `warn` or `good`."""
    text: str
    link: str | None = None
    about: tuple[str, str] | None = None
    """The kind of alert that says the same, and its subject: such an alert is not said again."""


@dataclass(frozen=True, slots=True)
class Facts:
    queues: Sequence[QueueFigures]
    hour: Trend
    nodes: Sequence[Row] | None
    """Alive, or gone within the hour. None: the viewer may not see them."""
    unowned: int | None
    jobs: int | None
    parked: Sequence[Row]
    stuck: Sequence[Row]
    now: datetime
    holds: Sequence[HoldView] = ()
    incidents: Sequence[AlertView] = ()


def remarks(facts: Facts) -> list[Remark]:
    """The worst first; one good word when there is nothing."""
    own = [*_fleet(facts), *_queues(facts), *_holds(facts), *_firing(facts), *_runs(facts)]
    said = {one.about for one in own}
    alerts = [
        Remark("bad" if one.severity == "critical" else "warn", f"{one.message} (since {_clock(one.since)})", "/alerts")
        for one in facts.incidents
        if (one.kind, one.subject) not in said and (one.kind, "") not in said
    ]
    found = sorted([*alerts, *own], key=lambda one: one.tone != "bad")
    if not found and facts.nodes is None:
        part = (
            "in the queues that you may see"
            if facts.queues
            else "that can be told: figures are kept for whole queues, not for a part of the jobs"
        )
        return [Remark("good", f"Nothing needs attention {part}.")]
    return found or [
        Remark("good", "Everything is on time: no queue waits, nothing gave up in the last hour, every process is there.")
    ]


def _fleet(facts: Facts) -> Iterator[Remark]:
    if facts.nodes is None:
        return
    by_state: dict[str, list[Row]] = {}
    for one in facts.nodes:
        by_state.setdefault(one["state"], []).append(one)
    alive, silent, died = (by_state.get(state, []) for state in ("alive", "silent", "died"))
    for kind, then in (("worker", "runs are not started"), ("scheduler", "nothing is fired")):
        if not any(one["kind"] == kind for one in alive) and (kind == "worker" or facts.jobs):
            yield Remark("bad", f"No {kind} is alive: {then}.", "/nodes")
    if silent:
        yield Remark("warn", f"{_processes(silent)} silent for longer than the lease: {_names(silent)}.", "/nodes")
    for one in alive:
        if abs(one["skew"] or 0.0) > SKEW:
            off = seconds_in_words(abs(one["skew"]))
            yield Remark(
                "warn", f"The clock of {one['name']} is off by {off}; the database's is used.", "/nodes", ("clock_skew", "")
            )
    if died and not any((one.oldest_seconds or 0.0) > LONG_WAIT for one in facts.queues):
        words = f"{_processes(died)} died within the last hour: {_names(died)}. Their runs were taken over."
        yield Remark("warn", words, "/nodes", ("node_lost", ""))


def _queues(facts: Facts) -> Iterator[Remark]:
    for one in facts.queues:
        waits = one.oldest_seconds or 0.0
        if one.paused_at is not None and one.ready:
            words = f"Queue {one.name} is paused, and {plural(one.ready, 'run waits', 'runs wait')} in it."
            yield Remark("warn", words, "/queues", ("queue_age", one.name))
        elif one.paused_at is None and waits > LONG_WAIT:
            gone = _gone(facts.nodes, one.name)
            words = f"Queue {one.name}: the oldest run waits {seconds_in_words(waits)}, {number(one.ready)} in line{gone}."
            tone = "bad" if waits > 10 * LONG_WAIT else "warn"
            yield Remark(tone, words, link("/runs", state="ready", queue=one.name), ("queue_age", one.name))


def _holds(facts: Facts) -> Iterator[Remark]:
    for one in facts.holds:
        if facts.now - one.held_at > LONG_HOLD:
            why = f" ({one.reason})" if one.reason else ""
            words = f"Hold {one.id} on {one.in_words}{why} is older than a day, and keeps {plural(one.runs, 'run')} back."
            yield Remark("warn", words, "/queues#holds")


def _gone(nodes: Sequence[Row] | None, queue: str) -> str:
    """Which part of the workers that serve it is not there any more."""
    if nodes is None:
        return ""
    serving = [one for one in nodes if one["kind"] == "worker" and _serves(one, queue)]
    alive, died = (sum(one["state"] == state for one in serving) for state in ("alive", "died"))
    if not alive:
        return "; no worker that is alive serves it"
    return f"; {died} of {alive + died} workers gone" if died else ""


def _serves(node: Row, queue: str) -> bool:
    info = node["info"]
    queues = (msgspec.json.decode(info) if isinstance(info, (str, bytes)) else info).get("queues")
    return queues is None or queue in queues


def _firing(facts: Facts) -> Iterator[Remark]:
    if facts.unowned and facts.jobs:
        yield Remark("bad", f"{facts.unowned} of 256 shards have no scheduler: their jobs are not fired.", "/shards")
    if missed := sum(one.missed for one in facts.hour.moments):
        words = f"{plural(missed, 'firing was', 'firings were')} missed within the last hour; each job's missed_window decided what became of it."
        yield Remark("warn", words, "/jobs", ("catch_up", ""))


def _runs(facts: Facts) -> Iterator[Remark]:
    if died := sum(one.dead for one in facts.hour.moments):
        yield Remark("bad", f"{plural(died, 'run')} gave up within the last hour.", "/dead", ("dead_growth", ""))
    if lost := sum(one.lost for one in facts.hour.moments):
        words = f"{plural(lost, 'at-most-once run')} cut off within the last hour: how far each came is not known."
        yield Remark("bad", words, link("/runs", state="lost"), ("lost_runs", ""))
    for one in facts.stuck[:3]:
        words = f"A run of {one['task']} has gone on for {seconds_in_words(one['seconds'])}, far beyond what is usual."
        yield Remark("warn", words, f"/runs/{ids.run_id(one['run_id'])}", ("stuck_runs", ""))
    for one in facts.parked[:5]:
        words = f"Task {one['task']} in queue {one['queue']}: no worker knows it; its runs wait since {_clock(one['parked_at'])}."
        yield Remark("warn", words, link("/runs", state="parked", task=one["task"]))


def _clock(at: datetime) -> str:
    return f"{at:%b %d %H:%M} UTC"


def _processes(nodes: Sequence[Row]) -> str:
    return plural(len(nodes), "process", "processes")


def _names(nodes: Sequence[Row]) -> str:
    return ", ".join(one["name"] for one in nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
