"""The effect sink: what handlers did, written down by a process that no fault touches.

`python -m hourhand.surfaces.verify.sink SOCKET LOG` takes one JSON object a line, stamps it with a number and its own time,
and answers when the line is in the log: who got an answer is on record. It also behaves as a careful resource does: an
effect under a lower fence than the run's last one is refused, and the refusal is on record too.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
import threading
import time
import uuid
from contextlib import suppress
from io import BufferedRWPair
from pathlib import Path
from typing import Any, Literal

import msgspec

from hourhand.core.clock import Clock

MOST_BYTES = 2**20
PATIENCE = 30.0
_PAUSE = 0.05
_LOST_PEER = (OSError, asyncio.IncompleteReadError)
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

Kind = Literal["begin", "end", "effect", "refused"]


class Event(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One line of the log. The client says everything but `n` and `at`."""

    id: str
    """Made by the client: a line that was sent again because its answer was lost has the same."""
    kind: Kind
    run: str
    task: str
    job: str | None = None
    scheduled_at: str = ""
    attempt: int = 0
    fence: int = 0
    token: str = ""
    delivery: str = ""
    pid: int = 0
    worker: int = 0
    """The node that had claimed the run."""
    data: dict[str, Any] | None = None
    n: int = 0
    at: float = 0.0


class StaleFence(Exception):
    """A later claim of this run has had an effect already."""

    def __init__(self, number: int) -> None:
        super().__init__(f"the sink refused this effect, on record as {number}: a later claim of the run came before")
        self.number = number


class Sink:
    """The log, and the highest fence of each run. Both go on where an earlier process left off."""

    def __init__(self, path: str | Path) -> None:
        whole = _whole_lines(Path(path))
        self._number = 0
        self._fences: dict[str, int] = {}
        for event in _decode(whole):
            self._number = max(self._number, event.n)
            if event.kind == "effect":
                self._fences[event.run] = event.fence
        self._log = open(path, "ab")  # noqa: SIM115 - open for as long as the sink
        self._log.truncate(len(whole))

    def take(self, line: bytes) -> bytes:
        """Write one event down; the answer."""
        try:
            event = msgspec.json.decode(line, type=Event)
        except msgspec.MsgspecError as error:
            return f"error {' '.join(str(error).split())}\n".encode()
        answer = "ok"
        if event.kind == "effect":
            if event.fence < self._fences.get(event.run, event.fence):
                event.kind, answer = "refused", "refused"
            else:
                self._fences[event.run] = event.fence
        self._number += 1
        event.n, event.at = self._number, Clock.machine()
        self._log.write(msgspec.json.encode(event) + b"\n")
        self._log.flush()
        return f"{answer} {event.n}\n".encode()

    def close(self) -> None:
        self._log.close()

    async def serve(self, path: str | Path, stop: asyncio.Event) -> None:
        """Until `stop`. Says `ready` on standard output when it can be talked to."""
        with suppress(FileNotFoundError):
            os.unlink(path)
        server = await asyncio.start_unix_server(self._talk, path, limit=MOST_BYTES)
        print("ready", flush=True)
        await stop.wait()
        server.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # A line without an end is of a client that died over it.
            while (line := await reader.readline()).endswith(b"\n"):
                writer.write(self.take(line))
                await writer.drain()
        except (OSError, ValueError, asyncio.CancelledError):
            pass  # it is gone, it sends no lines, or the sink itself ends
        finally:
            writer.close()


