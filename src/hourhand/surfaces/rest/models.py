"""The shapes of requests and answers, as the OpenAPI document shows them."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field


def _written(value: Any) -> Any:
    """Only what is written as an instant: a number, or text that is one, would be taken for seconds since 1970."""
    if isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\d", value):
        return datetime.fromisoformat(value)
    raise ValueError("write an instant as 2027-01-01T09:00:00Z")


Instant = Annotated[AwareDatetime, BeforeValidator(_written)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$", max_length=100)]
Seconds = Annotated[float, Field(gt=0, lt=10**9)]
Zero = Annotated[float, Field(ge=0, lt=10**9)]
Tag = Annotated[str, Field(min_length=1, max_length=100)]
Tags = Annotated[list[Tag], Field(max_length=20)]
Path = Annotated[str, Field(min_length=1, max_length=200)]
Priority = Literal["high", "normal", "low"]
Delivery = Literal["at_least_once", "at_most_once", "exactly_once"]
Missed = Literal["SKIP", "RUN_ONCE", "RUN_ALL"]
Status = Literal["ready", "delayed", "parked", "running", "succeeded", "dead", "cancelled", "skipped", "expired", "lost"]
Span = Literal["1h", "24h", "7d"]
Whole = Annotated[int, Field(ge=1, le=2**31 - 1)]
RunIds = Annotated[list[Annotated[str, Field(max_length=30)]], Field(min_length=1, max_length=1000)]


class Given(BaseModel):
    """A request: what it does not know it refuses."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Step(Given):
    """One link of a chain: what is enqueued when the run before it has succeeded."""

    task: Name
    payload: dict[str, Any] = Field(default_factory=dict)
    result: Annotated[str, Field(max_length=100)] | None = Field(
        "result", description="The argument that receives the result of the step before; null: it is not passed on."
    )
    queue: Name | None = None
    priority: Priority | None = None
    delay_seconds: Seconds | None = None
    tags: Tags | None = None
    max_retries: Annotated[int, Field(ge=0, le=9_999)] | None = None
    retry_backoff: Literal["exponential", "fixed"] | None = None
    retry_base_seconds: Zero | None = None
    retry_cap_seconds: Zero | None = None
    timeout_seconds: Seconds | None = None
    delivery: Delivery | None = None
    secret: Annotated[list[Path], Field(max_length=50)] | None = None


class Policies(Given):
    """What can be said about jobs and about runs alike."""

    queue: Name | None = None
    priority: Priority | None = None
    max_retries: Annotated[int, Field(ge=0, le=9_999)] | None = Field(None, description="Attempts after the first.")
    retry_backoff: Literal["exponential", "fixed"] | None = None
    retry_base_seconds: Zero | None = Field(None, description="The first pause between attempts.")
    retry_cap_seconds: Zero | None = Field(None, description="The longest pause between attempts.")
    timeout_seconds: Seconds | None = None
    delivery: Delivery | None = None
    tags: Tags | None = None
    secret: Annotated[list[Path], Field(max_length=50)] | None = Field(
        None, description="Fields of the payload that are never shown, as dotted paths."
    )
    then: Annotated[list[Name | Step], Field(max_length=20)] | None = Field(None, description="What follows a success, in order.")


class JobChange(Policies):
    """What is to change; what is not named stays."""

    task: Name | None = Field(None, description="Default: the job's name. `http` and `command` are built in.")
    schedule: Annotated[str, Field(min_length=1, max_length=500)] | None = Field(
        None, description="Cron with 5 fields (6 with seconds first), `every 90s`, `in 10m`, or an ISO 8601 instant."
    )
    timezone: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        None, description="The IANA time zone in which cron is evaluated."
    )
    payload: dict[str, Any] | None = None
    dst: Literal["shift", "skip"] | None = Field(None, description="A local time that the clock change leaves out.")
    anchor: Instant | None = Field(None, description="Where an interval is counted from.")
    missed_window: Missed | None = None
    max_missed: Annotated[int, Field(ge=1, le=10_000)] | None = None
    misfire_grace_seconds: Zero | None = None
    overlap: Literal["allow", "skip", "queue", "replace"] | None = None
    flexible_window_seconds: Annotated[float, Field(ge=0, le=86_400)] | None = None
    start_at: Instant | None = None
    end_at: Instant | None = None
    max_runs: Whole | None = None
    idempotency_key_template: Annotated[str, Field(min_length=1, max_length=500)] | None = None


