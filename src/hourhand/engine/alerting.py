"""The alerts of a process: whether it is its turn to look, and to tell.

There are two duties, each for one process at a time. One looks, and tells the channels of the file: whoever has a file takes it
from who has none. The other runs the functions of an app, for which the process must have the app. Both may pass to another at
any moment: what they do is safe to be done twice at once, by the tables.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from hourhand.core.alert_rules import AlertsFile
from hourhand.core.alerts import default_alerts, parse_alerts
from hourhand.core.clock import Clock
from hourhand.core.errors import ConfigurationError, DatabaseUnavailable, StatementRefused
from hourhand.core.registry import Registry
from hourhand.core.settings import Settings
from hourhand.engine.duty import ASK_EVERY, HELD, Duty
from hourhand.engine.herald import Herald
from hourhand.engine.waiting import heard
from hourhand.engine.watchman import Watchman
from hourhand.storage.alerts import AlertGateway
from hourhand.storage.database import Database, Patience
from hourhand.targets.channels import Sender, hooks_of, open_channel

log = structlog.get_logger("hourhand.alerts")
LOOK_EVERY = 10.0
TELL_EVERY = 5.0
_FINISH = 5.0


def read_alerts(settings: Settings) -> AlertsFile:
    """The rules and channels of the file that the settings name; without one, the default rules."""
    path = settings.alerts
    if path is None:
        return default_alerts()
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigurationError(f"alerts (HOURHAND_ALERTS): {path} cannot be read: {reason}") from None
    return parse_alerts(text, str(path))


def open_channels(file: AlertsFile, settings: Settings) -> list[Sender]:
    base = Path() if settings.alerts is None else settings.alerts.parent
    try:
        return [open_channel(one, base, settings) for one in file.channels]
    except ConfigurationError as error:
        raise ConfigurationError(f"{settings.alerts}: {error}") from None


def check_alerts(settings: Settings) -> None:
    """Refuses at once what would be refused by each process that is started."""
    open_channels(read_alerts(settings), settings)


class Alerting:
    """As part of a node, whose maintainer asks for the duties on its connection; or alone, in a process that is no node."""

    def __init__(self, database: Database, settings: Settings, registry: Registry | None = None) -> None:
        file = read_alerts(settings)
        self._about = {"file": str(settings.alerts), "digest": file.digest} if settings.alerts is not None else {"file": None}
        self._gateway = AlertGateway(database)
        self.watchman = Watchman(self._gateway, file, whole=settings.alerts is not None)
        self.herald = Herald(self._gateway)
        self._looking = Duty("alerts", 0 if settings.alerts is None else 1)
        self._tellers: list[tuple[Sender, Duty, asyncio.Event]] = [
            (one, self._looking, asyncio.Event()) for one in open_channels(file, settings)
        ]
        self.duties = [self._looking]
        hooks = hooks_of(() if registry is None else registry.alert_hooks)
        self._hooks = [one.name for one in hooks]
        if hooks:
            # Processes with the same functions take turns; what others have is others' duty.
            own = hashlib.sha256("\n".join(sorted(self._hooks)).encode()).hexdigest()[:16]
            self.duties.append(Duty(f"alerts {own}"))
            self._tellers += [(one, self.duties[-1], asyncio.Event()) for one in hooks]

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat(self._looking, self._look))
            if self._hooks:
                group.create_task(self._repeat(self.duties[-1], self._note_hooks))
            for sender, duty, wake in self._tellers:
                group.create_task(self._serve(sender, duty, wake))

    async def run_alone(self) -> None:
        """The same in a process that is no node: it asks for the duties itself."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.run())
            group.create_task(self._ask())

    async def _ask(self) -> None:
        number, patience = 0, Patience(cap=ASK_EVERY)
        try:
            while True:
                try:
                    number = number or await self._gateway.number_for_duties()
                    for duty in self.duties:
                        asked = Clock.monotonic()
                        duty.answer(await self._gateway.take_duty(duty.name, number, HELD, duty.rank), asked)
                    patience.reset()
                    await asyncio.sleep(ASK_EVERY)
                except (DatabaseUnavailable, StatementRefused):
                    await patience.wait()
        finally:
            await asyncio.shield(self.stop(number))

    async def stop(self, node: int) -> None:
        """What is being told is told to its end, and others have the duties at once."""
        with contextlib.suppress(DatabaseUnavailable, StatementRefused):
            await self.herald.finish(_FINISH)
            # Also what we do not know to be ours: who is stopped as it asks does not hear the answer.
            for duty in self.duties:
                await self._gateway.drop_duty(duty.name, node)

    async def _repeat(self, duty: Duty, work: Callable[[], Awaitable[None]]) -> None:
        # A process that has just begun has better things to do.
        await duty.wait()
        await asyncio.sleep(1.0)
        anew = True
        while True:
            anew = anew or not duty.held
            await duty.wait()
            if anew and duty is self._looking:
                log.info("alert.watching", **self._about)
            anew = False
            await self._cautiously(work)
            await asyncio.sleep(LOOK_EVERY)

    async def _look(self) -> None:
        if await self.watchman.run_once():
            self._stir()

    async def _note_hooks(self) -> None:
        await self._gateway.add_hook_notices(self._hooks)
        self._stir()

    def _stir(self) -> None:
        for _, _, wake in self._tellers:
            wake.set()

    async def _serve(self, sender: Sender, duty: Duty, wake: asyncio.Event) -> None:
        async def drain() -> None:
            while duty.held and await self.herald.run_once(sender):
                pass

        while True:
            await duty.wait()
            wake.clear()
            await self._cautiously(drain)
            await heard(wake, TELL_EVERY)

    async def _cautiously(self, work: Callable[[], Awaitable[None]]) -> None:
        """Whatever is wrong with it, the process has other things to do."""
        try:
            await work()
        except DatabaseUnavailable:
            pass  # said by others; it is tried again
        except StatementRefused as error:
            log.error("alert.refused", error=str(error))
        except Exception as error:
            log.error("alert.failed", error=f"{type(error).__name__}: {error}")
