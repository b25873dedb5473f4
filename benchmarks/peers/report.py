"""The results as tables and charts: in the terminal, and between the marks of docs/benchmarks.md."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.observe import PROJECT, QUIET
from benchmarks.peers.field import MEASURES, Peer
from benchmarks.servers import POSTGRESQL

PAGE = PROJECT / "docs" / "benchmarks.md"
IMAGES = PROJECT / "docs" / "images"
Results = dict[str, Any]


@dataclass(frozen=True)
class Column:
    key: str
    measure: str
    title: str
    unit: str
    most: bool = False
    """The most is the best; else the least."""

    @property
    def heading(self) -> str:
        return f"{self.title}, {self.unit}".rstrip(", ")


COLUMNS = (
    Column("many", "many", "enqueue in bulk", "runs/s", True),
    Column("single", "single", "enqueue one by one", "runs/s", True),
    Column("drain 1", "drain", "drain, one process", "runs/s", True),
    Column("drain 2", "drain", "drain, two processes", "runs/s", True),
    Column("latency p50", "latency", "enqueue to start, p50", "ms"),
    Column("latency p99", "latency", "enqueue to start, p99", "ms"),
    Column("register", "register", "register 10,000 schedules", "s"),
    Column("due 1000", "due", "1,000 due at once: last start after", "s"),
    Column("due 10000", "due", "10,000 due at once: last start after", "s"),
    Column("kill", "kill", "after kill -9, starts elsewhere", "s"),
    Column("held before", "held", "before a held transaction", "runs/s", True),
    Column("held beside", "held", "beside a held transaction", "runs/s", True),
    Column("held ratio", "held", "share of its rate kept", "", True),
)
BARS = {"drain 1": 4, "drain 2": 4, "latency p50": 1, "latency p99": 1, "due 10000": 1}
"""How many there are for a figure."""
MOST = {column.key for column in COLUMNS if column.most} | {"limit"}
WORDS = {
    "many": "enqueue in bulk", "single": "enqueue one by one", "latency": "enqueue to start", "register": "register schedules",
    "due": "due at once", "kill": "kill -9", "held": "held transaction",
}  # fmt: skip
"""Measures, as the page calls them."""


def _value(results: Results, peer: Peer, column: Column) -> float | str | None:
    """The figure; or why there is none; or nothing, if it was not measured."""
    measured = results["peers"].get(peer.name, {}).get(column.measure)
    if measured is None:
        return None
    if (why := peer.cannot(column.measure)) is not None:
        return why
    value = measured.get(column.key)
    return str(measured["no"]) if value is None and "no" in measured else value


def median(key: str, rounds: list[dict[str, float]]) -> float:
    """Of all rounds: one that was given up before it had the figure is worse than any other."""
    worst = -math.inf if key in MOST else math.inf
    return statistics.median(one.get(key, worst) for one in rounds)


@dataclass(frozen=True)
class Verdict:
    """What Hourhand is to reach among its peers, and whether it does."""

    said: str
    good: bool
    key: str = ""


def verdicts(results: Results, peers: list[Peer], *, whole: bool = False) -> list[Verdict]:
    """Of what has been measured; `whole`: and what cannot be judged, for want of a figure, is missed."""
    columns = {column.key: column for column in COLUMNS}
    by_name = {peer.name: peer for peer in peers}
    told: list[Verdict] = []

    def value(name: str, key: str) -> float | None:
        found = _value(results, by_name[name], columns[key]) if name in by_name else None
        return None if isinstance(found, str) else found

    def best(key: str, among: list[Peer]) -> tuple[float, Peer] | None:
        found = [(number, peer) for peer in among if (number := value(peer.name, key)) is not None]
        return (max if columns[key].most else min)(found, key=lambda one: one[0], default=None)

    def judge(key: str, words: str, good: bool, *beside: Peer) -> None:
        names = ("hourhand", *(peer.name for peer in beside))
        runs = {_run(results["peers"][name][columns[key].measure]) for name in names}
        told.append(Verdict(f"{columns[key].title}: {words}{'' if len(runs) == 1 else ', measured apart'}", good, key))

    ours = results["peers"].get("hourhand", {})
    for name, one in ours.items():
        if "no" in one:
            told.append(Verdict(f"{WORDS.get(name, name)}: no: {_short(one['no'])}", False))
        elif "failed" in one:
            told.append(Verdict(f"{WORDS.get(name, name)}: {_failures(one['failed'])}", False))
    others = [peer for peer in peers if peer.name != "hourhand"]
    in_python = [peer for peer in others if not peer.node]
    for key in ("drain 1", "drain 2"):
        if (own := value("hourhand", key)) is None:
            continue
        for whom, among, least in (("peer in Python", in_python, 2.5), ("of all peers", others, 1)):
            if fastest := best(key, among):
                ratio, peer = own / fastest[0], fastest[1]
                words = f"{ratio:.2f} times the fastest {whom}, {peer.title} (to reach: {least})"
                judge(key, words, ratio >= least and ratio > 1, peer)
        if graphile := value("graphile_worker", key):
            words = f"{own / graphile:.2f} times Graphile Worker, which keeps no history (to reach: 1)"
            judge(key, words, own > graphile, by_name["graphile_worker"])
        if limit := results["peers"]["hourhand"]["drain"].get("limit"):
            judge(key, f"{own / limit:.2f} of what plain SQL does with the same tables (to reach: 0.5)", own >= 0.5 * limit)
    for key in ("latency p50", "latency p99"):
        own, soonest = value("hourhand", key), best(key, [peer for peer in others if peer.server == "postgresql"])
        if own is not None and soonest:
            ratio, peer = own / soonest[0], soonest[1]
            judge(key, f"{ratio:.2f} of the soonest peer's on PostgreSQL, {peer.title} (to reach: below 1)", ratio < 1, peer)
    if (own := value("hourhand", "due 10000")) is not None:
        soonest = best("due 10000", others)
        than = f"; the soonest peer, {soonest[1].title}, {number(soonest[0])} s" if soonest else ""
        judge("due 10000", f"{number(own)} s (to reach: 1 s){than}", own < 1, *([soonest[1]] if soonest else []))
    judged = Counter(one.key for one in told)
    for key, bars in BARS.items():
        if whole and judged[key] < bars:
            told.append(
                Verdict(f"{columns[key].title}: {bars - judged[key]} of {bars} not judged, for want of a figure", False, key)
            )
        if whole and (unknown := [peer.title for peer in others if _unknown(results, peer, columns[key].measure)]):
            told.append(Verdict(f"{columns[key].title}: not known of {', '.join(unknown)}", False, key))
    return told


def _unknown(results: Results, peer: Peer, measure: str) -> bool:
    """Whether there is neither a figure nor a reason of the peer's own: it was not measured, or the bench broke down."""
    measured = results["peers"].get(peer.name, {}).get(measure)
    return peer.cannot(measure) is None and (measured is None or {"no", "failed"} <= measured.keys())


