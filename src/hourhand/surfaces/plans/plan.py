"""What has to be done so that an owner's jobs are what the files say. Pure: files and stored jobs in, steps out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from hourhand.core.errors import InvalidOption
from hourhand.core.redaction import REDACTED, mentions
from hourhand.surfaces.plans.comparing import MANAGED, Difference, as_then, differences, owners_of, plain_options
from hourhand.surfaces.plans.reading import PLAN_KEY, Declared, Files
from hourhand.surfaces.views import JobView

FORMAT = 1
_SAVED = ("owners", "steps", "conflicts", "unchanged", "over", "outlived", "held", "spared")


@dataclass(frozen=True, slots=True)
class Outlook:
    """When a job fires: in words, and next."""

    in_words: str
    next_run_at: datetime | None


@dataclass(frozen=True, slots=True)
class Step:
    action: str
    """`create`, `change` or `delete`."""
    name: str
    owner: str
    options: dict[str, Any] = field(default_factory=dict)
    """Everything about the job, as it is to be."""
    differences: list[Difference] = field(default_factory=list)
    state: str | None = None
    """`paused`: it is to be held; `active`: it is to be let go; None: neither."""
    adopts: str | None = None
    """Whose it is until now, if it is to change hands: another owner's, or, as an empty text, nobody's."""
    job_id: str | None = None
    version: int | None = None
    """As it was looked at. Together with the id: a job that was deleted and added anew is another one."""
    was: Outlook | None = None
    becomes: Outlook | None = None

    @property
    def tags(self) -> list[str]:
        return [*self.options["tags"], f"{MANAGED}{self.owner}"]

    def addition(self) -> dict[str, Any]:
        """What `app.jobs.add` takes."""
        given = {name: value for name, value in self.options.items() if value is not None}
        return {"name": self.name, **given, "tags": self.tags, "then": as_then(self.options["then"])}

    def changes(self) -> dict[str, Any]:
        """What `app.jobs.update` takes."""
        names = [one.field for one in self.differences if one.field != "state"]
        changes = {name: self.options[name] for name in names}
        if "schedule" in changes and "anchor" in self.options:
            # A new schedule would forget the anchor.
            changes["anchor"] = self.options["anchor"]
        if "then" in changes:
            changes["then"] = as_then(changes["then"])
        if "secret" in changes:
            # Only who knows a value may say that it is no secret any more.
            changes["payload"] = self.options["payload"]
        if "tags" in changes or self.adopts is not None:
            changes["tags"] = self.tags
        return changes

    def fits(self, view: JobView) -> bool:
        """Whether the job is as this step would leave it."""
        if self.action == "delete" or view.declared_by is not None or self.owner not in owners_of(view):
            return False
        held = view.paused_at is not None
        return not differences(self.options, plain_options(view)) and (self.state is None or held == (self.state == "paused"))


@dataclass(frozen=True, slots=True)
class Conflict:
    """A job that cannot be what the file says."""

    name: str
    place: str
    kind: str
    """`owned`: the one of that name is somebody else's; `declared`: it is the code's; `hidden`: a secret is missing to add it."""
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    owners: list[str]
    steps: list[Step]
    conflicts: list[Conflict]
    unchanged: int
    over: dict[str, str]
    """Jobs of the files that cannot be added any more, or not be changed to what the file says, and why: their time is past."""
    outlived: list[Step]
    """Those of them that fire nevertheless, and what would make an end of it, if a job could be made to never fire."""
    held: list[str]
    """Jobs that are paused while the files do not say anything about it."""
    spared: list[str]
    """Jobs that no file names and that stay, because nothing was to be deleted."""

    def of(self, action: str) -> list[Step]:
        return [step for step in self.steps if step.action == action]

    def summary(self) -> dict[str, int]:
        counts = {action: len(self.of(action)) for action in ("create", "change", "delete")}
        return {**counts, "unchanged": self.unchanged, "conflicts": len(self.conflicts)}

    def in_words(self) -> str:
        count = self.summary()
        words = [
            f"{count[action]:,} to {word}" for action, word in (("create", "add"), ("change", "change"), ("delete", "delete"))
        ]
        words += [f"{self.unchanged:,} unchanged"]
        if self.conflicts:
            words += [f"{len(self.conflicts):,} in conflict"]
        return f"Plan: {', '.join(words)}"

    def saved(self) -> dict[str, Any]:
        """In plain values, to be read back by `load_plan`."""
        return {PLAN_KEY: FORMAT, "summary": self.summary(), **{name: getattr(self, name) for name in _SAVED}}


def load_plan(text: str, label: str) -> Plan:
    try:
        whole = msgspec.json.decode(text)
        if not isinstance(whole, dict) or PLAN_KEY not in whole:
            raise InvalidOption(f"{label} is no saved plan; hourhand plan --out {label} makes one")
        if whole[PLAN_KEY] != FORMAT:
            raise InvalidOption(f"{label} was saved by another version of Hourhand; make the plan again")
        return msgspec.convert({name: whole.get(name) for name in _SAVED}, Plan)
    except msgspec.DecodeError as error:
        raise InvalidOption(f"{label} is no saved plan: {error}") from None


def make_plan(files: Files, stored: Mapping[str, JobView], *, delete: bool = True, adopt: bool = False) -> Plan:
    """`stored`: every job of these owners, and every other one whose name the files use."""
    steps: list[Step] = []
    conflicts: list[Conflict] = []
    over: dict[str, str] = {}
    outlived: list[Step] = []
    unchanged = 0
    for job in files.jobs:
        view = stored.get(job.name)
        step = _create(job) if view is None else _change(job, view)
        conflict = _conflict(job, view, step, adopt)
        if conflict is not None:
            conflicts.append(conflict)
        elif job.over is not None and (view is None or step.differences):
            over[job.name] = job.over
            outlived += [step] if view is not None and view.next_run_at is not None else []
        elif view is not None and not step.differences and step.adopts is None:
            unchanged += 1
        else:
            steps.append(step)
    named = {job.name for job in files.jobs}
    open_state = {job.name for job in files.jobs if job.state is None}
    mine = [view for view in stored.values() if not set(files.owners).isdisjoint(owners_of(view))]
    # Code and a file may both claim a job, by its tag; code wins.
    extra = [view for view in mine if view.name not in named and view.declared_by is None]
    return Plan(
        owners=list(files.owners),
        steps=[*steps, *(map(_delete, extra) if delete else ())],
        conflicts=conflicts,
        unchanged=unchanged,
        over=over,
        outlived=outlived,
        held=[view.name for view in mine if view.name in open_state and view.paused_at is not None],
        spared=[] if delete else [view.name for view in extra],
    )


def _create(job: Declared) -> Step:
    becomes = Outlook(job.view.in_words, job.view.next_run_at)
    return Step("create", job.name, job.owner, job.options, state="paused" if job.state == "paused" else None, becomes=becomes)


def _change(job: Declared, view: JobView) -> Step:
    found = differences(job.options, plain_options(view))
    have = "paused" if view.paused_at is not None else "active"
    wanted = job.state or have
    if wanted != have:
        found.append(Difference("state", have, wanted))
    owners = owners_of(view)
    return Step(
        "change",
        job.name,
        job.owner,
        job.options,
        found,
        state=wanted if wanted != have else None,
        adopts=None if job.owner in owners else ", ".join(owners),
        job_id=view.job_id,
        version=view.version,
        was=Outlook(view.in_words, view.next_run_at),
        becomes=Outlook(job.view.in_words, job.view.next_run_at if wanted == "active" else None),
    )


def _delete(view: JobView) -> Step:
    owner = next(iter(owners_of(view)))
    was = Outlook(view.in_words, view.next_run_at)
    return Step("delete", view.name, owner, plain_options(view), job_id=view.job_id, version=view.version, was=was)


def _conflict(job: Declared, view: JobView | None, step: Step, adopt: bool) -> Conflict | None:
    kind = reason = ""
    if view is None:
        if mentions(job.options["payload"]) and job.over is None:
            kind, reason = "hidden", f"it is not there yet, so that {REDACTED} stands for nothing: write the value itself"
    elif view.declared_by is not None:
        kind, reason = "declared", f"it is declared in the code of {view.declared_by}, which decides about it"
    elif step.adopts is not None and not adopt:
        kind = "owned"
        reason = f"it belongs to {step.adopts}" if step.adopts else "it was added in another way, and belongs to nobody's file"
    return Conflict(job.name, job.place, kind, reason) if kind else None


def stale(plan: Plan, stored: Mapping[str, JobView]) -> list[str]:
    """Jobs that a saved plan would touch and that are not what they were when it was made, nor what it would make of them."""
    found = []
    for step in plan.steps:
        view = stored.get(step.name)
        seen = None if view is None else (view.job_id, view.version)
        expected = None if step.action == "create" else (step.job_id, step.version)
        done = step.action == "delete" if view is None else step.fits(view)
        if seen != expected and not done:
            found.append(step.name)
    return found
