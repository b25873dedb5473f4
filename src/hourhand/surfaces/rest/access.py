"""/keys, /audit, /session, /whoami: who may do what, and who did what."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi import Path as InPath

from hourhand.core.errors import InvalidOption
from hourhand.surfaces.rest import models
from hourhand.surfaces.rest.answers import Cursor, Limit, answer, body_of, page, read_cursor
from hourhand.surfaces.rest.gate import COOKIE, key_of
from hourhand.surfaces.rest.keyring import SESSION, Keyring
from hourhand.surfaces.rest.problems import Refused
from hourhand.surfaces.rest.route import UNREMEMBERED, Route, app_of, roles

router = APIRouter(route_class=Route, tags=["access"])


def keyring_of(request: Request) -> Keyring:
    keyring: Keyring = request.app.state.keyring
    return keyring


@router.get("/keys", operation_id="list_keys", response_model=list[models.Key], openapi_extra=roles("admin"))
async def list_keys(
    request: Request, revoked: Annotated[bool, Query(description="Also those that were revoked.")] = False
) -> Response:
    """Every key, without its secret."""
    return answer([one.to_dict() for one in await app_of(request).keys.list(revoked=revoked)])


@router.post(
    "/keys", operation_id="create_key", status_code=201, response_model=models.MadeKey,
    openapi_extra={**UNREMEMBERED, "x-body": "KeyToMake"},
)  # fmt: skip
async def create_key(request: Request) -> Response:
    """A key. Its secret is in this answer and nowhere else."""
    given = await body_of(request, models.KeyToMake)
    if given.expires_at is not None and given.expires_seconds is not None:
        raise InvalidOption("expires_at and expires_seconds both say when it expires; give one of them")
    made = await app_of(request).keys.create(
        given.name,
        role=given.role,
        queues=given.queues,
        prefixes=given.prefixes,
        expires=given.expires_at or given.expires_seconds,
    )
    return answer({**made.key.to_dict(), "secret": made.secret}, 201)


@router.delete("/keys/{key_id}", operation_id="revoke_key", response_model=models.Key)
async def revoke_key(request: Request, key_id: Annotated[str, InPath(max_length=200)]) -> Response:
    """From now on it opens nothing."""
    return answer((await app_of(request).keys.revoke(key_id)).to_dict())


@router.get("/audit", operation_id="list_audit", response_model=list[models.Change])
async def list_audit(
    request: Request,
    actor: Annotated[str | None, Query(max_length=200)] = None,
    action: Annotated[str | None, Query(max_length=100, description="`job.update`, or `job` for all about jobs.")] = None,
    subject: Annotated[str | None, Query(max_length=100, description="An id or a name.")] = None,
    since: models.Instant | None = None,
    until: models.Instant | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Every change: who, what, before, after; the newest first."""
    found = await app_of(request).audit.list(
        actor=actor, action=action, subject=subject, since=since, until=until, below=read_cursor(cursor, int), limit=limit
    )
    return page(request, found, limit, lambda one: one.id, lambda one: one.to_dict())


@router.get("/whoami", operation_id="whoami", response_model=models.Whoami)
async def whoami(request: Request) -> Response:
    """Who the caller is, and what he may touch."""
    actor = request.state.actor
    about: dict[str, Any] = {"name": actor.name, "role": actor.role, "queues": actor.queues, "prefixes": actor.prefixes}
    return answer(about)


@router.post(
    "/session", operation_id="open_session", status_code=201, response_model=models.Session,
    openapi_extra={**UNREMEMBERED, **roles("viewer")},
)  # fmt: skip
async def open_session(request: Request) -> Response:
    """A session for a browser, in exchange for the key of this request: a cookie, and the token that each of its changes must
    carry in X-CSRF-Token."""
    key = key_of(request.headers)
    opened = None if key is None else await keyring_of(request).open_session(key)
    if opened is None:
        raise Refused(409, "a session is opened with a key: Authorization: Bearer hh_…")
    cookie, csrf, until = opened
    response = answer({"csrf_token": csrf, "expires_at": until}, 201)
    response.set_cookie(
        COOKIE, cookie, max_age=int(SESSION.total_seconds()), httponly=True, samesite="strict",
        secure=request.url.scheme == "https", path="/",
    )  # fmt: skip
    return response


@router.delete("/session", operation_id="close_session", status_code=204, response_class=Response, openapi_extra=roles("viewer"))
async def close_session(request: Request) -> Response:
    """The session ends here and now."""
    if (cookie := request.cookies.get(COOKIE)) is not None:
        await keyring_of(request).close_session(cookie)
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/")
    return response
