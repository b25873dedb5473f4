"""How a page is made and a form is taken: who may, what it answers, and what it says when something is refused.

A form carries its session's token in the field `csrf`; what destroys is asked about on a page of its own before it is done, so
that neither needs a script.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode

import jinja2
import structlog
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute

from hourhand import __version__
from hourhand.core.actor import Actor
from hourhand.core.errors import DatabaseUnavailable, Forbidden, HourhandError, UnknownHold, UnknownJob, UnknownQueue, UnknownRun
from hourhand.surfaces.dashboard import words
from hourhand.surfaces.rest.keyring import Session
from hourhand.surfaces.rest.problems import Refused
from hourhand.surfaces.rest.route import Handler, need_role

log = structlog.get_logger("hourhand.dashboard")
T = TypeVar("T")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_SAID = "hourhand_said"
_LONGEST = 1_000
_STATUS: tuple[tuple[type[HourhandError], int], ...] = (
    (UnknownHold, 404), (UnknownJob, 404), (UnknownRun, 404), (UnknownQueue, 404), (Forbidden, 403), (DatabaseUnavailable, 503),
)  # fmt: skip


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hourhand.surfaces.dashboard"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "number": words.number, "span": words.seconds_in_words, "instant": words.instant, "badge": words.badge,
        "tone": words.tone, "pretty": words.pretty, "plural": words.plural,
    }  # fmt: skip
    environment.globals["version"] = __version__
    return environment


def page(request: Request, template: str, status: int = 200, **context: Any) -> Response:
    """`template`, with what every page has: who looks, what was just said, and the token of his forms."""
    actor: Actor = request.state.actor
    session: Session | None = getattr(request.state, "session", None)
    # A page that a script asks for again is not the one that the word is for.
    asked = request.headers.get("sec-fetch-dest") != "empty"
    kind, _, text = unquote(request.cookies.get(_SAID, "") if asked else "")[:_LONGEST].partition(":")
    html = _templates().get_template(template).render(
        **context, actor=actor, path=request.url.path, here=_here(request), csrf="" if session is None else session.csrf,
        said={"kind": "bad" if kind == "error" else "good", "text": text} if text else None,
        operator=actor.has_role("operator"), admin=actor.has_role("admin"), signed_in=session is not None,
    )  # fmt: skip
    response = HTMLResponse(html, status, {"Content-Security-Policy": POLICY})
    if text:
        response.delete_cookie(_SAID, path="/")
    return response


def back(to: str, said: str | None = None, *, error: bool = False) -> Response:
    """After a form: to a page of ours, with a word about what came of it."""
    response = RedirectResponse(local(to), 303)
    if said:
        text = f"{'error' if error else 'done'}:{said}"
        response.set_cookie(_SAID, quote(text[:_LONGEST]), max_age=60, httponly=True, samesite="strict", path="/")
    return response


def local(to: str, otherwise: str = "/") -> str:
    """A place on this server, or the first page: nobody is sent elsewhere by a link that somebody made up."""
    return to if to.startswith("/") and not to.startswith(("//", "/\\")) and "\n" not in to and "\r" not in to else otherwise


def link(path: str, **query: Any) -> str:
    """A page with its filters as the address."""
    kept = [(name, str(one)) for name, value in query.items() for one in (value if isinstance(value, (list, tuple)) else [value])
            if one not in (None, "", False)]  # fmt: skip
    return f"{path}?{urlencode(kept)}" if kept else path


def _here(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


async def unless_forbidden(work: Awaitable[T]) -> T | None:
    """What concerns everything is not for a key that opens a part: its place on the page stays empty."""
    try:
        return await work
    except Forbidden:
        return None


class Form(dict[str, str]):
    """What was filled in; of a field that is there several times, `many` has all."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def many(self, name: str) -> list[str]:
        return [value for one, value in self._pairs if one == name]

    def text(self, name: str) -> str | None:
        """Stripped; None when nothing was filled in."""
        return self.get(name, "").strip() or None

    @property
    def confirmed(self) -> bool:
        return self.get("confirmed") == "yes"

    def kept(self) -> list[tuple[str, str]]:
        """For the page that asks again."""
        return [(name, value) for name, value in self._pairs if name not in ("csrf", "confirmed")]


async def form_of(request: Request) -> Form:
    body = await request.body()
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=20_000)
    except ValueError:
        raise Refused(400, "the form cannot be read") from None
    if any("\0" in value for _, value in pairs):
        raise Refused(400, "a character of the form is none (NUL)")
    return Form(pairs)


def confirm(request: Request, form: Form, question: str, *, button: str, consequences: list[str] | None = None) -> Response:
    """Asks before it is done; the same form comes back with `confirmed`."""
    return page(
        request, "confirm.html", question=question, button=button, consequences=consequences or [], fields=form.kept(),
        action=request.url.path, cancel=local(form.get("back", "/")),
    )  # fmt: skip


class PageRoute(APIRoute):
    """Looking is for viewers; a form is for operators, or for whom `openapi_extra=roles(...)` says."""

    def get_route_handler(self) -> Handler:
        inner = super().get_route_handler()
        looks = (self.methods or set()) <= {"GET", "HEAD"}
        role = (self.openapi_extra or {}).get("x-role", "viewer" if looks else "operator")

        async def handle(request: Request) -> Response:
            try:
                need_role(request.state.actor, role)
                if not looks:
                    await _check_token(request)
                return await inner(request)
            except HourhandError as error:
                status = next((status for kind, status in _STATUS if isinstance(error, kind)), 422)
                return await self._refuse(request, looks, status, str(error))
            except Refused as error:
                return await self._refuse(request, looks, error.status, error.detail)
            except RequestValidationError as error:
                said = "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in list(error.errors())[:3])
                return await self._refuse(request, looks, 422, said)

        return handle

    async def _refuse(self, request: Request, looks: bool, status: int, detail: str) -> Response:
        if status == 503:
            log.warning("dashboard.unavailable", error=detail)
            detail = "the database cannot be reached at the moment; this page comes back by itself when it can"
        if looks or status in (400, 403, 503):
            return error_page(request, status, detail)
        return back((await form_of(request)).get("back", "/"), detail, error=True)


async def _check_token(request: Request) -> None:
    """A change that comes from a browser's session carries its token. (Without a session the gate has looked where it comes from.)"""
    session: Session | None = getattr(request.state, "session", None)
    if session is not None:
        given = (await form_of(request)).get("csrf", "")
        if not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), session.csrf.encode()):
            raise Refused(403, "the form does not carry your session's token; load the page again")


_TITLES = {
    400: "That cannot be read",
    403: "Not allowed",
    404: "Not found",
    405: "Not possible here",
    422: "That cannot be",
    503: "No database",
}


def error_page(request: Request, status: int, detail: str) -> Response:
    return page(
        request, "error.html", status, title=_TITLES.get(status, "Something went wrong"), detail=detail, retry=status == 503
    )


Page = Callable[[Request], Awaitable[Response]]
