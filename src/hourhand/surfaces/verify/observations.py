"""What was seen, from outside, of a fleet under faults: all that the checks go by."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from hourhand.surfaces.verify.oracle import Job
from hourhand.surfaces.verify.sink import Event

OUTCOMES = ("succeeded", "dead", "cancelled", "skipped", "expired", "lost")


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that ended, from the history or the dead letters."""

    run_id: str
    job: str | None
    task: str
    scheduled_at: datetime
    finished_at: datetime
    outcome: str
    attempt: int
    max_attempts: int
    """The limit that holds for it, its own, its job's or its task's."""
    enqueued_at: datetime | None = None
    started_at: datetime | None = None
    errors: int = 0
    worker_id: int | None = None
    crashes: int = 0
    key: str | None = None
    by_hand: bool = False
    """Triggered or backfilled: no schedule asked for it."""


class Sighting(NamedTuple):
    """A run that was seen in a terminal state while the workload went on."""

    at: datetime
    run_id: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Firing:
    schedule_id: int
    shard: int
    scheduled_at: datetime
    fired_at: datetime
    epoch: int
    node: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Windows that the product says it left out on purpose, from an instant to another, both included."""

    job: str
    scheduled_at: datetime
    until: datetime
    count: int
    outcome: str
    reason: str
    decided_at: datetime | None = None
    """If known, nothing that was within the job's grace at this moment may be called missed."""


@dataclass(frozen=True, slots=True)
class EffectRow:
    """A row by which the product knows that an exactly-once run has had its effect."""

    token: str
    run_id: str


@dataclass(frozen=True, slots=True)
class Transfer:
    """A row of a user's table, written by the handler of an exactly-once run."""

    run_id: str
    token: str
    fence: int
    amount: int
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class FaultTrace:
    """That a fault has happened: how often it was injected, and what could be seen of it, by name."""

    injected: int
    effects: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Observations:
    until: datetime
    """No window is expected from this instant on; a job's own end may be earlier."""
    ended_at: datetime
    """When the last look was taken, after everything had time to recover: what has not begun by then is missed."""
    jobs: list[Job] = field(default_factory=list)
    runs: list[FinishedRun] = field(default_factory=list)
    accepted: dict[str, str] = field(default_factory=dict)
    """Runs that were enqueued directly, by id, and how each is delivered."""
    unknown: dict[str, str] = field(default_factory=dict)
    """Keys of enqueues whose answer was lost, and how the run, if there is one, is delivered."""
    leftovers: dict[str, int] = field(default_factory=dict)
    dead_rows: Counter[str] = field(default_factory=Counter)
    terminal_sightings: list[Sighting] = field(default_factory=list)
    firings: list[Firing] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    effects: list[EffectRow] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    balances: dict[str, int] = field(default_factory=dict)
    initial_balances: dict[str, int] = field(default_factory=dict)
    node_ends: dict[int, float] = field(default_factory=dict)
    """When each node that ended was declared dead, or stopped (seconds since the epoch)."""
    refusals: int = 0
    """Writes that the product itself turned away: a lost claim, an old epoch."""
    steady: frozenset[str] = frozenset()
    """Tasks that never fail by themselves: none of their runs needs a second attempt, whoever dies beside it."""
    ended_by_themselves: list[str] = field(default_factory=list)
    """Processes that ended though nobody had ended them, and how."""
    faults: tuple[str, ...] = ()
    """Those that were asked for."""
    traces: dict[str, FaultTrace] = field(default_factory=dict)
    injections: dict[str, int] = field(default_factory=dict)
    """How often each single kind of fault was injected, where one word stands for several."""
    recoveries: dict[str, list[float]] = field(default_factory=dict)
    """For each fault, how many seconds passed until all was well again."""
    clock_tolerance: float = 0.0
    """Seconds by which the sink's clock may be behind the database's."""

    @property
    def initial_total(self) -> int:
        return sum(self.initial_balances.values())

    def deliveries(self) -> dict[str, str]:
        """How each run is delivered, by id: as it was asked for, not as the product says."""
        of_job = {job.name: job.delivery for job in self.jobs}
        found = {}
        for run in self.runs:
            delivery = (
                of_job.get(run.job) if run.job is not None else self.accepted.get(run.run_id) or self.unknown.get(run.key or "")
            )
            if delivery is not None:
                found[run.run_id] = delivery
        return found


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not be."""

    check: str
    subject: str
    message: str


def stamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
