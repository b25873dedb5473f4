"""How things look as JSON between the API and its clients, and back: seconds are named so, attempts are retries and one."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from hourhand.core import ids
from hourhand.core.chain import Step
from hourhand.core.errors import InvalidOption
from hourhand.core.job import duration, instant
from hourhand.core.options import EnqueueOptions, merge
from hourhand.core.payload import encode_untyped
from hourhand.core.schedule import parse_span
from hourhand.surfaces.past import Backfill
from hourhand.surfaces.views import JobView, RunView

Plain = dict[str, Any]
_SECONDS = (
    "misfire_grace", "flexible_window", "timeout", "retry_base", "retry_cap", "delay", "unique_for", "expires",
)  # fmt: skip
_JOB_TIMES = ("next_run_at", "anchor", "start_at", "end_at", "created_at", "updated_at", "active_since", "paused_at")
_INSTANTS = ("anchor", "start_at", "end_at")
_SHARED = tuple(one.name for one in fields(EnqueueOptions) if one.name not in ("expires_at", "connection"))
"""What can be said of a run that is enqueued, and much of it of a job's runs as well."""
_RUN_TIMES = ("scheduled_at", "enqueued_at", "due_at", "started_at", "finished_at", "expires_at")
UNREAD = ("enqueued_at", "expires_at", "payload", "options", "errors", "result", "progress")
"""What a list of runs does not read from the database: left out, lest it look empty."""


def job_to_wire(view: JobView) -> Plain:
    """`outcome` is only of those that add or change."""
    plain = view.to_dict()
    attempts = plain.pop("max_attempts")
    plain["max_retries"] = None if attempts is None else attempts - 1
    return {_named(name): value for name, value in plain.items() if name != "outcome" or value is not None}


def job_from_wire(plain: Mapping[str, Any]) -> JobView:
    given = options_from_wire(plain, checked=False)
    known = {one.name for one in fields(JobView)}
    given = {name: value for name, value in given.items() if name in known}
    for name in _JOB_TIMES:
        given[name] = moment(given.get(name))
    for name in ("tags", "then", "secret"):
        if name in given and given[name] is not None:
            given[name] = tuple(given[name])
    missing: Plain = {one.name: None for one in fields(JobView) if one.name not in given}
    return JobView(**missing, **given)


def run_to_wire(view: RunView, *, listed: bool = False) -> Plain:
    plain = view.to_dict()
    plain["status"] = plain.pop("state")
    return {name: value for name, value in plain.items() if not (listed and name in UNREAD)}


def run_from_wire(plain: Mapping[str, Any]) -> RunView:
    known = {one.name for one in fields(RunView)}
    given = {name: value for name, value in plain.items() if name in known}
    for name in _RUN_TIMES:
        if name in given:
            given[name] = moment(given[name])
    given["tags"] = tuple(given.get("tags") or ())
    return RunView(state=plain["status"], **given)


def options_to_wire(options: Mapping[str, Any], about: str = "") -> Plain:
    """What `app.jobs.add` or an enqueue takes, as the API takes it: checked as the app checks it, spans in seconds. `about` is
    the task that is meant if none is named."""
    if options.get("connection") is not None:
        raise InvalidOption("connection: a transaction of yours cannot be joined over a network; leave it out")
    given = {name: value for name, value in options.items() if name != "connection"}
    spans = {name: parse_span(value) for name, value in given.items() if name in _SECONDS and isinstance(value, str)}
    given |= spans
    checked = merge(EnqueueOptions(), {name: value for name, value in given.items() if name in _SHARED and value is not None})
    plain: Plain = {}
    for name, value in given.items():
        if value is None:
            plain["max_retries" if name == "max_attempts" else _named(name)] = None
        elif name == "max_attempts" and checked.max_attempts is not None:
            plain["max_retries"] = checked.max_attempts - 1
        elif name == "expires" and checked.expires_at is not None:
            plain["expires_at"] = checked.expires_at
        elif name in _SHARED:
            plain[_named(name)] = _shared_to_wire(getattr(checked, name))
        elif name == "task":
            plain["task"] = _task_name(value)
        elif name in _INSTANTS:
            plain[name] = instant(name, value)
        elif name == "payload":
            plain["payload"] = msgspec.Raw(encode_untyped(_task_name(given.get("task")) or about, value).encode())
        else:
            plain[_named(name)] = duration(name, value, least=0.0) if name in _SECONDS else value
    return plain


