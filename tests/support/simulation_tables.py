"""The tables that firing touches, and its statements as they are in SQL: each one whole, or not at all.

Only `fire` and `fire_late` come in two halves. PostgreSQL reads the jobs as of the beginning of a statement, and compares the
rows that it changes as they are when it comes to them; in between somebody may change a job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from hourhand.core.account import Decision, Firing, Span
from hourhand.core.errors import LockTimeout, StatementRefused
from hourhand.core.schedule import Schedule

Row = tuple[Any, ...]
SHARDS = 12
"""Fewer than there are: more happens in each of them."""
SECOND = timedelta(seconds=1)


@dataclass(slots=True)
class NodeRow:
    id: int
    lease_until: datetime
    session: bool = False
    lock: object | None = None
    """Whose session holds the node's lock."""
    stopped_at: datetime | None = None
    died_at: datetime | None = None


@dataclass(slots=True)
class ShardRow:
    owner: int | None = None
    epoch: int = 0
    tzdata: str = ""


@dataclass(slots=True)
class ScheduleRow:
    id: int
    shard: int
    schedule: Schedule
    next_run_at: datetime | None
    revision: int = 0


@dataclass(frozen=True, slots=True)
class JobRow:
    id: int
    schedule_id: int
    active_since: datetime
    missed_window: str
    max_missed: int
    misfire_grace: float
    max_runs: int | None = None
    paused_at: datetime | None = None
    start_at: datetime | None = None
    end_at: datetime | None = None

    @property
    def shard(self) -> int:
        return self.id * 7 % SHARDS

    def takes_part(self, at: datetime) -> bool:
        return (
            self.active_since <= at
            and (self.paused_at is None or self.paused_at > at)
            and (self.start_at is None or self.start_at <= at)
            and (self.end_at is None or self.end_at > at)
        )


@dataclass(frozen=True, slots=True)
class Planned:
    id: int
    due_at: datetime
    next_at: datetime | None
    revision: int


@dataclass(slots=True)
class Begun:
    """A firing statement that has read what it reads, and holds the shards it has found to be its own."""

    node: int
    started_at: datetime
    fence: dict[int, int]
    planned: list[Planned]
    jobs: dict[int, list[JobRow]]
    instants: dict[int, list[datetime]] | None


@dataclass(frozen=True, slots=True)
class Fired:
    """What a statement did to one schedule, for who judges it."""

    shard: int
    owner: int | None
    started_at: datetime
    firing: Firing
    runs: dict[int, list[datetime]]


