"""Claimed runs that wait in this process: for a slot, or for others to be called together with."""

from __future__ import annotations

import asyncio
from collections import deque

from hourhand.storage.queue import Claim

_PROOF = 4


def joins(claim: Claim) -> bool:
    """Whether a run of a task with batches is called with others. One whose worker died, or that has a timeout or a promise of
    its own, is called alone."""
    return not claim.crashes and (claim.options is None or not ("timeout" in claim.options or "delivery" in claim.options))


class Collection:
    """Runs of one task that have a slot, and wait there until they are enough or until somebody has waited for long enough."""

    __slots__ = ("claims", "most", "over", "task")

    def __init__(self, claims: list[Claim], most: int) -> None:
        self.task = claims[0].task
        self.claims = claims
        self.most = most
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def appetite(self) -> int:
        """Runs to claim for it. What it has shows how common its task is: where it is rare, a queue is not emptied for it."""
        return min(self.most - len(self.claims), _PROOF * len(self.claims))


class Bench:
    """Claimed runs that wait for a slot, and slots that wait for a run."""

    def __init__(self) -> None:
        self.deque: deque[Claim] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._open: dict[str, Collection] = {}
        self._held: set[Collection] = set()
        """The open ones, and those whose slot is about to take them."""

    def __len__(self) -> int:
        return len(self.deque) + sum(len(one.claims) for one in self._held)

    @property
    def collecting(self) -> int:
        """Slots that wait for more."""
        return len(self._held)

    @property
    def appetite(self) -> int:
        return sum(one.appetite for one in self._open.values())

    def feed(self, claims: list[Claim], *, first: bool = False) -> None:
        if self._open:
            claims = [claim for claim in claims if not self._collected(claim)]
        if first:
            self.deque.extendleft(reversed(claims))
        else:
            self.deque.extend(claims)
        for _ in range(min(len(claims), len(self._waiters))):
            self._wake_one()

    def take(self, task: str, most: int) -> list[Claim]:
        """Runs of a task, from anywhere in the deque, to be called together."""
        found: list[Claim] = []
        others: list[Claim] = []
        while self.deque and len(found) < most:
            claim = self.deque.popleft()
            (found if claim.task == task and joins(claim) else others).append(claim)
        self.deque.extendleft(reversed(others))
        return found

    async def collect(self, claims: list[Claim], most: int, linger: float) -> list[Claim]:
        """These, and what comes of their task until there are `most`, or until `linger` seconds are over."""
        collection = Collection(claims, most)
        self._open[collection.task] = collection
        self._held.add(collection)
        timer = asyncio.get_running_loop().call_later(linger, self._close, collection)
        try:
            await collection.over
        except BaseException:
            self.deque.extendleft(reversed(collection.claims))
            raise
        finally:
            timer.cancel()
            self._close(collection)
            self._held.discard(collection)
        return collection.claims

    def claims(self) -> list[Claim]:
        return [*self.deque, *(claim for one in self._held for claim in one.claims)]

    def remove(self, claim: Claim) -> None:
        for one in self._held:
            if claim in one.claims:
                one.claims.remove(claim)
                return
        self.deque.remove(claim)

    def clear(self) -> list[Claim]:
        """All that waits, which waits no longer; nobody goes on collecting."""
        claims = self.claims()
        self.deque.clear()
        for one in list(self._held):
            one.claims.clear()
            self._close(one)
        return claims

    def wake_all(self) -> None:
        while self._waiters:
            self._wake_one()

    async def wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _collected(self, claim: Claim) -> bool:
        collection = self._open.get(claim.task)
        if collection is None or not joins(claim):
            return False
        collection.claims.append(claim)
        if len(collection.claims) >= collection.most:
            self._close(collection)
        return True

    def _close(self, collection: Collection) -> None:
        if self._open.get(collection.task) is collection:
            del self._open[collection.task]
        if not collection.over.done():
            collection.over.set_result(None)

    def _wake_one(self) -> None:
        waiter = self._waiters.pop()
        if not waiter.done():
            waiter.set_result(None)
