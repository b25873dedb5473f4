"""`hourhand init`: a small project that runs, to begin with."""

from __future__ import annotations

import re
import shlex
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from hourhand.core.errors import ConfigurationError, InvalidOption, NotPossible
from hourhand.surfaces.cli.common import out, plain, polite

# What is written, and the template it is made of: a template with a dot in front would be left out by careless tools.
FILES = {
    "jobs.py": "jobs.py.template",
    "pyproject.toml": "pyproject.toml.template",
    "README.md": "README.md.template",
    "tests/test_jobs.py": "tests/test_jobs.py.template",
    ".gitignore": "gitignore.template",
}
# What both a Python package and an app may be called.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where; made if it is not there. Default: here.")] = Path("."),
    name: Annotated[str | None, typer.Option("--name", help="What the project is called. Default: as the directory.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there already.")] = False,
) -> None:
    """Write a small project that runs: two tasks, two jobs, their tests.

    Example: hourhand init shop-jobs
    """
    polite(lambda: _init(directory, name, force))


def _init(directory: Path, name: str | None, force: bool) -> None:
    project = _project_name(directory, name)
    texts = render(project)
    there = [one for one in texts if (directory / one).exists() or (directory / one).is_symlink()]
    if there and not force:
        raise NotPossible(
            f"{', '.join(there)} {'is' if len(there) == 1 else 'are'} already there; nothing was written. "
            "Choose another directory, or write over with --force"
        )
    try:
        for path, text in texts.items():
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{error.filename or directory} cannot be written: {error.strerror or error}") from None
    _say(directory, project, list(texts))


def render(name: str) -> dict[str, str]:
    """The project's files by their paths."""
    templates = files(__package__).joinpath("templates")
    return {
        path: Template(templates.joinpath(*source.split("/")).read_text(encoding="utf-8")).substitute(name=name)
        for path, source in FILES.items()
    }


def _project_name(directory: Path, given: str | None) -> str:
    if given is not None:
        if not _NAME.fullmatch(given):
            raise InvalidOption(
                f"{given!r} cannot be a project's name: it has 1 to 100 letters, digits, '.', '_' or '-', and begins "
                "and ends with a letter or digit"
            )
        return given
    # A directory may be called anything.
    made = re.sub(r"[^A-Za-z0-9._-]+", "-", directory.absolute().resolve().name)[:100].strip("._-")
    return made or "my-jobs"


def _say(directory: Path, name: str, paths: list[str]) -> None:
    out.print(plain(f"{name} is written: {', '.join(paths)}"), soft_wrap=True)
    steps = [
        ("hourhand up --app jobs:app", "database, scheduler and worker; Ctrl-C stops them"),
        ("hourhand why heartbeat", "in another terminal: what became of each firing"),
        ("python -m pytest", "its tests"),
    ]
    if directory.resolve() != Path.cwd():
        steps.insert(0, (f"cd {shlex.quote(str(directory))}", ""))
    width = max(len(command) for command, _ in steps)
    out.print("\nnext")
    for command, what in steps:
        out.print(plain(f"  {command:<{width}}  {what}".rstrip()), soft_wrap=True)
