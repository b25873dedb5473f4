"""What an import comes to: jobs as `app.jobs.add_many` takes them, what has no equal here, and what is worth knowing."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

LONGEST_NAME = 60
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.:]+")


class Untranslatable(Exception):
    """The reason, as the user reads it."""


@dataclass(frozen=True, slots=True)
class Untranslated:
    where: str
    """The file and line, the table, the manifest."""
    what: str
    """As it is written there."""
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    text: str
    job: str | None = None
    """None: about all of them."""


@dataclass(slots=True)
class Translation:
    jobs: list[dict[str, Any]] = field(default_factory=list)
    untranslated: list[Untranslated] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    paused: set[str] = field(default_factory=set)
    """The names of those that do not fire where they come from."""
    origins: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Of each job: where it was found, and how it is written there."""


@dataclass(frozen=True, slots=True)
class Found:
    """A job before it has its name: that depends on what the others are called."""

    wanted: str
    identity: str
    """What tells it from all others, and stays the same from one import to the next."""
    options: dict[str, Any]
    origin: tuple[str, str]
    remarks: tuple[str, ...] = ()
    paused: bool = False


def put_together(found: Sequence[Found], untranslated: Sequence[Untranslated], notes: Sequence[Note] = ()) -> Translation:
    names = unique_names([(one.wanted, one.identity) for one in found])
    done = Translation(untranslated=list(untranslated), notes=list(notes))
    for name, one in zip(names, found, strict=True):
        done.jobs.append({"name": name, **one.options})
        done.origins[name] = one.origin
        done.notes += [Note(remark, name) for remark in one.remarks]
        if one.paused:
            done.paused.add(name)
    return done


def slug(text: str) -> str:
    """Text as a name can be: it may come out empty."""
    return _NOT_IN_NAMES.sub("-", text).strip("-_.:")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:6]


def unique_names(wanted: Sequence[tuple[str, str]]) -> list[str]:
    """A name for each (wish, identity). Whoever shares a wish carries a hash of its identity: no order decides who keeps it."""
    wishes = [slug(wish)[:LONGEST_NAME].rstrip("-_.:") or "job" for wish, _ in wanted]
    shared = Counter(one.lower() for one in wishes)
    names: list[str] = []
    taken: set[str] = set()
    for (wish, identity), name in zip(wanted, wishes, strict=True):
        if shared[name.lower()] > 1 or len(slug(wish)) > LONGEST_NAME:
            name = f"{name}-{digest(identity)}"
        # The very same thing more than once: only its place is left to tell it by.
        again, number = name, 1
        while again in taken:
            number += 1
            again = f"{name}-{number}"
        taken.add(again)
        names.append(again)
    return names


def dressed(given: Translation, *, prefix: str = "", queue: str | None = None, tags: Sequence[str] = ()) -> Translation:
    """With what the user wants for all of them. A queue of its own a job keeps."""

    def dress(job: Mapping[str, Any]) -> dict[str, Any]:
        more: dict[str, Any] = {"name": prefix + job["name"]}
        if queue is not None:
            more["queue"] = job.get("queue", queue)
        if tags:
            more["tags"] = list(dict.fromkeys([*job.get("tags", ()), *tags]))
        return {**job, **more}

    return Translation(
        jobs=[dress(one) for one in given.jobs],
        untranslated=given.untranslated,
        notes=[Note(one.text, None if one.job is None else prefix + one.job) for one in given.notes],
        paused={prefix + one for one in given.paused},
        origins={prefix + one: origin for one, origin in given.origins.items()},
    )


def iso(instant: datetime) -> str:
    """An instant as text, so that a job can travel as JSON."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def shortened(text: str, longest: int = 200) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
