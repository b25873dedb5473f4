"""Traces: the W3C context that travels with a run, and the spans of whoever enqueues one or calls a URL.

OpenTelemetry is never loaded here. Whoever has a span has loaded it, so a process that has not pays for one look into a
dictionary. A context that comes in from outside is passed on all the same: others may trace what this process does not.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.metadata import version
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

SCOPE = "hourhand"
"""Who made a span, as backends show it."""
LONGEST_STATE = 512
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE = re.compile(rf"[!-~]([ -~]{{0,{LONGEST_STATE - 2}}}[!-~])?")
_FLAGS = 3
"""The bits of the flags that are defined: sampled, and that the trace's id is random."""

CARRIED: ContextVar[str | None] = ContextVar("hourhand_trace", default=None)
"""What came with a request or from a parent process, where OpenTelemetry is not there to keep it."""

_api: Any = None
_tracer: tuple[Any, Any] = (None, None)


class Place(NamedTuple):
    """A span of somebody's, as others can refer to it."""

    trace: int
    span: int
    flags: int
    state: str = ""

    @property
    def stored(self) -> str:
        """As it is kept in a run: a traceparent, and, after a space, a tracestate if there is one."""
        parent = f"00-{self.trace:032x}-{self.span:016x}-{self.flags:02x}"
        return f"{parent} {self.state}" if self.state else parent

    @property
    def headers(self) -> dict[str, str]:
        parent, _, state = self.stored.partition(" ")
        return {"traceparent": parent, "tracestate": state} if state else {"traceparent": parent}

    @classmethod
    def of(cls, span: Any) -> Place:
        context = span.get_span_context()
        state = context.trace_state.to_header()
        return cls(context.trace_id, context.span_id, int(context.trace_flags) & _FLAGS, state if _STATE.fullmatch(state) else "")

    def context(self) -> Any:
        """For OpenTelemetry's `SpanContext`: somebody else's span."""
        trace = api()
        state = trace.TraceState.from_header([self.state]) if self.state else None
        return trace.SpanContext(self.trace, self.span, True, trace.TraceFlags(self.flags), state)


def read(stored: Any) -> Place | None:
    """What a run has kept. None: it is nothing that could be understood, and the run is none the worse for it."""
    parent, _, state = stored.partition(" ") if isinstance(stored, str) else ("", "", "")
    return read_headers(parent, state)


def read_headers(parent: str | None, state: str | None = None) -> Place | None:
    found = _PARENT.fullmatch((parent or "").strip())
    # A later version may have more to say at its end; this one may not.
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
        return None
    trace, span = int(found[2], 16), int(found[3], 16)
    if not trace or not span:
        return None
    state = (state or "").strip()
    return Place(trace, span, int(found[4], 16) & _FLAGS, state if _STATE.fullmatch(state) else "")


def api() -> Any:
    """`opentelemetry.trace`, if anything in this process has loaded it."""
    global _api
    if _api is None and sys.modules.get("opentelemetry.trace") is not None:
        from opentelemetry import trace  # waits for a thread that is still loading it

        _api = trace
    return _api


def tracer() -> Any:
    """Ours, of the provider that is in force. To make one is expensive."""
    global _tracer
    trace = api()
    provider = trace.get_tracer_provider()
    if _tracer[0] is not provider:
        _tracer = provider, trace.get_tracer(SCOPE, version("hourhand"), provider)
    return _tracer[1]


def current() -> Place | None:
    """Where the caller stands."""
    trace = api()
    if trace is not None and (span := trace.get_current_span()).get_span_context().is_valid:
        return Place.of(span)
    return None if (stored := CARRIED.get()) is None else read(stored)


def headers() -> dict[str, str]:
    """Of a request that is made here."""
    place = current()
    return {} if place is None else place.headers


@contextmanager
def carried(place: Place | None) -> Iterator[None]:
    """What is done in here belongs to a trace that began elsewhere; unless there is a span here already, which knows better."""
    trace = api()
    if place is None or (trace is not None and trace.get_current_span().get_span_context().is_valid):
        yield
        return
    mark, token = CARRIED.set(place.stored), None
    if trace is not None:
        token = _attach(trace.NonRecordingSpan(place.context()))
    try:
        yield
    finally:
        _detach(token)
        CARRIED.reset(mark)


def _attach(span: Any) -> Any:
    from opentelemetry import context

    return context.attach(api().set_span_in_context(span))


def _detach(token: Any) -> None:
    if token is not None:
        from opentelemetry import context

        context.detach(token)


class Doing:
    """Something that is done within a trace: with a span of its own, or, where none can be made, in the name of the caller's."""

    def __init__(self, span: Any, place: Place) -> None:
        self._span = span
        self._token: Any = None
        self.place = place

    def __enter__(self) -> Self:
        if self._span is not None:
            self._token = _attach(self._span)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _detach(self._token)
        if self._span is None:
            return
        if kind is not None:
            self.failed(kind.__qualname__)
        with suppress(Exception):  # a processor of the user's
            self._span.end()

    def note(self, attributes: Mapping[str, Any]) -> None:
        if self._span is not None:
            self._span.set_attributes(attributes)

    def failed(self, what: str) -> None:
        """Only what kind of thing went wrong: the words of an error may quote a payload."""
        if self._span is not None:
            self._span.set_attribute("error.type", what)
            self._span.set_status(api().StatusCode.ERROR, what)

    def kept(self, options: str | None) -> str:
        """The options of a run, as JSON, with its trace in them."""
        known = {} if options is None else msgspec.json.decode(options)
        return msgspec.json.encode({**known, "trace": self.place.stored}).decode()


def enqueueing(task: str, queue: str | None = None) -> Doing | None:
    """An enqueue, if the caller is in a trace; None, which is the rule, if not."""
    place = current()
    if place is None or (trace := api()) is None:
        return None if place is None else Doing(None, place)
    attributes = messaging("send", "enqueue", queue) | {"hourhand.task": task}
    return _begun(f"enqueue {task}", trace.SpanKind.PRODUCER, attributes, place)


def calling(method: str, attributes: Mapping[str, Any]) -> Doing | None:
    """A request to somebody else, if the caller is in a trace."""
    place = current()
    if place is None or (trace := api()) is None:
        return None if place is None else Doing(None, place)
    return _begun(method, trace.SpanKind.CLIENT, {"http.request.method": method, **attributes}, place)


def _begun(name: str, kind: Any, attributes: Mapping[str, Any], above: Place) -> Doing:
    trace = api()
    here = None
    if not trace.get_current_span().get_span_context().is_valid:
        here = trace.set_span_in_context(trace.NonRecordingSpan(above.context()))
    try:
        span = tracer().start_span(name, here, kind, attributes)
    except Exception:  # a sampler or a processor of the user's: what is to be done matters more than that it is seen
        return Doing(None, above)
    return Doing(span, Place.of(span))


def messaging(kind: str, name: str, queue: str | None) -> dict[str, Any]:
    """What OpenTelemetry's conventions call these things."""
    told = {"messaging.system": SCOPE, "messaging.operation.type": kind, "messaging.operation.name": name}
    return told if queue is None else {**told, "messaging.destination.name": queue, "hourhand.queue": queue}
