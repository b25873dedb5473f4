"""A scheduler process in a simulation: the real scheduler, elector, node and wheel, on a loop that is moved step by step.

What is not real: the database, which is the tables' model, the session, the machine's clock, the maintainer, whose chores are done
from outside, and the alerts. A process can be left alone between any two of its steps, for as long as one likes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from random import Random
from typing import Any
from unittest.mock import patch

import structlog

from hourhand.core import ring
from hourhand.core.clock import Clock
from hourhand.core.errors import DatabaseUnavailable
from hourhand.core.settings import Settings
from hourhand.engine import firer as firer_module
from hourhand.engine import node as node_module
from hourhand.engine import scheduler as scheduler_module
from hourhand.engine.measures import Measures
from hourhand.engine.scheduler import Scheduler
from hourhand.storage import database as database_module
from tests.support.simulation_loop import SteppedLoop
from tests.support.simulation_server import Request, Server
from tests.support.simulation_tables import SHARDS, Row

SETTINGS = Settings()
_inside: list[Process] = []
"""Whose code runs at this moment: whose machine's clock is read."""


class Process:
    def __init__(self, server: Server, number: int, skew: float) -> None:
        self.server = server
        self.number = number
        self.skew = skew
        """Seconds by which this machine's clock is ahead of the database's."""
        self.requests: list[Request] = []
        self.running = True
        self.gone = False
        self.stopping = False
        self.cut_off = False
        self.deaf = False
        self.session: Session | None = None
        self.loop = SteppedLoop(self.monotonic)  # type: ignore[abstract]
        with self.inside():
            self.scheduler = Scheduler(Link(self), SETTINGS)  # type: ignore[arg-type]
        self.main = self.loop.create_task(self.scheduler.run())

    @contextmanager
    def inside(self) -> Iterator[None]:
        _inside.append(self)
        try:
            yield
        finally:
            _inside.pop()

    def monotonic(self) -> float:
        return self.server.tables.now.timestamp()

    def machine(self) -> float:
        return self.monotonic() + self.skew

    @property
    def healthy(self) -> bool:
        return self.running and not self.gone and not self.cut_off

    # Steps

    def busy(self) -> bool:
        return self.running and not self.gone and (self.loop.busy() or bool(self.requests))

    def turn(self) -> bool:
        """One callback of its own."""
        with self.inside():
            moved = self.loop.step()
        self.gone = self.gone or (self.stopping and self.main.done())
        return moved

    def step(self, choose: Callable[[int], int]) -> bool:
        """The process goes on by one callback, or the database with one of its statements."""
        others = 1 if self.loop.busy() else 0
        if not self.requests and not others:
            return False
        place = choose(len(self.requests) + others)
        if place == len(self.requests):
            return self.turn()
        request = self.requests[place]
        if self.cut_off or request.answer.cancelled():
            self.server.drop(request)
        else:
            self.server.serve(request)
        return True

    async def ask(self, statement: str, *arguments: Any) -> list[Row]:
        if self.gone:
            raise DatabaseUnavailable("the process is gone")
        request = Request(self, statement, arguments, self.loop.create_future())
        self.requests.append(request)
        return await request.answer

    def answer(self, request: Request, outcome: list[Row] | Exception) -> None:
        if request.answer.done():
            return
        if isinstance(outcome, Exception):
            request.answer.set_exception(outcome)
        else:
            request.answer.set_result(outcome)

    def hear(self, word: str) -> None:
        if self.session is not None and self.session.connected and not self.deaf and not self.gone:
            self.loop.call_soon(self.session.on_notify, word)

    # What happens to it

    def cut(self, *, noticed: bool) -> None:
        """It reaches nobody. `noticed`: both ends know that its session is over; otherwise it lingers, and may go on later."""
        if self.session is not None and noticed:
            self.session.drop()
            if self.session.on_loss is not None:
                self.loop.call_soon(self.session.on_loss)
        self.cut_off = True

    def ask_to_stop(self) -> None:
        self.stopping = True
        with self.inside():
            self.scheduler.ask_to_stop()

    def kill(self, rng: Random) -> None:
        """What it had asked for is done or not; nobody hears the answer. Its sockets close, and its lock is free."""
        for request in list(self.requests):
            if request.begun is not None or rng.random() < 0.5:
                self.server.perform(request, answered=False)
            else:
                self.server.drop(request)
        self.end()

    def end(self) -> None:
        """The code unwinds without touching anything, so that nothing is left lying around."""
        self.gone = True
        for request in list(self.requests):
            self.server.drop(request)
        if self.session is not None:
            self.session.free()
        for _ in range(1_000):
            if self.main.done():
                break
            self.main.cancel()
            while self.turn():
                pass
        with suppress(asyncio.CancelledError, DatabaseUnavailable):
            self.main.result()

    @property
    def deposed(self) -> bool:
        """Whether it believes to hold a shard that is another's by now."""
        shards = self.server.tables.shards
        return any(shards[shard].epoch != epoch for shard, epoch in self.scheduler.elector.held.items())


