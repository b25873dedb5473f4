"""Jobs and their runs, for reading."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from hourhand.core.clock import Clock
from hourhand.core.errors import InvalidSchedule
from hourhand.core.zones import load_zone
from hourhand.surfaces.cli.common import ago, facts, fixed, folded, number, out, plain, print_json, span, table
from hourhand.surfaces.cli.runs import colour
from hourhand.surfaces.views import JobView, RunView

_STYLES = {"active": "green", "paused": "yellow", "finished": "dim"}


def plain_view(view: JobView) -> dict[str, Any]:
    """`outcome` is only of those that add or change."""
    return {name: value for name, value in view.to_dict().items() if name != "outcome" or value is not None}


def print_changed(view: JobView, as_json: bool) -> None:
    if as_json:
        print_json(plain_view(view))
        return
    said = {"added": "is added", "replaced": "is changed", "unchanged": "is as it was"}
    out.print(
        Text.assemble((view.name, "bold"), f"  {view.job_id}  {said.get(view.outcome or '', view.outcome)}"), soft_wrap=True
    )
    out.print(facts({"schedule": view.in_words, "next": _next_in_words(view)}))


def _next_in_words(view: JobView) -> str:
    if view.next_run_at is None:
        return "not while it is paused" if view.state == "paused" else "never: it is finished"
    local = _local(view.next_run_at, view.timezone)
    return _moment(view.next_run_at, Clock().instant()) + (f"\n{local}" if local else "")


def print_jobs(found: list[JobView]) -> None:
    now = Clock().instant()
    rows = table(folded("name"), fixed("state"), folded("schedule"), folded("zone"), fixed("next firing"), folded("task"))
    for one in found:
        at = one.next_run_at
        when = f"{ago(at, now)}\n{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z" if at else ""
        # Of a single instant that is still to come, the next column says it all.
        schedule = "once" if at and re.match(r"\d{4}-", one.schedule) else one.schedule
        rows.add_row(one.name, _state(one.state), plain(schedule), one.timezone, when, one.task)
    out.print(rows)


def print_job(view: JobView, firings: list[datetime], runs: list[RunView]) -> None:
    now = Clock().instant()
    out.print(Text.assemble((view.name, "bold"), f"  {view.job_id}  ", _state(view.state), f"  {view.task}"), soft_wrap=True)
    out.print(facts(_about(view, now)))
    out.print()
    out.print(Text("next firings", "bold"))
    if not firings:
        out.print(f"  {_next_in_words(view)}")
    for at in firings:
        local = _local(at, view.timezone)
        out.print(f"  {_utc(at)}{f'  {local}' if local else ''}  {ago(at, now)}", soft_wrap=True)
    if runs:
        out.print()
        out.print(Text("last runs", "bold"))
        out.print(runs_table(runs))


def _about(view: JobView, now: datetime) -> dict[str, str | None]:
    missed = {"SKIP": "is left out", "RUN_ONCE": "is made up for once", "RUN_ALL": f"is made up for, at most {view.max_missed:,}"}
    return {
        "schedule": view.schedule if view.timezone == "UTC" else f"{view.schedule} in {view.timezone}",
        "in words": view.in_words,
        "dst": "a local time that does not exist is left out" if view.dst == "skip" else None,
        "payload": msgspec.json.encode(view.payload).decode() if view.payload else None,
        "queue": f"{view.queue}, priority {view.priority}",
        "overlap": view.overlap,
        "missed": f"{view.missed_window}: what is more than {span(view.misfire_grace)} late {missed.get(view.missed_window, '')}",
        "flexible": f"starts within {span(view.flexible_window)} of each firing" if view.flexible_window else None,
        "starts": _moment(view.start_at, now),
        "ends": _moment(view.end_at, now),
        "max runs": f"{view.max_runs:,}, {view.fired or 0:,} of them so far" if view.max_runs else None,
        "attempts": None if view.max_attempts is None else f"at most {view.max_attempts:,}",
        "timeout": span(view.timeout),
        "delivery": view.delivery,
        "key": view.idempotency_key_template,
        "tags": ", ".join(view.tags),
        "secret": ", ".join(view.secret),
        "then": " → ".join(view.then),
        "declared by": view.declared_by,
        "paused": _moment(view.paused_at, now),
        "created": _moment(view.created_at, now),
        "changed": _moment(view.updated_at, now) if view.version > 1 else None,
        "version": f"{view.version}, in shard {view.shard}",
    }  # fmt: skip


def runs_table(runs: list[RunView]) -> Table:
    now = Clock().instant()
    rows = table(fixed("run"), fixed("state"), fixed("for"), number("attempt"), fixed("when"), folded("reason"))
    for one in runs:
        when = ago(one.finished_at or one.started_at or one.due_at, now)
        rows.add_row(one.run_id, colour(one.state), _utc(one.scheduled_at), str(one.attempt), when, plain(one.reason or ""))
    return rows


def _state(state: str) -> Text:
    return Text(state, _STYLES.get(state, ""))


def _utc(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _moment(at: datetime | None, now: datetime) -> str:
    return "" if at is None else f"{_utc(at)}, {ago(at, now)}"


def _local(at: datetime, zone: str) -> str:
    """The same instant where the job lives; nothing if that is UTC, or a zone that only newer data knows."""
    if zone == "UTC":
        return ""
    try:
        return f"{at.astimezone(load_zone(zone)):%Y-%m-%d %H:%M:%S %Z} ({zone})"
    except InvalidSchedule:
        return ""
