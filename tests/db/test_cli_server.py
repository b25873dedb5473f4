"""Every command with --server: it needs nothing but the network, and says what it says on the database."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from hourhand import Context, Hourhand
from hourhand.client import AsyncClient
from hourhand.core import ids
from hourhand.surfaces.cli.main import cli
from tests.db.conftest import Served
from tests.db.test_cli import Cemetery, Done, environment
from tests.db.test_cli_friendly import leaves
from tests.db.test_cli_top import cells, opened
from tests.db.test_worker import working
from tests.support.api import ADMIN
from tests.support.fleet import until
from tests.support.served import client, near
from tests.support.servers import free_port

pytestmark = pytest.mark.once

__all__ = ["client", "near"]
Command = Callable[..., Awaitable[Done]]
NOWHERE = {"HOURHAND_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "HOURHAND_SCHEMA": "none"}
NOW = datetime.now(UTC).replace(microsecond=0)
SINCE, UNTIL = (NOW - timedelta(hours=30)).isoformat(), NOW.isoformat()
FILE = """
owner: files
jobs:
  filed: {schedule: "0 4 * * *", payload: {password: hush, n: 1}}
  filed-too: {schedule: every 90s, then: [load, tell]}
"""
MANIFEST = """
apiVersion: batch/v1
kind: CronJob
metadata: {name: cleanup}
spec:
  schedule: "7 4 * * *"
  jobTemplate: {spec: {template: {spec: {containers: [{name: one, image: x, command: [/usr/bin/cleanup]}]}}}}
"""
VOLATILE = {"oldest_seconds", "at", "lease_until", "used_at"}
"""What is another value a moment later."""


def call(arguments: tuple[str, ...], variables: dict[str, str], stdin: str) -> Done:
    """In this process, which is quicker than starting one; its event loop is its own."""
    clean = environment("", "")
    result = CliRunner().invoke(cli, arguments, input=stdin, env={**clean, **variables}, prog_name="hourhand")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert "Traceback" not in result.stderr
    return Done(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def far(served: Served) -> Command:
    """The command of somebody who has a URL and a key, and no database."""

    async def run(*arguments: str, stdin: str = "", **more: str) -> Done:
        variables = {**NOWHERE, "HOURHAND_API_KEY": ADMIN, **more}
        return await asyncio.to_thread(call, (*arguments, "--server", served.api.base), variables, stdin)

    return run


@pytest.fixture
def here(served: Served) -> Command:
    """The same command on the server's database."""

    async def run(*arguments: str, stdin: str = "", **more: str) -> Done:
        variables = {"HOURHAND_DATABASE_URL": served.url, "HOURHAND_SCHEMA": served.schema, **more}
        return await asyncio.to_thread(call, arguments, variables, stdin)

    return run


@pytest.fixture
def cemetery(sql: asyncpg.Connection, served: Served) -> Cemetery:
    return Cemetery(sql, served.schema)


_STOCK: dict[str, dict[str, str]] = {}


@pytest.fixture
async def stock(
    served: Served, near: Hourhand, cemetery: Cemetery, sql: asyncpg.Connection, tmp_path_factory: Any
) -> dict[str, str]:
    """Something of everything, put in once."""
    if served.schema in _STOCK:
        return _STOCK[served.schema]

    @near.task(queue="talking")
    async def talk(ctx: Context) -> int:
        for n in range(3):
            ctx.log.warning("said", n=n)
        return 3

    options: dict[str, Any] = {"payload": {"days": 7}, "tags": ["eu"], "queue": "billing", "then": "cleanup", "max_attempts": 3}
    job = await near.jobs.add("weekly", schedule="0 9 * * 1", timezone="Europe/Berlin", **options)
    often = await near.jobs.add("often", schedule="*/20 * * * *")
    await near.jobs.pause("often")
    await near.jobs.resume("often")
    await sql.execute(
        f"UPDATE {served.schema}.jobs SET active_since = now() - interval '3 days' WHERE id = $1", ids.parse_job_id(often.job_id)
    )
    await near.jobs.trigger("weekly")
    ended = await near.enqueue("mail", {"to": "you"}, key="k1")
    await near.runs.cancel(ended.id, "wrong customer")
    async with working(near, queues=["talking"]):
        talked = await near.enqueue("talk", queue="talking")
        assert await talked.result(60) == 3
        await until(lambda: near.runs.logs(talked.id), "its lines")
    letter = await cemetery.bury(queue="post", key="k[1]", tags=["eu"])
    await cemetery.bury(queue="post", error="OSError", age=timedelta(hours=3))
    await cemetery.node()
    await cemetery.node("vm:2", died=True)
    await near.queues.pause("held")
    await near.limits.set("queue", "billing", concurrency=5)
    await near.holds.add(task="nobodys", reason="until monday")
    await near.keys.create("somebody", queues=["billing"])
    file = tmp_path_factory.mktemp("files") / "jobs.yaml"
    file.write_text(FILE)
    crontab = file.with_name("crontab")
    crontab.write_text("5 3 * * * /usr/bin/backup --all\n@reboot /usr/bin/never\n")
    manifest = file.with_name("cronjobs.yaml")
    manifest.write_text(MANIFEST)
    stock = {
        "manifest": str(manifest),
        "run": talked.id,
        "ended": ended.id,
        "dead": letter,
        "id": job.job_id,
        "file": str(file),
        "crontab": str(crontab),
    }
    return _STOCK.setdefault(served.schema, stock)


def steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: steady(one) for name, one in value.items() if name not in VOLATILE}
    return [steady(one) for one in value] if isinstance(value, list) else value


LOOKS = [
    "jobs list", "jobs list --state active --queue billing --tag eu --search week --limit 1", "jobs list --after often",
    "jobs show weekly --count 1200", "jobs show {id}", "jobs runs weekly", "jobs backfill often --since 2h --dry-run --cap 99",
    "runs list", "runs list --state ready --state succeeded --since 2h --limit 2", "runs list --task mail --key k1", "runs show {run}",
    "runs show {ended}", "logs {run}", "logs {run} --follow", "logs {run} --since-attempt 2", "dead list",
    "dead list --queue post --tag eu --error ValueError --since 2h --before 1s", "dead show {dead}", "queues list", "limits list", "holds list", "nodes list",
    "nodes list --gone", "shards list", "alerts list --all", "alerts rules", "keys list", "keys list --revoked", "audit --limit 9", "audit weekly --action job --since 2h",
    "why often --since {since} --until {until}", "why often --since {since} --until {until} --outcome paused", "top --once",
    "plan {file}", "drift {file}", "export --unowned", "import crontab {crontab}",
    "import kubernetes {manifest}",
]  # fmt: skip


@pytest.mark.parametrize("line", LOOKS)
async def test_whoever_looks_sees_the_same(line: str, far: Command, here: Command, stock: dict[str, str]) -> None:
    arguments = line.format(**stock, since=SINCE, until=UNTIL).split()
    for _ in range(3):  # a second may end between two looks, but not each time
        done = [await look(*arguments, "--json") for look in (far, here)]
        one, other = ((it.code, it.err, it.out if line.startswith("logs") else steady(it.json)) for it in done)
        if one == other:
            break
    assert one == other
    told, also = await far(*arguments), await here(*arguments)
    assert (told.code, len(told.out.splitlines())) == (also.code, len(also.out.splitlines()))


@pytest.mark.parametrize(
    "line",
    [
        "jobs show weakly", "jobs runs nobody", "jobs list --state tired", "jobs list --queue bilings", "jobs pause nobody weakly",
        "jobs add weekly --schedule @daily", "jobs add bad --schedule nonsense", "jobs add bad/name --schedule @daily", "jobs add x",
        "jobs add x --schedule @daily --tz Europe/Berlim", "jobs add x --schedule @daily --max-attempts 0",
        "jobs trigger nobody", "jobs resume weekly --missed NEVER",
        "jobs backfill weekly --since 2h --order random", "jobs backfill often --since 30d --cap 5 --dry-run",
        "runs show r_zzzz", "runs show nonsense", "runs cancel {ended}", "runs list --state bogus", "runs retry r_zzzz",
        "dead show {run}", "dead replay r_zzzz", "dead purge", "dead edit {run} --payload {{}}", "dead edit {dead} --payload [",
        "queues resume nowhere", "holds release 9999", "holds release nonsense", "holds add", "holds add --field x", "holds add --field password=1",
        "holds add --task t --queue nowhere", "limits set queue billing", "limits set table x --concurrency 1", "limits set queue x --concurrency many",
        "limits set queue x --rate fast", "limits set task x --max-depth 3", "limits set queue x --overflow reject", "limits set queue x --burst 3",
        "limits clear queue nobody", "limits set queue bad/name --concurrency 1", "alerts test nobody", "keys create x --role king", "keys revoke nobody", "logs r_zzzz", "why nobody",
        "why often --at 2026-01-01T00:00:07Z", "audit --since nonsense", "plan /nowhere.yaml", "export --owner nobody",
    ],
)  # fmt: skip
async def test_whoever_errs_is_told_the_same(line: str, far: Command, here: Command, stock: dict[str, str]) -> None:
    arguments = line.format(**stock, since=SINCE, until=UNTIL).split()
    one, other = await far(*arguments), await here(*arguments)
    assert one.code == other.code != 0
    assert (one.out, one.err) == (other.out, other.err)


