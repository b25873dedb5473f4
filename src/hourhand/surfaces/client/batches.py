"""Very many at once: a line of JSON each, in requests that a server takes whole or not at all."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from typing import Any

import msgspec

from hourhand.core.errors import HourhandError
from hourhand.storage.flow import Flow, chunks
from hourhand.surfaces.client.asking import decoded
from hourhand.surfaces.client.transport import ROOT, Call, Transport

MOST_LINES = 10_000
MOST_BYTES = 32 * 1024 * 1024
LINES = "application/x-ndjson"
_AT_ONCE = Flow()
_PLACE = re.compile(r"^(?:line|job number) (\d+)")


async def send_batches(
    transport: Transport, path: str, query: Mapping[str, Any], items: Iterable[Any] | AsyncIterable[Any], what: str,
    flow: Flow = _AT_ONCE,
) -> AsyncIterator[tuple[int, Any]]:  # fmt: skip
    """One request after the other, each made when the one before is in: how many lines it had, and its answer."""
    done = 0
    try:
        async for lines in _parts(items, min(MOST_LINES, flow.commit_every or MOST_LINES)):
            body = b"".join(lines)

            async def send(body: bytes = body) -> Any:
                # Each time a request of its own: the same one would be answered as before.
                return decoded(await transport.send(Call("POST", ROOT + path, query, body, LINES, patient=True)))

            answer = await flow.with_room(send)
            yield len(lines), answer
            done += len(lines)
    except HourhandError as error:
        if not done:
            raise
        raise _placed(error, done, what) from error.__cause__


async def _parts(items: Iterable[Any] | AsyncIterable[Any], most: int) -> AsyncIterator[list[bytes]]:
    async for chunk in chunks(items, most):
        lines: list[bytes] = []
        size = 0
        for one in chunk:
            line = msgspec.json.encode(one) + b"\n"
            if lines and size + len(line) > MOST_BYTES:
                yield lines
                lines, size = [], 0
            lines.append(line)
            size += len(line)
        yield lines


def _placed(error: HourhandError, done: int, what: str) -> HourhandError:
    """A server counts the lines of one request, and knows nothing of those before it."""
    words = str(error).removesuffix(". Nothing was added")
    if error.__cause__ is None:
        words = _PLACE.sub(lambda found: f"{what} number {done + int(found[1])}", words)
    return type(error)(f"{words}. The first {done:,} {what}s are in, the others are not")
