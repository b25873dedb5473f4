"""`hourhand nodes`: which processes are there, and what they do."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from hourhand.core.clock import Clock
from hourhand.surfaces.cli.common import AnyApp, AsJson, ago, out, plain, print_json, run, table
from hourhand.surfaces.cli.connection import connected
from hourhand.surfaces.views import NodeView

commands = typer.Typer(help="See which workers and schedulers are there.", no_args_is_help=True)

_STYLES = {"alive": "green", "late": "yellow", "dead": "red"}


@commands.command("list")
@connected
def list_nodes(
    app: AnyApp,
    gone: Annotated[bool, typer.Option("--gone", help="Also those that stopped or died in the last 30 days.")] = False,
    as_json: AsJson = False,
) -> None:
    """The processes that are alive, the newest first.

    A node is late when its lease ran out and nobody has declared it dead yet.
    """
    found = run(app, lambda app: app.nodes.list(gone=gone))
    if as_json:
        print_json(found)
        return
    if not found:
        out.print("no nodes" if gone else "no nodes are alive; start one with: hourhand worker --app module:name", soft_wrap=True)
        return
    rows = table()
    rows.add_column("node", justify="right", no_wrap=True)
    rows.add_column("state", no_wrap=True)
    rows.add_column("kind", no_wrap=True)
    rows.add_column("name", overflow="fold")
    rows.add_column("does", justify="right", no_wrap=True)
    rows.add_column("queues", overflow="fold")
    rows.add_column("started", no_wrap=True)
    if gone:
        rows.add_column("ended", no_wrap=True)
    now = Clock().instant()
    for one in found:
        rows.add_row(
            str(one.node), Text(one.state, _STYLES.get(one.state, "")), one.kind, plain(one.name), _does(one), _queues(one),
            ago(one.started_at, now), *([ago(one.died_at or one.stopped_at, now)] if gone else []),
        )  # fmt: skip
    out.print(rows)


def _does(one: NodeView) -> str:
    if one.kind == "scheduler":
        return f"{one.shards} shards"
    slots = one.info.get("concurrency")
    return f"{one.running}/{slots} runs" if slots else f"{one.running} runs"


def _queues(one: NodeView) -> Text:
    if one.kind == "scheduler":
        return plain("")
    queues = one.info.get("queues")
    return plain("all" if queues is None else ", ".join(queues))
