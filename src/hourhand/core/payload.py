"""Arguments in, JSON out, and back: checked against the handler's signature.

What a handler receives is always what its arguments look like after a trip through JSON,
so a call that type-checks here cannot surprise the worker later.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import types
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec

from hourhand.core.context import Context
from hourhand.core.errors import ConfigurationError, InvalidPayload, PayloadMismatch

MAX_PAYLOAD = 1024 * 1024
RESERVED = "$sealed"
"""The one name that no argument can have: what is encrypted is stored under it."""
_PLAIN = (str, int, bool, type(None))
_SAFE = (bytes, Decimal, UUID)


def _is_pydantic(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_dump")


def to_plain(value: Any) -> Any:
    """What msgspec does not know by itself: pydantic models."""
    if _is_pydantic(type(value)):
        # By alias, because that is how model_validate wants it back.
        return value.model_dump(mode="json", by_alias=True)
    raise NotImplementedError(f"objects of type {type(value).__qualname__} cannot be stored as JSON")


def from_plain(kind: type, value: Any) -> Any:
    if _is_pydantic(kind):
        try:
            return kind.model_validate(value)  # type: ignore[attr-defined]
        except ValueError as error:
            raise _without_values(error) from None
    raise NotImplementedError(f"arguments of type {kind!r} cannot be read back from JSON")


def _without_values(error: ValueError) -> ValueError:
    """What a model says about its input, without the input: shortened by the model, a secret in it could not be found again."""
    told = getattr(error, "errors", None)
    if told is None:
        return error
    faults = told(include_url=False, include_context=False, include_input=False)
    return ValueError("; ".join(f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in faults))


_encoder = msgspec.json.Encoder(enc_hook=to_plain)


def check_plain(value: Any, path: str) -> None:
    """Refuse what JSON would bend silently: NaN, infinities, naive datetimes, NUL characters."""
    kind = type(value)
    if kind is str:
        if "\0" in value:
            raise InvalidPayload(f"{path} contains a NUL character, which PostgreSQL cannot store")
    elif kind in _PLAIN or kind in _SAFE:
        return
    elif kind is float:
        if not math.isfinite(value):
            raise InvalidPayload(f"{path} is {value!r}, which JSON cannot carry")
    elif isinstance(value, dict):
        for key, item in value.items():
            check_plain(key, f"a key of {path}")
            check_plain(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, item in enumerate(value):
            check_plain(item, f"{path}[{index}]")
    elif isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidPayload(
                f"{path} is a naive datetime ({value.isoformat()}): it does not say which instant it "
                "means. Give it a time zone, for example tzinfo=datetime.UTC"
            )
    elif isinstance(value, Enum):
        check_plain(value.value, path)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            check_plain(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            check_plain(getattr(value, name), f"{path}.{name}")
    elif _is_pydantic(kind):
        for name in kind.model_fields:
            check_plain(getattr(value, name), f"{path}.{name}")
        for name, item in (value.model_extra or {}).items():
            check_plain(item, f"{path}.{name}")


def check_arguments(arguments: Any, subject: str) -> dict[str, Any]:
    """The arguments as a dict, names and values checked."""
    if type(arguments) is not dict and not isinstance(arguments, Mapping):
        raise InvalidPayload(f"{subject} must be a mapping, not {type(arguments).__name__}")
    if RESERVED in arguments:
        raise InvalidPayload(f"{subject}: no argument can be named {RESERVED}, which stands for an encrypted payload")
    try:
        for name, value in arguments.items():
            if type(name) is not str or "\0" in name:
                raise InvalidPayload(f"{subject}: the key {name!r} is not text, or contains a NUL character")
            if type(value) is not int:
                check_plain(value, name)
    except RecursionError:
        raise InvalidPayload(f"{subject}: nested too deeply, or containing itself") from None
    return dict(arguments)


def dump(arguments: Any, subject: str) -> bytes:
    """JSON for a mapping of arguments (or a result), or an error that names the culprit."""
    try:
        encoded = _encoder.encode(arguments)
    except Exception as error:  # a model's own serialiser may raise anything
        raise InvalidPayload(f"{subject} cannot be stored as JSON: {error}") from error
    return encoded


class Unkept:
    """A result that the child process which had it could not pass on, and why."""

    def __init__(self, remark: str) -> None:
        self.remark = remark


def encode_result(result: Any, limit: int) -> tuple[str | None, str | None]:
    """A handler's result as JSON text, or why it cannot be kept: the work is done, so that is only a remark."""
    if result is None:
        return None, None
    if isinstance(result, Unkept):
        return None, result.remark
    try:
        encoded = bytes(result) if isinstance(result, msgspec.Raw) else dump(result, "the result")
    except InvalidPayload as error:
        return None, f"result not kept: {error}"
    if len(encoded) > limit:
        return None, f"result not kept: {len(encoded):,} bytes, over the limit of {limit:,}"
    if b"\\u0000" in encoded:
        return None, "result not kept: it contains a NUL character, which PostgreSQL cannot store"
    return encoded.decode(), None


MAX_REPORT = 16 * 1024


def check_report(data: Mapping[str, Any]) -> None:
    """Progress must fit into a row that is written every second; the handler hears if it does not."""
    for name, value in data.items():
        check_plain(value, f"progress {name}")
    if len(dump(data, "the progress report")) > MAX_REPORT:
        raise InvalidPayload(f"a progress report may be at most {MAX_REPORT:,} bytes of JSON")


