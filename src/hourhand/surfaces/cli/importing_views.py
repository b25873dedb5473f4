"""What an import comes to, for reading."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from hourhand.core.clock import Clock
from hourhand.surfaces.cli.common import ago, counted, err, folded, out, plain, table
from hourhand.surfaces.importing.checking import Checked, Import
from hourhand.surfaces.importing.translation import Note
from hourhand.surfaces.stored import written
from hourhand.surfaces.views import BulkAdded

_STATES: dict[bool, dict[str | None, str]] = {
    False: {None: "", "new": "new", "unchanged": "there already", "different": "another definition"},
    True: {None: "", "new": "added", "unchanged": "as it was", "different": "changed"},
}
_STYLES = {"new": "green", "unchanged": "dim", "different": "yellow"}
_FEW = 5


def print_import(made: Import, added: BulkAdded | None, *, replace: bool) -> None:
    if made.jobs:
        _print_jobs(made.jobs, added is not None)
    if made.untranslated:
        if made.jobs:
            out.print()
        count = len(made.untranslated)
        out.print(Text(f"{count:,} {'entry' if count == 1 else 'entries'} not translated", "bold yellow"))
        for one in made.untranslated:
            out.print(Padding(plain(f"{one.where}  {one.what}"), (0, 0, 0, 2), expand=False))
            out.print(Padding(plain(one.reason, "yellow"), (0, 0, 0, 4), expand=False))
    notes = _grouped(made.notes, len(made.jobs))
    if notes:
        out.print()
        out.print(Text("Worth knowing", "bold"))
        rows = Table.grid("", Column(overflow="fold"), padding=(0, 1))
        for whose, text in notes:
            rows.add_row(" ·", Text.assemble(plain(whose, "bold"), ": " if whose else "", plain(text)))
        out.print(rows)
    if made.jobs or made.untranslated:
        out.print()
    _print_end(made, added, replace)


def _print_jobs(jobs: Sequence[Checked], applied: bool) -> None:
    now = Clock().instant()
    rows = table(folded("name"), folded("schedule"), folded("in words, and next"), folded("target"))
    for place, one in enumerate(jobs):
        if place:
            rows.add_row()
        state = [
            word for word in (_STATES[applied][one.state], "paused" if one.paused and one.state != "unchanged" else "") if word
        ]
        name = Text.assemble(plain(one.name, "bold"), "\n" if state else "", (", ".join(state), _STYLES.get(one.state or "", "")))
        schedule = one.definition.schedule
        zone = f"\n{schedule.timezone}" if schedule.kind == "cron" else ""
        when = Text.assemble(plain(_meaning(one)), "\n", (_when(one.next_at, now), "dim"))
        rows.add_row(name, plain(written(schedule) + zone), when, plain(target_of(one)))
    out.print(rows)


def _meaning(one: Checked) -> str:
    """Without the zone, which stands beside it, and without an anchor that is not there yet."""
    words = one.definition.schedule.in_words().removesuffix(f" ({one.definition.schedule.timezone})")
    return words if one.definition.anchored else words.partition(", counted from")[0]


def _when(at: datetime | None, now: datetime) -> str:
    return "never" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z, {ago(at, now)}"


def target_of(one: Checked) -> str:
    payload = one.given.get("payload") or {}
    if one.definition.task != "command":
        return one.definition.task + (f"({', '.join(payload)})" if payload else "")
    words = shlex.join(payload.get("argv", []))
    more = {"in": payload.get("cwd"), "as": payload.get("user")}
    lines = [f"{word} {value}" for word, value in more.items() if value]
    if fed := payload.get("stdin"):
        lines.append(f"fed with {counted(fed.count(chr(10)), 'line')}")
    return "\n".join([words, *lines])


def _grouped(notes: Sequence[Note], jobs: int) -> list[tuple[str, str]]:
    """Whose, and what: the same said of many is said once, and what holds for all of them last."""
    whose: dict[str, list[str]] = {}
    for one in notes:
        whose.setdefault(one.text, []).extend([] if one.job is None else [one.job])
    told = []
    for text, names in whose.items():
        everyone = not names or (len(names) == jobs and jobs > 1)
        more = f" and {len(names) - _FEW:,} more" if len(names) > _FEW else ""
        told.append(("" if everyone else ", ".join(names[:_FEW]) + more, text))
    return sorted(told, key=lambda one: not one[0])


def _print_end(made: Import, added: BulkAdded | None, replace: bool) -> None:
    different = made.named("different")
    if added is not None:
        counts = asdict(added)
        out.print(", ".join(f"{count:,} {what}" for what, count in counts.items() if count or what == "added"))
    elif not made.jobs:
        out.print("nothing was found that could be a job" if not made.untranslated else "nothing to add")
    elif different and not replace:
        names = ", ".join(different[:_FEW]) + (", …" if len(different) > _FEW else "")
        err.print(
            plain(
                f"there already, with another definition: {names}; --replace changes that, --prefix gives other names", "yellow"
            ),
            soft_wrap=True,
        )
    elif len(made.named("unchanged")) == len(made.jobs):
        out.print("everything is there already; nothing would change")
    else:
        would = [
            f"{len(made.named(state)):,} {word}"
            for state, word in (("new", "to add"), ("different", "to change"))
            if made.named(state)
        ]
        what = ", ".join(would) or f"{len(made.jobs):,} to add"
        out.print(f"a dry run: {what}; nothing was changed. The same with --apply does it", soft_wrap=True)


def plain_import(made: Import, added: BulkAdded | None) -> dict[str, Any]:
    return {
        "applied": added is not None,
        "jobs": [
            {
                **one.given, "in_words": one.definition.schedule.in_words(), "next_run_at": one.next_at, "paused": one.paused,
                "state": one.state,
            }
            for one in made.jobs
        ],
        "untranslated": [asdict(one) for one in made.untranslated],
        "notes": [asdict(one) for one in made.notes],
        **({} if added is None else asdict(added)),
    }  # fmt: skip
