"""`hourhand init`: what it writes runs, passes its own tests, and is as its own linter wants it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hourhand.surfaces.cli.init import FILES, render
from hourhand.surfaces.cli.main import cli
from tests.cluster.test_up import healthy, nothing_left
from tests.support.fleet import Process, until
from tests.support.servers import free_port


@pytest.fixture
def surroundings() -> dict[str, str]:
    """Nothing of the caller's own settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOURHAND_", "PYTEST_"))}
    return {**kept, "COLUMNS": "200"}


def init(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, ["init", *arguments], prog_name="hourhand", env={"COLUMNS": "200"})
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.stdout, done.stderr


def contents(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def test_it_writes_a_project_and_says_what_is_next(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "Shop & jobs"
    code, out, err = init(str(target))
    assert (code, err) == (0, "")
    assert contents(target) == set(FILES)
    assert tomllib.loads((target / "pyproject.toml").read_text())["project"]["name"] == "Shop-jobs"
    assert 'Hourhand(name="Shop-jobs")' in (target / "jobs.py").read_text()
    assert not any("$" in text.replace("${", "") for text in render("x").values())
    assert out.startswith("Shop-jobs is written: jobs.py, pyproject.toml, README.md, tests/test_jobs.py, .gitignore\n")
    assert f"cd '{target}'" in out
    assert "hourhand up --app jobs:app" in out


def test_here_by_default_and_under_a_name_that_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = init("--name", "night.shift_2")
    assert code == 0
    assert contents(tmp_path) == set(FILES)
    assert "cd " not in out
    assert "# night.shift_2" in (tmp_path / "README.md").read_text()


def test_what_is_there_is_named_and_stays(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text("mine")
    (tmp_path / "README.md").symlink_to(tmp_path / "nowhere")
    code, out, err = init(str(tmp_path))
    assert (code, out) == (4, "")
    assert "jobs.py, README.md are already there; nothing was written" in err
    assert "--force" in err
    assert (tmp_path / "jobs.py").read_text() == "mine"
    assert contents(tmp_path) == {"jobs.py"}
    (tmp_path / "README.md").unlink()
    (tmp_path / "other.py").write_text("mine too")
    assert init(str(tmp_path), "--force")[0] == 0
    assert "@app.task" in (tmp_path / "jobs.py").read_text()
    assert (tmp_path / "other.py").read_text() == "mine too"


@pytest.mark.parametrize("name", ["", "-x", "a b", 'x"', "x" * 101, "ä", "a\n"])
def test_names_that_cannot_be(tmp_path: Path, name: str) -> None:
    code, out, err = init(str(tmp_path), "--name", name)
    assert (code, out) == (2, "")
    assert "cannot be a project's name" in err
    assert contents(tmp_path) == set()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, out, err = init(str(tmp_path / "file"))
    assert (code, out) == (2, "")
    assert "cannot be written" in err


def test_a_directory_that_is_called_nothing_usable(tmp_path: Path) -> None:
    assert init(str(tmp_path / "…"))[0] == 0
    assert "# my-jobs\n" in (tmp_path / "…" / "README.md").read_text()


def test_its_own_tests_pass_and_its_linter_is_content(tmp_path: Path, surroundings: dict[str, str]) -> None:
    assert init(str(tmp_path), "--name", "shop")[0] == 0
    # As on a machine that has pytest and none of the plugins that are here.
    surroundings |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    tests = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert tests.returncode == 0, tests.stdout + tests.stderr
    assert re.search(r"\b4 passed", tests.stdout)
    for command in (("check",), ("format", "--check")):
        lint = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "."],
            cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert lint.returncode == 0, lint.stdout + lint.stderr


async def test_it_runs(tmp_path: Path, surroundings: dict[str, str]) -> None:
    project = tmp_path / "shop"
    assert init(str(project))[0] == 0
    port, log = free_port(), tmp_path / "up.log"
    with log.open("wb") as output:
        up = Process(
            subprocess.Popen(
                [sys.executable, "-m", "hourhand", "up", "--app", "jobs:app", "--port", str(port), "--data", str(tmp_path / "data")],
                cwd=project, env=surroundings, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                start_new_session=True,
            ),
            log,
        )  # fmt: skip

    def hourhand(*arguments: str) -> str:
        command = [sys.executable, "-m", "hourhand", *arguments, "--data", str(tmp_path / "data")]
        done = subprocess.run(command, cwd=project, env=surroundings, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        await until(lambda: healthy(port), lambda: f"health; log:\n{up.text()}")

        async def beaten() -> bool:
            return up.text().count("heartbeat ") >= 2

        await until(beaten, lambda: f"two heartbeats; log:\n{up.text()}")
        assert "succeeded" in hourhand("why", "heartbeat")
        listed = hourhand("jobs", "list")
        assert "heartbeat" in listed
        assert "morning_report" in listed
        # The job hands its work on to a task: by hand, now.
        hourhand("jobs", "trigger", "morning_report")

        async def reported() -> bool:
            return "build_report" in hourhand("runs", "list", "--task", "build_report", "--state", "succeeded")

        await until(reported, lambda: f"the report; log:\n{up.text()}")
        up.send(signal.SIGINT)
        assert await up.ended() == 0
        await until(lambda: nothing_left(tmp_path), "every process to be gone", 10)
    finally:
        if up.process.poll() is None:
            up.kill()
