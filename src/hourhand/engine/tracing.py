"""The spans of attempts: one for each, all of a run in one trace, whichever workers they are made on.

A run that was enqueued within a trace has its context in its options. One that was not, such as every run that a schedule
fired, has a trace all the same: its id, and that of the span it begins with, are computed from the run's number, so that each
worker finds the same ones with nothing stored.

What survives a crash: the spans that were exported. Runs do not depend on any of this; what goes wrong here is logged once.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from hourhand.core import ids
from hourhand.core.errors import DatabaseUnavailable
from hourhand.core.tracing import Place, messaging, read, tracer
from hourhand.storage.database import Database, Patience
from hourhand.storage.queue import Claim

if TYPE_CHECKING:
    from hourhand.engine.caller import Active

log = structlog.get_logger("hourhand.tracing")
FAILED = ("failed", "dead", "lost", "abandoned")
UNSETTLED = ("handed_back", "abandoned")
"""The run is for somebody else to execute: this attempt does not count."""


class Given:
    """Ids that are known beforehand, for a tracer of the SDK's."""

    def __init__(self) -> None:
        self.place = Place(1, 1, 0)

    def generate_trace_id(self) -> int:
        return self.place.trace

    def generate_span_id(self) -> int:
        return self.place.span

    def is_trace_id_random(self) -> bool:
        return False


class Attempt:
    """The span of one attempt, from its start to what becomes of the run."""

    __slots__ = ("_context", "_token", "begins", "onward", "over", "parent", "place", "span")

    def __init__(self, span: Any, claim: Claim, parent: Place, begins: bool, current: bool) -> None:
        from opentelemetry import context, trace

        self.span = span
        self.place = Place.of(span)
        self.parent = parent
        self.begins = begins
        """The span that its trace begins with is still to be made."""
        self.onward: str | None = None
        """For the step that follows, if one does: the trace it belongs to, and the attempt it comes after."""
        if claim.options is not None and "then" in claim.options:
            self.onward = msgspec.json.encode({"trace": parent.stored, "after": self.place.stored}).decode()
        self.over = False
        self._context = context
        self._token = context.attach(trace.set_span_in_context(span)) if current else None

    def leave(self) -> None:
        """In the task that began it: its next run has nothing to do with this one."""
        if self._token is not None:
            self._context.detach(self._token)


class Calling:
    """The span of a call that is made for several runs, each of which has a span of its own."""

    __slots__ = ("_context", "_token", "place", "span")

    def __init__(self, span: Any) -> None:
        from opentelemetry import context, trace

        self.span = span
        self.place = Place.of(span)
        self._context = context
        self._token = context.attach(trace.set_span_in_context(span))

    def leave(self) -> None:
        self._context.detach(self._token)


