"""/limits and /holds: what is ruled about queues and tasks, and which runs are held back."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi import Path as InPath

from hourhand.core.limits import Limit, Rate
from hourhand.surfaces.rest import models
from hourhand.surfaces.rest.answers import answer, body_of
from hourhand.surfaces.rest.route import Route, app_of, roles

router = APIRouter(route_class=Route)

Scope = Literal["queue", "task"]
Name = Annotated[str, InPath(max_length=100)]


@router.get("/limits", operation_id="list_limits", response_model=list[models.Ruling], tags=["limits"])
async def list_limits(request: Request) -> Response:
    """Every queue and task about which something is ruled: what the code declares, what is ordered above it, how many runs are
    inside, and how many wait because of it."""
    return answer([one.to_dict() for one in await app_of(request).limits.list()])


@router.put(
    "/limits/{scope}/{name}", operation_id="set_limit", response_model=models.Ruling, tags=["limits"],
    openapi_extra={**roles("operator"), "x-body": "RulingToSet"},
)  # fmt: skip
async def set_limit(request: Request, scope: Scope, name: Name) -> Response:
    """From now on, whatever the code declares. What is not given stays as it is; null lifts it. `concurrency` and `rate` belong
    together: whoever gives one of them says all limits that there are."""
    given = await body_of(request, models.RulingToSet)
    parts: dict[str, Any] = {part: getattr(given, part) for part in given.model_fields_set}
    if isinstance(parts.get("concurrency"), list):
        parts["concurrency"] = [Limit(one.slots, one.key) for one in parts["concurrency"]]
    if isinstance(parts.get("rate"), list):
        parts["rate"] = [Rate(one.rate, one.burst, one.key) for one in parts["rate"]]
    return answer((await app_of(request).limits.set(scope, name, **parts)).to_dict())


@router.delete(
    "/limits/{scope}/{name}", operation_id="clear_limit", response_model=models.Ruling, tags=["limits"],
    openapi_extra=roles("operator"),
)  # fmt: skip
async def clear_limit(request: Request, scope: Scope, name: Name) -> Response:
    """Back to what the code declares."""
    return answer((await app_of(request).limits.clear(scope, name)).to_dict())


@router.get("/holds", operation_id="list_holds", response_model=list[models.Hold], tags=["holds"])
async def list_holds(request: Request) -> Response:
    """What is held back, by whom and why, and how many runs that are."""
    return answer([one.to_dict() for one in await app_of(request).holds.list()])


@router.post(
    "/holds", operation_id="add_hold", status_code=201, response_model=models.Hold, tags=["holds"],
    openapi_extra={**roles("operator"), "x-body": "HoldToAdd"},
)  # fmt: skip
async def add_hold(request: Request) -> Response:
    """Start no more runs of a task, with a tag, or with a value in a field of the payload: of all that is given, all must fit. What
    runs goes on. A hold that says the same answers for the new one."""
    given = await body_of(request, models.HoldToAdd)
    return answer((await app_of(request).holds.add(**given.model_dump())).to_dict(), 201)


@router.delete(
    "/holds/{hold_id}", operation_id="release_hold", response_model=models.Hold, tags=["holds"], openapi_extra=roles("operator")
)
async def release_hold(request: Request, hold_id: Annotated[int, InPath(ge=1, le=2**31 - 1)]) -> Response:
    """Its runs are ready again, at their old places."""
    return answer((await app_of(request).holds.release(hold_id)).to_dict())
