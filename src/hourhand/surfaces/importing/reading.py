"""Files that people name, read within bounds: whatever they turn out to be, the answer is text or one clear sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from hourhand.core.errors import InvalidOption

LARGEST = 4 * 1024 * 1024
MOST_FILES = 1_000


def read_text(name: str, largest: int = LARGEST) -> str:
    """The text of a file; - is standard input."""
    shown = "standard input" if name == "-" else name
    try:
        if name == "-":
            data = sys.stdin.buffer.read(largest + 1)
        else:
            with Path(name).open("rb") as source:
                data = source.read(largest + 1)
    except OSError as error:
        raise InvalidOption(f"{shown} cannot be read: {error.strerror or error}. Nothing was added") from None
    except ValueError as error:
        raise InvalidOption(f"{shown!r} is no name of a file: {error}") from None
    if len(data) > largest:
        raise InvalidOption(f"{shown} is larger than {largest // 1024**2} MiB; give it in parts. Nothing was added")
    if b"\0" in data:
        raise InvalidOption(f"{shown} is binary, or text in UTF-16: only UTF-8 text can be read. Nothing was added")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidOption(
            f"{shown}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x}); convert it first, for example with "
            "iconv -f latin1 -t utf-8. Nothing was added"
        ) from None


def files_below(names: Sequence[str], endings: Sequence[str]) -> Iterator[str]:
    """The files that were named, and those with one of these endings in the directories that were."""
    found = 0
    for name in names:
        if name == "-" or not Path(name).is_dir():
            yield name
            continue
        inside = sorted(str(one) for one in Path(name).rglob("*") if one.suffix.lower() in endings and one.is_file())
        if not inside:
            raise InvalidOption(f"the directory {name} has no {' or '.join(endings)} files")
        found += len(inside)
        if found > MOST_FILES:
            raise InvalidOption(f"the directory {name} has more than {MOST_FILES:,} files; name a smaller one")
        yield from inside
