"""What can be ordered about dead letters, one or many: back into their queues, at a rate or at once, or away for good."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from fastapi import APIRouter, Request, Response

from hourhand.core.errors import InvalidOption
from hourhand.surfaces.app import Hourhand
from hourhand.surfaces.dashboard.dead import NO_ERROR, insight_of
from hourhand.surfaces.dashboard.filters import moment
from hourhand.surfaces.dashboard.pages import Form, PageRoute, back, confirm, form_of, local
from hourhand.surfaces.dashboard.words import number, plural, seconds_in_words, since
from hourhand.surfaces.dead_letters import Replayed, check_rate
from hourhand.surfaces.letter_insight import MOST_COUNTED
from hourhand.surfaces.rest.route import app_of, roles

router = APIRouter(route_class=PageRoute, include_in_schema=False)
MOST = 10_000
"""Letters that one request sends back or throws away; whoever wants more is asked whether to go on."""
_MOST_NAMED = 5
_MOST_CHOSEN = 1_000


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which letters a form means: these, or all that match."""

    run_ids: list[str]
    filters: dict[str, Any]

    @property
    def single(self) -> bool:
        return len(self.run_ids) == 1


def _chosen(form: Form) -> Chosen:
    """Nothing said is not everything: that has to be said."""
    run_ids = list(dict.fromkeys(form.many("run")))
    if len(run_ids) > _MOST_CHOSEN:
        raise InvalidOption(f"at most {_MOST_CHOSEN:,} at once")
    filters: dict[str, Any] = {name: text for name in ("task", "queue", "tag", "error") if (text := form.text(name)) is not None}
    if filters.get("error") == NO_ERROR:
        filters["error"] = ""
    for name in ("since", "before"):
        if (at := moment(name, form.get(name, ""))) is not None:
            filters[name] = at
    if run_ids:
        return Chosen(run_ids, {})
    if form.get("which") == "ticked":
        raise InvalidOption("Nothing was chosen: tick the letters first.")
    if not filters and form.get("all") != "yes":
        raise InvalidOption("It does not say which dead letters are meant.")
    return Chosen([], filters)


async def _fixed(app: Hourhand, form: Form, which: Chosen) -> tuple[Form, Chosen]:
    """The same, and what dies from now on is not meant."""
    if which.run_ids or "before" in which.filters:
        return form, which
    latest = await app.dead.list(limit=1, **which.filters)
    if not latest or latest[0].finished_at is None:
        return form, which
    before = latest[0].finished_at + timedelta(microseconds=1)
    return _with(form, before=before.isoformat()), Chosen([], {**which.filters, "before": before})


def _with(form: Form, **changes: str) -> Form:
    kept = [(name, value) for name, value in form.kept() if name not in changes]
    return Form([*kept, *changes.items()])


def _rate(form: Form) -> float | None:
    text = form.text("rate")
    if text is None:
        return None
    try:
        rate = float(text)
    except ValueError:
        raise InvalidOption(f"the rate is how many become due in a second, such as 5 or 0.5, not {text!r}") from None
    check_rate(rate, None)
    return rate


@router.post("/dead/replay", openapi_extra=roles("operator"))
async def replay(request: Request) -> Response:
    app, form = app_of(request), await form_of(request)
    which, rate, start = _chosen(form), _rate(form), moment("start", form.get("start", ""))
    to = local(form.get("back", ""), "/dead")
    form, which = await _fixed(app, form, which)
    if not which.run_ids and not form.confirmed:
        many = await insight_of(request).up_to(**which.filters)
        if not many:
            return back(to, "No dead letter matches any more.", error=True)
        return _ask_to_replay(request, form, which, many, rate)
    done = await app.dead.replay(*which.run_ids, limit=MOST, rate=rate, start=start if rate else None, **which.filters)
    if not which.run_ids and len(done.replayed) == MOST:
        left = await insight_of(request).up_to(**which.filters)
        if left > len(done.blocked):
            return _ask_to_go_on(request, form, done, left, rate)
    if which.single and done.replayed:
        to = f"/runs/{done.replayed[0]}"
    return back(to, _told(which, done), error=not done.replayed)


