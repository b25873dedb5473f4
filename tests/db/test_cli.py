"""The command line, called as a user calls it: what it prints, where, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import typer

from hourhand import Hourhand
from hourhand.core import ids
from hourhand.core.settings import Settings
from hourhand.surfaces.cli import common, doctor

pytestmark = pytest.mark.once


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Awaitable[Done]]


def environment(url: str, schema: str, **more: str) -> dict[str, str]:
    """Nothing of the caller's own settings may reach the command: it would find another database."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOURHAND_")}
    kept = {name: value for name, value in kept.items() if name not in ("EDITOR", "VISUAL", "FORCE_COLOR")}
    return {**kept, "HOURHAND_DATABASE_URL": url, "HOURHAND_SCHEMA": schema, "COLUMNS": "80", **more}


@pytest.fixture
def hourhand(url: str, schema: str) -> Command:
    """Call the command; standard input is never a terminal."""

    async def call(*arguments: str, stdin: str = "", **more: str) -> Done:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-m", "hourhand", *arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=environment(url, schema, **more),
        )  # fmt: skip
        out, err = await process.communicate(stdin.encode())
        assert process.returncode is not None
        assert b"Traceback" not in err
        return Done(process.returncode, out.decode(), err.decode())

    return call


class Cemetery:
    """Puts runs where a test wants them."""

    def __init__(self, sql: asyncpg.Connection, schema: str) -> None:
        self._sql, self._schema = sql, schema

    async def lane(self, queue: str) -> int:
        return int(await self._sql.fetchval(f"SELECT {self._schema}.queue_number($1)", queue)) * 4 + 1

    async def bury(
        self, task: str = "invoice", *, queue: str = "default", error: str = "ValueError", key: str | None = None,
        tags: list[str] | None = None, age: timedelta = timedelta(hours=1), number: int | None = None,
    ) -> str:  # fmt: skip
        errors = [
            {"attempt": 1, "at": "2030-01-01T00:00:00+00:00", "node": "vm:1", "type": "OSError", "message": "first",
             "traceback": "Traceback (most recent call last):\n  the first one\nOSError: first"},
            {"attempt": 2, "at": "2030-01-01T00:00:01+00:00", "node": "vm:1", "type": error, "message": "no [red] one",
             "traceback": "Traceback (most recent call last):\n  the second one\nlast: no [red] one"},
        ]  # fmt: skip
        run = await self._sql.fetchval(
            f"""INSERT INTO {self._schema}.dead (died_at, run_id, scheduled_at, lane, attempt, task, payload, key, tags, errors,
                    reason)
                SELECT now() - $1::interval, coalesce($2, nextval('{self._schema}.run_numbers')), now(), $3, 2, $4,
                       '{{"invoice_id": 7}}', $5, $6, $7, 'gave up after 2 of 2 attempts' RETURNING run_id""",
            age, number, await self.lane(queue), task, key, tags, json.dumps(errors),
        )  # fmt: skip
        return ids.run_id(run)

    async def start(self, task: str = "slow") -> str:
        """A run that is being executed by a node that is alive."""
        node = await self.node()
        run = await self._sql.fetchval(
            f"""INSERT INTO {self._schema}.running (worker_id, token, claimed_at, seq, run_id, scheduled_at, lane, attempt, crashes,
                    task, payload)
                SELECT $1, 1, now(), number, number, now(), $2, 0, 0, $3, '{{}}' FROM nextval('{self._schema}.run_numbers') AS number
                RETURNING run_id""",
            node, await self.lane("default"), task,
        )  # fmt: skip
        return ids.run_id(run)

    async def node(self, name: str = "vm:1", lease: timedelta = timedelta(hours=1), died: bool = False) -> int:
        info = json.dumps({"queues": ["default", "billing"], "concurrency": 50, "tasks": ["slow"]})
        number = await self._sql.fetchval(
            f"""INSERT INTO {self._schema}.nodes (kind, name, lease_until, session, info, died_at)
                VALUES ('worker', $1, now() + $2::interval, false, $3, CASE WHEN $4 THEN now() END) RETURNING id""",
            name, lease, info, died,
        )  # fmt: skip
        return int(number)


