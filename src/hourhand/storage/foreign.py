"""Statements on a connection of the caller's, inside the caller's transaction.

The same statements on every driver: what they do exists if and only if the caller commits. Which driver it
is, is told by where the object's class comes from; none of them is imported here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from hourhand.core.errors import InvalidOption

# By name, so that engines, pools and cursors, which are in no transaction of the caller's, do not pass.
_DRIVERS = {
    "asyncpg": {"Connection": "asyncpg", "PoolConnectionProxy": "asyncpg"},
    "psycopg": {"Connection": "psycopg", "AsyncConnection": "psycopg async"},
    "sqlalchemy": {
        **dict.fromkeys(("Connection", "Session", "scoped_session"), "sqlalchemy"),
        **dict.fromkeys(("AsyncConnection", "AsyncSession", "async_scoped_session"), "sqlalchemy async"),
    },
    "django": {"BaseDatabaseWrapper": "django", "ConnectionProxy": "django"},
}


def driver_of(connection: Any) -> str:
    """asyncpg, psycopg, sqlalchemy or django; and whether it has to be awaited."""
    for kind in type(connection).__mro__:
        driver = _DRIVERS.get(kind.__module__.partition(".")[0], {}).get(kind.__name__)
        if driver is not None:
            return driver
    raise InvalidOption(
        f"connection= takes an asyncpg, psycopg 3, SQLAlchemy or Django connection (or session), not a {type(connection).__qualname__}"
    )


@lru_cache(maxsize=64)
def _marked(statement: str, style: str) -> tuple[str, tuple[int, ...]]:
    """The statement with the driver's own placeholders, and which argument goes into each."""
    bare = re.sub(r"--[^\n]*", "", statement)
    order = tuple(int(number) - 1 for number in re.findall(r"\$(\d+)", bare))
    if style == "%s":
        return re.sub(r"\$\d+", "%s", bare.replace("%", "%%")), order
    # cast() instead of ::, which SQLAlchemy could take for a named parameter.
    return re.sub(r"\$(\d+)((?:::[a-z0-9\[\]]+)+)", _cast, bare), order


def _cast(match: re.Match[str]) -> str:
    text = f":p{int(match[1]) - 1}"
    for kind in match[2].split("::")[1:]:
        text = f"cast({text} AS {kind})"
    return text


async def fetch_async(connection: Any, statement: str, arguments: Sequence[Any]) -> Any:
    """The first row, as a sequence; None if there is none."""
    driver = driver_of(connection)
    if driver == "asyncpg":
        return await connection.fetchrow(statement, *arguments)
    if driver == "psycopg async":
        text, order = _marked(statement, "%s")
        async with _cursor(connection) as cursor:
            await cursor.execute(text, [arguments[place] for place in order])
            return await cursor.fetchone()
    if driver == "sqlalchemy async":
        return (await connection.execute(*_sqlalchemy(connection, statement, arguments))).first()
    raise InvalidOption(f"this is a synchronous {driver} connection: use the _sync form (enqueue_sync, add_sync)")


def fetch_sync(connection: Any, statement: str, arguments: Sequence[Any]) -> Any:
    driver = driver_of(connection)
    if driver == "sqlalchemy":
        return connection.execute(*_sqlalchemy(connection, statement, arguments)).first()
    text, order = _marked(statement, "%s")
    values = [arguments[place] for place in order]
    if driver == "psycopg":
        with _cursor(connection) as cursor:
            return cursor.execute(text, values).fetchone()
    if driver == "django":
        if connection.vendor != "postgresql":
            raise InvalidOption(f"the Django connection goes to {connection.vendor}; Hourhand lives in PostgreSQL")
        with connection.cursor() as cursor:
            cursor.execute(text, values)
            return cursor.fetchone()
    raise InvalidOption(f"this is an asynchronous {driver.split()[0]} connection: use the form that is awaited (await enqueue)")


def _cursor(connection: Any) -> Any:
    """Rows as tuples, whatever the connection's own row factory makes of them."""
    from psycopg.rows import tuple_row

    return connection.cursor(row_factory=tuple_row)


def _sqlalchemy(connection: Any, statement: str, arguments: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
    from sqlalchemy import text

    dialect = (connection if hasattr(connection, "dialect") else connection.get_bind()).dialect.name
    if dialect != "postgresql":
        raise InvalidOption(f"the SQLAlchemy connection goes to {dialect}; Hourhand lives in PostgreSQL")
    marked, order = _marked(statement, ":p")
    return text(marked), {f"p{place}": arguments[place] for place in order}
