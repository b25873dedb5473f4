"""The checker's own idea of when jobs are due, against cronsim and against the product, which it shares nothing with."""

from __future__ import annotations

import random
import sys
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from hourhand.core.schedule import parse_schedule
from hourhand.surfaces.verify import oracle
from hourhand.surfaces.verify.oracle import Every, Job, Minutes, Once, Rule, Seconds, instants, limit, windows

NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
SPRING = datetime(2026, 3, 29, 1, 0, 0, tzinfo=UTC)
"""When clocks change in Europe."""

# A zone, and an instant at which its clocks change: by an hour, by half an hour, at a quarter, or never.
CHANGES = [
    ("UTC", NOON),
    ("Europe/Berlin", SPRING),
    ("Europe/Berlin", datetime(2026, 10, 25, 1, 0, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 8, 7, 0, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, 0, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
    ("Asia/Kathmandu", NOON),
]


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def by_cronsim(rule: Rule, zone: str, first: datetime, last: datetime) -> list[datetime]:
    found = []
    for local in CronSim(rule.text(), (first - timedelta(seconds=1)).astimezone(ZoneInfo(zone))):
        at = local.astimezone(UTC)
        if at >= last:
            return found
        if at >= first:
            found.append(at)
    return found


def by_the_product(rule: Rule, zone: str, first: datetime, last: datetime, anchor: datetime | None = None) -> list[datetime]:
    moment = timedelta(microseconds=1)
    schedule = parse_schedule(rule.text(), timezone=zone, now=first - timedelta(days=1), anchor=anchor)
    return list(schedule.firings(first - moment, last - moment))


def some_numbers(rng: random.Random) -> frozenset[int]:
    return frozenset(rng.sample(range(60), rng.choice([1, 2, 3, 7, 20, 60])))


@pytest.mark.parametrize(("zone", "change"), CHANGES)
def test_seconds_agree_over_a_clock_change(zone: str, change: datetime) -> None:
    rng = random.Random(f"{zone} {change}")
    first, last = change - timedelta(minutes=4), change + timedelta(minutes=4)
    for _ in range(8):
        rule = Seconds(some_numbers(rng), zone)
        found = rule.due(first, last)
        assert found == by_cronsim(rule, zone, first, last)
        assert found == by_the_product(rule, zone, first, last)


@pytest.mark.parametrize(("zone", "change"), CHANGES)
def test_minutes_agree_over_a_clock_change(zone: str, change: datetime) -> None:
    rng = random.Random(f"{zone} {change}")
    first, last = change - timedelta(hours=5), change + timedelta(hours=5)
    for _ in range(12):
        rule = Minutes(some_numbers(rng), zone)
        found = rule.due(first, last)
        assert found == by_the_product(rule, zone, first, last)
        assert found == by_cronsim(rule, zone, first, last)


@given(st.integers(1, 400), st.integers(-900, 900), st.integers(-900_000_000, 900_000_000), st.integers(0, 600))
def test_intervals_are_the_anchor_and_multiples_from_it_on(seconds: int, anchor: int, micros: int, length: int) -> None:
    rule = Every(seconds, after(anchor))
    first = NOON + timedelta(microseconds=micros)
    last = first + timedelta(seconds=length)
    found = rule.due(first, last)
    assert found == [
        at for k in range(3_000 // seconds + 2) if first <= (at := rule.anchor + timedelta(seconds=k * seconds)) < last
    ]
    assert found == by_the_product(rule, "UTC", first, last, rule.anchor)


def test_a_period_has_its_first_instant_and_not_its_last() -> None:
    for rule in (Every(60, NOON), Seconds(frozenset({0})), Minutes(frozenset(range(60))), Once(NOON)):
        assert rule.due(NOON, after(60)) == [NOON]
        assert rule.due(after(0.000001), after(60)) == []
        assert rule.due(NOON, NOON) == []


def test_texts_are_what_the_product_takes() -> None:
    assert Every(7, NOON).text() == "every 7s"
    assert Seconds(frozenset({40, 5, 20})).text() == "5,20,40 * * * * *"
    assert Seconds(frozenset(range(60))).text() == "* * * * * *"
    assert Minutes(frozenset({30, 0})).text() == "0,30 * * * *"
    berlin = datetime(2026, 3, 1, 13, 0, 0, 250_000, ZoneInfo("Europe/Berlin"))
    assert Once(berlin).text() == "2026-03-01T12:00:00.250000Z"
    assert by_the_product(Once(berlin), "UTC", NOON, after(1)) == Once(berlin).due(NOON, after(1))


@pytest.mark.parametrize(
    "make", [lambda: Every(0, NOON), lambda: Every(5, after(0.5)), lambda: Seconds(frozenset()), lambda: Minutes(frozenset({60}))]
)
def test_what_cannot_be_meant_is_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=r"whole seconds|from 0 to 59"):
        make()


def test_a_job_takes_part_within_all_of_its_limits() -> None:
    job = Job("tick", "tick", Every(10, NOON), since=after(5), until=after(95), start_at=after(20), end_at=after(80))
    assert windows(job, NOON, after(1_000)) == [after(n) for n in range(20, 80, 10)]
    assert windows(job, after(41), after(70)) == [after(50), after(60)]
    early = Job("tick", "tick", Every(10, NOON), since=after(5), until=after(35))
    assert windows(early, NOON, after(1_000)) == [after(10), after(20), after(30)]


def test_max_runs_counts_from_the_beginning_of_the_job() -> None:
    job = Job("tick", "tick", Every(10, NOON), since=NOON, max_runs=4)
    assert windows(job, after(15), after(1_000)) == [after(20), after(30)]


def test_max_runs_does_not_count_what_was_left_out() -> None:
    job = Job("tick", "tick", Every(10, NOON), since=NOON, max_runs=3)
    due = instants(job, after(100))
    assert limit(job, due, {after(10), after(20)}) == [NOON, after(10), after(20), after(30), after(40)]
    assert limit(job, due, {after(30)}) == [NOON, after(10), after(20), after(30)]


def test_a_single_instant_is_due_even_if_the_job_came_a_little_late() -> None:
    assert windows(Job("one", "one", Once(NOON), since=after(2)), NOON, after(60)) == [NOON]
    assert windows(Job("one", "one", Once(NOON), since=NOON, until=NOON), NOON, after(60)) == []


def test_it_shares_nothing_with_the_schedules_it_judges() -> None:
    names = {getattr(one, "__module__", None) or getattr(one, "__name__", "") for one in vars(oracle).values()}
    assert not [name for name in names if name.startswith(("cronsim", "hourhand.core"))]
    assert sys.modules[oracle.Every.__module__] is oracle
