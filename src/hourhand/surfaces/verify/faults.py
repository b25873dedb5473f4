"""Everything that `hourhand verify` does to a running system."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from random import Random
from typing import ClassVar

import asyncpg

from hourhand.core.clock import Clock
from hourhand.core.errors import ConfigurationError
from hourhand.surfaces.verify.arena import Arena, Fault, Trace, refused
from hourhand.surfaces.verify.backends import OURS, connect, terminate_backend
from hourhand.surfaces.verify.passage import Mode
from hourhand.surfaces.verify.processes import Member, skewed_environment
from hourhand.surfaces.verify.proxy import Proxy

_PARTITIONS = (Mode.blackhole, Mode.reset, Mode.delay, Mode.cut_after_commit)
_SKEWS = (-3600.0, -5.0, 5.0, 3600.0)
_LONG_LOCK = 60.0
_LAG = 1.0
"""Seconds of commits that a standby without a say has not received when its primary dies."""
_MOST_CONNECTIONS = 2000
_OPENED_AT_ONCE = 10


class _OnProcess(Fault):
    kind: ClassVar[str | None] = None
    member: Member | None = None

    def choose(self, arena: Arena, trace: Trace) -> Member:
        running = arena.crew.of(self.kind)
        if not running:
            raise LookupError(f"no {self.kind or 'process'} is running")
        self.member = self.rng.choice(running)
        trace.target = self.member.name
        trace.detail["pid"] = self.member.pid
        return self.member


class _Kill(_OnProcess):
    """kill -9; a supervisor starts it again, some time later."""

    word = "kill"

    async def strike(self, arena: Arena, trace: Trace) -> None:
        member = self.choose(arena, trace)
        trace.stamp()
        await arena.crew.kill(member)
        self.hold = self.rng.uniform(0.0, 1.5) * arena.settings.lease

    async def mend(self, arena: Arena, trace: Trace) -> None:
        if self.member is not None and self.member.wanted and not self.member.alive:
            await arena.crew.restart(self.member, skew=self.member.skew)


class KillWorker(_Kill):
    name, kind = "kill worker", "worker"


class KillScheduler(_Kill):
    name, kind = "kill scheduler", "scheduler"


class _Pause(_OnProcess):
    """SIGSTOP for longer than the lease: it wakes up, not knowing, after others were given what it had."""

    word = "pause"

    async def strike(self, arena: Arena, trace: Trace) -> None:
        member = self.choose(arena, trace)
        trace.stamp()
        arena.crew.pause(member)
        self.hold = self.rng.uniform(1.2, 2.0) * arena.settings.lease

    async def mend(self, arena: Arena, trace: Trace) -> None:
        if self.member is not None:
            arena.crew.resume(self.member)


class PauseWorker(_Pause):
    name, kind = "pause worker", "worker"


class PauseScheduler(_Pause):
    """At the worst moments: it falls asleep while it fires what this second has brought, and wakes up when the next things
    are due, not knowing that they are somebody else's by now."""

    name, kind = "pause scheduler", "scheduler"

    async def strike(self, arena: Arena, trace: Trace) -> None:
        await self._begin_of_a_second()
        await super().strike(arena, trace)

    async def mend(self, arena: Arena, trace: Trace) -> None:
        await self._begin_of_a_second()
        await super().mend(arena, trace)

    async def _begin_of_a_second(self) -> None:
        await asyncio.sleep(1 - Clock.machine() % 1 + self.rng.uniform(0.0, 0.03))


class Skew(_OnProcess):
    """A process that starts on a machine whose clock is off."""

    name = word = "skew"

    async def strike(self, arena: Arena, trace: Trace) -> None:
        member = self.choose(arena, trace)
        trace.detail["seconds"] = skew = self.rng.choice(_SKEWS)
        trace.stamp()
        await arena.crew.restart(member, skew=skew)
        self.hold = self.rng.uniform(1.5, 3.0) * arena.settings.lease

    async def mend(self, arena: Arena, trace: Trace) -> None:
        if self.member is not None and self.member.wanted and self.member.skew is not None:
            await arena.crew.restart(self.member, skew=None)


