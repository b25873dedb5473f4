"""Requests to one server, made again when their answer is lost.

Whatever changes something carries a key of its own: the server does it once, and answers a repetition as it answered
before. Only what it keeps no answer of, because there is a secret in it, is not repeated.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import ssl
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit

from hourhand import __version__
from hourhand.core import tracing
from hourhand.core.backoff import Retry
from hourhand.core.errors import ConfigurationError, DatabaseUnavailable, HourhandError, Unauthorized
from hourhand.surfaces.client.problems import PASSING, error_of

if TYPE_CHECKING:
    import aiohttp

ROOT = "/api/v1"
JSON = "application/json"
LONGEST_PAUSE = 30.0
"""Seconds, whatever a server asks for with Retry-After."""
CONNECT_WITHIN = 10.0
PATIENT = 300.0
"""Seconds for a request that does very much at once."""
SILENCE = 45.0
"""Seconds without a sign of life after which a stream of events is taken for dead; the server gives one every 15."""
_PAUSES = Retry(base=0.2, cap=5.0)
_MISSING = "the client needs aiohttp: pip install 'hourhand[client]'"


@dataclass(frozen=True, slots=True)
class Options:
    timeout: float = 30.0
    retries: int = 3
    ca: Path | None = None
    """Certificates of authorities to trust, as PEM. None: those of the system."""
    verify: bool = True

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise ConfigurationError(f"timeout must be a number of seconds, not {self.timeout!r}")
        if not 0 <= self.retries <= 100:
            raise ConfigurationError(f"retries must be from 0 to 100, not {self.retries!r}")


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = JSON
    version: int | None = None
    """Only if it is still this one."""
    once: bool = True
    """Of a change: that it can be repeated without being done twice."""
    harmless: bool = False
    """It changes nothing, whatever its method."""
    patient: bool = False

    @property
    def looks(self) -> bool:
        return self.method == "GET" or self.harmless

    @property
    def repeatable(self) -> bool:
        return self.looks or self.once

    @property
    def target(self) -> str:
        plain = {name: _text(value) for name, value in self.query.items() if value is not None}
        return self.path + (f"?{urlencode(plain, doseq=True)}" if plain else "")


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def next_cursor(self) -> str | None:
        """Where the next page begins, if there is one."""
        for part in self.headers.get("Link", "").split(","):
            place, _, relation = part.partition(">")
            if 'rel="next"' in relation:
                return parse_qs(urlsplit(place.strip().lstrip("<")).query).get("cursor", [None])[0]
        return None


class Transport:
    """Sessions by event loop: one client may be used in several, one after the other or at once."""

    def __init__(self, url: str, key: str | None, options: Options) -> None:
        try:
            import aiohttp  # noqa: F401
        except ImportError:
            raise ConfigurationError(_MISSING) from None
        self.url = check_url(url)
        self._headers = {"User-Agent": f"hourhand-client/{__version__}", "Accept": JSON}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {_check_key(key)}"
        self._options = options
        self._trust = _trust(options)
        self._random = Random()
        self._sessions: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}
        self._process = os.getpid()

    async def send(self, call: Call) -> Answer:
        """The answer, if it is one of success. What was lost on the way is sent again, as often as the options say."""
        headers = {**self._headers, **tracing.headers()}
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        if call.version is not None:
            headers["If-Match"] = f'"{call.version}"'
        if call.once and not call.looks:
            headers["Idempotency-Key"] = uuid.uuid4().hex
        for attempt in count(1):
            try:
                answer = await self._exchange(call, headers)
                trouble = self._refusal(call, answer)
                if trouble is None:
                    return answer
                again = answer.status in PASSING and call.repeatable
                wished = _seconds(answer.headers.get("Retry-After"))
            except Lost as lost:
                trouble, again, wished = lost.error, lost.unsent or call.repeatable, 0.0
            if not again or attempt > self._options.retries:
                raise trouble
            await asyncio.sleep(max(wished, _PAUSES.delay(attempt, self._random)))
        raise AssertionError

    async def ask(self, call: Call, also: tuple[int, ...] = ()) -> Answer:
        """Once, and never again; `also` are answers that are no trouble here."""
        try:
            answer = await self._exchange(call, self._headers)
        except Lost as lost:
            raise lost.error from None
        trouble = self._refusal(call, answer)
        if trouble is None or answer.status in also:
            return answer
        raise trouble

    def _refusal(self, call: Call, answer: Answer) -> HourhandError | None:
        if answer.status < 300:
            return None
        if answer.status == 401 and "Authorization" not in self._headers:
            return Unauthorized(f"the server {self.url} wants a key: set HOURHAND_API_KEY, or give one with key= or --api-key")
        asked = f"{call.method} {call.path}"
        return error_of(self.url, asked, answer.status, answer.headers.get("Content-Type", ""), answer.body)

    async def _exchange(self, call: Call, headers: Mapping[str, str]) -> Answer:
        import aiohttp

        total = max(self._options.timeout, PATIENT) if call.patient else self._options.timeout
        limits = aiohttp.ClientTimeout(total=total, sock_connect=min(CONNECT_WITHIN, total))
        async with self._request(call, headers, limits) as response:
            return Answer(response.status, response.headers, await response.read())

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of an answer that has no end, as they come."""
        import aiohttp

        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_WITHIN, sock_read=SILENCE)
        async with self._request(call, {**self._headers, "Accept": "text/event-stream"}, limits) as response:
            if response.status >= 300:
                answer = Answer(response.status, response.headers, await response.read())
                raise self._refusal(call, answer) or AssertionError
            yield aiter(response.content)

    @asynccontextmanager
    async def _request(
        self, call: Call, headers: Mapping[str, str], limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        import aiohttp
        from yarl import URL

        # As it is written: a name that was quoted must not be quoted again, or taken apart.
        url = URL(self.url + call.target, encoded=True)
        try:
            async with self._session().request(
                call.method, url, headers=headers, data=call.body, timeout=limits, allow_redirects=False
            ) as response:
                yield response
        except HourhandError:
            # Some of these are kinds of OSError as well.
            raise
        except aiohttp.ClientConnectorCertificateError as error:
            raise ConfigurationError(
                f"the certificate of {self.url} cannot be trusted: {error.certificate_error}; "
                "name the authority that signed it with ca= or HOURHAND_CA"
            ) from None
        except asyncio.TimeoutError as error:
            unsent = isinstance(error, aiohttp.ConnectionTimeoutError)
            raise Lost(DatabaseUnavailable(f"the server {self.url} did not answer in time"), unsent) from None
        except (aiohttp.ClientError, OSError) as error:
            words = f"the server {self.url} cannot be reached: {_words(error)}"
            raise Lost(DatabaseUnavailable(words), isinstance(error, aiohttp.ClientConnectorError)) from None

    def _session(self) -> aiohttp.ClientSession:
        import aiohttp

        self._notice_fork()
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            connector = aiohttp.TCPConnector(ssl=self._trust)
            session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)
            self._sessions[loop] = session
        return session

    async def close(self) -> None:
        """What this event loop opened."""
        self._notice_fork()
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    def _notice_fork(self) -> None:
        # A forked child has its parent's sockets: they are kept, untouched, until the child ends.
        if self._process != os.getpid():
            self._process = os.getpid()
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._sessions))
            self._sessions = {}


