"""Hourhand: a distributed job scheduler for Python and PostgreSQL."""

from hourhand.core.backoff import Retry
from hourhand.core.chain import Step
from hourhand.core.context import BatchContext, Context
from hourhand.core.errors import (
    Cancelled,
    ClaimLost,
    ConfigurationError,
    DatabaseUnavailable,
    HandlerTimeout,
    HourhandError,
    InvalidOption,
    InvalidPayload,
    InvalidSchedule,
    JobConflict,
    LoopBlocked,
    NotPossible,
    PermanentFailure,
    ProcessDied,
    QueueFull,
    RetryAfter,
    RunFailed,
    RunNotFinished,
    SchemaMismatch,
    UnknownJob,
    UnknownRun,
)
from hourhand.core.limits import Limit, Rate
from hourhand.core.notice import Alert
from hourhand.surfaces.app import Hourhand
from hourhand.surfaces.handle import RunHandle
from hourhand.surfaces.task import Task
from hourhand.surfaces.views import JobView, NodeView, QueueView, RunView

__version__ = "0.1.0"

__all__ = [
    "Alert",
    "BatchContext",
    "Cancelled",
    "ClaimLost",
    "ConfigurationError",
    "Context",
    "DatabaseUnavailable",
    "HandlerTimeout",
    "Hourhand",
    "HourhandError",
    "InvalidOption",
    "InvalidPayload",
    "InvalidSchedule",
    "JobConflict",
    "JobView",
    "Limit",
    "LoopBlocked",
    "NodeView",
    "NotPossible",
    "PermanentFailure",
    "ProcessDied",
    "QueueFull",
    "QueueView",
    "Rate",
    "Retry",
    "RetryAfter",
    "RunFailed",
    "RunHandle",
    "RunNotFinished",
    "RunView",
    "SchemaMismatch",
    "Step",
    "Task",
    "UnknownJob",
    "UnknownRun",
    "__version__",
]
