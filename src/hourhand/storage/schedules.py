"""The trigger layer's statements as typed methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from hourhand.core.schedule import Schedule
from hourhand.storage.database import Link


@dataclass(frozen=True, slots=True)
class ShardSurvey:
    live: list[int]
    owners: list[int | None]
    epochs: list[int]


@dataclass(frozen=True, slots=True)
class Hinted:
    """A schedule that may be due, as the database has it."""

    id: int
    shard: int
    schedule: Schedule
    due_at: datetime
    present: datetime


@dataclass(frozen=True, slots=True)
class Planned:
    """One schedule's firing: from which instant it moves, and to which."""

    id: int
    due_at: datetime
    next_at: datetime | None


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

    async def hinted_schedules(self, hints: Sequence[int]) -> list[Hinted]:
        return [
            Hinted(row[0], row[1], Schedule(*row[2:7]), row[7], row[8])
            for row in await self._link.fetch("hinted_schedules", hints)
        ]  # fmt: skip

    async def fire(self, node: int, epochs: dict[int, int], planned: Sequence[Planned]) -> set[int]:
        """The schedules that moved. What is missing was not ours, not due, or not where it was planned from."""
        rows = await self._link.fetch(
            "fire", node, list(epochs), list(epochs.values()),
            [one.id for one in planned], [one.due_at for one in planned], [one.next_at for one in planned],
        )  # fmt: skip
        return {row[0] for row in rows}

    async def fire_late(
        self, node: int, epochs: dict[int, int], planned: Planned, instants: Sequence[datetime], rate: float
    ) -> tuple[int, int] | None:
        """How many runs came of it, and for how many jobs something was left out; None if it did not move."""
        rows = await self._link.fetch(
            "fire_late", node, list(epochs), list(epochs.values()), planned.id, planned.due_at, planned.next_at, instants, rate
        )
        return (rows[0]["runs"], rows[0]["left_out"]) if rows else None

    async def close(self) -> None:
        await self._link.close()
