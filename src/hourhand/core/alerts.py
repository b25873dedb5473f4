"""The file that says by which rules alerts are raised, and whom they tell: read, checked, and given its defaults.

Text in, rules out. Whatever is wrong is said with its place: a typo must not be found out by the alert that never came.
"""

from __future__ import annotations

import hashlib
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from hourhand.core.alert_rules import PLACES, PYTHON, QUANTILES, SEVERITIES, AlertsFile, Channel, Patterns, Rule, Secret
from hourhand.core.errors import ConfigurationError, InvalidSchedule
from hourhand.core.notice import in_words
from hourhand.core.schedule import parse_span

MOST_COUNTED = 100_000
"""Dead letters that are counted at most: a threshold above it could never be reached."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}")
_PATTERN = re.compile(r"!?[A-Za-z0-9_.:*?-]{1,100}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NODES = ("worker", "scheduler")
_LONGEST = 10 * 366 * 86_400.0
LONGEST_TIMEOUT = 120.0
"""Of a channel: for twice as long nobody else can tell what is being told."""
TIMEOUTS = {"url": 30.0}
"""Apprise may have several things to do for one message."""
_REQUIRED: Any = object()
Read = Callable[[Any], Any]


# How one value is read


def _duration(least: float = 0.0, most: float = _LONGEST) -> Read:
    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError(f'must be a duration like "90s", "15m" or "26h", not {value!r}')
        try:
            seconds = parse_span(value).total_seconds() if isinstance(value, str) else float(value)
        except InvalidSchedule:
            raise ValueError(f'must be a duration like "90s", "15m" or "26h", not {value!r}') from None
        if not least <= seconds <= most or math.isnan(seconds):
            longest = "ten years" if most == _LONGEST else in_words(most)
            raise ValueError(f"must be from {least:g} seconds to {longest}, not {value!r}")
        return seconds

    return read


def _count(most: int = 10**9) -> Read:
    def read(value: Any) -> int:
        if type(value) is not int or not 1 <= value <= most:
            raise ValueError(f"must be a whole number from 1 to {most}, not {value!r}")
        return value

    return read


def _choice(*words: str) -> Read:
    def read(value: Any) -> str:
        if value not in words:
            raise ValueError(f"must be one of {', '.join(words)}, not {value!r}")
        return str(value)

    return read


def _yes_or_no(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {value!r}")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list) or not given or not all(isinstance(one, str) for one in given):
        raise ValueError(f"must be a text or a list of texts, not {value!r}")
    return tuple(dict.fromkeys(given))


def _patterns(value: Any) -> Patterns:
    for one in _texts(value):
        if not _PATTERN.fullmatch(one):
            raise ValueError(f"{one!r} is no name, and no pattern of names with * and ?")
    return Patterns(_texts(value))


def _kinds_of_nodes(value: Any) -> Patterns:
    found = _patterns(value)
    for one in found.given:
        if not any(Patterns((one.removeprefix("!"),)).fit(kind) for kind in _NODES):
            raise ValueError(f"{one!r} is no kind of node; there are {', '.join(_NODES)}")
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be a text, not {value!r}")
    return value.strip()


def _hidden(value: Any) -> str:
    """As above; what is wrong with it is said without repeating it."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a text")
    return value.strip()


def _variable(value: Any) -> str:
    # Whoever takes it for the secret itself must not read that in a log.
    if not _VARIABLE.fullmatch(name := _hidden(value)):
        raise ValueError("must be the name of an environment variable, not what it holds")
    return name


def _path(value: Any) -> str:
    if "://" in (path := _hidden(value)):
        raise ValueError("must be the path of a file, not an address")
    return path


def _link(value: Any) -> str:
    text = _text(value)
    if urlsplit(text).scheme not in ("http", "https"):
        raise ValueError("must be a URL that begins with http:// or https://")
    for place in re.findall(r"\{(\w+)\}", text):
        if place not in PLACES:
            raise ValueError(f"has {{{place}}}; what can be put in is {', '.join(f'{{{one}}}' for one in PLACES)}")
    return text


