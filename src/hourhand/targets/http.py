"""A run that calls a URL: no code of the user's, no slot of the worker while it waits for the answer.

What survives a crash: nothing here needs to. A call whose worker dies is made again by another, under the same
`webhook-id` and `Idempotency-Key`, by which the receiver knows it.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec

from hourhand.core.clock import Clock
from hourhand.core.context import Context
from hourhand.core.errors import ConfigurationError, HourhandError, InvalidPayload, PermanentFailure, RetryAfter
from hourhand.core.settings import Settings
from hourhand.core.task import TaskDefinition, define_task
from hourhand.core.tracing import Doing, calling, carried, read
from hourhand.targets.addresses import AddressRefused, Guard, PinningResolver
from hourhand.targets.http_payload import WITH_BODY, Call, HttpCodec, Tls

if TYPE_CHECKING:
    import aiohttp

PER_HOST = 100
"""Connections to one host at a time: a slow one cannot use up the sockets of a worker."""
KEPT_ALIVE = 4.0
"""Seconds. Shorter than most servers wait, so that a POST seldom meets a connection that is just being closed."""
LONGEST_DELAY = 86_400.0
KEPT_HEADERS = ("content-type", "content-length", "location", "retry-after", "etag", "last-modified", "x-request-id")
_LONGEST_HEADER = 500
_LONGEST_MESSAGE = 1_000
_MISSING = "HTTP jobs need packages that are not installed here: pip install 'hourhand[http]'"
_VISIBLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


class CallFailed(HourhandError):
    """There was no answer: no connection, or not all of it within the timeout."""


class UnexpectedStatus(HourhandError):
    """The answer has a status that the payload does not expect."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    reason: str
    headers: dict[str, str]
    excerpt: str
    truncated: bool


def http_task(settings: Callable[[], Settings]) -> TaskDefinition:
    guards: list[Guard] = []

    def guard() -> Guard:
        # The command line may set the list after the app was made.
        allow = settings().http_allow
        if not guards or guards[0].allow != allow:
            guards[:] = [Guard(allow)]
        return guards[0]

    codec = HttpCodec(guard)

    async def http(ctx: Context, call: Call) -> dict[str, Any]:
        return await perform(ctx, call, guard(), settings().webhook_secret)

    async def vet(payload: dict[str, Any]) -> None:
        call = codec.read(payload)
        if call.tls is not None:
            tls_context(call.tls)
        try:
            await guard().vet(call.host, call.port)
        except AddressRefused as error:
            raise InvalidPayload(f"task 'http': {error}") from None

    return replace(define_task(http, name="http"), codec=codec, light=True, vet=vet, secret=("tls.client_key",))


async def perform(ctx: Context, call: Call, guard: Guard, secret: str | None) -> dict[str, Any]:
    began = Clock.monotonic()
    try:
        context = True if call.tls is None else tls_context(call.tls)
    except InvalidPayload as error:
        raise PermanentFailure(str(error)) from None
    # A worker that traces nothing passes on what the run came with.
    with carried(read((ctx.claim.options or {}).get("trace"))):
        answer = await _send(call, _headers_and_body(ctx, call, secret), context, guard)
    if not call.expects(answer.status):
        raise failure_of(call, answer, Clock().now())
    kept = {name: answer.headers[name][:_LONGEST_HEADER] for name in KEPT_HEADERS if name in answer.headers}
    return {
        "status": answer.status, "headers": kept, "excerpt": answer.excerpt, "truncated": answer.truncated,
        "milliseconds": round((Clock.monotonic() - began) * 1000),
    }  # fmt: skip


