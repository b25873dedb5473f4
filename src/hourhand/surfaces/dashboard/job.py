"""A job: what it is, when it fires, what became of its firings and why, who changed it; holding it, starting it, deleting it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from statistics import median
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response

from hourhand.core.account import UNEXPLAINED, Line
from hourhand.core.clock import Clock
from hourhand.core.errors import DatabaseUnavailable, HourhandError, InvalidPayload
from hourhand.core.job import MISSED
from hourhand.surfaces.dashboard import job_edit
from hourhand.surfaces.dashboard.calendar import HeatMap, heat_map
from hourhand.surfaces.dashboard.charts import Chart, Series
from hourhand.surfaces.dashboard.job_form import instant
from hourhand.surfaces.dashboard.job_parts import JobName, firings_in, on_the_clock, shown, told, zone_of
from hourhand.surfaces.dashboard.jobs import overdue, path_of
from hourhand.surfaces.dashboard.pages import PageRoute, back, confirm, form_of, link, page
from hourhand.surfaces.dashboard.words import plural, pretty, seconds_in_words, tone
from hourhand.surfaces.job_insight import SCALES
from hourhand.surfaces.rest.problems import Refused
from hourhand.surfaces.rest.route import app_of, roles
from hourhand.surfaces.views import JobView, RunView

router = APIRouter(route_class=PageRoute, include_in_schema=False)
router.include_router(job_edit.router)  # before a job that is named as one of its pages

Moment = Annotated[str, Query(max_length=50)]
_RUNS = 20
_MEASURED = 100
_LEAST_BARS = 40
_LINES = 100
_LINES_UNASKED = 24
_CHANGES = 10
_TONES = {"fired": "good", "due": "warn", UNEXPLAINED: "bad", "coalesced": "quiet", "moved": "warn"}


@router.get("/jobs/{name}")
async def job(
    request: Request, name: JobName, at: Moment = "", since: Moment = "", until: Moment = "",
    scale: Annotated[str, Query(max_length=10)] = "",
) -> Response:  # fmt: skip
    jobs, view = app_of(request).jobs, await shown(request, name)
    if scale not in ("", *SCALES):
        raise Refused(422, f"a calendar is by {', '.join(SCALES)}, not {scale!r}")
    zone, number = zone_of(view), view.job_id
    runs = await jobs.latest_runs(number, _MEASURED)
    return page(
        request, "job.html", job=view, overdue=overdue(view), zone=zone, here_path=path_of(view), path_of=path_of,
        firings=firings_in(zone, await jobs.next(number)), map=await _map(request, view, zone, scale), scale=scale, scales=list(SCALES),
        chart=_durations(runs), runs=runs[:_RUNS], facts=_facts(view), missed=MISSED, why=await _why(request, view, zone, at, since, until),
        changes=[told(one) for one in await jobs.changes(number, limit=_CHANGES)], link=link,
    )  # fmt: skip


@router.get("/jobs/{name}/changes")
async def changes(request: Request, name: JobName, below: Annotated[int | None, Query(ge=1, lt=2**63)] = None) -> Response:
    view = await shown(request, name)
    found = await app_of(request).jobs.changes(view.job_id, below=below, limit=51)
    following = link(path_of(view, "changes"), below=found[49].id) if len(found) > 50 else None
    return page(
        request, "job_changes.html", job=view, path_of=path_of, changes=[told(one) for one in found[:50]], following=following
    )


@router.post("/jobs/{name}/pause")
async def pause(request: Request, name: JobName) -> Response:
    view = await app_of(request).jobs.pause(name)
    return back(path_of(view), "Paused: it does not fire until it is resumed. Runs that wait or are going on are not touched.")


@router.post("/jobs/{name}/resume")
async def resume(request: Request, name: JobName) -> Response:
    form = await form_of(request)
    done = await app_of(request).jobs.resume(name, missed=form.text("missed"))
    made = f" For what was missed, {plural(done.started, 'run')} started." if done.started else ""
    left = f" {plural(done.left_out, 'missed firing')} left out." if done.left_out else ""
    return back(path_of(done.job), f"Resumed.{made}{left}")


@router.get("/jobs/{name}/trigger", openapi_extra=roles("operator"))
async def choose(request: Request, name: JobName) -> Response:
    """With another payload, or in spite of the run before."""
    view = await shown(request, name)
    return page(request, "job_trigger.html", job=view, path_of=path_of, payload=pretty(view.payload), force=False, wrong=None)


@router.post("/jobs/{name}/trigger")
async def trigger(request: Request, name: JobName) -> Response:
    form = await form_of(request)
    view, text, force = await shown(request, name), form.text("payload"), "force" in form
    try:
        # As it is shown, it means the job's own: then nobody has to know what is hidden in it.
        payload = None if text is None or text.replace("\r\n", "\n") == pretty(view.payload) else _object(text)
        done = await app_of(request).jobs.trigger(view.job_id, payload=payload, force=force)
    except DatabaseUnavailable:
        raise
    except HourhandError as error:
        if text is None:
            raise
        return page(request, "job_trigger.html", 422, job=view, path_of=path_of, payload=text, force=force, wrong=str(error))
    said = {
        "started": f"Started: {done.run_id}.", "held": f"{done.run_id} waits for the run before it to end.",
        "skipped": "Not started: the run before it has not ended, and the job's overlap is skip.",
    }  # fmt: skip
    return back(path_of(view), said[done.outcome], error=done.outcome == "skipped")


@router.post("/jobs/{name}/delete", openapi_extra=roles("admin"))
async def delete(request: Request, name: JobName) -> Response:
    form, view = await form_of(request), await shown(request, name)
    if not form.confirmed:
        declared = (
            [f"It is declared in the code of {view.declared_by}, which adds it again when it is deployed."]
            if view.declared_by
            else []
        )
        return confirm(
            request, form, f"Delete {view.name}?", button="Delete it",
            consequences=["It does not fire any more.", "Its runs, waiting or ended, and its record stay.", *declared],
        )  # fmt: skip
    version = form.get("version", "")
    if not re.fullmatch(r"[0-9]{1,9}", version):
        raise Refused(422, "the form does not say which version of the job is meant; load the page again")
    await app_of(request).jobs.delete(view.job_id, version=int(version))
    return back("/jobs", f"{view.name} is deleted.")


def _object(text: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidPayload(f"This is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidPayload('A payload is a JSON object: {"argument": value}')
    return value


async def _map(request: Request, view: JobView, zone: tzinfo, scale: str) -> HeatMap:
    calendar = await app_of(request).jobs.calendar(view.job_id, scale or None)

    def more(since: datetime, until: datetime) -> str:
        return link(path_of(view), since=since.isoformat(), until=until.isoformat(), scale=scale) + "#why"

    return heat_map(calendar, zone, view.timezone, more)


def _durations(runs: Sequence[RunView]) -> Chart | None:
    """How long its latest runs took, the newest last."""
    ended = [
        (one, (one.finished_at - one.started_at).total_seconds()) for one in reversed(runs) if one.started_at and one.finished_at
    ]
    if not ended:
        return None
    # A few runs are a few thin bars, at the right, where the newest are.
    empty = [None] * max(0, _LEAST_BARS - len(ended))
    series = [Series("succeeded", "good", [*empty, *(took if one.state == "succeeded" else None for one, took in ended)])]
    if any(one.state != "succeeded" for one, _ in ended):
        series.append(Series("other", "bad", [*empty, *(None if one.state == "succeeded" else took for one, took in ended)]))
    times = [one.scheduled_at for one, _ in ended]
    title = f"How long it took: median {seconds_in_words(median(took for _, took in ended))} of {plural(len(ended), 'run')}"
    return Chart(title, [*(times[0] for _ in empty), *times], series, "s", stacked=True)


@dataclass(frozen=True, slots=True)
class Why:
    """The ledger's account of a period."""

    lines: list[dict[str, Any]]
    said: str
    asked: str
    """The instant that was asked for, as the field has it."""
    error: str | None = None
    default: bool = False
    instead: str = ""
    """So many runs wait that looking through them has to be asked for: here."""