class Tracing:
    def __init__(self, tracer: Any, installation: str, node: str) -> None:
        from opentelemetry import context, trace

        self._context, self._trace = context, trace
        self._tracer = tracer
        self._installation = installation
        self._node = node
        self._told = False
        self._given = Given()
        self._first: Any = None
        """A tracer whose spans have the ids they are given. None: the tracer is not the SDK's, whose spans alone can."""
        with suppress(ImportError):
            from opentelemetry.sdk.trace import Tracer
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON

            if isinstance(tracer, Tracer):
                # A copy, because a provider gives everybody the same one. What is sampled is decided before it is asked.
                self._first = copy.copy(tracer)
                self._first.id_generator, self._first.sampler = self._given, ALWAYS_ON

    def begin(self, active: Active, calling: Calling | None = None) -> None:
        """From here on the attempt's span is the current one of this task, and of what the handler starts. In a batch that is
        the span of the call, and the attempt's has a link to it."""
        try:
            active.attempt = self._begun(active.claim, calling)
        except Exception as error:
            self._failed(error)

    def begin_call(self, claims: Sequence[Claim]) -> Calling | None:
        """A call for several runs belongs to none of their traces: it has one of its own."""
        try:
            facts = messaging("process", "call", claims[0].queue)
            facts |= {"messaging.batch.message_count": len(claims), "hourhand.task": claims[0].task, "hourhand.node": self._node}
            return Calling(self._tracer.start_span(f"call {claims[0].task}", self._context.Context(), attributes=facts))
        except Exception as error:
            self._failed(error)
            return None

    def end_call(self, calling: Calling) -> None:
        try:
            calling.leave()
            calling.span.end()
        except Exception as error:
            self._failed(error)

    def _begun(self, claim: Claim, calling: Calling | None = None) -> Attempt:
        trace, options = self._trace, claim.options or {}
        before = read(claim.errors[-1].get("trace")) if claim.errors else read(options.get("after"))
        stored = read(options.get("trace"))
        parent = self.first(claim, before) if stored is None else stored
        what = "attempt" if claim.errors else "step"
        links = [] if before is None else [trace.Link(before.context(), {"hourhand.link": what})]
        if calling is not None:
            links.append(trace.Link(calling.place.context(), {"hourhand.link": "batch"}))
        attributes = _facts(claim, "process", "run") | {"hourhand.attempt": claim.attempt + 1, "hourhand.node": self._node}
        above = trace.set_span_in_context(trace.NonRecordingSpan(parent.context()), self._context.Context())
        span = self._tracer.start_span(f"run {claim.task}", above, trace.SpanKind.CONSUMER, attributes, links)
        # One that has errors was replayed, and its trace has begun long ago.
        return Attempt(span, claim, parent, stored is None and not claim.attempt and not claim.errors, calling is None)

    def first(self, claim: Claim, before: Place | None = None) -> Place:
        """Where the trace of a run begins that came with none: the same on every worker, and for every attempt."""
        digest = blake2b(f"{self._installation}:{claim.run_number}".encode(), digest_size=24).digest()
        number, span = int.from_bytes(digest[:16], "big") or 1, int.from_bytes(digest[16:], "big") or 1
        if before is not None and before.trace == number:
            return Place(number, span, before.flags & 1)  # what was decided for the first attempt
        return Place(number, span, int(self._sampled(claim, number)))

    def _sampled(self, claim: Claim, number: int) -> bool:
        if self._first is None:
            return True
        kind, verb = self._trace.SpanKind.PRODUCER, _verb(claim)
        here, facts = self._context.Context(), _facts(claim, "send", verb)
        answer = self._tracer.sampler.should_sample(here, number, f"{verb} {claim.task}", kind, facts, ())
        return bool(answer.decision.is_sampled())

    def end(self, active: Active, status: str, error: dict[str, Any] | None = None) -> None:
        """`status`: what the attempt came to. `error`: as it is kept with the run, without what is secret in it."""
        attempt = active.attempt
        if attempt is None or attempt.over:
            return  # what was left behind may end a second time
        attempt.over = True
        try:
            self._ended(attempt, status, error)
            if attempt.begins and status not in UNSETTLED:
                self._begin_with(active.claim, attempt)
        except Exception as bad:
            self._failed(bad)

    def _ended(self, attempt: Attempt, status: str, error: dict[str, Any] | None) -> None:
        span = attempt.span
        span.set_attribute("hourhand.status", status)
        if error is not None:
            span.set_attribute("error.type", error["type"])
            said = {"type": error["type"], "message": error["message"], "stacktrace": error["traceback"]}
            span.add_event("exception", {f"exception.{name}": value for name, value in said.items()})
        if status in FAILED:
            words = status if error is None else f"{error['type']}: {error['message']}"
            span.set_status(self._trace.StatusCode.ERROR, words)
        span.end()

    def _begin_with(self, claim: Claim, attempt: Attempt) -> None:
        """The span from when the run was due until it was begun. It is made late, when it is known that this attempt counts:
        of a run that is handed back, somebody else makes it."""
        begun = getattr(attempt.span, "start_time", None)
        if self._first is None or begun is None or not attempt.parent.flags & 1:
            return
        # What was started by hand, for a time that is long past, was not waiting since then.
        by_hand = claim.options is not None and "by_hand" in claim.options
        due = begun if by_hand else min(begun, int(claim.scheduled * 1e9))
        verb = _verb(claim)
        facts = _facts(claim, "send", verb) | {"hourhand.scheduled_at": claim.scheduled_at.isoformat()}
        self._given.place = attempt.parent
        here, kind = self._context.Context(), self._trace.SpanKind.PRODUCER
        self._first.start_span(f"{verb} {claim.task}", here, kind, facts, start_time=due).end(begun)

    def _failed(self, error: Exception) -> None:
        if not self._told:
            self._told = True
            log.error(
                "trace.failed", error=f"{type(error).__qualname__}: {error}", meaning="runs go on, some without their spans"
            )


def _verb(claim: Claim) -> str:
    return "enqueue" if claim.job_number is None else "fire"


def _facts(claim: Claim, kind: str, verb: str) -> dict[str, Any]:
    run = ids.run_id(claim.run_number)
    facts = messaging(kind, verb, claim.queue) | {
        "messaging.message.id": run,
        "hourhand.run_id": run,
        "hourhand.task": claim.task,
    }
    return facts if claim.job_number is None else {**facts, "hourhand.job": ids.job_id(claim.job_number)}


async def find_tracing(database: Database, node: str) -> Tracing | None:
    """None, if this process has no provider of traces: then none are made, and nothing is asked for them."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider) or isinstance(found := tracer(), trace.NoOpTracer):
        return None
    patience = Patience()
    while True:
        try:
            return Tracing(found, await database.fetchval("installation"), node)
        except DatabaseUnavailable:
            await patience.wait()
