"""Log lines: readable on a terminal, JSON for machines."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Any, TextIO, cast

import structlog

_STYLE = "HOURHAND_LOG_STYLE"
"""How a child process learns its parent's choice."""
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logs(style: str = "console", level: str = "info") -> None:
    """`console` or `json`, to standard error, so that output and log do not mix."""
    os.environ[_STYLE] = f"{style}:{level}"
    stamp = structlog.processors.TimeStamper(fmt="iso" if style == "json" else "%H:%M:%S.%f", utc=style == "json")
    shared: list[Any] = [structlog.contextvars.merge_contextvars, structlog.processors.add_log_level, stamp]
    if style == "json":
        rest: list[Any] = [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
    else:
        rest = [_shorten, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=24)]
    structlog.configure(
        processors=[*shared, *rest],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Forgiving(sys.stderr))),
        cache_logger_on_first_use=True,
    )


class _Forgiving:
    """A stream whose reader may be gone: a lost log line must not become a lost run."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def inherit_logs() -> None:
    style, _, level = os.environ.get(_STYLE, "console:info").partition(":")
    configure_logs(style, level)


def _shorten(_logger: Any, _method: str, event: Any) -> Any:
    """Milliseconds are enough for people."""
    event["timestamp"] = event["timestamp"][:-3]
    return event
