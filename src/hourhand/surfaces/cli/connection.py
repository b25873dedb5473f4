"""Where Hourhand is, said by options that all commands share: a database, or a server that has one."""

from __future__ import annotations

import getpass
import inspect
import socket
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

import typer

from hourhand.core.actor import ACTOR, Actor
from hourhand.core.errors import InvalidOption
from hourhand.engine.reference import load_app
from hourhand.surfaces.app import Hourhand
from hourhand.surfaces.cli.common import AnyApp, polite
from hourhand.surfaces.client import AsyncClient

P = ParamSpec("P")
R = TypeVar("R")
_CONTEXT = "context"

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
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        metavar="KEY",
        help="The key that the server wants. In the environment nobody else sees it.",
        envvar="HOURHAND_API_KEY",
        show_default=False,
    ),
]
_DATABASE: dict[str, Any] = {"app": App, "database_url": Url, "data": Data, "schema": Schema}
_OPTIONS: dict[str, Any] = {"app": App, "server": Server, "api_key": ApiKey, "database_url": Url, "data": Data, "schema": Schema}


def connected(command: Callable[Concatenate[AnyApp, P], R]) -> Callable[P, R]:
    """Hands a command its first argument, the app: the one of --app on the database of --database-url, or that of --server."""
    return _given(command, _OPTIONS)


def on_database(command: Callable[Concatenate[Hourhand, P], R]) -> Callable[P, R]:
    """The same for what only a database can answer."""
    return _given(command, _DATABASE)


def _given(command: Callable[..., R], options: dict[str, Any]) -> Callable[..., R]:
    signature = inspect.signature(command, eval_str=True)
    _, *own = signature.parameters.values()
    keyword = inspect.Parameter.KEYWORD_ONLY
    shared = [inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in options.items()]
    context = next((one.name for one in own if one.annotation is typer.Context), None)
    if context is None:
        shared.append(inspect.Parameter(_CONTEXT, keyword, annotation=typer.Context))

    def whole(**given: Any) -> R:
        where = {name: given.pop(name) for name in options}
        asked = given.pop(_CONTEXT) if context is None else given[context]
        return command(reach(where, [name for name in options if _is_said(asked, name)]), **given)

    parameters = [one.replace(kind=keyword) for one in own] + shared
    whole.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    whole.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": signature.return_annotation}
    whole.__name__, whole.__doc__, whole.__module__ = command.__name__, command.__doc__, command.__module__
    return whole


def reach(where: Mapping[str, Any], said: Collection[str]) -> Any:
    """What was named, not opened yet. What was said on the command line goes before the environment."""
    ACTOR.set(Actor(f"{getpass.getuser()}@{socket.gethostname()}", "cli"))
    database = [f"--{name.replace('_', '-')}" for name in _DATABASE if name in said]
    server: str | None = where.get("server")

    def far(url: str) -> AsyncClient:
        if database:
            raise InvalidOption(f"--server and {', '.join(database)} both say where Hourhand is; give one or the other")
        return AsyncClient(url, where["api_key"])

    if server is not None and ("server" in said or not database):
        return polite(lambda: far(server))
    return make_app(where["app"], where["database_url"], where["data"], where["schema"])


def _is_said(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


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