class SinkClient:
    """For handlers: `record` from any thread, `record_async` from one event loop."""

    def __init__(self, path: str | Path, patience: float = PATIENCE) -> None:
        self._path = str(path)
        self._patience = patience
        self._lock = threading.Lock()
        self._stream: BufferedRWPair | None = None
        self._turn = asyncio.Lock()
        self._streams: _Streams | None = None

    def record(self, **event: Any) -> int:
        """The number under which the event is on record. Raises StaleFence if that is a refusal."""
        frame = _frame(event)
        deadline = Clock.monotonic() + self._patience
        with self._lock:
            while True:
                try:
                    return _understand(self._exchange(frame))
                except OSError as error:
                    if Clock.monotonic() >= deadline:
                        raise ConnectionError(f"no answer from the sink at {self._path}: {error}") from error
                    time.sleep(_PAUSE)

    async def record_async(self, **event: Any) -> int:
        """The same, without holding up the event loop."""
        frame = _frame(event)
        deadline = Clock.monotonic() + self._patience
        async with self._turn:
            while True:
                try:
                    return _understand(await self._exchange_async(frame))
                except _LOST_PEER as error:
                    if Clock.monotonic() >= deadline:
                        raise ConnectionError(f"no answer from the sink at {self._path}: {error}") from error
                    await asyncio.sleep(_PAUSE)

    def close(self) -> None:
        """The connection of `record`; the next event opens a new one."""
        self._drop()

    async def close_async(self) -> None:
        """The connection of `record_async`."""
        streams = self._drop_async()
        if streams is not None:
            with suppress(OSError):
                await streams[1].wait_closed()

    def _exchange(self, frame: bytes) -> bytes:
        try:
            if self._stream is None:
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.settimeout(self._patience)
                    connection.connect(self._path)
                    # The file keeps the connection open after the socket object is closed.
                    self._stream = connection.makefile("rwb")
            self._stream.write(frame)
            self._stream.flush()
            answer = self._stream.readline()
            if not answer.endswith(b"\n"):
                raise ConnectionResetError("it hung up")
        except BaseException:
            # An answer that nobody waited for would be taken for that of the next event.
            self._drop()
            raise
        return answer

    async def _exchange_async(self, frame: bytes) -> bytes:
        try:
            if self._streams is None:
                self._streams = await asyncio.open_unix_connection(self._path)
            reader, writer = self._streams
            writer.write(frame)
            await writer.drain()
            async with asyncio.timeout(self._patience):
                return await reader.readuntil(b"\n")
        except BaseException:
            self._drop_async()
            raise

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            with suppress(OSError):
                stream.close()

    def _drop_async(self) -> _Streams | None:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
        return streams


def read_log(path: str | Path) -> list[Event]:
    """Everything on record, in order, each event once. A last line that is not whole was never answered."""
    seen: set[str] = set()
    events = []
    for event in _decode(_whole_lines(Path(path))):
        if event.id not in seen:
            seen.add(event.id)
            events.append(event)
    return events


def _whole_lines(path: Path) -> bytes:
    content = path.read_bytes() if path.exists() else b""
    return content[: content.rfind(b"\n") + 1]


def _decode(lines: bytes) -> list[Event]:
    return msgspec.json.Decoder(Event).decode_lines(lines)


def _frame(event: dict[str, Any]) -> bytes:
    frame = msgspec.json.encode({"id": uuid.uuid4().hex, "pid": os.getpid(), **event}) + b"\n"
    if len(frame) >= MOST_BYTES:
        raise ValueError(f"an event of {len(frame):,} bytes is too large for the sink")
    return frame


def _understand(answer: bytes) -> int:
    word, _, rest = answer.decode().strip().partition(" ")
    if word == "refused":
        raise StaleFence(int(rest))
    if word != "ok":
        raise ValueError(f"the sink does not take this event: {rest}")
    return int(rest)


async def _run(socket_path: str, log_path: str) -> None:
    stop = asyncio.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(one, stop.set)
    if stat.S_ISFIFO(os.fstat(0).st_mode) or stat.S_ISSOCK(os.fstat(0).st_mode):
        # Nobody writes there: it is readable when whoever started us is gone.
        asyncio.get_running_loop().add_reader(0, stop.set)
    sink = Sink(log_path)
    try:
        await sink.serve(socket_path, stop)
    finally:
        sink.close()


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python -m hourhand.surfaces.verify.sink SOCKET_PATH LOG_PATH")
    asyncio.run(_run(sys.argv[1], sys.argv[2]))


if __name__ == "__main__":
    main()
