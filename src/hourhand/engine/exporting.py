"""Where the traces of Hourhand's own processes go, as OpenTelemetry's environment variables say it.

An application that sets up OpenTelemetry itself is left alone; this is for those that do not.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import entry_points
from typing import Any

import structlog

from hourhand.core import tracing
from hourhand.core.errors import ConfigurationError

log = structlog.get_logger("hourhand.tracing")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_BY_PROTOCOL = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
_PACKAGES = {
    "otlp_proto_grpc": "opentelemetry-exporter-otlp-proto-grpc",
    "otlp_proto_http": "opentelemetry-exporter-otlp-proto-http",
    "otlp": "opentelemetry-exporter-otlp",
}
_GROUP = "opentelemetry_traces_exporter"
_PATIENCE = 5.0
"""Seconds that a process which ends gives its last spans."""


class Missing(ConfigurationError):
    """What the environment asks for is not installed."""


def configure_traces(process: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process has a provider of traces now because its environment asks for one.

    `process`: what it calls itself where OTEL_SERVICE_NAME does not say.
    """
    named = environment.get("OTEL_TRACES_EXPORTER", "").strip()
    asked = named or any(environment.get(one) for one in _ENDPOINTS)
    if not asked or named == "none" or environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    try:
        return _configure(process, [one.strip() for one in (named or "otlp").split(",") if one.strip()], environment)
    except Missing as error:
        if named:
            raise
        # The endpoint is often set for everything that runs somewhere, and may be meant for others.
        log.warning("trace.not_exported", reason=str(error))
        return False


def _configure(process: str, names: list[str], environment: Mapping[str, str]) -> bool:
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise Missing(
            "the environment asks for traces (OTEL_…), and the SDK of OpenTelemetry is not installed: "
            "pip install 'hourhand[otel]' opentelemetry-sdk opentelemetry-exporter-otlp"
        ) from None
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return False  # the application's own
    exporters = [_exporter(one, environment) for one in names]
    told = "service.name" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "") or environment.get("OTEL_SERVICE_NAME")
    # Whoever configures it here also flushes it, within a limit.
    provider = TracerProvider(
        shutdown_on_exit=False, resource=Resource.create({} if told else {"service.name": f"hourhand-{process}"})
    )
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return True


def _exporter(name: str, environment: Mapping[str, str]) -> Any:
    wanted = [name]
    if name == "otlp":
        protocol = next((environment[one].strip() for one in _PROTOCOLS if environment.get(one)), None)
        if protocol is not None and protocol not in _BY_PROTOCOL:
            raise ConfigurationError(f"OTEL_EXPORTER_OTLP_PROTOCOL must be one of {', '.join(_BY_PROTOCOL)}, not {protocol!r}")
        # Where nobody says which, the one that is installed.
        wanted = [*_BY_PROTOCOL.values()] if protocol is None else [_BY_PROTOCOL[protocol]]
    for one in wanted:
        for entry in entry_points(group=_GROUP, name=one):
            try:
                return entry.load()()
            except ImportError as error:
                raise Missing(f"the exporter of traces {one!r} cannot be loaded: {error}") from None
    package = _PACKAGES.get(name if len(wanted) > 1 else wanted[0])
    known = sorted({entry.name for entry in entry_points(group=_GROUP)})
    raise Missing(
        f"the exporter of traces {name!r} (OTEL_TRACES_EXPORTER) is not installed"
        + (f": pip install {package}" if package else "")
        + f"; installed here: {', '.join(known) or 'none'}"
    )


@contextmanager
def exported(process: str) -> Iterator[None]:
    """Around what a process does: its spans go where its environment says, the last of them before it ends."""
    configure_traces(process)
    try:
        yield
    finally:
        flush_traces()


def flush_traces() -> None:
    """What has not been exported goes out now, whoever has set up the exporting."""
    trace = tracing.api()
    flush = None if trace is None else getattr(trace.get_tracer_provider(), "force_flush", None)
    if flush is not None:
        # A collector that does not answer is not waited for, however long its exporter would.
        one = threading.Thread(target=_quietly, args=(flush,), name="hourhand-flusher", daemon=True)
        one.start()
        one.join(_PATIENCE)


def _quietly(flush: Callable[[], Any]) -> None:
    with suppress(Exception):  # nothing of ours depends on it
        flush()
