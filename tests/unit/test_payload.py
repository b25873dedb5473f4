"""Arguments in, JSON out, and back: what fits, and what is refused before anything is written."""

from __future__ import annotations

import collections
import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourhand import ConfigurationError, Context, InvalidPayload
from hourhand.core.payload import MAX_PAYLOAD, Codec, encode_untyped

AWARE = datetime(2030, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
NAIVE = datetime(2030, 1, 31, 12, 0)


@dataclass
class Address:
    street: str
    since: datetime | None = None


@dataclass
class Customer:
    name: str
    address: Address
    others: list[Address] = field(default_factory=list)


class Point(msgspec.Struct):
    x: int
    y: int = 0
    seen: datetime | None = None


class Order(pydantic.BaseModel):
    number: int
    total: Decimal
    placed: datetime | None = None
    lines: list[str] = []
    note: float | None = None


class Camel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(alias_generator=lambda name: name.title().replace("_", ""))
    order_id: int


class Loose(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")


class Colour(enum.Enum):
    RED = "red"


class BadText(enum.Enum):
    NUL = "a\0b"


class Pair(NamedTuple):
    first: Any
    second: Any


def called(codec: Codec, text: str, function: Callable[..., Any]) -> Any:
    args, kwargs = codec.decode(text)
    return function(*args, **kwargs)


def there_and_back(hint: Any, value: Any) -> Any:
    def handler(value: Any) -> Any:
        return value

    handler.__annotations__["value"] = hint
    codec = Codec("t", handler)
    return called(codec, codec.encode({"value": value}), handler)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, 7),
        (float, 1.5),
        (bool, True),
        (str, "naïve ☃ 😀"),
        (bytes, b"\x00\xff"),
        (int | None, None),
        (int | None, 3),
        (list[int], [1, 2]),
        (set[str], {"a"}),
        (tuple[int, str], (1, "a")),
        (tuple[int, ...], (1, 2, 3)),
        (dict[str, list[int]], {"a": [1]}),
        (dict[int, str], {1: "a"}),
        (Literal["a", "b"], "b"),
        (Colour, Colour.RED),
        (datetime, AWARE),
        (datetime, datetime(2030, 7, 1, 14, tzinfo=timezone(timedelta(hours=5, minutes=30)))),
        (datetime | None, AWARE),
        (list[datetime], [AWARE]),
        (dict[str, datetime], {"a": AWARE}),
        (date, date(2030, 1, 31)),
        (time, time(12, 30)),
        (timedelta, timedelta(days=1, seconds=2)),
        (UUID, UUID(int=7)),
        (Decimal, Decimal("10.10")),
        (Address, Address("Main", AWARE)),
        (Customer, Customer("Ann", Address("Main"), [Address("Side", AWARE)])),
        (list[Customer | None], [Customer("Ann", Address("Main")), None]),
        (Point, Point(1, 2, AWARE)),
        (dict[str, Point], {"a": Point(1)}),
        (Order, Order(number=1, total=Decimal("9.90"), placed=AWARE, lines=["a"])),
        (list[Order], [Order(number=1, total=Decimal(1))]),
        (Order | None, None),
        (Camel, Camel(OrderId=7)),
        (Pair, Pair(1, "a")),
    ],
)
def test_typed_arguments_come_back_as_they_went(hint: Any, value: Any) -> None:
    back = there_and_back(hint, value)
    assert back == value
    assert type(back) is type(value)


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=20,
)


@given(json_values)
def test_any_json_value_survives_an_untyped_handler(value: Any) -> None:
    assert there_and_back(Any, value) == value


@given(st.dictionaries(texts, json_values, max_size=5))
def test_any_json_object_survives_a_handler_that_takes_anything(payload: dict[str, Any]) -> None:
    codec = Codec("t", lambda **everything: everything)
    assert codec.decode(codec.encode(payload)) == ((), payload)
    assert msgspec.json.decode(encode_untyped("t", payload)) == payload


# What a handler is given


def plain(a: int, b: str = "x") -> Any:
    return a, b


def keyword_only(a: int, *, b: str = "x") -> Any:
    return a, b


def with_context(ctx: Context, a: int) -> Any:
    return a


def context_by_type(run: Context, a: int) -> Any:
    return a


def nothing() -> None: ...


def free(a: int, b: str = "x", **rest: Any) -> Any:
    return a, b, rest


