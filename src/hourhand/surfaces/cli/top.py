"""`hourhand top`: queues, runs and nodes, live."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hourhand.core.errors import ConfigurationError
from hourhand.surfaces.cli.common import AnyApp, AsJson, fixed, folded, number, out, polite, print_json, run, table
from hourhand.surfaces.cli.connection import connected
from hourhand.surfaces.cli.live.rows import PANES, Pane, Row, headline, is_number
from hourhand.surfaces.cli.live.survey import Survey, look
from hourhand.surfaces.cli.runs import listed

if TYPE_CHECKING:
    from hourhand.surfaces.cli.live.screen import Top

_ON_PAPER = 20
_LEAST = 20
_LONG = ("queue", "task", "name", "reason")


@connected
def top(
    app: AnyApp,
    interval: Annotated[float, typer.Option("--interval", min=0.2, max=3_600, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print what there is now, and end. So without a terminal.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch queues, runs and nodes, and act on them: pause, cancel, run again. `?` names the keys.

    Example: hourhand top --interval 5
    """
    if once or as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        _print(run(app, look), as_json)
        return
    screen = polite(_screen)
    run(app, lambda app: screen(app, interval).run_async())


def _screen() -> type[Top]:
    # Only here: it is an extra, and takes a moment to import.
    try:
        from hourhand.surfaces.cli.live.screen import Top
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "textual":
            raise
        raise ConfigurationError(
            "the live view needs Textual: pip install 'hourhand[top]'. Without it, `hourhand top --once` prints what there is now"
        ) from None
    return Top


def _print(survey: Survey, as_json: bool) -> None:
    if as_json:
        print_json(
            {**survey.to_dict(), "queues": survey.queues, "runs": [listed(one) for one in survey.runs], "nodes": survey.nodes}
        )
        return
    out.print(headline(survey), soft_wrap=True)
    for pane in PANES:
        _print_pane(pane, survey)


def _print_pane(pane: Pane, survey: Survey) -> None:
    found = list(pane.rows(survey))
    rows = found[:_ON_PAPER]
    out.print()
    if not rows:
        out.print(f"no {pane.name}")
        return
    # A single look knows no rates, and much of a run is empty while nothing is wrong.
    shown = [place for place, _ in enumerate(pane.columns) if any(row.cells[place].plain for row in rows)]
    if pane.columns[shown[-1]] == "reason":
        _fit(rows, shown, pane.columns)
    columns = [pane.columns[place] for place in shown]
    grid = table(*(number(one) if is_number(one) else folded(one) if one in _LONG else fixed(one) for one in columns))
    for row in rows:
        grid.add_row(*(row.cells[place] for place in shown))
    out.print(grid)
    if len(found) > len(rows):
        out.print(f"and {len(found) - len(rows):,} more {pane.name}", style="dim")


def _fit(rows: list[Row], shown: list[int], columns: tuple[str, ...]) -> None:
    """Cut the last column to what is left of a line, or leave it out: the table would break the names before it as well."""
    *others, last = shown
    room = out.width - sum(2 + max(len(columns[place]), *(len(row.cells[place]) for row in rows)) for place in others)
    if room < _LEAST:
        shown.pop()
    for row in rows:
        row.cells[last].truncate(max(room, 1), overflow="ellipsis")
