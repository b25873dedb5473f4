"""The transaction of an exactly-once run: its writes, what it enqueues, its token and its end commit together, or nothing does.

It begins when the handler first asks for it. The last statement in it deletes the claim's own row: a zombie finds no row, and
all that it wrote is undone. If the answer to COMMIT is lost, nobody here knows how it went; whoever then handles the failure
has to show the same claim, and waits for the row's fate as everybody does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from hourhand.core.context import ATOMIC
from hourhand.core.errors import ClaimLost, ConfigurationError, InvalidOption
from hourhand.storage.carriers import (
    AsyncCarrier,
    Asyncpg,
    Psycopg,
    Sqlalchemy,
    SqlalchemyAsync,
    SyncCarrier,
    check_isolation,
    is_awaited,
)
from hourhand.storage.database import Database

Offload = Callable[[Callable[[], Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has claimed which run, as every write must show it."""

    worker: int
    run: int
    token: int


class RunTransaction:
    def __init__(self, database: Database, holder: Holder, token: str, offload: Offload) -> None:
        self._database = database
        self._holder = holder
        self._token = token
        self._offload = offload
        self._carrier: AsyncCarrier | SyncCarrier | None = None
        self._source: Any = None
        self._isolation: str | None = None
        self._opening = asyncio.Lock()
        self._swap = threading.Lock()
        self._over = False

    def block(self, source: Any, isolation: str | None) -> Block:
        check_isolation(isolation)
        return Block(self, source, isolation)

    async def connection(self) -> Any:
        """For what is enqueued in passing: the transaction as it stands, begun now if need be."""
        return (await self.open(None, None)).handle

    def connection_sync(self) -> Any:
        return self.open_sync(None, None).handle

    async def open(self, source: Any, isolation: str | None) -> AsyncCarrier:
        async with self._opening:
            self._check_open(source, isolation)
            if self._carrier is None:
                if source is None:
                    carrier: AsyncCarrier = await Asyncpg.begin(await self._database.work_pool(), isolation)
                elif is_awaited(source):
                    carrier = await SqlalchemyAsync.begin(source, isolation)
                else:
                    raise InvalidOption("this SQLAlchemy engine is synchronous; in an async handler give an async one")
                if not self._take(carrier, source, isolation):
                    await carrier.undo()
                    self._check_open(None, None)
        if not isinstance(self._carrier, AsyncCarrier):
            raise InvalidOption("this run's transaction was begun by a synchronous connection; go on with that")
        return self._carrier

    def open_sync(self, source: Any, isolation: str | None) -> SyncCarrier:
        self._check_open(source, isolation)
        if self._carrier is None:
            if source is None:
                carrier: SyncCarrier = Psycopg(self._database.psycopg_pool(), isolation)
            elif is_awaited(source):
                raise InvalidOption("this SQLAlchemy engine is asynchronous; in a `def` handler give a synchronous one")
            else:
                carrier = Sqlalchemy(source, isolation)
            if not self._take(carrier, source, isolation):
                carrier.undo()
                self._check_open(None, None)
        if not isinstance(self._carrier, SyncCarrier):
            raise InvalidOption("this run's transaction was begun by an asynchronous connection; go on with that")
        return self._carrier

    async def finish(self, started: float, result: str | None, reason: str | None, onward: str | None = None) -> bool:
        """Commit it all. False: another execution has had this effect, and what this one wrote is undone. `onward`: what the next
        step is told of the trace."""
        statement = self._database.sql["finish_once"]
        holder = self._holder
        arguments = (holder.worker, holder.run, holder.token, self._token, started, result, reason, onward)
        if self._carrier is None:
            await self.open(None, None)
        carrier = self._give_up()
        assert carrier is not None
        with self._database.trips.timed("finish_once"):
            if isinstance(carrier, SyncCarrier):
                return bool(await self._offload(lambda: _finish_sync(carrier, statement, arguments)))
            return await _finish(carrier, statement, arguments)

    async def undo(self, *, left_behind: bool = False) -> None:
        """Nothing of it happened. `left_behind`: a thread that nobody waits for any more may still be using it."""
        carrier = self._give_up()
        if isinstance(carrier, AsyncCarrier):
            await carrier.undo()
        elif carrier is not None:
            if left_behind:
                carrier.sever()
            await self._offload(carrier.undo)

    def _take(self, carrier: AsyncCarrier | SyncCarrier, source: Any, isolation: str | None) -> bool:
        """False: the run was over before the connection was there. It may have waited for it for long, in a thread."""
        with self._swap:
            if not self._over:
                self._carrier, self._source, self._isolation = carrier, source, isolation
            return not self._over

    def _give_up(self) -> AsyncCarrier | SyncCarrier | None:
        with self._swap:
            carrier, self._carrier, self._over = self._carrier, None, True
            return carrier

    def _check_open(self, source: Any, isolation: str | None) -> None:
        if self._over:
            raise ConfigurationError(
                "the run that this transaction belonged to has ended: a task or thread that outlives its run has to be started "
                "outside of it"
            )
        if self._carrier is None:
            return
        for what, wanted, there in (
            ("on another connection", source, self._source),
            ("at another level", isolation, self._isolation),
        ):
            if wanted is not None and wanted is not there and wanted != there:
                raise InvalidOption(
                    f"this run's transaction has begun already, {what}: its first ctx.transaction(), or what it enqueued before, decides"
                )


class Block:
    """One `with` or `async with` of a handler: a savepoint in the run's transaction."""

    def __init__(self, transaction: RunTransaction, source: Any, isolation: str | None) -> None:
        self._transaction, self._source, self._isolation = transaction, source, isolation
        self._savepoint: Any = None

    async def __aenter__(self) -> Any:
        carrier = await self._transaction.open(self._source, self._isolation)
        self._savepoint = carrier.savepoint()
        await self._savepoint.__aenter__()
        return carrier.handle

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._savepoint.__aexit__(kind, error, trace)

    def __enter__(self) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            carrier = self._transaction.open_sync(self._source, self._isolation)
            self._savepoint = carrier.savepoint()
            self._savepoint.__enter__()
            return carrier.handle
        raise ConfigurationError("in an async handler, write `async with ctx.transaction()`")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._savepoint.__exit__(kind, error, trace)


async def _finish(carrier: AsyncCarrier, statement: str, arguments: tuple[Any, ...]) -> bool:
    try:
        held, fresh, _ = await carrier.fetch(statement, arguments)
    except BaseException:
        await carrier.undo()
        raise
    if held and fresh:
        await carrier.commit()
        return True
    await carrier.undo()
    return _refused(held)


def _finish_sync(carrier: SyncCarrier, statement: str, arguments: tuple[Any, ...]) -> bool:
    try:
        held, fresh, _ = carrier.fetch(statement, arguments)
    except BaseException:
        carrier.undo()
        raise
    if held and fresh:
        carrier.commit()
        return True
    carrier.undo()
    return _refused(held)


def _refused(held: int) -> bool:
    if not held:
        raise ClaimLost("another worker has this run now; nothing of what this one wrote was kept")
    return False


async def joined() -> Any:
    """The connection of the exactly-once run whose handler is calling, if one is: what it orders commits with it."""
    transaction: RunTransaction | None = ATOMIC.get()
    return None if transaction is None else await transaction.connection()


def joined_sync() -> Any:
    transaction: RunTransaction | None = ATOMIC.get()
    return None if transaction is None else transaction.connection_sync()
