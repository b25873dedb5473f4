"""The forecast says of every second what working through each schedule by itself says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourhand.core.forecast import DAY, Forecaster, Group
from hourhand.core.schedule import Schedule, parse_schedule

SECOND = timedelta(seconds=1)
TEXTS = (
    "*/7 * * * *", "30 2 * * *", "0 9 * * MON-FRI", "15 10 1,16 * *", "*/30 * * * * *", "5 4 L * *", "0 0 * * 7#1", "0 0 1 1 *", "59 23 31 * *",
    "0 */6 * * *", "every 90s", "every 1h", "every 25h",
)  # fmt: skip
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "Pacific/Apia")
# Around clock changes as well as far from them.
STARTS = st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31)) | st.sampled_from(
    [
        datetime(2026, 3, 28, 20),
        datetime(2026, 3, 29, 1, 30),
        datetime(2026, 10, 25, 0, 10),
        datetime(2026, 11, 1, 5, 59, 59),
        datetime(2026, 4, 4, 14, 45),
    ]
)


def group(one: Schedule, start: datetime, jobs: int = 1, flexible: float = 0.0) -> Group:
    first = one.next_after(start - SECOND)
    assert first is not None
    return Group(one.kind, one.expression, one.timezone, one.dst, first, jobs, flexible)


def expected(schedules: list[Schedule], start: datetime, jobs: int) -> list[float]:
    runs = [0.0] * DAY
    for one in schedules:
        for at in one.firings(start - SECOND, start + timedelta(seconds=DAY - 1)):
            runs[int((at - start).total_seconds())] += jobs
    return runs


@given(
    st.lists(
        st.tuples(st.sampled_from(TEXTS), st.sampled_from(ZONES), st.sampled_from(["shift", "skip"])), min_size=1, max_size=4
    ),
    STARTS,
)
def test_each_second_has_what_the_schedules_say(chosen: list[tuple[str, str, str]], at: datetime) -> None:
    start = at.replace(microsecond=0, tzinfo=UTC)
    schedules = [parse_schedule(text, timezone=zone, dst=dst, now=start) for text, zone, dst in chosen]
    forecaster = Forecaster(start)
    for one in schedules:
        forecaster.add([group(one, start, jobs=3)])
    found = forecaster.forecast()
    assert found.runs == expected(schedules, start, 3)
    assert found.firings == sum(found.runs)


def test_a_flexible_window_spreads_its_runs() -> None:
    start = datetime(2026, 11, 16, tzinfo=UTC)
    one = parse_schedule("0 12 * * *", now=start)
    forecaster = Forecaster(start)
    forecaster.add([group(one, start, jobs=600, flexible=60)])
    found = forecaster.forecast()
    assert found.runs[43_199] == 0
    assert found.runs[43_200:43_260] == pytest.approx([10.0] * 60)
    assert found.runs[43_260] == pytest.approx(0)
    assert sum(found.runs) == pytest.approx(600)


def test_a_window_at_the_end_of_the_day_reaches_into_the_next() -> None:
    start = datetime(2026, 11, 16, tzinfo=UTC)
    forecaster = Forecaster(start)
    forecaster.add([Group("once", "", "UTC", "shift", start + timedelta(seconds=DAY - 10), 100, 100.0)])
    assert sum(forecaster.forecast().runs) == pytest.approx(10)


def test_a_hot_second_is_named_with_who_makes_it_and_what_would_calm_it() -> None:
    start = datetime(2026, 11, 16, 22, tzinfo=UTC)
    midnight, hourly = parse_schedule("0 0 * * *", now=start), parse_schedule("0 * * * *", now=start)
    forecaster = Forecaster(start)
    forecaster.add(
        [group(midnight, start, jobs=12_000), group(hourly, start, jobs=3), Group("every", "every 1s", "UTC", "shift", start, 2)]
    )
    found = forecaster.forecast()
    hottest = found.hot[0]
    assert hottest.at == datetime(2026, 11, 17, tzinfo=UTC)
    assert (hottest.runs, hottest.rigid) == (12_005, 12_005)
    assert hottest.schedules[:2] == [("0 0 * * * (UTC)", 12_000), ("0 * * * * (UTC)", 3)]
    assert hottest.window >= 10
    assert hottest.after <= 12_005 / 10
    # The others of the hour are within what the day has on average.
    assert len(found.hot) == 1


def test_an_even_day_has_no_hot_second() -> None:
    start = datetime(2026, 11, 16, tzinfo=UTC)
    forecaster = Forecaster(start)
    forecaster.add([Group("every", "every 1s", "UTC", "shift", start, 5)])
    found = forecaster.forecast()
    assert found.hot == []
    assert (found.mean, found.peak) == (5, 5)
    assert found.steps(3_600)[0] == (start, 5, 5)


def test_one_offs_beyond_the_day_and_overdue_ones() -> None:
    start = datetime(2026, 11, 16, tzinfo=UTC)
    forecaster = Forecaster(start)
    forecaster.add(
        [
            Group("once", "", "UTC", "shift", start + timedelta(days=2), 9),
            Group("once", "", "UTC", "shift", start - timedelta(hours=1), 4),
        ]
    )
    found = forecaster.forecast()
    assert found.runs[0] == 4  # what is late is fired at once
    assert sum(found.runs) == 4


def test_jobs_that_begin_or_end_within_the_day() -> None:
    start = datetime(2026, 11, 16, tzinfo=UTC)
    noon = start + timedelta(hours=12)
    minutely = parse_schedule("* * * * *", now=start)
    forecaster = Forecaster(start)
    forecaster.add(
        [replace(group(minutely, start), start_at=noon), replace(group(minutely, start), end_at=start + timedelta(minutes=5))]
    )
    forecaster.add([Group("every", "every 3600s", "UTC", "shift", start, 1, start_at=noon)])
    found = forecaster.forecast()
    assert [at for at, runs in enumerate(found.runs[:43_200]) if runs] == [0, 60, 120, 180, 240]
    assert found.runs[43_200] == 2
    assert sum(found.runs[43_200:]) == 12 * 60 + 12


def test_intervals_of_a_second_and_a_half() -> None:
    start = datetime(2026, 11, 16, tzinfo=UTC)
    forecaster = Forecaster(start)
    forecaster.add([Group("every", "every 1.5s", "UTC", "shift", start, 1)])
    assert sum(forecaster.forecast().runs) == DAY / 1.5


def test_a_few_runs_are_not_hot() -> None:
    start = datetime(2026, 11, 16, tzinfo=UTC)
    forecaster = Forecaster(start)
    forecaster.add([group(parse_schedule("0 12 * * *", now=start), start, jobs=50)])
    assert forecaster.forecast().hot == []
