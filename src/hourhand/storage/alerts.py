"""Incidents, notices and what the rules look at, as typed methods. On the pool: only who has the duty needs a connection for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from hourhand.core.errors import DatabaseUnavailable, StatementRefused
from hourhand.core.notice import Alert
from hourhand.storage.database import Database


@dataclass(frozen=True, slots=True)
class Noted:
    """What a rule found of one subject."""

    subject: str
    message: str
    value: float | None
    link: str | None


@dataclass(frozen=True, slots=True)
class Beginning:
    """With what a look begins."""

    at: datetime
    place: int
    """The newest in any queue."""
    kinds: frozenset[str]
    """Of rules that may find something."""
    standing: Mapping[str, set[str]]
    """By rule, what is open or about to be."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """Something to tell, for a while ours alone to tell."""

    alert: Alert
    token: int
    attempts: int


class AlertGateway:
    def __init__(self, database: Database) -> None:
        self._database = database

    # Whose duty it is

    async def number_for_duties(self) -> int:
        return int(await self._database.fetchval("number_for_duties"))

    async def take_duty(self, name: str, node: int, seconds: float, rank: int) -> bool:
        return bool(await self._database.fetchval("take_duty", name, node, seconds, rank))

    async def drop_duty(self, name: str, node: int) -> None:
        await self._database.fetch("drop_duty", name, node)

    # Incidents

    async def begin_look(self, bounds: Mapping[str, float]) -> Beginning:
        """`bounds`: the kinds of rules there are, each with the longest window of theirs or the lowest threshold."""
        kinds = list(bounds)
        try:
            rows = await self._database.fetch("begin_look", kinds, list(bounds.values()))
        except (DatabaseUnavailable, StatementRefused):
            rows = await self._database.fetch("begin_look_blindly", kinds)
        standing: dict[str, set[str]] = {}
        for row in rows:
            if row["rule"] is not None:
                standing.setdefault(row["rule"], set()).add(row["subject"])
        return Beginning(rows[0]["at"], rows[0]["seq"], frozenset(rows[0]["kinds"]), standing)

    async def note_incidents(
        self, rule: str, kind: str, severity: str, repeat: float | None, hooks: bool, held_for: float, found: Sequence[Noted],
        begun: datetime,
    ) -> dict[str, int]:  # fmt: skip
        """The incidents that this has opened, by subject. `begun`: when it was looked."""
        rows = await self._database.fetch(
            "note_incidents", rule, kind, severity, repeat, hooks, held_for, [one.subject for one in found],
            [one.message for one in found], [one.value for one in found], [one.link for one in found], begun,
        )  # fmt: skip
        return {row["subject"]: row["id"] for row in rows}

    async def end_incidents(self, rule: str, endings: dict[str, str], clear: float, begun: datetime) -> list[asyncpg.Record]:
        return await self._database.fetch("end_incidents", rule, list(endings), list(endings.values()), clear, begun)

    # Telling

    async def add_notices(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Each a rule and a channel."""
        if pairs:
            await self._database.fetch("add_notices", *zip(*pairs, strict=True))

    async def add_hook_notices(self, hooks: Sequence[str]) -> None:
        await self._database.fetch("add_hook_notices", hooks)

    async def claim_notice(self, channel: str, seconds: float) -> Claimed | None:
        row = await self._database.fetchrow("claim_notice", channel, seconds)
        if row is None:
            return None
        state: str = row["state"]
        over = state == "closed"
        alert = Alert(
            row["incident"], state, row["rule"], row["kind"], row["subject"], row["severity"],
            row["ending"] if over and row["ending"] else row["message"], row["value"], row["since"], row["until"], row["link"],
            row["reminders"] + 1 if state == "reminder" else 0,
        )  # fmt: skip
        return Claimed(alert, row["token"], row["attempts"])

    async def notice_told(self, channel: str, one: Claimed) -> bool:
        """False: another has it now."""
        return bool(await self._database.fetch("notice_told", one.alert.id, channel, one.token, one.alert.state))

    async def notice_untold(self, channel: str, one: Claimed, seconds: float, error: str) -> bool:
        """Whether it is given up."""
        return bool(await self._database.fetchval("notice_untold", one.alert.id, channel, one.token, seconds, error))

    # Looking

    async def growing_dead(self, window: float, most: int) -> list[asyncpg.Record]:
        return await self._database.fetch("growing_dead", window, most)

    async def waiting_runs(self) -> list[asyncpg.Record]:
        return await self._database.fetch("waiting_runs")

    async def late_starts(self, window: float) -> list[asyncpg.Record]:
        return await self._database.fetch("late_starts", window)

    async def overdue_schedules(self, seconds: float) -> asyncpg.Record:
        return (await self._database.fetch("overdue_schedules", seconds))[0]

    async def caught_up(self, window: float, enough: int) -> tuple[int, int]:
        """Runs that were made up for, and firings that were left out."""
        row = (await self._database.fetch("caught_up", window, enough))[0]
        return row["runs"], row["left_out"]

    async def lost_nodes(self, window: float) -> list[asyncpg.Record]:
        return await self._database.fetch("lost_nodes", window)

    async def skewed_nodes(self, seconds: float) -> list[asyncpg.Record]:
        return await self._database.fetch("skewed_nodes", seconds)

    async def stuck_runs(self, most: int) -> list[asyncpg.Record]:
        return await self._database.fetch("stuck_runs", most)

    async def lost_by_queue(self, window: float) -> list[asyncpg.Record]:
        return await self._database.fetch("lost_by_queue", window)

    async def names_of_jobs(self, after: str, most: int, fit: str, unfit: str | None) -> tuple[str | None, int, list[str]]:
        """The last name that was looked at, how many were, and which fit."""
        row = (await self._database.fetch("names_of_jobs", after, most, fit, unfit))[0]
        return row["last"], row["looked"], row["names"]

    async def unknown_jobs(self, names: Sequence[str]) -> list[str]:
        return [row["name"] for row in await self._database.fetch("unknown_jobs", names)]

    async def silent_jobs(self, names: Sequence[str], seconds: float) -> list[asyncpg.Record]:
        return await self._database.fetch("silent_jobs", names, seconds)

    async def jobs_that_spoke(self, names: Sequence[str], seconds: float) -> list[asyncpg.Record]:
        return await self._database.fetch("jobs_that_spoke", names, seconds)
