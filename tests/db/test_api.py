"""The REST API, over a socket, against a process of its own."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from hourhand import Hourhand
from hourhand.storage.embedded import MAJOR
from hourhand.storage.migrate import migrate
from tests.db.test_worker import working
from tests.support.api import ADMIN, ApiProcess, Client, bury, settle
from tests.support.document import Document, Walker
from tests.support.fleet import until
from tests.support.servers import OwnServer

pytestmark = pytest.mark.once
REPORT = {
    "name": "send-weekly-report", "schedule": "0 9 * * 1", "timezone": "America/New_York", "payload": {"report_type": "weekly"},
    "idempotency_key_template": "report-{{week}}", "max_retries": 3, "retry_backoff": "exponential", "missed_window": "RUN_ONCE",
    "timeout_seconds": 120,
}  # fmt: skip
HOURLY = {"schedule": "0 * * * *"}


@pytest.fixture
async def document(admin: Client) -> Document:
    return Document((await admin.get("openapi.json")).ok())


@pytest.fixture
async def own_api(url: str, schema: str, tmp_path: Path) -> AsyncIterator[ApiProcess]:
    """A server on the test's own schema."""
    api = await ApiProcess(url, schema, tmp_path).started()
    yield api
    print(api.news())
    api.stop()


@pytest.fixture
async def own(own_api: ApiProcess) -> AsyncIterator[Client]:
    async with Client(own_api.base, ADMIN) as client:
        yield client


# Every operation


async def test_every_operation_works_as_the_document_prints_it(own: Client, sql: asyncpg.Connection, schema: str) -> None:
    walker = Walker(own, Document((await own.get("openapi.json")).ok()))
    use = walker.use

    for name in ("healthz", "readyz", "metrics", "whoami", "list_nodes", "list_shards", "statistics", "queue_figures", "totals", "list_alerts",
                 "alert_rules", "test_alerts"):  # fmt: skip
        assert (await use(name)).status == 200
    assert (await use("preview_schedule")).json["timezone"] == "America/New_York"

    added = await use("add_job")
    job = added.ok(201)
    job_id = job["job_id"]
    assert job_id.startswith("j_")
    assert job["next_run_at"].endswith("Z")
    assert added.headers["Location"] == f"/api/v1/jobs/{job_id}"
    assert (await use("add_job")).ok(200)["job_id"] == job_id, "the same again changes nothing"
    assert [one["job_id"] for one in (await use("list_jobs")).ok()] == [job_id]
    assert (await use("show_job", job_id="send-weekly-report")).ok()["job_id"] == job_id
    assert len((await use("next_firings", job_id=job_id)).ok()) == 10
    assert (await use("update_job", job_id=job_id)).ok()["schedule"] == "30 9 * * 1"
    assert (await use("put_job", job_id=job_id)).ok()["schedule"] == "0 9 * * 1"
    assert (await use("put_job", job_id="another")).status == 201
    assert (await use("pause_job", job_id=job_id)).ok()["state"] == "paused"
    assert (await use("resume_job", job_id=job_id)).ok()["job"]["state"] == "active"
    run_id = (await use("trigger_job", job_id=job_id)).ok()["run_id"]
    assert [one["run_id"] for one in (await use("job_runs", job_id=job_id)).ok()] == [run_id]
    assert [one["by_hand"] for one in (await use("why", job_id=job_id)).ok()] == ["triggered"]
    assert (await use("prove_job", job_id=job_id)).ok()["clean"]
    made = (await use("backfill_job", job_id=job_id)).ok()["runs"]
    assert made[0]["scheduled_at"] == "2021-02-01T14:00:00Z"
    assert (await use("backfill_progress", job_id=job_id, body={"runs": made})).ok()["ended"] == 0
    assert (await use("cancel_backfill", job_id=job_id)).ok() == {"called_off": 4}
    assert (await use("add_jobs", body=await _renamed(walker, "add_jobs"))).ok() == {"added": 2, "replaced": 0, "unchanged": 0}

    first = (await use("enqueue")).ok(201)["run_id"]
    assert (await use("enqueue")).ok(200) == {"run_id": first, "duplicate": True}
    several = (await use("enqueue_batch")).ok(201)["run_ids"]
    assert {first, *several} <= {one["run_id"] for one in (await use("list_runs")).ok()}
    assert (await use("show_run", run_id=first)).ok()["payload"] == {"invoice_id": 7}
    assert (await use("run_logs", run_id=first)).ok() == []
    assert (await use("cancel_run", run_id=first)).ok()["outcome"] == "cancelled"
    assert (await use("retry_run", run_id=first)).ok()["again_as"] != first

    for one in several:
        await bury(sql, schema, one)
    assert len((await use("list_dead")).ok()) == 2
    assert (await use("count_dead")).ok() == {"count": 2}
    assert (await use("show_dead", run_id=several[0])).ok()["errors"][-1]["type"] == "ConnectionError"
    assert (await use("edit_dead", run_id=several[0])).ok()["payload"] == {"invoice_id": 8}
    assert (await use("purge_one", run_id=several[1])).status == 204
    assert (await use("replay_dead")).ok() == {"replayed": [several[0]], "blocked": []}
    assert (await use("purge_dead")).ok() == {"purged": 0}

    assert "billing" in {one["name"] for one in (await use("list_queues")).ok()}
    assert (await use("pause_queue", name="billing")).ok()["paused_at"]
    assert (await use("resume_queue", name="billing")).ok()["paused_at"] is None

    hold = (await use("add_hold")).ok(201)
    assert (hold["field"], hold["value"], hold["held_by"]) == ("customer_id", "42", "key:HOURHAND_ADMIN_KEY")
    assert (await use("add_hold")).ok(201) == hold, "the same again is the same"
    assert (await use("list_holds")).ok() == [hold]
    assert (await use("release_hold", hold_id=str(hold["id"]))).ok() == hold
    assert (await use("release_hold", hold_id=str(hold["id"]))).problem["type"] == "urn:hourhand:unknown-hold"
    ruled = (await use("set_limit", scope="queue", name="billing")).ok()
    assert ruled["in_words"] == ["10 at once", "100/minute, bursts of 100", "2 at once for each customer_id"]
    assert (await use("list_limits")).ok() == [ruled]
    assert (await use("clear_limit", scope="queue", name="billing")).ok()["rule"] == {}
    assert (await use("clear_limit", scope="queue", name="billing")).status == 409

    key = (await use("create_key")).ok(201)
    assert key["secret"].startswith(f"hh_{key['key_id']}_")
    assert key["key_id"] in {one["key_id"] for one in (await use("list_keys")).ok()}
    assert (await use("revoke_key", key_id=key["key_id"])).ok()["state"] == "revoked"
    assert (await use("open_session")).ok(201)["csrf_token"]
    assert (await use("close_session")).status == 204
    assert (await use("list_audit")).ok()[0]["action"] == "key.revoke"

    assert (await use("delete_job", job_id=job_id)).status == 204
    assert (await use("delete_job", job_id=job_id)).status == 404
    walker.used.add("events")  # it has no end; it is heard below
    assert walker.used == walker.document.operations.keys()


