"""/jobs: add, look, change, hold, start, run the past again, and ask why."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi import Path as InPath

from hourhand.core import ids
from hourhand.core.account import MOMENT
from hourhand.surfaces import wire
from hourhand.surfaces.rest import models
from hourhand.surfaces.rest.answers import (
    Cursor,
    Limit,
    answer,
    body_of,
    entity_tag,
    next_page,
    optional_body,
    page,
    parse_body,
    read_cursor,
    timed_cursor,
    unchanged,
    wanted_version,
)
from hourhand.surfaces.rest.problems import Refused
from hourhand.surfaces.rest.route import Route, app_of, roles
from hourhand.surfaces.verbs import check
from hourhand.surfaces.views import JobView, RunView

router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=Route)

JobId = Annotated[str, InPath(max_length=100, description="A job's id (`j_…`) or its name.")]
MOST_LINES = 20_000
MOST_FIRINGS = 10_000
Instant = Annotated[datetime, msgspec.Meta(tz=True)]
_LONGEST_LINE = 2 * 1024 * 1024


def shown(request: Request, view: JobView) -> dict[str, Any]:
    return wire.job_to_wire(view.redacted(app_of(request).settings.secret_names))


def tagged(request: Request, view: JobView, status: int = 200, **headers: str) -> Response:
    return answer(shown(request, view), status, {"ETag": entity_tag(view.version), **headers})


def listed(view: RunView) -> dict[str, Any]:
    return wire.run_to_wire(view, listed=True)


@router.get("", operation_id="list_jobs", response_model=list[models.Job])
async def list_jobs(
    request: Request,
    state: Literal["active", "paused", "finished"] | None = None,
    task: Annotated[str | None, Query(max_length=100)] = None,
    queue: Annotated[str | None, Query(max_length=100)] = None,
    tag: Annotated[str | None, Query(max_length=100)] = None,
    search: Annotated[str | None, Query(max_length=100, description="A part of the name.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Jobs by name, and when each fires next."""
    found = await app_of(request).jobs.list(
        state=state, task=task, queue=queue, tag=tag, search=search, after=read_cursor(cursor, str), limit=limit
    )
    return page(request, found, limit, lambda one: one.name, lambda one: shown(request, one))


@router.post("", operation_id="add_job", status_code=201, response_model=models.ChangedJob, openapi_extra={"x-body": "JobToAdd"})
async def add_job(
    request: Request, replace: Annotated[bool, Query(description="A job of this name may be there already.")] = False
) -> Response:
    """Register a job. The same definition again changes nothing (200); another one under the same name is a conflict (409),
    unless it is to replace it (200)."""
    given = await body_of(request, models.JobToAdd)
    view = await app_of(request).jobs.add(given.name, replace=replace, **_options(given, "name"))
    return tagged(request, view, 201 if view.outcome == "added" else 200, Location=f"/api/v1/jobs/{view.job_id}")


@router.post(
    "/batch", operation_id="add_jobs", response_model=models.BulkAdded,
    openapi_extra={"x-body": "JobToAdd", "x-body-type": "application/x-ndjson"},
)  # fmt: skip
async def add_jobs(
    request: Request, replace: Annotated[bool, Query(description="Jobs of these names may be there already.")] = False
) -> Response:
    """Register many jobs, one JSON object a line: all of them, or, if one cannot be, none."""
    jobs = []
    async for number, line in _lines(request):
        given = parse_body(line, models.JobToAdd, f"line {number}: ")
        jobs.append({"name": given.name, **_options(given, "name")})
    return answer(asdict(await app_of(request).jobs.add_many(jobs, replace=replace)))


@router.get("/{job_id}", operation_id="show_job", response_model=models.Job)
async def show_job(request: Request, job_id: JobId) -> Response:
    """One job. Its ETag is its version: send it back in If-Match to change only what you have seen."""
    view = await app_of(request).jobs.show(job_id)
    if unchanged(request, tag := entity_tag(view.version)):
        return Response(status_code=304, headers={"ETag": tag})
    return tagged(request, view)


