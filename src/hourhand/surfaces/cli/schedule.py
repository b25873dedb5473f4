"""`hourhand next`: when a schedule will fire, without storing anything."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import Annotated

import typer

from hourhand.core.clock import Clock
from hourhand.core.schedule import parse_schedule
from hourhand.surfaces.cli.common import AsJson, err, instant, polite, print_json


def next_firings(
    expression: Annotated[str, typer.Argument(help="Cron, 'every 90s', 'in 10m', or an ISO 8601 instant.")],
    timezone: Annotated[str, typer.Option("--tz", help="The IANA time zone in which cron is evaluated.")] = "UTC",
    after: Annotated[str | None, typer.Option("--after", help="ISO 8601 with offset. Default: now.")] = None,
    count: Annotated[int, typer.Option("--count", min=1, max=10_000, help="How many firings to show.")] = 5,
    dst: Annotated[str, typer.Option("--dst", help="A local time that does not exist: shift it or skip it.")] = "shift",
    as_json: AsJson = False,
) -> None:
    """The next firings of a schedule, one ISO 8601 instant in UTC a line; nothing is stored.

    Example: hourhand next "30 2 * * *" --tz America/New_York --after 2026-03-07T00:00:00Z --count 3
    """
    start = datetime.fromtimestamp(Clock.machine(), UTC) if after is None else instant(after)

    def show() -> None:
        schedule = parse_schedule(expression, timezone=timezone, dst=dst, now=start)
        firings = [f"{one:%Y-%m-%dT%H:%M:%SZ}" for one in islice(schedule.firings(start), count)]
        if as_json:
            print_json({"schedule": schedule.expression, "words": schedule.in_words(), "firings": firings})
            return
        for line in firings:
            typer.echo(line)
        if not firings:
            err.print("it does not fire again after that")

    polite(show)
