"""What is wrong and was wrong, by which rules, and whether the channels work: `app.alerts`."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from hourhand.core.alert_rules import Rule, rule_in_words
from hourhand.core.clock import Clock
from hourhand.core.errors import HourhandError, InvalidOption
from hourhand.core.notice import trial
from hourhand.core.registry import Registry
from hourhand.core.settings import Settings
from hourhand.surfaces.verbs import Open, Verbs, check
from hourhand.targets.channels import Sender, hooks_of


@dataclass(frozen=True, slots=True)
class Told:
    """What a channel has heard of an incident."""

    channel: str
    opened_at: datetime | None
    """When it was told that it is so; None: it has not been yet."""
    closed_at: datetime | None
    reminders: int
    attempts: int
    """In vain, for what it is to be told next."""
    error: str | None
    """Why the last one was in vain."""


@dataclass(frozen=True, slots=True)
class AlertView:
    """An incident."""

    id: int
    rule: str
    kind: str
    subject: str
    """The queue, job, task or node that it is about; empty where it is about everything."""
    severity: str
    state: str
    """`open` or `closed`."""
    message: str
    value: float | None
    link: str | None
    since: datetime
    """When it was seen first."""
    opened_at: datetime
    closed_at: datetime | None
    ending: str | None
    """What was found when it was over."""
    told: tuple[Told, ...] = field(default_factory=tuple)

    @classmethod
    def of(cls, row: asyncpg.Record) -> AlertView:
        have = dict(row)
        told = msgspec.json.decode(have.pop("notices"), type=tuple[Told, ...])
        return cls(**have, state="open" if have["closed_at"] is None else "closed", told=told)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RuleView:
    name: str
    kind: str
    enabled: bool
    severity: str
    in_words: str
    threshold: float
    """A number of things, or of seconds, as its kind has it."""
    window: float | None
    held_for: float
    clear: float
    repeat: float | None
    channels: tuple[str, ...]
    """Those that hear of it."""

    @classmethod
    def of(cls, rule: Rule, channels: tuple[str, ...]) -> RuleView:
        return cls(
            rule.name, rule.kind, rule.enabled, rule.severity, rule_in_words(rule), rule.threshold, rule.window or None, rule.held_for,
            rule.clear, rule.repeat, channels,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ChannelTrial:
    """What came of a test message."""

    channel: str
    kind: str
    address: str
    """As much of it as may be shown."""
    delivered: bool
    error: str | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


Rules = list[RuleView]
ChannelTrials = list[ChannelTrial]


class Alerts(Verbs):
    def __init__(self, open_database: Open, settings: Any, registry: Registry, app: str = "") -> None:
        super().__init__(open_database, app)
        self._settings = settings
        """Asked for at each use: the command line may change them after the app was made."""
        self._registry = registry

    async def list(
        self,
        *,
        open: bool = True,
        rule: str | None = None,
        since: datetime | None = None,
        below: int | None = None,
        limit: int = 100,
    ) -> list[AlertView]:
        """The incidents that are open, the newest first; with `open=False`, also those that are over.

        `since`: of those that are over, only what was so at that time or later; `below`: the last id of the page before.
        """
        check(limit=limit, since=since)
        self._actor.need_everything("the list of alerts")
        rows = await (await self._open()).fetch("list_incidents", open, rule, since, below, limit)
        return [AlertView.of(row) for row in rows]

    async def rules(self) -> Rules:
        """The rules of this process's file, over the default ones, and who hears of each."""
        self._actor.need_everything("the list of rules")
        from hourhand.engine.alerting import read_alerts  # when it is wanted: it brings much, and every process has this module

        settings: Settings = self._settings()
        file, hooks = read_alerts(settings), [one.name for one in hooks_of(self._registry.alert_hooks)]
        return [
            RuleView.of(rule, (*(one.name for one in file.channels if one.hears(rule)), *(hooks if rule.hooks else ())))
            for rule in file.rules
        ]

    async def test(self, channel: str | None = None) -> ChannelTrials:
        """A test message through each channel of this process's file and each function of its app, or through this one."""
        self._actor.need_everything("a test of the alerts")
        from hourhand.engine.alerting import open_channels, read_alerts

        settings: Settings = self._settings()
        senders = [*open_channels(read_alerts(settings), settings), *hooks_of(self._registry.alert_hooks)]
        known = [one.name for one in senders]
        if channel is not None and channel not in known:
            raise InvalidOption(f"there is no channel {channel!r}; there {_are(known)}")
        wanted = [one for one in senders if channel in (None, one.name)]
        return [*await asyncio.gather(*(_tested(one) for one in wanted))]


def _are(names: list[str]) -> str:
    return f"are {', '.join(names)}" if names else "is none at all: HOURHAND_ALERTS names no file with a channel"


async def _tested(sender: Sender) -> ChannelTrial:
    began, error = Clock.monotonic(), None
    try:
        await sender.send(trial(Clock().instant()))
    except HourhandError as failure:
        error = str(failure)
    return ChannelTrial(sender.name, sender.kind, sender.address, error is None, error, Clock.monotonic() - began)
