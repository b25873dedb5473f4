"""A translation, checked job by job as it would be when it is added, and compared with what is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from hourhand.core.errors import HourhandError
from hourhand.core.job import JobDefinition, define_job, job_options
from hourhand.core.registry import Registry
from hourhand.surfaces.importing.translation import Note, Translation, Untranslated, shortened
from hourhand.surfaces.plans.comparing import differences, plain_options, seen_as
from hourhand.surfaces.views import JobView

_MOMENT = timedelta(microseconds=1)


@dataclass(slots=True)
class Checked:
    given: dict[str, Any]
    """What `app.jobs.add_many` gets."""
    definition: JobDefinition
    next_at: datetime | None
    paused: bool
    state: str | None = None
    """`new`, `unchanged` or `different`; None while nobody has looked."""

    @property
    def name(self) -> str:
        return self.definition.name


@dataclass(slots=True)
class Import:
    """What is to be done, and what is to be told."""

    jobs: list[Checked]
    untranslated: list[Untranslated]
    notes: list[Note]

    def named(self, state: str) -> list[str]:
        return [one.name for one in self.jobs if one.state == state]


def check(translation: Translation, registry: Registry, now: datetime, *, has_code: bool = False) -> Import:
    """`has_code`: whether the registry is that of the user's app, so that a task it does not have is worth a word."""
    jobs: list[Checked] = []
    untranslated = list(translation.untranslated)
    for given in translation.jobs:
        name, rest = given["name"], {key: value for key, value in given.items() if key != "name"}
        try:
            definition = define_job(name, job_options(rest), now=now, registry=registry)
        except (HourhandError, ValueError, TypeError) as error:
            where, what = translation.origins.get(name, ("", name))
            untranslated.append(Untranslated(where, what, shortened(str(error), 400)))
            continue
        jobs.append(Checked(given, definition, _next(definition, now), name in translation.paused))
    left = {one.name for one in jobs}
    notes = [one for one in translation.notes if one.job is None or one.job in left]
    return Import(jobs, untranslated, [*notes, *_about_targets(jobs, registry, has_code)])


def _next(job: JobDefinition, now: datetime) -> datetime | None:
    at = job.first_run_at(now)
    if at is not None and job.start_at is not None and at < job.start_at:
        at = job.schedule.next_after(job.start_at - _MOMENT)
    return at


def _about_targets(jobs: list[Checked], registry: Registry, has_code: bool) -> list[Note]:
    programs = {one.given["payload"]["argv"][0] for one in jobs if one.definition.task == "command" and "payload" in one.given}
    notes = []
    if programs:
        listed = ",".join(sorted(programs))
        notes.append(Note(f"workers start only the programs that they allow: HOURHAND_ALLOW_COMMANDS={listed}"))
    if has_code:
        notes += [
            Note(f"the app has no task {one.definition.task}; its runs wait until a worker does", one.name)
            for one in jobs
            if registry.find(one.definition.task) is None
        ]
    return notes


def compare(given: Import, stored: Mapping[str, JobView], now: datetime) -> None:
    """Notes at each job how it stands to the one of its name, by the rules by which adding it will go."""
    for one in given.jobs:
        have = stored.get(one.name)
        one.state = "new" if have is None else "unchanged" if _same(one.definition, have, now) else "different"


def _same(job: JobDefinition, have: JobView, now: datetime) -> bool:
    wanted, found = seen_as(job, now), plain_options(have)
    options = plain_options(wanted)
    if not job.anchored:
        options.pop("anchor")
    return not differences(options, found) and tuple(wanted.tags) == tuple(have.tags) and have.declared_by is None
