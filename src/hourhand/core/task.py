"""What the code says about a task: its name, its handler, how it is to be run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hourhand.core.backoff import Retry
from hourhand.core.errors import ConfigurationError
from hourhand.core.fairness import PRIORITIES
from hourhand.core.payload import Codec

ISOLATIONS = (None, "process")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}")


def check_name(kind: str, name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} cannot be the name of a {kind}: use 1 to 100 letters, digits, '_', '.', ':' or '-', "
            "starting with a letter or digit"
        )
    return name


def seconds(name: str, value: float | timedelta) -> float:
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < 10**10:
        raise ConfigurationError(f"{name} must be a positive number of seconds or a timedelta, not {value!r}")
    return float(number)


@dataclass(frozen=True, slots=True)
class TaskDefinition:
    name: str
    function: Callable[..., Any]
    codec: Codec
    is_async: bool
    queue: str = "default"
    priority: str = "normal"
    retry: Retry = Retry()
    timeout: float | None = None
    isolation: str | None = None


def define_task(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    queue: str = "default",
    priority: str = "normal",
    retry: Retry | int | None = None,
    timeout: float | timedelta | None = None,
    isolation: str | None = None,
) -> TaskDefinition:
    """Check a declaration while the module is being imported, not when the first run fails."""
    if not callable(function):
        raise ConfigurationError(f"a task is made from a function, not from {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"{function.__qualname__} is a generator; a task's function returns once")
    task_name = check_name("task", name or function.__name__)
    check_name("queue", queue)
    if priority not in PRIORITIES:
        raise ConfigurationError(f"priority must be one of {', '.join(PRIORITIES)}, not {priority!r}")
    if isolation not in ISOLATIONS:
        raise ConfigurationError(f'isolation must be None or "process", not {isolation!r}')
    if isinstance(retry, int) and not isinstance(retry, bool):
        retry = Retry(max_attempts=retry)
    if retry is not None and not isinstance(retry, Retry):
        raise ConfigurationError(f"retry takes Retry(...) or a number of attempts, not {retry!r}")
    return TaskDefinition(
        name=task_name,
        function=function,
        codec=Codec(task_name, function),
        is_async=inspect.iscoroutinefunction(function),
        queue=queue,
        priority=priority,
        retry=retry or Retry(),
        timeout=None if timeout is None else seconds("timeout", timeout),
        isolation=isolation,
    )
