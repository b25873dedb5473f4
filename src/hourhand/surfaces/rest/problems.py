"""Errors as RFC 9457 problem details: what happened, in words, with a type to switch on."""

from __future__ import annotations

from typing import Any

import msgspec
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import compile_path

from hourhand.core import errors

log = structlog.get_logger("hourhand.api")
CONTENT_TYPE = "application/problem+json"
_TITLES = {
    400: "The request cannot be read", 401: "A key is needed", 403: "Not allowed", 404: "Not found", 405: "No such method here",
    406: "Not acceptable", 408: "The request took too long", 409: "In conflict with what is there", 412: "It has changed meanwhile",
    413: "The request is too large", 415: "Unsupported media type", 422: "The request cannot be carried out as given",
    429: "The queue is full", 431: "Headers are too large", 500: "A fault of ours", 503: "The database cannot be reached",
}  # fmt: skip
_KINDS: tuple[tuple[type[Exception], int], ...] = (
    (errors.UnknownJob, 404),
    (errors.UnknownRun, 404),
    (errors.UnknownKey, 404),
    (errors.UnknownHold, 404),
    (errors.UnknownQueue, 404),
    (errors.Forbidden, 403),
    (errors.PreconditionFailed, 412),
    (errors.JobConflict, 409),
    (errors.NotPossible, 409),
    (errors.QueueFull, 429),
    (errors.DatabaseUnavailable, 503),
    (errors.EmbeddedServerError, 503),
    (errors.InvalidOption, 422),
    (errors.InvalidPayload, 422),
    (errors.InvalidSchedule, 422),
    (errors.ConfigurationError, 422),
    (errors.StatementRefused, 422),
)


class Refused(Exception):
    """A request that is answered with a problem, and nothing else."""

    def __init__(
        self, status: int, detail: str, *, kind: str = "about:blank", headers: dict[str, str] | None = None, **more: Any
    ):
        super().__init__(detail)
        self.status, self.detail, self.kind, self.headers, self.more = status, detail, kind, headers, more

    def response(self) -> Response:
        return problem(self.status, self.detail, kind=self.kind, headers=self.headers, **self.more)


def problem(
    status: int, detail: str, *, kind: str = "about:blank", headers: dict[str, str] | None = None, **more: Any
) -> Response:
    body = {"type": kind, "title": _TITLES.get(status, "Refused"), "status": status, "detail": detail, **more}
    return Response(msgspec.json.encode(body), status, headers, CONTENT_TYPE)


def of_error(error: errors.HourhandError) -> Response:
    """What a verb refused, as the caller sees it."""
    status = next((status for kind, status in _KINDS if isinstance(error, kind)), 500)
    kind = f"urn:hourhand:{_dashed(type(error).__name__)}"
    if status == 503:
        # Where the database is and what it said is not for everybody who comes along.
        log.warning("api.unavailable", error=str(error))
        return problem(status, f"{_TITLES[503]} at the moment; try again", kind=kind, headers={"Retry-After": "1"})
    return problem(status, str(error), kind=kind)


def fault() -> Response:
    """What nobody foresaw: the log has it, the caller does not."""
    return problem(500, "this should not have happened; the server's log says more")


def of_validation(found: list[Any]) -> Response:
    """Everything that is wrong with the input, at once."""
    listed = [{"at": ".".join(str(part) for part in one["loc"]), "message": one["msg"]} for one in found[:50]]
    words = "; ".join(f"{one['at']}: {one['message']}" for one in listed[:3]) + ("; …" if len(listed) > 3 else "")
    return problem(422, words, kind="urn:hourhand:invalid-input", errors=listed)


def install(app: FastAPI) -> None:
    async def hourhand_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, errors.HourhandError)
        return of_error(error)

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return error.response()

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return of_validation(list(error.errors()))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(_methods(request.app.openapi()["paths"], request.url.path))
        shown = app.state.refusal(request.scope, error.status_code, str(error.detail)) if app.state.refusal else None
        return shown or problem(error.status_code, str(error.detail), headers=headers)

    async def unforeseen(request: Request, _: Exception) -> Response:
        shown = app.state.refusal(request.scope, 500, "the server's log says more") if app.state.refusal else None
        return shown or fault()

    async def gone(*_: Any) -> Response:
        return problem(400, "the caller has gone before his request was whole")

    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(Exception, unforeseen)
    app.add_exception_handler(errors.HourhandError, hourhand_error)
    app.add_exception_handler(Refused, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)


def _methods(paths: dict[str, Any], path: str) -> list[str]:
    """What can be done at a path: one that is written out goes before one that is a pattern."""
    found: dict[str, Any] = paths.get(path) or next(
        (one for pattern, one in paths.items() if compile_path(pattern)[0].match(path)), {}
    )
    return sorted(method.upper() for method in found)


def _dashed(name: str) -> str:
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("-")
