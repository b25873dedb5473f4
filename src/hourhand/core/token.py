"""The execution token: the same over every retry of a firing, different for each firing."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime


def execution_token(subject: str, scheduled_at: datetime) -> str:
    """`subject` is the job's public id, or the run's own for a run without a job."""
    instant = scheduled_at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return hashlib.sha256(f"{subject}{instant}".encode()).hexdigest()