async def test_a_job_is_added_changed_held_started_and_deleted(far: Command, near: Hourhand, tmp_path: Path) -> None:
    added = await far(
        "jobs", "add", "remote", "--schedule", "0 9 * * 1", "--payload", '{"n": 1}', "--misfire-grace", "5m", "--json"
    )
    assert (added.code, added.err, added.json["outcome"]) == (0, "", "added")
    assert (
        "is as it was"
        in (await far("jobs", "add", "remote", "--schedule", "0 9 * * 1", "--payload", '{"n": 1}', "--misfire-grace", "300")).out
    )
    conflict = await far("jobs", "add", "remote", "--schedule", "@daily")
    assert conflict.code == 4
    assert "--replace" in conflict.err
    assert "is changed" in (await far("jobs", "add", "remote", "--schedule", "@daily", "--replace")).out
    changed = await far(
        "jobs", "update", "remote", "--timeout", "90", "--end-at", "2099-01-01T00:00:00Z", "--then", "next", "--json"
    )
    assert (changed.json["outcome"], changed.json["timeout"], changed.json["then"]) == ("replaced", 90, ["next"])
    assert (await far("jobs", "update", "remote", "--no-timeout", "--no-end-at", "--no-then", "--json")).json["timeout"] is None
    assert (await far("jobs", "pause", "remote")).out == "remote is paused\n"
    assert (await near.jobs.show("remote")).state == "paused"
    assert (await far("jobs", "resume", "remote", "--missed", "skip", "--json")).json[0]["state"] == "active"
    triggered = (await far("jobs", "trigger", "remote", "--payload", '{"n": 2}', "--json")).json
    assert (await near.runs.show(triggered["run_id"])).payload == {"n": 2}
    assert "nobody is at a terminal" in (await far("jobs", "delete", "remote")).err
    assert (await far("jobs", "delete", "remote", "--yes")).out == "remote is deleted\n"

    file = tmp_path / "jobs.ndjson"
    lines = [{"name": f"line-{n:04}", "schedule": "@daily", "misfire_grace": "2m", "then": "next"} for n in range(1_200)]
    file.write_text("".join(json.dumps(one) + "\n" for one in lines))
    many = await far("jobs", "add", "--file", str(file))
    assert (many.code, many.out) == (0, "1,200 added\n")
    assert "1200/1200" in many.err
    assert (await far("jobs", "add", "--file", "-", "--replace", "--json", stdin=file.read_text())).json["unchanged"] == 1_200
    broken = await far("jobs", "add", "--file", "-", stdin='{"name": "x", "schedule": "@daily"}\n{"name": "y"}\n')
    assert broken.code == 2
    assert "line 2" in broken.err
    assert len((await far("jobs", "list", "--search", "line-", "--limit", "5000", "--json")).json) == 1_200


