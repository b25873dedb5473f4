"""/alerts: what is wrong and was wrong, by which rules, and whether the channels work."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from hourhand.surfaces.rest import models
from hourhand.surfaces.rest.answers import Cursor, Limit, answer, page, read_cursor
from hourhand.surfaces.rest.route import Route, app_of

router = APIRouter(route_class=Route, tags=["alerts"], prefix="/alerts")


@router.get("", operation_id="list_alerts", response_model=list[models.Alert])
async def list_alerts(
    request: Request,
    open: Annotated[bool, Query(description="Only those that are open; false: also those that are over.")] = True,
    rule: Annotated[str | None, Query(max_length=100)] = None,
    since: Annotated[models.Instant | None, Query(description="Of those that are over: only what was so then or later.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Incidents, the newest first, and which channels have been told of them."""
    found = await app_of(request).alerts.list(open=open, rule=rule, since=since, below=read_cursor(cursor, int), limit=limit)
    return page(request, found, limit, lambda one: one.id, lambda one: one.to_dict())


@router.get("/rules", operation_id="alert_rules", response_model=list[models.AlertRule])
async def alert_rules(request: Request) -> Response:
    """The rules of this server's file, over the default ones, and who hears of each."""
    return answer([one.to_dict() for one in await app_of(request).alerts.rules()])


@router.post("/test", operation_id="test_alerts", response_model=list[models.ChannelTrial])
async def try_channels(
    request: Request, channel: Annotated[str | None, Query(max_length=200, description="Only this one.")] = None
) -> Response:
    """A test message through each channel of this server's file, and what came of it."""
    return answer([one.to_dict() for one in await app_of(request).alerts.test(channel)])
