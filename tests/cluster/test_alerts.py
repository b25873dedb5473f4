"""Alerts of real processes: whoever is left tells what became of the others."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from aiohttp import web

from tests.support.endpoints import Endpoint, answering
from tests.support.fleet import Fleet, Process, make_sink, until

pytestmark = pytest.mark.once
RULES = """defaults = false
[[rule]]
name = "lost"
kind = "node_lost"
[[rule]]
name = "dead"
kind = "dead_growth"
threshold = 1
clear = 0
"""


@pytest.fixture
async def fleet(url: str, schema: str, sql: asyncpg.Connection, tmp_path: Path) -> AsyncIterator[Fleet]:
    await make_sink(sql, schema)
    one = Fleet(url, schema, tmp_path)
    yield one
    one.close()


def write(fleet: Fleet, endpoint: Endpoint) -> str:
    file = fleet.directory / "alerts.toml"
    file.write_text(f'{RULES}[[channel]]\nname = "c"\nwebhook = "{endpoint.url("/hook")}"\ntimeout = "1s"\n')
    return str(file)


def told(endpoint: Endpoint) -> list[tuple[str, str]]:
    found = [json.loads(one.body) for one in endpoint.requests]
    return [(one["rule"], one["state"]) for one in found]


def logs(fleet: Fleet) -> str:
    return "\n".join(one.text() for one in fleet.processes)


async def holder(fleet: Fleet, sql: asyncpg.Connection) -> Process:
    """Who has the duty."""

    async def known() -> Process | None:
        name = await sql.fetchval(
            f"SELECT n.name FROM {fleet.schema}.duties d JOIN {fleet.schema}.nodes n ON n.id = d.node WHERE d.name = 'alerts'"
        )
        return next((one for one in fleet.processes if name is not None and name.endswith(f":{one.pid}")), None)

    found: Process = await until(known, lambda: f"somebody to have the duty; logs:\n{logs(fleet)}")
    return found


async def bury(sql: asyncpg.Connection, schema: str) -> None:
    await sql.execute(
        f"INSERT INTO {schema}.dead (died_at, run_id, scheduled_at, lane, attempt, task, payload)"
        f" VALUES (now(), 1, now(), {schema}.queue_number('default') * 4 + 1, 1, 'x', '{{}}')"
    )


@pytest.mark.timeout(180)
async def test_a_killed_one_is_told_of_by_another_and_what_it_was_telling_is_not_lost(
    fleet: Fleet, sql: asyncpg.Connection, schema: str
) -> None:
    hangs, arrived = True, asyncio.Event()

    async def respond(_: web.Request) -> web.Response:
        arrived.set()
        return web.Response(status=503 if hangs else 200)

    async with answering(respond) as endpoint:
        file = write(fleet, endpoint)
        for _ in range(2):
            fleet.worker("--alerts", file)
        await fleet.alive(sql, 2)
        victim = await holder(fleet, sql)
        await bury(sql, schema)
        await arrived.wait()
        victim.kill()
        hangs = False

        async def both() -> bool:
            return {("dead", "opened"), ("lost", "opened")} <= set(told(endpoint))

        await until(both, lambda: f"the other to tell both; told: {told(endpoint)}; logs:\n{logs(fleet)}", 120)
        fleet.worker("--alerts", file)

        async def over() -> bool:
            return ("lost", "closed") in told(endpoint)

        await until(over, lambda: f"the end of it to be told; told: {told(endpoint)}; logs:\n{logs(fleet)}", 120)
    heard = told(endpoint)
    assert heard.index(("lost", "opened")) < heard.index(("lost", "closed"))
    assert heard.count(("lost", "opened")) == heard.count(("lost", "closed")) == 1


@pytest.mark.timeout(180)
async def test_one_that_sleeps_past_its_lease_is_replaced_and_tells_nothing_twice(
    fleet: Fleet, sql: asyncpg.Connection, schema: str
) -> None:
    async with answering() as endpoint:
        file = write(fleet, endpoint)
        for _ in range(2):
            fleet.worker("--alerts", file)
        await fleet.alive(sql, 2)
        sleeper = await holder(fleet, sql)
        sleeper.send(signal.SIGSTOP)
        await bury(sql, schema)

        async def all_told() -> bool:
            return {("dead", "opened"), ("lost", "opened")} <= set(told(endpoint))

        await until(all_told, lambda: f"the other to tell both; told: {told(endpoint)}; logs:\n{logs(fleet)}", 120)
        sleeper.send(signal.SIGCONT)

        async def returned() -> bool:
            return "node.declared_dead" in sleeper.text()

        await until(returned, lambda: f"it to come back; its log:\n{sleeper.text()}")

        async def over() -> bool:
            return ("lost", "closed") in told(endpoint)

        await until(over, lambda: f"the end of it to be told; told: {told(endpoint)}; logs:\n{logs(fleet)}", 120)
    heard = told(endpoint)
    assert {one: heard.count(one) for one in heard} == {("dead", "opened"): 1, ("lost", "opened"): 1, ("lost", "closed"): 1}
