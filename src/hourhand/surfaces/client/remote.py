"""`AsyncClient`: an app at the other end of a network."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from hourhand.core import ids
from hourhand.core.actor import Actor
from hourhand.core.errors import ConfigurationError, InvalidOption, QueueFull
from hourhand.core.options import EnqueueOptions, merge
from hourhand.core.payload import encode_untyped
from hourhand.core.task import check_name
from hourhand.core.tracing import enqueueing
from hourhand.storage.flow import Flow
from hourhand.surfaces import wire
from hourhand.surfaces.client import events
from hourhand.surfaces.client.alerts import Alerts
from hourhand.surfaces.client.asking import Asking, decoded
from hourhand.surfaces.client.batches import send_batches
from hourhand.surfaces.client.fleet import AuditLog, Keys, Nodes, Queues, Shards, Statistics
from hourhand.surfaces.client.jobs import Jobs
from hourhand.surfaces.client.rules import Holds, RuleBook
from hourhand.surfaces.client.runs import Dead, Runs
from hourhand.surfaces.client.transport import Call, Options, Transport
from hourhand.surfaces.handle import RunHandle
from hourhand.surfaces.verbs import check
from hourhand.surfaces.views import EnqueuedRuns


@dataclass(frozen=True, slots=True)
class Preview:
    """What a schedule would do."""

    schedule: str
    timezone: str
    in_words: str
    firings: tuple[datetime, ...]


class AsyncClient(Asking):
    """The verbs of `Hourhand`, asked of a server: `async with AsyncClient("https://jobs.example.com") as client`.

    Without `url` it is HOURHAND_SERVER, without `key` HOURHAND_API_KEY, without `ca` HOURHAND_CA. A request whose answer is lost
    is sent again, `retries` times, and is carried out once.
    """

    def __init__(
        self, url: str | None = None, key: str | None = None, *, timeout: float = 30.0, retries: int = 3,
        ca: str | Path | None = None, verify: bool = True,
    ) -> None:  # fmt: skip
        where = url or os.environ.get("HOURHAND_SERVER")
        if not where:
            raise ConfigurationError("there is no server to ask: give its URL, or set HOURHAND_SERVER")
        authorities = ca or os.environ.get("HOURHAND_CA") or None
        options = Options(timeout, retries, None if authorities is None else Path(authorities), verify)
        super().__init__(Transport(where, key or os.environ.get("HOURHAND_API_KEY") or None, options))
        self.jobs = Jobs(self._transport)
        self.runs = Runs(self._transport)
        self.dead = Dead(self._transport)
        self.queues = Queues(self._transport)
        self.limits = RuleBook(self._transport)
        self.holds = Holds(self._transport)
        self.nodes = Nodes(self._transport)
        self.shards = Shards(self._transport)
        self.statistics = Statistics(self._transport)
        self.alerts = Alerts(self._transport)
        self.keys = Keys(self._transport)
        self.audit = AuditLog(self._transport)

    @property
    def url(self) -> str:
        return self._transport.url

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.url}>"

    # Enqueueing

    async def enqueue(self, /, task: str, payload: Mapping[str, Any] | None = None, **options: Any) -> RunHandle:
        """Enqueue by name. A task of the server's app is checked against its signature."""
        body = {**_run(task, options), "payload": _payload(task, payload or {})}
        with enqueueing(task) or nullcontext() as doing:
            made = await self._post("/runs", body)
            if doing is not None:
                doing.note({"messaging.message.id": made["run_id"], "hourhand.run_id": made["run_id"]})
        return RunHandle(self, ids.parse_run_id(made["run_id"]), made["duplicate"])

    async def enqueue_many(
        self, /, task: str, payloads: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]], *, commit_every: int | None = None,
        wait: float = 0.0, **options: Any,
    ) -> EnqueuedRuns:  # fmt: skip
        """Enqueue many runs of a task, in requests of at most 10,000, or of `commit_every`.

        A request is all or none. Of more runs than that, those of the requests before one that fails are in, and the error says
        so. Where the queue is full, it waits for room, up to `wait` seconds each time.
        """
        flow = Flow(commit_every, wait)
        common = _run(task, options)
        if "key" in common:
            raise InvalidOption("of many runs one could have the key, and the others would be its duplicates; leave it out")

        def line(payload: Mapping[str, Any]) -> dict[str, Any]:
            return {**common, "payload": _payload(task, payload)}

        lines = (line(one) async for one in payloads) if isinstance(payloads, AsyncIterable) else map(line, payloads)
        numbers: list[int] = []
        with enqueueing(task) or nullcontext() as doing:
            try:
                async for _, answer in send_batches(self._transport, "/runs/batch", {}, lines, "run", flow):
                    numbers += map(ids.parse_run_id, answer["run_ids"])
            except QueueFull as full:
                full.enqueued = EnqueuedRuns(numbers)
                raise
            if doing is not None:
                doing.note({"messaging.batch.message_count": len(numbers)})
        return EnqueuedRuns(numbers)

    # Looking

    async def preview(
        self, schedule: str, *, timezone: str = "UTC", after: datetime | None = None, count: int = 5, dst: str = "shift"
    ) -> Preview:
        """The next firings of a schedule; nothing is stored."""
        check(after=after)
        query = {"schedule": schedule, "timezone": timezone, "after": after, "count": count, "dst": dst}
        return await self._get_as(Preview, "/schedule/preview", **query)

    def events(self, types: Iterable[str] | None = None) -> AsyncGenerator[dict[str, Any], None]:
        """What happens, as it happens: `change`, `runs`; only these types, if some are named.

        It has no end. When the connection is lost it is made anew, and `gap` says that some events may have been missed: events
        are hints, the verbs tell the truth.
        """
        return events.follow(self._transport, None if types is None else [types] if isinstance(types, str) else [*types])

    async def whoami(self) -> Actor:
        """Whose key this is, and what it may touch."""
        return replace(await self._get_as(Actor, "/whoami"), via="api")

    async def health(self) -> dict[str, Any]:
        """`{"status": "ok"}` if the server and its database are well, another word if not. Needs no key, and is asked once."""
        found: dict[str, Any] = decoded(await self._transport.ask(Call("GET", "/healthz"), also=(503,)))
        return found

    # Opening and closing

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections that this event loop opened."""
        await self._transport.close()


def _run(task: str, options: Mapping[str, Any]) -> dict[str, Any]:
    try:
        check_name("task", task)
    except ConfigurationError as error:
        raise InvalidOption(str(error)) from None
    merge(EnqueueOptions(), dict(options))
    plain = wire.options_to_wire(options)
    return {"task": task, **{name: value for name, value in plain.items() if value is not None}}


def _payload(task: str, payload: Mapping[str, Any]) -> msgspec.Raw:
    return msgspec.Raw(encode_untyped(task, payload).encode())
