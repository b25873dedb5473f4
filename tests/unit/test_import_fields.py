"""Fields that mean something else elsewhere: checked against Celery itself, and against counting days."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from celery.schedules import ParseException, crontab_parser
from hypothesis import given
from hypothesis import strategies as st

from hourhand.core.schedule import parse_schedule
from hourhand.surfaces.importing.fields import (
    DAY,
    HOUR,
    MINUTE,
    MONTH,
    WEEKDAY,
    Kind,
    both_days,
    kept_field,
    read_field,
    write_field,
)
from hourhand.surfaces.importing.translation import Untranslatable

NOW = datetime(2027, 1, 1, tzinfo=UTC)
KINDS = [MINUTE, HOUR, DAY, MONTH, WEEKDAY]


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        ("*", WEEKDAY, set(range(7))),
        ("mon-fri", WEEKDAY, {1, 2, 3, 4, 5}),
        ("friday-monday", WEEKDAY, {5, 6, 0, 1}),
        ("nov-feb", MONTH, {11, 12, 1, 2}),
        ("22-2", HOUR, {22, 23, 0, 1, 2}),
        ("22-4/3", HOUR, {22, 1, 4}),
        ("0, 30", MINUTE, {0, 30}),
        ("*/20,5", MINUTE, {0, 20, 40, 5}),
    ],
)
def test_reading(text: str, kind: Kind, values: set[int]) -> None:
    assert read_field(text, kind) == values


@pytest.mark.parametrize(
    ("text", "kind"),
    [("", MINUTE), ("60", MINUTE), ("7", WEEKDAY), ("0", DAY), ("x", HOUR), ("1-", HOUR), ("5/10", MINUTE), ("*/0", MINUTE), ("1,,2", DAY),
     ("²", DAY), ("9" * 5000, MINUTE), ("jan", DAY)],
)  # fmt: skip
def test_what_is_not_a_field_is_refused(text: str, kind: Kind) -> None:
    with pytest.raises(Untranslatable):
        read_field(text, kind)


@given(st.sampled_from(KINDS), st.data())
def test_celery_reads_the_same(kind: Kind, data: st.DataObject) -> None:
    number = st.integers(kind.lowest, kind.highest).map(str) | st.sampled_from(kind.names or ("1",))
    part = st.one_of(
        st.just("*"),
        number,
        st.builds("{}-{}".format, number, number),
        st.builds("*/{}".format, st.integers(1, 70)),
        st.builds("{}-{}/{}".format, number, number, st.integers(1, 9)),
    )
    text = data.draw(st.lists(part, min_size=1, max_size=3).map(",".join))
    try:
        theirs = crontab_parser(kind.highest - kind.lowest + 1, kind.lowest).parse(text)
    except (ParseException, ValueError):
        theirs = None
    assert theirs is None or read_field(text, kind) == theirs


@given(st.sampled_from(KINDS), st.data())
def test_what_is_written_is_read_back(kind: Kind, data: st.DataObject) -> None:
    values = data.draw(st.sets(st.sampled_from(list(kind.all)), min_size=1))
    text = write_field(values, kind)
    assert read_field(text, kind) == values
    assert read_field(kept_field(text, kind), kind) == values


def test_writing_is_short() -> None:
    assert write_field({1, 2, 3, 4, 5}, WEEKDAY) == "1-5"
    assert write_field(range(0, 60, 5), MINUTE) == "*/5"
    assert write_field({0, 30}, MINUTE) == "0,30"
    assert write_field({0, 1, 2, 22, 23}, HOUR) == "0-2,22,23"
    assert write_field(range(1, 13), MONTH) == "*"
    for values in (set[int](), {60}, {-1}):
        with pytest.raises(Untranslatable):
            write_field(values, MINUTE)


@pytest.mark.parametrize(
    ("days", "weekdays", "fields"),
    [
        (range(1, 32), {1}, ("*", "1")),
        ({1, 15}, range(7), ("1,15", "*")),
        (range(1, 8), {1}, ("*", "1#1")),
        (range(8, 15), {2, 4}, ("*", "2#2,4#2")),
        ({29, 30, 31}, {5}, ("*", "5#5")),
        (range(1, 32, 2), {1}, ("*/2", "1")),
        ({13, 14}, {0, 2, 4, 6}, ("13,14", "*/2")),
    ],
)
def test_both_days_where_cron_has_an_equal(days: set[int], weekdays: set[int], fields: tuple[str, str]) -> None:
    assert both_days(days, weekdays) == fields


def test_both_days_where_it_has_none() -> None:
    with pytest.raises(Untranslatable, match=r"day of the month \(13\) and a weekday \(5\) at once"):
        both_days({13}, {5})


SETS_OF_DAYS = st.one_of(
    st.sets(st.integers(1, 31), min_size=1),
    st.sampled_from([set(range(1, 32)), *(set(range(7 * week - 6, min(7 * week, 31) + 1)) for week in range(1, 6))]),
    st.integers(1, 31).map(lambda step: set(range(1, 32, step))),
)


@given(SETS_OF_DAYS, st.sets(st.integers(0, 6), min_size=1) | st.just(set(range(7))))
def test_both_days_fire_on_the_days_that_match_both(days: set[int], weekdays: set[int]) -> None:
    try:
        day, weekday = both_days(days, weekdays)
    except Untranslatable:
        return
    schedule = parse_schedule(f"0 0 {day} * {weekday}", now=NOW)
    first = NOW + timedelta(days=1)
    calendar = (at for at in (first + timedelta(days=count) for count in range(4_000)))
    expected = [at for at in calendar if at.day in days and (at.weekday() + 1) % 7 in weekdays]
    assert list(islice(schedule.firings(NOW), 10)) == expected[:10]