_COMMON: dict[str, tuple[Read, Any]] = {
    "enabled": (_yes_or_no, True),
    "severity": (_choice(*SEVERITIES), "warning"),
    "for": (_duration(), 0.0),
    "clear": (_duration(), 60.0),
    "repeat": (_duration(60.0), None),
    "channels": (_texts, None),
    "limit": (_count(1_000), 20),
    "link": (_link, None),
}
_QUEUES: dict[str, tuple[Read, Any]] = {"queues": (_patterns, Patterns())}
KINDS: dict[str, dict[str, tuple[Read, Any]]] = {
    "dead_growth": {"threshold": (_count(MOST_COUNTED), 10), "window": (_duration(60), 900.0), **_QUEUES},
    "queue_age": {
        "threshold": (_duration(1), 300.0), "for": (_duration(), 30.0), "paused": (_yes_or_no, False), **_QUEUES,
    },
    "lateness": {
        "threshold": (_duration(0.01), 60.0), "window": (_duration(60), 300.0), "quantile": (_choice(*QUANTILES), "p99"),
        "starts": (_count(), 1), **_QUEUES,
    },
    "overdue": {"threshold": (_duration(1), 60.0), "for": (_duration(), 30.0), "severity": (_choice(*SEVERITIES), "critical")},
    "catch_up": {"threshold": (_count(10**6), 100), "window": (_duration(60), 3_600.0)},
    "job_silent": {"jobs": (_patterns, _REQUIRED), "after": (_duration(1), _REQUIRED), "clear": (_duration(), 0.0)},
    "node_lost": {"nodes": (_kinds_of_nodes, Patterns()), "window": (_duration(60), 3_600.0), "clear": (_duration(), 0.0)},
    "clock_skew": {"threshold": (_duration(0.01), 1.0), "for": (_duration(), 30.0)},
    "stuck_runs": {"threshold": (_count(), 1), "tasks": (_patterns, Patterns())},
    "lost_runs": {"threshold": (_count(), 1), "window": (_duration(60), 3_600.0), **_QUEUES},
}  # fmt: skip
"""What each kind of rule takes besides what all take: how it is read, and what it is where nothing is said."""
DEFAULTS = tuple(kind for kind in KINDS if kind != "job_silent")
"""The rules that hold where nothing else is said, each under the name of its kind."""
_FIELDS = {"for": "held_for", "after": "threshold"}
_ADDRESSES = ("url", "slack", "webhook")


def default_alerts() -> AlertsFile:
    return parse_alerts("", "the default rules")


def parse_alerts(text: str, place: str) -> AlertsFile:
    """What the file says, over the defaults. `place` is its name, for what is wrong with it."""
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{place}: this is no TOML: {error}") from None
    _only(given, ("defaults", "link", "rule", "channel"), place)
    keep = _read(given, "defaults", _yes_or_no, True, place)
    link = _read(given, "link", _link, None, place)
    channels = _channels(_tables(given, "channel", place), place)
    said = _tables(given, "rule", place)
    rules = {name: _rule({"name": name, "kind": name}, link, place) for name in DEFAULTS} if keep else {}
    named: set[str] = set()
    for number, one in enumerate(said, 1):
        name = one.get("name")
        where = f"{place}: rule {name!r}" if isinstance(name, str) else f"{place}: rule number {number}"
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(f"{where}: it needs a name, of letters, digits and _ . : -")
        if name in named:
            raise ConfigurationError(f"{where}: there are two of this name")
        named.add(name)
        if name in rules and one.get("kind", name) != name:
            raise ConfigurationError(
                f"{where}: this is the name of a default rule, of the kind {name}; take another name, or say defaults = false"
            )
        rules[name] = _rule({"kind": name, **one} if name in rules else one, link, where)
        _check_channels(rules[name], channels, where)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return AlertsFile(tuple(rules.values()), tuple(channels.values()), digest)