def _run(measured: Results) -> str:
    """Which one of the bench it was taken in."""
    return str(measured.get("run", measured.get("at")))


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _figure(results: Results, peer: Peer, column: Column) -> str:
    value = _value(results, peer, column)
    if value is None:
        return ""
    return "no" if isinstance(value, str) else number(value)


def _spread(results: Results, peer: Peer, column: Column) -> str:
    """Of the rounds that count and were done in time."""
    rounds = results["peers"].get(peer.name, {}).get(column.measure, {}).get("rounds", [])
    found = [one[column.key] for one in rounds if column.key in one]
    return f"{number(min(found))} to {number(max(found))}" if found else _figure(results, peer, column)


def _measured(results: Results, peers: list[Peer]) -> list[Peer]:
    return [peer for peer in peers if peer.name in results["peers"]]


def show(results: Results, peers: list[Peer], told: list[Verdict]) -> None:
    table = Table("", *(column.heading for column in COLUMNS), box=None)
    for peer in _measured(results, peers):
        table.add_row(peer.title, *(_figure(results, peer, column) for column in COLUMNS))
    console = Console(width=220)
    console.print(table)
    for one in told:
        console.print(one.said, "[green]ok[/]" if one.good else "[red]missed[/]")


def write(results: Results, peers: list[Peer], told: list[Verdict]) -> None:
    measured = _measured(results, peers)
    text = "\n".join(
        [
            *_in_short(told),
            *_tables(results, measured),
            *_ahead(results, measured),
            "",
            *_charts(results, measured),
            *_settings(results, measured),
        ]
    )
    page = PAGE.read_text()
    PAGE.write_text(
        re.sub(r"(<!-- measured -->\n).*(<!-- end -->)", lambda found: f"{found[1]}{text}\n{found[2]}", page, flags=re.DOTALL)
    )


