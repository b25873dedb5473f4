"""What a page about one run shows besides the run itself: its chain, its steps, its last lines, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from hourhand.core import ids
from hourhand.core.actor import ACTOR
from hourhand.core.fairness import queue_of
from hourhand.surfaces.verbs import Verbs
from hourhand.surfaces.views import LineView, RunView


@dataclass(frozen=True, slots=True)
class Link:
    """One run of a chain."""

    run_id: str
    state: str
    task: str


@dataclass(frozen=True, slots=True)
class StepDone:
    """What a retry does not repeat."""

    name: str
    made_at: datetime


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Of a run that has not started: what may keep it from it."""

    paused_at: datetime | None
    oldest_seconds: float | None
    """For how long the first run of its queue has been due."""
    workers: int
    """That serve its queue and live."""
    knowing: int
    """Of these, with the code of its task."""
    before: str | None
    """The run that has to end first."""


class RunInsight(Verbs):
    async def chain(self, run: RunView) -> list[Link]:
        """The runs of its chain that the caller may see, in order; empty if it belongs to none."""
        database = await self._open()
        numbers = [row["run_id"] for row in await database.fetch("chain_of", ids.parse_run_id(run.run_id))]
        if len(numbers) < 2:
            return []
        names, actor = await self._names(database), ACTOR.get()
        rows = {row["run_id"]: row for row in await database.fetch("find_states", numbers)}
        jobs = await self.job_names(ids.job_id(row["job_id"]) for row in rows.values() if row["job_id"] is not None)
        return [
            Link(ids.run_id(number), row["state"], row["task"])
            for number, row in ((number, rows[number]) for number in numbers if number in rows)
            if actor.may_touch(names.get(queue_of(row["lane"])), jobs.get(ids.job_id(row["job_id"] or 0)))
        ]

    async def job_names(self, job_ids: Iterable[str | None]) -> dict[str, str]:
        """Of the jobs that are still there, by id."""
        numbers = {ids.parse_job_id(one) for one in job_ids if one is not None} - {None}
        if not numbers:
            return {}
        rows = await (await self._open()).fetch("job_names", sorted(number for number in numbers if number is not None))
        return {ids.job_id(row["id"]): row["name"] for row in rows}

    async def node_names(self, nodes: Iterable[int | None]) -> dict[int, str]:
        """Of nodes that are on record. Not for who sees a part only: nodes serve everybody."""
        numbers = sorted({one for one in nodes if one is not None})
        if not numbers or ACTOR.get().scoped:
            return {}
        return {row["id"]: row["name"] for row in await (await self._open()).fetch("node_ends", numbers)}

    async def lines(self, run: RunView, start: int | None, count: int) -> tuple[list[LineView], int]:
        """So many of what it said, from line `start` on, or the last of them; and how many there are."""
        database = await self._open()
        number = ids.parse_run_id(run.run_id)
        total = await database.fetchval("last_line", number, run.scheduled_at) or 0
        after = max(0, total - count) if start is None else start - 1
        rows = await database.fetch("list_lines", number, run.scheduled_at, after, count) if total else []
        return [LineView.of(row) for row in rows], total

    async def steps(self, run: RunView) -> list[StepDone]:
        rows = await (await self._open()).fetch("steps_done", ids.parse_run_id(run.run_id))
        return [StepDone(row["name"], row["made_at"]) for row in rows]

    async def circumstances(self, run: RunView) -> Circumstances:
        database = await self._open()
        head = await database.fetchrow("head_of_queue", run.queue)
        serving = await database.fetchrow("serving", run.queue, run.task)
        before = None
        if run.state == "delayed" and run.due_at is None and run.job_id is not None:
            before = await database.fetchval("run_before", ids.parse_job_id(run.job_id))
        assert serving is not None
        return Circumstances(
            None if head is None else head["paused_at"], None if head is None else head["oldest_seconds"], serving["workers"],
            serving["knowing"], None if before is None else ids.run_id(before),
        )  # fmt: skip
