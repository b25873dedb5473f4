"""What a worker or a scheduler tells Prometheus: read from the objects that count, at the moment it asks.

Nothing is done for it on the path of a run. A moment is taken on the event loop, where nothing changes meanwhile, and that is
short; it is put into words in a thread, which may take longer.

How many series there can be is bounded: statuses and statements are few, attempts are told apart up to the fourth, and of
tasks and queues the first pairs that this process has met have their names, for as long as it lives.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from itertools import accumulate
from typing import TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hourhand.core.clock import Clock
from hourhand.core.histogram import BOUNDS, CLASSES, class_of
from hourhand.engine.maintainer import Maintainer
from hourhand.engine.measures import ATTEMPTS, Measured
from hourhand.engine.node import Node
from hourhand.engine.scheduler import Scheduler
from hourhand.engine.worker import Worker
from hourhand.storage.database import Database
from hourhand.storage.trips import Trip

CONTENT_TYPE = CONTENT_TYPE_LATEST
MOST = 200
"""Values of a label that users name: pairs of task and queue in each process, queues and tasks in the fleet."""
OTHER = "other"
"""What the rest is called."""
TICK = 0.25
Moment = Callable[[], Collector]
F = TypeVar("F", CounterMetricFamily, GaugeMetricFamily)


class Taken(Collector):
    """One moment."""

    def __init__(self, plain: Iterable[Metric], measured: Sequence[Measured] = ()) -> None:
        self._plain = list(plain)
        self._measured = measured

    def collect(self) -> Iterator[Metric]:
        yield from self._plain
        yield from _runs(self._measured)
        yield from ProcessCollector(registry=None).collect()


def text(moment: Collector) -> bytes:
    return generate_latest(moment)


def counter(name: str, meaning: str, value: float) -> Metric:
    return CounterMetricFamily(name, meaning, value=value)


def gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(name, meaning, value=value)


def labelled(family: F, values: Iterable[tuple[Sequence[str], float]]) -> F:
    for labels, value in values:
        family.add_metric(labels, value)
    return family


def build_info() -> Metric:
    family = GaugeMetricFamily("hourhand_build_info", "The release; always 1", labels=["version", "python"])
    return labelled(family, [((version("hourhand"), platform.python_version()), 1)])


def round_trips(databases: Iterable[Database]) -> Iterator[Metric]:
    together: dict[str, Trip] = {}
    for database in databases:
        for statement, trip in database.trips.by_statement.items():
            together.setdefault(statement, Trip()).add(trip)
    count = CounterMetricFamily("hourhand_database_round_trips", "Statements sent to the database", labels=["statement"])
    seconds = CounterMetricFamily("hourhand_database_round_trip_seconds", "Waiting for their answers", labels=["statement"])
    failed = CounterMetricFamily(
        "hourhand_database_failures", "Statements that brought an error, or no answer", labels=["statement"]
    )
    for statement, trip in sorted(together.items()):
        count.add_metric([statement], trip.count)
        seconds.add_metric([statement], trip.seconds)
        failed.add_metric([statement], trip.failed)
    yield from (count, seconds, failed)


class LoopLag:
    """How late the event loop comes to what is due: what blocks it delays everything."""

    def __init__(self) -> None:
        self._counts, self._seconds = [0] * CLASSES, 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._expect()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def metric(self) -> Metric:
        family = HistogramMetricFamily(
            "hourhand_event_loop_lag_seconds", "How late the event loop was, looked at four times a second"
        )
        family.add_metric([], *_histogram(self._counts, self._seconds))
        return family

    def _expect(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK, self._tick, Clock.monotonic() + TICK)

    def _tick(self, due: float) -> None:
        lag = max(0.0, Clock.monotonic() - due)
        self._counts[class_of(lag)] += 1
        self._seconds += lag
        self._expect()


def worker_moment(worker: Worker, databases: Sequence[Database], lag: LoopLag) -> Moment:
    def take() -> Collector:
        plain = [*_process(worker.node, worker.maintainer, databases, lag), *_worker(worker)]
        return Taken(plain, named(worker.completer.measures))

    return take


def scheduler_moment(scheduler: Scheduler, databases: Sequence[Database], lag: LoopLag) -> Moment:
    def take() -> Collector:
        return Taken([*_process(scheduler.node, scheduler.maintainer, databases, lag), *_scheduler(scheduler)])

    return take


def named(measures: Iterable[Measured]) -> list[Measured]:
    """Copies: the first pairs by their names, and all others as one. Which are the first never changes, so no count ever falls."""
    copies: dict[tuple[str, str], Measured] = {}
    for one in measures:
        pair = (one.task, one.queue)
        if len(copies) >= MOST or pair == (OTHER, OTHER):
            pair = (OTHER, OTHER)
        copies.setdefault(pair, Measured(*pair, one.queue_number)).add(one)
    return list(copies.values())


def _process(node: Node, maintainer: Maintainer, databases: Sequence[Database], lag: LoopLag) -> Iterator[Metric]:
    yield build_info()
    if node.id:
        info = GaugeMetricFamily("hourhand_node_info", "Which node this process is; always 1", labels=["kind", "name", "node"])
        yield labelled(info, [((node.kind, node.name, str(node.id)), 1)])
    if node.renewed_at is not None:
        age = Clock.monotonic() - node.renewed_at
        yield gauge("hourhand_lease_age_seconds", "Since the last heartbeat that the database has answered", age)
    yield gauge("hourhand_clock_skew_seconds", "By how much this machine is ahead of the database", node.clock.skew)
    yield counter("hourhand_recovered_runs", "Runs of dead workers that this process has set free", maintainer.recovered)
    yield counter("hourhand_nodes_declared_dead", "Nodes that this process has found dead", maintainer.declared)
    ended = CounterMetricFamily(
        "hourhand_ended_without_worker", "Runs that no worker had and this process has ended, by status", labels=["status"]
    )
    yield labelled(ended, (((status,), count) for status, count in sorted(maintainer.ended.items())))
    yield from round_trips(databases)
    yield lag.metric()


def _worker(worker: Worker) -> Iterator[Metric]:
    executor, claimer, completer = worker.executor, worker.claimer, worker.completer
    yield counter("hourhand_claims", "Claiming statements", claimer.claims)
    yield counter("hourhand_claimed_runs", "Runs that they brought", claimer.claimed)
    steals = CounterMetricFamily("hourhand_steals", "Claimed runs that went from worker to worker", labels=["direction"])
    yield labelled(steals, [(("given",), claimer.stealer.given), (("taken",), claimer.stealer.taken)])
    yield _refusals("outcome", completer.refused)
    slots = (("regular", executor.concurrency, executor.busy), ("probation", executor.probation_slots, executor.on_probation))
    family = GaugeMetricFamily("hourhand_slots", "Runs that can go on at a time", labels=["kind"])
    yield labelled(family, (((kind,), most) for kind, most, _ in slots))
    family = GaugeMetricFamily("hourhand_busy_slots", "Runs that are going on", labels=["kind"])
    yield labelled(family, (((kind,), busy) for kind, _, busy in slots))
    yield gauge("hourhand_light_runs", "HTTP calls that are waited for, besides the slots", executor.light)
    yield gauge("hourhand_stock_runs", "Claimed runs that wait here for a slot", executor.stock)
    yield gauge("hourhand_unwritten_outcomes", "Outcomes that are not in the database yet", completer.pending)
    yield gauge(
        "hourhand_left_behind_handlers", "Handlers that ignore their cancellation and are still there", executor.left_behind
    )
    yield counter("hourhand_interrupted_handlers", "Handlers that blocked the event loop", worker.watchdog.interrupted)


def _scheduler(scheduler: Scheduler) -> Iterator[Metric]:
    measures = scheduler.maintainer.measures
    yield counter("hourhand_firings", "Runs that this scheduler's firings have made", measures.fired)
    yield counter("hourhand_firings_missed", "Firings that came later than their job's misfire_grace", measures.missed)
    yield counter("hourhand_firings_coalesced", "Missed firings for which the last of them ran", measures.coalesced)
    yield counter("hourhand_firings_skipped", "Missed firings that were left out", measures.skipped)
    yield _refusals("firing", scheduler.firer.refused)
    yield gauge("hourhand_shards_owned", "Shards that this scheduler fires", len(scheduler.elector.held))
    yield counter("hourhand_epoch_changes", "Shards that it has taken or given up", scheduler.elector.changes)
    yield gauge("hourhand_blocked_schedules", "Schedules that somebody's open transaction holds up", scheduler.firer.blocked)


def _refusals(kind: str, count: int) -> Metric:
    family = CounterMetricFamily(
        "hourhand_refusals", "What the database refused to this process, since others have it now", labels=["kind"]
    )
    return labelled(family, [((kind,), count)])


def _runs(measured: Sequence[Measured]) -> Iterator[Metric]:
    pair = ["task", "queue"]
    runs = CounterMetricFamily(
        "hourhand_runs", "Attempts that ended here, by what they came to", labels=[*pair, "status", "attempt"]
    )
    durations = HistogramMetricFamily("hourhand_run_duration_seconds", "How long handlers took", labels=pair)
    lateness = HistogramMetricFamily(
        "hourhand_start_lateness_seconds", "How long after its instant a run started for the first time", labels=pair
    )
    for one in measured:
        for status, attempt, count in one.statuses():
            runs.add_metric([one.task, one.queue, status, f"{attempt}{'+' if attempt == ATTEMPTS else ''}"], count)
        durations.add_metric([one.task, one.queue], *_histogram(one.durations, one.seconds))
        lateness.add_metric([one.task, one.queue], *_histogram(one.lateness, one.late))
    yield from (runs, durations, lateness)


def _histogram(counts: Sequence[int], total: float) -> tuple[list[tuple[str, float]], float]:
    """As Prometheus has it: each class with all below it."""
    bounds = [*map(str, BOUNDS), "+Inf"]
    return list(zip(bounds, map(float, accumulate(counts)), strict=True)), total
