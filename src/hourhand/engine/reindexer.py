"""Gives back what the queue's indexes took beside a long transaction.

While somebody holds a transaction open, nothing dead can be removed, and an index grows with every run that passes through. When it
ends, vacuum empties the pages, and they are used again; but a B-tree's file never shrinks. A rebuild makes it as small as it was,
and no run waits for it.

What it would be in vain for is awaited: a transaction that was open at the last look already keeps its dead rows in the new index
too. And it is done to an index at most once an hour: where much passes through, it has grown again by then.
"""

from __future__ import annotations

import structlog

from hourhand.core.clock import Clock
from hourhand.core.errors import DatabaseUnavailable, LockTimeout, StatementRefused
from hourhand.storage.indexes import IndexGateway, Outgrown

log = structlog.get_logger("hourhand.reindexer")
MEBIBYTE = 2**20
AT_MOST_EVERY = 3_600.0
AFTER_FAILURE = 900.0
STALE = 400.0
"""Seconds after which a look says nothing any more of what was open a little while ago: another node had the duty since."""


class Reindexer:
    def __init__(self, gateway: IndexGateway, mebibytes: int) -> None:
        self._gateway = gateway
        self._least = mebibytes * MEBIBYTE
        self._before: int | None = None
        """The next transaction's number at the last look."""
        self._looked_at = 0.0
        self._not_before: dict[str, float] = {}

    async def run_once(self) -> None:
        if not self._least or not self._gateway.possible:
            return
        try:
            if await self._gateway.begin():
                await self._look()
        except (DatabaseUnavailable, StatementRefused) as error:
            log.warning("index.not_looked_at", error=str(error))
        finally:
            await self._gateway.close()

    async def _look(self) -> None:
        now = Clock.monotonic()
        since = self._before if now - self._looked_at < STALE else None
        self._before, self._looked_at = (await self._gateway.horizon())[0], now
        for one in await self._gateway.outgrown(self._least):
            if not one.valid:
                await self._rebuild(one)
            elif Clock.monotonic() >= self._not_before.get(one.name, 0.0) and since is not None:
                _, oldest = await self._gateway.horizon()
                if oldest >= since:
                    await self._rebuild(one)

    async def _rebuild(self, one: Outgrown) -> None:
        self._not_before[one.name] = Clock.monotonic() + AFTER_FAILURE
        try:
            after = await self._gateway.rebuild(one)
        except (LockTimeout, StatementRefused) as error:
            log.warning("index.not_rebuilt", index=one.name, error=str(error), meaning="it works as before; tried again later")
            return
        self._not_before[one.name] = Clock.monotonic() + AT_MOST_EVERY
        log.info("index.rebuilt" if one.valid else "index.remains_dropped", index=one.name,
                 mebibytes=round(one.bytes / MEBIBYTE, 1), after=round(after / MEBIBYTE, 1))  # fmt: skip
