"""What the verbs of a client share: asking, reading what comes back, and going through the pages of a list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from hourhand.core import ids
from hourhand.core.errors import ConfigurationError
from hourhand.core.task import check_name
from hourhand.surfaces.client.transport import ROOT, Answer, Call, Transport

T = TypeVar("T")
PAGE = 1_000
"""What a server gives at once, at most."""


class Asking:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def _send(self, call: Call) -> Any:
        return decoded(await self._transport.send(call))

    async def _get(self, path: str, **query: Any) -> Any:
        return await self._send(Call("GET", ROOT + path, query))

    async def _get_as(self, kind: type[T], path: str, **query: Any) -> T:
        return converted(await self._get(path, **query), kind)

    async def _post(self, path: str, body: Mapping[str, Any] | None = None, **how: Any) -> Any:
        return await self._send(Call("POST", ROOT + path, body=None if body is None else msgspec.json.encode(body), **how))

    async def _list(self, path: str, query: Mapping[str, Any], limit: int, read: Callable[[Any], T]) -> list[T]:
        """Up to `limit`, however many pages that takes."""
        found: list[T] = []
        cursor = query.get("cursor")
        while True:
            size = min(PAGE, limit - len(found))
            answer = await self._transport.send(Call("GET", ROOT + path, {**query, "limit": size, "cursor": cursor}))
            found += map(read, decoded(answer))
            cursor = answer.next_cursor
            if cursor is None or len(found) >= limit:
                return found


def decoded(answer: Answer) -> Any:
    try:
        return msgspec.json.decode(answer.body) if answer.body else None
    except msgspec.DecodeError:
        raise ConfigurationError("what came back is no JSON: there is no Hourhand server at this URL") from None


def converted(value: Any, kind: type[T]) -> T:
    """Plain values as one of the classes that the app answers with; what it does not know is left out."""
    return msgspec.convert(value, kind)


def reader(kind: type[T]) -> Callable[[Any], T]:
    return lambda value: converted(value, kind)


def in_path(name: str) -> str:
    return quote(name, safe="")


def run_path(run_id: str | int) -> str:
    return ids.run_id(ids.parse_run_id(run_id))


def is_name(name: Any) -> bool:
    """Whether anything could be called so. What could not be is not asked for: it might lead elsewhere."""
    try:
        check_name("job", name)
    except ConfigurationError:
        return False
    return True