def failure_of(call: Call, answer: Answer, now: float) -> HourhandError:
    """What an unexpected answer means for the run."""
    said = f": {answer.excerpt[:_LONGEST_MESSAGE]}" if answer.excerpt else ""
    what = f"{call.method} {call.origin} answered {answer.status} {answer.reason[:100]}".rstrip()
    if 300 <= answer.status < 400 and "location" in answer.headers:
        # Where it points may be chosen by a stranger, and what may be called is checked for the URL of the job only.
        place = answer.headers["location"].partition("?")[0][:_LONGEST_HEADER]
        return PermanentFailure(f"{what}, a redirect to {place}; redirects are not followed, put the new url into the job{said}")
    if call.gives_up_on(answer.status):
        return PermanentFailure(what + said)
    delay = retry_after(answer.headers.get("retry-after"), now)
    return UnexpectedStatus(what + said) if delay is None else RetryAfter(delay, what + said)


def retry_after(text: str | None, now: float) -> float | None:
    """Seconds, from seconds or from an HTTP date."""
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:20]), LONGEST_DELAY)
    try:
        instant = parsedate_to_datetime(text)
        seconds = (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(0.0, seconds), LONGEST_DELAY)


def _headers_and_body(ctx: Context, call: Call, secret: str | None) -> tuple[dict[str, str], bytes | None]:
    body, content_type = call.body, call.content_type
    if body is None and call.method in WITH_BODY:
        body, content_type = _description(ctx), "application/json"
    headers = {
        "User-Agent": f"hourhand/{_version()}",
        # An answer that unpacks to gigabytes is not asked for.
        "Accept-Encoding": "identity",
        # A template may have put anything into it.
        "Idempotency-Key": quote(ctx.idempotency_key, safe=_VISIBLE),
    }
    if body is not None and content_type is not None:
        headers["Content-Type"] = content_type
    given = {name.lower() for name in call.headers}
    headers = {name: value for name, value in headers.items() if name.lower() not in given} | call.headers
    if call.sign and secret:
        headers |= signature(ctx.token, secret, (body or b"").decode())
    return headers, body


def _description(ctx: Context) -> bytes:
    return msgspec.json.encode(
        {
            "run_id": ctx.run_id,
            "job_id": ctx.job_id,
            "task": ctx.task,
            "scheduled_at": ctx.scheduled_at,
            "attempt": ctx.attempt,
        }
    )


