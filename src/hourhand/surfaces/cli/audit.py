"""`hourhand audit`: who changed what."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer

from hourhand.core.clock import Clock
from hourhand.surfaces.auditing import Change
from hourhand.surfaces.cli.common import AnyApp, AsJson, ago, err, fixed, folded, instant, out, plain, print_json, run, table
from hourhand.surfaces.cli.connection import connected

_LONGEST = 300

Since = Annotated[
    datetime | None, typer.Option("--since", metavar="WHEN", parser=instant, help="Since: 30s, 15m, 2h, 7d ago, or ISO 8601.")
]
Until = Annotated[datetime | None, typer.Option("--until", metavar="WHEN", parser=instant, help="Before: the same.")]


@connected
def audit(
    app: AnyApp,
    subject: Annotated[
        str | None, typer.Argument(metavar="[WHAT]", help="An id or a name: of a job, a run, a queue, a key.", show_default=False)
    ] = None,
    actor: Annotated[str | None, typer.Option("--actor", help="Only what this one did, as the list names him.")] = None,
    action: Annotated[str | None, typer.Option("--action", help="job.update, say; or job, for all about jobs.")] = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many, the newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Every change: who, when, what, and how it was before and after. The log can only be added to.

    Example: hourhand audit weekly --since 7d
    """
    filters: dict[str, Any] = {"actor": actor, "action": action, "subject": subject, "since": since, "until": until}
    found = run(app, lambda app: app.audit.list(limit=limit, **filters))
    if as_json:
        print_json(found)
        return
    if not found:
        out.print("no changes match" if any(filters.values()) else "no changes yet")
        if subject == "list":
            err.print("`hourhand audit` lists by itself; `list` was taken for the name of something")
        return
    now = Clock().instant()
    rows = table(fixed("when"), folded("who"), fixed("action"), folded("what"), folded("change"))
    for one in found:
        rows.add_row(ago(one.at, now), plain(one.actor), one.action, plain(one.name or one.subject or ""), plain(_words(one)))
    out.print(rows)
    if len(found) == limit:
        err.print(f"[dim]the newest {limit}; --limit shows more[/]")


def _words(one: Change) -> str:
    """Old and new values of what changed; of something new or gone, that it is."""
    before, after = one.before, one.after
    if before is None and one.action == "job.add":
        return f"{after.get('schedule')} {after.get('timezone')}"
    if isinstance(before, dict) and isinstance(after, dict):
        words = ", ".join(f"{name}: {_short(before.get(name))} → {_short(value)}" for name, value in after.items())
    else:
        words = ", ".join(f"{name}: {_short(value)}" for name, value in (after or {}).items() if value is not None)
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 1]}…"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:59]}…"
