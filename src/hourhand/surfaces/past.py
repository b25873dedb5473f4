"""A job's past: what became of it, and running parts of it again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from hourhand.core import ids
from hourhand.core.account import MOMENT, Decision, Facts, Firing, Span, Trace
from hourhand.core.errors import InvalidOption
from hourhand.core.schedule import Schedule
from hourhand.storage.database import Database
from hourhand.surfaces.stored import EVER, StoredJob
from hourhand.surfaces.verbs import check


@dataclass(slots=True)
class Backfill:
    """A backfill as it goes: what was planned, and what has become of it."""

    job: str
    instants: list[datetime]
    """What is to run, in the order in which it will start."""
    ran_already: int
    """Instants left out because a run of theirs has succeeded, or is still to end."""
    asked_already: int
    """Instants left out because an earlier backfill has them."""
    runs: list[tuple[int, datetime]]
    dry_run: bool
    succeeded: int = 0
    ended: int = 0

    @property
    def run_ids(self) -> list[str]:
        return [ids.run_id(number) for number, _ in self.runs]


def check_backfill(*, cap: int, rate: float, order: str) -> None:
    if order not in ("oldest", "newest"):
        raise InvalidOption(f"order must be oldest or newest, not {order!r}")
    if not 1 <= cap <= 1_000_000 or not 0 < rate <= 100_000:
        raise InvalidOption("cap must be from 1 to 1000000, and rate above 0 and at most 100000 a second")


async def plan_backfill(
    database: Database, stored: StoredJob, since: datetime, until: datetime, *, cap: int, rate: float, order: str, again: bool
) -> Backfill:
    """The instants of a period that are to run, and why the others are not."""
    check(since=since, until=until)
    check_backfill(cap=cap, rate=rate, order=order)
    job = stored.definition
    until = min(until, stored.present)
    low = max(one for one in (since, job.start_at) if one is not None)
    high = min(one for one in (until, job.end_at) if one is not None)
    if low >= high:
        raise InvalidOption("the period is empty: until must be after since, and both within the past and the job's own limits")
    # In a thread: of very many this takes seconds, in which others want to be served.
    instants = await asyncio.to_thread(list, islice(job.schedule.firings(low - MOMENT, high - MOMENT), cap + 1))
    if len(instants) > cap:
        raise InvalidOption(f"the period has more than {cap} firings; narrow it, or raise the cap")
    ran = asked = 0
    if not again:
        done = {row[0] for row in await database.fetch("settled_instants", stored.number, low, high)}
        wanted = {row[0] for row in await database.fetch("backfilled", stored.number, low, high)}
        ran, asked = len(done.intersection(instants)), len((wanted - done).intersection(instants))
        instants = [one for one in instants if one not in done and one not in wanted]
    if order == "newest":
        instants.reverse()
    return Backfill(job.name, instants, ran, asked, [], False)


async def gather_facts(database: Database, stored: StoredJob, low: datetime, high: datetime) -> Facts:
    """What is on record about a job in a period."""
    number, job = stored.number, stored.definition
    spans = [
        Span(row[0], row[1], row[2], row[3], Schedule(*row[4:9]), row[9], row[10])
        for row in await database.fetch("job_spans", number, low, high)
    ]
    begin = stored.active_since
    if stored.paused_at is not None:
        spans.append(Span(begin, stored.paused_at, stored.schedule_id, False, job.schedule, job.start_at, job.end_at))
        spans.append(Span(stored.paused_at, None, stored.schedule_id, True, job.schedule, job.start_at, job.end_at))
    else:
        spans.append(Span(begin, None, stored.schedule_id, False, job.schedule, job.start_at, job.end_at))
    # The ledger first: a run that ends meanwhile moves on to the history, and is found there.
    firings = [Firing(*row) for row in await database.fetch("ledger", sorted({one.schedule_id for one in spans}), low, high)]
    decisions = [Decision(*row) for row in await database.fetch("job_decisions", number, low, high)]
    traces = [Trace(*row) for row in await database.fetch("job_traces", number, low, high)]
    # As the schedule stood before the ledger was read, or later: what it says is due was due then.
    row = await database.fetchrow("find_job", stored.definition.name, None)
    again = stored if row is None else StoredJob.of(row[0], database.sealer)
    known = {one.since: await database.fetchval("first_known", number, one.since) for one in spans}
    done = job.max_runs is not None and (again.fired or 0) >= job.max_runs
    nodes = sorted({one.node for one in firings})
    return Facts(
        spans, traces, decisions, firings, stored.present, stored.next_run_at, again.last_at if done else None,
        await database.fetchval("oldest_history") or EVER, await database.fetchval("schedulers_alive"),
        {row["id"]: (row["name"], row["stopped_at"], row["died_at"]) for row in await database.fetch("node_ends", nodes)}, known,
    )  # fmt: skip


def not_expected(stored: StoredJob, at: datetime) -> str:
    job, after = stored.definition, stored.definition.schedule.next_after(at)
    text = f"job {job.name!r} ({job.schedule.in_words()}) was not expected to fire at {at.isoformat()}"
    if at < stored.created_at:
        return f"{text}: it was added at {stored.created_at.isoformat(timespec='seconds')}"
    return f"{text}; the next after it is {after.isoformat()}" if after else text
