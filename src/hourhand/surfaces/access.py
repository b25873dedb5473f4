"""API keys and the audit log: `app.keys`, `app.audit`."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

import asyncpg

from hourhand.core.actor import ROLES, Actor
from hourhand.core.errors import InvalidOption, NotPossible, UnknownKey
from hourhand.core.options import is_text
from hourhand.core.task import check_name, seconds
from hourhand.storage.jobs import OwnDoor
from hourhand.surfaces.auditing import Change, current_actor, list_changes, record
from hourhand.surfaces.verbs import Open, Verbs, check

PREFIX = "hh"
LENGTH = 16
"""Of a key's id."""
_NO_HASH = bytes(32)


@dataclass(frozen=True, slots=True)
class KeyView:
    """A key, without its secret: nobody has that but whoever was given it."""

    key_id: str
    name: str
    role: str
    state: str
    """`active`, `expired` or `revoked`."""
    queues: tuple[str, ...] | None
    prefixes: tuple[str, ...] | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    used_at: datetime | None

    @classmethod
    def of(cls, row: asyncpg.Record, present: datetime) -> KeyView:
        expired = row["expires_at"] is not None and row["expires_at"] <= present
        return cls(
            key_id=row["id"], name=row["name"], role=row["role"],
            state="revoked" if row["revoked_at"] else "expired" if expired else "active",
            queues=_tuple(row["queues"]), prefixes=_tuple(row["prefixes"]),
            created_at=row["created_at"], created_by=row["created_by"], expires_at=row["expires_at"],
            revoked_at=row["revoked_at"], used_at=row["used_at"],
        )  # fmt: skip

    def actor(self) -> Actor:
        return Actor(f"key:{self.name}", "api", self.role, self.queues, self.prefixes, self.key_id)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CreatedKey:
    key: KeyView
    secret: str
    """What the caller presents. It is shown once and stored nowhere."""


class Keys(Verbs):
    def __init__(self, open_database: Open, app: str) -> None:
        super().__init__(open_database, app)

    async def create(
        self, name: str, *, role: str = "viewer", queues: Iterable[str] | None = None, prefixes: Iterable[str] | None = None,
        expires: datetime | timedelta | float | None = None,
    ) -> CreatedKey:  # fmt: skip
        """A key of this role, for all or, with `queues` or `prefixes` (of the names of jobs), for a part."""
        if not is_text(name, 100):
            raise InvalidOption(f"a key's name must be a text of 1 to 100 characters, not {name!r}")
        if role not in ROLES:
            raise InvalidOption(f"role must be one of {', '.join(ROLES)}, not {role!r}")
        current_actor(self._app_name).need_everything("making keys")
        limits = [_scope("queue", queues), _scope("job", prefixes)]
        until = expires if isinstance(expires, datetime) else None
        span = None if until is not None or expires is None else timedelta(seconds=seconds("expires", expires))  # type: ignore[arg-type]
        check(expires=until)
        number = base64.b32encode(secrets.token_bytes(10)).decode().lower()
        secret = secrets.token_urlsafe(32)
        database = await self._open()
        async with database.together():
            present = await database.fetchval("present")
            if until is not None and until <= present:
                raise InvalidOption(f"expires is in the past: {until.isoformat()}")
            by = current_actor(self._app_name).name
            row = await database.fetchrow("add_key", number, name, _hash(secret), role, *limits, by, until, span)
            assert row is not None
            view = KeyView.of(row, present)
            await record(OwnDoor(database), self._app_name, "key.create", subject=number, name=name, after=view.to_dict())
        return CreatedKey(view, f"{PREFIX}_{number}_{secret}")

    async def list(self, *, revoked: bool = False) -> list[KeyView]:
        """Every key; with `revoked`, also those that were."""
        current_actor(self._app_name).need_everything("the list of keys")
        database = await self._open()
        return [KeyView.of(row, row["present"]) for row in await database.fetch("list_keys", revoked)]

    async def revoke(self, key_id: str) -> KeyView:
        """From now on it opens nothing; the sessions it opened end with it."""
        current_actor(self._app_name).need_everything("revoking keys")
        database = await self._open()
        number = key_id.removeprefix(f"{PREFIX}_").partition("_")[0]
        async with database.together():
            before = await database.fetchrow("find_key", number)
            if before is None:
                raise UnknownKey(f"there is no key {key_id!r}")
            if before["revoked_at"] is not None:
                raise NotPossible(f"key {number} was revoked already")
            row = await database.fetchrow("revoke_key", number)
            assert row is not None
            view = KeyView.of(row, before["present"])
            was, now = ({"state": KeyView.of(one, before["present"]).state} for one in (before, row))
            await record(OwnDoor(database), self._app_name, "key.revoke", subject=number, name=view.name, before=was, after=now)
        return view

    async def authenticate(self, text: str) -> KeyView | None:
        """The key that this text is, if it opens anything now."""
        prefix, number, secret = (*text.split("_", 2), "", "")[:3]
        row = await (await self._open()).fetchrow("find_key", number) if prefix == PREFIX and _is_id(number) else None
        # Compared in any case, and in constant time: the answer takes as long for a key that is not there.
        right = hmac.compare_digest(_hash(secret), _NO_HASH if row is None else row["hash"])
        if row is None or not right:
            return None
        view = KeyView.of(row, row["present"])
        return view if view.state == "active" else None


class AuditLog(Verbs):
    async def list(
        self, *, actor: str | None = None, action: str | None = None, subject: str | None = None, since: datetime | None = None,
        until: datetime | None = None, below: int | None = None, limit: int = 100,
    ) -> list[Change]:  # fmt: skip
        """Changes, the newest first. `action`: `job.update`, or `job` for all of them; `subject`: an id or a name;
        `below`: the last id of the page before."""
        check(limit=limit, since=since, until=until)
        return await list_changes(
            await self._open(), actor=actor, action=action, subject=subject, since=since, until=until, below=below, limit=limit
        )  # fmt: skip


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _scope(kind: str, names: Iterable[str] | None) -> list[str] | None:
    """Part of everything, checked; a single text would be taken for a list of letters."""
    if names is None:
        return None
    listed = [names] if isinstance(names, str) else list(names)
    if not listed or len(listed) > 100:
        raise InvalidOption(f"a key can be for 1 to 100 {kind}s, not {len(listed)}")
    return [check_name(kind, name) for name in listed]


def _tuple(value: Any) -> tuple[str, ...] | None:
    return None if value is None else tuple(value)


def _is_id(text: str) -> bool:
    return len(text) == LENGTH and text.isascii() and text.isalnum()
