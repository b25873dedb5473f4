"""`hourhand jobs`: add jobs, look at them, change, hold and start them, and run their past again."""

from __future__ import annotations

import shlex
import sys
from datetime import datetime
from typing import Annotated, Any

import typer

from hourhand.core.errors import InvalidOption
from hourhand.core.job import MISSED
from hourhand.surfaces.cli.backfill import backfill_job
from hourhand.surfaces.cli.common import (
    AnyApp,
    AsJson,
    Exit,
    OnlyQueue,
    OnlyTask,
    Reveal,
    Yes,
    ask,
    counted,
    discreet,
    each,
    err,
    out,
    plain,
    polite,
    print_json,
    run,
)
from hourhand.surfaces.cli.connection import connected
from hourhand.surfaces.cli.job_definitions import add_job, deploy_jobs, update_job
from hourhand.surfaces.cli.job_options import Job, Payload, payload_of
from hourhand.surfaces.cli.job_views import plain_view, print_job, print_jobs, runs_table
from hourhand.surfaces.cli.runs import listed
from hourhand.surfaces.cli.why import stamp
from hourhand.surfaces.jobs import STATES
from hourhand.surfaces.views import JobView, RunView

_LAST_RUNS = 5

Names = Annotated[list[str], typer.Argument(metavar="JOB", help="Names or ids of jobs.", show_default=False)]
Missed = Annotated[
    str | None,
    typer.Option(
        "--missed",
        metavar="POLICY",
        autocompletion=lambda: list(MISSED),
        help="For what was missed during the pause: SKIP, RUN_ONCE or RUN_ALL. Default: the job's own policy.",
    ),
]

commands = typer.Typer(
    help="Add jobs, look at them, change, hold and start them, and run their past again.", no_args_is_help=True
)
commands.command("add")(add_job)
commands.command("update")(update_job)


