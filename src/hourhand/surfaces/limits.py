"""What is ruled about queues and tasks, and the operator's word above what the code declares: `app.limits`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from hourhand.core.actor import ACTOR
from hourhand.core.errors import ConfigurationError, InvalidOption, NotPossible
from hourhand.core.limits import SCOPES, Limits, Rates, describe, describe_order, make_order
from hourhand.core.task import check_name
from hourhand.storage.database import Database
from hourhand.surfaces.verbs import Verbs

_DECLARER = "app"


@dataclass(frozen=True, slots=True)
class LimitView:
    """What holds for a queue or a task, over the whole fleet."""

    scope: str
    """`queue` or `task`."""
    name: str
    in_words: tuple[str, ...]
    """What holds."""
    declared: tuple[str, ...]
    """What the code says, in words."""
    declared_by: str | None
    """The app whose code that is."""
    ordered: tuple[str, ...]
    """What was ordered above it, in words."""
    rule: dict[str, Any]
    """What holds, as it is kept."""
    slots: int | None
    """How many may be inside at once; where that is said for each value of a key, for all values that are about."""
    in_use: int
    waiting: int
    """Runs that wait because of it."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class RuleBook(Verbs):
    async def list(self) -> list[LimitView]:
        """Every queue and task about which something is ruled, as far as the caller may see."""
        actor = ACTOR.get()
        rows = await (await self._open()).fetch("list_rules", True)
        return [_view(row) for row in rows if actor.may_touch(row["name"] if row["scope"] == "queue" else None, None)]

    async def set(
        self, scope: str, name: str, *, concurrency: Limits | UnsetType = UNSET, rate: Rates | UnsetType = UNSET,
        fair_key: str | UnsetType | None = UNSET, order: str | UnsetType | None = UNSET, max_depth: int | UnsetType | None = UNSET,
        overflow: str | UnsetType | None = UNSET,
    ) -> LimitView:  # fmt: skip
        """From now on, whatever the code declares: `app.limits.set("queue", "billing", concurrency=5, rate="100/minute")`.

        What is not given stays as it is; None lifts it. `concurrency` and `rate` belong together: whoever gives one of them says
        all limits that there are.
        """
        self._need(scope, name)
        database = await self._open()
        async with database.together():
            before, settings = await self._locked(database, scope, name)
            try:
                parts = make_order(
                    scope, settings, concurrency=concurrency, rate=rate, fair_key=fair_key, order=order, max_depth=max_depth,
                    overflow=overflow,
                )  # fmt: skip
            except ConfigurationError as error:
                raise InvalidOption(str(error)) from None
            await self._order(database, "limit.set", scope, name, before, {**before, **parts})
            return await self._show(database, scope, name)

    async def clear(self, scope: str, name: str) -> LimitView:
        """Back to what the code declares."""
        self._need(scope, name)
        database = await self._open()
        async with database.together():
            before, _ = await self._locked(database, scope, name)
            if not before:
                raise NotPossible(f"nothing is ordered about {scope} {name}: it is as the code declares it")
            await self._order(database, "limit.clear", scope, name, before, {})
            return await self._show(database, scope, name)

    async def _locked(self, database: Database, scope: str, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """What is ordered and what holds; nobody else changes it until this transaction ends."""
        await database.fetch("lock_rules")
        row = await database.fetchrow("find_rule", scope, name)
        if row is None:
            return {}, {}
        return msgspec.json.decode(row["ordered"]), msgspec.json.decode(row["settings"])

    async def _order(
        self, database: Database, action: str, scope: str, name: str, before: dict[str, Any], after: dict[str, Any]
    ) -> None:
        if before != after:
            await database.fetch("order_rule", scope, name, msgspec.json.encode(after).decode())
            queue = name if scope == "queue" else None
            about = {"before": {"scope": scope, "ordered": before}, "after": {"scope": scope, "ordered": after}}
            await self._record(database, action, subject=name, queue=queue, **about)

    async def _show(self, database: Database, scope: str, name: str) -> LimitView:
        rows = await database.fetch("list_rules", True)
        found = (_view(row) for row in rows if (row["scope"], row["name"]) == (scope, name))
        return next(found, LimitView(scope, name, (), (), None, (), {}, None, 0, 0))

    def _need(self, scope: str, name: str) -> None:
        if scope not in SCOPES:
            raise InvalidOption(f"a rule is about a {' or a '.join(SCOPES)}, not {scope!r}")
        check_name(scope, name)
        actor = self._actor
        if scope == "task" or actor.prefixes is not None:
            actor.need_everything(f"{scope} {name!r}, whose runs may be anybody's,")
        if scope == "queue":
            actor.need(name, None, f"queue {name!r}")


def _view(row: Any) -> LimitView:
    declared, ordered, rule = (msgspec.json.decode(row[name]) for name in ("declared", "ordered", "settings"))
    rule.pop(_DECLARER, None)
    return LimitView(
        row["scope"], row["name"], tuple(describe(rule)), tuple(describe(declared)), declared.get(_DECLARER) or None,
        tuple(describe_order(ordered)), {name: one for name, one in rule.items() if one is not None}, row["slots"], row["in_use"],
        row["waiting"],
    )  # fmt: skip
