"""What a job is: a name, what to run, when, and how exceptions are treated. Checked before anything is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from hourhand.core import ids
from hourhand.core.errors import ConfigurationError, InvalidOption
from hourhand.core.fairness import PRIORITIES
from hourhand.core.options import EnqueueOptions, merge
from hourhand.core.payload import encode_untyped
from hourhand.core.registry import Registry
from hourhand.core.schedule import Schedule, parse_schedule, parse_span
from hourhand.core.task import check_name
from hourhand.core.template import check_template

MISSED = ("SKIP", "RUN_ONCE", "RUN_ALL")
OVERLAP = ("allow", "skip", "queue", "replace")
MOST_MISSED = 10_000
LONGEST_WINDOW = 86_400.0
_MOMENT = timedelta(microseconds=1)
_NOTHING = EnqueueOptions()


@dataclass(frozen=True, slots=True)
class JobDefinition:
    """A job as it is stored."""

    name: str
    task: str
    schedule: Schedule
    payload: str
    queue: str
    priority: str
    missed_window: str
    max_missed: int
    misfire_grace: float
    overlap: str
    flexible_window: float
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    tags: tuple[str, ...]
    options: dict[str, Any] | None
    anchored: bool
    """Whether the schedule's anchor is part of the definition, or only the moment at which the job was added."""
    declared_by: str | None = None

    def first_run_at(self, now: datetime) -> datetime | None:
        """Where a schedule starts that nobody has yet."""
        return self.schedule.anchor if self.schedule.kind == "once" else self.schedule.next_after(now)

    def plain(self, lane: int, now: datetime) -> dict[str, Any]:
        """What the SQL function takes."""
        one = self.schedule
        return {
            "name": self.name, "task": self.task, "payload": msgspec.Raw(self.payload.encode()), "lane": lane,
            "kind": one.kind, "expression": one.expression, "timezone": one.timezone, "dst": one.dst, "anchor": one.anchor,
            "anchored": self.anchored, "next_run_at": self.first_run_at(now), "missed_window": self.missed_window,
            "max_missed": self.max_missed, "misfire_grace": self.misfire_grace,
            "overlap": None if self.overlap == "allow" else self.overlap, "flexible": self.flexible_window,
            "start_at": self.start_at, "end_at": self.end_at, "max_runs": self.max_runs, "tags": list(self.tags) or None,
            "options": self.options, "declared_by": self.declared_by,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Everything that can be said about a job, as it is said."""

    task: Any = None
    schedule: str | None = None
    timezone: str = "UTC"
    payload: Mapping[str, Any] | None = None
    queue: str | None = None
    priority: str | None = None
    dst: str = "shift"
    anchor: datetime | str | None = None
    missed_window: str = "RUN_ONCE"
    max_missed: int = 100
    misfire_grace: float | timedelta | str = 60.0
    overlap: str = "allow"
    flexible_window: float | timedelta | str = 0.0
    start_at: datetime | str | None = None
    end_at: datetime | str | None = None
    max_runs: int | None = None
    max_attempts: int | None = None
    timeout: float | timedelta | str | None = None
    delivery: str | None = None
    retry_backoff: str | None = None
    retry_base: float | timedelta | str | None = None
    retry_cap: float | timedelta | str | None = None
    idempotency_key_template: str | None = None
    tags: Any = ()
    then: Any = None
    secret: Any = ()


JOB_OPTIONS = tuple(field.name for field in fields(JobOptions))
_KNOWN = frozenset(JOB_OPTIONS)


def job_options(given: Mapping[str, Any]) -> JobOptions:
    for name in given:
        if name not in _KNOWN:
            raise InvalidOption(f"a job has no {name!r}; it has {', '.join(JOB_OPTIONS)}")
    return JobOptions(**given)


def define_job(
    name: str, given: JobOptions, *, now: datetime, registry: Registry, declared_by: str | None = None
) -> JobDefinition:
    """Check everything; `now` is the database's clock."""
    try:
        return _define(name, given, now, registry, declared_by)
    except ConfigurationError as error:
        raise InvalidOption(str(error)) from None
    except OverflowError:
        raise InvalidOption(f"job {name!r}: one of its times is too far from now") from None


def _define(name: str, given: JobOptions, now: datetime, registry: Registry, declared_by: str | None) -> JobDefinition:
    check_name("job", name)
    if ids.parse_job_id(name) is not None:
        raise InvalidOption(f"{name!r} cannot be the name of a job: it looks like a job's id; choose another")
    task = check_name("task", name if given.task is None else getattr(given.task, "name", given.task))
    if given.schedule is None:
        raise InvalidOption(f"job {name!r} needs a schedule: a cron expression, 'every 90s', 'in 10m', or an instant")
    if not isinstance(given.timezone, str):
        raise InvalidOption(f"timezone must be the name of a time zone, such as Europe/Berlin, not {given.timezone!r}")
    grace = duration("misfire_grace", given.misfire_grace, least=0.0)
    anchor = instant("anchor", given.anchor)
    schedule = parse_schedule(given.schedule, timezone=given.timezone, dst=given.dst, now=now, anchor=anchor, grace=grace)
    if given.anchor is not None and schedule.kind != "every":
        raise InvalidOption("anchor is where an interval is counted from; this schedule is no interval")
    start, end = instant("start_at", given.start_at), instant("end_at", given.end_at)
    _check_window(name, schedule, start, end, now)
    definition = registry.find(task)
    special = _given(given)
    bare = EnqueueOptions(secret=definition.secret) if definition and definition.secret else _NOTHING
    kept = merge(bare, special, registry.marks_of) if special else bare
    registry.check_steps(kept.kept())
    payload = {} if given.payload is None else given.payload
    text = definition.codec.encode(payload) if definition else encode_untyped(task, payload)
    relative = schedule.kind == "once" and not given.schedule.strip()[:1].isdigit()
    return JobDefinition(
        name=name,
        task=task,
        schedule=schedule,
        payload=text,
        queue=kept.queue or (definition.queue if definition else "default"),
        priority=kept.priority or (definition.priority if definition else PRIORITIES[1]),
        missed_window=_one_of("missed_window", given.missed_window, MISSED),
        max_missed=_whole("max_missed", given.max_missed, MOST_MISSED),
        misfire_grace=grace,
        overlap=_one_of("overlap", given.overlap, OVERLAP),
        flexible_window=duration("flexible_window", given.flexible_window, least=0.0, most=LONGEST_WINDOW),
        start_at=start,
        end_at=end,
        max_runs=None if given.max_runs is None else _whole("max_runs", given.max_runs, 2**31 - 1),
        tags=kept.tags,
        options=_with_template(kept.kept(), name, given, schedule, text),
        anchored=given.anchor is not None or schedule.kind == "cron" or (schedule.kind == "once" and not relative),
        declared_by=declared_by,
    )


def _given(one: JobOptions) -> dict[str, Any]:
    """What a job has in common with an enqueued run."""
    given = {
        "queue": one.queue, "priority": one.priority, "max_attempts": one.max_attempts,
        "timeout": parse_span(one.timeout) if isinstance(one.timeout, str) else one.timeout,
        "delivery": one.delivery, "retry_backoff": one.retry_backoff,
        "retry_base": parse_span(one.retry_base) if isinstance(one.retry_base, str) else one.retry_base,
        "retry_cap": parse_span(one.retry_cap) if isinstance(one.retry_cap, str) else one.retry_cap, "tags": one.tags or None, "then": one.then,
        "secret": one.secret or None,
    }  # fmt: skip
    return {name: value for name, value in given.items() if value is not None}


def _with_template(
    options: dict[str, Any] | None, name: str, given: JobOptions, schedule: Schedule, payload: str
) -> dict[str, Any] | None:
    """The template travels with each run, with what the run alone would not know."""
    if given.idempotency_key_template is None:
        return options
    template = check_template(given.idempotency_key_template, msgspec.json.decode(payload))
    return {**(options or {}), "idempotency": {"template": template, "timezone": schedule.timezone, "job": name}}


def _check_window(name: str, schedule: Schedule, start: datetime | None, end: datetime | None, now: datetime) -> None:
    if start is None and end is None:
        return
    if start and end and end <= start:
        raise InvalidOption("end_at is not after start_at: the job would never fire")
    if schedule.kind == "once":
        assert schedule.anchor is not None
        outside = (start and schedule.anchor < start) or (end and schedule.anchor >= end)
    else:
        first = schedule.next_after(max(now, start - _MOMENT) if start else now)
        outside = end is not None and (first is None or first >= end)
    if outside:
        raise InvalidOption(f"job {name!r} would never fire: its schedule has nothing between start_at and end_at")


def duration(name: str, value: Any, *, least: float, most: float = 10**9) -> float:
    """Seconds, from a number, a timedelta, or text such as 15m."""
    if type(value) is float and least <= value <= most:
        return value
    if isinstance(value, str):
        value = parse_span(value)
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not least <= number <= most:
        raise InvalidOption(f"{name} must be from {least:g} to {most:g} seconds, not {value!r}")
    return float(number)


def instant(name: str, value: datetime | str | None) -> datetime | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidOption(f"{name}: {value!r} is not an ISO 8601 instant; write 2027-01-01T09:00:00Z") from None
    if not isinstance(value, datetime):
        raise InvalidOption(f"{name} must be an instant, not {value!r}")
    if value.tzinfo is None:
        raise InvalidOption(f"{name} does not say which instant it means: give it an offset, or Z for UTC")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidOption(f"{name} is too far from now: {value.isoformat()}") from None


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> str:
    if value not in known:
        raise InvalidOption(f"{name} must be one of {', '.join(known)}, not {value!r}")
    return str(value)


def _whole(name: str, value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidOption(f"{name} must be a whole number from 1 to {most}, not {value!r}")
    return value
