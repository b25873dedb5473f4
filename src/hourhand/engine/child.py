"""The program of a child process: `python -m hourhand.engine.child REFERENCE FD`."""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import sys
import threading
import traceback
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import msgspec

from hourhand.core.context import Context
from hourhand.core.errors import Cancelled, PermanentFailure, RetryAfter
from hourhand.core.failure import MAX_MESSAGE, MAX_TRACEBACK
from hourhand.core.payload import dump
from hourhand.core.registry import Registry
from hourhand.engine.logs import inherit_logs
from hourhand.engine.reference import load_registry
from hourhand.targets.python import direct_call, run_hooks

_SPECIAL = (PermanentFailure, RetryAfter, Cancelled)


class Pipe:
    """Frames to the parent; a thread reads, so that the parent's end is noticed while a handler blocks."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self.inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, message: dict[str, Any]) -> None:
        body = msgspec.json.encode(message)
        with self._lock:
            self._connection.sendall(len(body).to_bytes(4, "big") + body)

    def _read(self) -> None:
        stream = self._connection.makefile("rb")
        while True:
            head = stream.read(4)
            if len(head) < 4:
                os._exit(0)  # the parent is gone, and with it the claim
            self.inbox.put(msgspec.json.decode(stream.read(int.from_bytes(head, "big"))))


def describe(error: BaseException) -> dict[str, Any]:
    special = next((kind.__name__ for kind in _SPECIAL if isinstance(error, kind)), None)
    return {
        "type": type(error).__qualname__,
        "lineage": [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__],
        "message": str(error)[:MAX_MESSAGE],
        "traceback": "".join(traceback.format_exception(error))[-MAX_TRACEBACK:],
        "special": special,
        "delay": getattr(error, "delay", None) if special == "RetryAfter" else None,
    }


async def execute(registry: Registry, order: dict[str, Any], pipe: Pipe) -> dict[str, Any]:
    definition = registry.tasks[order["task"]]
    ctx = Context(
        order["run"], order["job"], order["task"], datetime.fromisoformat(order["scheduled_at"]), order["attempt"],
        SimpleNamespace(queue=order["queue"], tags=order["tags"]),
        lambda _run, data: pipe.send({"progress": data}), registry.state,
    )  # fmt: skip
    # In a thread, as in a worker: what a blocking handler may do there, it may do here.
    call = direct_call(definition, registry.middleware, asyncio.to_thread)
    try:
        result = await call(ctx, order["payload"])
        return {"result": None if result is None else dump(result, "the result").decode()}
    except BaseException as error:  # whatever it is, it belongs to the run
        return {"error": describe(error)}


async def main(reference: str, fd: int) -> None:
    inherit_logs()
    pipe = Pipe(socket.socket(fileno=fd))
    try:
        registry = load_registry(reference, os.environ)
        await run_hooks(registry.startup, registry)
    except BaseException as error:
        pipe.send({"failed": "".join(traceback.format_exception_only(error)).strip()})
        return
    pipe.send({"ready": True})
    loop = asyncio.get_running_loop()
    while True:
        order = await loop.run_in_executor(None, pipe.inbox.get)
        pipe.send(await execute(registry, order, pipe))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
