"""Runs that start programs, on a real worker: what they are given, what they may be, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.core.errors import InvalidPayload, PermanentFailure
from hourhand.surfaces.views import RunView
from hourhand.targets import command as command_module
from hourhand.targets.command import PATH, find_account, find_program
from tests.db.test_lines import said
from tests.db.test_worker import working
from tests.support.fleet import until

pytestmark = pytest.mark.once

SH = str(shutil.which("sh", path=PATH))
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start programs as somebody else")


@pytest.fixture
async def app(url: str, schema: str) -> AsyncIterator[Hourhand]:
    one = Hourhand(url, schema=schema, lease=3.0, grace=0.5, poll=1.0, allow_commands="sh, true,id ,/no/such/program")
    async with one:
        yield one


def script(text: str, **more: Any) -> dict[str, Any]:
    return {"argv": ["sh", "-c", text], **more}


async def run_once(app: Hourhand, payload: dict[str, Any], **options: Any) -> RunView:
    return await (await app.enqueue("command", payload, **{"max_attempts": 1, **options})).wait(60)


async def result(app: Hourhand, payload: dict[str, Any]) -> dict[str, Any]:
    run = await run_once(app, payload)
    assert run.state == "succeeded", run.errors
    assert isinstance(run.result, dict)
    return run.result


def alive(pid: int) -> bool:
    """Not counting those that are dead and wait for somebody to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


async def gone(*pids: int) -> None:
    async def ended() -> bool:
        return not any(alive(one) for one in pids)

    try:
        await until(ended, f"the end of {pids}", 20)
    finally:
        for one in filter(alive, pids):
            os.kill(one, signal.SIGKILL)


async def pids_of(app: Hourhand, run_id: str, count: int) -> list[int]:
    """What a script has printed first: the numbers of its processes."""
    return [int(text) for text in await printed(app, run_id, count)]


async def printed(app: Hourhand, run_id: str, count: int) -> list[str]:
    """Without what the shell itself says about its children on standard error."""

    async def there() -> list[str] | None:
        texts = [one.text for one in await app.runs.logs(run_id) if one.level == "stdout"]
        return texts if len(texts) >= count else None

    texts: list[str] = await until(there, f"{count} printed lines of {run_id}")
    return texts


async def test_what_it_prints_is_its_result_and_its_lines(app: Hourhand) -> None:
    async with working(app):
        run = await run_once(app, script("echo one; echo two >&2; printf three"))
        assert run.result is not None
        assert run.result.pop("seconds") > 0
        assert run.result == {"exit_code": 0, "stdout": "one\nthree", "stderr": "two\n", "truncated": False}
        lines = await said(app, run.run_id, 3)
    assert {(one.level, one.text) for one in lines} == {("stdout", "one"), ("stdout", "three"), ("stderr", "two")}


async def test_lines_come_while_it_goes_on(app: Hourhand) -> None:
    async with working(app):
        handle = await app.enqueue("command", script("echo begun; exec sleep 3600"))
        assert [one.text for one in await said(app, handle.id, 1)] == ["begun"]
        assert (await handle.show()).state == "running"
        await app.runs.cancel(handle.id)
        await handle.wait(60)