class Partition(Fault):
    """One process loses its way to the database; the others do not."""

    name = word = "partition"

    def __init__(self, rng: Random, mode: Mode | None = None) -> None:
        super().__init__(rng)
        self._mode = mode
        self._proxy: Proxy | None = None

    async def strike(self, arena: Arena, trace: Trace) -> None:
        members = arena.crew.members
        names = sorted(name for name in arena.proxies if name not in members or members[name].alive)
        if not names:
            raise LookupError("no process has a proxy")
        trace.target = self.rng.choice(names)
        proxy = self._proxy = arena.proxies[trace.target]
        lease = arena.settings.lease
        trace.detail["mode"] = mode = self._mode or self.rng.choice(_PARTITIONS)
        trace.detail["connections"] = proxy.standing
        trace.stamp()
        match mode:
            case Mode.blackhole:
                self.hold = self.rng.uniform(0.3, 2.0) * lease
                proxy.blackhole()
            case Mode.reset:
                self.hold = self.rng.uniform(0.05, 0.5) * lease
                proxy.reset()
            case Mode.delay:
                self.hold = self.rng.uniform(0.5, 1.5) * lease
                trace.detail["seconds"] = seconds = self.rng.uniform(0.02, 0.5)
                proxy.delay(seconds)
            case _:
                self.hold = 2.0 * lease
                trace.detail["times"] = times = self.rng.randint(1, 5)
                trace.detail["answered"] = answered = self.rng.random() < 0.5
                trace.detail["cuts"] = -proxy.counters.cuts
                proxy.cut_after_commit(times, answered=answered, matching=lambda text: f"{arena.schema}." in text)

    async def last(self) -> None:
        deadline = Clock.monotonic() + self.hold
        while self._proxy is not None and (left := deadline - Clock.monotonic()) > 0:
            if self._proxy.mode is Mode.passing:
                return
            await asyncio.sleep(min(left, 0.05))

    async def mend(self, arena: Arena, trace: Trace) -> None:
        if self._proxy is not None:
            self._proxy.passing()
            if "cuts" in trace.detail:
                trace.detail["cuts"] += self._proxy.counters.cuts


class KillBackend(Fault):
    """One connection's process in the server ends: in order, or, if the server is ours, by kill -9, which ends them all."""

    name, word = "kill backend", "kill"

    async def strike(self, arena: Arena, trace: Trace) -> None:
        trace.target = "server"
        if arena.server is not None and self.rng.random() < 0.5:
            trace.detail["how"] = "kill -9"
            trace.healed_at = await arena.server.kill_backend(OURS, self.rng)
        else:
            trace.detail["how"] = "pg_terminate_backend"
            ports = {port for proxy in arena.proxies.values() for port in proxy.upstream_ports()}
            trace.detail["pid"] = await terminate_backend(arena.admin_url, OURS, self.rng, ports)
            trace.healed_at = Clock.monotonic()


class RestartServer(Fault):
    name, word, needs_server = "restart server", "restart", True

    async def strike(self, arena: Arena, trace: Trace) -> None:
        trace.target = "server"
        if arena.server is not None:
            trace.healed_at = await arena.server.restart()


class KillPostmaster(Fault):
    name, word, needs_server = "kill postmaster", "restart", True

    async def strike(self, arena: Arena, trace: Trace) -> None:
        trace.target = "server"
        if arena.server is not None:
            trace.healed_at = await arena.server.kill_postmaster()


class PromoteStandby(Fault):
    """The primary dies for good; its synchronous standby takes over, at another address."""

    name, word, needs_server = "promote standby", "standby", True
    synchronous: ClassVar[bool] = True

    async def strike(self, arena: Arena, trace: Trace) -> None:
        old = arena.server
        if old is None:
            raise refused(self.word)
        directory = arena.directory / f"standby-{len(arena.retired) + 1}"
        standby = await old.make_standby(directory, synchronous=self.synchronous)
        trace.target = "server"
        if not self.synchronous:
            await standby.stop_receiving()
            await asyncio.sleep(_LAG)
        trace.stamp()
        arena.retired.append(old)
        arena.server = standby
        await old.kill()
        trace.detail["promoted_at"] = await standby.promote()
        for proxy in arena.proxies.values():
            proxy.upstream = (standby.host, standby.port)
        trace.detail["port"] = standby.port
        trace.healed_at = Clock.monotonic()