class Lost(Exception):
    """No answer came; whether the request arrived is not known, unless it was never sent."""

    def __init__(self, error: DatabaseUnavailable, unsent: bool) -> None:
        super().__init__(str(error))
        self.error, self.unsent = error, unsent


def check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fine = False
    if not fine or parts.username or parts.query or parts.fragment or any(letter.isspace() for letter in url):
        # Not the URL itself: somebody may have written a password into it.
        raise ConfigurationError("the URL of a server must look like https://host:port, with nothing but a path after it")
    return url.rstrip("/").removesuffix(ROOT)


def _check_key(key: str) -> str:
    word = key.strip()
    if not word or not word.isascii() or not word.isprintable() or " " in word:
        raise ConfigurationError("the API key cannot be one: it must be a single word, as `hourhand keys create` prints it")
    return word


def _trust(options: Options) -> ssl.SSLContext | bool:
    if not options.verify:
        return False
    if options.ca is None:
        return True
    try:
        return ssl.create_default_context(cafile=options.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"{options.ca} cannot be used as certificates of authorities: {error}") from None


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    return list(value) if isinstance(value, (list, tuple)) else str(value)


def _seconds(retry_after: str | None) -> float:
    """What a server asks for; a date is left to our own pauses."""
    return min(float(retry_after), LONGEST_PAUSE) if retry_after and retry_after.isdecimal() else 0.0


def _words(error: Exception) -> str:
    cause = getattr(error, "os_error", error)
    number = getattr(cause, "errno", None)
    if isinstance(number, int) and number > 0:
        return os.strerror(number)
    return getattr(cause, "strerror", None) or str(error) or type(error).__name__
