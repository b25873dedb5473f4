"""What a person may have meant, and what to do next, added to what went wrong.

What was not found is read from the error's own words: from a server nothing else of it arrives.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from hourhand.core.errors import DatabaseRefused, DatabaseUnavailable, HourhandError
from hourhand.core.zones import zone_names

_NOT_FOUND = re.compile(r"there is no (queue|job) '([^']+)'")
_ZONE = re.compile(r"(there is no time zone '([^']+)' in tzdata \S+); names look like .*")
_PATIENCE = 2.0
"""Seconds that a suggestion may take: the error can be told without it."""
_SAMPLE = 200
_FEW = 8

CRON = (
    "the fields are minute (0-59), hour (0-23), day (1-31), month (1-12 or JAN-DEC), weekday (0-7 or SUN-SAT); "
    "`hourhand next` tries an expression without storing it"
)
UNREACHABLE = (
    "Is PostgreSQL running there, and is the address right (--database-url or HOURHAND_DATABASE_URL)? "
    "`hourhand doctor` looks closer"
)
REFUSED = "PostgreSQL is there; correct the user, the password or the name of the database in the URL, or create what is missing"
MISSING_APP = (
    "It says where your tasks are: --app jobs:app is the object `app` in jobs.py. `hourhand init` writes a project to begin with."
)
BAD_URL = (
    "the database URL cannot be understood: it must look like postgresql://user:password@host:port/database, with special "
    "characters of the password written as %XX"
)


async def with_near_names(app: Any, error: HourhandError) -> HourhandError:
    """The same error; if it is about a queue or a job that is not there, it names those that sound like it."""
    found = _NOT_FOUND.fullmatch(str(error))
    if found is not None:
        kind, name = found.groups()
        names: list[str] = []
        # Nothing that goes wrong here is worth hiding what went wrong before.
        with suppress(HourhandError, OSError, TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                names = await _READERS[kind](app, name)
        near = closest(name, names)
        if near:
            error.args = (f"{error}; did you mean {near}?",)
        elif kind == "queue" and 0 < len(names) <= _FEW:
            error.args = (f"{error}; there are {', '.join(names)}",)
    return error


async def _queues(app: Any, name: str) -> list[str]:
    return [one.name for one in await app.queues.list()]


async def _jobs(app: Any, name: str) -> list[str]:
    """Of possibly a million: the first of all, and the first of those that have the beginning of the name in theirs."""
    pages = [await app.jobs.list(search=search, limit=_SAMPLE) for search in (None, name[:3])]
    return [one.name for page in pages for one in page]


_READERS: dict[str, Callable[[Any, str], Awaitable[list[str]]]] = {"queue": _queues, "job": _jobs}


def closest(word: str, names: Iterable[str]) -> str:
    """Up to three: those that begin like it, then the nearest; nothing if none is near. Capitals do not count."""
    by_lower = {one.lower(): one for one in names}
    longer = sorted(one for one in by_lower if one.startswith(word.lower()))
    near = get_close_matches(word.lower(), by_lower, n=3, cutoff=0.7)
    return ", ".join(by_lower[one] for one in list(dict.fromkeys([*longer, *near]))[:3])


def in_words(error: Exception) -> str:
    """What went wrong, and what to do next where that can be said."""
    words = str(error)
    zone = _ZONE.fullmatch(words)
    if zone is not None:
        near = closest(zone[2], zone_names())
        return f"{zone[1]}; did you mean {near}?" if near else words
    if "is not a cron expression" in words:
        return f"{words}; {CRON}"
    if isinstance(error, DatabaseRefused):
        return f"{words}. {REFUSED}"
    if isinstance(error, DatabaseUnavailable) and words.startswith("the database cannot be reached"):
        return f"{words}. {UNREACHABLE}"
    return words


def is_about_url(error: ValueError) -> bool:
    """Whether it was raised where a database URL is taken apart: asyncpg says only what it could not read as a number."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return where in ("urllib.parse", "asyncpg.connect_utils")


def explain_usage(error: Exception) -> None:
    """Say more about an option that Typer found missing."""
    missing = getattr(getattr(error, "param", None), "opts", ())
    if "--app" in missing and not getattr(error, "message", True):
        error.message = MISSING_APP  # type: ignore[attr-defined]
