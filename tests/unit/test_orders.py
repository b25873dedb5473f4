"""What people order above what the code declares."""

from __future__ import annotations

from typing import Any

import pytest

from hourhand.core.errors import ConfigurationError
from hourhand.core.limits import Limit, Rate, describe, describe_order, make_order, make_rule

DECLARED = make_rule(concurrency=6, rate=Rate("5/s", key="customer"), fair_key="customer", max_depth=9)


@pytest.mark.parametrize(
    ("given", "kept", "words"),
    [
        ({"concurrency": 2}, {"limits": [{"key": "", "slots": 2}]}, ["2 at once"]),
        ({"concurrency": [Limit(1, key="a")]}, {"limits": [{"key": "a", "slots": 1}]}, ["1 at once for each a"]),
        ({"concurrency": None}, {"limits": None}, ["no limits"]),
        ({"fair_key": None, "order": "arrival"}, {"fair_key": None, "order": "arrival"}, ["not in turns", "in order of arrival"]),
        ({"order": "deadline"}, {"order": "deadline"}, ["earliest deadline first"]),
        ({"overflow": "drop_oldest"}, {"overflow": "drop_oldest"}, ["overflow drop_oldest"]),
        ({"max_depth": None}, {"max_depth": None}, ["as many as come may wait"]),
        ({"max_depth": 3, "overflow": None}, {"max_depth": 3, "overflow": None},
         ["at most 3 wait, then more are refused", "more are refused"]),
    ],
)  # fmt: skip
def test_parts_that_are_given_are_ordered(given: dict[str, Any], kept: dict[str, Any], words: list[str]) -> None:
    parts = make_order("queue", DECLARED, **given)
    assert parts == kept
    assert describe_order(parts) == words


def test_an_order_lifts_what_is_declared() -> None:
    parts = make_order("queue", DECLARED, rate=None, fair_key=None, max_depth=None)
    assert describe({**DECLARED, **parts}) == []


@pytest.mark.parametrize(
    ("scope", "given"),
    [
        ("table", {"concurrency": 1}), ("queue", {}), ("task", {"order": "deadline"}), ("task", {"max_depth": None}),
        ("queue", {"order": "size"}), ("queue", {"max_depth": 0}), ("queue", {"fair_key": "a b"}),
        ("queue", {"max_depth": None, "overflow": "reject"}),
    ],
)  # fmt: skip
def test_what_cannot_be_ordered(scope: str, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        make_order(scope, DECLARED, **given)
