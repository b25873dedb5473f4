"""What a handler is told about the run it executes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from typing import Any

import structlog

from hourhand.core import ids
from hourhand.core.errors import Cancelled
from hourhand.core.token import execution_token

Report = Callable[[int, Any], None]


class Context:
    """The first argument of a handler that asks for it.

    Everything here may be called from an async handler, a thread, or a child process.
    """

    def __init__(
        self,
        run_number: int,
        job_number: int | None,
        task: str,
        scheduled_at: datetime,
        attempt: int,
        claim: Any,
        report: Report,
        state: Any = None,
    ) -> None:
        self.run_number = run_number
        self.job_number = job_number
        self.task = task
        self.scheduled_at = scheduled_at
        """The instant this run is for, aware, in UTC. The same over all retries."""
        self.attempt = attempt
        """1 for the first attempt."""
        self.claim = claim
        self.state = state
        """The app's `state`: what its start-up hooks opened."""
        self._report = report
        self._cancelled: threading.Event | None = None

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

    @cached_property
    def token(self) -> str:
        """Stable over retries, different for each firing: an idempotency key for the outside."""
        return execution_token(self.job_id or self.run_id, self.scheduled_at)

    @cached_property
    def log(self) -> Any:
        return structlog.get_logger("hourhand.run").bind(run=self.run_id, task=self.task, attempt=self.attempt)

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
        self._report(self.run_number, {**report, **data})

    def _watch(self) -> threading.Event:
        """The flag behind `cancelled`, made on demand: most runs never need one."""
        if self._cancelled is None:
            self._cancelled = threading.Event()
        return self._cancelled