class Link:
    """Stands for the database, and for each connection to it."""

    sessions = True

    def __init__(self, process: Process) -> None:
        self.process = process

    def link(self, _purpose: str, _lock_timeout: float | None = None) -> Link:
        return self

    async def fetch(self, statement: str, *arguments: Any) -> list[Row]:
        return await self.process.ask(statement, *arguments)

    async def close(self) -> None:
        """Nothing to close."""


class Session:
    """A node's own connection, with its lock."""

    def __init__(self, database: Link) -> None:
        self._process = database.process
        self._open = False
        self._node: int | None = None
        self.on_notify: Callable[[str], None] = lambda word: None
        self.on_loss: Callable[[], None] | None = None

    @property
    def connected(self) -> bool:
        return self._open and not self._process.cut_off

    async def connect(self, on_notify: Callable[[str], None], on_loss: Callable[[], None]) -> None:
        self.drop()
        await self._process.ask("connect")
        self._open, self.on_notify, self.on_loss, self._process.session = True, on_notify, on_loss, self

    async def _ask(self, statement: str, *arguments: Any) -> list[Row]:
        if not self.connected:
            raise DatabaseUnavailable("the session's connection is lost")
        try:
            return await self._process.ask(statement, *arguments)
        except DatabaseUnavailable:
            self.drop()
            raise

    async def register_node(self, kind: str, name: str, lease: float, info: str) -> int:
        return int((await self._ask("register_node", kind, name, lease, False, info))[0][0])

    async def lock_node(self, node: int) -> bool:
        self._node = node
        return bool((await self._ask("lock_node", node, self))[0][0])

    async def heartbeat(self, node: int, lease: float, locked: bool, _skew: float) -> tuple[float, list[int]] | None:
        rows = await self._ask("heartbeat", node, lease, locked)
        return (rows[0][0], rows[0][1]) if rows else None

    async def stop_node(self, node: int) -> None:
        await self._ask("stop_node", node)

    def drop(self) -> None:
        if self._open and not self._process.cut_off:
            self.free()
        self._open = False

    async def close(self) -> None:
        self.drop()

    def free(self) -> None:
        """The database has noticed that this session is over."""
        node = self._process.server.tables.nodes.get(self._node or 0)
        if node is not None and node.lock is self:
            node.lock = None


class Maintainer:
    """Its chores are done from outside."""

    def __init__(self, *_: Any) -> None:
        self._never = asyncio.Event()
        self.measures = Measures()

    @classmethod
    def on(cls, *_: Any) -> Maintainer:
        return cls()

    async def run(self) -> None:
        await self._never.wait()

    async def stop(self) -> None:
        """Nothing to stop."""

    def hear(self, word: str) -> None:
        """Delayed runs are not our subject."""


class Alerting(Maintainer):
    """Nobody looks whether something is wrong: the judge does."""

    duties: tuple[()] = ()

    async def stop(self, *_: Any) -> None:
        """Nothing to stop."""


@contextmanager
def virtual_machines() -> Iterator[Counter[str]]:
    """Schedulers that are made inside of this live in a simulation. Counts what they write to their logs."""
    events: Counter[str] = Counter()

    def note(_logger: Any, _method: str, event: Any) -> Any:
        events[event["event"]] += 1
        raise structlog.DropEvent

    processors = structlog.get_config()["processors"]
    before = list(processors)
    with ExitStack() as stack:
        for where, name, instead in (
            (Clock, "machine", staticmethod(lambda: _inside[-1].machine())),
            (Clock, "monotonic", staticmethod(lambda: _inside[-1].monotonic())),
            (ring, "SHARDS", SHARDS),
            (scheduler_module, "SHARDS", SHARDS),
            (database_module, "Random", lambda: Random(1)),
            (node_module, "Session", Session),
            (scheduler_module, "Maintainer", Maintainer),
            (scheduler_module, "Alerting", Alerting),
            (firer_module, "BATCH", 8),
            (firer_module, "MOUNTAIN", 2),
        ):
            stack.enter_context(patch.object(where, name, instead))
        processors[:] = [note]
        try:
            yield events
        finally:
            processors[:] = before