@pytest.fixture
def cemetery(sql: asyncpg.Connection, schema: str) -> Cemetery:
    return Cemetery(sql, schema)


async def states(app: Hourhand, *run_ids: str) -> list[str]:
    return [(await app.runs.show(one)).state for one in run_ids]


# Runs


async def test_runs_list_filters_and_formats(hourhand: Command, app: Hourhand, cemetery: Cemetery) -> None:
    empty = await hourhand("runs", "list")
    assert (empty.code, empty.out.strip(), empty.err) == (0, "no runs yet", "")
    mail = await app.enqueue("mail", {}, queue="post", tags=["eu"], key="k1")
    later = await app.enqueue("report", {}, delay=3600)
    dead = await cemetery.bury(number=2**62)

    every = await hourhand("runs", "list")
    assert (every.code, every.err) == (0, "")
    for words in (f"{mail.id} ready mail post", f"{later.id} delayed report default", f"{dead} dead invoice default"):
        assert words in " ".join(every.out.split())
    assert max(len(line) for line in every.out.splitlines()) <= 80

    async def found(*options: str) -> list[str]:
        done = await hourhand("runs", "list", "--json", *options)
        assert (done.code, done.err) == (0, "")
        return [one["run_id"] for one in done.json]

    assert await found("--state", "ready", "--state", "dead", "--since", "2h") == [dead, mail.id]
    assert await found("--task", "mail", "--queue", "post", "--tag", "eu", "--key", "k1") == [mail.id]
    assert await found("--since", "2999-01-01T00:00:00+01:00") == []
    assert (await hourhand("runs", "list", "--task", "nobody")).out.strip() == "no runs match"
    one = await hourhand("runs", "list", "--limit", "1")
    assert one.err.strip() == "the newest 1; --limit shows more"


async def test_runs_list_json_leaves_out_what_it_did_not_read(hourhand: Command, app: Hourhand) -> None:
    await app.enqueue("mail", {"to": "you"})
    (listed,) = (await hourhand("runs", "list", "--json")).json
    assert listed["state"] == "ready"
    assert not {"payload", "errors", "result"} & set(listed)


async def test_usage_errors_end_with_2(hourhand: Command) -> None:
    state = await hourhand("runs", "list", "--state", "bogus")
    assert state.code == 2
    assert "'bogus' is not a state" in state.err
    naive = await hourhand("dead", "list", "--since", "2030-01-01T00:00:00")
    assert naive.code == 2
    assert "time" in naive.err
    assert "2030-01-01T00:00:00Z" in naive.err
    queue = await hourhand("runs", "list", "--queue", "nope", "--json")
    assert (queue.code, queue.out) == (2, "")
    app = await hourhand("runs", "list", "--app", "no_such_module:app")
    assert app.code == 2
    assert "no_such_module" in app.err
    url = await hourhand("runs", "list", HOURHAND_DATABASE_URL="mysql://me:secret@host/db")
    assert url.code == 2
    assert "secret" not in url.err


async def test_runs_show_tells_everything(hourhand: Command, app: Hourhand, cemetery: Cemetery, sql: asyncpg.Connection) -> None:
    running = await cemetery.start()
    data = '{"value": 0.4}'
    await sql.execute(
        f"INSERT INTO {app.settings.schema}.progress (run_id, data) VALUES ($1, $2)", ids.parse_run_id(running), data
    )
    shown = await hourhand("runs", "show", running)
    assert shown.code == 0
    assert f"{running}  running  slow" in shown.out
    assert '"value": 0.4' in shown.out
    assert " UTC, " in shown.out

    dead = await hourhand("runs", "show", await cemetery.bury(key="k[1]", tags=["eu"]))
    for words in (
        "attempt 1 failed",
        "the first one",
        "attempt 2 failed",
        "the second one",
        "no [red] one",
        "k[1]",
        '"invoice_id": 7',
    ):
        assert words in dead.out
    assert "gave up after 2 of 2 attempts" in dead.out

    whole = (await hourhand("runs", "show", running, "--json")).json
    assert (whole["run_id"], whole["progress"], whole["node"]) == (running, {"value": 0.4}, 1)
    missing = await hourhand("runs", "show", "r_zzz", "--json")
    assert (missing.code, missing.out) == (3, "")
    assert "there is no run r_zzz" in missing.err
    assert (await hourhand("runs", "show", "9999999999999999999")).code == 3


