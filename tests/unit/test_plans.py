"""Files of jobs: read with their lines, checked, compared with what is stored, and turned into a plan."""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourhand import Hourhand
from hourhand.core import ids
from hourhand.core.chain import steps_of
from hourhand.core.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    HourhandError,
    JobConflict,
    PreconditionFailed,
    UnknownJob,
)
from hourhand.core.ids import parse_job_id
from hourhand.core.job import JOB_OPTIONS, define_job, job_options
from hourhand.core.redaction import REDACTED
from hourhand.core.registry import Registry
from hourhand.surfaces.plans import applying
from hourhand.surfaces.plans.applying import Outcome, apply_plan, look
from hourhand.surfaces.plans.comparing import MANAGED, as_then, differences, plain_options, same_value
from hourhand.surfaces.plans.documents import DEEPEST, Unreadable, read_document
from hourhand.surfaces.plans.exporting import as_json, as_yaml, export_jobs
from hourhand.surfaces.plans.plan import Plan, load_plan, make_plan, stale
from hourhand.surfaces.plans.reading import Files, InvalidFiles, read_files
from hourhand.surfaces.plans.sources import Source
from hourhand.surfaces.stored import StoredJob
from hourhand.surfaces.views import JobView

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(days=30)


def yaml(text: str) -> Any:
    return read_document(text, as_json=False)


def files(*texts: str, registry: Registry | None = None, now: datetime = NOW) -> Files:
    sources = [Source(f"f{number}.yaml", text, False) for number, text in enumerate(texts, 1)]
    return read_files(sources, registry=registry or Registry(), now=now)


def problems(*texts: str, **more: Any) -> list[str]:
    with pytest.raises(InvalidFiles) as caught:
        files(*texts, **more)
    return caught.value.problems


def as_real(number: float) -> float:
    """As PostgreSQL has it in a `real` and writes it: with as few digits as tell it from its neighbours."""
    kept = struct.pack("f", number)
    forms = (float(f"{struct.unpack('f', kept)[0]:.{digits}g}") for digits in range(6, 10))
    return next(one for one in forms if struct.pack("f", one) == kept)


def stored(
    name: str, options: Mapping[str, Any], *, owner: str | None = "shop", number: int = 1, version: int = 1, paused: bool = False,
    declared_by: str | None = None, registry: Registry | None = None, now: datetime = NOW,
) -> JobView:  # fmt: skip
    """As the database would have it and give it back: through JSON, with numbers of seven digits where it has such."""
    tags = [*options.get("tags", ()), *([f"{MANAGED}{owner}"] if owner else [])]
    then = options.get("then")
    given = job_options({**options, "tags": tags, "then": as_then(then) if isinstance(then, list) else then})
    job = define_job(name, given, now=now, registry=registry or Registry(), declared_by=declared_by)
    kept: dict[str, Any] = {name: as_real(getattr(job, name)) for name in ("misfire_grace", "flexible_window")}
    kept["options"] = msgspec.json.decode(msgspec.json.encode(job.options))
    return StoredJob(
        number=number, definition=replace(job, **kept), queue_number=7, schedule_id=1, next_run_at=job.first_run_at(now),
        active_since=now, paused_at=now if paused else None, created_at=now, updated_at=now, version=version, shard=0,
        fired=None, last_at=None, present=now,
    ).view()  # fmt: skip


def by_name(*views: JobView) -> dict[str, JobView]:
    return {view.name: view for view in views}


# What is written in a file and what is stored of it


# The word for a secret that is not shown has a meaning of its own.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12).filter(
    lambda text: text != REDACTED
)
payloads = st.dictionaries(
    texts,
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)
spans = st.sampled_from(["15m", "1h30m", "2 days", "90s", "0.1s", 900, 900.0, 0.1, 12345.678, 86_399.9])
instants = st.builds(
    lambda hours, offset: (LATER + timedelta(hours=hours)).astimezone(timezone(timedelta(minutes=15 * offset))).isoformat(),
    st.integers(0, 500),
    st.integers(-48, 56),
)
schedules = st.sampled_from(
    ["@daily", "@HOURLY", "0 9 * * mon", "0  9 * * 1", "*/10 * * * * *", "0 0 L * *", "every 90s", "@every 1h30m", "EVERY 2 days"]
) | instants.map(str)
tags = st.lists(texts.filter(bool).filter(lambda tag: not tag.startswith(MANAGED)), max_size=5)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,20}", fullmatch=True).filter(lambda name: parse_job_id(name) is None)
optional: dict[str, Any] = {
    "task": names, "timezone": st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu"]), "payload": payloads, "queue": names,
    "priority": st.sampled_from(["high", "normal", "low"]), "dst": st.sampled_from(["shift", "skip"]),
    "missed_window": st.sampled_from(["SKIP", "RUN_ONCE", "RUN_ALL"]), "max_missed": st.integers(1, 10_000),
    "misfire_grace": spans | st.floats(0, 1e9), "overlap": st.sampled_from(["allow", "skip", "queue", "replace"]),
    "flexible_window": st.sampled_from(["10m", 0, 0.3, 7_200]), "start_at": st.just("2026-06-02T00:00:00+09:00"),
    "end_at": st.just("2036-06-02T00:00:00Z"), "max_runs": st.integers(1, 2**31 - 1), "max_attempts": st.integers(1, 10_000),
    "timeout": spans, "delivery": st.sampled_from(["at_least_once", "at_most_once", "exactly_once"]),
    "retry_backoff": st.sampled_from(["exponential", "fixed"]), "retry_base": spans, "retry_cap": spans,
    "idempotency_key_template": st.sampled_from(["{{job}}-{{week}}", "x {{ date }}"]), "tags": tags,
    "then": names | st.lists(names, min_size=1, max_size=4), "secret": st.lists(st.sampled_from(["password", "card.number", "items.*.token"]), max_size=3),
}  # fmt: skip
said = st.fixed_dictionaries({"schedule": schedules}, optional=optional)


