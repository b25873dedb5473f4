"""What enqueue returns: the run's id, and a way to wait for its end."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from hourhand.core import ids
from hourhand.core.clock import Clock
from hourhand.core.errors import RunFailed, RunNotFinished
from hourhand.surfaces.views import RunView


class Runs(Protocol):
    async def show(self, run_id: str | int) -> RunView: ...


class HasRuns(Protocol):
    """An app, or a client of one."""

    @property
    def runs(self) -> Runs: ...


class RunHandle:
    __slots__ = ("_app", "_number", "duplicate")

    def __init__(self, app: HasRuns, number: int, duplicate: bool) -> None:
        self._app = app
        self._number = number
        self.duplicate = duplicate
        """The key was taken: this is the run that holds it, and nothing new was enqueued."""

    @property
    def id(self) -> str:
        return ids.run_id(self._number)

    def __repr__(self) -> str:
        return f"<run {self.id}{' (duplicate)' if self.duplicate else ''}>"

    async def show(self) -> RunView:
        return await self._app.runs.show(self._number)

    async def wait(self, timeout: float | None = None) -> RunView:
        """The run once it has ended, however it ended."""
        deadline = None if timeout is None else Clock.monotonic() + timeout
        pause = 0.01
        while True:
            run = await self.show()
            if run.finished:
                return run
            left = None if deadline is None else deadline - Clock.monotonic()
            if left is not None and left <= 0:
                raise RunNotFinished(f"{self.id} is still {run.state} after {timeout:g} s; it goes on")
            await asyncio.sleep(pause if left is None else min(pause, left))
            pause = min(pause * 1.5, 1.0)

    async def result(self, timeout: float | None = None) -> Any:
        """What the handler returned; RunFailed if the run ended otherwise."""
        run = await self.wait(timeout)
        if run.state != "succeeded":
            cause = run.errors[-1]["message"] if run.errors else run.reason
            raise RunFailed(f"{self.id} ended as {run.state}: {cause}")
        return run.result
