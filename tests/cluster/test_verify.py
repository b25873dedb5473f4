"""`hourhand verify`, as a user calls it: short here, long by `make chaos`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from hourhand.surfaces.verify.verification import Plan, verify
from tests.conftest import SERVER


@pytest.mark.timeout(300)
def test_the_command_on_a_database_of_the_customers() -> None:
    command = [sys.executable, "-m", "hourhand", "verify", "--database-url", SERVER, "--faults", "kill", "--minutes", "0.2"]
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
