"""What a client sends is what the app would have been given: through JSON, through the API's models, and back."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from hourhand import Step
from hourhand.core.errors import InvalidOption, InvalidPayload
from hourhand.core.job import JOB_OPTIONS, define_job, job_options
from hourhand.core.options import EnqueueOptions, merge
from hourhand.core.registry import Registry
from hourhand.surfaces import wire
from hourhand.surfaces.client.jobs import described
from hourhand.surfaces.rest import models

NOW = datetime(2027, 1, 1, tzinfo=UTC)
LATER = datetime(2027, 6, 1, 12, 30, 0, 250_000, tzinfo=UTC)
CHAIN = Step(
    "second", {"n": 1}, result=None, queue="billing", priority="high", delay=1.5, tags=("a",),
    options={
        "max_attempts": 4, "timeout": 9.0, "delivery": "at_most_once", "retry": {"backoff": "fixed", "base": 2.0, "cap": 3.0},
        "secret": ["card"], "then": Step("third").plain(),
    },
)  # fmt: skip
JOB: dict[str, Any] = {
    "task": "report", "schedule": "0 9 * * 1", "timezone": "Europe/Berlin", "payload": {"days": 7, "at": LATER}, "queue": "billing",
    "priority": "low", "dst": "skip", "missed_window": "RUN_ALL", "max_missed": 7, "misfire_grace": "5m", "overlap": "queue",
    "flexible_window": timedelta(minutes=3), "start_at": "2027-02-01T00:00:00+01:00", "end_at": LATER, "max_runs": 9,
    "max_attempts": 4, "timeout": "90s", "delivery": "at_most_once", "retry_backoff": "fixed", "retry_base": 2, "retry_cap": "1m",
    "idempotency_key_template": "report-{{week}}", "tags": ("a", "b"), "then": CHAIN, "secret": ["card.number"],
}  # fmt: skip
RUN: dict[str, Any] = {
    "queue": "billing", "priority": "high", "delay": timedelta(seconds=2.5), "expires": 60, "key": "k", "unique_for": 30, "tags": ["a"],
    "max_attempts": 1, "timeout": 2, "delivery": "exactly_once", "retry_backoff": "exponential", "retry_base": 0, "retry_cap": 9.5,
    "secret": ("card",), "then": "second",
}  # fmt: skip


def over_the_wire(plain: dict[str, Any], model: type[models.Given]) -> dict[str, Any]:
    return model.model_validate_json(msgspec.json.encode(plain), strict=True).model_dump(exclude_unset=True)


def test_every_option_of_a_job_arrives() -> None:
    assert JOB.keys() == set(JOB_OPTIONS) - {"anchor"}
    arrived = over_the_wire(described({"name": "weekly", **JOB}), models.JobToAdd)
    assert arrived.pop("name") == "weekly"
    given = job_options(wire.options_from_wire(arrived))
    assert define_job("weekly", given, now=NOW, registry=Registry()) == define_job(
        "weekly", job_options(JOB), now=NOW, registry=Registry()
    )


def test_an_anchor_arrives() -> None:
    anchor = LATER.replace(microsecond=0)
    options = {"schedule": "every 90s", "anchor": anchor}
    arrived = over_the_wire(described({"name": "often", **options}), models.JobToAdd)
    arrived.pop("name")
    one, other = (
        define_job("often", job_options(given), now=NOW, registry=Registry())
        for given in (wire.options_from_wire(arrived), options)
    )
    assert one == other
    assert one.schedule.anchor == anchor


def test_every_option_of_a_run_arrives() -> None:
    arrived = over_the_wire({"task": "mail", **wire.options_to_wire(RUN)}, models.RunToAdd)
    arrived.pop("task")
    assert merge(EnqueueOptions(), wire.enqueue_options(arrived)) == merge(EnqueueOptions(), RUN)
    moments = {"at": LATER, "expires": LATER + timedelta(days=1)}
    arrived = over_the_wire({"task": "mail", **wire.options_to_wire(moments)}, models.RunToAdd)
    arrived.pop("task")
    assert merge(EnqueueOptions(), wire.enqueue_options(arrived)) == merge(EnqueueOptions(), moments)


def test_what_is_cleared_arrives_as_nothing() -> None:
    names = ("start_at", "end_at", "max_runs", "max_attempts", "timeout", "delivery", "idempotency_key_template", "then")
    changes: dict[str, Any] = dict.fromkeys(names)
    arrived = over_the_wire(wire.options_to_wire(changes), models.JobChange)
    assert wire.options_from_wire(arrived) == changes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1 to 10000, not 0"),
        ({"start_at": datetime(2027, 1, 1)}, "start_at does not say which instant it means"),
        ({"misfire_grace": -1}, "misfire_grace must be from 0 to"),
        ({"priority": "urgent"}, "priority must be one of high, normal, low, not 'urgent'"),
        ({"tags": "one"}, "tags must be a list of texts"),
        ({"then": 7}, "then takes a task"),
        ({"connection": object()}, "cannot be joined over a network"),
        ({"delay": 1, "at": LATER}, "delay and at both say when to run"),
    ],
)
def test_what_cannot_be_is_said_here_and_in_the_words_of_the_app(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        wire.options_to_wire(options)
    assert words in str(caught.value)


def test_a_payload_must_be_json() -> None:
    with pytest.raises(InvalidPayload):
        described({"name": "weekly", "schedule": "0 9 * * 1", "payload": {"what": object()}})
    with pytest.raises(InvalidOption, match="a job has no 'colour'"):
        described({"name": "weekly", "schedule": "0 9 * * 1", "colour": "red"})
    with pytest.raises(InvalidOption, match="needs a schedule"):
        described({"name": "weekly"})


def test_a_cursor_survives_a_url() -> None:
    assert json.dumps(wire.write_cursor("weekly>?/é")).isascii()
