"""Log lines: readable on a terminal, JSON for machines; each line about a run says which one."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Any, TextIO, cast

import structlog

from hourhand.core import ids
from hourhand.core.context import RUN
from hourhand.storage.queue import Claim

_STYLE = "HOURHAND_LOG_STYLE"
"""How a child process learns its parent's choice."""
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
OURS = "hourhand"


def style_of(style: str) -> str:
    """What `auto` comes to."""
    if style == "auto":
        return "console" if sys.stderr.isatty() else "json"
    return style


def configure_logs(style: str = "console", level: str = "info", *, capture: bool = False) -> None:
    """`console`, `json` or `auto`, to standard error, so that output and log do not mix. `capture`: what is said through Python's
    `logging` as well, in the same form; unless the app's own modules set that up in another way."""
    style = style_of(style)
    os.environ[_STYLE] = f"{style}:{level}"
    stamp = structlog.processors.TimeStamper(fmt="iso" if style == "json" else "%H:%M:%S.%f", utc=style == "json")
    shared: list[Any] = [structlog.contextvars.merge_contextvars, name_the_run, structlog.processors.add_log_level, stamp]
    if style == "json":
        named: list[Any] = [_name_the_logger]
        rest: list[Any] = [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
    else:
        named = []
        rest = [_shorten, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=24)]
    stream = cast(TextIO, _Forgiving(sys.stderr))
    structlog.configure(
        processors=[*shared, *named, *rest],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=_Factory(stream),
        cache_logger_on_first_use=True,
    )
    logging.getLogger(OURS).setLevel(LEVELS[level])
    if capture:
        _capture(stream, level, shared, rest)


def is_chatty() -> bool:
    """Whether there is a line for each run that starts and each that succeeds. It is asked once, when a worker is made: what
    is not wanted must not cost anything."""
    return logging.getLogger(OURS).isEnabledFor(logging.DEBUG)


def about(claim: Claim) -> dict[str, Any]:
    """The run that a line is about."""
    job = {} if claim.job_number is None else {"job": ids.job_id(claim.job_number)}
    return {
        "run": ids.run_id(claim.run_number), **job, "task": claim.task, "queue": claim.queue, "attempt": claim.attempt + 1,
        "node": claim.worker,
    }  # fmt: skip


def ended(claim: Claim, status: str, started: float | None, now: float) -> dict[str, Any]:
    """The same, and what this attempt came to."""
    return {**about(claim), "status": status, "duration": None if started is None else round(max(0.0, now - started), 6)}


def name_the_run(_logger: Any, _method: str, event: Any) -> Any:
    """For structlog: what a handler says names its run, whichever logger it says it through. Looked up when something is said;
    a run that says nothing pays next to nothing."""
    context = RUN.get()
    if context is not None:
        for name, value in context.fields().items():
            event.setdefault(name, value)
    return event


class _Logger(structlog.WriteLogger):
    name = ""


class _Factory:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, *names: Any) -> _Logger:
        logger = _Logger(self._stream)
        logger.name = str(names[0]) if names else ""
        return logger


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


def _capture(stream: TextIO, level: str, shared: list[Any], rest: list[Any]) -> None:
    root = logging.getLogger()
    if root.handlers:
        return  # the app has its own ideas
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rest],
        )
    )
    root.addHandler(handler)
    root.setLevel(LEVELS[level])
    logging.getLogger("asyncio").setLevel(logging.INFO)  # what it has to say below that is about itself


def inherit_logs() -> None:
    style, _, level = os.environ.get(_STYLE, "console:info").partition(":")
    configure_logs(style, level, capture=True)


def _name_the_logger(logger: Any, _method: str, event: Any) -> Any:
    if logger.name:
        event["logger"] = logger.name
    return event


def _shorten(_logger: Any, _method: str, event: Any) -> Any:
    """Milliseconds are enough for people."""
    event["timestamp"] = event["timestamp"][:-3]
    return event
