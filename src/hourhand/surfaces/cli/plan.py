"""`hourhand plan`, `apply` and `drift`: jobs as files say they are.

Everything is read and checked before a database is asked anything.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from hourhand.core.clock import Clock
from hourhand.core.errors import DatabaseUnavailable, HourhandError, InvalidOption, NotPossible
from hourhand.core.registry import Registry
from hourhand.surfaces.cli.common import (
    AnyApp,
    AsJson,
    Exit,
    Yes,
    ask,
    err,
    out,
    plain,
    polite,
    print_json,
    run,
    secret_names,
    tell,
)
from hourhand.surfaces.cli.connection import connected
from hourhand.surfaces.cli.plan_views import PlanPrinter, told
from hourhand.surfaces.cli.progress import MANY, bar
from hourhand.surfaces.plans.applying import Outcome, apply_plan, look
from hourhand.surfaces.plans.plan import Plan, load_plan, make_plan, stale
from hourhand.surfaces.plans.reading import PLAN_KEY, Files, InvalidFiles, read_files
from hourhand.surfaces.plans.sources import read_source, read_sources

DIFFERENT = 6
"""Exit code: what is stored and what the files say are not the same."""
_DONE = {"created": "added", "changed": "changed", "deleted": "deleted", "unchanged": "so already", "failed": "failed"}

Paths = Annotated[
    list[str], typer.Argument(metavar="FILE", help="Files (.yaml, .yml, .json), directories of them, or - for standard input.")
]
NoDelete = Annotated[bool, typer.Option("--no-delete", help="Jobs that the files no longer name stay.")]
Adopt = Annotated[bool, typer.Option("--adopt", help="Take over jobs of these names that were added in another way.")]


@connected
def plan(
    app: AnyApp,
    files: Paths,
    no_delete: NoDelete = False,
    adopt: Adopt = False,
    output: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.json", help="Save the plan, for apply to do exactly this.")
    ] = None,
    detailed: Annotated[
        bool, typer.Option("--detailed-exitcode", help="End with 6 instead of 0 if there is something to do.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """What `hourhand apply` would do to make the jobs of an owner what the files say. Nothing is changed.

    Ends with 0, with 4 if a name belongs to somebody else, and with 2 if the files are not in order.

    Example: hourhand plan jobs.yaml

    Example: hourhand plan schedules/ --out plan.json --detailed-exitcode
    """
    made = _planned(app, files, delete=not no_delete, adopt=adopt)
    if output is not None:
        polite(lambda: _save(made, output))
    if as_json:
        print_json(made.saved())
    else:
        _printer(app, out).plan(made)
    if made.conflicts:
        _explain_conflicts(made)
        raise typer.Exit(Exit.NOT_POSSIBLE)
    if made.steps and detailed:
        raise typer.Exit(DIFFERENT)


@connected
def apply(
    app: AnyApp,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="The same as for plan; or one saved plan.", show_default=False)
    ] = None,
    saved: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE.json", help="A plan that was saved with plan --out.")
    ] = None,
    no_delete: NoDelete = False,
    adopt: Adopt = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make the jobs of an owner what the files say: added, changed, deleted. Shows the plan and asks first.

    A saved plan is refused if a job that it touches has been changed since.

    Example: hourhand apply jobs.yaml

    Example: hourhand apply --plan plan.json --yes
    """
    made = _to_apply(app, files or [], saved, delete=not no_delete, adopt=adopt)
    if not as_json:
        _printer(app, out).plan(made)
    if made.conflicts:
        _explain_conflicts(made)
        raise typer.Exit(Exit.NOT_POSSIBLE)
    if made.steps and not yes:
        polite(_somebody_to_ask)
        if not ask(f"{made.in_words()}. Apply it?" if as_json else "Apply it?"):
            err.print("nothing was done")
            raise typer.Exit(Exit.FAILED)
    _Applying(app, made, as_json).run()


@connected
def drift(app: AnyApp, files: Paths, as_json: AsJson = False) -> None:
    """Compare what runs with what the files say, both ways: missing, changed by hand, extra, paused by hand.

    Ends with 0 if there is no drift, and with 6 if there is.

    Example: hourhand drift schedules/ --json
    """
    made = _planned(app, files, delete=True, adopt=False)
    found, printer = _drifted(made), _printer(app, out)
    if as_json:
        print_json(printer.plain_drift(made, found))
    else:
        printer.drift(made, found)
    if any(found.values()):
        raise typer.Exit(DIFFERENT)


def _drifted(made: Plan) -> dict[str, list[Any]]:
    paused = [step for step in made.of("change") if [(one.field, one.old) for one in step.differences] == [("state", "paused")]]
    changed = [step for step in made.of("change") if step not in paused]
    return {
        "missing": made.of("create"),
        "changed": [*changed, *made.outlived],
        "extra": made.of("delete"),
        "paused": [*(step.name for step in paused), *made.held],
        "conflicts": made.conflicts,
    }


def _registry(app: AnyApp) -> Registry:
    """The tasks that are known here; a server at the other end keeps its own."""
    return getattr(app, "registry", None) or Registry()


