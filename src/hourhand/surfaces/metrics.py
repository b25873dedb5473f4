"""What Prometheus is told at GET /metrics of the API: the whole fleet, as the tables have it, and the API's own process.

Nothing is counted to answer: how full the queues are is what the maintainer found a few seconds ago, and the rest is looked up.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import asyncpg
from prometheus_client.core import GaugeMetricFamily, Metric

from hourhand.engine.exposition import CONTENT_TYPE, MOST, OTHER, Taken, build_info, gauge, labelled, round_trips, text
from hourhand.storage.database import Database
from hourhand.surfaces.statistics import RECENT

__all__ = ["CONTENT_TYPE", "exposition"]
_MOST_RUNS = 1_000
_DAY = 86_400.0
_STATES = ("ready", "delayed", "parked", "running")


async def exposition(database: Database) -> bytes:
    queues = await database.fetch("latest_samples", None)
    rates = await database.fetch("queue_rates", float(RECENT))
    totals = {row["name"]: row["value"] for row in await database.fetch("totals")}
    nodes, sizes = await database.fetch("fleet", MOST), await database.fetch("fleet_size")
    firing = (await database.fetch("firing_state"))[0]
    stuck = await database.fetch("stuck_runs", _MOST_RUNS)
    lost = await database.fetch("lost_runs", _DAY, _MOST_RUNS)
    probation = await database.fetchval("runs_on_probation")
    rules = await database.fetch("list_rules", False)
    plain = [
        build_info(),
        *_queues([dict(row) for row in queues], {row["queue"]: row for row in rates}),
        *_totals(totals),
        *_nodes(nodes, sizes),
        gauge("hourhand_shards_unowned", "Shards that no living scheduler fires", firing["unowned"]),
        gauge("hourhand_firing_overdue_seconds", "For how long the most overdue schedule has been due", firing["overdue"]),
        gauge("hourhand_missed_firings_last_hour", "Firings that came later than their job's misfire_grace", firing["missed"]),
        _by_task("hourhand_stuck_runs", "Runs that go on far beyond their timeout, or beyond what is usual", stuck),
        _by_task("hourhand_lost_runs", "At-most-once runs that were cut off after they had begun, within a day", lost),
        *_limits(rules),
        gauge("hourhand_held_runs", "Runs that are held back, as they were counted last", totals.get("held_runs", 0)),
        gauge("hourhand_probation_runs", "Runs whose worker died, waiting or running apart", probation),
        *round_trips([database]),
    ]
    return await asyncio.to_thread(text, Taken(plain))


def _queues(rows: Sequence[dict[str, Any]], rates: Mapping[int, asyncpg.Record]) -> Iterator[Metric]:
    for row in rows:
        rate = rates.get(row["id"])
        row["ended"] = 0.0 if rate is None else sum(rate[name] for name in ("succeeded", "dead", "stopped", "lost")) / RECENT
        row["failed"] = 0.0 if rate is None else sum(rate[name] for name in ("failed", "dead", "lost")) / RECENT
    together = bounded_queues(rows)

    def family(name: str, meaning: str, column: str) -> Metric:
        one = GaugeMetricFamily(name, meaning, labels=["queue"])
        return labelled(one, (((row["name"],), row[column] or 0.0) for row in together))

    depth = GaugeMetricFamily("hourhand_queue_depth", "Runs in a queue, as they were found last", labels=["queue", "state"])
    yield labelled(depth, (((row["name"], state), row[state]) for row in together for state in _STATES))
    yield family("hourhand_dead_letters", "Runs that gave up and have not been replayed or purged", "dead")
    yield family("hourhand_queue_oldest_seconds", "For how long the run at the head of a queue has been due", "oldest_seconds")
    yield family("hourhand_queue_paused", "1: nothing is claimed from it", "paused")
    yield family("hourhand_queue_runs_per_second", "Runs that ended in the last five minutes, a second", "ended")
    yield family("hourhand_queue_failures_per_second", "Attempts that failed in the last five minutes, a second", "failed")
    ages = [row["age"] for row in rows if row["age"] is not None]
    if ages:
        yield gauge("hourhand_sample_age_seconds", "Since the queues were last looked at by a worker or a scheduler", min(ages))


def bounded_queues(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The oldest queues by their names, and all others as one; which these are does not change from one look to the next."""
    together: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda one: int(one["id"])):
        row = {**row, "paused": float(row["paused_at"] is not None)}
        if len(together) < MOST and row["name"] != OTHER:
            together.append(row)
            continue
        rest = next((one for one in together if one["name"] == OTHER), None)
        if rest is None:
            together.append({**row, "name": OTHER})
            continue
        for name in (*_STATES, "dead", "ended", "failed"):
            rest[name] += row[name]
        rest["oldest_seconds"] = max(rest["oldest_seconds"] or 0.0, row["oldest_seconds"] or 0.0)
        rest["paused"] = max(rest["paused"], row["paused"])
    return together


