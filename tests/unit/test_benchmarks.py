"""The parts of the benchmarks that decide something: what is expected, what is counted, what is reported."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmarks import capacity, compare, observe, population, run, soak
from benchmarks.peers import __main__ as bench
from benchmarks.peers import field, kit, measures, report
from hourhand.core.schedule import Schedule

BEGIN = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)  # the clocks of Berlin change half an hour later


def test_a_job_of_the_population_fires_about_once_an_hour() -> None:
    owed = population.expected(20_000, BEGIN, BEGIN + timedelta(hours=2))
    assert 0.95 < owed.total() / 20_000 / 2 < 1.1
    assert {zone for _, zone, _ in owed} == set(population.ZONES)


def test_the_oracle_and_the_product_agree() -> None:
    end = BEGIN + timedelta(hours=3)
    ours: Counter[tuple[str, str, datetime]] = Counter()
    for expression, zone in map(population.when, range(2_000)):
        if zone != "Europe/Berlin":  # what a fixed time does in the hour that does not exist is ours to decide
            for at in Schedule("cron", expression, zone).firings(BEGIN - timedelta(seconds=1), end - timedelta(seconds=1)):
                ours[expression, zone, at] += 1
    theirs = {one: many for one, many in population.expected(2_000, BEGIN, end).items() if one[1] != "Europe/Berlin"}
    assert ours == theirs


def test_schedules_of_their_own_are_due_together() -> None:
    due = datetime(2026, 3, 31, 13, 7, 5, tzinfo=UTC)
    texts = [population.at(due, n) for n in range(3_000)]
    assert len({*texts}) == 3_000
    for text in texts[::97]:
        assert Schedule("cron", text).next_after(due - timedelta(seconds=1)) == due
    often = [population.often(n) for n in range(3_000)]
    assert len({*often}) == 3_000
    now = datetime.now(UTC)
    for text in often[::97]:
        first = Schedule("cron", text).next_after(now)
        assert first is not None
        assert first - now <= timedelta(seconds=10)


ONE, OTHER = ("0 * * * * *", "UTC", BEGIN), ("0 * * * * *", "UTC", BEGIN + timedelta(minutes=1))
FINE = population.Made(3, 3, 3)


@pytest.mark.parametrize(
    ("made", "ledger", "faults"),
    [
        ({ONE: FINE}, {ONE: 3}, {}),
        ({ONE: population.Made(2, 2, 2)}, {ONE: 3}, {"missed": 1}),
        ({ONE: population.Made(3, 3, 2)}, {ONE: 3}, {"missed": 1}),
        ({}, {ONE: 3}, {"missed": 3}),
        ({ONE: population.Made(4, 3, 3)}, {ONE: 3}, {"doubled": 1}),
        ({ONE: population.Made(5, 5, 3)}, {ONE: 3}, {"extra": 2}),
        ({ONE: FINE, OTHER: population.Made(1, 1, 0)}, {ONE: 3}, {"extra": 1}),
        ({ONE: FINE}, {ONE: 2}, {"disagreeing": 1}),
        ({ONE: FINE}, {}, {"disagreeing": 1}),
        ({ONE: FINE}, {ONE: 3, OTHER: 1}, {"disagreeing": 1}),
    ],
)
def test_every_fault_in_the_account_of_firings_is_told(
    made: dict[population.Instant, population.Made], ledger: dict[population.Instant, int], faults: dict[str, int]
) -> None:
    one = population.account(Counter({ONE: 3}), made, ledger)
    assert one.clean is not bool(faults)
    assert asdict(one) == {"expected": 3, "missed": 0, "doubled": 0, "extra": 0, "disagreeing": 0, **faults}


def sample(at: float, done: float = 1_000.0, claim: float = 1.0, size: float = 40.0, *, held: bool = False) -> soak.Sample:
    return soak.Sample(at, 1_000.0, done, claim, size, 0, held)


def soaked(**after: float) -> list[soak.Sample]:
    """A minute of beginning, two of before, two beside a transaction, five after it of which the last three are as told."""
    moments = [5.0 * n for n in range(1, 121)]
    return [
        sample(at, done=500.0) if at < 60
        else sample(at) if at < 180
        else sample(at, done=700.0, claim=3.0, size=400.0, held=True) if at < 300
        else sample(at, done=800.0, size=300.0) if at < 420
        else sample(at, **after)
        for at in moments
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("after", "missed"),
    [
        ({}, set()),
        ({"done": 899.0}, {"throughput from two minutes after it on, worst half minute, of before"}),
        ({"claim": 1.11}, {"claim time after it, of before"}),
        ({"size": 53.0}, {"tables at the end, of before"}),
    ],
    ids=["as before", "slow", "dear", "large"],
)
def test_half_an_hour_is_judged(after: dict[str, float], missed: set[str]) -> None:
    verdict = soak.judge(soaked(**after))
    assert (verdict.before.done, verdict.worst) == (1_000.0, 0.7)
    assert {what for what, _, good in soak.findings(verdict, 1_000) if not good} == missed


def test_the_worst_half_minute_beside_it_counts() -> None:
    samples = soaked()
    for one in samples[40:46]:
        one.done = 500.0
    verdict = soak.judge(samples)
    assert verdict.worst == 0.5
    assert [what for what, _, good in soak.findings(verdict, 1_000) if not good] == [
        "throughput beside it, worst half minute, of before"
    ]


@pytest.mark.parametrize("slow", ["asked", "done"])
def test_a_load_that_is_not_reached_is_missed(slow: str) -> None:
    samples = soaked()
    for one in samples:
        setattr(one, slow, getattr(one, slow) * 0.94)
    missed = [what for what, _, good in soak.findings(soak.judge(samples), 1_000) if not good]
    assert missed == ["throughput before it, of the planned"]


def test_who_is_back_only_later_is_not_back_in_two_minutes() -> None:
    samples = soaked()
    for one in samples[-30:-24]:
        one.done = 899.0
    missed = [what for what, _, good in soak.findings(soak.judge(samples), 1_000) if not good]
    assert missed == ["throughput from two minutes after it on, worst half minute, of before"]


@pytest.mark.parametrize("words", ["--minutes 5", "--minutes 15 --hold 13", "--hold 0"])
def test_a_transaction_that_leaves_nothing_to_compare_is_refused(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["soak", *words.split()])
    with pytest.raises(SystemExit):
        soak.arguments()


def test_shorter_ones_hold_it_for_a_third_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["soak", "--minutes", "15"])
    options = soak.arguments()
    assert (options.hold_from, options.hold) == (4.0, 5.0)


def rounds(*told: dict[str, float] | Exception) -> Callable[[object], Awaitable[dict[str, float]]]:
    left = list(told)

    async def take(stage: object) -> dict[str, float]:
        one = left.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    return take


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ([{"kill": 3.0}, {"kill": 1.0}, {"kill": 2.0}], {"kill": 2.0}),
        ([{"kill": 3.0}, measures.Stalled("late"), {"kill": 2.0}], {"kill": 3.0, "failed": ["late"]}),
        ([{"kill": 3.0}, measures.Stalled("late"), measures.Stalled("later")], {"no": "later", "failed": ["late", "later"]}),
        (
            [{"kill": 3.0}, OSError("away"), {"kill": 2.0}, {"kill": 4.0}],
            {"kill": 3.0, "failed": ["the bench broke down: OSError('away')"]},
        ),
        ([measures.Broken("it ended"), {"kill": 3.0}, {"kill": 2.0}, {"kill": 1.0}], {"kill": 2.0, "failed": ["it ended"]}),
        ([measures.Broken("it ended")] * 5 + [{"kill": 4.0}], {"kill": 4.0, "failed": ["it ended"] * 5}),
        ([measures.Broken("it ended")] * 6, {"no": "it ended", "failed": ["it ended"] * 6}),
        ([measures.Stalled("never", {"due 1000": 9.0})], {"no": "never", "due 1000": 9.0}),
        (
            [
                {"due 1000": 1.0, "due 10000": 7.0},
                measures.Stalled("late", {"due 1000": 3.0}),
                measures.Stalled("later", {"due 1000": 2.0}),
            ],
            {"no": "later", "due 1000": 2.0, "failed": ["late", "later"]},
        ),
        ([OSError("1")] * 6, {"no": "the bench broke down: OSError('1')", "failed": ["the bench broke down: OSError('1')"] * 6}),
    ],
    ids=[
        "median",
        "one late",
        "two late",
        "one broken",
        "one ended",
        "all but one ended",
        "all ended",
        "stalled",
        "stalled by half",
        "all broken",
    ],
)
async def test_rounds_that_fail_are_told(
    told: list[dict[str, float] | Exception], found: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measures, "kill", rounds(*told))
    options = argparse.Namespace(runs=None, rounds=3, held=1.0)
    taking = bench.Taking(field.peers()[0], "kill", {}, tmp_path, options)
    while taking.left:
        await taking.round()
    stamps = ("at", "commit", "source", "versions", "adapter", "rounds", "stolen", "noisy")
    assert {key: value for key, value in taking.result().items() if key not in stamps} == found


def test_rounds_go_there_and_back(tmp_path: Path) -> None:
    options = argparse.Namespace(runs=None, rounds=3, held=1.0)
    takings = [bench.Taking(peer, "kill", {}, tmp_path, options) for peer in field.peers()[:3]]
    takings[1].left = 2
    order = []
    for one in bench.by_turns(takings):
        order.append(takings.index(one))
        one.left -= 1
    assert order == [0, 1, 2, 2, 1, 0, 0, 2]


class Theft:
    """A host that takes so much in one round after the other, and then nothing."""

    shares: ClassVar[list[float]] = []

    def share(self) -> float:
        return self.shares.pop(0) if self.shares else 0.0


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the host of the machine that tests run on takes."""
    monkeypatch.setattr(bench.observe, "Theft", Theft)