def test_every_option_of_a_job_is_in_the_property() -> None:
    assert {"schedule", "anchor", *optional} == set(JOB_OPTIONS)


@given(st.dictionaries(names, said, max_size=3), st.booleans())
def test_what_was_stored_from_a_file_is_unchanged(jobs: dict[str, dict[str, Any]], in_json: bool) -> None:
    document = {"owner": "shop", "jobs": jobs}
    text = as_json(document) if in_json else as_yaml(document)
    read = read_files([Source("f", text, in_json)], registry=Registry(), now=NOW)
    # Applied an hour ago, which is where an interval without an anchor is counted from; tags in another order.
    before = NOW - timedelta(hours=1)
    views = {}
    for job in read.jobs:
        step = make_plan(Files(("shop",), (job,)), {}).steps[0]
        given = {name: value for name, value in step.addition().items() if name != "name"}
        views[job.name] = stored(job.name, {**given, "tags": given["tags"][::-1]}, owner=None, now=before)
    plan = make_plan(read, views)
    assert (plan.steps, plan.conflicts, plan.over, plan.unchanged) == ([], [], {}, len(jobs))
    # And the other way: what is exported says the same.
    again = export_jobs("shop", views.values(), Registry())
    text = as_json(again) if in_json else as_yaml(again)
    plan = make_plan(read_files([Source("f", text, in_json)], registry=Registry(), now=NOW), views)
    assert (plan.steps, plan.unchanged) == ([], len(jobs))


@given(said, said)
def test_a_change_leaves_nothing_to_change(old: dict[str, Any], new: dict[str, Any]) -> None:
    """What `update` is given makes the job what the file says: applied over the old definition, no difference is left."""
    was, wanted = (files(as_yaml({"owner": "shop", "jobs": {"a": one}})) for one in (old, new))
    view = stored("a", {k: v for k, v in make_plan(was, {}).steps[0].addition().items() if k != "name"}, owner=None)
    for step in make_plan(wanted, {"a": view}).steps:
        base = plain_options(view) | {"tags": list(view.tags)}
        changes = step.changes()
        if "schedule" in changes and "anchor" not in changes:
            base["anchor"] = None
        if "then" not in changes:
            # As `update` does it: a chain that is not named stays.
            base["then"] = None if not view.then else make_plan(was, {}).steps[0].addition()["then"]
        after = stored("a", {**base, **changes}, owner=None)
        assert make_plan(wanted, {"a": after}).steps == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [(1, 1.0, True), (1, True, False), (0, False, False), (1e300, 10**300, True), (2**63, float(2**63), True), ("1", 1, False),
     ({"a": [1, {"b": None}]}, {"a": [1.0, {"b": None}]}, True), ({"a": 1}, {"a": 1, "b": None}, False), ([1], [1, 2], False),
     ("hunter22", "[redacted]", True), ("[redacted]", "hunter22", True), (None, False, False), (1.5, 10**400, False)],
)  # fmt: skip
def test_same_as_json_has_it(one: Any, other: Any, same: bool) -> None:
    assert same_value(one, other) is same


def test_two_ways_to_say_the_same_are_no_difference() -> None:
    read = files("""
        owner: shop
        defaults: {timezone: Europe/Berlin}
        jobs:
          grace: {schedule: "@daily", misfire_grace: 15m}
          instant: {schedule: 2027-01-01T09:00:00+01:00}
          interval: {schedule: every 90s}
    """)
    views = by_name(
        stored("grace", {"schedule": "0 0 * * *", "timezone": "Europe/Berlin", "misfire_grace": 900.0}),
        stored("instant", {"schedule": "2027-01-01T08:00:00Z"}),
        stored("interval", {"schedule": "every 1.5m", "anchor": "2020-01-01T00:00:00Z"}),
    )
    assert make_plan(read, views).unchanged == 3


