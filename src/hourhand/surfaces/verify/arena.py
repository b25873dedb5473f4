"""Where faults happen, what one is, and the trace that each leaves."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from hourhand.core.clock import Clock
from hourhand.core.errors import ConfigurationError
from hourhand.core.settings import Settings
from hourhand.storage.database import is_lost
from hourhand.surfaces.verify.processes import Crew
from hourhand.surfaces.verify.proxy import Proxy
from hourhand.surfaces.verify.server import ScratchServer


@dataclass(slots=True)
class Arena:
    crew: Crew
    proxies: dict[str, Proxy]
    """By the name of the process whose way to the database it is."""
    settings: Settings
    """Those of the processes under test: their schema, lease and grace."""
    database_url: str
    """The database, around all proxies; of no account where the server is ours."""
    directory: Path
    """For whatever a fault has to put somewhere."""
    server: ScratchServer | None = None
    """Ours, to be stopped and killed; None for a customer's own database."""
    retired: list[ScratchServer] = field(default_factory=list)
    """Servers that others have taken over from."""

    @property
    def admin_url(self) -> str:
        return self.server.url() if self.server is not None else self.database_url

    @property
    def schema(self) -> str:
        return self.settings.schema

    async def close_servers(self) -> None:
        servers = [*self.retired, *([self.server] if self.server is not None else [])]
        self.retired, self.server = [], None
        for server in servers:
            await server.close()


@dataclass(slots=True)
class Trace:
    """What was done to whom and when; by it the checker knows that there was a fault, and how long it took to recover."""

    fault: str
    at_monotonic: float
    at_wall: float
    target: str = ""
    detail: dict[str, Any] = field(default_factory=dict)
    healed_at: float | None = None
    """Monotonic time since which nothing stands in the way any more."""

    @property
    def missed(self) -> str | None:
        """Why nothing was done, if nothing was."""
        return self.detail.get("missed")

    def stamp(self) -> None:
        """It happens now, what came before was preparation."""
        self.at_monotonic, self.at_wall = Clock.monotonic(), Clock.machine()


class Fault(ABC):
    """One injection. It chooses its target and its measure by the random numbers it is given."""

    name: ClassVar[str]
    word: ClassVar[str]
    """What it is asked for by."""
    needs_server: ClassVar[bool] = False
    """Not to be done to a server that is not ours."""
    lasting: ClassVar[bool] = False
    """Meant to stay until the end of the check."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.hold = 0.0
        """Seconds for which it should stay, known once it is injected."""
        self.trace: Trace | None = None

    async def inject(self, arena: Arena) -> Trace:
        if self.needs_server and arena.server is None:
            raise refused(self.word)
        trace = self.trace = Trace(self.name, Clock.monotonic(), Clock.machine())
        try:
            await self.strike(arena, trace)
        except Exception as error:
            # Another fault may have been faster: nobody is left, or the database is away.
            if not isinstance(error, LookupError) and not is_lost(error):
                raise
            await self.mend(arena, trace)
            trace.detail["missed"], trace.healed_at = str(error) or type(error).__name__, Clock.monotonic()
            self.hold = 0.0
        return trace

    async def heal(self, arena: Arena) -> None:
        """Undo it; more than once does no harm."""
        if self.trace is not None and self.trace.healed_at is None:
            await self.mend(arena, self.trace)
            self.trace.healed_at = self.trace.healed_at or Clock.monotonic()

    async def last(self) -> None:
        """Until it has lasted long enough."""
        await asyncio.sleep(self.hold)

    @abstractmethod
    async def strike(self, arena: Arena, trace: Trace) -> None:
        """Do it. LookupError: there is nobody to do it to."""

    async def mend(self, arena: Arena, trace: Trace) -> None:
        """Undo it; nothing to do for what is over when `strike` returns."""
        return


async def run_fault(fault: Fault, arena: Arena) -> Trace:
    """Inject, let it last, heal; healed even if we are interrupted."""
    try:
        trace = await fault.inject(arena)
        await fault.last()
    finally:
        await fault.heal(arena)
    return trace


def refused(word: str) -> ConfigurationError:
    return ConfigurationError(
        f"{word} needs a server that verify may stop; leave --database-url out, or leave {word} out"
    )  # fmt: skip