class JobToAdd(JobChange):
    name: Name
    schedule: Annotated[str, Field(min_length=1, max_length=500)] = Field(
        description="Cron, `every 90s`, `in 10m`, or an instant."
    )


class JobToPut(JobChange):
    schedule: Annotated[str, Field(min_length=1, max_length=500)] = Field(
        description="Cron, `every 90s`, `in 10m`, or an instant."
    )


class Job(BaseModel):
    """A job, and when it fires next."""

    job_id: str
    name: str
    state: Literal["active", "paused", "finished"]
    task: str
    schedule: str
    timezone: str
    in_words: str
    next_run_at: datetime | None
    queue: str
    priority: Priority
    payload: Any
    dst: str
    anchor: datetime | None
    missed_window: Missed
    max_missed: int
    misfire_grace_seconds: float
    overlap: str
    flexible_window_seconds: float
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    fired: int | None
    max_retries: int | None
    retry_backoff: str | None
    retry_base_seconds: float | None
    retry_cap_seconds: float | None
    timeout_seconds: float | None
    delivery: str | None
    idempotency_key_template: str | None
    tags: list[str]
    then: list[str]
    secret: list[str]
    declared_by: str | None
    created_at: datetime
    updated_at: datetime
    active_since: datetime
    paused_at: datetime | None
    version: int
    shard: int


class ChangedJob(Job):
    """A job, and what the request has made of it."""

    outcome: Literal["added", "replaced", "unchanged"]


class BulkAdded(BaseModel):
    added: int
    replaced: int
    unchanged: int


class ResumeRequest(Given):
    missed: Missed | None = Field(None, description="For what was missed during the pause. Default: the job's own policy.")


class Resumed(BaseModel):
    job: Job
    started: int
    left_out: int


class TriggerRequest(Given):
    payload: dict[str, Any] | None = Field(None, description="Instead of the job's own.")
    force: bool = Field(False, description="Even if the job's overlap policy would hold or skip it.")


class Triggered(BaseModel):
    run_id: str | None
    outcome: Literal["started", "held", "skipped"]


class BackfillRequest(Given):
    since: Instant
    until: Instant
    dry_run: bool = False
    cap: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    rate: Annotated[float, Field(gt=0, le=100_000)] = Field(10.0, description="How many start in a second.")
    order: Literal["oldest", "newest"] = "oldest"
    again: bool = Field(False, description="Those too that succeeded already.")


class Backfill(BaseModel):
    job: str
    dry_run: bool
    instants: list[datetime]
    ran_already: int
    asked_already: int
    runs: list[dict[str, Any]]


class BackfilledRun(Given):
    run_id: Annotated[str, Field(max_length=30)]
    scheduled_at: Instant


class BackfillRuns(Given):
    """The runs of a backfill, as its answer names them."""

    runs: Annotated[list[BackfilledRun], Field(max_length=10_000)]


class BackfillProgress(BaseModel):
    ended: int
    succeeded: int


class Period(Given):
    since: Instant
    until: Instant


class CalledOff(BaseModel):
    called_off: int


class Line(BaseModel):
    """What became of one expected firing."""

    scheduled_at: datetime
    outcome: str
    reason: str
    run_id: str | None
    fired_at: datetime | None
    late_seconds: float | None
    node: str | None
    by_hand: str | None


class Proof(BaseModel):
    expected: int
    due: int
    unexplained: list[datetime]
    doubles: list[datetime]
    clean: bool


class Preview(BaseModel):
    schedule: str
    timezone: str
    in_words: str
    firings: list[datetime]


class RunToAdd(Policies):
    task: Name
    payload: dict[str, Any] = Field(default_factory=dict)
    delay_seconds: Zero | None = None
    at: Instant | None = None
    expires_seconds: Seconds | None = None
    expires_at: Instant | None = None
    key: Annotated[str, Field(min_length=1, max_length=500)] | None = Field(
        None, description="Unique among the live runs of the task: a second one with the same key is not made."
    )
    unique_for_seconds: Seconds | None = Field(None, description="For how long the key stays taken after the run's end.")


class Enqueued(BaseModel):
    run_id: str
    duplicate: bool


class EnqueuedMany(BaseModel):
    run_ids: list[str]


