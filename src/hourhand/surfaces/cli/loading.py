"""Commands that are imported when they are wanted: what one of them needs, the others do not wait for, nor does the Tab key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from hourhand.surfaces.cli.completion import offer_values
from hourhand.surfaces.cli.suggestions import explain_usage


@dataclass(frozen=True, slots=True)
class Source:
    place: str
    """`module:name` below this package: a function, or a Typer with commands of its own."""
    panel: str
    """Under which heading the help shows it."""


class LateCommands(MutableMapping[str, Any]):
    """Commands by name. Those that come from a source are made of it at the first look."""

    def __init__(self, sources: Mapping[str, Source], made: Mapping[str, Any]) -> None:
        self._sources = dict(sources)
        self._made = dict(made)

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = make_command(name, self._sources[name])
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        self._sources.pop(name, None)
        self._made.pop(name, None)

    def __contains__(self, name: object) -> bool:
        # The inherited one would import what it is asked about.
        return name in self._sources or name in self._made

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._sources, *self._made]))

    def __len__(self) -> int:
        return len(self._sources | self._made)


def make_command(name: str, source: Source) -> Any:
    module, _, attribute = source.place.partition(":")
    found = getattr(import_module(f"{__package__}.{module}"), attribute)
    offer_values(found)
    # A parent of its own, as Typer knows how to make a command only of something that belongs to one.
    parent = typer.Typer(rich_markup_mode="rich")
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name, rich_help_panel=source.panel)
    else:
        parent.command(name, rich_help_panel=source.panel)(found)
    return get_group(parent).commands[name]


def late(sources: Mapping[str, Source]) -> type[TyperGroup]:
    """The class of a group that has these commands besides those that were added to it in the usual way."""

    class Group(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self.commands = LateCommands(sources, self.commands)

        def invoke(self, ctx: Any) -> Any:
            try:
                return super().invoke(ctx)
            except Exception as error:
                explain_usage(error)
                raise

    return Group
