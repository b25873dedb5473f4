"""A run that calls a Python function: decode the payload, go through the middleware, call."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from hourhand.core.batch import BatchCodec, outcomes
from hourhand.core.context import BatchContext, Context
from hourhand.core.registry import CallNext, Hook, Middleware, Registry
from hourhand.core.task import TaskDefinition

C = TypeVar("C", bound=Callable[..., Awaitable[Any]])
Call = Callable[[Context, str], Awaitable[Any]]
BatchCall = Callable[[BatchContext, list[Any]], Awaitable[Any]]
Offload = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a blocking function elsewhere and gives its result."""


def direct_call(definition: TaskDefinition, middleware: Sequence[Middleware], offload: Offload) -> Call:
    """The handler in this process: `async def` on the loop, `def` wherever `offload` puts it."""
    if definition.batch is not None:
        return alone(definition, batch_call(definition, middleware, offload))
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


def batch_call(definition: TaskDefinition, middleware: Sequence[Middleware], offload: Offload) -> BatchCall:
    """The same for a handler of batches. Middleware is around the call, of which there is one for all its runs."""
    function, takes_context = definition.function, definition.codec.takes_context

    async def call_async(ctx: BatchContext, items: list[Any]) -> Any:
        return await (function(ctx, items) if takes_context else function(items))

    async def call_sync(ctx: BatchContext, items: list[Any]) -> Any:
        return await offload(lambda: function(ctx, items) if takes_context else function(items))

    return wrap(call_async if definition.is_async else call_sync, middleware)


def alone(definition: TaskDefinition, call_batch: BatchCall) -> Call:
    """A handler of batches called for one run, as a batch of one."""
    codec = definition.codec
    assert isinstance(codec, BatchCodec)

    async def call(ctx: Context, payload: str) -> Any:
        (outcome,) = outcomes(await call_batch(BatchContext([ctx]), [codec.read(payload)]), 1)
        try:
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome
        finally:
            del outcome  # its traceback would know a frame that knows it

    return call


def wrap(call: C, middleware: Sequence[Middleware]) -> C:
    """The first declared is the outermost."""
    for one in reversed(middleware):
        call = _around(one, call)
    return call


def _around(middleware: Middleware, inner: Any) -> Any:
    async def call(ctx: Any, payload: Any) -> Any:
        call_next: CallNext = lambda: inner(ctx, payload)  # noqa: E731
        return await middleware(ctx, call_next)

    return call


async def run_hooks(hooks: Sequence[Hook], registry: Registry) -> None:
    """Start-up and shut-down hooks: `async def` or `def`, with the state or without arguments."""
    for hook in hooks:
        result = hook(registry.state) if inspect.signature(hook).parameters else hook()
        if inspect.isawaitable(result):
            await result
