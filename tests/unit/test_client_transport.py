"""Requests that are lost, refused or answered by somebody else: what is sent again, how, and what the caller is told."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from aiohttp import web

from hourhand.client import (
    AsyncClient,
    ConfigurationError,
    DatabaseUnavailable,
    Forbidden,
    HourhandError,
    InvalidOption,
    InvalidPayload,
    InvalidSchedule,
    JobConflict,
    NotPossible,
    PreconditionFailed,
    Unauthorized,
    UnknownJob,
    UnknownKey,
    UnknownQueue,
    UnknownRun,
)
from hourhand.core import errors
from hourhand.surfaces.client.problems import error_of
from hourhand.surfaces.rest.problems import of_error
from tests.support.endpoints import Endpoint, answering

MADE = {"run_id": "r_1", "duplicate": False}


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was waited, had anybody waited."""
    told: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        if seconds:
            told.append(seconds)
        await sleep(0)

    monkeypatch.setattr("hourhand.surfaces.client.transport.asyncio.sleep", note)
    return told


@asynccontextmanager
async def server(*answers: web.Response | None, **options: object) -> AsyncIterator[tuple[Endpoint, AsyncClient]]:
    """Gives these answers, one after the other, the last one for ever; None is a connection that ends without one."""
    left = list(answers)

    async def respond(request: web.Request) -> web.StreamResponse:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if answer is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.Response(status=answer.status, body=answer.body, headers=answer.headers)

    async with answering(respond) as endpoint, AsyncClient(endpoint.url(""), "hh_k_s", **options) as client:  # type: ignore[arg-type]
        yield endpoint, client


def keys(endpoint: Endpoint) -> list[str | None]:
    return [one.headers.get("Idempotency-Key") for one in endpoint.requests]


def away(**headers: str) -> web.Response:
    problem = {"type": "urn:hourhand:database-unavailable", "status": 503, "title": "", "detail": "the database is away"}
    return web.Response(status=503, text=json.dumps(problem), content_type="application/problem+json", headers=headers)


async def test_a_change_is_repeated_under_its_own_key(pauses: list[float]) -> None:
    lost = None
    async with server(lost, away(), web.Response(status=502), web.json_response(MADE, status=201)) as (endpoint, client):
        handle = await client.enqueue("mail", {"to": "you"})
        await client.enqueue("mail", {"to": "you"})
    assert handle.id == "r_1"
    *first, second = keys(endpoint)
    assert len(first) == 4
    assert len(set(first)) == 1
    assert first[0]
    assert second not in first
    assert len({one.body for one in endpoint.requests[:4]}) == 1
    assert len(pauses) == 3


async def test_every_way_to_change_something_has_a_key(pauses: list[float]) -> None:
    async with server(None, web.json_response({})) as (endpoint, client):
        await client.jobs.delete("weekly", version=3)
    assert [one.method for one in endpoint.requests] == ["DELETE", "DELETE"]
    assert [one.headers["If-Match"] for one in endpoint.requests] == ['"3"', '"3"']
    assert keys(endpoint)[0] == keys(endpoint)[1] is not None


async def test_looking_is_repeated_and_has_no_key(pauses: list[float]) -> None:
    async with server(None, web.Response(status=504), web.json_response([])) as (endpoint, client):
        assert await client.queues.list() == []
    assert len(endpoint.requests) >= 3
    assert set(keys(endpoint)) == {None}


async def test_the_server_says_how_long_to_wait(pauses: list[float]) -> None:
    answers = away(**{"Retry-After": "7"}), away(**{"Retry-After": "86400"}), web.json_response([])
    async with server(*answers) as (_, client):
        await client.queues.list()
    assert pauses == [7.0, 30.0]


async def test_in_the_end_it_gives_up_and_says_who_was_asked(pauses: list[float]) -> None:
    async with server(away(), retries=2) as (endpoint, client):
        with pytest.raises(DatabaseUnavailable, match="the database is away") as caught:
            await client.jobs.pause("weekly")
        assert client.url in str(caught.value)
    assert len(endpoint.requests) == 3


async def test_a_key_is_made_once_because_its_secret_cannot_be_told_again(pauses: list[float]) -> None:
    for trouble in (None, away()):
        async with server(trouble) as (endpoint, client):
            with pytest.raises(DatabaseUnavailable):
                await client.keys.create("me")
        assert keys(endpoint) == [None]


async def test_a_fault_of_the_server_is_not_repeated(pauses: list[float]) -> None:
    async with server(web.Response(status=500, text="Internal Server Error")) as (endpoint, client):
        with pytest.raises(HourhandError, match="its log says why"):
            await client.enqueue("mail")
    assert len(endpoint.requests) == 1