async def test_runs_and_dead_letters_are_acted_upon(far: Command, near: Hourhand, cemetery: Cemetery) -> None:
    options = (
        "--queue",
        "post",
        "--key",
        "once",
        "--tag",
        "eu",
        "--delay",
        "2h",
        "--timeout",
        "5m",
        "--max-attempts",
        "2",
        "--json",
    )
    made = (await far("runs", "enqueue", "mail", "--payload", '{"to": "you"}', *options)).json
    run = await near.runs.show(made["run_id"])
    assert (run.state, run.queue, run.tags, run.payload) == ("delayed", "post", ("eu",), {"to": "you"})
    assert run.options == {"max_attempts": 2, "timeout": 300.0}
    assert (await far("runs", "enqueue", "mail", *options)).json == {"run_id": run.run_id, "duplicate": True}

    waiting, later = await near.enqueue("mail", {}), await near.enqueue("mail", {}, delay=3600)
    assert (await far("runs", "retry", later.id, "--json")).json == [{"run_id": later.id, "again_as": later.id}]
    done = await far("runs", "cancel", waiting.id, "nonsense", "--reason", "wrong", "--json")
    assert done.code == 3
    assert done.json[0] == {"run_id": waiting.id, "outcome": "cancelled"}
    assert (await near.runs.show(waiting.id)).reason == "wrong"

    await near.enqueue("invoice", {}, key="taken")
    letters = [await cemetery.bury(queue="letters") for _ in range(3)]
    held = await cemetery.bury(queue="letters", key="taken")
    edited = await far("dead", "edit", letters[0], EDITOR="sed -i s/7/8/")
    assert (edited.code, edited.err) == (0, "")
    assert (await near.dead.show(letters[0])).payload == {"invoice_id": 8}
    assert (await far("dead", "edit", letters[0], EDITOR="true")).out == f"{letters[0]} is as it was\n"
    given = await far("dead", "edit", letters[0], "--payload-file", "-", "--json", stdin='{"invoice_id": 9}')
    assert given.json["payload"] == {"invoice_id": 9}
    one = await far("dead", "replay", letters[0], held, "r_zzzz", "--json")
    assert (one.code, one.json) == (3, {"replayed": [letters[0]], "blocked": [held], "missing": ["r_zzzz"]})
    rest = await far("dead", "replay", "--queue", "letters", "--yes", "--json")
    assert (sorted(rest.json["replayed"]), rest.json["blocked"]) == (sorted(letters[1:]), [held])
    assert "add --yes" in (await far("dead", "purge", "--queue", "letters")).err
    assert (await far("dead", "purge", "--queue", "letters", "--yes")).out == "1 dead letter purged\n"
    assert (await far("dead", "purge", "--queue", "letters", "--yes")).out == "no dead letters match\n"


async def test_queues_and_keys_are_acted_upon(far: Command, near: Hourhand) -> None:
    paused = await far("queues", "pause", "fresh")
    assert paused.out == "fresh is paused\n"
    assert "there was no queue fresh until now" in paused.err
    assert (await far("queues", "pause", "fresh")).err == ""
    assert (await far("queues", "resume", "fresh", "--json")).json == [{"name": "fresh", "paused_at": None}]
    made = await far(
        "keys", "create", "cli", "--role", "operator", "--queue", "billing", "--jobs", "bill-", "--expires", "90d", "--json"
    )
    assert (made.json["role"], made.json["queues"], made.json["prefixes"]) == ("operator", ["billing"], ["bill-"])
    listed = await far("queues", "list", "--json", HOURHAND_API_KEY=made.json["secret"])
    assert {one["name"] for one in listed.json} <= {"billing"}
    refused = await far("nodes", "list", HOURHAND_API_KEY=made.json["secret"])
    assert refused.code == 1
    assert "may touch only" in refused.err
    assert (await far("top", "--once", HOURHAND_API_KEY=made.json["secret"])).code == 0
    assert "is revoked" in (await far("keys", "revoke", made.json["key_id"])).out

    async def refused_by_now() -> bool:
        # A server remembers for a second that a key was good.
        done = await far("queues", "list", "--api-key", made.json["secret"])
        return done.code == 1 and "unknown, expired or revoked" in done.err

    await until(refused_by_now, "the key to be forgotten")


