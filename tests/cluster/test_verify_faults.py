"""Every fault that the checker knows: it hits somebody, says so, and is undone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import asyncpg
import pytest

from hourhand.core.errors import ConfigurationError
from hourhand.core.settings import Settings
from hourhand.storage.migrate import migrate
from hourhand.surfaces.verify import faults
from hourhand.surfaces.verify.arena import Arena, Fault, Trace, run_fault
from hourhand.surfaces.verify.passage import Mode
from hourhand.surfaces.verify.processes import Crew, find_faketime
from hourhand.surfaces.verify.proxy import Proxy
from hourhand.surfaces.verify.server import ScratchServer
from tests.support.fleet import until

SETTINGS = Settings(lease=1.2, grace=0.4, poll=1.0)


@pytest.fixture
async def arena(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Arena]:
    monkeypatch.chdir(project)
    server = ScratchServer(tmp_path / "server", max_connections=40)
    one = Arena(Crew(tmp_path), {}, SETTINGS, "", tmp_path, server)
    try:
        await server.start()
        await migrate_all(server.url())
        for kind in ("scheduler", "worker"):
            proxy = Proxy(server.host, server.port)
            one.proxies[one.crew.named(kind)] = proxy
            await proxy.start()
            arguments = ["--app", "tests.support.jobs:app"] if kind == "worker" else []
            one.crew.start(kind, *arguments, url=proxy.url(server.url()), environment=SETTINGS.environment())
        yield one
    finally:
        await one.crew.close()
        for proxy in one.proxies.values():
            await proxy.close()
        await one.close_servers()


async def migrate_all(url: str) -> None:
    connection = await asyncpg.connect(url)
    await migrate(connection, SETTINGS.schema)
    await connection.close()


async def everybody_is_back(arena: Arena) -> None:
    """Each process has a node that speaks after this moment."""
    connection = await asyncpg.connect(arena.admin_url)
    now = await connection.fetchval("SELECT clock_timestamp()")
    question = (
        f"SELECT count(DISTINCT name) FROM {arena.schema}.nodes WHERE lease_until > $1::timestamptz + make_interval(secs => $2)"
        " AND died_at IS NULL AND split_part(name, ':', 2)::int = ANY($3)"
    )

    async def back() -> bool:
        pids = [member.pid for member in arena.crew.of()]
        return len(pids) == 2 and await connection.fetchval(question, now, SETTINGS.lease, pids) == 2

    await until(back, lambda: "\n".join(member.text() for member in arena.crew.members.values()), 30)
    await connection.close()


async def check(fault: Fault, trace: Trace, arena: Arena) -> None:
    """While it lasts: is it what it says?"""
    member = arena.crew.members.get(trace.target)
    match fault:
        case faults.KillWorker() | faults.KillScheduler():
            assert member is not None
            assert not member.alive
        case faults.PauseWorker() | faults.PauseScheduler():
            assert member is not None
            assert member.paused
            assert fault.hold > SETTINGS.lease
        case faults.Skew():
            assert member is not None
            assert member.skew == trace.detail["seconds"]
        case faults.Partition():
            assert arena.proxies[trace.target].mode in (trace.detail["mode"], Mode.passing)
            await fault.last()
        case faults.ExhaustConnections():
            with pytest.raises(asyncpg.TooManyConnectionsError):
                await asyncpg.connect(arena.admin_url)
        case faults.LockTable() | faults.IdleTransaction():
            connection = await asyncpg.connect(arena.admin_url)
            states = await connection.fetchval("SELECT array_agg(state) FROM pg_stat_activity WHERE application_name = 'verify'")
            await connection.close()
            assert states == ["idle in transaction"]


async def test_each_fault_hits_and_heals(arena: Arena) -> None:
    await everybody_is_back(arena)
    rng = Random(1)
    everything: list[Fault] = [kind(rng) for kinds in faults.FAULTS.values() for kind in kinds]
    if find_faketime() is None:
        everything = [fault for fault in everything if not isinstance(fault, faults.Skew)]
    everything += [faults.Partition(rng, mode) for mode in Mode if mode is not Mode.passing]
    for fault in everything:
        trace = await fault.inject(arena)
        assert not trace.missed, trace
        assert trace.target
        await check(fault, trace, arena)
        await fault.heal(arena)
        assert trace.healed_at is not None
        assert trace.healed_at > trace.at_monotonic
        if trace.detail.get("mode") is Mode.cut_after_commit:
            assert trace.detail["cuts"] == trace.detail["times"]
        healed = trace.healed_at
        await fault.heal(arena)
        assert trace.healed_at == healed
        await everybody_is_back(arena)
    assert len(arena.retired) == 2, "one standby for each kind of replication"


async def test_without_anybody_to_hit_it_says_so(tmp_path: Path) -> None:
    async with Crew(tmp_path) as crew:
        arena = Arena(crew, {}, SETTINGS, f"postgresql://nobody@/nothing?host={tmp_path}", tmp_path)
        for kind in (faults.KillWorker, faults.PauseScheduler, faults.Partition, faults.LockTable, faults.KillBackend):
            trace = await run_fault(kind(Random(1)), arena)
            assert trace.missed
        for kind, word in ((faults.RestartServer, "restart"), (faults.PromoteStandby, "standby")):
            with pytest.raises(ConfigurationError, match=f"{word} needs a server that verify may stop; leave --database-url out"):
                await kind(Random(1)).inject(arena)


async def test_an_interrupted_fault_is_healed(tmp_path: Path) -> None:
    async with Crew(tmp_path) as crew, Proxy("127.0.0.1") as proxy:
        arena = Arena(crew, {"client": proxy}, SETTINGS, "", tmp_path)
        fault = faults.Partition(Random(3))
        running = asyncio.create_task(run_fault(fault, arena))

        async def injected() -> bool:
            return proxy.mode is not Mode.passing

        await until(injected, "the fault", 10)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert proxy.mode is Mode.passing
        assert fault.trace is not None
        assert fault.trace.healed_at is not None


def test_words() -> None:
    assert faults.parse_faults("kill, Pause,kill") == ("kill", "pause")
    assert faults.parse_faults(",".join(faults.FAULTS)) == tuple(faults.FAULTS)
    assert all(kind.word == word for word, kinds in faults.FAULTS.items() for kind in kinds)
    with pytest.raises(ConfigurationError, match=r"no fault 'meteor'; the faults are kill, pause"):
        faults.parse_faults("kill,meteor")
    with pytest.raises(ConfigurationError, match="no fault is named"):
        faults.parse_faults(" , ")


def test_what_cannot_be_done_is_refused_beforehand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    faults.check_faults(["kill", "restart", "standby"], own_server=True)
    faults.check_faults(["kill", "pause", "partition", "lock", "connections", "idle"], own_server=False)
    for word in ("restart", "standby"):
        with pytest.raises(ConfigurationError, match=f"or leave {word} out"):
            faults.check_faults(["kill", word], own_server=False)
    monkeypatch.setenv("FAKETIME_LIB", str(tmp_path / "nothing"))
    with pytest.raises(ConfigurationError, match="faketime"):
        faults.check_faults(["skew"], own_server=True)
