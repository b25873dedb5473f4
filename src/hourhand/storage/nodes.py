"""Liveness and maintenance statements as typed methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg
import msgspec

from hourhand.core.errors import DatabaseUnavailable
from hourhand.storage.database import Database, Link, close_quietly, is_lost

MAINTAINER = "maintainer"


@dataclass(frozen=True, slots=True)
class Tick:
    """What there is to do, for the node that holds the duty."""

    held: bool
    granted: list[str]
    """Every duty that it has."""
    next: bool
    """Whether it is the one to take over."""
    next_in: float | None
    expired: bool
    held_back: bool
    """Whether runs are held back: what they are held by may be gone."""
    orphans: bool
    silent: list[int]
    unlocked: list[int]


class MaintenanceGateway:
    def __init__(self, link: Link) -> None:
        self._link = link

    @property
    def connected_at(self) -> float:
        return self._link.connected_at

    async def tick(
        self, node: int, seconds: float, others: Sequence[tuple[str, float, int]] = (), *, returning: bool = True
    ) -> Tick:
        """Of other duties than the maintainer's: the name, for how many seconds, and how much of it this node can do."""
        names, spans, ranks = zip((MAINTAINER, seconds, 0), *others, strict=True)
        return Tick(*(await self._link.fetch("tick", names, node, spans, ranks, returning))[0])

    async def take_duty(self, name: str, node: int, seconds: float, rank: int) -> bool:
        """Another duty than the maintainer's, by itself."""
        return bool((await self._link.fetch("take_duty", name, node, seconds, rank))[0][0])

    async def drop_duty(self, node: int) -> None:
        await self._link.fetch("drop_duty", MAINTAINER, node)

    async def declare_dead(self, node: int) -> bool:
        return bool(await self._link.fetch("declare_dead", node))

    async def recover(self, most_crashes: int) -> tuple[int, int, int, int]:
        """How many run again, ended as cancelled, are dead after too many crashes, and are lost."""
        row = (await self._link.fetch("recover", most_crashes))[0]
        return row["recovered"], row["cancelled"], row["buried"], row["lost"]

    async def promote(self, limit: int) -> tuple[int, float | None]:
        """How many became ready, and in how many seconds the next one is due."""
        row = (await self._link.fetch("promote", limit))[0]
        return row["moved"], row["next_in"]

    async def expire(self, limit: int) -> int:
        return len(await self._link.fetch("expire", limit))

    async def return_released(self, limit: int) -> int:
        """Of runs whose hold is gone."""
        return int((await self._link.fetch("return_released", limit))[0][0])

    async def tidy(self) -> dict[str, int]:
        return dict((await self._link.fetch("tidy"))[0])

    async def tidy_gates(self, limit: int) -> None:
        await self._link.fetch("return_streamless", limit)
        await self._link.fetch("tidy_gates", limit)

    async def report_tasks(self, facts: Sequence[tuple[str, float | None, float, float, float]]) -> None:
        """Each task's name, timeout, and how many runs took how long: number, mean, variance."""
        await self._link.fetch("report_tasks", *zip(*facts, strict=True))

    async def add_statistics(self, node: int, rows: Sequence[Mapping[str, Any]]) -> None:
        await self._link.fetch("add_statistics", node, msgspec.json.encode(rows).decode())

    async def merge_statistics(self) -> None:
        await self._link.fetch("merge_statistics")
        await self._link.fetch("thin_samples")

    async def take_sample(self, *, queues: bool = True, jobs: bool = True) -> None:
        """How full the queues are, and how many jobs there are."""
        await self._link.fetch("take_sample", queues, jobs)

    async def forget_statistics(self, seconds: float, limit: int) -> int:
        return int((await self._link.fetch("forget_statistics", seconds, limit))[0][0])

    async def stuck_runs(self) -> list[asyncpg.Record]:
        """The run, its task, its node, and for how many seconds it has gone on."""
        return await self._link.fetch("stuck_runs", 100)

    async def say_event(self, text: str) -> None:
        await self._link.fetch("say_event", text)

    async def add_partitions(self) -> int:
        return sum(row[0] for row in await self._link.fetch("add_partitions"))

    async def old_partitions(self, seconds: float) -> list[str]:
        return [row[0] for row in await self._link.fetch("old_partitions", seconds)]

    async def drop_partition(self, part: str) -> None:
        await self._link.fetch("drop_partition", part)

    async def forget(self, seconds: float, limit: int) -> int:
        """Rows beyond the retention that lie in no partition of their own."""
        return int((await self._link.fetch("forget", seconds, limit))[0][0])

    async def forget_incidents(self, seconds: float, limit: int) -> int:
        return int((await self._link.fetch("forget_incidents", seconds, limit))[0][0])

    async def collect_jobs(self, seconds: float, limit: int) -> int:
        return int((await self._link.fetch("collect_jobs", seconds, limit))[0][0])

    async def collect_schedules(self, limit: int) -> int:
        return int((await self._link.fetch("collect_schedules", limit))[0][0])

    async def close(self) -> None:
        await self._link.close()


class Session:
    """A node's own connection: its lock, its notifications, its heartbeat."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: asyncpg.Connection | None = None

    @property
    def connected(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    async def connect(self, on_notify: Callable[[str], None], on_loss: Callable[[], None]) -> None:
        """A fresh connection, listening where the connection is really ours."""
        self.drop()
        try:
            self._connection = await self._database.connect("session", session=True)
            self._connection.add_termination_listener(lambda _connection: on_loss())
            if self._database.sessions:
                await self._connection.add_listener(
                    self._database.schema, lambda _connection, _pid, _channel, word: on_notify(word)
                )
        except Exception as error:
            self.drop()
            if is_lost(error):
                raise DatabaseUnavailable(str(error)) from error
            raise

    async def _fetch(self, name: str, *args: Any) -> list[asyncpg.Record]:
        if self._connection is None or self._connection.is_closed():
            raise DatabaseUnavailable("the session's connection is lost")
        try:
            with self._database.trips.timed(name):
                return await self._connection.fetch(self._database.sql[name], *args)
        except Exception as error:
            # The session must not be given up for anything the database says: try again on a new one.
            if is_lost(error) or isinstance(error, asyncpg.PostgresError):
                self.drop()
                raise DatabaseUnavailable(f"the session's connection is lost: {error}") from error
            raise

    async def register_node(self, kind: str, name: str, lease: float, info: str) -> int:
        rows = await self._fetch("register_node", kind, name, lease, False, info)
        return int(rows[0][0])

    async def lock_node(self, node: int) -> bool:
        """False when a session before this one still holds the lock: ask again."""
        if not self._database.sessions:
            return True
        return bool((await self._fetch("lock_node", node))[0][0])

    async def heartbeat(self, node: int, lease: float, locked: bool, skew: float) -> tuple[float, list[int]] | None:
        """The database's time and which of our runs are asked to stop; None if we were declared dead."""
        rows = await self._fetch("heartbeat", node, lease, locked, skew)
        return (rows[0]["now"], rows[0]["cancels"]) if rows else None

    async def stop_node(self, node: int) -> None:
        await self._fetch("stop_node", node)

    def drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        await close_quietly(connection)
