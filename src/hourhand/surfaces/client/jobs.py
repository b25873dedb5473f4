"""`client.jobs`: the verbs of `app.jobs`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from hourhand.core import ids
from hourhand.core.account import Line
from hourhand.core.errors import ConfigurationError, InvalidOption, UnknownJob
from hourhand.core.job import MISSED, job_options
from hourhand.core.payload import encode_untyped
from hourhand.core.task import check_name
from hourhand.surfaces import wire
from hourhand.surfaces.client.asking import Asking, converted, decoded, in_path, is_name
from hourhand.surfaces.client.batches import send_batches
from hourhand.surfaces.client.transport import ROOT, Call
from hourhand.surfaces.jobs import STATES
from hourhand.surfaces.past import Backfill, check_backfill
from hourhand.surfaces.verbs import check
from hourhand.surfaces.views import Audit, BulkAdded, JobView, Resumed, RunView, Triggered

FOLLOWED = 5_000
"""Runs of a backfill that are asked about at once."""
REMEMBERED = 5_000
"""A backfill of more than so many may be answered with more than a server remembers."""
JobViews = list[JobView]
RunViews = list[RunView]
Instants = list[datetime]
Lines = list[Line]


class Jobs(Asking):
    # Adding and changing

    async def add(
        self, /, name: str, *, task: Any = None, schedule: str | None = None, replace: bool = False, **options: Any
    ) -> JobView:
        """Register a job. The same definition again changes nothing; another one is a conflict, unless `replace`.

        `schedule`: cron, `every 90s`, `in 10m`, or an ISO 8601 instant. Options: timezone, payload, queue, priority, dst,
        anchor, missed_window, max_missed, misfire_grace, overlap, flexible_window, start_at, end_at, max_runs, max_attempts,
        timeout, delivery, retry_backoff, retry_base, retry_cap, idempotency_key_template, tags, secret, then.
        """
        body = described({"name": name, "task": task, "schedule": schedule, **options})
        return wire.job_from_wire(await self._post("/jobs", body, query={"replace": replace or None}))

    async def update(self, /, name: str, *, version: int | None = None, **changes: Any) -> JobView:
        """Change what is named and leave the rest. A job whose schedule stays keeps its pending firing.

        `version`: only if it is still this one.
        """
        job_options(changes)
        body = msgspec.json.encode(wire.options_to_wire(changes, name))
        return wire.job_from_wire(await self._send(Call("PATCH", ROOT + _path(name), body=body, version=version)))

    async def delete(self, name: str, *, version: int | None = None) -> None:
        """The job goes; its runs, waiting or ended, stay. `version`: only if it is still this one."""
        await self._send(Call("DELETE", ROOT + _path(name), version=version))

    async def add_many(
        self, jobs: Iterable[Mapping[str, Any]], *, replace: bool = False, progress: Callable[[int], None] | None = None
    ) -> BulkAdded:
        """Register many jobs, each a mapping of what `add` takes, in requests of at most 10,000.

        A request is all or none. Of more than 10,000 jobs, those of the requests before one that fails are in, and the error
        says so. `progress` is called with the number of jobs of each request that is in.
        """
        counts = BulkAdded(0, 0, 0)
        query = {"replace": replace or None}
        async for size, answer in send_batches(self._transport, "/jobs/batch", query, _numbered(jobs), "job"):
            part = converted(answer, BulkAdded)
            counts = BulkAdded(counts.added + part.added, counts.replaced + part.replaced, counts.unchanged + part.unchanged)
            if progress is not None:
                progress(size)
        return counts

    # Looking

    async def show(self, name: str) -> JobView:
        """By name, or by id (`j_…`)."""
        return wire.job_from_wire(await self._get(_path(name)))

    async def list(
        self, *, state: str | None = None, task: str | None = None, queue: str | None = None, tag: str | None = None,
        search: str | None = None, after: str | None = None, limit: int = 100,
    ) -> JobViews:  # fmt: skip
        """By name. `search`: a part of the name; `after`: the last name of the page before."""
        if state is not None and state not in STATES:
            raise InvalidOption(f"{state!r} is no state of a job; there are {', '.join(STATES)}")
        check(limit=limit)
        query = {"state": state, "task": task, "queue": queue, "tag": tag, "search": search, "cursor": _cursor(after)}
        return await self._list("/jobs", query, limit, wire.job_from_wire)

    async def next(self, name: str, limit: int = 10) -> Instants:
        """The next firings of a job, within its own limits."""
        check(limit=limit)
        return await self._list(_path(name, "/next"), {}, limit, wire.known_moment)

    async def runs(self, name: str, limit: int = 20, *, below: tuple[datetime, str] | None = None) -> RunViews:
        """The job's latest runs, by the instant they are for. `below`: that of the last of the page before, and its id."""
        check(limit=limit)
        return await self._list(_path(name, "/runs"), {"cursor": _cursor(below)}, limit, wire.run_from_wire)

    # Holding and starting

    async def pause(self, name: str) -> JobView:
        """From now on it does not fire. A firing that is due at this moment still is its own."""
        return wire.job_from_wire(await self._post(_path(name, "/pause")))

    async def resume(self, name: str, *, missed: str | None = None) -> Resumed:
        """It fires again. What it missed is treated by its missed-window policy, or by `missed`."""
        if missed is not None and missed not in MISSED:
            raise InvalidOption(f"missed must be one of {', '.join(MISSED)}, not {missed!r}")
        done = await self._post(_path(name, "/resume"), {"missed": missed})
        return Resumed(wire.job_from_wire(done["job"]), done["started"], done["left_out"])

    async def trigger(self, name: str, *, payload: Mapping[str, Any] | None = None, force: bool = False) -> Triggered:
        """A run here and now, besides the schedule. `force`: even if the job's overlap policy would hold or skip it."""
        body: dict[str, Any] = {"force": force}
        if payload is not None:
            body["payload"] = msgspec.Raw(encode_untyped(name, payload).encode())
        return converted(await self._post(_path(name, "/trigger"), body), Triggered)

    # The past, again

    async def backfill(
        self, name: str, since: datetime, until: datetime, *, dry_run: bool = False, cap: int = 1_000, rate: float = 10.0,
        order: str = "oldest", again: bool = False, progress: Callable[[Backfill], None] | None = None,
    ) -> Backfill:  # fmt: skip
        """Runs for the firings of a past period, [since, until), that have not succeeded.

        `cap`: more than that is refused. `rate`: how many start in a second. `order`: `oldest` or `newest` first. Asked for
        twice, it makes each run once; `again` makes them all anew, those that succeeded included. `progress` is called once.
        """
        check(since=since, until=until)
        check_backfill(cap=cap, rate=rate, order=order)
        body = {
            "since": since, "until": until, "dry_run": dry_run, "cap": cap, "rate": rate, "order": order, "again": again,
        }  # fmt: skip
        how = {"once": cap <= REMEMBERED, "harmless": dry_run, "patient": True}
        asking = asyncio.ensure_future(self._post(_path(name, "/backfill"), body, **how))
        try:
            answer = await asyncio.shield(asking)
        except asyncio.CancelledError:
            # The server makes the runs whether or not anybody waits: who wants to call them off must know that they are there.
            await asyncio.wait([asking])
            if asking.exception() is None and progress is not None and not dry_run:
                progress(wire.backfill_from_wire(asking.result()))
            raise
        filled = wire.backfill_from_wire(answer)
        if progress is not None and not dry_run:
            progress(filled)
        return filled

    async def follow(self, backfill: Backfill) -> AsyncIterator[Backfill]:
        """A look at how far a backfill is, each time the caller asks; ends when all of its runs have."""
        runs = [{"run_id": ids.run_id(number), "scheduled_at": at} for number, at in backfill.runs]
        path = _path(backfill.job, "/backfill/progress")
        while backfill.ended < len(runs):
            parts = [runs[begun : begun + FOLLOWED] for begun in range(0, len(runs), FOLLOWED)]
            answers = [await self._post(path, {"runs": part}, harmless=True) for part in parts]
            backfill.ended = sum(one["ended"] for one in answers)
            backfill.succeeded = sum(one["succeeded"] for one in answers)
            yield backfill

    async def cancel_backfill(self, name: str, since: datetime, until: datetime) -> int:
        """Call off what backfills of this period have not started yet, and forget it, so that it can be asked for again."""
        check(since=since, until=until)
        done = await self._post(_path(name, "/backfill/cancel"), {"since": since, "until": until}, patient=True)
        return int(done["called_off"])

    # The record

    async def why(self, name: str, *, at: datetime | None = None, since: datetime | None = None, until: datetime | None = None) -> Lines:  # fmt: skip
        """What became of every firing expected at `at`, or from `since` (default: a day ago) until `until` (default: now)."""
        check(at=at, since=since, until=until)
        path, cursor = ROOT + _path(name, "/why"), None
        pages: list[Lines] = []
        while cursor is not None or not pages:
            answer = await self._transport.send(Call("GET", path, {"at": at, "since": since, "until": until, "cursor": cursor}))
            pages.append(converted(decoded(answer), Lines))
            cursor = answer.next_cursor
        # Each page has what was before the last one.
        return [line for page in reversed(pages) for line in page]

    async def audit(self, name: str, since: datetime, until: datetime) -> Audit:
        """The proof: every firing expected in [since, until) has exactly one recorded outcome, or these have not."""
        check(since=since, until=until)
        return await self._get_as(Audit, _path(name, "/proof"), since=since, until=until)


def described(given: Mapping[str, Any]) -> dict[str, Any]:
    """A job as the API takes it; what is not said is not sent."""
    said = {name: value for name, value in given.items() if value is not None}
    name = said.pop("name", "")
    try:
        check_name("job", name)
    except ConfigurationError as error:
        raise InvalidOption(str(error)) from None
    job_options(said)
    if "schedule" not in said:
        raise InvalidOption(f"job {name!r} needs a schedule: a cron expression, 'every 90s', 'in 10m', or an instant")
    return {"name": name, **wire.options_to_wire(said, name)}


def _numbered(jobs: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for place, one in enumerate(jobs, 1):
        try:
            yield described(one)
        except (ValueError, TypeError) as error:
            raise InvalidOption(f"job number {place}: {error}. Nothing was added") from error


def _path(name: str, below: str = "") -> str:
    if not is_name(name) and (not isinstance(name, str) or ids.parse_job_id(name) is None):
        raise UnknownJob(f"there is no job {name!r}")
    return f"/jobs/{in_path(name.strip())}{below}"


def _cursor(place: Any) -> str | None:
    return None if place is None else wire.write_cursor(place)
