"""The dashboard: pages made on the server, kept alive by a small script."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from starlette.datastructures import Headers
from starlette.types import Scope

from hourhand.surfaces.dashboard import alerts, dead, dead_orders, fleet, forecast, job, jobs, login, overview, run, runs
from hourhand.surfaces.dashboard.pages import error_page, link
from hourhand.surfaces.rest.gate import STRANGER, is_page


def install(api: FastAPI) -> None:
    api.state.refusal = refusal
    for module in (login, overview, alerts, jobs, job, runs, run, dead_orders, dead, fleet, forecast):
        api.include_router(module.router)


def refusal(scope: Scope, status: int, detail: str) -> Response | None:
    """For somebody who looks at pages: where to sign in, or what is wrong. None: it was a program that asked."""
    if not is_page(scope["path"]) or "text/html" not in Headers(scope=scope).get("accept", ""):
        return None
    request = Request(scope)
    if status == 401:
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(link("/login", next=here if request.method == "GET" else "/"), 303)
    if not hasattr(request.state, "actor"):
        request.state.actor = STRANGER
    return error_page(request, status, detail)
