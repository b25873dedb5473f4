"""The promises about a run's effects, and the one that needs its handler wrapped: exactly once.

At least once: a run is handed to another worker until it has ended. At most once: it is on record as begun before its handler
starts, and never begins again. Exactly once: its writes, its token and its end commit together.
"""

from __future__ import annotations

from typing import Any

from hourhand.core.context import ATOMIC
from hourhand.core.errors import PermanentFailure
from hourhand.core.payload import encode_result
from hourhand.core.task import DELIVERIES
from hourhand.storage.atomic import RunTransaction
from hourhand.targets.python import Call

AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE = DELIVERIES


class Recorded:
    """The outcome of an exactly-once run whose end is on record already, or needs only that."""

    def __init__(self, reason: str | None = None, result: str | None = None) -> None:
        self.reason, self.result = reason, result


RECORDED = Recorded()
REPEATED = "another execution had its effect first; what this one wrote was undone"
KNOWN = "its effect was on record already; the handler was not called"


async def atomically(active: Any, transaction: RunTransaction, call: Call, payload: str, max_result: int) -> Recorded:
    """The handler, and what it wrote together with its end. Used in workers and in child processes."""
    mark = ATOMIC.set(transaction)
    try:
        result = await call(active.context, payload)
        text, remark = encode_result(result, max_result)
        if remark is not None and passes_on(active.claim.options):
            raise PermanentFailure(f"the next step of its chain takes the result, and that cannot be: {remark}")
        active.closing = True
        fresh = await transaction.finish(active.started, text, remark, active.onward)
    except BaseException:
        active.closing = True
        await transaction.undo(left_behind=active.in_thread and active.cause is not None)
        raise
    finally:
        ATOMIC.reset(mark)
    return RECORDED if fresh else Recorded(REPEATED)


def passes_on(options: dict[str, Any] | None) -> bool:
    """Whether another run will be given this one's result."""
    return options is not None and bool(options.get("then", {}).get("result"))
