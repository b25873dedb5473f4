"""`hourhand encryption`: keys for payloads at rest, and sealing what is stored with a new one."""

from __future__ import annotations

import secrets
from typing import Annotated

import typer

from hourhand.core.encryption_keys import new_key
from hourhand.surfaces.app import Hourhand
from hourhand.surfaces.cli.common import AsJson, Exit, counted, err, fixed, number, out, plain, polite, print_json, run, table
from hourhand.surfaces.cli.connection import on_database
from hourhand.surfaces.cli.progress import bar
from hourhand.surfaces.encryption import Rotated

commands = typer.Typer(help="Encrypt stored payloads, and change the key.", no_args_is_help=True)

History = Annotated[bool, typer.Option("--history/--no-history", help="Also the payloads of runs that have ended.")]


@commands.command("new-key")
def make_key(
    kid: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="What the key is called, for ever. Default: a random one.")
    ] = None,
) -> None:
    """Print a fresh key, to be put before those that are in HOURHAND_ENCRYPTION_KEYS. It is stored nowhere.

    Example: hourhand encryption new-key --id 2027-05
    """
    line = polite(lambda: new_key(kid or f"k{secrets.token_hex(3)}"))
    err.print("keep it where secrets are kept: without it, what it has encrypted is lost", style="dim")
    out.print(line, soft_wrap=True)


@commands.command("status")
@on_database
def show_status(app: Hourhand, history: History = True, as_json: AsJson = False) -> None:
    """How many stored payloads each key has encrypted.

    Example: hourhand encryption status --no-history
    """
    found = run(app, lambda app: app.encryption.status(history=history))
    if as_json:
        print_json({"key": app._sealer.kid, "payloads": found})
        return
    if not found:
        out.print("no payloads yet")
        return
    rows = table(fixed("payloads of"), fixed("encrypted with"), number("payloads"))
    for one in found:
        rows.add_row(one.place, _key(one.kid, app._sealer.kid), f"{one.payloads:,}")
    out.print(rows)


@commands.command("rotate")
@on_database
def rotate_keys(app: Hourhand, history: History = True, as_json: AsJson = False) -> None:
    """Encrypt what is stored with the first of HOURHAND_ENCRYPTION_KEYS, also what is not encrypted yet.

    Workers and schedulers may go on meanwhile. When nothing is left under the old keys they can be removed.

    Example: hourhand encryption rotate
    """

    async def rotate(app: Hourhand) -> Rotated:
        total = sum(one.payloads for one in await app.encryption.status(history=history) if one.kid != app._sealer.kid)
        with bar("encrypted", total) as show:
            return await app.encryption.rotate(history=history, progress=show)

    done = run(app, rotate)
    if as_json:
        print_json(done)
    else:
        out.print(plain(f"{counted(done.resealed, 'row')} encrypted with {done.key}"), soft_wrap=True)
    if done.left:
        err.print(plain(_remainder(done)), soft_wrap=True)
        raise typer.Exit(Exit.NOT_POSSIBLE)


def _remainder(done: Rotated) -> str:
    where = ", ".join(f"{one.payloads:,} of {one.place} ({_key(one.kid)})" for one in done.left)
    words = f"left as they are: {where}"
    if any(one.place == "running" for one in done.left):
        words += "; what is being executed is sealed when it has ended, so run this again then"
    if done.unreadable:
        words += f"; {counted(done.unreadable, 'row')} cannot be opened with the keys that are here"
    return words


def _key(kid: str | None, newest: str | None = None) -> str:
    if kid is None:
        return "nothing"
    return f"{kid}, the newest" if kid == newest else kid
