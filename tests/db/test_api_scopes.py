"""A key for a part of everything: by queue, by the names of jobs. What is not its part is not there for it."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from hourhand import Hourhand
from tests.db.conftest import Served
from tests.db.test_worker import working
from tests.support.api import Client, bury

pytestmark = pytest.mark.once

HOURLY = {"schedule": "0 * * * *"}
PERIOD = {"since": "2021-02-01T00:00:00Z", "until": "2021-02-01T03:00:00Z"}


@dataclass
class World:
    """Two parts that know nothing of each other, each with a job, its runs and its dead letters, in a queue of its own."""

    admin: Client
    client: Client
    how: str
    mine: dict[str, Any]
    theirs: dict[str, Any]


async def _part(admin: Client, sql: asyncpg.Connection, schema: str, name: str) -> dict[str, Any]:
    job = (await admin.put(f"jobs/{name}-job", {**HOURLY, "queue": name, "task": name, "tags": ["both"]})).json
    runs = [(await admin.post(f"jobs/{name}-job/trigger")).ok()["run_id"] for _ in range(4)]
    for one in runs[:2]:
        await bury(sql, schema, one)
    return {"job": job, "name": f"{name}-job", "queue": name, "dead": runs[:2], "waiting": runs[2:]}


@pytest.fixture(params=["queue", "prefix"])
async def world(request: pytest.FixtureRequest, admin: Client, served: Served, sql: asyncpg.Connection) -> AsyncIterator[World]:
    schema = served.schema
    mine, theirs = await _part(admin, sql, schema, "mine"), await _part(admin, sql, schema, "theirs")
    scope = {"queues": ["mine"]} if request.param == "queue" else {"prefixes": ["mine-"]}
    yield World(admin, await admin.make_key(f"scoped-{request.param}", "admin", **scope), request.param, mine, theirs)
    for table in ("ready", "delayed", "dead", "runs", "decisions"):
        await sql.execute(f"DELETE FROM {schema}.{table}")
    for job in (await admin.get("jobs")).ok():
        (await admin.delete(f"jobs/{job['job_id']}")).ok(204)


def _about(part: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """Everything that can be asked and ordered about a job, its runs and its dead letters."""
    requests: list[tuple[str, str, Any]] = []
    for job in (part["name"], part["job"]["job_id"]):
        requests += [
            ("GET", f"jobs/{job}{path}", None)
            for path in ("", "/runs", "/next", "/why", f"/proof?since={PERIOD['since']}&until={PERIOD['until']}")
        ]
        requests += [
            ("PATCH", f"jobs/{job}", {"priority": "high"}), ("POST", f"jobs/{job}/pause", None), ("POST", f"jobs/{job}/resume", None),
            ("POST", f"jobs/{job}/trigger", None), ("POST", f"jobs/{job}/backfill", PERIOD), ("POST", f"jobs/{job}/backfill/cancel", PERIOD),
        ]  # fmt: skip
    waiting, dead = part["waiting"], part["dead"]
    requests += [
        ("GET", f"runs/{waiting[0]}", None), ("GET", f"runs/{waiting[0]}/logs", None), ("POST", f"runs/{waiting[0]}/cancel", None),
        ("GET", f"runs/{dead[0]}", None), ("GET", f"dead/{dead[0]}", None), ("PATCH", f"dead/{dead[0]}", {"payload": {"a": 1}}),
        ("POST", f"runs/{dead[0]}/retry", None), ("POST", "dead/replay", {"run_ids": [dead[1]]}), ("DELETE", f"jobs/{part['job']['job_id']}", None),
    ]  # fmt: skip
    return requests


async def _state(sql: asyncpg.Connection, schema: str) -> dict[str, list[Any]]:
    tables = ("jobs", "schedules", "ready", "delayed", "dead", "runs", "queues", "cancels", "decisions", "audit", "api_keys")
    return {one: [tuple(row) for row in await sql.fetch(f"SELECT * FROM {schema}.{one} ORDER BY 1")] for one in tables}


def _still(state: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Without what a look leaves behind: when a key was used."""
    return {**state, "api_keys": [row[:-1] for row in state["api_keys"]]}


async def test_others_are_not_there(world: World, served: Served, sql: asyncpg.Connection) -> None:
    before = _still(await _state(sql, served.schema))
    for method, path, body in _about(world.theirs):
        answer = await world.client.call(method, path, json=body)
        assert answer.status == 404, (method, path)
        assert answer.problem
    for method, path in (("DELETE", f"dead/{world.theirs['dead'][0]}"), ("POST", "dead/purge")):
        answer = await world.client.call(method, path, json={"run_ids": world.theirs["dead"]} if method == "POST" else None)
        assert answer.status == 404, (method, path)
    assert _still(await _state(sql, served.schema)) == before


