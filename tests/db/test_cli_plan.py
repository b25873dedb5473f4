"""Jobs as files say they are, called as a user calls it: plan, apply, drift, export."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import random
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hourhand import Hourhand, Step
from hourhand.core.errors import UnknownJob
from hourhand.surfaces.jobs import Jobs
from hourhand.surfaces.plans.exporting import as_yaml
from tests.db.conftest import Served
from tests.db.test_cli import Command, Done, at_a_terminal, environment
from tests.db.test_cli_jobs import hourhand, words
from tests.support.api import ADMIN
from tests.support.served import near

pytestmark = pytest.mark.once

__all__ = ["hourhand", "near"]
SHOP = """\
owner: shop
defaults: {timezone: Europe/Berlin, queue: billing}
jobs:
  weekly-report:
    schedule: "0 9 * * 1"
    task: report
    payload: {days: 7, filter: {region: eu}}
  nightly:
    schedule: "@daily"
    misfire_grace: 15m
    tags: [b, a]
    state: paused
  poll:
    schedule: every 90s
    then: [load, tell]
  new-year:
    schedule: 2099-01-01T09:00:00+01:00
    task: report
"""
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def put(text: str, name: str = "jobs.yaml") -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return str(path)

    return put


async def names(app: Hourhand, tag: str = "managed:shop") -> list[str]:
    return sorted(view.name for view in await app.jobs.list(tag=tag))


async def test_jobs_are_created_once(hourhand: Command, app: Hourhand, write: Write) -> None:
    file = write(SHOP)
    plan = await hourhand("plan", file)
    assert (plan.code, plan.err) == (0, "")
    for line in ("+ weekly-report create", 'payload {"days":7,"filter":{"region":"eu"}}', "At 09:00 on Monday (Europe/Berlin); next",
                 "At 00:00 every day (Europe/Berlin); not while it is paused", "Every 90 seconds, counted from when it is applied",
                 "then load, tell", "Plan: 4 to add, 0 to change, 0 to delete, 0 unchanged"):  # fmt: skip
        assert line in words(plan.out)
    assert await names(app) == []
    assert (await hourhand("plan", file, "--detailed-exitcode")).code == 6

    refused = await hourhand("apply", file)
    assert (refused.code, await names(app)) == (2, [])
    assert "nobody is at a terminal to be asked" in refused.err

    done = await hourhand("apply", file, "--yes")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-5:] == [
        "+ weekly-report  created", "+ nightly  created", "+ poll  created", "+ new-year  created", "Applied: 4 added",
    ]  # fmt: skip
    weekly, nightly, poll = [await app.jobs.show(name) for name in ("weekly-report", "nightly", "poll")]
    assert (weekly.schedule, weekly.timezone, weekly.queue, weekly.tags) == (
        "0 9 * * 1",
        "Europe/Berlin",
        "billing",
        ("managed:shop",),
    )
    assert (nightly.state, nightly.misfire_grace, nightly.tags) == ("paused", 900.0, ("b", "a", "managed:shop"))
    assert (poll.then, poll.state) == (("load", "tell"), "active")

    again = await hourhand("plan", file, "--detailed-exitcode")
    assert (again.code, again.out.strip()) == (0, "Plan: 0 to add, 0 to change, 0 to delete, 4 unchanged")
    assert "Applied" not in (await hourhand("apply", file, "--yes")).out
    assert [(await app.jobs.show(view.name)).version for view in (weekly, nightly, poll)] == [1, 2, 1]


async def test_jobs_are_changed_and_deleted(hourhand: Command, app: Hourhand, write: Write) -> None:
    file = write(SHOP)
    await hourhand("apply", file, "--yes")
    anchor = (await app.jobs.show("poll")).anchor
    await app.jobs.add("somebody-elses", schedule="@daily")
    other = (
        SHOP.replace("0 9 * * 1", "30 9 * * 1").replace("days: 7, filter: {region: eu}", "days: 14, full: true, filter: {region: us}")
        .replace("state: paused", "state: active").replace("[load, tell]", "load")
    )  # fmt: skip
    file = write(other[: other.index("  new-year")])
    plan = await hourhand("plan", file)
    for line in ("~ weekly-report", "schedule 0 9 * * 1 → 30 9 * * 1", "payload.days 7 → 14", "payload.full + true",
                 'payload.filter.region "eu" → "us"', "was At 09:00 on Monday (Europe/Berlin); next",
                 "becomes At 09:30 on Monday (Europe/Berlin); next", "state paused → active", "then load, tell → load",
                 "- new-year delete", "Plan: 0 to add, 3 to change, 1 to delete, 0 unchanged"):  # fmt: skip
        assert line in words(plan.out)
    kept = await hourhand("plan", file, "--no-delete")
    assert "1 job that no file names would stay: new-year" in kept.out
    assert "Plan: 0 to add, 3 to change, 0 to delete, 0 unchanged" in kept.out

    done = await hourhand("apply", file, "--yes", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json["summary"] == {"changed": 3, "deleted": 1}
    assert [(one["job"], one["outcome"]) for one in done.json["outcomes"]] == [
        ("weekly-report", "changed"), ("nightly", "changed"), ("poll", "changed"), ("new-year", "deleted"),
    ]  # fmt: skip
    weekly, nightly, poll = [await app.jobs.show(name) for name in ("weekly-report", "nightly", "poll")]
    assert (weekly.schedule, weekly.payload) == ("30 9 * * 1", {"days": 14, "full": True, "filter": {"region": "us"}})
    assert (nightly.state, poll.then, poll.anchor) == ("active", ("load",), anchor)
    assert await names(app) == ["nightly", "poll", "weekly-report"]
    assert (await app.jobs.show("somebody-elses")).version == 1
    assert (await hourhand("plan", file, "--detailed-exitcode")).code == 0


async def test_an_owner_without_jobs_has_them_all_deleted_and_nobody_else_has(
    hourhand: Command, app: Hourhand, write: Write
) -> None:
    await hourhand("apply", write(SHOP), write("owner: other\njobs: {theirs: {schedule: '@daily'}}", "other.yaml"), "--yes")
    assert (await hourhand("plan", write("owner: shop"))).code == 2
    assert (await hourhand("apply", write("owner: shop\njobs: {}"), "--yes")).code == 0
    assert (await names(app), await names(app, "managed:other")) == ([], ["theirs"])


async def test_jobs_of_others_are_conflicts_until_they_are_adopted(hourhand: Command, app: Hourhand, write: Write) -> None:
    await app.jobs.add("by-hand", schedule="@daily", tags=["x"])
    await app.jobs.add("theirs", schedule="@daily", tags=["managed:other"])
    file = write(
        "owner: shop\njobs:\n  by-hand: {schedule: '@hourly'}\n  theirs: {schedule: '@daily'}\n  new: {schedule: '@daily'}\n"
    )
    plan = await hourhand("plan", file)
    assert plan.code == 4
    assert f"! by-hand conflict: it was added in another way, and belongs to nobody's file ({file}:3)" in words(plan.out)
    assert "! theirs conflict: it belongs to other" in words(plan.out)
    assert "1 to add, 0 to change, 0 to delete, 0 unchanged, 2 in conflict" in words(plan.out)
    assert "--adopt takes over" in plan.err
    refused = await hourhand("apply", file, "--yes")
    assert (refused.code, await names(app)) == (4, [])

    assert "owner nobody → shop" in words((await hourhand("plan", file, "--adopt")).out)
    assert (await hourhand("apply", file, "--adopt", "--yes")).code == 0
    assert await names(app) == ["by-hand", "new", "theirs"]
    assert [(await app.jobs.show(name)).tags for name in ("by-hand", "theirs")] == [("managed:shop",), ("managed:shop",)]
    assert (await hourhand("plan", file, "--detailed-exitcode")).code == 0


async def test_what_code_declares_is_never_touched(hourhand: Command, url: str, schema: str, app: Hourhand, write: Write) -> None:
    declaring = Hourhand(url, schema=schema, name="code")

    @declaring.cron("@daily", tags=["managed:shop"])
    def cleanup() -> None: ...

    async with declaring:
        await declaring.deployment.apply()
    named = write("owner: shop\njobs: {cleanup: {schedule: '@hourly'}}")
    for command in (("plan",), ("apply", "--yes"), ("apply", "--yes", "--adopt")):
        done = await hourhand(*command, named)
        assert (done.code, "declared in the code of code" in words(done.out)) == (4, True)
        assert "what code declares is never taken over" in done.err
    assert (await hourhand("apply", "--yes", write("owner: shop\njobs: {}"))).code == 0
    assert (await app.jobs.show("cleanup")).schedule == "0 0 * * *"


async def test_a_saved_plan_does_exactly_what_it_says(hourhand: Command, app: Hourhand, write: Write, tmp_path: Path) -> None:
    await hourhand("apply", write(SHOP), "--yes")
    saved = str(tmp_path / "plan.json")
    file = write(SHOP.replace("0 9 * * 1", "0 8 * * 1").replace("  poll:", "  fetch:"))
    assert (await hourhand("plan", file, "--out", saved)).code == 0
    assert json.loads(Path(saved).read_text())["summary"]["change"] == 1
    await app.jobs.update("nightly", queue="elsewhere")
    write(SHOP.replace("0 9 * * 1", "0 1 * * 1"))
    done = await hourhand("apply", "--plan", saved, "--yes")
    assert (done.code, done.err) == (0, "")
    assert "Applied: 1 added, 1 changed, 1 deleted" in done.out
    assert (await app.jobs.show("weekly-report")).schedule == "0 8 * * 1"
    assert await names(app) == ["fetch", "new-year", "nightly", "weekly-report"]
    # Once more: everything is so already. It is recognised as a plan without being called one.
    again = await hourhand("apply", saved, "--yes")
    assert (again.code, again.out.splitlines()[-1]) == (0, "Applied: 3 so already")

    both = await hourhand("apply", "--plan", saved, file)
    assert (both.code, "leave out the files" in both.err) == (2, True)
    assert (await hourhand("apply")).code == 2
    assert (await hourhand("apply", "--plan", file)).code == 2
    assert (await hourhand("plan", saved)).code == 2


@pytest.mark.parametrize("touch", ["update", "pause", "replace", "delete", "taken", "extra"])
async def test_a_saved_plan_is_refused_when_what_it_touches_has_changed(
    hourhand: Command, app: Hourhand, write: Write, tmp_path: Path, touch: str
) -> None:
    await hourhand("apply", write(SHOP), "--yes")
    saved = str(tmp_path / "plan.json")
    text = SHOP.replace("0 9 * * 1", "0 8 * * 1").replace("  poll:", "  fetch:")
    await hourhand("plan", write(text), "--out", saved)
    if touch == "update":
        await app.jobs.update("weekly-report", payload={"days": 9})
    elif touch == "pause":
        await app.jobs.pause("weekly-report")
    elif touch == "replace":
        # Another job of that name, at the same version.
        await app.jobs.delete("weekly-report")
        await app.jobs.add("weekly-report", schedule="@daily", tags=["managed:shop"])
    elif touch == "delete":
        await app.jobs.delete("weekly-report")
    elif touch == "taken":
        await app.jobs.add("fetch", schedule="@daily")
    else:
        await app.jobs.update("poll", schedule="every 10m")
    before = [(view.name, view.version) for view in await app.jobs.list()]
    done = await hourhand("apply", saved, "--yes")
    assert (done.code, done.out) == (4, "")
    which = {"taken": "fetch", "extra": "poll"}.get(touch, "weekly-report")
    assert f"changed since it was made: {which}. Make the plan again" in done.err
    assert [(view.name, view.version) for view in await app.jobs.list()] == before


async def test_what_changes_between_the_question_and_the_answer_is_not_overwritten(
    url: str, schema: str, app: Hourhand, hourhand: Command, write: Write
) -> None:
    await hourhand("apply", write(SHOP), "--yes")
    file = write(SHOP.replace("days: 7", "days: 8").replace("@daily", "@hourly"))
    # A terminal, and somebody who takes his time.
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-m", "hourhand", "apply", file,
        stdin=theirs, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment(url, schema),
    )  # fmt: skip
    assert process.stderr is not None
    asked = await process.stderr.readuntil(b"[y/N]")
    assert b"Apply it?" in asked
    await app.jobs.update("weekly-report", payload={"days": 30})
    os.write(ours, b"y\n")
    out, err = await process.communicate()
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 4
    assert b"job 'weekly-report' stays as it is: it has been changed" in err
    assert "~ nightly  changed" in out.decode()
    assert "Applied: 1 changed, 1 failed" in out.decode()
    assert (await app.jobs.show("weekly-report")).payload == {"days": 30}
    assert (await app.jobs.show("nightly")).schedule == "0 * * * *"


async def test_at_a_terminal_it_asks(url: str, schema: str, app: Hourhand, write: Write) -> None:
    file = write(SHOP)
    no = await at_a_terminal(url, schema, "n\n", "apply", file)
    assert (no.code, await names(app)) == (1, [])
    assert "nothing was done" in no.err
    yes = await at_a_terminal(url, schema, "y\n", "apply", file)
    assert (yes.code, len(await names(app))) == (0, 4)


async def test_drift_goes_both_ways(hourhand: Command, app: Hourhand, write: Write) -> None:
    file = write(SHOP)
    await hourhand("apply", file, "--yes")
    none = await hourhand("drift", file)
    assert (none.code, none.out.strip()) == (0, "No drift: 4 jobs as the files say")
    await app.jobs.update("weekly-report", queue="slow", payload={"days": 7, "filter": {"region": "eu"}, "password": "hunter22"})
    await app.jobs.pause("poll")
    await app.jobs.delete("new-year")
    await app.jobs.resume("nightly", missed="SKIP")
    await app.jobs.add("stray", schedule="@daily", tags=["managed:shop"])
    await app.jobs.add("not-mine", schedule="@daily")
    drift = await hourhand("drift", file)
    assert drift.code == 6
    for line in ("- new-year is missing", "~ weekly-report is not as the file says", "queue slow → billing", "payload.password - ",
                 "state active → paused", "+ stray is there, tagged as shop's, and no file names it", "‖ poll is paused, and no file says so",
                 "Drift: 1 missing, 2 changed, 1 extra, 1 paused; 0 jobs as the files say"):  # fmt: skip
        assert line in words(drift.out)
    assert "hunter22" not in drift.out
    assert "not-mine" not in drift.out
    told = await hourhand("drift", file, "--json")
    assert (told.code, told.json["drift"]) == (6, True)
    assert [told.json[what] for what in ("missing", "extra", "paused", "conflicts", "unchanged")] == [
        ["new-year"],
        ["stray"],
        ["poll"],
        [],
        0,
    ]
    assert sorted((one["name"], [d["field"] for d in one["differences"]]) for one in told.json["changed"]) == [
        ("nightly", ["state"]), ("weekly-report", ["payload", "queue"]),
    ]  # fmt: skip
    assert "hunter22" not in told.out
    # Looking changes nothing; applying does, and what the file leaves open it leaves.
    assert (await hourhand("apply", file, "--yes")).code == 0
    after = await hourhand("drift", file, "--json")
    assert [after.json[what] for what in ("missing", "extra", "paused", "changed")] == [[], [], ["poll"], []]


async def test_export_comes_back_unchanged(hourhand: Command, app: Hourhand, write: Write) -> None:
    await hourhand("apply", write(SHOP), "--yes")
    await app.jobs.add("chain", schedule="@daily", tags=["managed:shop"], then=Step("load", {"table": "x"}, result=None))
    await app.jobs.add("nobodys", schedule="@daily")
    exported = await hourhand("export")
    assert exported.code == 0
    assert exported.out.startswith("owner: shop\njobs:\n")
    for remark in ("5 jobs exported", "1 job that belong to nobody's file left out", "2 jobs with a chain: only the names"):
        assert remark in exported.err
    for name, text in (("back.yaml", exported.out), ("back.json", (await hourhand("export", "--owner", "shop", "--json")).out)):
        again = await hourhand("plan", write(text, name), "--detailed-exitcode")
        assert (again.code, again.out.strip()) == (0, "Plan: 0 to add, 0 to change, 0 to delete, 5 unchanged")
    # A change of something else leaves the arguments of the chain, which no file can say.
    assert (await hourhand("apply", write(exported.out.replace("  chain:\n", "  chain:\n    queue: q\n")), "--yes")).code == 0
    chain = await app.jobs.show("chain")
    assert (chain.queue, chain.then) == ("q", ("load",))
    await app.jobs.trigger("chain")

    part = await hourhand("export", "--prefix", "n")
    assert sorted(line for line in part.out.splitlines() if line.startswith("  n")) == ["  new-year:", "  nightly:"]
    both = await hourhand("export", "--owner", "shop", "--unowned", "--prefix", "nobody")
    assert "nobodys" in both.out
    unknown = await hourhand("export", "--owner", "nope")
    assert (unknown.code, unknown.out) == (3, "")
    await app.jobs.add("theirs", schedule="@daily", tags=["managed:other"])
    several = await hourhand("export")
    assert (several.code, "there are jobs of several owners: other, shop" in several.err) == (2, True)


async def test_existing_jobs_are_taken_over_by_way_of_an_export(hourhand: Command, app: Hourhand, write: Write) -> None:
    assert (await hourhand("export")).code == 3
    await app.jobs.add("one", task="t", schedule="every 90s", payload={"a": "yes", "b": [1, None]}, overlap="skip")
    await app.jobs.add("two", schedule="*/5 * * * *", timeout=90)
    exported = await hourhand("export")
    assert "choose the owner's name" in exported.err
    file = write(exported.out.replace("owner: main", "owner: shop"))
    assert (await hourhand("plan", file)).code == 4
    before = {view.name: view for view in await app.jobs.list()}
    done = await hourhand("apply", file, "--adopt", "--yes")
    assert (done.code, done.out.splitlines()[-1]) == (0, "Applied: 2 changed")
    for view in await app.jobs.list():
        old = before[view.name]
        assert (view.tags, view.anchor, view.payload, view.next_run_at) == (
            ("managed:shop",),
            old.anchor,
            old.payload,
            old.next_run_at,
        )


async def test_whatever_is_applied_is_unchanged_afterwards(hourhand: Command, write: Write) -> None:
    """Against the database itself, with every option in many combinations."""
    dice = random.Random(7)
    soon = (datetime.now(UTC) + timedelta(days=40)).replace(microsecond=123_456)
    choices: dict[str, list[Any]] = {
        "schedule": ["@daily", "0  9 * * mon", "*/10 * * * * *", "every 90s", "@every 1h30m", soon.isoformat(), "2099-01-01T09:00:00+05:45"],
        "task": ["a", "b"], "timezone": ["Europe/Berlin", "UTC"], "payload": [{}, {"x": 1e300, "y": [True, None, 0.1, -0.0], "": {"ü\n": "ja\t"}}],
        "queue": ["q1", "default"], "priority": ["high", "low"], "dst": ["skip"], "missed_window": ["SKIP", "RUN_ALL"], "max_missed": [1, 9],
        "misfire_grace": ["15m", 0.1, 116_279_621, 0], "overlap": ["skip", "allow"], "flexible_window": ["10m", 0.3], "max_runs": [1, 2**31 - 1],
        "start_at": ["2026-01-01T00:00:00+02:00"], "end_at": ["2199-01-01T00:00:00Z"], "max_attempts": [1, 10_000], "timeout": ["1h30m", 0.05],
        "delivery": ["exactly_once"], "retry_backoff": ["fixed"], "retry_base": ["3s", 0.7], "retry_cap": [60], "tags": [["b", "a"], ["a", "ü x"]],
        "idempotency_key_template": ["{{job}}-{{week}}"], "then": ["load", ["load", "tell", "load"]], "secret": [["y", "x"]], "state": ["paused", "active"],
    }  # fmt: skip
    jobs = {
        f"job-{number}": {
            name: dice.choice(values) for name, values in choices.items() if name == "schedule" or dice.random() < 0.4
        }
        for number in range(150)
    }
    file = write(as_yaml({"owner": "shop", "jobs": jobs}))
    done = await hourhand("apply", file, "--yes")
    assert (done.code, done.out.splitlines()[-1]) == (0, "Applied: 150 added")
    assert (await hourhand("drift", file)).out.strip() == "No drift: 150 jobs as the files say"
    back = write((await hourhand("export")).out, "back.yaml")
    assert (await hourhand("drift", back)).out.strip() == "No drift: 150 jobs as the files say"
    # Turned around: every job becomes another, by changes alone.
    turned = dict(zip(jobs, reversed(jobs.values()), strict=True))
    file = write(as_yaml({"owner": "shop", "jobs": turned}))
    assert (await hourhand("apply", file, "--yes")).code == 0
    assert (await hourhand("plan", file)).out.strip() == "Plan: 0 to add, 0 to change, 0 to delete, 150 unchanged"


async def test_two_at_once_come_to_the_same(url: str, schema: str, app: Hourhand, hourhand: Command, write: Write) -> None:
    async def apply(file: str) -> Done:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-m", "hourhand", "apply", file, "--yes",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment(url, schema),
        )  # fmt: skip
        out, err = await process.communicate()
        assert process.returncode is not None
        return Done(process.returncode, out.decode(), err.decode())

    def text(count: int, schedule: str, prefix: str = "j") -> str:
        return "owner: shop\njobs:\n" + "".join(f"  {prefix}{n:03}: {{schedule: '{schedule}'}}\n" for n in range(count))

    for file in (write(text(150, "@daily")), write(text(90, "@hourly")), write(text(150, "every 90s", "k"))):
        one, other = await asyncio.gather(apply(file), apply(file))
        assert (one.code, one.err, other.code, other.err) == (0, "", 0, "")
        assert (await hourhand("plan", file, "--detailed-exitcode")).code == 0
    assert len(await app.jobs.list(limit=1_000)) == 150


async def test_mistakes_are_all_told_with_their_lines_and_nothing_is_touched(
    hourhand: Command, app: Hourhand, write: Write
) -> None:
    file = write(SHOP + "  oops:\n    schedule: 0 9 * * 8\n    quue: x\n  ouch: {schedule: in 5m}\n", "bad/one.yaml")
    write("owner: shop\njobs:\n  a:\n    queue: x\n    queue: y\n", "bad/two.yml")
    write('{"owner": "shop",\n "jobs": {"poll": {"schedule": "@daily"}}}', "bad/three.json")
    write("not: this", "bad/.hidden.yaml")
    done = await hourhand("apply", str(Path(file).parent), "--yes")
    assert (done.code, done.out) == (2, "")
    told = done.err.splitlines()
    for line in (
        f"error: {file}:21: oops: a job has no 'quue'; did you mean queue?",
        f"error: {file}:22: ouch: schedule 'in 5m'",
    ):
        assert any(one.startswith(line) for one in told)
    assert any(f"{file}:20: oops: '0 9 * * 8' is not a cron expression" in one for one in told)
    assert any("two.yml:5: 'queue' comes twice, first on line 4" in one for one in told)
    assert any("three.json:2: poll: comes twice" in one or f"{file}:13: poll: comes twice" in one for one in told)
    assert len(told) == 5
    assert await app.jobs.list() == []


async def test_a_small_file_that_means_very_much_is_refused(hourhand: Command, write: Write) -> None:
    lines = ["owner: shop", "x-0: &x0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"x-{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]" for n in range(1, 10)]
    done = await hourhand("plan", write("\n".join([*lines, "jobs: {a: {schedule: '@daily', payload: {x: *x9}}}"])))
    assert (done.code, done.out) == (2, "")
    assert "with its aliases it stands for more than" in done.err


async def test_standard_input_directories_and_json(hourhand: Command, app: Hourhand, write: Write, tmp_path: Path) -> None:
    assert (await hourhand("apply", "-", "--yes", stdin=SHOP)).code == 0
    (tmp_path / "some").mkdir()
    write('{"owner": "ops", "jobs": {"a": {"schedule": "@daily", "timeout": "5m"}}}', "some/a.json")
    write(SHOP, "some/shop.yml")
    plan = await hourhand("plan", str(tmp_path / "some"), "--json")
    assert plan.json["summary"] == {"create": 1, "change": 0, "delete": 0, "unchanged": 4, "conflicts": 0}
    # What plan --json prints is a plan that can be applied.
    assert (await hourhand("apply", "--plan", write(plan.out, "p.json"), "--yes")).code == 0
    assert (await app.jobs.show("a")).timeout == 300.0
    (tmp_path / "none").mkdir()
    for wrong in (str(tmp_path / "none"), str(tmp_path / "nope.yaml"), __file__):
        assert (await hourhand("plan", wrong)).code == 2


async def test_one_that_fails_does_not_stop_the_others(
    hourhand: Command, app: Hourhand, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hourhand("apply", write(SHOP), "--yes")
    file = write(SHOP.replace("days: 7", "days: 8").replace("  poll:", "  fetch:"))
    whole = Jobs.update

    async def update(self: Jobs, name: str, **changes: Any) -> Any:
        if "payload" in changes:
            # Somebody deletes it at this moment.
            await self.delete(name)
        return await whole(self, name, **changes)

    monkeypatch.setattr(Jobs, "update", update)
    done = await hourhand("apply", file, "--yes")
    assert done.code == 4
    assert "job 'weekly-report' stays as it is: it has been changed or deleted" in done.err
    assert done.out.splitlines()[-3:] == ["+ fetch  created", "- poll  deleted", "Applied: 1 added, 1 deleted, 1 failed"]
    with pytest.raises(UnknownJob):
        await app.jobs.show("weekly-report")


async def test_a_secret_that_the_file_leaves_out_stays(hourhand: Command, app: Hourhand, write: Write) -> None:
    text = "owner: shop\njobs: {a: {schedule: '@daily', payload: {n: %s, password: '%s'}}}"
    missing = await hourhand("apply", write(text % (1, "[redacted]")), "--yes")
    assert (missing.code, "write the value itself" in words(missing.out), missing.err) == (4, True, "")
    created = await hourhand("apply", write(text % (1, "hunter22")), "--yes")
    assert (created.code, "hunter22" in created.out) == (0, False)
    assert (await hourhand("drift", write(text % (1, "[redacted]")))).code == 0
    assert (await hourhand("apply", write(text % (2, "[redacted]")), "--yes")).code == 0
    assert (await app.jobs.show("a")).payload == {"n": 2, "password": "hunter22"}
    other = await hourhand("plan", write(text % (2, "other")))
    assert 'payload.password "[redacted]" → "[redacted]"' in words(other.out)


async def test_the_same_through_a_server(served: Served, near: Hourhand, hourhand: Command, write: Write) -> None:
    where = {"HOURHAND_SERVER": served.api.base, "HOURHAND_API_KEY": ADMIN}
    text = SHOP.replace("days: 7", "days: 7, password: hunter22")
    done = await hourhand("apply", write(text), "--yes", **where)
    assert (done.code, done.out.splitlines()[-1], done.err) == (0, "Applied: 4 added", "")
    assert "hunter22" not in done.out
    assert (await near.jobs.show("weekly-report")).payload["password"] == "hunter22"
    assert (await hourhand("plan", write(text), "--detailed-exitcode", **where)).code == 0
    # What a server does not show stands in the export as such, and means that it stays.
    back = await hourhand("export", **where)
    assert "password: '[redacted]'" in back.out
    assert "secrets that are not shown here are not exported (weekly-report)" in back.err
    assert (await hourhand("drift", write(back.out), **where)).code == 0
    other = back.out.replace("days: 7", "days: 9").replace("every 90s", "every 60s").replace("    - tell\n", "")
    other = other.replace("    state: paused\n", "    state: active\n")
    done = await hourhand(
        "apply", write(other[: other.index("  new-year")] + other[other.index("  nightly") :]), "--yes", **where
    )
    assert (done.code, done.out.splitlines()[-1], done.err) == (0, "Applied: 3 changed, 1 deleted", "")
    weekly, poll = await near.jobs.show("weekly-report"), await near.jobs.show("poll")
    assert (weekly.payload, poll.schedule, poll.then) == (
        {"days": 9, "password": "hunter22", "filter": {"region": "eu"}}, "every 60s", ("load",),
    )  # fmt: skip
    many = "owner: many\njobs:\n" + "".join(f"  m{n:03}: {{schedule: '@daily'}}\n" for n in range(150))
    assert (await hourhand("apply", write(many), "--yes", **where)).out.splitlines()[-1] == "Applied: 150 added"
    assert (await hourhand("plan", write(many), **where)).out.strip().endswith("150 unchanged")


async def test_a_job_that_was_deleted_and_added_anew_is_another_one(
    hourhand: Command, app: Hourhand, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the change, at the same version."""
    await hourhand("apply", write("owner: shop\njobs: {a: {schedule: '@daily'}, b: {schedule: '@daily'}}"), "--yes")
    looked = Jobs.list

    async def look(self: Jobs, **which: Any) -> Any:
        found = await looked(self, **which)
        for name in ("a", "b"):
            await self.delete(name)
            await self.add(name, schedule="@weekly", queue="mine")
        return found

    monkeypatch.setattr(Jobs, "list", look)
    done = await hourhand("apply", write("owner: shop\njobs: {a: {schedule: '@hourly'}}"), "--yes")
    monkeypatch.undo()
    assert (done.code, "1 failed" in done.out) == (4, True)
    assert [(view.name, view.schedule, view.queue) for view in await app.jobs.list()] == [
        ("a", "0 0 * * 0", "mine"), ("b", "0 0 * * 0", "mine"),
    ]  # fmt: skip


