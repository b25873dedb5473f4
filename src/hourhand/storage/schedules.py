"""The trigger layer's statements as typed methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hourhand.core.schedule import Schedule
from hourhand.storage.database import Link


@dataclass(frozen=True, slots=True)
class ShardSurvey:
    live: list[int]
    owners: list[int | None]
    epochs: list[int]
    tzdata: list[str]


@dataclass(frozen=True, slots=True)
class Hinted:
    """A schedule that may be due, as the database has it."""

    id: int
    shard: int
    schedule: Schedule
    due_at: datetime
    revision: int
    present: datetime
    patience: float | None
    """How late the strictest of its jobs may fire before that counts as missed; 0 if that was not asked."""
    jobs: int
    """How many it has; of very many, so many at least."""

    def to(self, next_at: datetime | None, same: dict[object, Any] | None = None) -> Planned:
        """`same` is what plans that are kept have in common: they share it."""
        once: dict[object, Any] = {} if same is None else same
        due_at, patience = once.setdefault(self.due_at, self.due_at), once.setdefault(self.patience, self.patience)
        return Planned(self.id, due_at, once.setdefault(next_at, next_at), self.revision, self.jobs, patience, self.shard)


@dataclass(frozen=True, slots=True)
class Planned:
    """One schedule's firing: from which instant it moves, and to which."""

    id: int
    due_at: datetime
    next_at: datetime | None
    revision: int = 0
    jobs: int = 1
    patience: float | None = None
    shard: int = 0


@dataclass(frozen=True, slots=True)
class Late:
    """What came of firing one schedule late."""

    runs: int
    left_out: int
    """Jobs of the whole batch for which something was left out."""
    jobs: list[str] | None
    """A few of their names, if asked for."""
    missed: int = 0
    """Firings of its jobs that came later than their grace allows."""
    coalesced: int = 0
    """Of these, left out because the last one ran for all."""
    skipped: int = 0
    """Of these, left out altogether."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A job whose next firing moved with the rules of its time zone; or a schedule that has no job left."""

    schedule: int
    job: str | None
    before: datetime
    after: datetime


class ScheduleGateway:
    def __init__(self, link: Link) -> None:
        self._link = link

    async def survey_shards(self) -> ShardSurvey:
        return ShardSurvey(*(await self._link.fetch("survey_shards"))[0])

    async def take_shards(self, node: int, shards: Sequence[int], live: Sequence[int]) -> dict[int, int]:
        """The shards taken, each with the epoch it was taken under."""
        return dict(tuple(row) for row in await self._link.fetch("take_shards", node, shards, live))

    async def release_shards(self, node: int, shards: Sequence[int]) -> list[int]:
        return [row[0] for row in await self._link.fetch("release_shards", node, shards)]

    async def near_schedules(self, shards: Sequence[int], seconds: float) -> list[tuple[int, int, float]]:
        return [(row[0], row[1], row[2]) for row in await self._link.fetch("near_schedules", shards, seconds)]

    async def hinted_schedules(self, hints: Sequence[int], most_jobs: int) -> list[Hinted]:
        return [
            Hinted(row[0], row[1], Schedule(*row[2:7]), *row[7:])
            for row in await self._link.fetch("hinted_schedules", hints, most_jobs)
        ]  # fmt: skip

    async def fire(self, node: int, epochs: dict[int, int], planned: Sequence[Planned]) -> dict[int, int]:
        """The schedules that moved, and how many runs came of each. What is missing was not ours, not due, or not
        where it was planned from."""
        rows = await self._link.fetch(
            "fire", node, list(epochs), list(epochs.values()),
            [one.id for one in planned], [one.due_at for one in planned], [one.next_at for one in planned],
            [one.revision for one in planned],
        )  # fmt: skip
        return {row[0]: row[1] for row in rows}

    async def fire_late(
        self, node: int, epochs: dict[int, int], planned: Sequence[Planned], instants: Sequence[Sequence[datetime]], rate: float,
        *, names: bool = False,
    ) -> dict[int, Late]:  # fmt: skip
        """Schedules that move past several instants each; those that moved, and what came of it."""
        rows = await self._link.fetch(
            "fire_late", node, list(epochs), list(epochs.values()),
            [one.id for one in planned], [one.due_at for one in planned], [one.next_at for one in planned],
            [one.revision for one in planned], [one.id for one, many in zip(planned, instants, strict=True) for _ in many],
            [at for many in instants for at in many], rate, names,
        )  # fmt: skip
        return {row[0]: Late(*row[1:]) for row in rows}

    async def zoned_schedules(self, shard: int) -> list[tuple[int, Schedule, datetime, datetime]]:
        """Each with its next firing as it is stored, and the instant up to which everything has been fired."""
        rows = await self._link.fetch("zoned_schedules", shard)
        return [(row[0], Schedule(*row[1:6]), row[6], row[7]) for row in rows]

    async def move_schedules(
        self, node: int, shard: int, epoch: int, moves: Sequence[tuple[int, datetime, datetime]], release: str
    ) -> list[Moved]:
        columns = [list(column) for column in zip(*moves, strict=True)]
        return [Moved(*row) for row in await self._link.fetch("move_schedules", node, shard, epoch, *columns, release)]

    async def set_tzdata(self, node: int, shard: int, epoch: int, release: str) -> None:
        await self._link.fetch("set_tzdata", node, shard, epoch, release)

    async def close(self) -> None:
        await self._link.close()
