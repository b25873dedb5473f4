"""Moves runs that wait here to a worker that has nothing to do, and brings them here from one that has too much.

Who is idle asks; who has more than its slots can take gives from the far end of its deque, in one statement that shows its
claims. A run leaves the deque before the statement: from then on no slot here can start it, whatever becomes of the statement.

Everything that awaits is called by the claimer, in its own task: no claim, no look for strays and no gift is under way at the
same time as another, so whatever is under our name and known to nobody here is ours to take up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

import structlog

from hourhand.core.clock import Clock
from hourhand.core.errors import DatabaseUnavailable
from hourhand.engine.completer import Completer
from hourhand.engine.executor import Executor
from hourhand.engine.node import Node
from hourhand.storage.queue import Claim, QueueGateway

log = structlog.get_logger("hourhand.stealer")
SOON = 0.05
"""Seconds until one that has run out of work looks again; doubled each time. One look is not enough: what another is claiming
at that moment cannot be seen yet."""
QUICK_LOOKS = 5
AGAIN = 1.0
"""Seconds between two looks of one that stays idle."""
SELDOM = 6
"""Polls between two looks, at last, of one that stays idle and has heard of no work: what another one claims it would have heard of."""
MOST_ASKED = 4
"""Workers that are asked at once: each gives its share."""
MOST_OFFERED = 100
"""Runs of which those are moved that the other one can serve; half of what waits here at most."""


class Stealer:
    def __init__(
        self, gateway: QueueGateway, node: Node, executor: Executor, completer: Completer, poll: float,
        deliver: Callable[[list[Claim]], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._gateway = gateway
        self._node = node
        self._executor = executor
        self._completer = completer
        self._poll = poll
        self._deliver = deliver
        self._requests: dict[int, int] = {}
        self._gift = False
        self._lives = 0
        self._looks = 0
        """Since it ran out of work, or was given some."""
        self._promising = False
        """Somebody had too much when it last looked."""
        self._quiet = 0
        """How often in a row it looked, in vain, although nothing had happened."""
        self._seen = -1
        self._looked = -poll
        self._vain = 0
        """How often in a row it asked and was given nothing."""
        self._involved = False
        """Rows that nobody here knows of may be under our name: it has asked, or has begun to give."""
        self.given = 0
        self.taken = 0

    def hear(self, kind: str, rest: str) -> bool:
        """A worker's wish, or a gift; of others' nothing is to be done here."""
        mine, _, rest = rest.partition(":")
        if mine != str(self._node.id):
            return False
        if kind == "w":
            thief, _, slots = rest.partition(":")
            self._requests[int(thief)] = int(slots)
        else:
            self._gift = True
        return True

    def hungry(self) -> bool:
        """A slot has nothing to do. True: it is the first of them."""
        if self._executor.deque or self._executor.busy < self._executor.concurrency - 1:
            return False
        # Who keeps asking in vain, and keeps running out of work, does not begin anew each time.
        self._looks = min(self._vain, QUICK_LOOKS - 1)
        return True

    def forsake(self) -> None:
        """Every claim is lost, and those whose statement is under way with them."""
        self._lives += 1
        self._requests.clear()

    def forget(self) -> None:
        """Words may have been missed, and with them what others have claimed."""
        self._quiet = 0

    def next_look(self, claims: int) -> float:
        """Monotonic time of the next look; infinity: something has to happen first. `claims` grows with every claim that was
        tried: while nobody claims and nobody has too much, nobody looks but now and then."""
        if not self._idle():
            return float("inf")
        if self._looks < QUICK_LOOKS:
            return self._looked + SOON * 2.0**self._looks
        if self._promising or self._seen != claims:
            return self._looked + AGAIN
        return self._looked + self._poll * (min(1 + self._quiet, SELDOM) if self._node.hears else 1)

    async def run_once(self, *, doubtful: bool) -> bool:
        """Give what was asked for, take up what was given. True: there is something new to run here."""
        while self._requests:
            await self._give(*self._requests.popitem())
        if not self._gift or doubtful:
            return False
        return await self.adopt()

    async def ask(self, claims: int) -> None:
        """Nothing was there to claim: if slots are idle and others have too much, ask for a part of it."""
        now = Clock.monotonic()
        if now < self.next_look(claims):
            return
        if self._vain and await self.adopt():
            return
        quiet = self._looks >= QUICK_LOOKS and self._seen == claims
        self._looked, self._seen = now, claims
        self._looks += 1
        loaded = await self._gateway.overloaded(self._node.id, min(MOST_ASKED, self._room))
        self._promising = bool(loaded)
        self._quiet = self._quiet + 1 if quiet and not loaded else 0
        if not loaded or not self._idle():
            return
        share = -(-self._room // len(loaded))
        self._vain += 1
        self._involved = True
        await self._gateway.notify([f"w:{other}:{self._node.id}:{share}" for other in loaded])

    async def adopt(self) -> bool:
        """Take up what is under our name and known to nobody here. Not while a lost answer is in doubt: a statement of ours that
        is still under way somewhere might move it."""
        if not self._involved:
            return False
        self._gift = False
        lives = self._lives
        claims = await self._gateway.gifts(self._node.id, [*self._executor.known(), *self._completer.known()])
        if lives != self._lives or not claims:
            return False
        self.taken += len(claims)
        self._vain = self._looks = 0
        log.info("runs.stolen", node=self._node.id, runs=len(claims))
        await self._deliver(claims)
        return True

    async def hand_back(self) -> None:
        """What was given to a worker that has stopped working."""
        if self._involved:
            with contextlib.suppress(DatabaseUnavailable):
                known = [*self._executor.known(), *self._completer.known()]
                await self._gateway.hand_back_strays(self._node.id, known)

    async def _give(self, thief: int, slots: int) -> None:
        executor = self._executor
        # One with an idle slot starts the next run itself.
        if executor.busy < executor.concurrency:
            return
        most, claims = min(MOST_OFFERED, (len(executor.deque) + 1) // 2), list[Claim]()
        while len(claims) < most and executor.deque[-1].gates is None:
            claims.append(executor.deque.pop())
        if not claims:
            return
        self._involved = True
        lives = self._lives
        moved, kept = await self._gateway.give(
            self._node.id, thief, slots, [one.run_number for one in claims], [one.token for one in claims]
        )
        self.given += len(moved)
        log.debug("runs.given", node=self._node.id, to=thief, runs=len(moved), kept=len(kept))
        if lives == self._lives:
            await self._deliver([one for one in reversed(claims) if one.run_number in kept])

    @property
    def _room(self) -> int:
        return self._executor.concurrency - self._executor.busy

    def _idle(self) -> bool:
        return not self._executor.deque and self._room > 0 and self._node.lease_deadline >= Clock.monotonic()
