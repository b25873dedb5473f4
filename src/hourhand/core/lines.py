"""What a run says while it goes on, line by line: bounded, and always something that can be stored."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from hourhand.core.redaction import Clean, scrub_values

MAX_TEXT = 8 * 1024
MAX_FIELDS = 8 * 1024
"""Bytes, of JSON for the fields. Lines are read by people."""
_FOR_NAMES = 512
"""Bytes set aside for naming the fields that were left out."""
LEVELS = {
    "debug": "debug", "info": "info", "msg": "info", "warning": "warning", "warn": "warning", "error": "error",
    "exception": "error", "critical": "critical", "fatal": "critical",
}  # fmt: skip
"""A logger's methods, and the level of what is said by each."""


class Line:
    __slots__ = ("fields", "level", "text")

    def __init__(self, level: str, text: str, fields: str | None) -> None:
        self.level, self.text, self.fields = level, text, fields


Keep = Callable[[Line], None]


class Pen:
    """Writes the lines of one attempt, so many and no more: what comes then is dropped where it is said, for next to nothing.

    One more than are kept gets through, to be replaced by a word that there was more. Threads that write at the same time may
    let a few more through; the database keeps no more than it should.
    """

    def __init__(self, most: int, keep: Keep, clean: Clean | None = None) -> None:
        self.clean = clean
        """What takes the run's secrets out of a text, if it has any."""
        self._left = most + 1 if most else 0
        self._keep = keep
        self.used = False

    @property
    def empty(self) -> bool:
        return self._left <= 0

    def write(self, level: str, text: Any, fields: Mapping[str, Any] | None = None) -> None:
        if self._left > 0:
            text, fields = self.scrubbed(text), fields and self.scrubbed(fields)
            self.pass_on(Line(level, bounded(_shown(text, str), MAX_TEXT), encode_fields(fields) if fields else None))

    def scrubbed(self, value: Any) -> Any:
        """Without secrets, and before anything is cut: half of one would not be found any more."""
        return value if self.clean is None else _scrubbed(value, self.clean)

    def pass_on(self, line: Line) -> None:
        """A line that is bounded already: a child process has written it."""
        if self._left > 0:
            self._left -= 1
            self.used = True
            self._keep(line)


def bounded(text: str, limit: int) -> str:
    """Whatever PostgreSQL cannot store is replaced, and what is too long is cut."""
    if len(text) > limit:
        text = text[: limit + 1]
    encoded = text.replace("\0", "�").encode("utf-8", "replace")
    if len(encoded) <= limit:
        return encoded.decode()
    return encoded[: limit - 3].decode("utf-8", "ignore") + "…"


