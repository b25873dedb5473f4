"""The low-water mark of a lane: where a claim may start to look.

Claimed rows leave dead entries at the front of the lane's index, and under somebody's long
transaction they stay. A claim that starts at the mark steps over them. Three things keep it
from stepping over a live row: the mark trails behind what was claimed by a guard, for
transactions that took their number early and commit late; a wake-up that names a lower place
lowers it; and a sweep from the very start, by a claim or a survey, finds whatever is left: every
few seconds, or where that takes long, as often as it may for its share of the time.
"""

from __future__ import annotations

from collections import deque

GUARD = 2.0
"""Seconds for which a place in the lane counts as possibly still uncommitted."""

SWEEP_EVERY = 4.0
"""Seconds; a little less than between two surveys, so that each sweeps where that costs nothing."""
SWEEP_SHARE = 0.02
"""A sweep may cost at most this share of the time between two sweeps."""


class LowWaterMark:
    __slots__ = ("_low", "_pending", "_sweep_at", "_sweep_cost")

    def __init__(self) -> None:
        self._low = 0
        self._pending: deque[tuple[float, int]] = deque()
        self._sweep_at = 0.0
        self._sweep_cost = 0.0

    def start(self, now: float) -> int:
        """The place to start at; 0 when a sweep is due."""
        if now >= self._sweep_at:
            return 0
        while self._pending and self._pending[0][0] <= now - GUARD:
            self._low = max(self._low, self._pending.popleft()[1] + 1)
        return self._low

    def claimed(self, last_seq: int, now: float) -> None:
        if not self._pending or now - self._pending[-1][0] > 0.1:
            self._pending.append((now, last_seq))

    def swept(self, cost: float, now: float, unseen_from: int | None = None) -> None:
        """A look from the start took `cost` seconds. If it was a claim and full, places from `unseen_from` on are yet to be seen."""
        self._sweep_at = now + max(SWEEP_EVERY, cost / SWEEP_SHARE)
        if unseen_from is not None:
            self.lower(unseen_from)

    def lower(self, seq: int) -> None:
        """A run has come to a place below the mark."""
        if seq < self._low:
            self._low = seq
        while self._pending and self._pending[-1][1] >= seq:
            self._pending.pop()

    def forget(self) -> None:
        """After a lost connection nothing is known."""
        self._low = 0
        self._pending.clear()
        self._sweep_at = 0.0
