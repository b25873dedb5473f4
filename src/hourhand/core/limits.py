"""What can be ruled about tasks and queues: how many at once, how many in a time, whose turn it is, how deep.

A rule is kept as plain JSON: code declares it, people change it while everything runs, and SQL goes by it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET, UnsetType

from hourhand.core.errors import ConfigurationError

SCOPES = ("queue", "task")
ORDERS = ("arrival", "deadline")
OVERFLOWS = ("reject", "drop_oldest")
MOST_SLOTS = 100_000
_PATH = re.compile(r"[^\s.]{1,100}(\.[^\s.]{1,100}){0,9}")
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*/\s*(\d+(?:\.\d+)?)?\s*([a-z]+)\s*")
_UNITS = {"s": 1, "sec": 1, "second": 1, "seconds": 1, "m": 60, "min": 60, "minute": 60, "minutes": 60,
          "h": 3600, "hour": 3600, "hours": 3600, "d": 86400, "day": 86400, "days": 86400}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `slots` runs at once, over the whole fleet; with `key`, for each value of that argument."""

    slots: int
    key: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.slots, bool) or not isinstance(self.slots, int) or not 1 <= self.slots <= MOST_SLOTS:
            raise ConfigurationError(f"a limit is a whole number from 1 to {MOST_SLOTS}, not {self.slots!r}")
        check_path(self.key)


@dataclass(frozen=True, slots=True)
class Rate:
    """`Rate("100/minute", burst=10, key="customer_id")`: so many starts in a time, over the whole fleet.

    A bucket holds `burst` tokens, as many as the rate names unless said otherwise, and fills at the rate; each start takes one.
    """

    rate: str
    burst: int | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        parse_rate(self.rate)
        if self.burst is not None and (
            isinstance(self.burst, bool) or not isinstance(self.burst, int) or not 1 <= self.burst <= 10**9
        ):
            raise ConfigurationError(f"burst must be a whole number from 1 on, not {self.burst!r}")
        check_path(self.key)

    @property
    def per_second(self) -> float:
        count, seconds = parse_rate(self.rate)
        return count / seconds

    @property
    def bucket(self) -> float:
        return float(self.burst or max(1, int(parse_rate(self.rate)[0])))


def parse_rate(text: Any) -> tuple[float, float]:
    """How many in how many seconds."""
    match = _RATE.fullmatch(text.lower()) if isinstance(text, str) else None
    if match is None or match[3] not in _UNITS:
        raise ConfigurationError(f'a rate is a number for a time, such as "100/minute", "5/s" or "10/30s", not {text!r}')
    count, seconds = float(match[1]), float(match[2] or 1) * _UNITS[match[3]]
    if not (0 < count <= 10**7 and 0 < seconds <= 10**8):
        raise ConfigurationError(f"the rate {text!r} is nothing, or beyond all bounds")
    return count, seconds


def check_path(path: Any) -> None:
    if path is not None and (not isinstance(path, str) or not _PATH.fullmatch(path)):
        raise ConfigurationError(f'a key names an argument, such as "customer_id" or "order.customer", not {path!r}')


Limits = int | Limit | Iterable[Limit] | None
Rates = str | Rate | Iterable[Rate] | None


