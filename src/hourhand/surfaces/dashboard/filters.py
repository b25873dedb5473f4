"""What the addresses of lists say: spans and numbers as people write them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import Query

from hourhand.core.clock import Clock
from hourhand.core.errors import InvalidSchedule
from hourhand.core.schedule import parse_span
from hourhand.surfaces.rest.problems import Refused

Text = Annotated[str, Query(max_length=200)]
PERIODS = (("", "any time"), ("1h", "the last hour"), ("24h", "the last day"), ("7d", "the last week"))


def moment(name: str, text: str) -> datetime | None:
    """`2h` before now, or an instant of ISO 8601; None where nothing is said."""
    text = text.strip()
    if not text:
        return None
    try:
        return datetime.fromtimestamp(Clock.machine(), UTC) - parse_span(text)
    except (InvalidSchedule, ValueError, OverflowError):
        pass
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        known = "a span such as 30s, 15m, 2h or 7d before now, or an instant such as 2027-01-01T09:00Z"
        raise Refused(422, f"{name} is {known}, not {text!r}") from None
    return given if given.tzinfo is not None else given.replace(tzinfo=UTC)


def number(name: str, text: str) -> int | None:
    text = text.strip()
    if not text:
        return None
    if not text.isdecimal() or not text.isascii() or len(text) > 10:
        raise Refused(422, f"{name} is a number, not {text!r}")
    return int(text)