async def test_runs_cancel_does_each_and_ends_with_the_first_trouble(
    hourhand: Command, app: Hourhand, cemetery: Cemetery
) -> None:
    waiting, running = await app.enqueue("mail", {}), await cemetery.start()
    done = await hourhand("runs", "cancel", waiting.id, running, "--reason", "wrong [one]")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [f"{waiting.id} is cancelled", f"{running} is running and was asked to stop"]
    view = await waiting.show()
    assert (view.state, view.reason) == ("cancelled", "wrong [one]")

    other = await app.enqueue("mail", {})
    mixed = await hourhand("runs", "cancel", waiting.id, "nonsense", other.id, "--json")
    assert mixed.code == 4
    assert [one.get("outcome") for one in mixed.json] == [None, None, "cancelled"]
    assert "has ended already" in mixed.json[0]["error"]


async def test_runs_retry(hourhand: Command, app: Hourhand, cemetery: Cemetery) -> None:
    dead, later = await cemetery.bury(), await app.enqueue("report", {}, delay=3600)
    ended = await app.enqueue("mail", {"to": "you"})
    await app.runs.cancel(ended.id)
    done = await hourhand("runs", "retry", dead, later.id, ended.id, "--json")
    assert (done.code, done.err) == (0, "")
    again = [one["again_as"] for one in done.json]
    assert again[:2] == [dead, later.id]
    assert again[2] != ended.id
    assert await states(app, dead, again[2]) == ["ready", "ready"]
    assert (await app.runs.show(again[2])).payload == {"to": "you"}
    refused = await hourhand("runs", "retry", dead)
    assert (refused.code, refused.out) == (4, "")


async def test_runs_retry_says_when_the_key_is_taken(hourhand: Command, app: Hourhand, cemetery: Cemetery) -> None:
    dead = await cemetery.bury(key="k1")
    await app.enqueue("invoice", {}, key="k1")
    done = await hourhand("runs", "retry", dead)
    assert done.code == 4
    assert "another live run holds its key 'k1'" in done.err
    assert await states(app, dead) == ["dead"]


# Dead letters


async def test_dead_list_and_show(hourhand: Command, app: Hourhand, cemetery: Cemetery) -> None:
    empty, none = await hourhand("dead", "list"), await hourhand("dead", "list", "--json")
    assert (empty.out.strip(), empty.err, none.json) == ("no dead letters", "", [])
    long = "a.task.with.a.long.name.that.goes.on.and.on.and.on.and.on"
    old = await cemetery.bury(long, queue="billing", error="OSError", tags=["eu"], age=timedelta(days=3), number=2**62)
    new = await cemetery.bury()

    every = await hourhand("dead", "list")
    assert (every.code, every.err) == (0, "")
    assert old in every.out
    assert f"{new} " in every.out
    assert max(len(line) for line in every.out.splitlines()) <= 80

    async def found(*options: str) -> list[str]:
        return [one["run_id"] for one in (await hourhand("dead", "list", "--json", *options)).json]

    assert await found() == [new, old]
    assert await found("--task", long, "--queue", "billing", "--tag", "eu", "--error", "OSError", "--before", "2d") == [old]
    assert await found("--since", "1d", "--limit", "5") == [new]
    shown = await hourhand("dead", "show", new)
    assert "the second one" in shown.out
    assert "died" in shown.out
    whole = (await hourhand("dead", "show", new, "--json")).json
    assert (whole["payload"], whole["state"], len(whole["errors"])) == ({"invoice_id": 7}, "dead", 2)
    assert whole["finished_at"] is not None
    assert (await hourhand("dead", "show", (await app.enqueue("mail", {})).id)).code == 3