@pytest.mark.parametrize(
    ("shares", "told", "counted"),
    [
        ([0.03, 0.0, 0.02], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),
        ([0.2, 0.0, 0.02, 0.01], [9.0, 2.0, 3.0, 1.0], [2.0, 3.0, 1.0]),
        ([0.2, 0.3, 0.1, 0.04, 0.05, 0.06], [9.0, 8.0, 7.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),
        ([0.0, 0.2, 0.02, 0.01], [1.0, measures.Stalled("late"), 3.0, 2.0], [1.0, 3.0, 2.0]),
    ],
    ids=["quiet", "noisy once", "always noisy", "late and noisy"],
)
async def test_a_round_is_taken_again_if_the_host_was_busy(
    shares: list[float],
    told: list[float | Exception],
    counted: list[float],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(measures, "kill", rounds(*({"kill": one} if isinstance(one, float) else one for one in told)))
    monkeypatch.setattr(Theft, "shares", [*shares])
    taking = bench.Taking(field.peers()[0], "kill", {}, tmp_path, argparse.Namespace(runs=None, rounds=3, held=1.0))
    while taking.left:
        await taking.round()
    result = taking.result()
    assert not Theft.shares
    assert [one["kill"] for one in result["rounds"]] == counted
    assert result["kill"] == sorted(counted)[1]
    assert len(result["noisy"]) == len(told) - 3
    assert all("stolen" in one for one in result["noisy"])
    assert result.get("failed", []) == [str(one) for one in told if isinstance(one, Exception)]


def test_what_was_measured_on_a_busy_host_is_told() -> None:
    peer = field.peers()[1]
    measured = {"due": {"stolen": [0.01, 0.02, 0.2]}, "kill": {"stolen": [0.01, 0.04, 0.05]}, "many": {}, "held": {"no": "never"}}
    assert report._noisy({"peers": {peer.name: measured}}, peer) == ["kill -9"]


def test_what_the_host_takes_is_a_share_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the real one
    told = iter(["cpu  10 0 10 70 5 1 1 3 0 0\ncpu0 1 1", "cpu  40 0 20 120 5 1 1 13 9 9\ncpu0 1 1"])
    monkeypatch.setattr(observe.Path, "read_text", lambda _: next(told))
    assert observe.Theft().share() == 0.1


async def test_a_held_transaction_is_tried_again_if_the_peer_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measures, "held", lambda stage, seconds: told(stage))
    told = rounds(measures.Broken("it ended"), {"held ratio": 0.5})
    taking = bench.Taking(field.peers()[0], "held", {}, tmp_path, argparse.Namespace(runs=None, rounds=3, held=1.0))
    await taking.round()
    assert taking.left == 1
    await taking.round()
    assert taking.left == 0
    assert taking.result()["held ratio"] == 0.5


async def test_a_bench_that_breaks_down_does_not_replace_what_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measures, "kill", rounds(OSError("away")))
    results = {"peers": {"hourhand": {"kill": {"kill": 9.0}}}}
    taking = bench.Taking(field.peers()[0], "kill", {}, tmp_path, argparse.Namespace(runs=None, rounds=1, held=1.0))
    await taking.round()
    bench.keep(results, taking, {"run": "today"}, tmp_path / "published")
    assert results == {"peers": {"hourhand": {"kill": {"kill": 9.0}}}}
    assert bench.told(taking.result()) == "no: the bench broke down: OSError('away')"