async def _renamed(walker: Walker, name: str) -> str:
    example = walker.document.operations[name].body
    assert example is not None
    lines = [json.loads(line) for line in example[1].splitlines()]
    return "".join(json.dumps({**one, "name": f"batch-{one['name']}"}) + "\n" for one in lines)


async def test_a_job_from_beginning_to_end(admin: Client) -> None:
    answer = await admin.post("jobs", REPORT)
    job = answer.ok(201)
    assert job["job_id"].startswith("j_")
    at = datetime.fromisoformat(job["next_run_at"])
    assert job["next_run_at"].endswith("Z")
    assert at > datetime.now(UTC)
    assert {name: job[name] for name in REPORT} == REPORT
    assert (await admin.get(f"jobs/{job['job_id']}/runs?limit=20")).ok() == []
    gone = await admin.delete(f"jobs/{job['job_id']}")
    assert (gone.status, gone.body) == (204, b"")
    for again in (await admin.delete(f"jobs/{job['job_id']}"), await admin.get(f"jobs/{job['job_id']}")):
        assert again.status == 404
        assert again.problem["type"] == "urn:hourhand:unknown-job"


async def test_the_document_is_valid_and_has_an_example_of_everything(document: Document) -> None:
    assert document.plain["openapi"].startswith("3.1")
    OpenAPIV31SpecValidator(document.plain).validate()
    for operation in document.operations.values():
        for content in operation.about.get("requestBody", {}).get("content", {}).values():
            document.check(content["schema"], content["example"])
        for parameter in operation.parameters:
            if "example" in parameter:
                document.check(parameter["schema"], parameter["example"])
        for status, response in operation.about["responses"].items():
            for content in response.get("content", {}).values():
                assert "example" in content, f"{operation.name} has no example of its answer {status}"
                document.check(content["schema"], content["example"])


