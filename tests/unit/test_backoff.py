"""When a failed run is tried again, and when it gives up."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourhand import ConfigurationError, PermanentFailure, Retry, RetryAfter
from hourhand.core.backoff import LONGEST_DELAY

RNG = Random(7)


@given(attempt=st.integers(1, 10_000), base=st.floats(0, 1e6), cap=st.floats(0, 1e6), seed=st.integers())
def test_exponential_waits_between_nothing_and_the_doubled_base_never_over_the_cap(
    attempt: int, base: float, cap: float, seed: int
) -> None:
    ceiling = Retry(base=base, cap=cap, jitter=False).delay(attempt, RNG)
    assert ceiling == min(cap, base * 2.0 ** min(attempt - 1, 63))
    assert 0 <= Retry(base=base, cap=cap).delay(attempt, Random(seed)) <= ceiling


def test_full_jitter_uses_the_whole_range() -> None:
    rng = Random(1)
    delays = [Retry(base=10, cap=40).delay(2, rng) for _ in range(2_000)]
    assert min(delays) < 1
    assert max(delays) > 19
    assert 9 < sum(delays) / len(delays) < 11


def test_defaults_are_five_seconds_doubled_up_to_five_minutes() -> None:
    retry = Retry(jitter=False)
    assert [retry.delay(attempt, RNG) for attempt in range(1, 9)] == [5, 10, 20, 40, 80, 160, 300, 300]


@pytest.mark.parametrize("attempt", [1, 2, 50])
def test_fixed_always_waits_the_base(attempt: int) -> None:
    assert Retry(backoff="fixed", base=7).delay(attempt, RNG) == 7
    assert Retry(backoff="fixed", base=700, cap=60).delay(attempt, RNG) == 60


def test_a_function_is_told_the_attempt_that_failed_and_decides() -> None:
    retry = Retry(backoff=lambda attempt: attempt * 1_000, cap=5)
    assert [retry.delay(attempt, RNG) for attempt in (1, 2, 3)] == [1_000, 2_000, 3_000]
    assert Retry(backoff=lambda _: -5).delay(1, RNG) == 0


@pytest.mark.parametrize(
    ("retry", "error"),
    [
        (Retry(backoff=lambda _: math.inf), ValueError()),
        (Retry(backoff=lambda _: 1e300), ValueError()),
        (Retry(base=1e300, cap=math.inf, jitter=False), ValueError()),
        (Retry(), RetryAfter(math.inf)),
        (Retry(), RetryAfter(1e300)),
    ],
)
def test_no_delay_is_longer_than_the_database_can_add_to_a_date(retry: Retry, error: Exception) -> None:
    assert retry.next_delay(error, 1, RNG) == LONGEST_DELAY


@pytest.mark.parametrize(
    ("attempt", "own_limit", "again"), [(2, None, True), (3, None, False), (4, None, False), (3, 9, True), (1, 1, False)]
)
def test_attempts_are_limited_by_the_policy_or_the_runs_own_option(attempt: int, own_limit: int | None, again: bool) -> None:
    delay = Retry(max_attempts=3, backoff="fixed", base=1).next_delay(ValueError(), attempt, RNG, own_limit)
    assert delay == (1 if again else None)


@pytest.mark.parametrize(
    ("error", "again"),
    [(ConnectionError(), True), (ConnectionResetError(), True), (ConnectionRefusedError(), False), (KeyError(), False)],
)
def test_retry_on_and_give_up_on_go_by_type_and_giving_up_wins(error: Exception, again: bool) -> None:
    retry = Retry(retry_on=(ConnectionError,), give_up_on=(ConnectionRefusedError,))
    assert (retry.next_delay(error, 1, RNG) is not None) is again


def test_without_retry_on_every_error_is_worth_another_attempt() -> None:
    assert Retry(give_up_on=(KeyError,)).wants(ValueError())
    assert not Retry(give_up_on=(LookupError,)).wants(KeyError())


def test_one_type_may_be_given_without_a_tuple() -> None:
    assert Retry(retry_on=KeyError).retry_on == (KeyError,)  # type: ignore[arg-type]


class FromAChild(Exception):
    """As the isolation brings errors over: with the names of their types."""

    lineage = ("builtins.KeyError", "builtins.LookupError", "builtins.Exception")


@pytest.mark.parametrize(
    ("retry", "again"),
    [(Retry(retry_on=LookupError), True), (Retry(give_up_on=LookupError), False), (Retry(retry_on=ValueError), False)],
)  # type: ignore[arg-type]
def test_an_error_from_a_child_process_is_judged_by_the_names_of_its_types(retry: Retry, again: bool) -> None:
    assert retry.wants(FromAChild()) is again


def test_permanent_failure_gives_up_even_where_retry_on_names_it() -> None:
    assert Retry(retry_on=(Exception,)).next_delay(PermanentFailure("no"), 1, RNG) is None


def test_retry_after_decides_the_delay_but_counts_as_an_attempt() -> None:
    retry = Retry(max_attempts=3, retry_on=(KeyError,))
    assert retry.next_delay(RetryAfter(120), 2, RNG) == 120
    assert retry.next_delay(RetryAfter(120), 3, RNG) is None
    assert "120 s" in str(RetryAfter(120))
    assert str(RetryAfter(1, "rate limit")) == "rate limit"


@pytest.mark.parametrize("delay", [-1, math.nan])
def test_retry_after_refuses_a_delay_that_is_none(delay: float) -> None:
    with pytest.raises(ValueError, match="0 seconds or more"):
        RetryAfter(delay)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 10_001}, "max_attempts"),
        ({"max_attempts": "5"}, "max_attempts"),
        ({"max_attempts": 2.5}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"base": -1}, "base"),
        ({"base": math.nan}, "base"),
        ({"base": "5"}, "base"),
        ({"cap": -0.1}, "cap"),
        ({"cap": math.nan}, "cap"),
        ({"backoff": "linear"}, '"exponential", "fixed" or a function'),
        ({"backoff": 5}, '"exponential", "fixed" or a function'),
        ({"retry_on": (int,)}, "retry_on takes exception types"),
        ({"retry_on": ("KeyError",)}, "retry_on takes exception types"),
        ({"give_up_on": [KeyError]}, "give_up_on takes exception types"),
        ({"give_up_on": KeyError()}, "give_up_on takes exception types"),
    ],
)
def test_a_policy_that_cannot_work_is_refused_where_it_is_written(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Retry(**bad)
