"""`hourhand jobs add --file`: very many jobs, each a line of JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import UNSET, UnsetType

from hourhand.core.errors import InvalidOption
from hourhand.surfaces.cli.common import AnyApp, run
from hourhand.surfaces.cli.job_options import reworded
from hourhand.surfaces.cli.progress import bar
from hourhand.surfaces.views import BulkAdded


class JobLine(msgspec.Struct, forbid_unknown_fields=True):
    """A line of a file of jobs: what `app.jobs.add` takes, as far as JSON can say it."""

    name: str
    schedule: str
    task: str | UnsetType = UNSET
    timezone: str | UnsetType = UNSET
    payload: dict[str, Any] | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    priority: str | UnsetType = UNSET
    dst: str | UnsetType = UNSET
    anchor: datetime | UnsetType = UNSET
    missed_window: str | UnsetType = UNSET
    max_missed: int | UnsetType = UNSET
    misfire_grace: float | str | UnsetType = UNSET
    overlap: str | UnsetType = UNSET
    flexible_window: float | str | UnsetType = UNSET
    start_at: str | UnsetType | None = UNSET
    end_at: str | UnsetType | None = UNSET
    max_runs: int | UnsetType | None = UNSET
    max_attempts: int | UnsetType | None = UNSET
    timeout: float | UnsetType | None = UNSET
    delivery: str | UnsetType | None = UNSET
    idempotency_key_template: str | UnsetType | None = UNSET
    tags: list[str] | UnsetType = UNSET
    secret: list[str] | UnsetType = UNSET
    then: str | UnsetType | None = UNSET


def add_file(app: AnyApp, name: str | None, given: dict[str, Any], file: str, replace: bool) -> BulkAdded:
    if name is not None or given:
        raise InvalidOption("--file says everything about its jobs; leave out the name and what else describes one")

    async def work(app: AnyApp) -> BulkAdded:
        done = 0
        with bar("added", total) as show:

            def progress(count: int) -> None:
                nonlocal done
                done += count
                show(done)

            return await reworded(app.jobs.add_many(_lines(source), replace=replace, progress=progress))

    try:
        with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as source:
            total = _count_lines(source)
            return run(app, work)
    except OSError as error:
        raise InvalidOption(f"{file} cannot be read: {error.strerror or error}") from None


def _count_lines(source: BinaryIO) -> int | None:
    """None: it can be read only once."""
    if not source.seekable():
        return None
    count = sum(1 for line in source if line.strip())
    source.seek(0)
    return count


def _lines(source: BinaryIO) -> Iterator[dict[str, Any]]:
    decoder = msgspec.json.Decoder(JobLine)
    for number, line in enumerate(source, 1):
        if not line.strip():
            continue
        try:
            said = msgspec.structs.asdict(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidOption(f"line {number}: {error}. Nothing was added") from None
        yield {name: value for name, value in said.items() if value is not UNSET}
