"""`Hourhand`: the object an application declares its tasks on and enqueues through."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import os
import re
import sys
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, cast, overload

from hourhand.core.actor import ACTOR
from hourhand.core.backoff import Retry
from hourhand.core.chain import need_steps
from hourhand.core.context import Context
from hourhand.core.errors import ConfigurationError, InvalidOption, QueueFull
from hourhand.core.job import define_job, job_options
from hourhand.core.limits import Limits, Rates, make_rule
from hourhand.core.notice import Alert
from hourhand.core.options import EnqueueOptions, merge
from hourhand.core.payload import encode_untyped
from hourhand.core.registry import Hook, Middleware, Registry
from hourhand.core.sealing import Sealer, sealer
from hourhand.core.settings import settings_from
from hourhand.core.task import check_name, define_task
from hourhand.core.tracing import Doing, enqueueing
from hourhand.storage import foreign, statements
from hourhand.storage.atomic import joined, joined_sync
from hourhand.storage.database import Database, queue_full
from hourhand.storage.enqueue import EnqueueGateway, call_arguments
from hourhand.storage.flow import Flow
from hourhand.surfaces.access import AuditLog, Keys
from hourhand.surfaces.alerts import Alerts
from hourhand.surfaces.dead_letters import Dead
from hourhand.surfaces.deployment import Deployment
from hourhand.surfaces.encryption import Encryption
from hourhand.surfaces.handle import RunHandle
from hourhand.surfaces.holds import Holds
from hourhand.surfaces.jobs import Jobs
from hourhand.surfaces.limits import RuleBook
from hourhand.surfaces.portal import Portal
from hourhand.surfaces.statistics import Statistics
from hourhand.surfaces.task import Task
from hourhand.surfaces.verbs import Nodes, Queues, Runs, Shards
from hourhand.surfaces.views import EnqueuedRuns
from hourhand.targets.builtin import builtin_targets, close_targets
from hourhand.targets.channels import check_hook

if TYPE_CHECKING:
    from hourhand.engine.metrics_server import MetricsServer

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
AlertHook = TypeVar("AlertHook", bound=Callable[[Alert], Any])
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


class Opened:
    """The database as one event loop uses it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.gateway = EnqueueGateway(database)