async def test_dead_edit_by_option_and_file(hourhand: Command, app: Hourhand, cemetery: Cemetery) -> None:
    letter = await cemetery.bury()
    done = await hourhand("dead", "edit", letter, "--payload", '{"invoice_id": 8}')
    assert (done.code, done.err) == (0, "")
    assert f"hourhand dead replay {letter}" in done.out
    assert (await app.dead.show(letter)).payload == {"invoice_id": 8}
    piped = await hourhand("dead", "edit", letter, "--payload-file", "-", "--json", stdin='{"invoice_id": 9}')
    assert piped.json["payload"] == {"invoice_id": 9}
    for text, words in (("[1]", "must be a JSON object"), ("{bad", "is not JSON")):
        refused = await hourhand("dead", "edit", letter, "--payload", text)
        assert (refused.code, refused.out) == (2, "")
        assert words in refused.err
    assert (await hourhand("dead", "edit", letter, "--payload", "{}", "--payload-file", "x")).code == 2
    assert (await hourhand("dead", "edit", "r_zzz", "--payload", "{}")).code == 3
    assert (await app.dead.show(letter)).payload == {"invoice_id": 9}


async def test_dead_edit_in_the_editor(hourhand: Command, app: Hourhand, cemetery: Cemetery, tmp_path: Path) -> None:
    letter = await cemetery.bury()
    none = await hourhand("dead", "edit", letter)
    assert none.code == 2
    assert "--payload-file" in none.err
    same = await hourhand("dead", "edit", letter, EDITOR="true")
    assert (same.code, same.out.strip(), same.err) == (0, f"{letter} is as it was", "")
    emptied = await hourhand("dead", "edit", letter, EDITOR="truncate --size 0")
    assert (emptied.code, emptied.out.strip()) == (0, f"{letter} is as it was")
    broken = await hourhand("dead", "edit", letter, EDITOR="sed -i s/7/{/", TMPDIR=str(tmp_path))
    assert broken.code == 2
    (kept,) = tmp_path.iterdir()
    assert str(kept) in broken.err
    changed = await hourhand("dead", "edit", letter, VISUAL="sed -i s/7/8/")
    assert (changed.code, changed.err) == (0, "")
    assert (await app.dead.show(letter)).payload == {"invoice_id": 8}


async def test_dead_edit_checks_the_signature_when_it_has_the_app(
    hourhand: Command, app: Hourhand, cemetery: Cemetery, tmp_path: Path
) -> None:
    source = tmp_path / "shop.py"
    source.write_text("from hourhand import Hourhand\napp = Hourhand()\n\n@app.task\ndef invoice(invoice_id: int) -> None: ...\n")
    letter = await cemetery.bury()
    refused = await hourhand("dead", "edit", letter, "--payload", '{"invoice_id": "x"}', "--app", f"{source}:app")
    assert refused.code == 2
    assert "Expected `int`" in refused.err


@pytest.mark.parametrize("verb", ["replay", "purge"])
async def test_dead_bulk_verbs_refuse_what_was_not_asked_for(
    verb: str, hourhand: Command, app: Hourhand, cemetery: Cemetery
) -> None:
    letter = await cemetery.bury()
    for arguments, words in (
        ((), "say which dead letters"),
        (("--limit", "5"), "say which dead letters"),
        (("--all", letter), "--all and run ids"),
        (("--all",), "add --yes"),
        (("--task", "invoice"), "add --yes"),
    ):
        refused = await hourhand("dead", verb, *arguments)
        assert (refused.code, refused.out) == (2, "")
        assert words in refused.err
    assert await states(app, letter) == ["dead"]


async def test_dead_replay_by_id_names_what_it_could_not(hourhand: Command, app: Hourhand, cemetery: Cemetery) -> None:
    free, held = await cemetery.bury(), await cemetery.bury(key="k1")
    await app.enqueue("invoice", {}, key="k1")
    blocked = await hourhand("dead", "replay", held)
    assert (blocked.code, blocked.out.strip()) == (4, "0 dead letters replayed")
    assert held in blocked.err
    done = await hourhand("dead", "replay", free, held, "r_zzz", "--json")
    assert done.code == 3
    assert done.json == {"replayed": [free], "blocked": [held], "missing": ["r_zzz"]}
    assert await states(app, free, held) == ["ready", "dead"]


