"""When the firer wakes up, and what it forgets."""

from __future__ import annotations

import asyncio

import pytest

from hourhand.core.clock import Clock
from hourhand.core.settings import Settings
from hourhand.engine import firer as module
from hourhand.engine.scheduler import Scheduler
from hourhand.storage.database import Database


class Slept(Exception):
    """Instead of sleeping, with the seconds that it would have been."""


def sleeps(monkeypatch: pytest.MonkeyPatch, *, planning: float) -> float:
    """At 0.2 s after a full second, with plans for the next one that take so many seconds to make."""
    now = 5_000.2
    scheduler = Scheduler(Database(Settings()), Settings())
    firer = scheduler.firer

    async def plan_ahead() -> None:
        nonlocal now
        now += planning

    async def sleep(seconds: float) -> None:
        raise Slept(seconds)

    monkeypatch.setattr(Clock, "now", lambda _: now)
    monkeypatch.setattr(firer, "plan_ahead", plan_ahead)
    firer.start()
    with monkeypatch.context() as patch:
        patch.setattr(module.asyncio, "sleep", sleep)
        with pytest.raises(Slept) as slept:
            asyncio.run(firer.run())
    return float(slept.value.args[0])


def test_it_sleeps_until_the_next_second(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sleeps(monkeypatch, planning=0.1) == pytest.approx(0.701)


@pytest.mark.parametrize("planning", [0.801, 0.85, 2.5])
def test_a_second_that_begins_while_it_plans_is_not_slept_through(monkeypatch: pytest.MonkeyPatch, planning: float) -> None:
    assert sleeps(monkeypatch, planning=planning) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("back", [1, 40, 3_600])
def test_a_clock_that_is_put_back_meanwhile_makes_it_sleep_no_longer(monkeypatch: pytest.MonkeyPatch, back: float) -> None:
    assert sleeps(monkeypatch, planning=-back) == pytest.approx(1.001)


@pytest.mark.parametrize(("behind", "asks"), [(30, 0), (61, 1)])
def test_who_was_busy_or_asleep_for_long_asks_for_hints_again(monkeypatch: pytest.MonkeyPatch, behind: float, asks: int) -> None:
    """The sweeps of that time gave hints for two minutes from where the wheel stood."""
    firer, asked = Scheduler(Database(Settings()), Settings()).firer, list[int]()
    firer.on_start = lambda: asked.append(firer.wheel.now)
    firer.wheel.now -= behind

    async def sleep(_seconds: float) -> None:
        raise Slept

    with monkeypatch.context() as patch:
        patch.setattr(module.asyncio, "sleep", sleep)
        with pytest.raises(Slept):
            asyncio.run(firer.run())
    assert len(asked) == asks


def test_who_starts_anew_keeps_no_plans() -> None:
    """They may be for seconds that a clock which ran ahead has seen, and would stay for as long."""
    firer = Scheduler(Database(Settings()), Settings()).firer
    firer._ahead[9_999_999_999] = {}
    firer.start()
    assert firer._ahead == {}
