"""What the Tab key offers for options whose values are known, whichever command has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

import typer
from typer.models import OptionInfo

from hourhand.core.fairness import PRIORITIES
from hourhand.core.job import MISSED, OVERLAP
from hourhand.core.schedule import DST
from hourhand.core.task import DELIVERIES
from hourhand.core.zones import zone_names


def _faults(incomplete: str) -> list[str]:
    """The last of a list that is separated by commas."""
    # Only here: it brings all of the checker with it.
    from hourhand.surfaces.verify.faults import FAULTS

    begun, comma, _ = incomplete.rpartition(",")
    given = begun.split(",")
    return [f"{begun}{comma}{one}" for one in FAULTS if one not in given]


VALUES: dict[str, Callable[..., list[str]]] = {
    "--tz": lambda: sorted(zone_names()),
    "--dst": lambda: list(DST),
    "--priority": lambda: list(PRIORITIES),
    "--overlap": lambda: list(OVERLAP),
    "--missed-window": lambda: list(MISSED),
    "--delivery": lambda: list(DELIVERIES),
    "--faults": _faults,
}


def offer_values(found: typer.Typer | Callable[..., Any]) -> None:
    """See to it that these options can be completed in this command, or in all of these. One that can be already stays."""
    if isinstance(found, typer.Typer):
        for command in found.registered_commands:
            if command.callback is not None:
                offer_values(command.callback)
        return
    # Kept as evaluated here: each evaluation of an annotation that is still text makes options of its own.
    found.__annotations__ = get_type_hints(found, include_extras=True)
    for annotation in found.__annotations__.values():
        for option in getattr(annotation, "__metadata__", ()):
            if isinstance(option, OptionInfo) and option.autocompletion is None:
                # Inside Annotated, Typer takes the first name for the default until it has read the signature.
                names = [one for one in (option.default, *(option.param_decls or ())) if isinstance(one, str)]
                option.autocompletion = next((VALUES[one] for one in names if one in VALUES), None)
