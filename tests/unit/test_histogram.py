"""Classes of durations, and what lies below which share of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourhand.core.histogram import BOUNDS, CLASSES, class_of, quantile, tally


def counts(values: list[float]) -> list[int]:
    found = [0] * CLASSES
    for value in values:
        found[class_of(value)] += 1
    return found


def test_a_bound_belongs_to_the_class_below_it() -> None:
    assert [class_of(one) for one in BOUNDS] == list(range(len(BOUNDS)))
    assert class_of(BOUNDS[-1] + 1) == CLASSES - 1
    assert class_of(-3.0) == 0


def test_nothing_has_no_median() -> None:
    assert quantile([0] * CLASSES, 0.5) is None
    assert quantile([], 0.99) is None


@given(st.lists(st.floats(0, 5_000), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_in_the_class_of_the_real_one(values: list[float], share: float) -> None:
    real = sorted(values)[max(0, min(len(values) - 1, -(-int(share * len(values) * 1_000) // 1_000) - 1))]
    found = quantile(counts(values), share, max(values))
    assert found is not None
    assert abs(class_of(found) - class_of(real)) <= 1
    assert found <= max(values)


def test_evenly_filled() -> None:
    assert quantile(counts([0.75] * 100), 0.5) == pytest.approx(0.75)


@given(st.lists(st.floats(-10, 4_000) | st.sampled_from(BOUNDS)))
def test_many_are_counted_as_each_would_be(seconds: list[float]) -> None:
    assert tally(seconds) == counts(seconds)
