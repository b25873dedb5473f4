"""`hourhand verify`, as a whole: short here, long by `make chaos`. The mutants of `make mutants` must not pass it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hourhand.surfaces.verify.processes import find_faketime
from hourhand.surfaces.verify.verification import Plan, verify
from tests.conftest import SERVER, missing

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


@pytest.mark.timeout(300)
def test_the_command_on_a_database_of_the_customers() -> None:
    command = [sys.executable, "-m", "hourhand", "verify", "--database-url", SERVER, "--faults", "kill", "--minutes", "0.3"]
    command += ["--rate", "20", "--seed", "3", "--schema", "verify_of_the_test", "--lease", "3"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["verdict"] == "verified"
    assert told["numbers"]["by_key"]["missed"] == 0
    assert "--seed 3" in done.stderr
    refused = subprocess.run([*command, "--faults", "restart"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "a server that verify may stop" in refused.stderr


def test_a_schema_that_is_there_already_is_not_touched() -> None:
    async def attempt() -> None:
        await verify(Plan(("kill",), 1, 0.2, database_url=SERVER, schema="public"), lambda what, share: None)

    with pytest.raises(Exception, match="is there already"):
        asyncio.run(attempt())
