"""What happened to a run, in order: put together from what it carries, its steps, and what people ordered about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from hourhand.surfaces.auditing import Change
from hourhand.surfaces.dashboard.words import seconds_in_words
from hourhand.surfaces.run_insight import StepDone
from hourhand.surfaces.views import RunView

_MOMENT = timedelta(milliseconds=50)
_HELD = "held back "
_ORDERED = {
    "run.cancel": "Cancelled", "run.retry": "Run again", "dead.edit": "Payload changed", "dead.replay": "Sent back to its queue",
    "dead.purge": "Purged from the dead letters",
}  # fmt: skip
_ENDS = {
    "succeeded": ("good", "Succeeded"), "dead": ("bad", "Gave up"), "cancelled": ("quiet", "Cancelled"), "expired": ("warn", "Expired"),
    "lost": ("bad", "Lost"), "skipped": ("quiet", "Skipped"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    at: datetime | None
    """None: not known."""
    tone: str
    title: str
    detail: str = ""
    node: str | None = None
    traceback: str | None = None
    ahead: bool = False
    """It has not happened yet."""

    @property
    def wrong(self) -> bool:
        return self.tone == "bad" and self.title.endswith("failed")


def timeline(run: RunView, steps: Iterable[StepDone], changes: Sequence[Change], nodes: Mapping[int, str]) -> list[Event]:
    ordered = [_order(one) for one in changes if one.action in _ORDERED]
    events = [*_beginning(run), *map(failure, run.errors), *map(_step, steps), *ordered]
    # What carries no time of its own follows what was known before it.
    last = datetime.min.replace(tzinfo=UTC)
    dated = []
    for place, one in enumerate(events):
        last = one.at or last
        dated.append((last, place, one))
    return [one for *_, one in sorted(dated, key=lambda each: each[:2])] + _ending(run, nodes)


def _beginning(run: RunView) -> list[Event]:
    by_hand = (run.options or {}).get("by_hand")
    made = run.enqueued_at or run.scheduled_at
    if run.job_id is None:
        title = "Enqueued"
    elif by_hand:
        title = "Started by hand" if by_hand == "triggered" else "Asked for afterwards"
    else:
        title = "Fired by its schedule"
    events = [Event(made, "info", title, f"into queue {run.queue}")]
    if abs(run.scheduled_at - made) > _MOMENT and (run.scheduled_at > made or run.job_id is not None):
        late = f"made {seconds_in_words(made - run.scheduled_at)} after it" if made > run.scheduled_at and not by_hand else ""
        events.append(Event(run.scheduled_at, "quiet", "Scheduled for", late))
    return events


def failure(error: Mapping[str, Any] | None) -> Event:
    known = error or {}
    words = f"{known.get('type', 'Error')}: {known.get('message', '')}".rstrip(": ")
    title = f"Attempt {known.get('attempt', '?')} failed"
    return Event(_instant(known.get("at")), "bad", title, words, known.get("node"), known.get("traceback") or None)


def _instant(text: Any) -> datetime | None:
    try:
        at = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _step(step: StepDone) -> Event:
    return Event(step.made_at, "good", f"Step {step.name} done", "a retry does not repeat it")


def _order(change: Change) -> Event:
    detail = f"by {change.actor}"
    after = change.after if isinstance(change.after, dict) else {}
    title = _ORDERED[change.action]
    if change.action == "run.cancel" and after.get("outcome") == "asked":
        title = "Asked to stop"
    if after.get("reason"):
        detail += f": {after['reason']}"
    if change.action == "run.retry" and after.get("again_as") not in (None, change.subject):
        detail += f", as {after['again_as']}"
    return Event(change.at, "info", title, detail)


def _ending(run: RunView, nodes: Mapping[int, str]) -> list[Event]:
    """Where it is now, or how it ended; and the attempt before that, if the run tells when it began."""
    events = []
    node = None if run.node is None else nodes.get(run.node) or f"node {run.node}"
    failed = [_instant(error.get("at")) for error in run.errors if error]
    if run.started_at is not None and not any(at is not None and at >= run.started_at for at in failed):
        events.append(Event(run.started_at, "info", f"Attempt {run.attempt} started", "", node))
    if run.finished:
        tone, title = _ENDS[run.state]
        detail = (run.reason or "").removeprefix("gave up ")
        return [*events, Event(run.finished_at, tone, title, detail)]
    if run.state == "running":
        asked = (
            [Event(None, "warn", "Asked to stop", run.reason.removeprefix("asked to stop").lstrip(": "))] if run.reason else []
        )
        return [*events, *asked]
    if run.state == "delayed":
        again = f"Attempt {run.attempt + 1} is due" if run.attempt else "Due"
        return [*events, Event(run.due_at, "quiet", again if run.due_at else "Waits for the run before it", ahead=True)]
    if run.state == "parked":
        reason = run.reason or ""
        title, detail = ("Held back", reason.removeprefix(_HELD)) if reason.startswith(_HELD) else ("Set apart", reason)
        return [*events, Event(None, "warn", title, detail, ahead=True)]
    if run.reason is not None:
        return [*events, Event(None, "quiet", run.reason[0].upper() + run.reason[1:], f"in queue {run.queue}", ahead=True)]
    return [*events, Event(None, "quiet", "Waits for a worker", f"in queue {run.queue}", ahead=True)]
