"""The schema's versions: applied whole or not at all, by whoever comes first.

All pending migrations run in one transaction under one advisory lock, so ten nodes that start
together queue up and nine of them find nothing to do; and a failure leaves the database
as it was.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

import asyncpg

from hourhand.core.errors import SchemaMismatch
from hourhand.storage.statements import for_schema

OLDEST_SERVER = 140000
_FILE = re.compile(r"(\d{4})_(\w+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    sql: str


def migrations(schema: str) -> list[Migration]:
    found: list[Migration] = []
    for file in files("hourhand.storage").joinpath("migrations").iterdir():
        match = _FILE.fullmatch(file.name)
        if match:
            found.append(Migration(int(match[1]), match[2], for_schema(file.read_text(), schema)))
    return sorted(found, key=lambda one: one.version)


def newest(schema: str) -> int:
    return migrations(schema)[-1].version


async def applied_version(connection: asyncpg.Connection, schema: str) -> int:
    """0 for a database that has never been migrated."""
    if await connection.fetchval("SELECT to_regclass($1)", f"{schema}.migrations") is None:
        return 0
    return int(await connection.fetchval(f"SELECT coalesce(max(version), 0) FROM {schema}.migrations"))


def refuse_newer(found: int, known: int) -> None:
    if found > known:
        raise SchemaMismatch(
            f"the database is at schema version {found}, this Hourhand knows only {known}: it was migrated by a "
            "newer release. Upgrade this process; nothing was changed"
        )


async def check_version(connection: asyncpg.Connection, schema: str) -> None:
    """Refuse to work on a schema that this code was not written for."""
    found, known = await applied_version(connection, schema), newest(schema)
    refuse_newer(found, known)
    if found < known:
        state = f"is at schema version {found}" if found else f"has no schema {schema!r} yet"
        raise SchemaMismatch(
            f"the database {state}, this Hourhand needs version {known}. Run `hourhand migrate`; nothing was changed"
        )


async def migrate(connection: asyncpg.Connection, schema: str) -> list[Migration]:
    """Bring the schema up to this code's version; returns what was applied."""
    server = int(await connection.fetchval("SELECT current_setting('server_version_num')"))
    if server < OLDEST_SERVER:
        raise SchemaMismatch(f"this is PostgreSQL {server // 10000}; Hourhand needs 14 or newer. Nothing was changed")
    known = migrations(schema)
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtext($1), hashtext('hourhand migrate'))", schema)
        found = await applied_version(connection, schema)
        refuse_newer(found, known[-1].version)
        pending = [one for one in known if one.version > found]
        if not pending:
            return []
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        await connection.execute(
            f"""CREATE TABLE IF NOT EXISTS {schema}.migrations (
                    version integer PRIMARY KEY, name text NOT NULL,
                    applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"""
        )
        for one in pending:
            await connection.execute(one.sql)
            await connection.execute(f"INSERT INTO {schema}.migrations (version, name) VALUES ($1, $2)", one.version, one.name)
    return pending
