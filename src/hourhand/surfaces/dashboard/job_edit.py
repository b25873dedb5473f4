"""Changing a job, and making one: a form for everything that can be said, with a look at the firings it would have."""

from __future__ import annotations

from datetime import tzinfo
from typing import Any

from fastapi import APIRouter, Request, Response

from hourhand.core.errors import (
    DatabaseUnavailable,
    Forbidden,
    HourhandError,
    JobConflict,
    PreconditionFailed,
    UnknownJob,
)
from hourhand.core.zones import load_zone, zone_names
from hourhand.surfaces.dashboard import job_form
from hourhand.surfaces.dashboard.job_parts import Firing, JobName, firings_in, shown, zone_of
from hourhand.surfaces.dashboard.jobs import path_of
from hourhand.surfaces.dashboard.pages import Form, PageRoute, back, form_of, page
from hourhand.surfaces.job_insight import Preview
from hourhand.surfaces.rest.route import app_of, roles
from hourhand.surfaces.views import JobView

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_ADMIN = roles("admin")


@router.get("/jobs/new", openapi_extra=_ADMIN)
async def new(request: Request) -> Response:
    return await _form(request, None, job_form.blank())


@router.post("/jobs/new", openapi_extra=_ADMIN)
async def add(request: Request) -> Response:
    form = await form_of(request)
    try:
        options = job_form.changes(form, {**job_form.blank(), "payload": ""})
        name = form.get("name", "").strip()
        if form.get("do") == "preview":
            preview = await app_of(request).jobs.would_fire(name or "unnamed", added=True, **options)
            return await _form(request, None, job_form.typed(form), preview=preview)
        job = await app_of(request).jobs.add(name, **options)
    except HourhandError as error:
        return await _again(request, None, form, error)
    return back(path_of(job), "Added." if job.outcome == "added" else "It was there already, just like this.")


@router.get("/jobs/{name}/edit", openapi_extra=_ADMIN)
async def edit(request: Request, name: JobName) -> Response:
    view = await shown(request, name)
    return await _form(request, view, job_form.written(view, zone_of(view)))


@router.post("/jobs/{name}/edit", openapi_extra=_ADMIN)
async def save(request: Request, name: JobName) -> Response:
    form, view = await form_of(request), await shown(request, name)
    version = form.get("version", "")
    try:
        if version != str(view.version):
            # What he has not touched would be taken for a change of his.
            raise PreconditionFailed(f"The job has been changed since you opened this form: it is at version {view.version} now.")
        changes = job_form.changes(form, job_form.written(view, zone_of(view)))
        if form.get("do") == "preview":
            preview = await app_of(request).jobs.would_fire(view.job_id, **changes)
            return await _form(request, view, job_form.typed(form), version=version, preview=preview)
        job = await app_of(request).jobs.update(view.job_id, version=view.version, **changes)
    except HourhandError as error:
        return await _again(request, view, form, error)
    return back(path_of(job), "Nothing was changed." if job.outcome == "unchanged" else "Saved.")


async def _again(request: Request, view: JobView | None, form: Form, error: HourhandError) -> Response:
    """With what was typed, and what is wrong with it."""
    if isinstance(error, (DatabaseUnavailable, Forbidden, UnknownJob)):
        raise error
    words = "There is a job of this name already, and it is another one." if isinstance(error, JobConflict) else str(error)
    return await _form(
        request, view, job_form.typed(form), 422, version=form.get("version", ""), error=words, wrong=job_form.culprit(error, form),
        stale=isinstance(error, PreconditionFailed),
    )  # fmt: skip


async def _form(
    request: Request, view: JobView | None, values: dict[str, str], status: int = 200, *, version: str | None = None,
    preview: Preview | None = None, error: str | None = None, wrong: str | None = None, stale: bool = False,
) -> Response:  # fmt: skip
    before = None if view is None else await _as_it_is(request, view)
    return page(
        request, "job_edit.html", status, job=view, path_of=path_of, groups=job_form.GROUPS, name_field=job_form.NAME, values=values,
        seen=version if version is not None else view and view.version, zones=sorted(zone_names()),
        queues=await app_of(request).jobs.queue_names(), error=error, wrong=wrong, stale=stale, before=before,
        preview=preview and _Shown(preview), moved=before is not None and preview is not None and preview.firings != before.instants,
    )  # fmt: skip


class _Shown:
    """Firings with the clock they are read on."""

    def __init__(self, preview: Preview) -> None:
        self.in_words, self.timezone, self.instants = preview.in_words, preview.timezone, preview.firings
        zone: tzinfo = load_zone(preview.timezone)
        self.firings: list[Firing] = firings_in(zone, preview.firings)


async def _as_it_is(request: Request, view: JobView) -> Any:
    try:
        return _Shown(await app_of(request).jobs.would_fire(view.job_id))
    except HourhandError as error:
        if isinstance(error, DatabaseUnavailable):
            raise
        return None  # it cannot be opened here, or its zone is not known: what is wrong is said when it is saved
