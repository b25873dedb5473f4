"""An attempt's error as it is kept with the run: bounded, readable, ordered."""

from __future__ import annotations

import traceback
from typing import Any

from hourhand.core.redaction import Clean

MAX_MESSAGE = 2_000
MAX_TRACEBACK = 8_000
MAX_ERRORS = 50
"""The first ten and the latest forty are kept."""


def _middle_cut(text: str, limit: int) -> str:
    """The start says where it was called, the end what went wrong: the middle goes."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def describe(error: BaseException, attempt: int, at: str, node: str, clean: Clean | None = None) -> dict[str, Any]:
    """`clean` takes secrets out, before anything is cut: half of one would not be found any more."""
    words = _words(error)
    trace = getattr(error, "remote_traceback", None) or "".join(traceback.format_exception(error))
    if clean is not None:
        words, trace = clean(words), clean(trace)
    return {
        "attempt": attempt,
        "at": at,
        "node": node,
        "type": getattr(error, "remote_type", None) or type(error).__qualname__,
        "message": _storable(_middle_cut(words, MAX_MESSAGE)),
        "traceback": _storable(_middle_cut(trace, MAX_TRACEBACK)),
    }


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as bad:  # the user's own __str__
        return f"its message cannot be shown: {type(bad).__qualname__}"


def _storable(text: str) -> str:
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def append(errors: list[dict[str, Any]] | None, one: dict[str, Any]) -> list[dict[str, Any]]:
    every = [*(errors or ()), one]
    return every if len(every) <= MAX_ERRORS else [*every[:10], *every[-(MAX_ERRORS - 10) :]]
