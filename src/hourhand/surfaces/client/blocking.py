"""`Client`: the same verbs for callers without an event loop, on a loop in a thread of its own.

Every method is the async one with the waiting done here; its signature is taken from there, for type checkers and editors too.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from hourhand.surfaces.client import alerts, fleet, jobs, rules, runs
from hourhand.surfaces.client.remote import AsyncClient
from hourhand.surfaces.handle import RunHandle
from hourhand.surfaces.portal import Portal

A = TypeVar("A")
G = TypeVar("G")
P = ParamSpec("P")
R = TypeVar("R")
_END: Any = object()


class Waiter:
    """The loop of a client, made anew after a fork."""

    def __init__(self) -> None:
        self._portal = Portal()
        self._process = os.getpid()

    def wait(self, work: Coroutine[Any, Any, R]) -> R:
        self._notice_fork()
        return self._portal.call(work)

    def close(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._notice_fork()
        if self._portal.started:
            self._portal.call(work())
            self._portal.close()

    def _notice_fork(self) -> None:
        # The parent's loop is kept, untouched: it holds the parent's sockets.
        if self._process != os.getpid():
            self._process = os.getpid()
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._portal))
            self._portal = Portal()


class Blocking(Generic[G]):
    """Some verbs, and who waits for them."""

    def __init__(self, verbs: G, waiter: Waiter) -> None:
        self._verbs, self._waiter = verbs, waiter


def blocking(method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Blocking[A], P], R]:
    @functools.wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._waiter.wait(method(self._verbs, *args, **kwargs))

    return call


def blocking_iterator(
    method: Callable[Concatenate[A, P], AsyncIterator[R]],
) -> Callable[Concatenate[Blocking[A], P], Generator[R, None, None]]:
    @functools.wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> Generator[R, None, None]:
        items = method(self._verbs, *args, **kwargs)
        try:
            while (one := self._waiter.wait(_next(items))) is not _END:
                yield one
        finally:
            if isinstance(items, AsyncGenerator):
                # One that was interrupted in the middle is being ended already.
                with suppress(RuntimeError):
                    self._waiter.wait(_end(items))

    return call


async def _next(items: AsyncIterator[R]) -> R:
    return await anext(items, _END)


async def _end(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()


class Jobs(Blocking[jobs.Jobs]):
    add = blocking(jobs.Jobs.add)
    update = blocking(jobs.Jobs.update)
    delete = blocking(jobs.Jobs.delete)
    add_many = blocking(jobs.Jobs.add_many)
    show = blocking(jobs.Jobs.show)
    list = blocking(jobs.Jobs.list)
    next = blocking(jobs.Jobs.next)
    runs = blocking(jobs.Jobs.runs)
    pause = blocking(jobs.Jobs.pause)
    resume = blocking(jobs.Jobs.resume)
    trigger = blocking(jobs.Jobs.trigger)
    backfill = blocking(jobs.Jobs.backfill)
    follow = blocking_iterator(jobs.Jobs.follow)
    cancel_backfill = blocking(jobs.Jobs.cancel_backfill)
    why = blocking(jobs.Jobs.why)
    audit = blocking(jobs.Jobs.audit)


class Runs(Blocking[runs.Runs]):
    show = blocking(runs.Runs.show)
    list = blocking(runs.Runs.list)
    cancel = blocking(runs.Runs.cancel)
    retry = blocking(runs.Runs.retry)
    logs = blocking(runs.Runs.logs)


class Dead(Blocking[runs.Dead]):
    list = blocking(runs.Dead.list)
    count = blocking(runs.Dead.count)
    show = blocking(runs.Dead.show)
    edit = blocking(runs.Dead.edit)
    replay = blocking(runs.Dead.replay)
    purge = blocking(runs.Dead.purge)


class Queues(Blocking[fleet.Queues]):
    list = blocking(fleet.Queues.list)
    exists = blocking(fleet.Queues.exists)
    pause = blocking(fleet.Queues.pause)
    resume = blocking(fleet.Queues.resume)


class RuleBook(Blocking[rules.RuleBook]):
    list = blocking(rules.RuleBook.list)
    set = blocking(rules.RuleBook.set)
    clear = blocking(rules.RuleBook.clear)


class Holds(Blocking[rules.Holds]):
    list = blocking(rules.Holds.list)
    add = blocking(rules.Holds.add)
    release = blocking(rules.Holds.release)


class Nodes(Blocking[fleet.Nodes]):
    list = blocking(fleet.Nodes.list)


class Shards(Blocking[fleet.Shards]):
    list = blocking(fleet.Shards.list)


class Statistics(Blocking[fleet.Statistics]):
    over = blocking(fleet.Statistics.over)
    queues = blocking(fleet.Statistics.queues)
    totals = blocking(fleet.Statistics.totals)


class Alerts(Blocking[alerts.Alerts]):
    list = blocking(alerts.Alerts.list)
    rules = blocking(alerts.Alerts.rules)
    test = blocking(alerts.Alerts.test)


class Keys(Blocking[fleet.Keys]):
    create = blocking(fleet.Keys.create)
    list = blocking(fleet.Keys.list)
    revoke = blocking(fleet.Keys.revoke)


class AuditLog(Blocking[fleet.AuditLog]):
    list = blocking(fleet.AuditLog.list)


class BlockingHandle(Blocking[RunHandle]):
    """A run that was enqueued."""

    show = blocking(RunHandle.show)
    wait = blocking(RunHandle.wait)
    result = blocking(RunHandle.result)

    @property
    def id(self) -> str:
        return self._verbs.id

    @property
    def duplicate(self) -> bool:
        """The key was taken: this is the run that holds it, and nothing new was enqueued."""
        return self._verbs.duplicate

    def __repr__(self) -> str:
        return repr(self._verbs)


class Client(Blocking[AsyncClient]):
    """The verbs of `Hourhand`, asked of a server: `with Client("https://jobs.example.com") as client`. Thread-safe.

    What it takes and where it looks for what it is not given is as for `AsyncClient`.
    """

    def __init__(
        self, url: str | None = None, key: str | None = None, *, timeout: float = 30.0, retries: int = 3,
        ca: str | Path | None = None, verify: bool = True,
    ) -> None:  # fmt: skip
        remote, waiter = AsyncClient(url, key, timeout=timeout, retries=retries, ca=ca, verify=verify), Waiter()
        super().__init__(remote, waiter)
        self.jobs = Jobs(remote.jobs, waiter)
        self.runs = Runs(remote.runs, waiter)
        self.dead = Dead(remote.dead, waiter)
        self.queues = Queues(remote.queues, waiter)
        self.limits = RuleBook(remote.limits, waiter)
        self.holds = Holds(remote.holds, waiter)
        self.nodes = Nodes(remote.nodes, waiter)
        self.shards = Shards(remote.shards, waiter)
        self.statistics = Statistics(remote.statistics, waiter)
        self.alerts = Alerts(remote.alerts, waiter)
        self.keys = Keys(remote.keys, waiter)
        self.audit = AuditLog(remote.audit, waiter)
        # Connections that nobody has closed would be complained about at the end of the program.
        atexit.register(self.close)

    enqueue_many = blocking(AsyncClient.enqueue_many)
    preview = blocking(AsyncClient.preview)
    events = blocking_iterator(AsyncClient.events)
    whoami = blocking(AsyncClient.whoami)
    health = blocking(AsyncClient.health)

    def enqueue(self, /, task: str, payload: Mapping[str, Any] | None = None, **options: Any) -> BlockingHandle:
        """Enqueue by name. A task of the server's app is checked against its signature."""
        return BlockingHandle(self._waiter.wait(self._verbs.enqueue(task, payload, **options)), self._waiter)

    @property
    def url(self) -> str:
        return self._verbs.url

    def __repr__(self) -> str:
        return f"<Client of {self.url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Whoever uses it afterwards opens new ones."""
        atexit.unregister(self.close)
        self._waiter.close(self._verbs.aclose)
