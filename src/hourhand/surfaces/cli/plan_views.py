"""Plans, and what became of them, for reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from hourhand.core.redaction import REDACTED, redact
from hourhand.core.registry import Registry
from hourhand.surfaces.cli.common import ago, counted, plain
from hourhand.surfaces.plans.applying import Outcome
from hourhand.surfaces.plans.comparing import Difference, same_value
from hourhand.surfaces.plans.exporting import worth_saying
from hourhand.surfaces.plans.plan import Outlook, Plan, Step

_SIGNS = {"create": ("+", "green"), "change": ("~", "yellow"), "delete": ("-", "red")}
MOST_SHOWN = 200
"""Of each action: nobody reads more, and ten thousand take longer to print than to find."""
_WHEN = ("schedule", "timezone", "dst", "anchor", "start_at", "end_at")
"""What decides when a job fires."""
_TASKS_OWN = ("queue", "priority", "secret")
"""What a task says if its job does not."""
Line = tuple[str, Text]


@dataclass(frozen=True, slots=True)
class PlanPrinter:
    console: Console
    registry: Registry
    names: Sequence[str]
    """Of fields whose values are not shown."""
    now: datetime

    def plan(self, plan: Plan) -> None:
        for action, (sign, style) in _SIGNS.items():
            steps = plan.of(action)
            for step in steps[:MOST_SHOWN]:
                self._head(sign, style, step.name, "" if action == "change" else action)
                self._lines(self._about(step))
            if len(steps) > MOST_SHOWN:
                self._note(f"  and {len(steps) - MOST_SHOWN:,} more to {action}; plan --json has them all")
        self._conflicts(plan)
        outlived = {step.name for step in plan.outlived}
        for name, reason in plan.over.items():
            words = (
                "still fires, while what the file says is over" if name in outlived else "is over, and nothing is done about it"
            )
            self._head("·", "dim", name, f"{words}: {reason}")
        if plan.spared:
            named = ", ".join(plan.spared[:10]) + (", …" if len(plan.spared) > 10 else "")
            self._note(f"{counted(len(plan.spared), 'job')} that no file names would stay: {named}")
        if any(self._may_be_the_tasks(step) for step in plan.of("change")):
            self._note(
                "tasks that are not known here are taken to have no queue, priority or secrets of their own; --app knows them"
            )
        if plan.steps or plan.conflicts or plan.over:
            self.console.print()
        self.console.print(Text(plan.in_words(), "bold"), soft_wrap=True)

    def drift(self, plan: Plan, found: Mapping[str, Sequence[Any]]) -> None:
        for step in found["missing"]:
            self._head("-", "red", step.name, "is missing")
        for step in found["changed"]:
            self._head("~", "yellow", step.name, "is not as the file says (what runs → what the file says)")
            self._lines(self._differences(step))
        for step in found["extra"]:
            self._head("+", "green", step.name, f"is there, tagged as {step.owner}'s, and no file names it")
        for name in found["paused"]:
            self._head("‖", "yellow", name, "is paused, and no file says so")
        self._conflicts(plan)
        counts = {what: len(items) for what, items in found.items() if items and what != "conflicts"}
        as_said = f"{counted(_as_said(plan, found), 'job')} as the files say"
        if any(found.values()):
            self.console.print()
            words = [f"{count:,} {what}" for what, count in counts.items()]
            words += [f"{len(plan.conflicts):,} in conflict"] if plan.conflicts else []
            self.console.print(Text(f"Drift: {', '.join(words)}; {as_said}", "bold"), soft_wrap=True)
        else:
            self.console.print(f"No drift: {as_said}")

    def plain_drift(self, plan: Plan, found: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """The same for programs. Unlike a plan, nobody has to act on it: secrets stay hidden."""
        changed = [
            {"name": step.name, "differences": [replace(one, **self._values(one, step)) for one in step.differences]}
            for step in found["changed"]
        ]
        names = {what: [step.name for step in found[what]] for what in ("missing", "extra")}
        rest = {"changed": changed, "paused": found["paused"], "conflicts": found["conflicts"]}
        return {"drift": any(found.values()), "unchanged": _as_said(plan, found), **names, **rest}

    def _values(self, one: Difference, step: Step) -> dict[str, Any]:
        if one.field != "payload":
            return {}
        return {"old": self._redacted(one.old, step), "new": self._redacted(one.new, step)}

    def _conflicts(self, plan: Plan) -> None:
        for one in plan.conflicts:
            self._head("!", "magenta", one.name, f"conflict: {one.reason} ({one.place})")

    def _head(self, sign: str, style: str, name: str, words: str) -> None:
        line = Text.assemble((f"{sign} ", style), (name, f"bold {style}" if style != "dim" else ""))
        self.console.print(line.append_text(plain(f"  {words}" if words else "")), soft_wrap=True)

    def _note(self, words: str) -> None:
        self.console.print(plain(words, "dim"), soft_wrap=True)

    def _lines(self, lines: Iterator[Line]) -> None:
        listed = list(lines)
        width = max((len(name) for name, _ in listed), default=0)
        for name, value in listed:
            self.console.print(Text.assemble(plain(f"    {name:<{width}}  "), value), soft_wrap=True)

    def _about(self, step: Step) -> Iterator[Line]:
        if step.action == "create":
            said = worth_saying("", step.options, self.registry)
            for name, value in said.items():
                yield name, plain(self._shown(name, value, step))
                if name == "schedule":
                    yield "", _outlook(step.becomes, self.now, paused=step.state == "paused", anew=_anew(step))
            if step.state is not None:
                yield "state", Text(step.state)
        elif step.action == "change":
            yield from self._differences(step)
        else:
            yield "", _outlook(step.was, self.now)

    def _differences(self, step: Step) -> Iterator[Line]:
        if step.adopts is not None:
            yield "owner", _arrow(step.adopts or "nobody", step.owner)
        outlook = False
        for one in step.differences:
            if one.field == "payload":
                yield from self._payload(one, step)
            else:
                yield one.field, _arrow(self._shown(one.field, one.old, step), self._shown(one.field, one.new, step))
            outlook = outlook or one.field in _WHEN
        if outlook:
            yield "was", _outlook(step.was, self.now)
            yield "becomes", _outlook(step.becomes, self.now, anew=_anew(step))

    def _payload(self, one: Difference, step: Step) -> Iterator[Line]:
        """Key by key; of a secret only that it is another one."""
        for path, old, new in _by_key("payload", one.old, one.new):
            key = path.removeprefix("payload.")
            hidden = [
                self._redacted(_nested(key, value), step) != _nested(key, value) for value in (old, new) if value is not _ABSENT
            ]
            before, after = (REDACTED if any(hidden) and value is not _ABSENT else value for value in (old, new))
            if before is _ABSENT:
                yield path, plain(f"+ {_json(after)}", "green")
            elif after is _ABSENT:
                yield path, plain(f"- {_json(before)}", "red")
            else:
                yield path, _arrow(_json(before), _json(after))

    def _shown(self, name: str, value: Any, step: Step) -> str:
        if name == "payload":
            return _json(self._redacted(value, step))
        if value is None or value == []:
            return "none"
        if isinstance(value, list):
            return ", ".join(map(str, value))
        return value if isinstance(value, str) else f"{value:g} s" if isinstance(value, float) else str(value)

    def _redacted(self, payload: Any, step: Step) -> Any:
        """Without what is a secret, or was one until now."""
        until_now = [mark for one in step.differences if one.field == "secret" for mark in one.old]
        return redact(payload, [*(step.options.get("secret") or ()), *until_now], self.names)

    def _may_be_the_tasks(self, step: Step) -> bool:
        """Whether a difference may only be that the task's code is not here."""
        named = any(one.field in _TASKS_OWN for one in step.differences)
        return named and self.registry.find(step.options["task"]) is None