async def test_runs_are_held_and_rules_are_ordered(far: Command, near: Hourhand) -> None:
    made = await far("holds", "add", "--field", "customer=a=b", "--tag", "eu", "--reason", "[slow]")
    (hold,) = [one for one in await near.holds.list() if one.tag == "eu"]
    assert (
        made.out == f"hold {hold.id}: runs with tag eu, customer = a=b are not started until: hourhand holds release {hold.id}\n"
    )
    assert "[slow]" in (await far("holds", "list")).out
    done = await far("holds", "release", str(hold.id), "99999", "--json")
    assert (done.code, done.json[0]) == (3, {"id": hold.id, "runs": 0})
    ruled = await far(
        "limits", "set", "queue", "fresh", "--concurrency", "5", "--concurrency", "2:customer", "--rate", "100/minute:customer", "--burst", "9",
        "--fair-key", "customer", "--order", "deadline", "--max-depth", "7", "--overflow", "drop_oldest",
    )  # fmt: skip
    assert ruled.out == (
        "queue fresh: 5 at once; 2 at once for each customer; 100/minute for each customer, bursts of 9; in turns by customer; "
        "earliest deadline first; at most 7 wait, then the oldest are dropped\n"
    )
    lifted = ("--concurrency", "none", "--fair-key", "none", "--order", "arrival", "--max-depth", "none", "--overflow", "none")
    assert (await far("limits", "set", "queue", "fresh", *lifted)).out == "queue fresh: nothing is ruled\n"
    assert (await far("limits", "clear", "queue", "fresh", "--json")).json["rule"] == {}


async def test_files_are_applied(far: Command, near: Hourhand, tmp_path: Path) -> None:
    file = tmp_path / "applied.yaml"
    file.write_text(FILE.replace("files", "appliers").replace("filed", "applied"))
    plan = await far("plan", str(file), "--detailed-exitcode", "--out", str(tmp_path / "plan.json"))
    assert plan.code == 6
    assert "hush" not in plan.out
    done = await far("apply", "--plan", str(tmp_path / "plan.json"), "--yes")
    assert (done.code, done.err) == (0, "")
    assert (await near.jobs.show("applied")).payload == {"password": "hush", "n": 1}
    assert (await near.jobs.show("applied-too")).then == ("load", "tell")
    assert (await far("drift", str(file))).code == 0
    await near.jobs.pause("applied")
    await near.jobs.update("applied-too", schedule="every 2m")
    drift = await far("drift", str(file), "--json")
    assert drift.code == 6
    assert (await far("apply", str(file), "--yes")).code == 0
    assert (await near.jobs.show("applied-too")).schedule == "every 90s"
    file.write_text("owner: appliers\njobs: {}\n")
    assert "2 deleted" in (await far("apply", str(file), "--yes")).out
    exported = await far("export", "--owner", "files")
    assert exported.code == 3


async def test_very_many_jobs_are_applied_in_bulk(far: Command, near: Hourhand, tmp_path: Path) -> None:
    jobs = {f"bulk-{n:03}": {"schedule": f"{n % 60} 3 * * *"} for n in range(150)}
    file = tmp_path / "bulk.json"
    file.write_text(json.dumps({"owner": "bulk", "jobs": jobs}))
    assert "150 added" in (await far("apply", str(file), "--yes")).out
    assert len(await near.jobs.list(tag="managed:bulk", limit=1_000)) == 150


async def test_schedules_are_imported(far: Command, near: Hourhand, stock: dict[str, str]) -> None:
    done = await far("import", "crontab", stock["crontab"], "--prefix", "web1-", "--apply", "--json")
    assert done.code == 0
    assert [one.task for one in await near.jobs.list(search="web1-")] == ["command"]


async def test_a_backfill_is_followed_to_its_end(far: Command, near: Hourhand) -> None:
    @near.task(queue="filling")
    async def fill() -> None: ...

    await near.jobs.add("filled", schedule="0 * * * *", task="fill", queue="filling")
    period = ("--since", SINCE, "--until", UNTIL)
    async with working(near, queues=["filling"]):
        done = await far("jobs", "backfill", "filled", *period, "--rate", "1000")
        assert (done.code, done.out) == (0, "30 runs: 30 succeeded\n")
        assert "30/30" in done.err
    assert "30 succeeded already" in (await far("jobs", "backfill", "filled", *period)).out
    made = await far("jobs", "backfill", "filled", *period, "--again", "--no-wait", "--json")
    assert len(made.json["run_ids"]) == 30
    assert (await far("jobs", "backfill", "filled", *period, "--cancel")).out == "30 runs called off\n"