def test_an_anchor_counts_if_the_file_says_one() -> None:
    view = stored("a", {"schedule": "every 90s", "anchor": "2020-01-01T00:00:00Z"})
    text = "owner: shop\njobs: {a: {schedule: %s}}"
    step = make_plan(files(text % "every 90s, anchor: 2020-01-01T00:00:01Z"), {"a": view}).steps[0]
    assert step.changes() == {"anchor": "2020-01-01T00:00:01Z"}
    step = make_plan(files(text % "every 60s, anchor: 2020-01-01T00:00:00Z"), {"a": view}).steps[0]
    assert step.changes() == {"schedule": "every 60s", "anchor": "2020-01-01T00:00:00Z"}
    assert make_plan(files(text % "every 60s"), {"a": view}).steps[0].changes() == {"schedule": "every 60s"}


def test_an_interval_has_no_zone_to_change() -> None:
    view = stored("a", {"schedule": "@daily", "timezone": "Europe/Berlin", "dst": "skip"})
    step = make_plan(files("owner: shop\njobs: {a: {schedule: every 90s, timezone: Europe/Berlin}}"), {"a": view}).steps[0]
    assert [one.field for one in step.differences] == ["schedule"]
    step = make_plan(files("owner: shop\njobs: {a: {schedule: '@daily', timezone: Asia/Tokyo}}"), {"a": view}).steps[0]
    assert [one.field for one in step.differences] == ["timezone", "dst"]


def test_of_a_chain_the_names_are_compared() -> None:
    text = "owner: shop\njobs: {a: {schedule: '@daily', then: %s}}"
    view = stored("a", {"schedule": "@daily", "then": "load"})
    assert make_plan(files(text % "load"), {"a": view}).unchanged == 1
    step = make_plan(files(text % "[load, tell]"), {"a": view}).steps[0]
    assert (step.differences[0].old, step.differences[0].new) == (["load"], ["load", "tell"])
    kept = define_job("a", job_options({"schedule": "@daily", **step.changes()}), now=NOW, registry=Registry()).options
    assert steps_of(kept) == ["load", "tell"]
    assert make_plan(files("owner: shop\njobs: {a: {schedule: '@daily'}}"), {"a": view}).steps[0].changes() == {"then": None}


def test_what_its_task_says_counts_where_the_task_is_known() -> None:
    app = Hourhand("postgresql://nobody")

    @app.task(queue="reports", priority="low")
    def report(days: int) -> None: ...

    text = "owner: shop\njobs: {report: {schedule: '@daily', payload: {days: 1}}}"
    view = stored("report", {"schedule": "@daily", "payload": {"days": 1}}, registry=app.registry)
    assert (view.queue, view.priority) == ("reports", "low")
    assert make_plan(files(text, registry=app.registry), {"report": view}).unchanged == 1
    assert export_jobs("shop", [view], app.registry)["jobs"] == {"report": {"schedule": "0 0 * * *", "payload": {"days": 1}}}
    assert [one.field for one in make_plan(files(text), {"report": view}).steps[0].differences] == ["queue", "priority"]
    wrong = problems(text.replace("days: 1", "dyas: 1"), registry=app.registry)
    assert "unknown argument" in wrong[0]


# Reading


def test_words_are_what_yaml_1_2_says() -> None:
    read = yaml("{a: 2027-01-01, b: 12:30, c: 0x10, d: 1e3, e: .5, f: ~, g: True, h: '7', i: 1_000, j: y, k: !!str 7, l: -3}")
    assert list(read.values()) == ["2027-01-01", "12:30", 16, 1000.0, 0.5, None, True, "7", "1_000", "y", "7", -3]


