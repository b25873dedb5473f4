"""Very many at once: a line of JSON each, in requests that a server takes whole or not at all."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from hourhand.core.errors import HourhandError
from hourhand.surfaces.client.asking import decoded
from hourhand.surfaces.client.transport import ROOT, Call, Transport

MOST_LINES = 10_000
MOST_BYTES = 32 * 1024 * 1024
LINES = "application/x-ndjson"
_PLACE = re.compile(r"^(?:line|job number) (\d+)")


async def send_batches(
    transport: Transport, path: str, query: Mapping[str, Any], items: Iterable[Any], what: str
) -> AsyncIterator[tuple[int, Any]]:
    """One request after the other, each made when the one before is in: how many lines it had, and its answer."""
    done = 0
    try:
        for lines in _parts(items):
            call = Call("POST", ROOT + path, query, b"".join(lines), LINES, patient=True)
            answer = decoded(await transport.send(call))
            yield len(lines), answer
            done += len(lines)
    except HourhandError as error:
        if not done:
            raise
        raise _placed(error, done, what) from error.__cause__


def _parts(items: Iterable[Any]) -> Iterator[list[bytes]]:
    lines: list[bytes] = []
    size = 0
    for one in items:
        line = msgspec.json.encode(one) + b"\n"
        if lines and size + len(line) > MOST_BYTES:
            yield lines
            lines, size = [], 0
        lines.append(line)
        size += len(line)
        if len(lines) == MOST_LINES:
            yield lines
            lines, size = [], 0
    if lines:
        yield lines


def _placed(error: HourhandError, done: int, what: str) -> HourhandError:
    """A server counts the lines of one request, and knows nothing of those before it."""
    words = str(error).removesuffix(". Nothing was added")
    if error.__cause__ is None:
        words = _PLACE.sub(lambda found: f"{what} number {done + int(found[1])}", words)
    return type(error)(f"{words}. The first {done:,} {what}s are in, the others are not")
