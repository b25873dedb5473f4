"""In front of every route, known or not: how large a request may be, where it may come from, and whose it is."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hourhand.core.actor import ACTOR, Actor
from hourhand.core.errors import HourhandError
from hourhand.surfaces.rest.keyring import ANYBODY, Keyring, is_loopback
from hourhand.surfaces.rest.problems import Refused, fault, of_error, problem
from hourhand.surfaces.rest.route import need_role

log = structlog.get_logger("hourhand.api")
COOKIE = "hourhand_session"
LARGEST = 2 * 1024 * 1024
LARGEST_BATCH = 64 * 1024 * 1024
BATCHES = ("/api/v1/jobs/batch", "/api/v1/runs/batch")
FREE = ("/healthz", "/login")
"""Open to everybody, as is what pages are drawn with."""
STATIC = "/static/"
_MACHINES = ("/api/", "/healthz", "/readyz", "/metrics")
"""Where programs ask; everything else is pages, for people."""
_PATIENCE = 5.0
_SAFE = ("GET", "HEAD", "OPTIONS")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_POLICY = "default-src 'none'; frame-ancestors 'none'"


Pages = Callable[[Scope, int, str], Response | None]
"""What somebody who asked for a page is shown when he is refused."""
Express = Mapping[tuple[str, str], tuple[str, Callable[[Request], Awaitable[Response]]]]
"""Endpoints, by method and path, with the least role that may use them: what comes thousands of times a second goes to them
directly, which halves its cost."""


class Denied(Exception):
    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.headers = status, headers


class Gate:
    def __init__(
        self, app: ASGIApp, keyring: Keyring, allowed_hosts: frozenset[str] = frozenset(), express: Express | None = None,
        pages: Pages | None = None,
    ) -> None:  # fmt: skip
        self._app = app
        self._pages = pages
        self._express = express or {}
        self._keyring = keyring
        self._allowed = allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        started = False

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(raw=message["headers"])
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Content-Security-Policy", _POLICY)
                headers.setdefault("Cache-Control", "no-cache" if scope["path"].startswith(STATIC) else "no-store")
                message["headers"] = headers.raw
            await send(message)

        try:
            actor = await self._whose(scope)
            await self._measure(scope, receive)
            scope.setdefault("state", {})["actor"] = actor
            token = ACTOR.set(actor)
            try:
                await self._pass_on(scope, self._bounded(scope, receive), guarded)
            finally:
                ACTOR.reset(token)
        except Denied as denied:
            refusal = self._page(scope, denied.status, str(denied))
            await (refusal or problem(denied.status, str(denied), headers=denied.headers))(scope, receive, guarded)
        except HourhandError as error:
            answer = of_error(error)
            await (self._page(scope, answer.status_code, str(error)) or answer)(scope, receive, guarded)
        except ClientDisconnect:
            return
        except Exception:
            if started:
                raise
            log.exception("api.fault", method=scope["method"], path=scope["path"])
            answer = fault()
            await (self._page(scope, 500, "the server's log says more") or answer)(scope, receive, guarded)

    def _page(self, scope: Scope, status: int, detail: str) -> Response | None:
        return None if self._pages is None or not is_page(scope["path"]) else self._pages(scope, status, detail)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        express = self._express.get((scope["method"], scope["path"]))
        if express is None or b"idempotency-key" in dict(scope["headers"]):
            await self._app(scope, receive, send)
            return
        role, endpoint = express
        need_role(scope["state"]["actor"], role)
        scope["app"] = self._app
        try:
            response = await endpoint(Request(scope, receive))
        except Refused as error:
            response = error.response()
        await response(scope, receive, send)

    async def _measure(self, scope: Scope, receive: Receive) -> None:
        headers = Headers(scope=scope)
        length = headers.get("content-length", "0")
        size = int(length[:20]) if length.isdecimal() else LARGEST_BATCH + 1
        if size > _limit(scope):
            if "expect" not in headers and size <= LARGEST_BATCH:
                await _drain(receive)
            raise Denied(413, _too_large(_limit(scope)))

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        """Whoever does not say how much he sends is stopped when it is too much."""
        left = _limit(scope)

        async def bounded() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                await _drain(receive)
                raise Refused(413, _too_large(_limit(scope)))
            return message

        return bounded

    async def _whose(self, scope: Scope) -> Actor:
        headers = Headers(scope=scope)
        if self._allowed and _host(headers.get("host", "")) not in self._allowed and scope["path"] != "/healthz":
            raise Denied(403, f"this server does not answer to the name {headers.get('host', '')!r}; see --allowed-host")
        if scope["path"] in FREE or scope["path"].startswith(STATIC):
            if scope["method"] not in _SAFE:
                _same_origin(headers)
            return STRANGER
        key = key_of(headers)
        if key is not None:
            actor = await self._keyring.by_key(key)
            if actor is None:
                raise Denied(401, "this key opens nothing: it is unknown, expired or revoked", _CHALLENGE)
            return actor
        cookie = _cookie(headers)
        if cookie is not None and (session := await self._keyring.by_cookie(cookie)) is not None:
            if scope["method"] not in _SAFE:
                _same_origin(headers)
                # A page's form carries it in a field, which the page's own route looks at.
                if not is_page(scope["path"]) and not _equal(headers.get("x-csrf-token", ""), session.csrf):
                    raise Denied(403, "a change from a browser needs its session's token in X-CSRF-Token")
            scope.setdefault("state", {})["session"] = session
            return session.actor
        if await self._keyring.is_open():
            self._at_home(scope, headers)
            return ANYBODY
        raise Denied(401, "a key is needed: Authorization: Bearer hh_…; make one with `hourhand keys create`", _CHALLENGE)

    def _at_home(self, scope: Scope, headers: Headers) -> None:
        """Nobody has made a key yet: open to whoever sits at this machine, not to pages that he happens to look at."""
        client = scope.get("client")
        host = _host(headers.get("host", ""))
        if client is None or not is_loopback(client[0]) or any(_passed_on(name) for name in headers):
            raise Denied(
                401, "without a key the API answers only on this machine itself; make one with `hourhand keys create`", _CHALLENGE
            )
        if not is_loopback(host) and host not in self._allowed:
            raise Denied(403, f"without a key the API answers only to localhost, not to {host!r}")
        if scope["method"] not in _SAFE:
            _same_origin(headers)


def is_page(path: str) -> bool:
    return not path.startswith(_MACHINES)


STRANGER = Actor("anybody", "api", "viewer")


async def _drain(receive: Receive) -> None:
    """The rest is thrown away, up to a limit: who is answered while he is still sending may never hear the answer."""
    left = LARGEST_BATCH
    with contextlib.suppress(asyncio.TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            while left > 0:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body"):
                    return
                left -= len(message.get("body", b""))


_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="hourhand"'}


def _same_origin(headers: Headers) -> None:
    """A form or a script of another site must not act in the name of whoever looks at it."""
    origin = headers.get("origin")
    if origin is not None and _site(origin) != headers.get("host", "").lower():
        raise Denied(403, f"a change that comes from another site ({origin}) is refused")
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Denied(403, "a change that comes from another site is refused")


def _site(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _passed_on(header: str) -> bool:
    """Whether a proxy has had it: then the caller is somewhere else."""
    return header.startswith("x-forwarded-") or header in ("forwarded", "x-real-ip", "via")


def key_of(headers: Headers) -> str | None:
    kind, _, text = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and text:
        return text.strip()
    return headers.get("x-api-key")


def _cookie(headers: Headers) -> str | None:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return None if found is None else found.value


def _host(header: str) -> str:
    """Without the port."""
    return header.rpartition("]")[0].lstrip("[") if header.startswith("[") else header.partition(":")[0].lower()


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "surrogatepass"), other.encode())


def _limit(scope: Scope) -> int:
    return LARGEST_BATCH if scope["path"] in BATCHES else LARGEST


def _too_large(limit: int) -> str:
    return f"the body is over the limit of {limit:,} bytes"