async def test_ctrl_c_calls_off_what_has_not_started(served: Served, near: Hourhand) -> None:
    await near.jobs.add("interrupted", schedule="0 * * * *", queue="nobodys")
    command = ("jobs", "backfill", "interrupted", "--since", SINCE, "--until", UNTIL, "--rate", "1", "--server", served.api.base)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-m", "hourhand", *command,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**environment("", ""), **NOWHERE, "HOURHAND_API_KEY": ADMIN},
    )  # fmt: skip
    await until(lambda: near.jobs.runs("interrupted"), "its runs")
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    assert (process.returncode, out.decode().startswith("30 runs made")) == (130, True)
    assert "30 runs had not started and are called off" in err.decode()
    assert b"Traceback" not in err
    assert {one.state for one in await near.jobs.runs("interrupted", 100)} == {"cancelled"}


async def test_secrets_stay_with_the_server(far: Command, here: Command, near: Hourhand) -> None:
    await near.jobs.add("secretive", schedule="@daily", payload={"password": "hush"})
    revealed = await here("jobs", "show", "secretive", "--reveal", "--json")
    assert revealed.json["payload"] == {"password": "hush"}
    asked = await far("jobs", "show", "secretive", "--reveal", "--json")
    assert asked.json["payload"] == {"password": "[redacted]"}
    assert "a server shows nothing that is secret" in asked.err


# Where Hourhand is


async def test_the_command_line_goes_before_the_environment(served: Served, far: Command, here: Command) -> None:
    for option, value in (("--database-url", served.url), ("--schema", served.schema), ("--app", "a:b"), ("--data", "/tmp")):
        both = await far("jobs", "list", option, value)
        assert both.code == 2
        assert f"--server and {option} both say where Hourhand is" in both.err
    base = served.api.base
    by_environment = {**NOWHERE, "HOURHAND_SERVER": base, "HOURHAND_API_KEY": ADMIN}
    assert (await asyncio.to_thread(call, ("jobs", "list"), by_environment, "")).code == 0
    said = ("jobs", "list", "--database-url", served.url, "--schema", served.schema)
    gone = {"HOURHAND_SERVER": f"http://127.0.0.1:{free_port()}"}
    assert (await asyncio.to_thread(call, said, gone, "")).code == 0
    given = await here("queues", "list", "--server", base, "--api-key", ADMIN)
    assert (given.code, given.err) == (0, "")


async def test_trouble_on_the_way_is_told(served: Served, far: Command) -> None:
    port = free_port()
    gone = await asyncio.to_thread(call, ("jobs", "list", "--server", f"http://127.0.0.1:{port}"), {}, "")
    assert (gone.code, gone.err) == (5, f"error: the server http://127.0.0.1:{port} cannot be reached: Connection refused\n")
    stranger = await asyncio.to_thread(call, ("jobs", "list", "--server", served.api.base), {}, "")
    assert stranger.code == 1
    assert "wants a key: set HOURHAND_API_KEY" in stranger.err
    typo = await asyncio.to_thread(call, ("jobs", "list", "--server", "jobs.example.com"), {}, "")
    assert (typo.code, "must look like https://host:port" in typo.err) == (2, True)


async def test_no_key_is_shown_in_the_help(far: Command) -> None:
    shown = await far("jobs", "list", "--help")
    assert "HOURHAND_API_KEY" in shown.out
    assert ADMIN not in shown.out


def test_no_command_is_forgotten() -> None:
    """Whatever takes --server is called with it somewhere on this page; of the importers, which differ in what they read, some."""
    page = Path(__file__).read_text()
    for path, command in leaves(get_command(cli)):
        if path not in (("import", "celery-beat"), ("import", "apscheduler")) and any(
            "--server" in parameter.opts for parameter in command.params
        ):
            called = ", ".join(f'"{word}"' for word in path)
            assert f'"{" ".join(path)}' in page or f"far({called}" in page, " ".join(path)


async def test_the_screen_of_top(client: AsyncClient, near: Hourhand, stock: dict[str, str]) -> None:
    async with opened(client) as (top, pilot):
        assert top.error is None
        assert stock["run"] in cells(top, "runs")
        await pilot.press("p")
        name = next(iter(cells(top, "queues")))

        async def paused() -> bool:
            return any(one.name == name and one.paused_at for one in await near.queues.list())

        await until(paused, f"queue {name} to be paused")
    await near.queues.resume(name)
