"""Files of jobs, checked: every job in them as it would be stored, or everything that is wrong with them, at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

from hourhand.core.errors import ConfigurationError, HourhandError, InvalidOption, InvalidPayload
from hourhand.core.job import JOB_OPTIONS, JobDefinition, define_job, job_options
from hourhand.core.options import MAX_TAG, MAX_TAGS
from hourhand.core.registry import Registry
from hourhand.core.task import check_name
from hourhand.surfaces.plans.comparing import MANAGED, as_then, plain_options, seen_as
from hourhand.surfaces.plans.documents import Located, Unreadable, read_document
from hourhand.surfaces.plans.sources import Source
from hourhand.surfaces.views import JobView

STATES = ("active", "paused")
KEYS = ("owner", "defaults", "jobs")
KNOWN = (*JOB_OPTIONS, "state")
PLAN_KEY = "hourhand_plan"
"""What a saved plan is known by."""
_MEANT = {
    "cron": "schedule", "every": "schedule", "interval": "schedule", "at": "schedule", "tz": "timezone", "zone": "timezone",
    "args": "payload", "kwargs": "payload", "arguments": "payload", "paused": "state", "enabled": "state", "disabled": "state",
    "suspend": "state", "concurrency": "overlap", "retries": "max_attempts", "catchup": "missed_window", "labels": "tags",
}  # fmt: skip
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Declared:
    """A job as a file says it is."""

    name: str
    owner: str
    options: dict[str, Any]
    """Everything about it, in plain values; an anchor only if the file says one."""
    state: str | None
    """None: the file leaves it open whether it is paused."""
    place: str
    view: JobView
    """As it would be seen once stored."""
    over: str | None = None
    """Why it could not be added any more: its time is past."""


@dataclass(frozen=True, slots=True)
class Files:
    owners: tuple[str, ...]
    jobs: tuple[Declared, ...]


class InvalidFiles(InvalidOption):
    """Everything that is wrong with the files. Nothing was touched."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def read_files(sources: Iterable[Source], *, registry: Registry, now: datetime) -> Files:
    reader = _Reader(registry, now)
    for source in sources:
        reader.read(source)
    if reader.problems:
        raise InvalidFiles(reader.problems)
    return Files(tuple(dict.fromkeys(reader.owners)), tuple(reader.jobs.values()))


class _Reader:
    def __init__(self, registry: Registry, now: datetime) -> None:
        self._registry, self._now = registry, now
        self.problems: list[str] = []
        self.owners: list[str] = []
        self.jobs: dict[str, Declared] = {}
        self._places: dict[str, str] = {}

    def read(self, source: Source) -> None:
        label = source.label
        try:
            whole = read_document(source.text, as_json=source.as_json)
        except Unreadable as error:
            self._wrong(label, error.line, str(error))
            return
        if not isinstance(whole, Located):
            self._wrong(label, 1, f"a file of jobs is a mapping with {', '.join(KEYS)}")
            return
        if PLAN_KEY in whole:
            self._wrong(label, 1, f"this is a saved plan, not a file of jobs: hourhand apply --plan {label}")
            return
        for key in whole:
            if key not in KEYS and not key.startswith("x-"):
                self._wrong(label, whole.lines[key], _unknown("a file of jobs", key, KEYS))
        owner = self._owner(label, whole)
        defaults = self._mapping(label, whole, "defaults")
        self._check_keys(label, "defaults", defaults)
        if whole.get("jobs") is None:
            self._wrong(label, whole.lines.get("jobs", 1), "jobs is missing; an owner without jobs says so: jobs: {}")
        for name, given in self._mapping(label, whole, "jobs").items():
            self._job(label, name, owner, given, whole["jobs"].lines[name], defaults)

    def _owner(self, label: str, whole: Located) -> str:
        line, owner = whole.lines.get("owner", 1), whole.get("owner")
        if owner is None:
            self._wrong(label, line, "owner is missing: whose jobs these are, for example owner: shop")
            return ""
        try:
            check_owner(owner)
        except InvalidOption as error:
            self._wrong(label, line, str(error))
            return ""
        self.owners.append(owner)
        return str(owner)

    def _mapping(self, label: str, whole: Located, key: str) -> Located:
        value = whole.get(key)
        if value is None or isinstance(value, Located):
            return Located(1) if value is None else value
        meant = "of job names to what each job is" if key == "jobs" else "of what all jobs of the file have in common"
        self._wrong(label, whole.lines[key], f"{key} must be a mapping {meant}")
        return Located(1)

    def _check_keys(self, label: str, whose: str, given: Located) -> None:
        for key in given:
            if key not in KNOWN:
                self._wrong(label, given.lines[key], f"{whose}: {_unknown('a job', key, KNOWN)}")

    def _job(self, label: str, name: str, owner: str, given: Any, line: int, defaults: Located) -> None:
        place = f"{label}:{line}"
        if name in self._places:
            self._wrong(label, line, f"{name}: comes twice, first at {self._places[name]}")
            return
        self._places[name] = place
        if given is not None and not isinstance(given, Located):
            self._wrong(label, line, f"{name}: must be a mapping that says at least its schedule")
            return
        own = given or Located(line)
        self._check_keys(label, name, own)
        # Nothing said (null) is how a job does without one of the defaults.
        said = {key: value for key, value in {**defaults, **own}.items() if value is not None and key in KNOWN}
        if "schedule" not in said:
            # A word that was not understood may have been meant to be it.
            if own.keys() <= set(KNOWN):
                self._wrong(label, line, f"{name}: needs a schedule: a cron expression, every 90s, or an instant")
            return
        try:
            self.jobs[name] = declare(name, owner, said, place=place, registry=self._registry, now=self._now)
        except (HourhandError, ValueError, TypeError) as error:
            about = own.lines | {key: at for key, at in defaults.lines.items() if key not in own.lines}
            self._wrong(label, _line_of(error, said, about) or line, f"{name}: {error}")

    def _wrong(self, label: str, line: int, message: str) -> None:
        self.problems.append(f"{label}:{line}: {message}")