class _Absent:
    pass


_ABSENT = _Absent()


def _as_said(plan: Plan, found: Mapping[str, Sequence[Any]]) -> int:
    """A plan leaves a paused job alone where the file says nothing about it; what drifts, it is among."""
    return plan.unchanged - len(set(found["paused"]) - {step.name for step in plan.steps})


def told(outcome: Outcome) -> Text:
    """A step that is done."""
    sign, style = _SIGNS[outcome.action]
    if outcome.outcome == "unchanged":
        return Text.assemble(("= ", "dim"), outcome.name, ("  is so already", "dim"))
    return Text.assemble(
        (f"{sign} ", style), outcome.name, f"  {outcome.outcome}", f"; {outcome.remark}" if outcome.remark else ""
    )


def _arrow(old: str, new: str) -> Text:
    return Text.assemble(plain(old, "red"), " → ", plain(new, "green"))


def _outlook(outlook: Outlook | None, now: datetime, *, paused: bool = False, anew: bool = False) -> Text:
    """`anew`: an interval that is counted from a moment that has not come yet."""
    if outlook is None:
        return Text("")
    words, at = outlook.in_words, outlook.next_run_at
    if anew:
        return plain(f"{words.partition(',')[0]}, counted from when it is applied", "dim")
    if paused:
        return plain(f"{words}; not while it is paused", "dim")
    if at is None:
        return plain(f"{words}; it does not fire as it is", "dim")
    when = ago(at, now) if words.startswith("Once") else f"next {at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, {ago(at, now)}"
    return plain(f"{words}; {when}", "dim")


def _anew(step: Step) -> bool:
    return step.options["schedule"].startswith("every ") and "anchor" not in step.options


def _by_key(path: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        yield path, old, new
        return
    for key in dict.fromkeys([*old, *new]):
        before, after = old.get(key, _ABSENT), new.get(key, _ABSENT)
        if before is _ABSENT or after is _ABSENT or not same_value(before, after):
            yield from _by_key(f"{path}.{key}", before, after)


def _nested(key: str, value: Any) -> Any:
    """A value at its place, as redaction wants to see it."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