class RunListed(BaseModel):
    run_id: str
    status: Status
    task: str
    queue: str
    priority: Priority
    attempt: int
    scheduled_at: datetime
    job_id: str | None
    due_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    node: int | None
    key: str | None
    tags: list[str]
    reason: str | None


class Run(RunListed):
    enqueued_at: datetime | None
    expires_at: datetime | None
    payload: Any
    options: dict[str, Any] | None
    errors: list[dict[str, Any]]
    result: Any
    progress: dict[str, Any] | None


class CancelRequest(Given):
    reason: Annotated[str, Field(min_length=1, max_length=1000)] | None = None


class Cancelled(BaseModel):
    run_id: str
    outcome: Literal["cancelled", "asked"]


class Retried(BaseModel):
    run_id: str
    again_as: str


class LogLine(BaseModel):
    number: int
    at: datetime
    attempt: int
    level: str
    text: str
    fields: dict[str, Any] | None


class Letters(Given):
    """Which dead letters: these, or those that match; `all` where nothing else is said."""

    run_ids: RunIds | None = None
    task: Name | None = None
    queue: Name | None = None
    tag: Tag | None = None
    error: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(None, description="The type of the last error.")
    since: Instant | None = Field(None, description="Died since.")
    before: Instant | None = Field(None, description="Died before.")
    all: bool = False
    limit: Annotated[int, Field(ge=1, le=100_000)] = 10_000


class LettersToReplay(Letters):
    rate: Annotated[float, Field(ge=0.001, le=100_000)] | None = Field(
        None, description="So many become due in a second, the oldest first. Default: all at once."
    )
    start: Instant | None = Field(None, description="With a rate: when the first is due. Default: now.")


class NewPayload(Given):
    payload: dict[str, Any]


class Count(BaseModel):
    count: int


class Replayed(BaseModel):
    replayed: list[str]
    blocked: list[str]
    until: datetime | None = Field(None, description="Only with a rate: when the last of them is due.")


class Purged(BaseModel):
    purged: int


class Queue(BaseModel):
    name: str
    paused_at: datetime | None
    ready: int
    delayed: int
    parked: int
    running: int
    dead: int
    oldest_seconds: float | None


class QueueFigures(Queue):
    taken_at: datetime | None = Field(description="When it was looked at.")
    ended_per_second: float = Field(description="Over the last five minutes, as are the figures below.")
    failed_per_second: float
    lateness_max: float
    busy: float = Field(description="Handlers at work, on average.")


class Moment(BaseModel):
    at: datetime
    succeeded: int
    failed: int = Field(description="Attempts that were followed by another.")
    dead: int
    cancelled: int
    skipped: int
    expired: int
    lost: int
    fired: int = Field(description="Runs that schedules made.")
    missed: int = Field(description="Firings that came later than their job's grace.")
    seconds: float = Field(description="Spent in handlers.")
    lateness_p50: float | None
    lateness_p99: float | None
    lateness_max: float | None
    ready: int | None = Field(description="At the fullest moment, as are those below; null: nobody looked.")
    delayed: int | None
    parked: int | None
    running: int | None
    dead_letters: int | None
    oldest_seconds: float | None


class Trend(BaseModel):
    period: str
    step: int = Field(description="Seconds.")
    moments: list[Moment]


class QueueState(BaseModel):
    name: str
    paused_at: datetime | None


class SlotLimit(Given):
    slots: Annotated[int, Field(ge=1, le=100_000)]
    key: Path | None = Field(None, description="An argument: so many for each of its values.")


class RateLimit(Given):
    rate: Annotated[str, Field(min_length=1, max_length=50, description="`100/minute`, `5/s`, `10/30s`.")]
    burst: Annotated[int, Field(ge=1, le=10**9)] | None = Field(None, description="How many may start at once after a pause.")
    key: Path | None = None


class RulingToSet(Given):
    """What is not given stays as it is; null lifts it."""

    concurrency: (
        Annotated[int, Field(ge=1, le=100_000)] | Annotated[list[SlotLimit], Field(min_length=1, max_length=20)] | None
    ) = None
    rate: (
        Annotated[str, Field(min_length=1, max_length=50)] | Annotated[list[RateLimit], Field(min_length=1, max_length=20)] | None
    ) = None
    fair_key: Path | None = None
    order: Literal["arrival", "deadline"] | None = Field(None, description="Of a queue, as what is below.")
    max_depth: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    overflow: Literal["reject", "drop_oldest"] | None = None


