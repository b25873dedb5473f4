"""`hourhand shards`: which scheduler fires which part of the jobs."""

from __future__ import annotations

import typer

from hourhand.core.clock import Clock
from hourhand.surfaces.cli.common import AnyApp, AsJson, ago, fixed, folded, number, out, plain, print_json, run, table
from hourhand.surfaces.cli.connection import connected

commands = typer.Typer(help="See which scheduler fires which part of the jobs.", no_args_is_help=True)


@commands.command("list")
@connected
def list_shards(app: AnyApp, as_json: AsJson = False) -> None:
    """The 256 parts of all jobs: who fires each, since when, under which epoch, and what is next.

    Example: hourhand shards list
    """
    found = run(app, lambda app: app.shards.list())
    if as_json:
        print_json(found)
        return
    rows = table(
        number("shard"), number("node"), folded("name"), number("epoch"), fixed("since"), number("schedules"), fixed("next")
    )
    now = Clock().instant()
    for one in found:
        rows.add_row(
            str(one.shard), "" if one.node is None else str(one.node), plain(one.node_name or "nobody", "" if one.node else "yellow"),
            str(one.epoch), ago(one.taken_at, now), f"{one.schedules:,}", ago(one.next_run_at, now),
        )  # fmt: skip
    out.print(rows)
