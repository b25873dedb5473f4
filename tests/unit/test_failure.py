"""An attempt's error as it is kept: bounded, readable, ordered."""

from __future__ import annotations

import msgspec
import pytest

from hourhand.core import failure


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_an_error_is_kept_with_its_type_message_traceback_and_attempt() -> None:
    kept = failure.describe(raised(KeyError("invoice")), 3, "2030-01-01T00:00:00+00:00", "node-1")
    assert (kept["attempt"], kept["node"], kept["type"], kept["message"]) == (3, "node-1", "KeyError", "'invoice'")
    assert "in raised" in kept["traceback"]
    assert kept["traceback"].endswith("KeyError: 'invoice'\n")


def test_a_long_message_keeps_its_start_and_its_end() -> None:
    kept = failure.describe(raised(ValueError("a" * 50_000 + "z" * 50_000)), 1, "", "")
    for text, limit in ((kept["message"], failure.MAX_MESSAGE), (kept["traceback"], failure.MAX_TRACEBACK)):
        assert len(text) < limit + 60
        assert "characters left out" in text
        assert text.rstrip().endswith("zzz")
    assert kept["message"].startswith("aaa")
    assert kept["traceback"].startswith("Traceback")


@pytest.mark.parametrize("message", ["nul \0 inside", "half a pair \ud83d"])
def test_what_postgresql_cannot_store_is_spelled_out(message: str) -> None:
    kept = failure.describe(raised(ValueError(message)), 1, "", "")
    text = msgspec.json.encode(kept).decode()
    assert "\\u0000" not in text
    assert "inside" in text or "\\\\ud83d" in text


def test_an_error_whose_str_fails_is_still_described() -> None:
    class Mean(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    kept = failure.describe(raised(Mean()), 1, "", "")
    assert kept["type"].endswith("Mean")
    assert "RuntimeError" in kept["message"]


def test_an_error_from_a_child_process_keeps_the_childs_words() -> None:
    error = ValueError("x")
    error.remote_type, error.remote_traceback = "billing.Declined", "Traceback in the child"  # type: ignore[attr-defined]
    kept = failure.describe(error, 1, "", "")
    assert (kept["type"], kept["traceback"]) == ("billing.Declined", "Traceback in the child")


def test_of_many_errors_the_first_ten_and_the_latest_forty_are_kept_in_order() -> None:
    errors = None
    for attempt in range(1, 1_001):
        errors = failure.append(errors, {"attempt": attempt})
        assert len(errors) <= failure.MAX_ERRORS
    assert errors is not None
    assert [one["attempt"] for one in errors] == [*range(1, 11), *range(961, 1_001)]


def test_appending_leaves_the_given_list_alone() -> None:
    before = [{"attempt": 1}]
    failure.append(before, {"attempt": 2})
    assert before == [{"attempt": 1}]
