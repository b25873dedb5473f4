"""Handlers in child processes: what they do to their process they do to themselves.

A child loads the app by its reference, runs one handler at a time, and is used again as long as it
behaves. On timeout or cancellation it is killed. When its parent dies, its socket closes and it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from hourhand.core.context import RUN
from hourhand.core.errors import (
    Cancelled,
    ConfigurationError,
    HourhandError,
    PermanentFailure,
    ProcessDied,
    RetryAfter,
)  # fmt: skip
from hourhand.core.lines import Line
from hourhand.core.payload import Unkept
from hourhand.core.settings import Settings
from hourhand.engine.delivery import RECORDED, REPEATED, Recorded

if TYPE_CHECKING:
    from hourhand.engine.caller import Active

log = structlog.get_logger("hourhand.isolation")
_STARTUP = 60.0
_LENGTH = 4


class RemoteError(HourhandError):
    """An exception from a child process: its type's name, its message, its traceback."""

    def __init__(self, kind: str, message: str, trace: str, lineage: list[str]) -> None:
        super().__init__(message)
        self.remote_type = kind
        self.remote_traceback = trace
        self.lineage = lineage


class Child:
    def __init__(self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.process, self.reader, self.writer = process, reader, writer

    @classmethod
    async def spawn(cls, reference: str, environment: dict[str, str]) -> Child:
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "hourhand.engine.child", reference, str(theirs.fileno()),
                pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
                env={**os.environ, **environment},
            )  # fmt: skip
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours, limit=2**20)
        child = cls(process, reader, writer)
        try:
            hello = await asyncio.wait_for(child.receive(), _STARTUP)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.TimeoutError):
            await child.kill()
            raise ProcessDied(f"the child process ended while it was loading {reference}") from None
        except BaseException:  # a timeout or a cancellation of its run, most likely
            await asyncio.shield(child.kill())
            raise
        if "failed" in hello:
            await child.kill()
            raise ConfigurationError(f"the child process could not load {reference}: {hello['failed']}")
        return child

    def send(self, message: dict[str, Any]) -> None:
        body = msgspec.json.encode(message)
        self.writer.write(len(body).to_bytes(_LENGTH, "big") + body)

    async def receive(self) -> dict[str, Any]:
        length = int.from_bytes(await self.reader.readexactly(_LENGTH), "big")
        message: dict[str, Any] = msgspec.json.decode(await self.reader.readexactly(length))
        return message

    async def kill(self) -> int:
        """The whole group: a handler may have started processes of its own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.writer.close()
        return await self.process.wait()


class Children:
    """Idle children, kept warm; at most as many as there are slots, since each slot uses one at a time."""

    def __init__(self, reference: str | None, settings: Settings, report: Callable[[int, Any], None]) -> None:
        self._reference = reference
        self._settings = settings
        self._report = report
        self.possible = reference is not None
        self._idle: list[Child] = []

    async def run(self, active: Active) -> Any:
        """The handler's result as JSON; for an exactly-once run, the word that its end is on record."""
        claim, context = active.claim, active.context
        child = await self._take()
        try:
            child.send(
                {
                    "run": claim.run_number, "job": claim.job_number, "task": claim.task, "payload": claim.payload,
                    "scheduled_at": claim.scheduled_at, "attempt": context.attempt, "queue": claim.queue, "tags": claim.tags,
                    "token": claim.token, "worker": claim.worker, "options": claim.options, "delivery": active.delivery,
                    "started": active.started, "memory": active.handler.definition.max_memory or self._settings.child_memory,
                    "trace": None if active.attempt is None else active.attempt.place.stored, "onward": active.onward,
                }
            )  # fmt: skip
            while True:
                message = await child.receive()
                if "progress" in message:
                    self._report(claim.run_number, message["progress"])
                    continue
                if "line" in message:
                    # A thread that the run before has left behind in this child still speaks for that one.
                    if message["of"] == [claim.run_number, claim.token]:
                        context.pen.pass_on(Line(*message["line"]))
                    continue
                if message.get("spent"):
                    await child.kill()
                else:
                    self._idle.append(child)
                return _outcome(message)
        except (asyncio.IncompleteReadError, ConnectionError):
            code = await child.kill()
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise ProcessDied(f"the process that ran this task ended with {how}") from None
        except (RemoteError, PermanentFailure, RetryAfter, Cancelled):
            raise  # an answer of the handler's; the child is well
        except BaseException:
            await asyncio.shield(child.kill())
            raise

    async def _take(self) -> Child:
        while self._idle:
            child = self._idle.pop()
            if child.process.returncode is None:
                return child
            await child.kill()
        if self._reference is None:
            raise ConfigurationError(
                "a child process has to import the app, and this one has no importable name: define it at the top "
                "level of a module, or start the worker with --app module:name"
            )
        # A transport keeps the context variables that it is made under, and a child outlives the run that it is made for.
        spawning = RUN.set(None)
        try:
            return await Child.spawn(self._reference, self._settings.environment())
        finally:
            RUN.reset(spawning)

    async def close(self) -> None:
        children, self._idle = self._idle, []
        for child in children:
            await child.kill()


def _outcome(message: dict[str, Any]) -> Any:
    if "recorded" in message:
        return RECORDED if message["recorded"] else Recorded(REPEATED)
    if "error" not in message:
        return Unkept(message["remark"]) if message["remark"] else message["result"] and msgspec.Raw(message["result"].encode())
    error = message["error"]
    if error["special"] == "RetryAfter":
        raise RetryAfter(error["delay"], error["message"])
    if error["special"] == "Cancelled":
        raise Cancelled(error["message"])
    # Raised without a name: a frame that knows the error whose traceback knows the frame would be a circle.
    if error["special"] == "PermanentFailure":
        raise PermanentFailure(error["message"]) from _remote(error)
    raise _remote(error)


def _remote(error: dict[str, Any]) -> RemoteError:
    return RemoteError(error["type"], error["message"], error["traceback"], error["lineage"])