def _ask_to_replay(request: Request, form: Form, which: Chosen, many: int, rate: float | None) -> Response:
    consequences = [f"{_whose(which)} go back into their queues with fresh attempts, under their old ids."]
    if rate is not None:
        last = f"; the last is due in {seconds_in_words((many - 1) / rate)}" if many <= MOST_COUNTED else ""
        consequences.append(f"{number(rate)} become due in a second, the oldest first{last}.")
    if many > MOST:
        consequences.append(f"{MOST:,} of them go now; then you are asked whether to go on.")
    consequences.append("Those whose key another live run holds stay.")
    return confirm(request, form, f"Replay {_count(many)}?", button="Replay", consequences=consequences)


def _ask_to_go_on(request: Request, form: Form, done: Replayed, left: int, rate: float | None) -> Response:
    """The next ones are due behind these."""
    start = {"start": (done.until + timedelta(seconds=1 / rate)).isoformat()} if rate and done.until else {}
    when = f"; the last is due {since(done.until)}" if done.until else ""
    said = f"{plural(len(done.replayed), 'dead letter')} went back{when}."
    return confirm(request, _with(form, **start), f"Go on with {_count(left)}?", button="Go on", consequences=[said])


@router.post("/dead/purge", openapi_extra=roles("admin"))
async def purge(request: Request) -> Response:
    app, form = app_of(request), await form_of(request)
    to = local(form.get("back", ""), "/dead")
    form, which = await _fixed(app, form, _chosen(form))
    insight = insight_of(request)
    if not form.confirmed:
        many = await insight.up_to(*which.run_ids, **which.filters)
        if not many:
            return back(to, "No dead letter matches any more.", error=True)
        return _ask_to_purge(request, form, many, f"{_whose(which)} leave the dead letters.")
    done = await app.dead.purge(*which.run_ids, limit=MOST, **which.filters)
    if not which.run_ids and done == MOST and (left := await insight.up_to(**which.filters)):
        return _ask_to_purge(request, form, left, f"{plural(done, 'dead letter')} are gone.")
    return back(to, f"{plural(done, 'dead letter')} purged." if done else "No dead letter matches any more.", error=not done)


def _ask_to_purge(request: Request, form: Form, many: int, said: str) -> Response:
    rest = "Their errors stay in the history; their payloads are gone for good, and they cannot be replayed any more."
    return confirm(request, form, f"Purge {_count(many)}?", button="Purge", consequences=[said, rest])


def _count(many: int) -> str:
    return f"more than {MOST_COUNTED:,} dead letters" if many > MOST_COUNTED else plural(many, "dead letter")


def _whose(which: Chosen) -> str:
    if which.run_ids:
        more = len(which.run_ids) - _MOST_NAMED
        return ", ".join(which.run_ids[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    filters, parts = which.filters, []
    for name, words in (("task", "of task"), ("queue", "in queue"), ("tag", "with tag"), ("error", "with error")):
        if filters.get(name):
            parts.append(f"{words} {filters[name]}")
    if filters.get("error") == "":
        parts.append("without an error")
    if "since" in filters:
        parts.append(f"that died {since(filters['since'])} or later")
    return f"Dead letters {' '.join(parts)}" if parts else "All dead letters"


def _told(which: Chosen, done: Replayed) -> str:
    said = []
    if done.replayed:
        when = f"; the last is due {since(done.until)}" if done.until else ""
        what = f"{done.replayed[0]} runs again" if which.single else f"{plural(len(done.replayed), 'dead letter')} sent back"
        said.append(f"{what}{when}.")
    if done.blocked:
        named = ", ".join(done.blocked[:_MOST_NAMED]) + (" …" if len(done.blocked) > _MOST_NAMED else "")
        stay = "stays" if len(done.blocked) == 1 else "stay"
        said.append(f"{number(len(done.blocked))} {stay}, blocked by another live run that holds the key: {named}.")
    missing = len(which.run_ids) - len(done.replayed) - len(done.blocked) if which.run_ids else 0
    if missing > 0:
        said.append(f"{number(missing)} {'was' if missing == 1 else 'were'} not there any more.")
    return " ".join(said) or "No dead letter matches any more."