class Hourhand:
    """One per application. Opens its database on first use; `async with app:` closes it in time.

    Without `database_url` (or HOURHAND_DATABASE_URL) it uses the embedded PostgreSQL, which all of
    a user's processes share.
    """

    def __init__(
        self, database_url: str | None = None, *, name: str | None = None, schema: str | None = None,
        data: str | Path | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        self.name = check_name("app", name or _module_of(sys._getframe(1)))
        """Whose declared jobs are whose, where several apps share a database. Default: the module that makes the app."""
        self.settings = settings_from(os.environ, database_url=database_url, schema=schema, data=data, **settings)
        self.registry = Registry()
        self.registry.targets = builtin_targets(lambda: self.settings)
        self.registry.shutdown.append(close_targets)
        self._opened: dict[asyncio.AbstractEventLoop, Opened] = {}
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}
        self._portal = Portal()
        self._queues_made = {"default"}
        self._process = os.getpid()
        self.runs = Runs(self._database, self.name)
        self.dead = Dead(self._database, self.registry, self.name)
        self.queues = Queues(self._database, self.name)
        self.limits = RuleBook(self._database, self.name)
        self.holds = Holds(self._database, lambda: self.settings, self.name)
        self.nodes = Nodes(self._database, self.name)
        self.shards = Shards(self._database, self.name)
        self.statistics = Statistics(self._database, self.name)
        self.keys = Keys(self._database, self.name)
        self.audit = AuditLog(self._database, self.name)
        self.alerts = Alerts(self._database, lambda: self.settings, self.registry, self.name)
        self.encryption = Encryption(self._database, self.name)
        self.jobs = Jobs(self)

    def configure(self, **given: Any) -> None:
        """Override settings before the database is opened: what the command line says wins."""
        if self._opened:
            raise ConfigurationError("the app is open already; configure it before its first use")
        self.settings = replace(self.settings, **{name: value for name, value in given.items() if value is not None})

    @property
    def state(self) -> SimpleNamespace:
        """For what start-up hooks open: `app.state.client = ...`; handlers see it as `ctx.state`."""
        return self.registry.state

    # Declaring

    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self, function: None = None, /, *, name: str | None = None, queue: str = "default", priority: str = "normal",
        retry: Retry | int | None = None, timeout: float | timedelta | None = None, isolation: str | None = None,
        delivery: str = "at_least_once", max_memory: int | str | None = None, secret: Iterable[str] = (),
        concurrency: Limits = None, rate: Rates = None, fair_key: str | None = None,
    ) -> TaskDecorator: ...  # fmt: skip
    @overload
    def task(
        self, function: None = None, /, *, batch: int, linger: float | timedelta | None = None, name: str | None = None,
        queue: str = "default", priority: str = "normal", retry: Retry | int | None = None,
        timeout: float | timedelta | None = None, secret: Iterable[str] = (), concurrency: Limits = None, rate: Rates = None,
        fair_key: str | None = None,
    ) -> BatchDecorator: ...  # fmt: skip

    def task(
        self, function: Any = None, /, *, name: str | None = None, queue: str = "default", priority: str = "normal",
        retry: Retry | int | None = None, timeout: float | timedelta | None = None, isolation: str | None = None,
        delivery: str = "at_least_once", max_memory: int | str | None = None, secret: Iterable[str] = (),
        concurrency: Limits = None, rate: Rates = None, fair_key: str | None = None, batch: int | None = None,
        linger: float | timedelta | None = None,
    ) -> Any:  # fmt: skip
        """Make a function a task: `@app.task`, or `@app.task(queue=..., retry=..., timeout=..., delivery=...)`.

        `secret` names the arguments that are never shown, as paths: `["password", "card.number", "items.*.token"]`. `concurrency`
        and `rate` hold over the whole fleet: `concurrency=Limit(5, key="customer_id")`, `rate="100/minute"`; `fair_key` lets the
        values of an argument take turns. With `batch` the function takes a list of items and is called once for up to so many
        runs; a batch that is not full waits at most `linger` seconds (0.05) for more.
        """

        def declare(function: Callable[..., Any]) -> Task[..., Any]:
            definition = define_task(
                function, name=name, queue=queue, priority=priority, retry=retry, timeout=timeout, isolation=isolation,
                delivery=delivery, max_memory=max_memory, secret=secret, concurrency=concurrency, rate=rate, fair_key=fair_key,
                batch=batch, linger=linger,
            )  # fmt: skip
            self.registry.add(definition)
            return Task(self, definition, EnqueueOptions(secret=definition.secret))

        return declare if function is None else declare(function)

    def queue(
        self, name: str, *, concurrency: Limits = None, rate: Rates = None, fair_key: str | None = None, order: str | None = None,
        max_depth: int | None = None, overflow: str | None = None,
    ) -> None:  # fmt: skip
        """Say what holds for a queue, over the whole fleet: `app.queue("billing", concurrency=10, rate="100/minute")`.

        `fair_key` lets the values of an argument take turns; `order="deadline"` starts those first that expire first; beyond
        `max_depth` waiting runs, enqueueing is refused, or the oldest are dropped (`overflow="drop_oldest"`).
        """
        rule = make_rule(
            concurrency=concurrency, rate=rate, fair_key=fair_key, order=order, max_depth=max_depth, overflow=overflow
        )  # fmt: skip
        if self.registry.queues.setdefault(check_name("queue", name), rule) != rule:
            raise ConfigurationError(f"queue {name!r} is declared twice, and differently")

    def cron(
        self, expression: str, *, name: str | None = None, task: Mapping[str, Any] | None = None, **options: Any
    ) -> TaskDecorator:
        """Declare a job in code: `@app.cron("0 9 * * 1", timezone="America/New_York")` on a function or a task.

        Options are those of `app.jobs.add`; `task` holds those of `@app.task` where a plain function is decorated. The job's
        name is the task's unless `name` gives another. Declared jobs are added, changed and removed when the code is deployed.
        """
        return self._declare(expression, name, task, options)

    def every(
        self, interval: str | float | timedelta, *, name: str | None = None, task: Mapping[str, Any] | None = None, **options: Any
    ) -> TaskDecorator:
        """The same for an interval: `@app.every("90s")`, counted from when the job is first deployed, or from `anchor`."""
        span = interval.total_seconds() if isinstance(interval, timedelta) else interval
        text = f"every {span:f}s" if isinstance(span, (int, float)) else f"every {span.removeprefix('every ')}"
        return self._declare(text, name, task, options)

    def _declare(self, schedule: str, name: str | None, task: Mapping[str, Any] | None, options: dict[str, Any]) -> TaskDecorator:
        def declare(function: Any) -> Task[..., Any]:
            if isinstance(function, Task):
                if task:
                    raise ConfigurationError(f"{function.name} is a task already; say {', '.join(task)} in its @app.task")
                made: Task[..., Any] = function
            else:
                made = self.task(**(task or {}))(function)
            job = name or made.name
            given = job_options({"task": made.name, "schedule": schedule, **options})
            # While the module is being imported, not when it is deployed.
            define_job(job, given, now=_LONG_AGO, registry=self.registry)
            if self.registry.jobs.setdefault(job, given) != given:
                raise ConfigurationError(f"two jobs are declared as {job!r}; give one of them another name")
            return made

        return cast("TaskDecorator", declare)

    def middleware(self, function: Middleware) -> Middleware:
        """`async def mw(ctx, call_next)`: around every run; the first declared is the outermost."""
        self.registry.middleware.append(function)
        return function

    def on_startup(self, hook: Hook) -> Hook:
        """Called once when a worker process starts, before its first run."""
        self.registry.startup.append(hook)
        return hook

    def on_shutdown(self, hook: Hook) -> Hook:
        """Called once when a worker process ends in order, after its last run."""
        self.registry.shutdown.append(hook)
        return hook

    def on_alert(self, hook: AlertHook) -> AlertHook:
        """Called with each `Alert`, when it is opened and when it is over, in one of the processes that have this app."""
        check_hook(hook)
        self.registry.alert_hooks.append(hook)
        return hook

    # Enqueueing tasks whose code is elsewhere

    async def enqueue(self, task: str, payload: Mapping[str, Any] | None = None, **options: Any) -> RunHandle:
        """Enqueue by name. A task of this app is checked against its signature."""
        arguments, merged = self._by_name(task, payload or {}, options)
        return await self._enqueue(arguments, merged)

    def enqueue_sync(self, task: str, payload: Mapping[str, Any] | None = None, **options: Any) -> RunHandle:
        arguments, merged = self._by_name(task, payload or {}, options)
        return self._enqueue_sync(arguments, merged)

    async def enqueue_many(
        self, task: str, payloads: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]], *, commit_every: int | None = None,
        wait: float = 0.0, **options: Any,
    ) -> EnqueuedRuns:  # fmt: skip
        """Many runs of one task by COPY, by name: all of them, or, if one does not fit, none; or, by `commit_every`, a stream."""
        encode, queue, priority, merged = self._named(task, options)
        return await self._enqueue_many(task, encode, payloads, queue, priority, merged, Flow(commit_every, wait))

    async def _enqueue_many(
        self, task: str, encode: Callable[[Mapping[str, Any]], str], payloads: Any, queue: str, priority: str,
        options: EnqueueOptions, flow: Flow,
    ) -> EnqueuedRuns:  # fmt: skip
        opened = await self._open()
        connection = options.connection or await joined() or opened.database.joined
        if connection is not None and foreign.driver_of(connection) != "asyncpg":
            raise InvalidOption("enqueue_many copies over asyncpg; in another driver's transaction use enqueue in a loop")
        if connection is not None and flow.commit_every is not None:
            raise InvalidOption("commit_every commits by itself; inside of a transaction there is nothing to commit")
        texts = (encode(one) async for one in payloads) if isinstance(payloads, AsyncIterable) else map(encode, payloads)
        try:
            if flow.commit_every is not None:
                return EnqueuedRuns(await opened.gateway.stream(task, texts, queue, priority, options, flow))
            return EnqueuedRuns(await opened.gateway.enqueue_many(task, texts, queue, priority, options, connection))
        except QueueFull as full:
            full.enqueued = EnqueuedRuns(full.enqueued)
            raise

    def _by_name(self, task: str, payload: Mapping[str, Any], options: dict[str, Any]) -> tuple[tuple[Any, ...], EnqueueOptions]:
        encode, queue, priority, merged = self._named(task, options)
        return call_arguments(task, encode(payload), queue, priority, merged, self._sealer), merged

    def _named(self, task: str, options: dict[str, Any]) -> tuple[Callable[[Mapping[str, Any]], str], str, str, EnqueueOptions]:
        """How payloads of this task are written, where its runs go, and the options, all of them checked."""
        try:
            check_name("task", task)
        except ConfigurationError as error:
            raise InvalidOption(str(error)) from None
        known = self.registry.find(task)
        merged = merge(EnqueueOptions(secret=known.secret if known else ()), options, self.registry.marks_of)
        if merged.then is not None:
            self.registry.check_steps(merged.kept())
        queue = merged.queue or (known.queue if known else "default")
        priority = merged.priority or (known.priority if known else "normal")
        if (actor := ACTOR.get()).scoped:
            actor.need(queue, None, f"queue {queue!r}")
            need_steps(actor, merged.kept())
        return known.codec.encode if known else partial(encode_untyped, task), queue, priority, merged

    async def _enqueue(self, arguments: tuple[Any, ...], options: EnqueueOptions) -> RunHandle:
        doing = enqueueing(arguments[0], arguments[2])
        if doing is None:
            return await self._put(arguments, options)
        with doing:
            return _noted(doing, await self._put(arguments, options, doing))

    async def _put(self, arguments: tuple[Any, ...], options: EnqueueOptions, doing: Doing | None = None) -> RunHandle:
        connection = options.connection or await joined() or (await self._database()).joined
        if connection is not None:
            await self._make_queue(arguments[2])
            try:
                row = await foreign.fetch_async(connection, self._enqueue_statement, _traced(arguments, doing))
            except Exception as error:
                raise queue_full(error) or error from None
            number, duplicate = int(row[0]), bool(row[1])
        else:
            number, duplicate = await (await self._open()).gateway.enqueue(arguments, doing)
        return RunHandle(self, number, duplicate)

    def _enqueue_sync(self, arguments: tuple[Any, ...], options: EnqueueOptions) -> RunHandle:
        connection = options.connection or joined_sync()
        if connection is not None:
            if arguments[2] not in self._queues_made:
                self.sync(self._make_queue(arguments[2]))
            doing = enqueueing(arguments[0], arguments[2])
            with doing or contextlib.nullcontext():
                try:
                    row = foreign.fetch_sync(connection, self._enqueue_statement, _traced(arguments, doing))
                except Exception as error:
                    raise queue_full(error) or error from None
                return _noted(doing, RunHandle(self, int(row[0]), bool(row[1])))
        return self.sync(self._enqueue(arguments, options))

    @property
    def _enqueue_statement(self) -> str:
        return statements.load(self.settings.schema)["enqueue"]

    @property
    def _sealer(self) -> Sealer:
        return sealer(self.settings.encryption_keys)

    async def _make_queue(self, queue: str) -> None:
        """Outside of the caller's transaction, which would keep everybody else from the new queue."""
        if queue not in self._queues_made:
            await (await self._open()).gateway.queue_number(queue)
            self._queues_made.add(queue)

    # Without an event loop

    def sync(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of any of this app's coroutines, for callers without an event loop:
        `app.sync(app.runs.list(limit=5))`. Thread-safe; connections stay open between calls."""
        self._notice_fork()
        return self._portal.call(work)

    # Opening and closing

    async def _open(self) -> Opened:
        self._notice_fork()
        loop = asyncio.get_running_loop()
        opened = self._opened.get(loop)
        if opened is not None:
            return opened
        async with self._opening.setdefault(loop, asyncio.Lock()):
            opened = self._opened.get(loop)
            if opened is None:
                database = Database(self.settings)
                try:
                    await database.open()
                except BaseException:
                    await database.close()
                    raise
                opened = self._opened[loop] = Opened(database)
                if len(self._opened) == 1:
                    atexit.register(self.close)
        return opened

    async def _database(self) -> Database:
        return (await self._open()).database

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close what this event loop opened."""
        opened = self._opened.pop(asyncio.get_running_loop(), None)
        if opened is not None:
            await opened.gateway.close()
            await opened.database.close()

    def close(self) -> None:
        """Close what synchronous calls opened."""
        atexit.unregister(self.close)
        self._notice_fork()
        if self._portal.started:
            self._portal.call(self.aclose())
            self._portal.close()

    def _notice_fork(self) -> None:
        # A forked child has its parent's sockets. Using them would garble both, and letting the garbage
        # collector have them would close them for both: they are kept, untouched, until the child ends.
        if self._process != os.getpid():
            self._process = os.getpid()
            inherited = (self._opened, self._opening, self._portal)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))
            self._opened, self._opening, self._portal = {}, {}, Portal()

    # Working

    async def work(
        self, *, queues: list[str] | None = None, concurrency: int = 50, shutdown_grace: float = 25.0, handle_signals: bool = True,
        weights: Mapping[str, int] | None = None, strict: bool = False, metrics_port: int = 0, metrics_host: str = "127.0.0.1",
    ) -> None:  # fmt: skip
        """Run a worker here, until SIGTERM or Ctrl-C. The jobs this app declares are brought into force.

        `weights` say what each priority gets when all have work ({"high": 60, "normal": 30, "low": 10} unless said otherwise);
        `strict` puts the most urgent first, always. With `metrics_port`, Prometheus finds `/metrics` there.
        """
        # Here and below: whoever merely enqueues need not wait for the engine to be imported.
        from hourhand.engine.worker import Worker, WorkerOptions

        options = WorkerOptions(
            queues=queues, concurrency=concurrency, shutdown_grace=shutdown_grace, weights=weights, strict=strict,
            labels=self.deployment.labels,
        )  # fmt: skip
        async with _served(metrics_host, metrics_port) as server:
            worker = Worker(database := await self._database(), self.settings, self.registry, options)
            if server is not None:
                server.show_worker(worker, [database])
            async with self.deployment.kept():
                await worker.run(handle_signals=handle_signals)

    async def schedule(self, *, handle_signals: bool = True, metrics_port: int = 0, metrics_host: str = "127.0.0.1") -> None:
        """Run a scheduler here, until SIGTERM or Ctrl-C: it fires what is due, and runs none of it."""
        from hourhand.engine.scheduler import Scheduler

        async with _served(metrics_host, metrics_port) as server:
            scheduler = Scheduler(database := await self._database(), self.settings, self.deployment.labels, self.registry)
            if server is not None:
                server.show_scheduler(scheduler, [database])
            async with self.deployment.kept():
                await scheduler.run(handle_signals=handle_signals)

    @property
    def deployment(self) -> Deployment:
        """The declared jobs of this code, and bringing them into force."""
        return Deployment(self)