async def test_ones_own_is(world: World) -> None:
    for method, path, body in _about(world.mine):
        answer = await world.client.call(method, path, json=body)
        assert answer.status in (200, 201, 204), (method, path, answer.body)
    (await world.client.put("jobs/mine-second", {**HOURLY, "queue": "mine"})).ok(201)
    lines = [{"name": f"mine-{number}", **HOURLY, "queue": "mine"} for number in range(3)]
    assert (await world.client.post("jobs/batch?replace=true", data=_ndjson(lines))).ok()["added"] == 3
    if world.how == "queue":
        (await world.client.post("runs", {"task": "t", "queue": "mine", "then": [{"task": "u", "queue": "mine"}]})).ok(201)
        (await world.client.post("queues/mine/pause")).ok()
        (await world.client.post("queues/mine/resume")).ok()


async def test_lists_and_counts_have_only_ones_own(world: World) -> None:
    client, mine, theirs = world.client, world.mine, world.theirs
    for path in ("jobs", "jobs?tag=both", "jobs?search=job", "jobs?state=active", "jobs?limit=1"):
        assert {one["name"] for page in await client.pages(path) for one in page} == {"mine-job"}, path
    for path in ("runs", "runs?status=ready&status=dead", "runs?tag=both", "runs?limit=1", "runs?since=2020-01-01T00:00:00Z"):
        assert {one["run_id"] for page in await client.pages(path) for one in page} == {*mine["dead"], *mine["waiting"]}, path
    for path in ("dead", "dead?tag=both", "dead?error=ConnectionError", "dead?limit=1"):
        assert {one["run_id"] for page in await client.pages(path) for one in page} == set(mine["dead"]), path
    assert (await client.get("dead/count")).ok() == {"count": 2}
    assert (await client.get("dead/count?task=theirs")).ok() == {"count": 0}
    assert (await client.get("jobs?task=theirs")).ok() == []
    assert (await client.get("runs?task=theirs")).ok() == []
    assert [one["name"] for one in (await client.get("queues")).ok()] == (["mine"] if world.how == "queue" else [])
    if world.how == "queue":
        for path in ("jobs", "runs", "dead", "dead/count"):
            foreign, unknown = await client.get(f"{path}?queue=theirs"), await client.get(f"{path}?queue=theirz")
            assert (foreign.status, unknown.status) == (404, 404)
            assert foreign.body == unknown.body.replace(b"theirz", b"theirs"), "whether there is one is not told"
    else:
        assert (await client.get("runs?queue=theirs")).ok() == []
    # A place in a list that was got elsewhere leads to nothing more.
    for path, place in (
        ("jobs", "theirs"), ("jobs", ""), ("runs", theirs["waiting"][1]), ("runs", "r_zzzzz"),
        ("dead", ["2999-01-01T00:00:00Z", theirs["dead"][0]]), ("jobs/mine-job/runs", ["2999-01-01T00:00:00Z", theirs["dead"][0]]),
        ("audit", 10**9),
    ):  # fmt: skip
        cursor = base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")
        assert "theirs" not in (await client.get(f"{path}?cursor={cursor}")).body.decode(), path


async def test_of_all_only_ones_own_is_meant(world: World) -> None:
    assert (await world.client.post("dead/replay", {"all": True, "limit": 1})).ok()["replayed"] == [world.mine["dead"][0]]
    assert (await world.client.post("dead/purge", {"error": "ConnectionError"})).ok() == {"purged": 1}
    assert (await world.client.post("dead/purge", {"run_ids": world.theirs["dead"]})).status == 404
    assert (await world.admin.get("dead/count")).ok() == {"count": 2}


