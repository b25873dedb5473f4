"""What has to be on record, or looked up, before a run that is not at-least-once may start.

Those that come while the database is being asked share the next question. While it cannot be reached nobody starts: a run
whose beginning is not known to be on record might begin a second time elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Generic, TypeVar

from hourhand.core.errors import DatabaseUnavailable
from hourhand.storage.atomic import Holder
from hourhand.storage.database import Patience
from hourhand.storage.effects import EffectGateway

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
MOST_AT_ONCE = 500


class Gate:
    def __init__(self, gateway: EffectGateway) -> None:
        self._gateway = gateway
        self._beginnings: Shared[Holder, bool] = Shared(self._begin)
        self._effects: Shared[str, str | None] = Shared(gateway.known_effects)

    async def begin(self, holder: Holder) -> bool:
        """Put an at-most-once run on record as begun. False: its claim is lost."""
        return (await self._beginnings.ask(holder)) is not None

    async def effect(self, token: str) -> tuple[bool, str | None]:
        """Whether this token has had its effect, and the result as JSON."""
        found = await self._effects.ask(token)
        return found is not None, found[0] if found else None

    async def _begin(self, holders: list[Holder]) -> Mapping[Holder, bool]:
        begun: dict[Holder, bool] = {}
        for worker in {one.worker for one in holders}:
            mine = [one for one in holders if one.worker == worker]
            accepted = await self._gateway.begin_runs(worker, [one.run for one in mine], [one.token for one in mine])
            begun |= {one: True for one in mine if one.run in accepted}
        return begun


class Shared(Generic[K, V]):
    """One question at a time, for all who wait."""

    def __init__(self, answer: Callable[[list[K]], Awaitable[Mapping[K, V]]]) -> None:
        self._answer = answer
        self._waiting: list[tuple[K, asyncio.Future[tuple[V] | None]]] = []
        self._asker: asyncio.Task[None] | None = None

    async def ask(self, key: K) -> tuple[V] | None:
        future: asyncio.Future[tuple[V] | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((key, future))
        if self._asker is None or self._asker.done():
            self._asker = asyncio.create_task(self._ask(), name="gate")
        return await future

    async def _ask(self) -> None:
        patience = Patience()
        while self._waiting:
            batch, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
            batch = [one for one in batch if not one[1].done()]
            try:
                answers = await self._answer([key for key, _ in batch]) if batch else {}
            except DatabaseUnavailable:
                self._waiting = batch + self._waiting
                await patience.wait()
                continue
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            patience.reset()
            for key, future in batch:
                if not future.done():
                    future.set_result((answers[key],) if key in answers else None)
