"""What the code says about a task: its name, its handler, how it is to be run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from hourhand.core.backoff import Retry
from hourhand.core.batch import BatchCodec, check_batch
from hourhand.core.errors import ConfigurationError, InvalidOption
from hourhand.core.fairness import PRIORITIES
from hourhand.core.limits import Limits, Rates, keys_of, make_rule
from hourhand.core.payload import Codec
from hourhand.core.redaction import check_marks
from hourhand.core.settings import LEAST_MEMORY

ISOLATIONS = (None, "process")
DELIVERIES = ("at_least_once", "at_most_once", "exactly_once")
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
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


def check_delivery(value: Any) -> str:
    if value not in DELIVERIES:
        raise ConfigurationError(f"delivery must be one of {', '.join(DELIVERIES)}, not {value!r}")
    return str(value)


def memory(name: str, value: Any) -> int:
    """Bytes, from a number or from text such as 512MB."""
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    number = float(match[1]) * _UNITS.get(match[2].upper(), 0) if match else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not LEAST_MEMORY <= number < 2**50:
        raise ConfigurationError(f"{name} must be a size of at least 64 MiB, such as 512MB, not {value!r}")
    return int(number)


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
    delivery: str = DELIVERIES[0]
    max_memory: int | None = None
    """Bytes of address space for the child process."""
    offered: Callable[[], bool] | None = None
    """Whether this process has what it takes to run it; where it has not, its runs are left to others."""
    light: bool = False
    """It only ever waits for others: its runs take no slot of the worker."""
    vet: Callable[[dict[str, Any]], Awaitable[None]] | None = None
    """A look at a payload when a job is made of it, beyond its types."""
    secret: tuple[str, ...] = ()
    """Paths of the arguments that are never shown."""
    rule: Mapping[str, Any] = field(default_factory=dict)
    """How many at once, how many in a time, in whose turn."""
    batch: int | None = None
    """Its handler is called once for up to so many runs."""
    linger: float = 0.0
    """Seconds that a batch which is not full waits for more."""


def define_task(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    queue: str = "default",
    priority: str = "normal",
    retry: Retry | int | None = None,
    timeout: float | timedelta | None = None,
    isolation: str | None = None,
    delivery: str = DELIVERIES[0],
    max_memory: int | str | None = None,
    secret: Iterable[str] = (),
    concurrency: Limits = None,
    rate: Rates = None,
    fair_key: str | None = None,
    batch: int | None = None,
    linger: float | timedelta | None = None,
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
    if max_memory is not None and isolation != "process":
        raise ConfigurationError('max_memory limits a child process; say isolation="process" as well')
    if isinstance(retry, int) and not isinstance(retry, bool):
        retry = Retry(max_attempts=retry)
    if retry is not None and not isinstance(retry, Retry):
        raise ConfigurationError(f"retry takes Retry(...) or a number of attempts, not {retry!r}")
    check_delivery(delivery)
    if batch is None and linger is not None:
        raise ConfigurationError("linger is how long a batch waits for more items; say batch=... as well")
    lingering = 0.0 if batch is None else check_batch(task_name, batch, linger, isolation, delivery)
    codec = Codec(task_name, function) if batch is None else BatchCodec(task_name, function)
    return TaskDefinition(
        name=task_name,
        function=function,
        codec=codec,
        is_async=inspect.iscoroutinefunction(function),
        queue=queue,
        priority=priority,
        retry=retry or Retry(),
        timeout=None if timeout is None else seconds("timeout", timeout),
        isolation=isolation,
        delivery=delivery,
        max_memory=None if max_memory is None else memory("max_memory", max_memory),
        secret=(marks := _secret(codec, secret)),
        rule=_rule(codec, marks, concurrency, rate, fair_key),
        batch=batch,
        linger=lingering,
    )


def _rule(codec: Codec, secret: Iterable[str], concurrency: Limits, rate: Rates, fair_key: str | None) -> dict[str, Any]:
    rule = make_rule(concurrency=concurrency, rate=rate, fair_key=fair_key)
    for path in keys_of(rule):
        if path.split(".")[0] not in codec.names and not codec.free_form:
            known = ", ".join(codec.names) or "nothing"
            raise ConfigurationError(f"task {codec.task!r}: a limit goes by {path!r}, but its function takes {known}")
        if any(mark in ("*", path) or path.startswith(f"{mark}.") for mark in secret):
            raise ConfigurationError(
                f"task {codec.task!r}: a limit goes by {path!r}, which is secret; what limits go by is shown"
            )
    return rule


def _secret(codec: Codec, given: Iterable[str]) -> tuple[str, ...]:
    """A slip in a name would show what was to be hidden, and nobody would notice."""
    try:
        marks = check_marks(given)
    except InvalidOption as error:
        raise ConfigurationError(f"task {codec.task!r}: {error}") from None
    for mark in marks:
        first = mark.split(".")[0]
        if first not in ("*", *codec.names) and not codec.free_form:
            known = ", ".join(codec.names) or "nothing"
            raise ConfigurationError(f"task {codec.task!r}: secret names {mark!r}, but its function takes {known}")
    return marks