async def test_rounds_to_come_do_not_replace_what_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measures, "kill", rounds({"kill": 3.0}, {"kill": 1.0}))
    monkeypatch.setattr(bench.observe, "so_far", lambda path: tmp_path / "so far")
    results, published = {"peers": {"hourhand": {"kill": {"kill": 9.0}}}}, tmp_path / "published"
    taking = bench.Taking(field.peers()[0], "kill", {}, tmp_path, argparse.Namespace(runs=None, rounds=2, held=1.0))
    await taking.round()
    bench.keep(results, taking, {"run": "today"}, published)
    assert results["peers"]["hourhand"]["kill"] == {"kill": 9.0}
    assert json.loads((tmp_path / "so far").read_text())["hourhand, kill"]["rounds"] == [{"kill": 3.0}]
    await taking.round()
    bench.keep(results, taking, {"run": "today"}, published)
    kept = json.loads(published.read_text())["peers"]["hourhand"]["kill"]
    assert (kept["kill"], kept["run"]) == (2.0, "today")


def test_notes_tell_why_not_and_what_failed() -> None:
    peer = replace(field.peers()[0], remarks={"kill": "as it is.", "due": "so it is."})
    measured = {"kill": {"no": "never\nat all"}, "drain": {"drain 1": 5.0, "drain 2": 6.0, "failed": ["late"]}}
    notes = report._notes({"peers": {peer.name: measured}}, peer)
    assert notes == {"kill": "no: never … at all (as it is.)", "due": "so it is.", "drain": "1 of the rounds failed: late"}
    why = "It cannot.\n" + "For a reason. " * 50
    notes = report._notes({"peers": {peer.name: measured}}, replace(peer, no={"kill": why}))
    assert notes["kill"] == f"no: {why} (as it is.)", "as it is told today, and whole"