def encode_fields(fields: Mapping[str, Any]) -> str:
    """JSON for the fields. What JSON does not know is shown as Python shows it; what is too much is cut, or only named."""
    parts: list[bytes] = []
    left_out: list[str] = []
    room = MAX_FIELDS - _FOR_NAMES
    for name, value in fields.items():
        label = _encode(bounded(_shown(name, str), MAX_FIELDS // 8)) + b":"
        part = label + _encode(value)
        if len(part) >= room and room > _FOR_NAMES:
            part = label + _encode(bounded(_shown(value, repr), room // 2))
        if len(part) < room:
            parts.append(part)
            room -= len(part) + 1
        else:
            left_out.append(name)
    if left_out:
        parts.append(b'"left_out":' + _encode(bounded(", ".join(left_out), _FOR_NAMES // 8)))
    # PostgreSQL's jsonb has no NUL.
    return (b"{" + b",".join(parts) + b"}").replace(b"\\u0000", b"\\ufffd").decode()


def _encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=_hook)
    except Exception:  # a number beyond 64 bits, a lone surrogate, a dictionary with strange keys, one that contains itself
        return msgspec.json.encode(bounded(_shown(value, repr), MAX_FIELDS))


def _hook(value: Any) -> str:
    return bounded(_shown(value, repr), MAX_FIELDS)


def _shown(value: Any, show: Callable[[Any], str]) -> str:
    if type(value) is str:
        return value
    try:
        return show(value)
    except Exception as bad:  # the user's own __str__ or __repr__
        return f"it cannot be shown: {type(bad).__qualname__}"


def _scrubbed(value: Any, clean: Clean) -> Any:
    if isinstance(value, Mapping):
        return {name: _scrubbed(one, clean) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_scrubbed(one, clean) for one in value]
    if value is None or isinstance(value, (str, int, float)):
        return scrub_values(value, clean)
    shown = _shown(value, repr)
    return value if clean(shown) == shown else clean(shown)


class RunLog:
    """A structlog logger whose lines are kept with the run as well.

    Everything from `info` on is kept, whatever the process logs; `debug` only where the process logs it too.
    """

    def __init__(self, logger: Any, pen: Pen, fields: Mapping[str, Any]) -> None:
        self._logger, self._pen, self._fields = logger, pen, fields

    def bind(self, **fields: Any) -> RunLog:
        fields = self._pen.scrubbed(fields)
        return RunLog(self._logger.bind(**fields), self._pen, {**self._fields, **fields})

    def new(self, **fields: Any) -> RunLog:
        fields = self._pen.scrubbed(fields)
        return RunLog(self._logger.new(**fields), self._pen, fields)

    def unbind(self, *names: str) -> RunLog:
        return self._without(self._logger.unbind(*names), names)

    def try_unbind(self, *names: str) -> RunLog:
        return self._without(self._logger.try_unbind(*names), names)

    def _without(self, logger: Any, names: tuple[str, ...]) -> RunLog:
        return RunLog(logger, self._pen, {name: value for name, value in self._fields.items() if name not in names})

    def log(self, level: int, event: Any, *args: Any, **fields: Any) -> Any:
        event, args, fields = self._discreet(event, args, fields)
        self._keep(logging.getLevelName(level).lower(), event, args, fields)
        return self._logger.log(level, event, *args, **fields)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._logger, name)
        level = LEVELS.get(name) or (LEVELS.get(name[1:]) if name.startswith("a") else None)
        if level is None:
            return method

        def say(event: Any = None, *args: Any, **fields: Any) -> Any:
            if name.endswith("exception"):
                fields.setdefault("exc_info", True)
            event, args, fields = self._discreet(event, args, fields)
            self._keep(level, event, args, fields)
            return method(event, *args, **fields)

        return say

    def _discreet(self, event: Any, args: tuple[Any, ...], fields: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """The same without the run's secrets: neither its lines nor the log of the process are to tell them."""
        if self._pen.clean is None:
            return event, args, fields
        if cause := fields.get("exc_info"):
            fields = {**fields, "exc_info": None, "exception": self._pen.clean(_whole_traceback(cause))}
        return self._pen.scrubbed(event), tuple(map(self._pen.scrubbed, args)), self._pen.scrubbed(fields)

    def _keep(self, level: str, event: Any, args: tuple[Any, ...], fields: dict[str, Any]) -> None:
        if self._pen.empty or (level == "debug" and not self._logs_debug()):
            return
        said = {**self._fields, **fields}
        if cause := said.pop("exc_info", None):
            said["exception"] = _traceback(cause)
        if args:
            try:
                event = event % args
            except Exception:  # the logger itself will say what is wrong with it
                said["args"] = args
        self._pen.write(level, event, said)

    def _logs_debug(self) -> bool:
        enabled = getattr(self._logger, "is_enabled_for", None)
        return enabled is None or bool(enabled(logging.DEBUG))


def _traceback(cause: Any) -> str:
    """Its end, which says what went wrong."""
    return _whole_traceback(cause)[-MAX_FIELDS // 2 :]


def _whole_traceback(cause: Any) -> str:
    if not isinstance(cause, BaseException):
        cause = cause[1] if isinstance(cause, tuple) else sys.exc_info()[1]
    return "".join(traceback.format_exception(cause)) if cause is not None else ""
