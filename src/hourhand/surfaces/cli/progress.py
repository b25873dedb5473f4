"""A bar for what takes long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hourhand.surfaces.cli.common import err

MANY = 1_000


@contextmanager
def bar(what: str, total: int | None, *, always: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, if it is about many; to be called with how many are done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=err)
    bar = progress.add_task(what, total=total)
    with ExitStack() as stack:
        # Of a stream nobody knows how long it is before it has become long.
        shown = always or (total or 0) > MANY
        if shown:
            stack.enter_context(progress)

        def show(done: int) -> None:
            nonlocal shown
            if not shown and done > MANY:
                stack.enter_context(progress)
                shown = True
            progress.update(bar, completed=done)

        yield show
