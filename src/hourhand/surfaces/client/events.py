"""The stream of events: read line by line, opened again when it breaks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import msgspec

from hourhand.core.errors import DatabaseUnavailable
from hourhand.storage.database import Patience
from hourhand.surfaces.client.transport import ROOT, Call, Lost, Transport

LONGEST_PAUSE = 10.0
GAP = {"type": "gap", "meaning": "the connection was lost; what happened meanwhile is not told"}


async def follow(transport: Transport, types: list[str] | None) -> AsyncGenerator[dict[str, Any], None]:
    call = Call("GET", f"{ROOT}/events", {"type": types})
    patience = Patience(cap=LONGEST_PAUSE)
    connected = False
    while True:
        try:
            async with transport.stream(call) as lines:
                if connected:
                    yield dict(GAP)
                connected = True
                patience.reset()
                async for line in lines:
                    if line.startswith(b"data:"):
                        with suppress(msgspec.DecodeError):
                            yield msgspec.json.decode(line.removeprefix(b"data:"))
        except Lost as lost:
            # Who never heard anything wants to know why; who did waits for as long as it takes.
            if not connected:
                raise lost.error from None
        except DatabaseUnavailable:
            if not connected:
                raise
        await patience.wait()