def _aware(hint: Any) -> Any:
    """The same type, with every datetime required to carry its zone."""
    if hint is datetime:
        return Annotated[datetime, msgspec.Meta(tz=True)]
    origin, arguments = get_origin(hint), get_args(hint)
    if not arguments or origin is None or origin is Annotated:
        return hint
    if origin is Union or origin is types.UnionType:
        return Union[tuple(_aware(one) for one in arguments)]  # noqa: UP007
    if origin in (list, set, frozenset, tuple, dict):
        return origin[tuple(one if one is Ellipsis else _aware(one) for one in arguments)]
    return hint


def _always(value: Any) -> Callable[[], Any]:
    return lambda: value


def resolve(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """The types that the annotations of a task's function name."""
    try:
        return get_type_hints(function, include_extras=True)
    except Exception as error:
        raise ConfigurationError(
            f"task {name!r}: the annotations of {function.__qualname__} cannot be resolved ({error}); "
            "import what they name where the function is defined"
        ) from error


class Codec:
    """Arguments of one task, to JSON and back."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.task = name
        hints = resolve(name, function)
        parameters = list(inspect.signature(function).parameters.values())
        self.takes_context = bool(parameters) and (hints.get(parameters[0].name) is Context or parameters[0].name == "ctx")
        if self.takes_context:
            parameters = parameters[1:]
        self.names: tuple[str, ...] = ()
        self.free_form = False
        fields: list[Any] = []
        keyword_only = False
        for parameter in parameters:
            if parameter.kind is parameter.VAR_KEYWORD:
                self.free_form = True
                continue
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
                raise ConfigurationError(
                    f"task {name!r}: arguments travel by name, so *{parameter.name} or a positional-only "
                    "parameter cannot be filled; give it a name"
                )
            keyword_only = keyword_only or parameter.kind is parameter.KEYWORD_ONLY
            hint = _aware(hints.get(parameter.name, Any))
            if parameter.default is parameter.empty:
                fields.append((parameter.name, hint))
            else:
                fields.append((parameter.name, hint, msgspec.field(default_factory=_always(parameter.default))))
        self.names = tuple(field[0] for field in fields)
        self.required = frozenset(field[0] for field in fields if len(field) == 2)
        self._by_name = keyword_only or self.free_form
        self._empty = not fields and not self.free_form
        try:
            struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=not self.free_form, gc=False)
            self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(struct, dec_hook=from_plain)
        except TypeError as error:
            raise ConfigurationError(f"task {name!r}: its arguments cannot travel as JSON ({error})") from error

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Positional arguments get their names."""
        if not args:
            return kwargs
        if len(args) > len(self.names):
            raise InvalidPayload(f"task {self.task!r} takes {len(self.names)} arguments, {len(args)} were given")
        named = dict(zip(self.names, args, strict=False))
        for name in named:
            if name in kwargs:
                raise InvalidPayload(f"task {self.task!r} got two values for {name!r}")
        return named | kwargs

    def encode(self, arguments: Mapping[str, Any]) -> str:
        """JSON for these arguments, after checking that the handler will accept them."""
        subject = f"the arguments of task {self.task!r}"
        encoded = dump(check_arguments(arguments, subject), subject)
        if len(encoded) > MAX_PAYLOAD:
            raise InvalidPayload(
                f"{subject} are {len(encoded):,} bytes of JSON; the limit is "
                f"{MAX_PAYLOAD:,}. Store the data elsewhere and pass a reference to it"
            )
        self._check(encoded)
        return encoded.decode()

    def encode_partly(self, arguments: Mapping[str, Any], later: tuple[str, ...]) -> str:
        """JSON for some arguments, where the ones named in `later` come when it runs: then only names can be checked."""
        if not later:
            return self.encode(arguments)
        unknown = set(arguments) - set(self.names)
        missing = self.required - set(arguments) - set(later)
        if unknown and not self.free_form:
            raise InvalidPayload(self._explain(f"unknown argument `{min(unknown)}`"))
        if missing:
            raise InvalidPayload(self._explain(f"missing argument `{min(missing)}`"))
        return encode_untyped(self.task, arguments)

    def _check(self, encoded: bytes | str) -> Any:
        try:
            return self._decoder.decode(encoded)
        except (msgspec.ValidationError, msgspec.DecodeError, ValueError) as error:
            raise InvalidPayload(self._explain(str(error))) from error

    def check(self, encoded: bytes | str) -> None:
        """Refuse JSON (an edited payload, another program's) that the handler could not take."""
        self._check(encoded)

    def _explain(self, message: str) -> str:
        message = message.replace("Object missing required field", "missing argument")
        message = message.replace("Object contains unknown field", "unknown argument")
        signature = ", ".join(self.names) or "nothing"
        return f"task {self.task!r}: {message} (it takes {signature})"

    def decode(self, encoded: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments for the handler."""
        if self._empty and encoded == "{}":
            return (), {}
        try:
            values = self._check(encoded)
        except InvalidPayload as error:
            raise PayloadMismatch(str(error)) from None
        if self.free_form:
            return (), msgspec.json.decode(encoded) | msgspec.structs.asdict(values)
        if self._by_name:
            return (), msgspec.structs.asdict(values)
        return msgspec.structs.astuple(values), {}


def encode_untyped(task: str, payload: Mapping[str, Any]) -> str:
    """JSON for a task whose code is elsewhere: only its JSON-ness can be checked."""
    subject = f"the payload of task {task!r}"
    encoded = dump(check_arguments(payload, subject), subject)
    if len(encoded) > MAX_PAYLOAD:
        raise InvalidPayload(f"{subject} is {len(encoded):,} bytes of JSON; the limit is {MAX_PAYLOAD:,}")
    return encoded.decode()
