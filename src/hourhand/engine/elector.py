"""Which shards this scheduler may fire, and under which epochs.

Every scheduler computes the same ring from the same list of the living. It takes what should be its own and
belongs to nobody alive, and lets go of what should be another's; nobody takes from the living. What it
believes to hold is only a belief: the firing statement compares the epoch each time.
"""

from __future__ import annotations

import structlog

from hourhand.core.ring import shards_of
from hourhand.engine.node import Node
from hourhand.storage.schedules import ScheduleGateway

log = structlog.get_logger("hourhand.elector")


class Elector:
    def __init__(self, gateway: ScheduleGateway, node: Node) -> None:
        self._gateway = gateway
        self._node = node
        self.held: dict[int, int] = {}
        """Shard to epoch."""
        self.tzdata: dict[int, str] = {}
        """With which release of the time zone rules a shard's next firings were computed."""
        self.changes = 0
        """Epochs that this node has raised: shards taken and given up."""

    async def run_once(self) -> set[int]:
        """One look around. Returns the shards that have come to this node."""
        me = self._node.id
        survey = await self._gateway.survey_shards()
        self.tzdata = dict(enumerate(survey.tzdata))
        held = {shard: epoch for shard, epoch in enumerate(survey.epochs) if survey.owners[shard] == me}
        mine = shards_of(me, survey.live) if me in survey.live else set()
        surplus = sorted(held.keys() - mine)
        # Out of our hands before the database hears of it: nothing more is fired for them from here.
        self.held = {shard: epoch for shard, epoch in held.items() if shard in mine}
        if surplus:
            self.changes += len(await self._gateway.release_shards(me, surplus))
            log.info("shards.released", node=me, shards=len(surplus))
        free = [shard for shard in sorted(mine - held.keys()) if survey.owners[shard] not in survey.live]
        taken = await self._gateway.take_shards(me, free, survey.live) if free else {}
        if taken:
            self.held.update(taken)
            self.changes += len(taken)
            log.info("shards.taken", node=me, shards=len(taken), held=len(self.held))
        return set(taken)

    def strangers(self, release: str) -> dict[int, str]:
        """Our shards that were computed with another release, and with which."""
        return {shard: self.tzdata.get(shard, "") for shard in sorted(self.held) if self.tzdata.get(shard, "") != release}

    async def release_all(self) -> None:
        """An orderly end: others have them at once."""
        shards, self.held = sorted(self.held), {}
        if shards:
            self.changes += len(await self._gateway.release_shards(self._node.id, shards))
