"""Tasks whose handler is called once for many runs: what is declared, what each run carries, what becomes of each.

A run carries one item. Its payload is the item as a JSON object, so whoever enqueues it knows nothing of batches.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any, get_args, get_origin

import msgspec
from msgspec.inspect import AnyType, DataclassType, DictType, StrType, StructType, TypedDictType, type_info

from hourhand.core.context import BatchContext, Context
from hourhand.core.errors import BatchMismatch, ConfigurationError, InvalidPayload, PayloadMismatch
from hourhand.core.payload import Codec, from_plain, resolve

MOST = 10_000
LINGER = 0.05
LONGEST = 60.0
_EXAMPLE = "async def index(ctx: BatchContext, items: list[Document])"


def check_batch(task: str, batch: Any, linger: Any, isolation: str | None, delivery: str) -> float:
    """The seconds to linger."""
    if isinstance(batch, bool) or not isinstance(batch, int) or not 2 <= batch <= MOST:
        raise ConfigurationError(f"task {task!r}: batch must be a number of items from 2 to {MOST:,}, not {batch!r}")
    number = LINGER if linger is None else linger.total_seconds() if isinstance(linger, timedelta) else linger
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= LONGEST:
        raise ConfigurationError(f"task {task!r}: linger must be from 0 to {LONGEST:g} seconds, or a timedelta, not {linger!r}")
    if isolation is not None:
        raise ConfigurationError(
            f"task {task!r}: a batch is called in the worker's own process; leave out isolation, or batch. An item whose worker "
            "died runs alone in a child process by itself"
        )
    if delivery != "at_least_once":
        raise ConfigurationError(
            f"task {task!r}: the runs of a batch are delivered at least once; delivery={delivery!r} promises something about "
            "each run's own effects, which a call for many cannot keep. Leave out delivery, or batch"
        )
    return float(number)


class BatchCodec(Codec):
    """One item of a batch, to JSON and back: the fields of its type are the arguments of an enqueue."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.task = name
        hints = resolve(name, function)
        parameters = list(inspect.signature(function).parameters.values())
        first = hints.get(parameters[0].name) if parameters else None
        if first is Context:
            raise ConfigurationError(
                f"task {name!r}: a batch has many runs, so its handler is given a BatchContext: {_EXAMPLE}; each run's Context "
                "is in ctx.items"
            )
        self.takes_context = bool(parameters) and (first is BatchContext or parameters[0].name == "ctx")
        if self.takes_context:
            parameters = parameters[1:]
        plain = len(parameters) == 1 and parameters[0].kind is parameters[0].POSITIONAL_OR_KEYWORD
        hint = hints.get(parameters[0].name) if plain else None
        if get_origin(hint) is not list:
            raise ConfigurationError(
                f"task {name!r}: the handler of a batch takes one list of items, and before it a ctx if it wants one, such as "
                f"{_EXAMPLE}; {function.__qualname__} takes {inspect.signature(function)}"
            )
        (kind,) = get_args(hint)
        self._by_name = self._empty = False
        try:
            self._decoder = msgspec.json.Decoder(kind, dec_hook=from_plain)
            self._read_fields(type_info(kind))
        except (TypeError, NotImplementedError) as error:
            raise ConfigurationError(f"task {name!r}: its items cannot travel as JSON ({error})") from error
        self._given: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])

    def _read_fields(self, info: Any) -> None:
        self.free_form = isinstance(info, DictType) and isinstance(info.key_type, (StrType, AnyType))
        known = isinstance(info, (DataclassType, TypedDictType)) or (isinstance(info, StructType) and not info.array_like)
        if not known and not self.free_form:
            raise ConfigurationError(
                f"task {self.task!r}: an item is a JSON object, so its type is a msgspec.Struct, a dataclass, a TypedDict or "
                "dict[str, Any]; wrap a single value in one of them"
            )
        fields = [] if self.free_form else list(info.fields)
        if isinstance(info, TypedDictType):
            written = list(info.cls.__annotations__)  # msgspec gives them by name
            fields.sort(key=lambda field: written.index(field.name))
        self.names = tuple(field.encode_name for field in fields)
        self.required = frozenset(field.encode_name for field in fields if field.required)
        self._known = frozenset(self.names) | {getattr(info, "tag_field", None)}

    def _check(self, encoded: bytes | str) -> Any:
        item = super()._check(encoded)
        # Most types let pass what they do not know; a slip in a name would be an item without that value.
        if not self.free_form and (unknown := self._given.decode(encoded).keys() - self._known):
            raise InvalidPayload(self._explain(f"Object contains unknown field `{min(unknown)}`"))
        return item

    def read(self, encoded: str) -> Any:
        """The item that a stored payload is."""
        try:
            return self._check(encoded)
        except InvalidPayload as error:
            raise PayloadMismatch(str(error)) from None


def outcomes(answer: Any, count: int) -> list[Any]:
    """What became of each item, by what the handler returned: a result, or the exception by which it alone has failed."""
    if answer is None:
        return [None] * count
    if isinstance(answer, list) and len(answer) == count:
        return answer
    what = f"a list of {len(answer)}" if isinstance(answer, list) else f"an object of type {type(answer).__qualname__}"
    raise BatchMismatch(
        f"the handler was given {count} items and returned {what}, so which result is whose is not known, and all of them count "
        "as failed: return None, or a list with a result or an exception for each item"
    )
