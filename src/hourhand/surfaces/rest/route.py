"""A route: who may use it, and, for a request that was made before under the same Idempotency-Key, what it was answered."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute

from hourhand.core.actor import Actor
from hourhand.core.errors import Forbidden, PayloadUnreadable
from hourhand.core.sealing import SIGN, Sealer
from hourhand.surfaces.app import Hourhand
from hourhand.surfaces.rest.problems import Refused

_MOST_REMEMBERED = 1024 * 1024
_KEPT = ("content-type", "location", "etag")
KEY = re.compile(r'"?[!#-~]([ -~]{0,198}[!#-~])?"?')
"""What an Idempotency-Key may be."""
_ANSWER = "an answer that is remembered"
"""What a sealed answer is bound to, as a payload is to its task."""
_SEALED = b"{" + SIGN.encode()
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


UNREMEMBERED = {"x-remembered": False}
"""Of a route whose answer holds a secret: that is stored nowhere, so it cannot be answered a second time."""


def roles(role: str) -> dict[str, Any]:
    """Of a route, `openapi_extra=roles("operator")`: the least role that may use it. Without it, looking is for viewers and
    everything else for admins."""
    return {"x-role": role}


def app_of(request: Request) -> Hourhand:
    app: Hourhand = request.app.state.hourhand
    return app


def need_role(actor: Actor, role: str) -> None:
    if not actor.has_role(role):
        raise Forbidden(f"this is for the role {role}, and {actor.name} has the role {actor.role}")


class Route(APIRoute):
    def get_route_handler(self) -> Handler:
        inner = super().get_route_handler()
        looks = (self.methods or set()) <= {"GET", "HEAD"}
        extra = self.openapi_extra or {}
        role, remembered = extra.get("x-role", "viewer" if looks else "admin"), extra.get("x-remembered", True)

        async def handle(request: Request) -> Response:
            need_role(request.state.actor, role)
            key = request.headers.get("idempotency-key")
            if looks or key is None:
                return await inner(request)
            if not remembered:
                raise Refused(422, "this answers with a secret, which is kept nowhere; send it without Idempotency-Key")
            return await _once(request, key.strip(), inner)

        return handle


async def _once(request: Request, key: str, handle: Handler) -> Response:
    """What the request does and what it is answered are written in one transaction, so that there is never the one without
    the other; whoever repeats it while it is under way waits for that. An answer that is an error is not kept."""
    if not KEY.fullmatch(key):
        raise Refused(400, "Idempotency-Key must be a text of 1 to 200 ASCII characters, with or without quotes around it")
    key = key.strip('"')
    actor = request.state.actor.identity
    body = await request.body()
    asked = [request.method.encode(), request.url.path.encode(), request.url.query.encode(), body]
    fingerprint = hashlib.sha256(b"\0".join(asked)).digest()
    database = await app_of(request)._database()
    async with database.together():
        if not await database.fetch("remember_request", actor, key, fingerprint):
            return _again(await database.fetchrow("remembered_request", actor, key), fingerprint, database.sealer)
        response = await handle(request)
        content = bytes(response.body)
        if len(content) > _MOST_REMEMBERED:
            raise Refused(422, "the answer would be too large to be remembered; repeat it without Idempotency-Key")
        headers = {name: response.headers[name] for name in _KEPT if name in response.headers}
        # It may show a payload, which is not to be read where payloads are encrypted.
        kept = database.sealer.seal(content.decode(), _ANSWER).encode() if database.sealer.active else content
        await database.fetch(
            "answer_request", actor, key, response.status_code, msgspec.json.encode(headers).decode(), kept
        )  # fmt: skip
    return response


def _again(row: Any, fingerprint: bytes, sealer: Sealer) -> Response:
    if row is None:
        raise Refused(409, "the first request with this Idempotency-Key has just been given up; repeat it")
    if row["fingerprint"] != fingerprint:
        raise Refused(422, "this Idempotency-Key was used for another request; take a new one for each")
    headers = {**msgspec.json.decode(row["headers"]), "Idempotency-Replayed": "true"}
    body: bytes = row["body"]
    if body.startswith(_SEALED):
        try:
            body = sealer.open(body.decode(), _ANSWER).encode()
        except PayloadUnreadable:
            raise Refused(409, "it was answered, and the answer is encrypted with a key that is not here any more") from None
    return Response(body, row["status"], headers)