def _in_short(told: list[Verdict]) -> Iterator[str]:
    yield "### In short\n"
    for one in told:
        yield f"- {one.said}" + ("" if one.good else " **missed**")
    yield ""


def _tables(results: Results, peers: list[Peer]) -> Iterator[str]:
    judged = tuple(column for column in COLUMNS if column.key in BARS)
    parts = (
        ("Runs", COLUMNS[:6], _figure),
        ("Schedules and faults", COLUMNS[6:], _figure),
        ("Lowest to highest round", judged, _spread),
    )
    for title, columns, cell in parts:
        yield f"### {title}\n"
        yield "| | " + " | ".join(one.heading for one in columns) + " |"
        yield "|---" + "|---:" * len(columns) + "|"
        for peer in peers:
            name = f"**{peer.title}**" if peer.name == "hourhand" else peer.title
            yield f"| {name} | " + " | ".join(cell(results, peer, column) for column in columns) + " |"
        yield ""


def _ahead(results: Results, peers: list[Peer]) -> Iterator[str]:
    """Who has a better figure than Hourhand, the best first."""
    ours, others = peers[0], peers[1:]
    yield "Ahead of Hourhand, the best first:\n"
    for column in COLUMNS:
        own = _value(results, ours, column)
        found = [(value, peer.title) for peer in others if isinstance(value := _value(results, peer, column), float)]
        better = sorted((one for one in found if isinstance(own, float) and (one[0] > own) == column.most), reverse=column.most)
        if better:
            yield f"- {column.heading}: {', '.join(f'{title} {number(value)}' for value, title in better)}"


def _charts(results: Results, peers: list[Peer]) -> Iterator[str]:
    from benchmarks import charts  # needs matplotlib, which the tests of what is reported have not

    for column in COLUMNS:
        found = [(peer.title, value) for peer in peers if isinstance(value := _value(results, peer, column), (int, float))]
        if (
            column.key not in ("drain 1", "drain 2", "latency p50", "latency p99", "due 10000", "held beside", "held ratio")
            or len(found) < 2
        ):
            continue
        name = f"peers-{column.key.replace(' ', '-')}.svg"
        best = "most" if column.most else "least"
        charts.bars(column.title, column.unit, found, IMAGES / name, best=best, logarithmic=column.key == "due 10000")
        yield f"![{column.title}](images/{name})\n"


def _settings(results: Results, peers: list[Peer]) -> Iterator[str]:
    yield "### Versions and settings\n"
    figures = [one for measured in results["peers"].values() for one in measured.values()]
    days = sorted({one["at"][:10] for one in figures})
    yield f"Measured {f'on {days[0]}' if len(days) == 1 else f'from {days[0]} to {days[-1]}'}, on these:\n"
    for kind in sorted({_kind(one) for one in figures}):
        there = {name for measured in results["peers"].values() for name, one in measured.items() if _kind(one) == kind}
        yield f"- {kind}: {', '.join(WORDS.get(name, name) for name in MEASURES if name in there)}"
    yield f"\nPostgreSQL: {', '.join(f'{name} {value}' for name, value in POSTGRESQL.items())}; all else is its default."
    if syncs := sorted((one["sync"] for one in figures if "sync" in one), key=lambda sync: float(sync.split()[0])):
        yield f"To write a page through to the disk (fdatasync) took {syncs[0]} to {syncs[-1]}."
    apart = {measure: names for measure in MEASURES if (names := _apart(results, peers, measure))}
    if apart:
        yield "\nIn other runs than Hourhand's, hours or a day apart, and on another processor where one is named, were measured:\n"
        for measure, names in apart.items():
            yield f"- {WORDS.get(measure, measure)}: {', '.join(names)}"
    yield "\n| | version | server | runs, in bulk and drained | settings |"
    yield "|---|---|---|---:|---|"
    for peer in peers:
        version = peer.versions() or _commits(results, peer)
        yield f"| {peer.title} | {version} | {peer.server} | {peer.runs:,} | {peer.settings} |"
    if earlier := [
        f"{peer.title} ({', '.join(measures)})" for peer in peers if (measures := _of_earlier_settings(results, peer))
    ]:
        yield (
            "\nMeasured with other settings or versions than these, or before it was written down with which:"
            f" {'; '.join(earlier)}."
        )
    if noisy := [f"{peer.title} ({', '.join(measures)})" for peer in peers if (measures := _noisy(results, peer))]:
        yield f"\nMeasured while the machine's host took more than {QUIET * 100:.0f} % of its processor time for others: {'; '.join(noisy)}."
    if left_out := [f"{peer.title} ({', '.join(measures)})" for peer in peers if (measures := _left_out(results, peer))]:
        yield (
            "\nRounds that do not count, for the host took more of the processor in them than in those that do; they are in"
            f" [benchmarks.json](benchmarks.json): {'; '.join(left_out)}."
        )
    yield "\nEvery package that they brought along is in [benchmarks.json](benchmarks.json)."
    yield "\n### What a peer cannot do, and what one must know\n"
    for peer in peers:
        for measure, note in _notes(results, peer).items():
            yield f"- **{peer.title}**, {WORDS.get(measure, measure)}: {note}"


