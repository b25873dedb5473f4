"""How long it took until all was well again, and what each fault left behind: from the traces, the sink and the ledger."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hourhand.surfaces.verify.arena import Trace
from hourhand.surfaces.verify.observations import FaultTrace, Firing
from hourhand.surfaces.verify.passage import Counters
from hourhand.surfaces.verify.sink import Event

STEADY = ("tick", "thread")
"""Tasks that end well or not at all: one that has begun and not ended was cut off."""
_OF_THE_SERVER = ("restart server", "kill postmaster", "promote standby", "promote lagging standby", "kill backend")
_WATCHED = 30.0
"""Seconds after a kill within which what it delayed must have been made up for."""


@dataclass(frozen=True, slots=True)
class Evidence:
    traces: Sequence[Trace]
    words: Mapping[str, str]
    """What each fault is asked for by."""
    events: Sequence[Event]
    firings: Sequence[Firing]
    nodes: Mapping[int, list[tuple[float, int]]]
    """The nodes that each process has been, by its number: since when, and which."""
    logged: Counter[str]
    counters: Sequence[Counters]


def recoveries(evidence: Evidence) -> dict[str, list[float]]:
    """For each kind of fault, seconds each; only of those that no other fault came in the way of."""
    found: dict[str, list[float]] = defaultdict(list)
    for place, trace in enumerate(evidence.traces):
        later = [one.at_wall for one in evidence.traces[place + 1 :] if one.missed is None and one.fault != "idle transaction"]
        until = min([trace.at_wall + _WATCHED, *later])
        seconds = _recovery(trace, until, evidence) if trace.missed is None else []
        seconds = [one for one in seconds if trace.at_wall + one <= until]
        found[trace.fault] += seconds[:1]
        if trace.fault == "kill worker":
            found["kill worker, each run"] += seconds
    return dict(found)


def _recovery(trace: Trace, until: float, evidence: Evidence) -> list[float]:
    """Seconds; of a killed worker for each of its runs, the first one first."""
    if trace.fault == "kill worker":
        return _started_elsewhere(trace, evidence.events)
    if trace.fault == "kill scheduler":
        return _fired_again(trace, until, evidence)
    if trace.healed_at is not None and trace.fault in _OF_THE_SERVER:
        accepts = trace.at_wall + trace.healed_at - trace.at_monotonic
        after = [one.fired_at.timestamp() for one in evidence.firings if one.fired_at.timestamp() > accepts]
        return [min(after) - accepts] if after else []
    return []


def _started_elsewhere(trace: Trace, events: Iterable[Event]) -> list[float]:
    """From the kill until each of the runs that the process had begun, and not ended, began again."""
    pid, killed = trace.detail["pid"], trace.at_wall
    open_runs: set[str] = set()
    found = []
    for event in events:
        if event.at <= killed:
            if event.pid == pid and event.kind == "begin" and event.task in STEADY:
                open_runs.add(event.run)
            elif event.kind == "end":
                open_runs.discard(event.run)
        elif event.kind == "begin" and event.run in open_runs and event.pid != pid:
            open_runs.discard(event.run)
            found.append(event.at - killed)
    return found


def _fired_again(trace: Trace, until: float, evidence: Evidence) -> list[float]:
    """From the kill until the last of what its shards then owed was fired: later firings are on time again."""
    since = evidence.nodes.get(trace.detail["pid"], [])
    place = bisect_right(since, (trace.at_wall, 2**62))
    if not place:
        return []
    node = since[place - 1][1]
    owner: dict[int, int] = {}
    worst: float | None = None
    for one in sorted(evidence.firings, key=lambda one: one.fired_at):
        fired, due = one.fired_at.timestamp(), one.scheduled_at.timestamp()
        if fired <= trace.at_wall:
            owner[one.shard] = one.node
        elif fired > until:
            break
        elif owner.get(one.shard) == node and one.node != node and due < trace.at_wall + 2:
            worst = max(worst or 0.0, fired - max(due, trace.at_wall))
    return [] if worst is None else [worst]


def fault_traces(evidence: Evidence) -> dict[str, FaultTrace]:
    """By the words that faults are asked for by: how often, and what could be seen of it."""
    injected: Counter[str] = Counter()
    details: dict[str, list[Trace]] = defaultdict(list)
    for trace in evidence.traces:
        if trace.missed is None:
            word = evidence.words[trace.fault]
            injected[word] += 1
            details[word].append(trace)
    logged = evidence.logged
    effects = {
        "kill": {"nodes found dead": logged["node.dead"], "recoveries": logged["runs.recovered"], "shards taken": logged["shards.taken"]},
        "pause": {"nodes that found themselves dead": logged["node.declared_dead"], "writes refused": refusals(logged)},
        "partition": {
            "connections dropped": sum(one.dropped for one in evidence.counters),
            "commits cut": sum(one.cuts for one in evidence.counters),
            "bytes held": sum(one.bytes_held for one in evidence.counters),
            "seconds delayed": round(sum(_lasted(one) for one in details["partition"] if one.detail.get("mode") == "delay")),
        },
        "restart": {"connections lost": logged["database.unavailable"] + logged["claims.waiting"] + logged["firing.waiting"]},
        "skew": {"clocks found wrong": logged["clock.skewed"]},
        "lock": {"seconds locked": round(sum(_lasted(one) for one in details["lock"]))},
        "connections": {"refused": sum(one.detail.get("refused") is not None for one in details["connections"])},
        "idle": {"seconds open": round(sum(_lasted(one) for one in details["idle"]))},
        "async-standby": {"promoted": sum("promoted_at" in one.detail for one in details["async-standby"])},
        "standby": {"promoted": sum("promoted_at" in one.detail for one in details["standby"])},
    }  # fmt: skip
    return {word: FaultTrace(injected[word], effects.get(word, {})) for word in injected}


def _lasted(trace: Trace) -> float:
    return trace.healed_at - trace.at_monotonic if trace.healed_at is not None else 0.0


def refusals(logged: Counter[str]) -> int:
    """Writes that the product turned away."""
    return logged["outcomes.refused"] + logged["firing.refused"] + logged["run.abandoned"] + logged["claims.strays"]


def read_logs(paths: Iterable[Path]) -> Counter[str]:
    """How often each event was logged, by all processes."""
    found: Counter[str] = Counter()
    for path in paths:
        for line in path.read_bytes().splitlines():
            if line.startswith(b"{"):
                try:
                    found[msgspec.json.decode(line).get("event", "")] += 1
                except msgspec.DecodeError:
                    continue  # a process was killed while it wrote
    return found