async def _why(request: Request, view: JobView, zone: tzinfo, at: str, since: str, until: str) -> Why:
    jobs, asked = app_of(request).jobs, ""
    default = not (at or since or until)
    if default and not await jobs.is_quick_to_explain():
        day_ago = Clock().instant() - timedelta(days=1)
        return Why([], "", "", default=True, instead=link(path_of(view), since=day_ago.isoformat()) + "#why")
    try:
        if at:
            moment = instant("at", at.strip(), zone)
            asked = moment.astimezone(zone).replace(tzinfo=None).isoformat(timespec="seconds")
            lines = await jobs.why(view.job_id, at=moment)
            return Why([_line(one, zone) for one in lines], f"At {on_the_clock(moment, zone)}", asked)
        given = {name: instant(name, text.strip(), zone) for name, text in (("since", since), ("until", until)) if text.strip()}
        most = _LINES_UNASKED if default else _LINES
        found = await jobs.lately(view.job_id, most=most, **given)
    except DatabaseUnavailable:
        raise
    except HourhandError as error:
        return Why([], "", asked, error=str(error), default=default)
    said = "The last 24 hours" if default and not found.cut else f"From {on_the_clock(found.since, zone)}"
    if not default:
        said += f" to {on_the_clock(found.until, zone)}"
    if found.cut:
        said += f": the latest {most} firings"
    return Why([_line(one, zone) for one in reversed(found.lines)], f"{said}. {_summary(found.lines)}", asked, default=default)


