"""`hourhand jobs`: add jobs, look at them, change, hold and start them, and run their past again."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar

import msgspec
import typer
from msgspec import UNSET, UnsetType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from hourhand.core import job as definitions
from hourhand.core.clock import Clock
from hourhand.core.errors import DatabaseUnavailable, HourhandError, InvalidOption, InvalidSchedule, JobConflict
from hourhand.core.fairness import PRIORITIES
from hourhand.core.schedule import DST, parse_span
from hourhand.core.zones import load_zone, zone_names
from hourhand.engine.logs import configure_logs
from hourhand.surfaces.app import Hourhand
from hourhand.surfaces.cli.common import (
    App,
    AsJson,
    Data,
    Exit,
    Schema,
    Url,
    ago,
    ask,
    err,
    instant,
    make_app,
    out,
    plain,
    polite,
    print_json,
    run,
    span,
    table,
    tell,
)
from hourhand.surfaces.cli.editing import parse_payload, read_payload
from hourhand.surfaces.cli.runs import colour
from hourhand.surfaces.cli.why import stamp
from hourhand.surfaces.jobs import STATES, Backfill
from hourhand.surfaces.views import BulkAdded, JobView, RunView

T = TypeVar("T")
LOOK_EVERY = 0.5
MANY = 1_000
_LAST_RUNS = 5
_STYLES = {"active": "green", "paused": "yellow", "finished": "dim"}
# What a list of runs does not read from the database is left out of its JSON, lest it look empty.
_UNREAD = ("enqueued_at", "expires_at", "payload", "options", "errors", "result", "progress")
_NUMBER = re.compile(r"\d+(\.\d+)?")

commands = typer.Typer(
    help="Add jobs, look at them, change, hold and start them, and run their past again.", no_args_is_help=True
)

Job = Annotated[str, typer.Argument(metavar="JOB", help="The job's name, or its id.", show_default=False)]
Names = Annotated[list[str], typer.Argument(metavar="JOB", help="Names or ids of jobs.", show_default=False)]
Expression = Annotated[
    str | None, typer.Option("--schedule", metavar="EXPR", help="Cron, 'every 90s', 'in 10m', or an ISO 8601 instant.")
]
Task = Annotated[str | None, typer.Option("--task", metavar="NAME", help="The task to run. Default: the job's name.")]
Zone = Annotated[
    str | None,
    typer.Option(
        "--tz",
        metavar="ZONE",
        autocompletion=lambda: sorted(zone_names()),
        help="IANA zone in which cron is meant. Default: UTC.",
    ),
]
Payload = Annotated[
    str | None,
    typer.Option("--payload", metavar="JSON", help="The task's arguments, a JSON object; @FILE reads a file, - standard input."),
]
Queue = Annotated[str | None, typer.Option("--queue", help="The queue of its runs. Default: the task's, or default.")]
Priority = Annotated[
    str | None,
    typer.Option("--priority", autocompletion=lambda: list(PRIORITIES), help=f"One of {', '.join(PRIORITIES)}."),
]
Dst = Annotated[
    str | None,
    typer.Option(
        "--dst", autocompletion=lambda: list(DST), help="A local time that does not exist: shift it (default) or skip it."
    ),
]
Anchor = Annotated[str | None, typer.Option("--anchor", metavar="ISO", help="Where an interval is counted from.")]
MissedWindow = Annotated[
    str | None,
    typer.Option(
        "--missed-window",
        metavar="POLICY",
        autocompletion=lambda: list(definitions.MISSED),
        help="What was missed while no scheduler ran: SKIP, RUN_ONCE (default) or RUN_ALL.",
    ),
]
MaxMissed = Annotated[int | None, typer.Option("--max-missed", help="RUN_ALL runs at most so many. Default: 100.")]
MisfireGrace = Annotated[
    str | None, typer.Option("--misfire-grace", metavar="SPAN", help="Later than this counts as missed. Default: 60s.")
]
Overlap = Annotated[
    str | None,
    typer.Option(
        "--overlap",
        autocompletion=lambda: list(definitions.OVERLAP),
        help="If the run before has not ended: allow (default), skip, queue or replace.",
    ),
]
FlexibleWindow = Annotated[
    str | None,
    typer.Option(
        "--flexible-window", metavar="SPAN", help="Each job starts at a place of its own within so much, for example 5m."
    ),
]
StartAt = Annotated[str | None, typer.Option("--start-at", metavar="ISO", help="No firing before this instant.")]
EndAt = Annotated[str | None, typer.Option("--end-at", metavar="ISO", help="No firing from this instant on.")]
MaxRuns = Annotated[int | None, typer.Option("--max-runs", help="It is finished after so many firings.")]
MaxAttempts = Annotated[int | None, typer.Option("--max-attempts", help="Tries of each run. Default: the task's.")]
Timeout = Annotated[
    str | None, typer.Option("--timeout", metavar="SECONDS", help="For each try: 90, or 5m. Default: the task's.")
]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="For its runs to carry; repeatable.")]
Then = Annotated[
    str | None,
    typer.Option("--then", metavar="TASK", help="The task that follows each success; its argument `result` gets the result."),
]
Missed = Annotated[
    str | None,
    typer.Option(
        "--missed",
        metavar="POLICY",
        autocompletion=lambda: list(definitions.MISSED),
        help="For what was missed during the pause: SKIP, RUN_ONCE or RUN_ALL. Default: the job's own policy.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


# Adding and changing


@commands.command("add")
def add_job(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="What the job is called.", show_default=False)] = None,
    schedule: Expression = None,
    task: Task = None,
    tz: Zone = None,
    payload: Payload = None,
    queue: Queue = None,
    priority: Priority = None,
    dst: Dst = None,
    anchor: Anchor = None,
    missed_window: MissedWindow = None,
    max_missed: MaxMissed = None,
    misfire_grace: MisfireGrace = None,
    overlap: Overlap = None,
    flexible_window: FlexibleWindow = None,
    start_at: StartAt = None,
    end_at: EndAt = None,
    max_runs: MaxRuns = None,
    max_attempts: MaxAttempts = None,
    timeout: Timeout = None,
    tag: Tags = None,
    then: Then = None,
    replace: Annotated[bool, typer.Option("--replace", help="Change the job of this name if there is one.")] = False,
    file: Annotated[
        str | None,
        typer.Option(
            "--file", metavar="FILE", help="Many jobs, each a line of JSON with what app.jobs.add takes; - is standard input."
        ),
    ] = None,
    as_json: AsJson = False,
    app: App = None,
    database_url: Url = None,
    data: Data = None,
    schema: Schema = None,
) -> None:
    """Add a job, or with --file very many: all of them, or, if one cannot be, none.

    The same definition again changes nothing; another one under the same name is refused unless --replace.
    With --app the payload is checked against the task's signature.

    Example: hourhand jobs add weekly --schedule "0 9 * * 1" --tz America/New_York --task report --payload '{"days": 7}'

    Example: hourhand jobs add --file jobs.ndjson --replace
    """
    given = polite(lambda: _options(ctx.params))
    if file is not None:
        added = polite(lambda: _add_file(make_app(app, database_url, data, schema), name, given, file, replace))
        if as_json:
            print_json(added)
        else:
            counts = asdict(added)
            out.print(", ".join(f"{count:,} {what}" for what, count in counts.items() if count or what == "added"))
        return
    word = polite(lambda: _named(name))
    view = run(make_app(app, database_url, data, schema), lambda app: _reworded(app.jobs.add(word, replace=replace, **given)))
    _print_changed(view, as_json)


@commands.command("update")
def update_job(
    ctx: typer.Context,
    name: Job,
    schedule: Expression = None,
    task: Task = None,
    tz: Zone = None,
    payload: Payload = None,
    queue: Queue = None,
    priority: Priority = None,
    dst: Dst = None,
    anchor: Anchor = None,
    missed_window: MissedWindow = None,
    max_missed: MaxMissed = None,
    misfire_grace: MisfireGrace = None,
    overlap: Overlap = None,
    flexible_window: FlexibleWindow = None,
    start_at: StartAt = None,
    no_start_at: Annotated[bool, typer.Option("--no-start-at", help="It may fire from now on.")] = False,
    end_at: EndAt = None,
    no_end_at: Annotated[bool, typer.Option("--no-end-at", help="It goes on for ever.")] = False,
    max_runs: MaxRuns = None,
    no_max_runs: Annotated[bool, typer.Option("--no-max-runs", help="Its firings are no longer counted.")] = False,
    max_attempts: MaxAttempts = None,
    no_max_attempts: Annotated[bool, typer.Option("--no-max-attempts", help="As many tries as its task says.")] = False,
    timeout: Timeout = None,
    no_timeout: Annotated[bool, typer.Option("--no-timeout", help="As long as its task says.")] = False,
    tag: Tags = None,
    no_tags: Annotated[bool, typer.Option("--no-tags", help="Its runs carry no tags.")] = False,
    then: Then = None,
    no_then: Annotated[bool, typer.Option("--no-then", help="Nothing follows.")] = False,
    as_json: AsJson = False,
    app: App = None,
    database_url: Url = None,
    data: Data = None,
    schema: Schema = None,
) -> None:
    """Change what is given and leave the rest. A job whose schedule stays keeps its pending firing.

    Tags and payload are given whole: they replace what was there.

    Example: hourhand jobs update weekly --schedule "30 8 * * 1" --no-end-at
    """
    changes = polite(lambda: _changes(ctx.params))
    view = run(make_app(app, database_url, data, schema), lambda app: app.jobs.update(name, **changes))
    _print_changed(view, as_json)


@commands.command("delete")
def delete_jobs(
    names: Names,
    yes: Yes = False,
    as_json: AsJson = False,
    app: App = None,
    database_url: Url = None,
    data: Data = None,
    schema: Schema = None,
) -> None:
    """Jobs go; their runs, waiting or ended, stay.

    Example: hourhand jobs delete weekly --yes
    """
    which = f"job {names[0]}" if len(names) == 1 else f"{len(names):,} jobs ({', '.join(names)})"
    if not yes:
        polite(_somebody_to_ask)
        if not ask(f"Delete {which}? Runs stay; the account of past firings goes."):
            err.print("nothing was done")
            raise typer.Exit(Exit.FAILED)

    async def delete(app: Hourhand, name: str) -> dict[str, Any]:
        await app.jobs.delete(name)
        return {"outcome": "deleted"}

    _each(make_app(app, database_url, data, schema), names, delete, lambda name, _: f"{name} is deleted", as_json)


@commands.command("deploy")
def deploy_jobs(
    app: Annotated[str, typer.Option("--app", help="The app, as module:name or file.py:name.")],
    force: Annotated[bool, typer.Option("--force", help="Even if a newer version of the code is running.")] = False,
    as_json: AsJson = False,
    database_url: Url = None,
    data: Data = None,
    schema: Schema = None,
) -> None:
    """Bring the jobs that an app declares in code into force: added, changed, removed.

    Workers and schedulers that are started with --app do this by themselves.

    Example: hourhand jobs deploy --app shop.jobs:app
    """
    # Its log would go to standard output, among what is printed here; this says the same.
    configure_logs(level="error")
    loaded = make_app(app, database_url, data, schema)
    done = run(loaded, lambda app: app.deployment.apply(force=force))
    waits = not done.applied and "newer" in done.reason
    if as_json:
        print_json(done)
    elif not done.applied:
        (err if waits else out).print(plain(f"nothing was changed: {done.reason}"), soft_wrap=True)
    else:
        changes = {"added": done.added, "changed": done.changed, "removed": done.removed}
        for what, names in changes.items():
            for one in names:
                out.print(f"{what:<7}  {one}", soft_wrap=True)
        if not any(changes.values()):
            out.print("everything is as it was declared")
    if waits:
        err.print("--force brings this version into force all the same", soft_wrap=True)
    if waits or done.refused:
        raise typer.Exit(Exit.NOT_POSSIBLE)


# Looking


@commands.command("list")
def list_jobs(
    state: Annotated[
        str | None,
        typer.Option("--state", autocompletion=lambda: list(STATES), help=f"One of {', '.join(STATES)}."),
    ] = None,
    task: Annotated[str | None, typer.Option("--task", help="Only this task.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="Only this queue.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Only jobs with this tag.")] = None,
    search: Annotated[str | None, typer.Option("--search", metavar="TEXT", help="A part of the name.")] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="NAME", help="The next page: the last name of the one before.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many, by name.")] = 50,
    as_json: AsJson = False,
    app: App = None,
    database_url: Url = None,
    data: Data = None,
    schema: Schema = None,
) -> None:
    """Jobs by name, and when each fires next.

    Example: hourhand jobs list --state active --queue billing --search report
    """
    filters = {"state": state, "task": task, "queue": queue, "tag": tag, "search": search}
    found = run(make_app(app, database_url, data, schema), lambda app: app.jobs.list(after=after, limit=limit, **filters))
    if as_json:
        print_json([_plain_view(one) for one in found])
    elif not found:
        out.print("no jobs match" if after or any(filters.values()) else "no jobs yet; add one: hourhand jobs add --help")
    else:
        _print_jobs(found)
    if len(found) == limit and not as_json:
        same = [word for name, value in filters.items() if value for word in (f"--{name}", value)]
        page = shlex.join(["hourhand", "jobs", "list", *same, "--after", found[-1].name, "--limit", str(limit)])
        err.print(plain(f"the first {limit:,}; the next page: {page}", "dim"), soft_wrap=True)


@commands.command("show")
def show_job(
    name: Job,
    count: Annotated[int, typer.Option("--count", min=1, max=10_000, help="How many of the next firings to show.")] = 5,
    as_json: AsJson = False,
    app: App = None,
    database_url: Url = None,
    data: Data = None,
    schema: Schema = None,
) -> None:
    """Everything about one job: its schedule in words, its next firings, its last runs, and how exceptions are treated.

    Example: hourhand jobs show weekly --count 10
    """

    async def look(app: Hourhand) -> tuple[JobView, list[datetime], list[RunView]]:
        view = await app.jobs.show(name)
        return view, await app.jobs.next(view.name, count), await app.jobs.runs(view.name, _LAST_RUNS)

    view, firings, runs = run(make_app(app, database_url, data, schema), look)
    if as_json:
        print_json({**_plain_view(view), "next": firings, "runs": [_plain_run(one) for one in runs]})
    else:
        _print_job(view, firings, runs)


@commands.command("runs")
def job_runs(
    name: Job,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many, the latest first.")] = 20,
    as_json: AsJson = False,
    app: App = None,
    database_url: Url = None,
    data: Data = None,
    schema: Schema = None,
) -> None:
    """The latest runs of a job, by the instant they are for.

    Example: hourhand jobs runs weekly --limit 5
    """
    found = run(make_app(app, database_url, data, schema), lambda app: app.jobs.runs(name, limit))
    if as_json:
        print_json([_plain_run(one) for one in found])
    elif not found:
        out.print("no runs yet")
    else:
        out.print(_runs_table(found))
        if len(found) == limit:
            err.print(f"[dim]the latest {limit}; --limit shows more[/]")


# Holding and starting


@commands.command("pause")
def pause_jobs(
    names: Names,
    as_json: AsJson = False,
    app: App = None,
    database_url: Url = None,
    data: Data = None,
    schema: Schema = None,
) -> None:
    """From now on these jobs do not fire. Runs that wait or are going on are not touched.

    Example: hourhand jobs pause weekly nightly
    """

    async def pause(app: Hourhand, name: str) -> dict[str, Any]:
        view = await app.jobs.pause(name)
        return {"state": view.state, "paused_at": view.paused_at}

    _each(make_app(app, database_url, data, schema), names, pause, lambda name, _: f"{name} is paused", as_json)


@commands.command("resume")
def resume_jobs(
    names: Names,
    missed: Missed = None,
    as_json: AsJson = False,
    app: App = None,
    database_url: Url = None,
    data: Data = None,
    schema: Schema = None,
) -> None:
    """These jobs fire again. What they missed is treated by their missed-window policy, or by --missed.

    Example: hourhand jobs resume weekly --missed RUN_ALL
    """
    policy = None if missed is None else missed.upper()

    async def resume(app: Hourhand, name: str) -> dict[str, Any]:
        done = await app.jobs.resume(name, missed=policy)
        job = done.job
        return {"state": job.state, "next_run_at": job.next_run_at, "started": done.started, "left_out": done.left_out}

    def say(name: str, one: dict[str, Any]) -> str:
        at = one["next_run_at"]
        words = f"{name} is resumed" + (f"; it fires next at {stamp(at)}" if at else f"; it is {one['state']}")
        if one["started"] or one["left_out"]:
            words += f"; of what it missed, {_runs(one['started'])} started and {one['left_out']:,} left out"
        return words

    _each(make_app(app, database_url, data, schema), names, resume, say, as_json)


@commands.command("trigger")
def trigger_job(
    name: Job,
    payload: Payload = None,
    force: Annotated[bool, typer.Option("--force", help="Even if the job's overlap policy would hold or skip it.")] = False,
    as_json: AsJson = False,
    app: App = None,
    database_url: Url = None,
    data: Data = None,
    schema: Schema = None,
) -> None:
    """A run here and now, besides the schedule, which stays as it is.

    Example: hourhand jobs trigger weekly --payload '{"days": 30}'
    """
    given = polite(lambda: None if payload is None else _payload(payload))
    done = run(make_app(app, database_url, data, schema), lambda app: app.jobs.trigger(name, payload=given, force=force))
    skipped = done.run_id is None
    if as_json:
        print_json(done)
    elif not skipped:
        how = "waits for the run before it to end" if done.outcome == "held" else "is started"
        out.print(plain(f"{done.run_id} {how}; look at it with: hourhand runs show {done.run_id}"), soft_wrap=True)
    if skipped:
        err.print(plain(f"{done.outcome}: the run before it has not ended; --force starts one all the same"), soft_wrap=True)
        raise typer.Exit(Exit.NOT_POSSIBLE)


# The past, again


@commands.command("backfill")
def backfill_job(
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
    app: App = None,
    database_url: Url = None,
    data: Data = None,
    schema: Schema = None,
) -> None:
    """Runs for the firings of a past period that have not succeeded, each once, however often this is asked for.

    It follows them until all have ended; the exit code is 1 if some did not succeed. Ctrl-C calls off what has
    not started.

    Example: hourhand jobs backfill weekly --since 2026-01-01T00:00:00Z --until 2026-02-01T00:00:00Z --dry-run
    """
    end = until or Clock().instant()
    polite(lambda: _check_backfill(since, end, dry_run, again, no_wait, cancel))
    loaded = make_app(app, database_url, data, schema)
    if cancel:
        count = run(loaded, lambda app: app.jobs.cancel_backfill(name, since, end))
        if as_json:
            print_json({"job": name, "called_off": count})
        else:
            out.print(f"{_runs(count)} called off" if count else "nothing of it is waiting to start")
        return
    options: dict[str, Any] = {"cap": cap, "rate": rate, "order": order, "again": again}
    called_off: int | None = None

    async def work(app: Hourhand) -> Backfill:
        nonlocal called_off
        # Planned on its own first: a Ctrl-C before anything is in must not call off what others have asked for.
        planned = await app.jobs.backfill(name, since, end, dry_run=True, **options)
        if dry_run or not planned.instants:
            return planned
        planned.dry_run = False
        filled = planned
        try:
            with _bar("inserted", len(planned.instants)) as show:

                def progress(one: Backfill) -> None:
                    nonlocal filled
                    filled = one
                    show(len(one.runs))

                filled = await app.jobs.backfill(name, since, end, progress=progress, **options)
            if not no_wait:
                await _follow(app, filled)
        except asyncio.CancelledError:
            # Ctrl-C. It is taken as an order, not as an end: there is something left to do.
            current = asyncio.current_task()
            if current is not None:
                current.uncancel()
            called_off = await app.jobs.cancel_backfill(name, since, end)
        return filled

    filled = run(loaded, work)
    if as_json:
        print_json(_plain_backfill(filled, called_off))
    else:
        _print_backfill(filled, dry_run, no_wait)
    if called_off is not None:
        are = "is" if called_off == 1 else "are"
        err.print(f"interrupted: {_runs(called_off)} had not started and {are} called off; the others go on", soft_wrap=True)
        raise typer.Exit(130)
    if not (dry_run or no_wait) and filled.succeeded < len(filled.runs):
        raise typer.Exit(Exit.FAILED)


def _check_backfill(since: datetime, until: datetime, dry_run: bool, again: bool, no_wait: bool, cancel: bool) -> None:
    if since >= until:
        raise InvalidOption(f"the period is empty: --until ({stamp(until)}) must be after --since ({stamp(since)})")
    if cancel and (dry_run or again or no_wait):
        raise InvalidOption("--cancel only calls off; leave out --dry-run, --again and --no-wait")


async def _follow(app: Hourhand, filled: Backfill) -> None:
    if not any(one.kind == "worker" for one in await app.nodes.list()):
        err.print("[yellow]no worker is alive[/]: the runs wait until one is; Ctrl-C calls them off", soft_wrap=True)
    with _bar("ended", len(filled.runs), always=True) as show:
        async for one in app.jobs.follow(filled):
            show(one.ended)
            if one.ended < len(one.runs):
                await asyncio.sleep(LOOK_EVERY)


def _plain_backfill(one: Backfill, called_off: int | None) -> dict[str, Any]:
    return {
        "job": one.job, "dry_run": one.dry_run, "instants": one.instants, "ran_already": one.ran_already,
        "asked_already": one.asked_already, "run_ids": one.run_ids, "ended": one.ended, "succeeded": one.succeeded,
        "called_off": called_off,
    }  # fmt: skip


def _print_backfill(one: Backfill, dry_run: bool, no_wait: bool) -> None:
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
        out.print(f"{_runs(len(one.instants))} would be made{period}{besides}", soft_wrap=True)
    elif no_wait or one.ended < len(one.runs) or not one.runs:
        out.print(f"{_runs(len(one.runs))} made{period}{besides}", soft_wrap=True)
    else:
        rest = one.ended - one.succeeded
        ends = f"{one.succeeded:,} succeeded" + (f", [red]{rest:,} did not[/]: hourhand jobs runs {one.job}" if rest else "")
        out.print(f"{_runs(len(one.runs))}: {ends}{besides}", soft_wrap=True)


# What was given


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """What a command was given, as `app.jobs.add` takes it; what was not said is not there."""
    named = {"tz": "timezone", "tag": "tags"}
    said = {named.get(name, name): value for name, value in given.items() if value not in (None, [], ())}
    options = {name: value for name, value in said.items() if name in definitions.JOB_OPTIONS}
    for name, read in _READERS.items():
        if name in options:
            options[name] = read(options[name])
    return options


def _changes(given: dict[str, Any]) -> dict[str, Any]:
    """The same, with what `--no-…` clears."""
    changes = _options(given)
    for name, nothing in _CLEARABLE.items():
        if given[f"no_{name}"]:
            if name in changes:
                option = name.replace("_", "-")
                raise InvalidOption(f"--no-{option} clears what another option sets; give one of them")
            changes[name] = nothing
    if not changes:
        raise InvalidOption("say what to change; hourhand jobs update --help names what can be")
    return changes


def _payload(text: str) -> dict[str, Any]:
    if text == "-":
        return read_payload(None, "-")
    return read_payload(None, text[1:]) if text.startswith("@") else parse_payload(text)


def _seconds(text: str) -> float:
    """`90`, or a span such as `15m`."""
    word = text.strip()
    return float(word) if _NUMBER.fullmatch(word) else parse_span(word).total_seconds()


_READERS: dict[str, Callable[[str], Any]] = {
    "payload": _payload,
    "missed_window": str.upper,
    "misfire_grace": _seconds,
    "flexible_window": _seconds,
    "timeout": _seconds,
    "anchor": lambda text: definitions.instant("anchor", text),
}
_CLEARABLE = {
    "start_at": None, "end_at": None, "max_runs": None, "max_attempts": None, "timeout": None, "tags": (), "then": None
}  # fmt: skip


def _named(name: str | None) -> str:
    if name is None:
        raise InvalidOption("say what the job is called, or give --file with many of them")
    return name


async def _reworded(work: Awaitable[T]) -> T:
    """What to do next, as it is said here and not in Python."""
    try:
        return await work
    except JobConflict as error:
        raise JobConflict(str(error).replace("replace=True", "--replace")) from None


def _somebody_to_ask() -> None:
    if not sys.stdin.isatty():
        raise InvalidOption("nobody is at a terminal to be asked, so nothing was done; add --yes to delete without asking")


# Many at once


class JobLine(msgspec.Struct, forbid_unknown_fields=True):
    """A line of a file of jobs: what `app.jobs.add` takes, as far as JSON can say it."""

    name: str
    schedule: str
    task: str | UnsetType = UNSET
    timezone: str | UnsetType = UNSET
    payload: dict[str, Any] | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    priority: str | UnsetType = UNSET
    dst: str | UnsetType = UNSET
    anchor: datetime | UnsetType = UNSET
    missed_window: str | UnsetType = UNSET
    max_missed: int | UnsetType = UNSET
    misfire_grace: float | str | UnsetType = UNSET
    overlap: str | UnsetType = UNSET
    flexible_window: float | str | UnsetType = UNSET
    start_at: str | UnsetType | None = UNSET
    end_at: str | UnsetType | None = UNSET
    max_runs: int | UnsetType | None = UNSET
    max_attempts: int | UnsetType | None = UNSET
    timeout: float | UnsetType | None = UNSET
    tags: list[str] | UnsetType = UNSET
    then: str | UnsetType | None = UNSET


def _add_file(app: Hourhand, name: str | None, given: dict[str, Any], file: str, replace: bool) -> BulkAdded:
    if name is not None or given:
        raise InvalidOption("--file says everything about its jobs; leave out the name and what else describes one")

    async def work(app: Hourhand) -> BulkAdded:
        done = 0
        with _bar("added", total) as show:

            def progress(count: int) -> None:
                nonlocal done
                done += count
                show(done)

            return await _reworded(app.jobs.add_many(_lines(source), replace=replace, progress=progress))

    try:
        with _opened(file) as source:
            total = _count_lines(source)
            return run(app, work)
    except OSError as error:
        raise InvalidOption(f"{file} cannot be read: {error.strerror or error}") from None


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
        return
    with Path(file).open("rb") as source:
        yield source


def _count_lines(source: BinaryIO) -> int | None:
    """None: it can be read only once."""
    if not source.seekable():
        return None
    count = sum(1 for line in source if line.strip())
    source.seek(0)
    return count


def _lines(source: BinaryIO) -> Iterator[dict[str, Any]]:
    decoder = msgspec.json.Decoder(JobLine)
    for number, line in enumerate(source, 1):
        if not line.strip():
            continue
        try:
            said = msgspec.structs.asdict(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidOption(f"line {number}: {error}. Nothing was added") from None
        yield {name: value for name, value in said.items() if value is not UNSET}


@contextmanager
def _bar(what: str, total: int | None, *, always: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, if it is about many; to be called with how many are done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=err)
    bar = progress.add_task(what, total=total)
    with ExitStack() as stack:
        # Of a stream nobody knows how long it is before it has become long.
        shown = always or (total or 0) > MANY
        if shown:
            stack.enter_context(progress)

        def show(done: int) -> None:
            nonlocal shown
            if not shown and done > MANY:
                stack.enter_context(progress)
                shown = True
            progress.update(bar, completed=done)

        yield show


def _each(
    app: Hourhand,
    names: list[str],
    verb: Callable[[Hourhand, str], Awaitable[dict[str, Any]]],
    say: Callable[[str, dict[str, Any]], str],
    as_json: bool,
) -> None:
    """One after the other, each told as it is done; one that cannot be done does not keep the others from it."""
    answers: list[dict[str, Any]] = []
    codes: list[Exit] = []

    async def work(app: Hourhand) -> None:
        for name in dict.fromkeys(names):
            try:
                answer = await verb(app, name)
            except HourhandError as error:
                answers.append({"job": name, "error": str(error)})
                codes.append(tell(error))
                if isinstance(error, DatabaseUnavailable):
                    return
            else:
                answers.append({"job": name, **answer})
                if not as_json:
                    out.print(plain(say(name, answer)), soft_wrap=True)

    run(app, work)
    if as_json:
        print_json(answers)
    if codes:
        raise typer.Exit(codes[0])


# Printing


def _plain_view(view: JobView) -> dict[str, Any]:
    """`outcome` is only of those that add or change."""
    return {name: value for name, value in view.to_dict().items() if name != "outcome" or value is not None}


def _plain_run(one: RunView) -> dict[str, Any]:
    return {name: value for name, value in one.to_dict().items() if name not in _UNREAD}


def _print_changed(view: JobView, as_json: bool) -> None:
    if as_json:
        print_json(_plain_view(view))
        return
    said = {"added": "is added", "replaced": "is changed", "unchanged": "is as it was"}
    out.print(
        Text.assemble((view.name, "bold"), f"  {view.job_id}  {said.get(view.outcome or '', view.outcome)}"), soft_wrap=True
    )
    facts = _facts()
    facts.add_row("schedule", plain(view.in_words))
    facts.add_row("next", plain(_next_in_words(view)))
    out.print(facts)


def _next_in_words(view: JobView) -> str:
    if view.next_run_at is None:
        return "not while it is paused" if view.state == "paused" else "never: it is finished"
    local = _local(view.next_run_at, view.timezone)
    return f"{_utc(view.next_run_at)}, {ago(view.next_run_at, Clock().instant())}" + (f"\n{local}" if local else "")


def _print_jobs(found: list[JobView]) -> None:
    now = Clock().instant()
    rows = table()
    rows.add_column("name", overflow="fold")
    rows.add_column("state", no_wrap=True)
    rows.add_column("schedule", overflow="fold")
    rows.add_column("zone", overflow="fold")
    rows.add_column("next firing", no_wrap=True)
    rows.add_column("task", overflow="fold")
    for one in found:
        at = one.next_run_at
        when = f"{ago(at, now)}\n{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z" if at else ""
        # Of a single instant that is still to come, the next column says it all.
        schedule = "once" if at and re.match(r"\d{4}-", one.schedule) else one.schedule
        rows.add_row(one.name, _state(one.state), plain(schedule), one.timezone, when, one.task)
    out.print(rows)


def _print_job(view: JobView, firings: list[datetime], runs: list[RunView]) -> None:
    now = Clock().instant()
    out.print(Text.assemble((view.name, "bold"), f"  {view.job_id}  ", _state(view.state), f"  {view.task}"), soft_wrap=True)
    facts = _facts()
    for name, value in _about(view, now).items():
        if value:
            facts.add_row(name, plain(value))
    out.print(facts)
    out.print()
    out.print(Text("next firings", "bold"))
    if not firings:
        out.print(f"  {_next_in_words(view)}")
    for at in firings:
        local = _local(at, view.timezone)
        out.print(f"  {_utc(at)}{f'  {local}' if local else ''}  {ago(at, now)}", soft_wrap=True)
    if runs:
        out.print()
        out.print(Text("last runs", "bold"))
        out.print(_runs_table(runs))


def _about(view: JobView, now: datetime) -> dict[str, str | None]:
    def moment(at: datetime | None) -> str | None:
        return None if at is None else f"{_utc(at)}, {ago(at, now)}"

    missed = {"SKIP": "is left out", "RUN_ONCE": "is made up for once", "RUN_ALL": f"is made up for, at most {view.max_missed:,}"}
    return {
        "schedule": view.schedule if view.timezone == "UTC" else f"{view.schedule} in {view.timezone}",
        "in words": view.in_words,
        "dst": "a local time that does not exist is left out" if view.dst == "skip" else None,
        "payload": msgspec.json.encode(view.payload).decode() if view.payload else None,
        "queue": f"{view.queue}, priority {view.priority}",
        "overlap": view.overlap,
        "missed": f"{view.missed_window}: what is more than {span(view.misfire_grace)} late {missed.get(view.missed_window, '')}",
        "flexible": f"starts within {span(view.flexible_window)} of each firing" if view.flexible_window else None,
        "starts": moment(view.start_at),
        "ends": moment(view.end_at),
        "max runs": f"{view.max_runs:,}, {view.fired or 0:,} of them so far" if view.max_runs else None,
        "attempts": None if view.max_attempts is None else f"at most {view.max_attempts:,}",
        "timeout": span(view.timeout),
        "tags": ", ".join(view.tags),
        "then": " → ".join(view.then),
        "declared by": view.declared_by,
        "paused": moment(view.paused_at),
        "created": moment(view.created_at),
        "changed": moment(view.updated_at) if view.version > 1 else None,
        "version": f"{view.version}, in shard {view.shard}",
    }  # fmt: skip


def _runs_table(runs: list[RunView]) -> Table:
    now = Clock().instant()
    rows = table()
    rows.add_column("run", no_wrap=True)
    rows.add_column("state", no_wrap=True)
    rows.add_column("for", no_wrap=True)
    rows.add_column("attempt", justify="right", no_wrap=True)
    rows.add_column("when", no_wrap=True)
    rows.add_column("reason", overflow="fold")
    for one in runs:
        when = ago(one.finished_at or one.started_at or one.due_at, now)
        rows.add_row(one.run_id, colour(one.state), _utc(one.scheduled_at), str(one.attempt), when, plain(one.reason or ""))
    return rows


def _facts() -> Table:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    return facts


def _state(state: str) -> Text:
    return Text(state, _STYLES.get(state, ""))


def _utc(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _local(at: datetime, zone: str) -> str:
    """The same instant where the job lives; nothing if that is UTC, or a zone that only newer data knows."""
    if zone == "UTC":
        return ""
    try:
        return f"{at.astimezone(load_zone(zone)):%Y-%m-%d %H:%M:%S %Z} ({zone})"
    except InvalidSchedule:
        return ""


def _runs(count: int) -> str:
    return f"{count:,} run{'' if count == 1 else 's'}"
