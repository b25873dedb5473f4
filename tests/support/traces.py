"""A provider of traces whose spans can be looked at, for as long as a test needs it; and an app for child processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import SpanContext

from hourhand import Hourhand
from hourhand.core.tracing import Place

app = Hourhand()


def declare(app: Hourhand) -> Hourhand:
    @app.task(isolation="process")
    def apart() -> list[Any]:
        """In whose trace a child process finds itself, and what it enqueues there."""
        here = trace.get_current_span().get_span_context()
        return [here.trace_id, here.span_id, app.enqueue_sync("later", queue="later").id]

    return app


declare(app)


@dataclass
class Seen:
    provider: TracerProvider
    exporter: InMemorySpanExporter

    @property
    def tracer(self) -> trace.Tracer:
        """The user's own."""
        return self.provider.get_tracer("the user's")

    @property
    def spans(self) -> list[ReadableSpan]:
        """All that have ended, by when they began."""
        return sorted(self.exporter.get_finished_spans(), key=lambda one: one.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        return [one for one in self.spans if one.name == name]

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.named(name)
        return found

    @property
    def traces(self) -> set[int]:
        return {of(one).trace_id for one in self.spans}


def of(span: ReadableSpan) -> SpanContext:
    assert span.context is not None
    return span.context


def parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def linked(span: ReadableSpan) -> list[tuple[int, Any]]:
    return [(link.context.span_id, (link.attributes or {})["hourhand.link"]) for link in span.links]


def stored(span: ReadableSpan) -> str:
    """As a run would keep it."""
    return Place(of(span).trace_id, of(span).span_id, int(of(span).trace_flags)).stored


@contextmanager
def provided(provider: Any) -> Iterator[None]:
    """The global provider, which can be set only once by those who do not reach behind it."""
    before, trace._TRACER_PROVIDER = trace._TRACER_PROVIDER, provider
    try:
        yield
    finally:
        trace._TRACER_PROVIDER = before


@contextmanager
def traced(sampler: Sampler | None = None) -> Iterator[Seen]:
    provider, exporter = TracerProvider(sampler, shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provided(provider):
        yield Seen(provider, exporter)