def figures(**changed: float) -> dict[str, object]:
    """Of four peers, all bars reached, but for what is changed."""
    told = {"hourhand/drain 1": 50.0, "hourhand/drain 2": 60.0, "hourhand/limit": 90.0, "hourhand/latency p50": 2.0,
            "hourhand/latency p99": 4.0, "hourhand/due 10000": 0.5, "pgqueuer/drain 1": 10.0, "pgqueuer/drain 2": 20.0,
            "pgqueuer/latency p50": 3.0, "pgqueuer/latency p99": 5.0, "graphile_worker/drain 1": 40.0,
            "graphile_worker/drain 2": 45.0, "huey/latency p50": 1.0, "huey/latency p99": 2.0}  # fmt: skip
    peers: dict[str, dict[str, dict[str, float]]] = {}
    for key, value in {**told, **changed}.items():
        name, _, figure = key.partition("/")
        peers.setdefault(name, {}).setdefault("drain" if figure == "limit" else figure.split()[0], {})[figure] = value
    return {"peers": peers}


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({}, []),
        ({"pgqueuer/drain 1": 20.1}, ["drain, one process: 2.49 times the fastest peer in Python"]),
        ({"huey/drain 2": 25.0}, ["drain, two processes: 2.40 times the fastest peer in Python"]),
        ({"pgboss/drain 1": 50.0}, ["drain, one process: 1.00 times the fastest of all peers, pg-boss"]),
        (
            {"graphile_worker/drain 2": 61.0},
            ["drain, two processes: 0.98 times the fastest of all", "drain, two processes: 0.98 times Graphile Worker"],
        ),
        ({"hourhand/limit": 110.0}, ["drain, one process: 0.45 of what plain SQL does"]),
        ({"pgqueuer/latency p50": 1.9}, ["enqueue to start, p50: 1.05 of the soonest"]),
        ({"pgqueuer/latency p99": 4.0}, ["enqueue to start, p99: 1.00 of the soonest"]),
        ({"hourhand/due 10000": 1.0}, ["10,000 due at once: last start after: 1 s"]),
    ],
)
def test_hourhand_is_judged_among_its_peers(changed: dict[str, float], missed: list[str]) -> None:
    told = report.verdicts(figures(**changed), field.peers())
    assert len(told) == 11
    bad = [one.said for one in told if not one.good]
    assert len(bad) == len(missed)
    assert all(one.startswith(start) for one, start in zip(bad, missed, strict=True))


