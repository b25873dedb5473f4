"""Looking at what is stored, and doing what a plan says: through the verbs of `app.jobs` and nothing else, so that an app at
the other end of a network will do.

What survives a crash: every step that was told as done. A plan is no transaction; made anew, it has the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hourhand.core.errors import DatabaseUnavailable, HourhandError, JobConflict, NotPossible, PreconditionFailed, UnknownJob
from hourhand.surfaces.plans.comparing import MANAGED
from hourhand.surfaces.plans.plan import Plan, Step
from hourhand.surfaces.views import JobView

PAGE = 1_000
BULK = 100
"""From so many on, jobs are added in bulk: the audit log then has their number, not their names."""
AT_ONCE = 4
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a step."""

    name: str
    action: str
    outcome: str
    """`created`, `changed`, `deleted`; `unchanged`, if somebody else has done it already; `failed`."""
    remark: str | None = None
    error: HourhandError | None = None


Tell = Callable[[Outcome], None]


async def look(app: Any, owners: Iterable[str], names: Iterable[str]) -> dict[str, JobView]:
    """Every job of these owners, and those of these names whoever they belong to."""
    found: dict[str, JobView] = {}
    for owner in owners:
        async for page in pages(app, tag=f"{MANAGED}{owner}"):
            found.update({view.name: view for view in page})
    unknown = set(names) - found.keys()
    # To see whether a name is taken costs a question each, or a walk through everything there is: whichever is shorter.
    left = 1 + len(unknown) // 100
    if unknown:
        async for page in pages(app):
            found.update({view.name: view for view in page if view.name in unknown})
            if len(page) < PAGE:
                return found
            left -= 1
            if not left:
                break
    for part in _parts(sorted(unknown - found.keys()), AT_ONCE):
        for view in await asyncio.gather(*(_shown(app, name) for name in part)):
            if view is not None:
                found[view.name] = view
    return found


async def apply_plan(app: Any, plan: Plan, tell: Tell) -> None:
    """Changes and additions, then deletions. What cannot be done is told, and the rest goes on; a database that is gone ends it."""
    for part in _parts(plan.of("change"), AT_ONCE):
        await _each(tell, [_change(app, step) for step in part])
    created = plan.of("create")
    bulk = [step for step in created if step.state is None] if len(created) >= BULK else []
    for part in _parts(bulk, PAGE):
        await _add_many(app, part, tell)
    alone = [step for step in created if step.state is not None or not bulk]
    for part in _parts(alone, AT_ONCE):
        await _each(tell, [_add(app, step) for step in part])
    for part in _parts(plan.of("delete"), AT_ONCE):
        await _each(tell, [_delete(app, step) for step in part])


async def _each(tell: Tell, work: Sequence[Awaitable[Outcome]]) -> None:
    for outcome in await asyncio.gather(*work):
        tell(outcome)
        if isinstance(outcome.error, DatabaseUnavailable):
            raise outcome.error


async def _add_many(app: Any, steps: Sequence[Step], tell: Tell) -> None:
    try:
        await app.jobs.add_many([step.addition() for step in steps])
    except DatabaseUnavailable:
        raise
    except HourhandError:
        # All or none: one of them cannot be, and which one is found by trying each.
        for part in _parts(steps, AT_ONCE):
            await _each(tell, [_add(app, step) for step in part])
    else:
        for step in steps:
            tell(Outcome(step.name, step.action, "created"))


async def _add(app: Any, step: Step) -> Outcome:
    try:
        view = await app.jobs.add(**step.addition())
        if step.state == "paused":
            # A moment after it is there: a firing that is due in just this moment comes through.
            await app.jobs.pause(view.name)
        return Outcome(step.name, step.action, "created" if view.outcome == "added" else "unchanged")
    except JobConflict:
        return await _settled(app, step, "somebody has added a job of that name meanwhile")
    except HourhandError as error:
        return Outcome(step.name, step.action, "failed", error=error)


async def _change(app: Any, step: Step) -> Outcome:
    changes, version, remark = step.changes(), step.version, None
    assert step.job_id is not None
    assert version is not None
    try:
        if step.state == "paused":
            # Held before it is changed: what it becomes must not fire.
            await _check_version(app, step)
            await app.jobs.pause(step.job_id)
            version += 1
        if changes:
            await app.jobs.update(step.job_id, version=version, **changes)
        elif step.state == "active":
            await _check_version(app, step)
        if step.state == "active":
            resumed = await app.jobs.resume(step.job_id)
            if resumed.started or resumed.left_out:
                remark = f"of what it missed, {resumed.started:,} started and {resumed.left_out:,} left out"
        return Outcome(step.name, step.action, "changed", remark)
    except (PreconditionFailed, UnknownJob):
        return await _settled(app, step, "it has been changed or deleted since it was looked at")
    except HourhandError as error:
        return Outcome(step.name, step.action, "failed", error=error)


async def _check_version(app: Any, step: Step) -> None:
    """Before a verb that does not take a version: between this and the verb there is a moment, which pausing and resuming forgive."""
    if (await app.jobs.show(step.job_id)).version != step.version:
        raise PreconditionFailed(f"job {step.name!r} has been changed")


async def _delete(app: Any, step: Step) -> Outcome:
    assert step.job_id is not None
    try:
        await app.jobs.delete(step.job_id, version=step.version)
        return Outcome(step.name, step.action, "deleted")
    except UnknownJob:
        return Outcome(step.name, step.action, "unchanged")
    except PreconditionFailed:
        return await _settled(app, step, "it has been changed since it was looked at")
    except HourhandError as error:
        return Outcome(step.name, step.action, "failed", error=error)


async def _settled(app: Any, step: Step, reason: str) -> Outcome:
    """Somebody was quicker. If he did the same, all is well."""
    try:
        view = await _shown(app, step.name)
    except HourhandError as error:
        return Outcome(step.name, step.action, "failed", error=error)
    if view is not None and step.fits(view):
        return Outcome(step.name, step.action, "unchanged")
    words = f"job {step.name!r} stays as it is: {reason}. Make the plan again"
    return Outcome(step.name, step.action, "failed", error=NotPossible(words))


async def _shown(app: Any, name: str) -> JobView | None:
    try:
        view: JobView = await app.jobs.show(name)
    except UnknownJob:
        return None
    # By a name that looks like an id, another job is found by its id.
    return view if view.name == name else None


async def pages(app: Any, **which: Any) -> AsyncIterator[list[JobView]]:
    after = None
    while True:
        page = await app.jobs.list(**which, after=after, limit=PAGE)
        yield page
        if len(page) < PAGE:
            return
        after = page[-1].name


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
