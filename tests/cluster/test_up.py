"""`hourhand up` as a person starts and stops it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support.fleet import PROJECT, Process, until
from tests.support.servers import free_port


def start(directory: Path, port: int, *arguments: str, **environment: str) -> Process:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOURHAND_")}
    log = directory / f"up-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "hourhand", "up", "--port", str(port), "--data", str(directory / "data"), *arguments],
            cwd=PROJECT, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            env={**clean, **environment},
        )  # fmt: skip
    return Process(process, log)


async def healthy(port: int) -> bool:
    def ask() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
                return bool(json.load(answer)["status"] == "ok")
        except (OSError, urllib.error.URLError):
            return False

    return await asyncio.to_thread(ask)


async def nothing_left(directory: Path) -> bool:
    listing = await asyncio.to_thread(subprocess.run, ["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    real = os.path.realpath(directory / "data" / "pgdata")
    return not [line for line in listing.stdout.splitlines() if real in line or str(directory) in line]


@pytest.mark.parametrize("one", [signal.SIGINT, signal.SIGTERM])
async def test_the_demo_runs_and_a_signal_leaves_nothing_behind(tmp_path: Path, one: signal.Signals) -> None:
    port = free_port()
    up = start(tmp_path, port)
    try:
        await until(lambda: healthy(port), f"health; log:\n{up.text()}")

        async def greeted() -> bool:
            return "Hello, world!" in up.text() and "demo.flaky" in up.text()

        await until(greeted, "the demo's runs")
        up.send(one)
        assert await up.ended() == 0
        assert "stopped" in up.text()
        await until(lambda: nothing_left(tmp_path), "every process to be gone", 10)
    finally:
        up.process.kill()


async def test_killing_up_leaves_nothing_behind_either(tmp_path: Path) -> None:
    """Its workers see it go, stop in order, and the last one stops the database."""
    port = free_port()
    up = start(tmp_path, port, "--processes", "2")
    await until(lambda: healthy(port), f"health; log:\n{up.text()}")
    up.kill()
    await until(lambda: nothing_left(tmp_path), "every process to be gone")


async def test_two_share_one_database(tmp_path: Path) -> None:
    first, second = free_port(), free_port()
    one, two = start(tmp_path, first), start(tmp_path, second)
    try:
        await until(lambda: healthy(first), f"health; log:\n{one.text()}")
        await until(lambda: healthy(second), f"health; log:\n{two.text()}")
        one.send(signal.SIGINT)
        assert await one.ended() == 0
        assert "other processes still use" in one.text()
        assert await healthy(second)
        two.send(signal.SIGINT)
        assert await two.ended() == 0
        await until(lambda: nothing_left(tmp_path), "every process to be gone", 10)
    finally:
        one.process.kill()
        two.process.kill()


async def test_json_logs_are_json(tmp_path: Path) -> None:
    port = free_port()
    up = start(tmp_path, port, "--log-format", "json")

    async def started() -> bool:
        return "worker.started" in up.text()

    await until(started, "a worker")
    up.send(signal.SIGINT)
    assert await up.ended() == 0
    events = [json.loads(line)["event"] for line in up.text().splitlines()]
    assert "worker.started" in events
    assert "worker.stopped" in events


async def test_a_taken_port_is_said_plainly(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        up = start(tmp_path, taken.getsockname()[1])
        assert await up.ended() == 2
    assert "cannot be used" in up.text()
    assert "Traceback" not in up.text()


async def test_an_app_that_cannot_be_loaded_is_said_plainly(tmp_path: Path) -> None:
    up = start(tmp_path, free_port(), "--app", "no.such.module:app")
    assert await up.ended() == 2
    assert "there is no module 'no'" in up.text()
    assert "Traceback" not in up.text()
