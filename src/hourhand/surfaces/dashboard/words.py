"""Numbers, spans and instants as people say them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from markupsafe import Markup

from hourhand.core.clock import Clock

_SPANS = ((86_400 * 2, 86_400, "d"), (3_600 * 2, 3_600, "h"), (120, 60, "min"))
_TONES = {
    "succeeded": "good", "active": "good", "alive": "good", "running": "info", "ready": "info", "delayed": "quiet", "parked": "warn",
    "failed": "warn", "skipped": "quiet", "cancelled": "quiet", "expired": "warn", "paused": "warn", "finished": "quiet",
    "stopped": "quiet", "dead": "bad", "lost": "bad", "died": "bad", "silent": "warn",
}  # fmt: skip


def number(value: float | None) -> str:
    """Whole numbers with commas; small rates with the digits that matter."""
    if value is None:
        return "–"
    if value == int(value) or abs(value) >= 1_000:
        return f"{round(value):,}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2g}"


def seconds_in_words(seconds: float | timedelta | None) -> str:
    if seconds is None:
        return "–"
    value = seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)
    sign, value = ("-" if value < 0 else ""), abs(value)
    for least, unit, name in _SPANS:
        if value >= least:
            return f"{sign}{value / unit:.0f} {name}"
    if value >= 10:
        return f"{sign}{value:.0f} s"
    if value >= 1:
        return f"{sign}{value:.1f} s"
    if value >= 0.001:
        return f"{sign}{value * 1000:.0f} ms"
    return "0 s" if not value else f"{sign}<1 ms"


def instant(at: datetime | None, *, ago: bool = True) -> Markup:
    """A time that the script turns into the viewer's own; without it, UTC, and how long ago that was."""
    if at is None:
        return Markup('<span class="quiet">–</span>')
    at = at.astimezone(UTC)
    stamp, words = at.isoformat(timespec="milliseconds"), f"{at:%Y-%m-%d %H:%M:%S} UTC"
    if not ago:
        return Markup('<time datetime="{}" data-local>{}</time>').format(stamp, words)
    return Markup('<time datetime="{}" title="{}" data-ago>{}</time>').format(stamp, words, since(at))


def since(at: datetime) -> str:
    past = (datetime.fromtimestamp(Clock.machine(), UTC) - at).total_seconds()
    if abs(past) < 1:
        return "now"
    return f"{seconds_in_words(past)} ago" if past > 0 else f"in {seconds_in_words(-past)}"


def badge(state: str, words: str | None = None) -> Markup:
    return Markup('<span class="badge {}">{}</span>').format(tone(state), words or state)


def tone(state: str) -> str:
    return _TONES.get(state, "quiet")


def pretty(value: Any) -> str:
    """JSON for reading."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def plural(count: float, one: str, many: str | None = None) -> str:
    return f"{number(count)} {one if count == 1 else many or one + 's'}"
