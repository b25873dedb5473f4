"""The application beside the jobs: it enqueues, cancels and sends poison, over a line that faults may cut.

Every enqueue carries a key. When its answer is lost, the client does as clients do: it asks again under the same key, or it
gives up and does not know; then there may be one run for the key or none, and never two.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from random import Random
from typing import Any

from hourhand.core.errors import DatabaseUnavailable, HourhandError, NotPossible, UnknownRun
from hourhand.surfaces.app import Hourhand
from hourhand.surfaces.handle import RunHandle
from hourhand.surfaces.verify.scenario import VAULTS, plan_transfer

_AT_ONCE = 20
_PAUSE = 0.25
_POISON_EVERY = 80
"""Of so many enqueues, one takes its worker down."""


class Client:
    def __init__(self, app: Hourhand, seed: int, lease: float) -> None:
        self._app = app
        self._lease = lease
        self._seed = seed
        self._rng = Random(f"client {seed}")
        self._under_way: set[asyncio.Task[None]] = set()
        self.accepted: dict[str, str] = {}
        self.unknown: dict[str, str] = {}
        self.asked = 0
        self.cancelled = 0

    async def run(self) -> None:
        """Until cancelled; then nothing new is begun."""
        while True:
            self.asked += 1
            task, payload, delivery = self._choose(self.asked)
            asks_again = self._rng.random() < 0.5
            patience = self._rng.uniform(0.2, 3.0)
            work = asyncio.create_task(self._send(f"{self._seed}-{self.asked}", task, payload, delivery, asks_again, patience))
            self._under_way.add(work)
            work.add_done_callback(self._under_way.discard)
            await asyncio.sleep(_PAUSE if len(self._under_way) < _AT_ONCE else 4 * _PAUSE)

    async def finish(self) -> None:
        """Until everything that was begun has its answer."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    def _choose(self, number: int) -> tuple[str, dict[str, Any], str]:
        if number % _POISON_EVERY == 0:
            return "poison", {}, "at_least_once"
        dice = self._rng.random()
        if dice < 0.15:
            return "endless", {}, "at_least_once"
        if dice < 0.30:
            return "careful", {"work": round(self._rng.uniform(0.1, 0.6) * self._lease, 2)}, "at_most_once"
        if dice < 0.55:
            return "transfer", plan_transfer(self._rng), "exactly_once"
        if dice < 0.80:
            # Long enough for its worker to be paused past its lease, and woken while another has the run.
            work = round(self._rng.uniform(0.5, 2.0) * self._lease, 1)
            if self._rng.random() < 0.5:
                return "tick", {"work": work}, "at_least_once"
            place = 2 * number % len(VAULTS)
            return (
                "transfer",
                {"source": VAULTS[place], "target": VAULTS[place + 1], "amount": 1, "work": work, "held": True},
                "exactly_once",
            )
        return "tick", {"work": self._rng.choice((0.0, 0.2))}, "at_least_once"

    async def _send(self, key: str, task: str, payload: dict[str, Any], delivery: str, asks_again: bool, patience: float) -> None:
        handle = await self._enqueue(key, task, payload, asks_again or task == "endless")
        if handle is None:
            self.unknown[key] = delivery
            return
        self.accepted[handle.id] = delivery
        if task == "endless":
            await asyncio.sleep(patience)
            await self._cancel(handle)

    async def _enqueue(self, key: str, task: str, payload: dict[str, Any], asks_again: bool) -> RunHandle | None:
        while True:
            try:
                return await self._app.enqueue(task, payload, key=key, unique_for=timedelta(days=1))
            except HourhandError:
                if not asks_again:
                    return None
                await asyncio.sleep(_PAUSE)

    async def _cancel(self, handle: RunHandle) -> None:
        while True:
            try:
                await self._app.runs.cancel(handle.id)
                self.cancelled += 1
                return
            except UnknownRun:
                return
            except NotPossible as error:
                if "ended" in str(error):
                    return  # perhaps by the try whose answer was lost
            except DatabaseUnavailable:
                pass
            await asyncio.sleep(_PAUSE)