def _task_name(task: Any) -> Any:
    return getattr(task, "name", task)


def _shared_to_wire(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return _steps_to_wire(value) if isinstance(value, Step) else value


def options_from_wire(plain: Mapping[str, Any], *, checked: bool = True) -> Plain:
    """The other way round."""
    options = {}
    for name, value in plain.items():
        if name == "max_retries":
            options["max_attempts"] = None if value is None else value + 1
        elif name == "then" and checked and value is not None:
            options["then"] = step_from_wire(value)
        else:
            options[name.removesuffix("_seconds")] = value
    return options


def enqueue_options(plain: Mapping[str, Any]) -> Plain:
    """Of a run to be made: what `app.enqueue` takes besides the task and the payload."""
    options = {name: value for name, value in options_from_wire(plain).items() if value is not None}
    expires_at = options.pop("expires_at", None)
    if expires_at is not None:
        if "expires" in options:
            raise InvalidOption("expires_at and expires_seconds both say when it expires; give one of them")
        options["expires"] = instant("expires_at", expires_at)
    if "at" in options:
        options["at"] = instant("at", options["at"])
    return options


def step_from_wire(steps: Any) -> Step | None:
    """A chain, given as a list of tasks or of {"task", "payload", "result", ...}, the next one first."""
    listed = steps if isinstance(steps, Sequence) and not isinstance(steps, str) else [steps]
    after: Step | None = None
    for one in reversed(listed):
        given: Plain = {"task": one} if isinstance(one, str) else dict(one)
        task, payload = given.pop("task", None), given.pop("payload", None) or {}
        if not isinstance(task, str):
            raise InvalidOption("each step of then names a task")
        encode_untyped(task, payload)
        result = given.pop("result", "result")
        options = merge(EnqueueOptions(), {**enqueue_options(given), "then": after})
        after = Step(
            task, payload, result, options.queue or "default", options.priority or "normal",
            options.delay.total_seconds() if options.delay else None, options.tags, options.kept(),
        )  # fmt: skip
    return after


def _steps_to_wire(step: Step) -> list[Plain]:
    plain: Plain | None = step.plain()
    steps = []
    while plain is not None:
        inner = dict(plain.pop("options", None) or {})
        following = inner.pop("then", None)
        retry = {f"retry_{name}": value for name, value in inner.pop("retry", {}).items()}
        if (attempts := inner.pop("max_attempts", None)) is not None:
            inner["max_retries"] = attempts - 1
        # Without a word the result would be passed on.
        one = {"result": None, **plain, **inner, **retry}
        steps.append({_named(name): value for name, value in one.items()})
        plain = None if following is None else dict(following)
    return steps


def backfill_to_wire(one: Backfill) -> Plain:
    runs = [{"run_id": ids.run_id(number), "scheduled_at": at} for number, at in one.runs]
    return {
        "job": one.job, "dry_run": one.dry_run, "instants": one.instants, "ran_already": one.ran_already,
        "asked_already": one.asked_already, "runs": runs,
    }  # fmt: skip


def backfill_from_wire(plain: Mapping[str, Any]) -> Backfill:
    runs = [(ids.parse_run_id(one["run_id"]), known_moment(one["scheduled_at"])) for one in plain["runs"]]
    return Backfill(
        plain["job"], [known_moment(one) for one in plain["instants"]], plain["ran_already"], plain["asked_already"], runs, plain["dry_run"]
    )  # fmt: skip


def write_cursor(place: Any) -> str:
    """Where a list goes on, as its `cursor` takes it: the place of the last thing that was seen."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def moment(value: Any) -> datetime | None:
    """An instant out of JSON."""
    if value is None or isinstance(value, datetime):
        return value
    return datetime.fromisoformat(value).astimezone(UTC)


def known_moment(value: Any) -> datetime:
    found = moment(value)
    assert found is not None
    return found


def _named(name: str) -> str:
    return f"{name}_seconds" if name in _SECONDS else name
