"""When a failed run is tried again, and when it gives up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from hourhand.core.errors import ConfigurationError, HandlerTimeout, LoopBlocked, PermanentFailure, ProcessDied, RetryAfter

Backoff = str | Callable[[int], float]
"""`"exponential"`, `"fixed"`, or a function from the attempt that failed (1, 2, …) to seconds."""

BACKOFFS = ("exponential", "fixed")
LONGEST_DELAY = 1e9
"""Thirty years. Beyond it the database cannot add the delay to a date and refuses the outcome."""


@dataclass(frozen=True, slots=True)
class Retry:
    """A task's retry policy.

    `exponential` waits between 0 and `base * 2**(attempt - 1)` seconds, never over `cap`
    (full jitter: a thousand runs that failed together do not come back together);
    `fixed` waits `base`; a callable decides itself. `jitter=False` takes the upper end.
    """

    max_attempts: int = 5
    base: float = 5.0
    cap: float = 300.0
    backoff: Backoff = "exponential"
    jitter: bool = True
    retry_on: tuple[type[BaseException], ...] = ()
    give_up_on: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or not 1 <= self.max_attempts <= 10_000:
            raise ConfigurationError(f"max_attempts must be a whole number from 1 to 10000, not {self.max_attempts!r}")
        for name in ("base", "cap"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not value >= 0:
                raise ConfigurationError(f"{name} must be a number of seconds, 0 or more, not {value!r}")
        object.__setattr__(self, "cap", min(self.cap, LONGEST_DELAY))
        if not callable(self.backoff) and self.backoff not in BACKOFFS:
            raise ConfigurationError(f'backoff must be "exponential", "fixed" or a function of the attempt, not {self.backoff!r}')
        for name in ("retry_on", "give_up_on"):
            value = getattr(self, name)
            types = value if isinstance(value, tuple) else (value,)
            if not all(isinstance(one, type) and issubclass(one, BaseException) for one in types):
                raise ConfigurationError(f"{name} takes exception types, not {value!r}")
            object.__setattr__(self, name, types)

    def delay(self, attempt: int, rng: Random) -> float:
        """Seconds to wait after attempt number `attempt` (1 for the first) failed."""
        if callable(self.backoff):
            return max(0.0, float(self.backoff(attempt)))
        if self.backoff == "fixed":
            return min(self.base, self.cap)
        # 2**63 seconds are enough for anybody; the cap rules long before.
        ceiling = min(self.cap, self.base * 2.0 ** min(attempt - 1, 63))
        return rng.uniform(0.0, ceiling) if self.jitter else ceiling

    def wants(self, error: BaseException) -> bool:
        """Whether this kind of error is worth another attempt."""
        if isinstance(error, PermanentFailure) or _matches(error, self.give_up_on):
            return False
        # A timeout or a dead process is not an answer of the handler's: it is worth another attempt
        # unless give_up_on names it.
        always = isinstance(error, (RetryAfter, HandlerTimeout, ProcessDied, LoopBlocked))
        return not self.retry_on or always or _matches(error, self.retry_on)

    def next_delay(self, error: BaseException, attempt: int, rng: Random, max_attempts: int | None = None) -> float | None:
        """Seconds until the next attempt; None when the run is to give up."""
        if attempt >= (max_attempts or self.max_attempts) or not self.wants(error):
            return None
        delay = error.delay if isinstance(error, RetryAfter) else self.delay(attempt, rng)
        return min(delay, LONGEST_DELAY)


def _matches(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """An error from a child process brings the names of its types, not the types."""
    lineage = getattr(error, "lineage", None)
    if lineage is None:
        return isinstance(error, kinds)
    return any(f"{kind.__module__}.{kind.__qualname__}" in lineage for kind in kinds)
