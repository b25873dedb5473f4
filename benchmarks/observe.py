"""What a machine and a database say of themselves: processor time, memory, tables, lateness; and what was measured when."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import asyncpg

PROJECT = Path(__file__).parent.parent
QUIET = 0.03
"""Of the processor's time, what the host of a virtual machine may take for others while something is measured."""
_TICK = os.sysconf("SC_CLK_TCK")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=PROJECT, capture_output=True, text=True).stdout.strip()


def stamp() -> dict[str, str]:
    """When, and of what: the commit, and the tree of the product in it, which other commits may have too."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "--short", "HEAD") + _dirty("src", "benchmarks"),
        "source": _git("rev-parse", "--short=12", "HEAD:src") + _dirty("src"),
    }


def trees() -> str:
    """What is measured, and by what; no commit that touches neither makes it another."""
    return _git("rev-parse", "HEAD:src", "HEAD:benchmarks") + _dirty("src", "benchmarks")


def check_unchanged(before: str, path: Path) -> None:
    """Processes are started from the files as they are then: who changes them meanwhile has measured neither of both."""
    if trees() != before:
        raise cut_off("src or benchmarks have changed since it began: nobody knows what was measured", path)


def _dirty(*folders: str) -> str:
    return "-dirty" if _git("status", "--porcelain", "--", *folders) else ""


def so_far(path: Path) -> Path:
    """Where figures are kept as they come, beside the file that they will become: what ends a run of hours early does not take them
    along."""
    kept = PROJECT / "build" / f"{path.absolute().parent.name}-{path.stem}-so-far.json"
    kept.parent.mkdir(exist_ok=True)
    return kept


def cut_off(why: str, path: Path | None) -> SystemExit:
    """It ends early, and says where its figures are."""
    return SystemExit(why + (f"; what was measured before is in {so_far(path)}" if path else ""))


def write(path: Path, text: str) -> None:
    """Whole or not at all."""
    beside = path.with_name(f".{path.name}")
    beside.write_text(text)
    beside.replace(path)


def at_least(least: int) -> Callable[[str], int]:
    """What an option takes: a whole number, none below this one."""

    def number(text: str) -> int:
        if (given := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{given} is too few: give {least:,} or more")
        return given

    return number


def check_published(parser: argparse.ArgumentParser, path: Path | None) -> None:
    """What goes into docs is of a commit."""
    if path and path.resolve().parent == PROJECT / "docs" and stamp()["commit"].endswith("-dirty"):
        parser.error(
            f"src or benchmarks are not as committed, and what is published is of a commit: give another file than {path}"
        )


def begin() -> None:
    """To measure: ended in order by SIGTERM too, so that no server and no worker is left behind, and with nothing of what the shell
    has set for another Hourhand."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    for name in [name for name in os.environ if name.startswith("HOURHAND_")]:
        del os.environ[name]


@contextlib.contextmanager
def scratch(what: str, gigabytes: float = 0.0) -> Iterator[Path]:
    """A directory on a disk with so much room, which users may enter that a server is run by."""
    with tempfile.TemporaryDirectory(prefix=f"hourhand-{what}-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        if _file_system(directory) in ("tmpfs", "ramfs"):
            raise SystemExit(
                f"{directory.parent} is in memory, where a commit costs nothing: set TMPDIR to a directory on a disk"
            )
        if (free := shutil.disk_usage(directory).free / 1e9) < gigabytes:
            raise SystemExit(
                f"{directory.parent} has {free:.0f} GB left, and {gigabytes:.0f} are needed: set TMPDIR to another directory"
            )
        yield directory


def _file_system(path: Path) -> str:
    """Of what kind it is, by the nearest mount above."""
    mounts = dict(line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines())
    return next((mounts[str(one)] for one in (path, *path.parents) if str(one) in mounts), "")


def machine() -> dict[str, str]:
    """What kind it is, not which one."""
    processor = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": str(os.cpu_count()),
        "processor": processor[0] if processor else platform.machine(),
        "memory": f"{memory:.0f} GiB",
        "sync": f"{_sync_milliseconds():.2f} ms",
        "python": platform.python_version(),
        "kernel": platform.release().partition("-")[0],
    }


def _sync_milliseconds() -> float:
    """Until 8 KiB more are on the disk, where PostgreSQL and Redis have theirs: the median of a hundred."""
    taken = []
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(100):
            file.write(bytes(8192))
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the third on; the second is a name with anything in it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _processes() -> Iterator[tuple[int, list[str]]]:
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            yield int(path.name), _stat(int(path.name))


