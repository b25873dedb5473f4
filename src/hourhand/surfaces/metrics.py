"""What Prometheus is told at GET /metrics: for now, what should wake somebody up."""

from __future__ import annotations

from collections import Counter

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

from hourhand.storage.database import Database

CONTENT_TYPE = CONTENT_TYPE_LATEST
_MOST = 1_000
_DAY = 86_400.0


async def exposition(database: Database) -> bytes:
    registry = CollectorRegistry()
    stuck = Gauge(
        "hourhand_stuck_runs", "Runs that go on far beyond their timeout, or beyond what is usual", ["task"], registry=registry
    )
    lost = Gauge(
        "hourhand_lost_runs",
        "At-most-once runs that were cut off after they had begun, within a day",
        ["task"],
        registry=registry,
    )
    probation = Gauge("hourhand_probation_runs", "Runs whose worker died, waiting or running apart", registry=registry)
    for gauge, rows in (
        (stuck, await database.fetch("stuck_runs", _MOST)),
        (lost, await database.fetch("lost_runs", _DAY, _MOST)),
    ):
        for task, count in Counter(row["task"] for row in rows).items():
            gauge.labels(task).set(count)
    probation.set(await database.fetchval("runs_on_probation"))
    return generate_latest(registry)
