"""What a proxy lets pass, and when: the mode, the counters, and the order to cut connections after a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from hourhand.core.clock import Clock
from hourhand.surfaces.verify.wire import Commit

Matching = Callable[[str], bool]


class Mode(StrEnum):
    passing = "passing"
    blackhole = "blackhole"
    reset = "reset"
    delay = "delay"
    cut_after_commit = "cut_after_commit"


@dataclass(slots=True)
class Counters:
    connections: int = 0
    """Connections that were accepted."""
    dropped: int = 0
    """Connections that the proxy ended by itself: reset, or nobody to connect them to."""
    cuts: int = 0
    """Connections that were cut in the place of an answer."""
    bytes_held: int = 0
    """Bytes that met a black hole; those that wait in the kernel's buffers are not among them."""
    cut_statements: list[str] = field(default_factory=list)
    """What was committed unheard of, one text for each cut."""


@dataclass(slots=True)
class Order:
    """To cut connections, so many times."""

    times: int
    answered: bool
    matching: Matching | None
    planned: int = 0
    """Of the times, those that wait for the server's answer."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The answer that a client will not get, the statement that it is for, and on whose order."""

    answer: int
    text: str
    order: Order


class Passage:
    def __init__(self) -> None:
        self.counters = Counters()
        self.mode = Mode.passing
        self._delay = 0.0
        self._order: Order | None = None
        self._open = asyncio.Event()
        self._open.set()

    def switch(self, mode: Mode, *, delay: float = 0.0, order: Order | None = None) -> None:
        self.mode, self._delay, self._order = mode, delay, order
        if mode is Mode.blackhole:
            self._open.clear()
        else:
            self._open.set()

    async def allowed(self, arrived: float, size: int) -> None:
        """Until the mode lets go of bytes that arrived then."""
        if not self._open.is_set():
            self.counters.bytes_held += size
        while True:
            await self._open.wait()
            early = arrived + self._delay - Clock.monotonic()
            if early <= 0:
                return
            await asyncio.sleep(early)

    def plan_cut(self, commit: Commit) -> Cut | None:
        """Whether this commit is one to cut."""
        order = self._order
        if order is None or order.planned == order.times:
            return None
        for text in commit.texts:
            if order.matching is None or order.matching(text):
                order.planned += 1
                return Cut(commit.answer, text, order)
        return None

    def drop_plan(self, cut: Cut) -> None:
        """The server refused the statement, or somebody was gone before it answered: that was none of the times."""
        cut.order.planned -= 1

    def stands(self, cut: Cut) -> bool:
        """Whether its order is still in force."""
        return cut.order is self._order

    def note_cut(self, cut: Cut) -> None:
        self.counters.cuts += 1
        self.counters.cut_statements.append(cut.text)
        cut.order.planned -= 1
        cut.order.times -= 1
        if self.stands(cut) and cut.order.times == 0:
            self.switch(Mode.passing)
