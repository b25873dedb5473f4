"""Pickles, read without unpickling them.

A pickle is a program: unpickling imports whatever it names and calls it with whatever it says. Here its instructions are
followed on paper. A name stays a name, a call stays a note of what would have been called, and nothing is imported, called or
looked up. What comes out are plain values, `Name`s and `Made` objects, for the caller to recognise or refuse.
"""

from __future__ import annotations

import pickletools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LARGEST = 1024 * 1024
MOST_INSTRUCTIONS = 100_000
DEEPEST = 20
MOST_VALUES = 10_000


class Unreadable(ValueError):
    """What is wrong with the bytes, or what in them is not understood."""


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    """Something importable, by its name only."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(slots=True, eq=False)
class Made:
    """An object that unpickling would have made, and from what."""

    by: Any
    arguments: Any = ()
    state: Any = None

    def __str__(self) -> str:
        # Not of what made the maker: that chain is as long as a stranger likes.
        return str(self.by) if isinstance(self.by, Name) else "made by another object"


def read_pickle(data: bytes) -> Any:
    if len(data) > LARGEST:
        raise Unreadable(f"it is larger than {LARGEST // 1024} KiB")
    machine = _Machine()
    # What is damaged may look like text with strange escapes, which Python only warns of.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return _followed(machine, data)


def _followed(machine: _Machine, data: bytes) -> Any:
    try:
        for count, (instruction, argument, _) in enumerate(pickletools.genops(data)):
            if count > MOST_INSTRUCTIONS:
                raise Unreadable(f"it has more than {MOST_INSTRUCTIONS:,} instructions")
            if instruction.name == "STOP":
                return machine.pop()
            machine.follow(instruction.name, argument)
    except Unreadable:
        raise
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, AttributeError, UnicodeError) as error:
        raise Unreadable(f"it is damaged, or no pickle at all ({error})") from None
    raise Unreadable("it is cut short")


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def follow(self, name: str, argument: Any) -> None:
        if name in _CONSTANTS:
            self.stack.append(argument if name in _CARRY_THEIR_VALUE else _CONSTANTS[name])
        elif name in _INSTRUCTIONS:
            _INSTRUCTIONS[name](self, argument)
        elif name not in ("PROTO", "FRAME"):
            raise Unreadable(f"its instruction {name} is not followed here")

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        """What was put down since the last mark, which goes with it."""
        items, self.stack = self.stack, self.marks.pop()
        return items

    def mark(self) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def made(self, by: Any, arguments: Any) -> None:
        if not isinstance(by, (Name, Made)) or not isinstance(arguments, tuple):
            raise Unreadable("it calls what cannot be called, or with what are no arguments")
        if str(by) == "_codecs.encode" and len(arguments) == 2 and isinstance(arguments[0], str):
            # How bytes are written where there was no way to write bytes yet.
            self.stack.append(arguments[0].encode("latin-1"))
        elif str(by) in ("copyreg._reconstructor", "copy_reg._reconstructor", "copyreg.__newobj__") and arguments:
            self.stack.append(Made(arguments[0]))
        else:
            self.stack.append(Made(by, arguments))

    def build(self, state: Any) -> None:
        if not isinstance(self.stack[-1], Made):
            raise Unreadable("it gives a state to what is no object")
        self.stack[-1].state = state

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(items)
        elif not isinstance(target, Made):
            raise Unreadable("it adds items to what is no list")

    def update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Made):
            return
        if not isinstance(target, dict) or len(items) % 2:
            raise Unreadable("it adds keys to what is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Nothing else makes a key here: hashing what a stranger has built can go as deep as he likes.
            if not isinstance(key, (str, int, float, bytes, type(None))):
                raise Unreadable("a key of a dictionary is neither text nor a number")
            target[key] = value

    def stack_name(self) -> None:
        name, module = self.pop(), self.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise Unreadable("a name in it is no text")
        self.stack.append(Name(module, name))

    def new(self, count: int) -> None:
        """A class, the arguments, perhaps those by name: they are left on paper like the rest."""
        parts = [self.pop() for _ in range(count)]
        self.made(parts[-1], parts[-2])

    def pop_or_unmark(self) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.stack = self.marks.pop()

    def take(self, count: int) -> tuple[Any, ...]:
        if len(self.stack) < count:
            raise Unreadable("it takes more than there is")
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        return items

    def called_with_rest(self) -> None:
        by, *arguments = self.since_mark()
        self.made(by, tuple(arguments))


_CARRY_THEIR_VALUE = frozenset({
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
})  # fmt: skip
_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(_CARRY_THEIR_VALUE),
    "NONE": None,
    "NEWTRUE": True,
    "NEWFALSE": False,
    "EMPTY_TUPLE": (),
}


def _pairs(items: list[Any], machine: _Machine) -> None:
    machine.stack.append({})
    machine.update(items)


def _remember(machine: _Machine, place: Any) -> None:
    machine.memo[place] = machine.stack[-1]


def _recall(machine: _Machine, place: Any) -> None:
    machine.stack.append(machine.memo[place])


_INSTRUCTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": lambda on, _: on.mark(),
    "POP": lambda on, _: on.pop_or_unmark(),
    "POP_MARK": lambda on, _: _dropped(on.since_mark()),
    "DUP": lambda on, _: on.push(on.stack[-1]),
    "EMPTY_LIST": lambda on, _: on.push([]),
    "EMPTY_DICT": lambda on, _: on.push({}),
    # Sets are lists here: JSON knows no others, and nothing has to be hashed.
    "EMPTY_SET": lambda on, _: on.push([]),
    "LIST": lambda on, _: on.push(on.since_mark()),
    "TUPLE": lambda on, _: on.push(tuple(on.since_mark())),
    "FROZENSET": lambda on, _: on.push(on.since_mark()),
    "DICT": lambda on, _: _pairs(on.since_mark(), on),
    "TUPLE1": lambda on, _: on.push(on.take(1)),
    "TUPLE2": lambda on, _: on.push(on.take(2)),
    "TUPLE3": lambda on, _: on.push(on.take(3)),
    "APPEND": lambda on, _: on.extend([on.pop()]),
    "APPENDS": lambda on, _: on.extend(on.since_mark()),
    "ADDITEMS": lambda on, _: on.extend(on.since_mark()),
    "SETITEM": lambda on, _: on.update(list(on.take(2))),
    "SETITEMS": lambda on, _: on.update(on.since_mark()),
    "PUT": _remember,
    "BINPUT": _remember,
    "LONG_BINPUT": _remember,
    "MEMOIZE": lambda on, _: _remember(on, len(on.memo)),
    "GET": _recall,
    "BINGET": _recall,
    "LONG_BINGET": _recall,
    "GLOBAL": lambda on, text: on.push(Name(*text.split(" ", 1))),
    "STACK_GLOBAL": lambda on, _: on.stack_name(),
    "REDUCE": lambda on, _: on.new(2),
    "NEWOBJ": lambda on, _: on.new(2),
    "NEWOBJ_EX": lambda on, _: on.new(3),
    "OBJ": lambda on, _: on.called_with_rest(),
    "INST": lambda on, text: on.made(Name(*text.split(" ", 1)), tuple(on.since_mark())),
    "BUILD": lambda on, _: on.build(on.pop()),
}


def _dropped(_: list[Any]) -> None:
    """What nobody asks for any more."""


def plain(value: Any, what: str) -> Any:
    """A value made of nothing but JSON's own kinds; bounded, as a few bytes can say the same list a million times over."""
    left = [MOST_VALUES]

    def copy(one: Any, path: str, depth: int) -> Any:
        left[0] -= 1
        if left[0] < 0 or depth > DEEPEST:
            raise Unreadable(f"{what} are nested too deeply, or too many")
        if one is None or isinstance(one, (bool, int, float, str)):
            return one
        if isinstance(one, (list, tuple)):
            return [copy(item, f"{path}[{place}]", depth + 1) for place, item in enumerate(one)]
        if isinstance(one, dict) and all(isinstance(key, str) for key in one):
            return {key: copy(item, f"{path}[{key!r}]" if path else key, depth + 1) for key, item in one.items()}
        kind = str(one) if isinstance(one, (Made, Name)) else type(one).__name__
        raise Unreadable(f"{f'{path} in {what}' if path else what} is an object ({kind}), and only JSON's own kinds can travel")

    return copy(value, "", 0)
