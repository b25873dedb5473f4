"""What all commands share: finding the app, opening the database, printing, failing politely."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Annotated, Any, TypeVar

import asyncpg
import msgspec
import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from hourhand.core.clock import Clock
from hourhand.core.errors import (
    ConfigurationError,
    DatabaseRefused,
    DatabaseUnavailable,
    HourhandError,
    InvalidOption,
    InvalidPayload,
    InvalidSchedule,
    JobConflict,
    NotPossible,
    UnknownHold,
    UnknownJob,
    UnknownRun,
)
from hourhand.core.settings import settings_from
from hourhand.storage.database import Patience
from hourhand.surfaces.app import Hourhand
from hourhand.surfaces.cli.suggestions import BAD_URL, in_words, is_about_url, with_near_names
from hourhand.surfaces.client import AsyncClient
from hourhand.surfaces.views import JobView, RunView

T = TypeVar("T")
AnyApp = Hourhand | AsyncClient
"""On a database, or at the other end of a network: their verbs are the same."""
A = TypeVar("A", bound=AnyApp)
View = TypeVar("View", RunView, JobView)
_SPAN = re.compile(r"(\d{1,9})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
# Tab and newline stay; the rest could move the cursor or colour what follows.
_CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)], "�")

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


class Exit(IntEnum):
    """Exit codes that scripts can rely on."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    NOT_POSSIBLE = 4
    UNAVAILABLE = 5


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Reveal = Annotated[bool, typer.Option("--reveal", help="Show what is secret, too.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
OnlyTask = Annotated[str | None, typer.Option("--task", help="Only this task.")]
OnlyQueue = Annotated[str | None, typer.Option("--queue", help="Only this queue.")]
OnlyTag = Annotated[str | None, typer.Option("--tag", help="Only runs with this tag.")]


def run(app: A, work: Callable[[A], Awaitable[T]]) -> T:
    """Open the app, do the work, close it; whatever goes wrong becomes one line and an exit code."""

    async def whole() -> T:
        async with app:
            try:
                return await work(app)
            except HourhandError as error:
                raise await with_near_names(app, error) from error.__cause__

    return polite(lambda: asyncio.run(whole()))


def each(
    app: AnyApp,
    names: list[str],
    kind: str,
    verb: Callable[[AnyApp, str], Awaitable[dict[str, Any]]],
    say: Callable[[dict[str, Any]], str],
    as_json: bool,
) -> None:
    """One after the other, each told as it is done; one that cannot be done does not keep the others from it.

    What the verb answers is told with the name that was given under `kind`, unless it says that better itself.
    """
    answers: list[dict[str, Any]] = []
    codes: list[Exit] = []

    async def work(app: AnyApp) -> None:
        for name in dict.fromkeys(names):
            try:
                answer = {kind: name, **await verb(app, name)}
            except HourhandError as error:
                await with_near_names(app, error)
                answers.append({kind: name, "error": str(error)})
                codes.append(tell(error))
                if isinstance(error, DatabaseUnavailable):
                    return
            else:
                answers.append(answer)
                if not as_json:
                    out.print(plain(say(answer)), soft_wrap=True)

    run(app, work)
    if as_json:
        print_json(answers)
    if codes:
        raise typer.Exit(codes[0])


async def patiently(start: Callable[[], Awaitable[object]]) -> None:
    """A process that starts before its database, or just as that goes away, waits for it; anything else it reports at once."""
    patience = Patience(cap=5.0)
    while True:
        try:
            await start()
            return
        except DatabaseRefused:
            raise
        except DatabaseUnavailable as error:
            if patience.first:
                err.print(f"waiting for the database: {error}")
            await patience.wait()


def polite(work: Callable[[], T]) -> T:
    try:
        return work()
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except (HourhandError, asyncpg.PostgresError) as error:
        raise typer.Exit(tell(error)) from None
    except ValueError as error:
        if not is_about_url(error):
            raise
        raise typer.Exit(tell(ConfigurationError(BAD_URL))) from None
    except OverflowError:
        # What a person wrote at the edges of the calendar, and an offset or a moment pushed over them.
        raise typer.Exit(tell(InvalidOption("a time that was given is beyond the calendar (years 1 to 9999)"))) from None


def tell(error: HourhandError | asyncpg.PostgresError) -> Exit:
    """The error as one line, however long; returns the exit code that goes with it."""
    words = in_words(error) if isinstance(error, HourhandError) else f"the database refused: {error}"
    err.print(Text.assemble(("error:", "red"), " ", plain(words)), soft_wrap=True)
    return _code(error)


def _code(error: HourhandError | asyncpg.PostgresError) -> Exit:
    if isinstance(error, (UnknownRun, UnknownJob, UnknownHold)):
        return Exit.NOT_FOUND
    if isinstance(error, (NotPossible, JobConflict)):
        return Exit.NOT_POSSIBLE
    if isinstance(error, DatabaseUnavailable):
        return Exit.UNAVAILABLE
    if isinstance(error, (ConfigurationError, InvalidOption, InvalidPayload, InvalidSchedule)):
        return Exit.USAGE
    return Exit.FAILED


def instant(text: str) -> datetime:
    """`30s`, `15m`, `2h`, `7d` ago, or an ISO 8601 instant that says its offset."""
    word = text.strip()
    span = _SPAN.fullmatch(word)
    try:
        if span:
            return Clock().instant() - timedelta(**{_UNITS[span[2]]: int(span[1])})
        moment = datetime.fromisoformat(word)
        if not 1 < moment.year < 9999:
            raise OverflowError
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is neither a span like 30s, 15m, 2h, 7d nor an instant like 2030-01-31T12:00:00Z"
        ) from None
    if moment.utcoffset() is None:
        raise typer.BadParameter(f"{text!r} does not say its time zone; write for example {moment.isoformat()}Z")
    return moment.astimezone(UTC)


def plain(text: str, style: str = "") -> Text:
    """Other people's words: no markup in them is obeyed, and no control character gets through."""
    return Text(text.translate(_CONTROLS), style)


def ask(question: str, *, default: bool = False) -> bool:
    """Yes or no, asked on standard error: standard output stays clean. Not while an event loop runs: it would swallow Ctrl-C."""
    try:
        answer = err.input(plain(f"{question} {'[Y/n]' if default else '[y/N]'} ")).strip().lower()
    except EOFError:
        err.print()
        return False
    return answer in ("y", "yes") if answer else default


def discreet(app: AnyApp, view: View, reveal: bool = False) -> View:
    """As it may be printed: what is secret only if it was asked for."""
    if not isinstance(app, Hourhand):
        if reveal:
            err.print("[yellow]note:[/] a server shows nothing that is secret; --reveal needs the database", soft_wrap=True)
        return view
    return view if reveal else view.redacted(app.settings.secret_names)


def secret_names(app: AnyApp) -> Sequence[str]:
    """What the payloads of files are not shown with. A server does not tell what it hides: then what this machine would."""
    if isinstance(app, Hourhand):
        return app.settings.secret_names
    said = {name: value for name, value in os.environ.items() if name == "HOURHAND_SECRET_FIELDS"}
    return settings_from(said).secret_names


def print_json(value: Any) -> None:
    """One JSON document on standard output; times in ISO 8601, UTC."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def table(*columns: Column) -> Table:
    return Table(*columns, box=None, header_style="bold", pad_edge=False)


def fixed(name: str) -> Column:
    return Column(name, no_wrap=True)


def folded(name: str) -> Column:
    """Of words that may be long."""
    return Column(name, overflow="fold")


def number(name: str) -> Column:
    return Column(name, justify="right", no_wrap=True)


def facts(about: Mapping[str, str | None]) -> Table:
    """Name and value, line by line, of whatever has a value."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    for name, value in about.items():
        if value:
            rows.add_row(name, plain(value))
    return rows


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def ago(instant: datetime | None, now: datetime) -> str:
    """`3 s ago`, `in 2 min`: what a person wants to know first."""
    if instant is None:
        return ""
    seconds = (now - instant).total_seconds()
    text = span(abs(seconds))
    return f"{text} ago" if seconds >= 0 else f"in {text}"


def span(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