class Theft:
    """What the host of a virtual machine takes of its processor time, from now on, for others."""

    def __init__(self) -> None:
        self._before = self._ticks()

    @staticmethod
    def _ticks() -> tuple[int, int]:
        user, nice, system, idle, wait, irq, softirq, stolen, *_ = map(
            int, Path("/proc/stat").read_text().split("\n")[0].split()[1:]
        )
        return stolen, user + nice + system + idle + wait + irq + softirq + stolen

    def share(self) -> float:
        (stolen, whole), (stolen_before, whole_before) = self._ticks(), self._before
        return (stolen - stolen_before) / max(1, whole - whole_before)


def family(pid: int) -> list[int]:
    """A process and all that come from it."""
    parents = {one: int(fields[1]) for one, fields in _processes()}
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def session(leader: int) -> list[int]:
    """The processes of a session, whoever started them."""
    return [pid for pid, (state, _, _, leads, *_) in _processes() if int(leads) == leader and state != "Z"]


def processor_seconds(pids: Iterable[int]) -> float:
    """Of these processes, their children that still are, and those that were."""
    ticks = 0
    for pid in {one for root in pids for one in family(root)}:
        try:
            ticks += sum(int(value) for value in _stat(pid)[11:15])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return ticks / _TICK


def resident(pid: int) -> float:
    """MiB at the highest, of a process and its children."""
    total = 0.0
    for one in family(pid):
        text = Path(f"/proc/{one}/status").read_text()
        total += int(text.partition("VmHWM:")[2].split()[0]) / 1024
    return total


@dataclass
class TableState:
    name: str
    mebibytes: float
    dead: int
    inserted: int


async def tables(sql: asyncpg.Connection, schema: str) -> dict[str, TableState]:
    """Partitions are counted with their table."""
    await sql.execute("SELECT pg_stat_force_next_flush()")
    rows = await sql.fetch(
        "SELECT coalesce(parent.relname, c.relname) AS name, sum(pg_total_relation_size(c.oid)) / 1048576.0 AS size,"
        " sum(pg_stat_get_dead_tuples(c.oid)) AS dead, sum(pg_stat_get_tuples_inserted(c.oid)) AS inserted"
        " FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid LEFT JOIN pg_class parent ON parent.oid = i.inhparent"
        " WHERE c.relnamespace = $1::regnamespace AND c.relkind = 'r' GROUP BY 1",
        schema,
    )
    return {row["name"]: TableState(row["name"], float(row["size"]), int(row["dead"]), int(row["inserted"])) for row in rows}


async def relations(sql: asyncpg.Connection, schema: str, tables: Iterable[str]) -> dict[str, float]:
    """MiB of each of these tables without its indexes, and of each index."""
    rows = await sql.fetch(
        "SELECT c.relname, pg_table_size(c.oid) / 1048576.0 FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid"
        " JOIN pg_class owner ON owner.oid = coalesce(i.indrelid, c.oid)"
        " WHERE owner.relnamespace = $1::regnamespace AND owner.relname = ANY ($2) AND c.relkind IN ('r', 'i') ORDER BY 1",
        schema, [*tables],
    )  # fmt: skip
    return {row[0]: float(row[1]) for row in rows}


@dataclass
class Lateness:
    """Seconds after the instant that a run was for."""

    runs: int
    p50: float
    p99: float
    worst: float

    def __str__(self) -> str:
        return f"p50 {self.p50:.3f} s, p99 {self.p99:.3f} s, max {self.worst:.3f} s"


async def lateness(sql: asyncpg.Connection, schema: str, column: str, begin: datetime, end: datetime) -> Lateness:
    """Of those that ended well."""
    row = await sql.fetchrow(
        f"SELECT count(*), (percentile_disc(ARRAY[0.5, 0.99, 1]) WITHIN GROUP (ORDER BY extract(epoch FROM {column} - scheduled_at)))::float8[]"
        f" FROM {schema}.runs WHERE scheduled_at >= $1 AND scheduled_at < $2 AND job_id IS NOT NULL AND outcome = 'succeeded'",
        begin, end,
    )  # fmt: skip
    assert row is not None
    return Lateness(row[0], *(row[1] or (0.0, 0.0, 0.0)))
