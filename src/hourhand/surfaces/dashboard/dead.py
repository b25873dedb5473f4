"""Dead letters: in groups by task and error, one by one, and their payloads edited."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response

from hourhand.core.errors import HourhandError, InvalidPayload
from hourhand.surfaces.dashboard.filters import PERIODS, Text, moment
from hourhand.surfaces.dashboard.pages import PageRoute, back, form_of, link, page
from hourhand.surfaces.dashboard.runs import job_path
from hourhand.surfaces.dashboard.timeline import failure
from hourhand.surfaces.dashboard.words import pretty
from hourhand.surfaces.letter_insight import MOST_COUNTED, Group, LetterInsight
from hourhand.surfaces.rest.answers import timed_cursor
from hourhand.surfaces.rest.route import app_of, roles
from hourhand.surfaces.run_insight import RunInsight
from hourhand.surfaces.views import RunView
from hourhand.surfaces.wire import write_cursor

router = APIRouter(route_class=PageRoute, include_in_schema=False)
PER_PAGE = 50
NO_ERROR = "-"
"""In an address or a form: those that died without an error."""
RunId = Annotated[str, Path(max_length=30)]


@dataclass(frozen=True, slots=True)
class Asked:
    """Which dead letters, as the address says it."""

    task: str = ""
    error: str = ""
    queue: str = ""
    tag: str = ""
    since: str = ""

    @property
    def given(self) -> dict[str, str]:
        return {name: value for name, value in asdict(self).items() if value}

    @property
    def filters(self) -> dict[str, Any]:
        """As the verbs take them."""
        given: dict[str, Any] = self.given
        if self.error == NO_ERROR:
            given["error"] = ""
        if (since := moment("since", self.since)) is not None:
            given["since"] = since
        return given

    def to(self, path: str, **changes: Any) -> str:
        return link(path, **{**self.given, **changes})

    @property
    def fields(self) -> dict[str, str]:
        """For a form that orders something about all of these; a span is told as the instant that it means now."""
        since = moment("since", self.since)
        return {**self.given, **({"since": since.isoformat()} if since else {})} or {"all": "yes"}


def insight_of(request: Request) -> LetterInsight:
    app = app_of(request)
    return LetterInsight(app._database, app.registry, app.name)


@router.get("/dead")
async def groups(
    request: Request, task: Text = "", error: Text = "", queue: Text = "", tag: Text = "", since: Text = "",
    number: Annotated[int, Query(alias="page", ge=1, le=100)] = 1,
) -> Response:  # fmt: skip
    asked = Asked(task.strip(), error.strip(), queue.strip(), tag.strip(), since.strip())
    found = await insight_of(request).groups(skip=PER_PAGE * (number - 1), limit=PER_PAGE, **asked.filters)
    figures = await app_of(request).statistics.queues()
    shown = [one for one in found.groups if one.letters]
    return page(
        request, "dead.html", groups=shown, unseen=len(found.groups) - len(shown), asked=asked, filtered=asked != Asked(),
        messages={(one.task, one.error): _message(request, one.latest) for one in shown}, queues=[one.name for one in figures],
        periods=PERIODS, number=number, more=found.total > PER_PAGE * number, cut=found.cut, letters_of=_address(asked), error_word=error_word,
        fields_of=lambda one: _narrowed(asked, one).fields,
    )  # fmt: skip


def _narrowed(asked: Asked, group: Group) -> Asked:
    return Asked(group.task, group.error or NO_ERROR, asked.queue, asked.tag, asked.since)


def _address(asked: Asked) -> Any:
    return lambda one: _narrowed(asked, one).to("/dead/letters")


def error_word(error: str) -> str:
    return "no error" if error in ("", NO_ERROR) else error


def _message(request: Request, letter: RunView | None) -> str:
    """What its last error said. Where the payload was too long to be read, it is not known what in it is secret."""
    if letter is None or letter.payload is None:
        return ""
    shown = letter.redacted(app_of(request).settings.secret_names)
    last = shown.errors[-1] if shown.errors else None
    return str((last or {}).get("message") or shown.reason or "")


@router.get("/dead/letters")
async def letters(
    request: Request, task: Text = "", error: Text = "", queue: Text = "", tag: Text = "", since: Text = "",
    below: Annotated[str | None, Query(max_length=500)] = None,
) -> Response:  # fmt: skip
    asked = Asked(task.strip(), error.strip(), queue.strip(), tag.strip(), since.strip())
    app, insight = app_of(request), insight_of(request)
    found = await insight.letters(limit=PER_PAGE, below=timed_cursor(below), **asked.filters)
    many = await insight.up_to(**asked.filters) if asked.task and asked.error else None
    jobs = await RunInsight(app._database, app.name).job_names(one.job_id for one in found.letters)
    return page(
        request, "letters.html", letters=found.letters, messages={one.run_id: _message(request, one) for one in found.letters},
        jobs=jobs, job_path=job_path, asked=asked, error_word=error_word, many=many, most=MOST_COUNTED, stopped=found.stopped,
        older=found.below and asked.to("/dead/letters", below=write_cursor(found.below)), below=below,
    )  # fmt: skip


@router.get("/dead/{run_id}")
async def letter(request: Request, run_id: RunId) -> Response:
    one = await app_of(request).dead.show(run_id)
    return await _letter(request, one)


async def _letter(request: Request, one: RunView, text: str | None = None, wrong: str | None = None) -> Response:
    """With what somebody has written, if it could not be taken."""
    app = app_of(request)
    shown = one.redacted(app.settings.secret_names)
    insight = RunInsight(app._database, app.name)
    name = (await insight.job_names([one.job_id])).get(one.job_id or "")
    events = [failure(error) for error in reversed(shown.errors)]
    if request.state.actor.scoped:
        events = [replace(event, node=None) for event in events]  # where it ran is not for a key that opens a part
    group = Asked(one.task, (one.errors[-1] or {}).get("type", "") if one.errors else NO_ERROR)
    return page(
        request, "letter.html", 200 if wrong is None else 422, run=shown, job=name, job_path=job_path, group=group,
        events=events, text=pretty(shown.payload) if text is None else text, wrong=wrong,
        node=(await insight.node_names([one.node])).get(one.node or 0), link=link,
    )  # fmt: skip


@router.post("/dead/{run_id}/edit", openapi_extra=roles("admin"))
async def edit(request: Request, run_id: RunId) -> Response:
    app, form = app_of(request), await form_of(request)
    one = await app.dead.show(run_id)
    text = form.get("payload", "")
    try:
        await app.dead.edit(one.run_id, _object(text))
    except InvalidPayload as error:
        return await _letter(request, one, text, str(error))
    if form.get("then") != "replay":
        return back(f"/dead/{one.run_id}", f"{one.run_id} has its new payload; replay it to send it back.")
    try:
        await app.runs.retry(one.run_id)
    except HourhandError as error:
        return back(f"/dead/{one.run_id}", f"The payload is saved. {error}", error=True)
    return back(f"/runs/{one.run_id}", f"{one.run_id} has its new payload and runs again.")


def _object(text: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidPayload(f"this is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidPayload("a payload is a JSON object: {…}")
    return value
