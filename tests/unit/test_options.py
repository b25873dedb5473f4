"""What one enqueue may ask for."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from hourhand import InvalidOption
from hourhand.core.options import EnqueueOptions, merge

AT = datetime(2030, 1, 31, 12, 0, tzinfo=UTC)
NAIVE = datetime(2030, 1, 31, 12, 0)
NONE = EnqueueOptions()


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("queue", "billing", "billing"),
        ("queue", "a.b:c-d_9", "a.b:c-d_9"),
        ("queue", "q" * 100, "q" * 100),
        ("priority", "high", "high"),
        ("priority", "low", "low"),
        ("delay", 30, timedelta(seconds=30)),
        ("delay", 0.5, timedelta(milliseconds=500)),
        ("delay", 0, timedelta(0)),
        ("delay", timedelta(0), timedelta(0)),
        ("delay", timedelta(hours=1), timedelta(hours=1)),
        ("at", AT, AT),
        ("at", datetime(2030, 1, 31, 14, 0, tzinfo=timezone(timedelta(hours=2))), AT),
        ("at", datetime(1999, 1, 1, tzinfo=UTC), datetime(1999, 1, 1, tzinfo=UTC)),
        ("expires", 60, timedelta(minutes=1)),
        ("expires", timedelta(days=1), timedelta(days=1)),
        ("key", "invoice-7", "invoice-7"),
        ("key", "k" * 500, "k" * 500),
        ("tags", ["a", "b"], ("a", "b")),
        ("tags", {"a"}, ("a",)),
        ("tags", (), ()),
        ("tags", (one for one in "ab"), ("a", "b")),
        ("tags", [str(n) for n in range(20)], tuple(str(n) for n in range(20))),
        ("tags", ["t" * 100], ("t" * 100,)),
        ("max_attempts", 1, 1),
        ("max_attempts", 10_000, 10_000),
        ("timeout", 5, 5.0),
        ("timeout", timedelta(minutes=2), 120.0),
    ],
)
def test_good_values_are_kept(name: str, value: Any, kept: Any) -> None:
    assert getattr(merge(NONE, {name: value}), name) == kept


def test_an_instant_is_kept_in_utc() -> None:
    at = merge(NONE, {"at": datetime(2030, 7, 1, 9, tzinfo=timezone(timedelta(hours=-4)))}).at
    assert at is not None
    assert at.tzinfo is UTC


def test_expires_is_a_span_or_an_instant_and_the_last_word_counts() -> None:
    by_instant = merge(NONE, {"expires": AT})
    assert (by_instant.expires, by_instant.expires_at) == (None, AT)
    by_span = merge(by_instant, {"expires": 60})
    assert (by_span.expires, by_span.expires_at) == (timedelta(minutes=1), None)
    again = merge(by_span, {"expires": AT})
    assert (again.expires, again.expires_at) == (None, AT)
    never = merge(again, {"expires": None})
    assert (never.expires, never.expires_at) == (None, None)


BAD_SECONDS = [-1, "5", math.nan, math.inf, True, 1e10, timedelta(seconds=-1), [], object()]
BAD_TEXT = ["", "a\0b", "\ud83d", 7, b"a"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("queue", one) for one in [*BAD_TEXT, "-a", "a b", "a\n", "é", "q" * 101]),
        *(("priority", one) for one in ["urgent", "HIGH", "", 1, [], True]),
        *(("delay", one) for one in [*BAD_SECONDS, False]),
        *(("at", one) for one in [NAIVE, 0, "2030-01-31T12:00:00Z", AT.date(), datetime.max.replace(tzinfo=UTC)]),
        ("at", datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))),
        *(("expires", one) for one in [*BAD_SECONDS, 0, NAIVE]),
        *(("key", one) for one in [*BAD_TEXT, "k" * 501]),
        *(("unique_for", one) for one in [*BAD_SECONDS, 0]),
        *(("tags", [one]) for one in [*BAD_TEXT, None, "t" * 101]),
        *(("tags", one) for one in ["abc", 7, [str(n) for n in range(21)]]),
        *(("max_attempts", one) for one in [0, -1, 10_001, 2.5, "3", True]),
        *(("timeout", one) for one in [*BAD_SECONDS, 0]),
    ],
)
def test_bad_values_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=name):
        merge(EnqueueOptions(key="k"), {name: value})


def test_an_unknown_option_is_refused_with_the_list_of_known_ones() -> None:
    with pytest.raises(InvalidOption, match=r"unknown option 'dealy'; the options are queue, priority, delay, at"):
        merge(NONE, {"dealy": 5})
    with pytest.raises(InvalidOption, match="unknown option 'expires_at'"):
        merge(NONE, {"expires_at": AT})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delay": 5, "at": AT}, "delay and at"),
        ({"delay": 0, "at": AT}, "delay and at"),
        ({"unique_for": 60}, "give key="),
        ({"at": AT, "expires": AT}, "expires is not after at"),
        ({"at": AT, "expires": AT - timedelta(seconds=1)}, "expires is not after at"),
        ({"delay": 60, "expires": 60}, "expires is not after delay"),
        ({"delay": 60, "expires": 5}, "expires is not after delay"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        merge(NONE, options)
    first, second = ({name: value} for name, value in options.items()) if len(options) == 2 else ({}, options)
    with pytest.raises(InvalidOption, match=words):
        merge(merge(NONE, first), second)


def test_a_naive_datetime_is_refused_with_what_to_write_instead() -> None:
    with pytest.raises(InvalidOption, match=r"at is a naive datetime \(2030-01-31T12:00:00\).*tzinfo=UTC"):
        merge(NONE, {"at": NAIVE})


def test_later_options_win_and_none_takes_one_back() -> None:
    base = merge(NONE, {"queue": "a", "delay": 5, "key": "k", "tags": ["x"]})
    changed = merge(base, {"queue": "b", "delay": None, "tags": None})
    assert (changed.queue, changed.delay, changed.key, changed.tags) == ("b", None, "k", ())
    assert (base.queue, base.delay, base.tags) == ("a", timedelta(seconds=5), ("x",))


def test_only_what_the_worker_needs_travels_with_the_run() -> None:
    assert NONE.kept() is None
    assert merge(NONE, {"queue": "a", "delay": 5, "key": "k", "tags": ["x"]}).kept_json() is None
    kept = merge(NONE, {"max_attempts": 3, "timeout": 2.5, "key": "k", "unique_for": timedelta(hours=1)}).kept()
    assert kept == {"max_attempts": 3, "timeout": 2.5, "unique_for": 3600.0}