async def test_what_a_batch_holds_is_what_the_document_says_of_a_line(document: Document) -> None:
    for name, model in (("add_jobs", "JobToAdd"), ("enqueue_batch", "RunToAdd")):
        example = document.operations[name].body
        assert example is not None
        assert example[0] == "application/x-ndjson"
        for line in example[1].splitlines():
            document.check({"$ref": f"#/components/schemas/{model}"}, json.loads(line))


# Pages


async def test_every_list_comes_in_pages(own: Client, sql: asyncpg.Connection, schema: str) -> None:
    """Each of them whole, in order, without a double; also where many have the same instant."""
    lines = [
        {"name": f"job-{number:02}", **HOURLY, "queue": "paged", "tags": ["odd" if number % 2 else "even"]}
        for number in range(11)
    ]
    (await own.post("jobs/batch", data=_ndjson(lines))).ok()
    for _ in range(7):
        (await own.post("jobs/job-00/trigger")).ok()
    runs = (await own.post("runs/batch", data=_ndjson([{"task": "t", "queue": "paged"}] * 14))).ok(201)["run_ids"]
    same = datetime.now(UTC)
    for one in runs[:9]:
        await bury(sql, schema, one, died_at=same)
    await settle(sql, schema, runs[9])
    await sql.execute(f"UPDATE {schema}.ready SET scheduled_at = $1 WHERE job_id IS NOT NULL", same)
    for number in range(3):
        (await own.patch("jobs/job-00", {"priority": ("high", "low", "normal")[number]})).ok()
    await sql.execute(
        f"INSERT INTO {schema}.incidents (rule, kind, subject, severity, message, hooks, opened_at, closed_at)"
        f" SELECT 'slow', 'queue_age', 'paged', 'warning', 'it waits', false, $1, $1 FROM generate_series(1, 5)",
        same,
    )

    lists = {
        "jobs": ("name", 11),
        "jobs?tag=odd&queue=paged": ("name", 5),
        "runs?queue=paged": ("run_id", 21),
        "runs?status=ready&status=succeeded": ("run_id", 12),
        "jobs/job-00/runs": ("run_id", 7),
        "jobs/job-00/why": ("run_id", 7),
        "dead": ("run_id", 9),
        "dead?error=ConnectionError": ("run_id", 9),
        "audit?action=job": ("id", 21),
        "alerts?open=false&rule=slow": ("id", 5),
    }
    for path, (mark, size) in lists.items():
        joint = "&" if "?" in path else "?"
        whole = (await own.get(f"{path}{joint}limit=1000")).ok()
        assert len(whole) == size, path
        for limit in (1, 2, 3, size, size + 1):
            pages = await own.pages(f"{path}{joint}limit={limit}")
            if path.endswith("why"):
                pages.reverse()
            assert [one for page in pages for one in page] == whole, f"{path} by {limit}"
            assert max(map(len, pages)) == min(limit, size)
            assert len({one[mark] for page in pages for one in page}) == size
    document = Document((await own.get("openapi.json")).ok())
    paged = {one.path.removeprefix("/api/v1/") for one in document.operations.values() if _takes(one.parameters, "cursor")}
    paged.remove("jobs/{job_id}/next")  # it has no end
    assert paged == {path.partition("?")[0].replace("job-00", "{job_id}") for path in lists}


async def test_the_firings_to_come_come_in_pages(admin: Client) -> None:
    (await admin.put("jobs/coming", {**HOURLY, "max_runs": 23})).ok(201)
    whole = (await admin.get("jobs/coming/next?limit=100")).ok()
    assert len(whole) == 23
    for limit in (1, 5, 23, 24):
        assert [one for page in await admin.pages(f"jobs/coming/next?limit={limit}") for one in page] == whole


async def test_a_page_stays_where_it_was_while_others_come_and_go(admin: Client) -> None:
    first = (await admin.post("runs/batch", data=_ndjson([{"task": "steady", "queue": "steady"}] * 4))).ok(201)["run_ids"]
    page = await admin.get("runs?queue=steady&limit=2")
    assert [one["run_id"] for one in page.ok()] == first[:1:-1]
    (await admin.post("runs", {"task": "steady", "queue": "steady"})).ok(201)
    assert page.next is not None
    assert [one["run_id"] for one in (await admin.get(page.next)).ok()] == first[1::-1]


