"""What a rule of the alerts is, and a channel that it tells."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import quote

from hourhand.core.notice import in_words

SEVERITIES = ("info", "warning", "critical")
PYTHON = "python"
"""In a rule's list of channels: the functions of the app that are marked `@app.on_alert`."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
PLACES = ("rule", "kind", "subject", "severity")
"""What can be put into a link."""


@dataclass(frozen=True, slots=True)
class Patterns:
    """Names, or names with `*` and `?` in them; those that begin with `!` take something away again. None at all: everything."""

    given: tuple[str, ...] = ()

    @property
    def wanted(self) -> tuple[str, ...]:
        return tuple(one for one in self.given if not one.startswith("!"))

    @property
    def exact(self) -> tuple[str, ...]:
        """Those of the wanted names that are just names."""
        return tuple(one for one in self.wanted if not _wild(one))

    @property
    def wild(self) -> tuple[str, ...]:
        return tuple(one for one in self.wanted if _wild(one)) or (() if self.wanted else ("*",))

    @property
    def unwanted(self) -> tuple[str, ...]:
        return tuple(one[1:] for one in self.given if one.startswith("!"))

    def fit(self, name: str) -> bool:
        fits = re.fullmatch(expression((*self.exact, *self.wild)), name) is not None
        return fits and not (self.unwanted and re.fullmatch(expression(self.unwanted), name))


def _wild(pattern: str) -> bool:
    return "*" in pattern or "?" in pattern


def expression(patterns: tuple[str, ...]) -> str:
    """One regular expression, which PostgreSQL understands as well, for a whole name that fits one of these."""
    parts = (re.escape(one).replace("\\*", ".*").replace("\\?", ".") for one in patterns)
    return f"^({'|'.join(parts)})$"


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    kind: str
    threshold: float
    """What is one too many, or seconds, as the kind has it."""
    severity: str = "warning"
    enabled: bool = True
    window: float = 0.0
    held_for: float = 0.0
    """Seconds for which it must be so before the incident is opened."""
    clear: float = 60.0
    """Seconds for which it must not be so any more before the incident is over."""
    repeat: float | None = None
    """Seconds after which an open incident is told again."""
    channels: tuple[str, ...] | None = None
    """None: all of them."""
    limit: int = 20
    """Incidents that are open at a time; what is beyond is one more, for all the others."""
    link: str | None = None
    queues: Patterns = Patterns()
    jobs: Patterns = Patterns()
    tasks: Patterns = Patterns()
    nodes: Patterns = Patterns()
    paused: bool = False
    quantile: str = "p99"
    starts: int = 1

    @property
    def hooks(self) -> bool:
        """Whether functions of the app hear of it."""
        return self.channels is None or PYTHON in self.channels

    def link_to(self, subject: str) -> str | None:
        if self.link is None:
            return None
        values = dict(zip(PLACES, (self.name, self.kind, subject, self.severity), strict=True))
        return re.sub(r"\{(\w+)\}", lambda found: quote(values[found[1]], safe=""), self.link)


@dataclass(frozen=True, slots=True)
class Secret:
    """Something that must not be seen: itself, or where it is."""

    value: str | None = field(default=None, repr=False)
    env: str | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Channel:
    name: str
    kind: str
    """`webhook`, `slack`, or `url` for everything that Apprise speaks to."""
    address: Secret
    bearer: Secret | None = None
    at_least: str = "info"
    timeout: float = 10.0

    def hears(self, rule: Rule) -> bool:
        named = rule.channels is None or self.name in rule.channels
        return named and SEVERITIES.index(rule.severity) >= SEVERITIES.index(self.at_least)


@dataclass(frozen=True, slots=True)
class AlertsFile:
    rules: tuple[Rule, ...]
    channels: tuple[Channel, ...] = ()
    digest: str = ""
    """Of its text: by it those who have another file are told apart."""

    def find(self, name: str) -> Rule | None:
        return next((one for one in self.rules if one.name == name), None)


def rule_in_words(rule: Rule) -> str:
    """When it fires, for a person."""
    most, span, within = f"{rule.threshold:g}", in_words(rule.threshold), in_words(rule.window)
    late = "the worst start" if rule.quantile == "max" else f"the {rule.quantile} of starts"
    words = {
        "dead_growth": f"{most} dead letters of a queue within {within}",
        "queue_age": f"a run waits for {span}{', paused queues too' if rule.paused else ''}",
        "lateness": f"{late} is more than {span} late, over {within}",
        "overdue": f"a schedule is not fired for {span}",
        "catch_up": f"{most} firings are made up for within {within}",
        "job_silent": f"a job does not succeed for {span}",
        "node_lost": f"a node died within {within} and is not replaced",
        "clock_skew": f"a node's clock is off by {span}",
        "stuck_runs": f"{most} runs of a task are stuck",
        "lost_runs": f"{most} at-most-once runs of a queue are lost within {within}",
    }[rule.kind]
    parts = {"queues": rule.queues, "jobs": rule.jobs, "tasks": rule.tasks, "nodes": rule.nodes}
    only = "; ".join(f"{name} {', '.join(one.given)}" for name, one in parts.items() if one.given)
    return f"{words} ({only})" if only else words
