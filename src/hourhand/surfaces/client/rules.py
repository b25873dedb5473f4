"""`client.limits` and `client.holds`: the verbs of the app's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from hourhand.core.errors import ConfigurationError, InvalidOption
from hourhand.core.limits import SCOPES, Limit, Limits, Rate, Rates, make_rule
from hourhand.core.task import check_name
from hourhand.surfaces.client.asking import Asking, converted, in_path
from hourhand.surfaces.client.transport import ROOT, Call
from hourhand.surfaces.holds import HoldView, check_hold, check_number
from hourhand.surfaces.limits import LimitView


class RuleBook(Asking):
    async def list(self) -> list[LimitView]:
        """Every queue and task about which something is ruled, as far as the caller may see."""
        return converted(await self._get("/limits"), list[LimitView])

    async def set(
        self, scope: str, name: str, *, concurrency: Limits | UnsetType = UNSET, rate: Rates | UnsetType = UNSET,
        fair_key: str | UnsetType | None = UNSET, order: str | UnsetType | None = UNSET, max_depth: int | UnsetType | None = UNSET,
        overflow: str | UnsetType | None = UNSET,
    ) -> LimitView:  # fmt: skip
        """From now on, whatever the code declares: `client.limits.set("queue", "billing", concurrency=5, rate="100/minute")`.

        What is not given stays as it is; None lifts it. `concurrency` and `rate` belong together: whoever gives one of them says
        all limits that there are.
        """
        body: dict[str, Any] = {"fair_key": fair_key, "order": order, "max_depth": max_depth, "overflow": overflow}
        try:
            limits, rates = (None if one is UNSET else _kept(one) for one in (concurrency, rate))
            make_rule(concurrency=limits, rate=rates)
        except ConfigurationError as error:
            raise InvalidOption(str(error)) from None
        if concurrency is not UNSET:
            body["concurrency"] = _plain(limits)
        if rate is not UNSET:
            body["rate"] = _plain(rates)
        given = {name: one for name, one in body.items() if one is not UNSET}
        return converted(await self._send(Call("PUT", ROOT + _place(scope, name), body=msgspec.json.encode(given))), LimitView)

    async def clear(self, scope: str, name: str) -> LimitView:
        """Back to what the code declares."""
        return converted(await self._send(Call("DELETE", ROOT + _place(scope, name))), LimitView)


class Holds(Asking):
    async def add(
        self, *, queue: str | None = None, task: str | None = None, tag: str | None = None, field: str | None = None,
        value: Any = None, reason: str | None = None,
    ) -> HoldView:  # fmt: skip
        """Start no more runs of a task, with a tag, or with a value in a field of the payload; of all that are given, all must fit.

        What runs goes on, and enqueueing stays possible. A hold that says the same answers for the new one.
        """
        text = check_hold(queue, task, tag, field, value, reason)
        body = {"queue": queue, "task": task, "tag": tag, "field": field, "value": text, "reason": reason}
        return converted(await self._post("/holds", body), HoldView)

    async def list(self) -> list[HoldView]:
        """All that the caller may see, the oldest first."""
        return converted(await self._get("/holds"), list[HoldView])

    async def release(self, hold: int) -> HoldView:
        """Its runs are ready again, at their old places."""
        return converted(await self._send(Call("DELETE", f"{ROOT}/holds/{check_number(hold)}")), HoldView)


def _kept(given: Any) -> Any:
    """An iterable that can be read once is read here."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else given


def _plain(given: Any) -> Any:
    many = [given] if isinstance(given, (Limit, Rate)) else given
    return [msgspec.to_builtins(one) for one in many] if isinstance(many, list) else many


def _place(scope: str, name: str) -> str:
    if scope not in SCOPES:
        raise InvalidOption(f"a rule is about a {' or a '.join(SCOPES)}, not {scope!r}")
    return f"/limits/{scope}/{in_path(check_name(scope, name))}"