class PromoteLaggingStandby(PromoteStandby):
    """The same with asynchronous replication: what was acknowledged last is lost, and the check has to say so."""

    name, word, synchronous = "promote lagging standby", "async-standby", False


class _OnConnection(Fault):
    """Something that lasts as long as the connections it is done with."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._held: list[asyncpg.Connection] = []

    async def mend(self, arena: Arena, trace: Trace) -> None:
        held, self._held = self._held, []
        # The server may have been restarted meanwhile, and what we did with it.
        trace.detail["lost"] = sum(connection.is_closed() for connection in held)
        await asyncio.gather(*(_close(connection) for connection in held))


class LockTable(_OnConnection):
    name, word = "lock table", "lock"
    table: ClassVar[str] = "jobs"

    async def strike(self, arena: Arena, trace: Trace) -> None:
        connection = await connect(arena.admin_url)
        self._held.append(connection)
        trace.target = f"{arena.schema}.{self.table}"
        await connection.execute("SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = 0; BEGIN")
        try:
            await connection.execute(f"LOCK TABLE {arena.schema}.{self.table} IN ACCESS EXCLUSIVE MODE")
        except asyncpg.LockNotAvailableError:
            await _close(self._held.pop())
            raise LookupError(f"{trace.target} was in use for so long that it could not be locked") from None
        trace.stamp()
        self.hold = _LONG_LOCK if self.rng.random() < 0.3 else self.rng.uniform(0.2, 1.5) * arena.settings.lease


class ExhaustConnections(_OnConnection):
    name, word = "exhaust connections", "connections"

    async def strike(self, arena: Arena, trace: Trace) -> None:
        trace.target = "server"
        refusal: BaseException | None = None
        while refusal is None and len(self._held) < _MOST_CONNECTIONS:
            tries = (connect(arena.admin_url) for _ in range(_OPENED_AT_ONCE))
            for opened in await asyncio.gather(*tries, return_exceptions=True):
                if isinstance(opened, BaseException):
                    refusal = opened
                else:
                    self._held.append(opened)
        trace.stamp()
        trace.detail["opened"] = len(self._held)
        trace.detail["refused"] = str(refusal) if refusal is not None else None
        self.hold = self.rng.uniform(0.5, 1.5) * arena.settings.lease


class IdleTransaction(_OnConnection):
    """A forgotten snapshot: nothing that was deleted since can be cleaned up."""

    name, word, lasting = "idle transaction", "idle", True

    async def strike(self, arena: Arena, trace: Trace) -> None:
        connection = await connect(arena.admin_url)
        self._held.append(connection)
        trace.target = "server"
        await connection.execute("SET idle_in_transaction_session_timeout = 0; BEGIN ISOLATION LEVEL REPEATABLE READ")
        trace.detail["snapshot"] = str(await connection.fetchval("SELECT pg_current_snapshot()::text"))
        trace.stamp()
        self.hold = math.inf


async def _close(connection: asyncpg.Connection) -> None:
    try:
        await connection.close(timeout=5)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
        connection.terminate()


FAULTS: dict[str, tuple[type[Fault], ...]] = {
    "kill": (KillWorker, KillScheduler, KillBackend),
    "pause": (PauseWorker, PauseScheduler),
    "partition": (Partition,),
    "restart": (RestartServer, KillPostmaster),
    "skew": (Skew,),
    "lock": (LockTable,),
    "connections": (ExhaustConnections,),
    "idle": (IdleTransaction,),
    "standby": (PromoteStandby,),
    "async-standby": (PromoteLaggingStandby,),
}


def parse_faults(text: str) -> tuple[str, ...]:
    """The words of a list separated by commas, each once."""
    words = tuple(dict.fromkeys(word for part in text.split(",") if (word := part.strip().lower())))
    known = ", ".join(FAULTS)
    if not words:
        raise ConfigurationError(f"no fault is named; the faults are {known}")
    for word in words:
        if word not in FAULTS:
            raise ConfigurationError(f"there is no fault {word!r}; the faults are {known}")
    return words


def check_faults(words: Iterable[str], *, own_server: bool) -> None:
    """Refuse, before anything is started, what cannot be done here."""
    for word in words:
        if not own_server and any(fault.needs_server for fault in FAULTS[word]):
            raise refused(word)
        if word == Skew.word:
            skewed_environment(1.0)
