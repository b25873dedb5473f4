"""`hourhand jobs backfill`: a job's past, run again."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Any

import typer

from hourhand.core.clock import Clock
from hourhand.core.errors import Forbidden, InvalidOption
from hourhand.surfaces.cli.common import AnyApp, AsJson, Exit, counted, err, instant, out, polite, print_json, run
from hourhand.surfaces.cli.connection import connected
from hourhand.surfaces.cli.job_options import Job
from hourhand.surfaces.cli.progress import bar
from hourhand.surfaces.cli.why import stamp
from hourhand.surfaces.past import Backfill

LOOK_EVERY = 0.5


@connected
def backfill_job(
    app: AnyApp,
    name: Job,
    since: Annotated[
        datetime,
        typer.Option("--since", metavar="WHEN", parser=instant, help="From this instant on: 15m, 2h, 7d ago, or ISO 8601."),
    ],
    until: Annotated[
        datetime | None,
        typer.Option("--until", metavar="WHEN", parser=instant, help="Up to this instant, without it. Default: now."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would run.")] = False,
    cap: Annotated[int, typer.Option("--cap", help="More firings than this are refused.")] = 1_000,
    rate: Annotated[float, typer.Option("--rate", help="How many start in a second.")] = 10.0,
    order: Annotated[
        str, typer.Option("--order", autocompletion=lambda: ["oldest", "newest"], help="Which start first: oldest or newest.")
    ] = "oldest",
    again: Annotated[bool, typer.Option("--again", help="All of them, those that succeeded or were asked for included.")] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait for the runs to end.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Call off what a backfill of this period has not started yet.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Runs for the firings of a past period that have not succeeded, each once, however often this is asked for.

    It follows them until all have ended; the exit code is 1 if some did not succeed. Ctrl-C calls off what has
    not started.

    Example: hourhand jobs backfill weekly --since 2026-01-01T00:00:00Z --until 2026-02-01T00:00:00Z --dry-run
    """
    end = until or Clock().instant()
    polite(lambda: _check_options(since, end, dry_run, again, no_wait, cancel))
    loaded = app
    period = (name, since, end)
    if cancel:
        count = run(loaded, lambda app: app.jobs.cancel_backfill(*period))
        if as_json:
            print_json({"job": name, "called_off": count})
        else:
            out.print(f"{counted(count, 'run')} called off" if count else "nothing of it is waiting to start")
        return
    options = {"cap": cap, "rate": rate, "order": order, "again": again}
    filled, called_off = run(loaded, lambda app: _fill(app, period, options, dry_run, no_wait))
    if as_json:
        print_json(_plain(filled, called_off))
    else:
        _print(filled, dry_run, no_wait)
    if called_off is not None:
        which = f"{counted(called_off, 'run')} had not started and {'is' if called_off == 1 else 'are'} called off"
        err.print(f"interrupted: {which}; the others go on", soft_wrap=True)
        raise typer.Exit(130)
    if not (dry_run or no_wait) and filled.succeeded < len(filled.runs):
        raise typer.Exit(Exit.FAILED)


def _check_options(since: datetime, until: datetime, dry_run: bool, again: bool, no_wait: bool, cancel: bool) -> None:
    if since >= until:
        raise InvalidOption(f"the period is empty: --until ({stamp(until)}) must be after --since ({stamp(since)})")
    if cancel and (dry_run or again or no_wait):
        raise InvalidOption("--cancel only calls off; leave out --dry-run, --again and --no-wait")


async def _fill(
    app: AnyApp, period: tuple[str, datetime, datetime], options: dict[str, Any], dry_run: bool, no_wait: bool
) -> tuple[Backfill, int | None]:
    """How far it came, and, if Ctrl-C ended it, how many runs were called off."""
    # Planned on its own first: a Ctrl-C before anything is in must not call off what others have asked for.
    filled = await app.jobs.backfill(*period, dry_run=True, **options)
    if dry_run or not filled.instants:
        return filled, None
    filled.dry_run = False
    try:
        with bar("inserted", len(filled.instants)) as show:

            def progress(one: Backfill) -> None:
                nonlocal filled
                filled = one
                show(len(one.runs))

            filled = await app.jobs.backfill(*period, progress=progress, **options)
        if not no_wait:
            await _follow(app, filled)
    except asyncio.CancelledError:
        # Ctrl-C. It is taken as an order, not as an end: there is something left to do.
        current = asyncio.current_task()
        if current is not None:
            current.uncancel()
        return filled, await app.jobs.cancel_backfill(*period)
    return filled, None


async def _follow(app: AnyApp, filled: Backfill) -> None:
    if not await _has_workers(app):
        err.print("[yellow]no worker is alive[/]: the runs wait until one is; Ctrl-C calls them off", soft_wrap=True)
    with bar("ended", len(filled.runs), always=True) as show:
        async for one in app.jobs.follow(filled):
            show(one.ended)
            if one.ended < len(one.runs):
                await asyncio.sleep(LOOK_EVERY)


async def _has_workers(app: AnyApp) -> bool:
    try:
        return any(one.kind == "worker" for one in await app.nodes.list())
    except Forbidden:
        # With a key for a part of everything nobody can tell.
        return True


def _plain(one: Backfill, called_off: int | None) -> dict[str, Any]:
    return {
        "job": one.job, "dry_run": one.dry_run, "instants": one.instants, "ran_already": one.ran_already,
        "asked_already": one.asked_already, "run_ids": one.run_ids, "ended": one.ended, "succeeded": one.succeeded,
        "called_off": called_off,
    }  # fmt: skip


def _print(one: Backfill, dry_run: bool, no_wait: bool) -> None:
    left_out = []
    if one.ran_already:
        left_out.append(f"{one.ran_already:,} succeeded already")
    if one.asked_already:
        left_out.append(f"{one.asked_already:,} asked for already (--cancel calls them off)")
    besides = f"; left out: {', '.join(left_out)}" if left_out else ""
    if not one.instants:
        out.print(f"nothing to run in this period{besides}", soft_wrap=True)
        return
    first, last = min(one.instants), max(one.instants)
    period = f", the first for {stamp(first)}, the last for {stamp(last)}"
    if dry_run:
        out.print(f"{counted(len(one.instants), 'run')} would be made{period}{besides}", soft_wrap=True)
    elif no_wait or one.ended < len(one.runs) or not one.runs:
        out.print(f"{counted(len(one.runs), 'run')} made{period}{besides}", soft_wrap=True)
    else:
        rest = one.ended - one.succeeded
        ends = f"{one.succeeded:,} succeeded" + (f", [red]{rest:,} did not[/]: hourhand jobs runs {one.job}" if rest else "")
        out.print(f"{counted(len(one.runs), 'run')}: {ends}{besides}", soft_wrap=True)
