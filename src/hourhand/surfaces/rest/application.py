"""The API, put together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import structlog
from fastapi import APIRouter, FastAPI, Request, Response
from starlette.datastructures import Headers
from starlette.staticfiles import StaticFiles

from hourhand.core.errors import HourhandError
from hourhand.surfaces import dashboard
from hourhand.surfaces.app import Hourhand
from hourhand.surfaces.forecasting import Almanac
from hourhand.surfaces.metrics import CONTENT_TYPE, exposition
from hourhand.surfaces.rest import access, alerts, dead, events, fleet, jobs, models, problems, rules, runs, statistics
from hourhand.surfaces.rest.answers import answer
from hourhand.surfaces.rest.gate import COOKIE, STATIC, Gate, key_of
from hourhand.surfaces.rest.keyring import Keyring
from hourhand.surfaces.rest.openapi import describe
from hourhand.surfaces.rest.route import Route, app_of

log = structlog.get_logger("hourhand.api")
ROOT = "/api/v1"
_SILENT: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""FastAPI would trace every request, health checks included, and quote values that were refused. Versions that do not do so
ignore this."""
about = APIRouter(route_class=Route, tags=["health"])


@about.get("/healthz", operation_id="healthz", response_model=models.Health, responses={503: {"model": models.Health}})
async def healthz(request: Request) -> Response:
    """Whether this server and its database are well, in a word; the one route that needs no key."""
    body = await request.app.state.health()
    return answer(body, 200 if body["status"] == "ok" else 503)


@about.get("/readyz", operation_id="readyz", response_model=models.Health, responses={503: {"model": models.Health}})
async def readyz(request: Request) -> Response:
    """Whether requests can be served: the database answers, and has the schema of this release."""
    try:
        await (await app_of(request)._database()).fetchval("present")
    except HourhandError:
        return answer({"status": "unavailable"}, 503)
    return answer({"status": "ok"})


@about.get(
    "/metrics", operation_id="metrics", response_class=Response,
    responses={200: {"content": {CONTENT_TYPE.partition(";")[0]: {"schema": {"type": "string"}}}, "description": "For Prometheus"}},
)  # fmt: skip
async def metrics(request: Request) -> Response:
    """For Prometheus."""
    request.state.actor.need_everything("the metrics")
    return Response(await exposition(await app_of(request)._database()), media_type=CONTENT_TYPE)


def make_api(
    app: Hourhand, keyring: Keyring, hub: events.Hub, *, health: Any = None, allowed_hosts: frozenset[str] = frozenset()
) -> Gate:
    """An ASGI application on an app that is open; `health` says how the rest of this process is."""

    almanac = Almanac(app)

    @contextlib.asynccontextmanager
    async def living(_: FastAPI) -> AsyncIterator[None]:
        listening = asyncio.create_task(hub.run(), name="hourhand-events")
        try:
            yield
        finally:
            hub.close()
            listening.cancel()
            await asyncio.gather(listening, almanac.close(), return_exceptions=True)

    async def well() -> dict[str, Any]:
        try:
            await (await app._database()).fetchval("present")
        except HourhandError:
            return {"status": "unavailable"}
        return {"status": "ok"}

    async def still_valid(request: Request) -> bool:
        headers = Headers(scope=request.scope)
        if (key := key_of(headers)) is not None:
            return await keyring.by_key(key) is not None
        if (cookie := request.cookies.get(COOKIE)) is not None:
            return await keyring.by_cookie(cookie) is not None
        return await keyring.is_open()

    api = FastAPI(
        title="Hourhand", docs_url=None, redoc_url=None, openapi_url=None, lifespan=living, redirect_slashes=False,
        telemetry=_SILENT,
    )  # fmt: skip
    api.state.hourhand, api.state.keyring, api.state.hub, api.state.almanac = app, keyring, hub, almanac
    api.state.health, api.state.still_valid = health or well, still_valid
    problems.install(api)
    api.include_router(about)
    for router in (
        jobs.router,
        runs.router,
        dead.router,
        fleet.router,
        rules.router,
        statistics.router,
        alerts.router,
        access.router,
        events.router,
    ):
        api.include_router(router, prefix=ROOT)

    dashboard.install(api)
    api.mount(STATIC, StaticFiles(packages=[("hourhand.surfaces.dashboard", "static")]), "static")
    document = APIRouter(route_class=Route)

    @document.get(f"{ROOT}/openapi.json", include_in_schema=False)
    async def openapi(_: Request) -> Response:
        return answer(api.openapi())

    api.include_router(document)
    describe(api)
    express = {("POST", f"{ROOT}/runs"): ("operator", runs.enqueue)}
    return Gate(api, keyring, allowed_hosts, express, dashboard.refusal)
