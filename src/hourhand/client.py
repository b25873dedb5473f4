"""The client of the REST API: `AsyncClient`, and `Client` for callers without an event loop."""

from hourhand.core.actor import Actor
from hourhand.core.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    Forbidden,
    HourhandError,
    InvalidOption,
    InvalidPayload,
    InvalidSchedule,
    JobConflict,
    NotPossible,
    PreconditionFailed,
    QueueFull,
    RunFailed,
    RunNotFinished,
    Unauthorized,
    UnknownHold,
    UnknownJob,
    UnknownKey,
    UnknownQueue,
    UnknownRun,
)
from hourhand.surfaces.client import AsyncClient, Client
from hourhand.surfaces.client.blocking import BlockingHandle
from hourhand.surfaces.client.remote import Preview
from hourhand.surfaces.handle import RunHandle

__all__ = [
    "Actor",
    "AsyncClient",
    "BlockingHandle",
    "Client",
    "ConfigurationError",
    "DatabaseUnavailable",
    "Forbidden",
    "HourhandError",
    "InvalidOption",
    "InvalidPayload",
    "InvalidSchedule",
    "JobConflict",
    "NotPossible",
    "PreconditionFailed",
    "Preview",
    "QueueFull",
    "RunFailed",
    "RunHandle",
    "RunNotFinished",
    "Unauthorized",
    "UnknownHold",
    "UnknownJob",
    "UnknownKey",
    "UnknownQueue",
    "UnknownRun",
]
