"""What helps a person at the command line: suggestions, what to do next, the Tab key, help, the page of commands."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from hourhand import Hourhand
from hourhand.core.errors import DatabaseRefused, DatabaseUnavailable, HourhandError, InvalidOption, InvalidSchedule, UnknownJob
from hourhand.surfaces.cli import suggestions
from hourhand.surfaces.cli.main import COMMANDS, DEFINE, LOOK, OPERATE, RUN, cli
from hourhand.surfaces.cli.suggestions import closest, in_words, with_near_names
from tests.db.test_cli import Command, Done, environment
from tests.db.test_cli_jobs import hourhand
from tests.support.fleet import until

pytestmark = pytest.mark.once

__all__ = ["hourhand"]
NOWHERE = "postgresql://me@127.0.0.1:1/db"


async def call(*arguments: str, **more: str) -> Done:
    """Without a database, and in this process."""
    settings = {**environment(NOWHERE, "none"), **more}

    def work() -> Done:
        result = CliRunner().invoke(cli, arguments, env=settings, prog_name="hourhand")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Done(result.exit_code, result.stdout, result.stderr)

    return await asyncio.to_thread(work)


def flat(text: str) -> str:
    """Without the frames and the lines into which they break what is in them."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


# Names that are not quite right


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (("job", "list"), "'job'. Did you mean 'jobs'"),
        (("jobs", "lst"), "'lst'. Did you mean 'list'"),
        (("queue", "pause", "x"), "'queue'. Did you mean 'queues'"),
        (("import", "crontabs"), "'crontabs'. Did you mean 'crontab'"),
        (("jobs", "list", "--serch", "x"), "--search"),
        (("--verson",), "--version"),
    ],
)
async def test_a_mistyped_word_names_the_nearest(arguments: tuple[str, ...], suggestion: str) -> None:
    done = await call(*arguments)
    assert (done.code, done.out) == (2, "")
    assert suggestion in flat(done.err)


async def test_a_queue_that_is_not_there_names_those_that_are(hourhand: Command, app: Hourhand) -> None:
    await app.enqueue("mail", {}, queue="billing")
    near = await hourhand("queues", "resume", "biling")
    assert near.err.strip() == "error: there is no queue 'biling'; did you mean billing?"
    assert near.code in (2, 3)
    assert "did you mean default?" in (await hourhand("runs", "list", "--queue", "Defalt")).err
    none = await hourhand("dead", "list", "--queue", "zzz")
    assert none.err.strip() == "error: there is no queue 'zzz'; there are billing, default"


async def test_a_job_that_is_not_there_names_those_like_it(hourhand: Command, app: Hourhand) -> None:
    for name in ("nightly-report", "nightly-backup", "weekly"):
        await app.jobs.add(name, task="work", schedule="every 1h")
    near = await hourhand("jobs", "show", "nightly-reprot")
    assert (near.code, near.out) == (3, "")
    assert near.err.strip().startswith("error: there is no job 'nightly-reprot'; did you mean nightly-report")
    begun = await hourhand("why", "nightly")
    assert "did you mean nightly-backup, nightly-report?" in begun.err
    several = await hourhand("jobs", "pause", "weekli", "zzz", "--json")
    assert several.code == 3
    assert [one["error"] for one in several.json] == [
        "there is no job 'weekli'; did you mean weekly?",
        "there is no job 'zzz'",
    ]
    assert (await app.jobs.show("weekly")).state == "active"


async def test_among_very_many_jobs_the_beginning_finds_it(hourhand: Command, app: Hourhand) -> None:
    jobs = [{"name": f"aaa-{number:04}", "task": "work", "schedule": "every 1h"} for number in range(300)]
    await app.jobs.add_many([*jobs, {"name": "zebra-crossing", "task": "work", "schedule": "every 1h"}])
    assert "did you mean zebra-crossing?" in (await hourhand("jobs", "show", "zebra-crosing")).err


