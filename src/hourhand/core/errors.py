"""Every error a user can meet. Each says what happened, what it means, what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class HourhandError(Exception):
    """The base of everything Hourhand raises on purpose."""


class ConfigurationError(HourhandError):
    """A setting, an option or a declaration that cannot work."""


class InvalidPayload(HourhandError, ValueError):
    """Arguments that do not fit the task, or that JSON cannot carry. Nothing was written."""


class InvalidOption(HourhandError, ValueError):
    """An enqueue option that cannot be used as given. Nothing was written."""


class InvalidSchedule(HourhandError, ValueError):
    """A schedule that cannot be understood or could never fire. Nothing was stored."""


class UnknownJob(HourhandError, LookupError):
    """No job with that name or id."""


class JobConflict(HourhandError):
    """The name is taken by a job with another definition. Nothing was changed."""


class UnknownRun(HourhandError, LookupError):
    """No run with that id, in any state."""


class UnknownQueue(InvalidOption, LookupError):
    """Nothing was ever enqueued to a queue of that name, and nobody has paused it."""


class UnknownKey(HourhandError, LookupError):
    """No API key with that id."""


class UnknownHold(HourhandError, LookupError):
    """No hold with that number: nothing is held back by it."""


class NotPossible(HourhandError):
    """The run exists, but is not in a state in which this can be done."""


class Unauthorized(HourhandError, PermissionError):
    """The server does not know who asks: there is no key, or one that opens nothing."""


class Forbidden(HourhandError):
    """Who asked may not do this, or not here."""


class PreconditionFailed(HourhandError):
    """It has changed since the caller looked at it. Nothing was written."""


class DatabaseUnavailable(HourhandError, ConnectionError):
    """The database cannot be reached."""


class LockTimeout(DatabaseUnavailable):
    """Somebody's open transaction holds a row for longer than we wait."""


class QueueFull(HourhandError):
    """As many runs wait in the queue as may. Nothing was enqueued, but, of a stream, what `enqueued` holds."""

    enqueued: Sequence[Any] = ()


class StatementRefused(HourhandError):
    """The database understood a statement and refused its data."""


class DatabaseRefused(DatabaseUnavailable):
    """The database answers, but does not let us in."""


class SchemaMismatch(HourhandError):
    """The database's schema is older or newer than this code."""


class EmbeddedServerError(HourhandError):
    """The embedded PostgreSQL could not be started or stopped."""


class RunNotFinished(HourhandError, TimeoutError):
    """Waiting for a run's result ran out of time; the run goes on."""


class RunFailed(HourhandError):
    """The awaited run ended without success."""


class PermanentFailure(HourhandError):
    """Raise it in a handler: do not retry, go to the dead letters at once."""


class PayloadMismatch(PermanentFailure):
    """The stored payload does not fit the handler's signature (any more)."""


class PayloadUnreadable(PermanentFailure):
    """The stored payload is encrypted, and cannot be opened here. Once the key is there, the run can be replayed."""


class RetryAfter(HourhandError):
    """Raise it in a handler: try again after `delay` seconds. It counts as an attempt."""

    def __init__(self, delay: float, message: str = "") -> None:
        if not delay >= 0:
            raise ValueError(f"RetryAfter needs a delay of 0 seconds or more, not {delay!r}")
        super().__init__(message or f"asked to be retried after {delay:g} s")
        self.delay = float(delay)


class Cancelled(HourhandError):
    """Raised by `ctx.check_cancelled()`, or by a handler that stops because it was told to."""


class HandlerTimeout(HourhandError):
    """The handler ran longer than its task's timeout."""


class ClaimLost(HourhandError):
    """Another worker has this run now: what this one still does for it is refused, and nothing of it is kept."""


class BatchMismatch(HourhandError):
    """The handler of a batch returned something of which it cannot be told what belongs to which item."""


class LoopBlocked(BaseException):
    """Raised into a handler that keeps the event loop from everything else. No `except Exception` stops it."""

    def __init__(self) -> None:
        super().__init__(
            "the handler kept its worker's event loop from everything else for too long: await what waits, and declare what "
            'computes with `def` (a thread) or isolation="process"'
        )


class ProcessDied(HourhandError):
    """The process a handler ran in ended before the handler did."""
