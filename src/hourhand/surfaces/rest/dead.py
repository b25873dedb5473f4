"""/dead: look at dead letters, edit them, send them back, throw them away."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from hourhand.core.errors import InvalidOption
from hourhand.surfaces.rest import models
from hourhand.surfaces.rest.answers import Cursor, Limit, answer, body_of, page, timed_cursor
from hourhand.surfaces.rest.route import Route, app_of, roles
from hourhand.surfaces.rest.runs import RunId, whole

router = APIRouter(prefix="/dead", tags=["dead letters"], route_class=Route)

RunIds = Annotated[
    list[Annotated[str, Field(max_length=30)]] | None, Query(alias="run_id", max_length=1_000, description="Only these.")
]
Task = Annotated[str | None, Query(max_length=100)]
Queue = Annotated[str | None, Query(max_length=100)]
Tag = Annotated[str | None, Query(max_length=100)]
Error = Annotated[str | None, Query(max_length=200, description="The type of the last error.")]
Since = Annotated[models.Instant | None, Query(description="Died since.")]
Before = Annotated[models.Instant | None, Query(description="Died before.")]


@router.get("", operation_id="list_dead", response_model=list[models.Run])
async def list_dead(
    request: Request, run_ids: RunIds = None, task: Task = None, queue: Queue = None, tag: Tag = None, error: Error = None, since: Since = None,
    before: Before = None, limit: Limit = 50, cursor: Cursor = None,
) -> Response:  # fmt: skip
    """The runs that gave up, the latest first, each with the errors of all its attempts."""
    filters = _filters(task=task, queue=queue, tag=tag, error=error, since=since, before=before)
    found = await app_of(request).dead.list(*run_ids or (), limit=limit, below=timed_cursor(cursor), **filters)
    return page(request, found, limit, lambda one: (one.finished_at, one.run_id), lambda one: whole(request, one))


@router.get("/count", operation_id="count_dead", response_model=models.Count)
async def count_dead(
    request: Request, run_ids: RunIds = None, task: Task = None, queue: Queue = None, tag: Tag = None, error: Error = None, since: Since = None,
    before: Before = None,
) -> Response:  # fmt: skip
    """How many match."""
    filters = _filters(task=task, queue=queue, tag=tag, error=error, since=since, before=before)
    return answer({"count": await app_of(request).dead.count(*run_ids or (), **filters)})


@router.get("/{run_id}", operation_id="show_dead", response_model=models.Run)
async def show_dead(request: Request, run_id: RunId) -> Response:
    """One dead letter: its payload, and the error of each attempt."""
    return answer(whole(request, await app_of(request).dead.show(run_id)))


@router.patch("/{run_id}", operation_id="edit_dead", response_model=models.Run, openapi_extra={"x-body": "NewPayload"})
async def edit_dead(request: Request, run_id: RunId) -> Response:
    """Replace the payload; what was shown as [redacted] and comes back so stays as it was."""
    given = await body_of(request, models.NewPayload)
    return answer(whole(request, await app_of(request).dead.edit(run_id, given.payload)))


@router.delete("/{run_id}", operation_id="purge_one", status_code=204, response_class=Response)
async def purge_one(request: Request, run_id: RunId) -> Response:
    """Out of the dead letters for good: outcome and errors stay in history, the payload goes."""
    await app_of(request).dead.purge(run_id)
    return Response(status_code=204)


@router.post(
    "/replay", operation_id="replay_dead", response_model=models.Replayed,
    openapi_extra={**roles("operator"), "x-body": "LettersToReplay"},
)  # fmt: skip
async def replay_dead(request: Request) -> Response:
    """Back into their queues with fresh attempts; those whose key another live run holds stay (`blocked`)."""
    run_ids, rest = _chosen(given := await body_of(request, models.LettersToReplay))
    done = await app_of(request).dead.replay(*run_ids, rate=given.rate, start=given.start, **rest)
    later = {} if given.rate is None else {"until": done.until}
    return answer({"replayed": done.replayed, "blocked": done.blocked, **later})


@router.post("/purge", operation_id="purge_dead", response_model=models.Purged, openapi_extra={"x-body": "Letters"})
async def purge_dead(request: Request) -> Response:
    """Out of the dead letters for good: outcomes and errors stay in history, payloads go."""
    run_ids, rest = _chosen(await body_of(request, models.Letters))
    return answer({"purged": await app_of(request).dead.purge(*run_ids, **rest)})


def _filters(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _chosen(given: models.Letters) -> tuple[list[str], dict[str, Any]]:
    """Nothing said is not everything: that has to be said."""
    filters = given.model_dump(exclude_none=True, exclude={"run_ids", "all", "limit", "rate", "start"})
    if not given.run_ids and not filters and not given.all:
        raise InvalidOption("say which: run_ids, filters, or all")
    if given.all and (given.run_ids or filters):
        raise InvalidOption("all means all of them; leave out run_ids and filters")
    return given.run_ids or [], {**filters, "limit": given.limit}
