"""`hourhand limits`: what is ruled about queues and tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer
from rich.text import Text

from hourhand.core.errors import ConfigurationError, InvalidOption
from hourhand.core.limits import ORDERS, OVERFLOWS, SCOPES, Limit, Rate
from hourhand.surfaces.cli.common import AnyApp, AsJson, fixed, folded, number, out, plain, polite, print_json, run, table
from hourhand.surfaces.cli.connection import connected
from hourhand.surfaces.limits import LimitView

commands = typer.Typer(help="See and change what is ruled about queues and tasks.", no_args_is_help=True)
T = TypeVar("T")
_NONE = "none"

Scope = Annotated[
    str,
    typer.Argument(
        metavar="queue|task", help="What the name is one of.", autocompletion=lambda: list(SCOPES), show_default=False
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The queue or the task.", show_default=False)]


@commands.command("list")
@connected
def list_limits(
    app: AnyApp,
    as_json: AsJson = False,
) -> None:
    """Every queue and task about which something is ruled, how many runs are inside, and how many wait because of it.

    Example: hourhand limits list
    """
    found = run(app, lambda app: app.limits.list())
    if as_json:
        print_json(found)
        return
    if not found:
        out.print(
            "nothing is ruled; declare it with @app.task(concurrency=...) or app.queue(...), or: hourhand limits set --help"
        )
        return
    rows = table(fixed("of"), folded("name"), folded("what holds"), number("inside"), number("waiting"), folded("ordered"))
    for one in found:
        inside = f"{one.in_use:,}" if one.slots is None else f"{one.in_use:,} of {one.slots:,}"
        rows.add_row(
            one.scope, plain(one.name), plain("; ".join(one.in_words) or "nothing"), inside, f"{one.waiting:,}",
            Text("; ".join(one.ordered), "yellow"),
        )  # fmt: skip
    out.print(rows)


@commands.command("set")
@connected
def set_limit(
    app: AnyApp,
    scope: Scope,
    name: Name,
    concurrency: Annotated[
        list[str] | None,
        typer.Option("--concurrency", metavar="N[:KEY]", help="At most so many at once; with a key, for each of its values."),
    ] = None,
    rate: Annotated[
        list[str] | None, typer.Option("--rate", metavar="RATE[:KEY]", help="So many starts in a time: 100/minute, 5/s.")
    ] = None,
    burst: Annotated[int | None, typer.Option("--burst", help="How many of a rate may start at once after a pause.")] = None,
    fair_key: Annotated[
        str | None, typer.Option("--fair-key", metavar="KEY", help="Let the values of this argument take turns.")
    ] = None,
    order: Annotated[
        str | None,
        typer.Option("--order", autocompletion=lambda: list(ORDERS), help="arrival, or deadline: who expires first goes first."),
    ] = None,
    max_depth: Annotated[str | None, typer.Option("--max-depth", metavar="N", help="So many may wait.")] = None,
    overflow: Annotated[
        str | None,
        typer.Option("--overflow", autocompletion=lambda: list(OVERFLOWS), help="Beyond that: reject, or drop_oldest."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Order what holds for a queue or a task from now on, whatever its code declares. What is not given stays as it is; `none`
    lifts it. Concurrency and rates belong together: whoever gives one of them says all that there are.

    Example: hourhand limits set queue billing --concurrency 10 --concurrency 2:customer_id --rate 100/minute
    """
    given = polite(lambda: _parts(concurrency, rate, burst, fair_key, order, max_depth, overflow))
    _tell(run(app, lambda app: app.limits.set(scope, name, **given)), as_json)


@commands.command("clear")
@connected
def clear_limit(
    app: AnyApp,
    scope: Scope,
    name: Name,
    as_json: AsJson = False,
) -> None:
    """Go back to what the code of a queue or a task declares.

    Example: hourhand limits clear queue billing
    """
    _tell(run(app, lambda app: app.limits.clear(scope, name)), as_json)


def _tell(view: LimitView, as_json: bool) -> None:
    if as_json:
        print_json(view)
        return
    out.print(plain(f"{view.scope} {view.name}: {'; '.join(view.in_words) or 'nothing is ruled'}"), soft_wrap=True)


def _parts(
    concurrency: list[str] | None, rate: list[str] | None, burst: int | None, fair_key: str | None, order: str | None,
    max_depth: str | None, overflow: str | None,
) -> dict[str, Any]:  # fmt: skip
    given: dict[str, Any] = {}
    try:
        if concurrency:
            given["concurrency"] = _many(concurrency, lambda text, key: Limit(_whole("--concurrency", text), key))
        if rate:
            given["rate"] = _many(rate, lambda text, key: Rate(text, burst, key))
    except ConfigurationError as error:
        raise InvalidOption(str(error)) from None
    if burst is not None and not given.get("rate"):
        raise InvalidOption("--burst goes with a --rate")
    for name, text in (("fair_key", fair_key), ("order", order), ("overflow", overflow)):
        if text is not None:
            given[name] = None if text == _NONE else text
    if max_depth is not None:
        given["max_depth"] = None if max_depth == _NONE else _whole("--max-depth", max_depth)
    return given


def _many(texts: Sequence[str], make: Callable[[str, str | None], T]) -> list[T] | None:
    """Each as `value` or `value:key`; `none` alone is none."""
    if list(texts) == [_NONE]:
        return None
    pairs = (text.partition(":") for text in texts)
    return [make(value, key or None) for value, _, key in pairs]


def _whole(option: str, text: str) -> int:
    if not text.strip().isdecimal():
        raise InvalidOption(f"{option} takes a whole number, or none, not {text!r}")
    return int(text)