async def test_trouble_with_a_suggestion_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            return self

        async def list(self, **options: Any) -> list[Any]:
            raise DatabaseUnavailable("gone")

    class Slow(Broken):
        async def list(self, **options: Any) -> list[Any]:
            await asyncio.Event().wait()
            return []

    monkeypatch.setattr(suggestions, "_PATIENCE", 0.0)
    for app in (Broken(), Slow()):
        error = await with_near_names(app, UnknownJob("there is no job 'x'"))
        assert str(error) == "there is no job 'x'"
        assert type(error) is UnknownJob
    other = InvalidOption("limit must be from 1 to 10000, not 0")
    assert str(await with_near_names(Broken(), other)) == "limit must be from 1 to 10000, not 0"


def test_closest() -> None:
    names = ["Europe/Berlin", "Europe/Dublin", "Asia/Tokyo", "Asia/Tokyo-2", "Asia/Tokyo-3", "Asia/Tokyo-4"]
    assert closest("europe/berlin", names[:1]) == "Europe/Berlin"
    assert closest("Europe/Berln", names).startswith("Europe/Berlin")
    assert closest("asia/tokyo", names) == "Asia/Tokyo, Asia/Tokyo-2, Asia/Tokyo-3"
    assert closest("x", names) == ""


async def test_a_zone_that_is_not_there() -> None:
    for zone in ("Europe/Berln", "europe/berlin"):
        done = await call("next", "0 9 * * *", "--tz", zone)
        assert (done.code, done.out) == (2, "")
        assert "did you mean Europe/Berlin" in done.err
    assert "names look like Europe/Berlin" in (await call("next", "0 9 * * *", "--tz", "Qqq")).err


# What to do next


async def test_a_database_that_is_not_there_says_what_to_do(hourhand: Command, url: str) -> None:
    for command in (("jobs", "list"), ("queues", "list"), ("migrate",), ("top",)):
        away = await hourhand(*command, HOURHAND_DATABASE_URL=NOWHERE)
        assert (away.code, away.out) == (5, "")
        assert "the database cannot be reached" in away.err
        assert "--database-url or HOURHAND_DATABASE_URL" in away.err
        assert "hourhand doctor" in away.err
    named = re.sub(r"/\w+(?=$|\?)", "/no_such_database", url)
    refused = await hourhand("jobs", "list", HOURHAND_DATABASE_URL=named)
    assert (refused.code, refused.out) == (5, "")
    assert 'database "no_such_database" does not exist' in refused.err
    assert "the name of the database in the URL" in refused.err


@pytest.mark.parametrize(
    "bad", ["postgresql://me:s3cret@host:port/db", "postgresql://me:s3cret@[::1/db", "postgresql://me:s3#cret@host:1/db"]
)
async def test_a_url_that_cannot_be_read_is_said_without_its_password(bad: str) -> None:
    for command in (("runs", "list"), ("doctor",), ("migrate",), ("worker", "--app", "hourhand.demo:app")):
        done = await call(*command, HOURHAND_DATABASE_URL=bad)
        assert (done.code, done.out) == (2, "")
        assert "postgresql://user:password@host:port/database" in done.err
        assert "s3" not in done.err


async def test_an_old_and_a_missing_schema_name_the_command(hourhand: Command, sql: asyncpg.Connection, schema: str) -> None:
    missing = await hourhand("jobs", "list", HOURHAND_SCHEMA="not_there")
    assert (missing.code, missing.out) == (1, "")
    assert "hourhand migrate" in missing.err
    await sql.execute(f"DELETE FROM {schema}.migrations WHERE version = (SELECT max(version) FROM {schema}.migrations)")
    old = await hourhand("jobs", "list")
    assert (old.code, old.out) == (1, "")
    assert "hourhand migrate" in old.err


async def test_a_missing_app_says_what_an_app_is() -> None:
    done = await call("jobs", "deploy")
    assert (done.code, done.out) == (2, "")
    words = flat(done.err)
    assert "Missing option '--app'. It says where your tasks are: --app jobs:app" in words
    assert "hourhand init" in words


