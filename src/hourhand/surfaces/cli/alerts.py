"""`hourhand alerts`: what is wrong, by which rules, and whether anybody would hear of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.text import Text

from hourhand.core.alert_rules import rule_in_words
from hourhand.core.alerts import default_alerts
from hourhand.core.clock import Clock
from hourhand.core.errors import ConfigurationError, InvalidOption
from hourhand.core.settings import settings_from
from hourhand.engine.alerting import open_channels, read_alerts
from hourhand.surfaces.alerts import AlertView
from hourhand.surfaces.app import Hourhand
from hourhand.surfaces.cli.common import (
    AnyApp,
    AsJson,
    Exit,
    ago,
    counted,
    err,
    fixed,
    folded,
    instant,
    number,
    out,
    plain,
    polite,
    print_json,
    run,
    span,
    table,
    tell,
)
from hourhand.surfaces.cli.connection import connected

commands = typer.Typer(help="See what is wrong; check and test who is told of it.", no_args_is_help=True)

T = TypeVar("T")
_STYLES = {"critical": "red", "warning": "yellow"}
File = Annotated[
    Path | None,
    typer.Option(
        "--alerts", metavar="FILE", help="The file of rules and channels.", envvar="HOURHAND_ALERTS", show_default=False
    ),
]


@commands.command("list")
@connected
def list_alerts(
    app: AnyApp,
    everything: Annotated[bool, typer.Option("--all", help="Also those that are over.")] = False,
    rule: Annotated[str | None, typer.Option("--rule", help="Only those of this rule.")] = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            "--since", metavar="WHEN", parser=instant, help="Those that were open since: 30s, 15m, 2h, 7d ago, or ISO 8601."
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many, the newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """The incidents that are open, the newest first.

    Example: hourhand alerts list --since 7d
    """
    only_open = not (everything or since is not None)
    found = run(app, lambda app: app.alerts.list(open=only_open, rule=rule, since=since, limit=limit))
    if as_json:
        print_json(found)
        return
    if not found:
        out.print("nothing is wrong" if only_open and rule is None else "no alerts match")
        return
    now = Clock().instant()
    rows = table(number("id"), fixed("since"), fixed("severity"), folded("rule"), folded("what"), folded("told"))
    for one in found:
        rows.add_row(
            str(one.id), ago(one.opened_at, now), Text(one.severity, _STYLES.get(one.severity, "")), one.rule, _what(one, now), _told(one)
        )  # fmt: skip
    out.print(rows)
    if len(found) == limit:
        err.print(f"[dim]the newest {limit}; --limit shows more[/]")


@commands.command("rules")
@connected
def rules(
    app: AnyApp,
    context: typer.Context,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """The rules that hold, and who hears of each. With --server: those of the server."""
    found = _ask(app, context, file, lambda app: app.alerts.rules())
    if as_json:
        print_json(found)
        return
    rows = table(folded("rule"), fixed("severity"), folded("when"), fixed("for"), folded("tells"))
    for one in found:
        tells = ", ".join(one.channels) or "nobody" if one.enabled else "disabled"
        held = span(one.held_for) if one.held_for else "at once"
        rows.add_row(one.name, Text(one.severity, _STYLES.get(one.severity, "")), plain(one.in_words), held, plain(tells))
    out.print(rows)


@commands.command("test")
@connected
def try_channels(
    app: AnyApp,
    context: typer.Context,
    channel: Annotated[str | None, typer.Argument(metavar="[CHANNEL]", help="Only this one.", show_default=False)] = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Send a test message through each channel, and tell what came of it.

    With --app, also through its functions that are marked @app.on_alert. With --server, the server sends it. No database is
    needed otherwise. Exit code 1: at least one could not be told.

    Example: hourhand alerts test --alerts alerts.toml
    """
    found = _ask(app, context, file, lambda app: app.alerts.test(channel))
    if as_json:
        print_json(found)
    elif not found:
        err.print("there is no channel to test: name a file of alerts with --alerts, or HOURHAND_ALERTS", soft_wrap=True)
    else:
        rows = table(folded("channel"), fixed("kind"), folded("address"), fixed("outcome"), folded("why"))
        for one in found:
            outcome = Text("delivered", "green") if one.delivered else Text("failed", "red")
            rows.add_row(plain(one.channel), one.kind, plain(one.address), outcome, plain(one.error or f"in {span(one.seconds)}"))
        out.print(rows)
    if not found or not all(one.delivered for one in found):
        raise typer.Exit(Exit.FAILED)


@commands.command("check")
def check(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="The file of rules and channels.", envvar="HOURHAND_ALERTS", show_default=False),
    ] = None,
    without_secrets: Annotated[
        bool, typer.Option("--without-secrets", help="Do not look whether the variables and files that channels name are there.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """See whether a file of alerts is right. Nothing is sent, and no database is needed.

    Example: hourhand alerts check alerts.toml
    """

    def work() -> None:
        if file is None:
            raise ConfigurationError("which file? give it, or set HOURHAND_ALERTS")
        settings = settings_from({}, alerts=file)
        found = read_alerts(settings)
        if not without_secrets:
            open_channels(found, settings)
        if as_json:
            print_json(
                {
                    "rules": [{"name": one.name, "kind": one.kind, "enabled": one.enabled, "in_words": rule_in_words(one)} for one in found.rules],
                    "channels": [{"name": one.name, "kind": one.kind, "at_least": one.at_least} for one in found.channels],
                }
            )  # fmt: skip
            return
        own = {one.name for one in found.rules} - {one.name for one in default_alerts().rules}
        out.print(
            f"{file} is right: {counted(len(found.rules), 'rule')}, {len(own)} of them besides the default ones, and "
            f"{counted(len(found.channels), 'channel')}",
            soft_wrap=True,
        )
        if not found.channels:
            err.print("[yellow]note:[/] there is no channel: incidents are shown by `hourhand alerts list`, and told to nobody",
                      soft_wrap=True)  # fmt: skip

    polite(work)


def _ask(app: AnyApp, context: typer.Context, file: Path | None, work: Callable[[AnyApp], Awaitable[T]]) -> T:
    """Of a server; or by the file that is named here, which needs no database."""
    if not isinstance(app, Hourhand):
        # The environment may name a file for processes of this machine; on the command line it is meant for this one.
        source = context.get_parameter_source("file")
        if source is not None and source.name == "COMMANDLINE":
            raise typer.Exit(
                tell(InvalidOption("a server has rules and channels of its own; give --alerts or --server, not both"))
            )
        return run(app, work)
    here = app

    async def whole() -> T:
        try:
            return await work(here)
        finally:
            await here.aclose()

    def configured() -> T:
        here.configure(alerts=file)
        return asyncio.run(whole())

    return polite(configured)


def _what(one: AlertView, now: datetime) -> Text:
    if one.closed_at is None:
        return plain(one.message)
    return plain(f"{one.message}; over {ago(one.closed_at, now)}: {one.ending or ''}", "dim")


def _told(one: AlertView) -> Text:
    words = []
    for told in one.told:
        if told.opened_at is None:
            words.append(f"{told.channel}: not yet" + (f" ({told.error})" if told.error else ""))
        elif told.error:
            what = "not that it is over" if one.state == "closed" else "not reminded"
            words.append(f"{told.channel}: {what} ({told.error})")
        else:
            words.append(told.channel)
    return plain(", ".join(words) or "nobody")
