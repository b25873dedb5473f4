"""Whoever can use an app can use a client: the same verbs, arguments and answers, with `await` and without."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hourhand import Hourhand
from hourhand.client import AsyncClient, Client, ConfigurationError
from hourhand.surfaces import access, alerts, dead_letters, jobs, statistics, verbs
from hourhand.surfaces.client import alerts as remote_alerts
from hourhand.surfaces.client import blocking, fleet, runs
from hourhand.surfaces.client import jobs as remote_jobs
from hourhand.surfaces.handle import RunHandle

PROJECT = Path(__file__).parent.parent.parent
GROUPS: list[tuple[type, type, type]] = [
    (jobs.Jobs, remote_jobs.Jobs, blocking.Jobs),
    (verbs.Runs, runs.Runs, blocking.Runs),
    (dead_letters.Dead, runs.Dead, blocking.Dead),
    (verbs.Queues, fleet.Queues, blocking.Queues),
    (verbs.Nodes, fleet.Nodes, blocking.Nodes),
    (verbs.Shards, fleet.Shards, blocking.Shards),
    (statistics.Statistics, fleet.Statistics, blocking.Statistics),
    (alerts.Alerts, remote_alerts.Alerts, blocking.Alerts),
    (access.Keys, fleet.Keys, blocking.Keys),
    (access.AuditLog, fleet.AuditLog, blocking.AuditLog),
]
ELSEWHERE = {"ended", "authenticate", "look", "by_queue"}
"""What a server asks of its own app."""


def public(kind: type) -> list[str]:
    return [name for name, one in vars(kind).items() if callable(one) and not name.startswith("_") and not name.endswith("_sync")]


def verb_pairs() -> Iterator[Any]:
    for here, remote, waiting in GROUPS:
        for name in public(here):
            if name not in ELSEWHERE:
                yield pytest.param(getattr(here, name), remote, waiting, name, id=f"{here.__name__}.{name}")
    for name in ("enqueue", "enqueue_many"):
        yield pytest.param(getattr(Hourhand, name), AsyncClient, Client, name, id=name)
    for name in public(RunHandle):
        yield pytest.param(getattr(RunHandle, name), RunHandle, blocking.BlockingHandle, name, id=f"RunHandle.{name}")


def arguments(method: Any) -> list[tuple[str, Any, Any]]:
    """But for the caller's own transaction, which no network can join."""
    own = list(inspect.signature(method).parameters.values())[1:]
    return [(one.name, one.kind, one.default) for one in own if one.name != "connection"]


@pytest.mark.parametrize(("method", "remote", "waiting", "name"), list(verb_pairs()))
def test_a_client_has_every_verb_of_the_app(method: Any, remote: type, waiting: type, name: str) -> None:
    assert arguments(getattr(remote, name)) == arguments(method)
    assert arguments(getattr(waiting, name)) == arguments(method)
    answers = inspect.signature(method).return_annotation
    assert inspect.signature(getattr(remote, name)).return_annotation == answers


def test_a_client_has_nothing_that_only_one_kind_has() -> None:
    for _, remote, waiting in GROUPS:
        assert public(remote)
        assert set(public(remote)) == set(public(waiting))
    assert set(public(AsyncClient)) - {"aclose"} == set(public(Client)) - {"close"}


def test_type_checkers_see_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "tests/unit/client_types.py"],
        cwd=PROJECT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "url", ["jobs.example.com", "ftp://host", "http://", "http://me:secret@host", "http://host:x", "http://a b"]
)
def test_a_url_that_is_none_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError, match="must look like https://host:port") as caught:
        Client(url)
    assert "secret" not in str(caught.value)


def test_a_key_that_is_none_is_refused_without_being_repeated() -> None:
    for key in ("two words", "line\nbreak", "schlüssel"):
        with pytest.raises(ConfigurationError) as caught:
            AsyncClient("http://localhost", key)
        assert key not in str(caught.value)


def test_url_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOURHAND_SERVER", raising=False)
    with pytest.raises(ConfigurationError, match="HOURHAND_SERVER"):
        AsyncClient()
    monkeypatch.setenv("HOURHAND_SERVER", "https://jobs.example.com/hourhand/api/v1/")
    assert AsyncClient().url == "https://jobs.example.com/hourhand"
    monkeypatch.setenv("HOURHAND_API_KEY", "hh_me_secret")
    client = AsyncClient()
    assert client._transport._headers["Authorization"] == "Bearer hh_me_secret"
    assert "secret" not in repr(client)


def test_without_aiohttp_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'hourhand\[client\]'"):
        AsyncClient("http://localhost")
