"""What every answer shares: JSON, pages with a link to the next one, entity tags; and how a body is read."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import msgspec
from fastapi import Query, Request, Response
from pydantic import BaseModel, ValidationError

from hourhand.surfaces.rest.problems import Refused
from hourhand.surfaces.wire import write_cursor

JSON = "application/json"
MOST = 1_000
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

Limit = Annotated[int, Query(ge=1, le=MOST, description="At most so many.")]
Cursor = Annotated[
    str | None, Query(max_length=500, description="Where the page begins: from the `Link` of the page before, with rel=next.")
]


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, JSON)


def entity_tag(version: int) -> str:
    return f'"{version}"'


def wanted_version(request: Request) -> int | None:
    """What If-Match asks for; None where it is missing or takes any."""
    given = request.headers.get("if-match")
    if given is None or given.strip() == "*":
        return None
    words = [word.strip().removeprefix("W/").strip('"') for word in given.split(",")]
    if len(words) != 1 or not words[0].isdecimal() or len(words[0]) > 18:
        raise Refused(412, f"If-Match names no version of this job: {given!r}. Take the ETag that came with it")
    return int(words[0])


def unchanged(request: Request, tag: str) -> bool:
    """Whether the caller has this version already."""
    given = request.headers.get("if-none-match", "")
    return given.strip() == "*" or tag in (word.strip().removeprefix("W/") for word in given.split(","))


def page(request: Request, items: Sequence[T], limit: int, place: Callable[[T], Any], plain: Callable[[T], Any]) -> Response:
    """One page; if it is full, with a link to the one after it."""
    headers = next_page(request, place(items[-1])) if len(items) == limit else {}
    return answer([plain(one) for one in items], headers=headers)


def next_page(request: Request, place: Any) -> dict[str, str]:
    url = request.url.include_query_params(cursor=write_cursor(place))
    return {"Link": f'<{quote(url.path, safe="/:@%")}?{url.query}>; rel="next"'}


def read_cursor(text: str | None, kind: Any) -> Any:
    if text is None:
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=kind)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise Refused(422, "this is no cursor; take the one of the Link header of the page before") from None


def timed_cursor(text: str | None) -> tuple[datetime, str] | None:
    place = read_cursor(text, tuple[Annotated[datetime, msgspec.Meta(tz=True)], str])
    return None if place is None else (place[0], place[1])


async def body_of(request: Request, model: type[M]) -> M:
    """The body, as what it must be; what is wrong with it is said at once."""
    raw = await request.body()
    kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if kind != JSON and not kind.endswith("+json"):
        raise Refused(415, f"send {JSON}, not {kind}")
    return parse_body(raw, model)


async def optional_body(request: Request, model: type[M]) -> M:
    """The same where no body at all means: as usual."""
    return await body_of(request, model) if await request.body() else model()


def parse_body(raw: bytes, model: type[M], where: str = "") -> M:
    try:
        return model.model_validate_json(raw, strict=True)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        if any(one["type"] == "json_invalid" for one in found):
            deep = "recursion limit" in found[0]["msg"]
            raise Refused(
                422 if deep else 400, f"{where}this is {'nested too deeply' if deep else 'no JSON'}: {found[0]['msg']}"
            ) from None
        listed = [{"at": ".".join(str(part) for part in one["loc"]), "message": one["msg"]} for one in found[:50]]
        words = "; ".join(f"{one['at']}: {one['message']}".lstrip(": ") for one in listed[:3])
        raise Refused(422, where + words, kind="urn:hourhand:invalid-input", errors=listed) from None
