"""What a server refuses, as the errors that the app itself raises."""

from __future__ import annotations

import msgspec

from hourhand.core import errors
from hourhand.core.errors import HourhandError

_URN = "urn:hourhand:"
_BY_STATUS: dict[int, type[HourhandError]] = {
    400: errors.InvalidOption,
    401: errors.Unauthorized,
    403: errors.Forbidden,
    409: errors.NotPossible,
    412: errors.PreconditionFailed,
    413: errors.InvalidOption,
    415: errors.InvalidOption,
    422: errors.InvalidOption,
}
PASSING = (502, 503, 504)
"""Answers that say: not now."""


class Problem(msgspec.Struct):
    detail: str
    type: str = "about:blank"


def error_of(url: str, asked: str, status: int, content_type: str, body: bytes) -> HourhandError:
    """`asked` is what was sent, in words: GET /api/v1/jobs."""
    problem = _read(content_type, body)
    if status in PASSING:
        # Not as the server's own kind: what it says of its database's address and password is not for the caller to correct.
        words = f"answers {status}" if problem is None else f"is there, but: {problem.detail}"
        return errors.DatabaseUnavailable(f"the server {url} {words}")
    kind = None if problem is None else _KINDS.get(problem.type.removeprefix(_URN), _BY_STATUS.get(status))
    if problem is not None and kind is not None:
        return kind(problem.detail)
    if status >= 500:
        return HourhandError(f"the server {url} failed at {asked} ({status}); its log says why")
    return errors.ConfigurationError(
        f"{url} answers {status} to {asked}: it is no Hourhand server, or one of another version; is the URL right?"
    )


def _read(content_type: str, body: bytes) -> Problem | None:
    if content_type.partition(";")[0].strip() != "application/problem+json":
        return None
    try:
        return msgspec.json.decode(body, type=Problem)
    except msgspec.MsgspecError:
        return None


def _dashed(name: str) -> str:
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("-")


_KINDS: dict[str, type[HourhandError]] = {
    _dashed(name): kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, HourhandError) and kind is not errors.RetryAfter
}
