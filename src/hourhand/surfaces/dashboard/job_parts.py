"""What the pages about one job share: its instants on its own clock, and what was changed in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Annotated, Any

import msgspec
from fastapi import Path as InPath
from fastapi import Request

from hourhand.core.errors import InvalidSchedule
from hourhand.core.zones import load_zone
from hourhand.surfaces.auditing import Change
from hourhand.surfaces.rest.route import app_of
from hourhand.surfaces.views import JobView

JobName = Annotated[str, InPath(max_length=100)]
_LONGEST = 160


@dataclass(frozen=True, slots=True)
class Firing:
    at: datetime
    there: str
    """On the clock where the job lives."""


def firings_in(zone: tzinfo, instants: Sequence[datetime]) -> list[Firing]:
    return [Firing(at, on_the_clock(at, zone)) for at in instants]


def on_the_clock(at: datetime, zone: tzinfo) -> str:
    local = at.astimezone(zone)
    return f"{local:%a %Y-%m-%d %H:%M:%S} {local.isoformat()[-6:]}"


def zone_of(job: JobView) -> tzinfo:
    """UTC stands in for a zone that only newer data knows."""
    try:
        return load_zone(job.timezone)
    except InvalidSchedule:
        return UTC


async def shown(request: Request, name: str) -> JobView:
    app = app_of(request)
    return (await app.jobs.show(name)).redacted(app.settings.secret_names)


_ACTIONS = {"add": "added", "update": "changed", "pause": "paused", "resume": "resumed", "trigger": "started by hand",
            "backfill": "backfilled", "cancel_backfill": "backfill called off", "delete": "deleted"}  # fmt: skip
_QUIET = ("pause", "resume", "add", "delete")
"""The word says it all."""


@dataclass(frozen=True, slots=True)
class Told:
    at: datetime
    actor: str
    via: str
    words: str
    details: list[tuple[str, str | None, str | None]]
    run_id: str | None = None


def told(change: Change) -> Told:
    kind = change.action.removeprefix("job.")
    before, after = dict(change.before or {}), dict(change.after or {})
    run = after.pop("run_id", None)
    if kind == "trigger" and after.get("outcome") == "started":
        after.pop("outcome")
    details = []
    if kind not in _QUIET:
        names = dict.fromkeys((*before, *after))
        given = [(name.replace("_", " "), _brief(before, name), _brief(after, name)) for name in names]
        details = [one for one in given if one[1:] != (None, None)]
    return Told(change.at, change.actor, change.via, _ACTIONS.get(kind, change.action), details, run)


def _brief(values: dict[str, Any], name: str) -> str | None:
    value = values.get(name)
    if value is None or value is False or value in ([], ""):
        return None
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