@router.patch("/{job_id}", operation_id="update_job", response_model=models.ChangedJob, openapi_extra={"x-body": "JobChange"})
async def update_job(request: Request, job_id: JobId) -> Response:
    """Change what is named and leave the rest. With If-Match, only if nobody has changed it meanwhile."""
    given = await body_of(request, models.JobChange)
    changes = wire.options_from_wire(given.model_dump(exclude_unset=True))
    return tagged(request, await app_of(request).jobs.update(job_id, version=wanted_version(request), **changes))


@router.put(
    "/{job_id}", operation_id="put_job", response_model=models.ChangedJob, openapi_extra={"x-body": "JobToPut"},
    responses={201: {"model": models.ChangedJob, "description": "Added"}},
)  # fmt: skip
async def put_job(request: Request, job_id: JobId) -> Response:
    """The job of this name as given, whether it is there or not: what is not named becomes the default."""
    given = await body_of(request, models.JobToPut)
    jobs, name, version = app_of(request).jobs, job_id, wanted_version(request)
    if ids.parse_job_id(job_id) is not None:
        name = (await jobs.show(job_id)).name
    async with (await app_of(request)._database()).together():
        if request.headers.get("if-match") is not None:
            await jobs.update(name, version=version)  # there, and at this version
        view = await jobs.add(name, replace=True, **_options(given))
    return tagged(request, view, 201 if view.outcome == "added" else 200)


@router.delete("/{job_id}", operation_id="delete_job", status_code=204, response_class=Response)
async def delete_job(request: Request, job_id: JobId) -> Response:
    """The job goes; its runs, waiting or ended, stay."""
    await app_of(request).jobs.delete(job_id, version=wanted_version(request))
    return Response(status_code=204)


@router.post("/{job_id}/pause", operation_id="pause_job", response_model=models.Job, openapi_extra=roles("operator"))
async def pause_job(request: Request, job_id: JobId) -> Response:
    """From now on it does not fire. Runs that wait or are going on are not touched."""
    return tagged(request, await app_of(request).jobs.pause(job_id))


@router.post(
    "/{job_id}/resume", operation_id="resume_job", response_model=models.Resumed,
    openapi_extra={**roles("operator"), "x-body": "ResumeRequest", "x-body-optional": True},
)  # fmt: skip
async def resume_job(request: Request, job_id: JobId) -> Response:
    """It fires again. What it missed is treated by its missed-window policy, or by `missed`."""
    given = await optional_body(request, models.ResumeRequest)
    done = await app_of(request).jobs.resume(job_id, missed=given.missed)
    return answer({"job": shown(request, done.job), "started": done.started, "left_out": done.left_out})


@router.post(
    "/{job_id}/trigger", operation_id="trigger_job", response_model=models.Triggered,
    openapi_extra={**roles("operator"), "x-body": "TriggerRequest", "x-body-optional": True},
)  # fmt: skip
async def trigger_job(request: Request, job_id: JobId) -> Response:
    """A run here and now, besides the schedule, which stays as it is."""
    given = await optional_body(request, models.TriggerRequest)
    return answer(asdict(await app_of(request).jobs.trigger(job_id, payload=given.payload, force=given.force)))


@router.post(
    "/{job_id}/backfill", operation_id="backfill_job", response_model=models.Backfill,
    openapi_extra={**roles("operator"), "x-body": "BackfillRequest"},
)  # fmt: skip
async def backfill_job(request: Request, job_id: JobId) -> Response:
    """Runs for the firings of a past period that have not succeeded. Asked for twice, it makes each run once."""
    given = await body_of(request, models.BackfillRequest)
    return answer(wire.backfill_to_wire(await app_of(request).jobs.backfill(job_id, **given.model_dump())))


@router.post(
    "/{job_id}/backfill/progress", operation_id="backfill_progress", response_model=models.BackfillProgress,
    openapi_extra={**roles("viewer"), "x-body": "BackfillRuns"},
)  # fmt: skip
async def backfill_progress(request: Request, job_id: JobId) -> Response:
    """How many of these runs of the job have ended, and how many of them well. Nothing is changed."""
    given = await body_of(request, models.BackfillRuns)
    runs = [(ids.parse_run_id(one.run_id), one.scheduled_at) for one in given.runs]
    ended, succeeded = await app_of(request).jobs.ended(job_id, runs)
    return answer({"ended": ended, "succeeded": succeeded})


