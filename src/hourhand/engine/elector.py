"""Which shards this scheduler may fire, and under which epochs.

Every scheduler computes the same ring from the same list of the living. It takes what should be its own and
belongs to nobody alive, and lets go of what should be another's; nobody takes from the living. What it
believes to hold is only a belief: the firing statement compares the epoch each time.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from hourhand.core.clock import Clock
from hourhand.core.ring import shards_of
from hourhand.core.zones import tzdata_version
from hourhand.engine.node import Node
from hourhand.storage.schedules import ScheduleGateway

log = structlog.get_logger("hourhand.elector")
AGAIN = 15.0
"""Seconds until a shard is looked at again in which somebody held up what was to move."""


class Elector:
    def __init__(self, gateway: ScheduleGateway, node: Node) -> None:
        self._gateway = gateway
        self._node = node
        self.owned: dict[int, int] = {}
        """Shard to epoch."""
        self.held: dict[int, int] = {}
        """Of these, what may be fired: not what another release of the time zone rules has computed, until that is minded."""
        self._tzdata: dict[int, str] = {}
        """With which release a shard's next firings were computed."""
        self._excused: dict[int, tuple[int, float]] = {}
        """Shards that fire all the same: under which epoch, and when they are minded again."""
        self.changes = 0
        """Epochs that this node has raised: shards taken and given up."""

    async def run_once(self) -> set[int]:
        """One look around. Returns the shards that have come to this node."""
        me = self._node.id
        survey = await self._gateway.survey_shards()
        held = {shard: epoch for shard, epoch in enumerate(survey.epochs) if survey.owners[shard] == me}
        mine = shards_of(me, survey.live) if me in survey.live else set()
        surplus = sorted(held.keys() - mine)
        # Out of our hands before the database hears of it: nothing more is fired for them from here.
        self._keep({shard: epoch for shard, epoch in held.items() if shard in mine}, survey.tzdata)
        if surplus:
            self.changes += len(await self._gateway.release_shards(me, surplus))
            log.info("shards.released", node=me, shards=len(surplus))
        free = [shard for shard in sorted(mine - held.keys()) if survey.owners[shard] not in survey.live]
        taken = await self._gateway.take_shards(me, free, survey.live) if free else {}
        if taken:
            self.changes += len(taken)
            # Up to now, who had them before may have written down which release it is.
            self._keep({**self.owned, **taken}, (await self._gateway.survey_shards()).tzdata)
            log.info("shards.taken", node=me, shards=len(taken), held=len(self.owned))
        return set(taken)

    def _keep(self, owned: dict[int, int], tzdata: Sequence[str]) -> None:
        self.owned, self._tzdata = owned, dict(enumerate(tzdata))
        self.held = {shard: epoch for shard, epoch in owned.items() if self._may_fire(shard, epoch)}

    def _may_fire(self, shard: int, epoch: int) -> bool:
        return self._tzdata[shard] in ("", tzdata_version()) or self._excused_until(shard, epoch) is not None

    def _excused_until(self, shard: int, epoch: int) -> float | None:
        under, until = self._excused.get(shard, (None, None))
        return until if under == epoch else None

    def strangers(self) -> dict[int, str]:
        """Our shards that were computed with another release, and with which (none: with whichever whoever added them had)."""
        return {
            shard: self._tzdata[shard]
            for shard, epoch in sorted(self.owned.items())
            if self._tzdata[shard] != tzdata_version() and Clock.monotonic() >= (self._excused_until(shard, epoch) or 0.0)
        }

    def minded(self, shard: int, epoch: int) -> None:
        """Its firings are those of our own release."""
        if self.owned.get(shard) == epoch:
            self._tzdata[shard], self.held[shard] = tzdata_version(), epoch

    def excuse(self, shard: int, epoch: int) -> None:
        """Somebody holds up a few of its schedules; all the others need not wait for him."""
        if self.owned.get(shard) == epoch:
            self._excused[shard], self.held[shard] = (epoch, Clock.monotonic() + AGAIN), epoch

    def lose_all(self) -> list[int]:
        shards, self.owned, self.held = sorted(self.owned), {}, {}
        return shards

    async def release_all(self) -> None:
        """An orderly end: others have them at once."""
        if shards := self.lose_all():
            self.changes += len(await self._gateway.release_shards(self._node.id, shards))
