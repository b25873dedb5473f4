"""A declared task: callable as the function it is, and enqueueable."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import msgspec

from hourhand.core.chain import Step
from hourhand.core.errors import InvalidOption
from hourhand.core.options import EnqueueOptions, merge
from hourhand.core.task import TaskDefinition
from hourhand.storage.atomic import joined_sync
from hourhand.storage.enqueue import call_arguments
from hourhand.storage.flow import Flow
from hourhand.surfaces.handle import RunHandle
from hourhand.surfaces.views import EnqueuedRuns

if TYPE_CHECKING:
    from hourhand.surfaces.app import Hourhand

P = ParamSpec("P")
R = TypeVar("R")


class Task(Generic[P, R]):
    def __init__(self, app: Hourhand, definition: TaskDefinition, options: EnqueueOptions) -> None:
        self._app = app
        self._definition = definition
        self._options = options
        self.__doc__ = definition.function.__doc__
        self.__wrapped__ = definition.function

    @property
    def name(self) -> str:
        return self._definition.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself, here and now; nothing is enqueued."""
        return self._definition.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    def options(self, **options: Any) -> Task[P, R]:
        """The same task with enqueue options: delay, at, expires, queue, priority, key, unique_for, tags,
        max_attempts, timeout, delivery, retry_backoff, retry_base, retry_cap, secret, then, connection."""
        return Task(self._app, self._definition, merge(self._options, options, self._app.registry.marks_of))

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle:
        """Enqueue one run. The arguments are checked against the signature before anything is written."""
        return await self._app._enqueue(self._call(args, kwargs), self._options)

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle:
        """The same for callers without an event loop."""
        return self._app._enqueue_sync(self._call(args, kwargs), self._options)

    async def enqueue_many(
        self, payloads: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]], *, commit_every: int | None = None,
        wait: float = 0.0,
    ) -> EnqueuedRuns:  # fmt: skip
        """Enqueue many runs by COPY, a chunk at a time in memory: all of them, or, if one does not fit, none.

        With `commit_every` it is a stream: each so many are there at once for the workers; and where the queue's `max_depth` is
        reached, it waits for room, up to `wait` seconds each time.
        """
        definition, options = self._definition, self._options
        return await self._app._enqueue_many(
            definition.name, definition.codec.encode, payloads, options.queue or definition.queue,
            options.priority or definition.priority, options, Flow(commit_every, wait),
        )  # fmt: skip

    def enqueue_many_sync(
        self, payloads: Iterable[Mapping[str, Any]], *, commit_every: int | None = None, wait: float = 0.0
    ) -> EnqueuedRuns:
        if joined_sync() is not None:
            # In the transaction of an exactly-once run, over its own driver, which knows no COPY.
            return EnqueuedRuns([self.enqueue_sync(**payload)._number for payload in payloads])  # type: ignore[call-arg]
        return self._app.sync(self.enqueue_many(payloads, commit_every=commit_every, wait=wait))

    def step(self, **payload: Any) -> Step:
        """This task as the next step of a chain: `first.options(then=second.step(table="x")).enqueue()`.

        If the function has a parameter `result` that is not given here, it receives the result of the step before.
        """
        definition, options = self._definition, self._options
        takes = "result" in definition.codec.names and "result" not in payload
        text = definition.codec.encode_partly(payload, ("result",) if takes else ())
        if options.key is not None or options.at is not None or options.connection is not None or options.expires is not None:
            raise InvalidOption(
                "a step of a chain can have queue, priority, delay, tags, max_attempts, timeout, delivery, secret and then"
            )
        return Step(
            definition.name, msgspec.json.decode(text), "result" if takes else None, options.queue or definition.queue,
            options.priority or definition.priority, options.delay.total_seconds() if options.delay else None, options.tags,
            options.kept(),
        )  # fmt: skip

    def _call(self, args: Any, kwargs: Any) -> tuple[Any, ...]:
        definition, options = self._definition, self._options
        payload = definition.codec.encode(definition.codec.bind(args, kwargs))
        queue, priority = options.queue or definition.queue, options.priority or definition.priority
        return call_arguments(definition.name, payload, queue, priority, options, self._app._sealer)
