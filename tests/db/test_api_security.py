"""Who is let in, where from, and for what."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import re
from collections.abc import AsyncIterator
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from starlette.routing import Mount

from hourhand import Hourhand
from hourhand.surfaces import access
from hourhand.surfaces.rest import gate, keyring
from hourhand.surfaces.rest.application import make_api
from hourhand.surfaces.rest.events import Hub
from hourhand.surfaces.rest.gate import is_page
from hourhand.surfaces.rest.keyring import Keyring
from tests.db.conftest import Served
from tests.support.api import ADMIN, ROOT, Answer, ApiProcess, Client, raw_exchange
from tests.support.document import Document
from tests.support.fleet import until

pytestmark = pytest.mark.once
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND")
HOURLY = {"schedule": "0 * * * *"}
FOR_VIEWERS = {
    "readyz", "metrics", "list_jobs", "show_job", "job_runs", "next_firings", "why", "prove_job", "list_runs", "show_run", "run_logs",
    "list_dead", "count_dead", "show_dead", "list_queues", "list_nodes", "list_shards", "preview_schedule", "list_audit", "whoami",
    "statistics", "queue_figures", "totals", "list_limits", "list_holds",
    "events", "open_session", "close_session", "backfill_progress", "list_alerts", "alert_rules",
}  # fmt: skip
FOR_OPERATORS = {
    "pause_job", "resume_job", "trigger_job", "backfill_job", "cancel_backfill", "enqueue", "enqueue_batch", "cancel_run", "retry_run",
    "replay_dead", "pause_queue", "resume_queue", "set_limit", "clear_limit", "add_hold", "release_hold",
}  # fmt: skip
FOR_ADMINS = {
    "add_job", "add_jobs", "update_job", "put_job", "delete_job", "edit_dead", "purge_one", "purge_dead", "list_keys", "create_key",
    "revoke_key", "test_alerts",
}  # fmt: skip


@pytest.fixture
async def document(admin: Client) -> Document:
    return Document((await admin.get("openapi.json")).ok())


@pytest.fixture
async def open_api(url: str, schema: str, tmp_path: Path) -> AsyncIterator[ApiProcess]:
    """On loopback, where nobody has made a key yet."""
    api = await ApiProcess(url, schema, tmp_path, admin=None).started()
    yield api
    api.stop()
    said = api.news()
    print(said)
    assert "Traceback" not in said


# Closed


async def test_every_route_is_closed_without_a_key(admin: Client, document: Document) -> None:
    nobody = admin.holding(None)
    known = {one.place(job_id="j_1", run_id="r_1", key_id="k", name="q") for one in document.operations.values()}
    unknown = {"/", "/nothing", ROOT, f"{ROOT}/", f"{ROOT}/nothing", "/docs", "/redoc", "/openapi.json", f"{ROOT}/openapi.json",
               "/api/v1/../../healthz", "/healthz/", "/healthz%2f", "//healthz", "/HEALTHZ", "/healthz;x=1", "/favicon.ico"}  # fmt: skip
    pages = {re.sub(r"{\w+(:path)?}", "1", path) for _, path in routes() if is_page(path)} - {"/login"}
    assert len(pages) > 10
    for path, method in itertools.product(sorted((known | unknown | pages) - {"/healthz"}), METHODS):
        answer = await nobody.call(method, path)
        assert answer.status == 401, (method, path)
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        if method != "HEAD":
            assert "key is needed" in answer.problem["detail"]
    assert (await nobody.get("/healthz")).status == 200
    assert (await nobody.post("/healthz")).status == 405


async def test_the_document_has_every_route(document: Document) -> None:
    """So that whoever walks the document has been everywhere."""
    documented = {(one.method, one.path) for one in document.operations.values()}
    assert {one for one in routes() if not is_page(one[1])} == documented | {("GET", f"{ROOT}/openapi.json")}


async def test_what_pages_are_drawn_with_and_the_way_in_are_open_and_nothing_else_is(admin: Client) -> None:
    nobody = admin.holding(None)
    for path in ("/static/hourhand.css", "/static/hourhand.js", "/static/icon.svg", "/login"):
        assert (await nobody.get(path)).status == 200, path
    for path in (
        "/static/../pages.py",
        "/static/..%2fpages.py",
        "/static/%2e%2e/pages.py",
        "/static/",
        "/static//etc/passwd",
        "/login/x",
    ):
        assert (await nobody.get(path)).status in (401, 404, 405), path
    for method in ("PUT", "DELETE", "PATCH"):
        assert (await nobody.call(method, "/login")).status == 405
    from_elsewhere = await nobody.post("/login", data=b"key=x", headers={"Origin": "http://evil.example"})
    assert from_elsewhere.status == 403


async def test_a_person_is_shown_where_to_sign_in_and_a_program_is_told(admin: Client) -> None:
    nobody = admin.holding(None)
    shown = await nobody.get("/jobs?q=x%20y", headers={"Accept": "text/html"})
    assert (shown.status, shown.headers["Location"]) == (303, "/login?next=%2Fjobs%3Fq%3Dx%2520y")
    assert (await nobody.get("/jobs")).status == 401
    assert (await nobody.get("/api/v1/jobs", headers={"Accept": "text/html"})).status == 401


def routes() -> set[tuple[str, str]]:
    """Everything that is served, whether the document has it or not."""
    app = Hourhand("postgresql://nobody@127.0.0.1:1/nothing")
    api: Any = make_api(app, Keyring(app, admin_key=None, loopback=False), Hub(app))._app
    return {(method, one.path) for one in _flat(api.routes) for method in one.methods}


def _flat(routes: Any) -> Any:
    for one in routes:
        if isinstance(one, Mount):
            continue
        if hasattr(one, "methods"):
            yield one
        else:
            prefix = getattr(getattr(one, "include_context", None), "prefix", "") or ""
            for inner in _flat(one.original_router.routes):
                yield type("Seen", (), {"methods": inner.methods, "path": prefix + inner.path})


async def test_a_websocket_is_not_opened(served: Served) -> None:
    for key in (b"", f"Authorization: Bearer {ADMIN}\r\n".encode()):
        answer = await raw_exchange(
            served.api.port,
            b"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close, Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://evil.example\r\n"
            + (key and b"X-Api-Key: wrong\r\n")
            + b"\r\n",
        )
        assert answer.startswith(b"HTTP/1.1 401 ")


async def test_a_key_that_is_wrong_opens_nothing(admin: Client) -> None:
    made = (await admin.post("keys", {"name": "right", "role": "viewer"})).ok(201)
    other = (await admin.post("keys", {"name": "other", "role": "admin"})).ok(201)
    secret, number = made["secret"], made["key_id"]
    assert (await admin.holding(secret).get("whoami")).ok()["name"] == "key:right"
    only = admin.holding(None)
    for headers in ({"X-API-Key": secret}, {"Authorization": f"bearer {secret}"}, {"Authorization": f"Bearer  {secret} "}):
        assert (await only.get("whoami", headers=headers)).ok()["role"] == "viewer"
    wrong = [
        secret[:-1], secret + "x", secret[:-1] + ("A" if secret[-1] != "A" else "B"), secret.upper(), f"hh_{number}_", f"hh_{number}", number,
        f"hh_{other['key_id']}_{secret.rpartition('_')[2]}", secret.removeprefix("hh_"), f"xx{secret[2:]}", "hh__", "hh_" + "a" * 16 + "_x",
        "hh_environment_", "environment", ADMIN[:-1], ADMIN + "x", "é", "' OR 1=1 --", "x" * 8_000,
    ]  # fmt: skip
    for text in wrong:
        for headers in ({"Authorization": f"Bearer {text}"}, {"X-API-Key": text}):
            answer = await only.get("jobs", headers=headers)
            assert answer.status == 401, headers
            assert "opens nothing" in answer.problem["detail"]
    for header in ("Basic YTpi", "Bearer", "Bearer ", secret, f"Token {secret}", f"Digest {secret}"):
        assert (await only.get("jobs", headers={"Authorization": header})).status == 401, header
    assert (await only.get(f"jobs?key={secret}&api_key={secret}&access_token={secret}")).status == 401
    # A key that is wrong is not made good by another way in.
    assert (await only.get("jobs", headers={"Authorization": "Bearer wrong", "X-API-Key": secret})).status == 401


async def test_an_expired_or_revoked_key_opens_nothing(admin: Client) -> None:
    expiring = await admin.make_key("expiring", "viewer", expires_seconds=1.5)
    made = (await admin.post("keys", {"name": "revoked", "role": "admin"})).ok(201)
    revoked = admin.holding(made["secret"])
    assert (await revoked.get("jobs")).status == 200
    assert (await admin.delete(f"keys/{made['key_id']}")).ok()["state"] == "revoked"
    for client in (expiring, revoked):
        await until(lambda client=client: _is_refused(client), "the key to be refused", 20)
    assert (await admin.delete(f"keys/{made['key_id']}")).status == 409


async def _is_refused(client: Client, **more: Any) -> bool:
    answer = await client.get("whoami", **more)
    assert answer.status in (200, 401)
    return answer.status == 401


async def test_no_secret_is_stored(admin: Client, served: Served, sql: asyncpg.Connection) -> None:
    made = (await admin.post("keys", {"name": "stored"})).ok(201)
    refused = await admin.post("keys", {"name": "twice"}, headers={"Idempotency-Key": "a key"})
    assert refused.status == 422, "what is repeated has to be kept"
    assert "twice" not in {one["name"] for one in (await admin.get("keys")).ok()}
    holder = admin.holding(made["secret"])
    opened = await holder.post("session")
    cookie = SimpleCookie(opened.headers["Set-Cookie"])["hourhand_session"].value
    assert (await holder.post("session", headers={"Idempotency-Key": "a session"})).status == 422
    (await holder.get("jobs", headers={"Cookie": f"hourhand_session={cookie}"})).ok()
    secret = made["secret"].split("_", 2)[2]
    stored = await _everything(sql, served.schema)
    assert "stored" in stored
    for text in (secret, made["secret"], cookie, ADMIN):
        assert text not in stored
        assert text.encode().hex() not in stored
    row = await sql.fetchrow(f"SELECT * FROM {served.schema}.api_keys WHERE id = $1", made["key_id"])
    assert row is not None
    assert row["hash"] == hashlib.sha256(secret.encode()).digest()
    assert secret not in (await admin.get("keys?revoked=true")).body.decode()
    assert secret not in (await admin.get("audit")).body.decode()
    assert secret not in served.api.process.text()


async def _everything(sql: asyncpg.Connection, schema: str) -> str:
    """All rows of all tables, as text."""
    tables = await sql.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
    texts = [await sql.fetchval(f"SELECT string_agg(t::text, E'\\n') FROM {schema}.\"{row[0]}\" AS t") for row in tables]
    return "\n".join(one or "" for one in texts)


async def test_keys_are_compared_in_constant_time(app: Hourhand, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `hmac.compare_digest` says decides, and it is asked whether there is such a key or not."""
    made = await app.keys.create("constant")
    wrong = f"hh_{made.key.key_id}_wrong"
    asked: list[bool] = []

    def compare(one: Any, other: Any) -> bool:
        asked.append(len(one) == len(other))
        return verdict

    verdict = False
    for module in (access, keyring, gate):
        assert module.hmac is hmac
    monkeypatch.setattr(hmac, "compare_digest", compare)
    ring = Keyring(app, admin_key=ADMIN, loopback=True)
    for text in (made.secret, wrong, "hh_aaaaaaaaaaaaaaaa_b", "nonsense", ""):
        asked.clear()
        assert await app.keys.authenticate(text) is None
        assert asked == [True]
    assert await ring.by_key(ADMIN) is None
    assert not gate._equal("csrf", "csrf")
    verdict = True
    assert await app.keys.authenticate(wrong) is not None
    assert await ring.by_key("anything") is not None
    assert gate._equal("csrf", "other")


