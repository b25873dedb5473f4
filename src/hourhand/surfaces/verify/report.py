"""The verdict, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from hourhand.surfaces.verify.checker import FaultReport, Numbers, Rate, Verdict
from hourhand.surfaces.verify.observations import Finding
from hourhand.surfaces.verify.windows import WindowCount

MOST_FINDINGS = 20
"""Of each check; programs get all of them."""


def to_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "verdict": verdict.status,
        "numbers": asdict(verdict.numbers),
        "faults": {name: asdict(fault) for name, fault in verdict.faults.items()},
        "void": verdict.void,
        "findings": [asdict(finding) for finding in verdict.findings],
    }


def print_report(verdict: Verdict, console: Console, replay: str) -> None:
    """`replay` is the command line that does the same again."""
    console.print(_windows(verdict.numbers), "")
    console.print(_facts(verdict.numbers), "")
    if verdict.faults:
        console.print(_faults(verdict.faults), "")
    for check, findings in verdict.by_check().items():
        _print_findings(console, check, findings)
    console.print(_last_line(verdict, replay), soft_wrap=True)


def _windows(numbers: Numbers) -> Table:
    columns = [Column(name, justify="right") for name in ("expected", "matched", "excused", "missed", "extra")]
    table = _table(Column("windows", no_wrap=True), *columns)
    for name, count in (("by their instant", numbers.by_key), ("by the sink's clock", numbers.by_time)):
        table.add_row(name, *_cells(count))
    return table


def _cells(count: WindowCount) -> list[Text]:
    good = [Text(f"{number:,}") for number in (count.expected, count.matched, count.excused)]
    return good + [Text(f"{number:,}", "red" if number else "green") for number in (count.missed, count.extra)]


def _facts(numbers: Numbers) -> Table:
    """Name and value, line by line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in numbers.outcomes.items())
    unknown = f", {numbers.unknown:,} without an answer" if numbers.unknown else ""
    for name, value in (
        ("runs", f"{numbers.runs:,}: {outcomes}" if outcomes else "0"),
        ("enqueued directly", f"{numbers.accepted:,}{unknown}"),
        ("missing", _rate(numbers.losses)),
        ("twice", _rate(numbers.doubles)),
        ("attempts begun again", _rate(numbers.duplicate_attempts)),
        ("exactly-once effects twice", _rate(numbers.duplicate_effects)),
        ("at-least-once effects again", _rate(numbers.repeated_effects)),
        ("refused", f"{numbers.refusals:,} by the product, {numbers.sink_refusals:,} stale effects by the sink"),
    ):
        table.add_row(name, value)
    return table


def _rate(rate: Rate) -> str:
    if rate.count:
        return f"{rate.count:,} of {rate.among:,} ({rate.per_million:,.0f} per million)"
    return f"none of {rate.among:,}" + (f": below {rate.below:.2g} with 95 % confidence" if rate.below is not None else "")


def _faults(faults: dict[str, FaultReport]) -> Table:
    right = [Column(name, justify="right", no_wrap=True) for name in ("times", "recovered", "p50", "p99", "longest")]
    table = _table(Column("fault", no_wrap=True), *right, Column("traces", overflow="fold"))
    for name, fault in faults.items():
        one = fault.recovery
        times = [f"{one.count:,}", *(_seconds(part) for part in (one.p50, one.p99, one.longest))] if one else [""] * 4
        traces = ", ".join(f"{effect} {count:,}" for effect, count in fault.effects.items())
        table.add_row(Text(name), f"{fault.injected:,}", *times, Text(traces))
    return table


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _print_findings(console: Console, check: str, findings: list[Finding]) -> None:
    console.print(Text.assemble((check, "bold red"), f": {len(findings):,}"))
    for one in findings[:MOST_FINDINGS]:
        console.print(Text(f"  {one.subject}  {one.message}"), soft_wrap=True)
    if len(findings) > MOST_FINDINGS:
        console.print(f"  and {len(findings) - MOST_FINDINGS:,} more; --json names them all")
    console.print()


def _last_line(verdict: Verdict, replay: str) -> Text:
    if verdict.status == "violated":
        counts = ", ".join(f"{len(findings):,} {check}" for check, findings in verdict.by_check().items())
        meant = (
            " (asynchronous replication loses what it acknowledged last: this is that loss)"
            if "async-standby" in verdict.asked
            else ""
        )
        return Text.assemble(("VIOLATED:", "bold red"), f" {counts}{meant}; again with: {replay}")
    if verdict.status == "void":
        return Text.assemble(("void:", "bold yellow"), f" {'; '.join(verdict.void)}; again with: {replay}")
    numbers = verdict.numbers
    under = f" under {', '.join(verdict.asked)}" if verdict.asked else ""
    words = f" {numbers.by_key.expected:,} windows and {numbers.runs:,} runs{under}: none missing, none twice"
    return Text.assemble(("verified:", "bold green"), words)


def _table(*columns: Column) -> Table:
    return Table(*columns, box=None, header_style="bold", pad_edge=False)
