"""`hourhand keys`: who may use the API, and for what."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

import typer
from rich.text import Text

from hourhand.core.actor import ROLES
from hourhand.core.clock import Clock
from hourhand.core.errors import InvalidOption
from hourhand.core.job import instant
from hourhand.core.schedule import parse_span
from hourhand.surfaces.access import KeyView
from hourhand.surfaces.cli.common import AnyApp, AsJson, ago, each, err, fixed, folded, out, plain, polite, print_json, run, table
from hourhand.surfaces.cli.connection import connected

commands = typer.Typer(help="Make, list and revoke the keys of the API.", no_args_is_help=True)

_STYLES = {"active": "green", "expired": "yellow", "revoked": "red"}


@commands.command("create")
@connected
def create_key(
    app: AnyApp,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is, or what for.", show_default=False)],
    role: Annotated[
        str,
        typer.Option(
            "--role",
            autocompletion=lambda: list(ROLES),
            help="viewer looks; operator also triggers, cancels, replays, pauses and enqueues; admin does everything.",
        ),
    ] = "viewer",
    queues: Annotated[
        list[str] | None,
        typer.Option("--queue", metavar="NAME", help="Only this queue; give it once for each.", show_default=False),
    ] = None,
    prefixes: Annotated[
        list[str] | None,
        typer.Option(
            "--jobs", metavar="PREFIX", help="Only jobs whose names begin so; give it once for each.", show_default=False
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="WHEN", help="After 90d, 12h, or at an ISO 8601 instant.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a key. Its secret is printed once, on standard output, and stored nowhere.

    Example: hourhand keys create reporting --role operator --queue billing --expires 90d
    """
    end = polite(lambda: None if expires is None else _moment(expires))
    made = run(app, lambda app: app.keys.create(name, role=role, queues=queues or None, prefixes=prefixes or None, expires=end))
    if as_json:
        print_json({**made.key.to_dict(), "secret": made.secret})
        return
    err.print(
        plain(f"key {made.key.key_id} for {name}, {role}{_scope(made.key)}; keep its secret, it is not shown again:"),
        soft_wrap=True,
    )
    out.print(made.secret, soft_wrap=True)


@commands.command("list")
@connected
def list_keys(
    app: AnyApp,
    revoked: Annotated[bool, typer.Option("--revoked", help="Also those that were revoked.")] = False,
    as_json: AsJson = False,
) -> None:
    """Every key, without its secret.

    Example: hourhand keys list
    """
    found = run(app, lambda app: app.keys.list(revoked=revoked))
    if as_json:
        print_json(found)
        return
    if not found:
        out.print("no keys that open anything; --revoked shows the others. Make one: hourhand keys create NAME --role admin")
        return
    rows = table(
        fixed("key"), folded("name"), fixed("role"), fixed("state"), folded("for"), fixed("made"), fixed("used"), fixed("expires")
    )
    now = Clock().instant()
    for one in found:
        rows.add_row(
            one.key_id, plain(one.name), one.role, Text(one.state, _STYLES[one.state]), plain(_scope(one).removeprefix(", only ") or "everything"),
            ago(one.created_at, now), ago(one.used_at, now), ago(one.expires_at, now),
        )  # fmt: skip
    out.print(rows)


@commands.command("revoke")
@connected
def revoke_keys(
    app: AnyApp,
    key_ids: Annotated[
        list[str], typer.Argument(metavar="KEY", help="Ids of keys, as `keys list` shows them.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """From now on these keys open nothing, and the sessions they opened end.

    Example: hourhand keys revoke k3zq7o2mdw5tn4xa
    """

    async def revoke(app: AnyApp, key_id: str) -> dict[str, Any]:
        view = await app.keys.revoke(key_id)
        return {"key_id": view.key_id, "name": view.name, "state": view.state}

    each(app, key_ids, "key_id", revoke, lambda one: f"key {one['key_id']} ({one['name']}) is revoked", as_json)


def _scope(key: KeyView) -> str:
    parts = [
        f"queue {', '.join(key.queues)}" if key.queues else "",
        f"jobs {', '.join(f'{one}…' for one in key.prefixes)}" if key.prefixes else "",
    ]
    words = " and ".join(part for part in parts if part)
    return f", only {words}" if words else ""


def _moment(text: str) -> datetime | timedelta | None:
    try:
        return parse_span(text)
    except ValueError:
        pass
    try:
        return instant("--expires", text)
    except InvalidOption:
        raise InvalidOption(f"--expires takes a span like 90d or an instant like 2030-01-31T12:00:00Z, not {text!r}") from None
