"""/statistics: what happened, in numbers, and how full the queues are. Everything was counted before; nothing is counted here."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from hourhand.surfaces.rest import models
from hourhand.surfaces.rest.answers import answer
from hourhand.surfaces.rest.route import Route, app_of

router = APIRouter(route_class=Route, tags=["statistics"], prefix="/statistics")


@router.get("", operation_id="statistics", response_model=models.Trend)
async def statistics(
    request: Request,
    period: models.Span = "1h",
    queue: Annotated[
        str | None, Query(max_length=100, description="Only what concerns this queue. Firings belong to none.")
    ] = None,
) -> Response:
    """The last hour, day or week, step by step: what ended, what was fired, how late runs started, how full it was."""
    return answer((await app_of(request).statistics.over(period, queue=queue)).to_dict())


@router.get("/queues", operation_id="queue_figures", response_model=list[models.QueueFigures])
async def queue_figures(request: Request) -> Response:
    """Every queue as it was found a few seconds ago, and what it did in the last five minutes."""
    return answer([one.to_dict() for one in await app_of(request).statistics.queues()])


@router.get("/totals", operation_id="totals", response_model=dict[str, int])
async def totals(request: Request) -> Response:
    """How many jobs, paused jobs and schedules there are, as they were counted a minute ago; empty before that."""
    return answer(await app_of(request).statistics.totals())