def _line(line: Line, zone: tzinfo) -> dict[str, Any]:
    return {"line": line, "there": on_the_clock(line.scheduled_at, zone), "tone": _TONES.get(line.outcome, tone(line.outcome))}


def _summary(lines: Sequence[Line]) -> str:
    counts = Counter(line.outcome for line in lines if line.by_hand is None)
    words = f"{counts.total():,} expected" + (": " if counts else "")
    words += ", ".join(f"{many:,} {outcome.replace('_', ' ')}" for outcome, many in counts.most_common())
    extra = len(lines) - counts.total()
    return f"{words}; {extra:,} besides." if extra else f"{words}."


def _facts(view: JobView) -> list[tuple[str, str]]:
    """What is worth knowing, in words; what is as usual is left out."""
    missed = {"SKIP": "is left out", "RUN_ONCE": "is made up for once", "RUN_ALL": f"is made up for, at most {view.max_missed:,}"}
    overlap = {"allow": None, "skip": "a firing is left out while the run before has not ended", "queue": "runs wait for the one before to end",
               "replace": "a new run stops the one before"}  # fmt: skip
    retry = [view.retry_backoff, view.retry_base is not None and f"first pause {seconds_in_words(view.retry_base)}",
             view.retry_cap is not None and f"longest {seconds_in_words(view.retry_cap)}"]  # fmt: skip
    facts = {
        "Missed": f"what is more than {seconds_in_words(view.misfire_grace)} late {missed.get(view.missed_window, view.missed_window)}",
        "Overlap": overlap.get(view.overlap, view.overlap),
        "Clock changes": "a local time that does not exist is left out" if view.dst == "skip" else None,
        "Flexible": f"starts within {seconds_in_words(view.flexible_window)} of each firing" if view.flexible_window else None,
        "Firings": f"{view.fired or 0:,} of at most {view.max_runs:,}" if view.max_runs else None,
        "Attempts": None if view.max_attempts is None else f"at most {view.max_attempts:,}",
        "Time limit": None if view.timeout is None else seconds_in_words(view.timeout),
        "Pauses": ", ".join(one for one in retry if one) or None,
        "Delivery": view.delivery and view.delivery.replace("_", " "),
        "Key": view.idempotency_key_template,
        "Then": " → ".join(view.then) or None,
        "Secret": ", ".join(view.secret) or None,
    }  # fmt: skip
    return [(name, words) for name, words in facts.items() if words]
