"""A second process that outlives a worker, in order to end what its commands have started when the worker is killed.

The kernel ends a command together with its worker (see `program`), but not what the command has started in turn. The warden is
told every process group that begins and ends. When the worker is gone, however it went, the pipe between them is closed, and
the warden kills the groups that are left. This file is also its program, and therefore imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


class Warden:
    """One for each process that starts commands; started with the first of them."""

    def __init__(self) -> None:
        self._pipe: int | None = None
        self._process = 0
        self._owner = 0
        self._groups: set[int] = set()

    def watch(self, group: int) -> None:
        if self._owner != os.getpid():
            # Forked: the groups and the warden are the parent's.
            self._owner, self._groups = os.getpid(), set()
            self._let_go()
        self._groups.add(group)
        self._tell(f"+{group}\n")

    def release(self, group: int) -> None:
        """Before the leader of the group is reaped: after that, its number may become somebody else's."""
        if self._owner == os.getpid():
            self._groups.discard(group)
            self._tell(f"-{group}\n")

    def _tell(self, word: str) -> None:
        try:
            if self._pipe is not None:
                os.write(self._pipe, word.encode())
                return
        except OSError:  # it was killed, or is stopped and reads no more: another takes its place
            self._let_go()
        with contextlib.suppress(OSError):
            self._start()

    def _start(self) -> None:
        if not sys.executable:
            return
        theirs, ours = os.pipe()
        os.set_blocking(ours, False)
        nowhere = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
        try:
            self._process = os.posix_spawn(
                sys.executable, [sys.executable, "-I", "-S", os.path.abspath(__file__)], {},
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs, 0), *nowhere],
            )  # fmt: skip
            os.write(ours, "".join(f"+{group}\n" for group in self._groups).encode())
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._pipe = ours

    def _let_go(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        if self._process:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._process, os.WNOHANG)
            self._process = 0


def main() -> None:
    # Who stops a worker in order may signal its whole group, or unit; the warden's turn comes after the worker's end.
    os.setsid()
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
