"""The queue's statements as typed methods: claim, and the ways a claimed run leaves `running`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import asyncpg
import msgspec

from hourhand.core.errors import DatabaseUnavailable, StatementRefused
from hourhand.storage.database import Database, Link


class Claim(msgspec.Struct, gc=False, eq=False):
    """A claimed run. Its token is what every later write must show.

    There are thousands of them at a time, and none is a part of a cycle: the garbage collector need not look at them.
    """

    seq: int
    run_number: int
    token: int
    task: str
    payload: str
    scheduled: float
    """The instant it is for, in seconds since the epoch; exact to the microsecond from 1698 to 2242. (Out of an answer of the
    database a datetime takes thirty times as long.)"""
    attempt: int
    crashes: int
    lane: int
    job_number: int | None
    expires_at: datetime | None
    tags: list[str] | None
    options: Any
    """A dict, or None."""
    errors: Any
    """A list of dicts, or None."""
    queue: str
    worker: int
    alone: bool = False
    """Its end may have to wait for somebody's open transaction: never in one statement with others."""
    marked: bool = False
    """Its end is to be noted: it is alone, or holds a slot of a limit."""
    gates: list[int] | None = None
    """Of an admitted run: where its end makes room."""

    @property
    def scheduled_at(self) -> datetime:
        return datetime.fromtimestamp(self.scheduled, UTC)

    def __repr__(self) -> str:
        """Not the payload: whoever prints what a frame holds is not to print that."""
        return f"<Claim of run {self.run_number}, task {self.task}>"


def read_claim(row: Iterable[Any], queue: str, worker: int) -> Claim:
    columns: tuple[Any, ...] = (*row, queue, worker)
    claim = Claim(*columns)
    if claim.options is not None:
        claim.options = msgspec.json.decode(claim.options)
        claim.alone = claim.marked = "overlap" in claim.options
    if claim.errors is not None:
        claim.errors = msgspec.json.decode(claim.errors)
    return claim