@commands.command("delete")
@connected
def delete_jobs(
    app: AnyApp,
    names: Names,
    yes: Yes = False,
    as_json: AsJson = False,
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

    async def delete(app: AnyApp, name: str) -> dict[str, Any]:
        await app.jobs.delete(name)
        return {"outcome": "deleted"}

    each(app, names, "job", delete, lambda one: f"{one['job']} is deleted", as_json)


commands.command("deploy")(deploy_jobs)


@commands.command("list")
@connected
def list_jobs(
    app: AnyApp,
    state: Annotated[
        str | None,
        typer.Option("--state", autocompletion=lambda: list(STATES), help=f"One of {', '.join(STATES)}."),
    ] = None,
    task: OnlyTask = None,
    queue: OnlyQueue = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Only jobs with this tag.")] = None,
    search: Annotated[str | None, typer.Option("--search", metavar="TEXT", help="A part of the name.")] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="NAME", help="The next page: the last name of the one before.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many, by name.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Jobs by name, and when each fires next.

    Example: hourhand jobs list --state active --queue billing --search report
    """
    filters = {"state": state, "task": task, "queue": queue, "tag": tag, "search": search}
    found = [discreet(app, one) for one in run(app, lambda app: app.jobs.list(after=after, limit=limit, **filters))]
    if as_json:
        print_json([plain_view(one) for one in found])
    elif not found:
        out.print("no jobs match" if after or any(filters.values()) else "no jobs yet; add one: hourhand jobs add --help")
    else:
        print_jobs(found)
    if len(found) == limit and not as_json:
        same = [word for name, value in filters.items() if value for word in (f"--{name}", value)]
        page = shlex.join(["hourhand", "jobs", "list", *same, "--after", found[-1].name, "--limit", str(limit)])
        err.print(plain(f"the first {limit:,}; the next page: {page}", "dim"), soft_wrap=True)


@commands.command("show")
@connected
def show_job(
    app: AnyApp,
    name: Job,
    count: Annotated[int, typer.Option("--count", min=1, max=10_000, help="How many of the next firings to show.")] = 5,
    reveal: Reveal = False,
    as_json: AsJson = False,
) -> None:
    """Everything about one job: its schedule in words, its next firings, its last runs, and how exceptions are treated.

    Example: hourhand jobs show weekly --count 10
    """

    async def look(app: AnyApp) -> tuple[JobView, list[datetime], list[RunView]]:
        view = await app.jobs.show(name)
        return view, await app.jobs.next(view.name, count), await app.jobs.runs(view.name, _LAST_RUNS)

    found, firings, runs = run(app, look)
    view = discreet(app, found, reveal)
    if as_json:
        print_json({**plain_view(view), "next": firings, "runs": [listed(one) for one in runs]})
    else:
        print_job(view, firings, runs)


@commands.command("runs")
@connected
def job_runs(
    app: AnyApp,
    name: Job,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many, the latest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """The latest runs of a job, by the instant they are for.

    Example: hourhand jobs runs weekly --limit 5
    """
    found = run(app, lambda app: app.jobs.runs(name, limit))
    if as_json:
        print_json([listed(one) for one in found])
    elif not found:
        out.print("no runs yet")
    else:
        out.print(runs_table(found))
        if len(found) == limit:
            err.print(f"[dim]the latest {limit}; --limit shows more[/]")


@commands.command("pause")
@connected
def pause_jobs(
    app: AnyApp,
    names: Names,
    as_json: AsJson = False,
) -> None:
    """From now on these jobs do not fire. Runs that wait or are going on are not touched.

    Example: hourhand jobs pause weekly nightly
    """

    async def pause(app: AnyApp, name: str) -> dict[str, Any]:
        view = await app.jobs.pause(name)
        return {"state": view.state, "paused_at": view.paused_at}

    each(app, names, "job", pause, lambda one: f"{one['job']} is paused", as_json)


@commands.command("resume")
@connected
def resume_jobs(
    app: AnyApp,
    names: Names,
    missed: Missed = None,
    as_json: AsJson = False,
) -> None:
    """These jobs fire again. What they missed is treated by their missed-window policy, or by --missed.

    Example: hourhand jobs resume weekly --missed RUN_ALL
    """
    policy = None if missed is None else missed.upper()

    async def resume(app: AnyApp, name: str) -> dict[str, Any]:
        done = await app.jobs.resume(name, missed=policy)
        job = done.job
        return {"state": job.state, "next_run_at": job.next_run_at, "started": done.started, "left_out": done.left_out}

    def say(one: dict[str, Any]) -> str:
        at = one["next_run_at"]
        words = f"{one['job']} is resumed" + (f"; it fires next at {stamp(at)}" if at else f"; it is {one['state']}")
        if one["started"] or one["left_out"]:
            words += f"; of what it missed, {counted(one['started'], 'run')} started and {one['left_out']:,} left out"
        return words

    each(app, names, "job", resume, say, as_json)


@commands.command("trigger")
@connected
def trigger_job(
    app: AnyApp,
    name: Job,
    payload: Payload = None,
    force: Annotated[bool, typer.Option("--force", help="Even if the job's overlap policy would hold or skip it.")] = False,
    as_json: AsJson = False,
) -> None:
    """A run here and now, besides the schedule, which stays as it is.

    Example: hourhand jobs trigger weekly --payload '{"days": 30}'
    """
    given = polite(lambda: None if payload is None else payload_of(payload))
    done = run(app, lambda app: app.jobs.trigger(name, payload=given, force=force))
    skipped = done.run_id is None
    if as_json:
        print_json(done)
    elif not skipped:
        how = "waits for the run before it to end" if done.outcome == "held" else "is started"
        out.print(plain(f"{done.run_id} {how}; look at it with: hourhand runs show {done.run_id}"), soft_wrap=True)
    if skipped:
        err.print(plain(f"{done.outcome}: the run before it has not ended; --force starts one all the same"), soft_wrap=True)
        raise typer.Exit(Exit.NOT_POSSIBLE)


commands.command("backfill")(backfill_job)


def _somebody_to_ask() -> None:
    if not sys.stdin.isatty():
        raise InvalidOption("nobody is at a terminal to be asked, so nothing was done; add --yes to delete without asking")