async def test_nothing_is_made_or_moved_outside(world: World, served: Served, sql: asyncpg.Connection) -> None:
    client = world.client
    refused: list[tuple[str, str, Any]] = [
        ("POST", "jobs", {"name": "theirs-new", **HOURLY, "queue": "theirs"}),
        ("PUT", "jobs/theirs-new", {**HOURLY, "queue": "theirs"}),
        ("PUT", "jobs/theirs-job", {**HOURLY, "queue": "theirs"}),
        ("PUT", "jobs/theirs-job", {**HOURLY, "queue": "mine"}),
        ("POST", "runs", {"task": "t", "queue": "theirs"}),
        ("POST", "runs", {"task": "t"}),
        ("POST", "queues/theirs/pause", None),
        ("POST", "queues/theirs/resume", None),
        ("POST", "holds", {"task": "t"}),
        ("POST", "holds", {"task": "t", "queue": "theirs"}),
        ("PUT", "limits/queue/theirs", {"max_depth": 5}),
        ("PUT", "limits/task/t", {"concurrency": 5}),
        ("DELETE", "limits/task/t", None),
        ("POST", "queues/new/pause", None),
    ]
    chains: list[Any] = [
        [{"task": "x", "queue": "theirs"}], ["x"], [{"task": "x", "queue": "mine"}, {"task": "y", "queue": "theirs"}],
        [{"task": "x", "queue": "mine"}, "y"],
    ]  # fmt: skip
    for chain in chains:
        refused += [
            ("POST", "runs", {"task": "t", "queue": "mine", "then": chain}),
            ("POST", "jobs", {"name": "mine-chain", **HOURLY, "queue": "mine", "then": chain}),
            ("PUT", "jobs/mine-job", {**HOURLY, "queue": "mine", "then": chain}),
            ("PATCH", "jobs/mine-job", {"then": chain}),
        ]
    if world.how == "queue":
        refused += [
            ("PATCH", "jobs/mine-job", {"queue": "theirs"}),
            ("PUT", "jobs/mine-job", {**HOURLY}),
            ("POST", "jobs", {"name": "x", **HOURLY}),
        ]
    else:
        refused += [("POST", "jobs", {"name": "mine", **HOURLY}), ("PUT", "jobs/min", HOURLY), ("POST", "queues/mine/pause", None),
                    ("POST", "queues/mine/resume", None), ("POST", "runs", {"task": "t", "queue": "mine"})]  # fmt: skip
    batches = [
        ("jobs/batch", [{"name": "mine-1", **HOURLY, "queue": "mine"}, {"name": "theirs-1", **HOURLY, "queue": "theirs"}]),
        (
            "jobs/batch?replace=true",
            [{"name": "mine-1", **HOURLY, "queue": "mine"}, {"name": "theirs-job", **HOURLY, "queue": "mine"}],
        ),
        ("jobs/batch", [{"name": "mine-1", **HOURLY, "queue": "mine", "then": chains[0]}]),
        ("runs/batch", [{"task": "t", "queue": "mine"}, {"task": "t", "queue": "theirs"}]),
        ("runs/batch", [{"task": "t", "queue": "mine"}, {"task": "t", "queue": "mine", "then": chains[0]}]),
        ("runs/batch", [{"task": "t", "queue": "theirs"}] * 3),
        ("runs/batch", [{"task": "t", "queue": "mine", "then": chains[0]}] * 3),
    ]
    before = _still(await _state(sql, served.schema))
    for method, path, body in refused:
        for headers in ({}, {"Idempotency-Key": "k"}):
            answer = await client.call(method, path, json=body, headers=headers)
            assert answer.status == 403, (method, path, body, answer.body)
            assert "may touch" in answer.problem["detail"]
    for path, lines in batches:
        for headers in ({}, {"Idempotency-Key": "k"}):
            answer = await client.post(path, data=_ndjson(lines), headers=headers)
            assert answer.status == 403, (path, lines)
            assert answer.problem
    after = _still(await _state(sql, served.schema))
    assert {**after, "queues": None} == {**before, "queues": None}
    assert {row[1] for row in after["queues"]} <= {*(row[1] for row in before["queues"]), "default"}


async def test_what_concerns_everything_is_not_for_a_part(world: World) -> None:
    for method, path, body in (
        ("GET", "keys", None), ("POST", "keys", {"name": "more", "role": "admin"}), ("POST", "keys", {"name": "same", "queues": ["mine"]}),
        ("DELETE", "keys/environment", None), ("GET", "nodes", None), ("GET", "shards", None), ("GET", "/metrics", None),
        ("GET", "statistics/totals", None), ("GET", "alerts", None), ("GET", "alerts/rules", None), ("POST", "alerts/test", None),
    ):  # fmt: skip
        answer = await world.client.call(method, path, json=body)
        assert answer.status == 403, (method, path)
        assert "concerns everything" in answer.problem["detail"]
    about = (await world.client.get("whoami")).ok()
    assert (about["queues"], about["prefixes"]) == ((["mine"], None) if world.how == "queue" else (None, ["mine-"]))


