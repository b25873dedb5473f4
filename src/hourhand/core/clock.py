"""The only place that reads a clock.

Wall-clock instants follow the database: each heartbeat tells how far this machine's clock
is off, and `now()` is corrected by it. Deadlines inside a process use monotonic time, which
goes on while the process is stopped, so that a paused process knows it was away.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime


class Clock:
    __slots__ = ("skew",)

    machine = staticmethod(time.time)
    """Seconds since the epoch, as this machine counts them."""
    monotonic = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.skew = 0.0
        """Seconds by which this machine is ahead of the database."""

    def now(self) -> float:
        """Seconds since the epoch, as the database counts them."""
        return self.machine() - self.skew

    def instant(self) -> datetime:
        return datetime.fromtimestamp(self.now(), UTC)

    def correct(self, database_now: float, asked: float, answered: float) -> None:
        """Learn from a round trip: the database read its clock between `asked` and `answered`."""
        middle = (asked + answered) / 2
        half_trip = (answered - asked) / 2
        skew = middle - database_now
        # Within the error of the measurement the clocks agree; do not chase noise.
        self.skew = 0.0 if abs(skew) <= half_trip else skew
