"""The record of who changed what: written by the verbs, in the transaction of the change."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from hourhand.core.actor import ACTOR, NOBODY, Actor
from hourhand.core.sealing import Sealer
from hourhand.storage.database import Database
from hourhand.storage.jobs import Door, OwnDoor
from hourhand.surfaces.views import JobView

_VOLATILE = frozenset({"next_run_at", "updated_at", "active_since", "outcome", "version", "fired", "in_words", "state", "shard"})
"""Of a job: what changes by itself, or follows from the rest."""
MOST_NAMES = 100


def current_actor(app: str) -> Actor:
    """Whoever said who he is; or the app itself, by its name."""
    actor = ACTOR.get()
    return Actor(app) if actor is NOBODY else actor


@contextlib.asynccontextmanager
async def changing(door: Door) -> AsyncIterator[None]:
    """A change and its record commit together: in a transaction of ours, unless the caller has one."""
    if isinstance(door, OwnDoor):
        async with door.database.together():
            yield
    else:
        yield


async def record(
    door: Door, app: str, action: str, *, subject: str | None = None, name: str | None = None, queue: str | None = None,
    before: Mapping[str, Any] | None = None, after: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    actor = current_actor(app)
    await door.row(
        "record_change", actor.name, actor.via, action, subject, name, queue,
        *(None if one is None else msgspec.json.encode(one).decode() for one in (before, after)),
    )  # fmt: skip


async def record_many(door: Door, app: str, entries: Sequence[Mapping[str, Any]]) -> None:
    """Many at once, in one statement; whoever follows the events hears how many."""
    if entries:
        actor = current_actor(app)
        await door.row("record_changes", actor.name, actor.via, msgspec.json.encode(entries).decode())


def described(view: JobView, names: Sequence[str], sealer: Sealer) -> dict[str, Any]:
    """A job as the record shows it."""
    plain = asdict(replace(view, payload=payload_for_record(view.redacted(names).payload, sealer)))
    return {name: value for name, value in plain.items() if name not in _VOLATILE}


def job_entry(action: str, before: JobView | None, after: JobView | None, names: Sequence[str], sealer: Sealer) -> dict[str, Any]:
    """What goes on record about a job that was added, changed or deleted."""
    job = after or before
    assert job is not None
    was, now = (None if one is None else described(one, names, sealer) for one in (before, after))
    if before is not None and after is not None and was is not None and now is not None:
        payloads = was["payload"], now["payload"]
        was, now = differences(was, now)
        if before.payload != after.payload:
            # Also where a secret was all that changed, and both look alike.
            was["payload"], now["payload"] = payloads
    return {"action": action, "subject": job.job_id, "name": job.name, "queue": job.queue, "before": was, "after": now}


def payload_for_record(redacted: Any, sealer: Sealer) -> Any:
    """The record can only be added to, so no key is ever changed in it: what is encrypted elsewhere is not in it at all."""
    return "[encrypted]" if sealer.active else redacted


def differences(before: dict[str, Any], after: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What differs, as it was and as it is."""
    names = [name for name in after if before.get(name) != after[name]]
    return {name: before.get(name) for name in names}, {name: after[name] for name in names}


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the audit log."""

    id: int
    at: datetime
    actor: str
    via: str
    action: str
    subject: str | None
    name: str | None
    queue: str | None
    before: Any
    after: Any

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


async def list_changes(
    database: Database, *, actor: str | None = None, action: str | None = None, subject: str | None = None,
    since: datetime | None = None, until: datetime | None = None, below: int | None = None, limit: int = 100,
) -> list[Change]:  # fmt: skip
    who = ACTOR.get()
    rows = await database.fetch(
        "list_changes", actor, action, subject, since, until, limit, below,
        None if who.queues is None else list(who.queues), None if who.prefixes is None else list(who.prefixes),
        who.has_role("admin"),
    )  # fmt: skip
    return changes_of(rows)


def changes_of(rows: Sequence[asyncpg.Record]) -> list[Change]:
    decoded = []
    for row in rows:
        fields = dict(row)
        for name in ("before", "after"):
            fields[name] = None if fields[name] is None else msgspec.json.decode(fields[name])
        decoded.append(Change(**fields))
    return decoded
