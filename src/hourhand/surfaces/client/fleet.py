"""`client.queues`, `.nodes`, `.shards`, `.statistics`, `.keys` and `.audit`: the verbs of the app's."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from hourhand.core.actor import ROLES
from hourhand.core.errors import InvalidOption, UnknownKey, UnknownQueue
from hourhand.core.task import check_name, seconds
from hourhand.surfaces import wire
from hourhand.surfaces.access import PREFIX, CreatedKey, KeyView
from hourhand.surfaces.auditing import Change
from hourhand.surfaces.client.asking import Asking, converted, in_path, is_name, reader
from hourhand.surfaces.client.transport import ROOT, Call
from hourhand.surfaces.statistics import QueueFigures, Trend, check_period
from hourhand.surfaces.verbs import check
from hourhand.surfaces.views import NodeView, QueueView, ShardView


class Queues(Asking):
    async def exists(self, name: str) -> bool:
        """Whether anything was ever enqueued to it, or it was paused."""
        return any(one.name == name for one in await self.list())

    async def list(self) -> list[QueueView]:
        return converted(await self._get("/queues"), list[QueueView])

    async def pause(self, name: str) -> datetime:
        """Nothing more is claimed from it; what runs goes on. Enqueueing stays possible."""
        done = await self._post(f"/queues/{in_path(check_name('queue', name))}/pause")
        return wire.known_moment(done["paused_at"])

    async def resume(self, name: str) -> None:
        if not is_name(name):
            raise UnknownQueue(f"there is no queue {name!r}")
        await self._post(f"/queues/{in_path(name)}/resume")


class Nodes(Asking):
    async def list(self, *, gone: bool = False) -> list[NodeView]:
        """The live processes; with `gone`, also those that stopped or died."""
        return converted(await self._get("/nodes", gone=gone), list[NodeView])


class Shards(Asking):
    async def list(self) -> list[ShardView]:
        """The 256 parts of all jobs: which scheduler fires each, and under which epoch."""
        return converted(await self._get("/shards"), list[ShardView])


class Statistics(Asking):
    async def over(self, period: str = "1h", *, queue: str | None = None) -> Trend:
        """The last hour, day or week (`1h`, `24h`, `7d`), step by step."""
        check_period(period)
        if queue is not None and not is_name(queue):
            raise UnknownQueue(f"there is no queue {queue!r}")
        return await self._get_as(Trend, "/statistics", period=period, queue=queue)

    async def queues(self) -> list[QueueFigures]:
        """Every queue that the caller may see, by name."""
        return converted(await self._get("/statistics/queues"), list[QueueFigures])

    async def totals(self) -> dict[str, int]:
        """Numbers of jobs, paused jobs and schedules, as they were a moment ago."""
        return converted(await self._get("/statistics/totals"), dict[str, int])


class Keys(Asking):
    async def create(
        self, name: str, *, role: str = "viewer", queues: Iterable[str] | None = None, prefixes: Iterable[str] | None = None,
        expires: datetime | timedelta | float | None = None,
    ) -> CreatedKey:  # fmt: skip
        """A key of this role, for all or, with `queues` or `prefixes` (of the names of jobs), for a part.

        Its secret is in the one answer and nowhere else: if that is lost, revoke the key and make another.
        """
        if role not in ROLES:
            raise InvalidOption(f"role must be one of {', '.join(ROLES)}, not {role!r}")
        body: dict[str, Any] = {"name": name, "role": role, "queues": _names(queues), "prefixes": _names(prefixes)}
        if isinstance(expires, datetime):
            check(expires=expires)
            body["expires_at"] = expires
        elif expires is not None:
            body["expires_seconds"] = seconds("expires", expires)
        made = await self._post("/keys", body, once=False)
        return CreatedKey(converted(made, KeyView), made["secret"])

    async def list(self, *, revoked: bool = False) -> list[KeyView]:
        """Every key; with `revoked`, also those that were."""
        return converted(await self._get("/keys", revoked=revoked), list[KeyView])

    async def revoke(self, key_id: str) -> KeyView:
        """From now on it opens nothing; the sessions it opened end with it."""
        # Of a whole key only the part that is no secret: it would stand in the logs of whatever is in between.
        number = key_id.removeprefix(f"{PREFIX}_").partition("_")[0]
        if not is_name(number):
            raise UnknownKey(f"there is no key {key_id!r}")
        return converted(await self._send(Call("DELETE", f"{ROOT}/keys/{in_path(number)}")), KeyView)


class AuditLog(Asking):
    async def list(
        self, *, actor: str | None = None, action: str | None = None, subject: str | None = None, since: datetime | None = None,
        until: datetime | None = None, below: int | None = None, limit: int = 100,
    ) -> list[Change]:  # fmt: skip
        """Changes, the newest first. `action`: `job.update`, or `job` for all of them; `subject`: an id or a name;
        `below`: the last id of the page before."""
        check(limit=limit, since=since, until=until)
        cursor = None if below is None else wire.write_cursor(below)
        query = {"actor": actor, "action": action, "subject": subject, "since": since, "until": until, "cursor": cursor}
        return await self._list("/audit", query, limit, reader(Change))


def _names(given: Iterable[str] | None) -> list[str] | None:
    """A single text would be taken for a list of letters."""
    return None if given is None else [given] if isinstance(given, str) else [*given]
