"""A PostgreSQL server to be restarted, killed and replaced: the embedded programs, on a cluster that is thrown away.

It listens on 127.0.0.1, with a password, since anybody on the machine can reach that; data are as safe as in production
(fsync is on), so that a kill shows what a kill does. It is our child, not detached: whoever kills it knows that it is dead.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

import asyncpg

from hourhand.core.clock import Clock
from hourhand.core.errors import EmbeddedServerError
from hourhand.storage.embedded import ROOT_HOME, Binaries, find_owner, reachable
from hourhand.surfaces.verify import process_table
from hourhand.surfaces.verify.backends import OURS, PATIENCE, admin, find_backend, wait_until

_ORPHANS_PATIENCE = 5.0
_PORTS = range(15_000, 32_000)
"""Below those that systems give to outgoing connections: a client that looks for a server that is away must neither take
its port nor, connecting from that very port, meet itself."""


class ScratchServer:
    def __init__(
        self, directory: Path, *, max_connections: int = 200, binaries: Path | None = None, password: str | None = None
    ) -> None:
        self.directory = directory.absolute()
        self.max_connections = max_connections
        self.host = "127.0.0.1"
        self.port = _free_port()
        self.log = self.directory / "postgres.log"
        self._password = password or secrets.token_hex(16)
        self._binaries = binaries
        self._owner = find_owner()
        self._cluster: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False

    def url(self, host: str | None = None, port: int | None = None) -> str:
        """The database, directly or through somebody else's address."""
        return f"postgresql://postgres:{self._password}@{host or self.host}:{port or self.port}/postgres"

    @property
    def cluster(self) -> Path:
        """The data directory; as root, perhaps elsewhere, where the server's own user can reach it."""
        if self._cluster is None:
            raise EmbeddedServerError("the server was not started yet, or it is closed: there is no cluster")
        return self._cluster

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.running else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self) -> float:
        """Start, made from nothing if need be; when connections were accepted, in monotonic time."""
        if not self.running:
            if self._cluster is None:
                await asyncio.to_thread(self._initialise)
            self._launch()
        return await self._accepting()

    async def stop(self) -> None:
        """In order if possible."""
        for which, patience in ((signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0)):
            if self._process is not None and self.running:
                self._process.send_signal(which)
                with suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(self._process.wait, patience)
        if self.running:
            await self.kill()

    async def close(self) -> None:
        """Stop, and remove the cluster and whatever a kill left of it in shared memory."""
        await self.stop()
        if self._killed:
            # Only a server on the same cluster knows which segments were its predecessor's.
            with suppress(EmbeddedServerError):
                await self.start()
                await self.stop()
        if self._cluster is not None:
            await asyncio.to_thread(shutil.rmtree, self._home(self._cluster), ignore_errors=True)
            self._cluster = None

    async def __aenter__(self) -> ScratchServer:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def restart(self) -> float:
        """A fast one: clients are thrown out, nothing has to be recovered."""
        await self.stop()
        return await self.start()

    async def kill_postmaster(self) -> float:
        """kill -9 of the server's first process, then a start as soon as its orphans have noticed and left."""
        orphans = self._freeze()
        await self._kill_process()
        if not await process_table.gone(orphans, _ORPHANS_PATIENCE):
            # One that computes does not look whether its parent lives.
            process_table.send(orphans, signal.SIGKILL)
            await process_table.gone(orphans, PATIENCE)
        return await self.start()

    async def kill(self) -> None:
        """kill -9 of every process of the server at once, as when its machine dies; it stays down."""
        if self.running:
            everybody = self._freeze()
            process_table.send(everybody, signal.SIGKILL)
            await self._kill_process()
            await process_table.gone(everybody, PATIENCE)

    async def kill_backend(self, pattern: str = OURS, rng: Random | None = None) -> float:
        """kill -9 of one connection's process: the server ends all the others and recovers."""
        async with admin(self.url()) as connection:
            pid = await find_backend(connection, pattern, rng)
            down = asyncio.Event()
            connection.add_termination_listener(lambda _: down.set())
            os.kill(pid, signal.SIGKILL)
            await asyncio.wait_for(down.wait(), PATIENCE)
        return await self._accepting()

    async def make_standby(self, directory: Path, *, synchronous: bool) -> ScratchServer:
        """A second server that follows this one. If `synchronous`, nothing is acknowledged that it does not have."""
        standby = ScratchServer(
            directory, max_connections=self.max_connections, binaries=self._binaries, password=self._password
        )  # fmt: skip
        name = f"standby_{standby.port}"
        try:
            await asyncio.to_thread(standby._copy, self, name)
            await standby.start()
            async with admin(self.url()) as connection:
                question = "SELECT state = 'streaming' FROM pg_stat_replication WHERE application_name = $1"
                await wait_until(connection, question, name)
                if synchronous:
                    await connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
                    await connection.execute("SELECT pg_reload_conf()")
                    # Backends wait for the standby once the checkpointer has seen the change, too.
                    await connection.execute("CHECKPOINT")
                    question = "SELECT sync_state = 'sync' FROM pg_stat_replication WHERE application_name = $1"
                    await wait_until(connection, question, name)
        except BaseException:
            await standby.close()
            raise
        return standby

    async def stop_receiving(self) -> None:
        """Of a standby: it falls behind from now on."""
        async with admin(self.url()) as connection:
            await connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
            await connection.execute("SELECT pg_reload_conf()")
            await wait_until(connection, "SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming')")

    async def promote(self) -> float:
        """Of a standby: be the primary now; when it was, in monotonic time. The old one must be dead by then."""
        async with admin(self.url()) as connection:
            if not await connection.fetchval("SELECT pg_promote(true, $1)", int(PATIENCE)):
                raise EmbeddedServerError(f"the standby was not promoted in {PATIENCE:g} s; {self.log} says:\n{self._log_tail()}")
            return Clock.monotonic()

    def _tools(self) -> Path:
        return self._binaries or Binaries.find(self._owner).directory

    def _home(self, cluster: Path) -> Path:
        return cluster.parent if cluster.parent.parent == ROOT_HOME else cluster

    def _make_cluster(self) -> Path:
        """An empty directory that the server's own user can reach and owns."""
        self._tools()  # as root, this also makes the folder that everybody can reach
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._owner.switch and not reachable(self.directory):
            home = Path(tempfile.mkdtemp(dir=ROOT_HOME, prefix="verify-"))
            home.chmod(0o711)
        else:
            home = self.directory
        cluster = home / "pgdata"
        try:
            cluster.mkdir(mode=0o700)
        except FileExistsError:
            raise EmbeddedServerError(f"{cluster} is there already; a scratch server needs a directory of its own") from None
        self._give(cluster)
        self._cluster = cluster
        return cluster

    def _give(self, path: Path) -> None:
        if self._owner.switch:
            os.chown(path, self._owner.uid, self._owner.gid)

    def _initialise(self) -> None:
        cluster = self._make_cluster()
        secret = cluster.parent / f"{secrets.token_hex(8)}.secret"
        secret.touch(mode=0o600)
        secret.write_text(self._password)
        self._give(secret)
        command = ["--pgdata", str(cluster), "--username=postgres", "--auth=scram-sha-256", f"--pwfile={secret}",
                   "--encoding=UTF8", "--no-instructions", "--no-sync"]  # fmt: skip
        try:
            done = self._run("initdb", *command, "--locale=C.UTF-8")
            if done.returncode and "locale" in done.stderr:
                done = self._run("initdb", *command, "--locale=C")
        finally:
            secret.unlink()
        if done.returncode:
            raise EmbeddedServerError(f"initdb failed in {cluster}: {done.stderr.strip() or done.stdout.strip()}")

    def _copy(self, primary: ScratchServer, name: str) -> None:
        cluster = self._make_cluster()
        done = self._run(
            "pg_basebackup", "--pgdata", str(cluster), "--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast",
            "--no-sync", "--create-slot", "--slot", name,
            "--dbname", f"host={primary.host} port={primary.port} user=postgres application_name={name}",
            PGPASSWORD=self._password,
        )  # fmt: skip
        if done.returncode:
            raise EmbeddedServerError(f"pg_basebackup failed in {cluster}: {done.stderr.strip()}")

    def _launch(self) -> None:
        settings = {
            "listen_addresses": self.host, "port": self.port, "unix_socket_directories": "",
            "max_connections": self.max_connections, "fsync": "on", "log_line_prefix": "%m [%p] %a ",
        }  # fmt: skip
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._forget_reused_number()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._tools() / "postgres"), "-D", str(self.cluster), *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=_end_with_parent, **self._identity(),
            )  # fmt: skip
        self._killed = False

    def _forget_reused_number(self) -> None:
        """A killed server leaves its number behind. Should another process of its user have it by now, the next server would
        take that one for it; but we have seen all its processes end."""
        lock = self.cluster / "postmaster.pid"
        if self._killed and lock.exists():
            with suppress(ProcessLookupError):
                os.kill(int(lock.read_text().split()[0]), 0)
                lock.unlink()

    def _run(self, program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self._tools() / program), *arguments],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **self._identity(**environment),
        )  # fmt: skip

    def _identity(self, **environment: str) -> dict[str, Any]:
        """As the server's user, in no directory of ours, and without the caller's own settings for PostgreSQL."""
        who = {"user": self._owner.uid, "group": self._owner.gid, "extra_groups": []} if self._owner.switch else {}
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
        return {"cwd": "/", "env": {**inherited, **environment}, **who}

    def _freeze(self) -> list[process_table.Entry]:
        """Stop the first process so that it starts no others; those that it has."""
        if self._process is None or not self.running:
            raise EmbeddedServerError("the server does not run; it cannot be killed")
        self._process.send_signal(signal.SIGSTOP)
        return process_table.descendants(self._process.pid)

    async def _kill_process(self) -> None:
        assert self._process is not None
        self._killed = True
        self._process.kill()
        await asyncio.to_thread(self._process.wait)

    async def _accepting(self) -> float:
        deadline = Clock.monotonic() + PATIENCE
        while True:
            try:
                connection = await asyncpg.connect(self.url(), timeout=5)
            except asyncpg.TooManyConnectionsError:
                return Clock.monotonic()
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
                if not self.running or Clock.monotonic() > deadline:
                    raise EmbeddedServerError(
                        f"the scratch PostgreSQL does not let us in ({error}); {self.log} says:\n{self._log_tail()}"
                    ) from error
                await asyncio.sleep(0.02)
                continue
            accepted = Clock.monotonic()
            await connection.close()
            return accepted

    def _log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-8:])


def _end_with_parent() -> None:
    """In the child, before it becomes the server: if we are killed, it is to stop. Only Linux can do that."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGINT)


def _free_port() -> int:
    rng = Random()
    for _ in range(200):
        port = rng.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise EmbeddedServerError(f"no free port between {_PORTS[0]} and {_PORTS[-1]} on 127.0.0.1")
