"""`hourhand verify` on a few faults for a while: what the mutants that begin with `verify:` must not pass. Not among the tests that
`make test` collects; `make chaos` does more of the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hourhand.surfaces.verify.processes import find_faketime
from hourhand.surfaces.verify.verification import Plan, verify
from tests.conftest import missing

SECONDS = float(os.environ.get("HOURHAND_VERIFY_SECONDS", "25"))
SEEDS = os.environ.get("HOURHAND_VERIFY_SEEDS", "11").split(",")


async def verdict_of(plan: Plan) -> dict[str, object]:
    result = await verify(plan, lambda what, share: None)
    assert result.verdict.findings == []
    return (result.observations and {"runs": len(result.observations.runs), "void": result.verdict.void}) or {}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("faults", ["kill", "pause,partition", "skew"])
async def test_nothing_is_lost_and_nothing_doubled(faults: str, seed: str, tmp_path: Path) -> None:
    words = tuple(faults.split(","))
    if "skew" in words and find_faketime() is None:
        missing("libfaketime is not installed")
    plan = Plan(words, int(seed), SECONDS / 60, rate=40, schedulers=2, workers=2, lease=3.0, keep=tmp_path / "kept")
    seen = await verdict_of(plan)
    assert seen["runs"]
    assert seen["void"] == []
