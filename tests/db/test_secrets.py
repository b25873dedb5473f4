"""Secret fields on a real database: neither errors nor lines, neither the log nor the commands tell them."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import structlog
from pydantic import BaseModel

from hourhand import Hourhand, InvalidPayload
from hourhand.core.chain import Step
from hourhand.core.redaction import REDACTED
from tests.db.test_cli import Command, hourhand
from tests.db.test_worker import working
from tests.support.confidential import ONCE, declare, traces
from tests.support.fleet import until
from tests.support.outside import row

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def fresh_logs() -> None:
    """Commands that ran in this process before have set up its log, and its loggers remember where they wrote."""
    structlog.reset_defaults()
    for name, module in list(sys.modules.items()):
        if name.startswith("hourhand.") and (log := getattr(module, "log", None)) is not None:
            getattr(log, "__dict__", {}).pop("bind", None)


__all__ = ["hourhand"]
NUMBER, PASSWORD = "4111222233334444", "correct horse battery"
GIVEN: dict[str, Any] = {"card": {"number": NUMBER, "name": "A. Person"}, "password": PASSWORD}
SHOWN: dict[str, Any] = {"card": {"number": REDACTED, "name": "A. Person"}, "password": REDACTED}
NAMES = ("password",)


class Account(BaseModel):
    pin: int


def hidden(text: str) -> bool:
    return NUMBER not in text and PASSWORD not in text


# Workers


@pytest.mark.parametrize("task", ["tell", "tell_in_a_thread", "tell_apart"])
async def test_an_error_is_stored_and_logged_without_the_secrets_of_its_run(
    app: Hourhand, sql: asyncpg.Connection, schema: str, capfd: pytest.CaptureFixture[str], task: str
) -> None:
    declare(app)
    async with working(app, reference="tests.support.confidential:app"):
        run = await (await app.enqueue(task, GIVEN)).wait(30)
    assert run.state == "dead"
    assert REDACTED in run.errors[0]["message"]
    assert REDACTED in run.errors[0]["traceback"]
    for secret in (NUMBER, PASSWORD, NUMBER[:8]):
        assert await traces(sql, schema, secret) == {"dead.payload"}
    told = "".join(capfd.readouterr())
    assert hidden(told)
    assert "run.dead" in told


async def test_lines_and_log_are_without_secrets_and_views_hide_what_a_handler_gives_away(
    app: Hourhand, sql: asyncpg.Connection, schema: str, capfd: pytest.CaptureFixture[str]
) -> None:
    declare(app)
    async with working(app):
        handle = await app.enqueue("say", GIVEN)
        run = await handle.wait(30)

        async def kept() -> bool:
            return len(await app.runs.logs(handle.id)) == 2

        await until(kept, "its lines")
    lines = await app.runs.logs(handle.id)
    assert hidden(str(lines))
    assert REDACTED in str(lines[0])
    assert hidden("".join(capfd.readouterr()))
    assert "lines.text" not in await traces(sql, schema, PASSWORD)
    assert run.payload == GIVEN
    shown = run.redacted(NAMES)
    assert shown.payload == SHOWN
    assert shown.result == {"echo": REDACTED, "password": REDACTED, "card": {"number": REDACTED}}
    assert hidden(str(shown))


async def test_a_models_complaint_does_not_quote_its_input(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    @app.task(retry=ONCE, secret=["account"])
    async def check(account: Account) -> None: ...

    secret = f"{PASSWORD} {PASSWORD} {PASSWORD} {PASSWORD} {PASSWORD}"  # so long that a model would shorten it
    with pytest.raises(InvalidPayload, match=r"pin: Input should be a valid integer") as caught:
        await app.enqueue("check", {"account": {"pin": secret}})
    assert PASSWORD not in str(caught.value)
    await sql.execute(f"SELECT {schema}.enqueue('check', $1)", json.dumps({"account": {"pin": secret}}))
    async with working(app):

        async def dead() -> bool:
            return await app.dead.count() == 1

        await until(dead, "its death")
    (run,) = await app.dead.list()
    assert "Input should be a valid integer" in run.errors[0]["message"]
    assert await traces(sql, schema, PASSWORD[:7]) == {"dead.payload"}


# Marks travel


async def test_marks_go_with_runs_and_jobs_so_that_others_can_hide_without_the_code(
    app: Hourhand, sql: asyncpg.Connection, schema: str, url: str
) -> None:
    declare(app)

    @app.task(secret=["x"])
    async def one_of_many(x: str) -> None: ...

    delayed = await app.enqueue("tell", GIVEN, delay=3600, secret=["card.name"])
    many = await one_of_many.options(queue="later").enqueue_many([{"x": NUMBER}, {"x": PASSWORD}])
    await app.jobs.add("charge", task="tell", schedule="0 0 1 1 *", payload=GIVEN, then=Step("tell", GIVEN, None))
    fired = (await app.jobs.trigger("charge")).run_id
    assert fired is not None
    stranger = Hourhand(url, schema=schema)
    async with stranger:
        marked = (await stranger.runs.show(delayed.id)).redacted(NAMES)
        assert marked.payload == {"card": {"number": REDACTED, "name": REDACTED}, "password": REDACTED}
        for run_id in many:
            assert (await stranger.runs.show(run_id)).redacted().payload == {"x": REDACTED}
        job = await stranger.jobs.show("charge")
        assert (job.secret, job.redacted(NAMES).payload) == (("card.number",), SHOWN)
        shown = (await stranger.runs.show(fired)).redacted(NAMES)
        assert shown.payload == SHOWN
        assert shown.options is not None
        assert shown.options["then"]["payload"] == SHOWN
        assert hidden(str(shown))
        updated = await stranger.jobs.update("charge", secret=["card"])
        assert updated.redacted(NAMES).payload == {"card": REDACTED, "password": REDACTED}
        assert updated.secret == ("card.number", "card")
    new = await app.jobs.update("charge", secret=[], payload={**GIVEN, "card": {}})
    assert new.secret == ("card.number",)


async def test_marks_from_other_languages_are_taken(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    number = await sql.fetchval(
        f"""SELECT run_id FROM {schema}.enqueue('t', '{{"a": {{"b": 1}}}}', options => '{{"secret": ["a.b", 7]}}')"""
    )
    assert (await app.runs.show(number)).redacted().payload == {"a": {"b": REDACTED}}
    with pytest.raises(asyncpg.InvalidParameterValueError, match="secret must be a list"):
        await sql.execute(f"""SELECT {schema}.enqueue('t', '{{}}', options => '{{"secret": "a"}}')""")


# Editing what was seen redacted


async def buried(app: Hourhand) -> str:
    declare(app)
    async with working(app):
        return (await (await app.enqueue("tell", GIVEN)).wait(30)).run_id


async def test_a_dead_letter_keeps_what_its_editor_did_not_see(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    run_id = await buried(app)
    edited = await app.dead.edit(run_id, {"card": {"number": REDACTED, "name": "B. Person"}, "password": "new words"})
    assert edited.payload == {"card": {"number": NUMBER, "name": "B. Person"}, "password": "new words"}
    with pytest.raises(InvalidPayload, match=r"card\.name is \[redacted\]"):
        await app.dead.edit(run_id, {"card": {"number": REDACTED, "name": REDACTED}, "password": REDACTED})
    assert json.loads((await row(sql, schema, run_id))["payload"]) == edited.payload
    assert "audit" not in {one.split(".")[0] for one in await traces(sql, schema, NUMBER)}


async def test_a_job_keeps_what_its_editor_did_not_see(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    declare(app)
    await app.jobs.add("charge", task="tell", schedule="0 0 1 1 *", payload=GIVEN)
    new = {"card": {"number": REDACTED, "name": "B. Person"}, "password": REDACTED}
    updated = await app.jobs.update("charge", payload=new)
    assert updated.payload == {"card": {"number": NUMBER, "name": "B. Person"}, "password": PASSWORD}
    again = await app.jobs.add("charge", task="tell", schedule="0 0 1 1 *", payload=new, replace=True)
    assert (again.outcome, again.payload) == ("unchanged", updated.payload)
    with pytest.raises(InvalidPayload, match="give the value"):
        await app.jobs.trigger("charge", payload={**new, "card": {"number": REDACTED}})
    with pytest.raises(InvalidPayload, match="nothing is hidden there"):
        await app.jobs.add("other", task="tell", schedule="0 0 1 1 *", payload=new)
    assert await traces(sql, schema, PASSWORD) == {"jobs.payload"}
    await app.jobs.update("charge", payload={"card": {"number": "5500000000000004"}, "password": PASSWORD})
    (change, *_) = await app.audit.list(action="job.update")
    assert change.after["payload"] == {"card": {"number": REDACTED}, "password": REDACTED}


@pytest.mark.parametrize(
    ("task", "here", "there"),
    [
        ("http", {"url": "https://192.0.2.1/a"}, {"url": "https://192.0.2.1:444/a"}),
        ("command", {"argv": ["curl", "a"]}, {"argv": ["curl", "b"]}),
    ],
)
async def test_a_secret_does_not_go_elsewhere_by_an_edit(
    app: Hourhand, task: str, here: dict[str, Any], there: dict[str, Any]
) -> None:
    app.registry.targets = {}  # where it leads is not the question here
    hidden = {"headers": {"Authorization": "Bearer of news"}}
    await app.jobs.add("call", task=task, schedule="0 0 1 1 *", payload={**here, **hidden})
    shown = {"headers": {"Authorization": REDACTED}}
    kept = await app.jobs.update("call", payload={**here, **shown, "timeout": 5})
    assert kept.payload == {**here, **hidden, "timeout": 5}
    for change in (
        app.jobs.update("call", payload={**there, **shown}),
        app.jobs.add("call", task=task, schedule="0 0 1 1 *", payload={**there, **shown}, replace=True),
    ):
        with pytest.raises(InvalidPayload, match="elsewhere"):
            await change
    assert (await app.jobs.show("call")).payload == kept.payload


# Commands


async def test_no_command_prints_a_secret_unless_it_is_asked_to(hourhand: Command, app: Hourhand) -> None:
    run_id = await buried(app)
    await app.jobs.add("charge", task="tell", schedule="0 0 1 1 *", payload=GIVEN)
    for command in (
        ["runs", "show", run_id], ["runs", "list"], ["dead", "show", run_id], ["dead", "list"], ["jobs", "show", "charge"],
        ["jobs", "list"], ["jobs", "runs", "charge"], ["audit"], ["logs", run_id],
    ):  # fmt: skip
        for form in ([], ["--json"]):
            done = await hourhand(*command, *form)
            assert done.code == 0, (command, done)
            assert hidden(done.out + done.err), command
    for command in (["runs", "show", run_id], ["dead", "show", run_id], ["jobs", "show", "charge"]):
        assert REDACTED in (await hourhand(*command)).out
        assert NUMBER in (await hourhand(*command, "--reveal")).out
        assert (await hourhand(*command, "--reveal", "--json")).json["payload"] == GIVEN
    new = {"card": {"number": REDACTED, "name": "C. Person"}, "password": REDACTED}
    for command in (["jobs", "update", "charge", "--payload"], ["dead", "edit", run_id, "--payload"]):
        done = await hourhand(*command, json.dumps(new), "--json")
        assert (done.code, done.json["payload"]) == (0, new)
    assert (await app.dead.show(run_id)).payload["password"] == PASSWORD
    assert (await app.jobs.show("charge")).payload["card"] == {"number": NUMBER, "name": "C. Person"}


async def test_the_settings_say_which_names_are_secret(hourhand: Command, app: Hourhand) -> None:
    run = await app.enqueue("t", {"password": PASSWORD, "ssn": NUMBER}, delay=3600)
    done = await hourhand("runs", "show", run.id, "--json", HOURHAND_SECRET_FIELDS="SSN, other")
    assert done.json["payload"] == {"password": PASSWORD, "ssn": REDACTED}


async def test_jobs_are_marked_on_the_command_line(hourhand: Command, app: Hourhand, tmp_path: Path) -> None:
    lines = [{"name": f"j{n}", "schedule": "0 0 1 1 *", "task": "t", "payload": {"x": NUMBER}, "secret": ["x"]} for n in (1, 2)]
    (tmp_path / "jobs").write_text("\n".join(map(json.dumps, lines)))
    assert (await hourhand("jobs", "add", "--file", str(tmp_path / "jobs"))).code == 0
    added = await hourhand(
        "jobs", "add", "j3", "--schedule", "0 0 1 1 *", "--task", "t", "--payload", json.dumps({"x": NUMBER}), "--secret", "x", "--json"
    )  # fmt: skip
    assert (added.json["payload"], added.json["secret"]) == ({"x": REDACTED}, ["x"])
    assert hidden((await hourhand("jobs", "list", "--json")).out)
    still = await hourhand("jobs", "update", "j3", "--no-secret", "--json")
    assert (still.json["payload"], still.json["secret"]) == ({"x": REDACTED}, ["x"])
    cleared = await hourhand("jobs", "update", "j3", "--no-secret", "--payload", '{"x": 1}', "--json")
    assert (cleared.json["payload"], cleared.json["secret"]) == ({"x": 1}, [])


async def test_the_editor_sees_what_is_hidden_as_hidden(hourhand: Command, app: Hourhand, tmp_path: Path) -> None:
    run_id = await buried(app)
    seen = tmp_path / "seen"
    editor = tmp_path / "editor"
    editor.write_text(f'#!/bin/sh\ncat "$1" > {seen}\nsed -i "s/A. Person/D. Person/" "$1"\n')
    editor.chmod(0o755)
    done = await hourhand("dead", "edit", run_id, EDITOR=str(editor))
    assert done.code == 0
    assert json.loads(seen.read_text()) == SHOWN
    assert (await app.dead.show(run_id)).payload == {"card": {"number": NUMBER, "name": "D. Person"}, "password": PASSWORD}
    editor.write_text("#!/bin/sh\n")
    assert "is as it was" in (await hourhand("dead", "edit", run_id, EDITOR=str(editor))).out


async def test_names_are_looked_for_only_where_something_failed(app: Hourhand, monkeypatch: pytest.MonkeyPatch) -> None:
    from hourhand.engine import secrecy

    looks: list[str] = []
    real = secrecy.cleaner
    monkeypatch.setattr(secrecy, "cleaner", lambda text, *rest: looks.append(text) or real(text, *rest))

    @app.task(secret=["x"])
    async def fine(x: str) -> str:
        return x

    async with working(app):
        handles = await asyncio.gather(*(fine.enqueue(x=NUMBER) for _ in range(5)))
        assert [await one.result(20) for one in handles] == [NUMBER] * 5
    assert looks == []
