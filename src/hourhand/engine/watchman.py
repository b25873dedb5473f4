"""Opens an incident when a rule finds something wrong, and closes it when it is over.

Everything is in the table: whoever takes over goes on with what is open, and a second one that looks at the same time opens
nothing twice, since the table has one open incident for a rule and a subject at most.
"""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import datetime

import structlog

from hourhand.core.alert_rules import AlertsFile, Rule
from hourhand.core.errors import HourhandError
from hourhand.core.notice import in_words
from hourhand.engine.lookout import Finding, Lookout
from hourhand.storage.alerts import AlertGateway, Noted

log = structlog.get_logger("hourhand.alerts")
OTHERS = "(others)"
"""The subject that stands for all that a rule has found beyond its limit."""
_NAMED = 5
_LONGEST = 1_000


class Watchman:
    def __init__(self, gateway: AlertGateway, file: AlertsFile, *, whole: bool) -> None:
        self._gateway = gateway
        self._rules = [one for one in file.rules if one.enabled]
        self._pairs = [(rule.name, one.name) for rule in self._rules for one in file.channels if one.hears(rule)]
        self._whole = whole
        """Whether these are all the rules there are: a process without a file leaves alone what it does not know."""
        self._lookout = Lookout(gateway)
        self._failed: set[str] = set()

    async def run_once(self) -> int:
        """One look by every rule. Returns how many incidents were opened or closed."""
        try:
            changes = await self._look_by_all()
        except Exception:
            # What is open already is told even so.
            await self._gateway.add_notices(self._pairs)
            raise
        await self._gateway.add_notices(self._pairs)
        return changes

    async def _look_by_all(self) -> int:
        beginning = await self._lookout.begin(self._rules)
        begun, standing = beginning.at, beginning.standing
        changes = 0
        for rule in self._rules:
            changes += await self._alone(rule.name, self._look(rule, standing.get(rule.name, set()), begun))
        if self._whole:
            for name in standing.keys() - {one.name for one in self._rules}:
                endings = dict.fromkeys(standing[name], "its rule was removed or disabled")
                changes += await self._alone(name, self._close(name, endings, 0.0, begun))
        return changes

    async def _alone(self, rule: str, work: Awaitable[int | None]) -> int:
        """The others have nothing to do with what is wrong with one, nor have to wait until it is right again."""
        try:
            changes = await work
        except Exception as error:
            if rule not in self._failed:
                said = str(error) if isinstance(error, HourhandError) else f"{type(error).__name__}: {error}"
                log.error("alert.rule_failed", rule=rule, error=said)
            self._failed.add(rule)
            return 0
        if changes is None:
            return 0
        self._failed.discard(rule)
        return changes

    async def _look(self, rule: Rule, standing: set[str], begun: datetime) -> int | None:
        """None: it was not the time to look, and nothing new is known."""
        seen = await self._lookout.find(rule, standing)
        if seen is None:
            return None
        found, complete = seen
        noted, beyond = admitted(found, standing, rule.limit)
        opened = {}
        if noted:
            about = [Noted(one.subject, one.message[:_LONGEST], float(one.value), rule.link_to(one.subject)) for one in noted]
            opened = await self._gateway.note_incidents(
                rule.name, rule.kind, rule.severity, rule.repeat, rule.hooks, rule.held_for, about, begun
            )
            for one in noted:
                if one.subject in opened:
                    log.warning("alert.opened", alert=opened[one.subject], rule=rule.name, subject=one.subject,
                                severity=rule.severity, message=one.message)  # fmt: skip
        gone = standing - {one.subject for one in found} - {OTHERS}
        endings = await self._lookout.endings(rule, gone) if gone else {}
        if OTHERS in standing and not beyond and complete:
            endings[OTHERS] = "there are no others any more"
        return len(opened) + (await self._close(rule.name, endings, rule.clear, begun) if endings else 0)

    async def _close(self, rule: str, endings: dict[str, str], clear: float, begun: datetime) -> int:
        closed = await self._gateway.end_incidents(rule, endings, clear, begun)
        for row in closed:
            log.info("alert.closed", alert=row["id"], rule=rule, subject=row["subject"], after=in_words(row["seconds"]),
                     message=endings[row["subject"]])  # fmt: skip
        return len(closed)


def admitted(found: list[Finding], standing: set[str], limit: int) -> tuple[list[Finding], bool]:
    """What gets an incident: all that had one, the worst of what is new, and one for all the rest. A storm is told in a few
    words; while it lasts, nothing new is taken out of the rest, or each that ends would bring another.

    Also: whether there is such a rest."""
    before = [one for one in found if one.subject in standing]
    fresh = sorted((one for one in found if one.subject not in standing), key=lambda one: -one.value)
    room = 0 if OTHERS in standing else max(0, limit - len(standing))
    some, rest = fresh[:room], fresh[room:]
    if rest:
        names = ", ".join(one.subject for one in rest[:_NAMED])
        more = f" and {len(rest) - _NAMED} more" if len(rest) > _NAMED else ""
        some.append(Finding(OTHERS, f"{len(rest)} besides those that are told one by one: {names}{more}", len(rest)))
    return before + some, bool(rest)
