"""A job as the database has it: decoded, shown, and changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from hourhand.core import ids
from hourhand.core.account import MOMENT
from hourhand.core.chain import steps_of
from hourhand.core.errors import InvalidSchedule, NotPossible, PayloadUnreadable
from hourhand.core.fairness import priority_of, queue_of
from hourhand.core.job import JobDefinition, define_job, job_options
from hourhand.core.redaction import marks_in
from hourhand.core.registry import Registry
from hourhand.core.schedule import Schedule, latest_firings
from hourhand.core.sealing import NO_KEYS, Sealer, kid_of
from hourhand.surfaces.views import JobView

EVER = datetime(1, 1, 2, tzinfo=UTC)
_BEYOND = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job's row, its schedule's, and the database's clock."""

    number: int
    definition: JobDefinition
    queue_number: int
    schedule_id: int
    next_run_at: datetime | None
    active_since: datetime
    paused_at: datetime | None
    created_at: datetime
    updated_at: datetime
    version: int
    shard: int
    fired: int | None
    last_at: datetime | None
    present: datetime

    @classmethod
    def of(cls, text: str, sealer: Sealer) -> StoredJob:
        """Opened as far as there are keys for it."""
        row = msgspec.json.decode(text)
        payload = msgspec.json.encode(row["payload"]).decode()
        with suppress(PayloadUnreadable):
            payload = sealer.open(payload, row["task"])
        schedule = Schedule(row["kind"], row["expression"], row["timezone"], row["dst"], _instant(row["anchor"]))
        definition = JobDefinition(
            name=row["name"], task=row["task"], schedule=schedule, payload=payload,
            queue=row["queue"], priority=priority_of(row["lane"]), missed_window=row["missed_window"],
            max_missed=row["max_missed"], misfire_grace=row["misfire_grace"], overlap=row["overlap"] or "allow",
            flexible_window=row["flexible"], start_at=_instant(row["start_at"]), end_at=_instant(row["end_at"]),
            max_runs=row["max_runs"], tags=tuple(row["tags"] or ()), options=sealer.open_steps(row["options"]), anchored=True,
            declared_by=row["declared_by"],
        )  # fmt: skip
        return cls(
            row["id"], definition, queue_of(row["lane"]), row["schedule_id"], _instant(row["next_run_at"]), _known(row["active_since"]),
            _instant(row["paused_at"]), _known(row["created_at"]), _known(row["updated_at"]), row["version"], row["shard"],
            row["fired"], _instant(row["last_at"]), _known(row["present"]),
        )  # fmt: skip

    @property
    def state(self) -> str:
        if self.paused_at is not None:
            return "paused"
        return "finished" if self.upcoming is None else "active"

    @property
    def upcoming(self) -> datetime | None:
        """When this job fires next, as things stand."""
        job, at = self.definition, self.next_run_at
        if at is not None and job.start_at is not None and at < job.start_at:
            at = job.schedule.next_after(job.start_at - MOMENT)
        over = at is None or (job.end_at is not None and at >= job.end_at)
        done = job.max_runs is not None and (self.fired or 0) >= job.max_runs
        return None if over or done else at

    def due(self) -> list[datetime]:
        """What its schedule has had since it was last fired, and will have in a moment: whoever asks may have to wait for
        somebody's lock before he uses it."""
        if self.next_run_at is None:
            return []
        return self.firings_since(self.next_run_at)

    def firings_since(self, instant: datetime) -> list[datetime]:
        """From this one on; a little beyond the present, because the database knows best where that is."""
        return latest_firings(self.definition.schedule, instant - MOMENT, self.present + _BEYOND)

    def view(self, outcome: str | None = None) -> JobView:
        job, options = self.definition, self.definition.options or {}
        return JobView(
            job_id=ids.job_id(self.number), name=job.name, state=self.state, task=job.task, schedule=written(job.schedule),
            timezone=job.schedule.timezone, in_words=_words(job.schedule),
            next_run_at=None if self.paused_at else self.upcoming, queue=job.queue, priority=job.priority,
            payload=NO_KEYS.shown(msgspec.json.decode(job.payload), job.task), dst=job.schedule.dst, anchor=job.schedule.anchor,
            missed_window=job.missed_window, max_missed=job.max_missed, misfire_grace=job.misfire_grace, overlap=job.overlap,
            flexible_window=job.flexible_window, start_at=job.start_at, end_at=job.end_at, max_runs=job.max_runs,
            fired=(self.fired or 0) if job.max_runs else None, max_attempts=options.get("max_attempts"),
            timeout=options.get("timeout"), delivery=options.get("delivery"),
            **{f"retry_{name}": options.get("retry", {}).get(name) for name in ("backoff", "base", "cap")},
            idempotency_key_template=options.get("idempotency", {}).get("template"), tags=job.tags, then=tuple(steps_of(options)), declared_by=job.declared_by,
            created_at=self.created_at, updated_at=self.updated_at, active_since=self.active_since, paused_at=self.paused_at,
            version=self.version, shard=self.shard, outcome=outcome, secret=marks_in(options),
        )  # fmt: skip

    def upcoming_firings(self) -> Iterator[datetime]:
        job, at = self.definition, self.upcoming
        left = None if job.max_runs is None else job.max_runs - (self.fired or 0)
        while at is not None and (job.end_at is None or at < job.end_at) and left != 0:
            yield at
            at, left = job.schedule.next_after(at), None if left is None else left - 1


