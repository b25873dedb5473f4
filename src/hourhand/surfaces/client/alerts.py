"""`client.alerts`: the verbs of `app.alerts`, about the rules and channels of the server."""

from __future__ import annotations

from datetime import datetime

from hourhand.surfaces import wire
from hourhand.surfaces.alerts import AlertView, ChannelTrials, Rules
from hourhand.surfaces.client.asking import Asking, converted, reader
from hourhand.surfaces.client.transport import ROOT, Call
from hourhand.surfaces.verbs import check


class Alerts(Asking):
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
        cursor = None if below is None else wire.write_cursor(below)
        query = {"open": open, "rule": rule, "since": since, "cursor": cursor}
        return await self._list("/alerts", query, limit, reader(AlertView))

    async def rules(self) -> Rules:
        """The rules of the server's file, over the default ones, and who hears of each."""
        return converted(await self._get("/alerts/rules"), Rules)

    async def test(self, channel: str | None = None) -> ChannelTrials:
        """A test message through each channel of the server's file, or through this one."""
        return converted(
            await self._send(Call("POST", f"{ROOT}/alerts/test", {"channel": channel}, harmless=True, patient=True)),
            ChannelTrials,
        )
