"""Payloads of jobs as people give them: with hidden values to be put back, and with addresses to be looked at."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hourhand.core.errors import InvalidOption
from hourhand.core.job import JobDefinition, JobOptions
from hourhand.core.redaction import check_destination, marks_in, mentions, restore
from hourhand.storage.jobs import (
    CallersSyncDoor,
    Door,
)
from hourhand.surfaces.job_verbs import JobVerbs
from hourhand.surfaces.stored import StoredJob

VETTED_AT_ONCE = 200


class JobPayloads(JobVerbs):
    def _restored(self, stored: StoredJob, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Changes by somebody who may have seen the payload redacted: what was hidden from him stays what it is, and hidden."""
        made, job = dict(changes), stored.definition
        marks = marks_in(job.options)
        hides = mentions(made.get("payload"))
        if isinstance(made.get("secret"), (list, tuple)) and (hides or "payload" not in made):
            # A value that he has not given himself is not shown to him because he says that it is no secret.
            made["secret"] = (*marks, *made["secret"])
        if hides:
            every, original = (*marks, *self._app.registry.marks_of(job.task)), msgspec.json.decode(job.payload)
            made["payload"] = restore(made["payload"], original, every, self._app.settings.secret_names)
            check_destination(made.get("task") or job.task, original, made["payload"])
        return made

    async def _unredacted(self, door: Door, name: str, given: JobOptions) -> JobOptions:
        """The same for a job that is given whole: what it hides is what the job of its name has there."""
        row = await door.row("find_job", name, None)
        stored = None if row is None else StoredJob.of(row[0], self._app._sealer)
        if stored is None or not self._actor.may_touch(stored.definition.queue, name):
            return dataclasses.replace(given, payload=restore(given.payload, None))
        return dataclasses.replace(given, **self._restored(stored, {"payload": given.payload, "secret": given.secret}))

    async def _vet(self, task: Any, payload: Any) -> None:
        """What a target has against a payload, beyond its types: known before any transaction of the caller's is touched."""
        name = getattr(task, "name", task)
        definition = self._app.registry.find(name) if isinstance(name, str) else None
        # What hides something is vetted when that has been put back.
        if definition is not None and definition.vet is not None and not mentions(payload):
            await definition.vet({} if payload is None else payload)

    async def _vet_stored(self, door: Door, job: JobDefinition) -> None:
        """The same for a payload that is known only when the stored one has been looked at."""
        vetting = self._vet(job.task, msgspec.json.decode(job.payload))
        self._app.sync(vetting) if isinstance(door, CallersSyncDoor) else await vetting

    async def _vet_many(self, jobs: Sequence[tuple[int, JobDefinition]]) -> None:
        """The same, once for each host of a URL, however many jobs call it: all else about them has been checked."""
        distinct: dict[tuple[str, str], tuple[int, JobDefinition, dict[str, Any]]] = {}
        for place, job in jobs:
            definition = self._app.registry.find(job.task)
            if definition is not None and definition.vet is not None:
                payload = msgspec.json.decode(job.payload)
                host = "/".join(str(payload.get("url", "")).split("/", 3)[:3])
                distinct.setdefault((job.task, host or job.payload), (place, job, payload))

        async def vet(place: int, job: JobDefinition, payload: dict[str, Any]) -> None:
            try:
                await self._vet(job.task, payload)
            except ValueError as error:
                raise InvalidOption(f"job number {place}: {error}. Nothing was added") from error

        waiting = list(distinct.values())
        for begun in range(0, len(waiting), VETTED_AT_ONCE):
            await asyncio.gather(*(vet(*one) for one in waiting[begun : begun + VETTED_AT_ONCE]))
