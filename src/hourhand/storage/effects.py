"""What must be on record before a run that is not at-least-once may start, and the steps that are not repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg

from hourhand.core.errors import ClaimLost
from hourhand.storage.atomic import Holder
from hourhand.storage.database import Database, Link


class EffectGateway:
    """Shared by all the handlers of a process, which take turns on its connection."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._turn = asyncio.Lock()

    async def _fetch(self, name: str, *arguments: Any) -> list[asyncpg.Record]:
        async with self._turn:
            return await self._link.fetch(name, *arguments)

    async def begin_runs(self, worker: int, runs: Sequence[int], tokens: Sequence[int]) -> set[int]:
        """Those that are on record as begun now; the others' claims are lost."""
        return {row[0] for row in await self._fetch("begin_runs", worker, runs, tokens)}

    async def known_effects(self, tokens: Sequence[str]) -> dict[str, str | None]:
        """Which of these have had their effect, and its result as JSON."""
        rows = await self._fetch("known_effects", [bytes.fromhex(one) for one in tokens])
        return {row["token"]: row["result"] for row in rows}

    async def find_step(self, run: int, name: str) -> str | None:
        rows = await self._fetch("find_step", run, name)
        return rows[0][0] if rows else None

    async def keep_step(self, holder: Holder, name: str, result: str) -> str:
        """What is kept: this result, or the one that was there before."""
        held, kept = (await self._fetch("keep_step", holder.worker, holder.run, holder.token, name, result))[0]
        if not held:
            raise ClaimLost(f"another worker has this run now; the result of step {name!r} was not kept")
        # One that came in between is not seen by the statement that ran into it.
        return str(kept if kept is not None else await self.find_step(holder.run, name))

    async def close(self) -> None:
        await self._link.close()


def effect_gateway(database: Database) -> EffectGateway:
    return EffectGateway(database.link("effects"))