def test_what_was_not_measured_is_not_judged() -> None:
    assert report.verdicts({"peers": {"hourhand": {"drain": {"drain 1": 5.0}}}}, field.peers()) == []


def test_what_is_published_and_cannot_be_judged_is_missed() -> None:
    def missed(known: dict[str, Any]) -> list[str]:
        return [one.said for one in report.verdicts({"peers": known}, field.peers(), whole=True) if not one.good]

    known: dict[str, Any] = figures()["peers"]  # type: ignore[assignment]
    cannot = {"no": "it cannot"}
    for peer in field.peers()[1:]:
        known[peer.name] = {**dict.fromkeys(field.MEASURES, cannot), **known.get(peer.name, {})}
    assert missed(known) == []
    del known["awa"]["latency"]
    known["celery"]["due"] = {"no": "the bench broke down", "failed": ["the bench broke down"]}
    assert missed(known) == [
        "enqueue to start, p50: not known of Awa",
        "enqueue to start, p99: not known of Awa",
        "10,000 due at once: last start after: not known of Celery",
    ]
    known["awa"]["latency"] = known["celery"]["due"] = known["graphile_worker"]["drain"] = cannot
    assert missed(known) == [
        f"drain, {many}: 1 of 4 not judged, for want of a figure" for many in ("one process", "two processes")
    ]


def test_rounds_that_do_not_count_are_told() -> None:
    peer = field.peers()[1]
    measured = {"latency": {"noisy": [{"latency p99": 90.0, "stolen": 0.2}] * 2}, "drain": {"noisy": []}, "due": {"no": "never"}}
    assert report._left_out({"peers": {peer.name: measured}}, peer) == ["enqueue to start: 2"]


def test_how_far_rounds_are_apart_is_told() -> None:
    peer = field.peers()[1]
    measured = {"drain": {"rounds": [{"drain 1": 9.0, "drain 2": 5.0}, {"drain 1": 2_000.0}]}, "latency": {"no": "never"}}
    cells = [
        report._spread({"peers": {peer.name: measured}}, peer, column) for column in report.COLUMNS[2:5] + report.COLUMNS[8:9]
    ]
    assert cells == ["9 to 2,000", "5 to 5", "no", ""]


def test_who_is_ahead_is_told() -> None:
    present = [peer for peer in field.peers() if peer.name in figures()["peers"]]  # type: ignore[operator]
    told = figures(**{"huey/drain 1": 70.0, "graphile_worker/drain 1": 80.0})
    assert [*report._ahead(told, present)][1:] == [
        "- drain, one process, runs/s: Graphile Worker 80, Huey 70",
        "- enqueue to start, p50, ms: Huey 1",
        "- enqueue to start, p99, ms: Huey 2",
    ]


def test_it_is_told_what_was_measured_of_which_commit() -> None:
    ours = field.peers()[0]
    measured = {
        "drain": {"commit": "c1", "source": "s1"},
        "kill": {"commit": "c2", "source": "s1"},
        "due": {"commit": "c1", "source": "s1"},
    }
    assert report._commits({"peers": {ours.name: measured}}, ours) == "c1 (src s1): drain, due at once; c2 (src s1): kill -9"


