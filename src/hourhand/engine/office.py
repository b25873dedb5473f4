"""What handlers may ask the engine for: steps that are not repeated."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from hourhand.core.context import Context
from hourhand.core.errors import ConfigurationError, DatabaseUnavailable, InvalidOption
from hourhand.core.options import MAX_KEY, is_text
from hourhand.core.payload import check_plain, dump
from hourhand.storage.atomic import Holder
from hourhand.storage.database import Patience
from hourhand.storage.effects import EffectGateway

MAX_STEP = 1024 * 1024
_TO_KEEP = 5.0
"""Seconds that the result of a step gets to be kept when its run is told to stop."""


class StepOffice:
    def __init__(self, gateway: EffectGateway, loop: asyncio.AbstractEventLoop) -> None:
        self._gateway = gateway
        self._loop = loop

    async def once(self, context: Context, name: str, make: Callable[[], Any]) -> Any:
        _check(name, make)
        kept = await self._gateway.find_step(context.run_number, name)
        if kept is None:
            made = make()
            keeping = asyncio.ensure_future(self._keep(context, name, await made if inspect.isawaitable(made) else made))
            try:
                kept = await asyncio.shield(keeping)
            except asyncio.CancelledError:
                # It is done: whoever tries again should know.
                await asyncio.wait([keeping], timeout=_TO_KEEP)
                raise
        return msgspec.json.decode(kept)

    def once_sync(self, context: Context, name: str, make: Callable[[], Any]) -> Any:
        _check(name, make)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise ConfigurationError("in an async handler, write `await ctx.once(...)`")
        looked = asyncio.run_coroutine_threadsafe(self._gateway.find_step(context.run_number, name), self._loop)
        kept = looked.result()
        if kept is None:
            made = make()
            kept = asyncio.run_coroutine_threadsafe(self._keep(context, name, made), self._loop).result()
        return msgspec.json.decode(kept)

    async def _keep(self, context: Context, name: str, made: Any) -> str:
        subject = f"the result of step {name!r}"
        check_plain(made, subject)
        text = dump(made, subject).decode()
        if len(text) > MAX_STEP:
            raise InvalidOption(f"{subject} is over 1 MiB of JSON; keep it elsewhere and give its place back")
        holder = Holder(context.claim.worker, context.run_number, context.fence)
        patience = Patience()
        while True:
            # It is done: rather wait for the database than have a retry do it again.
            try:
                return await self._gateway.keep_step(holder, name, text)
            except DatabaseUnavailable:
                await patience.wait()


def _check(name: Any, make: Any) -> None:
    if not is_text(name, MAX_KEY):
        raise InvalidOption(f"the name of a step must be a text of 1 to {MAX_KEY} characters, not {name!r}")
    if not callable(make):
        raise InvalidOption(f"ctx.once({name!r}, ...) takes a function to call, not {make!r}: write lambda: ...")
