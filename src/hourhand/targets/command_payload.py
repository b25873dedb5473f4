"""What the payload of a command run may say: its arguments, and the order that is made of them.

Looked at when the run or the job is made, and again when it is executed: payloads also come in by SQL. Which programs may be
started is not decided here but by each worker, for itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from hourhand.core.context import Context
from hourhand.core.errors import InvalidPayload, PayloadMismatch
from hourhand.core.payload import Codec

MOST_ARGUMENTS = 1_000
LONGEST_ARGUMENT = 128 * 1024 - 1
"""Bytes. Linux takes no more of a single argument or variable."""
MOST_VARIABLES = 256
LONGEST_PATH = 4_000
LONGEST_GRACE = 600.0
OUTPUT = 16 * 1024
LARGEST_OUTPUT = 256 * 1024
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\$?")
# With one of these, whoever may say the environment of a program may say what code runs in it: where libraries, modules and
# other programs are looked for, what is read before the program starts. HOME is among them, as Python and others load from it.
_LOADERS = ("LD_", "DYLD_", "PYTHON", "PERL", "RUBY", "BASH", "LUA_", "GCONV_", "GLIBC_", "MALLOC_", "GIT_")
_LOADER_NAMES = (
    "PATH", "HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "ENV", "IFS", "CDPATH", "PS4", "SHELLOPTS", "NODE_OPTIONS", "NODE_PATH",
    "CLASSPATH", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "PHPRC", "PHP_INI_SCAN_DIR", "OPENSSL_CONF",
    "OPENSSL_ENGINES", "GETCONF_DIR", "LOCPATH", "NLSPATH", "HOSTALIASES", "LOCALDOMAIN", "RES_OPTIONS", "RESOLV_HOST_CONF",
    "NIS_PATH",
)  # fmt: skip
_HARMLESS = ("PYTHONUNBUFFERED", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE")


def arguments(
    ctx: Context, *, argv: list[str], env: dict[str, str] | None = None, cwd: str | None = None, user: str | None = None,
    group: str | None = None, stdin: str | None = None, success_codes: list[int] | None = None,
    retry_codes: list[int] | None = None, permanent_codes: list[int] | None = None, grace: float = 5.0, output: int = OUTPUT,
) -> None:  # fmt: skip
    """The signature that payloads are checked against."""


@dataclass(frozen=True, slots=True)
class Order:
    """A payload that has been understood."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    user: str | None
    group: str | None
    stdin: bytes | None
    success: frozenset[int]
    retry: frozenset[int] | None
    """None: every failure that is not permanent is worth another attempt."""
    permanent: frozenset[int]
    grace: float
    output: int

    def gives_up_on(self, code: int) -> bool:
        return code in self.permanent or (self.retry is not None and code not in self.retry)