async def test_with_the_app_its_tasks_are_known(url: str, schema: str, app: Hourhand, hourhand: Command, write: Write) -> None:
    code = write(
        "from hourhand import Hourhand\napp = Hourhand()\n\n@app.task(queue='reports')\ndef report(days: int) -> None: ...\n", "shop_code.py"
    )  # fmt: skip
    file = write("owner: shop\njobs:\n  r:\n    schedule: '@daily'\n    task: report\n    payload: {dyas: 1}\n")

    async def call(*arguments: str) -> Done:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hourhand", *arguments, "--app", f"{code}:app",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment(url, schema),
        )  # fmt: skip
        out, err = await process.communicate()
        assert process.returncode is not None
        return Done(process.returncode, out.decode(), err.decode())

    wrong = await call("plan", file)
    assert (wrong.code, f"{file}:6: r: task 'report': unknown argument `dyas`" in wrong.err) == (2, True)
    write(Path(file).read_text().replace("dyas", "days"))
    assert (await call("apply", file, "--yes")).code == 0
    assert (await app.jobs.show("r")).queue == "reports"
    assert (await call("plan", file, "--detailed-exitcode")).code == 0
    unaware = await hourhand("plan", file)
    assert "queue reports → default" in words(unaware.out)
    assert "--app knows them" in unaware.out
