"""Settings: from code, then the environment, then the defaults."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from hourhand import ConfigurationError, Hourhand
from hourhand.core.settings import Settings, settings_from

URL = "postgresql://user@host/db"


def test_without_anything_the_defaults_stand_and_the_embedded_server_is_meant() -> None:
    found = settings_from({})
    assert found == Settings()
    assert found.database_url is None
    assert (found.schema, found.lease, found.heartbeat) == ("hourhand", 15.0, 5.0)


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("HOURHAND_DATABASE_URL", URL, "database_url", URL),
        ("HOURHAND_DATABASE_URL", " postgres://host/db\n", "database_url", "postgres://host/db"),
        ("HOURHAND_DIRECT_URL", URL, "direct_url", URL),
        ("HOURHAND_DATA", "/srv/data", "data", Path("/srv/data")),
        ("HOURHAND_SCHEMA", "jobs", "schema", "jobs"),
        ("HOURHAND_LEASE", "30", "lease", 30.0),
        ("HOURHAND_GRACE", "0.5", "grace", 0.5),
        ("HOURHAND_POLL", "1.5", "poll", 1.5),
        ("HOURHAND_MAX_RESULT", "1024", "max_result", 1024),
    ],
)
def test_each_setting_has_its_variable(variable: str, text: str, name: str, value: Any) -> None:
    found = getattr(settings_from({variable: text}), name)
    assert found == value
    assert type(found) is type(value) or isinstance(value, Path)


def test_every_setting_says_its_variable_and_its_meaning() -> None:
    for one in fields(Settings):
        assert one.metadata["variable"] == f"HOURHAND_{one.name.upper()}"
        assert one.metadata["meaning"]


def test_what_is_given_wins_over_the_environment_and_none_is_not_given() -> None:
    environment = {"HOURHAND_SCHEMA": "outer", "HOURHAND_POLL": "9"}
    found = settings_from(environment, schema="inner", poll=None)
    assert (found.schema, found.poll) == ("inner", 9.0)


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_variable_is_not_set(blank: str) -> None:
    assert settings_from({"HOURHAND_DATABASE_URL": blank, "HOURHAND_LEASE": blank}) == Settings()


def test_a_home_directory_is_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert settings_from({"HOURHAND_DATA": "~/jobs"}).data == Path("/home/ann/jobs")
    assert settings_from({}, data="~/jobs").data == Path("/home/ann/jobs")


def test_the_app_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOURHAND_SCHEMA", "jobs")
    assert Hourhand(URL, lease=20).settings == Settings(database_url=URL, schema="jobs", lease=20)


@pytest.mark.parametrize(
    ("environment", "given", "words"),
    [
        ({"HOURHAND_LEASE": "soon"}, {}, r"HOURHAND_LEASE \(lease\) must be a number, not 'soon'"),
        ({"HOURHAND_MAX_RESULT": "1.5"}, {}, "HOURHAND_MAX_RESULT"),
        ({"HOURHAND_LEASE": "nan"}, {}, "lease must be a positive number"),
        ({"HOURHAND_LEASE": "inf"}, {}, "lease must be a positive number"),
        ({"HOURHAND_POLL": "0"}, {}, "poll must be a positive number"),
        ({"HOURHAND_MAX_RESULT": "-1"}, {}, "max_result"),
        ({}, {"grace": -1}, "grace must be a positive number"),
        ({}, {"lease": "15"}, "lease must be a positive number"),
        ({}, {"lease": 2, "grace": 1.5}, "lease .* must be at least twice grace"),
        ({}, {"database_url": "mysql://host/db"}, "database_url must look like postgresql://"),
        ({}, {"database_url": "postgresql+asyncpg://host/db"}, "database_url must look like postgresql://"),
        ({"HOURHAND_DIRECT_URL": "host"}, {}, "direct_url must look like postgresql://"),
        ({}, {"leese": 15}, "unknown setting 'leese'; the settings are database_url"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(environment: dict[str, str], given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        settings_from(environment, **given)


def test_an_error_about_a_url_keeps_the_password_to_itself() -> None:
    with pytest.raises(ConfigurationError) as caught:
        settings_from({}, database_url="mysql://ann:secret@host/db")
    assert "secret" not in str(caught.value)
