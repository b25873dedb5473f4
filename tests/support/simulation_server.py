"""The database server of a simulation: takes statements and carries them out, one after the other, on the tables' model."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hourhand.core.errors import DatabaseUnavailable, LockTimeout, StatementRefused
from tests.support.simulation_tables import Begun, Row, Tables

if TYPE_CHECKING:
    from tests.support.simulation_process import Process

FIRINGS = ("fire", "fire_late")


@dataclass(slots=True, eq=False)
class Request:
    """A statement on its way to the database."""

    process: Process
    statement: str
    arguments: tuple[Any, ...]
    answer: asyncio.Future[list[Row]]
    begun: Begun | None = None


class Server:
    """Carries statements out. A firing holds its shards until it ends: who wants to take them waits."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._under_way: list[Request] = []

    def serve(self, request: Request) -> None:
        """One step further: a firing begins, then ends; everything else is done at once."""
        if request.statement in FIRINGS and request.begun is None:
            self.tables.asker = request.process
            request.begun = self.tables.begin(request.statement, request.arguments)
            self._under_way.append(request)
        else:
            self.perform(request)

    def perform(self, request: Request, *, answered: bool = True) -> None:
        """To its end. Not answered: it is done, and who asked for it never hears of it."""
        request.process.requests.remove(request)
        if request.statement in ("take_shards", "release_shards"):
            for other in [
                one for one in self._under_way if one.begun and not one.begun.fence.keys().isdisjoint(request.arguments[1])
            ]:
                self.perform(other)
        outcome: list[Row] | Exception
        try:
            outcome = self._perform(request)
        except (LockTimeout, StatementRefused) as error:
            outcome = error
        if not answered:
            outcome = DatabaseUnavailable("the answer was lost")
        request.process.answer(request, outcome)

    def _perform(self, request: Request) -> list[Row]:
        self.tables.asker = request.process
        if request.statement in FIRINGS:
            begun = request.begun or self.tables.begin(request.statement, request.arguments)
            if request.begun is not None:
                self._under_way.remove(request)
            return self.tables.finish(begun)
        rows: list[Row] = getattr(self.tables, request.statement)(*request.arguments)
        return rows

    def drop(self, request: Request) -> None:
        """It never came to its end, and nothing of it remains."""
        request.process.requests.remove(request)
        if request in self._under_way:
            self._under_way.remove(request)
        request.process.answer(request, DatabaseUnavailable("the connection was lost"))
