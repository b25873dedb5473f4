"""Bringing the jobs that code declares into force: added, changed, removed, once for each version of the code.

Every process of an app knows what its code declares, by a fingerprint. A version that was never in force
comes into force when its first process starts, or when it is deployed by command before that. One that was in force
before does so again only when processes of the current version have come and none is left: so a process of the old version that happens to restart in the middle
of a rollout changes nothing, and rolling back works by starting the old and stopping the new.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec
import structlog

from hourhand.core.errors import DatabaseUnavailable, HourhandError, InvalidOption, InvalidSchedule, JobConflict, StatementRefused
from hourhand.core.fairness import lane_of
from hourhand.core.job import define_job
from hourhand.storage.jobs import CallersDoor, present, put_job
from hourhand.surfaces.auditing import MOST_NAMES, record
from hourhand.surfaces.stored import StoredJob

if TYPE_CHECKING:
    from hourhand.surfaces.app import Hourhand

log = structlog.get_logger("hourhand.deployment")
LOOK_EVERY = 15.0
NEWER = "a newer version is in force; this one waits until processes of it have come and are gone"
_FIXED = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Deployed:
    """What bringing the declarations into force has changed."""

    applied: bool
    """False: they hold already, or processes of a newer version are alive."""
    reason: str
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    """Declared jobs whose name belongs to a job that was added in another way."""

    def changes(self) -> dict[str, tuple[str, ...]]:
        return {name: getattr(self, name) for name in ("added", "changed", "removed") if getattr(self, name)}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Deployment:
    def __init__(self, app: Hourhand) -> None:
        self._app = app

    @property
    def fingerprint(self) -> str:
        """What this code declares, in short."""
        jobs = []
        for name, given in sorted(self._app.registry.jobs.items()):
            plain = define_job(name, given, now=_FIXED, registry=self._app.registry).plain(0, _FIXED)
            queue = {"queue": given.queue, "priority": given.priority}
            jobs.append({**plain, **queue, "payload": bytes(plain["payload"]).decode()})
        return sha256(msgspec.json.encode(jobs)).hexdigest()[:16]

    @property
    def labels(self) -> dict[str, str]:
        return {"app": self._app.name, "declarations": self.fingerprint}

    async def apply(self, *, force: bool = False) -> Deployed:
        """Bring what this code declares into force, if it is its turn; `force` does not ask."""
        opened, mine, declares = await self._app._open(), self.fingerprint, bool(self._app.registry.jobs)
        if not force:
            # Most of the time there is nothing to do: then nobody has to wait for the others to find that out.
            known = await opened.database.fetchrow("deployment", self._app.name, mine)
            assert known is not None
            reason = _turn(mine, known, declares)
            if reason is not None and not _unnoted(known):
                return Deployed(False, reason)
        names = {given.queue for given in self._app.registry.jobs.values()} | {
            one.queue for one in self._app.registry.tasks.values()
        }
        queues = {name: await opened.gateway.queue_number(name) for name in {*names, "default"} if name}
        sql = opened.database.sql

        async def work(connection: asyncpg.Connection) -> Deployed:
            async with connection.transaction():
                await connection.execute(sql["lock_deployment"], self._app.name)
                row = await connection.fetchrow(sql["deployment"], self._app.name, mine)
                assert row is not None
                if _unnoted(row):
                    await connection.execute(sql["deployment_lives"], self._app.name, row["current"])
                reason = _turn(mine, row, declares)
                if reason is not None and not force:
                    return Deployed(False, reason)
                done = await self._put_all(connection, sql, queues)
                await connection.execute(sql["record_deployment"], self._app.name, mine, not done.refused)
                if changes := done.changes():
                    about = {name: list(jobs[:MOST_NAMES]) for name, jobs in changes.items()}
                    await record(CallersDoor(connection, sql), self._app.name, "jobs.deploy", subject=self._app.name, after=about)
                return done

        done = await opened.database.using(work)
        changes = done.changes()
        if done.applied and (changes or not done.refused):
            log.info("jobs.deployed", app=self._app.name, declared=len(self._app.registry.jobs), **changes)
        return done

    async def _put_all(self, connection: asyncpg.Connection, sql: dict[str, str], queues: dict[str, int]) -> Deployed:
        door, app = CallersDoor(connection, sql), self._app
        now = await present(door)
        outcomes: dict[str, list[str]] = {"added": [], "replaced": [], "unchanged": [], "refused": []}
        for name, given in app.registry.jobs.items():
            try:
                job = define_job(name, given, now=now, registry=app.registry, declared_by=app.name)
            except (InvalidOption, InvalidSchedule) as error:
                # Its end is past, perhaps: the code may say so for years.
                log.warning("jobs.left_out", job=name, error=str(error))
                continue
            row = await door.row("find_job", name, None)
            old = None if row is None else StoredJob.of(row[0], app._sealer)
            ours = old is None or old.definition.declared_by == app.name
            due = {"due": old.due()} if old else {}
            try:
                lane = lane_of(queues[job.queue], job.priority)
                outcome = await put_job(door, job, lane, now, sealer=app._sealer, replace=ours, prepared=due)
            except JobConflict:
                outcome = "refused"
            outcomes[outcome].append(name)
        removed = []
        for row in await connection.fetch(sql["undeclared_jobs"], app.name, list(app.registry.jobs)):
            await connection.fetch(sql["delete_job"], row["id"])
            removed.append(row["name"])
        return Deployed(
            True,
            "in force now",
            tuple(outcomes["added"]),
            tuple(outcomes["replaced"]),
            tuple(removed),
            tuple(outcomes["refused"]),
        )

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """In force as soon as the database lets us, and looked after for as long as the process runs."""
        keeper = asyncio.create_task(self._keep())
        try:
            yield
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def _keep(self) -> None:
        told = ""
        while True:
            try:
                done = await self.apply()
                if done.refused and str(done.refused) != told:
                    log.error("jobs.name_taken", app=self._app.name, jobs=done.refused,
                              meaning="jobs of these names were added in another way; they stay as they are")  # fmt: skip
                    told = str(done.refused)
                if done.reason == NEWER != told:
                    log.warning("jobs.not_deployed", app=self._app.name, reason=done.reason)
                    told = done.reason
            except (DatabaseUnavailable, StatementRefused) as error:
                log.warning("jobs.deployment_waits", app=self._app.name, error=str(error))
            except HourhandError as error:
                log.error("jobs.deployment_failed", app=self._app.name, error=str(error))
            await asyncio.sleep(LOOK_EVERY)


def _unnoted(known: asyncpg.Record) -> bool:
    """Whether processes of the current version have come, and nobody has written that down."""
    return bool(known["lives"] and not known["lived"])


def _turn(mine: str, known: asyncpg.Record, declares: bool) -> str | None:
    """Why these declarations are not to be brought into force now; None: they are."""
    if mine == known["current"]:
        return "in force already" if known["complete"] else None
    if not known["current"] and not declares:
        return "nothing is declared, and nothing ever was"
    if known["seen"] and (known["lives"] or not known["lived"]):
        return NEWER
    return None
