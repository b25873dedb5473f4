"""Round trips to the database, counted by statement."""

from __future__ import annotations

from types import TracebackType

from hourhand.core.clock import Clock


class Trip:
    """All round trips of one statement. Those on other connections may be under way at the same time."""

    __slots__ = ("count", "failed", "seconds")

    def __init__(self) -> None:
        self.count, self.failed, self.seconds = 0, 0, 0.0

    def add(self, other: Trip) -> None:
        self.count += other.count
        self.failed += other.failed
        self.seconds += other.seconds


class _Timed:
    __slots__ = ("_began", "_trip")

    def __init__(self, trip: Trip) -> None:
        self._trip = trip

    def __enter__(self) -> None:
        self._began = Clock.monotonic()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        trip = self._trip
        trip.seconds += Clock.monotonic() - self._began
        trip.count += 1
        if kind is not None:
            trip.failed += 1


class Trips:
    """At most one entry for each statement there is."""

    def __init__(self) -> None:
        self.by_statement: dict[str, Trip] = {}

    def timed(self, statement: str) -> _Timed:
        trip = self.by_statement.get(statement)
        if trip is None:
            trip = self.by_statement[statement] = Trip()
        return _Timed(trip)