def _rule(given: Mapping[str, Any], link: str | None, where: str) -> Rule:
    kind = given.get("kind")
    if kind is None:
        raise ConfigurationError(f"{where}: it needs a kind; there are {', '.join(KINDS)}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigurationError(f"{where}: there is no kind {kind!r}; there are {', '.join(KINDS)}")
    options = {**_COMMON, **KINDS[kind]}
    _only(given, ("name", "kind", *options), f"{where}: a rule of the kind {kind}")
    values = {"threshold": 0.0, "link": link}
    for option, (read, default) in options.items():
        value = _read(given, option, read, default, where)
        if value is _REQUIRED:
            raise ConfigurationError(f"{where}: a rule of the kind {kind} needs {option!r}")
        if value is not None or option != "link":
            values[_FIELDS.get(option, option)] = value
    return Rule(name=given["name"], kind=kind, **values)  # type: ignore[arg-type]


def _check_channels(rule: Rule, channels: Mapping[str, Channel], where: str) -> None:
    for one in rule.channels or ():
        if one != PYTHON and one not in channels:
            known = ", ".join((*channels, PYTHON))
            raise ConfigurationError(f"{where}: there is no channel {one!r}; there are {known}")


def _channels(tables: list[dict[str, Any]], place: str) -> dict[str, Channel]:
    found: dict[str, Channel] = {}
    for number, one in enumerate(tables, 1):
        name = one.get("name")
        where = f"{place}: channel {name!r}" if isinstance(name, str) else f"{place}: channel number {number}"
        if not isinstance(name, str) or not _NAME.fullmatch(name) or ":" in name:
            raise ConfigurationError(f"{where}: it needs a name, of letters, digits and _ . -")
        if name == PYTHON:
            raise ConfigurationError(f"{where}: this name stands for the functions of the app; take another")
        if name in found:
            raise ConfigurationError(f"{where}: there are two of this name")
        found[name] = _channel(name, one, where)
    return found


def _channel(name: str, given: Mapping[str, Any], where: str) -> Channel:
    spelled = [f"{kind}{how}" for kind in (*_ADDRESSES, "bearer") for how in ("", "_env", "_file")]
    _only(given, ("name", "at_least", "timeout", *spelled), where)
    addresses = {kind: secret for kind in _ADDRESSES if (secret := _secret(given, kind, where)) is not None}
    if len(addresses) != 1:
        what = "both say where it leads" if addresses else "it does not say where it leads"
        names = " and ".join(addresses)
        raise ConfigurationError(
            f"{where}: {names + ' ' if names else ''}{what}; give one of url (of Apprise), slack and webhook, or one of them with "
            "_env or _file for the name of an environment variable or a file that has it"
        )
    [(kind, address)] = addresses.items()
    if address.value is not None:
        check_address(kind, address.value, where)
    bearer = _secret(given, "bearer", where)
    if bearer is not None and kind != "webhook":
        raise ConfigurationError(f"{where}: a bearer token is for a webhook; this is a channel of the kind {kind}")
    return Channel(
        name, kind, address, bearer, _read(given, "at_least", _choice(*SEVERITIES), "info", where),
        _read(given, "timeout", _duration(0.1, LONGEST_TIMEOUT), TIMEOUTS.get(kind, 10.0), where),
    )  # fmt: skip


def check_address(kind: str, address: str, where: str) -> None:
    """Never with the address itself: it holds what lets its bearer write there."""
    try:
        parts = urlsplit(address)
        # Reading the port is what finds a wrong one.
        fine = parts.port != 0 and bool(parts.hostname) and not re.search(r"[\s\x00-\x1f]", address)
    except ValueError:
        parts, fine = None, False
    if kind == "url":
        if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", address):
            raise ConfigurationError(f"{where}: its url must be one of Apprise's, like mailto://... or slack://...")
        if parts is not None and parts.scheme in ("http", "https"):
            raise ConfigurationError(
                f"{where}: Apprise knows no {parts.scheme}:// by itself: write webhook or slack in place of url, or json://..."
            )
    elif parts is None or not fine or parts.scheme not in ("http", "https"):
        raise ConfigurationError(f"{where}: its {kind} must look like https://host/path")


def _secret(given: Mapping[str, Any], name: str, where: str) -> Secret | None:
    said = [f"{name}{how}" for how in ("", "_env", "_file") if f"{name}{how}" in given]
    if not said:
        return None
    if len(said) > 1:
        raise ConfigurationError(f"{where}: {' and '.join(said)} say the same; give one of them")
    ways = {"": _hidden, "_env": _variable, "_file": _path}
    return Secret(*(_read(given, f"{name}{how}", read, None, where) for how, read in ways.items()))


def _tables(given: Mapping[str, Any], name: str, place: str) -> list[dict[str, Any]]:
    found = given.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ConfigurationError(f"{place}: write each {name} under [[{name}]]")
    return found


def _read(given: Mapping[str, Any], option: str, read: Read, default: Any, where: str) -> Any:
    if option not in given:
        return default
    try:
        return read(given[option])
    except ValueError as error:
        raise ConfigurationError(f"{where}: {option} {error}") from None


def _only(given: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for one in given:
        if one not in known:
            raise ConfigurationError(f"{where}: {one!r} is not known; there are {', '.join(known)}")
