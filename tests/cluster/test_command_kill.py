"""Commands whose worker is killed: they and what they have started die with it, and the run goes on elsewhere."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from hourhand import Hourhand
from tests.db.test_command_target import alive, gone, pids_of, printed, script
from tests.support.fleet import Fleet, make_sink, until

# Its own number and those of two children, one of which ignores what can be ignored.
FAMILY = "echo $$; sleep 3600 & echo $!; (trap '' TERM; exec sleep 3600) & echo $!; wait; wait; sleep 3600"


@pytest.fixture
async def fleet(url: str, schema: str, sql: asyncpg.Connection, tmp_path: Path) -> AsyncIterator[Fleet]:
    await make_sink(sql, schema)
    one = Fleet(url, schema, tmp_path)
    yield one
    one.close()


def wardens(of: int) -> list[int]:
    children = [int(one) for one in Path(f"/proc/{of}/task/{of}/children").read_text().split()]
    return [one for one in children if alive(one) and b"warden.py" in Path(f"/proc/{one}/cmdline").read_bytes()]


async def test_kill_9_ends_the_command_and_its_children_and_the_next_attempt_is_apart(
    fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, tmp_path: Path
) -> None:
    victim = fleet.worker(HOURHAND_ALLOW_COMMANDS="sh")
    await fleet.alive(sql, 1)
    handle = await app.enqueue("command", script(FAMILY))
    family = await pids_of(app, handle.id, 3)
    assert all(alive(one) for one in family)
    (warden,) = wardens(victim.pid)
    victim.kill()
    await gone(*family, warden)
    # On probation: the command is started by a child process, which dies without ceremony when the run is told to stop.
    other = fleet.worker(HOURHAND_ALLOW_COMMANDS="sh")
    again = [int(text) for text in (await printed(app, handle.id, 6))[3:]]
    assert all(alive(one) for one in again)
    assert other.pid not in [parent(one) for one in again], "not the worker itself has started it"
    assert [one.number for one in await app.runs.logs(handle.id)][:6] == [1, 2, 3, 4, 5, 6]
    await app.runs.cancel(handle.id)
    assert (await handle.wait(60)).state == "cancelled"
    await gone(*again)
    assert other.process.poll() is None


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_without_its_warden_the_command_itself_still_dies(fleet: Fleet, app: Hourhand, sql: asyncpg.Connection) -> None:
    victim = fleet.worker(HOURHAND_ALLOW_COMMANDS="sh")
    await fleet.alive(sql, 1)
    handle = await app.enqueue("command", script(FAMILY, **({"user": "nobody"} if os.geteuid() == 0 else {})))
    family = await pids_of(app, handle.id, 3)
    for one in wardens(victim.pid):
        os.kill(one, signal.SIGKILL)
        await gone(one)
    victim.kill()
    try:
        await gone(family[0])
    finally:
        for one in filter(alive, family):
            os.kill(one, signal.SIGKILL)


async def test_a_warden_that_was_killed_is_replaced(fleet: Fleet, app: Hourhand, sql: asyncpg.Connection) -> None:
    victim = fleet.worker(HOURHAND_ALLOW_COMMANDS="sh")
    await fleet.alive(sql, 1)
    first = await pids_of(app, (await app.enqueue("command", script(FAMILY))).id, 3)
    (warden,) = wardens(victim.pid)
    os.kill(warden, signal.SIGKILL)
    await gone(warden)
    second = await pids_of(app, (await app.enqueue("command", script(FAMILY))).id, 3)
    assert len(wardens(victim.pid)) == 1
    victim.kill()
    await gone(*first, *second)


async def test_a_stopped_worker_leaves_nothing(fleet: Fleet, app: Hourhand, sql: asyncpg.Connection) -> None:
    worker = fleet.worker("--grace", "0.1", HOURHAND_ALLOW_COMMANDS="sh")
    await fleet.alive(sql, 1)
    handle = await app.enqueue("command", script(FAMILY, grace=0.5))
    family = await pids_of(app, handle.id, 3)
    (warden,) = wardens(worker.pid)
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 0
    await gone(*family, warden)

    async def handed_back() -> bool:
        return (await handle.show()).state == "ready"

    await until(handed_back, "the run to be handed back")
    assert "Traceback" not in worker.text()