def _kind(figure: Results) -> str:
    """Of machine: those of one kind still differ from day to day, so what is compared closely was measured in one run."""
    names = (("postgresql", "PostgreSQL"), ("redis", "Redis"), ("python", "Python"))
    programs = "".join(f", {name} {figure[key]}" for key, name in names if key in figure)
    return f"{figure['cores']} cores ({figure['processor']}), {figure['memory']}{programs}"


def _apart(results: Results, peers: list[Peer], measure: str) -> list[str]:
    """Who was measured, but not in the run in which Hourhand was; and on what, if that was another kind of machine."""
    taken = {peer.title: results["peers"][peer.name][measure] for peer in peers
             if measure in results["peers"][peer.name] and not peer.cannot(measure)}  # fmt: skip
    ours = results["peers"].get("hourhand", {}).get(measure)
    if ours is None:
        return []
    return [
        title + ("" if one.get("processor") == ours.get("processor") else f" ({one.get('processor')})")
        for title, one in taken.items()
        if _run(one) != _run(ours)
    ]


def _of_earlier_settings(results: Results, peer: Peer) -> list[str]:
    now = peer.fingerprint()
    found = results["peers"][peer.name].items()
    return [WORDS.get(name, name) for name, one in found if not peer.cannot(name) and one.get("adapter") != now]


def _noisy(results: Results, peer: Peer) -> list[str]:
    found = results["peers"][peer.name].items()
    return [WORDS.get(name, name) for name, one in found if statistics.median(one.get("stolen") or [0.0]) > QUIET]


def _commits(results: Results, peer: Peer) -> str:
    """And the trees of src in them, which commits of the history have too; and what was measured of which."""
    found: dict[tuple[str, str], list[str]] = {}
    for measure, one in results["peers"][peer.name].items():
        found.setdefault((one["commit"], one["source"]), []).append(WORDS.get(measure, measure))
    return "; ".join(f"{commit} (src {source}): {', '.join(names)}" for (commit, source), names in found.items())


def _left_out(results: Results, peer: Peer) -> list[str]:
    found = results["peers"][peer.name].items()
    return [f"{WORDS.get(name, name)}: {len(one['noisy'])}" for name, one in found if one.get("noisy")]


def _notes(results: Results, peer: Peer) -> dict[str, str]:
    notes = dict(peer.remarks)
    for column in COLUMNS:
        remark = f" ({peer.remarks[column.measure]})" if column.measure in peer.remarks else ""
        if isinstance(reason := _value(results, peer, column), str):
            told = reason if reason == peer.cannot(column.measure) else _short(reason)
            notes[column.measure] = f"no: {told}{remark}"
        elif failed := results["peers"][peer.name].get(column.measure, {}).get("failed"):
            notes[column.measure] = f"{_failures(failed)}{remark}"
        elif results["peers"][peer.name].get(column.measure, {}).get("dry"):
            notes[column.measure] = f"its runs were done as fast as they could be put in, so it may do more.{remark}"
    return notes


def _failures(failed: list[str]) -> str:
    return f"{len(failed)} of the rounds failed: {_short(failed[0])}"


def _short(reason: str) -> str:
    """Its first line; and the last one, where an error is told after all that led to it."""
    first, *rest = reason.strip().splitlines()
    line = f"{first} … {rest[-1]}" if rest else first
    return line if len(line) < 200 else f"{line[:100]} … {line[-100:]}"