async def test_a_missing_argument_says_only_what_is_missing() -> None:
    done = await call("jobs", "show")
    assert done.code == 2
    assert "--app jobs:app" not in done.err


async def test_bad_cron_names_the_fields(hourhand: Command) -> None:
    done = await hourhand("jobs", "add", "x", "--task", "work", "--schedule", "61 * * * *")
    assert (done.code, done.out) == (2, "")
    assert "bad minute; the fields are minute (0-59)" in done.err
    assert "five (minute hour day month weekday)" in (await hourhand("next", "bad cron")).err


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            DatabaseRefused("the database refused the connection: password authentication failed"),
            "correct the user, the password",
        ),
        (DatabaseUnavailable("the database cannot be reached: no route"), "Is PostgreSQL running there"),
        (InvalidSchedule("'x' is not a cron expression: bad hour"), "hour (0-23)"),
        (HourhandError("anything else"), "anything else"),
    ],
)
def test_what_to_do_next_follows_what_went_wrong(error: HourhandError, words: str) -> None:
    said = in_words(error)
    assert said.startswith(str(error))
    assert words in said


# Help, and calling it


async def test_without_arguments_it_prints_help_in_panels() -> None:
    done = await call()
    text = done.out + done.err
    places = [text.index(f" {panel} ") for panel in (RUN, LOOK, DEFINE, OPERATE)]
    assert places == sorted(places)
    assert " Commands " not in text
    for name in COMMANDS:
        assert re.search(rf"│ {name} ", text), name


def test_every_command_has_a_panel() -> None:
    """One that was added to `cli` in another way would come before all others, under a heading of its own."""
    group: Any = get_command(cli)
    loose = [name for name in group.commands if name not in COMMANDS]
    assert not loose, f"add {', '.join(loose)} to COMMANDS in cli/main.py"


def test_a_command_is_imported_when_it_is_wanted() -> None:
    script = (
        "import sys; sys.argv = ['hourhand', 'next', '0 9 * * *', '--count', '1']\n"
        "from hourhand.surfaces.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print([one for one in sys.modules if one.startswith(('hourhand.surfaces.cli.', 'textual', 'hourhand.surfaces.verify'))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1]
    assert "hourhand.surfaces.cli.schedule" in loaded
    for module in ("textual", "hourhand.surfaces.verify", "cli.jobs'", "cli.doctor", "cli.process"):
        assert module not in loaded


def test_python_m_is_the_same_program() -> None:
    done = subprocess.run([sys.executable, "-m", "hourhand", "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"hourhand \d+\.\d+\.\d+\S*\n", done.stdout)
    mistyped = subprocess.run([sys.executable, "-m", "hourhand", "job"], capture_output=True, text=True, check=False)
    assert mistyped.returncode == 2
    assert "Usage: python -m hourhand" in mistyped.stderr


# The Tab key


async def complete(words: str) -> list[str]:
    """What bash is told; the word under the cursor is the last, also if it is empty."""
    cursor = str(len(words.split(" ")) - 1)
    done = await call(_HOURHAND_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=cursor)
    assert (done.code, done.err) == (0, "")
    return done.out.split("\n")[:-1]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("hourhand queu", ["queues"]),
        ("hourhand queues ", ["list", "pause", "resume"]),
        ("hourhand runs list --state d", ["delayed", "dead"]),
        ("hourhand jobs list --state ", ["active", "paused", "finished"]),
        ("hourhand jobs add x --priority ", ["high", "normal", "low"]),
        ("hourhand jobs add x --overlap ", ["allow", "skip", "queue", "replace"]),
        ("hourhand jobs add x --missed-window RUN", ["RUN_ONCE", "RUN_ALL"]),
        ("hourhand jobs resume x --missed S", ["SKIP"]),
        ("hourhand jobs add x --delivery at", ["at_least_once", "at_most_once"]),
        ("hourhand jobs add x --tz Europe/Be", ["Europe/Belfast", "Europe/Belgrade", "Europe/Berlin"]),
        ("hourhand next x --tz Asia/Toky", ["Asia/Tokyo"]),
        ("hourhand next x --dst s", ["shift", "skip"]),
        ("hourhand jobs backfill x --order ", ["oldest", "newest"]),
        ("hourhand why x --outcome coal", ["coalesced"]),
        ("hourhand up --log-format ", ["console", "json", "auto"]),
        ("hourhand verify --faults kill,pa", ["kill,pause", "kill,partition"]),
    ],
)
async def test_values_complete(words: str, offered: list[str]) -> None:
    assert await complete(words) == offered


async def test_zsh_is_told_in_its_own_way() -> None:
    done = await call(_HOURHAND_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="hourhand jobs add x --priority ")
    assert done.out.split() == ["_arguments", "'*:", ':(("high"', '"normal"', '"low"))\'']
    commands = await call(_HOURHAND_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="hourhand que")
    assert '"queues":"See how full' in commands.out


class Shell:
    """A shell somebody types in."""

    def __init__(self, program: str, home: Path) -> None:
        self._ours, theirs = pty.openpty()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        settings = {**environment(NOWHERE, "none"), "HOME": str(home), "PATH": path, "TERM": "dumb", "INPUTRC": "/dev/null"}
        self._process = subprocess.Popen(
            [program, "-i"], stdin=theirs, stdout=theirs, stderr=theirs, cwd=home, env=settings, start_new_session=True
        )
        os.close(theirs)
        os.set_blocking(self._ours, False)
        self.seen = ""

    async def type(self, keys: str, awaited: str) -> str:
        """Returns what it showed since."""
        begun = len(self.seen)
        os.write(self._ours, keys.encode())

        async def shown() -> bool:
            with suppress(BlockingIOError):
                self.seen += os.read(self._ours, 65_536).decode(errors="replace")
            return awaited in self.seen[begun:]

        await until(shown, lambda: f"{awaited!r} after {keys!r}; seen: {self.seen!r}", 30)
        return self.seen[begun:]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".bashrc").write_text("PS1='ready> '\nbind 'set enable-bracketed-paste off'\n")
    return tmp_path


