"""What the next day will bring: `app.forecast()`, and a forecast that a server keeps at hand.

A million schedules take seconds to work through: a server does that in a process of its own, and answers with the last one
meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from hourhand.core.clock import Clock
from hourhand.core.errors import HourhandError
from hourhand.core.forecast import Forecast, Forecaster, Group
from hourhand.surfaces.auditing import current_actor

if TYPE_CHECKING:
    from hourhand.surfaces.app import Hourhand

log = structlog.get_logger("hourhand.forecast")
SHARDS, _AT_ONCE = 256, 16
FRESH = 300.0
"""Seconds after which one who looks has a new one made."""
_PACE = 10.0
"""One that took a second or more can be ordered anew after this many times as long."""
_SMALL = 5_000
"""Schedules up to which it is made while somebody waits."""
Progress = Callable[[int, int], None]


async def make_forecast(app: Hourhand, *, hours: float = 24.0, progress: Progress = lambda done, of: None) -> Forecast:
    """How many runs each second brings from now on, if nothing changes; and which seconds are hot."""
    current_actor(app.name).need_everything("the forecast")
    database = await app._database()
    start: datetime = await database.fetchval("present")
    forecaster = Forecaster(start, round(hours * 3_600))
    end = start + timedelta(hours=hours)
    for shard in range(0, SHARDS, _AT_ONCE):
        rows = await database.fetch("forecast_groups", shard, shard + _AT_ONCE, end, start)
        await asyncio.to_thread(forecaster.add, (Group(*row) for row in rows))
        progress(shard + _AT_ONCE, SHARDS)
    return await asyncio.to_thread(forecaster.forecast)


class Almanac:
    """The forecast that a server shows: made again when it is old and somebody looks."""

    def __init__(self, app: Hourhand) -> None:
        self._app = app
        self._task: asyncio.Task[None] | None = None
        self._made_at = 0.0
        self.forecast: Forecast | None = None
        self.taken = 0.0
        """Seconds that it took."""
        self.progress = 0
        """Percent of the one that is being made."""
        self.error: str | None = None

    @property
    def under_way(self) -> bool:
        return self._task is not None and not self._task.done()

    async def look(self, *, anew: bool = False) -> Forecast | None:
        """The one there is; None: the first one is still being made."""
        age = Clock.monotonic() - self._made_at
        if not self.under_way and (
            self.forecast is None or age > FRESH or (anew and (self.taken < 1 or age > _PACE * self.taken))
        ):
            schedules = (await self._app.statistics.totals()).get("schedules", _SMALL + 1)
            make = self._make_here if schedules <= _SMALL else self._make_apart
            self._task = asyncio.create_task(self._make(make), name="hourhand-forecast")
            if schedules <= _SMALL:
                await asyncio.shield(self._task)
        return self.forecast

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _make(self, make: Callable[[], Awaitable[Forecast]]) -> None:
        began, self.progress = Clock.monotonic(), 0
        try:
            self.forecast, self.error = await make(), None
        except HourhandError as error:
            self.error = str(error)
            log.warning("forecast.failed", error=str(error))
        self._made_at, self.taken = Clock.monotonic(), Clock.monotonic() - began

    async def _make_here(self) -> Forecast:
        return await make_forecast(self._app)

    async def _make_apart(self) -> Forecast:
        """In a process of its own, so that nobody who is served here waits for it."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, env={**os.environ, **self._app.settings.environment()},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, limit=64 * 2**20,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            reading, said = asyncio.create_task(process.stdout.read()), b""
            async for line in process.stderr:
                if line.startswith(b"%"):
                    self.progress = int(line[1:])
                else:
                    said = line or said
            text = await reading
            if await process.wait():
                raise HourhandError(f"the forecast could not be made: {said.decode(errors='replace').strip()}")
        finally:
            if process.returncode is None:
                process.kill()
        return msgspec.json.decode(text, type=Forecast)


def summary(forecast: Forecast, width: int = 600) -> dict[str, Any]:
    """For programs: the day in steps, and the hot seconds."""
    return {
        "start": forecast.start, "seconds": forecast.seconds, "jobs": forecast.jobs, "firings": forecast.firings,
        "mean_per_second": forecast.mean, "peak_per_second": forecast.peak,
        "steps": list(_steps(forecast, width)), "hot": [asdict(one) for one in forecast.hot],
    }  # fmt: skip


def _steps(forecast: Forecast, width: int) -> Iterator[dict[str, Any]]:
    for at, mean, peak in forecast.steps(width):
        yield {"at": at, "mean_per_second": mean, "peak_per_second": peak}


async def _tell() -> None:
    """As a process of its own: the forecast on standard output, and how far it is on standard error."""
    from hourhand.surfaces.app import Hourhand

    async with Hourhand() as app:
        made = await make_forecast(app, progress=lambda done, of: print(f"%{100 * done // of}", file=sys.stderr, flush=True))
    sys.stdout.buffer.write(msgspec.json.encode(made))


if __name__ == "__main__":
    asyncio.run(_tell())