@pytest.mark.parametrize(
    ("module", "words", "said"),
    [
        ("peers", "--rounds 0", "0 is too few: give 1 or more"),
        ("peers", "--rounds 1", "are a trial"),
        ("peers", "--held 30", "are a trial"),
        ("peers", "--only huey", "src or benchmarks are not as committed"),
        ("peers", "--only nobody", "invalid choice: 'nobody'"),
        ("peers", "--report --results nowhere.json", "nothing has been measured"),
        ("run", "--only drain", "invalid choice: 'drain' (choose from 'drains',"),
        ("run", "--json nowhere/figures.json", "nowhere/figures.json: there is no such folder"),
        ("compare", "nothing-of-that-name", "nothing-of-that-name is not a commit of this repository"),
        ("capacity", "--jobs 0", "0 is too few: give 1,000 or more"),
        ("capacity", "--hot 0", "0 is too few: give 1 or more"),
        ("soak", "--rate 399", "399 is too few: give 400 or more"),
        ("capacity", "--json docs/capacity.json", "src or benchmarks are not as committed"),
        ("soak", "--json docs/soak.json", "give another file than docs/soak.json"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_it_begins(
    module: str, words: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(observe.PROJECT)
    monkeypatch.setattr(sys, "argv", [module, *words.split()])
    monkeypatch.setattr(bench.observe, "stamp", lambda: {"commit": "c0ffee-dirty"})
    monkeypatch.setattr(bench.observe, "begin", lambda: pytest.fail("it begins"))
    with pytest.raises(SystemExit) as refused:
        {"peers": bench, "run": run, "compare": compare, "capacity": capacity, "soak": soak}[module].main()
    assert refused.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("results", "measured"), [("docs", ["hourhand", "huey"]), ("trial", ["huey"])])
def test_hourhand_is_measured_beside_whoever_is_published(
    results: str, measured: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    published = tmp_path / "docs"
    (tmp_path / results).write_text('{"peers": {}}')
    monkeypatch.setattr(bench, "RESULTS", published)
    monkeypatch.setattr(bench.observe, "stamp", lambda: {"commit": "c0ffee"})
    monkeypatch.setattr(bench.observe, "begin", lambda: None)
    monkeypatch.setattr(report, "write", lambda *_: None)
    taken: list[str] = []
    monkeypatch.setattr(bench, "measure", lambda chosen, options: taken.extend(peer.name for peer in chosen))
    monkeypatch.setattr(sys, "argv", ["peers", "--only", "huey", "--results", str(tmp_path / results)])
    if results == "docs":
        with pytest.raises(SystemExit):  # nothing of it can be judged
            bench.main()
    else:
        bench.main()
    assert taken == measured


def test_what_hourhand_itself_could_not_do_is_missed() -> None:
    told = figures()
    told["peers"]["hourhand"]["due"] = {"no": "9 of 10 started\nlog"}  # type: ignore[index]
    bad = [one.said for one in report.verdicts(told, field.peers()) if not one.good]
    assert bad == ["due at once: no: 9 of 10 started … log"]
    told["peers"]["hourhand"]["due"] = {"due 10000": 0.5, "failed": ["a worker ended with 1: Traceback\n  File\nOSError: away"]}  # type: ignore[index]
    bad = [one.said for one in report.verdicts(told, field.peers()) if not one.good]
    assert bad == ["due at once: 1 of the rounds failed: a worker ended with 1: Traceback … OSError: away"]


def test_figures_of_several_runs_are_told_apart() -> None:
    told = figures()
    for name, when in (("hourhand", "today"), ("pgqueuer", "today"), ("graphile_worker", "yesterday")):
        told["peers"][name]["drain"]["run"] = when  # type: ignore[index]
    apart = {one.said.partition(" (")[0] for one in report.verdicts(told, field.peers()) if one.said.endswith("measured apart")}
    assert apart == {
        "drain, one process: 1.25 times the fastest of all peers, Graphile Worker",
        "drain, two processes: 1.33 times the fastest of all peers, Graphile Worker",
        "drain, one process: 1.25 times Graphile Worker, which keeps no history",
        "drain, two processes: 1.33 times Graphile Worker, which keeps no history",
    }


def test_who_was_measured_apart_is_told() -> None:
    ours, *others = field.peers()
    elsewhere = next(peer for peer in others if peer.server != "postgresql")
    runs = {ours.name: "today", others[0].name: "today", others[1].name: "yesterday", elsewhere.name: "yesterday"}
    told = {"peers": {name: {"due": {"run": run}, "held": {"run": run}} for name, run in runs.items()}}
    taken = [ours, *others[:2], elsewhere]
    assert report._apart(told, taken, "due") == [others[1].title, elsewhere.title]
    assert report._apart(told, taken, "kill") == []
    cannot = {peer.title for peer in taken if peer.cannot("held")}
    assert set(report._apart(told, taken, "held")) == {others[1].title} - cannot
    assert elsewhere.title in cannot


def test_settings_that_have_changed_since_are_told() -> None:
    peer = field.peers()[1]
    measured = {"due": {"adapter": peer.fingerprint()}, "register": {"adapter": "another"}, "many": {}}
    assert report._of_earlier_settings({"peers": {peer.name: measured}}, peer) == ["register schedules", "enqueue in bulk"]
    assert replace(peer, settings="else").fingerprint() != peer.fingerprint()


def test_what_was_changed_meanwhile_is_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    of = {"HEAD:src": "a", "HEAD:benchmarks": "b", "--porcelain": ""}
    monkeypatch.setattr(observe, "_git", lambda *words: " ".join(of.get(word, "") for word in words).strip())
    before = observe.trees()
    observe.check_unchanged(before, tmp_path)
    for changed in of:
        with monkeypatch.context() as patch:
            patch.setitem(of, changed, "other")
            with pytest.raises(SystemExit, match="changed since it began"):
                observe.check_unchanged(before, tmp_path)


def test_what_handlers_did_is_read_from_outside(tmp_path: Path) -> None:
    program = "from benchmarks.peers import kit; [kit.noop(n) for n in range(7)]; kit.stamp(3); kit.stamp(4)"
    root = Path(__file__).parent.parent.parent
    environment = {**os.environ, "BENCH_METER": str(tmp_path), "PYTHONPATH": str(root)}
    process = subprocess.Popen([sys.executable, "-c", program], env=environment, start_new_session=True)
    assert process.wait(60) == 0
    assert kit.counts(tmp_path) == {process.pid: 7}
    assert [number for number, _ in kit.moments("stamp", tmp_path)] == [3, 4]


class Bulk(kit.Peer):
    """Puts a thousand in within half a second, by a clock of its own."""

    def __init__(self) -> None:
        self.now, self.given = 100.0, []

    def enqueue_many(self, task: str, numbers: range) -> None:
        self.now += len(numbers) / 2_000
        self.given.append(len(numbers))


async def test_in_bulk_what_is_done_soon_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Bulk()
    monkeypatch.setattr(kit.time, "perf_counter", lambda: peer.now)
    assert await kit._put_in(peer, "enqueue-bulk", ["1000"]) == 0.5
    assert peer.given == [40, 1_000, 1_000, 1_000, 1_000]
    assert await kit._put_in(peer, "enqueue-bulk", ["9000"]) == 4.5
    assert peer.given[5:] == [40, 9_000]


class Fed(kit.Peer):
    """Takes a second to put some in; meanwhile so many of those that were there before are done."""

    def __init__(self, rate: int) -> None:
        self.now, self.rate, self.given, self.done = 100.0, rate, 0, 0.0

    def enqueue_many(self, task: str, numbers: range) -> None:
        self._pass(1.0)
        self.given += len(numbers)

    async def sleep(self, seconds: float) -> None:
        self._pass(seconds)

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        self.done = min(self.given, self.done + self.rate * seconds)


@pytest.mark.parametrize(("rate", "starved"), [(800, False), (1_000, True), (9_000, True)])
async def test_it_is_told_if_runs_are_done_as_fast_as_they_can_be_put_in(
    rate: int, starved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, written = Fed(rate), list[str]()
    monkeypatch.setattr(kit.time, "monotonic", lambda: peer.now)
    monkeypatch.setattr(kit.asyncio, "sleep", peer.sleep)
    monkeypatch.setattr(kit, "counts", lambda: {1: peer.done})
    monkeypatch.setattr(kit, "_write", lambda name, line: written.append(line))
    await kit._feed(peer, 60.0)
    if starved:
        assert len(written) > 50
    else:
        assert not written
        assert peer.given - peer.done >= kit.FEED_AHEAD - kit.FEED_AT_ONCE


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> measures.Stage:
    """Of two workers, of whom the first one does whatever is asked. Nobody is waited for."""
    monkeypatch.setattr(measures, "STALLED", 0.0)
    one, done = measures.Stage(field.peers()[-1], tmp_path, {}, tmp_path, "kill"), Counter({1: 0})
    monkeypatch.setattr(one, "meter", tmp_path, raising=False)
    monkeypatch.setattr(one, "alive", lambda workers: None)
    monkeypatch.setattr(one, "ask", lambda verb, count: done.update({1: count}))
    monkeypatch.setattr(kit, "counts", lambda meter: dict(done))
    return one


async def test_a_backlog_is_analyzed_before_it_is_drained() -> None:
    done: list[str] = []

    class Order:
        peer = field.peers()[1]

        def __getattr__(self, name: str) -> Any:
            async def call(*words: object) -> None:
                done.append(name)

            return call

        def working(self, processes: int) -> AbstractContextManager[list[Any]]:
            return nullcontext([])

        def ask(self, verb: str, count: int) -> None:
            done.append(verb)

        def done(self) -> int:
            return 0

    await measures.drain(Order())  # type: ignore[arg-type]
    assert done == ["fresh", "warm", "enqueue-many", "analyze", "reach", "reach", "finished"] * 2


async def test_the_other_worker_need_not_have_done_a_run_to_be_there(stage: measures.Stage) -> None:
    await stage.warm([argparse.Namespace(pid=2)], held=1, enough=0.0)  # type: ignore[list-item]


async def test_a_worker_that_does_nothing_is_told(stage: measures.Stage) -> None:
    with pytest.raises(measures.Stalled, match="1 of 2 workers did nothing"):
        await stage.warm([argparse.Namespace(pid=1), argparse.Namespace(pid=2)])  # type: ignore[list-item]


def test_what_the_shell_has_set_for_another_hourhand_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe.os, "environ", {"HOURHAND_DATABASE_URL": "production", "HOURHAND_POLL": "9", "PATH": "kept"})
    monkeypatch.setattr(observe.signal, "signal", lambda *_: None)
    observe.begin()
    assert observe.os.environ == {"PATH": "kept"}


def test_a_directory_to_measure_in_is_on_a_disk_and_has_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(observe.tempfile, "tempdir", str(tmp_path))
    mounts = "disk / ext4 rw 0 0\nmemory {} tmpfs rw 0 0\nbeside {}-beside ext4 rw 0 0\n"
    monkeypatch.setattr(observe.Path, "read_text", lambda _: mounts.format("/nowhere", tmp_path))
    with observe.scratch("trial") as directory:
        assert directory.parent == tmp_path
    assert not directory.exists()
    with pytest.raises(SystemExit, match="GB left, and 1000000000 are needed"), observe.scratch("trial", 1e9):
        pass
    monkeypatch.setattr(observe.Path, "read_text", lambda _: mounts.format(tmp_path, tmp_path))
    with pytest.raises(SystemExit, match="is in memory, where a commit costs nothing: set TMPDIR"), observe.scratch("trial"):
        pass


@pytest.mark.parametrize("peer", field.peers(), ids=lambda peer: peer.name)
def test_every_peer_says_what_it_is_and_cannot(peer: field.Peer) -> None:
    assert peer.server in ("postgresql", "redis")
    assert set(peer.no) | set(peer.remarks) <= set(field.MEASURES)
    assert peer.settings
    for package in peer.packages:
        assert "==" in package or "@" in package[1:], f"{package}: no exact version"


def test_hourhand_tells_its_packages_before_any_peer_is_installed(tmp_path: Path) -> None:
    assert any(one.startswith("psycopg==") for one in field.peers()[0].installed(tmp_path / "absent"))


def test_hourhand_is_measured_as_it_is_installed() -> None:
    ours = field.peers()[0]
    assert (ours.name, ours.packages, ours.no) == ("hourhand", (), {})
