"""Shards among schedulers that come, go and die."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.core.ring import SHARDS, shards_of
from hourhand.engine.elector import Elector
from hourhand.storage.schedules import ScheduleGateway
from tests.db.test_firing import make_node


@pytest.fixture
async def gateway(app: Hourhand) -> AsyncIterator[ScheduleGateway]:
    one = ScheduleGateway((await app._database()).link("test"))
    yield one
    await one.close()


async def elector(gateway: ScheduleGateway, sql: asyncpg.Connection, schema: str) -> Elector:
    return Elector(gateway, SimpleNamespace(id=await make_node(sql, schema)))  # type: ignore[arg-type]


def identity(one: Elector) -> int:
    return one._node.id


async def test_the_first_takes_all_and_shares_with_those_who_come(
    gateway: ScheduleGateway, sql: asyncpg.Connection, schema: str
) -> None:
    first = await elector(gateway, sql, schema)
    assert len(await first.run_once()) == SHARDS
    assert await first.run_once() == set(), "nothing new"
    second = await elector(gateway, sql, schema)
    assert await second.run_once() == set(), "nothing is taken from the living"
    await first.run_once()
    await second.run_once()
    nodes = [identity(first), identity(second)]
    assert set(first.held) == shards_of(nodes[0], nodes)
    assert set(second.held) == shards_of(nodes[1], nodes)
    assert not set(first.held) & set(second.held)


async def test_only_the_shards_of_the_dead_move(gateway: ScheduleGateway, sql: asyncpg.Connection, schema: str) -> None:
    trio = [await elector(gateway, sql, schema) for _ in range(3)]
    for _ in range(2):
        for one in trio:
            await one.run_once()
    victim, *rest = trio
    before = [dict(one.held) for one in rest]
    await sql.execute(f"UPDATE {schema}.nodes SET lease_until = now() - interval '1 second' WHERE id = $1", identity(victim))
    for one in rest:
        await one.run_once()
    assert sum(len(one.held) for one in rest) == SHARDS
    for one, held in zip(rest, before, strict=True):
        assert {shard: one.held[shard] for shard in held} == held, "what it had, it keeps, under the same epoch"
    assert not await victim.run_once()
    assert victim.held == {}, "it holds nothing any more and knows it"


async def test_an_orderly_end_leaves_everything_free_at_once(
    gateway: ScheduleGateway, sql: asyncpg.Connection, schema: str
) -> None:
    first, second = await elector(gateway, sql, schema), await elector(gateway, sql, schema)
    for one in (first, second, first, second):
        await one.run_once()
    await first.release_all()
    await sql.execute(f"UPDATE {schema}.nodes SET stopped_at = now() WHERE id = $1", identity(first))
    await second.run_once()
    assert len(second.held) == SHARDS


async def test_a_scheduler_without_its_session_lock_does_not_count_as_living(
    gateway: ScheduleGateway, sql: asyncpg.Connection, schema: str
) -> None:
    first, second = await elector(gateway, sql, schema), await elector(gateway, sql, schema)
    await first.run_once()
    await sql.execute(f"UPDATE {schema}.nodes SET session = true WHERE id = $1", identity(first))
    await second.run_once()
    assert len(second.held) == SHARDS