async def test_in_a_real_bash(home: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    first = Shell(bash, home)
    try:
        await first.type("", "ready> ")
        await first.type("hourhand --install-completion\n", "completion installed in")
    finally:
        first.close()
    second = Shell(bash, home)
    try:
        await second.type("", "ready> ")
        await second.type("hourhand que\t", "hourhand queues ")
        await second.type("pau\t", "pause ")
        await second.type("\x15hourhand jobs add x --tz Europe/Berl\t", "Europe/Berlin ")
        offered = await second.type("\x15hourhand jobs add x --priority \t\t", "normal")
        assert "high" in offered
    finally:
        second.close()


# The page of commands

PAGE = Path(__file__).parent.parent.parent / "docs" / "cli.md"


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if hasattr(command, "commands"):
        for name, below in command.commands.items():
            yield from leaves(below, (*path, name))
    elif not command.hidden:
        yield path, command


def examples() -> Iterator[list[str]]:
    for block in re.findall(r"```\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for line in block.splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True) if line.startswith(("hourhand ", "$ hourhand ")) else []
            if words:
                yield words[1:]


def test_every_command_has_an_example_on_the_page() -> None:
    shown = {tuple(words[:length]) for words in examples() for length in (1, 2)}
    missing = [" ".join(path) for path, _ in leaves(get_command(cli)) if path not in shown]
    assert not missing, f"docs/cli.md has no example of: {', '.join(missing)}"


def test_every_example_on_the_page_is_of_a_command_with_these_options() -> None:
    known = dict(leaves(get_command(cli)))
    for words in examples():
        if words[0].startswith("-"):
            continue
        command = known.get((words[0],)) or known.get(tuple(words[:2]))
        assert command is not None, f"docs/cli.md shows {' '.join(words)!r}, and there is no such command"
        options = {name for parameter in command.params for name in parameter.opts}
        unknown = [word for word in words if word.startswith("--") and word not in options]
        assert not unknown, f"docs/cli.md shows {' '.join(words)!r}; it has no {', '.join(unknown)}"
