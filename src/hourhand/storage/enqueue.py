"""Putting runs in: one by the SQL function, many by COPY; waking the workers without hurry."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from contextvars import Context
from datetime import datetime
from functools import partial
from typing import Any

import asyncpg

from hourhand.core.clock import Clock
from hourhand.core.errors import HourhandError, InvalidOption, LockTimeout, QueueFull, StatementRefused
from hourhand.core.fairness import lane_of
from hourhand.core.options import EnqueueOptions
from hourhand.core.sealing import Sealer
from hourhand.core.tracing import Doing, enqueueing
from hourhand.storage.database import Database, Link, queue_full
from hourhand.storage.flow import COPY_CHUNK, Flow, Payloads, chunks

WAKE_EVERY = 0.005
SILENCE = 1.0
"""Seconds for which runs go without their words, where a word would have kept its run waiting."""
_NOTHING = [None] * 5
_SHARED = ("run_id", "scheduled_at", "enqueued_at", "expires_at", "lane", "task", "payload", "tags", "options")


class Waker:
    """NOTIFY apart from the commit that waits for the disk, at most one per WAKE_EVERY.

    The first word goes out at once; words that come within the pause are sent together at its end.
    A lost word costs latency, never a run: workers also look by themselves.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lowest: dict[int, int] = {}
        self._words: set[str] = set()
        self._sender: asyncio.Task[None] | None = None

    def wake(self, lane: int, seq: int) -> None:
        lowest = self._lowest.get(lane)
        self._lowest[lane] = seq if lowest is None else min(seq, lowest)
        self._start()

    def say(self, words: list[str]) -> None:
        self._words.update(words)
        self._start()

    @property
    def silent(self) -> bool:
        """Nothing was said within the pause."""
        return self._sender is None or self._sender.done()

    def told(self) -> None:
        """A word goes out with its run: the pause begins."""
        self._start(WAKE_EVERY)

    def _start(self, after: float = 0.0) -> None:
        if self.silent:
            self._sender = asyncio.create_task(self._send(after), name="hourhand-waker", context=Context())

    async def _send(self, after: float) -> None:
        if after:
            await asyncio.sleep(after)
        while self._lowest or self._words:
            words = [f"r:{lane}:{seq}" for lane, seq in self._lowest.items()] + sorted(self._words)
            self._lowest, self._words = {}, set()
            try:
                await self._database.fetch("notify", words)
            except HourhandError:
                return
            await asyncio.sleep(WAKE_EVERY)

    async def close(self) -> None:
        if self._sender is not None:
            await asyncio.wait([self._sender], timeout=1.0)


