"""`hourhand queues`: how full they are; pause and resume them."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from hourhand.core.clock import Clock
from hourhand.surfaces.cli.common import AnyApp, AsJson, ago, err, out, print_json, run, span, table
from hourhand.surfaces.cli.connection import connected

commands = typer.Typer(help="See how full the queues are; pause and resume them.", no_args_is_help=True)

Names = Annotated[list[str], typer.Argument(metavar="NAME", help="Names of queues.", show_default=False)]
_COUNTS = ("ready", "delayed", "parked", "running", "dead")


@commands.command("list")
@connected
def list_queues(
    app: AnyApp,
    as_json: AsJson = False,
) -> None:
    """Every queue, how many runs it holds in each state, and how long the next one has been due."""
    found = run(app, lambda app: app.queues.list())
    if as_json:
        print_json(found)
        return
    rows = table()
    rows.add_column("queue", overflow="fold")
    for name in (*_COUNTS, "waiting"):
        rows.add_column(name, justify="right", no_wrap=True)
    rows.add_column("paused", no_wrap=True)
    now = Clock().instant()
    for one in found:
        counts = [f"{getattr(one, name):,}" for name in _COUNTS]
        rows.add_row(one.name, *counts, span(one.oldest_seconds), Text(ago(one.paused_at, now), "yellow"))
    out.print(rows)


@commands.command("pause")
@connected
def pause_queues(
    app: AnyApp,
    names: Names,
    as_json: AsJson = False,
) -> None:
    """Start nothing more from these queues. What is running goes on, and enqueueing stays possible.

    Example: hourhand queues pause billing mail
    """

    async def pause(app: AnyApp) -> list[dict[str, Any]]:
        answers = []
        for name in dict.fromkeys(names):
            known = await app.queues.exists(name)
            answers.append({"name": name, "paused_at": await app.queues.pause(name)})
            if not known:
                err.print(f"[yellow]note:[/] there was no queue {name} until now; is the name right?", soft_wrap=True)
            if not as_json:
                out.print(f"{name} is paused", soft_wrap=True)
        return answers

    answers = run(app, pause)
    if as_json:
        print_json(answers)


@commands.command("resume")
@connected
def resume_queues(
    app: AnyApp,
    names: Names,
    as_json: AsJson = False,
) -> None:
    """Let workers take runs from these queues again."""

    async def resume(app: AnyApp) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = []
        for name in dict.fromkeys(names):
            await app.queues.resume(name)
            answers.append({"name": name, "paused_at": None})
            if not as_json:
                out.print(f"{name} is open", soft_wrap=True)
        return answers

    answers = run(app, resume)
    if as_json:
        print_json(answers)
