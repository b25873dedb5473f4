"""The page about the client: what it shows runs as it stands there."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys

import pytest

from hourhand.client import AsyncClient
from hourhand.surfaces.client import remote
from tests.db.conftest import Served
from tests.db.test_cli import environment
from tests.support.api import ADMIN
from tests.support.fleet import PROJECT
from tests.support.served import client

pytestmark = pytest.mark.once

__all__ = ["client"]
PAGE = (PROJECT / "docs" / "client.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
async def test_an_example_runs(number: int, served: Served, client: AsyncClient) -> None:
    variables = environment("", "", HOURHAND_SERVER=served.api.base, HOURHAND_API_KEY=ADMIN)
    running = asyncio.create_task(
        asyncio.to_thread(
            subprocess.run, [sys.executable, "-W", "error", "-c", EXAMPLES[number]], env=variables, cwd=PROJECT,
            capture_output=True, text=True,
        )
    )  # fmt: skip
    # One of them waits for something to happen.
    while not running.done():
        await client.queues.pause("eventful")
        await client.queues.resume("eventful")
        await asyncio.wait([running], timeout=0.1)
    done = await running
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_names_every_verb() -> None:
    for name, group in vars(AsyncClient("http://localhost")).items():
        if not name.startswith("_"):
            for verb in vars(type(group)):
                assert verb.startswith("_") or f"`{verb}`" in PAGE, f"{name}.{verb}"
    for verb, one in vars(remote.AsyncClient).items():
        assert verb.startswith("_") or verb in ("aclose", "url") or f"`{verb}`" in PAGE, one
