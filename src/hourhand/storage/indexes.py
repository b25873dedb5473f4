"""Rebuilding an index while the queue goes on."""

from __future__ import annotations

from dataclasses import dataclass

from hourhand.storage.database import Database

LONGEST = 3_600
"""Seconds for a rebuild."""
PATIENCE = 10.0
"""Seconds for whoever is in the way: as long as a rebuild waits, everybody also writes to its half of an index."""


@dataclass(frozen=True, slots=True)
class Outgrown:
    name: str
    valid: bool
    """Else it is the half of an index that a rebuild left when it was cut off."""
    bytes: int
    command: str
    """Which rebuilds or drops it."""


class IndexGateway:
    def __init__(self, database: Database) -> None:
        self._link = database.link("reindexer", PATIENCE)
        self.possible = not database.pooler
        """Through a pooler, the patience for locks would be somebody else's."""

    async def begin(self) -> bool:
        """False: another process is at it, or has been and its statement goes on."""
        return bool((await self._link.fetch("begin_rebuilding", str(LONGEST)))[0][0])

    async def horizon(self) -> tuple[int, int]:
        """The number of the next transaction, and of the oldest that keeps dead rows from being removed."""
        ahead, behind = (await self._link.fetch("horizon"))[0]
        return ahead, ahead - behind

    async def outgrown(self, least: int) -> list[Outgrown]:
        return [Outgrown(*row) for row in await self._link.fetch("outgrown_indexes", least)]

    async def rebuild(self, index: Outgrown) -> int:
        """Its size afterwards."""
        await self._link.command(index.command, LONGEST + 60)
        return int((await self._link.fetch("index_size", index.name))[0][0])

    async def close(self) -> None:
        await self._link.close()
