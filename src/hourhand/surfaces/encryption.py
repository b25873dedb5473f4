"""The verbs on encrypted payloads: `app.encryption`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hourhand.core.errors import ConfigurationError
from hourhand.storage.sealing import PLACES, SealCount, SealingGateway
from hourhand.surfaces.verbs import Verbs

_WALKS = 5


@dataclass(frozen=True, slots=True)
class Rotated:
    key: str
    """The key that everything is to be sealed with."""
    resealed: int
    left: tuple[SealCount, ...]
    """What is not: in the hands of workers, locked by somebody, or sealed with a key that is not here."""
    unreadable: int
    """How many of those could not be opened."""


class Encryption(Verbs):
    async def status(self, *, history: bool = True) -> list[SealCount]:
        """How many payloads each key has sealed, table by table."""
        self._actor.need_everything("the state of encryption")
        return await SealingGateway(await self._open()).count_seals(history=history)

    async def rotate(self, *, history: bool = True, progress: Callable[[int], None] | None = None) -> Rotated:
        """Seal what is stored with the newest key, also what was stored before there was any.

        `progress` is called with how many rows are done. A run that is being executed keeps its seal until it has ended: as
        long as something is left, the old keys are still needed.
        """
        self._actor.need_everything("sealing everything anew")
        database = await self._open()
        if database.sealer.kid is None:
            raise ConfigurationError("there is no key to encrypt with: set HOURHAND_ENCRYPTION_KEYS")
        gateway, done, unreadable = SealingGateway(database), 0, 0
        for _ in range(_WALKS):
            before, unreadable = done, 0
            for place in PLACES if history else PLACES[:-1]:
                async for walked in gateway.walk(place):
                    done, unreadable = done + walked.resealed, unreadable + walked.unreadable
                    if progress is not None and walked.resealed:
                        progress(done)
            if done == before:
                break
        kid = database.sealer.kid
        left = tuple(one for one in await gateway.count_seals(history=history) if one.kid != kid)
        async with database.together():
            await self._record(database, "encryption.rotate", subject=kid, after={"resealed": done, "history": history})
        return Rotated(kid, done, left, unreadable)
