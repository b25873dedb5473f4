"""Runs that call a URL: a real worker, real servers on real sockets."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import asyncpg
import psycopg
import pytest
import trustme
from aiohttp import web
from standardwebhooks import Webhook

from hourhand import Hourhand, Retry
from hourhand.core.chain import Step
from hourhand.core.errors import InvalidOption, InvalidPayload
from hourhand.core.redaction import REDACTED
from hourhand.core.token import execution_token
from hourhand.surfaces.views import RunView
from hourhand.targets import addresses, http
from tests.db.test_worker import working
from tests.support.endpoints import answering, silent
from tests.support.fleet import until

pytestmark = pytest.mark.once

SECRETS = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw whsec_c2Vjb25kIHNlY3JldCBvZiB0aGUgdGVzdA=="
NEVER = "0 0 1 1 *"
Names = dict[str, list[list[str]]]


def made(url: str, schema: str, **settings: Any) -> Hourhand:
    app = Hourhand(url, schema=schema, lease=3.0, grace=0.5, poll=1.0, **settings)
    quick = Retry(max_attempts=2, base=0, cap=0)
    app.registry.targets["http"] = replace(app.registry.targets["http"], retry=quick)
    return app


@pytest.fixture
async def app(url: str, schema: str) -> AsyncIterator[Hourhand]:
    """May call this machine."""
    async with made(url, schema, http_allow="127.0.0.1", webhook_secret=SECRETS) as one:
        yield one


@pytest.fixture
async def strict(url: str, schema: str) -> AsyncIterator[Hourhand]:
    """May call public addresses only."""
    async with made(url, schema) as one:
        yield one


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """What names mean, one answer after another; the last one stays. Other names do not exist."""
    known: Names = {}

    async def lookup(host: str) -> list[addresses.Address]:
        if host not in known:
            raise OSError("no such name")
        answers = known[host]
        return [ipaddress.ip_address(one) for one in (answers.pop(0) if len(answers) > 1 else answers[0])]

    monkeypatch.setattr(addresses, "lookup", lookup)
    return known


async def called(app: Hourhand, target: str, **payload: Any) -> RunView:
    """The end of a run that calls this URL."""
    async with working(app):
        return await (await app.enqueue("http", {"url": target, **payload})).wait(30)


def status(number: int, text: str = "", **headers: str) -> Callable[[web.Request], Any]:
    async def respond(_: web.Request) -> web.Response:
        return web.Response(status=number, text=text, headers={name.replace("_", "-"): one for name, one in headers.items()})

    return respond


async def test_a_call_and_what_is_kept_of_its_answer(app: Hourhand) -> None:
    async with answering(status(201, "made", X_Request_Id="r1", Set_Cookie="a=b")) as endpoint:
        run = await called(app, endpoint.url("/orders?x=%2F"), method="PUT", json={"n": 1}, headers={"Authorization": "Bearer t"})
    assert run.state == "succeeded"
    assert run.result["milliseconds"] >= 0
    kept = {"content-type": "text/plain; charset=utf-8", "content-length": "4", "x-request-id": "r1"}
    assert {**run.result, "milliseconds": 0} == {
        "status": 201, "headers": kept, "excerpt": "made", "truncated": False, "milliseconds": 0,
    }  # fmt: skip
    (request,) = endpoint.requests
    assert (request.method, request.path, request.body) == ("PUT", "/orders?x=%2F", b'{"n":1}')
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["Authorization"] == "Bearer t"
    assert request.headers["Host"] == f"127.0.0.1:{endpoint.port}"
    assert request.headers["User-Agent"].startswith("hourhand/")


async def test_without_a_body_it_tells_which_run_it_is(app: Hourhand) -> None:
    async with answering() as endpoint:
        await app.jobs.add("ping", task="http", schedule=NEVER, payload={"url": endpoint.url()})
        async with working(app):
            triggered = await app.jobs.trigger("ping")
            assert triggered.run_id is not None

            async def ended() -> bool:
                return (await app.runs.show(triggered.run_id)).finished

            await until(ended, "the end of the run")
        run = await app.runs.show(triggered.run_id)
    body = Webhook(SECRETS.split()[0]).verify(endpoint.requests[0].body, endpoint.requests[0].headers)
    at = run.scheduled_at.isoformat().replace("+00:00", "Z")
    assert body == {"run_id": run.run_id, "job_id": run.job_id, "task": "http", "scheduled_at": at, "attempt": 1}
    assert run.job_id is not None


async def test_calls_are_signed_with_the_token_of_the_run_and_every_secret(app: Hourhand) -> None:
    async with answering(status(500)) as endpoint:
        run = await called(app, endpoint.url(), body="ünsigned")
    assert len(endpoint.requests) == 2
    for request in endpoint.requests:
        token = execution_token(run.run_id, run.scheduled_at)
        assert request.headers["webhook-id"] == request.headers["Idempotency-Key"] == token
        for secret in SECRETS.split():
            Webhook(secret).verify(request.body, request.headers, json_parse=False)


async def test_calls_without_a_signature(app: Hourhand) -> None:
    async with answering() as endpoint:
        await called(app, endpoint.url(), method="GET", sign=False)
        await called(app, endpoint.url(), method="GET")
    plain, signed = endpoint.requests
    assert not [name for name in plain.headers if name.lower().startswith("webhook-")]
    assert plain.body == b""
    Webhook(SECRETS.split()[0]).verify(b"", signed.headers, json_parse=False)


async def test_a_secret_that_is_none_is_not_shown(url: str, schema: str) -> None:
    async with answering() as endpoint, made(url, schema, http_allow="127.0.0.1", webhook_secret="whsec_x") as app:
        run = await called(app, endpoint.url())
    assert "HOURHAND_WEBHOOK_SECRET" in run.errors[0]["message"]
    assert "whsec_x" not in str(run.errors)


@pytest.mark.parametrize("number", [408, 425, 429, 500, 502, 503])
async def test_what_may_pass_is_tried_again(app: Hourhand, number: int) -> None:
    async with answering(status(number, "busy")) as endpoint:
        run = await called(app, endpoint.url())
    assert (run.state, run.attempt, len(endpoint.requests)) == ("dead", 2, 2)
    assert f"answered {number}" in run.errors[0]["message"]
    assert "busy" in run.errors[0]["message"]


@pytest.mark.parametrize("number", [400, 401, 404, 410, 422])
async def test_what_will_not_change_is_not(app: Hourhand, number: int) -> None:
    async with answering(status(number, "bad order")) as endpoint:
        run = await called(app, endpoint.url())
    assert (run.state, run.attempt, len(endpoint.requests)) == ("dead", 1, 1)
    assert run.errors[0]["type"] == "PermanentFailure"
    assert "bad order" in run.errors[0]["message"]


async def test_the_receiver_says_when_to_come_back(app: Hourhand) -> None:
    async with answering(status(429, Retry_After="3600")) as endpoint, working(app):
        handle = await app.enqueue("http", {"url": endpoint.url()})

        async def waits() -> bool:
            return bool((await handle.show()).errors)

        await until(waits, "the first attempt")
        run = await handle.show()
    assert run.state == "delayed"
    assert run.errors[0]["type"] == "RetryAfter"
    assert run.due_at is not None
    assert (run.due_at - run.scheduled_at).total_seconds() >= 3600


async def test_redirects_are_not_followed(app: Hourhand) -> None:
    async with answering() as other:

        async def respond(_: web.Request) -> web.Response:
            return web.Response(status=302, headers={"Location": other.url("/there")})

        async with answering(respond) as endpoint:
            run = await called(app, endpoint.url(), method="GET")
    assert (run.state, run.attempt, other.requests) == ("dead", 1, [])
    assert f"a redirect to {other.url('/there')}" in run.errors[0]["message"]


async def test_an_answer_that_does_not_come(app: Hourhand) -> None:
    async with silent() as endpoint:
        run = await called(app, endpoint.url(), timeout=0.05)
        await until(lambda: _is(endpoint.open == 0), "the end of the connections")
    assert (run.state, run.attempt, endpoint.taken) == ("dead", 2, 2)
    assert "no complete answer within 0.05 s" in run.errors[0]["message"]


async def test_an_answer_that_comes_drop_by_drop(app: Hourhand) -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b".")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with silent(drip) as endpoint:
        run = await called(app, endpoint.url(), timeout=0.2)
    assert run.state == "dead"
    assert "no complete answer" in run.errors[0]["message"]


async def test_nobody_listens(app: Hourhand) -> None:
    async with silent() as endpoint:
        target = endpoint.url()
    run = await called(app, target)
    assert (run.state, run.attempt) == ("dead", 2)
    assert run.errors[0]["type"] == "CallFailed"


async def test_an_answer_that_is_not_http(app: Hourhand) -> None:
    async def speak(writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")

    async with silent(speak) as endpoint:
        run = await called(app, f"{endpoint.url()}?token=hidden")
    assert run.errors[0]["type"] == "CallFailed"
    assert "hidden" not in str(run.errors)


async def test_bytes_that_are_no_text_are_kept_as_far_as_they_are(app: Hourhand) -> None:
    async def speak(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nX-Request-Id: a\xff\r\nContent-Length: 3\r\n\r\n\xffb\0")

    async with silent(speak) as endpoint:
        run = await called(app, endpoint.url())
    assert (run.result["excerpt"], run.result["headers"]["x-request-id"]) == ("\ufffdb\ufffd", "a?")


async def test_of_a_giant_only_the_beginning_is_read(app: Hourhand) -> None:
    async def pour(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"\0" + b"x" * 65_535)
            await writer.drain()

    async with silent(pour) as endpoint:
        run = await called(app, endpoint.url(), excerpt=10)
        await asyncio.wait_for(endpoint.left.wait(), 30)
    assert run.state == "succeeded"
    assert (run.result["excerpt"], run.result["truncated"]) == ("\ufffd" + "x" * 9, True)


async def test_a_bomb_is_not_unpacked(app: Hourhand) -> None:
    packed = gzip.compress(b"0" * 50_000_000)

    async def respond(_: web.Request) -> web.Response:
        return web.Response(body=packed, headers={"Content-Encoding": "gzip"})

    async with answering(respond) as endpoint:
        run = await called(app, endpoint.url())
    assert (run.state, run.result["excerpt"], run.result["truncated"]) == ("succeeded", "0" * 2048, True)
    assert endpoint.requests[0].headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.1/",
        "http://[::1]/",
        "http://169.254.169.254/",
        "http://2130706433/",
        "http://localhost/",
        "ftp://a.example/",
    ],
)
async def test_what_must_not_be_called_is_refused_when_it_is_asked_for(strict: Hourhand, target: str) -> None:
    with pytest.raises(InvalidPayload):
        await strict.enqueue("http", {"url": target})
    with pytest.raises(InvalidPayload):
        await strict.jobs.add("a", task="http", schedule=NEVER, payload={"url": target})
    with pytest.raises(InvalidOption, match="job number 1"):
        await strict.jobs.add_many([{"name": "a", "task": "http", "schedule": NEVER, "payload": {"url": target}}])
    step = Step("http", {"url": target}, None)
    with pytest.raises(InvalidPayload):
        await strict.enqueue("first", {}, then=step)
    with pytest.raises(InvalidPayload):
        await strict.jobs.add("a", task="first", schedule=NEVER, then=step)
    assert await strict.jobs.list() == []


async def test_names_are_looked_up_when_a_job_is_made(strict: Hourhand, names: Names, url: str) -> None:
    names |= {"inside.example": [["10.0.0.1"]], "outside.example": [["8.8.8.8"]]}
    bad, good = {"url": "https://inside.example/"}, {"url": "https://outside.example/"}
    unknown = {"url": "https://unknown.example/"}
    common: dict[str, Any] = {"task": "http", "schedule": NEVER}
    with pytest.raises(InvalidPayload, match=r"inside\.example leads to a private address"):
        await strict.jobs.add("a", payload=bad, **common)
    await strict.jobs.add("a", payload=good, **common)
    await strict.jobs.add("b", payload=unknown, **common)
    with pytest.raises(InvalidPayload, match="private"):
        await strict.jobs.update("a", payload=bad)
    with pytest.raises(InvalidOption, match=r"job number 2: .*private address.*Nothing was added"):
        await strict.jobs.add_many([{"name": f"c{n}", "payload": one, **common} for n, one in enumerate([good, bad, bad])])

    def in_a_transaction() -> None:
        with psycopg.connect(url) as connection:
            with pytest.raises(InvalidPayload, match="private"):
                strict.jobs.add_sync("d", payload=bad, connection=connection, **common)
            strict.jobs.add_sync("e", payload=good, connection=connection, **common)
            with pytest.raises(InvalidPayload, match="private"):
                strict.jobs.update_sync("e", payload=bad, connection=connection)

    await asyncio.to_thread(in_a_transaction)
    await asyncio.to_thread(strict.close)
    assert [job.name for job in await strict.jobs.list()] == ["a", "b", "e"]


async def test_a_job_that_is_given_back_with_a_hidden_field_is_vetted_with_what_it_hides(strict: Hourhand, names: Names) -> None:
    names |= {"outside.example": [["8.8.8.8"]], "inside.example": [["10.0.0.1"]]}
    common: dict[str, Any] = {"task": "http", "schedule": NEVER, "replace": True}
    given = {"url": "https://outside.example/", "headers": {"Authorization": "Bearer one"}}
    await strict.jobs.add("a", payload=given, **common)
    hidden = {**given, "headers": {"Authorization": REDACTED}}
    await strict.jobs.add("a", payload={**hidden, "json": 1}, **common)
    assert (await strict.jobs.show("a")).payload == {**given, "json": 1}
    with pytest.raises(InvalidPayload, match="elsewhere"):
        await strict.jobs.add("a", payload={**hidden, "url": "https://inside.example/"}, **common)


async def test_many_jobs_ask_for_each_host_once(strict: Hourhand) -> None:
    vetted = []

    async def vet(payload: dict[str, Any]) -> None:
        vetted.append(payload["url"])

    strict.registry.targets["http"] = replace(strict.registry.targets["http"], vet=vet)
    payloads = [{"url": f"https://h{n % 3}.example/{n}", "json": n} for n in range(30)]
    jobs = [{"name": f"j{n}", "task": "http", "schedule": NEVER, "payload": one} for n, one in enumerate(payloads)]
    assert (await strict.jobs.add_many(jobs)).added == 30
    assert sorted(vetted) == [f"https://h{n}.example/{n}" for n in range(3)]


async def test_what_must_not_be_called_is_refused_by_the_worker(
    strict: Hourhand, names: Names, sql: asyncpg.Connection, schema: str
) -> None:
    """Runs also come by SQL, where nobody looks at their payload."""
    names["inside.example"] = [["127.0.0.1"]]
    async with answering() as endpoint, working(strict):
        for target in (endpoint.url(), endpoint.url(host="inside.example"), endpoint.url(host="0x7f.1")):
            payload = f'{{"url": "{target}", "headers": {{}}}}'
            number = await sql.fetchval(f"SELECT run_id FROM {schema}.enqueue('http', $1)", payload)

            async def ended(number: int = number) -> bool:
                return (await strict.runs.show(number)).finished

            await until(ended, f"the end of the call of {target}")
            run = await strict.runs.show(number)
            assert (run.state, run.attempt) == ("dead", 1)
    assert endpoint.requests == []


async def test_a_name_that_moves_inside_after_it_was_vetted(strict: Hourhand, names: Names) -> None:
    names["moving.example"] = [["8.8.8.8"], ["127.0.0.1"]]
    async with answering() as endpoint, working(strict):
        await strict.jobs.add("ping", task="http", schedule=NEVER, payload={"url": endpoint.url(host="moving.example")})
        triggered = await strict.jobs.trigger("ping")
        assert triggered.run_id is not None

        async def ended() -> bool:
            return (await strict.runs.show(triggered.run_id)).finished

        await until(ended, "the end of the run")
        run = await strict.runs.show(triggered.run_id)
    assert (run.state, run.attempt, endpoint.requests) == ("dead", 1, [])
    assert "moving.example leads to a loopback address" in run.errors[0]["message"]


async def test_what_was_checked_is_what_is_connected_to(app: Hourhand, names: Names) -> None:
    """The second answer leads to another server, which the allow list does not name."""
    async with answering() as first, answering(host="127.0.0.2", port=first.port) as second:
        names["moving.example"] = [["127.0.0.1"], ["127.0.0.2"]]
        run = await called(app, first.url(host="moving.example"))
    assert (run.state, len(first.requests), second.requests) == ("succeeded", 1, [])
    assert first.requests[0].headers["Host"] == f"moving.example:{first.port}"


async def test_headers_cannot_be_smuggled_in(app: Hourhand) -> None:
    async with answering() as endpoint, working(app):
        with pytest.raises(InvalidPayload, match="line break"):
            await app.enqueue("http", {"url": endpoint.url(), "headers": {"X": "a\r\nInjected: 1"}})
        await app.jobs.add(
            "ping", task="http", schedule=NEVER, payload={"url": endpoint.url(), "body": "a\r\nInjected: ü"},
            idempotency_key_template="{{payload.body}}",
        )  # fmt: skip
        await app.jobs.trigger("ping")
        await until(lambda: _is(endpoint.requests), "the call")
    assert "Injected" not in endpoint.requests[0].headers
    assert endpoint.requests[0].headers["Idempotency-Key"] == "a%0D%0AInjected: %C3%BC"


async def test_neither_proxies_nor_cookies(app: Hourhand, monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(status(200, Set_Cookie="session=1")) as endpoint, silent() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url())
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        async with working(app):
            for _ in range(2):
                await (await app.enqueue("http", {"url": endpoint.url()})).result(30)
    assert proxy.taken == 0
    assert "Cookie" not in endpoint.requests[1].headers


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def serving(authority: trustme.CA, *hosts: str, clients: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*hosts).configure_cert(context)
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(context)
    return context


async def test_tls_with_an_authority_of_ones_own(app: Hourhand, names: Names, authority: trustme.CA) -> None:
    names |= {"secure.example": [["127.0.0.1"]], "other.example": [["127.0.0.1"]]}
    ca = authority.cert_pem.bytes().decode()
    context, asked = serving(authority, "secure.example"), []
    context.sni_callback = lambda _, name, __: asked.append(name)
    async with answering(tls=context) as endpoint:
        secure, other = (endpoint.url(host=host, scheme="https") for host in ("secure.example", "other.example"))
        assert (await called(app, secure, tls={"ca": ca})).state == "succeeded"
        stranger = await called(app, secure)
        assert stranger.state == "dead"
        assert "certificate" in stranger.errors[0]["message"].lower()
        assert (await called(app, other, tls={"ca": ca})).state == "dead"
        assert (await called(app, other, tls={"ca": ca, "server_name": "secure.example"})).state == "succeeded"
        assert (await called(app, secure, tls={"verify": False})).state == "succeeded"
    assert asked[0] == "secure.example"
    assert [request.headers["Host"] for request in endpoint.requests[:2]] == [
        f"{host}:{endpoint.port}" for host in ("secure.example", "other.example")
    ]


async def test_tls_with_a_certificate_for_the_caller(app: Hourhand, names: Names, authority: trustme.CA) -> None:
    names["secure.example"] = [["127.0.0.1"]]
    mine = authority.issue_cert("caller.example")
    key, chain = mine.private_key_pem.bytes().decode(), "".join(one.bytes().decode() for one in mine.cert_chain_pems)
    ca = authority.cert_pem.bytes().decode()
    async with answering(tls=serving(authority, "secure.example", clients=True)) as endpoint:
        target = endpoint.url(host="secure.example", scheme="https")
        assert (await called(app, target, tls={"ca": ca})).state == "dead"
        run = await called(app, target, tls={"ca": ca, "client_cert": chain, "client_key": key})
        assert run.state == "succeeded"
    with pytest.raises(InvalidPayload, match="certificate or key"):
        await app.jobs.add(
            "a", task="http", schedule=NEVER,
            payload={"url": target, "tls": {"client_cert": chain, "client_key": "-----BEGIN PRIVATE KEY-----"}},
        )  # fmt: skip


async def test_three_hundred_that_hang_keep_nobody_waiting(app: Hourhand, names: Names) -> None:
    names |= {f"h{n}.example": [["127.0.0.1"]] for n in range(300)}
    async with silent() as slow, answering() as fast, working(app, concurrency=5):
        for n in range(300):
            await app.enqueue("http", {"url": slow.url(f"h{n}.example")})
        await until(lambda: _is(slow.open == 300), "300 open connections", 30)
        handles = [await app.enqueue("http", {"url": fast.url()}) for _ in range(20)]
        for handle in handles:
            assert (await handle.result(30))["status"] == 200
        assert slow.open == 300


async def test_one_slow_host_does_not_use_up_the_sockets(app: Hourhand) -> None:
    async with silent() as slow, answering() as fast, working(app, concurrency=5):
        for _ in range(150):
            await app.enqueue("http", {"url": slow.url()})
        await until(lambda: _is(slow.open == http.PER_HOST), "as many connections as one host may have", 30)
        assert (await (await app.enqueue("http", {"url": fast.url()})).result(30))["status"] == 200
        assert slow.taken == http.PER_HOST


async def test_waiting_for_its_turn_at_a_host_is_no_time_of_the_call(app: Hourhand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PER_HOST", 1)
    asked: list[str] = []
    over = asyncio.Event()

    async def respond(request: web.Request) -> web.Response:
        asked.append(request.path)
        if request.path == "/hangs":
            await over.wait()
        return web.Response(text="fine")

    async with answering(respond) as endpoint, working(app):
        first = await app.enqueue("http", {"url": endpoint.url("/hangs"), "timeout": 1.0}, max_attempts=1)
        await until(lambda: _is(asked == ["/hangs"]), "the first call")
        # It begins to wait before the first one gives up, and has no more time than that for itself.
        second = await app.enqueue("http", {"url": endpoint.url("/next"), "timeout": 0.9}, max_attempts=1)
        assert (await first.wait(30)).state == "dead"
        assert (await second.wait(30)).state == "succeeded"
        over.set()


async def test_cancelling_the_run_closes_its_connection(app: Hourhand) -> None:
    async with silent() as endpoint, working(app):
        handle = await app.enqueue("http", {"url": endpoint.url()})
        await until(lambda: _is(endpoint.open), "the call")
        await app.runs.cancel(handle.id)
        await asyncio.wait_for(endpoint.left.wait(), 30)
        assert (await handle.wait(30)).state == "cancelled"


async def test_connections_are_kept_for_the_next_call_and_closed_at_the_end(app: Hourhand) -> None:
    peers = set()

    async def respond(request: web.Request) -> web.Response:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return web.Response(text="fine")

    async with answering(respond) as endpoint:
        async with working(app):
            for _ in range(3):
                await (await app.enqueue("http", {"url": endpoint.url()})).result(30)
        assert len(peers) == 1
        assert asyncio.get_running_loop() not in http._sessions


async def test_a_worker_without_the_packages_says_what_to_install(app: Hourhand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    run = await called(app, "http://127.0.0.1/")
    assert run.errors[0]["type"] == "ConfigurationError"
    assert "pip install 'hourhand[http]'" in run.errors[0]["message"]


async def _is(value: object) -> object:
    return value
