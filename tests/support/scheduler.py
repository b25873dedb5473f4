"""A scheduler process with a machine clock that is off, or that falls asleep at the worst moment.

TEST_SKEW: seconds by which its machine's clock is wrong. TEST_SLEEP_AT: a file; while it exists, the process stops
itself (as SIGSTOP from outside would) between planning a firing and firing it, once for each time the file appears.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from hourhand.core.clock import Clock
from hourhand.storage.schedules import Planned, ScheduleGateway
from hourhand.surfaces.cli.main import main

machine = Clock.machine
fire = ScheduleGateway.fire


async def fire_after_a_sleep(
    self: ScheduleGateway, node: int, epochs: dict[int, int], planned: Sequence[Planned]
) -> dict[int, int]:
    bed = Path(os.environ["TEST_SLEEP_AT"])
    if bed.exists():
        bed.unlink()
        os.kill(os.getpid(), signal.SIGSTOP)
    return await fire(self, node, epochs, planned)


if __name__ == "__main__":
    if skew := float(os.environ.get("TEST_SKEW", "0")):
        Clock.machine = staticmethod(lambda: machine() + skew)  # type: ignore[method-assign]
    if "TEST_SLEEP_AT" in os.environ:
        ScheduleGateway.fire = fire_after_a_sleep  # type: ignore[method-assign]
    main()
