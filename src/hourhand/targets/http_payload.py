"""What the payload of an HTTP run may say: its arguments, and the call that is made of them.

Everything is looked at when the run or the job is made, and again when it is executed: payloads also come in by SQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from hourhand.core.context import Context
from hourhand.core.errors import InvalidPayload, PayloadMismatch
from hourhand.core.payload import Codec
from hourhand.targets.addresses import AddressRefused, Guard, read_host

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
WITH_BODY = ("POST", "PUT", "PATCH")
"""These tell which run it is if nothing else is to be sent."""
LONGEST_URL = 8_000
LONGEST_TIMEOUT = 3_600.0
LARGEST_EXCERPT = 64 * 1024
MOST_HEADERS = 64
LARGEST_HEADERS = 16 * 1024
TRANSIENT = (408, 425, 429)
"""Of the 4xx, the ones that say "later"."""
_PORTS = {"http": 80, "https": 443}
_ASCII = "".join(map(chr, range(0x21, 0x7F)))
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOT_IN_URLS = re.compile(r"[\x00-\x20\x7f-\xa0\\]")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_CLASS = re.compile(r"[1-5]xx")
_OURS = (
    "host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect",
    "proxy-connection", "proxy-authorization", "proxy-authenticate",
)  # fmt: skip


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    verify: bool = True
    ca: str | None = None
    """PEM; instead of the machine's authorities."""
    client_cert: str | None = None
    client_key: str | None = None
    server_name: str | None = None
    """What the certificate must be for, if not the URL's host."""


Statuses = list[int | str]
"""Such as [200, "3xx"]."""


def arguments(
    ctx: Context, *, url: str, method: str = "POST", headers: dict[str, str] | None = None, body: str | None = None,
    json: Any = None, expected_status: Statuses | None = None, timeout: float = 30.0, tls: Tls | None = None,
    permanent_status: Statuses | None = None, sign: bool = True, excerpt: int = 2048,
) -> None:  # fmt: skip
    """The signature that payloads are checked against."""


