"""One look at everything: what `hourhand top` asks, through verbs that a server has as well."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hourhand.core.clock import Clock
from hourhand.core.errors import Forbidden
from hourhand.surfaces.views import FINISHED, NodeView, QueueView, RunView

MOST_RUNNING = 100
MOST_RECENT = 100
# Of what is ready, the queues say how much it is; a backlog would push everything else from the list.
RECENT = ("delayed", "parked", *FINISHED)


@dataclass(frozen=True, slots=True)
class Survey:
    at: datetime
    monotonic: float
    queues: list[QueueView]
    runs: list[RunView]
    """Those that are running, then the newest others."""
    nodes: list[NodeView]
    rates: dict[str, float] = field(default_factory=dict)
    """By queue: how much more is waiting than at the look before, a second. Empty at the first look."""
    ended: float | None = None
    """Runs that ended, a second, over the last five minutes."""
    failed: float | None = None
    """Attempts that failed, the same way."""

    @property
    def waiting(self) -> int:
        return sum(waiting_in(one) for one in self.queues)

    @property
    def running(self) -> int:
        return sum(one.running for one in self.queues)

    @property
    def dead(self) -> int:
        return sum(one.dead for one in self.queues)

    def to_dict(self) -> dict[str, Any]:
        figures = {"waiting": self.waiting, "running": self.running, "dead": self.dead}
        return {"at": self.at, **figures, "ended_per_second": self.ended, "failed_per_second": self.failed}


async def look(app: Any, before: Survey | None = None) -> Survey:
    """One statement after the other: whoever looks on should be the least of a database's worries."""
    queues = await app.queues.list()
    running = await app.runs.list(state="running", limit=MOST_RUNNING)
    recent = await app.runs.list(state=list(RECENT), limit=MOST_RECENT)
    nodes = await _nodes(app)
    figures = await app.statistics.queues()
    now = Clock.monotonic()
    # Between the two lists a run may have ended: it is shown as what it was last.
    ended = {one.run_id for one in recent}
    runs = [*(one for one in running if one.run_id not in ended), *recent]
    ended, failed = sum(one.ended_per_second for one in figures), sum(one.failed_per_second for one in figures)
    return Survey(Clock().instant(), now, queues, runs, nodes, _rates(queues, now, before), ended, failed)


async def _nodes(app: Any) -> list[NodeView]:
    try:
        return list(await app.nodes.list())
    except Forbidden:
        # With a key for a part of everything, that part is shown.
        return []


def waiting_in(queue: QueueView) -> int:
    return queue.ready + queue.delayed + queue.parked


def _rates(queues: list[QueueView], now: float, before: Survey | None) -> dict[str, float]:
    if before is None or now <= before.monotonic:
        return {}
    then = {one.name: waiting_in(one) for one in before.queues}
    return {one.name: (waiting_in(one) - then.get(one.name, 0)) / (now - before.monotonic) for one in queues}
