"""The verbs on a job's past: running it again, and the account of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice

from hourhand.core.account import MOMENT, UNEXPLAINED, Account, Line
from hourhand.core.errors import InvalidOption, NotPossible
from hourhand.storage.database import Database
from hourhand.storage.jobs import (
    OwnDoor,
)
from hourhand.surfaces.job_verbs import JobVerbs
from hourhand.surfaces.past import Backfill, gather_facts, not_expected, plan_backfill
from hourhand.surfaces.stored import StoredJob
from hourhand.surfaces.verbs import check
from hourhand.surfaces.views import Audit

MOST_LINES = 100_000
MOST_PROVEN = 200_000
"""More than the firings of 90 days, one each minute."""
BACKFILL_CHUNK = 500
Lines = list[Line]


class JobPast(JobVerbs):
    async def backfill(
        self, name: str, since: datetime, until: datetime, *, dry_run: bool = False, cap: int = 1_000, rate: float = 10.0,
        order: str = "oldest", again: bool = False, progress: Callable[[Backfill], None] | None = None,
    ) -> Backfill:  # fmt: skip
        """Runs for the firings of a past period, [since, until), that have not succeeded.

        `cap`: more than that is refused. `rate`: how many start in a second. `order`: `oldest` or `newest` first. Asked for
        twice, it makes each run once; `again` makes them all anew, those that succeeded included.
        """
        database = await self._app._database()
        stored = await self._find(OwnDoor(database), name)
        planned = await plan_backfill(database, stored, since, until, cap=cap, rate=rate, order=order, again=again)
        planned.dry_run = dry_run
        if dry_run:
            return planned
        for begun in range(0, len(planned.instants), BACKFILL_CHUNK):
            part = planned.instants[begun : begun + BACKFILL_CHUNK]
            async with database.together():
                rows = await database.fetch("backfill_job", stored.number, part, rate, begun, again)
                if not begun:
                    about = {"since": since, "until": until, "runs": len(planned.instants), "rate": rate, "again": again}
                    await self._act(OwnDoor(database), "job.backfill", stored, about)
            planned.runs += [(row[0], row[1]) for row in rows]
            if progress is not None:
                progress(planned)
        return planned

    async def follow(self, backfill: Backfill) -> AsyncIterator[Backfill]:
        """A look at how far a backfill is, each time the caller asks; ends when all of its runs have."""
        database = await self._app._database()
        while backfill.ended < len(backfill.runs):
            backfill.ended, backfill.succeeded = await _ended(database, backfill.runs, None)
            yield backfill

    async def ended(self, name: str, runs: Sequence[tuple[int, datetime]]) -> tuple[int, int]:
        """Of these runs of the job, each with the instant it is for: how many have ended, and how many of them well."""
        database = await self._app._database()
        return await _ended(database, runs, await self._number(database, name))

    async def cancel_backfill(self, name: str, since: datetime, until: datetime) -> int:
        """Call off what backfills of this period have not started yet, and forget it, so that it can be asked for again."""
        check(since=since, until=until)
        database = await self._app._database()
        stored = await self._find(OwnDoor(database), name)
        number = stored.number
        async with database.together():
            # The last first: of runs that wait for each other, none moves up to be called off.
            runs = sorted((row["run_id"] for row in await database.fetch("pending_backfill", number, since, until)), reverse=True)
            called_off = [run for run in runs if await database.fetchval("cancel_pending", run, "the backfill was called off")]
            await database.fetch("forget_backfill", number, called_off)
            about = {"since": since, "until": until, "called_off": len(called_off)}
            await self._act(OwnDoor(database), "job.cancel_backfill", stored, about)
        return len(called_off)

    async def why(self, name: str, *, at: datetime | None = None, since: datetime | None = None, until: datetime | None = None) -> Lines:  # fmt: skip
        """What became of every firing expected at `at`, or from `since` (default: a day ago) until `until` (default: now)."""
        stored, account, low, high = await self._account(name, at, since, until)
        lines = await _counted(account.lines(low, high), MOST_LINES)
        lines = sorted([*lines, *account.besides()], key=lambda line: line.scheduled_at)
        if at is not None and not lines:
            raise NotPossible(not_expected(stored, at))
        return lines

    async def audit(self, name: str, since: datetime, until: datetime) -> Audit:
        """The proof: every firing expected in [since, until) has exactly one recorded outcome, or these have not."""
        _, account, low, high = await self._account(name, None, since, until)
        expected, due, unexplained = 0, 0, []
        for line in await _counted(account.lines(low, high), MOST_PROVEN):
            expected += 1
            due += line.outcome == "due"
            if line.outcome == UNEXPLAINED:
                unexplained.append(line.scheduled_at)
        return Audit(expected, due, tuple(unexplained), tuple(sorted(account.doubles)))

    async def _account(
        self, name: str, at: datetime | None, since: datetime | None, until: datetime | None
    ) -> tuple[StoredJob, Account, datetime, datetime]:
        check(at=at, since=since, until=until)
        database = await self._app._database()
        stored = await self._find(OwnDoor(database), name)
        if at is not None:
            low, high = at, at + timedelta(seconds=1) if not at.microsecond else at + MOMENT
        else:
            low = since or stored.present - timedelta(days=1)
            high = until or stored.present
        if low >= high:
            raise InvalidOption("the period is empty: until must be after since")
        return stored, Account(await gather_facts(database, stored, low, high)), low, high


async def _ended(database: Database, runs: Sequence[tuple[int, datetime]], job: int | None) -> tuple[int, int]:
    row = await database.fetchrow("ended_runs", [run for run, _ in runs], [at for _, at in runs], job)
    assert row is not None
    return row["ended"], row["succeeded"]


async def _counted(lines: Iterator[Line], most: int) -> Lines:
    """All of them, unless they are too many; in a thread, since that takes seconds, in which others want to be served."""
    found = await asyncio.to_thread(list, islice(lines, most + 1))
    if len(found) > most:
        raise InvalidOption(f"the period has more than {most:,} firings; narrow it")
    return found