class CommandCodec(Codec):
    """Payloads of command runs: JSON in, an `Order` out."""

    def __init__(self) -> None:
        super().__init__("command", arguments)

    def _check(self, encoded: bytes | str) -> Order:
        try:
            given = super()._check(encoded)
        except InvalidPayload:
            _explain_shell(encoded)
            raise
        try:
            return read_order(given)
        except InvalidPayload as error:
            raise InvalidPayload(f"task 'command': {error}") from None

    def decode(self, encoded: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        try:
            return (self._check(encoded),), {}
        except InvalidPayload as error:
            raise PayloadMismatch(str(error)) from None

    def read(self, payload: Mapping[str, Any]) -> Order:
        return self._check(self.encode(payload))


def _explain_shell(encoded: bytes | str) -> None:
    """The most likely mistake deserves better words than those of a type."""
    given = msgspec.json.decode(encoded)
    if isinstance(given, dict) and isinstance(given.get("argv"), str):
        raise InvalidPayload(
            "task 'command': argv is a list, the program first and then each of its arguments, such as "
            '["/usr/bin/rsync", "-a", "/srv/a", "/srv/b"]; no shell reads it, so a single text is refused'
        )


def read_order(given: Any) -> Order:
    """`given` has an attribute for each argument, of the right type."""
    _check_argv(given.argv)
    if given.cwd is not None:
        _check_text("cwd", given.cwd, LONGEST_PATH)
        if not given.cwd.startswith("/"):
            raise InvalidPayload(f"cwd must be an absolute path, not {given.cwd!r}")
    for name in ("user", "group"):
        value = getattr(given, name)
        if value is not None and not _ACCOUNT.fullmatch(value):
            raise InvalidPayload(f"{value!r} cannot be the name of a {name}")
    if given.group is not None and given.user is None:
        raise InvalidPayload("group goes with user: say which user's rights the program is to have")
    if not 0 <= given.grace <= LONGEST_GRACE:
        raise InvalidPayload(f"grace must be from 0 to {LONGEST_GRACE:g} seconds, not {given.grace!r}")
    if not 0 <= given.output <= LARGEST_OUTPUT:
        raise InvalidPayload(f"output must be from 0 to {LARGEST_OUTPUT} bytes, not {given.output!r}")
    success, retry, permanent = _codes(given)
    return Order(
        tuple(given.argv), _variables(given.env or {}), given.cwd or "/", given.user, given.group,
        None if given.stdin is None else given.stdin.encode(), success, retry, permanent, float(given.grace), given.output,
    )  # fmt: skip


def _check_argv(argv: list[str]) -> None:
    if not argv or not argv[0]:
        raise InvalidPayload("argv is empty: its first text is the program")
    if len(argv) > MOST_ARGUMENTS:
        raise InvalidPayload(f"argv has {len(argv):,} texts; the limit is {MOST_ARGUMENTS:,}")
    for place, text in enumerate(argv):
        _check_text(f"argv[{place}]", text, LONGEST_ARGUMENT)


def _check_text(name: str, text: str, limit: int) -> None:
    if "\0" in text:
        raise InvalidPayload(f"{name} contains a NUL character, which no program can be given")
    if len(text.encode()) > limit:
        raise InvalidPayload(f"{name} is longer than {limit:,} bytes; pass long data by stdin")


def _variables(given: dict[str, str]) -> dict[str, str]:
    if len(given) > MOST_VARIABLES:
        raise InvalidPayload(f"env has {len(given):,} variables; the limit is {MOST_VARIABLES:,}")
    for name, value in given.items():
        if not _VARIABLE.fullmatch(name):
            raise InvalidPayload(f"{name!r} cannot be the name of a variable in env: use letters, digits and '_'")
        if name.startswith("HOURHAND_"):
            raise InvalidPayload(f"{name} in env: variables that begin with HOURHAND_ are set by the worker")
        if name in _LOADER_NAMES or (name.startswith(_LOADERS) and name not in _HARMLESS):
            raise InvalidPayload(
                f"{name} in env decides what code a program loads, and is refused; if the program needs it, "
                "have a script on the worker set it, and allow that script"
            )
        _check_text(f"{name} in env", value, LONGEST_ARGUMENT - len(name) - 1)
    return dict(given)


def _codes(given: Any) -> tuple[frozenset[int], frozenset[int] | None, frozenset[int]]:
    lists = {
        "success_codes": [0] if given.success_codes is None else given.success_codes,
        "retry_codes": given.retry_codes or [],
        "permanent_codes": given.permanent_codes or [],
    }
    if not lists["success_codes"]:
        raise InvalidPayload("success_codes is empty: no exit code could ever be right")
    places: dict[int, str] = {}
    for name, codes in lists.items():
        for code in codes:
            if not 0 <= code <= 255:
                raise InvalidPayload(f"{name} takes exit codes from 0 to 255, not {code}")
            if places.setdefault(code, name) != name:
                raise InvalidPayload(f"exit code {code} is in {places[code]} and in {name}; it can mean only one of them")
    success, retry, permanent = (frozenset(codes) for codes in lists.values())
    return success, None if given.retry_codes is None else retry, permanent
