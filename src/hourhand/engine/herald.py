"""Tells the channels what was opened and what is over, each channel at its own pace.

A word is held by a lease in the table while it is sent, so that two who deliver do not both send it. What survives a crash: a
word that was sent and not yet recorded is sent again by whoever comes next, under the same key. That something is over is told
only after its beginning was: they are one row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

import structlog

from hourhand.core.clock import Clock
from hourhand.core.errors import DatabaseUnavailable
from hourhand.storage.alerts import AlertGateway, Claimed
from hourhand.storage.database import Patience
from hourhand.targets.channels import NotDelivered, Sender

log = structlog.get_logger("hourhand.alerts")
FIRST_PAUSE = 5.0
LONGEST_PAUSE = 300.0
T = TypeVar("T")


class Herald:
    def __init__(self, gateway: AlertGateway, rng: Random | None = None) -> None:
        self._gateway = gateway
        self._rng = rng or Random()
        self._sending: set[asyncio.Task[bool]] = set()

    async def run_once(self, sender: Sender) -> bool:
        """Tell one thing. True: it was told, and there may be more."""
        # Longer than the sending may take, with the answer of the database: a lease that ends early means two messages.
        lease = sender.timeout * 2 + 20
        until = Clock.monotonic() + lease
        claimed = await self._gateway.claim_notice(sender.name, lease)
        if claimed is None:
            return False
        task = asyncio.create_task(self._tell(sender, claimed, until))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        # Who is stopped in the middle leaves it to `finish`: a word that went out should be recorded.
        return await asyncio.shield(task)

    async def finish(self, seconds: float) -> None:
        """Wait for what is under way, but not for long."""
        if self._sending:
            _, late = await asyncio.wait(self._sending, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _tell(self, sender: Sender, claimed: Claimed, until: float) -> bool:
        alert = claimed.alert
        about = {"alert": alert.id, "state": alert.state, "rule": alert.rule, "subject": alert.subject, "channel": sender.name}
        try:
            await sender.send(alert)
        except NotDelivered as error:
            pause = self.pause(claimed.attempts)
            why = str(error)
            given_up, _ = await _recorded(lambda: self._gateway.notice_untold(sender.name, claimed, pause, why), until)
            if given_up:
                log.error("alert.undelivered", **about, error=str(error), meaning="given up: it has been over for a day")
            else:
                log.warning("alert.undelivered", **about, attempt=claimed.attempts, again_in=round(pause), error=str(error))
            return False
        ours, again = await _recorded(lambda: self._gateway.notice_told(sender.name, claimed), until)
        # After a lost answer, no row may mean that it was recorded the first time.
        if not ours and not again:
            log.warning("alert.told_twice", **about, meaning="sending took longer than its lease, and another has it now")
        else:
            log.info("alert.told", **about)
        return True

    def pause(self, attempts: int) -> float:
        return float(min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(attempts - 1, 10)) * self._rng.uniform(0.8, 1.0))


async def _recorded(record: Callable[[], Awaitable[T]], until: float) -> tuple[T, bool]:
    """What came of it, and whether it took more than one try. A database that is away for a moment must not make a word go out
    twice: it is tried for as long as the lease holds, and the token keeps it from being recorded for another's."""
    patience = Patience()
    while True:
        try:
            return await record(), not patience.first
        except DatabaseUnavailable:
            if Clock.monotonic() >= until:
                raise
            await patience.wait()
