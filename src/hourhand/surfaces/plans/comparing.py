"""Two jobs in the same plain form, and in what they differ."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hourhand.core.chain import Step
from hourhand.core.job import JOB_OPTIONS, JobDefinition
from hourhand.core.redaction import REDACTED
from hourhand.core.task import check_name
from hourhand.surfaces.stored import StoredJob
from hourhand.surfaces.views import JobView

MANAGED = "managed:"
"""How the tag begins that says whose a job is."""
_REAL = ("misfire_grace", "flexible_window")
"""Stored with seven digits."""


@dataclass(frozen=True, slots=True)
class Difference:
    field: str
    old: Any
    new: Any


def seen_as(job: JobDefinition, now: datetime) -> JobView:
    """What `app.jobs.show` would answer, were this job stored: one place knows how a definition becomes a view."""
    stored = StoredJob(
        number=0, definition=job, queue_number=0, schedule_id=0, next_run_at=job.first_run_at(now), active_since=now, paused_at=None,
        created_at=now, updated_at=now, version=0, shard=0, fired=None, last_at=None, present=now,
    )  # fmt: skip
    return stored.view()


def plain_options(view: JobView) -> dict[str, Any]:
    """What `app.jobs.add` would be given for this job, in values that JSON can carry.

    The tag that says whose it is is not among them. Of a chain a view tells only the names of the tasks, so nothing
    else of it is here: neither the arguments of a step nor its queue or delay.
    """
    options = {name: _plain(getattr(view, name)) for name in JOB_OPTIONS}
    options["tags"] = [tag for tag in view.tags if not tag.startswith(MANAGED)]
    if not view.schedule.startswith("every "):
        options["anchor"] = None
    return options


def differences(wanted: Mapping[str, Any], have: Mapping[str, Any]) -> list[Difference]:
    """What is not as it is wanted. What `wanted` does not mention is not compared: an anchor that nobody has said stays."""
    found = [Difference(name, have[name], wanted[name]) for name in wanted if not _same(name, wanted[name], have[name])]
    if not _is_cron(wanted["schedule"]):
        # Instants and intervals have no zone: nothing would become of these.
        found = [one for one in found if one.field not in ("timezone", "dst")]
    return found


def owners_of(view: JobView) -> list[str]:
    """Whose job it is, of those who have files: one, or nobody; more only if somebody has put such tags by hand."""
    return [tag.removeprefix(MANAGED) for tag in view.tags if tag.startswith(MANAGED)]


def as_then(names: Sequence[str]) -> str | Step | None:
    """A chain of tasks by their names, as `then=` takes it."""
    if not names:
        return None
    if len(names) == 1:
        return names[0]
    # From the last to the first: each carries what comes after it.
    following: Step | None = None
    for name in reversed(names):
        following = Step(check_name("task", name), options=None if following is None else {"then": following.plain()})
    return following


def same_value(one: Any, other: Any) -> bool:
    """Whether JSON would call them the same: 1 and 1.0 are, 1 and true are not.

    A secret that one side does not show is taken for the same: nothing can be known about it, or nothing is to become of it.
    """
    if REDACTED in (one, other):
        return True
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        # The database writes 1e300 with all of its digits.
        return one == other or (isinstance(one, float) != isinstance(other, float) and _as_float(one) == _as_float(other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_value(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same_value, one, other))
    return bool(one == other)


def _same(name: str, one: Any, other: Any) -> bool:
    if name in ("tags", "secret"):
        return sorted(one) == sorted(other)
    if name == "payload" and not isinstance(other, Mapping):
        # Encrypted with a key that is not here: nothing can be known about it.
        return True
    if name in _REAL:
        return struct.pack("f", one) == struct.pack("f", other)
    return same_value(one, other)


def _is_cron(schedule: str) -> bool:
    return not schedule.startswith("every ") and not schedule[:5].removesuffix("-").isdigit()


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf")


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return list(value) if isinstance(value, Iterable) and not isinstance(value, (str, Mapping)) else value