async def test_a_redirect_is_not_followed(pauses: list[float]) -> None:
    async with server(web.json_response({})) as (elsewhere, _):
        moved = web.Response(status=307, headers={"Location": elsewhere.url("/api/v1/whoami")})
        async with server(moved) as (_, client):
            with pytest.raises(ConfigurationError, match="answers 307"):
                await client.whoami()
        assert not elsewhere.requests


async def test_somebody_else_answers(pauses: list[float]) -> None:
    async with server(web.Response(status=404, text="<h1>no such page</h1>", content_type="text/html")) as (_, client):
        with pytest.raises(ConfigurationError, match="is the URL right"):
            await client.jobs.list()
    async with server(web.Response(text="<h1>hello</h1>", content_type="text/html")) as (_, client):
        with pytest.raises(ConfigurationError, match="no Hourhand server"):
            await client.jobs.list()


async def test_health_is_told_whatever_it_is(pauses: list[float]) -> None:
    async with server(web.json_response({"status": "unavailable"}, status=503)) as (endpoint, client):
        assert await client.health() == {"status": "unavailable"}
    assert len(endpoint.requests) == 1


async def test_pages_are_asked_for_until_there_are_enough() -> None:
    async def respond(request: web.Request) -> web.StreamResponse:
        begun, limit = int(request.query.get("cursor", "0")), int(request.query["limit"])
        page = [{"name": f"q{n}"} for n in range(begun, min(begun + limit, 2_300))]
        link = f'</api/v1/audit?limit={limit}&cursor={begun + limit}>; rel="next"'
        changes = [
            {"id": n, "at": "2027-01-01T00:00:00Z", "actor": "me", "via": "api", "action": "job.add", "subject": None, "name": None,
             "queue": None, "before": None, "after": None}
            for n, _ in enumerate(page, begun)
        ]  # fmt: skip
        return web.json_response(changes, headers={"Link": link} if len(page) == limit else {})

    async with answering(respond) as endpoint, AsyncClient(endpoint.url("")) as client:
        assert [one.id for one in await client.audit.list(limit=10_000)] == list(range(2_300))
        assert len(endpoint.requests) == 3
        assert [one.id for one in await client.audit.list(limit=1_500)] == list(range(1_500))
        assert "limit=500" in endpoint.requests[-1].path


async def test_a_server_below_a_path() -> None:
    async with answering() as endpoint, AsyncClient(endpoint.url("/hourhand/")) as client:
        await client.jobs.delete("weekly")
    assert [one.path for one in endpoint.requests] == ["/hourhand/api/v1/jobs/weekly"]


async def test_a_certificate_must_be_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    async with answering(tls=context) as endpoint:
        url = endpoint.url("", host="localhost", scheme="https")
        async with AsyncClient(url) as stranger:
            with pytest.raises(ConfigurationError, match="cannot be trusted"):
                await stranger.health()
        for options in ({"ca": tmp_path / "ca.pem"}, {"verify": False}):
            async with AsyncClient(url, **options) as client:
                assert await client.health() == {"fine": True}
        monkeypatch.setenv("HOURHAND_CA", str(tmp_path / "ca.pem"))
        async with AsyncClient(url) as client:
            assert await client.health() == {"fine": True}
    with pytest.raises(ConfigurationError, match="cannot be used"):
        AsyncClient("https://localhost", ca=tmp_path / "none.pem")


@pytest.mark.parametrize(
    "kind",
    [
        UnknownJob, UnknownRun, UnknownKey, UnknownQueue, Forbidden, PreconditionFailed, JobConflict, NotPossible, InvalidOption,
        InvalidPayload, InvalidSchedule, ConfigurationError, errors.StatementRefused,
    ],
)  # fmt: skip
def test_what_the_app_raises_is_raised_here(kind: type[HourhandError]) -> None:
    answer = of_error(kind("in these words"))
    found = error_of("http://host", "GET /", answer.status_code, answer.headers["content-type"], bytes(answer.body))
    assert type(found) is kind
    assert str(found) == "in these words"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, InvalidOption), (401, Unauthorized), (403, Forbidden), (409, NotPossible), (412, PreconditionFailed), (413, InvalidOption),
     (415, InvalidOption), (422, InvalidOption), (404, ConfigurationError), (502, DatabaseUnavailable), (503, DatabaseUnavailable)],
)  # fmt: skip
def test_what_the_api_itself_refuses(status: int, kind: type[HourhandError]) -> None:
    body = json.dumps({"type": "about:blank", "status": status, "title": "", "detail": "in these words"}).encode()
    assert type(error_of("http://host", "GET /", status, "application/problem+json", body)) is kind


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"detail": 7}', b'{"type": "urn:hourhand:retry-after", "detail": "x"}'])
@pytest.mark.parametrize("status", [200, 404, 422, 500, 503])
def test_no_answer_is_too_strange_to_be_told(status: int, body: bytes) -> None:
    assert isinstance(error_of("http://host", "GET /", status, "application/problem+json", body), HourhandError)
