"""/events: what happens, as it happens, as server-sent events.

One connection of this process listens; every subscriber has a bounded queue of his own. Events are hints for the eye: the tables
are the truth, and whoever is too slow is told that he has missed some.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

import asyncpg
import msgspec
import structlog
from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from hourhand.core import ids
from hourhand.core.actor import Actor
from hourhand.core.errors import DatabaseUnavailable, HourhandError
from hourhand.storage.database import Patience, close_quietly, is_lost
from hourhand.surfaces.app import Hourhand
from hourhand.surfaces.rest.problems import Refused
from hourhand.surfaces.rest.route import Route

log = structlog.get_logger("hourhand.api")
router = APIRouter(route_class=Route, tags=["events"])
KINDS = ("change", "runs")
BEAT = 15.0
_LOOK_EVERY = 2.0
_PATIENCE = 5.0
"""Seconds that a stream waits for its beginning, while nothing can be heard."""
_MOST_WAITING = 1_000
_MOST_SUBSCRIBERS = 1_000


class Hub:
    """Hears for everybody who listens here."""

    def __init__(self, app: Hourhand) -> None:
        self._app = app
        self._subscribers: set[asyncio.Queue[dict[str, Any] | None]] = set()
        self._names: dict[str, str | None] = {}
        self._last = 0
        self._hearing = asyncio.Event()
        self.closing = False

    async def subscribe(self) -> asyncio.Queue[dict[str, Any] | None]:
        if len(self._subscribers) >= _MOST_SUBSCRIBERS:
            raise Refused(503, f"{_MOST_SUBSCRIBERS:,} others follow the events here; try again later")
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._hearing.wait(), _PATIENCE)
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(_MOST_WAITING)
        self._subscribers.add(queue)
        return queue

    def leave(self, queue: asyncio.Queue[dict[str, Any] | None]) -> None:
        self._subscribers.discard(queue)

    def close(self) -> None:
        """Streams have no end of their own: without this the server would wait for them."""
        self.closing = True
        for queue in self._subscribers:
            with contextlib.suppress(asyncio.QueueFull):
                queue.put_nowait(None)

    async def run(self) -> None:
        patience = Patience(cap=5.0)
        while True:
            try:
                database = await self._app._database()
                if database.sessions:
                    await self._listen()
                else:
                    await self._look()
            except (HourhandError, asyncpg.PostgresError) as error:
                if patience.first:
                    log.warning("events.waiting", error=str(error))
            if self._hearing.is_set():
                self._hearing.clear()
                patience.reset()
            await patience.wait()

    def _hears(self) -> None:
        """From now on; who was here before is told that he may have missed something, and not a moment earlier: whoever looks
        for himself then misses nothing."""
        self._hearing.set()
        self._say({"type": "gap", "meaning": "the connection was lost; what happened meanwhile is not told"})

    async def _listen(self) -> None:
        database = await self._app._database()
        connection = await database.connect("events", session=True)
        ended = asyncio.get_running_loop().create_future()

        def over(_: Any) -> None:
            if not ended.done():
                ended.set_result(None)

        try:
            connection.add_termination_listener(over)
            await connection.add_listener(f"{database.schema}_events", lambda *heard: self._hear(str(heard[3])))
            self._hears()
            while not ended.done():
                # A connection that a firewall has dropped looks well until it is used.
                await asyncio.wait([ended], timeout=BEAT)
                if not ended.done():
                    await connection.execute("SELECT 1")
        except (asyncpg.PostgresError, OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            if not is_lost(error):
                raise
        finally:
            await close_quietly(connection)

    async def _look(self) -> None:
        """Through a pooler nothing can be heard: changes are looked for instead."""
        newest = await self._app.audit.list(limit=1)
        self._last = newest[0].id if newest else 0
        self._hears()
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            fresh = [one for one in await self._app.audit.list(limit=100) if one.id > self._last]
            for one in reversed(fresh):
                self._last = one.id
                shown = {name: value for name, value in one.to_dict().items() if name not in ("before", "after", "via")}
                self._say({"type": "change", **shown})

    def _hear(self, word: str) -> None:
        with contextlib.suppress(msgspec.DecodeError):
            self._say(msgspec.json.decode(word))

    def _say(self, event: dict[str, Any]) -> None:
        for queue in self._subscribers:
            if queue.full():
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait({"type": "gap", "meaning": "too slow; what came meanwhile is not told"})
            queue.put_nowait(event)

    async def seen_by(self, actor: Actor, event: dict[str, Any]) -> dict[str, Any] | None:
        """The part of an event that this one may see."""
        if str(event.get("action", "")).startswith("key.") and not actor.has_role("admin"):
            return None
        if not actor.scoped or event["type"] == "gap":
            return event
        if event["type"] == "change":
            about_keys = event["action"].startswith("key.")
            return event if not about_keys and actor.may_touch(event.get("queue"), event.get("name")) else None
        ended = [
            one for one in event.get("ended", ()) if actor.may_touch(one["queue"], await self._job_name(actor, one["job_id"]))
        ]
        return {"type": event["type"], "ended": ended} if ended else None

    async def _job_name(self, actor: Actor, job_id: str | None) -> str | None:
        if actor.prefixes is None or job_id is None:
            return None
        if job_id not in self._names:
            if len(self._names) > 100_000:
                self._names.clear()
            self._names[job_id] = await (await self._app._database()).fetchval("job_name", ids.parse_job_id(job_id))
        return self._names[job_id]


@router.get(
    "/events", operation_id="events", response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Events, until the caller leaves"}},
)  # fmt: skip
async def events(
    request: Request,
    kinds: Annotated[list[str] | None, Query(alias="type", max_length=10, description=f"Only these: {', '.join(KINDS)}.")] = None,
) -> StreamingResponse:
    """Changes (`change`) and runs that ended (`runs`), as server-sent events; `gap` says that some were missed."""
    for kind in kinds or ():
        if kind not in KINDS:
            raise Refused(422, f"there are no events of type {kind!r}; there are {', '.join(KINDS)}")
    hub: Hub = request.app.state.hub
    queue = await hub.subscribe()
    return StreamingResponse(
        _stream(request, hub, queue, frozenset(kinds or KINDS) | {"gap"}),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


async def _stream(
    request: Request, hub: Hub, queue: asyncio.Queue[dict[str, Any] | None], kinds: frozenset[str]
) -> AsyncIterator[bytes]:
    actor = request.state.actor
    try:
        yield b"retry: 2000\n\n"
        while not hub.closing:
            word = b": alive\n\n"
            with contextlib.suppress(asyncio.TimeoutError):
                event = await asyncio.wait_for(queue.get(), BEAT)
                if event is None:
                    return
                seen = await hub.seen_by(actor, event) if event.get("type") in kinds else None
                if seen is None:
                    continue
                word = b"event: " + str(seen["type"]).encode() + b"\ndata: " + msgspec.json.encode(seen) + b"\n\n"
            # Whoever lost his key meanwhile hears no more, not even what has just happened.
            if not await request.app.state.still_valid(request):
                return
            yield word
    except DatabaseUnavailable:
        return  # he comes back when it does
    finally:
        hub.leave(queue)