def declare(name: str, owner: str, said: Mapping[str, Any], *, place: str, registry: Registry, now: datetime) -> Declared:
    """One job, checked as `app.jobs.add` would check it."""
    given = dict(said)
    state = given.pop("state", None)
    if state is not None and state not in STATES:
        raise InvalidOption(f"state must be active or paused, not {state!r}; without it, a job stays as it is")
    _check_schedule(given.get("schedule"))
    _check_tags(given.get("tags", ()))
    then = _check_then(given.get("then"))
    if then:
        given["then"] = as_then(then)
    over, moment = None, now
    try:
        job = define(name, given, registry, now)
    except HourhandError as error:
        # Wrong, or only too late: a file may go on naming what is over.
        moment, over = _LONG_AGO, str(error)
        try:
            job = define(name, given, registry, _LONG_AGO)
        except HourhandError:
            raise error from None
    view = seen_as(job, moment)
    options = plain_options(view)
    if "anchor" not in given:
        del options["anchor"]
    return Declared(name, owner, options, state, place, view, over)


def define(name: str, given: Mapping[str, Any], registry: Registry, now: datetime) -> JobDefinition:
    return define_job(name, job_options(given), now=now, registry=registry)


def check_owner(owner: Any) -> str:
    try:
        name = check_name("owner", owner)
    except ConfigurationError as error:
        raise InvalidOption(str(error)) from None
    if len(MANAGED) + len(name) > MAX_TAG:
        raise InvalidOption(f"the name of an owner can have {MAX_TAG - len(MANAGED)} characters, not {len(name)}")
    return name


def _check_schedule(schedule: Any) -> None:
    if isinstance(schedule, str) and schedule.lower().split()[:1] == ["in"]:
        raise InvalidOption(
            f"schedule {schedule!r} is counted from whenever the file is applied; a file says an instant, such as 2027-01-01T09:00:00Z"
        )


def _check_tags(tags: Any) -> None:
    if not isinstance(tags, (list, tuple)):
        return
    if any(isinstance(one, str) and one.startswith(MANAGED) for one in tags):
        raise InvalidOption(f"tags: those that begin with {MANAGED} say whose a job is; the file's owner does that")
    if len(tags) == MAX_TAGS:
        raise InvalidOption(f"tags: a job in a file can have {MAX_TAGS - 1}, because one more says whose it is")


def _check_then(then: Any) -> list[str]:
    names = [then] if isinstance(then, str) else [] if then is None else then
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise InvalidOption(
            "then takes a task's name, or a list of them that follow one another; steps with arguments of their own are for code"
        )
    return names


def _unknown(whose: str, key: str, known: tuple[str, ...]) -> str:
    close = get_close_matches(key.lower().replace("-", "_"), known, 1) or [one for one in (_MEANT.get(key),) if one in known]
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    return f"{whose} has no {key!r}; {hint}"


def _line_of(error: Exception, said: Mapping[str, Any], lines: Mapping[str, int]) -> int | None:
    """Where the option is that an error is about: the one it begins with, or whose value it quotes."""
    if isinstance(error, InvalidPayload):
        return lines.get("payload")
    message = str(error)
    for key in said:
        if message.startswith(key):
            return lines.get(key)
    for key, value in said.items():
        quoted = value if isinstance(value, list) else [value]
        if any(isinstance(one, str) and repr(one) in message for one in quoted):
            return lines.get(key)
    return None
