"""Contexts as they travel, spans as they are made, and a process that has nothing to do with any of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NoOpTracerProvider, StatusCode

from hourhand.core import tracing
from hourhand.core.errors import ConfigurationError
from hourhand.core.tracing import Place, calling, carried, current, enqueueing, headers, read, read_headers
from hourhand.engine.exporting import configure_traces, exported
from hourhand.engine.tracing import Tracing, find_tracing
from tests.support.outside import script
from tests.support.traces import Seen, linked, of, parent, provided, traced

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PLACE = Place(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, 1)


@pytest.fixture
def seen() -> Iterator[Seen]:
    with traced() as one:
        yield one


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nobody had loaded OpenTelemetry."""
    monkeypatch.setattr(tracing, "_api", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)


# Contexts


@pytest.mark.parametrize("state", ["", "vendor=a", "a=1,b=2 3"])
def test_a_context_comes_back_as_it_was_stored(state: str) -> None:
    place = PLACE._replace(state=state)
    assert place.stored == f"{PARENT} {state}".strip()
    assert read(place.stored) == place
    assert place.headers == ({"traceparent": PARENT, "tracestate": state} if state else {"traceparent": PARENT})
    assert read_headers(**{name.removeprefix("trace"): value for name, value in place.headers.items()}) == place


@pytest.mark.parametrize(
    "bad",
    [
        None, 7, "", "x", PARENT[:-1], PARENT.upper(), f"{PARENT}-more", "ff" + PARENT[2:], "0" * 55,
        f"00-{'0' * 32}-b7ad6b7169203331-01", f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
    ],
)  # fmt: skip
def test_what_is_no_context_is_none(bad: Any) -> None:
    assert read(bad) is None
    assert read(f"{PARENT}\nX-Injected: 1") is None


def test_headers_of_a_later_version_are_understood_as_far_as_they_go() -> None:
    assert read_headers(f"01{PARENT[2:]}-what-comes-next") == PLACE
    assert read_headers(f" {PARENT} ", " vendor=a ") == PLACE._replace(state="vendor=a")


def test_flags_that_are_not_defined_are_dropped() -> None:
    assert read(f"{PARENT[:-2]}ff") == PLACE._replace(flags=3)


@pytest.mark.parametrize("state", ["x" * 513, "a=ü", "a=\x00", "a=\tb"])
def test_a_state_that_cannot_be_stored_is_left_out(state: str) -> None:
    assert read_headers(PARENT, state) == PLACE
    assert read_headers(PARENT, "x" * 512) == PLACE._replace(state="x" * 512)


# Without OpenTelemetry


@pytest.mark.usefixtures("unloaded")
def test_where_nobody_traces_nothing_is_made() -> None:
    assert tracing.api() is None
    assert enqueueing("task", "queue") is None
    assert calling("GET", {}) is None
    assert current() is None
    assert headers() == {}


@pytest.mark.usefixtures("unloaded")
def test_where_nobody_traces_a_context_is_passed_on() -> None:
    place = PLACE._replace(state="vendor=a")
    with carried(place):
        assert headers() == place.headers
        for doing in (enqueueing("task", "queue"), calling("GET", {})):
            assert doing is not None
            with doing:
                doing.note({"a": 1})
                doing.failed("x")
                assert doing.place == place
                assert doing.kept(None) == f'{{"trace":"{place.stored}"}}'
                assert doing.kept('{"timeout":3}') == f'{{"timeout":3,"trace":"{place.stored}"}}'
    assert current() is None
    with carried(None):
        assert current() is None