class Ruling(BaseModel):
    scope: Literal["queue", "task"]
    name: str
    in_words: list[str] = Field(description="What holds.")
    declared: list[str] = Field(description="What the code says.")
    declared_by: str | None
    ordered: list[str] = Field(description="What was ordered above it.")
    rule: dict[str, Any] = Field(description="What holds, as it is kept.")
    slots: int | None = Field(
        description="How many may be inside; of limits for each value of a key, for all values that are about."
    )
    in_use: int
    waiting: int = Field(description="Runs that wait because of it.")


class HoldToAdd(Given):
    queue: Name | None = None
    task: Name | None = None
    tag: Tag | None = None
    field: Path | None = Field(None, description="A place in the payload: `customer_id`, `order.customer`.")
    value: Annotated[str, Field(max_length=1_000)] | int | float | bool | None = Field(None, description="Compared as text.")
    reason: Annotated[str, Field(min_length=1, max_length=500)] | None = None


class Hold(BaseModel):
    id: int
    queue: str | None
    task: str | None
    tag: str | None
    field: str | None
    value: str | None
    reason: str | None
    held_at: datetime
    held_by: str | None
    runs: int = Field(description="How many are held back; of one that was released, how many were.")


class Node(BaseModel):
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
    info: dict[str, Any]
    stopped_at: datetime | None
    died_at: datetime | None


class Shard(BaseModel):
    shard: int
    node: int | None
    node_name: str | None
    epoch: int
    taken_at: datetime | None
    schedules: int
    next_run_at: datetime | None


class Told(BaseModel):
    """What a channel has heard of an incident."""

    channel: str
    opened_at: datetime | None
    closed_at: datetime | None
    reminders: int
    attempts: int = Field(description="In vain, for what it is to be told next.")
    error: str | None


class Alert(BaseModel):
    """An incident."""

    id: int
    rule: str
    kind: str
    subject: str = Field(description="The queue, job, task or node that it is about; empty: everything.")
    severity: Literal["info", "warning", "critical"]
    state: Literal["open", "closed"]
    message: str
    value: float | None
    link: str | None
    since: datetime = Field(description="When it was seen first.")
    opened_at: datetime
    closed_at: datetime | None
    ending: str | None
    told: list[Told]


class AlertRule(BaseModel):
    name: str
    kind: str
    enabled: bool
    severity: str
    in_words: str
    threshold: float = Field(description="A number of things, or of seconds, as its kind has it.")
    window: float | None
    held_for: float
    clear: float
    repeat: float | None
    channels: list[str]


class ChannelTrial(BaseModel):
    """What came of a test message."""

    channel: str
    kind: str
    address: str = Field(description="As much of it as may be shown.")
    delivered: bool
    error: str | None
    seconds: float


class Change(BaseModel):
    """One entry of the audit log."""

    id: int
    at: datetime
    actor: str
    via: str
    action: str
    subject: str | None
    name: str | None
    queue: str | None
    before: Any
    after: Any


class KeyToMake(Given):
    name: Annotated[str, Field(min_length=1, max_length=100)]
    role: Literal["viewer", "operator", "admin"] = "viewer"
    queues: Annotated[list[Name], Field(min_length=1, max_length=100)] | None = Field(None, description="Only these queues.")
    prefixes: Annotated[list[Name], Field(min_length=1, max_length=100)] | None = Field(
        None, description="Only jobs whose names begin so."
    )
    expires_at: Instant | None = None
    expires_seconds: Seconds | None = None


class Key(BaseModel):
    key_id: str
    name: str
    role: str
    state: Literal["active", "expired", "revoked"]
    queues: list[str] | None
    prefixes: list[str] | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    used_at: datetime | None


class MadeKey(Key):
    secret: str = Field(description="What the caller presents. It is shown this once.")


class Session(BaseModel):
    csrf_token: str
    expires_at: datetime


class Whoami(BaseModel):
    name: str
    role: str
    queues: list[str] | None
    prefixes: list[str] | None


class Health(BaseModel):
    status: str


class Problem(BaseModel):
    """RFC 9457."""

    model_config = ConfigDict(extra="allow")
    type: str
    title: str
    status: int
    detail: str
