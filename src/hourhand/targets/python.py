"""A run that calls a Python function: decode the payload, go through the middleware, call."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from hourhand.core.context import Context
from hourhand.core.registry import CallNext, Hook, Middleware, Registry
from hourhand.core.task import TaskDefinition

Call = Callable[[Context, str], Awaitable[Any]]
Offload = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a blocking function elsewhere and gives its result."""


def direct_call(definition: TaskDefinition, middleware: Sequence[Middleware], offload: Offload) -> Call:
    """The handler in this process: `async def` on the loop, `def` wherever `offload` puts it."""
    function, codec = definition.function, definition.codec
    takes_context, decode = codec.takes_context, codec.decode

    async def call_async(ctx: Context, payload: str) -> Any:
        args, kwargs = decode(payload)
        return await (function(ctx, *args, **kwargs) if takes_context else function(*args, **kwargs))

    async def call_sync(ctx: Context, payload: str) -> Any:
        args, kwargs = decode(payload)
        if takes_context:
            args = (ctx, *args)
        return await offload(lambda: function(*args, **kwargs))

    return wrap(call_async if definition.is_async else call_sync, middleware)


def wrap(call: Call, middleware: Sequence[Middleware]) -> Call:
    """The first declared is the outermost."""
    for one in reversed(middleware):
        call = _around(one, call)
    return call


def _around(middleware: Middleware, inner: Call) -> Call:
    async def call(ctx: Context, payload: str) -> Any:
        call_next: CallNext = lambda: inner(ctx, payload)  # noqa: E731
        return await middleware(ctx, call_next)

    return call


async def run_hooks(hooks: Sequence[Hook], registry: Registry) -> None:
    """Start-up and shut-down hooks: `async def` or `def`, with the state or without arguments."""
    for hook in hooks:
        result = hook(registry.state) if inspect.signature(hook).parameters else hook()
        if inspect.isawaitable(result):
            await result