async def test_a_process_that_does_not_trace_does_not_load_opentelemetry() -> None:
    said = await script(
        "import sys, hourhand, hourhand.client, hourhand.engine.child, hourhand.surfaces.cli.main as cli;"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    assert said.strip() == "[]"


# With it


def test_a_span_of_the_callers_outweighs_what_was_carried(seen: Seen) -> None:
    with seen.tracer.start_as_current_span("here") as span, carried(PLACE):
        place = current()
        assert place is not None
        assert (place.trace, place.span) == (span.get_span_context().trace_id, span.get_span_context().span_id)


def test_what_was_carried_is_the_parent_of_what_is_made(seen: Seen) -> None:
    with carried(PLACE._replace(state="vendor=a")):
        doing = enqueueing("task", "queue")
        assert doing is not None
        with doing:
            assert headers()["traceparent"] == doing.place.headers["traceparent"]
            with seen.tracer.start_as_current_span("inside"):
                pass
    assert current() is None
    enqueue, inside = seen.one("enqueue task"), seen.one("inside")
    assert (of(enqueue).trace_id, parent(enqueue)) == PLACE[:2]
    assert parent(inside) == of(enqueue).span_id
    assert doing.place.state == "vendor=a"


def test_what_was_carried_before_opentelemetry_was_loaded_is_not_forgotten(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler in a child process may load it in the middle of what it does."""
    monkeypatch.setattr(tracing, "_api", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with carried(PLACE):
        monkeypatch.setitem(sys.modules, "opentelemetry.trace", trace)
        doing = enqueueing("task", "queue")
        assert doing is not None
        with doing:
            pass
    assert (of(seen.one("enqueue task")).trace_id, parent(seen.one("enqueue task"))) == PLACE[:2]


def test_an_error_is_seen_by_its_kind(seen: Seen) -> None:
    def fail() -> None:
        with seen.tracer.start_as_current_span("here"), calling("GET", {"server.address": "there"}) or nullcontext():
            raise ValueError("the password is hunter2")

    with pytest.raises(ValueError, match="hunter2"):
        fail()
    call = seen.one("GET")
    assert (call.status.status_code, call.status.description) == (StatusCode.ERROR, "ValueError")
    assert not call.events


def test_without_a_provider_the_callers_context_is_used() -> None:
    with provided(None), carried(PLACE):
        doing = enqueueing("task", "queue")
        assert doing is not None
        with doing:
            assert doing.place == PLACE


def test_a_provider_that_is_set_later_is_found() -> None:
    with provided(None), carried(PLACE):
        enqueueing("task", "queue")
    with traced() as seen, carried(PLACE):
        doing = enqueueing("task", "queue")
        assert doing is not None
        with doing:
            pass
    assert seen.one("enqueue task")


# Attempts


def made(number: int = 7, **more: Any) -> Any:
    claim = SimpleNamespace(
        run_number=number, job_number=3, task="report", queue="default", attempt=0, options=None, errors=None,
        scheduled_at=datetime(2030, 1, 1, tzinfo=UTC), scheduled=datetime(2030, 1, 1, tzinfo=UTC).timestamp(),
    )  # fmt: skip
    claim.__dict__.update(more)
    return SimpleNamespace(claim=claim, attempt=None)


def attempted(one: Tracing, status: str = "succeeded", **more: Any) -> Any:
    active = made(**more)
    one.begin(active)
    active.attempt.leave()
    one.end(active, status)
    one.end(active, "dead")
    return active


def test_ids_are_given_to_the_first_span_and_to_no_other(seen: Seen) -> None:
    one = Tracing(tracing.tracer(), "here", "node")
    attempted(one)
    attempted(one, number=8)
    fires, runs = seen.named("fire report"), seen.named("run report")
    assert [(of(fire).trace_id, of(fire).span_id) for fire in fires] in (
        [one.first(made(n).claim)[:2] for n in pair] for pair in ((7, 8), (8, 7))
    )
    assert len({of(span).span_id for span in seen.spans}) == 4
    assert sorted(parent(run) or 0 for run in runs) == sorted(of(fire).span_id for fire in fires)
    # A run that is begun before it was due, by the clock of this machine, was not waiting.
    assert all(fire.start_time == fire.end_time for fire in fires)
    with tracing.tracer().start_as_current_span("ours"), seen.tracer.start_as_current_span("the user's"):
        pass
    assert len(seen.traces) == 3
    assert current() is None


@pytest.mark.parametrize(
    ("status", "firings"), [("succeeded", 1), ("failed", 1), ("lost", 1), ("handed_back", 0), ("abandoned", 0)]
)
def test_a_trace_begins_with_the_first_attempt_that_counts(seen: Seen, status: str, firings: int) -> None:
    one = Tracing(tracing.tracer(), "here", "node")
    attempted(one, status)
    assert len(seen.named("fire report")) == firings
    assert (seen.one("run report").attributes or {})["hourhand.status"] == status, "and the first word counts"
    attempted(one, attempt=1, errors=[{"trace": PARENT}])
    attempted(one, errors=[{"trace": PARENT}])
    assert len(seen.named("fire report")) == firings


def test_what_a_run_says_of_its_trace_is_not_trusted(seen: Seen) -> None:
    one = Tracing(tracing.tracer(), "here", "node")
    attempted(one, options={"trace": "nonsense", "after": 7}, errors=[{"type": "ValueError"}])
    attempted(one, options={"trace": PARENT, "then": {}}, errors=[{"trace": "nonsense"}])
    first, second = seen.named("run report")
    assert parent(first) == one.first(made().claim).span
    assert (of(second).trace_id, parent(second)) == PLACE[:2]
    assert linked(first) == linked(second) == []


def test_a_provider_that_is_not_the_sdks_gets_attempts_only() -> None:
    with traced() as seen:

        class Foreign(trace.Tracer):
            """Somebody else's, that happens to use the SDK."""

            def start_span(self, *args: Any, **kwargs: Any) -> Any:
                return seen.tracer.start_span(*args, **kwargs)

            def start_as_current_span(self, *args: Any, **kwargs: Any) -> Any:
                raise NotImplementedError

        attempted(Tracing(Foreign(), "here", "node"))
    assert [one.name for one in seen.spans] == ["run report"]
    assert of(seen.spans[0]).trace_flags.sampled


async def test_without_a_provider_nothing_is_asked_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = None
    for provider in (None, NoOpTracerProvider()):
        with provided(provider):
            assert await find_tracing(nothing, "node") is None
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with provided(TracerProvider(shutdown_on_exit=False)):
        assert await find_tracing(nothing, "node") is None
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert await find_tracing(nothing, "node") is None


# Exporting


@pytest.mark.parametrize(
    "environment",
    [
        {}, {"OTEL_TRACES_EXPORTER": ""}, {"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_SERVICE_NAME": "x"},
        {"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"},
    ],
)  # fmt: skip
def test_nothing_is_exported_unless_the_environment_says_so(environment: dict[str, str]) -> None:
    with provided(None):
        assert not configure_traces("worker", environment)
        assert trace._TRACER_PROVIDER is None


def test_an_applications_own_provider_is_left_alone(seen: Seen) -> None:
    assert not configure_traces("worker", {"OTEL_TRACES_EXPORTER": "console"})
    assert trace.get_tracer_provider() is seen.provider


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"OTEL_TRACES_EXPORTER": "pigeon"}, "'pigeon' .* is not installed; installed here: .*console"),
        ({"OTEL_TRACES_EXPORTER": "console,pigeon"}, "'pigeon'"),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "pip install opentelemetry-exporter-otlp;"),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            "pip install opentelemetry-exporter-otlp-proto-http;",
        ),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "smoke"}, "must be one of grpc, http/protobuf, not 'smoke'"),
    ],
)  # fmt: skip
def test_what_cannot_be_exported_is_said(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], words: str) -> None:
    from importlib.metadata import entry_points

    def without_otlp(**which: str) -> Any:
        return [] if which.get("name", "").startswith("otlp") else entry_points(**which)

    monkeypatch.setattr("hourhand.engine.exporting.entry_points", without_otlp)
    with provided(None):
        with pytest.raises(ConfigurationError, match=words):
            configure_traces("worker", environment)
        assert trace._TRACER_PROVIDER is None


