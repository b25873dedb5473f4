"""`hourhand dead`: look at dead letters, edit them, send them back, throw them away."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from hourhand.core.clock import Clock
from hourhand.surfaces.cli.common import (
    AnyApp,
    AsJson,
    OnlyQueue,
    OnlyTag,
    OnlyTask,
    Reveal,
    Yes,
    ago,
    discreet,
    err,
    fixed,
    folded,
    instant,
    out,
    plain,
    polite,
    print_json,
    run,
    table,
)
from hourhand.surfaces.cli.connection import connected
from hourhand.surfaces.cli.editing import edit_payload, read_payload
from hourhand.surfaces.cli.runs import Run, print_run
from hourhand.surfaces.cli.selection import Selection, act_on, end, filters_of, letters, named
from hourhand.surfaces.dead_letters import check_rate
from hourhand.surfaces.views import RunView

commands = typer.Typer(help="Look at dead letters, edit them, send them back, throw them away.", no_args_is_help=True)

RunIds = Annotated[list[str] | None, typer.Argument(metavar="RUN", help="Ids of dead letters.", show_default=False)]
Error = Annotated[
    str | None,
    typer.Option("--error", metavar="TYPE", help="Only those whose last error is of this type, for example ValueError."),
]
Since = Annotated[
    datetime | None,
    typer.Option("--since", metavar="WHEN", parser=instant, help="Died since: 30s, 15m, 2h, 7d ago, or ISO 8601."),
]
Before = Annotated[
    datetime | None,
    typer.Option("--before", metavar="WHEN", parser=instant, help="Died before: 30s, 15m, 2h, 7d ago, or ISO 8601."),
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="At most so many, the oldest first.")]
Everything = Annotated[bool, typer.Option("--all", help="Every dead letter there is.")]


@commands.command("list")
@connected
def list_dead(
    app: AnyApp,
    task: OnlyTask = None,
    queue: OnlyQueue = None,
    tag: OnlyTag = None,
    error: Error = None,
    since: Since = None,
    before: Before = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many, the latest to die first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """The runs that gave up, the latest first, each with its last error.

    Example: hourhand dead list --task send_invoice --error ConnectionError --since 2h
    """
    filters = filters_of(task, queue, tag, error, since, before)
    found = [discreet(app, one) for one in run(app, lambda app: app.dead.list(limit=limit, **filters))]
    if as_json:
        print_json(found)
        return
    if not found:
        out.print("no dead letters match" if filters else "no dead letters")
        return
    rows = table(fixed("run"), folded("task"), folded("queue"), fixed("died"), folded("last error"))
    now = Clock().instant()
    cells = [(one.run_id, one.task, one.queue, ago(one.finished_at, now)) for one in found]
    # Cut here to what is left of a line: a column that may not wrap would make the table cut the ids as well.
    room = max(20, out.width - sum(max(map(len, column)) + 2 for column in zip(*cells, strict=True)))
    for one, before_error in zip(found, cells, strict=True):
        rows.add_row(*before_error, plain(_last_error(one, room), "red"))
    out.print(rows)
    if len(found) == limit:
        err.print(f"[dim]the latest {limit}; --limit shows more[/]")


@commands.command("show")
@connected
def show_dead(
    app: AnyApp,
    run_id: Run,
    reveal: Reveal = False,
    as_json: AsJson = False,
) -> None:
    """Everything about one dead letter: its payload, and the error of each attempt."""
    found = discreet(app, run(app, lambda app: app.dead.show(run_id)), reveal)
    if as_json:
        print_json(found)
    else:
        print_run(found, Clock().instant())


@commands.command("edit")
@connected
def edit_dead(
    app: AnyApp,
    run_id: Run,
    payload: Annotated[str | None, typer.Option("--payload", metavar="JSON", help="The new payload, a JSON object.")] = None,
    payload_file: Annotated[
        str | None, typer.Option("--payload-file", metavar="FILE", help="Read the new payload from a file; - is standard input.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change a dead letter's payload: by option, from a file, or in $EDITOR. Replay it afterwards.

    With --app the payload is checked against the task's signature. What is secret is not shown: where [redacted] is left as it
    is, the value stays.

    Example: hourhand dead edit r_1f3k --payload '{"invoice_id": 7}'
    """
    loaded = app
    if payload is None and payload_file is None:
        saved, changed = edit_payload(loaded, run_id)
    else:
        given = polite(lambda: read_payload(payload, payload_file))
        saved, changed = run(loaded, lambda app: app.dead.edit(run_id, given)), True
    if as_json:
        print_json(discreet(app, saved))
    elif changed:
        out.print(f"{saved.run_id} has its new payload; send it back with: hourhand dead replay {saved.run_id}", soft_wrap=True)
    else:
        out.print(f"{saved.run_id} is as it was", soft_wrap=True)


