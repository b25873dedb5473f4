"""Chains: what is enqueued when a run has succeeded, in the same transaction as its success."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hourhand.core.errors import InvalidOption
from hourhand.core.task import check_name

DEEPEST = 20


@dataclass(frozen=True, slots=True)
class Step:
    """One link of a chain: a task, the arguments that are known already, and the one that takes the result."""

    task: str
    payload: dict[str, Any] = field(default_factory=dict)
    result: str | None = "result"
    """The argument that receives the result of the step before; None: it is not passed on."""
    queue: str = "default"
    priority: str = "normal"
    delay: float | None = None
    tags: tuple[str, ...] = ()
    options: dict[str, Any] | None = None
    """What travels with the run: max_attempts, timeout, and the step after this one."""

    def plain(self) -> dict[str, Any]:
        """As it is stored."""
        plain = {"task": self.task, "payload": self.payload, "queue": self.queue, "priority": self.priority}
        rest = {"result": self.result, "delay": self.delay, "tags": list(self.tags), "options": self.options}
        return plain | {name: value for name, value in rest.items() if value}


def as_step(value: Any) -> Step:
    """From whatever `then=` was given: a step, a task (with options or without), a task's name."""
    if isinstance(value, str):
        return Step(check_name("task", value))
    if not isinstance(value, Step):
        make = getattr(value, "step", None)
        if make is None:
            raise InvalidOption(f"then takes a task, task.step(...), or a task's name, not {value!r}")
        value = make()
    step: Step = value
    depth, inner = 1, step.options
    while inner and "then" in inner:
        depth, inner = depth + 1, inner["then"].get("options")
    if depth > DEEPEST:
        raise InvalidOption(f"a chain may have at most {DEEPEST} steps after the first")
    return step


def steps_of(options: dict[str, Any] | None) -> list[str]:
    """The tasks that follow, in order."""
    names = []
    while options and "then" in options:
        names.append(options["then"]["task"])
        options = options["then"].get("options")
    return names
