"""A worker process: its node, its claimer, its slots, its completer, its share of the chores."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from hourhand.core.clock import Clock
from hourhand.core.errors import ConfigurationError
from hourhand.core.fairness import FairShare, check_weights
from hourhand.core.registry import Registry
from hourhand.core.settings import Settings
from hourhand.core.task import check_name
from hourhand.engine.admitter import Admitter
from hourhand.engine.alerting import Alerting
from hourhand.engine.claimer import ADMISSION_TIMEOUT, Claimer
from hourhand.engine.completer import LOCK_TIMEOUT, Completer
from hourhand.engine.executor import Executor
from hourhand.engine.maintainer import Maintainer, TaskFacts
from hourhand.engine.node import Node
from hourhand.engine.reference import find_reference
from hourhand.engine.tracing import find_tracing
from hourhand.engine.watchdog import Watchdog
from hourhand.storage.admission import AdmissionGateway
from hourhand.storage.database import Database
from hourhand.storage.queue import QueueGateway, queue_gateway
from hourhand.targets.python import run_hooks

log = structlog.get_logger("hourhand.worker")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    queues: Collection[str] | None = None
    """None: every queue there is."""
    concurrency: int = 50
    shutdown_grace: float = 25.0
    """Seconds that running handlers get to finish after SIGTERM."""
    reference: str | None = None
    """How a child process imports the app; found by itself when the app is in a module."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Shown with the node: which app, and which version of its declarations."""
    weights: Mapping[str, int] | None = None
    """What each priority gets of this worker when all have work; None: 60, 30 and 10."""
    strict: bool = False
    """The most urgent first, always: lower ones only get what it leaves."""
    may_exit: bool = False
    """Whether the process is nothing but this worker, so that it may end where nothing else helps."""

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= 10_000:
            raise ConfigurationError(f"concurrency must be from 1 to 10000, not {self.concurrency}")
        for queue in self.queues or ():
            check_name("queue", queue)
        if self.weights is not None:
            check_weights(self.weights)
            if self.strict:
                raise ConfigurationError("strict takes no weights: the most urgent comes first, whatever they say")