def written(schedule: Schedule) -> str:
    """A schedule as a person would write it."""
    if schedule.kind == "once":
        assert schedule.anchor is not None
        return schedule.anchor.isoformat().replace("+00:00", "Z")
    return schedule.expression


def changed(stored: StoredJob, changes: Mapping[str, Any], registry: Registry) -> JobDefinition:
    """The stored definition with changes over it, checked as a new one would be."""
    job = stored.definition
    options = job.options or {}
    schedule = job.schedule
    payload = msgspec.json.decode(job.payload)
    if (kid := kid_of(payload)) is not None and "payload" not in changes:
        raise NotPossible(
            f"job {job.name!r} is encrypted with key {kid!r}, which this process does not have: change it where the key is, or give "
            "it a new payload as well"
        )
    base: dict[str, Any] = {
        "task": job.task, "schedule": written(schedule), "timezone": schedule.timezone, "dst": schedule.dst,
        "anchor": schedule.anchor if schedule.kind == "every" else None, "payload": payload,
        "queue": job.queue, "priority": job.priority, "missed_window": job.missed_window, "max_missed": job.max_missed,
        "misfire_grace": job.misfire_grace, "overlap": job.overlap, "flexible_window": job.flexible_window,
        "start_at": job.start_at, "end_at": job.end_at, "max_runs": job.max_runs, "max_attempts": options.get("max_attempts"),
        "timeout": options.get("timeout"), "delivery": options.get("delivery"), "tags": job.tags,
        **{f"retry_{name}": options.get("retry", {}).get(name) for name in ("backoff", "base", "cap")},
        "idempotency_key_template": options.get("idempotency", {}).get("template"), "secret": marks_in(options),
    }  # fmt: skip
    if "schedule" in changes and "anchor" not in changes:
        base["anchor"] = None
    given = job_options({**base, **changes})
    # A one-off whose instant is past stays what it is while other things about it change.
    now = stored.present
    if schedule.kind == "once" and "schedule" not in changes and schedule.anchor is not None:
        now = min(now, schedule.anchor)
    fresh = define_job(job.name, given, now=now, registry=registry, declared_by=job.declared_by)
    if "then" not in changes and "then" in options:
        fresh = replace(fresh, options={**(fresh.options or {}), "then": options["then"]})
    return fresh


def _instant(text: str | None) -> datetime | None:
    if text is None:
        return None
    if text.endswith("infinity"):
        return EVER if text.startswith("-") else None
    return datetime.fromisoformat(text).astimezone(UTC)


def _known(text: str) -> datetime:
    instant = _instant(text)
    assert instant is not None
    return instant


def _words(schedule: Schedule) -> str:
    try:
        return schedule.in_words()
    except InvalidSchedule as error:
        return f"{schedule.expression} ({error})"