# Roles


async def test_the_roles_are_these(document: Document) -> None:
    roles = {one.name: one.role for one in document.operations.values() if one.name != "healthz"}
    assert roles == {
        **dict.fromkeys(FOR_VIEWERS, "viewer"), **dict.fromkeys(FOR_OPERATORS, "operator"), **dict.fromkeys(FOR_ADMINS, "admin"),
    }  # fmt: skip


@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
async def test_a_role_may_do_what_is_its_own_and_no_more(admin: Client, document: Document, role: str) -> None:
    client = await admin.make_key(f"a-{role}", role)
    ranks = ("viewer", "operator", "admin")
    assert (await admin.put("jobs/ranked", HOURLY)).status in (200, 201)
    for operation in document.operations.values():
        if operation.name == "healthz":
            continue
        allowed = ranks.index(role) >= ranks.index(operation.role)
        if operation.name == "events":
            async with client.events():
                continue
        for headers in ({}, {"Idempotency-Key": f"{role}-{operation.name}"}):
            answer = await _use(client, operation, headers, job_id="ranked")
            if not allowed:
                assert answer.status == 403, operation.name
                assert operation.role in answer.problem["detail"]
            else:
                assert answer.status not in (401, 403, 500), (operation.name, answer.body)


async def _use(client: Client, operation: Any, headers: dict[str, str], **values: str) -> Answer:
    body = operation.body
    data = None
    if body is not None:
        kind, example = body
        headers = {**headers, "Content-Type": kind}
        data = example.encode() if isinstance(example, str) else None
    given: dict[str, Any] = {"data": data} if data is not None else {"json": body[1]} if body is not None else {}
    return await client.call(operation.method, operation.place(**values), headers=headers, **given)


