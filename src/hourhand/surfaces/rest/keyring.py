"""Whose request this is: by key, by session, or, on a machine where nobody has made a key yet, anybody who sits at it."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import structlog

from hourhand.core.actor import Actor
from hourhand.core.clock import Clock
from hourhand.core.errors import ConfigurationError, DatabaseUnavailable
from hourhand.surfaces.access import KeyView
from hourhand.surfaces.app import Hourhand

log = structlog.get_logger("hourhand.api")
T = TypeVar("T")
REMEMBERED = 1.0
"""Seconds for which a key that was looked up is not looked up again: so long may one that was revoked still open."""
SESSION = timedelta(hours=12)
_MOST = 10_000
_SHORTEST = 32
_PLACEHOLDERS = ("changeme", "change-me", "secret", "password", "admin", "default", "example", "test", "hourhand")
ENVIRONMENT = "environment"
ANYBODY = Actor("anybody@loopback", "api")


@dataclass(frozen=True, slots=True)
class Session:
    actor: Actor
    csrf: str


class Keyring:
    def __init__(self, app: Hourhand, *, admin_key: str | None, loopback: bool) -> None:
        self._app = app
        self._admin = None if admin_key is None else hashlib.sha256(admin_key.encode()).digest()
        self._loopback = loopback
        self._keys: dict[bytes, tuple[float, KeyView | None]] = {}
        self._sessions: dict[bytes, tuple[float, Session | None]] = {}
        self._any_key = False
        self._asked_at = 0.0
        self._used: set[str] = set()
        self._used_at = 0.0

    async def is_open(self) -> bool:
        """Whether a request without a key is let in. Once a key was made it never is again."""
        if not self._loopback or self._admin is not None or self._any_key:
            return False
        if Clock.monotonic() >= self._asked_at + REMEMBERED:
            self._any_key = bool(await (await self._app._database()).fetchval("any_key"))
            self._asked_at = Clock.monotonic()
        return not self._any_key

    async def by_key(self, text: str) -> Actor | None:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        if self._admin is not None and hmac.compare_digest(digest, self._admin):
            return Actor("key:HOURHAND_ADMIN_KEY", "api", key_id=ENVIRONMENT)
        # By its digest: neither the time of the look nor a dump of this memory tells a key.
        until, view = self._keys.get(digest, (0.0, None))
        if Clock.monotonic() >= until:
            view = await self._app.keys.authenticate(text)
            self._remember(self._keys, digest, view)
        if view is None:
            return None
        await self._note_use(view.key_id)
        return view.actor()

    async def by_cookie(self, cookie: str) -> Session | None:
        digest = hashlib.sha256(cookie.encode("utf-8", "surrogatepass")).digest()
        until, session = self._sessions.get(digest, (0.0, None))
        if Clock.monotonic() < until:
            return session
        session = None
        database = await self._app._database()
        row = await database.fetchrow("find_session", digest)
        if row is not None:
            key = await database.fetchrow("find_key", row["key_id"])
            view = None if key is None else KeyView.of(key, key["present"])
            if key is not None and key["id"] == ENVIRONMENT and key["hash"] != self._admin:
                view = None  # it has been replaced since
            if view is not None and view.state == "active":
                session = Session(view.actor(), row["csrf"])
        self._remember(self._sessions, digest, session)
        return session

    async def open_session(self, key_text: str) -> tuple[str, str, datetime] | None:
        """Cookie, CSRF token, end; None if the key opens nothing."""
        number = await self._number(key_text)
        if number is None:
            return None
        cookie, csrf = secrets.token_urlsafe(32), secrets.token_urlsafe(24)
        digest = hashlib.sha256(cookie.encode()).digest()
        until = await (await self._app._database()).fetchval("open_session", digest, number, csrf, SESSION)
        return cookie, csrf, until

    async def _number(self, key_text: str) -> str | None:
        if self._admin is not None and hmac.compare_digest(hashlib.sha256(key_text.encode()).digest(), self._admin):
            return ENVIRONMENT
        view = await self._app.keys.authenticate(key_text)
        return None if view is None else view.key_id

    async def settle(self) -> None:
        """The key of the environment has a row of its own, for the sessions it opens; it goes when the key does."""
        database = await self._app._database()
        if self._admin is not None:
            await database.fetch("put_environment_key", ENVIRONMENT, "HOURHAND_ADMIN_KEY", self._admin)
        else:
            await database.fetch("revoke_key", ENVIRONMENT)

    async def close_session(self, cookie: str) -> None:
        digest = hashlib.sha256(cookie.encode("utf-8", "surrogatepass")).digest()
        await (await self._app._database()).fetch("close_session", digest)
        self._sessions.pop(digest, None)

    def _remember(self, where: dict[bytes, tuple[float, T]], digest: bytes, found: T) -> None:
        if len(where) >= _MOST:
            where.clear()  # somebody is guessing
        where[digest] = (Clock.monotonic() + REMEMBERED, found)

    async def _note_use(self, key_id: str) -> None:
        self._used.add(key_id)
        if Clock.monotonic() >= self._used_at + 60:
            used, self._used, self._used_at = sorted(self._used), set(), Clock.monotonic()
            try:
                await (await self._app._database()).fetch("keys_used", used)
            except DatabaseUnavailable as error:
                log.warning("keys.use_not_noted", error=str(error))


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_admin_key(text: str | None) -> str | None:
    """A key from the environment opens everything: it must not be one that others can guess."""
    if text is None or not text:
        return None
    if any(word in text.lower() for word in _PLACEHOLDERS) and len(text) < 2 * _SHORTEST:
        raise ConfigurationError("HOURHAND_ADMIN_KEY looks like a placeholder; make a real one with: openssl rand -base64 33")
    if len(text) < _SHORTEST or len(set(text)) < 10:
        raise ConfigurationError(
            f"HOURHAND_ADMIN_KEY is too easy to guess: it needs {_SHORTEST} characters or more, chosen at random; "
            "make one with: openssl rand -base64 33"
        )
    return text


async def check_exposure(app: Hourhand, host: str, admin_key: str | None) -> None:
    """Open to others without a key is not what anybody wants: it does not start."""
    if is_loopback(host) or admin_key is not None:
        return
    keys = await app.keys.list()
    if not any(one.state == "active" and one.key_id != ENVIRONMENT for one in keys):
        raise ConfigurationError(
            f"the API would be open to everybody who reaches {host}, since there is no key yet. Make one with "
            "`hourhand keys create NAME --role admin`, or set HOURHAND_ADMIN_KEY, or listen on 127.0.0.1"
        )
