"""A process's place among the others: its registration, its lease, its session lock.

Two signs of life: the session lock goes the moment the process is killed; the lease runs out when
the process hangs, is paused, or cannot reach the database. A node that finds itself declared dead
has lost every claim it had: it stops what it does and comes back as a new incarnation.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import structlog

from hourhand.core.clock import Clock
from hourhand.core.errors import DatabaseUnavailable
from hourhand.core.settings import Settings
from hourhand.engine.waiting import heard
from hourhand.storage.database import Database, Patience
from hourhand.storage.nodes import Session

log = structlog.get_logger("hourhand.node")
WORST_SKEW = 1.0


class Node:
    def __init__(self, database: Database, settings: Settings, kind: str, info: dict[str, Any]) -> None:
        self._database = database
        self._settings = settings
        self.kind = kind
        self._info = info
        self._session = Session(database)
        self._wake = asyncio.Event()
        self._locked = False
        self._skew_told = False
        self.clock = Clock()
        self.id = 0
        self.name = f"{platform.node()}:{os.getpid()}"
        self.lease_deadline = 0.0
        """Monotonic time until which this node may start runs it has claimed."""
        self.renewed_at: float | None = None
        """Monotonic time of the last heartbeat that was answered."""
        self.on_notify: Callable[[str], None] = lambda word: None
        self.on_cancel: Callable[[list[int]], None] = lambda runs: None
        self.on_death: Callable[[], Awaitable[None]]
        self.on_return: Callable[[], None] = lambda: None
        """The lease holds again after a time without: a lost connection, a pause, a new incarnation."""

    @property
    def hears(self) -> bool:
        """Whether words reach it: not through a pooler."""
        return self._database.sessions

    async def start(self) -> None:
        patience = Patience()
        while True:
            try:
                await self._connect()
                await self._register()
                return
            except DatabaseUnavailable as error:
                if patience.first:
                    log.warning("database.unavailable", error=str(error), meaning="waiting for it")
                await patience.wait()

    async def run(self) -> None:
        # Shorter than the grace that others give a missing lock, so that a restart of the
        # database finds everybody back before anybody may be judged.
        patience = Patience(cap=min(0.5, self._settings.grace / 3))
        while True:
            try:
                if not self._session.connected:
                    await self._connect()
                    self.lease_deadline = 0.0
                if not await self.run_once():
                    log.error("node.declared_dead", node=self.id, meaning="its runs were given to others")
                    await self.on_death()
                    await self._connect()
                    await self._register()
                if not patience.first:
                    log.info("database.back", node=self.id)
                patience.reset()
            except DatabaseUnavailable as error:
                if patience.first:
                    log.warning("database.unavailable", node=self.id, error=str(error))
                await patience.wait()
                continue
            # An answer that took so long that the lease ends before the next one is as good as none.
            held = self._locked and self.lease_deadline > Clock.monotonic() + self._settings.heartbeat
            await self._pause(self._settings.heartbeat if held else 0.2)

    async def run_once(self) -> bool:
        """One heartbeat. False: this node was declared dead."""
        if not self._locked:
            self._locked = await self._session.lock_node(self.id)
        asked, asked_wall = Clock.monotonic(), Clock.machine()
        late = asyncio.get_running_loop().call_later(self._settings.lease, self._tell_unanswered)
        try:
            answer = await self._session.heartbeat(
                self.id, self._settings.lease, self._locked and self._database.sessions, self.clock.skew
            )
        finally:
            late.cancel()
        if answer is None:
            return False
        now, cancels = answer
        self.clock.correct(now, asked_wall, Clock.machine())
        lapsed = self.lease_deadline < Clock.monotonic()  # when asked it may have held: who looked since then waits
        self.renewed_at = asked
        self.lease_deadline = asked + self._settings.lease
        if lapsed:
            self.on_return()
        if abs(self.clock.skew) > WORST_SKEW and not self._skew_told:
            self._skew_told = True
            log.warning("clock.skewed", node=self.id, seconds=round(self.clock.skew, 3),
                        meaning="this machine's clock is off; the database's is used")  # fmt: skip
        if cancels:
            self.on_cancel(cancels)
        return True

    def _tell_unanswered(self) -> None:
        log.warning("heartbeat.unanswered", node=self.id, seconds=self._settings.lease,
                    meaning="the database is slow or locked; the lease has run out, and nothing is started until it answers")  # fmt: skip

    async def leave(self) -> None:
        """Others no longer count on this node."""
        await self._session.stop_node(self.id)

    async def stop(self) -> None:
        try:
            await self._session.stop_node(self.id)
        except DatabaseUnavailable:
            log.warning("node.stop_unrecorded", node=self.id, meaning="others will notice by the lock or lease")
        await self._session.close()

    async def _connect(self) -> None:
        self._locked = False
        await self._session.connect(lambda word: self.on_notify(word), self._wake.set)
        self._wake.clear()

    async def _register(self) -> None:
        info = msgspec.json.encode(self._info).decode()
        self.id = await self._session.register_node(self.kind, self.name, self._settings.lease, info)
        self._locked = False
        self.lease_deadline = 0.0
        await self.run_once()
        if not self._database.sessions:
            log.warning("node.lease_only", node=self.id,
                        meaning="a connection pooler hides sessions: a killed process is noticed when its lease "
                        "ends, and work by polling; set HOURHAND_DIRECT_URL to go around it")  # fmt: skip

    async def _pause(self, seconds: float) -> None:
        if await heard(self._wake, seconds):
            self._wake.clear()