def signature(identity: str, secrets: str, body: str) -> dict[str, str]:
    """The headers of Standard Webhooks. Several secrets, while one takes the place of another, make several signatures."""
    try:
        from standardwebhooks import Webhook
    except ImportError:
        raise ConfigurationError(_MISSING) from None
    at = Clock().instant()
    try:
        signatures = [Webhook(one).sign(identity, at, body) for one in secrets.split()]
    except Exception:  # the library's own errors would show the secret
        raise ConfigurationError("webhook_secret (HOURHAND_WEBHOOK_SECRET) must be whsec_ and base64") from None
    return {
        "webhook-id": identity,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


async def _send(call: Call, message: tuple[dict[str, str], bytes | None], context: ssl.SSLContext | bool, guard: Guard) -> Answer:
    try:
        import aiohttp
        from yarl import URL
    except ImportError:
        raise ConfigurationError(_MISSING) from None
    headers, body = message
    url = URL(f"{call.origin}{call.path}" + (f"?{call.query}" if call.query else ""), encoded=True)
    try:
        # Its turn at a busy host is no time of the call's: who has to wait for it has not been too slow.
        async with _turn(call.origin), asyncio.timeout(call.timeout):
            with _traced(call) or nullcontext() as doing:
                response = await _session(guard).request(
                    call.method, url, headers=_with_trace(headers, doing), data=body, allow_redirects=False, ssl=context,
                    server_hostname=call.tls.server_name if call.tls else None,
                )  # fmt: skip
                try:
                    answer = await _read(response, call.excerpt)
                finally:
                    # What was read to its end is back in the pool already. The rest of a giant is not waited for.
                    response.close()
                if doing is not None:
                    doing.note({"http.response.status_code": answer.status})
                    if not call.expects(answer.status):
                        doing.failed(str(answer.status))
            return answer
    except TimeoutError:
        raise CallFailed(f"{call.method} {call.origin} gave no complete answer within {call.timeout:g} s") from None
    except aiohttp.ClientResponseError as error:
        # Its own words would show the whole URL.
        raise CallFailed(
            f"{call.method} {call.origin} gave no answer that is HTTP: {error.message.partition(chr(10))[0]}"
        ) from None
    except (aiohttp.ClientError, OSError) as error:
        raise CallFailed(f"{call.method} {call.origin} failed: {type(error).__name__}: {error}") from None


def _traced(call: Call) -> Doing | None:
    """Without path and query, which are often secrets."""
    return calling(call.method, {"server.address": call.host, "server.port": call.port, "url.scheme": call.scheme})


def _with_trace(headers: dict[str, str], doing: Doing | None) -> dict[str, str]:
    """What the job itself says of a trace stands, all of it: a state belongs to its parent."""
    if doing is None or any(name.lower() in ("traceparent", "tracestate") for name in headers):
        return headers
    return {**headers, **doing.place.headers}


async def _read(response: aiohttp.ClientResponse, limit: int) -> Answer:
    data = b""
    while len(data) <= limit and limit and (chunk := await response.content.read(limit + 1 - len(data))):
        data += chunk
    truncated = len(data) > limit or (not limit and not response.content.at_eof())
    data = data[:limit]
    # What is no text in them came in as halves of surrogate pairs, which nobody can store.
    headers = {name.lower(): value.encode("utf-8", "replace").decode() for name, value in response.headers.items()}
    if data and headers.get("content-encoding", "").lower() in ("gzip", "deflate"):
        data, cut = _unpack(data, limit)
        truncated = truncated or cut
    # PostgreSQL stores no NUL.
    text = data.decode("utf-8", "replace").replace("\0", "\ufffd")
    return Answer(response.status, response.reason or "", headers, text, truncated)


def _unpack(data: bytes, limit: int) -> tuple[bytes, bool]:
    """Not asked for, but sent packed all the same: never more than `limit` bytes of it come out."""
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        unpacked = unpacker.decompress(data, limit)
    except zlib.error:
        return data, False
    return unpacked, not unpacker.eof


@lru_cache(maxsize=256)
def tls_context(tls: Tls) -> ssl.SSLContext:
    """One for each way of saying it: connections are shared by those who have the same."""
    try:
        context = ssl.create_default_context(cadata=tls.ca)
        if not tls.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if tls.client_cert is not None:
            # OpenSSL takes certificates from files only. Others cannot read this one, and it is gone in a moment.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(f"{tls.client_cert}\n{tls.client_key or ''}\n")
                file.flush()
                context.load_cert_chain(file.name, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise InvalidPayload(f"task 'http': tls: a certificate or key cannot be used: {error}") from None
    return context


_turns: WeakValueDictionary[tuple[int, str], asyncio.Semaphore] = WeakValueDictionary()
_sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Guard, aiohttp.ClientSession]] = WeakKeyDictionary()
"""Not shared between guards: a connection that one of them allowed is not for the calls of another."""


def _session(guard: Guard) -> aiohttp.ClientSession:
    import aiohttp

    sessions = _sessions.setdefault(asyncio.get_running_loop(), {})
    session = sessions.get(guard)
    if session is None:
        connector = aiohttp.TCPConnector(
            resolver=cast("Any", PinningResolver(guard)), use_dns_cache=False, limit=0, limit_per_host=PER_HOST,
            keepalive_timeout=KEPT_ALIVE,
        )  # fmt: skip
        session = sessions[guard] = aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False, auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        )  # fmt: skip
    return session


def _turn(origin: str) -> asyncio.Semaphore:
    """A place among the calls to one host; kept for as long as somebody has it or waits for it."""
    key = (id(asyncio.get_running_loop()), origin)
    turn = _turns.get(key)
    if turn is None:
        turn = _turns[key] = asyncio.Semaphore(PER_HOST)
    return turn


async def close_sessions() -> None:
    """Those of this event loop. Whoever calls later opens a new one."""
    for session in _sessions.pop(asyncio.get_running_loop(), {}).values():
        await session.close()


@lru_cache(maxsize=1)
def _version() -> str:
    return version("hourhand")
