"""What the operating system knows of processes that are not our children any more, or never were."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hourhand.core.clock import Clock

_PROC = Path("/proc")
_LINUX = (_PROC / "self" / "stat").exists()


@dataclass(frozen=True, slots=True)
class Entry:
    """A process, and since when it lives: a number alone may be given to another one."""

    pid: int
    parent: int
    since: str


def snapshot() -> list[Entry]:
    """Everything that lives; what has ended and was not waited for does not."""
    if not _LINUX:
        return _from_ps()
    return [entry for path in _PROC.iterdir() if path.name.isdigit() and (entry := _from_proc(int(path.name))) is not None]


def _from_proc(pid: int) -> Entry | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name of the program, in parentheses, may hold anything.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else Entry(pid, int(fields[1]), fields[19])


def _from_ps() -> list[Entry]:
    done = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat=,lstart="], capture_output=True, text=True, check=False)
    rows = [line.split(maxsplit=3) for line in done.stdout.splitlines()]
    return [Entry(int(row[0]), int(row[1]), row[3]) for row in rows if len(row) == 4 and not row[2].startswith("Z")]


def descendants(pid: int) -> list[Entry]:
    """Children, their children and so on, whatever session they are in."""
    found: list[Entry] = []
    everything, parents = snapshot(), {pid}
    while parents:
        young = [entry for entry in everything if entry.parent in parents]
        found += young
        parents = {entry.pid for entry in young}
    return found


def marked(variable: str, value: str) -> list[Entry]:
    """Processes that were started with this in their environment. Nothing where the system does not tell."""
    if not _LINUX:
        return []
    wanted, found = f"{variable}={value}".encode(), []
    for entry in snapshot():
        with suppress(OSError):
            if wanted in (_PROC / str(entry.pid) / "environ").read_bytes().split(b"\0"):
                found.append(entry)
    return found


def alive(entries: Iterable[Entry]) -> list[Entry]:
    if _LINUX:
        return [one for one in entries if (now := _from_proc(one.pid)) is not None and now.since == one.since]
    there = {(one.pid, one.since) for one in snapshot()}
    return [one for one in entries if (one.pid, one.since) in there]


def send(entries: Iterable[Entry], which: signal.Signals) -> None:
    for one in alive(entries):
        with suppress(ProcessLookupError):
            os.kill(one.pid, which)


async def gone(entries: Iterable[Entry], patience: float) -> bool:
    """Wait until none of them lives."""
    deadline = Clock.monotonic() + patience
    left = list(entries)
    while left := alive(left):
        if Clock.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True
