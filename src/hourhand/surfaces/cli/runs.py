"""`hourhand runs`: look at runs, cancel them, run them again."""

from __future__ import annotations

from datetime import UTC, datetime
from textwrap import indent
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from hourhand.core import ids
from hourhand.core.clock import Clock
from hourhand.core.fairness import PRIORITIES
from hourhand.core.schedule import parse_span
from hourhand.surfaces.cli.common import (
    AnyApp,
    AsJson,
    OnlyQueue,
    OnlyTag,
    OnlyTask,
    Reveal,
    ago,
    discreet,
    each,
    err,
    facts,
    fixed,
    folded,
    instant,
    number,
    out,
    plain,
    print_json,
    run,
    span,
    table,
)
from hourhand.surfaces.cli.connection import connected
from hourhand.surfaces.cli.job_options import payload_of
from hourhand.surfaces.views import STATES, RunView

commands = typer.Typer(help="Look at runs, cancel them, run them again.", no_args_is_help=True)

Run = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, for example r_1f3k.", show_default=False)]
Runs = Annotated[list[str], typer.Argument(metavar="RUN", help="Ids of runs, for example r_1f3k.", show_default=False)]
States = Annotated[
    list[str] | None,
    typer.Option(
        "--state", metavar="STATE", autocompletion=lambda: list(STATES), help=f"Any of {', '.join(STATES)}; repeatable."
    ),
]
Since = Annotated[
    datetime | None,
    typer.Option("--since", metavar="WHEN", parser=instant, help="Only runs scheduled since: 30s, 15m, 2h, 7d ago, or ISO 8601."),
]

_STYLES = {"succeeded": "green", "running": "cyan", "dead": "red", "lost": "red", "parked": "yellow", "expired": "yellow"}
_UNREAD = ("enqueued_at", "expires_at", "payload", "options", "errors", "result", "progress")


@commands.command("list")
@connected
def list_runs(
    app: AnyApp,
    state: States = None,
    task: OnlyTask = None,
    queue: OnlyQueue = None,
    tag: OnlyTag = None,
    key: Annotated[str | None, typer.Option("--key", help="Only runs with this key.")] = None,
    job: Annotated[str | None, typer.Option("--job", help="Only runs of this job: its name or id.")] = None,
    node: Annotated[
        int | None, typer.Option("--node", min=1, max=2**31 - 1, help="Only runs that this node has, or had last: its number.")
    ] = None,
    since: Since = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many, the newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """The newest runs, in whatever state they are.

    Example: hourhand runs list --state running --state dead --queue billing --since 2h
    """
    filters: dict[str, Any] = {"task": task, "queue": queue, "tag": tag, "key": key, "job": job, "node": node, "since": since}
    found = run(app, lambda app: app.runs.list(state=state or None, limit=limit, **filters))
    if as_json:
        print_json([listed(one) for one in found])
        return
    if not found:
        out.print("no runs match" if state or any(filters.values()) else "no runs yet")
        return
    now = Clock().instant()
    rows = table(fixed("run"), fixed("state"), folded("task"), folded("queue"), number("attempt"), fixed("when"))
    for one in found:
        moment = one.finished_at or one.started_at or one.due_at or one.scheduled_at
        rows.add_row(one.run_id, colour(one.state), one.task, one.queue, str(one.attempt), ago(moment, now))
    out.print(rows)
    if len(found) == limit:
        err.print(f"[dim]the newest {limit}; --limit shows more[/]")


@commands.command("show")
@connected
def show_run(
    app: AnyApp,
    run_id: Run,
    reveal: Reveal = False,
    as_json: AsJson = False,
) -> None:
    """Everything about one run: its times, payload, progress, result, and the error of each attempt."""
    found = discreet(app, run(app, lambda app: app.runs.show(run_id)), reveal)
    if as_json:
        print_json(found)
    else:
        print_run(found, Clock().instant())


@commands.command("enqueue")
@connected
def enqueue_run(
    app: AnyApp,
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="The name of a task; http and command are built in.", show_default=False)
    ],
    payload: Annotated[
        str, typer.Option("--payload", metavar="JSON", help="Its arguments: a JSON object, @FILE, or - for standard input.")
    ] = "{}",
    queue: Annotated[str | None, typer.Option("--queue", help="Default: the task's.")] = None,
    priority: Annotated[
        str | None, typer.Option("--priority", autocompletion=lambda: list(PRIORITIES), help="high, normal or low.")
    ] = None,
    delay: Annotated[str | None, typer.Option("--delay", metavar="SPAN", help="Not before 30s, 15m, 2h from now.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="If a live run of the task has this key, nothing is made.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="For it to carry; repeatable.")] = None,
    max_attempts: Annotated[int | None, typer.Option("--max-attempts", help="Tries. Default: the task's.")] = None,
    timeout: Annotated[str | None, typer.Option("--timeout", metavar="SPAN", help="For each try. Default: the task's.")] = None,
    as_json: AsJson = False,
) -> None:
    """Enqueue one run, here and now.

    Example: hourhand runs enqueue send_invoice --payload '{"invoice_id": 7}' --key invoice-7
    """

    async def enqueue(app: AnyApp) -> dict[str, Any]:
        given = {
            "queue": queue, "priority": priority, "key": key, "tags": tag or None, "max_attempts": max_attempts,
            "delay": None if delay is None else parse_span(delay), "timeout": None if timeout is None else parse_span(timeout),
        }  # fmt: skip
        handle = await app.enqueue(
            task, payload_of(payload), **{name: value for name, value in given.items() if value is not None}
        )
        return {"run_id": handle.id, "duplicate": handle.duplicate}

    made = run(app, enqueue)
    if as_json:
        print_json(made)
    elif made["duplicate"]:
        out.print(f"{made['run_id']} holds this key already; nothing was enqueued", soft_wrap=True)
    else:
        out.print(f"{made['run_id']} is enqueued; look at it with: hourhand runs show {made['run_id']}", soft_wrap=True)


