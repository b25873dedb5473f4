"""`client.runs` and `client.dead`: the verbs of `app.runs` and `app.dead`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from hourhand.core import ids
from hourhand.core.errors import InvalidOption, UnknownRun
from hourhand.core.payload import encode_untyped
from hourhand.surfaces import wire
from hourhand.surfaces.client.asking import PAGE, Asking, converted, run_path
from hourhand.surfaces.client.transport import ROOT, Call
from hourhand.surfaces.dead_letters import BATCH, FILTERS, Replayed, check_rate
from hourhand.surfaces.verbs import check
from hourhand.surfaces.views import STATES, LineView, RunView

ASKED_AT_ONCE = 100
"""Ids in one URL."""


class Runs(Asking):
    async def show(self, run_id: str | int) -> RunView:
        return wire.run_from_wire(await self._get(f"/runs/{run_path(run_id)}"))

    async def logs(self, run_id: str | int, *, after: int = 0, limit: int = 1_000) -> list[LineView]:
        """What it said, in order, from the line after number `after` on."""
        check(limit=limit)
        if not 0 <= after < 2**31:
            raise InvalidOption(f"after must be the number of a line, or 0, not {after}")
        found: list[LineView] = []
        while len(found) < limit:
            size = min(PAGE, limit - len(found))
            lines = await self._get(f"/runs/{run_path(run_id)}/logs", after=found[-1].number if found else after, limit=size)
            found += converted(lines, list[LineView])
            if len(lines) < size:
                break
        return found

    async def list(
        self, *, state: str | Sequence[str] | None = None, task: str | None = None, queue: str | None = None,
        tag: str | None = None, key: str | None = None, job: str | None = None, node: int | None = None,
        since: datetime | None = None, below: str | None = None, limit: int = 20,
    ) -> list[RunView]:  # fmt: skip
        """The newest runs that match. `job`: its name or id. `below`: the last id of the page before."""
        states = [state] if isinstance(state, str) else None if state is None else [*state]
        for one in states or ():
            if one not in STATES:
                raise InvalidOption(f"{one!r} is not a state; the states are {', '.join(STATES)}")
        check(limit=limit, since=since)
        cursor = None if below is None else wire.write_cursor(run_path(below))
        query = {
            "status": states, "task": task, "queue": queue, "tag": tag, "key": key, "job": job, "node": node, "since": since,
            "cursor": cursor,
        }  # fmt: skip
        return await self._list("/runs", query, limit, wire.run_from_wire)

    async def cancel(self, run_id: str | int, reason: str | None = None) -> str:
        """`cancelled` when it had not started; `asked` when it runs and was told to stop."""
        return str((await self._post(f"/runs/{run_path(run_id)}/cancel", {"reason": reason}))["outcome"])

    async def retry(self, run_id: str | int) -> str:
        """Run it again now. Returns the id: the same for a dead or delayed run, a new one for an ended run."""
        return str((await self._post(f"/runs/{run_path(run_id)}/retry"))["again_as"])


class Dead(Asking):
    """Runs that gave up. Filters: ids, task, queue, tag, error type, died since/before."""

    async def list(
        self, /, *run_ids: str | int, limit: int = 50, below: tuple[datetime, str] | None = None, **filters: Any
    ) -> list[RunView]:
        """The latest to die first. `below`: when the last of the page before died, and its id."""
        check(limit=limit)
        query = {**_checked(filters), "cursor": None if below is None else wire.write_cursor(below)}
        found: list[RunView] = []
        for part in _parts(run_ids, ASKED_AT_ONCE):
            found += await self._list("/dead", {**query, "run_id": part}, limit, wire.run_from_wire)
        if len(run_ids) > ASKED_AT_ONCE:
            found.sort(key=lambda one: (one.finished_at, ids.parse_run_id(one.run_id)), reverse=True)
        return found[:limit]

    async def count(self, /, *run_ids: str | int, **filters: Any) -> int:
        query = _checked(filters)
        parts = [*_parts(run_ids, ASKED_AT_ONCE)]
        return sum([int((await self._get("/dead/count", **query, run_id=part))["count"]) for part in parts])

    async def show(self, run_id: str | int) -> RunView:
        return wire.run_from_wire(await self._get(f"/dead/{run_path(run_id)}"))

    async def edit(self, run_id: str | int, payload: dict[str, Any]) -> RunView:
        """Replace the payload; checked against the task's signature where the server has the task.

        Where it has the word that stands for a secret, the value that was hidden stays.
        """
        raw = msgspec.Raw(encode_untyped(str(run_id), payload).encode())
        body = msgspec.json.encode({"payload": raw})
        return wire.run_from_wire(await self._send(Call("PATCH", f"{ROOT}/dead/{run_path(run_id)}", body=body)))

    async def replay(
        self, /, *run_ids: str | int, limit: int | None = None, rate: float | None = None, start: datetime | None = None,
        progress: Callable[[int], None] | None = None, **filters: Any,
    ) -> Replayed:  # fmt: skip
        """Back into their queues with fresh attempts, the oldest first; those whose key another run holds stay.

        `rate`: so many become due in a second, the first at `start` (default: now). That is settled here and now, in the
        database: nobody has to stay for it.
        """
        check_rate(rate, start)
        if not run_ids and filters.get("before") is None:
            # A run that dies again while we replay must not be replayed for ever.
            latest = await self.list(limit=1, **filters)
            if not latest or latest[0].finished_at is None:
                return Replayed([], [])
            filters = {**filters, "before": latest[0].finished_at + timedelta(microseconds=1)}
        done: list[str] = []
        blocked: set[str] = set()
        pace = {} if rate is None else {"rate": rate, "start": start}
        until: datetime | None = None

        def note(answer: Any) -> int:
            nonlocal until
            done.extend(answer["replayed"])
            blocked.update(answer["blocked"])
            if rate is not None and answer["until"] is not None:
                until = wire.known_moment(answer["until"])
                pace["start"] = until + timedelta(seconds=1 / rate)
            if progress is not None:
                progress(len(done))
            return len(answer["replayed"])

        await self._each_batch("/dead/replay", run_ids, filters, limit, note, pace)
        if run_ids and not done and not blocked:
            raise _not_there(run_ids)
        return Replayed(done, sorted(blocked.difference(done)), until)

    async def purge(
        self, /, *run_ids: str | int, limit: int | None = None, progress: Callable[[int], None] | None = None, **filters: Any
    ) -> int:
        """Out of the dead letters for good: outcome and errors stay in history, the payload goes."""
        done = 0

        def note(answer: Any) -> int:
            nonlocal done
            done += answer["purged"]
            if progress is not None:
                progress(done)
            return int(answer["purged"])

        await self._each_batch("/dead/purge", run_ids, filters, limit, note)
        if run_ids and not done:
            raise _not_there(run_ids)
        return done

    async def _each_batch(
        self, path: str, run_ids: Sequence[str | int], filters: Mapping[str, Any], limit: int | None, note: Callable[[Any], int],
        more: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """A request for each thousand: none of them takes long, and none that is lost has to be done again."""
        which = {name: value for name, value in _checked(filters).items() if value is not None}
        done = 0
        for part in _parts(run_ids, BATCH):
            while limit is None or done < limit:
                size = BATCH if limit is None else min(BATCH, limit - done)
                body = {**which, **(more or {}), "limit": size, **({"run_ids": part} if part else {} if which else {"all": True})}
                try:
                    count = note(await self._post(path, body, patient=True))
                except UnknownRun:
                    # None of these is there; of the others some may be.
                    break
                done += count
                if count < size:
                    break


def _checked(filters: Mapping[str, Any]) -> dict[str, Any]:
    for name in filters:
        if name not in FILTERS:
            raise InvalidOption(f"unknown filter {name!r}; the filters are {', '.join(FILTERS)}")
    check(since=filters.get("since"), before=filters.get("before"))
    return dict(filters)


def _parts(run_ids: Sequence[str | int], size: int) -> Iterator[list[str] | None]:
    """The ids, so many at a time; nothing once, if there are none: then the filters say which are meant."""
    named = list(dict.fromkeys(run_path(one) for one in run_ids))
    if not named:
        yield None
    for begun in range(0, len(named), size):
        yield named[begun : begun + size]


def _not_there(run_ids: Sequence[str | int]) -> UnknownRun:
    return UnknownRun(f"{', '.join(map(str, run_ids))}: not among the dead letters")
