"""What a handler is told about the run it executes, and what it may ask for."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeVar

import msgspec
import structlog

from hourhand.core import ids
from hourhand.core.errors import Cancelled, ConfigurationError
from hourhand.core.lines import Pen, RunLog
from hourhand.core.template import render
from hourhand.core.token import execution_token

T = TypeVar("T")
_MAKING = threading.Lock()
Report = Callable[[int, Any], None]

ATOMIC: ContextVar[Any] = ContextVar("hourhand_transaction", default=None)
"""The transaction of the exactly-once run that is being executed here: what it enqueues joins it."""


RUN: ContextVar[Context | BatchContext | None] = ContextVar("hourhand_run", default=None)
"""The run that is being executed here, or the runs of a batch."""


class Office(Protocol):
    """What the engine does for a handler that asks."""

    async def once(self, context: Context, name: str, make: Callable[[], Any]) -> Any: ...
    def once_sync(self, context: Context, name: str, make: Callable[[], Any]) -> Any: ...


class Support(NamedTuple):
    """What the engine does for all the handlers of a process."""

    report: Report
    state: Any = None
    office: Office | None = None
    give_pen: Callable[[Context], Pen] | None = None


class Context:
    """The first argument of a handler that asks for it.

    Everything here may be called from an async handler, a thread, or a child process. One is made for every run, asked for or not,
    so it holds little more than the claim, which knows the rest.
    """

    __slots__ = ("__dict__", "__weakref__", "_cancelled", "_pen", "_support", "claim", "patience")

    def __init__(self, claim: Any, support: Support) -> None:
        self.claim = claim
        self._support = support
        self.patience = 0.0
        """Seconds that it asks for, once it was told to stop, beyond what everybody gets."""
        self._pen: Pen | None = None
        self._cancelled: threading.Event | None = None

    @property
    def run_number(self) -> int:
        return int(self.claim.run_number)

    @property
    def job_number(self) -> int | None:
        number: int | None = self.claim.job_number
        return number

    @property
    def task(self) -> str:
        return str(self.claim.task)

    @property
    def scheduled_at(self) -> datetime:
        """The instant this run is for, aware, in UTC. The same over all retries."""
        instant: datetime = self.claim.scheduled_at
        return instant

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        return int(self.claim.attempt) + 1

    @property
    def state(self) -> Any:
        """The app's `state`: what its start-up hooks opened."""
        return self._support.state

    @property
    def run_id(self) -> str:
        return ids.run_id(self.run_number)

    @property
    def job_id(self) -> str | None:
        return None if self.job_number is None else ids.encode("j", self.job_number)

    @property
    def queue(self) -> str:
        return str(self.claim.queue)

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(self.claim.tags or ())

    @property
    def fence(self) -> int:
        """A number that grows with each claim of this run: a table of your own that keeps the highest it has seen can refuse
        the writes of a worker that lost the run."""
        return int(self.claim.token)

    @cached_property
    def token(self) -> str:
        """Stable over retries, different for each firing."""
        return execution_token(self.job_id or self.run_id, self.scheduled_at)

    @cached_property
    def idempotency_key(self) -> str:
        """For outside APIs that take one: what the job's `idempotency_key_template` says, or else the token."""
        kept = (self.claim.options or {}).get("idempotency")
        if kept is None:
            return self.token
        names = {"job_id": self.job_id, "job": kept.get("job"), "task": self.task, "run_id": self.run_id}
        return render(kept["template"], kept["timezone"], self.scheduled_at, names, msgspec.json.decode(self.claim.payload))

    @property
    def pen(self) -> Pen:
        """What writes the lines of this attempt. Made on demand: most runs say nothing."""
        if self._pen is None:
            with _MAKING:  # threads of one handler share one
                give = self._support.give_pen
                self._pen = self._pen or (Pen(0, lambda line: None) if give is None else give(self))
        return self._pen

    @property
    def spoke(self) -> bool:
        return self._pen is not None and self._pen.used

    @cached_property
    def log(self) -> Any:
        """A structlog logger that names the run. What it is told is kept with the run as well."""
        return RunLog(structlog.get_logger("hourhand.run").bind(**self.fields()), self.pen, {})

    def fields(self) -> dict[str, Any]:
        """What a log line says of this run."""
        job = {} if self.job_number is None else {"job": self.job_id}
        known = {"run": self.run_id, **job, "task": self.task, "queue": self.queue, "attempt": self.attempt}
        return {**known, "node": getattr(self.claim, "worker", None)}

    def say(self, text: str, level: str = "info", **fields: Any) -> None:
        """A line that is kept with the run, and does not go to the log of the process."""
        self.pen.write(level, text, fields)

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked this run to stop. A thread has to look; others are interrupted."""
        return self._cancelled is not None and self._cancelled.is_set()

    def check_cancelled(self) -> None:
        if self.cancelled:
            raise Cancelled("the run was asked to stop")

    def progress(self, value: float | int | None = None, message: str | None = None, **data: Any) -> None:
        """Show how far the run is: a share (0.4), a word, any further fields. Cheap; written once a second."""
        report = {**({} if value is None else {"value": value}), **({"message": message} if message else {})}
        self._support.report(self.run_number, {**report, **data})

    def transaction(self, source: Any = None, *, isolation: str | None = None) -> Any:
        """The transaction in which an exactly-once run writes: `async with ctx.transaction() as connection` is an asyncpg
        connection; in a `def` handler, `with ctx.transaction() as connection` is a psycopg one. `source` can be an SQLAlchemy
        engine or sessionmaker (async ones in async handlers) instead.

        What is written commits together with the end of the run, when the handler has returned; or not at all. A block that
        is left by an exception is undone by itself.
        """
        transaction = ATOMIC.get()
        if transaction is None:
            raise ConfigurationError(
                'ctx.transaction() belongs to exactly-once runs: declare the task with @app.task(delivery="exactly_once"), and '
                "call it in the handler's own task or thread"
            )
        return transaction.block(source, isolation)

    async def once(self, name: str, make: Callable[[], Awaitable[T] | T]) -> T:
        """The result of `make()`, made once: kept under `name`, so that a retry of this run is given it without the call.

        The result is what JSON makes of it. If the process dies between the call and the keeping, a retry calls again: give
        the outside API `ctx.idempotency_key` where it takes one.
        """
        result: T = await self._opened().once(self, name, make)
        return result

    def once_sync(self, name: str, make: Callable[[], T]) -> T:
        """The same for `def` handlers."""
        result: T = self._opened().once_sync(self, name, make)
        return result

    def _opened(self) -> Office:
        if self._support.office is None:
            raise ConfigurationError("steps are kept in the database, and this context has none: it was made by hand")
        return self._support.office

    def _watch(self) -> threading.Event:
        """The flag behind `cancelled`, made on demand: most runs never need one."""
        if self._cancelled is None:
            self._cancelled = threading.Event()
        return self._cancelled


class BatchContext:
    """The first argument of a handler of batches that asks for it: the context of each item's run, in the order of the items."""

    def __init__(self, items: Sequence[Context]) -> None:
        self.items = tuple(items)
        """What belongs to a run (`run_id`, `attempt`, `log`, `progress`, `once`, ...) is with its item: `ctx.items[0].run_id`."""
        self.task: str = self.items[0].task
        self.state = self.items[0].state
        """The app's `state`: what its start-up hooks opened."""

    @property
    def cancelled(self) -> bool:
        """Whether all of it was asked to stop. Whether one item was: `ctx.items[0].cancelled`."""
        return all(one.cancelled for one in self.items)

    def check_cancelled(self) -> None:
        if self.cancelled:
            raise Cancelled("the batch was asked to stop")

    @cached_property
    def log(self) -> Any:
        """A structlog logger that names the call. What it is told is kept with no run: that is what `ctx.items[0].log` is for."""
        return structlog.get_logger("hourhand.run").bind(**self.fields())

    @property
    def patience(self) -> float:
        return max(one.patience for one in self.items)

    def fields(self) -> dict[str, Any]:
        """What a log line says of this call."""
        return {"task": self.task, "runs": len(self.items), "node": getattr(self.items[0].claim, "worker", None)}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"a batch has no {name}: what belongs to a run is with its item, as in ctx.items[0].{name}")