@pytest.mark.parametrize("word", ["yes", "No", "ON", "off", "007", "-01", "0_1"])
def test_words_that_readers_of_yaml_disagree_about_are_refused(word: str) -> None:
    with pytest.raises(Unreadable, match="readers of YAML") as caught:
        yaml(f"a:\n  b: {word}")
    assert caught.value.line == 2
    assert yaml(f"a: '{word}'") == {"a": word}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: 2\na: 3", 3, "'a' comes twice, first on line 1"),
        ("a: {b: 1,\n  b: 2}", 2, "'b' comes twice"),
        ("a: &x [*x]", 1, r"\*x stands for nothing"),
        ("a: 1\nb: *x", 2, r"undefined alias|stands for nothing"),
        ("a: !!python/object/apply:os.system [ls]", 1, "the tag .* is not for here"),
        ("a: !secret x", 1, "the tag"),
        ("a: 1\n---\nb: 2", 2, "a second document"),
        ("a: [1,\nb: {", 3, "not YAML"),
        ("a: 1\n\tb: 2", 2, "not YAML"),
        ("a: \x07", 1, "not YAML"),
        ("? {a: 1}\n: 2", 1, "a key must be a text"),
        ("a: &x 1\n<<: *x", 2, "<< takes a mapping"),
        ("", 1, "there is nothing in it"),
        ("a: 1" + "0" * 5000, 1, "too many digits"),
        ("[" * (DEEPEST + 1), 1, "nested more than"),
        ("a: " + "[" * 100_000, 1, "nested more than"),
    ],
)
def test_what_cannot_be_read_says_where(text: str, line: int, words: str) -> None:
    with pytest.raises(Unreadable, match=words) as caught:
        yaml(text)
    assert caught.value.line == line


def test_few_aliases_that_stand_for_very_much_are_refused() -> None:
    lines = ["l0: &l0 [ha, ha, ha, ha, ha, ha, ha, ha, ha]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(Unreadable, match="stands for more than") as caught:
        yaml("\n".join(lines))
    assert caught.value.line < 9
    merged = ["l0: &l0 {a: [1, 2]}"] + [f"l{n}: &l{n} {{<<: *l{n - 1}, b{n}: *l{n - 1}, c{n}: *l{n - 1}}}" for n in range(1, 40)]
    with pytest.raises(Unreadable, match="stands for more than"):
        yaml("\n".join(merged))


def test_anchors_and_merges_work() -> None:
    read = yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: {<<: [{z: 4}, *a], '<<': 5}\nd: *a")
    assert read == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": {"z": 4, "x": 1, "y": 2, "<<": 5}, "d": {"x": 1, "y": 2}}
    assert (read.lines, read["b"].lines) == ({"a": 1, "b": 2, "c": 3, "d": 4}, {"x": 1, "y": 2})


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [('{"a": 1,\n "a": 2}', 2, "comes twice"), ('{"a":\n NaN}', 1, "NaN is no JSON"), ('{"a": 1,\n}', 2, "not JSON"),
     ("[" * 100_000, 1, "nested more than"), ('{"a":\n "\\ud800"}', 2, "surrogate"), ("[" * 60 + "]" * 60, 1, "nested more")],
)  # fmt: skip
def test_json_that_cannot_be_read_says_where(text: str, line: int, words: str) -> None:
    with pytest.raises(Unreadable, match=words) as caught:
        read_document(text, as_json=True)
    assert caught.value.line == line


def test_json_is_read_as_json() -> None:
    read = read_document('{"a": [1, -2.5e3, true, null, "\\u00e4 \\" {x}"],\n\n"<<": {"b:": {}}}', as_json=True)
    assert read == {"a": [1, -2500.0, True, None, 'ä " {x}'], "<<": {"b:": {}}}
    assert read.lines == {"a": 1, "<<": 3}


def test_without_pyyaml_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'hourhand\[yaml\]'"):
        yaml("a: 1")
    with pytest.raises(ConfigurationError, match=r"pip install 'hourhand\[yaml\]'"):
        as_yaml({})
    assert read_document('{"a": 1}', as_json=True) == {"a": 1}


