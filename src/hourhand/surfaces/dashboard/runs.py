"""The list of runs: the newest first, filtered by what the address says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from hourhand.core import ids
from hourhand.core.clock import Clock
from hourhand.core.errors import UnknownRun
from hourhand.surfaces.dashboard.filters import PERIODS, Text, moment, number
from hourhand.surfaces.dashboard.pages import PageRoute, link, page
from hourhand.surfaces.rest.route import app_of
from hourhand.surfaces.run_insight import RunInsight
from hourhand.surfaces.statistics import QueueFigures
from hourhand.surfaces.views import STATES, RunView

router = APIRouter(route_class=PageRoute, include_in_schema=False)
PER_PAGE = 50
_LIVE = ("running", "ready", "delayed", "parked", "dead")
_TABS = (*_LIVE[:4], "succeeded", "dead", *(one for one in STATES if one not in (*_LIVE, "succeeded")))


@dataclass(frozen=True, slots=True)
class Tab:
    name: str
    to: str
    current: bool
    count: int | None = None


@router.get("/runs")
async def runs(
    request: Request, state: Annotated[list[str] | None, Query(max_length=20)] = None, task: Text = "", queue: Text = "", job: Text = "",
    tag: Text = "", key: Annotated[str, Query(max_length=500)] = "", node: Text = "", since: Text = "", q: Text = "", below: Text = "",
) -> Response:  # fmt: skip
    if q.strip():
        return RedirectResponse(_place(q.strip()), 303)
    app = app_of(request)
    states = [one for one in state or () if one]
    asked = {"task": task, "queue": queue, "job": job, "tag": tag, "node": node, "since": since}
    asked = {**{name: text.strip() for name, text in asked.items()}, "key": key}
    wanted: dict[str, Any] = {name: asked[name] or None for name in ("task", "queue", "job", "tag", "key")}
    found = await app.runs.look(
        state=states or None, node=number("node", node), since=moment("since", since), below=below or None, limit=PER_PAGE,
        **wanted,
    )  # fmt: skip
    insight = RunInsight(app._database, app.name)
    figures = await app.statistics.queues()

    def where(**changes: Any) -> str:
        return link("/runs", **{"state": states, **asked, **changes})

    return page(
        request, "runs.html", runs=found.runs, errors=found.errors, jobs=await insight.job_names(one.job_id for one in found.runs),
        nodes=await insight.node_names(one.node for one in found.runs), tabs=_tabs(states, figures, asked["queue"], where), asked=asked,
        states=states, filtered=any(asked.values()) or bool(states), queues=[one.name for one in figures], periods=PERIODS, where=where,
        older=found.below and where(below=found.below), stopped=found.below is not None and len(found.runs) < PER_PAGE,
        back_to=found.back_to, stopped_at=found.below, below=below, job_path=job_path, took=took, remark=remark,
    )  # fmt: skip


def _place(text: str) -> str:
    """What somebody looks for: the id of a run or a job, or else a task."""
    try:
        return f"/runs/{ids.run_id(ids.parse_run_id(text))}"
    except UnknownRun:
        return link("/runs", **{"job" if ids.parse_job_id(text) is not None else "task": text})


def _tabs(states: list[str], figures: list[QueueFigures], queue: str, where: Any) -> list[Tab]:
    """With how many there were a few seconds ago, where that is kept."""
    seen = [one for one in figures if not queue or one.name == queue]
    counts = {name: sum(getattr(one, name) for one in seen) for name in _LIVE} if seen else {}
    tabs = [Tab("all", where(state=None), not states)]
    return tabs + [Tab(one, where(state=one), one in states, counts.get(one)) for one in _TABS]


def job_path(job_id: str, name: str | None) -> str:
    return f"/jobs/{job_id if name is None or name in ('new', 'bulk') else name}"


def remark(run: RunView, error: str | None) -> str:
    """What there is to say besides the type of its error, which stands before it."""
    return (run.reason or "").removesuffix(f": {error}") if error else run.reason or ""


def took(run: RunView) -> float | None:
    """Seconds from the start of its last attempt to its end, or until now."""
    if run.started_at is None or run.state not in ("running", "succeeded", "dead", "cancelled", "lost"):
        return None
    end = run.finished_at or datetime.fromtimestamp(Clock.machine(), UTC)
    return max(0.0, (end - run.started_at).total_seconds())