@pytest.mark.parametrize(
    ("function", "given_as", "expected"),
    [
        (plain, {"a": 1}, (1, "x")),
        (plain, {"b": "y", "a": 1}, (1, "y")),
        (keyword_only, {"a": 1}, (1, "x")),
        (keyword_only, {"a": 1, "b": "y"}, (1, "y")),
        (nothing, {}, None),
        (free, {"a": 1}, (1, "x", {})),
        (free, {"a": 1, "b": "y", "c": [3]}, (1, "y", {"c": [3]})),
    ],
)
def test_defaults_keywords_and_free_arguments_reach_the_handler(function: Any, given_as: dict[str, Any], expected: Any) -> None:
    codec = Codec("t", function)
    assert called(codec, codec.encode(given_as), function) == expected


@pytest.mark.parametrize("function", [with_context, context_by_type])
def test_the_context_is_no_argument(function: Any) -> None:
    codec = Codec("t", function)
    assert codec.takes_context
    assert codec.names == ("a",)
    assert codec.decode(codec.encode({"a": 1})) == ((1,), {})


def test_positional_arguments_get_their_names() -> None:
    codec = Codec("t", plain)
    assert codec.bind((1,), {"b": "y"}) == {"a": 1, "b": "y"}
    with pytest.raises(InvalidPayload, match="takes 2 arguments, 3 were given"):
        codec.bind((1, "x", 3), {})
    with pytest.raises(InvalidPayload, match="two values for 'a'"):
        codec.bind((1,), {"a": 2})


# What is refused


@pytest.mark.parametrize(
    ("function", "given_as", "words"),
    [
        (plain, {}, r"missing argument `a` .*it takes a, b"),
        (plain, {"a": 1, "c": 2}, "unknown argument `c`"),
        (plain, {"a": "1"}, "Expected `int`, got `str`.*a"),
        (plain, {"a": None}, "Expected `int`, got `null`"),
        (plain, {"a": 1.5}, "Expected `int`, got `float`"),
        (keyword_only, {"b": "y"}, "missing argument `a`"),
        (nothing, {"a": 1}, "unknown argument `a`.*it takes nothing"),
        (free, {}, "missing argument `a`"),
        (free, {"a": "1"}, "Expected `int`"),
        (plain, [1, 2], "mapping"),
        (plain, 7, "mapping"),
        (free, {1: 2, "a": 1}, "not text"),
        (free, {"a": 1, "b\0": 2}, "NUL"),
    ],
)
def test_arguments_that_do_not_fit_the_signature_are_refused(function: Any, given_as: Any, words: str) -> None:
    with pytest.raises(InvalidPayload, match=words):
        Codec("t", function).encode(given_as)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Address, {"street": 7}),
        (Address, {}),
        (Point, {"x": "1"}),
        (Order, {"number": 1}),
        (Order, {"number": "one", "total": "1"}),
        (list[int], ["a"]),
        (UUID, "not a uuid"),
        (Decimal, "ten"),
        (Colour, "blue"),
        (datetime, "yesterday"),
        (datetime, "2030-01-31T12:00:00"),
        (datetime | None, "2030-01-31T12:00:00"),
        (list[datetime], ["2030-01-31T12:00:00"]),
        (dict[str, datetime], {"a": "2030-01-31T12:00:00"}),
        (date, "2030-02-30"),
    ],
)
def test_nested_values_of_the_wrong_type_are_refused(hint: Any, value: Any) -> None:
    with pytest.raises(InvalidPayload, match="task 't'"):
        there_and_back(hint, value)