async def test_dead_replay_by_filter(hourhand: Command, app: Hourhand, cemetery: Cemetery) -> None:
    held = await cemetery.bury(key="k1", age=timedelta(hours=9))
    await app.enqueue("invoice", {}, key="k1")
    oldest, newest = await cemetery.bury(age=timedelta(hours=3)), await cemetery.bury()
    other = await cemetery.bury("report")
    # The oldest is blocked; that must not use up the limit.
    one = await hourhand("dead", "replay", "--task", "invoice", "--limit", "1", "--yes", "--json")
    assert (one.code, one.json["replayed"], one.json["blocked"]) == (0, [oldest], [held])
    rest = await hourhand("dead", "replay", "--all", "--yes")
    assert (rest.code, rest.out.strip()) == (0, "2 dead letters replayed")
    assert held in rest.err
    assert await states(app, newest, other, held) == ["ready", "ready", "dead"]
    none = await hourhand("dead", "replay", "--task", "nobody", "--yes")
    assert (none.code, none.out.strip(), none.err) == (0, "no dead letters match", "")


async def test_dead_purge(hourhand: Command, app: Hourhand, cemetery: Cemetery) -> None:
    first, second, third = await cemetery.bury(), await cemetery.bury("report"), await cemetery.bury(age=timedelta(days=9))
    named = await hourhand("dead", "purge", first, "r_zzz", "--json")
    assert (named.code, named.json) == (3, {"purged": 1, "missing": ["r_zzz"]})
    old = await hourhand("dead", "purge", "--before", "7d", "--yes")
    assert (old.code, old.out.strip(), old.err) == (0, "1 dead letter purged", "")
    assert [one.run_id for one in await app.dead.list()] == [second]
    purged = await app.runs.show(third)
    assert (purged.state, purged.payload) == ("dead", None)


async def test_many_show_a_bar_beside_the_json(
    hourhand: Command, app: Hourhand, cemetery: Cemetery, sql: asyncpg.Connection
) -> None:
    lane = await cemetery.lane("default")
    await sql.execute(
        f"""INSERT INTO {app.settings.schema}.dead (died_at, run_id, scheduled_at, lane, attempt, task, payload)
            SELECT now(), nextval('{app.settings.schema}.run_numbers'), now(), {lane}, 1, 'mail', '{{}}' FROM generate_series(1, 1001)"""
    )
    done = await hourhand("dead", "replay", "--all", "--yes", "--json")
    assert (done.code, len(done.json["replayed"])) == (0, 1001)
    assert "1001/1001" in done.err
    assert await app.dead.count() == 0


