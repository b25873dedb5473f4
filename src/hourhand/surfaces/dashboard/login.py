"""In and out of the dashboard: a key is exchanged for a session."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from hourhand.surfaces.dashboard.pages import PageRoute, back, form_of, link, local, page
from hourhand.surfaces.rest.access import keyring_of
from hourhand.surfaces.rest.gate import COOKIE
from hourhand.surfaces.rest.keyring import SESSION
from hourhand.surfaces.rest.route import roles

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/login")
async def login(request: Request, next: str = "/") -> Response:
    return page(request, "login.html", next=local(next), wrong=False)


@router.post("/login", openapi_extra=roles("viewer"))
async def sign_in(request: Request) -> Response:
    form = await form_of(request)
    opened = await keyring_of(request).open_session(form.get("key", "").strip())
    if opened is None:
        return page(request, "login.html", 401, next=local(form.get("next", "/")), wrong=True)
    response = RedirectResponse(local(form.get("next", "/")), 303)
    # Lax: a link in a message opens what it points at, as the one who is signed in. Changes are checked for themselves.
    response.set_cookie(
        COOKIE, opened[0], max_age=int(SESSION.total_seconds()), httponly=True, samesite="lax",
        secure=request.url.scheme == "https", path="/",
    )  # fmt: skip
    return response


@router.post("/logout", openapi_extra=roles("viewer"))
async def sign_out(request: Request) -> Response:
    if (cookie := request.cookies.get(COOKIE)) is not None:
        await keyring_of(request).close_session(cookie)
    response = back(link("/login"))
    response.delete_cookie(COOKIE, path="/")
    return response
