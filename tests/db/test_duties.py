"""The maintainer's tick and a node's heartbeat, where an answer takes long or somebody is missing."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.core.clock import Clock
from hourhand.engine.duty import HELD, Duty
from hourhand.engine.maintainer import RETURN_EVERY, TICK, Maintainer
from hourhand.engine.node import Node
from hourhand.storage.nodes import MaintenanceGateway

pytestmark = pytest.mark.once


class Passing:
    """The clock stands still, however slow the machine is, but for as much as it is told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.more = 0.0
        whole = math.ceil(Clock.monotonic())  # sums of it and of parts of seconds are exact
        monkeypatch.setattr(Clock, "monotonic", staticmethod(lambda: whole + self.more))


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Passing:
    return Passing(monkeypatch)


async def holder(app: Hourhand) -> tuple[Maintainer, Any]:
    """And its gateway."""
    gateway: Any = MaintenanceGateway((await app._database()).link("test"))
    return Maintainer(gateway, SimpleNamespace(id=99, clock=Clock()), app.settings), gateway  # type: ignore[arg-type]


async def test_who_hears_late_that_a_duty_is_his_asks_once_more_and_does_it(
    app: Hourhand, passing: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, gateway = await holder(app)
    one.duties = [Duty("other")]
    tick = gateway.tick

    async def slow(*words: Any, **more: Any) -> Any:
        answer = await tick(*words, **more)
        passing.more += HELD / 2 + 1
        return answer

    monkeypatch.setattr(gateway, "tick", slow)
    for _ in range(2):
        await one.run_once()
        assert one.duties[0].held
    await one.stop()


async def test_what_a_release_left_behind_is_looked_for_now_and_then_though_there_is_none(
    app: Hourhand, passing: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, gateway = await holder(app)
    asked, tick = list[bool](), gateway.tick

    async def heard(*words: Any, returning: bool) -> Any:
        asked.append(returning)
        return await tick(*words, returning=returning)

    monkeypatch.setattr(gateway, "tick", heard)
    await one.run_once()
    await one.run_once()
    passing.more += RETURN_EVERY
    await one.run_once()
    assert asked == [True, False, True]
    await one.stop()


async def test_the_next_tick_comes_when_somebody_has_been_missing_for_the_whole_grace(
    app: Hourhand, sql: asyncpg.Connection, schema: str, passing: Passing
) -> None:
    one, _ = await holder(app)
    await one.run_once()
    grace = app.settings.grace
    passing.more += 3 * grace  # a judge has been connected for longer
    await sql.execute(
        f"INSERT INTO {schema}.nodes (kind, name, lease_until, session) VALUES ('worker', 'n', now() + '1 hour', true)"
    )
    await one.run_once()
    passing.more += grace - TICK / 4
    assert await one.run_once() == TICK / 4
    assert one.declared == 0
    passing.more += TICK / 4
    assert await one.run_once() == TICK, "and not at once: there is nobody left to judge"
    assert one.declared == 1
    await one.stop()


async def test_a_lease_that_would_end_before_the_next_heartbeat_is_renewed_at_once(
    app: Hourhand, passing: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(await app._database(), app.settings, "worker", {})
    await node.start()
    session: Any = node._session
    pauses, took, heartbeat = list[float](), [0.0, app.settings.lease * 0.8, 0.0], session.heartbeat

    async def slow(*words: Any) -> Any:
        answer = await heartbeat(*words)
        passing.more += took[len(pauses)]
        return answer

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == len(took):
            raise asyncio.CancelledError

    monkeypatch.setattr(session, "heartbeat", slow)
    monkeypatch.setattr(node, "_pause", pause)
    with pytest.raises(asyncio.CancelledError):
        await node.run()
    usual = app.settings.heartbeat
    assert pauses[0] == pauses[2] == usual
    assert pauses[1] < usual
    await node.stop()