def _printer(app: AnyApp, console: Console) -> PlanPrinter:
    return PlanPrinter(console, _registry(app), secret_names(app), Clock().instant())


def _planned(app: AnyApp, paths: list[str], *, delete: bool, adopt: bool) -> Plan:
    files = _read(app, paths)
    stored = run(app, lambda app: look(app, files.owners, [job.name for job in files.jobs]))
    return make_plan(files, stored, delete=delete, adopt=adopt)


def _read(app: AnyApp, paths: list[str]) -> Files:
    def read() -> Files:
        try:
            return read_files(read_sources(paths), registry=_registry(app), now=Clock().instant())
        except InvalidFiles as error:
            for problem in error.problems:
                tell(InvalidOption(problem))
            raise typer.Exit(Exit.USAGE) from None

    return polite(read)


def _to_apply(app: AnyApp, paths: list[str], saved: Path | None, *, delete: bool, adopt: bool) -> Plan:
    if saved is None and len(paths) == 1 and paths[0].endswith(".json") and polite(lambda: _is_plan(paths[0])):
        saved, paths = Path(paths[0]), []
    polite(lambda: _check_given(paths, saved, delete=delete, adopt=adopt))
    if saved is None:
        return _planned(app, paths, delete=delete, adopt=adopt)
    label = str(saved)
    made = polite(lambda: load_plan(read_source(label).text, label))
    stored = run(app, lambda app: look(app, made.owners, [step.name for step in made.steps]))
    changed = stale(made, stored)
    if changed:
        words = f"{', '.join(changed[:10])}{', …' if len(changed) > 10 else ''}"
        tell(NotPossible(f"{label} is out of date, so nothing was done: changed since it was made: {words}. Make the plan again"))
        raise typer.Exit(Exit.NOT_POSSIBLE)
    return made


def _is_plan(path: str) -> bool:
    # It is the first key that a saved plan has.
    return f'"{PLAN_KEY}"' in read_source(path).text[:100]


def _check_given(paths: list[str], saved: Path | None, *, delete: bool, adopt: bool) -> None:
    if not paths and saved is None:
        raise InvalidOption("say which files to apply, or give --plan with a saved plan")
    if paths and saved is not None:
        raise InvalidOption("--plan says everything; leave out the files")
    if saved is not None and (adopt or not delete):
        raise InvalidOption("a saved plan is applied as it is: give --adopt and --no-delete when it is made")


def _save(made: Plan, path: Path) -> None:
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(made.saved()), indent=2) + b"\n")
    except OSError as error:
        raise InvalidOption(f"{path} cannot be written: {error.strerror or error}") from None


def _explain_conflicts(made: Plan) -> None:
    kinds = {one.kind for one in made.conflicts}
    if "owned" in kinds:
        err.print("--adopt takes over what belongs to nobody's file or to another owner", soft_wrap=True)
    if "declared" in kinds:
        err.print("what code declares is never taken over: take it out of the code, or out of the file", soft_wrap=True)


def _somebody_to_ask() -> None:
    if not sys.stdin.isatty():
        raise InvalidOption("nobody is at a terminal to be asked, so nothing was done; add --yes to apply without asking")


class _Applying:
    """A plan being applied: each step told as it is done."""

    def __init__(self, app: AnyApp, made: Plan, as_json: bool) -> None:
        self._app, self._made, self._as_json = app, made, as_json
        self._outcomes: list[Outcome] = []
        self._codes: list[Exit] = []
        self._show: Callable[[int], None] = lambda done: None

    def run(self) -> None:
        with bar("applied", len(self._made.steps)) as show:
            self._show = show
            if self._made.steps:
                run(self._app, self._work)
        if self._as_json:
            print_json({"summary": self._counts(), "outcomes": [_plain_outcome(one) for one in self._outcomes]})
        elif self._made.steps:
            counts = ", ".join(f"{count:,} {what}" for what, count in self._counts().items())
            out.print(plain(f"Applied: {counts}", "bold"), soft_wrap=True)
        if self._codes:
            raise typer.Exit(self._codes[0])

    async def _work(self, app: AnyApp) -> None:
        try:
            await apply_plan(app, self._made, self._tell)
        except DatabaseUnavailable as error:
            self._codes.insert(0, tell(error))
            left = len(self._made.steps) - len(self._outcomes)
            err.print(f"{left:,} of {len(self._made.steps):,} were not tried; apply again, and it has the rest")

    def _tell(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self._show(len(self._outcomes))
        if isinstance(outcome.error, HourhandError):
            if not isinstance(outcome.error, DatabaseUnavailable):
                self._codes.append(tell(outcome.error))
        elif not self._as_json and len(self._made.steps) <= MANY:
            out.print(told(outcome), soft_wrap=True)

    def _counts(self) -> dict[str, int]:
        counts = {word: sum(one.outcome == outcome for one in self._outcomes) for outcome, word in _DONE.items()}
        return {word: count for word, count in counts.items() if count}


def _plain_outcome(one: Outcome) -> dict[str, Any]:
    about = {"job": one.name, "action": one.action, "outcome": one.outcome, "remark": one.remark}
    about["error"] = None if one.error is None else str(one.error)
    return {name: value for name, value in about.items() if value is not None}
