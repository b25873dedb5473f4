"""The results as tables and charts: in the terminal, and between the marks of docs/benchmarks.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.peers.field import PROJECT, Peer

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


COLUMNS = (
    Column("many", "many", "enqueue in bulk", "runs/s", True),
    Column("single", "single", "enqueue one by one", "runs/s", True),
    Column("drain 1", "drain", "drain, one process", "runs/s", True),
    Column("drain 2", "drain", "drain, two processes", "runs/s", True),
    Column("latency p50", "latency", "enqueue to start, p50", "ms"),
    Column("latency p99", "latency", "enqueue to start, p99", "ms"),
    Column("register", "register", "register 10,000 schedules", "s"),
    Column("due 1000", "due", "1,000 due at once: the last one", "s"),
    Column("due 10000", "due", "10,000 due at once: the last one", "s"),
    Column("kill", "kill", "after kill -9, starts elsewhere", "s"),
    Column("held beside", "held", "beside a held transaction", "runs/s", True),
    Column("held ratio", "held", "of its rate without one", "", True),
)


def _value(results: Results, peer: Peer, column: Column) -> float | str | None:
    """The figure; or why there is none; or nothing, if it was not measured."""
    measured = results["peers"].get(peer.name, {}).get(column.measure)
    if measured is None:
        return None
    value = measured.get(column.key)
    return str(measured["no"]) if value is None and "no" in measured else value


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _cell(value: float | str | None) -> str:
    if value is None:
        return ""
    return "no" if isinstance(value, str) else number(value)


def _measured(results: Results, peers: list[Peer]) -> list[Peer]:
    return [peer for peer in peers if peer.name in results["peers"]]


def show(results: Results, peers: list[Peer]) -> None:
    table = Table("", *(f"{column.title}, {column.unit}".rstrip(", ") for column in COLUMNS), box=None)
    for peer in _measured(results, peers):
        table.add_row(peer.title, *(_cell(_value(results, peer, column)) for column in COLUMNS))
    Console(width=220).print(table)


def write(results: Results, peers: list[Peer]) -> None:
    show(results, peers)
    measured = _measured(results, peers)
    text = "\n".join([*_tables(results, measured), "", *_charts(results, measured), *_settings(results, measured)])
    page = PAGE.read_text()
    PAGE.write_text(
        re.sub(r"(<!-- measured -->\n).*(<!-- end -->)", lambda found: f"{found[1]}{text}\n{found[2]}", page, flags=re.DOTALL)
    )


def _tables(results: Results, peers: list[Peer]) -> Iterator[str]:
    parts = (("Runs", COLUMNS[:6]), ("Schedules and faults", COLUMNS[6:]))
    for title, columns in parts:
        yield f"### {title}\n"
        yield "| | " + " | ".join(f"{one.title}, {one.unit}".rstrip(", ") for one in columns) + " |"
        yield "|---" + "|---:" * len(columns) + "|"
        for peer in peers:
            cells = [_cell(_value(results, peer, column)) for column in columns]
            name = f"**{peer.title}**" if peer.name == "hourhand" else peer.title
            yield f"| {name} | " + " | ".join(cells) + " |"
        yield ""


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
    machine = results["machine"]
    programs = (("postgresql", "PostgreSQL"), ("redis", "Redis"), ("python", "Python"), ("node", "Node.js"))
    named = ", ".join(f"{name} {machine[key].removeprefix('v')}" for key, name in programs if key in machine)
    days = sorted({one["at"][:10] for measured in results["peers"].values() for one in measured.values()})
    when = f"on {days[0]}" if len(days) == 1 else f"from {days[0]} to {days[-1]}"
    yield f"{machine['cores']} cores, {named}; measured {when}.\n"
    yield "| | version | server | settings |"
    yield "|---|---|---|---|"
    for peer in peers:
        yield f"| {peer.title} | {peer.versions() or _commits(results, peer)} | {peer.server} | {peer.settings} |"
    yield "\n### What a peer cannot do, and what one must know\n"
    for peer in peers:
        for measure, note in _notes(results, peer).items():
            yield f"- **{peer.title}**, {measure}: {note}"


def _commits(results: Results, peer: Peer) -> str:
    return "commits " + ", ".join(sorted({one["commit"] for one in results["peers"][peer.name].values()}))


def _notes(results: Results, peer: Peer) -> dict[str, str]:
    notes = dict(peer.remarks)
    for column in COLUMNS:
        remark = f" ({peer.remarks[column.measure]})" if column.measure in peer.remarks else ""
        if isinstance(reason := _value(results, peer, column), str):
            notes[column.measure] = f"no: {_short(reason)}{remark}"
        elif failed := results["peers"][peer.name].get(column.measure, {}).get("failed"):
            notes[column.measure] = f"{len(failed)} of the rounds failed: {_short(failed[0])}{remark}"
    return notes


def _short(reason: str) -> str:
    line = reason.strip().splitlines()[0]
    return line if len(line) < 200 else line[:200] + " …"
