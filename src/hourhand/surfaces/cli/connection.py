"""Where Hourhand is, said by options that all commands share: a database, or a server that has one."""

from __future__ import annotations

import getpass
import inspect
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

import typer

from hourhand.core.actor import ACTOR, Actor
from hourhand.core.errors import ConfigurationError
from hourhand.engine.reference import load_app
from hourhand.surfaces.app import Hourhand
from hourhand.surfaces.cli.common import polite

P = ParamSpec("P")
R = TypeVar("R")

App = Annotated[str | None, typer.Option("--app", help="The app, as module:name or file.py:name.")]
Url = Annotated[
    str | None,
    typer.Option("--database-url", help="PostgreSQL to use instead of the embedded one.", envvar="HOURHAND_DATABASE_URL"),
]
Data = Annotated[Path | None, typer.Option("--data", help="Directory of the embedded PostgreSQL.", envvar="HOURHAND_DATA")]
Schema = Annotated[str | None, typer.Option("--schema", help="The schema that holds everything.", envvar="HOURHAND_SCHEMA")]
Server = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", help="An API server to ask instead of a database.", envvar="HOURHAND_SERVER"),
]
_OPTIONS: dict[str, Any] = {"app": App, "server": Server, "database_url": Url, "data": Data, "schema": Schema}


def connected(command: Callable[Concatenate[Any, P], R]) -> Callable[P, R]:
    """Hands a command its first argument, the app: the one of --app on the database of --database-url, or that of --server."""
    return _given(command, _OPTIONS)


def on_database(command: Callable[Concatenate[Any, P], R]) -> Callable[P, R]:
    """The same for what only a database can answer."""
    return _given(command, {name: kind for name, kind in _OPTIONS.items() if name != "server"})


def _given(command: Callable[..., R], options: dict[str, Any]) -> Callable[..., R]:
    signature = inspect.signature(command, eval_str=True)
    _, *own = signature.parameters.values()
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in options.items()
    ]

    def whole(**given: Any) -> R:
        where = {name: given.pop(name) for name in options}
        return command(reach(**where), **given)

    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own] + shared
    whole.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    whole.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": signature.return_annotation}
    whole.__name__, whole.__doc__, whole.__module__ = command.__name__, command.__doc__, command.__module__
    return whole


def reach(
    app: str | None = None, server: str | None = None, database_url: str | None = None, data: Path | None = None,
    schema: str | None = None,
) -> Any:  # fmt: skip
    """What was named, not opened yet."""
    ACTOR.set(Actor(f"{getpass.getuser()}@{socket.gethostname()}", "cli"))
    if server is None:
        return make_app(app, database_url, data, schema)

    def far() -> Any:
        raise ConfigurationError("--server is not there yet")

    return polite(far)


def make_app(app: str | None, url: str | None, data: Path | None, schema: str | None) -> Hourhand:
    """The app that was named, or an empty one: enough for everything that needs no task code."""

    def make() -> Hourhand:
        if app is None:
            return Hourhand(url, data=data, schema=schema)
        loaded: Hourhand = load_app(app)
        if url is not None or data is not None or schema is not None:
            loaded.configure(database_url=url, data=data, schema=schema)
        return loaded

    return polite(make)