async def at_a_terminal(url: str, schema: str, answer: str, *arguments: str) -> Done:
    """The same with a terminal on standard input, and somebody who answers."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, answer.encode())
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-m", "hourhand", *arguments,
            stdin=theirs, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment(url, schema),
        )  # fmt: skip
        out, err = await process.communicate()
    finally:
        os.close(ours)
        os.close(theirs)
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


async def test_at_a_terminal_it_says_how_many_and_asks(url: str, app: Hourhand, cemetery: Cemetery) -> None:
    schema = app.settings.schema
    first, second = await cemetery.bury(age=timedelta(hours=2)), await cemetery.bury()
    no = await at_a_terminal(url, schema, "n\n", "dead", "purge", "--all")
    assert (no.code, no.out) == (1, "")
    assert "2 dead letters match. Payloads cannot be brought back. Purge them?" in no.err
    assert await states(app, first, second) == ["dead", "dead"]
    yes = await at_a_terminal(url, schema, "y\n", "dead", "replay", "--task", "invoice", "--limit", "1", "--json")
    assert (yes.code, yes.json["replayed"]) == (0, [first])
    assert "2 dead letters match. Replay the oldest 1?" in yes.err


# Queues and nodes


async def test_queues(hourhand: Command, app: Hourhand, cemetery: Cemetery) -> None:
    fresh = await hourhand("queues", "list", "--json")
    assert [(one["name"], one["ready"], one["paused_at"]) for one in fresh.json] == [("default", 0, None)]
    await app.enqueue("mail", {}, queue="post")
    paused = await hourhand("queues", "pause", "post", "typo")
    assert (paused.code, paused.out.splitlines()) == (0, ["post is paused", "typo is paused"])
    assert "no queue typo until now" in paused.err
    assert "post" not in paused.err
    listed = {one["name"]: one for one in (await hourhand("queues", "list", "--json")).json}
    assert (listed["post"]["ready"], listed["post"]["dead"]) == (1, 0)
    assert listed["post"]["paused_at"] is not None
    assert "ago" in (await hourhand("queues", "list")).out
    resumed = await hourhand("queues", "resume", "post", "--json")
    assert resumed.json == [{"name": "post", "paused_at": None}]
    assert (await hourhand("queues", "resume", "nope")).code == 2
    assert (await hourhand("queues", "pause", "bad name")).code == 2


async def test_nodes(hourhand: Command, cemetery: Cemetery) -> None:
    empty, none = await hourhand("nodes", "list"), await hourhand("nodes", "list", "--json")
    assert "hourhand worker" in empty.out
    assert (empty.err, none.json) == ("", [])
    await cemetery.node("vm:7")
    await cemetery.node("vm:8", lease=timedelta(hours=-1))
    await cemetery.node("vm:9", died=True)
    alive = await hourhand("nodes", "list")
    for words in ("alive worker vm:7 0/50 runs default, billing", "late worker vm:8"):
        assert words in " ".join(alive.out.split())
    assert "vm:9" not in alive.out
    every = (await hourhand("nodes", "list", "--gone", "--json")).json
    assert [(one["name"], one["state"]) for one in every] == [("vm:9", "dead"), ("vm:8", "late"), ("vm:7", "alive")]


# Doctor


def by_name(done: Done) -> dict[str, dict[str, str]]:
    return {one["check"]: one for one in done.json}


async def test_doctor_warns_and_ends_with_0(
    hourhand: Command, app: Hourhand, cemetery: Cemetery, sql: asyncpg.Connection, url: str
) -> None:
    await app.queues.pause("post")
    await cemetery.node("vm:8", lease=timedelta(hours=-1))
    number = await sql.fetchval(f"SELECT nextval('{app.settings.schema}.run_numbers')")
    await sql.execute(
        f"""INSERT INTO {app.settings.schema}.parked (seq, run_id, scheduled_at, lane, task, payload)
            VALUES ($1, $1, now(), $2, 'unheard_of', '{{}}')""",
        number, await cemetery.lane("post"),
    )  # fmt: skip
    careless = url + ("&" if "?" in url else "?") + "synchronous_commit=off"
    done = await hourhand("doctor", "--json", HOURHAND_DATABASE_URL=careless)
    assert (done.code, done.err) == (0, "")
    checks = by_name(done)
    # Whoever else uses the server may add warnings about it.
    assert {name for name, one in checks.items() if one["state"] == "warn"} >= {"durability", "workers", "leases", "tasks"}
    assert {one["state"] for one in checks.values()} == {"ok", "warn"}
    assert checks["schema"]["state"] == checks["history"]["state"] == "ok"
    assert "unheard_of in queue post" in checks["tasks"]["says"]
    assert "vm:8" in checks["leases"]["says"]
    assert checks["queues"]["says"] == "2 queues, paused: post"
    shown = await hourhand("doctor")
    assert shown.code == 0
    assert shown.out.splitlines()[-1].endswith(" warnings")


async def test_doctor_on_a_missing_and_on_a_newer_schema(hourhand: Command, sql: asyncpg.Connection, schema: str) -> None:
    missing = await hourhand("doctor", "--json", HOURHAND_SCHEMA="not_there")
    assert (missing.code, missing.err) == (1, "")
    verdict = by_name(missing)["schema"]
    assert verdict["state"] == "fail"
    assert "hourhand migrate" in verdict["says"]
    assert await sql.fetchval("SELECT to_regnamespace('not_there')") is None
    await sql.execute(f"INSERT INTO {schema}.migrations (version, name) VALUES (9999, 'from_the_future')")
    newer = await hourhand("doctor")
    assert (newer.code, newer.err) == (1, "")
    assert "9999" in newer.out
    assert newer.out.splitlines()[-1].startswith("1 failed")


async def test_doctor_without_a_database_hides_the_password(hourhand: Command) -> None:
    done = await hourhand("doctor", HOURHAND_DATABASE_URL="postgresql://me:s3cret@127.0.0.1:1/db?sslpassword=s3cret")
    assert (done.code, done.err) == (1, "")
    assert "postgresql://me@127.0.0.1:1/db" in done.out
    assert "s3cret" not in done.out


FACTS = {"version": "15.1", "version_number": 150001, "connections": 5, "max_connections": 100, "fsync": "on",
         "synchronous_commit": "on", "sees_all": True}  # fmt: skip


@pytest.mark.parametrize(
    ("check", "state", "words"),
    [
        (doctor.check_server({**FACTS, "version": "13.2", "version_number": 130002}), "fail", "needs 14"),
        (doctor.check_clock(-1.5), "warn", "behind"),
        (doctor.check_clock(0.9), "ok", "agree"),
        (doctor.check_pooler(True), "warn", "HOURHAND_DIRECT_URL"),
        (doctor.check_durability({**FACTS, "fsync": "off"}), "warn", "corrupt"),
        (doctor.check_connections({**FACTS, "connections": 81}), "warn", "81 of 100"),
        (doctor.check_connections({**FACTS, "connections": 80}), "ok", "80 of 100"),
        (doctor.check_transactions([{"pid": 42, "application": "psql", "state": "idle in transaction", "seconds": 600.0}], FACTS),
         "warn", "pid 42 (psql, idle in transaction, 10 min)"),
        (doctor.check_transactions([], {**FACTS, "sees_all": False}), "ok", "pg_read_all_stats"),
        (doctor.check_strays(1000), "warn", "partition"),
        (doctor.check_strays(3), "ok", "3 runs"),
    ],
)  # fmt: skip
def test_doctor_judges(check: doctor.Check, state: str, words: str) -> None:
    assert check.state == state
    assert words in check.says


def test_where_names_no_password() -> None:
    def where(url: str) -> str:
        return doctor.where(Settings(database_url=url))

    assert (
        where("postgresql://me:a%40b@host:5432/db?password=x&sslmode=require") == "postgresql://me@host:5432/db?sslmode=require"
    )
    assert where("postgresql://host/db") == "postgresql://host/db"
    assert (
        where("postgresql://postgres@/postgres?host=/run/pg&port=5432")
        == "postgresql://postgres@/postgres?host=/run/pg&port=5432"
    )


@pytest.mark.parametrize("text", ["", "2", "h", "-2h", "1w", "soon", "2030-01-01", "2030-01-01T00:00:00", "999999999d"])
def test_instants_that_are_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        common.instant(text)


def test_instants_that_are_taken() -> None:
    assert common.instant("2030-01-01T01:00:00+01:00") == common.instant("2030-01-01T00:00:00Z")
    minutes, hours = common.instant("120m"), common.instant("2h")
    assert timedelta(0) <= hours - minutes < timedelta(minutes=1)


# By job and node; at a rate


async def test_runs_are_listed_by_job_and_node(hourhand: Command, app: Hourhand) -> None:
    await app.jobs.add("nightly", task="t", schedule="0 2 * * *")
    run = (await app.jobs.trigger("nightly")).run_id
    await app.enqueue("t", {})
    assert [one["run_id"] for one in (await hourhand("runs", "list", "--job", "nightly", "--json")).json] == [run]
    assert (await hourhand("runs", "list", "--job", "nightly", "--node", "3", "--json")).json == []
    unknown = await hourhand("runs", "list", "--job", "nobody")
    assert (unknown.code, unknown.out) == (3, "")
    assert "there is no job 'nobody'" in unknown.err
    assert (await hourhand("runs", "list", "--node", "0")).code == 2


async def test_dead_letters_go_back_at_a_rate(hourhand: Command, app: Hourhand, cemetery: Cemetery) -> None:
    letters = [await cemetery.bury() for _ in range(3)]
    for rate in ("0", "-1", "1000000"):
        refused = await hourhand("dead", "replay", "--all", "--yes", "--rate", rate)
        assert (refused.code, refused.out) == (2, "")
        assert "rate is how many become due in a second" in refused.err
    done = await hourhand("dead", "replay", "--all", "--yes", "--rate", "0.01")
    assert (done.code, done.err) == (0, "")
    assert "3 dead letters replayed; the last is due in 3 min" in done.out
    assert await states(app, *letters) == ["delayed"] * 3
    assert (await hourhand("dead", "replay", "--all", "--yes", "--rate", "1", "--json")).json == {
        "replayed": [], "blocked": [], "missing": [], "until": None,
    }  # fmt: skip
