"""How often a worker's garbage collector comes."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from hourhand.surfaces.cli import process


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_it_comes_less_often_and_looks_no_more_at_what_is_there() -> None:
    gc.set_threshold(*process._USUAL)
    process._calm_collector()
    assert gc.get_threshold() == (5_000, *process._USUAL[1:])
    assert gc.get_freeze_count() > 1_000


def test_what_the_app_has_set_stays() -> None:
    gc.set_threshold(1_000)
    process._calm_collector()
    assert gc.get_threshold()[0] == 1_000
