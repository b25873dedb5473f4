"""Whose connection carries the transaction of an exactly-once run: ours by asyncpg or psycopg, or the user's by SQLAlchemy.

Each begins a transaction, runs our statement in it, opens savepoints for the handler's blocks, and commits or undoes
all of it. None is used by two at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Sequence
from typing import Any, cast

import asyncpg

from hourhand.core.errors import ConfigurationError, InvalidOption
from hourhand.storage import foreign

ISOLATIONS = (None, "read_committed", "repeatable_read", "serializable")
_ROLLBACK = 5.0


class Undone(Exception):
    """Why a block is left: what was written in it is not to be."""


class AsyncCarrier:
    """A connection that is awaited."""

    handle: Any

    async def fetch(self, statement: str, arguments: Sequence[Any]) -> Any:
        return await foreign.fetch_async(self.handle, statement, arguments)

    def savepoint(self) -> Any:
        """An async context manager."""
        raise NotImplementedError

    async def commit(self) -> None:
        raise NotImplementedError

    async def undo(self) -> None:
        raise NotImplementedError


class SyncCarrier:
    """A connection for handlers in threads."""

    handle: Any

    def fetch(self, statement: str, arguments: Sequence[Any]) -> Any:
        return foreign.fetch_sync(self.handle, statement, arguments)

    def savepoint(self) -> Any:
        """A context manager."""
        raise NotImplementedError

    def commit(self) -> None:
        raise NotImplementedError

    def undo(self) -> None:
        raise NotImplementedError

    def sever(self) -> None:
        """A thread that is left behind still uses it: cut the line, so that the server undoes what it did."""
        raw = self.driver_connection()
        with contextlib.suppress(Exception):
            line = socket.socket(fileno=os.dup(raw.fileno()))
            with contextlib.closing(line):
                line.shutdown(socket.SHUT_RDWR)

    def driver_connection(self) -> Any:
        raise NotImplementedError


class Asyncpg(AsyncCarrier):
    def __init__(self, pool: asyncpg.Pool, connection: Any, transaction: Any) -> None:
        self._pool = pool
        self.handle = connection
        self._transaction = transaction

    @classmethod
    async def begin(cls, pool: asyncpg.Pool, isolation: str | None) -> Asyncpg:
        connection = await pool.acquire()
        try:
            transaction = connection.transaction(isolation=cast(Any, isolation))
            await transaction.start()
        except BaseException:
            await pool.release(connection)
            raise
        return cls(pool, connection, transaction)

    def savepoint(self) -> Any:
        return self.handle.transaction()

    async def commit(self) -> None:
        try:
            await self._transaction.commit()
        finally:
            await self._release()

    async def undo(self) -> None:
        try:
            await asyncio.wait_for(self._transaction.rollback(), _ROLLBACK)
        except Exception:  # whatever is wrong with it: without it, the server undoes everything
            with contextlib.suppress(Exception):
                self.handle.terminate()
        await self._release()

    async def _release(self) -> None:
        with contextlib.suppress(Exception):
            await self._pool.release(self.handle)


class SqlalchemyAsync(AsyncCarrier):
    def __init__(self, handle: Any, transaction: Any) -> None:
        self.handle = handle
        self._transaction = transaction

    @classmethod
    async def begin(cls, source: Any, isolation: str | None) -> SqlalchemyAsync:
        if hasattr(source, "connect"):
            handle = await source.connect()
            if isolation:
                await handle.execution_options(isolation_level=_spoken(isolation))
            return cls(handle, await handle.begin())
        handle = source()
        transaction = await handle.begin()
        if isolation:
            await handle.connection(execution_options={"isolation_level": _spoken(isolation)})
        return cls(handle, transaction)

    def savepoint(self) -> Any:
        return self.handle.begin_nested()

    async def commit(self) -> None:
        try:
            _still_ours(self._transaction)
            await self._transaction.commit()
        finally:
            await self.handle.close()

    async def undo(self) -> None:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._transaction.rollback(), _ROLLBACK)
        with contextlib.suppress(Exception):
            await self.handle.close()


class Psycopg(SyncCarrier):
    def __init__(self, pool: Any, isolation: str | None) -> None:
        from psycopg import IsolationLevel

        self._pool = pool
        self.handle = pool.getconn()
        try:
            # psycopg begins where autocommit is off; a level that is left from another run would stay.
            self.handle.isolation_level = IsolationLevel[isolation.upper()] if isolation else None
            self._transaction = self.handle.transaction()
            self._transaction.__enter__()
        except BaseException:
            # One that was lost while nobody used it. Its place in the pool is needed.
            self.handle.close()
            pool.putconn(self.handle)
            raise

    def savepoint(self) -> Any:
        return self.handle.transaction()

    def commit(self) -> None:
        try:
            self._transaction.__exit__(None, None, None)
        finally:
            self._pool.putconn(self.handle)

    def undo(self) -> None:
        undone = Undone()
        try:
            # As if the block had been left by an exception; it raises nothing of its own if it could be undone.
            self._transaction.__exit__(Undone, undone, None)
        except Exception:
            self.handle.close()
        self._pool.putconn(self.handle)

    def driver_connection(self) -> Any:
        return self.handle


class Sqlalchemy(SyncCarrier):
    def __init__(self, source: Any, isolation: str | None) -> None:
        if hasattr(source, "connect"):
            self.handle = source.connect()
            if isolation:
                self.handle = self.handle.execution_options(isolation_level=_spoken(isolation))
            self._transaction = self.handle.begin()
        else:
            self.handle = source()
            self._transaction = self.handle.begin()
            if isolation:
                self.handle.connection(execution_options={"isolation_level": _spoken(isolation)})

    def savepoint(self) -> Any:
        return self.handle.begin_nested()

    def commit(self) -> None:
        try:
            _still_ours(self._transaction)
            self._transaction.commit()
        finally:
            self.handle.close()

    def undo(self) -> None:
        with contextlib.suppress(Exception):
            self._transaction.rollback()
        with contextlib.suppress(Exception):
            self.handle.close()

    def driver_connection(self) -> Any:
        connection = self.handle if hasattr(self.handle, "dialect") else self.handle.connection()
        return connection.connection.driver_connection


def check_isolation(isolation: str | None) -> None:
    if isolation not in ISOLATIONS:
        raise InvalidOption(f"isolation must be one of {', '.join(str(one) for one in ISOLATIONS[1:])}, not {isolation!r}")


def is_awaited(source: Any) -> bool:
    """Whether an SQLAlchemy engine or sessionmaker is of the asynchronous kind."""
    names = {kind.__name__ for kind in type(source).__mro__ if kind.__module__.partition(".")[0] == "sqlalchemy"}
    if names & {"AsyncEngine", "async_sessionmaker"}:
        return True
    if names & {"Engine", "sessionmaker", "scoped_session"}:
        return False
    raise InvalidOption(
        f"ctx.transaction() takes an SQLAlchemy engine or sessionmaker, or nothing at all, not a {type(source).__qualname__}"
    )


def psycopg_pool(url: str, size: int, *, pooler: bool) -> Any:
    try:
        from psycopg_pool import ConnectionPool
    except ImportError:
        raise ConfigurationError(
            "ctx.transaction() in a `def` handler uses psycopg: pip install 'hourhand[psycopg]', or give it your SQLAlchemy engine"
        ) from None
    options: dict[str, Any] = {"application_name": "hourhand run", "autocommit": False}
    if pooler:
        options["prepare_threshold"] = None
    check = ConnectionPool.check_connection
    return ConnectionPool(url, min_size=0, max_size=size, kwargs=options, check=check, open=True)


def _spoken(isolation: str) -> str:
    return isolation.replace("_", " ").upper()


def _still_ours(transaction: Any) -> None:
    if not transaction.is_active:
        raise ConfigurationError("the handler ended its transaction by itself; the end of the run commits it, leave it open")
