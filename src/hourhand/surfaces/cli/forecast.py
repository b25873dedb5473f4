"""`hourhand forecast`: what the next day will bring."""

from __future__ import annotations

from typing import Annotated

import typer

from hourhand.core.forecast import Forecast
from hourhand.surfaces.app import Hourhand
from hourhand.surfaces.cli.common import AsJson, fixed, folded, number, out, print_json, run, table
from hourhand.surfaces.cli.connection import on_database
from hourhand.surfaces.cli.progress import bar
from hourhand.surfaces.forecasting import SHARDS, make_forecast, summary


@on_database
def forecast(
    app: Hourhand,
    hours: Annotated[float, typer.Option("--hours", min=0.1, max=168, help="How far ahead.")] = 24.0,
    as_json: AsJson = False,
) -> None:
    """How many runs the schedules will start in each second from now on, and which seconds are hot.

    For a hot second it says which flexible window on those jobs would calm it, and how far.

    Example: hourhand forecast --hours 48
    """

    async def work(app: Hourhand) -> Forecast:
        with bar("schedules, by shard", SHARDS, always=not as_json) as show:
            return await make_forecast(app, hours=hours, progress=lambda done, _: show(done))

    found = run(app, work)
    if as_json:
        print_json(summary(found))
        return
    out.print(
        f"{found.firings:,} runs of {found.jobs:,} jobs in the next {hours:g} h: "
        f"{found.mean:,.2f} a second on average, {found.peak:,.0f} in the hottest"
    )
    if not found.hot:
        out.print("no second stands out")
        return
    rows = table(fixed("hot second (UTC)"), number("runs"), folded("mostly"), fixed("flexible window"), number("then at most"))
    for one in found.hot:
        mostly = "; ".join(f"{words}: {jobs:,} jobs" for words, jobs in one.schedules[:2])
        rows.add_row(f"{one.at:%Y-%m-%d %H:%M:%S}", f"{one.runs:,.0f}", mostly, f"{one.window} s", f"{one.after:,.0f}")
    out.print(rows)