# On a machine where nobody has made a key


async def test_open_to_whoever_sits_at_the_machine(open_api: ApiProcess) -> None:
    async with Client(open_api.base) as anybody:
        assert (await anybody.get("whoami")).ok()["role"] == "admin"
        (await anybody.put("jobs/mine", HOURLY)).ok(201)
        for host in (
            f"127.0.0.1:{open_api.port}",
            f"localhost:{open_api.port}",
            "localhost",
            "127.0.0.1",
            "[::1]",
            f"[::1]:{open_api.port}",
        ):
            assert (await anybody.get("jobs", headers={"Host": host})).status == 200, host
        own = f"http://127.0.0.1:{open_api.port}"
        for headers in ({"Origin": own}, {"Origin": own, "Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}):
            assert (await anybody.post("runs", {"task": "t"}, headers=headers)).status == 201, headers
        wrong = await anybody.holding("hh_aaaaaaaaaaaaaaaa_b").get("jobs")
        assert wrong.status == 401, "a key that is wrong is not nobody's"


async def test_not_open_to_a_page_that_somebody_looks_at(open_api: ApiProcess) -> None:
    """Whose name leads to this machine (the Host tells), or which sends a form or a script here (its origin tells)."""
    async with Client(open_api.base) as anybody:
        for host in ("evil.example", f"evil.example:{open_api.port}", "127.0.0.1.evil.example", "localhost.evil.example", "localhost@evil.example",
                     "10.0.0.1", "0.0.0.0", "[fe80::1]", "[::ffff:10.0.0.1]", "127.0.0.1,evil.example", "evil.example#127.0.0.1", "%6cocalhost"):  # fmt: skip
            for method, path in (("GET", "jobs"), ("POST", "runs"), ("GET", "events"), ("GET", "/metrics")):
                answer = await anybody.call(method, path, headers={"Host": host})
                assert answer.status == 403, (host, method)
                assert "localhost" in answer.problem["detail"]
        port = open_api.port
        for headers in (
            {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": ""}, {"Origin": "http://["}, {"Origin": "file://"},
            {"Origin": f"http://localhost:{port + 1}"}, {"Origin": "http://127.0.0.1"}, {"Origin": f"http://evil.example@127.0.0.1:{port}"},
            {"Origin": f"http://127.0.0.1:{port}.evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
            {"Origin": f"http://127.0.0.1:{port}", "Sec-Fetch-Site": "cross-site"},
        ):  # fmt: skip
            for method, path in (
                ("POST", "runs"),
                ("POST", "runs/batch"),
                ("PUT", "jobs/j"),
                ("PATCH", "jobs/j"),
                ("DELETE", "jobs/j"),
                ("POST", "keys"),
            ):
                answer = await anybody.call(method, path, json={"task": "t"}, headers=headers)
                assert answer.status == 403, (headers, method)
                assert "another site" in answer.problem["detail"]
        assert (await anybody.get("runs")).ok() == []
        # Sent as a form would be: without a type that a page could not send by itself.
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            answer = await anybody.post(
                "runs", data=b'{"task": "t"}', headers={"Content-Type": kind, "Origin": "http://evil.example"}
            )
            assert answer.status == 403
            assert (await anybody.post("runs", data=b'{"task": "t"}', headers={"Content-Type": kind})).status == 415


async def test_not_open_to_what_a_proxy_passes_on(open_api: ApiProcess) -> None:
    async with Client(open_api.base) as anybody:
        for header in ("X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Forwarded", "X-Real-IP", "Via"):
            answer = await anybody.get("jobs", headers={header: "127.0.0.1"})
            assert answer.status == 401, header
            assert "on this machine itself" in answer.problem["detail"]


async def test_closed_as_soon_as_there_is_a_key_and_for_ever(open_api: ApiProcess, app: Hourhand) -> None:
    made = await app.keys.create("first", role="admin")
    async with Client(open_api.base) as anybody:
        await until(lambda: _is_refused(anybody), "the API to close", 20)
        client = anybody.holding(made.secret)
        assert (await client.get("jobs")).status == 200
        (await client.delete(f"keys/{made.key.key_id}")).ok()
        await until(lambda: _is_refused(client), "the key to be refused", 20)
        assert (await anybody.get("jobs")).status == 401, "without its last key it is not open again"


# Beyond this machine


async def _refusals(url: str, schema: str, directory: Path, *given: tuple[str, str | None]) -> list[str]:
    """What it says, on each of these addresses with each of these keys of the environment, before it ends."""
    started = [ApiProcess(url, schema, directory, "--host", host, admin=key) for host, key in given]
    codes = [await one.process.ended(60) for one in started]
    said = [one.process.text() for one in started]
    assert codes == [2] * len(given), said
    assert not [one for one in said if "Traceback" in one]
    return said


async def test_it_does_not_start_where_strangers_could_reach_it_without_a_key(
    url: str, schema: str, tmp_path: Path, app: Hourhand
) -> None:
    await app.keys.revoke((await app.keys.create("gone")).key.key_id)
    for said in await _refusals(url, schema, tmp_path, ("0.0.0.0", None), ("::", None)):
        assert "open to everybody" in said
        assert "hourhand keys create" in said


async def test_it_does_not_start_with_a_key_that_others_guess(url: str, schema: str, tmp_path: Path) -> None:
    guesses = {
        "changeme": "placeholder",
        "password" * 4: "placeholder",
        "short": "too easy",
        "ab" * 40: "too easy",
        "x" * 31: "too easy",
    }
    hosts = itertools.cycle(["0.0.0.0", "127.0.0.1"])
    told = await _refusals(url, schema, tmp_path, *((next(hosts), guess) for guess in guesses), ("0.0.0.0", "changeme"))
    for said, (guess, word) in zip(told, guesses.items(), strict=False):
        assert word in said
        assert "openssl rand" in said
        assert guess not in said


async def test_it_starts_beyond_this_machine_with_a_good_key(url: str, schema: str, tmp_path: Path, app: Hourhand) -> None:
    api = await ApiProcess(url, schema, tmp_path, "--host", "0.0.0.0").started()
    async with Client(api.base, ADMIN) as client:
        assert (await client.get("jobs")).status == 200
        assert (await client.holding(None).get("jobs")).status == 401
    api.stop()
    made = await app.keys.create("kept")
    api = await ApiProcess(url, schema, tmp_path, "--host", "0.0.0.0", admin=None).started()
    async with Client(api.base, made.secret) as client:
        assert (await client.get("jobs")).status == 200
        assert (await client.holding(ADMIN).get("jobs")).status == 401, "a key of the environment goes with it"
        assert (await client.holding(None).get("jobs")).status == 401
    api.stop()


async def test_it_answers_only_to_its_names(url: str, schema: str, tmp_path: Path) -> None:
    api = await ApiProcess(url, schema, tmp_path, "--allowed-host", "Jobs.example", "--allowed-host", "127.0.0.1").started()
    async with Client(api.base, ADMIN) as client:
        for host, status in (
            ("jobs.example", 200),
            ("JOBS.example:8080", 200),
            ("evil.example", 403),
            ("jobs.example.evil", 403),
            ("", 403),
        ):
            assert (await client.get("jobs", headers={"Host": host})).status == status, host
        assert (await client.get("/healthz", headers={"Host": "10.1.2.3"})).status == 200, "a load balancer knows no name"
    api.stop()


# Sessions


async def test_a_session_of_a_browser(admin: Client) -> None:
    holder = await admin.make_key("browser", "operator")
    answer = await holder.post("session")
    opened = answer.ok(201)
    morsel = SimpleCookie(answer.headers["Set-Cookie"])["hourhand_session"]
    assert morsel["httponly"]
    assert morsel["samesite"].lower() == "strict"
    assert morsel["path"] == "/"
    assert not morsel["domain"]
    assert 0 < int(morsel["max-age"]) <= 12 * 3600
    browser, cookie = admin.holding(None), {"Cookie": f"a=b; hourhand_session={morsel.value}; c=d"}
    assert (await browser.get("whoami", headers=cookie)).ok()["name"] == "key:browser"
    token = {"X-CSRF-Token": opened["csrf_token"]}
    for headers in ({}, {"X-CSRF-Token": ""}, {"X-CSRF-Token": "wrong"}, {"X-CSRF-Token": opened["csrf_token"][:-1]}):
        for method, path in (
            ("POST", "runs"),
            ("POST", "runs/batch"),
            ("DELETE", "session"),
            ("PATCH", "jobs/x"),
            ("PUT", "jobs/x"),
        ):
            refused = await browser.call(method, path, json={"task": "t"}, headers={**cookie, **headers})
            assert refused.status == 403, (method, headers)
            assert "X-CSRF-Token" in refused.problem["detail"]
    assert (await browser.post("runs", {"task": "t"}, headers={**cookie, **token})).status == 201
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        assert (await browser.post("runs", {"task": "t"}, headers={**cookie, **token, **headers})).status == 403
    assert (await browser.put("jobs/x", HOURLY, headers={**cookie, **token})).status == 403, "its key's role, and no more"
    assert (await browser.post("session", headers={**cookie, **token})).status == 409, "a session opens no other"
    for text in ("", "x", "hourhand_session", 'hourhand_session="', "hourhand_session=x", f"hourhand_session={morsel.value}x"):
        assert (await browser.get("jobs", headers={"Cookie": text})).status == 401, text
    gone = await browser.delete("session", headers={**cookie, **token})
    assert gone.status == 204
    assert 'hourhand_session=""' in gone.headers["Set-Cookie"]
    assert (await browser.get("whoami", headers=cookie)).status == 401


async def test_a_session_ends_with_its_key_and_with_its_time(admin: Client, served: Served, sql: asyncpg.Connection) -> None:
    made = (await admin.post("keys", {"name": "with its key"})).ok(201)
    first, second, third = [await _cookie(admin.holding(key)) for key in (made["secret"], ADMIN, ADMIN)]
    browser = admin.holding(None)
    for cookie in (first, second, third):
        assert (await browser.get("whoami", headers=cookie)).status == 200
    (await admin.delete(f"keys/{made['key_id']}")).ok()
    await until(lambda: _is_refused(browser, headers=first), "the session of a revoked key to end", 20)
    digest = hashlib.sha256(second["Cookie"].partition("=")[2].encode()).digest()
    done = await sql.execute(
        f"UPDATE {served.schema}.sessions SET expires_at = now() - interval '1 second' WHERE hash = $1", digest
    )
    assert done == "UPDATE 1"
    await until(lambda: _is_refused(browser, headers=second), "the session to end", 20)
    assert (await browser.get("whoami", headers=third)).status == 200


async def test_a_session_lasts_no_longer_than_its_key(admin: Client) -> None:
    made = (await admin.post("keys", {"name": "short", "expires_seconds": 600})).ok(201)
    assert (await admin.holding(made["secret"]).post("session")).ok(201)["expires_at"] == made["expires_at"]


async def test_a_session_of_the_environments_key_ends_when_that_is_another(url: str, schema: str, tmp_path: Path) -> None:
    api = await ApiProcess(url, schema, tmp_path).started()
    async with Client(api.base, ADMIN) as client:
        cookie = await _cookie(client)
    api.stop()
    for key in (ADMIN[::-1], None):
        api = await ApiProcess(url, schema, tmp_path, admin=key).started()
        async with Client(api.base) as browser:
            assert (await browser.get("whoami", headers=cookie)).status == 401
        api.stop()


async def _cookie(client: Client) -> dict[str, str]:
    answer = await client.post("session")
    return {"Cookie": f"hourhand_session={SimpleCookie(answer.headers['Set-Cookie'])['hourhand_session'].value}"}


async def test_streams_end_with_their_key(admin: Client) -> None:
    """Though much happens all the time, so that there is always something to tell."""
    made = (await admin.post("keys", {"name": "listening"})).ok(201)
    (await admin.put("jobs/noisy", HOURLY)).ok(201)
    async with admin.holding(made["secret"]).events() as heard:
        (await admin.delete(f"keys/{made['key_id']}")).ok()
        await until(lambda: _is_refused(admin.holding(made["secret"])), "the key to be refused", 20)
        (await admin.post("jobs/noisy/trigger")).ok()
        while (event := await heard.next()) is not None:
            assert event["action"] != "job.trigger"


# What answers do not say


async def test_answers_say_nothing_about_the_server(admin: Client, served: Served) -> None:
    evil = {"Origin": "http://evil.example"}
    preflight = {**evil, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    for answer in (
        await admin.get("jobs", headers=evil), await admin.get("nothing"), await admin.holding(None).get("jobs", headers=evil),
        await admin.call("OPTIONS", "jobs", headers=preflight), await admin.holding(None).call("OPTIONS", "jobs", headers=preflight),
        await admin.get("/healthz", headers=evil), await admin.post("jobs", data=b"{", headers=evil), await admin.get("/metrics"),
    ):  # fmt: skip
        assert "Server" not in answer.headers
        assert not [name for name in answer.headers if name.lower().startswith("access-control-")]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert b"Traceback" not in answer.body
        assert b".py" not in answer.body
    raw = await raw_exchange(served.api.port, b"NONSENSE\r\n\r\n")
    assert b"uvicorn" not in raw.lower()