@pytest.mark.parametrize("path", ["jobs", "runs", "dead", "audit", "jobs/cursed/runs", "jobs/cursed/why"])
@pytest.mark.parametrize(
    "cursor",
    ["x", "!", "e30", "bnVsbA", "W10", "IlxcMCI", 10**30, -1, "\0", ["9999-12-31T23:59:59.999999Z", "r_1"], ["x", 1],
     ["0001-01-01T00:00:00+14:00", "r_1"], ["2020-01-01T00:00:00", "r_1"], ["2020-01-01T00:00:00Z", "2020-01-01T00:00:00Z", 10**30],
     ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999Z", 1]],
)  # fmt: skip
async def test_a_cursor_that_is_none(admin: Client, path: str, cursor: Any) -> None:
    assert (await admin.put("jobs/cursed", HOURLY)).status in (200, 201)
    text = cursor if isinstance(cursor, str) and cursor.isprintable() else _cursor(cursor)
    answer = await admin.get(f"{path}?cursor={text}")
    assert answer.status in (200, 404, 422), answer.body
    if answer.status != 200:
        assert answer.problem


# Versions


async def test_a_version_that_is_known_is_not_sent_again(admin: Client) -> None:
    tag = (await admin.put("jobs/tagged", HOURLY)).headers["ETag"]
    for known in (tag, f"W/{tag}", f'"7777", {tag}', "*"):
        answer = await admin.get("jobs/tagged", headers={"If-None-Match": known})
        assert (answer.status, answer.body) == (304, b"")
        assert answer.headers["ETag"] == tag
    for other in ('"7777"', "nonsense", ""):
        assert (await admin.get("jobs/tagged", headers={"If-None-Match": other})).status == 200


@pytest.mark.parametrize("method", ["PATCH", "PUT", "DELETE"])
async def test_only_the_version_that_was_seen_is_changed(admin: Client, method: str) -> None:
    name = f"versions-{method.lower()}"
    old = (await admin.put(f"jobs/{name}", HOURLY)).headers["ETag"]
    new = (await admin.patch(f"jobs/{name}", {"priority": "low"})).headers["ETag"]
    assert old != new
    body = None if method == "DELETE" else {**HOURLY, "priority": "high"}
    for stale in (old, "nonsense", '"7", "8"', '"999999999999999999999"'):
        answer = await admin.call(method, f"jobs/{name}", json=body, headers={"If-Match": stale})
        assert answer.status == 412
        assert answer.problem
    assert (await admin.get(f"jobs/{name}")).ok()["priority"] == "low"
    answer = await admin.call(method, f"jobs/{name}", json=body, headers={"If-Match": new})
    assert answer.status in (200, 204)
    if method != "DELETE":
        assert answer.headers["ETag"] not in (old, new)
        assert (await admin.call(method, f"jobs/{name}", json=body, headers={"If-Match": "*"})).status == 200


@pytest.mark.parametrize("method", ["PATCH", "PUT", "DELETE"])
async def test_of_many_who_have_seen_one_version_one_changes_it(admin: Client, method: str) -> None:
    name = f"contested-{method.lower()}"
    tag = (await admin.put(f"jobs/{name}", HOURLY)).headers["ETag"]
    bodies = [None if method == "DELETE" else {**HOURLY, "tags": [str(number)]} for number in range(8)]
    answers = await asyncio.gather(*(admin.call(method, f"jobs/{name}", json=body, headers={"If-Match": tag}) for body in bodies))
    statuses = sorted(one.status for one in answers)
    assert statuses[0] in (200, 204)
    assert set(statuses[1:]) <= {412, 404 if method == "DELETE" else 412}


# Once


async def test_a_repeated_request_has_its_first_answer(admin: Client) -> None:
    once = {"Idempotency-Key": "order-17"}
    first = await admin.post("runs", {"task": "pay", "queue": "once"}, headers=once)
    again = await admin.post("runs", {"task": "pay", "queue": "once"}, headers=once)
    assert (first.status, first.body) == (again.status, again.body)
    assert again.headers["Location"] == first.headers["Location"]
    assert "Idempotency-Replayed" not in first.headers
    assert again.headers["Idempotency-Replayed"] == "true"
    assert len((await admin.get("runs?queue=once")).ok()) == 1
    for path, body in (
        ("runs", {"task": "pay", "queue": "other"}),
        ("runs?x=1", {"task": "pay", "queue": "once"}),
        ("dead/replay", {}),
    ):
        other = await admin.post(path, body, headers=once)
        assert other.status == 422
        assert "another request" in other.problem["detail"]


async def test_each_kind_of_change_is_made_once(admin: Client) -> None:
    """With the answer, and with its version."""
    once = {"Idempotency-Key": "kinds"}
    first = await admin.post("jobs", {"name": "kinds", **HOURLY}, headers=once)
    again = await admin.post("jobs", {"name": "kinds", **HOURLY}, headers=once)
    assert (first.status, again.status) == (201, 201)
    assert first.headers["ETag"] == again.headers["ETag"]
    once = {"Idempotency-Key": "kinds-batch"}
    lines = _ndjson([{"name": f"kinds-{number}", **HOURLY} for number in range(20)])
    answers = [await admin.post("jobs/batch", data=lines, headers=once) for _ in range(2)]
    assert [one.ok()["added"] for one in answers] == [20, 20]
    once = {"Idempotency-Key": "kinds-trigger"}
    answers = [await admin.post("jobs/kinds/trigger", headers=once) for _ in range(2)]
    assert len({one.ok()["run_id"] for one in answers}) == 1
    assert len((await admin.get("jobs/kinds/runs")).ok()) == 1
    for method, path, body, status in (
        ("PATCH", "jobs/kinds", {"priority": "low"}, 200), ("PUT", "jobs/kinds-put", HOURLY, 201), ("DELETE", "jobs/kinds-1", None, 204),
    ):  # fmt: skip
        once = {"Idempotency-Key": f'"kinds-{method}"'}
        first, again = [await admin.call(method, path, json=body, headers=once) for _ in range(2)]
        assert (first.status, again.status) == (status, status)
        assert first.body == again.body
        assert again.headers["Idempotency-Replayed"] == "true"
    once = {"Idempotency-Key": "kinds-runs"}
    answers = [
        await admin.post("runs/batch", data=_ndjson([{"task": "t", "queue": "kinds"}] * 3), headers=once) for _ in range(2)
    ]
    assert answers[0].ok(201) == answers[1].ok(201)
    assert len((await admin.get("runs?queue=kinds")).ok()) == 3


async def test_two_at_once_make_one_run(admin: Client) -> None:
    for round_ in range(5):
        once = {"Idempotency-Key": f"race-{round_}"}
        body = {"task": "race", "queue": f"race-{round_}"}
        answers = await asyncio.gather(*(admin.post("runs", body, headers=once) for _ in range(8)))
        assert {one.status for one in answers} == {201}
        assert len({one.body for one in answers}) == 1
        assert sum("Idempotency-Replayed" not in one.headers for one in answers) == 1
        assert len((await admin.get(f"runs?queue=race-{round_}")).ok()) == 1


async def test_an_error_is_not_remembered(admin: Client) -> None:
    once = {"Idempotency-Key": "at first in vain"}
    assert (await admin.post("jobs/not-yet/trigger", headers=once)).status == 404
    (await admin.put("jobs/not-yet", HOURLY)).ok(201)
    done = await admin.post("jobs/not-yet/trigger", headers=once)
    assert done.ok()["outcome"] == "started"
    assert "Idempotency-Replayed" not in done.headers


async def test_what_a_killed_server_had_begun_is_not_half_done(
    url: str, schema: str, tmp_path: Path, sql: asyncpg.Connection
) -> None:
    """Neither the run without the answer nor the answer without the run: what was under way is as if it had never been."""
    api = await ApiProcess(url, schema, tmp_path).started()
    once, body = {"Idempotency-Key": "cut off"}, {"task": "pay", "queue": "cut"}
    try:
        async with Client(api.base, ADMIN) as client:
            (await client.post("runs", {"task": "warm", "queue": "cut"})).ok(201)
            async with sql.transaction():
                await sql.execute(f"LOCK TABLE {schema}.ready IN ACCESS EXCLUSIVE MODE")
                under_way = asyncio.ensure_future(client.post("runs", body, headers=once))
                await until(lambda: _somebody_waits(sql, schema), "the request to wait for the table")
                api.kill()
                with pytest.raises(aiohttp.ClientError):
                    await under_way
    finally:
        api.kill()
    again = await ApiProcess(url, schema, tmp_path).started()
    try:
        async with Client(again.base, ADMIN) as client:
            answers = [await client.post("runs", body, headers=once) for _ in range(2)]
            assert len({one.ok(201)["run_id"] for one in answers}) == 1
            assert ["Idempotency-Replayed" in one.headers for one in answers] == [False, True]
            assert len((await client.get("runs?task=pay")).ok()) == 1
    finally:
        again.stop()
        print(again.news())


async def test_an_answer_that_never_arrived_can_be_asked_for_again(own: Client, sql: asyncpg.Connection, schema: str) -> None:
    once, body = {"Idempotency-Key": "never heard"}, {"task": "pay", "queue": "unheard"}
    (await own.post("runs", {"task": "warm", "queue": "unheard"})).ok(201)
    async with sql.transaction():
        await sql.execute(f"LOCK TABLE {schema}.ready IN ACCESS EXCLUSIVE MODE")
        under_way = asyncio.ensure_future(own.post("runs", body, headers=once))
        await until(lambda: _somebody_waits(sql, schema), "the request to wait for the table")
        under_way.cancel()
        await asyncio.wait([under_way])
    again = await own.post("runs", body, headers=once)
    assert again.ok(201)["run_id"]
    assert len((await own.get("runs?task=pay")).ok()) == 1


@pytest.mark.parametrize("key", ["", " ", "x" * 201])
async def test_a_key_that_is_none(admin: Client, key: str) -> None:
    answer = await admin.post("runs", {"task": "t"}, headers={"Idempotency-Key": key})
    assert answer.status == 400
    assert "Idempotency-Key" in answer.problem["detail"]


# Many at once


async def test_ten_thousand_jobs_in_one_request(admin: Client) -> None:
    lines = [{"name": f"bulk-{number:05}", "schedule": f"{number % 60} * * * *", "queue": "bulk"} for number in range(10_000)]
    assert (await admin.post("jobs/batch", data=_ndjson(lines))).ok() == {"added": 10_000, "replaced": 0, "unchanged": 0}
    assert (await admin.post("jobs/batch", data=_ndjson(lines[:50]))).ok() == {"added": 0, "replaced": 0, "unchanged": 50}
    lines[0]["priority"] = "high"
    refused = await admin.post("jobs/batch", data=_ndjson(lines[:50]))
    assert refused.status == 409
    assert refused.problem
    assert (await admin.post("jobs/batch?replace=true", data=_ndjson(lines[:50]))).ok() == {
        "added": 0,
        "replaced": 1,
        "unchanged": 49,
    }
    assert sum(map(len, await admin.pages("jobs?queue=bulk&limit=1000"))) == 10_000


BAD_JOBS = [b'{"name": "bad"', b'{"name": "bad"}', b'{"name": "bad", "schedule": "0 0 30 2 *"}', b'{"name": "a b", "schedule": "@daily"}',
            b'{"name": "half-000", "schedule": "@daily"}', b"[]", b"null", b'{"name": "bad", "schedule": "@daily", "surprise": 1}']  # fmt: skip


@pytest.mark.parametrize("bad", BAD_JOBS)
async def test_one_bad_line_leaves_nothing_of_a_batch_of_jobs(admin: Client, bad: bytes) -> None:
    lines = [json.dumps({"name": f"half-{number:03}", "schedule": "@daily", "queue": "half"}).encode() for number in range(200)]
    lines.insert(100, bad)
    answer = await admin.post("jobs/batch", data=b"\n".join(lines))
    assert answer.status in (400, 422)
    assert "101" in answer.problem["detail"] or "half-000" in answer.problem["detail"]
    assert (await admin.get("jobs?search=half-")).ok() == []


@pytest.mark.parametrize(
    "bad", [b"{", b"{}", b'{"task": "t", "payload": {"a": "\\u0000"}}', b'{"task": "t", "priority": "x"}', b"7"]
)
async def test_one_bad_line_leaves_nothing_of_a_batch_of_runs(admin: Client, bad: bytes) -> None:
    lines = [json.dumps({"task": "t", "queue": "halves", "key": f"k{number}"}).encode() for number in range(60)]
    lines.insert(30, bad)
    answer = await admin.post("runs/batch", data=b"\n".join(lines))
    assert answer.status in (400, 422)
    assert answer.problem
    assert (await admin.get("runs?tag=halves")).ok() == []
    assert (await admin.get("runs?task=t&key=k0")).ok() == []


async def test_a_batch_has_its_limits(admin: Client) -> None:
    many = await admin.post("runs/batch", data=b"\n" * 20_100 + b'{"task": "t"}')
    assert many.status == 413
    assert "20,000 lines" in many.problem["detail"]
    long = await admin.post("jobs/batch", data=b"x" * 3_000_000)
    assert long.status == 413
    assert long.problem
    assert (await admin.post("runs/batch", data=b"\n\n")).ok(201) == {"run_ids": []}


# What goes wrong


async def test_every_error_is_a_problem(admin: Client) -> None:
    (await admin.put("jobs/fine", HOURLY)).ok(201)
    text = {"Content-Type": "text/plain"}
    for answer, status, kind in (
        (await admin.get("nothing"), 404, "about:blank"),
        (await admin.get("/nothing"), 404, "about:blank"),
        (await admin.get("jobs/"), 404, "about:blank"),
        (await admin.get("jobs/unknown"), 404, "urn:hourhand:unknown-job"),
        (await admin.get("runs/r_zzzz"), 404, "urn:hourhand:unknown-run"),
        (await admin.get("runs/what"), 404, "urn:hourhand:unknown-run"),
        (await admin.get("dead/r_zzzz"), 404, "urn:hourhand:unknown-run"),
        (await admin.delete("keys/unknown"), 404, "urn:hourhand:unknown-key"),
        (await admin.post("queues/unknown/resume"), 404, "urn:hourhand:unknown-queue"),
        (await admin.get("runs?queue=unknown"), 404, "urn:hourhand:unknown-queue"),
        (await admin.put("jobs", {}), 405, "about:blank"),
        (await admin.delete("/healthz"), 405, "about:blank"),
        (await admin.post("jobs", data=b"{}", headers=text), 415, "about:blank"),
        (await admin.post("jobs", data=b"{"), 400, "about:blank"),
        (await admin.post("jobs", data=b""), 400, "about:blank"),
        (await admin.post("jobs", data=b"\xff\xfe"), 400, "about:blank"),
        (await admin.post("jobs", data=b"[]"), 422, "urn:hourhand:invalid-input"),
        (await admin.post("jobs", {"name": "x"}), 422, "urn:hourhand:invalid-input"),
        (await admin.post("jobs", {"name": "x", "schedule": "every tuesday"}), 422, "urn:hourhand:invalid-schedule"),
        (await admin.post("jobs", {"name": "x", **HOURLY, "timezone": "Mars/Base"}), 422, "urn:hourhand:invalid-schedule"),
        (await admin.post("jobs", {"name": "x", **HOURLY, "payload": {"a": "\0"}}), 422, "urn:hourhand:invalid-payload"),
        (await admin.post("jobs", {"name": "x", **HOURLY, "anchor": "2020-01-01T00:00:00Z"}), 422, "urn:hourhand:invalid-option"),
        (await admin.post("jobs", {"name": "fine", "schedule": "@daily"}), 409, "urn:hourhand:job-conflict"),
        (await admin.post("runs/r_zzzz/retry"), 404, "urn:hourhand:unknown-run"),
        (await admin.get("jobs/fine/why?at=2020-01-01T00:00:00Z"), 409, "urn:hourhand:not-possible"),
        (await admin.patch("jobs/fine", {}, headers={"If-Match": '"99"'}), 412, "urn:hourhand:precondition-failed"),
        (await admin.get("jobs?limit=0"), 422, "urn:hourhand:invalid-input"),
        (await admin.get("runs?status=asleep"), 422, "urn:hourhand:invalid-input"),
        (await admin.get("audit?since=yesterday"), 422, "urn:hourhand:invalid-input"),
        (await admin.get("events?type=everything"), 422, "about:blank"),
        (await admin.post("dead/purge", {}), 422, "urn:hourhand:invalid-option"),
        (await admin.post("dead/purge", {"all": True, "task": "t"}), 422, "urn:hourhand:invalid-option"),
        (await admin.holding("hh_nobody").get("jobs"), 401, "about:blank"),
    ):  # fmt: skip
        assert (answer.status, answer.problem["type"]) == (status, kind), answer.body


async def test_what_is_wrong_is_said_all_at_once(admin: Client) -> None:
    answer = await admin.post("jobs", {"name": "a b", "priority": "urgent", "max_retries": -1, "surprise": 1})
    assert {one["at"] for one in answer.problem["errors"]} == {"name", "schedule", "priority", "max_retries", "surprise"}


async def test_without_its_database_it_says_so_and_comes_back(tmp_path: Path) -> None:
    server = OwnServer(tmp_path / "data", MAJOR)
    url = server.start()
    api = None
    try:
        connection = await asyncpg.connect(url)
        await migrate(connection, "hourhand")
        await connection.close()
        api = await ApiProcess(url, "hourhand", tmp_path).started()
        async with Client(api.base, ADMIN) as client, client.events() as heard:
            (await client.put("jobs/kept", HOURLY)).ok(201)
            await heard.until(lambda one: one.get("name") == "kept")
            server.halt("immediate")

            async def noticed() -> bool:
                return (await client.get("/healthz")).status == 503

            await until(noticed, "the server to notice")
            for answer in (
                await client.get("jobs"),
                await client.post("runs", {"task": "t"}),
                await client.post("runs", {"task": "t"}, headers={"Idempotency-Key": "k"}),
                await client.put("jobs/new", HOURLY),
                await client.holding("hh_aaaaaaaaaaaaaaaa_b").get("jobs"),
            ):
                assert answer.status == 503
                assert answer.headers["Retry-After"] == "1"
                assert answer.problem["detail"] == "The database cannot be reached at the moment; try again", (
                    "and not where it is"
                )
            assert (await client.get("/readyz")).ok(503) == {"status": "unavailable"}
            server.again()

            async def back() -> bool:
                return (await client.get("/readyz")).status == 200

            await until(back, "the server to find its database again")
            assert (await client.get("jobs/kept")).ok()["name"] == "kept"
            await heard.until(lambda one: one["type"] == "gap")
            (await client.post("jobs/kept/pause")).ok()
            assert (await heard.until(lambda one: one["type"] == "change"))["action"] == "job.pause"
            assert [one["type"] for one in heard.heard] == ["change", "gap", "change"], "told once, when it hears again"
        assert "Traceback" not in api.news()
    finally:
        if api is not None:
            api.stop()
        server.stop()


# Events


async def test_changes_are_heard_as_they_happen(admin: Client) -> None:
    async with admin.events() as heard:
        job = (await admin.put("jobs/told", HOURLY)).ok(201)
        event = await heard.until(lambda one: one.get("name") == "told")
        assert event == {
            "type": "change", "id": event["id"], "at": event["at"], "actor": "key:HOURHAND_ADMIN_KEY", "action": "job.add",
            "subject": job["job_id"], "name": "told", "queue": "default",
        }  # fmt: skip
        (await admin.delete("jobs/told")).ok(204)
        assert (await heard.until(lambda one: one.get("name") == "told"))["action"] == "job.delete"


async def test_runs_that_end_are_heard(own: Client, app: Hourhand) -> None:
    @app.task
    async def quick() -> None:
        pass

    async with own.events("runs") as heard, working(app):
        run_id = (await own.post("runs", {"task": "quick", "queue": "heard"})).ok(201)["run_id"]
        (await own.put("jobs/unheard", HOURLY)).ok(201)
        event = await heard.until(lambda one: any(run["run_id"] == run_id for run in one.get("ended", ())))
        assert event["counts"]["succeeded"] >= 1
        [run] = [one for one in event["ended"] if one["run_id"] == run_id]
        assert run == {"run_id": run_id, "task": "quick", "queue": "heard", "status": "succeeded", "job_id": None}
    assert {one["type"] for one in heard.heard} == {"runs"}, "only what was asked for"


async def test_streams_do_not_keep_the_server_from_stopping(own: Client, own_api: ApiProcess) -> None:
    async with own.events() as heard:
        own_api.stop()
        assert await heard.next() is None
    assert own_api.process.process.returncode == 0


# How it is


async def test_health_and_metrics(admin: Client) -> None:
    assert (await admin.holding(None).get("/healthz")).ok() == {"status": "ok"}
    assert (await admin.get("/readyz")).ok() == {"status": "ok"}
    metrics = await admin.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert b"hourhand_probation_runs 0.0" in metrics.body


async def test_a_path_with_strange_signs_in_it(admin: Client) -> None:
    """Ids are found with blanks around them; what such a path does to the link to the next page is no fault."""
    job_id = (await admin.put("jobs/strange", HOURLY)).json["job_id"]
    for _ in range(2):
        (await admin.post(f"jobs/{job_id}/trigger")).ok()
    for sign in ("%E2%80%83", "%0A", "%0D%0AX-Evil:%201", "%1F", "%C2%85", "%20", "%00", "%25", "%F0%9F%92%A9"):
        answer = await admin.get(f"jobs/{job_id}{sign}/runs?limit=1")
        assert answer.status in (200, 404)
        assert "X-Evil" not in answer.headers
        if answer.next is not None:
            assert answer.next.isascii()
            assert (await admin.get(answer.next)).status == 200


def _ndjson(lines: list[Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


def _cursor(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _takes(parameters: list[dict[str, Any]], name: str) -> bool:
    return any(one["name"] == name for one in parameters)


async def _somebody_waits(sql: asyncpg.Connection, schema: str) -> bool:
    question = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = $1::regclass)"
    return bool(await sql.fetchval(question, f"{schema}.ready"))
