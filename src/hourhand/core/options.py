"""What one enqueue asks for beyond the task's own settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from hourhand.core.backoff import BACKOFFS, LONGEST_DELAY
from hourhand.core.chain import Step, as_step, with_marks
from hourhand.core.errors import ConfigurationError, InvalidOption
from hourhand.core.fairness import PRIORITIES
from hourhand.core.redaction import check_marks
from hourhand.core.task import check_delivery, check_name, seconds

MAX_KEY = 500
MAX_TAG = 100
MAX_TAGS = 20
_FARTHEST = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class EnqueueOptions:
    queue: str | None = None
    priority: str | None = None
    delay: timedelta | None = None
    at: datetime | None = None
    expires: timedelta | None = None
    expires_at: datetime | None = None
    key: str | None = None
    unique_for: timedelta | None = None
    tags: tuple[str, ...] = ()
    max_attempts: int | None = None
    timeout: float | None = None
    delivery: str | None = None
    retry_backoff: str | None = None
    retry_base: float | None = None
    retry_cap: float | None = None
    secret: tuple[str, ...] = ()
    then: Step | None = None
    connection: Any = None

    def kept(self) -> dict[str, Any] | None:
        """The part that travels with the run, for the worker: None when there is none."""
        kept: dict[str, Any] = {}
        if self.max_attempts is not None:
            kept["max_attempts"] = self.max_attempts
        if self.timeout is not None:
            kept["timeout"] = self.timeout
        if self.delivery is not None:
            kept["delivery"] = self.delivery
        retry = {"backoff": self.retry_backoff, "base": self.retry_base, "cap": self.retry_cap}
        if any(value is not None for value in retry.values()):
            kept["retry"] = {name: value for name, value in retry.items() if value is not None}
        if self.unique_for is not None:
            kept["unique_for"] = self.unique_for.total_seconds()
        if self.secret:
            kept["secret"] = list(self.secret)
        if self.then is not None:
            kept["then"] = self.then.plain()
        return kept or None

    def kept_json(self, seal_steps: Callable[[dict[str, Any] | None], dict[str, Any] | None] | None = None) -> str | None:
        kept = self.kept() if seal_steps is None else seal_steps(self.kept())
        return None if kept is None else msgspec.json.encode(kept).decode()


def merge(base: EnqueueOptions, given: dict[str, Any], marks_of: Callable[[str], Sequence[str]] | None = None) -> EnqueueOptions:
    """`base` with `given` over it, each checked; an error names the option and what it takes.

    `marks_of` knows the secret fields of tasks, for the steps of a chain.
    """
    known = [field.name for field in fields(EnqueueOptions) if field.name != "expires_at"]
    for name in given:
        if name not in known:
            raise InvalidOption(f"unknown option {name!r}; the options are {', '.join(known)}")
    try:
        clean: dict[str, Any] = {name: _checked(name, value) for name, value in given.items()}
    except ConfigurationError as error:
        raise InvalidOption(str(error)) from None
    if "expires" in clean:
        # One option, two columns: the later word replaces both.
        moment = clean["expires"] if isinstance(clean["expires"], datetime) else None
        clean |= {"expires": None if moment else clean["expires"], "expires_at": moment}
    if "secret" in clean:
        # What is secret once is not made public by a later word.
        clean["secret"] = tuple(dict.fromkeys((*base.secret, *clean["secret"])))
    if clean.get("then") is not None and marks_of is not None:
        clean["then"] = with_marks(clean["then"], marks_of)
    merged = replace(base, **clean)
    if merged.delay is not None and merged.at is not None:
        raise InvalidOption("delay and at both say when to run; give one of them")
    if merged.unique_for is not None and merged.key is None:
        raise InvalidOption("unique_for says for how long a key stays taken; give key= as well")
    if merged.at and merged.expires_at and merged.expires_at <= merged.at:
        raise InvalidOption("expires is not after at: the run would expire before it could start")
    if merged.delay and merged.expires and merged.expires <= merged.delay:
        raise InvalidOption("expires is not after delay: the run would expire before it could start")
    return merged


def _checked(name: str, value: Any) -> Any:
    if name == "connection" or value is None:
        return () if name in ("tags", "secret") and value is None else value
    return _CHECKS[name](value)


def _priority(value: Any) -> str:
    if value not in PRIORITIES:
        raise InvalidOption(f"priority must be one of {', '.join(PRIORITIES)}, not {value!r}")
    return str(value)


def _delay(value: Any) -> timedelta:
    if value is not False and (value == 0 or value == timedelta(0)):
        return timedelta(0)
    return timedelta(seconds=seconds("delay", value))


def _instant(name: str, value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise InvalidOption(f"{name} must be a datetime with a time zone, not {value!r}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidOption(
            f"{name} is a naive datetime ({value.isoformat()}): it does not say which instant it means. "
            "Give it a time zone, for example datetime(..., tzinfo=UTC)"
        )
    try:
        instant = value.astimezone(UTC)
    except OverflowError:
        instant = _FARTHEST
    if instant >= _FARTHEST:
        raise InvalidOption(f"{name} is too far from now: {value.isoformat()}")
    return instant


def _expires(value: Any) -> timedelta | datetime:
    if isinstance(value, datetime):
        return _instant("expires", value)
    return timedelta(seconds=seconds("expires", value))


def is_text(value: Any, longest: int) -> bool:
    """Whether PostgreSQL can store it: no NUL, no half of a surrogate pair."""
    if not isinstance(value, str) or not 0 < len(value) <= longest or "\0" in value:
        return False
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _key(value: Any) -> str:
    if not is_text(value, MAX_KEY):
        raise InvalidOption(f"key must be a text of 1 to {MAX_KEY} characters, not {value!r}")
    return str(value)


def _tags(value: Any) -> tuple[str, ...]:
    tags = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (None,)
    if not all(is_text(one, MAX_TAG) for one in tags):
        raise InvalidOption(f"tags must be a list of texts of 1 to {MAX_TAG} characters, not {value!r}")
    if len(tags) > MAX_TAGS:
        raise InvalidOption(f"a run can carry at most {MAX_TAGS} tags, not {len(tags)}")
    return tags


def _max_attempts(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10_000:
        raise InvalidOption(f"max_attempts must be a whole number from 1 to 10000, not {value!r}")
    return value


def _backoff(value: Any) -> str:
    if value not in BACKOFFS:
        raise InvalidOption(f"retry_backoff must be one of {', '.join(BACKOFFS)}, not {value!r}")
    return str(value)


def _pause(name: str, value: Any) -> float:
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= LONGEST_DELAY:
        raise InvalidOption(f"{name} must be a number of seconds, 0 or more, not {value!r}")
    return float(number)


_CHECKS: dict[str, Any] = {
    "queue": lambda value: check_name("queue", value),
    "priority": _priority,
    "delay": _delay,
    "at": lambda value: _instant("at", value),
    "expires": _expires,
    "key": _key,
    "unique_for": lambda value: timedelta(seconds=seconds("unique_for", value)),
    "tags": _tags,
    "max_attempts": _max_attempts,
    "timeout": lambda value: seconds("timeout", value),
    "delivery": check_delivery,
    "retry_backoff": _backoff,
    "retry_base": lambda value: _pause("retry_base", value),
    "retry_cap": lambda value: _pause("retry_cap", value),
    "secret": check_marks,
    "then": as_step,
}
