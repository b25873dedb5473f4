"""Encrypted payloads in the tables: counting them by their key, and sealing them with another.

What survives a crash: every window is a transaction of its own, so what is done is done, and a new walk finds the rest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import msgspec

from hourhand.core.errors import PayloadUnreadable
from hourhand.core.sealing import Sealer
from hourhand.storage.database import Database

PLACES = ("jobs", "delayed", "parked", "ready", "dead", "history")
"""In the direction in which runs move, so that what moves meanwhile is met."""
WINDOW = 500
_LONG = 3_600.0
_FIRST = -(2**63)


@dataclass(frozen=True, slots=True)
class SealCount:
    place: str
    """The table; `history` is that of the runs that have ended."""
    kid: str | None
    """None: not encrypted."""
    payloads: int


@dataclass(slots=True)
class Walked:
    resealed: int = 0
    unreadable: int = 0
    """Sealed with a key that is not there, or changed since."""


class SealingGateway:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._sql = database.sql
        self._sealer: Sealer = database.sealer

    async def count_seals(self, *, history: bool) -> list[SealCount]:
        # It reads everything there is, which in a long history takes its time.
        rows = await self._database.using(lambda own: own.fetch(self._sql["count_seals"], history, timeout=_LONG))
        return [SealCount(row["place"], row["kid"], row["payloads"]) for row in rows]

    async def walk(self, place: str) -> AsyncIterator[Walked]:
        """Seal what is not sealed with the newest key, window by window."""
        for lane in await self._lanes() if place == "ready" else [()]:
            after = _FIRST
            while (until := await self._database.fetchval(f"{place}_window", after, WINDOW, *lane)) is not None:
                yield await self._reseal(place, after, until, lane)
                after = until

    async def _lanes(self) -> list[tuple[int, ...]]:
        return [(row["lane"],) for row in await self._database.fetch("ready_lanes")]

    async def _reseal(self, place: str, after: int, until: int, lane: tuple[int, ...]) -> Walked:
        async def work(own: asyncpg.Connection) -> Walked:
            walked, sealed = Walked(), []
            async with own.transaction():
                rows = await own.fetch(self._sql[f"unsealed_{place}"], after, until, self._sealer.kid, *lane)
                for row in rows:
                    try:
                        sealed.append(self._sealed(row))
                    except PayloadUnreadable:
                        walked.unreadable += 1
                if sealed:
                    numbers, payloads, options = (list(column) for column in zip(*sealed, strict=True))
                    await own.execute(self._sql[f"reseal_{place}"], numbers, payloads, options, *lane)
            walked.resealed = len(sealed)
            return walked

        return await self._database.using(work)

    def _sealed(self, row: asyncpg.Record) -> tuple[int, str | None, str | None]:
        number, task, payload, options = row
        if payload is not None:
            payload = self._sealer.seal(self._sealer.open(payload, task), task)
        steps: dict[str, Any] | None = None if options is None else msgspec.json.decode(options)
        if not steps or "then" not in steps:
            return number, payload, None
        return number, payload, msgspec.json.encode(self._sealer.reseal_steps(steps)).decode()
