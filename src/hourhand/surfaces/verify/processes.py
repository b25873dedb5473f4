"""The schedulers and workers under test: real processes, to be killed, paused, started again, and given a wrong clock."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from hourhand.core.clock import Clock
from hourhand.core.errors import ConfigurationError
from hourhand.engine.supervisor import PARENT
from hourhand.surfaces.verify import process_table

_MARK = "HOURHAND_VERIFY_CREW"
_WAYS_AROUND = ("HOURHAND_DIRECT_URL", "HOURHAND_DATA")
"""Settings of the caller's environment that would lead a process past the address it is given."""
_PATIENCE = 30.0
_FAKETIME = ("libfaketimeMT.so.1", "libfaketime.so.1")
_FAKETIME_PLACES = ("/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/lib64/faketime", "/usr/local/lib/faketime")


def find_faketime() -> Path | None:
    """The library that gives a process another clock: FAKETIME_LIB, or where distributions put it."""
    given = os.environ.get("FAKETIME_LIB")
    if given:
        return Path(given) if Path(given).is_file() else None
    for name in _FAKETIME:
        for place in _FAKETIME_PLACES:
            for path in sorted(Path("/").glob(f"{place.removeprefix('/')}/{name}")):
                return path
    return None


def skewed_environment(seconds: float) -> dict[str, str]:
    """An environment in which wall clocks are off by so much, and monotonic ones are not."""
    library = find_faketime()
    if library is None:
        raise ConfigurationError(
            "a wrong clock needs libfaketime: install the package `faketime` (Debian, Ubuntu) or `libfaketime` (Fedora), "
            "name the library in FAKETIME_LIB, or leave skew out"
        )
    preloaded = os.environ.get("LD_PRELOAD")
    return {
        "LD_PRELOAD": f"{library}:{preloaded}" if preloaded else str(library),
        "FAKETIME": f"{seconds:+.3f}s",
        # Timeouts and leases inside a process count monotonic time.
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
        # Python compares the times of files to know whether its compiled modules are fresh.
        "NO_FAKE_STAT": "1",
    }


def clear_faketime(pid: int) -> None:
    """What a killed process leaves of its clock in shared memory; it would stop the next process of that number."""
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        (Path("/dev/shm") / name).unlink(missing_ok=True)


@dataclass(slots=True, eq=False)
class Member:
    """One process of the crew; when it is started again, it is another process of the same name."""

    name: str
    kind: str
    arguments: tuple[str, ...]
    url: str
    environment: dict[str, str]
    log: Path
    skew: float | None
    process: subprocess.Popen[bytes]
    started_at: float
    paused: bool = False
    wanted: bool = True
    """Not stopped on purpose: if it is dead, it is to be started again."""
    starts: int = 1

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def text(self) -> str:
        return self.log.read_text(errors="replace")


class Crew:
    """Processes of the product, each with a log of its own in `directory`.

    They stop by themselves if we are killed. `close()` ends them all, their children in sessions of their own included.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.members: dict[str, Member] = {}
        self._mark = uuid.uuid4().hex
        self._strays: list[process_table.Entry] = []
        self._read_end, self._write_end = os.pipe()
        self._closed = False

    def named(self, kind: str) -> str:
        """The name that the next process of this kind gets."""
        return f"{kind}-{sum(member.kind == kind for member in self.members.values()) + 1}"

    def of(self, kind: str | None = None) -> list[Member]:
        """Those that run, in the order of their first start."""
        return [one for one in self.members.values() if one.alive and not one.paused and kind in (None, one.kind)]

    def start(
        self, kind: str, *arguments: str, url: str, environment: Mapping[str, str] | None = None, skew: float | None = None
    ) -> Member:
        """`python -m hourhand KIND ARGUMENTS`, on this database."""
        name = self.named(kind)
        log = self.directory / f"{name}.log"
        settings = dict(environment or {})
        process = self._spawn(kind, arguments, url, settings, skew, log)
        member = Member(name, kind, arguments, url, settings, log, skew, process, Clock.monotonic())
        self.members[name] = member
        return member

    async def kill(self, member: Member) -> None:
        """kill -9, and nothing else: what its children do then is up to them."""
        if member.alive:
            self._strays += process_table.descendants(member.pid)
        await self._end(member)

    def pause(self, member: Member) -> None:
        if member.alive:
            member.process.send_signal(signal.SIGSTOP)
            member.paused = True

    def resume(self, member: Member) -> None:
        member.paused = False
        if member.alive:
            member.process.send_signal(signal.SIGCONT)

    async def stop(self, member: Member, patience: float = _PATIENCE) -> None:
        """SIGTERM, and kill -9 for one that does not obey in time. It is not started again by itself."""
        member.wanted = False
        if member.alive:
            self._strays += process_table.descendants(member.pid)
            self.resume(member)
            member.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(member.process.wait, patience)
        await self._end(member)

    async def restart(self, member: Member, *, skew: float | None = None) -> None:
        """Kill it if it lives, and start it anew, with this clock."""
        if skew:
            skewed_environment(skew)  # refuses before there is nothing to go back to
        await self.kill(member)
        member.process = self._spawn(member.kind, member.arguments, member.url, member.environment, skew, member.log)
        member.skew, member.started_at, member.wanted = skew, Clock.monotonic(), True
        member.starts += 1

    async def revive(self) -> list[Member]:
        """Start the dead ones again, as their supervisor would; those that were."""
        dead = [member for member in self.members.values() if member.wanted and not member.alive]
        for member in dead:
            await self.restart(member, skew=member.skew)
        return dead

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for member in self.members.values():
            member.wanted = False
            await self.kill(member)
        # One that is being killed may just have started another.
        while left := process_table.alive({*self._strays, *process_table.marked(_MARK, self._mark)}):
            process_table.send(left, signal.SIGKILL)
            await process_table.gone(left, 1.0)
        os.close(self._write_end)
        os.close(self._read_end)

    async def __aenter__(self) -> Crew:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def _end(self, member: Member) -> None:
        if member.alive:
            member.process.kill()
            await asyncio.to_thread(member.process.wait)
        if member.skew:
            clear_faketime(member.pid)
        member.paused = False

    def _spawn(
        self, kind: str, arguments: tuple[str, ...], url: str, environment: dict[str, str], skew: float | None, log: Path
    ) -> subprocess.Popen[bytes]:
        inherited = {name: value for name, value in os.environ.items() if name not in _WAYS_AROUND}
        clock = skewed_environment(skew) if skew else {}
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "hourhand", kind, *arguments],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                pass_fds=[self._read_end],
                env={**inherited, **environment, "HOURHAND_DATABASE_URL": url, PARENT: str(self._read_end),
                     _MARK: self._mark, **clock},
            )  # fmt: skip