def test_an_endpoint_that_may_be_meant_for_others_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with structlog.testing.capture_logs() as said:
        assert not configure_traces("worker", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317"})
    assert said[0]["event"] == "trace.not_exported"
    assert "pip install 'hourhand[otel]' opentelemetry-sdk" in said[0]["reason"]
    with pytest.raises(ConfigurationError, match="SDK of OpenTelemetry is not installed"):
        configure_traces("worker", {"OTEL_TRACES_EXPORTER": "otlp"})


EXPORTED = """
import sys
from opentelemetry import trace
from hourhand.engine.exporting import exported
with exported("worker"):
    trace.get_tracer("x").start_span("the last span").end()
sys.stdout.flush()
__import__("os")._exit(0)
"""


async def test_the_last_spans_go_out_before_a_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    said = await script(EXPORTED)
    assert '"the last span"' in said
    assert '"service.name": "hourhand-worker"' in said
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    assert '"service.name": "mine"' in await script(EXPORTED)


def test_a_collector_that_is_gone_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    gone = threading.Event()
    monkeypatch.setattr("hourhand.engine.exporting._PATIENCE", 0.01)
    monkeypatch.delenv("OTEL_TRACES_EXPORTER", raising=False)
    with provided(SimpleNamespace(force_flush=gone.wait)), exported("worker"):
        pass
    assert not gone.is_set()
    gone.set()
