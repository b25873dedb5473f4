"""The fault checker's crew: killed, paused, with a wrong clock, and nothing left of it afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.core.errors import ConfigurationError
from hourhand.surfaces.verify import process_table, processes
from hourhand.surfaces.verify.processes import Crew, Member, find_faketime
from tests.conftest import missing
from tests.support.fleet import make_sink, until
from tests.support.jobs import app as jobs

LEASE = 2.0


@pytest.fixture
def url(embedded_url: str) -> str:
    return embedded_url


@pytest.fixture
async def crew(tmp_path: Path) -> AsyncIterator[Crew]:
    async with Crew(tmp_path) as one:
        yield one


@pytest.fixture
def environment(schema: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(project)
    return {"HOURHAND_SCHEMA": schema, "HOURHAND_LEASE": str(LEASE), "HOURHAND_GRACE": "0.5", "HOURHAND_POLL": "1"}


async def node(sql: asyncpg.Connection, schema: str, member: Member) -> asyncpg.Record:
    """The latest incarnation of a process, once it is registered."""
    question = f"SELECT *, lease_until < clock_timestamp() AS silent FROM {schema}.nodes WHERE name LIKE $1 ORDER BY id DESC"

    async def registered() -> asyncpg.Record | None:
        return await sql.fetchrow(question, f"%:{member.pid}")

    return await until(registered, lambda: f"{member.name} to register; its log:\n{member.text()}")


async def test_killed_and_revived_it_is_another_process(
    crew: Crew, url: str, environment: dict[str, str], sql: asyncpg.Connection, schema: str
) -> None:
    one = crew.start("scheduler", url=url, environment=environment)
    other = crew.start("scheduler", url=url, environment=environment)
    assert [one.name, other.name] == ["scheduler-1", "scheduler-2"]
    await node(sql, schema, one)
    first = one.pid
    await crew.kill(one)
    assert not one.alive
    assert crew.of("scheduler") == [other]
    assert await crew.revive() == [one]
    assert one.pid != first
    await node(sql, schema, one)
    assert await crew.revive() == []
    await node(sql, schema, other)
    await crew.stop(other)
    assert other.process.returncode == 0, other.text()
    assert await crew.revive() == [], "what was stopped on purpose stays so"


async def test_paused_it_is_silent_and_resumed_it_comes_back(
    crew: Crew, url: str, environment: dict[str, str], sql: asyncpg.Connection, schema: str
) -> None:
    one = crew.start("scheduler", url=url, environment=environment)
    await node(sql, schema, one)
    crew.pause(one)
    assert (one.alive, one.paused, crew.of()) == (True, True, [])

    async def silent() -> bool:
        return bool((await node(sql, schema, one))["silent"])

    await until(silent, "its lease to run out", 20)
    crew.resume(one)

    async def speaks() -> bool:
        return not (await node(sql, schema, one))["silent"]

    await until(speaks, lambda: f"its lease to be renewed; its log:\n{one.text()}", 20)


@pytest.mark.parametrize("skew", [3600.0, -5.0])
async def test_skewed_it_has_a_wrong_clock_and_works(
    crew: Crew, url: str, environment: dict[str, str], sql: asyncpg.Connection, schema: str, skew: float
) -> None:
    if find_faketime() is None:
        missing("no libfaketime")
    one = crew.start("scheduler", url=url, environment=environment, skew=skew)

    async def noticed() -> float:
        return float((await node(sql, schema, one))["skew"] or 0.0)

    assert await until(noticed, lambda: f"its clock to be compared; its log:\n{one.text()}", 20) == pytest.approx(skew, abs=0.5)
    first = await node(sql, schema, one)

    async def renewed() -> bool:
        return bool((await node(sql, schema, one))["lease_until"] > first["lease_until"])

    await until(renewed, lambda: f"a heartbeat; its log:\n{one.text()}", 20)
    wrong = one.pid
    await crew.restart(one, skew=None)
    assert one.skew is None
    assert not list(Path("/dev/shm").glob(f"*faketime*_{wrong}")), "a process of that number could not start"
    assert not (await node(sql, schema, one))["skew"]


def test_a_faked_clock_leaves_waiting_alone() -> None:
    if find_faketime() is None:
        missing("no libfaketime")
    script = (
        "import asyncio, queue, time\n"
        "began = time.monotonic()\n"
        "asyncio.run(asyncio.wait_for(asyncio.sleep(0.1), 5))\n"
        "try:\n    queue.Queue().get(timeout=0.1)\nexcept queue.Empty:\n    print(time.time(), time.monotonic(), time.monotonic() - began)"
    )
    environment = processes.skewed_environment(-3600)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=30, check=True)
    wall, monotonic, waited = (float(word) for word in done.stdout.split())
    plain = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time(), time.monotonic())"], capture_output=True, text=True, check=True
    )
    real_wall, real_monotonic = (float(word) for word in plain.stdout.split())
    assert wall == pytest.approx(real_wall - 3600, abs=10)
    assert monotonic == pytest.approx(real_monotonic, abs=10)
    assert 0.2 <= waited < 10


def test_without_the_library_a_skew_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKETIME_LIB", str(tmp_path / "nothing"))
    assert find_faketime() is None
    with pytest.raises(ConfigurationError, match="install the package `faketime`"):
        processes.skewed_environment(5)
    library = tmp_path / "libfaketime.so.1"
    library.touch()
    monkeypatch.setenv("FAKETIME_LIB", str(library))
    assert find_faketime() == library


async def test_nothing_is_left_behind_not_even_children_in_sessions_of_their_own(
    app: Hourhand, url: str, environment: dict[str, str], sql: asyncpg.Connection, schema: str, tmp_path: Path
) -> None:
    await make_sink(sql, schema)
    app.registry.tasks.update(jobs.registry.tasks)
    crew = Crew(tmp_path)
    try:
        worker = crew.start("worker", "--app", "tests.support.jobs:app", url=url, environment=environment)
        await app.enqueue("isolated_nap", {"seconds": 600})

        async def runs() -> bool:
            return bool(await sql.fetchval(f"SELECT count(*) FROM {schema}.progress"))

        await until(runs, lambda: f"the handler's child process; the worker's log:\n{worker.text()}")
        children = process_table.descendants(worker.pid)
        assert children
        # A child that cannot notice that its parent is dead.
        process_table.send(children, signal.SIGSTOP)
        await crew.kill(worker)
        assert process_table.alive(children)
        crew.pause(crew.start("scheduler", url=url, environment=environment))
    finally:
        await crew.close()
    assert not process_table.alive(children)
    assert not process_table.marked("HOURHAND_VERIFY_CREW", crew._mark)


async def test_a_crew_whose_owner_is_killed_stops_in_order(
    url: str, environment: dict[str, str], sql: asyncpg.Connection, schema: str, tmp_path: Path
) -> None:
    script = (
        "import asyncio, os, sys\n"
        "from pathlib import Path\n"
        "from hourhand.surfaces.verify.processes import Crew\n"
        "crew = Crew(Path(sys.argv[1]))\n"
        "print(crew.start('scheduler', url=sys.argv[2]).pid, flush=True)\n"
        "sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script, tmp_path, url],
        env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        entry = [one for one in process_table.snapshot() if one.pid == pid]
        try:
            question = f"SELECT stopped_at FROM {schema}.nodes WHERE name LIKE $1"

            async def registered() -> bool:
                return bool(await sql.fetch(question, f"%:{pid}"))

            await until(registered, "the scheduler to register", 20)
            owner.kill()

            async def stopped() -> bool:
                return bool(await sql.fetchval(question, f"%:{pid}"))

            await until(stopped, "the scheduler to stop", 20)
            assert await process_table.gone(entry, 20)
        finally:
            process_table.send(entry, signal.SIGKILL)
            owner.kill()
