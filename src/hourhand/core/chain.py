"""Chains: what is enqueued when a run has succeeded, in the same transaction as its success."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hourhand.core.actor import Actor
from hourhand.core.errors import InvalidOption
from hourhand.core.redaction import marks_in
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


def map_steps(options: dict[str, Any] | None, change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any] | None:
    """The same options with each step of the chain in them, as it is stored, changed."""
    if not options or "then" not in options:
        return options
    step = change(options["then"])
    if step.get("options"):
        step = {**step, "options": map_steps(step["options"], change)}
    return {**options, "then": step}


def with_marks(step: Step, marks_of: Callable[[str], Sequence[str]]) -> Step:
    """The secret fields that the steps' tasks declare travel with them, as with any run."""

    def marked(options: dict[str, Any] | None, task: str) -> dict[str, Any] | None:
        every = list(dict.fromkeys((*marks_of(task), *marks_in(options))))
        return {**(options or {}), "secret": every} if every else options

    def change(one: dict[str, Any]) -> dict[str, Any]:
        options = marked(one.get("options"), one["task"])
        return {**one, "options": options} if options else one

    return replace(step, options=marked(map_steps(step.options, change), step.task))


def steps_of(options: dict[str, Any] | None) -> list[str]:
    """The tasks that follow, in order."""
    return [step["task"] for step in _steps(options)]


def need_steps(actor: Actor, options: dict[str, Any] | None) -> None:
    """Refuses a chain that would enqueue where this actor may not: its steps are runs of no job, in queues of their own."""
    for step in _steps(options):
        actor.need(step["queue"], None, f"queue {step['queue']!r}, where {step['task']!r} would go on,")


def _steps(options: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    while options and "then" in options:
        yield options["then"]
        options = options["then"].get("options")