async def test_its_environment_is_its_own(app: Hourhand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOURHAND_DATABASE_URL", "postgresql://shop:topsecret@db/shop")
    monkeypatch.setenv("PGPASSWORD", "topsecret")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    async with working(app):
        job = await app.jobs.add(
            "environment", schedule="0 0 1 1 *", task="command", payload=script("env", env={"COLOUR": "red"})
        )
        triggered = await app.jobs.trigger("environment")

        async def ended() -> RunView | None:
            run = await app.runs.show(str(triggered.run_id))
            return run if run.finished else None

        run: RunView = await until(ended, "the run of the job")
        given = dict(text.split("=", 1) for text in run.result["stdout"].splitlines())
    for name in ("PWD", "_", "SHLVL", "OLDPWD"):  # the shell's own
        given.pop(name, None)
    assert len(given.pop("HOURHAND_TOKEN")) == 64
    assert given == {
        "PATH": PATH, "HOME": pwd.getpwuid(os.getuid()).pw_dir, "LANG": "de_DE.UTF-8", "TZ": "Asia/Kolkata", "COLOUR": "red",
        "HOURHAND_RUN_ID": run.run_id, "HOURHAND_JOB_ID": job.job_id, "HOURHAND_ATTEMPT": "1",
        "HOURHAND_SCHEDULED_AT": run.scheduled_at.isoformat(),
    }  # fmt: skip


async def test_arguments_directory_and_standard_input(app: Hourhand, tmp_path: Path) -> None:
    async with working(app):
        payload = {"argv": ["sh", "-c", 'pwd; printf "%s|" "$@"; cat', "name", "a b", "$(id)", "*"], "stdin": "größer\n"}
        assert (await result(app, {**payload, "cwd": str(tmp_path)}))["stdout"] == f"{tmp_path}\na b|$(id)|*|größer\n"
        assert (await result(app, script("pwd; cat")))["stdout"] == "/\n", "nothing to read, and no terminal"
        # It does not read what it is given, and ends first.
        assert (await result(app, {"argv": ["true"], "stdin": "x" * 900_000}))["exit_code"] == 0
        assert (await result(app, script("wc -c", stdin="x" * 900_000)))["stdout"].strip() == "900000"
        run = await run_once(app, {"argv": ["true"], "cwd": str(tmp_path / "missing")}, max_attempts=3)
        assert (run.state, run.attempt) == ("dead", 1)
        assert "missing" in run.errors[0]["message"]


CODES: list[tuple[int, dict[str, Any], str, int]] = [
    (0, {}, "succeeded", 1),
    (3, {}, "dead", 2),
    (3, {"success_codes": [0, 3]}, "succeeded", 1),
    (0, {"success_codes": [3]}, "dead", 2),
    (3, {"permanent_codes": [3]}, "dead", 1),
    (4, {"permanent_codes": [3]}, "dead", 2),
    (3, {"retry_codes": [3]}, "dead", 2),
    (4, {"retry_codes": [3]}, "dead", 1),
    (4, {"retry_codes": []}, "dead", 1),
]


async def test_the_exit_code_decides(app: Hourhand) -> None:
    at_once = {"retry_backoff": "fixed", "retry_base": 0.0}
    async with working(app):
        for code, codes, state, attempts in CODES:
            run = await run_once(app, script(f"echo why >&2; exit {code}", **codes), max_attempts=2, **at_once)
            assert (run.state, run.attempt) == (state, attempts), codes
            if state == "dead":
                assert run.errors[0]["message"] == f"{SH} ended with exit code {code}; its last words: why"
                assert run.errors[0]["type"] == ("PermanentFailure" if attempts == 1 else "CommandFailed")


async def test_a_signal_is_said_by_its_name(app: Hourhand) -> None:
    async with working(app):
        run = await run_once(app, script("kill -SEGV $$", success_codes=[0, 139, 245]))
    assert run.errors[0]["message"].startswith(f"{SH} was killed by SIGSEGV")


async def test_programs_that_are_not_listed(app: Hourhand, tmp_path: Path) -> None:
    link = tmp_path / "sh"
    link.symlink_to(SH)
    names = ["ls", "/bin/../bin/sh", f"{os.path.dirname(SH)}/./sh", "./sh", "bin/sh", "../sh", str(link), "sh ", "SH", "-c", "/"]
    async with working(app):
        for name in names:
            run = await run_once(app, {"argv": [name, "-c", "true"]}, max_attempts=3)
            assert (run.state, run.attempt, run.errors[0]["type"]) == ("dead", 1, "PermanentFailure"), name
            assert "HOURHAND_ALLOW_COMMANDS" in run.errors[0]["message"]
        run = await run_once(app, {"argv": ["/no/such/program"]}, max_attempts=3)
        assert (run.attempt, "could not be started" in run.errors[0]["message"]) == (1, True)
        assert (await result(app, {"argv": [SH, "-c", "echo yes"]}))["stdout"] == "yes\n", "the same by its path"


async def test_a_worker_that_was_not_told_otherwise_starts_nothing(url: str, schema: str) -> None:
    app = Hourhand(url, schema=schema, lease=3.0, grace=0.5, poll=1.0)
    async with app:
        run = await app.enqueue("command", {"argv": ["true"]})

        async def parked() -> bool:
            return (await run.show()).state == "parked"

        async with working(app):
            await until(parked, "the run to be left to others")
        assert "HOURHAND_ALLOW_COMMANDS" in str((await run.show()).reason)
        other = Hourhand(url, schema=schema, lease=3.0, grace=0.5, poll=1.0, allow_commands="true")
        async with other, working(other):
            assert (await run.wait(30)).state == "succeeded"


def test_a_listed_link_is_called_by_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, other = tmp_path / "link", tmp_path / "other"
    link.symlink_to(SH)
    other.symlink_to(SH)
    assert find_program(str(link), f" {link} ,,") == str(link)
    for name in (SH, "sh", str(other), f"/{link}"):
        with pytest.raises(PermanentFailure):
            find_program(name, str(link))
    # The PATH of the worker has no say.
    evil = tmp_path / "id"
    evil.write_text("#!/bin/sh\n")
    evil.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert find_program("id", "id") != str(evil)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"argv": "rm -rf /tmp/x"}, "argv is a list.*no shell"),
    ({}, "missing argument `argv`"),
    ({"argv": []}, "argv is empty"),
    ({"argv": [""]}, "argv is empty"),
    ({"argv": ["a\0b"]}, "NUL"),
    ({"argv": ["true", 5]}, "argv"),
    ({"argv": ["x" * 200_000]}, "longer than"),
    ({"argv": ["x"] * 1_001}, "the limit is 1,000"),
    ({"argv": ["true"], "shell": True}, "unknown argument `shell`"),
    ({"argv": ["true"], "cwd": "tmp"}, "absolute"),
    ({"argv": ["true"], "user": "no body"}, "cannot be the name of a user"),
    ({"argv": ["true"], "user": "-1"}, "cannot be the name of a user"),
    ({"argv": ["true"], "group": "daemon"}, "group goes with user"),
    ({"argv": ["true"], "success_codes": []}, "no exit code could ever be right"),
    ({"argv": ["true"], "success_codes": [256]}, "0 to 255"),
    ({"argv": ["true"], "retry_codes": [3], "permanent_codes": [3]}, "only one of them"),
    ({"argv": ["true"], "permanent_codes": [0]}, "only one of them"),
    ({"argv": ["true"], "grace": -1}, "grace"),
    ({"argv": ["true"], "grace": 3_600}, "grace"),
    ({"argv": ["true"], "output": 262_145}, "output"),
    ({"argv": ["true"], "env": {"A-B": "x"}}, "name of a variable"),
    ({"argv": ["true"], "env": {"BASH_FUNC_x%%": "() { id; }"}}, "name of a variable"),
    ({"argv": ["true"], "env": {"A": "x\0y"}}, "NUL"),
    ({"argv": ["true"], "env": {"HOURHAND_TOKEN": "mine"}}, "set by the worker"),
    ({"argv": ["true"], "env": {str(f"A{n}"): "" for n in range(300)}}, "the limit is 256"),
    *(
        ({"argv": ["true"], "env": {name: "/tmp/evil"}}, f"{name} in env decides what code")
        for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "DYLD_INSERT_LIBRARIES", "PATH", "HOME", "PYTHONPATH",
                     "PYTHONHOME", "PERL5LIB", "PERL5OPT", "RUBYOPT", "NODE_OPTIONS", "BASH_ENV", "ENV", "IFS", "GCONV_PATH",
                     "GLIBC_TUNABLES", "JAVA_TOOL_OPTIONS", "CLASSPATH", "GIT_SSH_COMMAND")
    ),
]  # fmt: skip


