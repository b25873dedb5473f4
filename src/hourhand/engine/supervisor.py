"""A parent for worker processes: starts them, starts them again when they die, stops them together.

Children run in sessions of their own, so that Ctrl-C in a terminal reaches only the parent, which passes
it on once. Each holds the read end of a pipe whose write end only the parent has: when the parent is
killed, they see the end of it and stop in order.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from random import Random

import structlog

from hourhand.core.clock import Clock
from hourhand.engine.waiting import heard

log = structlog.get_logger("hourhand.supervisor")
PARENT = "HOURHAND_PARENT_FD"
_STEADY = 30.0
"""A child that lived this long gets a fresh start without delay."""


class Supervisor:
    def __init__(self, commands: Sequence[Sequence[str]], environment: dict[str, str] | None = None) -> None:
        self._commands = commands
        self._environment = {**os.environ, **(environment or {})}
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._rng = Random()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values()]

    def stop(self) -> None:
        """Pass the wish on; a second one makes the children hand back at once."""
        self._stopping.set()
        for process in self._processes.values():
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)

    async def run(self, *, handle_signals: bool = True) -> None:
        if handle_signals:
            loop = asyncio.get_running_loop()
            for one in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(one, self.stop)
        self._read_end, self._write_end = os.pipe()
        try:
            await asyncio.gather(*(self._keep(place, command) for place, command in enumerate(self._commands)))
        finally:
            os.close(self._write_end)
            os.close(self._read_end)

    async def _keep(self, place: int, command: Sequence[str]) -> None:
        failures = 0
        while not self._stopping.is_set():
            began = Clock.monotonic()
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[self._read_end],
                env={**self._environment, PARENT: str(self._read_end)},
            )
            self._processes[place] = process
            if self._stopping.is_set():
                process.send_signal(signal.SIGTERM)
            code = await process.wait()
            if self._stopping.is_set():
                return
            failures = 0 if Clock.monotonic() - began > _STEADY else failures + 1
            pause = min(10.0, 0.2 * 2.0 ** min(failures, 8)) * self._rng.uniform(0.8, 1.0)
            log.error("process.ended", pid=process.pid, exit=code, restart_in=round(pause, 1))
            await heard(self._stopping, pause)


async def watch_parent(on_end: Callable[[], None]) -> None:
    """In a child: call `on_end()` when the supervisor is gone."""
    fd = os.environ.get(PARENT)
    if fd is None:
        return
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(int(fd), gone.set)
    await gone.wait()
    loop.remove_reader(int(fd))
    log.warning("supervisor.gone", meaning="the parent process ended; stopping in order")
    on_end()
