"""Statements by name, for whichever schema."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from hourhand import ConfigurationError
from hourhand.storage import statements
from hourhand.storage.migrate import migrations


def test_every_named_statement_of_every_file_is_loaded_once() -> None:
    texts = [file.read_text() for file in files("hourhand.storage").joinpath("sql").iterdir()]
    names = [name for text in texts for name in re.findall(r"^-- name: (\w+)$", text, re.MULTILINE)]
    assert sorted(names) == sorted(statements.load())
    assert {"enqueue", "claim", "finish", "find_run"} <= set(names)


def test_a_statement_comes_without_the_semicolon_and_is_one_statement() -> None:
    for name, text in statements.load().items():
        bare = re.sub(r"--[^\n]*|'[^']*'", "", text)
        assert ";" not in bare, name


def test_another_schema_replaces_the_qualifier_and_the_channel_everywhere() -> None:
    for name, text in statements.load("other").items():
        bare = re.sub(r"--[^\n]*", "", text)
        assert "hourhand" not in bare, name
    assert "'other'" in statements.load("other")["notify"]


def test_another_schema_reaches_the_migrations() -> None:
    for one in migrations("other"):
        bare = re.sub(r"--[^\n]*", "", one.sql)
        # The one word left names a setting of the transaction, not an object of the schema.
        assert set(re.findall(r"\w*hourhand\w*\.?", bare)) <= {"hourhand_wake."}


def test_the_default_schema_leaves_the_text_as_it_is_written() -> None:
    assert statements.for_schema("SELECT 1 FROM hourhand.ready", "hourhand") == "SELECT 1 FROM hourhand.ready"
    assert statements.for_schema("'hourhand' hourhand.x my_hourhand.y", "a_1") == "'a_1' a_1.x my_hourhand.y"


@pytest.mark.parametrize("schema", ["a", "_", "hourhand2", "a" * 40, "tenant_7"])
def test_schema_names_that_need_no_quoting_are_taken(schema: str) -> None:
    assert statements.check_schema(schema) == schema


@pytest.mark.parametrize(
    "schema", ["", "A", "Billing", "1st", "a-b", "a.b", "a b", 'a"b', "a;drop table x", "a\n", "pg_mine", "a" * 41, "é", "%s"]
)
def test_schema_names_that_could_mean_something_else_are_refused(schema: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the schema"):
        statements.check_schema(schema)
    with pytest.raises(ConfigurationError, match="cannot be the schema"):
        statements.load(schema)
