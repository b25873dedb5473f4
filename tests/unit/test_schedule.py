"""Schedules: what is accepted, what is refused with which words, and when they fire."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import given
from hypothesis import strategies as st

from hourhand.core.errors import InvalidSchedule
from hourhand.core.schedule import Schedule, _next_local, _parse_cron, parse_schedule, parse_span

NOW = datetime(2026, 3, 7, 12, tzinfo=UTC)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def first(text: str, count: int, after: str, timezone: str = "UTC", dst: str = "shift") -> list[str]:
    schedule = parse_schedule(text, timezone=timezone, dst=dst, now=utc(after))
    return [f"{one:%Y-%m-%dT%H:%M:%S}" for one in islice(schedule.firings(utc(after)), count)]


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("*/15 * * * *", "2026-01-01T00:00", ["2026-01-01T00:15:00", "2026-01-01T00:30:00"]),
        ("*/10 * * * * *", "2026-01-01T00:00", ["2026-01-01T00:00:10", "2026-01-01T00:00:20"]),
        ("0 9 * * MON", "2026-01-01T00:00", ["2026-01-05T09:00:00", "2026-01-12T09:00:00"]),
        ("0 0 L * *", "2026-02-01T00:00", ["2026-02-28T00:00:00", "2026-03-31T00:00:00"]),
        ("0 0 LW * *", "2026-05-01T00:00", ["2026-05-29T00:00:00", "2026-06-30T00:00:00"]),
        ("0 0 * * FRI#2", "2026-01-01T00:00", ["2026-01-09T00:00:00", "2026-02-13T00:00:00"]),
        ("0 0 * * 5L", "2026-01-01T00:00", ["2026-01-30T00:00:00", "2026-02-27T00:00:00"]),
        ("0 0 13 * 5", "2026-02-01T00:00", ["2026-02-06T00:00:00", "2026-02-13T00:00:00"]),
        ("0 0 1,15 jan-mar *", "2026-03-10T00:00", ["2026-03-15T00:00:00", "2027-01-01T00:00:00"]),
        ("0 0 29 2 *", "2026-01-01T00:00", ["2028-02-29T00:00:00", "2032-02-29T00:00:00"]),
        ("@daily", "2026-01-01T00:00", ["2026-01-02T00:00:00", "2026-01-03T00:00:00"]),
        ("@yearly", "2026-01-01T00:00", ["2027-01-01T00:00:00", "2028-01-01T00:00:00"]),
        ("@hourly", "2026-01-01T00:00", ["2026-01-01T01:00:00", "2026-01-01T02:00:00"]),
        ("every 90s", "2026-01-01T00:00", ["2026-01-01T00:01:30", "2026-01-01T00:03:00"]),
        ("@every 1h30m", "2026-01-01T00:00", ["2026-01-01T01:30:00", "2026-01-01T03:00:00"]),
        ("in 10 minutes", "2026-01-01T00:00", ["2026-01-01T00:10:00"]),
        ("2026-06-01T09:00:00+02:00", "2026-01-01T00:00", ["2026-06-01T07:00:00"]),
    ],
)  # fmt: skip
def test_next_firings(text: str, after: str, expected: list[str]) -> None:
    assert first(text, 2, after) == expected


@pytest.mark.parametrize(
    ("text", "zone", "dst", "after", "expected"),
    [
        # Spring: 02:30 does not exist on 8 March in New York.
        ("30 2 * * *", "America/New_York", "shift", "2026-03-07T12:00", ["2026-03-08T07:00:00", "2026-03-09T06:30:00"]),
        ("30 2 * * *", "America/New_York", "skip", "2026-03-07T12:00", ["2026-03-09T06:30:00", "2026-03-10T06:30:00"]),
        ("0,30 2 * * *", "America/New_York", "shift", "2026-03-07T12:00", ["2026-03-08T07:00:00", "2026-03-09T06:00:00"]),
        ("10 30 2 * * *", "America/New_York", "shift", "2026-03-07T12:00", ["2026-03-08T07:00:00", "2026-03-09T06:30:10"]),
        # Autumn: 01:30 comes twice on 1 November; the first one counts.
        ("30 1 * * *", "America/New_York", "shift", "2026-10-31T12:00", ["2026-11-01T05:30:00", "2026-11-02T06:30:00"]),
        ("30 1 * * *", "America/New_York", "shift", "2026-11-01T05:30", ["2026-11-02T06:30:00", "2026-11-03T06:30:00"]),
        ("30 1 * * *", "America/New_York", "shift", "2026-11-01T06:15", ["2026-11-02T06:30:00", "2026-11-03T06:30:00"]),
        # Wildcards follow real time through both.
        ("*/30 * * * *", "America/New_York", "shift", "2026-11-01T05:30", ["2026-11-01T06:00:00", "2026-11-01T06:30:00"]),
        ("*/30 * * * *", "America/New_York", "shift", "2026-03-08T06:30", ["2026-03-08T07:00:00", "2026-03-08T07:30:00"]),
        # A shift of half an hour, of two hours, at midnight, and a negative one.
        ("15 2 * * *", "Australia/Lord_Howe", "shift", "2026-10-03T00:00", ["2026-10-03T15:30:00", "2026-10-04T15:15:00"]),
        ("30 1 * * *", "Antarctica/Troll", "shift", "2026-03-28T12:00", ["2026-03-29T01:00:00", "2026-03-29T23:30:00"]),
        ("0 0 * * *", "Africa/Cairo", "shift", "2026-04-23T12:00", ["2026-04-23T22:00:00", "2026-04-24T21:00:00"]),
        ("30 2 * * *", "Africa/Casablanca", "shift", "2026-03-21T12:00", ["2026-03-22T02:00:00", "2026-03-23T01:30:00"]),
        ("30 1 * * *", "Europe/Dublin", "shift", "2026-03-28T12:00", ["2026-03-29T01:00:00", "2026-03-30T00:30:00"]),
    ],
)  # fmt: skip
def test_clock_changes(text: str, zone: str, dst: str, after: str, expected: list[str]) -> None:
    assert first(text, 2, after, zone, dst) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a schedule is needed"),
        ("0 0 30 2 *", "not a cron expression|can never fire"),
        ("0 0 31 4,6,9,11 *", "not a cron expression|can never fire"),
        ("0 0 15W * *", "nW"),
        ("0 0 L-3 * *", "L-n"),
        ("0 0 ? * MON", "Quartz"),
        ("H * * * *", "Jenkins"),
        ("0~30 * * * *", "random"),
        ("0 0 0 1 1 * 2027", "year field"),
        ("* * *", "3 fields"),
        ("61 * * * *", "bad minute"),
        ("* * * * FOO", "bad day-of-week"),
        ("@fortnightly", "@daily"),
        ("@reboot", "@daily"),
        ("every", "1 field"),
        ("every nonsense", "not a duration"),
        ("every 100ms", "from one second"),
        ("2027-01-01T09:00:00", "offset"),
        ("2027-13-01T09:00:00Z", "ISO 8601"),
        ("2020-01-01T09:00:00Z", "past"),
        ("*" * 600, "500 characters"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(InvalidSchedule, match=words):
        parse_schedule(text, now=NOW)


WORDS = ["*", "0", "5", "*/7", "1-3", "2,5", "31", "61", "9-4", "*/0", "x", "mon", "Jan", "L", "lw", "1#2", "5L"]


@given(st.lists(st.sampled_from(WORDS), min_size=5, max_size=6))
def test_fields_put_together_are_read_as_a_whole_expression_is(fields: list[str]) -> None:
    text = " ".join(fields)
    try:
        CronSim(text, datetime(2000, 1, 1))
    except CronSimError as error:
        with pytest.raises(InvalidSchedule, match=f"{str(error).lower()}$|no such date"):
            _parse_cron(text, "UTC", "shift")
    else:
        assert _parse_cron(text, "UTC", "shift").expression == text.upper()


def test_an_unknown_zone_is_refused_with_a_hint() -> None:
    with pytest.raises(InvalidSchedule, match="Europe/Berlin"):
        parse_schedule("@daily", timezone="berlin", now=NOW)
    with pytest.raises(InvalidSchedule, match="dst must be"):
        parse_schedule("@daily", dst="sometimes", now=NOW)


def test_an_instant_within_the_grace_is_accepted() -> None:
    assert parse_schedule("2026-03-07T11:59:30Z", now=NOW).anchor == NOW - timedelta(seconds=30)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90s", 90), ("15m", 900), ("1h30m", 5400), ("2 days", 172_800), ("1 week", 604_800), ("1.5h", 5400), ("500ms", 0.5)],
)
def test_durations(text: str, expected: float) -> None:
    assert parse_span(text).total_seconds() == expected


@pytest.mark.parametrize(
    ("text", "zone", "words"),
    [
        ("0 9 * * 1", "America/New_York", "At 09:00 on Monday (America/New_York)"),
        ("every 90s", "UTC", "Every 90 seconds, counted from 2026-03-07 12:00:00 UTC"),
        ("@every 1h", "UTC", "Every hour, counted from 2026-03-07 12:00:00 UTC"),
        ("2027-01-01T09:00:00Z", "UTC", "Once, at 2027-01-01 09:00:00 UTC"),
    ],
)
def test_in_words(text: str, zone: str, words: str) -> None:
    assert parse_schedule(text, timezone=zone, now=NOW).in_words() == words


def test_writing_it_differently_is_the_same_schedule() -> None:
    assert parse_schedule("0  9 * * mon", now=NOW) == parse_schedule("0 9 * * MON", now=NOW)
    assert parse_schedule("@daily", now=NOW) == parse_schedule("0 0 * * *", now=NOW)
    assert parse_schedule("every 1m30s", now=NOW) == parse_schedule("every 90s", now=NOW)


@given(
    seconds=st.integers(1, 10**7),
    anchor=st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),
    after=st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),
)
def test_intervals_do_not_drift(seconds: int, anchor: datetime, after: datetime) -> None:
    schedule = Schedule("every", f"every {seconds}s", anchor=anchor)
    at = schedule.next_after(after)
    assert at is not None
    assert at > after
    assert (at - anchor) % timedelta(seconds=seconds) == timedelta(0)
    assert at == anchor or at - after <= timedelta(seconds=seconds)


@given(
    minute=st.integers(0, 59),
    hour=st.integers(0, 23),
    zone=st.sampled_from(
        ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Apia", "UTC"]
    ),
    after=st.datetimes(datetime(2024, 1, 1), datetime(2034, 1, 1), timezones=st.just(UTC)),
)
def test_a_daily_time_fires_once_a_local_day(minute: int, hour: int, zone: str, after: datetime) -> None:
    schedule = parse_schedule(f"{minute} {hour} * * *", timezone=zone, now=after)
    firings = list(islice(schedule.firings(after), 10))
    assert firings == sorted(set(firings))
    gaps = [(later - earlier) for earlier, later in pairwise(firings)]
    assert all(timedelta(hours=21) <= gap <= timedelta(hours=27) for gap in gaps)


@given(after=st.datetimes(datetime(2024, 1, 1), datetime(2034, 1, 1), timezones=st.just(UTC)), steps=st.integers(1, 30))
def test_the_next_firing_does_not_depend_on_where_one_asks_from(after: datetime, steps: int) -> None:
    schedule = parse_schedule("*/20 1-3 * * *", timezone="America/New_York", now=after)
    at = schedule.next_after(after)
    assert at is not None
    middle = after + (at - after) * steps / 31
    assert schedule.next_after(middle) == at


_FIELD = st.sampled_from(["*", "0", "5", "*/7", "10-20", "1,3,22"])
_DAYS = st.sampled_from(["*", "1", "15", "L", "LW", "*/9", "31", "29"])
_MONTHS = st.sampled_from(["*", "2", "JAN-MAR", "4,6,9", "12"])
_WEEKDAYS = st.sampled_from(["*", "MON", "5#2", "6L", "1-5", "0"])


@given(
    _FIELD,
    _FIELD,
    st.sampled_from(["*", "3", "0,12", "*/5"]),
    _DAYS,
    _MONTHS,
    _WEEKDAYS,
    st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1)),
)
def test_stepping_by_fields_is_what_cronsim_does_second_by_second(
    second: str, minute: str, hour: str, day: str, month: str, weekday: str, start: datetime
) -> None:
    expression = f"{second} {minute} {hour} {day} {month} {weekday}"
    try:
        expected = CronSim(expression, start)
    except CronSimError:
        return
    at: datetime | None = start
    for _, wanted in zip(range(5), expected, strict=False):
        assert at is not None
        at = _next_local(expression, at)
        assert at == wanted


@pytest.mark.parametrize(
    ("text", "seconds"), [("every 2w", 1_209_600), ("every 30d", 2_592_000), ("every 1.5s", 1.5), ("@every 90s", 90)]
)
def test_intervals_of_any_length_are_read_back_as_they_were(text: str, seconds: float) -> None:
    schedule = parse_schedule(text, now=NOW)
    assert parse_schedule(schedule.expression, now=NOW) == schedule
    assert schedule.next_after(NOW) == NOW + timedelta(seconds=seconds)