def test_everything_that_is_wrong_is_said_at_once_with_its_line() -> None:
    found = problems(
        "ownr: shop\n"
        "defaults: {tz: UTC}\n"
        "jobs:\n"
        "  a:\n"
        "    cron: '@daily'\n"
        "  b:\n"
        "    schedule: '@daily'\n"
        "    timezone: Europe/Berln\n"
        "  c:\n"
        "    schedule: in 10m\n"
        "  d:\n"
        "    schedule: '@daily'\n"
        "    timeout: soon\n"
        "    misfire-grace: 1m\n"
        "  e: '@daily'\n"
        "  f: {}\n"
        "  g:\n"
        "    schedule: '@daily'\n"
        "    payload: [1]\n"
        "  h:\n"
        "    schedule: '@daily'\n"
        "    state: held\n"
    )
    wanted = [
        "1: a file of jobs has no 'ownr'; did you mean owner?", "1: owner is missing",
        "2: defaults: a job has no 'tz'; did you mean timezone?", "5: a: a job has no 'cron'; did you mean schedule?",
        "8: b: there is no time zone 'Europe/Berln'", "10: c: schedule 'in 10m' is counted from whenever",
        "14: d: a job has no 'misfire-grace'; did you mean misfire_grace?", "13: d: 'soon' is not a duration",
        "15: e: must be a mapping", "16: f: needs a schedule", "19: g: the payload of task 'g' must be a mapping",
        "22: h: state must be active or paused, not 'held'",
    ]  # fmt: skip
    assert len(found) == len(wanted)
    for one, words in zip(found, wanted, strict=True):
        assert one.startswith(f"f1.yaml:{words}"), one


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ("tags: ['managed:other']", "say whose a job is"),
        (f"tags: {[f't{n}' for n in range(20)]}", "can have 19"),
        ("then: {task: load}", "a task's name, or a list"),
        ("then: [load, 7]", "a task's name, or a list"),
        ("then: [load, 'no name']", "cannot be the name of a task"),
        ("anchor: 2027-01-01T00:00:00Z", "this schedule is no interval"),
        ("start_at: 2027-01-01T00:00:00", "does not say which instant"),
        ("max_runs: 0", "max_runs must be a whole number"),
        ("payload: {x: .inf}", "JSON cannot carry"),
    ],
)
def test_what_a_job_in_a_file_cannot_have(job: str, words: str) -> None:
    (found,) = problems(f"owner: shop\njobs:\n  a:\n    schedule: '@daily'\n    {job}\n")
    assert words in found
    assert found.startswith("f1.yaml:5: a: ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1]", "1: a file of jobs is a mapping"),
        ("owner: shop", "jobs is missing; an owner without jobs says so: jobs: {}"),
        ("owner: shop\njobs: [a]", "2: jobs must be a mapping"),
        ("owner: [a]\njobs: {}", "1: ['a'] cannot be the name of a owner"),
        (f"owner: {'a' * 93}\njobs: {{}}", "can have 92 characters"),
        ("hourhand_plan: 1", "this is a saved plan"),
        ("owner: a\njobs: {}\ncolour: blue", "3: a file of jobs has no 'colour'; there are owner, defaults, jobs"),
    ],
)
def test_what_a_file_needs(text: str, words: str) -> None:
    assert words in "\n".join(problems(text))


def test_several_files_have_names_of_their_own() -> None:
    one, other = "owner: shop\njobs: {a: {schedule: '@daily'}}", "owner: ops\njobs:\n  a: {schedule: '@daily'}"
    assert problems(one, other) == ["f2.yaml:3: a: comes twice, first at f1.yaml:2"]
    read = files(one, other.replace("a:", "b:"))
    assert read.owners == ("shop", "ops")
    assert [(job.name, job.owner, job.place) for job in read.jobs] == [("a", "shop", "f1.yaml:2"), ("b", "ops", "f2.yaml:3")]


def test_defaults_hold_unless_a_job_says_otherwise() -> None:
    read = files("""
        owner: shop
        x-common: &common {overlap: skip}
        defaults: {queue: billing, max_runs: 3, state: paused, payload: {a: 1}}
        jobs:
          one: {schedule: "@daily", <<: *common}
          two: {schedule: "@daily", queue: null, max_runs: ~, state: active, payload: {b: 2}}
    """)
    one, two = read.jobs
    assert [one.options[name] for name in ("queue", "max_runs", "overlap", "payload")] == ["billing", 3, "skip", {"a": 1}]
    assert [two.options[name] for name in ("queue", "max_runs", "overlap", "payload")] == ["default", None, "allow", {"b": 2}]
    assert (one.state, two.state) == ("paused", "active")


# The plan

TEXT = "owner: shop\njobs:\n  a: {schedule: '@daily', payload: {n: 1}}\n"
OPTIONS = {"schedule": "@daily", "payload": {"n": 1}}


def test_jobs_that_the_files_do_not_name_are_deleted_if_they_are_the_owners() -> None:
    views = by_name(
        stored("a", OPTIONS),
        stored("mine", OPTIONS, number=2, version=4),
        stored("theirs", OPTIONS, owner="other"),
        stored("nobodys", OPTIONS, owner=None),
        stored("in-code", OPTIONS, declared_by="app"),
    )
    plan = make_plan(files(TEXT), views)
    assert [(step.action, step.name, step.job_id, step.version) for step in plan.steps] == [("delete", "mine", ids.job_id(2), 4)]
    spared = make_plan(files(TEXT), views, delete=False)
    assert (spared.steps, spared.spared) == ([], ["mine"])


@pytest.mark.parametrize(("owner", "words"), [(None, "belongs to nobody's file"), ("other", "it belongs to other")])
def test_a_job_of_somebody_else_is_a_conflict_unless_it_is_adopted(owner: str | None, words: str) -> None:
    views = by_name(stored("a", {**OPTIONS, "tags": ["x"]}, owner=owner))
    text = TEXT.replace("payload", "tags: [x], payload")
    plan = make_plan(files(text), views)
    assert (plan.steps, plan.unchanged) == ([], 0)
    assert plan.conflicts[0].kind == "owned"
    assert words in plan.conflicts[0].reason
    (step,) = make_plan(files(text), views, adopt=True).steps
    assert (step.differences, step.adopts, step.changes()) == ([], owner or "", {"tags": ["x", "managed:shop"]})


