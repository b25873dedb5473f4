"""The queue's statements as typed methods: claim, and the ways a claimed run leaves `running`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import asyncpg
import msgspec

from hourhand.core.errors import DatabaseUnavailable, StatementRefused
from hourhand.storage.database import Database, Link


class Claim:
    """A claimed run. Its token is what every later write must show."""

    __slots__ = (
        "alone", "attempt", "crashes", "errors", "expires_at", "gates", "job_number", "lane", "marked", "options", "payload", "queue",
        "run_number", "scheduled_at", "seq", "tags", "task", "token", "worker",
    )  # fmt: skip

    def __init__(self, row: Iterable[Any], queue: str, worker: int) -> None:
        (
            self.seq, self.run_number, self.token, self.task, self.payload, self.scheduled_at, self.attempt,
            self.crashes, self.lane, self.job_number, self.expires_at, self.tags, options, errors,
        ) = row  # fmt: skip
        self.queue = queue
        self.worker = worker
        self.options: dict[str, Any] | None = options and msgspec.json.decode(options)
        self.errors: list[dict[str, Any]] | None = errors and msgspec.json.decode(errors)
        self.alone = self.marked = options is not None and "overlap" in self.options
        """Its end may have to wait for somebody's open transaction: never in one statement with others."""
        self.gates: list[int] | None = None
        """Of an admitted run: where its end makes room."""

    seq: int
    run_number: int
    token: int
    task: str
    payload: str
    scheduled_at: datetime
    attempt: int
    crashes: int
    lane: int
    job_number: int | None
    expires_at: datetime | None
    tags: list[str] | None


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
        return [Claim(row, names[row[_LANE] // 4], worker) for row in rows]

    async def claim_parked(
        self, tasks: Sequence[str], lanes: Sequence[int], limit: int, worker: int, names: Mapping[int, str], version: int,
        *, probation: bool,
    ) -> list[Claim]:  # fmt: skip
        rows = await self._link.fetch("claim_parked", tasks, lanes, limit, worker, probation, version)
        return [Claim(row, names[row[_LANE] // 4], worker) for row in rows]

    async def make_queues(self, names: Sequence[str]) -> None:
        await self._link.fetch("make_queues", names)

    async def survey(self, tasks: Sequence[str], lows: Numbers) -> Survey:
        """`lows`: by lane, from which place on there may be work."""
        return Survey(await self._link.fetch("survey", tasks, lows))

    async def finish(
        self, worker: int, runs: Numbers, tokens: Numbers, started: Maybe, finished: Sequence[float],
        outcomes: Maybe, results: Maybe, errors: Maybe, reasons: Maybe, onward: Maybe = None,
    ) -> list[int]:  # fmt: skip
        rows = await self._link.fetch(
            "finish", worker, runs, tokens, started, finished, outcomes, results, errors, reasons, onward
        )
        return [row[0] for row in rows]

    async def retry(
        self, worker: int, runs: Numbers, tokens: Numbers, delays: Sequence[float], started: Maybe, errors: Maybe
    ) -> list[int]:
        return [row[0] for row in await self._link.fetch("retry", worker, runs, tokens, delays, started, errors)]

    async def bury(self, worker: int, runs: Numbers, tokens: Numbers, started: Maybe, errors: Maybe, reasons: Maybe) -> list[int]:
        return [row[0] for row in await self._link.fetch("bury", worker, runs, tokens, started, errors, reasons)]

    async def hand_back(self, worker: int, runs: Numbers, tokens: Numbers) -> list[int]:
        return [row[0] for row in await self._link.fetch("hand_back", worker, runs, tokens)]

    async def hand_back_strays(self, worker: int, known: Numbers) -> list[int]:
        rows = await self._link.fetch("strays", worker, known)
        return await self.hand_back(worker, [row[0] for row in rows], [row[1] for row in rows]) if rows else []

    async def overloaded(self, worker: int, limit: int) -> list[int]:
        return [row[0] for row in await self._link.fetch("overloaded", worker, limit)]

    async def give(self, worker: int, thief: int, limit: int, runs: Numbers, tokens: Numbers) -> tuple[set[int], set[int]]:
        """Which runs are the other's now, and which are still ours. What is in neither was lost before."""
        rows = await self._link.fetch("give", worker, thief, limit, runs, tokens)
        return {run for run, moved in rows if moved}, {run for run, moved in rows if not moved}

    async def gifts(self, worker: int, known: Numbers) -> list[Claim]:
        return [Claim(row[:-1], row[-1], worker) for row in await self._link.fetch("gifts", worker, known)]

    async def park(self, worker: int, runs: Numbers, tokens: Numbers, holds: Sequence[int | None]) -> list[int]:
        return [row[0] for row in await self._link.fetch("park", worker, runs, tokens, holds)]

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
