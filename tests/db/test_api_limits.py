"""What is too large, too deep, too long or too strange is refused, quickly, and is never a fault."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.db.conftest import Served
from tests.support.api import ADMIN, Answer, Client, raw_exchange

pytestmark = pytest.mark.once
HOURLY = {"schedule": "0 * * * *"}
QUICK = 0.05
"""Seconds within which a hostile schedule is refused."""


def _refused(answer: Answer, *statuses: int) -> None:
    assert answer.status in (statuses or (400, 413, 422)), (answer.status, answer.body[:300])
    assert answer.problem
    assert b"Traceback" not in answer.body
    assert len(answer.body) < 5_000, "what was sent is not sent back at length"


# Too large


@pytest.mark.parametrize("path", ["jobs", "runs", "dead/replay", "jobs/x/trigger"])
async def test_ten_megabytes_are_not_taken(admin: Client, path: str) -> None:
    body = b'{"name": "' + b"x" * 10_000_000 + b'"}'
    _refused(await admin.post(path, data=body), 413)

    async def unannounced() -> AsyncIterator[bytes]:
        for begun in range(0, len(body), 65_536):
            yield body[begun : begun + 65_536]

    _refused(await admin.post(path, data=unannounced()), 413)
    _refused(await admin.post(path, data=unannounced(), headers={"Idempotency-Key": "large"}), 413)


async def test_a_batch_is_bounded_as_well(served: Served) -> None:
    head = f"POST /api/v1/jobs/batch HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {ADMIN}\r\nContent-Length: %s\r\n\r\n"
    for length in ("70000000", "99999999999999999999999", "-1", "1e9", "0x10", "+5", "abc"):
        answer = await raw_exchange(served.api.port, (head % length).encode())
        assert answer.split(b" ", 2)[1] in (b"413", b"400"), length


async def test_what_is_said_of_the_length_is_not_believed(served: Served) -> None:
    """Two lengths, or a length and a coding: what one server takes for the end, another may not."""
    start = f"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {ADMIN}\r\n".encode()
    body = b'{"task": "smuggled"}'
    for headers, sent in (
        (b"Content-Length: 20\r\nContent-Length: 5\r\n", body),
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"14\r\n" + body + b"\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\n", b"FFFFFFFFFFFFFFFFFF\r\n" + body),
        (b"Transfer-Encoding: chunked\r\n", b"zz\r\n" + body),
        (b"Transfer-Encoding: xchunked\r\n", body),
    ):
        answer = await raw_exchange(served.api.port, start + headers + b"\r\n" + sent)
        assert answer[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 413", b""), (headers, answer[:200])


async def test_large_headers(served: Served, admin: Client) -> None:
    for headers in (b"X-Large: " + b"a" * 5_000_000, b"\r\n".join(b"X-%d: a" % number for number in range(100_000))):
        try:
            answer = await raw_exchange(served.api.port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n\r\n")
        except ConnectionError:
            answer = b"HTTP/1.1 400"  # the answer came before all was sent
        assert answer[:12] == b"HTTP/1.1 400"
        assert (await admin.get("whoami")).status == 200
    for name in ("If-Match", "If-None-Match", "Cookie", "X-CSRF-Token", "Origin", "Content-Type", "Accept", "Range", "X-API-Key"):
        for value in ("x" * 7_000, ",".join(['"1"'] * 2_000), "\xff" * 100, '"', "W/", "=;=;=" * 500):
            answer = await admin.call("PATCH", "jobs/nobody", json={}, headers={name: value})
            assert 400 <= answer.status < 500


# Too deep, too long, too many


@pytest.mark.parametrize("deep", [b"[", b'{"a":'])
@pytest.mark.parametrize("depth", [250, 1_000, 100_000])
async def test_deep_json(admin: Client, deep: bytes, depth: int) -> None:
    close = b"]" if deep == b"[" else b"}"
    nested = deep * depth + b"1" + close * depth
    for path, body in (
        ("runs", b'{"task": "t", "payload": {"a": ' + nested + b"}}"),
        ("runs", nested),
        ("runs", deep * depth),
        ("jobs", b'{"name": "deep", "schedule": "@daily", "then": ' + nested + b"}"),
        ("runs/batch", b'{"task": "t", "payload": {"a": ' + nested + b"}}"),
    ):
        _refused(await admin.post(path, data=body), 400, 422)


async def test_what_is_taken_can_be_read_back(admin: Client) -> None:
    """As deep and as long as it may be: what was stored is shown, and can be thrown away."""
    for text in (
        "[" * 150 + "]" * 150,
        "1" * 4_000,
        "-0.0",
        "1e15",
        "5e-324",
        '"\\ud83d\\udca9"',
        '"' + "é" * 1_000 + '"',
        '{"": {"": ""}}',
    ):
        run = (await admin.post("runs", data=b'{"task": "t", "queue": "back", "payload": {"a": ' + text.encode() + b"}}")).ok(
            201
        )["run_id"]
        assert (await admin.get(f"runs/{run}")).ok()["payload"]["a"] == json.loads(text)
        job = (await admin.put("jobs/back", data=b'{"schedule": "@daily", "payload": {"a": ' + text.encode() + b"}}")).ok(201)
        assert job["payload"]["a"] == json.loads(text)
        (await admin.delete("jobs/back")).ok(204)
        (await admin.post(f"runs/{run}/cancel")).ok()


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x" * 101, **HOURLY}, {"name": "", **HOURLY}, {"name": "a/b", **HOURLY}, {"name": "a\nb", **HOURLY}, {"name": "naïve", **HOURLY},
        {"name": "x\n", **HOURLY}, {"name": 7, **HOURLY}, {"name": None, **HOURLY}, {"name": ["x"], **HOURLY}, {"name": "x", "schedule": "x" * 501},
        {"name": "x", **HOURLY, "queue": "q" * 101}, {"name": "x", **HOURLY, "task": "t" * 101}, {"name": "x", **HOURLY, "timezone": "z" * 101},
        {"name": "x", **HOURLY, "tags": ["t"] * 21}, {"name": "x", **HOURLY, "tags": ["t" * 101]}, {"name": "x", **HOURLY, "tags": [""]},
        {"name": "x", **HOURLY, "tags": ["\0"]}, {"name": "x", **HOURLY, "secret": ["s" * 201]}, {"name": "x", **HOURLY, "secret": ["a"] * 51},
        {"name": "x", **HOURLY, "secret": ["a..b"]}, {"name": "x", **HOURLY, "then": ["t"] * 21}, {"name": "x", **HOURLY, "max_retries": 10_000},
        {"name": "x", **HOURLY, "timeout_seconds": 10**9}, {"name": "x", **HOURLY, "timeout_seconds": 0}, {"name": "x", **HOURLY, "max_runs": 2**31},
        {"name": "x", **HOURLY, "max_runs": 10**40}, {"name": "x", **HOURLY, "max_runs": True}, {"name": "x", **HOURLY, "max_runs": 1.5},
        {"name": "x", **HOURLY, "idempotency_key_template": "x" * 501}, {"name": "x", **HOURLY, "idempotency_key_template": "{{unknown}}"},
        {"name": "x", **HOURLY, "start_at": "0001-01-01T00:00:00+14:00"}, {"name": "x", **HOURLY, "end_at": "9999-12-31T23:59:59-14:00"},
        {"name": "x", **HOURLY, "end_at": "2020-01-01"}, {"name": "x", **HOURLY, "start_at": 5}, {"name": "x", **HOURLY, "payload": {"a": "x" * 1_100_000}},
        {"name": "x", **HOURLY, "payload": []}, {"name": "x", **HOURLY, "payload": {"$sealed": 1}}, {"name": "x", **HOURLY, "delivery": "twice"},
        {"name": "x", "schedule": "every 5m", "anchor": "0001-01-01T00:00:00+14:00"}, {"name": "x", **HOURLY, "misfire_grace_seconds": -1},
    ],
)  # fmt: skip
async def test_a_job_out_of_bounds(admin: Client, body: dict[str, Any]) -> None:
    _refused(await admin.post("jobs", body), 422)
    _refused(await admin.post("jobs/batch", data=json.dumps(body).encode()), 422)
    if isinstance(body["name"], str) and body["name"] == "x":
        _refused(await admin.put("jobs/x", {name: value for name, value in body.items() if name != "name"}), 422)
    assert (await admin.get("jobs?search=x")).ok() == []


@pytest.mark.parametrize(
    "query",
    [
        "jobs?limit=0", "jobs?limit=1001", "jobs?limit=-1", "jobs?limit=1.5", "jobs?limit=", "jobs?limit=" + "9" * 5_000, "runs?limit=0",
        "runs?limit=1001", "dead?limit=1001", "audit?limit=1001", "audit?limit=0", "jobs/x/runs?limit=1001", "jobs/x/next?limit=0",
        "schedule/preview?schedule=@daily&count=1001", "schedule/preview?schedule=@daily&count=0", "schedule/preview?schedule=" + "x" * 501,
        "jobs?search=" + "x" * 101, "jobs?state=other", "runs?key=" + "x" * 501, "runs?status=ready&status=other", "jobs?cursor=" + "x" * 501,
        "runs?since=2020-01-01", "runs?since=0001-01-01T00:00:00%2B14:00", "audit?until=9999-12-31T23:59:59-14:00", "runs/x/logs?after=-1",
        "runs/x/logs?after=99999999999", "schedule/preview?schedule=@daily&after=0001-01-01T00:00:00Z", "jobs?tag=%00", "audit?actor=%00",
        "schedule/preview?schedule=@daily&after=9999-12-31T23:00:00Z", "runs?since=nan", "runs?since=1e999", "events?" + "&".join(["type=runs"] * 11),
    ],
)  # fmt: skip
async def test_a_question_out_of_bounds(admin: Client, query: str) -> None:
    _refused(await admin.get(query), 422)


# Too strange


@pytest.mark.parametrize(
    "value",
    [
        '"\\u0000"', '{"\\u0000": 1}', '["a\\u0000b"]', '"\\ud800"', '"\\udfff\\ud800"', '{"\\ud800": 1}', "NaN", "Infinity", "-Infinity", "1e999", "[NaN]",
        "1" * 1_000_000, "-" + "1" * 1_000_000, "1" * 5_000 + ".5", "0x10", "01", "+1", "1_000", "'a'", "undefined", "{a: 1}", "[1,]", "// a", '"\t"', '"\x01"',
    ],
)  # fmt: skip
async def test_values_that_json_or_the_database_has_not(admin: Client, value: str) -> None:
    sent = value.encode("utf-8", "surrogatepass")
    for path, body in (
        ("runs", b'{"task": "strange", "payload": {"a": %s}}'),
        ("runs", b'{"task": "strange", "then": [{"task": "t", "payload": {"a": %s}}]}'),
        ("runs", b'{"task": "strange", "tags": [%s]}'),
        ("runs", b'{"task": "strange", "key": %s}'),
        ("runs", b'{"task": "strange", "delay_seconds": %s}'),
        ("runs/batch", b'{"task": "strange", "payload": {"a": %s}}'),
        ("jobs", b'{"name": "strange", "schedule": "@daily", "payload": {"a": %s}}'),
        ("jobs", b'{"name": "strange", "schedule": "@daily", "secret": [%s]}'),
        ("jobs", b'{"name": "strange", "schedule": "@daily", "idempotency_key_template": %s}'),
        ("jobs", b'{"name": "strange", "schedule": "@daily", "then": [{"task": "t", "payload": {"a": %s}}]}'),
        ("jobs", b'{"name": "strange", "schedule": %s}'),
        ("keys", b'{"name": %s}'),
        ("dead/replay", b'{"error": %s}'),
    ):
        _refused(await admin.post(path, data=body % sent), 400, 422)
    assert (await admin.get("runs?task=strange")).ok() == []
    assert (await admin.get("jobs?search=strange")).ok() == []


@pytest.mark.parametrize("sent", [b"\xed\xa0\x80", b"\xff", b"\xc0\x80", b"\xf8\x88\x80\x80\x80"])
async def test_bytes_that_are_no_text(admin: Client, sent: bytes) -> None:
    _refused(await admin.post("runs", data=b'{"task": "t", "payload": {"a": "' + sent + b'"}}'), 400)
    for path in ("jobs/%s", "runs/%s", "dead/%s", "jobs?search=%s", "runs?tag=%s", "audit?subject=%s", "jobs?cursor=%s"):
        assert (await admin.get(path % quote(sent))).status in (200, 404, 422)
    for path in ("keys/%s", "jobs/%s", "dead/%s"):
        assert (await admin.delete(path % quote(sent))).status in (404, 422)
    for path in ("queues/%s/pause", "queues/%s/resume"):
        assert (await admin.post(path % quote(sent))).status in (404, 422)


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/xml", "application/jsonx"]
)
async def test_other_types_than_json(admin: Client, kind: str) -> None:
    _refused(await admin.post("runs", data=b'{"task": "t"}', headers={"Content-Type": kind}), 415)


# Hostile schedules

NEVER = ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "0 0 31 4 *", "0 0 0 30 2 *"]
NONSENSE = [
    "*/0 * * * *", "@reboot", "@every", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 13 *", "* * * * 8", "-1 * * * *", "5-1 * * * *",
    "* * * * * * *", "* * * *", "*", "", " ", "1-2-3 * * * *", "1//2 * * * *", "1,,2 * * * *", ", * * * *", "* * * * 1#6", "* * * * 1#0", "* * * * #",
    "99999999999999999999 * * * *", "1-99999999999999999999 * * * *", "*/-1 * * * *", "H H * * *", "? * * * *", "TZ=UTC * * * * *", "\u0661 * * * *",
    "* * L-3 * *", "* * 15W * *", "every 0s", "every -5m", "every", "every 1e9s", "every 11y", "every " + "9" * 400 + "s", "in " + "9" * 400 + "d",
    "2020-01-01T00:00:00Z", "9999-99-99", "2027-01-01T09:00:00", "0001-01-01T00:00:00+14:00", "$(reboot)", "'; DROP TABLE jobs; --", "../../etc/passwd",
    "A" * 500, "1," * 249 + "1", "(" * 500, "*/" * 250, "0-59/" * 100,
]  # fmt: skip
ZONES = [
    "../../etc/passwd",
    "/etc/passwd",
    "Europe/../Europe/Berlin",
    "localtime",
    "posixrules",
    "Mars/Base",
    "UTC\0",
    "utc ",
    "z" * 100,
    "Europe/Berlin/",
    "%s%s",
]


async def _quickly(admin: Client, body: dict[str, Any]) -> None:
    """The best of a few: what the machine is busy with otherwise is no fault of the schedule's. A plain question is the measure
    where the machine is slow altogether."""
    answers = [await admin.post("jobs", body) for _ in range(3)]
    for answer in answers:
        _refused(answer, 422)
    plain = min([(await admin.get("jobs/nobody")).seconds for _ in range(3)])
    assert min(one.seconds for one in answers) < max(QUICK, 10 * plain), body
    preview = await admin.get(
        f"schedule/preview?schedule={quote(body['schedule'])}&timezone={quote(body.get('timezone', 'UTC'))}"
    )
    _refused(preview, 422)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Australia/Lord_Howe"])
@pytest.mark.parametrize("schedule", NEVER)
async def test_a_schedule_that_never_fires_is_refused_at_once(admin: Client, schedule: str, zone: str) -> None:
    await _quickly(admin, {"name": "hostile", "schedule": schedule, "timezone": zone})


@pytest.mark.parametrize("schedule", NONSENSE)
async def test_a_schedule_that_is_none_is_refused_at_once(admin: Client, schedule: str) -> None:
    await _quickly(admin, {"name": "hostile", "schedule": schedule})


@pytest.mark.parametrize("zone", ZONES)
async def test_a_zone_that_is_none_is_refused_at_once(admin: Client, zone: str) -> None:
    await _quickly(admin, {"name": "hostile", "schedule": "0 9 * * *", "timezone": zone})


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize(
    "schedule",
    ["*/59 */23 */31 */12 */7", "* * */31 2 */7", "0 0 29 2 1#5", "0-59," * 95 + "0 * * * *", "every " + "1s" * 240, "0 0 L 2 L"],
)
async def test_a_monster_that_fires_all_the_same_takes_no_time_either(admin: Client, schedule: str, zone: str) -> None:
    seconds = []
    for number in range(3):
        answer = await admin.post("jobs", {"name": f"monster-{number}", "schedule": schedule, "timezone": zone})
        seconds.append(answer.seconds)
        if answer.status == 201:
            (await admin.delete(f"jobs/monster-{number}")).ok(204)
        else:
            _refused(answer, 422)
    plain = min([(await admin.get("jobs/nobody")).seconds for _ in range(3)])
    assert min(seconds) < max(2 * QUICK, 20 * plain)


async def test_long_computations_keep_nobody_waiting(admin: Client) -> None:
    """A thousand 29ths of February, a hundred thousand firings: asked for, they take a while, but not everybody's."""
    (await admin.put("jobs/often", {"schedule": "* * * * * *", "timezone": "America/New_York"})).ok(201)
    period = "since=1990-01-01T00:00:00Z&until=2999-01-01T00:00:00Z"
    long: list[tuple[str, str, Any, int]] = [
        ("GET", f"jobs/often/proof?{period}", None, 422), ("GET", f"jobs/often/why?{period}", None, 422),
        ("POST", "jobs/often/backfill", {"since": "1990-01-01T00:00:00Z", "until": "2020-01-01T00:00:00Z", "cap": 100_000}, 422),
        ("GET", f"schedule/preview?count=1000&schedule={quote('0 0 29 2 1#5')}", None, 200),
    ]  # fmt: skip
    for method, path, body, status in long:
        waiting = asyncio.ensure_future(admin.call(method, path, json=body))
        waits = [0.0]
        while not waiting.done():
            other = await admin.get("/healthz")
            other.ok()
            waits.append(other.seconds)
        answer = await waiting
        assert answer.status == status, answer.body
        assert max(waits) < answer.seconds / 2, f"{path} took {answer.seconds:.1f} s, and somebody waited {max(waits):.1f} s"
