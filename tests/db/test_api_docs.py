"""What docs/api.md shows works, as it is written there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.support.api import ADMIN, Answer, Client

pytestmark = pytest.mark.once
NO_END = "/events"
REPEATED = 'If-None-Match: "1"'


def _commands(text: str) -> list[list[str]]:
    found = []
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        found += [one for one in re.split(r"^(?=curl )", block, flags=re.MULTILINE) if one.strip()]
    return [shlex.split(one) for one in found]


async def _run(client: Client, words: list[str]) -> Answer:
    """What curl would do."""
    method, headers, data, url = "", {}, None, ""
    rest = iter(words[1:])
    for word in rest:
        if word == "-X":
            method = next(rest)
        elif word == "-H":
            name, _, value = next(rest).partition(": ")
            headers[name] = value
        elif word in ("--json", "--data-binary"):
            data = next(rest)
            if word == "--json":
                headers["Content-Type"] = "application/json"
        elif not word.startswith("-"):
            url = word
    path = url.removeprefix(client.base)
    return await client.call(method or ("GET" if data is None else "POST"), path, data=data and data.encode(), headers=headers)


async def test_every_command_of_the_page_works(admin: Client, project: Path) -> None:
    nobody = admin.holding(None)
    text = (project / "docs" / "api.md").read_text().replace("$HOURHAND", admin.base).replace("$KEY", ADMIN)
    commands = _commands(text)
    assert len(commands) > 20
    for words in commands:
        if any(word.endswith(NO_END) for word in words):
            async with admin.events():
                continue
        answer = await _run(nobody, words)
        assert answer.status == 304 if REPEATED in words else answer.status in (200, 201, 204), (words, answer.body)
