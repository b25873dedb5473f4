"""/queues, /nodes, /shards: how full, who is there, who fires what; and what a schedule would do."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi import Path as InPath

from hourhand.core.schedule import parse_schedule
from hourhand.surfaces.rest import models
from hourhand.surfaces.rest.answers import answer
from hourhand.surfaces.rest.route import Route, app_of, roles
from hourhand.surfaces.verbs import check

router = APIRouter(route_class=Route)

QueueName = Annotated[str, InPath(max_length=100)]


@router.get("/queues", operation_id="list_queues", response_model=list[models.Queue], tags=["queues"])
async def list_queues(request: Request) -> Response:
    """Every queue, how many runs it holds in each state, and how long the next one has been due."""
    return answer([one.to_dict() for one in await app_of(request).queues.list()])


@router.post(
    "/queues/{name}/pause", operation_id="pause_queue", response_model=models.QueueState, tags=["queues"],
    openapi_extra=roles("operator"),
)  # fmt: skip
async def pause_queue(request: Request, name: QueueName) -> Response:
    """Nothing more is claimed from it; what runs goes on. Enqueueing stays possible."""
    return answer({"name": name, "paused_at": await app_of(request).queues.pause(name)})


@router.post(
    "/queues/{name}/resume", operation_id="resume_queue", response_model=models.QueueState, tags=["queues"],
    openapi_extra=roles("operator"),
)  # fmt: skip
async def resume_queue(request: Request, name: QueueName) -> Response:
    """Workers take runs from it again."""
    await app_of(request).queues.resume(name)
    return answer({"name": name, "paused_at": None})


@router.get("/nodes", operation_id="list_nodes", response_model=list[models.Node], tags=["fleet"])
async def list_nodes(
    request: Request, gone: Annotated[bool, Query(description="Also those that stopped or died in the last 30 days.")] = False
) -> Response:
    """The processes that are alive, the newest first."""
    return answer([one.to_dict() for one in await app_of(request).nodes.list(gone=gone)])


@router.get("/shards", operation_id="list_shards", response_model=list[models.Shard], tags=["fleet"])
async def list_shards(request: Request) -> Response:
    """The 256 parts of all jobs: which scheduler fires each, and under which epoch."""
    return answer([one.to_dict() for one in await app_of(request).shards.list()])


@router.get("/schedule/preview", operation_id="preview_schedule", response_model=models.Preview, tags=["schedules"])
async def preview_schedule(
    request: Request,
    schedule: Annotated[str, Query(min_length=1, max_length=500)],
    timezone: Annotated[str, Query(min_length=1, max_length=100)] = "UTC",
    after: Annotated[models.Instant | None, Query(description="Default: now.")] = None,
    count: Annotated[int, Query(ge=1, le=1_000)] = 5,
    dst: Literal["shift", "skip"] = "shift",
) -> Response:
    """The next firings of a schedule; nothing is stored."""
    check(after=after)
    start = after or await (await app_of(request)._database()).fetchval("present")
    one = parse_schedule(schedule, timezone=timezone, dst=dst, now=start)
    # In a thread: a thousand 29ths of February take seconds, in which others want to be served.
    firings = await asyncio.to_thread(list, islice(one.firings(start), count))
    return answer({"schedule": one.expression, "timezone": one.timezone, "in_words": one.in_words(), "firings": firings})