async def test_what_others_did_is_not_in_the_figures(world: World, served: Served, sql: asyncpg.Connection) -> None:
    await sql.execute(
        f"INSERT INTO {served.schema}.statistics (minute, queue, node, succeeded, fired) SELECT date_trunc('minute', now()), id, -9, 5, 5"
        f" FROM (SELECT id FROM {served.schema}.queues UNION ALL SELECT 0) AS queues"
        " ON CONFLICT (minute, queue, node) DO UPDATE SET succeeded = 5, fired = 5"
    )

    async def did(query: str) -> tuple[int, int]:
        moments = (await world.client.get(f"statistics?{query}")).ok()["moments"]
        return sum(one["succeeded"] for one in moments), sum(one["fired"] for one in moments)

    # What the jobs of a queue did is known of all of them together, so whose part is some jobs sees none of it.
    assert await did("period=1h") == await did("period=24h&queue=mine") == ((5, 5) if world.how == "queue" else (0, 0))
    theirs = await world.client.get("statistics?queue=theirs")
    assert theirs.status == 404 if world.how == "queue" else await did("queue=theirs") == (0, 0)
    seen = [one["name"] for one in (await world.client.get("statistics/queues")).ok()]
    assert seen == (["mine"] if world.how == "queue" else [])
    await sql.execute(f"DELETE FROM {served.schema}.statistics WHERE node = -9")


async def test_the_record_of_others_cannot_be_read(world: World) -> None:
    (await world.admin.post("keys", {"name": "mine-key", "role": "viewer"})).ok(201)
    (await world.admin.post("queues/theirs/pause")).ok()
    (await world.admin.post("queues/theirs/resume")).ok()
    (await world.client.patch("jobs/mine-job", {"priority": "low"})).ok()
    seen = [one for page in await world.client.pages("audit?limit=3") for one in page]
    assert {one["name"] or one["queue"] for one in seen} <= {"mine-job", "mine", "mine-second", "mine-0", "mine-1", "mine-2"}
    assert seen[0]["action"] == "job.update"
    assert seen[0]["actor"] == f"key:scoped-{world.how}"
    for filters in (
        "subject=theirs-job",
        f"subject={world.theirs['job']['job_id']}",
        "action=key",
        "subject=mine-key",
        "subject=theirs",
    ):
        assert (await world.client.get(f"audit?{filters}")).ok() == [], filters
        assert (await world.admin.get(f"audit?{filters}")).ok() != [], filters


async def test_changes_of_others_are_not_heard(world: World) -> None:
    async with world.client.events() as heard, world.admin.events() as everything:
        (await world.admin.patch("jobs/theirs-job", {"priority": "low"})).ok()
        (await world.admin.post("queues/theirs/pause")).ok()
        (await world.admin.post("queues/theirs/resume")).ok()
        (await world.admin.post("keys", {"name": "mine-key-too"})).ok(201)
        (await world.client.patch("jobs/mine-job", {"tags": ["last"]})).ok()
        await heard.until(lambda one: one.get("name") == "mine-job")
        await everything.until(lambda one: one.get("name") == "mine-job")
    assert [one["name"] for one in heard.heard] == ["mine-job"]
    assert len(everything.heard) == 5


async def test_runs_of_others_are_not_heard(world: World, served: Served) -> None:
    app = Hourhand(served.url, schema=served.schema, lease=3.0, grace=0.5, poll=1.0)

    @app.task(name="mine")
    async def mine() -> None:
        pass

    @app.task(name="theirs")
    async def theirs() -> None:
        pass

    async with app, world.client.events("runs") as heard, world.admin.events("runs") as everything, working(app):
        ended: set[str] = set()
        while not {*world.mine["waiting"], *world.theirs["waiting"]} <= ended:
            event = await everything.next()
            assert event is not None
            ended |= {one["run_id"] for one in event["ended"]}
        seen: set[str] = set()
        while not set(world.mine["waiting"]) <= seen:
            event = await heard.next()
            assert event is not None
            assert event.keys() == {"type", "ended"}, "counts are of everything"
            seen |= {one["run_id"] for one in event["ended"]}
    assert seen == set(world.mine["waiting"])


async def test_keys_of_one_name_do_not_share_what_they_asked(admin: Client) -> None:
    """Who repeats somebody else's request is not told the answer that one had."""
    one = await admin.make_key("twin", "admin", queues=["left"])
    other = await admin.make_key("twin", "admin", queues=["right"])
    once, body = {"Idempotency-Key": "shared"}, {"task": "t", "queue": "left"}
    (await one.post("runs", body, headers=once)).ok(201)
    assert (await one.post("runs", body, headers=once)).headers["Idempotency-Replayed"] == "true"
    assert (await other.post("runs", body, headers=once)).status == 403
    mine = await other.post("runs", {**body, "queue": "right"}, headers=once)
    assert mine.status == 201
    assert "Idempotency-Replayed" not in mine.headers


def _ndjson(lines: list[Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)
