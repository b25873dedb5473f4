"""`hourhand doctor`: is everything as it should be, and if not, what to do. It looks and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg
import msgspec
import typer
from rich.table import Table
from rich.text import Text

from hourhand.core import ids
from hourhand.core.clock import Clock
from hourhand.core.errors import HourhandError, SchemaMismatch
from hourhand.core.settings import Settings
from hourhand.core.zones import tzdata_version
from hourhand.storage.database import Database
from hourhand.storage.embedded import default_data
from hourhand.storage.migrate import OLDEST_SERVER, check_version, newest
from hourhand.surfaces.app import Hourhand
from hourhand.surfaces.cli.common import AsJson, Exit, out, plain, polite, print_json, span
from hourhand.surfaces.cli.connection import on_database

WORST_SKEW = 1.0
CROWDED = 0.8
LONG_TRANSACTION = 60.0
OVERDUE = 30.0
MOST_STUCK = 1_000
LOST_WITHIN = 86_400.0
MANY_STRAYS = 1_000
"""The statement that counts the rows of the default partition stops there."""

Facts = Mapping[str, Any]
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


class Check(msgspec.Struct, frozen=True):
    check: str
    state: Literal["ok", "warn", "fail"]
    says: str


@on_database
def doctor(
    app: Hourhand,
    as_json: AsJson = False,
) -> None:
    """Check the database, the schema, the clocks, the workers and schedulers, and say what to do about what is wrong.

    Ends with 1 if a check fails; warnings alone end with 0.
    """
    settings = app.settings
    checks = polite(lambda: asyncio.run(examine(settings)))
    if as_json:
        print_json(checks)
    else:
        _print(checks)
    if any(one.state == "fail" for one in checks):
        raise typer.Exit(Exit.FAILED)


def _print(checks: Sequence[Check]) -> None:
    rows = Table.grid(padding=(0, 2))
    rows.add_column(no_wrap=True)
    rows.add_column(no_wrap=True)
    rows.add_column(overflow="fold")
    for one in checks:
        rows.add_row(Text(one.state, _STYLES[one.state]), one.check, plain(one.says))
    out.print(rows)
    bad, odd = (sum(one.state == state for one in checks) for state in ("fail", "warn"))
    parts = [f"{bad} failed"] * bool(bad) + [f"{odd} warning{'s' * (odd > 1)}"] * bool(odd)
    out.print(f"\n{', '.join(parts) or 'all is well'}")


async def examine(settings: Settings) -> list[Check]:
    database = Database(settings)
    checks: list[Check] = []
    try:
        mismatch = None
        try:
            await database.open(check=False)
        except SchemaMismatch as error:  # an embedded database is migrated as it is opened
            mismatch = error
        except HourhandError as error:
            says = f"{where(settings, reached=False)}: {error}. Is it running, and is its address right?"
            return [Check("database", "fail", says)]
        checks.append(Check("database", "ok", where(settings)))
        checks += await _examine_server(database)
        schema = await _examine_schema(database, mismatch)
        checks.append(schema)
        if schema.state == "ok":
            checks += await _examine_work(database)
    except (HourhandError, asyncpg.PostgresError) as error:
        checks.append(Check("access", "fail", f"the database did not answer: {error}. May this user read the schema?"))
    finally:
        await database.close()
    return checks


def where(settings: Settings, *, reached: bool = True) -> str:
    """The address, without any password."""
    if settings.database_url is None:
        return f"the embedded server in {settings.data or default_data()}" if reached or settings.data else "the embedded server"
    url = urlsplit(settings.database_url)
    user, at, host = url.netloc.rpartition("@")
    query = [(name, value) for name, value in parse_qsl(url.query) if "password" not in name]
    return urlunsplit((url.scheme, user.partition(":")[0] + at + host, url.path, urlencode(query, safe="/"), ""))


async def _examine_server(database: Database) -> list[Check]:
    await database.fetch("server_facts")  # connects, so that the next trip is only a trip
    asked = Clock.machine()
    facts = dict((await database.fetch("server_facts"))[0])
    clock = Clock()
    clock.correct(facts["now"], asked, Clock.machine())
    transactions = await database.fetch("long_transactions", LONG_TRANSACTION)
    return [
        check_server(facts),
        check_clock(clock.skew),
        await _examine_sessions(database),
        check_durability(facts),
        check_connections(facts),
        check_transactions([dict(row) for row in transactions], facts),
    ]


async def _examine_sessions(database: Database) -> Check:
    """Whether a worker can hold a connection of its own."""
    if database.settings.direct_url is None:
        return check_pooler(database.pooler)
    try:
        connection = await database.connect("doctor", session=True)
        try:
            facts = await connection.fetchrow(database.sql["server_facts"])
            hidden = facts is None or facts["backend"] != connection.get_server_pid()
        finally:
            await connection.close()
    except HourhandError as error:
        return Check("sessions", "fail", f"HOURHAND_DIRECT_URL does not work, so workers cannot start: {error}. Correct it.")
    if hidden:
        says = "HOURHAND_DIRECT_URL leads to a pooler too; give it the address of PostgreSQL itself, or leave it away."
        return Check("sessions", "warn", says)
    return Check("sessions", "ok", "workers go directly to PostgreSQL, by HOURHAND_DIRECT_URL")


async def _examine_schema(database: Database, mismatch: SchemaMismatch | None) -> Check:
    try:
        if mismatch is not None:
            raise mismatch
        await database.using(lambda connection: check_version(connection, database.schema))
    except SchemaMismatch as error:
        return Check("schema", "fail", f"{error}.")
    return Check("schema", "ok", f"{database.schema}, at version {newest(database.schema)}, up to date")


async def _examine_work(database: Database) -> list[Check]:
    nodes = [dict(row) for row in await database.fetch("list_nodes", False)]
    parked = [dict(row) for row in await database.fetch("parked_tasks")]
    queues = await database.fetch("survey", [], [])
    paused = sorted(row["name"] for row in queues if row["paused"])
    counted = f"{len(queues)} queue{'' if len(queues) == 1 else 's'}"
    return [
        check_workers(nodes),
        check_schedulers(nodes, dict((await database.fetch("trigger_facts", OVERDUE))[0])),
        check_zones(nodes),
        check_leases(nodes),
        check_parked(parked),
        check_stuck([dict(row) for row in await database.fetch("stuck_runs", MOST_STUCK)]),
        check_lost([dict(row) for row in await database.fetch("lost_runs", LOST_WITHIN, MOST_STUCK)]),
        check_strays(await database.fetchval("default_partition_rows")),
        Check("queues", "ok", f"{counted}, paused: {', '.join(paused)}" if paused else f"{counted}, none paused"),
    ]


def check_server(facts: Facts) -> Check:
    if facts["version_number"] < OLDEST_SERVER:
        says = f"this is PostgreSQL {facts['version']}; Hourhand needs {OLDEST_SERVER // 10000} or newer. Upgrade the server."
        return Check("server", "fail", says)
    return Check("server", "ok", f"PostgreSQL {facts['version']}")


def check_clock(skew: float) -> Check:
    if abs(skew) > WORST_SKEW:
        side = "ahead of" if skew > 0 else "behind"
        says = f"this machine is {span(abs(skew))} {side} the database, whose clock Hourhand goes by. Set this one by NTP."
        return Check("clock", "warn", says)
    return Check("clock", "ok", f"this machine and the database agree to within {WORST_SKEW:g} s")


def check_pooler(pooler: bool) -> Check:
    if pooler:
        says = (
            "a connection pooler hides sessions: a killed worker is noticed only when its lease ends, and work is found by "
            "polling. Set HOURHAND_DIRECT_URL to a way around it."
        )
        return Check("sessions", "warn", says)
    return Check("sessions", "ok", "no pooler in between")


def check_durability(facts: Facts) -> Check:
    off = [name for name in ("fsync", "synchronous_commit") if facts[name] == "off"]
    if off:
        loss = "corrupt everything" if "fsync" in off else "lose the latest runs"
        return Check(
            "durability", "warn", f"{' and '.join(off)} off: a crash of the server can {loss}. Switch on where runs matter."
        )
    return Check("durability", "ok", "what is committed survives a crash of the server")


def check_connections(facts: Facts) -> Check:
    used, most = facts["connections"], facts["max_connections"]
    if used > CROWDED * most:
        says = f"{used} of {most} connections are in use; when none is left, workers wait. Raise max_connections, or close some."
        return Check("connections", "warn", says)
    return Check("connections", "ok", f"{used} of {most} in use")


def check_transactions(rows: Sequence[Facts], facts: Facts) -> Check:
    if rows:
        named = [f"pid {row['pid']} ({row['application'] or 'unnamed'}, {row['state']}, {span(row['seconds'])})" for row in rows]
        says = f"open for long, so vacuum cannot clean up and the queue slows down: {_some(named)}. End what is forgotten."
        return Check("transactions", "warn", says)
    blind = "" if facts["sees_all"] else " of this user; to see others' too, grant it pg_read_all_stats"
    return Check("transactions", "ok", f"none open for over {LONG_TRANSACTION:g} s{blind}")


def check_workers(nodes: Sequence[Facts]) -> Check:
    alive = sum(one["kind"] == "worker" and one["state"] == "alive" for one in nodes)
    if not alive:
        return Check("workers", "warn", "no worker is alive, so nothing runs. Start one: hourhand worker --app module:name")
    return Check("workers", "ok", f"{alive} alive")


def check_schedulers(nodes: Sequence[Facts], facts: Facts) -> Check:
    alive = sum(one["kind"] == "scheduler" and one["state"] == "alive" for one in nodes)
    if not alive and facts["jobs"]:
        return Check("schedulers", "warn", "no scheduler is alive, so no job fires. Start one: hourhand scheduler")
    if facts["overdue"]:
        many = f"{facts['overdue']:,}{' or more' * (facts['overdue'] >= 1000)}"
        says = f"{many} schedules are overdue by more than {OVERDUE:g} s. Look at the schedulers' logs, or start another one."
        return Check("schedulers", "warn", says)
    if not alive:
        return Check("schedulers", "ok", "none alive, and no job is registered")
    if facts["unowned"]:
        return Check("schedulers", "ok", f"{alive} alive; {facts['unowned']} shards are changing hands at this moment")
    return Check("schedulers", "ok", f"{alive} alive, nothing is overdue")


def check_zones(nodes: Sequence[Facts]) -> Check:
    releases = sorted({msgspec.json.decode(one["info"]).get("tzdata", "") for one in nodes if one["kind"] == "scheduler"} - {""})
    if len(releases) > 1:
        says = f"schedulers go by different time zone rules (tzdata {', '.join(releases)}): upgrade tzdata on all of them."
        return Check("time zones", "warn", says)
    return Check("time zones", "ok", f"tzdata {(releases or [tzdata_version()])[0]}")


def check_leases(nodes: Sequence[Facts]) -> Check:
    late = [f"node {one['id']} ({one['name']})" for one in nodes if one["state"] == "late"]
    if late:
        says = f"late with its lease, so dead, stuck or cut off: {_some(late)}. Live workers take over its runs."
        return Check("leases", "warn", says)
    return Check("leases", "ok", "no node is late")


def check_parked(rows: Sequence[Facts]) -> Check:
    if rows:
        named = [f"{row['task']} in queue {row['queue']} ({row['runs']:,} parked)" for row in rows]
        says = f"no worker that serves the queue has the code of: {_some(named)}. Start one that has, or cancel the runs."
        return Check("tasks", "warn", says)
    return Check("tasks", "ok", "no run is parked for want of its task's code")


def check_stuck(rows: Sequence[Facts]) -> Check:
    if rows:
        named = [f"{ids.run_id(row['run_id'])} ({row['task']}, {_excess(row)}, on node {row['node']})" for row in rows]
        says = f"take far longer than they should: {_some(named)}. Look at what they do; cancel them, or give the task a timeout."
        return Check("stuck runs", "warn", says)
    return Check("stuck runs", "ok", "no run takes far longer than its timeout or than usual")


def _excess(row: Facts) -> str:
    if row["timeout"] is not None and row["seconds"] > row["timeout"] + 60:
        return f"for {span(row['seconds'])}, timeout {span(row['timeout'])}"
    return f"for {span(row['seconds'])}, usually up to {span(row['usual'])}"


def check_lost(rows: Sequence[Facts]) -> Check:
    if rows:
        many = f"{len(rows):,}{' or more' * (len(rows) >= MOST_STUCK)} run{'s were' if len(rows) > 1 else ' was'} lost"
        tasks = sorted({row["task"] for row in rows})
        says = f"{many} within a day (at most once, cut off after they had begun), of {_some(tasks)}. See hourhand runs list --state lost"
        return Check("lost runs", "warn", says)
    return Check("lost runs", "ok", "none within a day")


def check_strays(rows: int) -> Check:
    if rows >= MANY_STRAYS:
        says = f"{rows:,} runs or more are in no daily partition, because no worker was there to make it. Keep one running."
        return Check("history", "warn", says)
    return Check("history", "ok", f"{rows} runs are in no daily partition" if rows else "every run is in its daily partition")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
