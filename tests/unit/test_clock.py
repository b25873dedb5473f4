"""Time as the database counts it."""

from __future__ import annotations

from datetime import UTC, timedelta

import pytest

from hourhand.core.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock whose machine stands at 1,000 seconds."""
    monkeypatch.setattr(Clock, "machine", staticmethod(lambda: 1_000.0))
    return Clock()


def test_until_it_learns_better_the_machine_is_right(clock: Clock) -> None:
    assert clock.now() == clock.machine() == 1_000.0


@pytest.mark.parametrize(("database", "skew"), [(970.0, 30.0), (1_030.0, -30.0)])
def test_a_machine_that_is_off_follows_the_database(clock: Clock, database: float, skew: float) -> None:
    clock.correct(database, asked=999.9, answered=1_000.1)
    assert clock.skew == pytest.approx(skew)
    assert clock.now() == pytest.approx(database)


def test_within_the_round_trip_the_clocks_agree(clock: Clock) -> None:
    clock.skew = 5.0
    clock.correct(999.95, asked=999.9, answered=1_000.1)
    assert clock.skew == 0.0


def test_an_instant_is_aware_and_in_utc(clock: Clock) -> None:
    assert clock.instant().tzinfo is UTC
    assert clock.instant().utcoffset() == timedelta(0)
    assert clock.instant().timestamp() == 1_000.0
