"""Which files are meant: one, several, whole directories, or standard input."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hourhand.core.errors import InvalidOption
from hourhand.surfaces.plans.documents import MOST_BYTES

ENDINGS = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Source:
    label: str
    """How messages call it."""
    text: str
    as_json: bool


def read_sources(paths: Iterable[str]) -> list[Source]:
    """Directories stand for the files in them and below, by name; hidden ones are left out."""
    found: dict[Path, str] = {}
    sources = []
    for given in dict.fromkeys(paths):
        path = Path(given)
        if given == "-":
            text = _decoded("standard input", sys.stdin.buffer.read(MOST_BYTES + 1))
            sources.append(Source("standard input", text, _is_json(text)))
        elif path.is_dir():
            inside = sorted(one for one in path.rglob("*") if one.suffix in ENDINGS and one.is_file() and not _hidden(one, path))
            if not inside:
                raise InvalidOption(f"{given} has no files that end in {', '.join(ENDINGS)}")
            for one in inside:
                found.setdefault(one.resolve(), str(one))
        elif path.suffix in ENDINGS:
            found.setdefault(path.resolve(), given)
        else:
            raise InvalidOption(f"{given}: say by its ending what it is: {', '.join(ENDINGS)}")
    return [*sources, *(read_source(label) for label in found.values())]


def read_source(label: str) -> Source:
    try:
        with Path(label).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InvalidOption(f"{label} cannot be read: {error.strerror or error}") from None
    return Source(label, _decoded(label, data), label.endswith(".json"))


def _hidden(file: Path, below: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(below).parts)


def _decoded(label: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidOption(f"{label}:{line}: not UTF-8") from None


def _is_json(text: str) -> bool:
    """A stream has no ending to tell by. JSON needs no PyYAML."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
