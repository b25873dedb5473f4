"""The servers that all share: a PostgreSQL of the wheel's and a Redis, fresh, each on a port of this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hourhand.storage.embedded import Binaries, find_owner

POSTGRESQL = {
    "max_connections": "200",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
}
"""The same for every peer. All else is PostgreSQL's default: fsync and synchronous_commit are on."""
REDIS = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--auto-aof-rewrite-percentage", "0")
"""Redis as its documentation advises where data matters: up to a second of it is lost with the machine. Its log is rewritten
before each measure, as PostgreSQL has its checkpoint, and not in the middle of one."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Server:
    url: str
    """Without a database's name; clients of every language take it."""
    postmaster: int = 0
    version: str = ""


@contextlib.contextmanager
def postgresql(directory: Path, programs: Path | None = None, **more: str) -> Iterator[Server]:
    """`programs`: where initdb is, if it is not to be the wheel's; `more`: further settings."""
    owner, port = find_owner(), free_port()
    programs, data = programs or Binaries.find(owner).directory, directory / "postgresql"
    data.mkdir()
    os.chown(data, owner.uid, owner.gid)
    switch = {"user": owner.uid, "group": owner.gid, "extra_groups": []} if owner.switch else {}

    def run(program: str, *words: str) -> None:
        subprocess.run([programs / program, *words], check=True, stdout=subprocess.DEVNULL, cwd="/", **switch)  # type: ignore[call-overload]

    run(
        "initdb",
        "--pgdata",
        str(data),
        "--username=postgres",
        "--auth=trust",
        "--encoding=UTF8",
        "--locale=C.UTF-8",
        "--no-instructions",
    )
    settings = {**POSTGRESQL, **more, "port": str(port), "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
    with (data / "postgresql.conf").open("a") as file:
        file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
    run("pg_ctl", "--pgdata", str(data), "--log", str(data / "log"), "--wait", "start")
    try:
        version = (data / "PG_VERSION").read_text().strip()
        yield Server(f"postgresql://postgres@127.0.0.1:{port}", int((data / "postmaster.pid").read_text().split()[0]), version)
    finally:
        run("pg_ctl", "--pgdata", str(data), "--mode", "immediate", "stop")


@contextlib.contextmanager
def redis(directory: Path) -> Iterator[Server]:
    program, port = shutil.which("redis-server"), free_port()
    if program is None:
        raise SystemExit("redis-server is not on this machine: install Debian's package redis-server, or leave those peers out")
    where = ("--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory), "--logfile", str(directory / "redis.log"))
    process = subprocess.Popen([program, *where, *REDIS])
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise SystemExit(f"redis-server did not start; see {directory / 'redis.log'}") from None
                time.sleep(0.05)
        yield Server(f"redis://127.0.0.1:{port}/0")
    finally:
        process.terminate()
        process.wait(20)
