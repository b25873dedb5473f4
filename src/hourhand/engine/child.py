"""The program of a child process: `python -m hourhand.engine.child REFERENCE FD`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import resource
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from hourhand.core.context import RUN, Context, Support
from hourhand.core.errors import Cancelled, PermanentFailure, RetryAfter
from hourhand.core.failure import MAX_MESSAGE, MAX_TRACEBACK
from hourhand.core.lines import Line, Pen
from hourhand.core.payload import check_report, encode_result
from hourhand.core.redaction import Clean
from hourhand.core.registry import Registry
from hourhand.core.settings import Settings
from hourhand.core.tracing import carried, read
from hourhand.engine.delivery import EXACTLY_ONCE, RECORDED, atomically
from hourhand.engine.exporting import configure_traces, flush_traces
from hourhand.engine.logs import inherit_logs
from hourhand.engine.office import StepOffice
from hourhand.engine.reference import load_registry
from hourhand.engine.secrecy import Secrecy
from hourhand.storage.atomic import Holder, RunTransaction
from hourhand.storage.database import Database
from hourhand.storage.effects import effect_gateway
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

    def report(self, data: dict[str, Any]) -> None:
        check_report(data)
        self.send({"progress": data})

    def say(self, context: Context, line: Line) -> None:
        self.send({"line": [line.level, line.text, line.fields], "of": [context.run_number, context.fence]})

    def _read(self) -> None:
        stream = self._connection.makefile("rb")
        while True:
            head = stream.read(4)
            if len(head) < 4:
                os._exit(0)  # the parent is gone, and with it the claim
            self.inbox.put(msgspec.json.decode(stream.read(int.from_bytes(head, "big"))))


def describe(error: BaseException, clean: Clean | None) -> dict[str, Any]:
    words, trace = str(error), "".join(traceback.format_exception(error))
    if clean is not None:
        words, trace = clean(words), clean(trace)
    special = next((kind.__name__ for kind in _SPECIAL if isinstance(error, kind)), None)
    return {
        "type": type(error).__qualname__,
        "lineage": [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__],
        "message": words[:MAX_MESSAGE],
        "traceback": trace[-MAX_TRACEBACK:],
        "special": special,
        "delay": getattr(error, "delay", None) if special == "RetryAfter" else None,
    }


class Desk:
    """The database, for the runs that need it: opened by the first."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._loop = asyncio.get_running_loop()
        self._opening = asyncio.Lock()
        self._opened: tuple[Database, StepOffice] | None = None

    async def open(self) -> tuple[Database, StepOffice]:
        async with self._opening:
            if self._opened is None:
                database = Database(self.settings)
                await database.open(migrate_embedded=False)
                self._opened = database, StepOffice(effect_gateway(database), self._loop)
        return self._opened

    async def once(self, context: Context, name: str, make: Callable[[], Any]) -> Any:
        return await (await self.open())[1].once(context, name, make)

    def once_sync(self, context: Context, name: str, make: Callable[[], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(self.open(), self._loop).result()[1].once_sync(context, name, make)


async def execute(registry: Registry, order: dict[str, Any], pipe: Pipe, desk: Desk) -> dict[str, Any]:
    definition, secrecy = registry.everything()[order["task"]], Secrecy(registry, desk.settings.secret_names)
    claim = SimpleNamespace(
        run_number=order["run"], job_number=order["job"], scheduled_at=datetime.fromisoformat(order["scheduled_at"]),
        attempt=order["attempt"] - 1,
        **{name: order[name] for name in ("task", "queue", "tags", "token", "worker", "options", "payload")},
    )  # fmt: skip
    support = Support(
        lambda _run, data: pipe.report(data), registry.state, desk,
        lambda context: Pen(desk.settings.log_lines, lambda line: pipe.say(context, line), secrecy.clean(claim, context.task)),
    )  # fmt: skip
    context = Context(claim, support)
    # In a thread, as in a worker: what a blocking handler may do there, it may do here.
    call = direct_call(definition, registry.middleware, asyncio.to_thread)
    limit_memory(order["memory"])
    RUN.set(context)
    try:
        if order["delivery"] == EXACTLY_ONCE:
            holder = Holder(claim.worker, context.run_number, claim.token)
            transaction = RunTransaction((await desk.open())[0], holder, context.token, asyncio.to_thread)
            active = SimpleNamespace(
                context=context, claim=claim, started=order["started"], closing=False, in_thread=False, cause=None,
                onward=order["onward"],
            )  # fmt: skip
            outcome = await atomically(active, transaction, call, order["payload"], desk.settings.max_result)
            return {"recorded": outcome is RECORDED}
        # Looked at here, so that a giant is not sent to the parent only to be thrown away.
        text, remark = encode_result(await call(context, order["payload"]), desk.settings.max_result)
        return {"result": text, "remark": remark}
    except BaseException as error:  # whatever it is, it belongs to the run
        return {"error": describe(error, secrecy.clean(claim, context.task)), "spent": isinstance(error, MemoryError)}
    finally:
        RUN.set(None)
        limit_memory(0)


def limit_memory(size: int) -> None:
    """Address space for the handler: it meets its own MemoryError before the machine runs out."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = size or hard
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def go_first() -> None:
    """If the machine runs out of memory all the same, the kernel is to end this process rather than its parent."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


async def main(reference: str, fd: int) -> None:
    inherit_logs()
    go_first()
    pipe = Pipe(socket.socket(fileno=fd))
    try:
        registry, settings = load_registry(reference, os.environ)
        await run_hooks(registry.startup, registry)
        configure_traces("worker")
    except BaseException as error:
        pipe.send({"failed": "".join(traceback.format_exception_only(error)).strip()})
        return
    pipe.send({"ready": True})
    loop, desk = asyncio.get_running_loop(), Desk(settings)
    flushing: asyncio.Future[None] | None = None
    while True:
        order = await loop.run_in_executor(None, pipe.inbox.get)
        with carried(read(order["trace"])):
            answer = await execute(registry, order, pipe, desk)
        pipe.send(answer)
        if order["trace"] is not None and (flushing is None or flushing.done()):
            # A child is killed when it is not needed any more: what it has to tell goes out now, and nobody waits for it.
            flushing = loop.run_in_executor(None, flush_traces)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
