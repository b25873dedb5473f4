"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from hourhand.surfaces.cli.loading import Source, late

RUN, LOOK, DEFINE, OPERATE = "Run it", "Look and act", "Define", "Operate"
# In the order in which the help shows them. Nothing here is imported before it is called.
COMMANDS = {
    "init": Source("init:init", RUN),
    "up": Source("process:up", RUN),
    "worker": Source("process:worker", RUN),
    "scheduler": Source("process:scheduler", RUN),
    "api": Source("api:api", RUN),
    "top": Source("top:top", LOOK),
    "why": Source("why:why", LOOK),
    "runs": Source("runs:commands", LOOK),
    "logs": Source("logs:logs", LOOK),
    "dead": Source("dead:commands", LOOK),
    "queues": Source("queues:commands", LOOK),
    "limits": Source("limits:commands", LOOK),
    "holds": Source("holds:commands", LOOK),
    "nodes": Source("nodes:commands", LOOK),
    "shards": Source("shards:commands", LOOK),
    "forecast": Source("forecast:forecast", LOOK),
    "alerts": Source("alerts:commands", LOOK),
    "audit": Source("audit:audit", LOOK),
    "jobs": Source("jobs:commands", DEFINE),
    "next": Source("schedule:next_firings", DEFINE),
    "plan": Source("plan:plan", DEFINE),
    "apply": Source("plan:apply", DEFINE),
    "drift": Source("plan:drift", DEFINE),
    "export": Source("export:export", DEFINE),
    "import": Source("importing:commands", DEFINE),
    "keys": Source("keys:commands", OPERATE),
    "encryption": Source("encryption:commands", OPERATE),
    "migrate": Source("process:migrate", OPERATE),
    "doctor": Source("doctor:doctor", OPERATE),
    "verify": Source("verify:verify_command", OPERATE),
}

cli = typer.Typer(
    name="hourhand",
    cls=late(COMMANDS),
    help="A distributed job scheduler for Python and PostgreSQL.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from hourhand import __version__

        typer.echo(f"hourhand {__version__}")
        raise typer.Exit


@cli.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)] = False,
) -> None:
    """A distributed job scheduler for Python and PostgreSQL."""


def main() -> None:
    cli()
