"""Connections: to whichever PostgreSQL the settings name, and back to it when it was away."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from random import Random
from typing import Any, TypeVar, cast

import asyncpg

from hourhand.core.clock import Clock
from hourhand.core.errors import (
    DatabaseRefused,
    DatabaseUnavailable,
    EmbeddedServerError,
    HourhandError,
    LockTimeout,
    QueueFull,
    StatementRefused,
)
from hourhand.core.sealing import sealer
from hourhand.core.settings import Settings
from hourhand.storage import statements
from hourhand.storage.carriers import psycopg_pool
from hourhand.storage.embedded import EmbeddedServer
from hourhand.storage.migrate import check_version, migrate
from hourhand.storage.trips import Trips

T = TypeVar("T")
_QUEUE_FULL = "HH001"
_TOGETHER: ContextVar[tuple[Database, asyncpg.Connection] | None] = ContextVar("hourhand_together", default=None)

COMMAND_TIMEOUT = 30.0
CONNECT_TIMEOUT = 10.0
POOL = 6

# The hot statements pick their rows by index, in its order, on purpose. Without statistics, or right
# after a vacuum, the planner believes a table to be nearly empty and prefers to read and sort all of
# it, or to compare everything with everything. With that settled there is one plan for all arguments:
# to make it anew each time would cost a claim of one run a fifth of its time.
PLANNER = {f"enable_{way}": "off" for way in ("seqscan", "bitmapscan", "sort", "incremental_sort", "nestloop", "mergejoin")} | {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}
# A pooler's statements are planned each time: then rather for their arguments.
_SET_PLANNER = "; ".join(f"SET LOCAL {name} = {value}" for name, value in PLANNER.items() if name != "plan_cache_mode")

_LOST = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.exceptions.IdleInTransactionSessionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,  # a primary that has become a standby
    asyncpg.InternalClientError,  # cut off while asyncpg prepares a statement, it loses track of its own state
)
_AGAIN = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.QueryCanceledError,
    asyncpg.InsufficientResourcesError,
    asyncpg.PostgresSystemError,
    asyncpg.InternalServerError,
)


def _unreachable(error: BaseException) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return "the database did not answer in time"
    return f"the database cannot be reached: {str(error) or type(error).__name__}"


def is_lost(error: BaseException) -> bool:
    """Whether this error says that the database, not the statement, is the trouble."""
    return isinstance(error, _LOST)


class Patience:
    """How long to wait before the next try: doubling from 50 ms to `cap`, spread by a fifth."""

    def __init__(self, cap: float = 1.0, rng: Random | None = None) -> None:
        self._cap, self._rng, self._tries = cap, rng or Random(), 0

    async def wait(self) -> None:
        pause = min(self._cap, 0.05 * 2.0 ** min(self._tries, 10)) * self._rng.uniform(0.8, 1.0)
        self._tries += 1
        await asyncio.sleep(pause)

    def reset(self) -> None:
        self._tries = 0

    @property
    def first(self) -> bool:
        return self._tries == 0


class _PooledConnection(asyncpg.Connection):
    """A pool member that is not reset after each use: our statements leave nothing behind."""

    def get_reset_query(self) -> str:
        return ""


class Database:
    """A database that is open: who to connect to, how, and a small pool for occasional statements."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.schema = statements.check_schema(settings.schema)
        self.sql = statements.load(self.schema)
        self.sealer = sealer(settings.encryption_keys)
        self.trips = Trips()
        self.pooler = False
        """A pooler stands between: no session survives a statement, so only leases count."""
        self.shared = False
        """After closing: others still use the embedded server, so it was left running."""
        self._embedded: EmbeddedServer | None = None
        self._url = settings.database_url
        self._pool: asyncpg.Pool | None = None
        self._work_pool: asyncpg.Pool | None = None
        self._psycopg_pool: Any = None
        self._making = threading.Lock()
        # Of the pool, two are left to those who hold one already and need another for a moment.
        self._transactions = asyncio.Semaphore(POOL - 2)

    @property
    def embedded(self) -> bool:
        return self.settings.database_url is None

    @property
    def sessions(self) -> bool:
        """Whether locks and LISTEN can be held on a connection of their own."""
        return not self.pooler or self.settings.direct_url is not None

    async def open(self, *, check: bool = True, migrate_embedded: bool = True) -> None:
        """Start the embedded server if it is ours, probe for a pooler, refuse a strange schema."""
        if self.embedded and self._embedded is None:
            await self._start_embedded()
        connection = await self._connect(self._url, {}, cache=False)
        try:
            # A pooler invents the backend's number that it tells its clients.
            self.pooler = await connection.fetchval("SELECT pg_backend_pid()") != connection.get_server_pid()
            if self.embedded and migrate_embedded:
                await migrate(connection, self.schema)
            elif check:
                await check_version(connection, self.schema)
        except HourhandError:
            raise
        except _LOST as error:
            raise DatabaseUnavailable(_unreachable(error)) from error
        finally:
            await close_quietly(connection)

    async def _start_embedded(self) -> None:
        """Not to be left half-way: whoever is interrupted here still knows that there is a server to stop."""
        self._embedded = server = EmbeddedServer(self.settings.data)
        starting = asyncio.ensure_future(asyncio.to_thread(server.start))
        try:
            self._url = await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])
            raise

    async def keep_embedded(self) -> None:
        """Start the embedded server again if somebody kills it."""
        while self._embedded is not None:
            await asyncio.sleep(1.0)
            with contextlib.suppress(EmbeddedServerError):
                await asyncio.to_thread(self._embedded.revive)

    async def close(self) -> None:
        pools, self._pool, self._work_pool = (self._pool, self._work_pool), None, None
        for pool in pools:
            if pool is not None:
                try:
                    await asyncio.wait_for(pool.close(), 5)
                except asyncio.TimeoutError:
                    pool.terminate()
        if self._psycopg_pool is not None:
            threaded, self._psycopg_pool = self._psycopg_pool, None
            await asyncio.to_thread(threaded.close, 2)
        if self._embedded is not None:
            server, self._embedded = self._embedded, None
            self.shared = not await asyncio.to_thread(server.stop)

    async def connect(self, purpose: str, *, session: bool = False) -> asyncpg.Connection:
        """A connection of one's own. `session` asks for one that goes around a pooler if there is a way."""
        if session and self.settings.direct_url:
            return await self._connect(self.settings.direct_url, {}, purpose=purpose)
        if self.pooler:
            return await self._connect(self._url, {}, cache=False, purpose=purpose)
        return await self._connect(self._url, PLANNER, purpose=purpose)

    async def _connect(
        self, url: str | None, extra: dict[str, str], *, cache: bool = True, purpose: str = "client"
    ) -> asyncpg.Connection:
        try:
            return await asyncpg.connect(
                url,
                timeout=CONNECT_TIMEOUT,
                command_timeout=COMMAND_TIMEOUT,
                statement_cache_size=100 if cache else 0,
                server_settings={"application_name": f"hourhand {purpose}", **extra},
            )
        except _LOST as error:
            raise DatabaseUnavailable(_unreachable(error)) from error
        except asyncpg.PostgresError as error:
            raise DatabaseRefused(f"the database refused the connection: {error}") from error

    def link(self, purpose: str, lock_timeout: float | None = None) -> Link:
        return Link(self, purpose, lock_timeout)

    async def pool(self) -> asyncpg.Pool:
        if self._pool is None:
            self._pool = await asyncpg.create_pool(
                self._url,
                min_size=0,
                max_size=POOL,
                timeout=CONNECT_TIMEOUT,
                command_timeout=COMMAND_TIMEOUT,
                statement_cache_size=0 if self.pooler else 100,
                connection_class=_PooledConnection,
                server_settings={"application_name": "hourhand client", **({} if self.pooler else {"jit": "off"})},
            )
        return self._pool

    async def work_pool(self) -> asyncpg.Pool:
        """Connections for the users' own statements: none of our settings, none of our limits."""
        if self._work_pool is None:
            self._work_pool = await asyncpg.create_pool(
                self._url,
                min_size=0,
                max_size=self.settings.transactions,
                timeout=CONNECT_TIMEOUT,
                statement_cache_size=0 if self.pooler else 100,
                server_settings={"application_name": "hourhand run"},
            )
        return self._work_pool

    def psycopg_pool(self) -> Any:
        """The same for handlers in threads."""
        assert self._url is not None
        with self._making:
            if self._psycopg_pool is None:
                self._psycopg_pool = psycopg_pool(self._url, self.settings.transactions, pooler=self.pooler)
        return self._psycopg_pool

    async def fetch(self, name: str, *args: Any) -> list[asyncpg.Record]:
        """Run a statement on some connection; for what people and clients ask."""

        async def one(connection: asyncpg.Connection) -> list[asyncpg.Record]:
            with self.trips.timed(name):
                return await connection.fetch(self.sql[name], *args)

        return await self.using(one)

    async def fetchrow(self, name: str, *args: Any) -> asyncpg.Record | None:
        rows = await self.fetch(name, *args)
        return rows[0] if rows else None

    async def fetchval(self, name: str, *args: Any) -> Any:
        rows = await self.fetch(name, *args)
        return rows[0][0] if rows else None

    @contextlib.asynccontextmanager
    async def together(self) -> AsyncIterator[asyncpg.Connection]:
        """What this task does through this database until the end commits together, or not at all. One inside another joins it."""
        joined = _TOGETHER.get()
        if joined is not None and joined[0] is self:
            yield joined[1]
            return
        try:
            pool = await self.pool()
            async with self._transactions, pool.acquire() as member, member.transaction():
                connection = cast(asyncpg.Connection, member)
                token = _TOGETHER.set((self, connection))
                try:
                    yield connection
                finally:
                    _TOGETHER.reset(token)
        except HourhandError:
            raise
        except _LOST as error:
            raise DatabaseUnavailable(_unreachable(error)) from error
        except asyncpg.PostgresError as error:
            raise refusal(error, "the database refused") from error

    async def apart(self, name: str, *args: Any) -> list[asyncpg.Record]:
        """On a connection of its own and committed at once, whatever is being done together just now."""
        token = _TOGETHER.set(None)
        try:
            return await self.fetch(name, *args)
        finally:
            _TOGETHER.reset(token)

    @property
    def joined(self) -> asyncpg.Connection | None:
        """The connection on which things are being done together, if they are."""
        joined = _TOGETHER.get()
        return joined[1] if joined is not None and joined[0] is self else None

    async def using(self, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        if (joined := self.joined) is not None:
            return await work(joined)
        try:
            pool = await self.pool()
            async with pool.acquire() as connection:
                return await work(cast(asyncpg.Connection, connection))
        except HourhandError:
            raise
        except _LOST as error:
            raise DatabaseUnavailable(_unreachable(error)) from error
        except asyncpg.PostgresError as error:
            raise refusal(error, "the database refused") from error


def refusal(error: Exception, where: str) -> HourhandError:
    """What a statement of ours refused, or what PostgreSQL did."""
    full = queue_full(error)
    return StatementRefused(f"{where}: {error}") if full is None else full


def queue_full(error: BaseException) -> QueueFull | None:
    """Whichever driver says it, and however it is wrapped."""
    inner: BaseException | None = error
    while inner is not None:
        if _QUEUE_FULL in (getattr(inner, "sqlstate", None), getattr(inner, "pgcode", None)):
            words = str(getattr(inner, "message", None) or inner).partition("\n")[0]
            return QueueFull(f"{words}; try again later, let more workers serve it, or raise max_depth")
        inner = getattr(inner, "orig", None) or inner.__cause__
    return None


class Link:
    """One connection for one service, opened when needed and again when lost.

    A lost connection raises DatabaseUnavailable; the service decides what that means. What a
    statement did before the loss is unknown, so only statements that may be repeated go here.
    """

    def __init__(self, database: Database, purpose: str, lock_timeout: float | None = None) -> None:
        self._database = database
        self._purpose = purpose
        self._lock_timeout = "" if lock_timeout is None else f"lock_timeout = {int(lock_timeout * 1000)}"
        self._connection: asyncpg.Connection | None = None
        self.connected_at = 0.0
        """Monotonic time since which this connection has stood."""

    async def fetch(self, name: str, *args: Any, timeout: float | None = None) -> list[asyncpg.Record]:
        sql = self._database.sql[name]
        return await self._using(name, lambda connection: connection.fetch(sql, *args, timeout=timeout))

    async def write(self, name: str, *args: Any) -> int:
        """A statement that gives nothing back: how many rows it wrote."""
        sql = self._database.sql[name]
        told = await self._using(name, lambda connection: connection.execute(sql, *args))
        return int(told.rpartition(" ")[2])

    async def _using(self, name: str, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        with self._told(name):
            connection = await self._open()
            with self._database.trips.timed(name):
                if self._database.pooler:
                    # Nothing outlives a transaction here, the planner's settings included.
                    async with connection.transaction():
                        await connection.execute(
                            _SET_PLANNER + (f"; SET LOCAL {self._lock_timeout}" if self._lock_timeout else "")
                        )
                        return await work(connection)
                return await work(connection)

    @property
    def pooled(self) -> bool:
        """Each statement is a part of a transaction, lest a pooler give its halves to two sessions."""
        return self._database.pooler

    async def call(self, name: str, *args: Any) -> asyncpg.Record:
        """A procedure that commits by itself, so not through a pooler."""
        with self._told(name):
            connection = await self._open()
            with self._database.trips.timed(name):
                try:
                    return (await connection.fetch(self._database.sql[name], *args))[0]
                except asyncpg.QueryCanceledError as error:
                    raise DatabaseUnavailable(f"cancelled half-way, so it may be done or not: {error}") from error

    async def command(self, text: str, timeout: float) -> None:
        """One that takes names, not values, and cannot be a part of a transaction; not through a pooler."""
        with self._told(text):
            await (await self._open()).execute(text, timeout=timeout)

    async def _open(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._database.connect(self._purpose)
            self.connected_at = Clock.monotonic()
            if self._lock_timeout and not self._database.pooler:
                await self._connection.execute(f"SET {self._lock_timeout}")
        return self._connection

    @contextlib.contextmanager
    def _told(self, name: str) -> Iterator[None]:
        """What goes wrong, in our words."""
        try:
            yield
        except _LOST as error:
            self.drop()
            raise DatabaseUnavailable(_unreachable(error)) from error
        except asyncpg.LockNotAvailableError as error:
            raise LockTimeout(f"somebody's open transaction is in the way: {error}") from error
        except _AGAIN as error:
            raise DatabaseUnavailable(f"the database asks to try again: {error}") from error
        except asyncpg.PostgresError as error:
            raise refusal(error, name) from error

    def drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        await close_quietly(connection)


async def close_quietly(connection: asyncpg.Connection | None) -> None:
    """In order if the server answers, at once if not; it lets go of locks either way."""
    if connection is not None and not connection.is_closed():
        try:
            await connection.close(timeout=2)
        except (*_LOST, asyncpg.PostgresError):
            connection.terminate()
