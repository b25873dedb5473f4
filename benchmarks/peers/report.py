"""The results as tables and charts: docs/benchmarks.md."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.peers.field import Peer

COLUMNS = {
    "many": ("many", "enqueue in bulk", "runs/s"),
    "single": ("single", "enqueue one by one", "runs/s"),
    "drain 1": ("drain", "drain, one process", "runs/s"),
    "drain 2": ("drain", "drain, two processes", "runs/s"),
    "latency p50": ("latency", "to start, p50", "ms"),
    "latency p99": ("latency", "to start, p99", "ms"),
    "register": ("register", "register 10,000", "s"),
    "due 1000": ("due", "last of 1,000 due", "s"),
    "due 10000": ("due", "last of 10,000 due", "s"),
    "kill": ("kill", "after kill -9", "s"),
    "held beside": ("held", "beside a held transaction", "runs/s"),
}


def cell(results: dict[str, Any], peer: Peer, column: str) -> str:
    measured = results["peers"].get(peer.name, {}).get(COLUMNS[column][0])
    if measured is None:
        return ""
    if "no" in measured:
        return "no"
    value: float = measured[column]
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def show(results: dict[str, Any], peers: list[Peer]) -> None:
    table = Table("", *(f"{name}, {unit}" for _, name, unit in COLUMNS.values()), box=None)
    for peer in peers:
        if peer.name in results["peers"]:
            table.add_row(peer.title, *(cell(results, peer, column) for column in COLUMNS))
    Console(width=200).print(table)


def write(results: dict[str, Any], peers: list[Peer]) -> None:
    show(results, peers)
