"""Queues with rules, as typed methods: lining up, admitting, opening gates, and what is ruled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from hourhand.core.limits import Hold
from hourhand.storage.database import Link
from hourhand.storage.queue import Claim, read_claim

_PLAIN = 14
_LANE = 8


@dataclass(frozen=True, slots=True)
class Rulebook:
    """What a claimer has to know, as of one version."""

    version: int = 0
    tasks: frozenset[str] = frozenset()
    """Those whose runs are only ever admitted, never simply claimed."""
    holds: tuple[Hold, ...] = field(default=())


class LinedUp(NamedTuple):
    lane: int
    runs: int
    last: int


class AdmissionGateway:
    def __init__(self, link: Link) -> None:
        self._link = link

    async def read_rules(self) -> Rulebook:
        row = (await self._link.fetch("read_rules"))[0]
        holds = msgspec.json.decode(row["holds"])
        named = {"id", "queue", "task", "tag", "path", "value"}
        return Rulebook(
            row["version"], frozenset(msgspec.json.decode(row["tasks"])),
            tuple(Hold(**{name: value for name, value in one.items() if name in named}) for one in holds),
        )  # fmt: skip

    async def declared_rules(self, app: str) -> list[tuple[str, str]]:
        """Of which tasks and queues this app's code has said something."""
        return [(row[0], row[1]) for row in await self._link.fetch("declared_rules", app)]

    async def declare_rule(self, scope: str, name: str, rule: Mapping[str, Any]) -> bool:
        return bool((await self._link.fetch("declare_rule", scope, name, msgspec.json.encode(rule).decode()))[0][0])

    async def manage_queues(self, names: Sequence[str]) -> None:
        await self._link.fetch("manage_queues", names)

    async def line_up(self, lanes: Sequence[int], lows: Sequence[int], most: int, version: int) -> list[LinedUp]:
        return [LinedUp(*row) for row in await self._link.fetch("line_up", lanes, lows, most, version)]

    async def return_parked(self, queues: Sequence[int], tasks: Sequence[str], most: int) -> list[tuple[int, int]]:
        """The lanes and places they went to."""
        return [(row[0], row[1]) for row in await self._link.fetch("return_parked", queues, tasks, most)]

    async def open_gates(self, gates: Sequence[int], *, sweep: bool) -> tuple[set[int], float | None]:
        """The lanes in which streams are open again, and in how many seconds a rate lets somebody through."""
        *opened, last = await self._link.fetch("open_gates", gates, sweep)
        return {row[0] for row in opened}, last[1]

    async def admit(
        self, worker: int, version: int, plan: Sequence[tuple[int, int]], tasks: Sequence[str], names: Mapping[int, str],
        suspects: int = 0,
    ) -> list[Claim]:  # fmt: skip
        """`suspects`: how many of those on probation may be among them."""
        lanes, mosts = [lane for lane, _ in plan], [most for _, most in plan]
        rows = await self._link.fetch("admit", worker, version, lanes, mosts, tasks, suspects)
        claims = []
        for row in rows:
            claim = read_claim(row[:_PLAIN], names[row[_LANE] // 4], worker)
            claim.gates, claim.marked = row[_PLAIN], True
            claims.append(claim)
        return claims

    async def next_opening(self) -> float | None:
        opening: float | None = (await self._link.fetch("next_opening"))[0][0]
        return opening
