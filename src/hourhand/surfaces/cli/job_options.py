"""The options that describe a job, and what they come to for `app.jobs`."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import typer

from hourhand.core import job as definitions
from hourhand.core.backoff import BACKOFFS
from hourhand.core.errors import InvalidOption, JobConflict
from hourhand.core.fairness import PRIORITIES
from hourhand.core.schedule import DST, parse_span
from hourhand.core.task import DELIVERIES
from hourhand.core.zones import zone_names
from hourhand.surfaces.cli.editing import parse_payload, read_payload

T = TypeVar("T")
_NUMBER = re.compile(r"\d+(\.\d+)?")

Job = Annotated[str, typer.Argument(metavar="JOB", help="The job's name, or its id.", show_default=False)]
Expression = Annotated[
    str | None, typer.Option("--schedule", metavar="EXPR", help="Cron, 'every 90s', 'in 10m', or an ISO 8601 instant.")
]
Task = Annotated[str | None, typer.Option("--task", metavar="NAME", help="The task to run. Default: the job's name.")]
Zone = Annotated[
    str | None,
    typer.Option(
        "--tz",
        metavar="ZONE",
        autocompletion=lambda: sorted(zone_names()),
        help="IANA zone in which cron is meant. Default: UTC.",
    ),
]
Payload = Annotated[
    str | None,
    typer.Option("--payload", metavar="JSON", help="The task's arguments, a JSON object; @FILE reads a file, - standard input."),
]
Queue = Annotated[str | None, typer.Option("--queue", help="The queue of its runs. Default: the task's, or default.")]
Priority = Annotated[
    str | None,
    typer.Option("--priority", autocompletion=lambda: list(PRIORITIES), help=f"One of {', '.join(PRIORITIES)}."),
]
Dst = Annotated[
    str | None,
    typer.Option(
        "--dst", autocompletion=lambda: list(DST), help="A local time that does not exist: shift it (default) or skip it."
    ),
]
Anchor = Annotated[str | None, typer.Option("--anchor", metavar="ISO", help="Where an interval is counted from.")]
MissedWindow = Annotated[
    str | None,
    typer.Option(
        "--missed-window",
        metavar="POLICY",
        autocompletion=lambda: list(definitions.MISSED),
        help="What was missed while no scheduler ran: SKIP, RUN_ONCE (default) or RUN_ALL.",
    ),
]
MaxMissed = Annotated[int | None, typer.Option("--max-missed", help="RUN_ALL runs at most so many. Default: 100.")]
MisfireGrace = Annotated[
    str | None, typer.Option("--misfire-grace", metavar="SPAN", help="Later than this counts as missed. Default: 60s.")
]
Overlap = Annotated[
    str | None,
    typer.Option(
        "--overlap",
        autocompletion=lambda: list(definitions.OVERLAP),
        help="If the run before has not ended: allow (default), skip, queue or replace.",
    ),
]
FlexibleWindow = Annotated[
    str | None,
    typer.Option(
        "--flexible-window", metavar="SPAN", help="Each job starts at a place of its own within so much, for example 5m."
    ),
]
StartAt = Annotated[str | None, typer.Option("--start-at", metavar="ISO", help="No firing before this instant.")]
EndAt = Annotated[str | None, typer.Option("--end-at", metavar="ISO", help="No firing from this instant on.")]
MaxRuns = Annotated[int | None, typer.Option("--max-runs", help="It is finished after so many firings.")]
MaxAttempts = Annotated[int | None, typer.Option("--max-attempts", help="Tries of each run. Default: the task's.")]
Timeout = Annotated[
    str | None, typer.Option("--timeout", metavar="SECONDS", help="For each try: 90, or 5m. Default: the task's.")
]
Delivery = Annotated[
    str | None,
    typer.Option(
        "--delivery",
        autocompletion=lambda: list(DELIVERIES),
        help=f"One of {', '.join(DELIVERIES)}. Default: the task's.",
    ),
]
RetryBackoff = Annotated[
    str | None,
    typer.Option("--retry-backoff", autocompletion=lambda: list(BACKOFFS), help="exponential or fixed. Default: the task's."),
]
RetryBase = Annotated[
    str | None, typer.Option("--retry-base", metavar="SPAN", help="The first pause between tries: 5s. Default: the task's.")
]
RetryCap = Annotated[
    str | None, typer.Option("--retry-cap", metavar="SPAN", help="The longest pause between tries: 10m. Default: the task's.")
]
KeyTemplate = Annotated[
    str | None,
    typer.Option(
        "--idempotency-key-template",
        metavar="TEXT",
        help="What outside APIs are to know a firing by, for example report-{{week}}. Default: a hash of job and instant.",
    ),
]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="For its runs to carry; repeatable.")]
Secret = Annotated[
    list[str] | None,
    typer.Option(
        "--secret", metavar="FIELD", help="A field of the payload that is not to be shown, such as card.number; repeatable."
    ),
]
Then = Annotated[
    str | None,
    typer.Option("--then", metavar="TASK", help="The task that follows each success; its argument `result` gets the result."),
]


def given_in(params: dict[str, Any]) -> dict[str, Any]:
    """What a command was given, as `app.jobs.add` takes it; what was not said is not there."""
    named = {"tz": "timezone", "tag": "tags"}
    said = {named.get(name, name): value for name, value in params.items() if value not in (None, [], ())}
    options = {name: value for name, value in said.items() if name in definitions.JOB_OPTIONS}
    for name, read in _READERS.items():
        if name in options:
            options[name] = read(options[name])
    return options


def changes_in(params: dict[str, Any]) -> dict[str, Any]:
    """The same, with what `--no-…` clears."""
    changes = given_in(params)
    for name, nothing in _CLEARABLE.items():
        if params[f"no_{name}"]:
            if name in changes:
                option = name.replace("_", "-")
                raise InvalidOption(f"--no-{option} clears what another option sets; give one of them")
            changes[name] = nothing
    if not changes:
        raise InvalidOption("say what to change; hourhand jobs update --help names what can be")
    return changes


def payload_of(text: str) -> dict[str, Any]:
    if text == "-" or text.startswith("@"):
        return read_payload(None, text.removeprefix("@"))
    return parse_payload(text)


def _seconds(text: str) -> float:
    """`90`, or a span such as `15m`."""
    word = text.strip()
    return float(word) if _NUMBER.fullmatch(word) else parse_span(word).total_seconds()


_READERS: dict[str, Callable[[str], Any]] = {
    "payload": payload_of,
    "missed_window": str.upper,
    "misfire_grace": _seconds,
    "flexible_window": _seconds,
    "timeout": _seconds,
    "retry_base": _seconds,
    "retry_cap": _seconds,
    "anchor": lambda text: definitions.instant("anchor", text),
}
_CLEARABLE = {
    "start_at": None, "end_at": None, "max_runs": None, "max_attempts": None, "timeout": None, "delivery": None,
    "retry_backoff": None, "retry_base": None, "retry_cap": None,
    "idempotency_key_template": None, "tags": (), "secret": (), "then": None,
}  # fmt: skip


async def reworded(work: Awaitable[T]) -> T:
    """What to do next, as it is said here and not in Python."""
    try:
        return await work
    except JobConflict as error:
        raise JobConflict(str(error).replace("replace=True", "--replace")) from None
