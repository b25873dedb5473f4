"""`hourhand export`: jobs that are there, as a file that says so."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated

import typer

from hourhand.core.errors import InvalidOption, UnknownJob
from hourhand.core.redaction import mentions
from hourhand.core.registry import Registry
from hourhand.surfaces.cli.common import AnyApp, counted, err, plain, polite, run
from hourhand.surfaces.cli.connection import connected
from hourhand.surfaces.plans.applying import pages
from hourhand.surfaces.plans.comparing import owners_of
from hourhand.surfaces.plans.exporting import as_json, as_yaml, export_jobs
from hourhand.surfaces.plans.reading import check_owner
from hourhand.surfaces.views import JobView

UNNAMED = "main"
"""The owner of what belongs to nobody yet, unless another is named."""


@connected
def export(
    app: AnyApp,
    owner: Annotated[str | None, typer.Option("--owner", help="Only jobs of this owner's files.")] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", metavar="TEXT", help="Only jobs whose names begin so.")] = None,
    unowned: Annotated[
        bool, typer.Option("--unowned", help="Also jobs that belong to nobody's file; apply --adopt takes them over.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Write JSON instead of YAML.")] = False,
) -> None:
    """Write existing jobs as a file for plan, apply and drift.

    Without --owner: the jobs of the one owner there is, or, if there is none, those that belong to nobody.

    Example: hourhand export --owner shop > jobs.yaml

    Example: hourhand export --owner shop --unowned --prefix shop- > jobs.yaml && hourhand apply --adopt jobs.yaml
    """
    polite(lambda: None if owner is None else check_owner(owner))
    views = run(app, lambda app: _found(app, prefix))
    declared = [view for view in views if view.declared_by is not None]
    free = [view for view in views if view.declared_by is None and not owners_of(view)]
    whose = polite(lambda: _whose(owner, views, free, unowned))
    # Of nobody's jobs there may be some only because nobody has any.
    with_free = unowned or (owner is None and not _owners(views))
    chosen = [view for view in views if view.declared_by is None and whose in owners_of(view)] + (free if with_free else [])
    registry = getattr(app, "registry", None) or Registry()
    document = export_jobs(whose, sorted(chosen, key=lambda view: view.name), registry)
    sys.stdout.write(polite(lambda: as_json(document) if json else as_yaml(document)))
    _remark(chosen, declared, [] if with_free else free)


async def _found(app: AnyApp, prefix: str | None) -> list[JobView]:
    found = []
    async for page in pages(app, search=prefix or None):
        found += [view for view in page if view.name.startswith(prefix or "")]
    return found


def _owners(views: list[JobView]) -> list[str]:
    return sorted({owner for view in views if view.declared_by is None for owner in owners_of(view)})


def _whose(owner: str | None, views: list[JobView], free: list[JobView], unowned: bool) -> str:
    owners = _owners(views)
    if owner is not None:
        if owner not in owners and not (unowned and free):
            hint = f"; {counted(len(free), 'job')} that belong to nobody's file are exported with --unowned" if free else ""
            raise UnknownJob(f"no job belongs to {owner}{hint}")
        return owner
    if len(owners) > 1:
        raise InvalidOption(f"there are jobs of several owners: {', '.join(owners)}; say which with --owner")
    if not owners and not free:
        raise UnknownJob("there are no jobs to export")
    return owners[0] if owners else UNNAMED


def _remark(chosen: list[JobView], declared: list[JobView], left: list[JobView]) -> None:
    """What the file does not have, said where it does not get into the file."""
    remarks = [f"{counted(len(chosen), 'job')} exported"]
    if not any(owners_of(view) for view in chosen):
        remarks.append("they belong to nobody's file yet: choose the owner's name, then hourhand apply --adopt takes them over")
    if left:
        remarks.append(f"{counted(len(left), 'job')} that belong to nobody's file left out; --unowned has them too")
    if declared:
        remarks.append(f"{counted(len(declared), 'job')} declared in code left out: the code says what they are")
    chains = sum(bool(view.then) for view in chosen)
    if chains:
        remarks.append(f"{counted(chains, 'job')} with a chain: only the names of its tasks are exported, not their arguments")
    hidden = [view.name for view in chosen if mentions(view.payload) or not isinstance(view.payload, Mapping)]
    if hidden:
        names = ", ".join(hidden)
        remarks.append(f"secrets that are not shown here are not exported ({names}): as they stand, they stay what they are")
    for words in remarks:
        err.print(plain(words, "dim"), soft_wrap=True)
