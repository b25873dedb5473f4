"""Holding runs back, and letting them go: `app.holds`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

import asyncpg

from hourhand.core.actor import ACTOR
from hourhand.core.errors import ConfigurationError, InvalidOption, NotPossible, UnknownHold
from hourhand.core.limits import as_text, check_path
from hourhand.core.options import MAX_TAG, is_text
from hourhand.core.redaction import is_secret
from hourhand.core.settings import Settings
from hourhand.core.task import check_name
from hourhand.storage.database import Database
from hourhand.surfaces.verbs import Open, Verbs

BATCH = 10_000
LONGEST_VALUE = 1_000
LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class HoldView:
    """Runs for which everything that is said here is true are not started."""

    id: int
    queue: str | None
    task: str | None
    tag: str | None
    field: str | None
    """A place in the payload: `customer_id`, `order.customer`."""
    value: str | None
    """What stands there, as text."""
    reason: str | None
    held_at: datetime
    held_by: str | None
    runs: int
    """How many are held back; of a hold that was released, how many were."""

    @property
    def in_words(self) -> str:
        parts = [
            f"task {self.task}" if self.task else "",
            f"tag {self.tag}" if self.tag else "",
            f"{self.field} = {self.value}" if self.field else "",
            f"queue {self.queue}" if self.queue else "",
        ]
        return ", ".join(part for part in parts if part)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Holds(Verbs):
    def __init__(self, open_database: Open, settings: Callable[[], Settings], app: str = "") -> None:
        super().__init__(open_database, app)
        self._settings = settings

    async def add(
        self, *, queue: str | None = None, task: str | None = None, tag: str | None = None, field: str | None = None,
        value: Any = None, reason: str | None = None,
    ) -> HoldView:  # fmt: skip
        """Start no more runs of a task, with a tag, or with a value in a field of the payload; of all that are given, all must fit.

        What runs goes on, and enqueueing stays possible. A hold that says the same answers for the new one.
        """
        text = check_hold(queue, task, tag, field, value, reason)
        if field is not None and is_secret(field, self._settings().secret_names):
            raise InvalidOption(f"the field {field!r} is secret, and a hold would show what is in it; hold by a task or a tag")
        self._need(queue)
        database = await self._open()
        await self._queue(database, queue)
        said = (queue, task, tag, field, text)
        async with database.together():
            number, fresh = await self._say(database, said, reason)
            view = await self._find(database, number)
            if fresh:
                await self._note(database, "hold.add", view, after=_described(view, database.sealer.active))
        if fresh:
            await self._in_parts(database, "hold_streams", number)
        return view if not fresh else await self._find(database, number)

    async def _say(self, database: Database, said: tuple[str | None, ...], reason: str | None) -> tuple[int, bool]:
        # One that says the same may come and go between two looks; not for ever.
        for _ in range(5):
            if (number := await database.fetchval("find_hold", *said)) is not None:
                return int(number), False
            if (number := await database.fetchval("add_hold", *said, reason, self._actor.name)) is not None:
                return int(number), True
        raise NotPossible("others keep adding and releasing this hold; try again")

    async def list(self) -> list[HoldView]:
        """All that the caller may see, the oldest first."""
        actor = ACTOR.get()
        rows = await (await self._open()).fetch("list_holds", None)
        return [_view(row) for row in rows if actor.may_touch(row["queue"], None)]

    async def release(self, hold: int) -> HoldView:
        """Its runs are ready again, at their old places."""
        number = check_number(hold)
        database = await self._open()
        async with database.together():
            view = await self._find(database, number)
            self._need(view.queue)
            if not await database.fetch("remove_hold", number):
                raise _unknown(number)
            view = replace(view, runs=await database.fetchval("count_held", number))
            await self._note(database, "hold.release", view, before=_described(view, database.sealer.active))
        await self._in_parts(database, "return_released")
        return view

    async def _in_parts(self, database: Database, statement: str, *about: Any) -> None:
        """In somebody's transaction only one part, lest everybody wait for it: workers and the maintainer see to the rest."""
        alone = database.joined is None
        while await database.fetchval(statement, BATCH, *about) == BATCH and alone:
            pass

    async def _find(self, database: Database, number: int) -> HoldView:
        row = await database.fetchrow("list_holds", number)
        if row is None or not ACTOR.get().may_touch(row["queue"], None):
            raise _unknown(number)
        return _view(row)

    async def _note(self, database: Database, action: str, view: HoldView, **about: Any) -> None:
        await self._record(database, action, subject=str(view.id), queue=view.queue, **about)

    def _need(self, queue: str | None) -> None:
        actor = self._actor
        if queue is None or actor.prefixes is not None:
            actor.need_everything(
                "a hold on all queues" if queue is None else f"queue {queue!r}, which others' jobs use as well,"
            )
        actor.need(queue, None, f"queue {queue!r}")


def check_hold(
    queue: str | None, task: str | None, tag: str | None, field: str | None, value: Any, reason: str | None
) -> str | None:
    """The value, as text."""
    if task is None and tag is None and field is None:
        raise InvalidOption("a hold needs a task, a tag, or a field and its value; to hold all of a queue, pause it")
    if (field is None) != (value is None):
        raise InvalidOption("field and value go together: field='customer_id', value=42")
    try:
        for kind, name in (("queue", queue), ("task", task)):
            if name is not None:
                check_name(kind, name)
        check_path(field)
    except ConfigurationError as error:
        raise InvalidOption(str(error)) from None
    if tag is not None and not is_text(tag, MAX_TAG):
        raise InvalidOption(f"tag must be a text of 1 to {MAX_TAG} characters, not {tag!r}")
    if reason is not None and not is_text(reason, LONGEST_REASON):
        raise InvalidOption(f"reason must be a text of 1 to {LONGEST_REASON} characters")
    text = as_text(value)
    if field is not None and (text is None or len(text) > LONGEST_VALUE or "\0" in text):
        raise InvalidOption(f"value must be a text, a number or a truth value, of at most {LONGEST_VALUE} characters")
    return text


def check_number(hold: Any) -> int:
    if isinstance(hold, bool) or not isinstance(hold, int) or not 0 < hold < 2**31:
        raise UnknownHold(f"there is no hold {hold!r}")
    return hold


def _unknown(number: int) -> UnknownHold:
    return UnknownHold(f"there is no hold {number}; it may have been released already")


def _view(row: asyncpg.Record) -> HoldView:
    return HoldView(**dict(row))


def _described(view: HoldView, sealed: bool) -> dict[str, Any]:
    """As the record shows it: of a payload that is encrypted elsewhere, nothing."""
    told = {name: getattr(view, name) for name in ("queue", "task", "tag", "field", "value", "reason", "runs")}
    if sealed and view.field is not None:
        told["value"] = "[encrypted]"
    return {name: one for name, one in told.items() if one is not None}
