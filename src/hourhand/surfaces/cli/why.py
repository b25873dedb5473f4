"""`hourhand why`: what became of every firing that was expected of a job."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.text import Text

from hourhand.core.account import UNEXPLAINED, Line
from hourhand.core.clock import Clock
from hourhand.core.errors import InvalidOption
from hourhand.surfaces.cli.common import AnyApp, AsJson, Exit, err, instant, out, plain, polite, print_json, run, span
from hourhand.surfaces.cli.connection import connected
from hourhand.surfaces.cli.job_options import Job
from hourhand.surfaces.views import STATES, Audit

OUTCOMES = (
    *STATES, "coalesced", "paused", "dst_gap", "finished", "fired", "unregistered", "due", "expected", "unknown", UNEXPLAINED,
)  # fmt: skip
_STYLES = {
    "succeeded": "green", "fired": "green", "running": "cyan", "ready": "cyan", "delayed": "cyan", "expected": "dim",
    "finished": "dim", "dead": "red", "lost": "red", UNEXPLAINED: "bold red",
}  # fmt: skip
_OTHERWISE = "yellow"
_NAMED = 100


@connected
def why(
    app: AnyApp,
    job: Job,
    at: Annotated[
        datetime | None,
        typer.Option("--at", metavar="WHEN", parser=instant, help="Only the firing of this instant: ISO 8601."),
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option("--since", metavar="WHEN", parser=instant, help="15m, 2h, 7d ago, or ISO 8601. Default: a day ago."),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option("--until", metavar="WHEN", parser=instant, help="15m, 2h, 7d ago, or ISO 8601. Default: now."),
    ] = None,
    outcome: Annotated[
        list[str] | None,
        typer.Option(
            "--outcome",
            metavar="OUTCOME",
            autocompletion=lambda: list(OUTCOMES),
            help=f"Only firings that ended so; repeatable. Any of {', '.join(OUTCOMES)}.",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only judge: exit code 1 unless every firing has exactly one outcome on record.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Why a job ran, or did not: one line for each firing that was expected of it, and what became of it.

    Example: hourhand why nightly-report --since 7d --outcome skipped --outcome coalesced
    """
    polite(lambda: _check_options(at, since, until, outcome or [], check))
    loaded = app
    if check:
        _judge(loaded, job, at, since, until, as_json)
        return
    lines = run(loaded, lambda app: app.jobs.why(job, at=at, since=since, until=until))
    shown = [line for line in lines if not outcome or line.outcome in outcome]
    if as_json:
        print_json([line.to_dict() for line in shown])
        return
    _print_lines(shown)
    out.print(_summary(lines, len(shown)), soft_wrap=True)


def _check_options(at: datetime | None, since: datetime | None, until: datetime | None, outcomes: list[str], check: bool) -> None:
    if at is not None and (since or until):
        raise InvalidOption("--at means one firing, --since and --until a period; give one or the other")
    for one in outcomes:
        if one not in OUTCOMES:
            raise InvalidOption(f"{one!r} is no outcome; there are {', '.join(OUTCOMES)}")
    if outcomes and check:
        raise InvalidOption("--check judges every firing and prints none; leave out --outcome")


def _print_lines(lines: list[Line]) -> None:
    """A firing is a line, however long: it can be searched, and the terminal may wrap it."""
    cells = [(stamp(line.scheduled_at), line.outcome, _late(line), line.node or "", line.run_id or "") for line in lines]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line, (when, outcome, late, node, run_id) in zip(lines, cells, strict=True):
        text = Text.assemble(
            when.ljust(widths[0]), "  ", (outcome.ljust(widths[1]), _STYLES.get(outcome, _OTHERWISE)), "  ",
            (f"{late:>{widths[2]}}  " if widths[2] else ""), (plain(node.ljust(widths[3]) + "  ") if widths[3] else ""),
            (run_id.ljust(widths[4]) + "  " if widths[4] else ""), plain(" ".join(line.reason.split())),
        )  # fmt: skip
        out.print(text, soft_wrap=True)


def _late(line: Line) -> str:
    return "" if line.late_seconds is None else f"{span(line.late_seconds)} late"


def _summary(lines: list[Line], shown: int) -> str:
    extra = sum(line.by_hand is not None for line in lines)
    counts = Counter(line.outcome for line in lines if line.by_hand is None)
    words = f"{counts.total():,} expected"
    if counts:
        words += ": " + ", ".join(f"{count:,} {outcome}" for outcome, count in counts.most_common())
    if extra:
        words += f"; {extra:,} besides, by hand"
    return words if shown == len(lines) else f"{words}; {shown:,} shown"


def _judge(app: AnyApp, job: str, at: datetime | None, since: datetime | None, until: datetime | None, as_json: bool) -> None:
    now = Clock().instant()
    low = at or since or now - timedelta(days=1)
    high = at + timedelta(seconds=1) if at else until or now

    async def work(app: AnyApp) -> Audit:
        if at is not None:
            # Of an instant at which nothing is expected it says so; the audit would call it clean.
            await app.jobs.why(job, at=at)
        return await app.jobs.audit(job, low, high)

    audit = run(app, work)
    if as_json:
        found = {"expected": audit.expected, "unexplained": audit.unexplained, "doubles": audit.doubles, "clean": audit.clean}
        print_json({"job": job, "since": low, "until": high, **found})
    elif audit.clean:
        out.print(f"clean: {audit.expected:,} expected, each with one outcome on record")
    else:
        for name, words, instants in (
            ("unexplained", "nothing on record says what became of it", audit.unexplained),
            ("double", "more than one run", audit.doubles),
        ):
            for one in instants[:_NAMED]:
                out.print(Text.assemble(stamp(one), "  ", (name, "red"), f"  {words}"), soft_wrap=True)
            if len(instants) > _NAMED:
                out.print(f"and {len(instants) - _NAMED:,} more; --json names them all")
        counts = f"{len(audit.unexplained):,} unexplained, {len(audit.doubles):,} double"
        err.print(f"[red]not clean[/]: of {audit.expected:,} expected, {counts}", soft_wrap=True)
    if not audit.clean:
        raise typer.Exit(Exit.FAILED)


def stamp(at: datetime) -> str:
    """An instant that can be given back to --at as it is."""
    text = at.astimezone(UTC).isoformat(timespec="microseconds" if at.microsecond else "seconds")
    return text.replace("+00:00", "Z")