@pytest.mark.parametrize("owner", [None, "shop"])
def test_what_code_declares_is_never_adopted(owner: str | None) -> None:
    views = by_name(stored("a", OPTIONS, owner=owner, declared_by="app"))
    plan = make_plan(files(TEXT), views, adopt=True)
    assert (plan.steps, [one.kind for one in plan.conflicts]) == ([], ["declared"])


def test_a_secret_may_be_left_out_of_a_file_once_it_is_stored() -> None:
    text = "owner: shop\njobs: {a: {schedule: '@daily', payload: {n: %s, password: '[redacted]'}}}"
    view = stored("a", {"schedule": "@daily", "payload": {"n": 1, "password": "hunter22"}})
    assert make_plan(files(text % 1), {"a": view}).unchanged == 1
    assert make_plan(files(text % 2), {"a": view}).steps[0].changes() == {"payload": {"n": 2, "password": "[redacted]"}}
    assert [one.kind for one in make_plan(files(text % 1), {}).conflicts] == ["hidden"]


def test_what_is_no_secret_any_more_is_said_with_the_value() -> None:
    view = stored("a", {**OPTIONS, "secret": ["n"]})
    assert make_plan(files(TEXT), {"a": view}).steps[0].changes() == {"secret": [], "payload": {"n": 1}}


def test_what_is_encrypted_and_cannot_be_read_is_not_compared() -> None:
    view = replace(stored("a", OPTIONS), payload="[encrypted with key k1]")
    assert make_plan(files(TEXT), {"a": view}).unchanged == 1


def test_states() -> None:
    def steps(state: str, *, paused: bool) -> Plan:
        return make_plan(files(TEXT.replace("payload", f"{state}payload")), by_name(stored("a", OPTIONS, paused=paused)))

    assert (steps("", paused=False).unchanged, steps("", paused=False).held) == (1, [])
    assert (steps("", paused=True).unchanged, steps("", paused=True).held) == (1, ["a"])
    assert steps("state: active, ", paused=False).unchanged == 1
    assert steps("state: paused, ", paused=True).unchanged == 1
    assert [(step.state, step.changes()) for step in steps("state: paused, ", paused=False).steps] == [("paused", {})]
    assert [(step.state, step.changes()) for step in steps("state: active, ", paused=True).steps] == [("active", {})]


def test_what_is_over_is_neither_added_nor_an_error() -> None:
    text = "owner: shop\njobs:\n  once: {schedule: 2026-05-01T00:00:00Z}\n  ended: {schedule: '@daily', end_at: 2026-05-01T00:00:00Z}"
    before = datetime(2026, 4, 1, tzinfo=UTC)
    plan = make_plan(files(text), {})
    assert (plan.steps, sorted(plan.over)) == ([], ["ended", "once"])
    assert "is past" in plan.over["once"]
    options = {"schedule": "@daily", "end_at": "2026-05-01T00:00:00Z"}
    have = by_name(stored("once", {"schedule": "2026-05-01T00:00:00Z"}, now=before), stored("ended", options, now=before))
    assert make_plan(files(text), have).unchanged == 2
    # Somebody has let it go on by hand: nothing can make a job of what never fires, but it is told.
    longer = by_name(stored("ended", {"schedule": "@daily", "end_at": "2028-05-01T00:00:00Z"}))
    plan = make_plan(files(text), longer)
    assert (plan.steps, [step.name for step in plan.outlived]) == ([], ["ended"])


def test_a_saved_plan_is_read_back_as_it_was() -> None:
    views = by_name(stored("b", OPTIONS, number=2), stored("c", OPTIONS), stored("d", OPTIONS, owner=None))
    more = "  b: {schedule: every 90s, state: paused}\n  d: {schedule: '@daily'}\n  e: {schedule: 2020-01-01T00:00:00Z}\n"
    plan = make_plan(files(TEXT + more), views)
    assert [step.action for step in plan.steps] == ["create", "change", "delete"]
    assert load_plan(msgspec.json.encode(plan.saved()).decode(), "p.json") == plan


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "is no saved plan"), ("[]", "is no saved plan"), ('{"a": 1}', "is no saved plan"), ('{"hourhand_plan": 2}', "another version"),
     ('{"hourhand_plan": 1, "steps": 3}', "is no saved plan")],
)  # fmt: skip
def test_what_is_no_plan_is_refused(text: str, words: str) -> None:
    with pytest.raises(HourhandError, match=words):
        load_plan(text, "p.json")


