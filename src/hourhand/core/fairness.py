"""Which lane to claim from: weighted shares for the priorities, or strictly one after another; turns for the queues.

Deficit round robin: each class with work earns credit by its weight and pays one per run.
A class without work earns nothing, so the others get all of the capacity.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping

from hourhand.core.errors import ConfigurationError

PRIORITIES = ("high", "normal", "low")
DEFAULT_WEIGHTS: Mapping[str, int] = {"high": 60, "normal": 30, "low": 10}
LANES_PER_QUEUE = 4


def lane_of(queue: int, priority: str) -> int:
    return queue * LANES_PER_QUEUE + PRIORITIES.index(priority)


def queue_of(lane: int) -> int:
    return lane // LANES_PER_QUEUE


def priority_of(lane: int) -> str:
    return PRIORITIES[lane % LANES_PER_QUEUE]


def check_weights(weights: Mapping[str, int]) -> None:
    numbers = [weights.get(name) for name in PRIORITIES]
    if {*weights} != {*PRIORITIES} or not all(type(one) is int and 1 <= one <= 10_000 for one in numbers):
        raise ConfigurationError(
            f"weights are three whole numbers from 1 on, such as high=60, normal=30, low=10, not {dict(weights)!r}"
        )


def read_weights(text: str) -> dict[str, int]:
    """From `high=60,normal=30,low=10`."""
    pairs = [part.partition("=") for part in text.split(",")]
    weights = {name.strip(): int(number) if number.strip().isdigit() else 0 for name, _, number in pairs}
    check_weights(weights)
    return weights


class FairShare:
    def __init__(self, weights: Mapping[str, int] | None = None, *, strict: bool = False) -> None:
        weights = weights or DEFAULT_WEIGHTS
        self._strict = strict
        total = sum(weights[name] for name in PRIORITIES)
        self._share = [weights[name] / total for name in PRIORITIES]
        self._credit = [0.0] * len(PRIORITIES)
        # One for each class: a turn shared by all could fall on the same queue of a class every time.
        self._last_odd = [-1] * len(PRIORITIES)

    def split(self, lanes: Collection[int], want: int) -> list[tuple[int, int]]:
        """How many to claim from which lanes, at most `want` in all, most urgent class first."""
        classes: list[list[int]] = [[] for _ in PRIORITIES]
        for lane in sorted(lanes):
            classes[lane % LANES_PER_QUEUE].append(lane)
        busy = [index for index, members in enumerate(classes) if members]
        if not busy or want <= 0:
            return []
        if self._strict:
            return self._take_turns(busy[0], classes[busy[0]], want)
        earning = sum(self._share[index] for index in busy)
        for index in range(len(classes)):
            self._credit[index] = self._credit[index] + want * self._share[index] / earning if classes[index] else 0.0
        # Whole credits first, the most owed first; then what rounding leaves, one each.
        order = sorted(busy, key=lambda one: -self._credit[one])
        grants = dict.fromkeys(busy, 0)
        left = want
        for index in order:
            grants[index] = max(0, min(left, int(self._credit[index])))
            left -= grants[index]
        for index in order[:left]:
            grants[index] += 1
        return [turn for index in busy for turn in self._take_turns(index, classes[index], grants[index])]

    def overdrawn(self, index: int) -> float:
        """By how much a class, by its place among the priorities, has had more than its share of late."""
        return -self._credit[index]

    def took(self, lane: int, count: int) -> None:
        if not self._strict:
            self._credit[lane % LANES_PER_QUEUE] -= count

    def _take_turns(self, index: int, lanes: list[int], count: int) -> list[tuple[int, int]]:
        """Share `count` between the queues of one class; the odd ones go on round from where they stopped."""
        if count <= 0:
            return []
        start = bisect_right(lanes, self._last_odd[index]) % len(lanes)
        order = lanes[start:] + lanes[:start]
        each, odd = divmod(count, len(order))
        if odd:
            self._last_odd[index] = order[odd - 1]
        return [(lane, each + (place < odd)) for place, lane in enumerate(order) if each or place < odd]
