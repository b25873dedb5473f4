"""/runs: make, look, stop, run again, read what they say."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi import Path as InPath

from hourhand.core.tracing import Place, carried, read_headers
from hourhand.surfaces import wire
from hourhand.surfaces.rest import models
from hourhand.surfaces.rest.answers import Cursor, Limit, answer, body_of, optional_body, page, parse_body, read_cursor
from hourhand.surfaces.rest.jobs import _lines, listed
from hourhand.surfaces.rest.route import Route, app_of, roles
from hourhand.surfaces.views import RunView

router = APIRouter(prefix="/runs", tags=["runs"], route_class=Route)

RunId = Annotated[str, InPath(max_length=30, description="A run's id, `r_…`.")]


def whole(request: Request, view: RunView) -> dict[str, Any]:
    return wire.run_to_wire(view.redacted(app_of(request).settings.secret_names))


@router.get("", operation_id="list_runs", response_model=list[models.RunListed])
async def list_runs(
    request: Request,
    status: Annotated[list[models.Status] | None, Query(description="One or more of them.")] = None,
    task: Annotated[str | None, Query(max_length=100)] = None,
    queue: Annotated[str | None, Query(max_length=100)] = None,
    tag: Annotated[str | None, Query(max_length=100)] = None,
    key: Annotated[str | None, Query(max_length=500)] = None,
    job: Annotated[str | None, Query(max_length=100, description="A job's name or id.")] = None,
    node: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="The node that has it, or had it last.")] = None,
    since: Annotated[models.Instant | None, Query(description="Scheduled since.")] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> Response:
    """The newest runs, in whatever state they are."""
    found = await app_of(request).runs.list(
        state=status, task=task, queue=queue, tag=tag, key=key, job=job, node=node, since=since, below=read_cursor(cursor, str),
        limit=limit,
    )  # fmt: skip
    return page(request, found, limit, lambda one: one.run_id, listed)


@router.post(
    "", operation_id="enqueue", status_code=201, response_model=models.Enqueued,
    openapi_extra={**roles("operator"), "x-body": "RunToAdd"},
)  # fmt: skip
async def enqueue(request: Request) -> Response:
    """Enqueue a run. If its key is taken, the run that holds it is named (200), and nothing is made."""
    given = await body_of(request, models.RunToAdd)
    with carried(_trace(request)):
        run = await _enqueue(request, given)
    headers = {"Location": f"/api/v1/runs/{run['run_id']}"}
    return answer(run, 200 if run["duplicate"] else 201, headers)


@router.post(
    "/batch", operation_id="enqueue_batch", status_code=201, response_model=models.EnqueuedMany,
    openapi_extra={**roles("operator"), "x-body": "RunToAdd", "x-body-type": "application/x-ndjson"},
)  # fmt: skip
async def enqueue_batch(request: Request) -> Response:
    """Enqueue many runs, one JSON object a line: all of them, or, if one cannot be, none."""
    given = [parse_body(line, models.RunToAdd, f"line {number}: ") async for number, line in _lines(request)]
    alike: dict[str, list[int]] = {}
    for place, one in enumerate(given):
        # A key is a matter of one run; the others go together with those that differ in nothing but the payload.
        kind = str(place) if one.key is not None else one.model_dump_json(exclude_unset=True, exclude={"payload"})
        alike.setdefault(kind, []).append(place)
    app, made = app_of(request), {}
    with carried(_trace(request)):
        async with (await app._database()).together():
            for places in alike.values():
                first = given[places[0]]
                if len(places) == 1:
                    made[places[0]] = (await _enqueue(request, first))["run_id"]
                else:
                    runs = await app.enqueue_many(first.task, [given[place].payload for place in places], **_options(first))
                    made.update(zip(places, runs, strict=True))
    return answer({"run_ids": [made[place] for place in range(len(given))]}, 201)


@router.get("/{run_id}", operation_id="show_run", response_model=models.Run)
async def show_run(request: Request, run_id: RunId) -> Response:
    """Everything about one run: its times, payload, progress, result, and the error of each attempt."""
    return answer(whole(request, await app_of(request).runs.show(run_id)))


@router.post(
    "/{run_id}/cancel", operation_id="cancel_run", response_model=models.Cancelled,
    openapi_extra={**roles("operator"), "x-body": "CancelRequest", "x-body-optional": True},
)  # fmt: skip
async def cancel_run(request: Request, run_id: RunId) -> Response:
    """One that waits ends at once (`cancelled`); one that is running is told to stop (`asked`)."""
    given = await optional_body(request, models.CancelRequest)
    return answer({"run_id": run_id, "outcome": await app_of(request).runs.cancel(run_id, given.reason)})


@router.post("/{run_id}/retry", operation_id="retry_run", response_model=models.Retried, openapi_extra=roles("operator"))
async def retry_run(request: Request, run_id: RunId) -> Response:
    """Run it again, now: a dead or delayed run under its own id, any other ended run as a new one like it."""
    return answer({"run_id": run_id, "again_as": await app_of(request).runs.retry(run_id)})


@router.get("/{run_id}/logs", operation_id="run_logs", response_model=list[models.LogLine])
async def run_logs(
    request: Request, run_id: RunId, after: Annotated[int, Query(ge=0, le=2**31 - 1, description="A line's number.")] = 0,
    limit: Limit = 1_000,
) -> Response:  # fmt: skip
    """What the run has said, line by line."""
    return answer(await app_of(request).runs.logs(run_id, after=after, limit=limit))


async def _enqueue(request: Request, given: models.RunToAdd) -> dict[str, Any]:
    handle = await app_of(request).enqueue(given.task, given.payload, **_options(given))
    return {"run_id": handle.id, "duplicate": handle.duplicate}


def _trace(request: Request) -> Place | None:
    """Where the caller stands, if his request says so: W3C Trace Context."""
    parent = request.headers.get("traceparent")
    return None if parent is None else read_headers(parent, request.headers.get("tracestate"))


def _options(given: models.RunToAdd) -> dict[str, Any]:
    return wire.enqueue_options(given.model_dump(exclude_unset=True, exclude={"task", "payload"}))
