"""What the verbs answer with: plain objects that print, compare and turn into JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, overload

import asyncpg
import msgspec

from hourhand.core import ids
from hourhand.core.chain import map_steps
from hourhand.core.fairness import priority_of, queue_of
from hourhand.core.redaction import Clean, marks_in, redact, scrub_values, scrubber
from hourhand.core.sealing import Sealer

FINISHED = ("succeeded", "dead", "cancelled", "skipped", "expired", "lost")
STATES = ("ready", "delayed", "parked", "running", *FINISHED)


@dataclass(frozen=True, slots=True)
class RunView:
    """A run, in whatever state it is."""

    run_id: str
    state: str
    task: str
    queue: str
    priority: str
    attempt: int
    scheduled_at: datetime
    job_id: str | None = None
    enqueued_at: datetime | None = None
    due_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    expires_at: datetime | None = None
    node: int | None = None
    key: str | None = None
    tags: tuple[str, ...] = ()
    payload: Any = None
    options: dict[str, Any] | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    result: Any = None
    progress: dict[str, Any] | None = None
    reason: str | None = None

    @property
    def finished(self) -> bool:
        return self.state in FINISHED

    @classmethod
    def of(cls, row: asyncpg.Record, queues: dict[int, str], sealer: Sealer, state: str | None = None) -> RunView:
        """Opened, where this process has the key; otherwise a word takes the place of what is encrypted."""
        have = dict(row)
        lane = have["lane"]
        plain = {
            name: have[name]
            for name in ("task", "attempt", "scheduled_at", "enqueued_at", "due_at", "started_at", "finished_at",
                         "expires_at", "node", "key", "reason")
            if name in have
        }  # fmt: skip
        decoded = {
            name: msgspec.json.decode(have[name])
            for name in ("payload", "options", "errors", "result", "progress")
            if have.get(name) is not None
        }
        if "payload" in decoded:
            decoded["payload"] = sealer.shown(decoded["payload"], have["task"])
        if "options" in decoded:
            decoded["options"] = sealer.show_steps(decoded["options"])
        return cls(
            run_id=ids.run_id(have["run_id"]),
            job_id=None if have["job_id"] is None else ids.encode("j", have["job_id"]),
            state=state or have["state"],
            queue=queues.get(queue_of(lane), "?"),
            priority=priority_of(lane),
            tags=tuple(have["tags"] or ()),
            **plain,
            **decoded,
        )

    def redacted(self, names: Sequence[str] = ()) -> RunView:
        """As it may be shown: without the values of secret fields, wherever they would be told. `names` are secret at any depth."""
        marks = marks_in(self.options)
        clean = scrubber(self.payload, marks, names)
        return replace(
            self, payload=redact(self.payload, marks, names), options=_redacted_steps(self.options, names, clean),
            errors=scrub_values(self.errors, clean), result=scrub_values(redact(self.result, marks, names), clean),
            progress=scrub_values(redact(self.progress, marks, names), clean), reason=scrub_values(self.reason, clean),
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _redacted_steps(options: dict[str, Any] | None, names: Sequence[str], clean: Clean | None) -> dict[str, Any] | None:
    def hidden(step: dict[str, Any]) -> dict[str, Any]:
        payload = redact(step.get("payload"), marks_in(step.get("options")), names)
        return {**step, "payload": scrub_values(payload, clean)}

    return map_steps(options, hidden)


@dataclass(frozen=True, slots=True)
class LineView:
    """What a run said."""

    number: int
    """Grows from line to line, over all attempts."""
    at: datetime
    attempt: int
    level: str
    """`debug` to `critical`; `stdout` or `stderr` for what a program printed."""
    text: str
    fields: dict[str, Any] | None = None

    @classmethod
    def of(cls, row: asyncpg.Record) -> LineView:
        fields = None if row["fields"] is None else msgspec.json.decode(row["fields"])
        return cls(row["number"], row["at"], row["attempt"], row["level"], row["text"], fields)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class QueueView:
    name: str
    paused_at: datetime | None
    ready: int
    delayed: int
    parked: int
    running: int
    dead: int
    oldest_seconds: float | None
    """How long the run at the head of a lane has been due."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class NodeView:
    node: int
    kind: str
    name: str
    state: str
    started_at: datetime
    lease_until: datetime
    session: bool
    skew: float | None
    running: int
    shards: int
    """Of a scheduler: how many of the 256 parts of all jobs it fires."""
    info: dict[str, Any]
    stopped_at: datetime | None
    died_at: datetime | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ShardView:
    shard: int
    node: int | None
    node_name: str | None
    epoch: int
    taken_at: datetime | None
    schedules: int
    next_run_at: datetime | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class JobView:
    """A job, and when it fires next."""

    job_id: str
    name: str
    state: str
    """`active`, `paused` or `finished`."""
    task: str
    schedule: str
    timezone: str
    in_words: str
    next_run_at: datetime | None
    queue: str
    priority: str
    payload: Any
    dst: str
    anchor: datetime | None
    missed_window: str
    max_missed: int
    misfire_grace: float
    overlap: str
    flexible_window: float
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    fired: int | None
    """How many of `max_runs` it has had."""
    max_attempts: int | None
    timeout: float | None
    delivery: str | None
    """None: as its task says."""
    retry_backoff: str | None
    retry_base: float | None
    retry_cap: float | None
    idempotency_key_template: str | None
    tags: tuple[str, ...]
    then: tuple[str, ...]
    """The tasks that follow a success, in order."""
    declared_by: str | None
    created_at: datetime
    updated_at: datetime
    active_since: datetime
    paused_at: datetime | None
    version: int
    shard: int
    outcome: str | None = None
    """Of `add` and `update`: `added`, `unchanged` or `replaced`."""
    secret: tuple[str, ...] = ()
    """Paths of the fields of its payload that are not to be shown."""

    def redacted(self, names: Sequence[str] = ()) -> JobView:
        """As it may be shown: without the values of secret fields. `names` are secret at any depth."""
        return replace(self, payload=redact(self.payload, self.secret or (), names))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Triggered:
    run_id: str | None
    outcome: str
    """`started`, `held` (it waits for the run before it), or `skipped` (that one has not ended)."""


@dataclass(frozen=True, slots=True)
class Resumed:
    job: JobView
    started: int
    """Runs for what was missed during the pause."""
    left_out: int


@dataclass(frozen=True, slots=True)
class BulkAdded:
    added: int
    replaced: int
    unchanged: int


@dataclass(frozen=True, slots=True)
class Audit:
    """Whether every firing that was expected of a job has exactly one recorded outcome."""

    expected: int
    due: int
    """Of these, how many have not been fired yet and are not overdue for good: a scheduler will come to them."""
    unexplained: tuple[datetime, ...]
    doubles: tuple[datetime, ...]

    @property
    def clean(self) -> bool:
        return not self.unexplained and not self.doubles


class EnqueuedRuns(Sequence[str]):
    """The ids of many runs, spelled out only when looked at."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return EnqueuedRuns(self._numbers[index])
        return ids.run_id(self._numbers[index])

    def __iter__(self) -> Iterator[str]:
        return map(ids.run_id, self._numbers)

    def __repr__(self) -> str:
        return f"<{len(self)} runs{f', {self[0]} to {self[-1]}' if self._numbers else ''}>"
