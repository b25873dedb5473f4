"""Durations and waits in classes: few numbers that can be added up over minutes, queues and machines."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""In seconds; one more class takes what is beyond them."""
CLASSES = len(BOUNDS) + 1


def class_of(seconds: float) -> int:
    return bisect_left(BOUNDS, seconds)


def tally(seconds: Iterable[float]) -> list[int]:
    """How many are in each class."""
    ordered = sorted(seconds)
    below = [0, *(bisect_right(ordered, bound) for bound in BOUNDS), len(ordered)]
    return [upper - lower for lower, upper in pairwise(below)]


def quantile(counts: Sequence[int], share: float, most: float | None = None) -> float | None:
    """The value below which this share lies, as if each class were evenly filled; never above `most`, the largest that was seen.
    None: nothing was counted."""
    total = sum(counts)
    if not total:
        return None
    rank, below = share * total, 0
    for place, count in enumerate(counts):
        if below + count >= rank and count:
            low = BOUNDS[place - 1] if place else 0.0
            high = BOUNDS[place] if place < len(BOUNDS) else max(BOUNDS[-1], most or 0.0)
            found = low + (high - low) * (rank - below) / count
            return found if most is None else min(found, most)
        below += count
    return most