def test_a_plan_is_stale_if_what_it_touches_has_changed() -> None:
    views = by_name(
        stored("a", {"schedule": "@hourly"}, number=1), stored("gone", OPTIONS, number=2), stored("other", OPTIONS, number=3)
    )
    plan = make_plan(files(TEXT + "  new: {schedule: '@daily'}\n  other: {schedule: '@daily', payload: {n: 1}}"), views)
    assert sorted((step.action, step.name) for step in plan.steps) == [("change", "a"), ("create", "new"), ("delete", "gone")]

    def with_(**changed: JobView | None) -> list[str]:
        return stale(plan, {name: view for name, view in {**views, **changed}.items() if view is not None})

    assert with_() == []
    assert with_(other=stored("other", {"schedule": "@hourly"}, number=3, version=9)) == []
    assert with_(a=stored("a", {"schedule": "@hourly"}, number=1, version=2)) == ["a"]
    assert with_(a=stored("a", {"schedule": "@hourly"}, number=9)) == ["a"]
    assert with_(a=None) == ["a"]
    assert with_(new=stored("new", {"schedule": "@hourly"})) == ["new"]
    assert with_(new=stored("new", {"schedule": "@daily"}, owner="other")) == ["new"]
    assert with_(gone=stored("gone", OPTIONS, number=2, version=2)) == ["gone"]
    # What is as the plan would leave it needs nothing, however it came to be so.
    done = {"a": stored("a", OPTIONS, number=1, version=2), "new": stored("new", {"schedule": "@daily"}), "gone": None}
    assert with_(**done) == []


# Through the verbs


class Verbs:
    """The verbs of `app.jobs`, as an app anywhere has them: nothing else may be used. Counts the calls."""

    def __init__(self, *views: JobView) -> None:
        self.views = by_name(*views)
        self.calls: list[str] = []
        self.broken: dict[str, HourhandError] = {}

    async def list(self, *, tag: str | None = None, after: str | None = None, limit: int = 100) -> list[JobView]:
        self.calls.append("list")
        found = sorted((view for view in self.views.values() if tag is None or tag in view.tags), key=lambda view: view.name)
        return [view for view in found if after is None or view.name > after][:limit]

    async def show(self, name: str) -> JobView:
        self.calls.append("show")
        for view in self.views.values():
            if name in (view.name, view.job_id):
                return view
        raise UnknownJob(name)

    async def add_many(self, jobs: list[dict[str, Any]]) -> None:
        self.calls.append("add_many")
        for one in jobs:
            if one["name"] in self.broken or one["name"] in self.views:
                raise JobConflict("one of them")
        for one in jobs:
            await self._put(**one)

    async def add(self, **given: Any) -> Any:
        self.calls.append("add")
        if given["name"] in self.broken:
            raise self.broken[given["name"]]
        if given["name"] in self.views:
            raise JobConflict(given["name"])
        await self._put(**given)
        return SimpleNamespace(name=given["name"], outcome="added")

    async def _put(self, name: str, **given: Any) -> None:
        self.views[name] = stored(name, given, owner=None)

    async def update(self, name: str, *, version: int, **changes: Any) -> None:
        self.calls.append("update")
        view = await self.show(name)
        if view.version != version:
            raise PreconditionFailed(name)
        merged = {**plain_options(view), "tags": view.tags, **changes}
        self.views[view.name] = stored(view.name, merged, owner=None, version=version + 1, paused=view.paused_at is not None)

    async def pause(self, name: str) -> JobView:
        return await self._hold(name, paused=True)

    async def resume(self, name: str) -> Any:
        return SimpleNamespace(job=await self._hold(name, paused=False), started=0, left_out=0)

    async def _hold(self, name: str, *, paused: bool) -> JobView:
        self.calls.append("pause" if paused else "resume")
        view = await self.show(name)
        held = stored(
            view.name, plain_options(view), number=ids.parse_job_id(view.job_id) or 0, version=view.version + 1, paused=paused
        )
        self.views[view.name] = held
        return held

    async def delete(self, name: str, *, version: int) -> None:
        self.calls.append("delete")
        view = await self.show(name)
        if view.version != version:
            raise PreconditionFailed(name)
        del self.views[view.name]


def app_with(*views: JobView) -> tuple[Any, Verbs]:
    verbs = Verbs(*views)
    return SimpleNamespace(jobs=verbs), verbs


def many(count: int) -> str:
    return "owner: shop\njobs:\n" + "".join(f"  j{n:05}: {{schedule: '@daily', payload: {{n: 1}}}}\n" for n in range(count))


async def test_unchanged_jobs_cost_no_call_each() -> None:
    read = files(many(2_500))
    app, verbs = app_with(*(stored(job.name, OPTIONS) for job in read.jobs))
    plan = make_plan(read, await look(app, read.owners, [job.name for job in read.jobs]))
    assert (plan.unchanged, verbs.calls) == (2_500, ["list"] * 3)


