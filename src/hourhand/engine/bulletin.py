"""What this worker's runs have come to since it was last told: for whoever follows the events, as a hint and no more.

Counts of everything, and the newest few runs by name: one short message a second, whatever the load.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import msgspec

from hourhand.core import ids
from hourhand.storage.queue import Claim

NAMED = 40
"""Runs in one message, which PostgreSQL limits to 8,000 bytes."""
_LONGEST = 7_500


class Bulletin:
    def __init__(self) -> None:
        self.newest: deque[tuple[Claim, str]] = deque(maxlen=NAMED)
        self._counts: Counter[str] = Counter()

    def note(self, claim: Claim, status: str) -> None:
        self._counts[status] += 1
        self.newest.append((claim, status))

    def succeeded(self, newest: Sequence[Claim], count: int) -> None:
        """Many at once, of which only the newest are of interest."""
        self._counts["succeeded"] += count
        self.newest.extend((claim, "succeeded") for claim in newest)

    def take(self, node: int) -> str | None:
        """The message, and a fresh start; None: nothing has happened."""
        counts, newest = dict(self._counts), list(self.newest)
        if not counts:
            return None
        self._counts.clear()
        self.newest.clear()
        while True:
            ended = [
                {
                    "run_id": ids.run_id(claim.run_number), "task": claim.task, "queue": claim.queue, "status": status,
                    "job_id": None if claim.job_number is None else ids.job_id(claim.job_number),
                }
                for claim, status in newest
            ]  # fmt: skip
            text = msgspec.json.encode({"type": "runs", "node": node, "counts": counts, "ended": ended}).decode()
            if len(text.encode()) <= _LONGEST:
                return text
            newest = newest[len(newest) // 2 + 1 :]