class Worker:
    def __init__(self, database: Database, settings: Settings, registry: Registry, options: WorkerOptions) -> None:
        self._database = database
        self._registry = registry
        self._options = options
        self._tasks: list[asyncio.Task[None]] = []
        self._stop_asked = asyncio.Event()
        self._deadline: float | None = None
        info = {
            "queues": sorted(options.queues) if options.queues is not None else None,
            "concurrency": options.concurrency,
            "tasks": sorted(registry.everything()),
            **options.labels,
        }
        self.node = Node(database, settings, "worker", info)
        self.completer = Completer(queue_gateway(database, "completer", LOCK_TIMEOUT), 0)
        reference = options.reference or find_reference(registry)
        self.executor = Executor(registry, self.node, self.completer, database, reference, options.concurrency)
        link = database.link("claimer", ADMISSION_TIMEOUT)
        self.admitter = Admitter(
            AdmissionGateway(link), self.node, self.completer, sorted(self.executor.handlers), database.sealer
        )
        self.claimer = Claimer(
            QueueGateway(link), self.admitter, self.node, self.executor, self.completer, settings, options.queues,
            FairShare(options.weights, strict=options.strict),
        )  # fmt: skip
        self.completer.on_freed = self.claimer.freed
        self.maintainer = Maintainer.on(database, self.node, settings)
        self.alerting = Alerting(database, settings, registry)
        self.maintainer.duties = self.alerting.duties
        self.watchdog = Watchdog(self.executor.active, settings.loop_limit, may_exit=options.may_exit)
        self._known = False
        self.maintainer.facts = self._facts
        self.completer.measures = self.maintainer.measures
        self.maintainer.news = lambda: self.completer.bulletin.take(self.node.id)
        self.started = asyncio.Event()

    def ask_to_stop(self) -> None:
        """The first time: finish within the grace period. The second time: hand back at once."""
        grace = 0.0 if self._stop_asked.is_set() else self._options.shutdown_grace
        self._deadline = Clock.monotonic() + grace
        log.info("worker.stopping", node=self.node.id, running=len(self.executor.active), grace=grace)
        self._stop_asked.set()

    async def run(self, *, handle_signals: bool = False) -> None:
        """Until asked to stop."""
        if handle_signals:
            loop = asyncio.get_running_loop()
            for one in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(one, self.ask_to_stop)
        self.node.on_notify = self._hear
        self.node.on_cancel = self._cancel
        self.node.on_death = self._died
        self.node.on_return = self._returned
        self.executor.on_hungry = self.claimer.hungry
        if not await self._unless_stopped(run_hooks(self._registry.startup, self._registry)):
            return
        try:
            if not await self._unless_stopped(self.node.start()):
                return
            await self.claimer.make_queues({one.queue for one in self._registry.tasks.values()} | self._registry.queues.keys())
            if not await self._unless_stopped(self.admitter.declare(self._registry, self._options.labels.get("app", ""))):
                return
            if not await self._unless_stopped(self._find_tracing()):
                return
            log.info(
                "worker.started", node=self.node.id, name=self.node.name, concurrency=self._options.concurrency,
                queues=sorted(self._options.queues) if self._options.queues is not None else "all",
                tasks=len(self._registry.tasks), database=self._describe(),
            )  # fmt: skip
            self.executor.start()
            self.watchdog.start()
            services: dict[str, Any] = {
                "node": self.node.run(), "completer": self.completer.run(), "claimer": self.claimer.run(),
                "maintainer": self.maintainer.run(), "scribe": self.executor.scribe.run(), "alerting": self.alerting.run(),
            }  # fmt: skip
            self._tasks = [asyncio.create_task(service, name=name) for name, service in services.items()]
            self.started.set()
            await self._until_stopped()
        finally:
            await self._shut_down()
            await run_hooks(self._registry.shutdown, self._registry)

    async def _find_tracing(self) -> None:
        self.executor.tracing = await find_tracing(self._database, self.node.name)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do it, but give way to a wish to stop. False: stopped before it was done."""
        task, asked = asyncio.create_task(work), asyncio.create_task(self._stop_asked.wait())
        await asyncio.wait([task, asked], return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
            return False
        await task
        return True

    async def _until_stopped(self) -> None:
        asked = asyncio.create_task(self._stop_asked.wait())
        watched: list[asyncio.Future[Any]] = [asked, *self._tasks, self.executor.broken]
        done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        for task in done - {asked}:
            # No service ends by itself: this is a bug or a refusal, and the process must say so.
            await task

    async def _shut_down(self) -> None:
        deadline = self._deadline if self._deadline is not None else 0.0
        self.claimer.stopping = True
        self.claimer.forget()
        # A claim under way delivers to the completer, which hands it back.
        claiming = [task for task in self._tasks if task.get_name() == "claimer"]
        if claiming:
            await asyncio.wait(claiming, timeout=2.0)
        await self.executor.stop(lambda: (self._deadline or deadline) - Clock.monotonic())
        self.watchdog.stop()
        if self.completer.known():
            try:
                await asyncio.wait_for(self.completer.drained(), 5.0)
            except asyncio.TimeoutError:
                log.warning("worker.outcomes_unwritten", runs=len(self.completer.known()), meaning="they will run again")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.alerting.stop(self.node.id)
        await self.maintainer.stop()
        if self.node.id:
            # Once more after it: from then on nobody gives anything to this node.
            await self.claimer.stealer.hand_back()
            await self.node.stop()
            await self.claimer.stealer.hand_back()
        await self.claimer.close()
        await self.completer.close()
        await self.executor.scribe.finish(5.0)
        log.info("worker.stopped", node=self.node.id, completed=self.completer.completed)

    def _hear(self, word: str) -> None:
        if word.startswith("c:"):
            self.executor.cancel(int(word[2:]))
        elif word == "d":
            self.maintainer.hear(word)
        else:
            self.claimer.hear(word)

    def _cancel(self, runs: list[int]) -> None:
        for run in runs:
            self.executor.cancel(run)

    async def _died(self) -> None:
        lost = self.executor.forsake()
        self.claimer.stealer.forsake()
        log.error("worker.lost_its_claims", node=self.node.id, runs=lost)
        self.claimer.forget()

    def _returned(self) -> None:
        self._known = False  # what was said about the tasks while the database was away has not been heard
        self.completer.rebase(self.node.id)
        self.claimer.forget()
        self.executor.wake_all()

    def _facts(self) -> list[TaskFacts]:
        """What there is to say about the tasks: at first all of them, then those that had runs."""
        handlers, first = self.executor.handlers.values(), not self._known
        self._known = True
        return [handler.facts() for handler in handlers if handler.runs or first]

    def _describe(self) -> str:
        return "embedded" if self._database.embedded else "HOURHAND_DATABASE_URL"
