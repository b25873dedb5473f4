"""Every change is on record: who, what, before, after; in one entry, in the transaction of the change, for good."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest

from tests.db.conftest import Served
from tests.support.api import Client, bury, settle
from tests.support.document import Document

pytestmark = pytest.mark.once
HOURLY = {"schedule": "0 * * * *"}
PERIOD = {"since": "2021-02-01T00:00:00Z", "until": "2021-02-01T03:00:00Z"}
NOT_ON_RECORD = {"enqueue", "enqueue_batch", "open_session", "close_session", "test_alerts"}
"""Runs that are added are traffic, and their own record; a session changes nothing but who is looking,
a test message nothing at all."""
ANY = object()


@dataclass
class Case:
    """One change: what is asked, and what the record says of it."""

    operation: str
    method: str
    path: str
    action: str
    body: Any = None
    before: Any = None
    after: Any = field(default_factory=lambda: ANY)
    status: int = 200
    name: str | None = None


async def _cases(admin: Client, sql: asyncpg.Connection, schema: str) -> list[Case]:
    """Each can be made, as things are when its turn has come."""
    (await admin.put("jobs/kept", {**HOURLY, "payload": {"n": 1}})).ok(201)
    runs = (await admin.post("runs/batch", data=_ndjson([{"task": "t", "payload": {"n": 1}}] * 8))).ok(201)["run_ids"]
    for one in runs[:5]:
        await bury(sql, schema, one)
    await settle(sql, schema, runs[5])
    key = (await admin.post("keys", {"name": "to be revoked"})).ok(201)
    hold = (await admin.post("holds", {"task": "held"})).ok(201)["id"]
    batch = _ndjson([{"name": "kept", **HOURLY, "payload": {"n": 2}}, {"name": "many", **HOURLY}])  # one of them as it is
    one_run = {"count": 1, "runs": ANY}
    return [
        Case("add_job", "POST", "jobs", "job.add", {"name": "made", **HOURLY}, None, ANY, 201, "made"),
        Case("put_job", "PUT", "jobs/put", "job.add", HOURLY, None, ANY, 201, "put"),
        Case("put_job", "PUT", "jobs/made", "job.update", {"schedule": "30 * * * *"}, {"schedule": "0 * * * *"}, {"schedule": "30 * * * *"},
             name="made"),
        Case("update_job", "PATCH", "jobs/made", "job.update", {"priority": "low", "timeout_seconds": 5}, {"priority": "normal", "timeout": None},
             {"priority": "low", "timeout": 5.0}, name="made"),
        Case("update_job", "PATCH", "jobs/kept", "job.update", {"payload": {"n": 2}}, {"payload": {"n": 1}}, {"payload": {"n": 2}}, name="kept"),
        Case("pause_job", "POST", "jobs/kept/pause", "job.pause", None, {"paused_at": None}, {"paused_at": ANY}, name="kept"),
        Case("resume_job", "POST", "jobs/kept/resume", "job.resume", None, {"paused_at": ANY}, {"paused_at": None}, name="kept"),
        Case("trigger_job", "POST", "jobs/kept/trigger", "job.trigger", None, None, {"run_id": ANY, "outcome": "started", "force": False}, name="kept"),
        Case("backfill_job", "POST", "jobs/kept/backfill", "job.backfill", PERIOD, None, ANY, name="kept"),
        Case("cancel_backfill", "POST", "jobs/kept/backfill/cancel", "job.cancel_backfill", PERIOD, None, {**PERIOD, "called_off": 3}, name="kept"),
        Case("add_jobs", "POST", "jobs/batch", "job.add", batch, None, ANY, name="many"),
        Case("delete_job", "DELETE", "jobs/made", "job.delete", None, ANY, None, 204, "made"),
        Case("cancel_run", "POST", f"runs/{runs[6]}/cancel", "run.cancel", {"reason": "no"}, None, {"outcome": "cancelled", "reason": "no", "task": "t"}),
        Case("retry_run", "POST", f"runs/{runs[0]}/retry", "run.retry", None, None, {"again_as": runs[0], "task": "t"}),
        Case("retry_run", "POST", f"runs/{runs[5]}/retry", "run.retry", None, None, {"again_as": ANY, "task": "t"}),
        Case("edit_dead", "PATCH", f"dead/{runs[1]}", "dead.edit", {"payload": {"n": 2}}, {"payload": {"n": 1}}, {"payload": {"n": 2}}),
        Case("replay_dead", "POST", "dead/replay", "dead.replay", {"run_ids": [runs[2]]}, None, one_run),
        Case("purge_one", "DELETE", f"dead/{runs[3]}", "dead.purge", None, None, one_run, 204),
        Case("purge_dead", "POST", "dead/purge", "dead.purge", {"all": True}, None, {"count": 2, "runs": ANY}),
        Case("pause_queue", "POST", "queues/held/pause", "queue.pause", None, {"paused_at": None}, {"paused_at": ANY}),
        Case("resume_queue", "POST", "queues/held/resume", "queue.resume", None, {"paused_at": ANY}, {"paused_at": None}),
        Case("add_hold", "POST", "holds", "hold.add", {"tag": "eu", "reason": "x"}, None, {"tag": "eu", "reason": "x", "runs": 0}, 201),
        Case("release_hold", "DELETE", f"holds/{hold}", "hold.release", None, {"task": "held", "runs": 0}, None),
        Case("set_limit", "PUT", "limits/queue/held", "limit.set", {"max_depth": 5}, {"scope": "queue", "ordered": {}},
             {"scope": "queue", "ordered": {"max_depth": 5}}),
        Case("clear_limit", "DELETE", "limits/queue/held", "limit.clear", None, {"scope": "queue", "ordered": {"max_depth": 5}},
             {"scope": "queue", "ordered": {}}),
        Case("create_key", "POST", "keys", "key.create", {"name": "fresh", "role": "operator"}, None, ANY, 201, "fresh"),
        Case("revoke_key", "DELETE", f"keys/{key['key_id']}", "key.revoke", None, {"state": "active"}, {"state": "revoked"}, 200, "to be revoked"),
    ]  # fmt: skip


async def _make(client: Client, case: Case, **headers: str) -> Any:
    data = case.body if isinstance(case.body, bytes) else None
    return await client.call(case.method, case.path, json=None if data else case.body, data=data, headers=headers)


def _fits(value: Any, wanted: Any) -> bool:
    if wanted is ANY:
        return True
    if isinstance(wanted, dict) and isinstance(value, dict):
        return value.keys() == wanted.keys() and all(_fits(value[name], one) for name, one in wanted.items())
    return bool(value == wanted)


async def _entries(sql: asyncpg.Connection, schema: str, above: int = 0) -> list[dict[str, Any]]:
    rows = await sql.fetch(f"SELECT * FROM {schema}.audit WHERE id > $1 ORDER BY id", above)
    return [{**dict(row), **{one: row[one] and json.loads(row[one]) for one in ("before", "after")}} for row in rows]


async def _everything(sql: asyncpg.Connection, schema: str) -> dict[str, Any]:
    """All tables, but for when a key was last used."""
    names = [row[0] for row in await sql.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1 ORDER BY 1", schema)]
    found = {}
    for name in names:
        rows = await sql.fetch(f"SELECT to_jsonb(t) - 'used_at' AS row FROM {schema}.\"{name}\" AS t ORDER BY 1")
        found[name] = [row[0] for row in rows]
    return found


async def _empty(sql: asyncpg.Connection, served: Served) -> None:
    for table in (
        "jobs",
        "ready",
        "delayed",
        "dead",
        "runs",
        "decisions",
        "backfills",
        "schedules",
        "loose",
        "counters",
        "spans",
        "holds",
        "rules",
    ):
        if await sql.fetchval("SELECT to_regclass($1)", f"{served.schema}.{table}"):
            await sql.execute(f"DELETE FROM {served.schema}.{table}")


async def test_each_change_leaves_one_entry(admin: Client, served: Served, sql: asyncpg.Connection) -> None:
    somebody = await admin.make_key("somebody", "admin")
    cases = await _cases(admin, sql, served.schema)
    for case in cases:
        last = (await _entries(sql, served.schema))[-1]["id"]
        answer = await _make(somebody, case)
        answer.ok(case.status)
        entries = await _entries(sql, served.schema, last)
        assert [one["action"] for one in entries] == [case.action], case.operation
        [entry] = entries
        assert (entry["actor"], entry["via"], entry["name"]) == ("key:somebody", "api", case.name)
        assert _fits(entry["before"], case.before), (case.operation, entry)
        assert _fits(entry["after"], case.after), (case.operation, entry)
        assert case.after is None or entry["after"] is not None
        shown = (await admin.get("audit?limit=1")).ok()[0]
        assert (shown["id"], shown["before"], shown["after"]) == (entry["id"], entry["before"], entry["after"])
    document = Document((await admin.get("openapi.json")).ok())
    changing = {one.name for one in document.operations.values() if one.method != "GET"} - {"backfill_progress"}
    assert changing == {one.operation for one in cases} | NOT_ON_RECORD
    await _empty(sql, served)


async def test_what_changes_nothing_leaves_none(admin: Client, served: Served, sql: asyncpg.Connection) -> None:
    (await admin.put("jobs/same", HOURLY)).ok(201)
    (await admin.post("queues/paused/pause")).ok()
    (await admin.put("limits/queue/paused", {"max_depth": 7})).ok()
    (await admin.post("holds", {"task": "same"})).ok(201)
    last = (await _entries(sql, served.schema))[-1]["id"]
    for answer, status in (
        (await admin.put("jobs/same", HOURLY), 200), (await admin.patch("jobs/same", {}), 200),
        (await admin.post("jobs", {"name": "same", **HOURLY}), 200), (await admin.post("jobs/batch", data=_ndjson([{"name": "same", **HOURLY}])), 200),
        (await admin.post("jobs/same/resume"), 200), (await admin.post("jobs/same/backfill", {**PERIOD, "dry_run": True}), 200),
        (await admin.post("jobs", {"name": "same", "schedule": "@daily"}), 409), (await admin.patch("jobs/same", {"schedule": "never"}), 422),
        (await admin.patch("jobs/same", {"priority": "low"}, headers={"If-Match": '"99"'}), 412), (await admin.delete("jobs/nobody"), 404),
        (await admin.delete("jobs/same", headers={"If-Match": '"99"'}), 412), (await admin.post("runs/r_zzzz/cancel"), 404),
        (await admin.post("dead/replay", {"all": True}), 200), (await admin.post("dead/purge", {"all": True}), 200),
        (await admin.post("queues/nobody/resume"), 404), (await admin.delete("keys/nobody"), 404), (await admin.post("keys", {"name": "\0"}), 422),
        (await admin.post("holds", {"task": "same", "reason": "again"}), 201), (await admin.delete("holds/99999"), 404),
        (await admin.put("limits/queue/paused", {"max_depth": 7}), 200), (await admin.delete("limits/task/same"), 409),
        (await admin.put("limits/queue/paused", {}), 422), (await admin.post("holds", {"queue": "default"}), 422),
        (await admin.post("session"), 201), (await admin.post("queues/paused/pause"), 200), (await admin.post("queues/default/resume"), 200),
    ):  # fmt: skip
        assert answer.status == status, answer.body
    assert await _entries(sql, served.schema, last) == []
    (await admin.post("queues/paused/resume")).ok()
    await _empty(sql, served)


async def test_no_change_without_its_entry(admin: Client, served: Served, sql: asyncpg.Connection) -> None:
    """The last statement of each change is made to fail: nothing of the change is there, and nothing of the record."""
    schema = served.schema
    cases = await _cases(admin, sql, schema)
    await sql.execute(
        f"CREATE FUNCTION {schema}.broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no room'; END $$;"
        f"CREATE TRIGGER broken AFTER INSERT ON {schema}.audit FOR EACH ROW EXECUTE FUNCTION {schema}.broken()"
    )
    try:
        for case in cases:
            prepared = _needed(case)
            if prepared is not None:
                await _with_record(sql, schema, _make(admin, prepared))
            # A queue that is paused for the first time is made before that, for good: its number is others' as well.
            before = {**await _everything(sql, schema), "queues": None}
            for headers in ({}, {"Idempotency-Key": f"in vain {case.operation}"}):
                answer = await _make(admin, case, **headers)
                assert answer.status >= 400, case.operation
                assert answer.problem
                assert {**await _everything(sql, schema), "queues": None} == before, case.operation
    finally:
        await sql.execute(f"DROP TRIGGER broken ON {schema}.audit; DROP FUNCTION {schema}.broken()")
    assert not await sql.fetchval(f"SELECT count(*) FROM {schema}.queues WHERE paused_at IS NOT NULL AND name <> 'held'")
    (await admin.post("queues/held/resume")).ok()
    await _empty(sql, served)


def _needed(case: Case) -> Case | None:
    """What has to be so that a case can be made at all."""
    if case.path == "jobs/made":
        return Case("", "PUT", "jobs/made", "", HOURLY)
    if case.operation == "resume_job":
        return Case("", "POST", "jobs/kept/pause", "")
    if case.operation == "cancel_backfill":
        return Case("", "POST", "jobs/kept/backfill", "", PERIOD)
    if case.operation == "resume_queue":
        return Case("", "POST", "queues/held/pause", "")
    return None


async def _with_record(sql: asyncpg.Connection, schema: str, making: Any) -> None:
    await sql.execute(f"ALTER TABLE {schema}.audit DISABLE TRIGGER broken")
    assert (await making).status < 300
    await sql.execute(f"ALTER TABLE {schema}.audit ENABLE TRIGGER broken")


async def test_no_entry_without_its_change(admin: Client, served: Served, sql: asyncpg.Connection) -> None:
    """The transaction itself is made to fail, at its very end."""
    schema = served.schema
    (await admin.put("jobs/deferred", HOURLY)).ok(201)
    await sql.execute(
        f"CREATE FUNCTION {schema}.late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'too late'; END $$;"
        f"CREATE CONSTRAINT TRIGGER late AFTER UPDATE OR DELETE ON {schema}.jobs DEFERRABLE INITIALLY DEFERRED"
        f" FOR EACH ROW EXECUTE FUNCTION {schema}.late()"
    )
    try:
        before = await _everything(sql, schema)
        for method, path, body in (
            ("PATCH", "jobs/deferred", {"priority": "low"}),
            ("DELETE", "jobs/deferred", None),
            ("POST", "jobs/deferred/pause", None),
        ):
            assert (await admin.call(method, path, json=body)).status >= 400
            assert await _everything(sql, schema) == before
    finally:
        await sql.execute(f"DROP TRIGGER late ON {schema}.jobs; DROP FUNCTION {schema}.late()")
    await _empty(sql, served)


@pytest.mark.parametrize(
    "statement", ["UPDATE {0} SET actor = 'nobody'", "DELETE FROM {0}", "TRUNCATE {0}", "DELETE FROM {0} WHERE false"]
)
async def test_the_record_can_only_be_added_to(admin: Client, served: Served, sql: asyncpg.Connection, statement: str) -> None:
    (await admin.post("keys", {"name": "recorded"})).ok(201)
    before = await _entries(sql, served.schema)
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="only be added to"):
        await sql.execute(statement.format(f"{served.schema}.audit"))
    assert await _entries(sql, served.schema) == before


async def test_the_record_is_found_by_what_it_says(admin: Client) -> None:
    client = await admin.make_key("found", "admin")
    job = (await client.put("jobs/looked-for", HOURLY)).ok(201)
    (await client.patch("jobs/looked-for", {"priority": "low"})).ok()
    (await admin.post("jobs/looked-for/pause")).ok()

    async def actions(filters: str) -> list[str]:
        return [one["action"] for one in (await admin.get(f"audit?{filters}")).ok()]

    assert await actions("subject=looked-for") == ["job.pause", "job.update", "job.add"]
    assert await actions(f"subject={job['job_id']}&action=job.update") == ["job.update"]
    assert await actions("subject=looked-for&actor=key:found&action=job") == ["job.update", "job.add"]
    assert await actions("subject=looked-for&action=jo") == []
    assert "key.create" in await actions("action=key&subject=found")
    viewer = await admin.make_key("watching", "operator")
    assert (await viewer.get("audit?action=key")).ok() == [], "of keys only those are told who make them"
    assert (await viewer.get("audit?subject=looked-for")).ok() != []
    [paused] = (await admin.get("audit?subject=looked-for&limit=1")).ok()
    at = paused["at"]
    assert await actions(f"subject=looked-for&until={at}") == ["job.update", "job.add"]
    assert await actions(f"subject=looked-for&since={at}") == ["job.pause"]


# Secrets


async def test_secret_fields_are_shown_nowhere(admin: Client, served: Served, sql: asyncpg.Connection) -> None:
    hidden = ("s3cr3t-password", "s3cr3t-card", "s3cr3t-token", "s3cr3t-api")
    payload = {
        "user": "ann", "password": hidden[0], "card": {"number": hidden[1], "holder": "ann"}, "items": [{"token": hidden[2], "n": 1}],
        "deep": {"API-Key": hidden[3]},
    }  # fmt: skip
    marks = ["card.number", "items.*.token"]
    step = {"task": "after", "payload": {"password": hidden[0]}}
    answers = []
    async with admin.events() as heard:
        job = {"schedule": "0 * * * *", "payload": payload, "secret": marks, "then": [step]}
        answers += [
            await admin.put("jobs/secretive", job),
            await admin.put("jobs/secretive", job),
            await admin.post("jobs", {"name": "secretive", **job}),
        ]
        shown = answers[0].ok(201)["payload"]
        assert shown["card"] == {"number": "[redacted]", "holder": "ann"}
        answers += [
            await admin.get("jobs/secretive"), await admin.get("jobs"), await admin.patch("jobs/secretive", {"payload": {**shown, "user": "bob"}}),
            await admin.post("jobs/secretive/pause"), await admin.post("jobs/secretive/resume"),
        ]  # fmt: skip
        run = (await admin.post("jobs/secretive/trigger", headers={"Idempotency-Key": "secretive"})).ok()["run_id"]
        answers += [await admin.get(f"runs/{run}"), await admin.get("runs"), await admin.get("jobs/secretive/runs")]
        await bury(sql, served.schema, run)
        other = await admin.post(
            "runs", {"task": "t", "payload": payload, "secret": marks, "then": [step]}, headers={"Idempotency-Key": "s"}
        )
        answers += [other, await admin.get(f"runs/{other.json['run_id']}")]
        answers += [
            await admin.get("dead"),
            await admin.get(f"dead/{run}"),
            await admin.patch(f"dead/{run}", {"payload": {**shown, "user": "eve"}}),
        ]
        (await admin.delete("jobs/secretive")).ok(204)
        await heard.until(lambda one: one.get("action") == "job.delete")
    answers += [await admin.get("audit?limit=1000")]
    told = json.dumps(heard.heard) + served.api.process.text()
    told += json.dumps(await _entries(sql, served.schema), default=str)
    told += str([bytes(row[0]) for row in await sql.fetch(f"SELECT body FROM {served.schema}.requests WHERE body IS NOT NULL")])
    for answer in answers:
        assert answer.status < 300
        told += answer.body.decode()
    for secret in hidden:
        assert secret not in told
    kept = json.loads(await sql.fetchval(f"SELECT payload FROM {served.schema}.dead"))
    assert kept == {**payload, "user": "eve"}, "and what was hidden is still there"
    await _empty(sql, served)


async def test_a_secret_is_not_shown_by_saying_that_it_is_none(admin: Client) -> None:
    """Whoever may change a job, but was not told its secrets, learns them neither by a new list of secrets nor by a copy."""
    plain = {"a": "hidden-value", "b": 1}
    (await admin.put("jobs/sealed", {**HOURLY, "payload": plain, "secret": ["a"]})).ok(201)
    word = {"a": "[redacted]", "b": 1}
    for answer in (
        await admin.patch("jobs/sealed", {"secret": []}),
        await admin.patch("jobs/sealed", {"secret": ["b"]}),
        await admin.patch("jobs/sealed", {"secret": [], "payload": word}),
        await admin.put("jobs/sealed", {**HOURLY, "payload": word}),
        await admin.put("jobs/sealed", {**HOURLY, "payload": word, "secret": ["b"]}),
        await admin.patch("jobs/sealed", {"payload": {"a": "[redacted]", "b": "[redacted]"}, "secret": ["b"]}),
        await admin.post("jobs/batch?replace=true", data=_ndjson([{"name": "sealed", **HOURLY, "payload": word}])),
        await admin.get("jobs/sealed"),
    ):
        assert b"hidden-value" not in answer.body
    assert (await admin.get("jobs/sealed")).ok()["payload"]["a"] == "[redacted]"
    assert (await admin.patch("jobs/sealed", {"secret": [], "payload": plain})).ok()["payload"] == plain, "his own to show"


def _ndjson(lines: list[Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)
