"""Database servers of a test's own: to be stopped, and to be hidden behind a pooler."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from hourhand.storage.embedded import MAJOR, Binaries, EmbeddedServer, find_owner
from hourhand.storage.migrate import migrate
from tests.conftest import missing


class OwnServer(EmbeddedServer):
    """A cluster that the test may restart and kill."""

    def __init__(self, data: Path, major: int) -> None:
        self._bin = None if major == MAJOR else Path(f"/usr/lib/postgresql/{major}/bin")
        super().__init__(data, binaries=self._bin, major=major)

    def _tools(self) -> tuple[Binaries, object]:
        owner = find_owner()
        return (Binaries(self._bin) if self._bin else Binaries.find(owner)), owner

    def halt(self, mode: str = "fast") -> None:
        binaries, owner = self._tools()
        done = self._pg_ctl(binaries, owner, "stop", "-m", mode, "-t", "60")  # type: ignore[arg-type]
        assert done.returncode == 0, done.stderr

    def again(self) -> None:
        binaries, owner = self._tools()
        self._launch(binaries, owner)  # type: ignore[arg-type]

    def kill(self) -> None:
        os.kill(int((self._real_cluster() / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)


def have_server(major: int) -> bool:
    return major == MAJOR or Path(f"/usr/lib/postgresql/{major}/bin/initdb").exists()


@asynccontextmanager
async def own_server(major: int, directory: Path) -> AsyncIterator[OwnServer]:
    """One with our tables in it."""
    if not have_server(major):
        missing(f"no PostgreSQL {major} programs on this machine")
    one = OwnServer(directory, major)
    connection = await asyncpg.connect(one.start())
    await migrate(connection, "hourhand")
    await connection.close()
    try:
        yield one
    finally:
        one.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Pooler:
    """PgBouncer in transaction mode in front of a database URL's server."""

    def __init__(self, target: dict[str, str], directory: Path) -> None:
        self.port = free_port()
        users = directory / "users.txt"
        users.write_text('"postgres" ""\n')
        host = f"host={target['host']} " if target.get("host") else ""
        self.config = directory / "pgbouncer.ini"
        self.config.write_text(
            f"[databases]\npostgres = {host}port={target.get('port', '5432')} dbname=postgres user=postgres\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nauth_type = any\n"
            f"pool_mode = transaction\ndefault_pool_size = 10\nmax_client_conn = 200\nunix_socket_dir =\n"
        )
        for path in (directory, users, self.config):
            path.chmod(0o755)
        command = [shutil.which("pgbouncer") or "/usr/sbin/pgbouncer", "-q", str(self.config)]
        if os.geteuid() == 0:
            # The cluster is its owner's alone; PgBouncer refuses to be root.
            owner = find_owner()
            self.process = subprocess.Popen(command, user=owner.uid, group=owner.gid, extra_groups=[])
        else:
            self.process = subprocess.Popen(command)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def have_pooler() -> bool:
    return shutil.which("pgbouncer") is not None or Path("/usr/sbin/pgbouncer").exists()
