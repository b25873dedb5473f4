"""Everything that can be said about a job, as fields of a form: written out, and read back.

Only what was changed in the form is sent on. So what cannot be shown whole (a secret, the steps of a chain) stays what it is unless
somebody writes something else over it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any

import msgspec

from hourhand.core.errors import HourhandError, InvalidOption, InvalidPayload, InvalidSchedule, JobConflict
from hourhand.core.job import MISSED, OVERLAP, JobOptions
from hourhand.core.schedule import DST
from hourhand.core.zones import load_zone
from hourhand.surfaces.dashboard.words import pretty
from hourhand.surfaces.views import JobView
from hourhand.surfaces.wire import step_from_wire


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    label: str
    kind: str = "text"
    """text, words (several, with commas), span, number, instant, choice, json."""
    help: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    wide: bool = False


def _choices(*values: str, none: str | None = None) -> tuple[tuple[str, str], ...]:
    return (*(() if none is None else (("", none),)), *((one, one) for one in values))


NAME = Field("name", "Name", help="Letters, digits and _ . : - ; it cannot be changed later.", wide=True)
GROUPS: tuple[tuple[str, tuple[Field, ...]], ...] = (
    ("When", (
        Field("schedule", "Schedule", help="Cron (30 2 * * *), every 90s, in 10m, or an instant (2027-01-01T09:00:00Z).", wide=True),
        Field("timezone", "Time zone", "zone", help="Of cron: Europe/Berlin."),
        Field("dst", "When clocks go forward", "choice", help="To a local time that is left out.", choices=tuple(zip(DST, (
            "fires after it (shift)", "does not fire (skip)"), strict=True))),
        Field("start_at", "Not before", "instant", help="2027-01-01 09:00, or with an offset."),
        Field("end_at", "Not from then on", "instant"),
        Field("anchor", "Intervals are counted from", "instant", help="Empty: from when the job is saved."),
        Field("max_runs", "At most so many firings", "number"),
    )),
    ("What", (
        Field("task", "Task", help="Empty: the name of the job."),
        Field("queue", "Queue", help="Empty: that of the task."),
        Field("priority", "Priority", "choice", choices=_choices("high", "normal", "low")),
        Field("tags", "Tags", "words", help="With commas between them."),
        Field("secret", "Secret fields of the payload", "words", help="Never shown: card.number, items.*.token."),
        Field("then", "Then", "words", help="Tasks that follow a success, in order."),
        Field("payload", "Payload", "json", help="A JSON object. What is [redacted] stays as it is unless you write over it.", wide=True),
    )),
    ("When something is in the way", (
        Field("missed_window", "What was missed", "choice", choices=tuple(zip(MISSED, (
            "does not run (SKIP)", "runs once (RUN_ONCE)", "runs (RUN_ALL)"), strict=True))),
        Field("max_missed", "Of it, at most", "number", help="With RUN_ALL."),
        Field("misfire_grace", "It counts as missed after", "span", help="90s, 15m, 1h30m."),
        Field("overlap", "If the run before has not ended", "choice", choices=tuple(zip(OVERLAP, (
            "both run (allow)", "it is left out (skip)", "it waits (queue)", "that one is stopped (replace)"), strict=True))),
        Field("flexible_window", "Start within", "span", help="Spreads jobs that fire together: 5m."),
    )),
    ("Attempts", (
        Field("max_attempts", "Attempts", "number", help="Empty: as the task says."),
        Field("timeout", "Time limit of an attempt", "span"),
        Field("delivery", "Delivery", "choice", choices=_choices("at_least_once", "at_most_once", "exactly_once", none="as the task says")),
        Field("retry_backoff", "Pauses between attempts", "choice", choices=_choices("exponential", "fixed", none="as the task says")),
        Field("retry_base", "First pause", "span"),
        Field("retry_cap", "Longest pause", "span"),
        Field("idempotency_key_template", "Idempotency key", help="{{date}}-{{payload.customer}}: what a run is called outside, however often it is tried.", wide=True),
    )),
)  # fmt: skip
FIELDS = {one.name: one for _, fields in GROUPS for one in fields}
_DEFAULTS = JobOptions()
_ALWAYS = ("timezone", "dst", "missed_window", "max_missed", "misfire_grace", "overlap", "flexible_window")
"""What has a value of its own where nothing is said."""


class WrongField(InvalidOption):
    """Something in a field that cannot be read."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