def _limits(rows: Sequence[asyncpg.Record]) -> Iterator[Metric]:
    """Of a rule whose limits all have keys, the sum over the values that are about; of the first rules by their names."""
    counts: dict[tuple[str, str], list[int]] = {}
    for place, row in enumerate(row for row in rows if row["slots"] is not None):
        together = counts.setdefault((row["scope"], row["name"]) if place < MOST else (OTHER, OTHER), [0, 0])
        together[0] += row["slots"]
        together[1] += row["in_use"]
    labels = ["scope", "name"]
    for index, (name, meaning) in enumerate(
        (
            ("hourhand_limit_slots", "How many runs a limit on a queue or a task lets go on at once"),
            ("hourhand_limit_slots_in_use", "How many of these are taken"),
        )
    ):
        yield labelled(GaugeMetricFamily(name, meaning, labels=labels), ((names, both[index]) for names, both in counts.items()))


def _totals(totals: Mapping[str, int]) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("hourhand_jobs", "Jobs, as they were counted last", labels=["state"])
    if totals:
        paused = totals.get("paused_jobs", 0)
        labelled(jobs, [(("active",), totals.get("jobs", 0) - paused), (("paused",), paused)])
    yield jobs
    if "schedules" in totals:
        yield gauge("hourhand_schedules", "Schedules that have a next firing, as they were counted last", totals["schedules"])


def _nodes(rows: Sequence[asyncpg.Record], sizes: Sequence[asyncpg.Record]) -> Iterator[Metric]:
    # Those that are not there are counted too: an alert on none must find a zero.
    counts = dict.fromkeys(((kind, state) for kind in ("worker", "scheduler") for state in ("alive", "late", "dead")), 0)
    counts.update({(row["kind"], row["state"]): row["nodes"] for row in sizes})
    yield labelled(
        GaugeMetricFamily("hourhand_nodes", "Processes; dead ones for an hour", labels=["kind", "state"]), counts.items()
    )
    live = [((str(row["id"]), row["kind"], row["name"]), row) for row in rows]
    labels = ["node", "kind", "name"]
    left = GaugeMetricFamily("hourhand_node_lease_left_seconds", "Until a node counts as dead if it stays silent", labels=labels)
    yield labelled(left, ((names, row["lease_left"]) for names, row in live))
    skew = GaugeMetricFamily(
        "hourhand_node_clock_skew_seconds", "By how much a node's machine is ahead of the database", labels=labels
    )
    yield labelled(skew, ((names, row["skew"] or 0.0) for names, row in live))


def _by_task(name: str, meaning: str, rows: Sequence[asyncpg.Record]) -> Metric:
    counts = Counter(row["task"] for row in rows)
    most = {task: count for task, count in counts.most_common(MOST) if task != OTHER}
    if rest := sum(counts.values()) - sum(most.values()):
        most[OTHER] = rest
    return labelled(GaugeMetricFamily(name, meaning, labels=["task"]), (((task,), count) for task, count in most.items()))