@router.post(
    "/{job_id}/backfill/cancel", operation_id="cancel_backfill", response_model=models.CalledOff,
    openapi_extra={**roles("operator"), "x-body": "Period"},
)  # fmt: skip
async def cancel_backfill(request: Request, job_id: JobId) -> Response:
    """Call off what backfills of this period have not started yet."""
    given = await body_of(request, models.Period)
    return answer({"called_off": await app_of(request).jobs.cancel_backfill(job_id, given.since, given.until)})


@router.get("/{job_id}/runs", operation_id="job_runs", response_model=list[models.RunListed])
async def job_runs(request: Request, job_id: JobId, limit: Limit = 20, cursor: Cursor = None) -> Response:
    """The job's latest runs, by the instant they are for."""
    found = await app_of(request).jobs.runs(job_id, limit, below=timed_cursor(cursor))
    return page(request, found, limit, lambda one: (one.scheduled_at, one.run_id), listed)


@router.get("/{job_id}/next", operation_id="next_firings", response_model=list[datetime])
async def next_firings(request: Request, job_id: JobId, limit: Limit = 10, cursor: Cursor = None) -> Response:
    """The next firings of a job, within its own limits; of the next ten thousand, at most."""
    seen = read_cursor(cursor, Instant)
    found = await app_of(request).jobs.next(job_id, limit if seen is None else MOST_FIRINGS)
    fresh = found if seen is None else [one for one in found if one > seen][:limit]
    return page(request, fresh, limit, lambda one: one, lambda one: one)


@router.get("/{job_id}/why", operation_id="why", response_model=list[models.Line])
async def why(
    request: Request, job_id: JobId,
    at: Annotated[models.Instant | None, Query(description="One instant.")] = None,
    since: Annotated[models.Instant | None, Query(description="Default: a day ago.")] = None,
    until: Annotated[models.Instant | None, Query(description="Default: now.")] = None,
    limit: Limit = 1_000, cursor: Cursor = None,
) -> Response:  # fmt: skip
    """The ledger: what became of every expected firing, and why. If there are more than `limit` a page has the latest ones, in
    order, and the next page those before them."""
    seen: tuple[datetime, datetime, int] | None = read_cursor(cursor, tuple[Instant, Instant, Annotated[int, msgspec.Meta(ge=1)]])
    if seen is not None:
        check(since=seen[0], until=seen[1])
        since, until = seen[0], seen[1] + MOMENT
    lines = await app_of(request).jobs.why(job_id, at=at, since=since, until=until)
    if seen is not None:
        # Of the instant at which the page before began, the last ones were on it.
        lines = lines[: -seen[2]]
    kept, headers = lines[-limit:], {}
    if len(lines) > limit:
        first = kept[0].scheduled_at
        known = seen[2] if seen is not None and seen[1] == first else 0
        place = (lines[0].scheduled_at, first, known + sum(one.scheduled_at == first for one in kept))
        headers = next_page(request, place)
    return answer([one.to_dict() for one in kept], headers=headers)


@router.get("/{job_id}/proof", operation_id="prove_job", response_model=models.Proof)
async def prove_job(
    request: Request, job_id: JobId, since: Annotated[models.Instant, Query()], until: Annotated[models.Instant, Query()]
) -> Response:
    """Whether every firing that was expected in [since, until) has exactly one recorded outcome."""
    found = await app_of(request).jobs.audit(job_id, since, until)
    return answer({**asdict(found), "clean": found.clean})


def _options(given: models.JobChange, *without: str) -> dict[str, Any]:
    plain = given.model_dump(exclude_unset=True, exclude=set(without))
    # Only here: within a step of a chain, nothing said and null are not the same.
    return wire.options_from_wire({name: value for name, value in plain.items() if value is not None})


async def _lines(request: Request) -> AsyncIterator[tuple[int, bytes]]:
    """The lines of a body, as they come in, with their numbers; empty ones are passed over."""
    rest, number = b"", 0
    async for chunk in request.stream():
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            raise Refused(413, f"line {number + 1} is over {_LONGEST_LINE:,} bytes")
        for line in whole:
            number += 1
            if line.strip():
                yield number, line
        if number > MOST_LINES:
            raise Refused(413, f"at most {MOST_LINES:,} lines in one request; send the rest in another")
    if rest.strip():
        yield number + 1, rest