def written(view: JobView, zone: tzinfo) -> dict[str, str]:
    """A job as the form has it, to begin with."""
    return {name: _write(field, getattr(view, name), zone) for name, field in FIELDS.items()}


def blank() -> dict[str, str]:
    """A new one."""
    fresh = {name: _write(field, getattr(_DEFAULTS, name), None) for name, field in FIELDS.items()}
    return {"name": "", **fresh, "payload": "{}", "priority": "normal"}


def typed(form: Mapping[str, str]) -> dict[str, str]:
    """What stands in the form now, for showing it again."""
    return {name: form.get(name, "").replace("\r\n", "\n") for name in ("name", *FIELDS)}


def changes(form: Mapping[str, str], before: Mapping[str, str]) -> dict[str, Any]:
    """What somebody has changed in it, as the verbs take it."""
    given = typed(form)
    zone = _zone(given["timezone"])
    made = {}
    for name, field in FIELDS.items():
        text = given[name].strip()
        if not _same(field, text, before[name].strip()):
            made[name] = _read(field, text, zone)
    return made


def culprit(error: HourhandError, form: Mapping[str, str]) -> str | None:
    """The field that an error is about, as far as it can be told."""
    if isinstance(error, WrongField):
        return error.name
    if isinstance(error, JobConflict):
        return "name"
    message = str(error)
    quoted = [name for name in FIELDS if form.get(name, "").strip() and repr(form[name].strip()) in message]
    if len(quoted) == 1:
        return quoted[0]
    if isinstance(error, InvalidSchedule):
        return "timezone" if "time zone" in message else "schedule"
    if isinstance(error, InvalidPayload):
        return "payload"
    named = [(found.start(), name) for name in ("name", *FIELDS) if (found := re.search(rf"\b{name}\b", message))]
    return min(named)[1] if named else None


def _write(field: Field, value: Any, zone: tzinfo | None) -> str:
    if value is None:
        return ""
    if field.kind == "json":
        return pretty(value)
    if field.kind == "words":
        return ", ".join(value)
    if field.kind == "span":
        return span(float(value))
    if isinstance(value, datetime):
        return value.astimezone(zone).isoformat(" ", "seconds" if not value.microsecond else "microseconds")
    return str(value)


def span(seconds: float) -> str:
    """So that it can be read back: in the largest unit in which it is whole."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def _same(field: Field, text: str, before: str) -> bool:
    if text == before:
        return True
    if field.kind != "json":
        return False
    try:
        return bool(msgspec.json.decode(text) == msgspec.json.decode(before))
    except (msgspec.DecodeError, RecursionError):
        return False


def _read(field: Field, text: str, zone: tzinfo | None) -> Any:
    if not text:
        return getattr(_DEFAULTS, field.name) if field.name in _ALWAYS else None
    if field.kind == "json":
        return _read_json(field, text)
    if field.kind == "words":
        words = [one.strip() for one in text.split(",") if one.strip()]
        return step_from_wire(words) if field.name == "then" else words
    if field.kind == "number":
        return int(text) if text.isascii() and text.isdecimal() else text
    if field.kind == "span" and re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text):
        return float(text)
    return instant(field.name, text, zone) if field.kind == "instant" else text


def _read_json(field: Field, text: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WrongField(field.name, f"This is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise WrongField(field.name, 'A payload is a JSON object: {"argument": value}')
    return value


def instant(name: str, text: str, zone: tzinfo | None) -> datetime:
    """An instant; without an offset, in this zone."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise WrongField(name, f"{text!r} is no instant; write 2027-01-01 09:00, or 2027-01-01T09:00:00+01:00") from None
    if at.tzinfo is None and zone is None:
        raise WrongField(name, f"{text!r} does not say which instant it means: add an offset, or Z for UTC")
    if not 1900 <= at.year < 9000:
        raise WrongField(name, f"{text!r} is too far from now")
    return at if at.tzinfo is not None else at.replace(tzinfo=zone)


def _zone(name: str) -> tzinfo | None:
    try:
        return load_zone(name.strip() or "UTC")
    except InvalidSchedule:
        return None  # said at the field itself
