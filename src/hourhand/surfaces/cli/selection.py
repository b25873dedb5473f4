"""Which dead letters a person means, and doing something to all of them: asked first, with a bar when they are many."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hourhand.core import ids
from hourhand.core.errors import InvalidOption
from hourhand.surfaces.cli.common import AnyApp, Exit, ask, err, polite, run

Act = Callable[..., Awaitable[None]]
MANY = 1_000
_NAMED = 20


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dead letters a person means."""

    run_ids: list[str]
    filters: dict[str, Any]
    everything: bool
    limit: int | None
    yes: bool

    def check(self, verb: str) -> None:
        """Refuse what could do more than was meant."""
        if self.everything and self.run_ids:
            raise InvalidOption(f"--all and run ids say different things; nothing was done. Give one of them to {verb}")
        if not (self.everything or self.run_ids or self.filters):
            raise InvalidOption(
                f"say which dead letters to {verb}: run ids, or filters (--task, --queue, --tag, --error, --since, --before), "
                "or --all. `hourhand dead list` shows what there is"
            )
        if not (self.run_ids or self.yes or sys.stdin.isatty()):
            raise InvalidOption(f"nobody is at a terminal to be asked, so nothing was done; add --yes to {verb} without asking")


def filters_of(
    task: str | None, queue: str | None, tag: str | None, error: str | None, since: datetime | None, before: datetime | None
) -> dict[str, Any]:
    given = {"task": task, "queue": queue, "tag": tag, "error": error, "since": since, "before": before}
    return {name: value for name, value in given.items() if value is not None}


def act_on(app: AnyApp, chosen: Selection, verb: str, act: Act) -> list[str]:
    """Do it to those that were chosen; returns the ids that are not among the dead letters."""
    polite(lambda: chosen.check(verb))
    return _act_by_id(app, chosen, verb, act) if chosen.run_ids else _act_by_filter(app, chosen, verb, act)


def _act_by_id(app: AnyApp, chosen: Selection, verb: str, act: Act) -> list[str]:
    async def work(app: AnyApp) -> list[str]:
        wanted = list(dict.fromkeys(ids.run_id(ids.parse_run_id(one)) for one in chosen.run_ids))
        there = {one.run_id for one in await app.dead.list(*wanted, limit=len(wanted), **chosen.filters)}
        found = [one for one in wanted if one in there]
        if found:
            with _bar(verb, len(found)) as progress:
                await act(app, *found, limit=chosen.limit, progress=progress)
        return [one for one in wanted if one not in there]

    return run(app, work)


def _act_by_filter(app: AnyApp, chosen: Selection, verb: str, act: Act) -> list[str]:
    async def survey(app: AnyApp) -> tuple[int, dict[str, Any]]:
        latest = await app.dead.list(limit=1, **chosen.filters)
        if not latest or latest[0].finished_at is None:
            return 0, {}
        # What dies from now on was not counted, so it is not meant.
        counted = {**chosen.filters, "before": latest[0].finished_at + timedelta(microseconds=1)}
        return await app.dead.count(**counted), counted

    async def work(app: AnyApp) -> None:
        with _bar(verb, total) as progress:
            await act(app, limit=chosen.limit, progress=progress, **counted)

    count, counted = run(app, survey)
    total = count if chosen.limit is None else min(count, chosen.limit)
    if total:
        if not chosen.yes:
            _confirm(verb, count, total)
        run(app, work)
    return []


def _confirm(verb: str, count: int, total: int) -> None:
    matches = f"{letters(count)} match{'es' if count == 1 else ''}"
    which = "" if total == count else f" the oldest {total:,}"
    warning = " Payloads cannot be brought back." if verb == "purge" else ""
    if not ask(f"{matches}.{warning} {verb.capitalize()}{which or (' it' if count == 1 else ' them')}?"):
        err.print("nothing was done")
        raise typer.Exit(Exit.FAILED)


@contextmanager
def _bar(verb: str, total: int) -> Iterator[Callable[[int], None] | None]:
    if total <= MANY:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err) as progress:
        bar = progress.add_task(verb, total=total)
        yield lambda done: progress.update(bar, completed=done)


def end(missing: list[str], blocked: list[str]) -> None:
    if missing:
        err.print(f"[red]error:[/] not among the dead letters that match: {named(missing)}", soft_wrap=True)
        raise typer.Exit(Exit.NOT_FOUND)
    if blocked:
        raise typer.Exit(Exit.NOT_POSSIBLE)


def letters(count: int) -> str:
    return f"{count:,} dead letter{'' if count == 1 else 's'}"


def named(run_ids: list[str]) -> str:
    rest = len(run_ids) - _NAMED
    return ", ".join(run_ids[:_NAMED]) + (f" and {rest:,} more; --json names them all" if rest > 0 else "")
