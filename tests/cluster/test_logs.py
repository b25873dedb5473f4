"""What a worker process says about its runs, line by line."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.core import ids
from tests.support.fleet import Fleet, Process, until
from tests.support.talkative import app as talkative

pytestmark = pytest.mark.once
WHICH = {"run", "task", "queue", "attempt", "node"}
ENDS = {
    "run.succeeded", "run.failed", "run.dead", "run.cancelled", "run.lost", "run.expired", "run.abandoned", "run.handed_back",
    "run.had_its_effect", "run.mishap",
}  # fmt: skip


@pytest.fixture
async def fleet(url: str, schema: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    one = Fleet(url, schema, tmp_path)
    yield one
    one.close()


def worker(fleet: Fleet, *arguments: str) -> Process:
    return fleet.start("worker", "--app", "tests.support.talkative:app", *arguments)


def lines_of(process: Process) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.text().splitlines()]


async def ended(app: Hourhand, run: str) -> str:
    async def over() -> bool:
        return (await app.runs.show(run)).finished_at is not None or (await app.runs.show(run)).state == "dead"

    await until(over, f"the end of {run}")
    return (await app.runs.show(run)).state


async def test_every_line_about_a_run_says_which_and_what_came_of_it(
    fleet: Fleet, app: Hourhand, sql: asyncpg.Connection
) -> None:
    process = worker(fleet, "--log-format", "json", "--log-level", "debug", "--grace", "0.1")
    await fleet.alive(sql, 1)
    app.registry.tasks.update(talkative.registry.tasks)
    await app.jobs.add("of-a-job", task="fine", schedule="@yearly")
    triggered = (await app.jobs.trigger("of-a-job")).run_id
    assert triggered is not None
    runs = {"of-a-job": triggered}
    for task in ("fine", "flaky", "hopeless", "slow", "patient", "cut_off", "talk_here", "talk_in_a_thread", "talk_apart"):
        runs[task] = (await app.enqueue(task)).id

    async def waits() -> bool:
        return "patient.waits" in process.text()

    await until(waits, "a run to cancel")
    await app.runs.cancel(runs["patient"], "enough")
    states = {task: await ended(app, run) for task, run in runs.items()}
    assert states == {
        **dict.fromkeys(("of-a-job", "fine", "flaky", "talk_here", "talk_in_a_thread", "talk_apart"), "succeeded"),
        "hopeless": "dead", "slow": "dead", "patient": "cancelled", "cut_off": "lost",
    }  # fmt: skip
    held = (await app.enqueue("patient")).id

    async def held_here() -> bool:
        return process.text().count("patient.waits") == 2

    await until(held_here, "a run to hand back")
    process.send(signal.SIGTERM)
    assert await process.ended() == 0

    lines = lines_of(process)
    node = next(line["node"] for line in lines if line["event"] == "worker.started")
    for line in lines:
        assert {"event", "level", "timestamp"} <= line.keys(), line
        assert datetime.fromisoformat(line["timestamp"]).utcoffset() == timedelta(0)
        assert "logger" in line
    about = [line for line in lines if "run" in line or line["event"].startswith("run.")]
    by_number = {run: task for task, run in runs.items()} | {held: "held"}
    for line in about:
        assert line.keys() >= WHICH, line
        assert line["node"] == node
        assert line["run"] in by_number, line
        assert ("job" in line) == (by_number[line["run"]] == "of-a-job"), line
        if line["event"] in ENDS:
            assert line["duration"] >= 0, line
            assert line["status"] in line["event"], line
    said = {
        task: [(line["event"], line["attempt"]) for line in about if line["run"] == run and line["event"].startswith("run.")]
        for task, run in {**runs, "held": held}.items()
    }
    started, succeeded = ("run.started", 1), ("run.succeeded", 1)
    assert said == {
        **{task: [started, succeeded] for task in ("of-a-job", "fine", "talk_here", "talk_in_a_thread", "talk_apart")},
        "flaky": [started, ("run.failed", 1), ("run.started", 2), ("run.succeeded", 2)],
        "hopeless": [started, ("run.failed", 1), ("run.started", 2), ("run.dead", 2)],
        "slow": [started, ("run.dead", 1)],
        "patient": [started, ("run.cancelled", 1)],
        "cut_off": [started, ("run.lost", 1)],
        "held": [started, ("run.handed_back", 1)],
    }
    job = (await app.jobs.show("of-a-job")).job_id
    assert {line["job"] for line in about if "job" in line} == {job}
    assert ids.parse_job_id(job)

    # What handlers say, through whichever logger, on the loop, in a thread, in a child.
    spoken = [line for line in lines if line["logger"].startswith("shop.")]
    assert sorted((line["how"], line["logger"], line["event"], line["level"]) for line in spoken) == [
        (how, logger, event, level)
        for how in ("child", "task", "thread")
        for logger, event, level in (("shop.mail", "sent to you", "info"), ("shop.orders", "order.odd", "warning"))
    ]
    tasks = {"child": "talk_apart", "task": "talk_here", "thread": "talk_in_a_thread"}
    for line in spoken:
        assert (line["run"], line["task"], line["queue"]) == (runs[tasks[line["how"]]], tasks[line["how"]], "talk")
    (kept,) = [line for line in lines if line["event"] == "order.kept"]
    assert kept["run"] == runs["talk_in_a_thread"]


async def test_at_the_usual_level_there_is_no_line_for_each_run(fleet: Fleet, app: Hourhand, sql: asyncpg.Connection) -> None:
    process = worker(fleet, "--log-format", "auto")
    await fleet.alive(sql, 1)
    app.registry.tasks.update(talkative.registry.tasks)
    good, bad = await app.enqueue("fine"), await app.enqueue("hopeless")
    assert await ended(app, good.id) == "succeeded"
    assert await ended(app, bad.id) == "dead"
    process.send(signal.SIGTERM)
    assert await process.ended() == 0
    lines = lines_of(process)  # this is no terminal
    assert [line["event"] for line in lines if line.get("run")] == ["run.failed", "run.dead"]
    dead = next(line for line in lines if line["event"] == "run.dead")
    assert (dead["error"], dead["message"], dead["status"], dead["attempt"]) == ("ValueError", "never", "dead", 2)
    assert dead["reason"] == "gave up after 2 of 2 attempts"
