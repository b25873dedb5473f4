"""The parts of the benchmarks that decide something: what is expected, what is counted, what is reported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from benchmarks import population
from benchmarks.peers import field, kit
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


def test_what_handlers_did_is_read_from_outside(tmp_path: Path) -> None:
    program = "from benchmarks.peers import kit; [kit.noop(n) for n in range(7)]; kit.stamp(3); kit.stamp(4)"
    root = Path(__file__).parent.parent.parent
    environment = {**os.environ, "BENCH_METER": str(tmp_path), "PYTHONPATH": str(root)}
    process = subprocess.Popen([sys.executable, "-c", program], env=environment, start_new_session=True)
    assert process.wait(60) == 0
    assert kit.counts(tmp_path) == {process.pid: 7}
    assert [number for number, _ in kit.moments("stamp", tmp_path)] == [3, 4]


@pytest.mark.parametrize("peer", field.peers(), ids=lambda peer: peer.name)
def test_every_peer_says_what_it_is_and_cannot(peer: field.Peer) -> None:
    assert peer.server in ("postgresql", "redis")
    assert set(peer.no) | set(peer.remarks) <= set(field.MEASURES)
    assert peer.settings
    for package in peer.packages:
        assert "==" in package or "@" in package[1:], f"{package}: no exact version"


def test_hourhand_is_measured_as_it_is_installed() -> None:
    ours = field.peers()[0]
    assert (ours.name, ours.packages, ours.no) == ("hourhand", (), {})