class Survey:
    """What the queues look like from a worker."""

    __slots__ = ("heads", "managed", "names", "open", "parked", "paused", "probation", "version")

    def __init__(self, rows: Sequence[asyncpg.Record]) -> None:
        self.names: dict[int, str] = {row["id"]: row["name"] for row in rows}
        self.paused = {row["id"] for row in rows if row["paused"]}
        self.managed = {row["id"] for row in rows if row["managed"]}
        self.heads = {row["id"] * 4 + place % 4: place // 4 for row in rows for place in row["waiting"]}
        """Where each lane that holds work begins."""
        self.open = {row["id"] * 4 + class_ for row in rows for class_ in row["open"]}
        """Lanes in which streams of a managed queue may be admitted from."""
        self.parked = {row["id"] for row in rows if row["parked"]}
        self.probation = {row["id"] for row in rows if row["probation"]}
        self.version: int | None = rows[0]["version"] if rows else None
        """Of the rules; None: there is no queue."""


class KeptLine(NamedTuple):
    """A line that a run has said. No two of a run have the same instant: by that one is known again."""

    run: int
    scheduled_at: datetime
    at: datetime
    attempt: int
    level: str
    text: str
    fields: str | None
    size: int
    """Bytes it takes in memory, about."""


_LANE = 8
_COLLISIONS = 5
Numbers = Sequence[int]
Maybe = Sequence[Any] | None


class QueueGateway:
    def __init__(self, link: Link) -> None:
        self._link = link

    async def claim(
        self, lanes: Numbers, lows: Numbers, limits: Numbers, worker: int, names: Mapping[int, str], version: int
    ) -> list[Claim]:
        """`version`: of the rules that the caller knows; by older ones nothing is claimed."""
        rows = await self._link.fetch("claim", lanes, lows, limits, worker, version)
        return [read_claim(row, names[row[_LANE] // 4], worker) for row in rows]

    async def claim_parked(
        self, tasks: Sequence[str], lanes: Sequence[int], limit: int, worker: int, names: Mapping[int, str], version: int,
        *, probation: bool,
    ) -> list[Claim]:  # fmt: skip
        rows = await self._link.fetch("claim_parked", tasks, lanes, limit, worker, probation, version)
        return [read_claim(row, names[row[_LANE] // 4], worker) for row in rows]

    async def make_queues(self, names: Sequence[str]) -> None:
        await self._link.fetch("make_queues", names)

    async def survey(self, tasks: Sequence[str], lows: Numbers) -> Survey:
        """`lows`: by lane, from which place on there may be work."""
        return Survey(await self._link.fetch("survey", tasks, lows))

    async def finish(
        self, worker: int, runs: Numbers, tokens: Numbers, started: Maybe, finished: Sequence[float],
        outcomes: Maybe, results: Maybe, errors: Maybe, reasons: Maybe, onward: Maybe = None,
    ) -> int:  # fmt: skip
        """How many of them were still ours to end."""
        return await self._link.write(
            "finish", worker, runs, tokens, started, finished, outcomes, results, errors, reasons, onward
        )

    async def finish_plain(self, worker: int, runs: Numbers, tokens: Numbers, started: Maybe, finished: Sequence[float]) -> int:
        return await self._link.write("finish_plain", worker, runs, tokens, started, finished)

    async def retry(
        self, worker: int, runs: Numbers, tokens: Numbers, delays: Sequence[float], started: Maybe, errors: Maybe
    ) -> int:
        return len(await self._link.fetch("retry", worker, runs, tokens, delays, started, errors))

    async def bury(self, worker: int, runs: Numbers, tokens: Numbers, started: Maybe, errors: Maybe, reasons: Maybe) -> int:
        return len(await self._link.fetch("bury", worker, runs, tokens, started, errors, reasons))

    async def hand_back(self, worker: int, runs: Numbers, tokens: Numbers) -> int:
        return len(await self._link.fetch("hand_back", worker, runs, tokens))

    async def hand_back_strays(self, worker: int, known: Numbers) -> int:
        rows = await self._link.fetch("strays", worker, known)
        return await self.hand_back(worker, [row[0] for row in rows], [row[1] for row in rows]) if rows else 0

    async def overloaded(self, worker: int, limit: int) -> list[int]:
        return [row[0] for row in await self._link.fetch("overloaded", worker, limit)]

    async def give(self, worker: int, thief: int, limit: int, runs: Numbers, tokens: Numbers) -> tuple[set[int], set[int]]:
        """Which runs are the other's now, and which are still ours. What is in neither was lost before."""
        rows = await self._link.fetch("give", worker, thief, limit, runs, tokens)
        return {run for run, moved in rows if moved}, {run for run, moved in rows if not moved}

    async def gifts(self, worker: int, known: Numbers) -> list[Claim]:
        return [read_claim(row[:-1], row[-1], worker) for row in await self._link.fetch("gifts", worker, known)]

    async def park(self, worker: int, runs: Numbers, tokens: Numbers, holds: Sequence[int | None]) -> int:
        return len(await self._link.fetch("park", worker, runs, tokens, holds))

    async def report_progress(self, runs: Numbers, data: Sequence[str]) -> None:
        await self._link.fetch("report_progress", runs, data)

    async def keep_lines(self, lines: Sequence[KeptLine], most: int, *, again: bool) -> None:
        """`again`: it is not known whether they were written before; those that were are not written a second time."""
        *columns, _sizes = (list(column) for column in zip(*lines, strict=True))
        for _ in range(_COLLISIONS):
            try:
                await self._link.fetch("keep_lines", *columns, most, again)
                return
            except StatementRefused as error:
                if not isinstance(error.__cause__, asyncpg.UniqueViolationError):
                    raise
        raise DatabaseUnavailable("another worker, with another attempt, keeps writing lines of the same run")

    async def notify(self, words: Sequence[str]) -> None:
        await self._link.fetch("notify", words)

    async def close(self) -> None:
        await self._link.close()


def queue_gateway(database: Database, purpose: str, lock_timeout: float | None = None) -> QueueGateway:
    return QueueGateway(database.link(purpose, lock_timeout))