@commands.command("replay")
@connected
def replay_dead(
    app: AnyApp,
    run_ids: RunIds = None,
    task: OnlyTask = None,
    queue: OnlyQueue = None,
    tag: OnlyTag = None,
    error: Error = None,
    since: Since = None,
    before: Before = None,
    limit: Limit = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", metavar="N", help="So many a second, the oldest first; 0.1: one in ten seconds. Default: all at once."
        ),
    ] = None,
    everything: Everything = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Send dead letters back to their queues, with fresh attempts and under their old ids.

    One whose key is held by another live run stays where it is. With --rate they wait in the database, each for its turn;
    nobody has to stay for it.

    Example: hourhand dead replay --task send_invoice --error ConnectionError --since 2h --rate 5
    """
    polite(lambda: check_rate(rate, None))
    chosen = Selection(run_ids or [], filters_of(task, queue, tag, error, since, before), everything, limit, yes)
    done: list[str] = []
    blocked: list[str] = []
    until: datetime | None = None

    async def replay(app: AnyApp, *found: str, **options: Any) -> None:
        nonlocal until
        answer = await app.dead.replay(*found, rate=rate, **options)
        done.extend(answer.replayed)
        blocked.extend(answer.blocked)
        until = answer.until

    missing = act_on(app, chosen, "replay", replay)
    if as_json:
        later = {} if rate is None else {"until": until}
        print_json({"replayed": done, "blocked": blocked, "missing": missing, **later})
    else:
        last = "" if until is None else f"; the last is due {ago(until, Clock().instant())}"
        out.print(f"{letters(len(done))} replayed{last}" if done or blocked or missing else "no dead letters match")
    if blocked:
        err.print(f"[yellow]left alone[/], their key is held by another live run: {named(blocked)}", soft_wrap=True)
    end(missing, blocked if chosen.run_ids else [])


@commands.command("purge")
@connected
def purge_dead(
    app: AnyApp,
    run_ids: RunIds = None,
    task: OnlyTask = None,
    queue: OnlyQueue = None,
    tag: OnlyTag = None,
    error: Error = None,
    since: Since = None,
    before: Before = None,
    limit: Limit = None,
    everything: Everything = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Throw dead letters away: their errors stay in the history, their payloads are gone for good.

    Example: hourhand dead purge --before 30d --yes
    """
    chosen = Selection(run_ids or [], filters_of(task, queue, tag, error, since, before), everything, limit, yes)
    done = 0

    async def purge(app: AnyApp, *found: str, **options: Any) -> None:
        nonlocal done
        done = await app.dead.purge(*found, **options)

    missing = act_on(app, chosen, "purge", purge)
    if as_json:
        print_json({"purged": done, "missing": missing})
    else:
        out.print(f"{letters(done)} purged" if done or missing else "no dead letters match")
    end(missing, [])


def _last_error(one: RunView, room: int) -> str:
    latest = one.errors[-1] if one.errors else {}
    words = f"{latest.get('type', 'Error')}: {latest.get('message', '')}" if latest else one.reason or ""
    line = " ".join(words.split())
    return line if len(line) <= room else f"{line[: room - 1]}…"
