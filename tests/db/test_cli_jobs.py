"""The commands for jobs, called as a user calls them: what they print, where, and how they end."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from typer.testing import CliRunner

from hourhand import Hourhand, PermanentFailure
from hourhand.surfaces.cli import why
from hourhand.surfaces.cli.main import cli
from tests.db.test_cli import Command, Done, at_a_terminal, environment
from tests.db.test_firing import gateway
from tests.db.test_policies import HOUR, T0, Bench, bench
from tests.db.test_worker import working

pytestmark = pytest.mark.once

__all__ = ["bench", "gateway"]
SHOP = """
from hourhand import Hourhand

app = Hourhand(name="shop")

@app.task
def work(days: int = 1) -> None: ...

"""


@pytest.fixture
def hourhand(url: str, schema: str) -> Command:
    """Call the command in this process, which is quicker than starting one; its event loop is its own."""

    def call(arguments: tuple[str, ...], stdin: str, more: dict[str, str]) -> Done:
        result = CliRunner().invoke(cli, arguments, input=stdin, env=environment(url, schema, **more), prog_name="hourhand")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert "Traceback" not in result.stderr
        return Done(result.exit_code, result.stdout, result.stderr)

    async def run(*arguments: str, stdin: str = "", **more: str) -> Done:
        return await asyncio.to_thread(call, arguments, stdin, more)

    return run


Start = Callable[..., Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
def start(url: str, schema: str) -> Start:
    """The command in a process of its own, for what cannot be done in this one: signals, code that is imported, a log beside it."""

    async def begin(*arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-m", "hourhand", *arguments,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=environment(url, schema),
        )  # fmt: skip

    return begin


async def ended(process: asyncio.subprocess.Process) -> Done:
    out, err = await process.communicate()
    assert process.returncode is not None
    assert b"Traceback" not in err
    return Done(process.returncode, out.decode(), err.decode())


def words(text: str) -> str:
    return " ".join(text.split())


# Adding


async def test_add_says_the_id_the_schedule_and_the_next_firing(hourhand: Command, app: Hourhand) -> None:
    done = await hourhand("jobs", "add", "weekly", "--schedule", "0 9 * * 1", "--tz", "America/New_York", "--task", "report")
    assert (done.code, done.err) == (0, "")
    view = await app.jobs.show("weekly")
    assert f"weekly {view.job_id} is added" in words(done.out)
    assert "At 09:00 on Monday (America/New_York)" in done.out
    assert view.next_run_at is not None
    assert f"{view.next_run_at:%Y-%m-%d %H:%M:%S} UTC, in " in done.out
    assert re.search(r"\d{4}-\d\d-\d\d 09:00:00 E[SD]T \(America/New_York\)", done.out)

    same = await hourhand("jobs", "add", "weekly", "--schedule", "0 9 * * 1", "--tz", "America/New_York", "--task", "report")
    assert (same.code, "is as it was" in same.out) == (0, True)
    other = await hourhand("jobs", "add", "weekly", "--schedule", "0 10 * * 1")
    assert (other.code, other.out) == (4, "")
    assert "--replace changes it" in other.err
    changed = await hourhand("jobs", "add", "weekly", "--schedule", "0 10 * * 1", "--replace", "--json")
    assert (changed.json["outcome"], changed.json["job_id"], changed.json["task"]) == ("replaced", view.job_id, "weekly")


ALL = (
    "--schedule", "every 90s", "--task", "report", "--payload", '{"days": 7}', "--queue", "billing", "--priority", "high",
    "--anchor", "2026-01-01T00:00:00Z", "--missed-window", "run_all", "--max-missed", "5", "--misfire-grace", "2m",
    "--overlap", "queue", "--flexible-window", "30", "--start-at", "2026-02-01T01:00:00+01:00", "--end-at", "2999-01-01T00:00:00Z",
    "--max-runs", "9", "--max-attempts", "3", "--timeout", "5m", "--tag", "eu", "--tag", "night", "--then", "mail",
)  # fmt: skip


async def test_add_passes_every_option_on_and_update_clears_what_can_be(hourhand: Command, app: Hourhand) -> None:
    added = (await hourhand("jobs", "add", "all", *ALL, "--json")).json
    wanted = {
        "schedule": "every 90s", "task": "report", "payload": {"days": 7}, "queue": "billing", "priority": "high",
        "anchor": "2026-01-01T00:00:00Z", "missed_window": "RUN_ALL", "max_missed": 5, "misfire_grace": 120, "overlap": "queue",
        "flexible_window": 30, "start_at": "2026-02-01T00:00:00Z", "end_at": "2999-01-01T00:00:00Z", "max_runs": 9,
        "max_attempts": 3, "timeout": 300, "tags": ["eu", "night"], "then": ["mail"], "outcome": "added",
    }  # fmt: skip
    assert {name: added[name] for name in wanted} == wanted

    shown = words((await hourhand("jobs", "show", "all")).out)
    for said in (
        "Every 90 seconds", '{"days":7}', "billing, priority high", "overlap queue", "made up for, at most 5", "within 30 s",
        "starts 2026-02-01 00:00:00 UTC", "ends 2999-01-01", "9, 0 of them so far", "at most 3", "timeout 5 min", "eu, night",
        "then mail",
    ):  # fmt: skip
        assert said in shown

    clear = ("--no-start-at", "--no-end-at", "--no-max-runs", "--no-max-attempts", "--no-timeout", "--no-tags", "--no-then")
    cleared = await hourhand("jobs", "update", "all", *clear, "--json")
    assert cleared.code == 0
    nothing = {"start_at": None, "end_at": None, "max_runs": None, "max_attempts": None, "timeout": None, "tags": [], "then": []}
    rest = {name: value for name, value in wanted.items() if name not in nothing and name != "outcome"}
    assert {name: cleared.json[name] for name in nothing} == nothing
    assert {name: cleared.json[name] for name in rest} == rest


async def test_update_changes_what_is_given(hourhand: Command, app: Hourhand) -> None:
    await app.jobs.add("nightly", schedule="30 2 * * *", timezone="Europe/Berlin", task="report")
    done = await hourhand("jobs", "update", "nightly", "--dst", "skip", "--schedule", "15 2 * * *", "--tz", "Europe/Paris")
    assert (done.code, done.err) == (0, "")
    assert "is changed" in done.out
    assert "02:15" in done.out
    after = await app.jobs.show("nightly")
    assert (after.dst, after.schedule, after.timezone, after.task) == ("skip", "15 2 * * *", "Europe/Paris", "report")
    assert "does not exist is left out" in (await hourhand("jobs", "show", "nightly")).out
    assert (await hourhand("jobs", "update", "nightly", *ALL, "--json")).json["tags"] == ["eu", "night"]
    assert "is as it was" in (await hourhand("jobs", "update", after.job_id, "--queue", "billing")).out
    nothing = await hourhand("jobs", "update", "nightly")
    assert (nothing.code, nothing.err.startswith("error: say what to change")) == (2, True)
    both = await hourhand("jobs", "update", "nightly", "--tag", "x", "--no-tags")
    assert (both.code, "--no-tags" in both.err) == (2, True)
    assert (await hourhand("jobs", "update", "nobody", "--queue", "q")).code == 3


async def test_a_payload_comes_from_a_file_or_from_standard_input(hourhand: Command, tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_text('{"from": "file"}')
    add = ("jobs", "add", "job", "--schedule", "@daily", "--replace", "--json", "--payload")
    assert (await hourhand(*add, f"@{file}")).json["payload"] == {"from": "file"}
    assert (await hourhand(*add, "-", stdin='{"from": "stdin"}')).json["payload"] == {"from": "stdin"}
    missing = await hourhand(*add, f"@{tmp_path}/nope.json")
    assert (missing.code, "nope.json cannot be read" in missing.err) == (2, True)


REFUSED: list[tuple[tuple[str, ...], str]] = [
    ((), "say what the job is called"),
    (("job",), "needs a schedule"),
    (("bad name", "--schedule", "@daily"), "cannot be the name of a job"),
    (("job", "--schedule", "61 * * * *"), "bad minute"),
    (("job", "--schedule", "@daily", "--tz", "Mars"), "no time zone 'Mars'"),
    (("job", "--schedule", "@daily", "--dst", "no"), "dst must be shift or skip"),
    (("job", "--schedule", "@daily", "--payload", "{"), "is not JSON"),
    (("job", "--schedule", "@daily", "--payload", "[1]"), "must be a JSON object"),
    (("job", "--schedule", "@daily", "--priority", "urgent"), "priority must be one of"),
    (("job", "--schedule", "@daily", "--queue", "a b"), "cannot be the name of a queue"),
    (("job", "--schedule", "@daily", "--anchor", "2026-01-01T00:00:00Z"), "no interval"),
    (("job", "--schedule", "every 9s", "--anchor", "soon"), "is not an ISO 8601 instant"),
    (("job", "--schedule", "@daily", "--missed-window", "MAYBE"), "missed_window must be one of"),
    (("job", "--schedule", "@daily", "--max-missed", "0"), "max_missed must be"),
    (("job", "--schedule", "@daily", "--misfire-grace", "soon"), "is not a duration"),
    (("job", "--schedule", "@daily", "--overlap", "no"), "overlap must be one of"),
    (("job", "--schedule", "@daily", "--flexible-window", "9d"), "flexible_window must be"),
    (("job", "--schedule", "@daily", "--start-at", "2026-01-01T00:00:00"), "give it an offset"),
    (("job", "--schedule", "@daily", "--end-at", "2026-01-01T00:00:00Z"), "would never fire"),
    (("job", "--schedule", "@daily", "--start-at", "0001-01-01T00:00:00Z"), "too far from now"),
    (("job", "--schedule", "9999-12-31T23:59:59-05:00"), "too far from now"),
    (("job", "--schedule", "@daily", "--max-runs", "0"), "max_runs must be"),
    (("job", "--schedule", "@daily", "--max-attempts", "0"), "max_attempts must be"),
    (("job", "--schedule", "@daily", "--timeout", "0"), "timeout must be"),
    (("job", "--schedule", "@daily", "--tag", ""), "tags must be"),
    (("job", "--schedule", "@daily", "--then", "a b"), "cannot be the name of a task"),
    (("job", "--file", "x"), "leave out the name"),
    (("--file", "/no/such/file"), "cannot be read"),
]


async def test_add_refuses_in_one_line(hourhand: Command, app: Hourhand) -> None:
    for arguments, said in REFUSED:
        refused = await hourhand("jobs", "add", *arguments)
        assert (refused.code, refused.out) == (2, ""), arguments
        assert said in refused.err
        assert refused.err.startswith("error: ")
        assert refused.err.count("\n") == 1
    assert await app.jobs.list() == []


async def test_add_many_from_a_file(hourhand: Command, app: Hourhand, tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"name": "a", "schedule": "@daily", "timezone": "Europe/Berlin", "payload": {"n": 1}, "tags": ["eu"], "misfire_grace": "5m"},
        {"name": "b", "schedule": "every 5m", "anchor": "2026-01-01T00:00:00Z", "queue": "billing", "then": "mail"},
    ]  # fmt: skip
    file = tmp_path / "jobs.ndjson"
    file.write_text("\n\n".join(json.dumps(one) for one in lines) + "\n")
    done = await hourhand("jobs", "add", "--file", str(file))
    assert (done.code, done.out.strip(), done.err) == (0, "2 added", "")
    first, second = await app.jobs.list()
    assert (first.timezone, first.payload, first.tags, first.misfire_grace) == ("Europe/Berlin", {"n": 1}, ("eu",), 300)
    assert (second.anchor, second.queue, second.then) == (datetime(2026, 1, 1, tzinfo=UTC), "billing", ("mail",))

    again = await hourhand("jobs", "add", "--file", "-", "--json", stdin=file.read_text())
    assert (again.json, again.err) == ({"added": 0, "replaced": 0, "unchanged": 2}, "")
    other = '{"name": "c", "schedule": "@daily"}\n{"name": "a", "schedule": "@hourly"}\n'
    conflict = await hourhand("jobs", "add", "--file", "-", stdin=other)
    assert (conflict.code, "--replace changes it" in conflict.err) == (4, True)
    assert [one.name for one in await app.jobs.list()] == ["a", "b"]
    replaced = await hourhand("jobs", "add", "--file", "-", "--replace", stdin=other)
    assert words(replaced.out) == "1 added, 1 replaced"


BAD_LINES = [
    ("nonsense", "line 2: JSON is malformed"),
    ("[1]", "line 2: Expected `object`, got `array`"),
    ('{"name": "x"}', "line 2: Object missing required field `schedule`"),
    ('{"name": "x", "schedule": "@daily", "tz": "UTC"}', "line 2: Object contains unknown field `tz`"),
    ('{"name": "x", "schedule": "@daily", "timezone": 5}', "line 2: Expected `str`, got `int`"),
    ('{"name": "x", "schedule": "@never"}', "job number 2: '@never' is not known"),
    ('{"name": "x", "schedule": "every 5m", "anchor": "2026-01-01T00:00:00"}', "job number 2: anchor does not say which instant"),
    ('{"name": "ok", "schedule": "@daily"}', "the name 'ok' comes twice"),
]


async def test_add_many_adds_nothing_if_a_line_is_bad(hourhand: Command, app: Hourhand) -> None:
    for line, said in BAD_LINES:
        refused = await hourhand("jobs", "add", "--file", "-", stdin=f'{{"name": "ok", "schedule": "@daily"}}\n{line}\n')
        assert (refused.code, refused.out) == (2, ""), line
        assert said in refused.err
    assert await app.jobs.list() == []


async def test_very_many_show_a_bar_beside_the_json(hourhand: Command, tmp_path: Path) -> None:
    file = tmp_path / "jobs.ndjson"
    file.write_text("".join(f'{{"name": "job-{n}", "schedule": "@daily"}}\n' for n in range(1_001)))
    done = await hourhand("jobs", "add", "--file", str(file), "--json")
    assert (done.code, done.json["added"]) == (0, 1_001)
    assert "1001/1001" in done.err


# Looking


async def test_list_filters_and_pages(hourhand: Command, app: Hourhand) -> None:
    empty, none = await hourhand("jobs", "list"), await hourhand("jobs", "list", "--json")
    assert (empty.out.startswith("no jobs yet"), empty.err, none.json) == (True, "", [])
    await app.jobs.add(
        "daily-report", schedule="0 9 * * *", timezone="America/New_York", task="report", queue="post", tags=["eu"]
    )
    await app.jobs.add("hourly-report", schedule="@hourly", task="report")
    await app.jobs.add("once", schedule="2999-01-01T00:00:00.123456Z", task="mail")
    await app.jobs.pause("hourly-report")

    every = await hourhand("jobs", "list", COLUMNS="120")
    assert (every.code, every.err) == (0, "")
    for said in (
        "daily-report active 0 9 * * * America/New_York in ",
        "hourly-report paused 0 * * * * UTC report",
        "once active once UTC in ",
    ):
        assert said in words(every.out)
    assert "2999-01-01 00:00:00Z" in every.out
    assert max(len(line) for line in (await hourhand("jobs", "list")).out.splitlines()) <= 80

    async def found(*options: str) -> list[str]:
        done = await hourhand("jobs", "list", "--json", *options)
        assert (done.code, done.err) == (0, "")
        assert all("outcome" not in one for one in done.json)
        return [one["name"] for one in done.json]

    assert await found() == ["daily-report", "hourly-report", "once"]
    assert await found("--state", "active", "--task", "report", "--queue", "post", "--tag", "eu") == ["daily-report"]
    assert await found("--search", "REPORT", "--limit", "1") == ["daily-report"]
    assert await found("--state", "paused") == ["hourly-report"]
    page = await hourhand("jobs", "list", "--search", "report", "--limit", "1")
    assert page.err.strip() == "the first 1; the next page: hourhand jobs list --search report --after daily-report --limit 1"
    assert await found(*page.err.split("jobs list ")[1].split()) == ["hourly-report"]
    assert (await hourhand("jobs", "list", "--task", "nobody")).out.strip() == "no jobs match"
    for wrong in (("--state", "asleep"), ("--queue", "nope"), ("--limit", "0")):
        assert (await hourhand("jobs", "list", *wrong)).code == 2


async def test_show_and_runs(hourhand: Command, app: Hourhand) -> None:
    await app.jobs.add("weekly", schedule="0 9 * * 1", timezone="America/New_York", task="report")
    run_id = (await app.jobs.trigger("weekly")).run_id
    assert run_id is not None
    await app.runs.cancel(run_id, "not [red] today")
    later = (await app.jobs.trigger("weekly")).run_id

    shown = await hourhand("jobs", "show", "weekly", "--count", "3")
    assert (shown.code, shown.err) == (0, "")
    assert len(re.findall(r"UTC  \S+ 09:00:00 E[SD]T \(America/New_York\)", shown.out)) == 3
    assert f"{run_id} cancelled" in words(shown.out)
    whole = (await hourhand("jobs", "show", "weekly", "--json")).json
    assert (whole["name"], len(whole["next"]), [one["run_id"] for one in whole["runs"]]) == ("weekly", 5, [later, run_id])
    by_id = await hourhand("jobs", "show", whole["job_id"])
    assert by_id.out.startswith("weekly")

    runs = await hourhand("jobs", "runs", "weekly", "--limit", "2")
    assert "not [red] today" in words(runs.out)
    assert runs.err.strip() == "the latest 2; --limit shows more"
    (one,) = (await hourhand("jobs", "runs", "weekly", "--limit", "1", "--json")).json
    assert (one["run_id"], one["state"], "payload" in one) == (later, "ready", False)

    await app.jobs.pause("weekly")
    assert "not while it is paused" in (await hourhand("jobs", "show", "weekly")).out
    await app.jobs.add("fresh", schedule="@daily", task="report")
    assert (await hourhand("jobs", "runs", "fresh")).out.strip() == "no runs yet"
    for verb in ("show", "runs"):
        missing = await hourhand("jobs", verb, "nobody")
        assert (missing.code, missing.err.strip()) == (3, "error: there is no job 'nobody'")


# Holding, starting, deleting


async def test_pause_and_resume_do_each(hourhand: Command, app: Hourhand, bench: Bench) -> None:
    await app.jobs.add("other", schedule="@daily", task="report")
    await bench.add()
    paused = await hourhand("jobs", "pause", "other", "nobody", "job")
    assert (paused.code, paused.out.splitlines()) == (3, ["other is paused", "job is paused"])
    assert "no job 'nobody'" in paused.err
    assert [one.state for one in await app.jobs.list()] == ["paused", "paused"]
    again = await hourhand("jobs", "pause", "other", "--json")
    assert (again.json[0]["job"], again.json[0]["state"]) == ("other", "paused")
    # As if it had been paused when T0 was near; three firings have gone by since.
    await bench.sql.execute(f"UPDATE {bench.schema}.jobs SET paused_at = $1 WHERE name = 'job'", T0 - timedelta(minutes=1))
    for _ in range(3):
        await bench.fire()
    resumed = await hourhand("jobs", "resume", "job", "--missed", "run_once")
    assert (resumed.code, resumed.err) == (0, "")
    assert "of what it missed, 1 run started and" in resumed.out
    assert "it fires next at 2026-03-02T15:00:00Z" in resumed.out
    (one,) = (await hourhand("jobs", "resume", "other", "--json")).json
    assert (one["state"], one["started"], one["left_out"]) == ("active", 0, 0)
    assert (await hourhand("jobs", "resume", "job", "--missed", "SOME")).code == 2
    assert (await hourhand("jobs", "resume", "nobody")).code == 3


async def test_trigger(hourhand: Command, app: Hourhand) -> None:
    await app.jobs.add("job", schedule="@daily", task="report", payload={"days": 1}, overlap="skip")
    done = await hourhand("jobs", "trigger", "job", "--payload", '{"days": 30}')
    assert (done.code, done.err) == (0, "")
    run_id = done.out.split()[0]
    assert done.out.strip() == f"{run_id} is started; look at it with: hourhand runs show {run_id}"
    assert (await app.runs.show(run_id)).payload == {"days": 30}
    skipped = await hourhand("jobs", "trigger", "job")
    assert (skipped.code, skipped.out, "--force" in skipped.err) == (4, "", True)
    forced = await hourhand("jobs", "trigger", "job", "--force", "--json")
    assert forced.json["outcome"] == "started"
    assert (await app.runs.show(forced.json["run_id"])).payload == {"days": 1}
    await app.jobs.update("job", overlap="queue")
    assert "waits for the run before it" in (await hourhand("jobs", "trigger", "job")).out
    assert (await hourhand("jobs", "trigger", "job", "--payload", "x")).code == 2
    assert (await hourhand("jobs", "trigger", "nobody")).code == 3


async def test_delete_asks_somebody_or_is_told_not_to(hourhand: Command, url: str, app: Hourhand) -> None:
    for name in ("a", "b", "c"):
        await app.jobs.add(name, schedule="@daily", task="report")
    refused = await hourhand("jobs", "delete", "a")
    assert (refused.code, refused.out, "add --yes" in refused.err) == (2, "", True)
    schema = app.settings.schema
    no = await at_a_terminal(url, schema, "n\n", "jobs", "delete", "a", "b")
    assert (no.code, no.out, "Delete 2 jobs (a, b)?" in no.err) == (1, "", True)
    yes = await at_a_terminal(url, schema, "y\n", "jobs", "delete", "a")
    assert (yes.code, yes.out.strip()) == (0, "a is deleted")
    mixed = await hourhand("jobs", "delete", "nobody", "b", "--yes", "--json")
    assert (mixed.code, [one.get("outcome") for one in mixed.json]) == (3, [None, "deleted"])
    assert [one.name for one in await app.jobs.list()] == ["c"]


# The past


DAY = ("--since", "2026-03-02T12:00:00Z", "--until", "2026-03-02T15:00:00Z")


async def test_backfill_plans_inserts_and_calls_off(hourhand: Command, app: Hourhand) -> None:
    await app.jobs.add("job", schedule="@hourly", task="report")
    plan = await hourhand("jobs", "backfill", "job", *DAY, "--dry-run")
    assert (plan.code, plan.err) == (0, "")
    said = "3 runs would be made, the first for 2026-03-02T12:00:00Z, the last for 2026-03-02T14:00:00Z"
    assert plan.out.strip() == said
    assert await app.jobs.runs("job") == []
    newest = (await hourhand("jobs", "backfill", "job", *DAY, "--dry-run", "--order", "newest", "--json")).json
    assert (newest["dry_run"], newest["instants"][0], newest["run_ids"]) == (True, "2026-03-02T14:00:00Z", [])

    made = await hourhand("jobs", "backfill", "job", *DAY, "--no-wait", "--rate", "0.001")
    assert (made.code, made.out.startswith("3 runs made"), made.err) == (0, True, "")
    assert [one.state for one in await app.jobs.runs("job")] == ["delayed", "delayed", "ready"]
    again = await hourhand("jobs", "backfill", "job", *DAY, "--no-wait")
    assert "nothing to run in this period; left out: 3 asked for already" in again.out
    called_off = await hourhand("jobs", "backfill", "job", *DAY, "--cancel")
    assert (called_off.code, called_off.out.strip()) == (0, "3 runs called off")
    assert (await hourhand("jobs", "backfill", "job", *DAY, "--cancel", "--json")).json == {"job": "job", "called_off": 0}
    assert "nothing of it" in (await hourhand("jobs", "backfill", "job", *DAY, "--cancel")).out
    assert len((await hourhand("jobs", "backfill", "job", *DAY, "--no-wait", "--json")).json["run_ids"]) == 3
    assert len((await hourhand("jobs", "backfill", "job", *DAY, "--no-wait", "--json", "--again")).json["run_ids"]) == 3


async def test_backfill_refuses_in_one_line(hourhand: Command, app: Hourhand) -> None:
    await app.jobs.add("job", schedule="@hourly", task="report")
    for arguments, said in (
        (("--since", "2h", "--until", "3h"), "the period is empty"),
        (("--since", "2999-01-01T00:00:00Z", "--until", "2999-01-02T00:00:00Z"), "the period is empty"),
        ((*DAY, "--cap", "2"), "more than 2 firings"),
        ((*DAY, "--cap", "0"), "cap must be"),
        ((*DAY, "--rate", "0"), "rate above 0"),
        ((*DAY, "--order", "random"), "order must be"),
        ((*DAY, "--cancel", "--dry-run"), "--cancel only calls off"),
    ):
        refused = await hourhand("jobs", "backfill", "job", *arguments)
        assert (refused.code, refused.out) == (2, "")
        assert said in refused.err
        assert refused.err.count("\n") == 1
    assert (await hourhand("jobs", "backfill", "nobody", *DAY)).code == 3
    assert (await hourhand("jobs", "backfill", "nobody", *DAY, "--cancel")).code == 3
    assert (await hourhand("jobs", "backfill", "job")).code == 2


async def test_backfill_follows_its_runs_to_their_end(start: Start, app: Hourhand) -> None:
    @app.task
    async def report() -> None: ...

    @app.task
    async def broken() -> None:
        raise PermanentFailure("no")

    await app.jobs.add("good", schedule="@hourly", task="report")
    await app.jobs.add("bad", schedule="@hourly", task="broken")
    async with working(app):
        done = await ended(await start("jobs", "backfill", "good", *DAY, "--rate", "1000"))
        assert (done.code, done.out.strip()) == (0, "3 runs: 3 succeeded")
        assert "3/3" in done.err
        ran = await ended(await start("jobs", "backfill", "good", *DAY))
        assert (ran.code, ran.out.strip()) == (0, "nothing to run in this period; left out: 3 succeeded already")
        failed = await ended(await start("jobs", "backfill", "bad", *DAY, "--json"))
        assert (failed.code, failed.json["ended"], failed.json["succeeded"]) == (1, 3, 0)


async def test_ctrl_c_calls_off_what_has_not_started(start: Start, app: Hourhand) -> None:
    await app.jobs.add("job", schedule="@hourly", task="report")
    process = await start("jobs", "backfill", "job", *DAY)
    assert process.stderr is not None
    # Said when the runs are in and it begins to wait for them.
    assert b"no worker is alive" in await process.stderr.readline()
    process.send_signal(signal.SIGINT)
    done = await ended(process)
    assert done.code == 130
    assert done.out.startswith("3 runs made")
    assert "3 runs had not started and are called off" in done.err
    assert {one.state for one in await app.jobs.runs("job")} == {"cancelled"}
    assert len((await app.jobs.backfill("job", T0, T0 + 3 * HOUR, dry_run=True)).instants) == 3


# The record


PERIOD = ("--since", "2026-03-02T12:00:00Z", "--until", "2026-03-02T18:00:00Z")


@pytest.fixture
async def history(bench: Bench, app: Hourhand, sql: asyncpg.Connection, schema: str) -> list[str]:
    """Six hours of a job: cancelled, skipped, three coalesced, one that waits; and one by hand. Their runs."""
    await sql.execute(f"SELECT {schema}.add_partition('runs', '2026-03-02')")
    await bench.add(overlap="skip")
    await bench.fire()
    await bench.fire()
    first = (await app.jobs.runs("job"))[0].run_id
    await app.runs.cancel(first, "not [red] today")
    await bench.fire_late(4)
    await app.jobs.backfill("job", T0, T0 + timedelta(minutes=1))
    return [first, *(one.run_id for one in await app.jobs.runs("job") if one.run_id != first)]


async def test_why_is_a_line_for_each_firing(hourhand: Command, history: list[str]) -> None:
    done = await hourhand("why", "job", *PERIOD)
    assert (done.code, done.err) == (0, "")
    *lines, summary = done.out.splitlines()
    outcomes = [line.split()[1] for line in lines]
    assert sorted(outcomes) == ["cancelled", "coalesced", "coalesced", "coalesced", "delayed", "ready", "skipped"]
    (first,) = [line for line in lines if "not [red] today" in line]
    assert first.startswith("2026-03-02T12:00:00Z  cancelled")
    assert " d late  s " in first
    assert history[0] in first
    assert summary == "6 expected: 3 coalesced, 1 cancelled, 1 skipped, 1 ready; 1 besides, by hand"

    some = await hourhand("why", "job", *PERIOD, "--outcome", "skipped", "--outcome", "coalesced")
    assert len(some.out.splitlines()) == 5
    assert some.out.splitlines()[-1].endswith("; 4 shown")
    (skipped,) = (await hourhand("why", "job", *PERIOD, "--outcome", "skipped", "--json")).json
    assert (skipped["scheduled_at"], skipped["node"]) == ("2026-03-02T13:00:00Z", "s")
    one = await hourhand("why", "job", "--at", "2026-03-02T14:00:00+01:00")
    assert one.out.splitlines()[-1] == "1 expected: 1 skipped"
    none = await hourhand("why", "job", "--since", "2026-03-02T12:30:00Z", "--until", "2026-03-02T12:31:00Z")
    assert (none.code, none.out.strip()) == (0, "0 expected")


async def test_why_refuses_in_one_line(hourhand: Command, history: list[str]) -> None:
    for arguments, code, said in (
        (("--at", "2026-03-02T13:05:00Z"), 4, "was not expected to fire"),
        (("--at", "2026-03-02T13:00:00Z", "--since", "2h"), 2, "one or the other"),
        (("--since", "2h", "--until", "3h"), 2, "the period is empty"),
        (("--outcome", "bogus"), 2, "'bogus' is no outcome"),
        (("--outcome", "skipped", "--check"), 2, "leave out --outcome"),
        (("--check", "--at", "2026-03-02T13:05:00Z"), 4, "was not expected to fire"),
    ):
        refused = await hourhand("why", "job", *arguments)
        assert (refused.code, refused.out) == (code, "")
        assert said in refused.err
        assert refused.err.count("\n") == 1
    assert (await hourhand("why", "nobody")).code == 3
    assert (await hourhand("why", "nobody", "--check")).code == 3
    for text in ("yesterday", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"):
        assert (await hourhand("why", "job", "--since", text)).code == 2


async def test_check_names_what_is_unexplained_or_double(
    hourhand: Command, history: list[str], sql: asyncpg.Connection, schema: str
) -> None:
    clean = await hourhand("why", "job", *PERIOD, "--check")
    assert (clean.code, clean.out.strip()) == (0, "clean: 6 expected, each with one outcome on record")
    assert (await hourhand("why", "job", "--check", "--at", "2026-03-02T13:00:00Z", "--json")).json["expected"] == 1
    await sql.execute(f"DELETE FROM {schema}.decisions WHERE outcome = 'skipped'")
    await sql.execute(
        f"INSERT INTO {schema}.runs (run_id, job_id, scheduled_at, finished_at, lane, outcome, attempt, task)"
        f" SELECT nextval('{schema}.run_numbers'), job_id, scheduled_at, now(), lane, 'succeeded', 1, task"
        f" FROM {schema}.runs WHERE outcome = 'cancelled'"
    )
    broken = await hourhand("why", "job", *PERIOD, "--check")
    assert broken.code == 1
    assert [line.split()[:2] for line in broken.out.splitlines()] == [
        ["2026-03-02T13:00:00Z", "unexplained"], ["2026-03-02T12:00:00Z", "double"]
    ]  # fmt: skip
    assert broken.err.strip() == "not clean: of 6 expected, 1 unexplained, 1 double"
    told = await hourhand("why", "job", *PERIOD, "--check", "--json")
    assert (told.code, told.json["clean"], told.json["unexplained"]) == (1, False, ["2026-03-02T13:00:00Z"])
    assert told.json["doubles"] == ["2026-03-02T12:00:00Z"]
    assert (
        await hourhand("why", "job", "--since", "2026-03-02T14:00:00Z", "--until", "2026-03-02T15:00:00Z", "--check")
    ).code == 0


def test_an_instant_of_the_account_can_be_given_back() -> None:
    for at in (T0, T0 + timedelta(microseconds=5)):
        assert datetime.fromisoformat(why.stamp(at)) == at


# Jobs that code declares


async def test_deploy(start: Start, app: Hourhand, sql: asyncpg.Connection, schema: str, tmp_path: Path) -> None:
    old, new = tmp_path / "old.py", tmp_path / "new.py"
    old.write_text(SHOP + 'app.cron("@daily", name="a")(work)\napp.cron("@daily", name="b")(work)\n')
    new.write_text(
        SHOP + 'app.cron("@hourly", name="b")(work)\napp.cron("@daily", name="c")(work)\napp.cron("@daily", name="d")(work)\n'
    )

    async def deploy(file: Path, *options: str) -> Done:
        return await ended(await start("jobs", "deploy", "--app", f"{file}:app", *options))

    await app.jobs.add("d", schedule="@daily", task="mine")
    first = await deploy(old)
    assert (first.code, words(first.out), first.err) == (0, "added a added b", "")
    again = await deploy(old)
    assert (again.code, again.out.strip(), again.err) == (0, "nothing was changed: in force already", "")
    second = await deploy(new)
    assert (second.code, words(second.out)) == (4, "added c changed b removed a")
    assert "refused d: a job of that name" in words(second.err)
    await sql.execute(
        f"INSERT INTO {schema}.nodes (kind, name, lease_until, session, info)"
        " SELECT 'worker', 'vm:1', now() + interval '1 hour', false, jsonb_build_object('app', app, 'declarations', fingerprint)"
        f" FROM {schema}.deployments ORDER BY applied_at DESC LIMIT 1"
    )
    waits = await deploy(old)
    assert (waits.code, waits.out) == (4, "")
    assert "a newer version is in force" in waits.err
    assert "--force" in waits.err
    forced = await deploy(old, "--force", "--json")
    assert (forced.code, forced.json["added"], forced.json["changed"], forced.json["removed"]) == (0, ["a"], ["b"], ["c"])
    assert [one.name for one in await app.jobs.list()] == ["a", "b", "d"]


async def test_with_the_app_a_payload_is_checked(start: Start, tmp_path: Path, app: Hourhand) -> None:
    file = tmp_path / "shop.py"
    file.write_text(SHOP)
    arguments = ("jobs", "add", "job", "--schedule", "@daily", "--task", "work", "--app", f"{file}:app")
    refused = await ended(await start(*arguments, "--payload", '{"days": "x"}'))
    assert (refused.code, refused.out, "Expected `int`" in refused.err) == (2, "", True)
    assert (await ended(await start(*arguments, "--payload", '{"days": 7}'))).code == 0


async def test_every_command_has_help_with_an_example(hourhand: Command) -> None:
    listed = await hourhand("jobs", "--help")
    names = re.findall(r"│ ([a-z]+) ", listed.out.split("Commands")[1])
    assert {"add", "update", "delete", "deploy", "list", "show", "runs", "pause", "resume", "trigger", "backfill"} <= set(names)
    for command in (*(("jobs", name) for name in names), ("why",)):
        assert "Example: hourhand" in (await hourhand(*command, "--help")).out