ODD = {
    "a naive datetime": (NAIVE, "naive datetime"),
    "not a number": (math.nan, "JSON cannot carry"),
    "infinity": (-math.inf, "JSON cannot carry"),
    "a NUL character": ("a\0b", "NUL"),
    "an object": (object(), "cannot be stored as JSON"),
    "a function": (print, "cannot be stored as JSON"),
    "half a surrogate pair": ("\ud83d", "cannot be stored as JSON"),
    "an enum with a NUL": (BadText.NUL, "NUL"),
}
PLACES: dict[str, Callable[[Any], Any]] = {
    "alone": lambda value: value,
    "in a list": lambda value: [1, value],
    "in a tuple": lambda value: (value,),
    "in a dict": lambda value: {"k": value},
    "deep": lambda value: {"k": [{"k": (value,)}]},
    "in a dict subclass": lambda value: collections.OrderedDict(k=value),
    "in a defaultdict": lambda value: collections.defaultdict(list, k=value),
    "in a list subclass": type("Rows", (list,), {"__call__": None}),
    "in a named tuple": lambda value: Pair(1, value),
    "in a dataclass": lambda value: Address("Main", value),
    "in a dataclass in a list": lambda value: [Customer("Ann", Address("Main", value))],
    "in a struct": lambda value: Point(1, 2, value),
    "in a pydantic model": lambda value: Order.model_construct(number=1, total=Decimal(1), placed=value),
    "in a pydantic extra": lambda value: Loose(extra=value),
}


def put(place: str, value: Any) -> Any:
    return PLACES[place]([1, value] if place == "in a list subclass" else value)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", ODD)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_what_json_or_postgresql_would_bend_is_refused_wherever_it_hides(what: str, place: str) -> None:
    value, words = ODD[what]
    with pytest.raises(InvalidPayload, match=words):
        Codec("t", lambda value: value).encode({"value": put(place, value)})
    with pytest.raises(InvalidPayload, match=words):
        encode_untyped("t", {"value": put(place, value)})


@pytest.mark.parametrize("key", ["a\0b", NAIVE, (1, 2), None])
def test_keys_that_json_or_postgresql_would_bend_are_refused(key: Any) -> None:
    with pytest.raises(InvalidPayload):
        encode_untyped("t", {"value": {key: 1}})


def test_the_error_names_the_place() -> None:
    with pytest.raises(InvalidPayload, match=r"customer\.address\.since is a naive datetime"):
        encode_untyped("t", {"customer": Customer("Ann", Address("Main", NAIVE))})
    with pytest.raises(InvalidPayload, match=r"rows\[1\]\['k'\] is nan"):
        encode_untyped("t", {"rows": [0, {"k": math.nan}]})


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (loop, deep):
        with pytest.raises(InvalidPayload, match="nested too deeply"):
            Codec("t", lambda value: value).encode({"value": value})
        with pytest.raises(InvalidPayload, match="nested too deeply"):
            encode_untyped("t", {"value": value})


def test_one_mebibyte_of_json_fits_and_one_byte_more_does_not() -> None:
    fits = "x" * (MAX_PAYLOAD - len('{"value":""}'))
    codec = Codec("t", lambda value: value)
    assert len(codec.encode({"value": fits})) == MAX_PAYLOAD
    assert len(encode_untyped("t", {"value": fits})) == MAX_PAYLOAD
    for encode in (codec.encode, lambda payload: encode_untyped("t", payload)):
        with pytest.raises(InvalidPayload, match="1,048,577 bytes of JSON; the limit is 1,048,576"):
            encode({"value": fits + "x"})


@pytest.mark.parametrize("payload", [[1], "text", 7])
def test_a_payload_by_name_must_be_a_mapping(payload: Any) -> None:
    with pytest.raises(InvalidPayload, match="must be a mapping"):
        encode_untyped("t", payload)


def test_a_payload_by_name_has_text_keys() -> None:
    with pytest.raises(InvalidPayload, match="not text"):
        encode_untyped("t", {1: 2})  # type: ignore[dict-item]
    with pytest.raises(InvalidPayload, match="NUL"):
        encode_untyped("t", {"a\0": 2})


def test_json_from_elsewhere_is_checked_like_arguments() -> None:
    codec = Codec("t", plain)
    codec.check('{"a": 1}')
    for bad in ('{"a": "1"}', "{}", "[1]", '{"a": 1', ""):
        with pytest.raises(InvalidPayload, match="task 't'"):
            codec.check(bad)


# Signatures that cannot work are refused when the task is declared


def positional_only(a: int, /) -> None: ...


def var_positional(*args: int) -> None: ...


def unresolvable(a: NoSuchType) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def not_json(a: Callable[[], None] | Point | Address) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (positional_only, "arguments travel by name"),
        (var_positional, "arguments travel by name"),
        (unresolvable, "cannot be resolved.*NoSuchType"),
        (not_json, "cannot travel as JSON"),
    ],
)
def test_a_signature_that_cannot_travel_is_refused_where_it_is_declared(function: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Codec("t", function)
