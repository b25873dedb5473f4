"""`hourhand logs`: what a run said."""

from __future__ import annotations

import asyncio
import sys
from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from hourhand.surfaces.cli.common import AnyApp, err, out, plain, run
from hourhand.surfaces.cli.connection import connected
from hourhand.surfaces.cli.runs import Run
from hourhand.surfaces.views import LineView

PAGE = 1_000
LOOK_EVERY = 0.5
LAST_LOOKS = 3
"""How often a run that has ended is looked at again: its worker writes its last lines beside its outcome, not before it."""
_STYLES = {
    "debug": "dim",
    "info": "",
    "stdout": "",
    "stderr": "yellow",
    "warning": "yellow",
    "error": "red",
    "critical": "bold red",
}


@connected
def logs(
    app: AnyApp,
    run_id: Run,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    since_attempt: Annotated[int, typer.Option("--since-attempt", metavar="N", min=1, help="Only attempt N and later ones.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """What a run said: its handler through ctx.log, or its program.

    Example: hourhand logs r_1f3k --follow
    """
    printer = Printer(since_attempt, as_json)

    async def work(app: AnyApp) -> None:
        await (_follow(app, run_id, printer) if follow else _print_all(app, run_id, printer))

    run(app, work)
    if not printer.printed and not as_json:
        err.print("[dim]it has said nothing[/]")


async def _print_all(app: AnyApp, run_id: str, printer: Printer) -> bool:
    """What there is beyond what was printed. False: nothing."""
    came = False
    while lines := await app.runs.logs(run_id, after=printer.last, limit=PAGE):
        came = True
        for line in lines:
            printer.print(line)
        if len(lines) < PAGE:
            break
    sys.stdout.flush()
    return came


async def _follow(app: AnyApp, run_id: str, printer: Printer) -> None:
    quiet = 0
    while quiet < LAST_LOOKS:
        ended = (await app.runs.show(run_id)).finished
        came = await _print_all(app, run_id, printer)
        quiet = quiet + 1 if ended and not came else 0
        await asyncio.sleep(LOOK_EVERY)


class Printer:
    def __init__(self, since_attempt: int, as_json: bool) -> None:
        self._since, self._as_json = since_attempt, as_json
        self._attempt: int | None = None
        self._day: Any = None
        self.last = 0
        """The number of the line that was seen last."""
        self.printed = 0

    def print(self, line: LineView) -> None:
        self.last = line.number
        if line.attempt < self._since:
            return
        self.printed += 1
        if self._as_json:
            sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
            return
        at = line.at.astimezone()
        if (line.attempt, at.date()) != (self._attempt, self._day):
            self._attempt, self._day = line.attempt, at.date()
            out.print(Text(f"attempt {line.attempt}, {at:%Y-%m-%d %z}", "dim"), soft_wrap=True)
        out.print(_shown(line, at), soft_wrap=True)


def _shown(line: LineView, at: datetime) -> Text:
    style = _STYLES.get(line.level, "")
    shown = Text.assemble((f"{at:%H:%M:%S}.{at.microsecond // 1000:03}", "dim"), "  ", plain(f"{line.level:<8}", style), " ")
    shown.append_text(plain(line.text, style))
    for name, value in (line.fields or {}).items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        shown.append_text(plain(f"  {name}=", "dim")).append_text(plain(text))
    return shown