@commands.command("cancel")
@connected
def cancel_runs(
    app: AnyApp,
    run_ids: Runs,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; kept with the run.")] = None,
    as_json: AsJson = False,
) -> None:
    """Stop runs: one that waits ends at once, one that is running is asked to stop.

    Example: hourhand runs cancel r_1f3k --reason "wrong customer"
    """

    async def cancel(app: AnyApp, given: str) -> dict[str, Any]:
        run_id = ids.run_id(ids.parse_run_id(given))
        return {"run_id": run_id, "outcome": await app.runs.cancel(run_id, reason)}

    def say(one: dict[str, Any]) -> str:
        return f"{one['run_id']} {'is cancelled' if one['outcome'] == 'cancelled' else 'is running and was asked to stop'}"

    each(app, run_ids, "run_id", cancel, say, as_json)


@commands.command("retry")
@connected
def retry_runs(
    app: AnyApp,
    run_ids: Runs,
    as_json: AsJson = False,
) -> None:
    """Run again, now: a dead or delayed run under its own id, any other ended run as a new run like it.

    Example: hourhand runs retry r_1f3k r_1f3m
    """

    async def retry(app: AnyApp, given: str) -> dict[str, Any]:
        run_id = ids.run_id(ids.parse_run_id(given))
        return {"run_id": run_id, "again_as": await app.runs.retry(run_id)}

    def say(one: dict[str, Any]) -> str:
        return f"{one['run_id']} runs again" + (f" as {one['again_as']}" if one["again_as"] != one["run_id"] else "")

    each(app, run_ids, "run_id", retry, say, as_json)


def listed(one: RunView) -> dict[str, Any]:
    """What a list does not read from the database is left out of its JSON, lest it look empty."""
    return {name: value for name, value in one.to_dict().items() if name not in _UNREAD}


def colour(state: str) -> Text:
    return Text(state, _STYLES.get(state, ""))


def moment(value: datetime, now: datetime) -> str:
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{value.microsecond // 1000:03} UTC, {ago(value, now)}"


def print_run(one: RunView, now: datetime) -> None:
    """A run for reading: facts first, then what is long. Long lines are left for the terminal to wrap."""
    out.print(Text.assemble((one.run_id, "bold"), "  ", colour(one.state), "  ", one.task), soft_wrap=True)
    took = (one.finished_at - one.started_at).total_seconds() if one.started_at and one.finished_at else None
    times = {
        "scheduled": one.scheduled_at, "enqueued": one.enqueued_at, "due": one.due_at, "expires": one.expires_at,
        "started": one.started_at, "died" if one.state == "dead" else "finished": one.finished_at,
    }  # fmt: skip
    about: dict[str, str | None] = {
        "reason": one.reason, "queue": f"{one.queue}, priority {one.priority}", "attempt": str(one.attempt), "key": one.key,
        "tags": ", ".join(one.tags), **{name: moment(value, now) for name, value in times.items() if value},
        "took": span(took), "node": None if one.node is None else str(one.node), "job": one.job_id,
    }  # fmt: skip
    out.print(facts(about))
    for name in ("payload", "options", "progress", "result"):
        value = getattr(one, name)
        if value is not None:
            _section(name, msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
    for error in one.errors:
        _print_error(error, now)


def _print_error(error: dict[str, Any], now: datetime) -> None:
    try:
        when = moment(datetime.fromisoformat(error["at"]), now)
    except (KeyError, ValueError):
        when = "at an unknown time"
    title = f"attempt {error.get('attempt', '?')} failed {when}, on node {error.get('node', '?')}"
    _section(title, f"{error.get('type', 'Error')}: {error.get('message', '')}", "red")
    if error.get("traceback"):
        out.print(plain(indent(error["traceback"].rstrip(), "  "), "dim"), soft_wrap=True)


def _section(title: str, body: str, style: str = "") -> None:
    out.print()
    out.print(plain(title, "bold"), soft_wrap=True)
    out.print(plain(indent(body, "  "), style), soft_wrap=True)