async def test_new_names_are_looked_up_together_or_alone_whichever_is_shorter() -> None:
    read = files(many(2_500))
    app, verbs = app_with(stored("j00003", OPTIONS, owner=None))
    found = await look(app, read.owners, [job.name for job in read.jobs])
    assert (list(found), verbs.calls) == (["j00003"], ["list", "list"])
    # One name among very many: one question instead of a walk through them.
    app, verbs = app_with(*(stored(f"j{n:05}", OPTIONS, owner=None) for n in range(2_500)))
    assert list(await look(app, ["shop"], ["j02400", "none"])) == ["j02400"]
    assert verbs.calls == ["list", "list", "show", "show"]


async def test_very_many_are_added_in_bulk_and_one_that_cannot_be_keeps_nobody_back() -> None:
    told: list[Outcome] = []
    app, verbs = app_with()
    plan = make_plan(files(many(1_500)), {})
    await apply_plan(app, plan, told.append)
    assert (verbs.calls, len(verbs.views), {one.outcome for one in told}) == (["add_many"] * 2, 1_500, {"created"})
    app, verbs = app_with()
    verbs.broken["j00007"] = JobConflict("taken")
    told.clear()
    await apply_plan(app, make_plan(files(many(200)), {}), told.append)
    assert len(verbs.views) == 199
    assert [(one.name, str(one.error).split(":")[0]) for one in told if one.error] == [("j00007", "job 'j00007' stays as it is")]


async def test_what_changed_since_the_look_is_left_alone_unless_it_is_as_wanted() -> None:
    app, verbs = app_with(stored("a", {"schedule": "@hourly"}), stored("gone", OPTIONS, number=2))
    plan = make_plan(files(TEXT), dict(verbs.views))
    assert [step.action for step in plan.steps] == ["change", "delete"]
    verbs.views["a"] = stored("a", {"schedule": "@weekly"}, version=2)
    verbs.views["gone"] = stored("gone", {"schedule": "@weekly"}, number=2, version=2)
    told: list[Outcome] = []
    await apply_plan(app, plan, told.append)
    assert [(one.name, one.outcome) for one in told] == [("a", "failed"), ("gone", "failed")]
    assert (verbs.views["a"].schedule, "gone" in verbs.views) == ("0 0 * * 0", True)
    # A quicker colleague has done the same.
    verbs.views["a"] = stored("a", OPTIONS, version=2)
    del verbs.views["gone"]
    told.clear()
    await apply_plan(app, plan, told.append)
    assert [(one.name, one.outcome) for one in told] == [("a", "unchanged"), ("gone", "unchanged")]


@pytest.mark.parametrize(("state", "paused"), [("paused", False), ("active", True)])
@pytest.mark.parametrize("more", ["", "queue: other, "])
async def test_what_changed_since_the_look_is_neither_held_nor_let_go(state: str, paused: bool, more: str) -> None:
    app, verbs = app_with(stored("a", OPTIONS, paused=paused))
    plan = make_plan(files(TEXT.replace("payload", f"state: {state}, {more}payload")), dict(verbs.views))
    told: list[Outcome] = []
    changed = stored("a", {"schedule": "@weekly"}, version=2, paused=paused)
    verbs.views["a"] = changed
    await apply_plan(app, plan, told.append)
    assert ([one.outcome for one in told], verbs.views["a"]) == (["failed"], changed)
    verbs.views["a"] = stored("a", OPTIONS, paused=paused)
    await apply_plan(app, plan, told.append)
    assert (told[-1].outcome, verbs.views["a"].paused_at is not None) == ("changed", state == "paused")
    assert verbs.views["a"].queue == ("other" if more else "default")


async def test_a_database_that_is_gone_ends_it() -> None:
    app, verbs = app_with()
    verbs.broken = {f"j0000{n}": DatabaseUnavailable("gone") for n in range(4)}
    told: list[Outcome] = []
    with pytest.raises(DatabaseUnavailable):
        await apply_plan(app, make_plan(files(many(50)), {}), told.append)
    assert (len(told), verbs.calls) == (1, ["add"] * applying.AT_ONCE)


def test_differences_name_what_is_not_as_wanted() -> None:
    wanted = files(TEXT).jobs[0].options
    view = stored("a", {"schedule": "@daily", "queue": "slow", "payload": {"n": True}, "timeout": "5m"})
    assert [(one.field, one.old, one.new) for one in differences(wanted, plain_options(view))] == [
        ("payload", {"n": True}, {"n": 1}), ("queue", "slow", "default"), ("timeout", 300.0, None),
    ]  # fmt: skip
