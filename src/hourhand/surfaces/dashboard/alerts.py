"""What is wrong and was wrong, by which rules, and who hears of it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from hourhand.surfaces.dashboard.pages import PageRoute, back, form_of, page
from hourhand.surfaces.rest.route import app_of, roles

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_MANY = 50


@router.get("/alerts")
async def alerts(request: Request, below: Annotated[int | None, Query(ge=1)] = None) -> Response:
    app = app_of(request)
    incidents = await app.alerts.list(open=False, below=below, limit=_MANY + 1)
    return page(
        request, "alerts.html", open=[] if below else await app.alerts.list(), over=[one for one in incidents[:_MANY] if one.closed_at],
        more=incidents[_MANY - 1].id if len(incidents) > _MANY else None, rules=await app.alerts.rules(), below=below,
    )  # fmt: skip


@router.post("/alerts/test", openapi_extra=roles("admin"))
async def test_channels(request: Request) -> Response:
    tried = await app_of(request).alerts.test((await form_of(request)).text("channel"))
    if not tried:
        return back("/alerts", "There is no channel: HOURHAND_ALERTS names a file with channels.", error=True)
    failed = [f"{one.channel}: {one.error}" for one in tried if not one.delivered]
    if failed:
        return back("/alerts", "; ".join(failed), error=True)
    return back("/alerts", f"Delivered through {', '.join(one.channel for one in tried)}.")
