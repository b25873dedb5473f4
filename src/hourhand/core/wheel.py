"""A hierarchical timing wheel: what is due soon, found without sorting.

Three rings: two minutes by the second, an hour by the minute, a day by the hour. An entry sits in the finest ring that reaches
as far, and moves down as its time comes near. Inserting and cancelling are O(1); advancing costs what is due and
what moves down, nothing else.

An entry is eight bytes in its slot's array and one item in a dict from key to due second. Cancelling only
forgets the dict item; what stays in the slot is recognised as stale when its time comes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

SECONDS, MINUTES, HOURS = 60, 60, 24
HORIZON = SECONDS * MINUTES * HOURS
NEAR = 128
"""Seconds that have a slot each: more than a minute, so that little has to move down at a full one, when most is due."""


class TimingWheel:
    """Keys are whole numbers, times whole seconds. Everything up to `now` has been delivered."""

    __slots__ = ("_due", "_hours", "_minutes", "_moments", "_seconds", "now")

    def __init__(self, now: int) -> None:
        self.now = now
        self._due: dict[int, int] = {}
        # One number object for each second, however many entries are due in it.
        self._moments: dict[int, int] = {}
        self._seconds = [array("q") for _ in range(NEAR)]
        self._minutes = [array("q") for _ in range(MINUTES)]
        self._hours = [array("q") for _ in range(HOURS)]

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: int) -> bool:
        return key in self._due

    def due(self, key: int) -> int | None:
        return self._due.get(key)

    def insert(self, key: int, due: int) -> None:
        """Put a key in, or move it. What is due already is delivered by the next advance."""
        if due - self.now >= HORIZON:
            raise ValueError(f"due in {due - self.now} s; the wheel holds {HORIZON} s")
        if self._due.get(key) == due:
            return
        # What is overdue has no second to come with which its number would be forgotten.
        self._due[key] = self._moments.setdefault(due, due) if due > self.now else due
        self._place(key, max(due, self.now + 1))

    def cancel(self, key: int) -> bool:
        return self._due.pop(key, None) is not None

    def advance(self, now: int) -> list[tuple[int, int]]:
        """Everything due up to `now`, as (key, due), in the order of time."""
        ready: list[tuple[int, int]] = []
        if now - self.now >= HORIZON:
            # Everything in it is due, and its rings would be walked many times over for nothing.
            ready = sorted(((key, due) for key, due in self._due.items()), key=_by_due)
            self.__init__(now)  # type: ignore[misc]
            return ready
        while self.now < now:
            self.now += 1
            self._descend()
            slot = self._seconds[self.now % NEAR]
            for key in slot:
                due = self._due.get(key)
                if due is not None and due <= self.now:
                    ready.append((key, due))
                    del self._due[key]
            del slot[:]
            self._moments.pop(self.now, None)
        return ready

    def upcoming(self, ahead: int = 1) -> list[int]:
        """What the next second will deliver, or one that is further ahead, as far as is known; it stays where it is."""
        at = self.now + ahead
        since = 0 if ahead == 1 else at
        return list(dict.fromkeys(key for slot in self._slots(at) for key in slot if since <= self._due.get(key, at + 1) <= at))

    def crowd(self, ahead: int) -> int:
        """At most so many are upcoming then; found without counting."""
        return sum(map(len, self._slots(self.now + ahead)))

    def _slots(self, at: int) -> Iterator[array[int]]:
        """Where an entry of that second may be, which is less than NEAR ahead."""
        yield self._seconds[at % NEAR]
        if at // SECONDS > self.now // SECONDS:
            yield self._minutes[at // SECONDS % MINUTES]
        if at // (SECONDS * MINUTES) > self.now // (SECONDS * MINUTES):
            yield self._hours[at // (SECONDS * MINUTES) % HOURS]

    def _descend(self) -> None:
        """At a full minute its entries go to the seconds; at a full hour, first, the hour's to the minutes."""
        if self.now % SECONDS:
            return
        if not self.now % (SECONDS * MINUTES):
            self._empty(self._hours[self.now // (SECONDS * MINUTES) % HOURS])
        self._empty(self._minutes[self.now // SECONDS % MINUTES])

    def _empty(self, slot: array[int]) -> None:
        keys = slot[:]
        del slot[:]
        for key in keys:
            due = self._due.get(key)
            if due is not None:
                self._place(key, max(due, self.now))

    def _place(self, key: int, at: int) -> None:
        left = at - self.now
        if left < NEAR:
            self._seconds[at % NEAR].append(key)
        elif left < SECONDS * MINUTES:
            self._minutes[at // SECONDS % MINUTES].append(key)
        else:
            self._hours[at // (SECONDS * MINUTES) % HOURS].append(key)


def _by_due(entry: tuple[int, int]) -> int:
    return entry[1]
