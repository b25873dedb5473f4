"""Statements by name, out of the .sql files.

The files are written for the schema `hourhand`. Another schema is put in by replacing the
qualifier `hourhand.` and the channel `'hourhand'`; nothing else in them is a template.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files

from hourhand.core.errors import ConfigurationError

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_QUALIFIER = re.compile(r"\bhourhand\.")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,39}")
DEFAULT_SCHEMA = "hourhand"


def check_schema(schema: str) -> str:
    if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        raise ConfigurationError(
            f"{schema!r} cannot be the schema: use 1 to 40 lower-case letters, digits and '_', not starting with a digit or pg_"
        )
    return schema


def for_schema(text: str, schema: str) -> str:
    if schema == DEFAULT_SCHEMA:
        return text
    return _QUALIFIER.sub(f"{schema}.", text).replace("'hourhand'", f"'{schema}'")


@lru_cache
def load(schema: str = DEFAULT_SCHEMA) -> dict[str, str]:
    """Every statement, ready for this schema."""
    statements: dict[str, str] = {}
    for file in sorted(files("hourhand.storage").joinpath("sql").iterdir(), key=lambda one: one.name):
        if not file.name.endswith(".sql"):
            continue
        parts = _NAME.split(file.read_text())[1:]
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            if name in statements:
                raise AssertionError(f"two statements are named {name}")
            statements[name] = for_schema(body, check_schema(schema)).strip().rstrip(";")
    return statements
