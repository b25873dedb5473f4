"""`hourhand holds`: runs that are held back."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from hourhand.core.clock import Clock
from hourhand.core.errors import InvalidOption
from hourhand.surfaces.cli.common import (
    AnyApp,
    AsJson,
    ago,
    each,
    fixed,
    folded,
    number,
    out,
    plain,
    polite,
    print_json,
    run,
    table,
)
from hourhand.surfaces.cli.connection import connected

commands = typer.Typer(help="Hold runs back, and let them go.", no_args_is_help=True)


@commands.command("list")
@connected
def list_holds(
    app: AnyApp,
    as_json: AsJson = False,
) -> None:
    """What is held back, by whom and why, and how many runs that are.

    Example: hourhand holds list
    """
    found = run(app, lambda app: app.holds.list())
    if as_json:
        print_json(found)
        return
    if not found:
        out.print("nothing is held back")
        return
    rows = table(fixed("hold"), folded("runs with"), number("held back"), fixed("since"), folded("by"), folded("reason"))
    now = Clock().instant()
    for one in found:
        rows.add_row(
            str(one.id), plain(one.in_words), Text(f"{one.runs:,}", "yellow" if one.runs else ""), ago(one.held_at, now),
            plain(one.held_by or ""), plain(one.reason or ""),
        )  # fmt: skip
    out.print(rows)


@commands.command("add")
@connected
def add_hold(
    app: AnyApp,
    task: Annotated[str | None, typer.Option("--task", help="Runs of this task.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Runs with this tag.")] = None,
    field: Annotated[
        str | None, typer.Option("--field", metavar="NAME=VALUE", help="Runs with this value in their payload: customer_id=42.")
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="Only in this queue.")] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; shown with every run that is held back.")] = None,
    as_json: AsJson = False,
) -> None:
    """Start no more runs of a task, with a tag, or with a value in a field of the payload. What is running goes on, and enqueueing
    stays possible. Of all that is given, all must fit.

    Example: hourhand holds add --field customer_id=42 --reason "their server is down"
    """
    name, value = polite(lambda: _field(field))
    made = run(app, lambda app: app.holds.add(queue=queue, task=task, tag=tag, field=name, value=value, reason=reason))
    if as_json:
        print_json(made)
        return
    out.print(
        plain(f"hold {made.id}: runs with {made.in_words} are not started until: hourhand holds release {made.id}"),
        soft_wrap=True,
    )


@commands.command("release")
@connected
def release_holds(
    app: AnyApp,
    holds: Annotated[
        list[str], typer.Argument(metavar="HOLD", help="Numbers of holds, as `holds list` shows them.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Let the runs of these holds go on, from their old places.

    Example: hourhand holds release 3
    """

    async def release(app: AnyApp, hold: str) -> dict[str, Any]:
        view = await app.holds.release(int(hold) if hold.isdecimal() else hold)  # type: ignore[arg-type]
        return {"id": view.id, "runs": view.runs}

    each(app, holds, "id", release, lambda one: f"hold {one['id']} is released: {one['runs']:,} runs go on", as_json)


def _field(text: str | None) -> tuple[str | None, str | None]:
    if text is None:
        return None, None
    name, sign, value = text.partition("=")
    if not sign:
        raise InvalidOption(f"--field takes a name and a value, such as customer_id=42, not {text!r}")
    return name.strip(), value
