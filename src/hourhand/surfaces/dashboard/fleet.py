"""Queues, nodes and shards: how full, who is there, who owns what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response

from hourhand.core.actor import ACTOR
from hourhand.core.errors import UnknownQueue
from hourhand.surfaces.dashboard.charts import Chart, Series
from hourhand.surfaces.dashboard.pages import PageRoute, back, form_of, link, page
from hourhand.surfaces.dashboard.words import plural
from hourhand.surfaces.rest.route import app_of
from hourhand.surfaces.statistics import PERIODS, Trend

router = APIRouter(route_class=PageRoute, include_in_schema=False)
HOUR = 3_600.0
COLOURS = 8
_MOST_CHARTS = 12
"""Queues with a chart of their own: those that do most."""


@router.get("/queues")
async def queues(request: Request, period: Annotated[str, Query(max_length=10)] = "1h") -> Response:
    app = app_of(request)
    figures = await app.statistics.queues()
    busiest = sorted(figures, key=lambda one: (-one.ended_per_second, -one.ready, one.name))[:_MOST_CHARTS]
    charts = queue_charts(await app.statistics.by_queue(period, [one.name for one in busiest]))
    return page(
        request, "queues.html", queues=figures, charts=charts, period=period, periods=list(PERIODS), rules=await app.limits.list(),
        holds=await app.holds.list(),
    )  # fmt: skip


def queue_charts(trends: dict[str, Trend]) -> list[Chart]:
    return [
        Chart(
            name, [one.at for one in trend.moments],
            [Series("runs", "good", [one.succeeded / trend.step for one in trend.moments]),
             Series("failed", "bad", [one.failed / trend.step for one in trend.moments])],
            "/s", stacked=True, link=link("/runs", queue=name),
        )
        for name, trend in trends.items()
    ]  # fmt: skip


@router.post("/queues/{name}/pause")
async def pause_queue(request: Request, name: str) -> Response:
    if not await app_of(request).queues.exists(name):
        raise UnknownQueue(f"there is no queue {name!r}")
    await app_of(request).queues.pause(name)
    return back((await form_of(request)).get("back", "/queues"), f"Queue {name} is paused: nothing more is started from it.")


@router.post("/queues/{name}/resume")
async def resume_queue(request: Request, name: str) -> Response:
    await app_of(request).queues.resume(name)
    return back((await form_of(request)).get("back", "/queues"), f"Queue {name} goes on.")


@router.post("/holds")
async def add_hold(request: Request) -> Response:
    form = await form_of(request)
    field, value = form.text("field"), form.text("value")
    hold = await app_of(request).holds.add(
        queue=form.text("queue"), task=form.text("task"), tag=form.text("tag"), field=field, value=value, reason=form.text("reason")
    )  # fmt: skip
    return back(form.get("back", "/queues"), f"Hold {hold.id}: no more runs with {hold.in_words} are started.")


@router.post("/holds/{hold_id}/release")
async def release_hold(request: Request, hold_id: Annotated[int, Path(ge=1, le=2**31 - 1)]) -> Response:
    hold = await app_of(request).holds.release(hold_id)
    return back(
        (await form_of(request)).get("back", "/queues"),
        f"Hold {hold.id} is released: {plural(hold.runs, 'run goes', 'runs go')} on.",
    )


@router.get("/nodes")
async def nodes(request: Request, gone: bool = False) -> Response:
    ACTOR.get().need_everything("the list of nodes")
    database = await app_of(request)._database()
    rows = [dict(row) for row in await database.fetch("recent_nodes", 30 * 24 * HOUR if gone else HOUR)]
    for row in rows:
        row["info"] = msgspec.json.decode(row["info"])
        row["lease_age"] = max(0.0, app_of(request).settings.lease - row["lease_left"])
    return page(request, "nodes.html", nodes=rows, gone=gone, lease=app_of(request).settings.lease)


@dataclass(frozen=True, slots=True)
class Owner:
    node: int | None
    name: str
    shards: int
    colour: str


@router.get("/shards")
async def shards(request: Request) -> Response:
    ACTOR.get().need_everything("the list of shards")
    rows = await (await app_of(request)._database()).fetch("shard_owners")
    owners = owners_of(rows)
    return page(request, "shards.html", shards=rows, owners=owners, colours={one.node: one.colour for one in owners})


def owners_of(rows: Sequence[Any]) -> list[Owner]:
    numbers = sorted({row["owner"] for row in rows if row["owner"] is not None})
    names = {row["owner"]: row["node_name"] or "gone" for row in rows}
    counts = {number: sum(row["owner"] == number for row in rows) for number in [*numbers, None]}
    found = [Owner(number, names[number], counts[number], f"owner-{place % COLOURS}") for place, number in enumerate(numbers)]
    return [*found, Owner(None, "nobody", counts[None], "")] if counts[None] else found