def make_rule(
    *, concurrency: Limits = None, rate: Rates = None, fair_key: str | None = None, order: str | None = None,
    max_depth: int | None = None, overflow: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What was said, checked, as it is kept; nothing where nothing was said."""
    rule: dict[str, Any] = {}
    limits: dict[str, dict[str, Any]] = {}
    for limit in _each("concurrency", concurrency, int, Limit):
        _put(limits, limit.key, "concurrency", slots=limit.slots)
    for one in _each("rate", rate, str, Rate):
        _put(limits, one.key, "rate", rate=one.per_second, burst=one.bucket, text=one.rate)
    if limits:
        rule["limits"] = list(limits.values())
    check_path(fair_key)
    if fair_key is not None:
        rule["fair_key"] = fair_key
    if order not in (None, *ORDERS):
        raise ConfigurationError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
    if order == "deadline":
        rule["order"] = order
    if max_depth is not None:
        if isinstance(max_depth, bool) or not isinstance(max_depth, int) or not 1 <= max_depth <= 100_000_000:
            raise ConfigurationError(f"max_depth must be a whole number from 1 to 100000000, not {max_depth!r}")
        rule["max_depth"] = max_depth
    if overflow not in (None, *OVERFLOWS):
        raise ConfigurationError(f"overflow must be one of {', '.join(OVERFLOWS)}, not {overflow!r}")
    if overflow is not None:
        if max_depth is None:
            raise ConfigurationError("overflow says what becomes of runs beyond max_depth; give max_depth as well")
        rule["overflow"] = overflow
    return rule


def make_order(
    scope: str, settings: Mapping[str, Any], *, concurrency: Limits | UnsetType = UNSET, rate: Rates | UnsetType = UNSET,
    fair_key: str | UnsetType | None = UNSET, order: str | UnsetType | None = UNSET, max_depth: int | UnsetType | None = UNSET,
    overflow: str | UnsetType | None = UNSET,
) -> dict[str, Any]:  # fmt: skip
    """The parts of a rule that are ordered, checked, as they are kept: None lifts what is declared. `settings`: what holds now."""
    if scope not in SCOPES:
        raise ConfigurationError(f"a rule is about a {' or a '.join(SCOPES)}, not {scope!r}")
    if scope == "task" and not order is max_depth is overflow is UNSET:
        raise ConfigurationError("order, max_depth and overflow are said of a queue, not of a task")
    parts: dict[str, Any] = {}
    if concurrency is not UNSET or rate is not UNSET:
        limits, rates = None if concurrency is UNSET else concurrency, None if rate is UNSET else rate
        parts["limits"] = make_rule(concurrency=limits, rate=rates).get("limits")
    if fair_key is not UNSET:
        parts["fair_key"] = make_rule(fair_key=fair_key).get("fair_key")
    if order is not UNSET:
        make_rule(order=order)
        parts["order"] = order
    if max_depth is not UNSET:
        parts["max_depth"] = make_rule(max_depth=max_depth).get("max_depth")
    if overflow is not UNSET:
        make_rule(max_depth={**settings, **parts}.get("max_depth"), overflow=overflow)
        parts["overflow"] = overflow
    if not parts:
        raise ConfigurationError("nothing is ordered: give concurrency, rate, fair_key, order, max_depth or overflow")
    return parts


def _each(name: str, given: Any, plain: type, made: Any) -> list[Any]:
    if given is None:
        return []
    if isinstance(given, plain) and not isinstance(given, bool):
        return [made(given)]
    if isinstance(given, made):
        return [given]
    many = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [None]
    if not all(isinstance(one, made) for one in many):
        raise ConfigurationError(f"{name} takes {plain.__name__}, {made.__name__}(...) or a list of those, not {given!r}")
    return many


def _put(limits: dict[str, dict[str, Any]], key: str | None, name: str, **said: Any) -> None:
    entry = limits.setdefault(key or "", {"key": key or ""})
    if entry.keys() & said.keys():
        raise ConfigurationError(f"{name} is given twice {f'for the key {key!r}' if key else 'without a key'}")
    entry.update(said)


def binds(rule: Mapping[str, Any]) -> bool:
    """Whether runs have to be admitted by it; otherwise it only says how many may wait."""
    return bool(rule.get("limits") or rule.get("fair_key") or rule.get("order") == "deadline")


def keys_of(rule: Mapping[str, Any]) -> list[str]:
    """The arguments that a rule goes by."""
    paths = [one["key"] for one in rule.get("limits") or () if one["key"]]
    return [*paths, *([rule["fair_key"]] if rule.get("fair_key") else [])]


def describe_order(parts: Mapping[str, Any]) -> list[str]:
    """The same of what is ordered, which may also be that something declared does not hold."""
    lifted = {
        "limits": "no limits", "fair_key": "not in turns", "max_depth": "as many as come may wait", "overflow": "more are refused",
        "order": "in order of arrival",
    }  # fmt: skip
    over = [words for name, words in lifted.items() if name in parts and parts[name] in (None, "arrival")]
    alone = "overflow" in parts and parts["overflow"] is not None and parts.get("max_depth") is None
    return [*describe(parts), *over, *([f"overflow {parts['overflow']}"] if alone else [])]


def describe(rule: Mapping[str, Any]) -> list[str]:
    """In words, for people."""
    words = []
    for one in rule.get("limits") or ():
        each = f" for each {one['key']}" if one["key"] else ""
        if one.get("slots") is not None:
            words.append(f"{one['slots']} at once{each}")
        if one.get("rate") is not None:
            words.append(f"{one['text']}{each}, bursts of {one['burst']:g}")
    if rule.get("fair_key"):
        words.append(f"in turns by {rule['fair_key']}")
    if rule.get("order") == "deadline":
        words.append("earliest deadline first")
    if rule.get("max_depth") is not None:
        full = "the oldest are dropped" if rule.get("overflow") == "drop_oldest" else "more are refused"
        words.append(f"at most {rule['max_depth']:,} wait, then {full}")
    return words


@dataclass(frozen=True, slots=True)
class Hold:
    """Runs that are held back: those for which everything that is said here is true."""

    id: int
    queue: str | None = None
    task: str | None = None
    tag: str | None = None
    path: str | None = None
    value: str | None = None

    def covers(self, queue: str, task: str, tags: Collection[str] | None, arguments: Any) -> bool:
        """`arguments` is the payload, read, and only looked at where a field decides."""
        if (self.queue is not None and self.queue != queue) or (self.task is not None and self.task != task):
            return False
        if self.tag is not None and self.tag not in (tags or ()):
            return False
        return self.path is None or _text_at(arguments(), self.path) == self.value


def _text_at(payload: Any, path: str) -> str | None:
    for name in path.split("."):
        if not isinstance(payload, dict) or name not in payload:
            return None
        payload = payload[name]
    return as_text(payload)


def as_text(value: Any) -> str | None:
    """As PostgreSQL writes a value of a JSON object with ->>."""
    if value is None or isinstance(value, (dict, list)):
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)
