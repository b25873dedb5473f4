"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from hourhand.surfaces.cli import dead, doctor, jobs, nodes, process, queues, runs, schedule, verify, why

cli = typer.Typer(
    name="hourhand",
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


cli.command("up")(process.up)
cli.command("worker")(process.worker)
cli.command("scheduler")(process.scheduler)
cli.command("migrate")(process.migrate)
cli.command("next")(schedule.next_firings)
cli.command("why")(why.why)
cli.command("doctor")(doctor.doctor)
cli.command("verify")(verify.verify_command)
cli.add_typer(jobs.commands, name="jobs")
cli.add_typer(runs.commands, name="runs")
cli.add_typer(dead.commands, name="dead")
cli.add_typer(queues.commands, name="queues")
cli.add_typer(nodes.commands, name="nodes")


def main() -> None:
    cli()
