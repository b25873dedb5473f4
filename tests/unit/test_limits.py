"""What can be ruled about tasks and queues, as it is said and as it is kept."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourhand import ConfigurationError, Context, Hourhand, Limit, Rate
from hourhand.core.fairness import FairShare, check_weights, lane_of, read_weights
from hourhand.core.limits import Hold, binds, describe, keys_of, make_rule, parse_rate
from hourhand.engine.claimer import by_priority


@pytest.mark.parametrize(
    ("text", "expected"),
    [("100/minute", (100, 60)), ("5/s", (5, 1)), ("10/30s", (10, 30)), ("0.5 / hour", (0.5, 3600)), ("3/2 Days", (3, 172_800))],
)
def test_rates_are_read(text: str, expected: tuple[float, float]) -> None:
    assert parse_rate(text) == expected


@pytest.mark.parametrize("text", ["", "100", "100/", "/s", "0/s", "-1/s", "1/fortnight", "1/0s", None, 5, "100/minute/second"])
def test_what_is_no_rate_is_refused_with_an_example(text: Any) -> None:
    with pytest.raises(ConfigurationError, match="rate"):
        parse_rate(text)


def test_limits_and_rates_by_key_are_kept_together() -> None:
    rule = make_rule(
        concurrency=[Limit(5), Limit(2, key="customer.id")], rate=["10/s", Rate("1/s", burst=3, key="customer.id")][1]
    )
    assert rule == {
        "limits": [
            {"key": "", "slots": 5},
            {"key": "customer.id", "slots": 2, "rate": 1.0, "burst": 3.0, "text": "1/s"},
        ]
    }
    assert keys_of(rule) == ["customer.id"]
    assert describe(rule) == ["5 at once", "2 at once for each customer.id", "1/s for each customer.id, bursts of 3"]


def test_a_bucket_is_as_large_as_the_rate_says_unless_it_is_said() -> None:
    assert make_rule(rate="100/minute")["limits"][0]["burst"] == 100
    assert make_rule(rate="0.5/s")["limits"][0]["burst"] == 1
    assert make_rule(rate=Rate("100/minute", burst=1))["limits"][0]["burst"] == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"concurrency": 0}, "from 1"),
        ({"concurrency": True}, "concurrency takes"),
        ({"concurrency": "5"}, "concurrency takes int"),
        ({"concurrency": [Limit(1), Limit(2)]}, "given twice without a key"),
        ({"concurrency": [Limit(1, key="a"), Limit(2, key="a")]}, "given twice for the key 'a'"),
        ({"rate": 5}, "rate takes str"),
        ({"fair_key": "a b"}, "names an argument"),
        ({"fair_key": ""}, "names an argument"),
        ({"order": "size"}, "arrival, deadline"),
        ({"max_depth": 0}, "from 1"),
        ({"overflow": "reject"}, "give max_depth"),
        ({"max_depth": 5, "overflow": "drop"}, "reject, drop_oldest"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make_rule(**given)


def test_only_rules_that_make_runs_wait_bind() -> None:
    assert not binds(make_rule(max_depth=5, overflow="drop_oldest", order="arrival"))
    assert all(binds(make_rule(**one)) for one in ({"concurrency": 1}, {"rate": "1/s"}, {"fair_key": "a"}, {"order": "deadline"}))


def test_a_task_can_only_go_by_an_argument_it_has_and_shows() -> None:
    app = Hourhand("postgresql://nowhere")

    async def work(ctx: Context, customer: int, card: str) -> None: ...

    with pytest.raises(ConfigurationError, match="goes by 'client', but its function takes customer, card"):
        app.task(concurrency=Limit(1, key="client"))(work)
    with pytest.raises(ConfigurationError, match="which is secret"):
        app.task(fair_key="card", secret=["card"])(work)
    assert app.task(fair_key="customer", secret=["card"])(work)._definition.rule == {"fair_key": "customer"}


def test_a_queue_is_said_once() -> None:
    app = Hourhand("postgresql://nowhere")
    app.queue("mail", concurrency=3)
    app.queue("mail", concurrency=3)
    with pytest.raises(ConfigurationError, match="declared twice"):
        app.queue("mail", concurrency=4)


@pytest.mark.parametrize(
    ("hold", "covered"),
    [
        (Hold(1, task="send"), True),
        (Hold(1, task="other"), False),
        (Hold(1, tag="eu"), True),
        (Hold(1, tag="us"), False),
        (Hold(1, path="customer.id", value="42"), True),
        (Hold(1, path="customer.id", value="43"), False),
        (Hold(1, path="customer.name", value="42"), False),
        (Hold(1, path="urgent", value="true"), True),
        (Hold(1, task="send", tag="us"), False),
        (Hold(1, task="send", queue="mail", tag="eu", path="customer.id", value="42"), True),
        (Hold(1, task="send", queue="default"), False),
    ],
)
def test_a_hold_covers_what_everything_in_it_is_true_of(hold: Hold, covered: bool) -> None:
    assert hold.covers("mail", "send", ["eu", "vip"], lambda: {"customer": {"id": 42}, "urgent": True}) is covered


def test_weights_are_read_and_checked() -> None:
    assert read_weights("high=1, normal=2,low=3") == {"high": 1, "normal": 2, "low": 3}
    for text in ("high=1", "high=0,normal=1,low=1", "high=1,normal=1,low=x", "high=1,normal=1,low=1,none=1"):
        with pytest.raises(ConfigurationError, match="three whole numbers"):
            read_weights(text)
    with pytest.raises(ConfigurationError):
        check_weights({"high": True, "normal": 1, "low": 1})


@given(st.lists(st.integers(1, 200), min_size=50, max_size=80), st.tuples(*[st.integers(1, 100)] * 3))
def test_saturated_classes_get_their_weights_whatever_is_asked_for_at_a_time(
    wants: list[int], numbers: tuple[int, int, int]
) -> None:
    names = ("high", "normal", "low")
    fair = FairShare(dict(zip(names, numbers, strict=True)))
    lanes = [lane_of(1, name) for name in names]
    got = dict.fromkeys(lanes, 0)
    for want in wants:
        plan = fair.split(lanes, want)
        assert sum(share for _, share in plan) == want
        for lane, share in plan:
            got[lane] += share
            fair.took(lane, share)
    total = sum(wants)
    for lane, number in zip(lanes, numbers, strict=True):
        assert abs(got[lane] - total * number / sum(numbers)) <= 3


@given(st.sets(st.sampled_from(["high", "normal", "low"]), min_size=1), st.integers(1, 500))
def test_strictly_the_most_urgent_gets_everything(busy: set[str], want: int) -> None:
    plan = FairShare(strict=True).split([lane_of(1, name) for name in busy], want)
    first = next(name for name in ("high", "normal", "low") if name in busy)
    assert plan == [(lane_of(1, first), want)]


@pytest.mark.parametrize("few", [0, 3])
def test_each_priority_has_its_share_of_any_part_of_what_was_claimed(few: int) -> None:
    claims: list[Any] = [
        SimpleNamespace(lane=4 + index, seq=n) for index, many in ((0, 60), (1, 30), (2, 10)) for n in range(many)
    ]
    urgent, rest = by_priority(claims, few)
    assert (urgent, len(rest)) == ([], 100)
    for part in range(0, 100, 20):
        counts = Counter(claim.lane - 4 for claim in rest[part : part + 20])
        assert [abs(counts[index] - many) <= 1 for index, many in ((0, 12), (1, 6), (2, 2))] == [True] * 3
    for index in range(3):
        assert [claim.seq for claim in rest if claim.lane == 4 + index] == sorted(
            claim.seq for claim in rest if claim.lane == 4 + index
        )


def test_a_few_urgent_ones_come_first() -> None:
    claims: list[Any] = [SimpleNamespace(lane=lane, seq=n) for n, lane in enumerate((6, 6, 4, 6, 4))]
    urgent, rest = by_priority(claims, 2)
    assert ([one.seq for one in urgent], [one.seq for one in rest]) == ([2, 4], [0, 1, 3])
