"""Enqueueing on a connection of the caller's, inside the caller's transaction.

The same SQL function on every driver: the run exists if and only if the caller commits. Which driver
it is, is told by where the object's class comes from; none of them is imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hourhand.core.errors import InvalidOption

_PARAMETERS = (
    ("text", "jsonb", "text", "text", "interval", "timestamptz", "interval", "timestamptz", "text", "text[]", "jsonb")
)  # fmt: skip
Answer = tuple[int, bool]


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


def _call(schema: str, placeholders: Sequence[str]) -> str:
    # cast() instead of ::, which SQLAlchemy would take for a named parameter. JSON goes as text, because
    # the caller may have taught the connection to encode jsonb itself.
    texts = (f"cast({one} AS text)" if kind == "jsonb" else one for one, kind in zip(placeholders, _PARAMETERS, strict=True))
    casts = ", ".join(f"cast({one} AS {kind})" for one, kind in zip(texts, _PARAMETERS, strict=True))
    return f"SELECT run_id, duplicate FROM {schema}.enqueue({casts}, measured => true)"


async def enqueue_async(connection: Any, schema: str, arguments: Sequence[Any]) -> Answer:
    driver = driver_of(connection)
    if driver == "asyncpg":
        marks = [f"${place}" for place in range(1, len(_PARAMETERS) + 1)]
        row = await connection.fetchrow(_call(schema, marks), *arguments)
    elif driver == "psycopg async":
        async with _cursor(connection) as cursor:
            await cursor.execute(_call(schema, ["%s"] * len(_PARAMETERS)), list(arguments))
            row = await cursor.fetchone()
    elif driver == "sqlalchemy async":
        row = (await connection.execute(*_sqlalchemy(connection, schema, arguments))).one()
    else:
        raise InvalidOption(f"this is a synchronous {driver} connection: use enqueue_sync(...)")
    return int(row[0]), bool(row[1])


def enqueue_sync(connection: Any, schema: str, arguments: Sequence[Any]) -> Answer:
    driver = driver_of(connection)
    marks = ["%s"] * len(_PARAMETERS)
    if driver == "psycopg":
        with _cursor(connection) as cursor:
            row = cursor.execute(_call(schema, marks), list(arguments)).fetchone()
    elif driver == "sqlalchemy":
        row = connection.execute(*_sqlalchemy(connection, schema, arguments)).one()
    elif driver == "django":
        if connection.vendor != "postgresql":
            raise InvalidOption(f"the Django connection goes to {connection.vendor}; Hourhand lives in PostgreSQL")
        with connection.cursor() as cursor:
            cursor.execute(_call(schema, marks), list(arguments))
            row = cursor.fetchone()
    else:
        raise InvalidOption(f"this is an asynchronous {driver.split()[0]} connection: use await enqueue(...)")
    return int(row[0]), bool(row[1])


def _cursor(connection: Any) -> Any:
    """Rows as tuples, whatever the connection's own row factory makes of them."""
    from psycopg.rows import tuple_row

    return connection.cursor(row_factory=tuple_row)


def _sqlalchemy(connection: Any, schema: str, arguments: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
    from sqlalchemy import text

    dialect = (connection if hasattr(connection, "dialect") else connection.get_bind()).dialect.name
    if dialect != "postgresql":
        raise InvalidOption(f"the SQLAlchemy connection goes to {dialect}; Hourhand lives in PostgreSQL")
    names = [f"p{place}" for place in range(len(_PARAMETERS))]
    return text(_call(schema, [f":{name}" for name in names])), dict(zip(names, arguments, strict=True))
