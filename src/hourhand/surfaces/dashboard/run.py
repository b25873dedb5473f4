"""One run: what happened to it, what it carries and says, and the orders that can be given about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from hourhand.core.chain import steps_of
from hourhand.surfaces.dashboard.pages import PageRoute, back, confirm, form_of, link, local, page
from hourhand.surfaces.dashboard.runs import job_path, took
from hourhand.surfaces.dashboard.timeline import timeline
from hourhand.surfaces.dashboard.words import seconds_in_words
from hourhand.surfaces.rest.route import app_of, roles
from hourhand.surfaces.run_insight import Circumstances, RunInsight
from hourhand.surfaces.views import RunView

router = APIRouter(route_class=PageRoute, include_in_schema=False)
LINES = 200
_LONGEST_REASON = 500
_LEVELS = {"error": "bad", "critical": "bad", "warning": "warn", "stderr": "warn", "debug": "quiet"}
RunId = Annotated[str, Path(max_length=30)]


@dataclass(frozen=True, slots=True)
class Progress:
    share: float | None
    """From 0 to 1; None: it says something else."""
    message: str
    data: dict[str, Any]


@router.get("/runs/{run_id}")
async def run(
    request: Request, run_id: RunId, start: Annotated[int | None, Query(alias="from", ge=1, le=2**31 - 1)] = None
) -> Response:
    app = app_of(request)
    whole = await app.runs.show(run_id)
    one = whole.redacted(app.settings.secret_names)
    if request.state.actor.scoped:
        # Where it ran is not for a key that opens a part.
        one = replace(one, errors=[{**(error or {}), "node": None} for error in one.errors])
    insight = RunInsight(app._database, app.name)
    lines, total = await insight.lines(one, start, LINES)
    nodes = await insight.node_names([one.node])
    chain = await insight.chain(one)
    changes = await app.audit.list(subject=one.run_id, limit=100)
    name = (await insight.job_names([one.job_id])).get(one.job_id or "")
    waiting = None if one.finished or one.state == "running" else words_for_waiting(one, await insight.circumstances(one))
    return page(
        request, "run.html", run=one, job=name, node=nodes.get(one.node or 0), events=timeline(one, await insight.steps(one), changes, nodes),
        chain=chain, steps=_to_come(one, [link.run_id for link in chain]), waiting=waiting, progress=progress_of(one), took=took(one),
        lateness=_lateness(one), lines=lines, total=total, levels=_LEVELS, later=_lines_link(one, lines, total, 1),
        earlier=_lines_link(one, lines, total, -1), job_path=job_path, link=link, again=words_for_again(one),
    )  # fmt: skip


def _to_come(one: RunView, chain: list[str]) -> list[str]:
    """The tasks of its chain that have no run yet."""
    after = len(chain) - 1 - chain.index(one.run_id) if one.run_id in chain else 0
    return steps_of(one.options)[after:]


def _lines_link(one: RunView, lines: list[Any], total: int, way: int) -> str | None:
    if not lines:
        return None
    first, last = lines[0].number, lines[-1].number
    if way < 0:
        return link(f"/runs/{one.run_id}", **{"from": max(1, first - LINES)}) + "#log" if first > 1 else None
    if last >= total:
        return None
    return link(f"/runs/{one.run_id}", **{"from": last + 1 if last + LINES < total else None}) + "#log"


def _lateness(one: RunView) -> float | None:
    """Of a first attempt: how long after its instant it started."""
    if one.started_at is None or one.attempt != 1 or one.errors or (one.options or {}).get("by_hand"):
        return None
    return max(0.0, (one.started_at - one.scheduled_at).total_seconds())


def progress_of(one: RunView) -> Progress | None:
    if not one.progress:
        return None
    data = dict(one.progress)
    share, done, total = (_as_number(data.get(name)) for name in ("value", "done", "total"))
    if share is None and done is not None and total:
        share = done / total
    message = data.get("message")
    rest = {key: value for key, value in data.items() if key not in ("value", "message")}
    return Progress(None if share is None or not 0 <= share <= 1 else share, message if isinstance(message, str) else "", rest)


def _as_number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def words_for_again(one: RunView) -> str | None:
    """What running it again is called; None: it cannot be."""
    if one.state == "dead" and one.payload is not None:
        return "Replay"
    if one.state == "delayed":
        return None if one.due_at is None else "Run now"
    return "Run again" if one.finished and one.payload is not None else None


def words_for_waiting(one: RunView, facts: Circumstances) -> list[str]:
    """Why it has not started."""
    said = []
    if one.state == "delayed":
        if one.due_at is None:
            said.append("It waits for the run of its job before it to end" + (f": {facts.before}." if facts.before else "."))
        elif one.attempt:
            said.append("Its last attempt failed; the next one is due at the time below.")
        else:
            said.append("It is not due yet.")
    elif one.state == "parked":
        held = (one.reason or "").startswith("held back")
        said.append(f"It is {'' if held else 'set apart: '}{one.reason}." if one.reason else "It is set apart.")
    elif one.reason:
        said.append(f"It {one.reason}.")
    if facts.paused_at is not None:
        said.append(f"Queue {one.queue} is paused: nothing is started from it until it is resumed.")
    if not facts.workers:
        said.append(f"No live worker serves queue {one.queue}.")
    elif not facts.knowing and one.state != "parked":
        said.append(f"No live worker that serves queue {one.queue} has the code of task {one.task}.")
    if one.state == "ready" and one.reason is None and facts.oldest_seconds is not None and facts.oldest_seconds > 1:
        span = seconds_in_words(facts.oldest_seconds)
        said.append(f"The first run of its queue has been due for {span}: others are before it.")
    return said or ["It is about to start."]


@router.post("/runs/{run_id}/cancel", openapi_extra=roles("operator"))
async def cancel(request: Request, run_id: RunId) -> Response:
    app, form = app_of(request), await form_of(request)
    one = await app.runs.show(run_id)
    reason = form.text("reason")
    if one.state == "running" and not form.confirmed:
        return confirm(
            request, form, f"Stop run {one.run_id}?", button="Stop it", consequences=[
                f"Task {one.task} is interrupted where it is: what it has done so far stays done.",
                "It is not tried again; it ends as cancelled.",
            ],
        )  # fmt: skip
    outcome = await app.runs.cancel(one.run_id, None if reason is None else reason[:_LONGEST_REASON])
    said = f"{one.run_id} is cancelled." if outcome == "cancelled" else f"{one.run_id} is running and was asked to stop."
    return back(local(form.get("back", ""), f"/runs/{one.run_id}"), said)


@router.post("/runs/{run_id}/retry", openapi_extra=roles("operator"))
async def retry(request: Request, run_id: RunId) -> Response:
    app = app_of(request)
    one = await app.runs.show(run_id)
    again = await app.runs.retry(one.run_id)
    if again == one.run_id:
        return back(f"/runs/{again}", f"{again} runs again.")
    return back(f"/runs/{again}", f"{again} is a new run with the payload and options of {one.run_id}.")