class Combiner:
    """Plain runs over one connection. Those that arrive while a statement is under way share the next.

    One caller at a time pays one commit, as it must; a thousand at a time share a few. The workers hear of them.
    """

    def __init__(self, link: Link, waker: Waker) -> None:
        self._link = link
        self._waker = waker
        self._may_tell: bool | None = None
        self._silent_until = 0.0
        self._busy = False
        self._waiting: list[tuple[int, str, str, str | None, asyncio.Future[int | None]]] = []
        self._sender: asyncio.Task[None] | None = None

    async def enqueue(self, lane: int, task: str, payload: str, options: str | None) -> int | None:
        """None: its queue's depth is limited, and it is not for a plain statement to judge."""
        if self._busy:
            future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
            self._waiting.append((lane, task, payload, options, future))
            return await future
        self._busy = True
        try:
            return await self._put(lane, task, payload, options)
        finally:
            if self._waiting:
                self._sender = asyncio.create_task(self._send(), name="hourhand-enqueuer", context=Context())
            else:
                self._busy = False

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:COPY_CHUNK], self._waiting[COPY_CHUNK:]
            lanes, tasks, payloads, options, futures = zip(*batch, strict=True)
            try:
                rows = await self._link.fetch("enqueue_plains", lanes, tasks, payloads, options)
                outcomes: list[int | BaseException | None] = [row[0] for row in rows]
                for lane, row in zip(lanes, rows, strict=False):  # all, or none
                    self._waker.wake(lane, row[0])
                if not rows:
                    outcomes = [await self._alone(*one[:4]) for one in batch]
            except StatementRefused:
                outcomes = [await self._alone(*one[:4]) for one in batch]
            except Exception as error:
                outcomes = [error] * len(batch)
            for future, outcome in zip(futures, outcomes, strict=True):
                if future.done():
                    continue
                if isinstance(outcome, BaseException):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)
        self._busy = False

    async def _alone(self, lane: int, task: str, payload: str, options: str | None) -> int | BaseException | None:
        try:
            return await self._put(lane, task, payload, options)
        except Exception as error:
            return error

    async def _put(self, lane: int, task: str, payload: str, options: str | None) -> int | None:
        if await self._tells():
            self._waker.told()
            try:
                run: int | None = (await self._link.call("enqueue_told", lane, task, payload, options))[0]
            except (LockTimeout, StatementRefused):
                # Nothing is in yet. If it was the word (others hold NOTIFY's lock, or its queue is full), the run does not wait for that.
                self._silent_until = Clock.monotonic() + SILENCE
            else:
                return run
        rows = await self._link.fetch("enqueue_plain", lane, task, payload, options)
        for row in rows:
            self._waker.wake(lane, row[0])
        return rows[0][0] if rows else None

    async def _tells(self) -> bool:
        """Whether a run takes its word along."""
        if self._link.pooled or not self._waker.silent or Clock.monotonic() < self._silent_until:
            return False
        if self._may_tell is None:
            self._may_tell = bool((await self._link.fetch("may_tell"))[0][0])
        return self._may_tell

    async def close(self) -> None:
        if self._sender is not None:
            await asyncio.wait([self._sender], timeout=5.0)
        await self._link.close()


def call_arguments(
    task: str, payload: str, queue: str, priority: str, options: EnqueueOptions, sealer: Sealer
) -> tuple[Any, ...]:  # fmt: skip
    """The SQL function's parameters, in its order; sealed, if this process has keys."""
    return (
        task, sealer.seal(payload, task), queue, priority, options.delay, options.at, options.expires, options.expires_at,
        options.key, list(options.tags) or None, options.kept_json(sealer.seal_steps),
    )  # fmt: skip