@dataclass(slots=True)
class Tables:
    now: datetime
    """The database's clock."""
    asker: Any = None
    """Whose statement this is. Nothing here asks."""
    nodes: dict[int, NodeRow] = field(default_factory=dict)
    shards: list[ShardRow] = field(default_factory=lambda: [ShardRow() for _ in range(SHARDS)])
    schedules: dict[int, ScheduleRow] = field(default_factory=dict)
    identities: dict[tuple[int, Schedule], int] = field(default_factory=dict)
    last_schedule: int = 0
    jobs: dict[int, JobRow] = field(default_factory=dict)
    jobs_of: dict[int, dict[int, JobRow]] = field(default_factory=lambda: defaultdict(dict))
    firings: dict[int, dict[datetime, Firing]] = field(default_factory=lambda: defaultdict(dict))
    runs: dict[int, list[datetime]] = field(default_factory=lambda: defaultdict(list))
    decisions: dict[int, dict[tuple[datetime, str], Decision]] = field(default_factory=lambda: defaultdict(dict))
    spans: dict[int, list[Span]] = field(default_factory=lambda: defaultdict(list))
    counters: dict[int, tuple[int, datetime]] = field(default_factory=dict)
    loose: list[int] = field(default_factory=list)
    held: set[int] = field(default_factory=set)
    """Schedules whose row somebody's open transaction has changed."""
    words: list[str] = field(default_factory=list)
    journal: list[Fired | tuple[int, datetime]] = field(default_factory=list)
    """What was fired, and before it each run that came of it, by job and instant; also the runs that came otherwise."""

    def clock(self) -> datetime:
        return self.now

    # Nodes

    def connect(self) -> list[Row]:
        return []

    def register_node(self, _kind: str, _name: str, lease: float, session: bool, _info: str) -> list[Row]:
        number = len(self.nodes) + 1
        self.nodes[number] = NodeRow(number, self.now + lease * SECOND, session)
        return [(number,)]

    def lock_node(self, number: int, session: object) -> list[Row]:
        node = self.nodes[number]
        node.lock = node.lock or session
        return [(node.lock is session,)]

    def heartbeat(self, number: int, lease: float, session: bool) -> list[Row]:
        node = self.nodes[number]
        if node.died_at is not None:
            return []
        node.lease_until, node.session = self.now + lease * SECOND, session
        return [(self.now.timestamp(), [])]

    def stop_node(self, number: int) -> list[Row]:
        self.nodes[number].stopped_at = self.nodes[number].stopped_at or self.now
        return []

    def declare_dead(self, number: int) -> bool:
        node = self.nodes[number]
        if node.stopped_at or node.died_at or not (node.lease_until < self.now or (node.session and node.lock is None)):
            return False
        node.died_at = self.now
        return True

    def alive(self, node: NodeRow) -> bool:
        lives = node.stopped_at is None and node.died_at is None and node.lease_until > self.now
        return lives and not (node.session and node.lock is None)

    # Shards

    def survey_shards(self) -> list[Row]:
        live = [number for number, node in self.nodes.items() if self.alive(node)]
        owners, epochs = [one.owner for one in self.shards], [one.epoch for one in self.shards]
        return [(live, owners, epochs, [one.tzdata for one in self.shards])]

    def take_shards(self, number: int, shards: Sequence[int], live: Sequence[int]) -> list[Row]:
        taken: list[Row] = []
        node = self.nodes[number]
        for shard in shards if node.died_at is None and node.stopped_at is None else ():
            row = self.shards[shard]
            if row.owner is None or row.owner not in live:
                row.owner, row.epoch = number, row.epoch + 1
                taken.append((shard, row.epoch))
        return taken

    def release_shards(self, number: int, shards: Sequence[int]) -> list[Row]:
        released = [shard for shard in shards if self.shards[shard].owner == number]
        for shard in released:
            row = self.shards[shard]
            row.owner, row.epoch = None, row.epoch + 1
            self.words.append("o")
        return [(shard, None) for shard in released]

    def set_tzdata(self, number: int, shard: int, epoch: int, release: str) -> list[Row]:
        row = self.shards[shard]
        if row.epoch == epoch and row.owner == number:
            row.tzdata = release
        return []

    # What is due

    def near_schedules(self, shards: Sequence[int], seconds: float) -> list[Row]:
        mine, horizon = set(shards), self.clock() + seconds * SECOND
        return [
            (one.id, one.shard, one.next_run_at.timestamp())
            for one in self.schedules.values()
            if one.shard in mine and one.next_run_at is not None and one.next_run_at <= horizon
        ]

    def hinted_schedules(self, hints: Iterable[int], most_jobs: int) -> list[Row]:
        present, found = self.clock(), list[Row]()
        for hint in hints:
            row = self.schedules.get(hint)
            if row is None or row.next_run_at is None:
                continue
            jobs, patience = min(most_jobs, len(self.jobs_of[row.id])), 0.0
            if row.next_run_at < present - SECOND or 1 <= jobs <= 100:
                patience = min((job.misfire_grace for job in self.jobs_of[row.id].values()), default=None)
            one = row.schedule
            known = (one.kind, one.expression, one.timezone, one.dst, one.anchor)
            found.append((row.id, row.shard, *known, row.next_run_at, row.revision, present, patience, jobs))
        return found

    # Firing

    def fence(self, node: int, shards: Sequence[int], epochs: Sequence[int]) -> dict[int, int]:
        held = zip(shards, epochs, strict=True)
        return {shard: epoch for shard, epoch in held if self.shards[shard].owner == node and self.shards[shard].epoch == epoch}

    def may_move(self, row: ScheduleRow, one: Planned) -> bool:
        return row.revision == one.revision and row.next_run_at == one.due_at and one.due_at <= self.clock()

    def may_be_late(self, begun: Begun, one: Planned) -> bool:
        """As late as it is, or it is for `fire_late`."""
        late = (begun.started_at - one.due_at) / SECOND
        return begun.instants is not None or late < 1 or all(late <= job.misfire_grace for job in begun.jobs[one.id])

    def fired_before(self, schedule: int, at: datetime) -> bool:
        return at in self.firings[schedule]

    def begin(self, statement: str, arguments: Sequence[Any]) -> Begun:
        node, shards, epochs, *plans = arguments[:7]
        planned = [Planned(*one) for one in zip(*plans, strict=True)]
        instants = None
        if statement == "fire_late":
            instants = defaultdict(list)
            for schedule, at in zip(arguments[7], arguments[8], strict=True):
                instants[schedule].append(at)
        jobs = {one.id: list(self.jobs_of[one.id].values()) for one in planned}
        return Begun(node, self.now, self.fence(node, shards, epochs), planned, jobs, instants)

    def finish(self, begun: Begun) -> list[Row]:
        moving = list[tuple[ScheduleRow, Planned]]()
        for one in begun.planned:
            row = self.schedules.get(one.id)
            if row is not None and row.shard in begun.fence and self.may_move(row, one) and self.may_be_late(begun, one):
                if row.id in self.held:
                    raise LockTimeout("somebody's open transaction is in the way")
                moving.append((row, one))
        if any(self.fired_before(row.id, one.due_at) for row, one in moving):
            raise StatementRefused("duplicate key value violates unique constraint")
        return [self._fire(begun, row, one) for row, one in moving]

    def _fire(self, begun: Begun, row: ScheduleRow, one: Planned) -> Row:
        row.next_run_at = one.next_at
        late = begun.instants is not None
        instants = sorted(set(begun.instants[one.id])) if begun.instants is not None else [one.due_at]
        runs = {}
        for job in sorted(begun.jobs[one.id], key=lambda job: job.id):
            mine = [at for at in instants if job.takes_part(at)]
            chosen = self.make_up(job, mine, job.missed_window, job.misfire_grace, begun.started_at) if late else mine
            started = [at for at in chosen if self.fire_one(job, at)]
            if started:
                runs[job.id] = started
        made, epoch = sum(map(len, runs.values())), begun.fence[row.shard]
        entry = Firing(row.id, one.due_at, instants[-1], self.now, epoch, len(instants), begun.node, made, late, None)
        self.firings[row.id][one.due_at] = entry
        self.journal.append(Fired(row.shard, self.shards[row.shard].owner, begun.started_at, entry, runs))
        return (row.id, made, 0, []) if late else (row.id, made)

    def make_up(self, job: JobRow, instants: Sequence[datetime], policy: str, grace: float, present: datetime) -> list[datetime]:
        """What is within the grace runs; of what is older, the policy decides, and what is left out is on record."""
        missed = sorted((at for at in instants if at < present - grace * SECOND), reverse=True)
        most = {"SKIP": 0, "RUN_ONCE": 1, "RUN_ALL": job.max_missed}[policy]
        if left_out := missed[most:]:
            outcome = "coalesced" if policy == "RUN_ONCE" else "skipped"
            decision = Decision(left_out[-1], left_out[0], self.now, None, len(left_out), outcome, "missed")
            self.decisions[job.id].setdefault((decision.scheduled_at, outcome), decision)
        return sorted({*missed[:most], *(at for at in instants if at >= present - grace * SECOND)})

    def fire_one(self, job: JobRow, at: datetime) -> bool:
        if job.max_runs is not None:
            fired, _ = self.counters.get(job.id, (0, at))
            if fired >= job.max_runs:
                return False
            self.counters[job.id] = (fired + 1, at)
        self.runs[job.id].append(at)
        self.journal.append((job.id, at))
        return True
