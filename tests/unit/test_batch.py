"""Handlers of batches: what can be declared, what an item is, what a handler may return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, NotRequired, TypedDict

import msgspec
import pytest

from hourhand import BatchContext, Context, Hourhand
from hourhand.core.batch import outcomes
from hourhand.core.context import Support
from hourhand.core.errors import BatchMismatch, ConfigurationError, InvalidPayload, PayloadMismatch
from hourhand.core.task import define_task
from hourhand.targets.python import direct_call


class Document(msgspec.Struct):
    url: str
    size: int = 0


@dataclass
class Letter:
    to: str
    copies: int = 1


class Order(TypedDict):
    number: int
    note: NotRequired[str]


class Pair(msgspec.Struct, array_like=True):
    first: int


async def structs(items: list[Document]) -> None: ...
async def dataclasses(ctx: BatchContext, items: list[Letter]) -> None: ...
def typed_dicts(ctx, items: list[Order]) -> None: ...  # type: ignore[no-untyped-def]
async def free(items: list[dict[str, Any]]) -> None: ...


async def no_list(items: Document) -> None: ...
async def bare_list(items: list) -> None: ...  # type: ignore[type-arg]
async def two(items: list[Document], more: int = 0) -> None: ...
async def several(*items: Document) -> None: ...
async def by_keyword(*, items: list[Document]) -> None: ...
async def nothing() -> None: ...
async def of_one_run(ctx: Context, items: list[Document]) -> None: ...
async def numbers(items: list[int]) -> None: ...
async def arrays(items: list[Pair]) -> None: ...
async def by_number(items: list[dict[int, str]]) -> None: ...


@pytest.mark.parametrize(
    ("function", "names", "good", "bad"),
    [
        (structs, ("url", "size"), {"url": "a"}, [{}, {"url": 1}, {"url": "a", "sise": 3}]),
        (dataclasses, ("to", "copies"), {"to": "a", "copies": 2}, [{"copies": 2}, {"to": "a", "copies": "2"}, {"to": "a", "x": 1}]),
        (typed_dicts, ("number", "note"), {"number": 1}, [{"note": "a"}, {"number": "1"}, {"number": 1, "nota": "a"}]),
        (free, (), {"whatever": [1, 2]}, [{"a": float("nan")}]),
    ],
)  # fmt: skip
def test_an_item_is_checked_against_its_type(
    function: Callable[..., Any], names: tuple[str, ...], good: dict[str, Any], bad: list[dict[str, Any]]
) -> None:
    codec = define_task(function, batch=2).codec
    assert codec.names == names
    kind = codec.read(codec.encode(good))  # type: ignore[attr-defined]
    assert msgspec.to_builtins(kind) == {**msgspec.to_builtins(kind), **good}
    for one in bad:
        with pytest.raises(InvalidPayload):
            codec.encode(one)
        if function is not free:
            with pytest.raises(PayloadMismatch):
                codec.read(msgspec.json.encode(one).decode())  # type: ignore[attr-defined]


def test_fields_can_be_given_by_place_and_secrets_are_fields() -> None:
    definition = define_task(structs, batch=2, secret=["url"])
    assert definition.codec.encode(definition.codec.bind(("a", 3), {})) == '{"url":"a","size":3}'
    with pytest.raises(ConfigurationError, match="secret names 'password', but its function takes url, size"):
        define_task(structs, batch=2, secret=["password"])


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (no_list, "takes one list of items"), (bare_list, "takes one list of items"), (two, "takes one list of items"),
        (several, "takes one list of items"), (by_keyword, "takes one list of items"), (nothing, "takes one list of items"),
        (of_one_run, "is given a BatchContext"), (numbers, "an item is a JSON object"), (arrays, "an item is a JSON object"),
        (by_number, "an item is a JSON object"),
    ],
)  # fmt: skip
def test_a_function_that_takes_no_list_of_items_is_refused(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        define_task(function, batch=2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": 1}, "from 2 to 10,000"), ({"batch": 10_001}, "from 2 to 10,000"), ({"batch": True}, "from 2 to 10,000"),
        ({"batch": "3"}, "from 2 to 10,000"), ({"batch": 2.0}, "from 2 to 10,000"),
        ({"batch": 2, "linger": -1}, "from 0 to 60 seconds"), ({"batch": 2, "linger": 61}, "from 0 to 60 seconds"),
        ({"batch": 2, "linger": float("nan")}, "from 0 to 60 seconds"), ({"batch": 2, "linger": "1s"}, "from 0 to 60 seconds"),
        ({"batch": 2, "isolation": "process"}, "the worker's own process"),
        ({"batch": 2, "delivery": "exactly_once"}, "delivered at least once"),
        ({"batch": 2, "delivery": "at_most_once"}, "delivered at least once"),
        ({"linger": 1}, "say batch=... as well"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_a_batch_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Hourhand().task(**options)(structs)


def test_how_long_a_batch_lingers() -> None:
    assert define_task(structs, batch=10_000).linger == 0.05
    assert define_task(structs, batch=2, linger=0).linger == 0
    assert define_task(structs, batch=2, linger=timedelta(minutes=1)).linger == 60
    assert define_task(structs, batch=2).batch == 2


def test_what_a_handler_may_return() -> None:
    error = ValueError("no")
    assert outcomes(None, 3) == [None, None, None]
    assert outcomes([1, error, None], 3) == [1, error, None]
    for wrong in ([1, 2], [1, 2, 3, 4], [], (1, 2, 3), {"a": 1}, "abc", 3, True):
        with pytest.raises(BatchMismatch, match="given 3 items and returned"):
            outcomes(wrong, 3)


async def test_called_alone_it_is_a_batch_of_one() -> None:
    seen: list[Any] = []

    async def handle(ctx: BatchContext, items: list[Document]) -> Any:
        seen.append((ctx.items[0], items))
        return answers.pop(0)

    async def middleware(ctx: Any, call_next: Any) -> Any:
        seen.append(type(ctx))
        return await call_next()

    call = direct_call(define_task(handle, batch=5), [middleware], None)  # type: ignore[arg-type]
    context = Context(SimpleNamespace(task="handle"), Support(lambda *_: None))
    answers: list[Any] = [None, ["done"], [KeyError("own")], ["one", "too many"]]
    assert await call(context, '{"url":"a"}') is None
    assert seen == [BatchContext, (context, [Document("a")])]
    assert await call(context, '{"url":"a"}') == "done"
    with pytest.raises(KeyError, match="own"):
        await call(context, '{"url":"a"}')
    with pytest.raises(BatchMismatch):
        await call(context, '{"url":"a"}')


def test_what_belongs_to_a_run_is_with_its_item() -> None:
    contexts = [Context(SimpleNamespace(task="index"), Support(lambda *_: None, "the state")) for _ in range(2)]
    ctx = BatchContext(contexts)
    assert (ctx.task, ctx.state, len(ctx.items)) == ("index", "the state", 2)
    with pytest.raises(AttributeError, match=r"ctx\.items\[0\]\.run_id"):
        ctx.run_id  # type: ignore[attr-defined]  # noqa: B018
    contexts[0]._watch().set()
    assert not ctx.cancelled
    contexts[1]._watch().set()
    assert ctx.cancelled
