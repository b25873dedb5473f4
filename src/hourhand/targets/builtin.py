"""What every worker can run without any code of the app."""

from __future__ import annotations

from collections.abc import Callable

from hourhand.core.settings import Settings
from hourhand.core.task import TaskDefinition
from hourhand.targets.command import command_task
from hourhand.targets.http import close_sessions, http_task


def builtin_targets(settings: Callable[[], Settings]) -> dict[str, TaskDefinition]:
    """By name. The settings are asked for at each use: the command line may change them after the app was made."""
    return {one.name: one for one in (http_task(settings), command_task(settings))}


async def close_targets() -> None:
    """When a worker has run its last run."""
    await close_sessions()
