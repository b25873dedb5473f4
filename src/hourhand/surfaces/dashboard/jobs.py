"""The list of jobs: searched, filtered, sorted, and several of them paused, resumed or started at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from hourhand.core.clock import Clock
from hourhand.core.errors import DatabaseUnavailable, HourhandError
from hourhand.surfaces.dashboard.pages import Form, PageRoute, back, confirm, form_of, link, local, page, unless_forbidden
from hourhand.surfaces.dashboard.words import plural, since
from hourhand.surfaces.job_lists import SORTS, STATES, Ending
from hourhand.surfaces.jobs import Jobs
from hourhand.surfaces.rest.problems import Refused
from hourhand.surfaces.rest.route import app_of
from hourhand.surfaces.views import JobView

router = APIRouter(route_class=PageRoute, include_in_schema=False)

PER_PAGE = 50
_MOST_CHOSEN = 1_000
_MOST_NAMED = 3
_MOMENT = timedelta(seconds=10)
Text = Annotated[str, Query(max_length=100)]


@router.get("/jobs")
async def jobs(
    request: Request, q: Text = "", state: Text = "", queue: Text = "", tag: Text = "", task: Text = "", sort: Text = "name",
    after: Annotated[str, Query(max_length=200)] = "", looked: Annotated[int, Query(ge=0, le=10**12)] = 0,
) -> Response:  # fmt: skip
    app = app_of(request)
    for name, value, known in (("sort", sort, SORTS), ("state", state, ("", *STATES))):
        if value not in known:
            raise Refused(422, f"{value!r} is no {name} of jobs; there are {', '.join(one for one in known if one)}")
    asked = {"q": q.strip(), "state": state, "queue": queue.strip(), "tag": tag.strip(), "task": task.strip()}
    wanted: dict[str, Any] = {"search" if name == "q" else name: value or None for name, value in asked.items()}
    found = await app.jobs.page(sort=sort, after=after or None, limit=PER_PAGE, **wanted)
    ends = await app.jobs.last_outcomes(found.jobs)
    looked += found.looked
    filters = {**asked, "sort": None if sort == "name" else sort}

    def where(**changes: Any) -> str:
        return link("/jobs", **{**filters, **changes})

    return page(
        request, "jobs.html", jobs=found.jobs, strips={job.job_id: [cell(job, one) for one in ends[job.job_id]] for job in found.jobs},
        asked=asked, filtered=any(asked.values()), sort=sort, sorts=SORTS, states=STATES, queues=await app.jobs.queue_names(),
        totals=await unless_forbidden(app.statistics.totals()), where=where, after=after, path_of=path_of, overdue=overdue,
        following=found.after and where(after=found.after, looked=None if found.full else looked),
        stopped=found.after is not None and not found.full, looked=None if request.state.actor.scoped else looked,
    )  # fmt: skip


def overdue(job: JobView) -> bool:
    """Whether it should have fired by now: schedulers are a moment behind at most."""
    return job.next_run_at is not None and job.next_run_at < Clock().instant() - _MOMENT


def path_of(job: JobView, *more: str) -> str:
    """Where a job's page is: by its name, unless that is the address of something else."""
    return "/".join(("/jobs", job.job_id if job.name in ("new", "bulk") else job.name, *more))


@dataclass(frozen=True, slots=True)
class Cell:
    """One end in the strip of the last ones."""

    style: str
    href: str
    said: str


_STYLES = {"succeeded": "good", "dead": "bad", "lost": "bad", "expired": "warn", "cancelled": "quiet", "skipped": "none"}


def cell(job: JobView, end: Ending) -> Cell:
    href = f"/runs/{end.run_id}" if end.run_id else link(path_of(job), at=end.scheduled_at.isoformat()) + "#why"
    words = "dead letter" if end.state == "dead" else end.state
    return Cell(_STYLES.get(end.state, "quiet"), href, f"{words} {since(end.at)}")


@router.post("/jobs/bulk")
async def bulk(request: Request) -> Response:
    """Several at once: each by itself, so that one that cannot be done keeps nobody from the others."""
    form = await form_of(request)
    chosen, verb = list(dict.fromkeys(form.many("job"))), form.get("do", "")
    to = local(form.get("back", ""), "/jobs")
    if verb not in _VERBS:
        raise Refused(422, "this can be paused, resumed or triggered, and nothing else")
    if not chosen:
        return back(to, "Nothing was chosen: tick the jobs first.", error=True)
    if len(chosen) > _MOST_CHOSEN:
        return back(to, f"At most {_MOST_CHOSEN:,} jobs at once.", error=True)
    if verb == "trigger" and len(chosen) > 1 and not form.confirmed:
        return _ask(request, form, len(chosen))
    results = await _each(app_of(request).jobs, verb, chosen)
    return back(to, _told(verb, results), error=bool(results.failures))


def _ask(request: Request, form: Form, many: int) -> Response:
    return confirm(
        request, form, f"Start {plural(many, 'job')} now?", button=f"Start {many}",
        consequences=["Each gets a run here and now, besides its schedule, which stays as it is."],
    )  # fmt: skip


async def _pause(jobs: Jobs, job: JobView) -> str:
    if job.state == "paused":
        return "paused already"
    await jobs.pause(job.job_id)
    return "paused"


async def _resume(jobs: Jobs, job: JobView) -> str:
    if job.state != "paused":
        return "not paused"
    await jobs.resume(job.job_id)
    return "resumed"


async def _trigger(jobs: Jobs, job: JobView) -> str:
    return (await jobs.trigger(job.job_id)).outcome


_VERBS: dict[str, Callable[[Jobs, JobView], Awaitable[str]]] = {"pause": _pause, "resume": _resume, "trigger": _trigger}
_OUTCOMES = {
    "paused": "paused", "resumed": "resumed", "started": "started", "paused already": "{} paused already",
    "not paused": "{} not paused", "held": "wait for the run before to end", "skipped": "skipped, since the run before has not ended",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Results:
    outcomes: Counter[str]
    failures: list[str]


async def _each(jobs: Jobs, verb: str, chosen: list[str]) -> _Results:
    results = _Results(Counter(), [])
    for one in chosen:
        name = one
        try:
            job = await jobs.show(one)
            name = job.name
            results.outcomes[await _VERBS[verb](jobs, job)] += 1
        except DatabaseUnavailable:
            raise
        except HourhandError as error:
            results.failures.append(f"{name}: {error}")
    return results


def _told(verb: str, results: _Results) -> str:
    words = [f"{many} {_OUTCOMES[outcome].format('was' if many == 1 else 'were')}" for outcome, many in results.outcomes.items()]
    if results.failures:
        named = "; ".join(results.failures[:_MOST_NAMED]) + ("; …" if len(results.failures) > _MOST_NAMED else "")
        words.append(f"{len(results.failures)} could not be {_PAST[verb]} ({named})")
    return ", ".join(words) + "."


_PAST = {"pause": "paused", "resume": "resumed", "trigger": "started"}