def _traced(arguments: tuple[Any, ...], doing: Doing | None) -> tuple[Any, ...]:
    """What the statement takes, on a connection of the caller's."""
    return (*arguments, True) if doing is None else (*arguments[:-1], doing.kept(arguments[-1]), True)


def _noted(doing: Doing | None, handle: RunHandle) -> RunHandle:
    if doing is not None:
        known = {"hourhand.duplicate": True} if handle.duplicate else {}
        doing.note({"messaging.message.id": handle.id, "hourhand.run_id": handle.id, **known})
    return handle


def _served(host: str, port: int) -> contextlib.AbstractAsyncContextManager[MetricsServer | None]:
    from hourhand.engine.metrics_server import Address, served

    return served(Address(host, port))


def _module_of(frame: FrameType) -> str:
    module = str(frame.f_globals.get("__name__", "app"))
    if module == "__main__":
        spec = frame.f_globals.get("__spec__")
        module = spec.name if spec is not None else Path(str(frame.f_globals.get("__file__", "app"))).stem
    return re.sub(r"[^A-Za-z0-9_.:-]", "-", module.removesuffix(".__main__")).lstrip("_.:-")[:100] or "app"


class TaskDecorator:
    """The type of `@app.task(...)`."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, function: Any, /) -> Any:
        raise NotImplementedError


class BatchDecorator:
    """The type of `@app.task(batch=...)`: what is enqueued are the fields of an item, not what the function takes."""

    def __call__(self, function: Callable[..., R], /) -> Task[..., R]:
        raise NotImplementedError
