"""A program that was started: its process group, its output, its end.

It leads a session of its own. Nothing of it outlives it: when it ends, or is told to, its whole group is ended. The leader is
reaped last, so that until then its number, which is also the group's, cannot become somebody else's.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import IO

from hourhand.core.lines import MAX_TEXT
from hourhand.targets.warden import Warden

CHUNK = 64 * 1024
POLL = 0.05
LAST_WORDS = 0.5
"""Seconds that pipes get to run empty after everybody who should hold them is dead."""
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)], "�")
_PR_SET_PDEATHSIG = 1
# Looked up now: between fork and exec, hardly anything may be done.
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
WARDEN = Warden()

Account = tuple[int, int]
"""A user's number, and a group's."""


class Output:
    """What comes out of one pipe: its end, and its lines as they come. However much it is, little of it is held."""

    def __init__(self, keep: int, say: Callable[[str], None], wanted: Callable[[], bool]) -> None:
        self._keep = keep
        self._say = say
        self._wanted = wanted
        self._tail = bytearray()
        self._line = bytearray()
        self.size = 0

    @property
    def truncated(self) -> bool:
        return self.size > self._keep

    def feed(self, data: bytes) -> None:
        self.size += len(data)
        if self._keep:
            self._tail += data[-self._keep :]
            if len(self._tail) > 2 * self._keep:
                del self._tail[: -self._keep]
        start = 0
        while self._wanted():
            end = data.find(b"\n", start)
            piece = data[start:] if end < 0 else data[start:end]
            # One more than is kept shows that there was more.
            self._line += piece[: MAX_TEXT + 1 - len(self._line)]
            if end < 0:
                return
            self._end_line()
            start = end + 1

    def finish(self) -> None:
        if self._line and self._wanted():
            self._end_line()

    def _end_line(self) -> None:
        # What a terminal would show of a line that was written over again and again.
        text = self._line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
        self._line.clear()
        self._say(readable(text))

    def text(self) -> str:
        tail = bytes(self._tail[-self._keep :]) if self._keep else b""
        if self.truncated:
            # It may begin in the middle of a character.
            tail = tail[next((place for place in range(min(4, len(tail))) if tail[place] & 0xC0 != 0x80), 0) :]
        return readable(tail.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n"))


def readable(text: str) -> str:
    """Without colours, and without anything else that would do something to a terminal."""
    return _SEQUENCE.sub("", text).translate(_CONTROLS)


class Program:
    """To be made in the thread of the event loop: the kernel ends a program when the thread that started it ends."""

    def __init__(
        self, argv: Sequence[str], environment: dict[str, str], cwd: str, account: Account | None, stdin: bytes | None,
        outputs: tuple[Output, Output],
    ) -> None:  # fmt: skip
        self._loop = asyncio.get_running_loop()
        user, group = account or (None, None)
        self._process = subprocess.Popen(
            argv, env=environment, cwd=cwd, start_new_session=True, preexec_fn=_tie_to(os.getpid()),
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            # Its own group and no other. Not an empty list: some versions of Python take that for "leave them as they are".
            user=user, group=group, extra_groups=None if group is None else [group],
        )  # fmt: skip
        self._group = self._process.pid
        WARDEN.watch(self._group)
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._pidfd = _pidfd(self._group)
        if self._pidfd is None:
            self._look()
        else:
            self._loop.add_reader(self._pidfd, self._notice)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._readers = [
            _Reader(self._loop, self._process.stdout, outputs[0]), _Reader(self._loop, self._process.stderr, outputs[1]),
        ]  # fmt: skip
        self._writer = _Writer(self._loop, self._process.stdin, stdin or b"") if self._process.stdin is not None else None
        self._closed = False

    async def run(self, grace: float) -> bool:
        """Until it has ended and has said everything. Then, or when this is cancelled, nothing of it is left.

        True: others of its group went on and held its pipes for longer than `grace` seconds, and were killed.
        """
        try:
            await asyncio.wait([self.ended])  # a cancellation ends the waiting, not the future
            left = not await self._empty(grace)
            if left:
                self.signal(signal.SIGKILL)
                await self._empty(LAST_WORDS)
            return left
        except asyncio.CancelledError:
            await self._stop(grace)
            raise
        finally:
            self.close()

    async def _stop(self, grace: float) -> None:
        """All of the group are told, and get so long. A second cancellation does not wait for that."""
        self.signal(signal.SIGTERM)
        waited = [self.ended, *(one.ended for one in self._readers)]
        await asyncio.wait(waited, timeout=grace)
        self.signal(signal.SIGKILL)
        await asyncio.wait(waited, timeout=LAST_WORDS)

    async def _empty(self, seconds: float) -> bool:
        _, pending = await asyncio.wait([one.ended for one in self._readers], timeout=seconds)
        return not pending

    def signal(self, one: signal.Signals) -> None:
        # EPERM: macOS, when there are only zombies left.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._group, one)

    @property
    def code(self) -> int:
        """Once it is closed. Negative: the signal that killed it."""
        assert self._process.returncode is not None
        return self._process.returncode

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.signal(signal.SIGKILL)
        for one in self._readers:
            one.close()
        if self._writer is not None:
            self._writer.close()
        if self.ended.done():
            self._reap()
        else:
            self.ended.add_done_callback(lambda _: self._reap())

    def _reap(self) -> None:
        # Once more: a process that was being forked while the others were killed belongs to the group now.
        self.signal(signal.SIGKILL)
        WARDEN.release(self._group)
        self._process.wait()

    def _notice(self) -> None:
        assert self._pidfd is not None
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.ended.set_result(None)

    def _look(self) -> None:
        """Where the system has no file descriptors for processes."""
        if self._process.poll() is None:
            self._loop.call_later(POLL, self._look)
        else:
            self.ended.set_result(None)


class _Reader:
    def __init__(self, loop: asyncio.AbstractEventLoop, pipe: IO[bytes], output: Output) -> None:
        self._loop, self._pipe, self._output = loop, pipe, output
        self.ended: asyncio.Future[None] = loop.create_future()
        os.set_blocking(pipe.fileno(), False)
        loop.add_reader(pipe.fileno(), self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._pipe.fileno(), CHUNK)
        except BlockingIOError:
            return
        if data:
            self._output.feed(data)
        else:
            self.close()

    def close(self) -> None:
        if not self.ended.done():
            self._loop.remove_reader(self._pipe.fileno())
            self._pipe.close()
            self._output.finish()
            self.ended.set_result(None)


class _Writer:
    def __init__(self, loop: asyncio.AbstractEventLoop, pipe: IO[bytes], data: bytes) -> None:
        self._loop, self._pipe, self._rest = loop, pipe, memoryview(data)
        os.set_blocking(pipe.fileno(), False)
        loop.add_writer(pipe.fileno(), self._write)

    def _write(self) -> None:
        try:
            self._rest = self._rest[os.write(self._pipe.fileno(), self._rest[:CHUNK]) :] if self._rest else self._rest
        except BlockingIOError:
            return
        except OSError:  # it does not want to read all of it
            self._rest = memoryview(b"")
        if not self._rest:
            self.close()

    def close(self) -> None:
        if not self._pipe.closed:
            self._loop.remove_writer(self._pipe.fileno())
            with contextlib.suppress(OSError):
                self._pipe.close()


def _pidfd(process: int) -> int | None:
    try:
        return os.pidfd_open(process) if sys.platform == "linux" else None
    except OSError:
        return None


def _tie_to(parent: int) -> Callable[[], None] | None:
    """What a program does before it becomes one: it will be killed when its worker is. After the change of user, which would
    undo it."""
    prctl = _prctl
    if prctl is None:
        return None

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)  # too late: the worker is gone already

    return tie