@dataclass(frozen=True, slots=True)
class Call:
    """A payload that has been understood."""

    scheme: str
    host: str
    port: int
    path: str
    query: str
    method: str
    headers: dict[str, str]
    body: bytes | None
    """None: there is none, or it is made from the run."""
    content_type: str | None
    expected: tuple[int | str, ...]
    permanent: tuple[int | str, ...] | None
    timeout: float
    tls: Tls | None
    sign: bool
    excerpt: int

    @property
    def origin(self) -> str:
        """For messages: paths and queries of URLs are often secrets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == _PORTS[self.scheme] else f":{self.port}")

    def expects(self, status: int) -> bool:
        return _among(status, self.expected)

    def gives_up_on(self, status: int) -> bool:
        if 300 <= status < 400:
            return True  # it will point elsewhere the next time, too
        if self.permanent is None:
            return 400 <= status < 500 and status not in TRANSIENT
        return _among(status, self.permanent)


def _among(status: int, patterns: tuple[int | str, ...]) -> bool:
    return status in patterns or f"{status // 100}xx" in patterns


class HttpCodec(Codec):
    """Payloads of HTTP runs: JSON in, a `Call` out."""

    def __init__(self, guard: Callable[[], Guard]) -> None:
        super().__init__("http", arguments)
        self._guard = guard

    def _check(self, encoded: bytes | str) -> Call:
        given = super()._check(encoded)
        try:
            call = read_call(given)
            self._guard().check_host(call.host, call.port)
        except (InvalidPayload, AddressRefused) as error:
            raise InvalidPayload(f"task 'http': {error}") from None
        return call

    def decode(self, encoded: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        try:
            return (self._check(encoded),), {}
        except InvalidPayload as error:
            raise PayloadMismatch(str(error)) from None

    def read(self, payload: Mapping[str, Any]) -> Call:
        return self._check(self.encode(payload))


def read_call(given: Any) -> Call:
    """`given` has an attribute for each argument, of the right type."""
    method = given.method.upper()
    if method not in METHODS:
        raise InvalidPayload(f"method must be one of {', '.join(METHODS)}, not {given.method!r}")
    scheme, host, port, path, query = read_url(given.url)
    headers = _headers(given.headers or {})
    body, content_type = _body(method, given.body, given.json)
    if not 0 < given.timeout <= LONGEST_TIMEOUT:
        raise InvalidPayload(f"timeout must be up to {LONGEST_TIMEOUT:g} seconds, not {given.timeout!r}")
    if not 0 <= given.excerpt <= LARGEST_EXCERPT:
        raise InvalidPayload(f"excerpt must be from 0 to {LARGEST_EXCERPT} bytes, not {given.excerpt!r}")
    if given.tls is not None:
        _check_tls(scheme, given.tls)
    expected = _statuses("expected_status", given.expected_status if given.expected_status is not None else ["2xx"])
    if not expected:
        raise InvalidPayload("expected_status is empty: no answer could ever be right")
    permanent = None if given.permanent_status is None else _statuses("permanent_status", given.permanent_status)
    return Call(
        scheme, host, port, path, query, method, headers, body, content_type, expected, permanent, float(given.timeout),
        given.tls, given.sign, given.excerpt,
    )  # fmt: skip


def read_url(text: str) -> tuple[str, str, int, str, str]:
    """Scheme, host, port, path and query. The URL that is called is put together from these, so that no second reader can
    understand it in another way."""
    if len(text) > LONGEST_URL:
        raise InvalidPayload(f"the url has {len(text):,} characters; the limit is {LONGEST_URL:,}")
    if _NOT_IN_URLS.search(text):
        raise InvalidPayload("the url contains a space, a backslash or a control character: write it as %20, %5C and the like")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InvalidPayload(f"the url cannot be read: {error}") from None
    if parts.scheme not in _PORTS:
        raise InvalidPayload(f"the url must start with http:// or https://, not {text[:20]!r}")
    if "@" in parts.netloc:
        raise InvalidPayload("the url contains a user name or an @ before its host: send credentials in a header")
    if not parts.hostname:
        raise InvalidPayload("the url names no host")
    if port == 0:
        raise InvalidPayload("the url names port 0")
    # Nothing else is rewritten: some URLs are signed as they stand.
    path, query = (one if one.isascii() else quote(one, safe=_ASCII) for one in (parts.path or "/", parts.query))
    return parts.scheme, read_host(parts.hostname), port or _PORTS[parts.scheme], path, query


def _headers(given: dict[str, str]) -> dict[str, str]:
    if len(given) > MOST_HEADERS or sum(len(name) + len(value) for name, value in given.items()) > LARGEST_HEADERS:
        raise InvalidPayload(f"at most {MOST_HEADERS} headers of together {LARGEST_HEADERS:,} characters can be sent")
    for name, value in given.items():
        low = name.lower()
        if not _TOKEN.fullmatch(name):
            raise InvalidPayload(f"{name!r} cannot be the name of a header")
        if _CONTROL.search(value):
            raise InvalidPayload(f"the header {name} contains a line break or another control character")
        if low in _OURS:
            raise InvalidPayload(f"the header {name} is set by Hourhand itself; it cannot be given")
        if low.startswith("webhook-"):
            raise InvalidPayload(f"the header {name} belongs to the signature; sign: false leaves it out")
    return dict(given)


def _body(method: str, body: str | None, json: Any) -> tuple[bytes | None, str | None]:
    if body is None and json is None:
        return None, None
    if body is not None and json is not None:
        raise InvalidPayload("body and json both say what is sent; give one of them")
    if method in ("GET", "HEAD"):
        raise InvalidPayload(f"a {method} carries no body")
    if body is not None:
        return body.encode(), "text/plain; charset=utf-8"
    return msgspec.json.encode(json), "application/json"


def _check_tls(scheme: str, tls: Tls) -> None:
    if scheme != "https":
        raise InvalidPayload("tls is for https; this url starts with http")
    if tls.client_key is not None and tls.client_cert is None:
        raise InvalidPayload("tls: client_key needs its client_cert")
    for name in ("ca", "client_cert", "client_key"):
        value = getattr(tls, name)
        if value is not None and "-----BEGIN " not in value:
            raise InvalidPayload(f"tls: {name} must be PEM text, with its -----BEGIN line")
    if tls.server_name is not None:
        read_host(tls.server_name)


def _statuses(name: str, given: Statuses) -> tuple[int | str, ...]:
    clean = tuple(one.lower() if isinstance(one, str) else one for one in given)
    for one in clean:
        if not (_CLASS.fullmatch(one) if isinstance(one, str) else 100 <= one <= 599):
            raise InvalidPayload(f'{name} takes numbers such as 204 and classes such as "2xx", not {one!r}')
    return clean
