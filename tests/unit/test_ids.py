"""Public ids: short, readable, and back to the number they came from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourhand.core import ids
from hourhand.core.errors import UnknownRun

LARGEST = 2**63 - 1


@given(st.integers(0, LARGEST))
def test_every_bigint_survives_the_trip(number: int) -> None:
    assert ids.parse_run_id(ids.run_id(number)) == number


@given(st.integers(0, LARGEST - 1))
def test_different_numbers_have_different_ids(number: int) -> None:
    assert ids.run_id(number) != ids.run_id(number + 1)


@pytest.mark.parametrize(("number", "text"), [(0, "r_0"), (31, "r_z"), (32, "r_10"), (LARGEST, "r_7zzzzzzzzzzzz")])
def test_ids_are_crockford_base_32(number: int, text: str) -> None:
    assert ids.run_id(number) == text


def test_the_prefix_says_what_the_number_is_of() -> None:
    assert ids.encode("j", 32) == "j_10"


@pytest.mark.parametrize("text", ["R_1F3K", "  r_1f3k\n", "r_1F3k"])
def test_case_and_surrounding_blanks_do_not_matter(text: str) -> None:
    assert ids.parse_run_id(text) == ids.parse_run_id("r_1f3k")


@pytest.mark.parametrize("given_as", [42, "42", str(LARGEST)])
def test_plain_numbers_are_taken_as_the_sql_function_returns_them(given_as: str | int) -> None:
    assert ids.parse_run_id(given_as) == int(given_as)


@pytest.mark.parametrize(
    "text",
    [
        "", "r_", "1f3k", "j_1f3k", "r_1f3i", "r_1f3l", "r_o", "r_u", "r_-1", "-1", "r_ 1", "1.5", "r_é",
        "r_8000000000000", "r_zzzzzzzzzzzzz", "r_00000000000001", str(LARGEST + 1), "9" * 19, "9" * 30,
    ],
)  # fmt: skip
def test_what_cannot_be_a_run_id_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UnknownRun, match="run ids look like r_1f3k"):
        ids.parse_run_id(text)
