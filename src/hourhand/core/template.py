"""Idempotency keys from a template: `report-{{week}}` names the same thing to the outside, however often it is tried.

Dates are those of the firing's scheduled instant on the job's own clock, not those of the day on which it happens to run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from hourhand.core.errors import InvalidOption, PermanentFailure
from hourhand.core.zones import load_zone

LONGEST = 500
_PLACE = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
_PLAIN = (str, int, float, bool)


def _week(local: datetime) -> str:
    year, week, _ = local.isocalendar()
    return f"{year:04}-W{week:02}"


_TIMES: dict[str, Callable[[datetime], str]] = {
    "scheduled_at": lambda local: local.astimezone(UTC).isoformat(timespec="auto").replace("+00:00", "Z"),
    "date": lambda local: local.date().isoformat(),
    "hour": lambda local: local.strftime("%Y-%m-%dT%H"),
    "week": _week,
    "month": lambda local: local.strftime("%Y-%m"),
    "quarter": lambda local: f"{local.year:04}-Q{(local.month + 2) // 3}",
    "year": lambda local: f"{local.year:04}",
}
NAMES = (*_TIMES, "job_id", "job", "task", "run_id")


def check_template(template: Any, payload: Mapping[str, Any]) -> str:
    """Every name in it must mean something, now, while somebody can still correct it."""
    if not isinstance(template, str) or not 0 < len(template) <= LONGEST or "\0" in template:
        raise InvalidOption(f"idempotency_key_template must be a text of 1 to {LONGEST} characters, not {template!r}")
    for name in _PLACE.findall(template):
        if name in NAMES:
            continue
        field = name.removeprefix("payload.")
        if field not in payload:
            known = ", ".join((*NAMES, *(f"payload.{one}" for one in payload)))
            raise InvalidOption(f"idempotency_key_template has {{{{{name}}}}}, which is not known; it can have {known}")
        if not isinstance(payload[field], _PLAIN):
            # Not the value: whoever changes a template may not be meant to see the payload.
            raise InvalidOption(f"idempotency_key_template: {name} is not a text, a number or a truth value")
    if "{{" in _PLACE.sub("", template) or "}}" in _PLACE.sub("", template):
        raise InvalidOption(f"idempotency_key_template has a {{{{ or }}}} without its other half: {template!r}")
    return template


def render(
    template: str, timezone: str, scheduled_at: datetime, names: Mapping[str, str | None], payload: Mapping[str, Any]
) -> str:
    """`names` are job_id, job, task and run_id."""
    local = scheduled_at.astimezone(load_zone(timezone))

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name in _TIMES:
            return _TIMES[name](local)
        if name in NAMES:
            return names.get(name) or ""
        field = name.removeprefix("payload.")
        if field not in payload:
            # The payload was given by hand for this one run, without what the template takes from it.
            raise PermanentFailure(f"the idempotency key takes {name} from the payload, and this run's payload has none")
        return str(payload[field])

    return _PLACE.sub(value, template)