async def test_payloads_that_are_refused(app: Hourhand) -> None:
    for payload, words in REFUSED:
        with pytest.raises(InvalidPayload, match=words):
            await app.enqueue("command", payload)
        with pytest.raises(InvalidPayload, match=words):
            await app.jobs.add("refused", schedule="0 0 1 1 *", task="command", payload=payload)
    assert await app.runs.list() == []


async def test_a_payload_that_came_by_another_way_is_looked_at_again(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    for payload in ('{"argv": "true"}', '{"argv": ["true"], "env": {"LD_PRELOAD": "/tmp/evil.so"}}'):
        number = await sql.fetchval(f"SELECT run_id FROM {schema}.enqueue('command', $1::text::jsonb)", payload)
        async with working(app):

            async def dead(number: int = number) -> RunView | None:
                run = await app.runs.show(number)
                return run if run.finished else None

            run: RunView = await until(dead, "its end")
        assert (run.state, run.attempt, run.errors[0]["type"]) == ("dead", 1, "PayloadMismatch")


GRANDCHILD = "sleep 3600 & echo $!; echo $$; {}"


@pytest.mark.parametrize("how", ["timeout", "cancel", "shutdown"])
@pytest.mark.parametrize(
    "then",
    [
        "wait",
        "trap '' TERM; (trap '' TERM; sleep 3600) & wait; wait; sleep 3600",
    ],
    ids=["obedient", "stubborn"],
)
async def test_its_whole_group_is_ended(app: Hourhand, how: str, then: str) -> None:
    options = {"timeout": 2.5} if how == "timeout" else {}
    async with working(app):
        handle = await app.enqueue("command", script(GRANDCHILD.format(then), grace=0.3), max_attempts=1, **options)
        pids = await pids_of(app, handle.id, 2)
        if how == "cancel":
            await app.runs.cancel(handle.id)
        if how != "shutdown":
            run = await handle.wait(60)
            assert run.state == {"timeout": "dead", "cancel": "cancelled"}[how]
            if how == "timeout":
                assert run.errors[0]["type"] == "HandlerTimeout"
                assert "ignored" not in run.errors[0]["message"]
            await gone(*pids)
    await gone(*pids)
    if how == "shutdown":
        assert (await handle.show()).state == "ready", "handed back"


async def test_what_is_left_behind_when_it_ends_is_ended(app: Hourhand) -> None:
    async with working(app):
        held = await app.enqueue("command", script("sleep 3600 & echo $!", grace=0.3))
        run = await held.wait(60)
        assert (run.state, run.result["exit_code"]) == ("succeeded", 0)
        lines = await said(app, held.id, 2)
        await gone(int(lines[0].text))
        assert (lines[1].level, "left processes behind" in lines[1].text) == ("warning", True)
        silent = await (await app.enqueue("command", script("sleep 3600 >/dev/null 2>&1 & echo $!", grace=60))).wait(60)
        await gone(int(silent.result["stdout"]))
        # It has ended, others go on and hold its pipes, and now its time is over.
        late = await app.enqueue("command", script("sleep 3600 & echo $!", grace=60), timeout=2.5, max_attempts=1)
        (pid,) = await pids_of(app, late.id, 1)
        assert (await late.wait(60)).errors[0]["type"] == "HandlerTimeout"
        await gone(pid)
        # One that has left the group can hold the pipes as well, and keeps nobody waiting. It is not ours to kill.
        away = await (await app.enqueue("command", script("setsid sleep 3600 & echo $!", grace=0.3))).wait(60)
        assert away.state == "succeeded"
        os.kill(int(away.result["stdout"]), signal.SIGKILL)


async def test_it_may_tidy_up_before_it_is_killed(app: Hourhand) -> None:
    async with working(app):
        text = "trap 'echo tidied; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
        handle = await app.enqueue("command", script(text, grace=60))
        await said(app, handle.id, 1)
        await app.runs.cancel(handle.id)
        assert (await handle.wait(60)).state == "cancelled"
        assert await printed(app, handle.id, 2) == ["ready", "tidied"]


async def test_a_grace_that_is_longer_than_the_workers_patience(url: str, schema: str) -> None:
    app = Hourhand(url, schema=schema, lease=3.0, grace=0.5, poll=1.0, cancel_grace=0.1, allow_commands="sh")
    async with app, working(app) as worker:
        text = "trap 'sleep 1; echo tidied; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
        handle = await app.enqueue("command", script(text, grace=60))
        await said(app, handle.id, 1)
        await app.runs.cancel(handle.id)
        assert (await handle.wait(60)).state == "cancelled"
        assert await printed(app, handle.id, 2) == ["ready", "tidied"]
        assert worker.executor.left_behind == 0


@pytest.mark.parametrize(
    "text", ["yes | head -c 100000000", "head -c 100000000 /dev/zero | tr '\\0' x"], ids=["lines", "one line"]
)
async def test_however_much_it_prints_little_is_held(app: Hourhand, text: str) -> None:
    async with working(app):
        await run_once(app, script("true"))
        tracemalloc.start()
        try:
            run = await run_once(app, script(f"{text}; echo; echo the end", output=65_536))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert run.state == "succeeded"
        assert peak < 20_000_000
        assert run.result["truncated"] is True
        assert len(run.result["stdout"]) <= 65_536
        assert run.result["stdout"].endswith("\nthe end\n")
        lines = await said(app, run.run_id, 1)
    if text.startswith("yes"):
        assert len(lines) == 1_000
        assert {one.text for one in lines} == {"y"}
    else:
        assert [one.text[-2:] for one in lines] == ["x…", "the end"[-2:]]
        assert len(lines[0].text.encode()) <= 8_192


async def test_a_result_that_is_too_large_is_cut_rather_than_lost(url: str, schema: str) -> None:
    app = Hourhand(url, schema=schema, lease=3.0, grace=0.5, poll=1.0, max_result=2_000, allow_commands="sh")
    async with app, working(app):
        kept = await result(app, script("yes '\"' | head -c 50000; echo end; echo problem >&2", output=262_144))
        nothing = await result(app, script("echo something", output=0))
    assert kept["stdout"].endswith('"\nend\n')
    assert (kept["stderr"], kept["truncated"], kept["exit_code"]) == ("problem\n", True, 0)
    assert (nothing["stdout"], nothing["truncated"]) == ("", True)


async def test_bytes_that_are_no_text_and_characters_that_control_terminals(app: Hourhand) -> None:
    text = r"printf 'a\377b\000\033[31mred\033[0m\r\n10%%\r20%%\n\033]0;title\007caf\303\251 \302\233x\a\n'"
    async with working(app):
        run = await run_once(app, script(text))
        lines = [one.text for one in await said(app, run.run_id, 3)]
    assert lines == ["a�b�red", "20%", "café �x�"]
    assert run.result["stdout"] == "a�b�red\n10%\n20%\ncafé �x�\n"


async def test_a_tail_does_not_begin_inside_a_character(app: Hourhand) -> None:
    async with working(app):
        kept = await result(app, script("printf 'aäöü€'", output=4))
    assert kept["stdout"] == "€"


@pytest.fixture
def more_groups() -> Iterator[None]:
    """Of this process, as those of a worker that somebody has started from a shell."""
    before = os.getgroups()
    os.setgroups([*before, 1, 2, 3])
    yield
    os.setgroups(before)


@as_root
@pytest.mark.usefixtures("more_groups")
async def test_as_another_user(app: Hourhand) -> None:
    async with working(app):
        text = 'id -un; id -gn; id -G | wc -w; echo "$HOME"; cat /etc/shadow || true; sleep 3600 & echo $!; wait'
        handle = await app.enqueue("command", script(text, user="nobody", cwd="/"), max_attempts=1, timeout=30)
        lines = await said(app, handle.id, 6)
        out = [one.text for one in lines if one.level == "stdout"]
        assert out[0] == "nobody"
        assert out[2] == "1", "no supplementary groups of root's"
        assert out[3] == os.path.expanduser("~nobody")
        assert any("denied" in one.text for one in lines if one.level == "stderr")
        await app.runs.cancel(handle.id)
        await handle.wait(60)
        await gone(int(out[4]))
        kept = await result(app, {"argv": ["id", "-gn"], "user": "nobody", "group": "daemon"})
        assert kept["stdout"] == "daemon\n"
        for who in ({"user": "no-such-user"}, {"user": "nobody", "group": "no-such-group"}):
            run = await run_once(app, {"argv": ["true"], **who}, max_attempts=3)
            assert (run.attempt, "on this worker's machine" in run.errors[0]["message"]) == (1, True)


def test_only_root_can_change_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_module.os, "geteuid", lambda: 4_711)
    with pytest.raises(PermanentFailure, match="only a worker that runs as root"):
        find_account("root", None)
    assert find_account(None, None) == (None, "/")


async def test_many_at_once(app: Hourhand) -> None:
    async with working(app, concurrency=10):
        handles = [await app.enqueue("command", script(f"echo {n}")) for n in range(40)]
        runs = await asyncio.gather(*(one.wait(60) for one in handles))
    assert [run.result["stdout"] for run in runs] == [f"{n}\n" for n in range(40)]