class EnqueueGateway:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._waker = Waker(database)
        self._combiner = Combiner(database.link("enqueuer"), self._waker)
        self._queues: dict[str, int] = {}

    async def enqueue(self, arguments: tuple[Any, ...], doing: Doing | None = None) -> tuple[int, bool]:
        """`doing`: the trace that it is a part of."""
        task, payload, queue, priority, delay, at, *rest = arguments
        kept = rest[-1] if doing is None else doing.kept(rest[-1])
        if delay is None and at is None and rest == _NOTHING:
            lane = lane_of(await self.queue_number(queue), priority)
            run = await self._combiner.enqueue(lane, task, payload, kept)
            if run is not None:
                return run, False
        # With a time in it the run may be due at once or not: the function knows, and tells the workers.
        timed = delay is not None or at is not None
        number, duplicate, lane = (await self._database.fetch("enqueue", *arguments[:-1], kept, timed))[0]
        if not duplicate and not timed:
            self._waker.wake(lane, number)
        return number, duplicate

    async def queue_number(self, queue: str) -> int:
        """Queues are never removed, so a number once known stays right."""
        number = self._queues.get(queue)
        if number is None:
            # Committed at once: a number that a transaction takes back with it must not be remembered.
            number = self._queues[queue] = int((await self._database.apart("queue_number", queue))[0][0])
        return number

    async def stream(
        self, task: str, payloads: Payloads, queue: str, priority: str, options: EnqueueOptions, flow: Flow
    ) -> Sequence[int]:
        """COPY, each chunk committed by itself; where the queue is full, wait for room."""
        made = array("q")
        async for chunk in chunks(payloads, flow.commit_every or COPY_CHUNK):
            try:
                made.extend(await flow.with_room(partial(self.enqueue_many, task, chunk, queue, priority, options)))
            except QueueFull as full:
                full.enqueued = made
                raise
        return made

    async def enqueue_many(
        self, task: str, payloads: Payloads, queue: str, priority: str, options: EnqueueOptions,
        connection: asyncpg.Connection | None = None,
    ) -> Sequence[int]:  # fmt: skip
        """COPY, in chunks: all of them or none, on our own connection or as a part of the caller's transaction."""
        if options.key is not None:
            raise InvalidOption("key= names one run; enqueue_many makes many. Enqueue keyed runs one by one")
        kept, doing = options.kept_json(self._database.sealer.seal_steps), enqueueing(task, queue)
        if doing is None:
            return await self._many(task, payloads, queue, priority, options, connection, kept)
        with doing:
            numbers = await self._many(task, payloads, queue, priority, options, connection, doing.kept(kept))
            doing.note({"messaging.batch.message_count": len(numbers)})
        return numbers

    async def _many(
        self, task: str, payloads: Payloads, queue: str, priority: str, options: EnqueueOptions,
        connection: asyncpg.Connection | None, kept: str | None,
    ) -> Sequence[int]:  # fmt: skip
        # Before a connection is taken: with every one of the pool's in such hands nobody could go on.
        lane = lane_of(await self.queue_number(queue), priority)
        if connection is not None:
            # A savepoint inside the caller's transaction: an error that the caller survives leaves no half.
            try:
                async with connection.transaction():
                    numbers, words = await self._copy(connection, task, payloads, lane, options, kept)
                    await connection.execute(self._database.sql["notify"], words)
            except asyncpg.PostgresError as error:
                raise queue_full(error) or error from error
            except asyncpg.InternalClientError as error:
                raise InvalidOption(
                    f"COPY cannot use this connection's own codecs ({error}); enqueue one by one instead"
                ) from error
            return numbers

        async def whole(own: asyncpg.Connection) -> tuple[Sequence[int], list[str]]:
            async with own.transaction():
                return await self._copy(own, task, payloads, lane, options, kept)

        numbers, words = await self._database.using(whole)
        if words:
            self._waker.say(words)
        return numbers

    async def _copy(
        self, connection: asyncpg.Connection, task: str, payloads: Payloads, lane: int, options: EnqueueOptions,
        kept: str | None,
    ) -> tuple[Sequence[int], list[str]]:  # fmt: skip
        numbers = array("q")
        words: dict[str, str] = {}
        sealer = self._database.sealer
        tags = list(options.tags) or None
        async for chunk in chunks(payloads, COPY_CHUNK):
            if sealer.active:
                # A third of a second for a whole chunk: not on the event loop.
                chunk = await asyncio.to_thread(sealer.seal_all, chunk, task)
            with self._database.trips.timed("reserve_runs"):
                taken = (await connection.fetch(self._database.sql["reserve_runs"], len(chunk), lane))[0]
            present: datetime = taken["present"]
            due = options.at or (present + options.delay if options.delay else None)
            later = due is not None and due > present
            expires = options.expires_at or (present + options.expires if options.expires else None)
            rest = (due or present, present if due else None, expires, lane, task)
            if taken["bounded"] and not later:
                await connection.execute(self._database.sql["make_room"], lane // 4, len(chunk))
            places: Sequence[int] = taken["numbers"] or range(taken["first"], taken["first"] + len(chunk))
            with self._database.trips.timed("copy"):
                await connection.copy_records_to_table(
                    "delayed" if later else "ready", schema_name=self._database.schema,
                    columns=("due_at" if later else "seq", *_SHARED),
                    records=[
                        (due if later else place, place, *rest, payload, tags, kept)
                        for place, payload in zip(places, chunk, strict=True)
                    ],
                )  # fmt: skip
            numbers.extend(places)
            words.setdefault("d" if later else "r", "d" if later else f"r:{lane}:{places[0]}")
        return numbers, list(words.values())

    async def close(self) -> None:
        await self._combiner.close()
        await self._waker.close()
