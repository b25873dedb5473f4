"""The app whose runs are measured."""

from __future__ import annotations

import asyncio

from hourhand import Hourhand

app = Hourhand()


@app.task
async def noop(n: int = 0) -> None:
    """Nothing: what is measured is everything around it."""


@app.task
async def hold(n: int = 0) -> None:
    """Occupies its slot for as long as the benchmark looks."""
    await asyncio.sleep(3600)
