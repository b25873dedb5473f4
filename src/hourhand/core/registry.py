"""What an app declares: tasks, middleware, hooks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from hourhand.core.context import Context
from hourhand.core.errors import ConfigurationError, InvalidPayload
from hourhand.core.task import TaskDefinition

Hook = Callable[..., Any]
CallNext = Callable[[], Awaitable[Any]]
Middleware = Callable[[Context, CallNext], Awaitable[Any]]


class Registry:
    def __init__(self) -> None:
        self.tasks: dict[str, TaskDefinition] = {}
        self.targets: dict[str, TaskDefinition] = {}
        """What runs can call without any code of the app: HTTP, commands. A task of the same name comes first."""
        self.queues: dict[str, dict[str, Any]] = {}
        """Declared queues: what is ruled about each."""
        self.jobs: dict[str, Any] = {}
        """Declared jobs: what was said about each."""
        self.middleware: list[Middleware] = []
        self.startup: list[Hook] = []
        self.shutdown: list[Hook] = []
        self.alert_hooks: list[Hook] = []
        self.state = SimpleNamespace()

    def find(self, name: str) -> TaskDefinition | None:
        return self.tasks.get(name) or self.targets.get(name)

    def check_steps(self, options: dict[str, Any] | None) -> None:
        """Of a chain: steps that call a URL or a program are checked before anything is stored, like those that start with it."""
        while options and "then" in options:
            step = options["then"]
            if step["task"] in self.targets and step["task"] not in self.tasks:
                if step.get("result"):
                    raise InvalidPayload(
                        f"a step of task {step['task']!r} takes no result of the step before it: say result=None"
                    )
                self.targets[step["task"]].codec.encode(step.get("payload") or {})
            options = step.get("options")

    def everything(self) -> dict[str, TaskDefinition]:
        offered = {name: one for name, one in self.targets.items() if one.offered is None or one.offered()}
        return {**offered, **self.tasks}

    def marks_of(self, name: str) -> tuple[str, ...]:
        """The secret fields that a task declares; none where the task is not known."""
        definition = self.find(name)
        return () if definition is None else definition.secret

    def add(self, definition: TaskDefinition) -> None:
        known = self.tasks.get(definition.name)
        if known is not None and known.function is not definition.function:
            raise ConfigurationError(
                f"two tasks are named {definition.name!r}: {_where(known.function)} and "
                f"{_where(definition.function)}; give one of them another name"
            )
        self.tasks[definition.name] = definition


def _where(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
