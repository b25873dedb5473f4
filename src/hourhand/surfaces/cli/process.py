"""The commands that run things: `up`, `worker`, `scheduler`, `migrate`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
from collections.abc import Callable, Coroutine
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from hourhand.core.errors import ConfigurationError, HourhandError
from hourhand.core.fairness import read_weights
from hourhand.core.settings import Settings
from hourhand.engine.alerting import check_alerts
from hourhand.engine.exporting import exported, flush_traces
from hourhand.engine.logs import configure_logs, style_of
from hourhand.engine.metrics_server import HIGHEST, HOST, Address, MetricsServer, served
from hourhand.engine.scheduler import Scheduler
from hourhand.engine.supervisor import Supervisor, watch_parent
from hourhand.engine.worker import Worker, WorkerOptions
from hourhand.storage.database import Database
from hourhand.storage.embedded import default_data
from hourhand.storage.migrate import migrate as apply_migrations
from hourhand.storage.migrate import newest
from hourhand.surfaces.app import Hourhand
from hourhand.surfaces.cli.common import AsJson, err, out, patiently, polite, print_json
from hourhand.surfaces.cli.connection import App, Data, Schema, Url, make_app

DEMO = "hourhand.demo:app"
BLANK = "hourhand.blank:app"
_USUAL = gc.get_threshold()


class LogFormat(StrEnum):
    console = "console"
    json = "json"
    auto = "auto"


class LogLevel(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


Queues = Annotated[str | None, typer.Option("--queues", help="Queues to serve, separated by commas. Default: all of them.")]
Concurrency = Annotated[int, typer.Option("--concurrency", min=1, max=10_000, help="Runs at a time, in each process.")]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights", help="What each priority gets when all have work. Default: high=60,normal=30,low=10.", show_default=False
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="The most urgent priority first, always; lower ones get what it leaves.")]
Processes = Annotated[int, typer.Option("--processes", min=1, max=256, help="Worker processes.")]
Grace = Annotated[float, typer.Option("--grace", min=0, help="Seconds that running handlers get to finish after SIGTERM.")]
Format = Annotated[
    LogFormat, typer.Option("--log-format", help="How log lines look; auto: console on a terminal, json elsewhere.")
]
Retention = Annotated[
    float | None,
    typer.Option("--retention", min=0.01, help="Days for which history is kept. Default: 90.", envvar="HOURHAND_RETENTION"),
]
Alerts = Annotated[
    Path | None,
    typer.Option(
        "--alerts", metavar="FILE", help="Rules and channels of the alerts.", envvar="HOURHAND_ALERTS", show_default=False
    ),
]
Level = Annotated[LogLevel, typer.Option("--log-level", help="The least important lines to show.")]
MetricsPort = Annotated[
    int,
    typer.Option(
        "--metrics-port", min=0, max=HIGHEST, envvar="HOURHAND_METRICS_PORT",
        help="Where Prometheus finds /metrics of this process; 0: nowhere. Several processes take this port and those after it.",
    ),
]  # fmt: skip
MetricsHost = Annotated[
    str,
    typer.Option(
        "--metrics-host", envvar="HOURHAND_METRICS_HOST",
        help="The address for it. 0.0.0.0 for a Prometheus on another machine: everybody who reaches the port can read it.",
    ),
]  # fmt: skip


def worker(
    app: Annotated[
        str,
        typer.Option(
            "--app",
            help="The app, as module:name or file.py:name. Without it, only HTTP jobs and commands are run.",
            show_default=False,
        ),
    ] = BLANK,
    queues: Queues = None,
    concurrency: Concurrency = 50,
    weights: Weights = None,
    strict: Strict = False,
    processes: Processes = 1,
    grace: Grace = 25.0,
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = HOST,
    retention: Retention = None,
    alerts: Alerts = None,
    database_url: Url = None,
    data: Data = None,
    schema: Schema = None,
    log_format: Format = LogFormat.console,
    log_level: Level = LogLevel.info,
) -> None:
    """Run the jobs of an app. The jobs it declares in code are brought into force.

    SIGTERM or Ctrl-C: no new runs, running ones finish within the grace period, the rest is handed back
    with no attempt charged. A second one hands back at once.

    Example: hourhand worker --app shop.jobs:app --queues billing,mail --concurrency 100 --processes 4
    """
    configure_logs(log_format.value, log_level.value, capture=True)
    names = None if queues is None else [name.strip() for name in queues.split(",") if name.strip()]
    if names == []:
        raise typer.BadParameter("names no queue; leave it out to serve all of them", param_hint="--queues")

    def work() -> None:
        loaded = make_app(app, database_url, data, schema)
        loaded.configure(retention=retention, alerts=alerts)
        check_alerts(loaded.settings)
        options = WorkerOptions(
            queues=names, concurrency=concurrency, shutdown_grace=grace, reference=app, labels=loaded.deployment.labels,
            weights=None if weights is None else read_weights(weights), strict=strict, may_exit=True,
        )  # fmt: skip
        if not loaded.registry.tasks and app != BLANK:
            raise ConfigurationError(f"{app} declares no task; put @app.task on a function in it")
        metrics = Address(metrics_host, metrics_port)
        if processes > 1:
            command = _worker_command(app, loaded.settings, queues, concurrency, grace, log_format, log_level)
            command += [*(["--weights", weights] if weights else []), *(["--strict"] if strict else [])]
            commands = [command + _metrics_options(one) for one in metrics.row(processes)]
            supervisor = Supervisor(commands, loaded.settings.environment())
            run_loop(supervisor.run())
        else:
            with exported("worker"):
                _calm_collector()
                run_loop(_seen(metrics, lambda server: _work(loaded, options, server)))

    polite(work)


def scheduler(
    app: Annotated[
        str | None,
        typer.Option("--app", help="An app, as module:name or file.py:name, whose declared jobs are brought into force."),
    ] = None,
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = HOST,
    retention: Retention = None,
    alerts: Alerts = None,
    database_url: Url = None,
    data: Data = None,
    schema: Schema = None,
    log_format: Format = LogFormat.console,
    log_level: Level = LogLevel.info,
) -> None:
    """Fire what is due, and run none of it. Start as many as you like: they share the work.

    Each fires its part of the jobs; when one is killed, the others have its part within seconds. SIGTERM or
    Ctrl-C hands it over at once.

    Example: hourhand scheduler
    """
    configure_logs(log_format.value, log_level.value)

    def schedule() -> None:
        loaded = make_app(app, database_url, data, schema)
        loaded.configure(retention=retention, alerts=alerts)
        check_alerts(loaded.settings)
        metrics = Address(metrics_host, metrics_port)
        with exported("scheduler"):
            run_loop(_seen(metrics, lambda server: _schedule(loaded, server, deploy=app is not None)))

    polite(schedule)


def up(
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Where the API answers.", envvar="HOURHAND_PORT")] = 8080,
    host: Annotated[
        str, typer.Option("--host", help="The address to listen on. Beyond loopback it needs a key.", envvar="HOURHAND_HOST")
    ] = "127.0.0.1",
    data: Data = None,
    app: App = None,
    concurrency: Concurrency = 50,
    processes: Processes = 1,
    grace: Grace = 5.0,
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = HOST,
    retention: Retention = None,
    alerts: Alerts = None,
    database_url: Url = None,
    schema: Schema = None,
    log_format: Format = LogFormat.console,
    log_level: Level = LogLevel.info,
) -> None:
    """Everything on this machine, in one process tree: database, schema, scheduler, workers, API.

    Without --app a small demo runs. Without a database URL the embedded PostgreSQL is started. Ctrl-C
    stops all of it.

    Example: hourhand up --app shop.jobs:app
    """
    configure_logs(log_format.value, log_level.value)

    def start() -> None:
        reference = app or DEMO
        loaded = make_app(reference, database_url, data, schema)
        if loaded.settings.database_url is None and loaded.settings.data is None:
            loaded.configure(data=default_data())
        if loaded.settings.data is not None:
            loaded.configure(data=loaded.settings.data.absolute())
        loaded.configure(retention=retention, alerts=alerts)
        check_alerts(loaded.settings)
        command = _worker_command(reference, loaded.settings, None, concurrency, grace, log_format, log_level)
        commands = [_scheduler_command(log_format, log_level), *[command] * processes]
        addresses = Address(metrics_host, metrics_port).row(len(commands))
        commands = [one + _metrics_options(address) for one, address in zip(commands, addresses, strict=True)]
        supervisor = Supervisor(commands, loaded.settings.environment())
        with exported("api"):
            run_loop(_up(loaded, supervisor, (host, port), demo=app is None, console=style_of(log_format.value) == "console"))

    polite(start)


def migrate(
    database_url: Url = None,
    data: Data = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Bring the database's schema up to this release. Safe to run from many places at once."""

    async def work() -> None:
        database = Database(make_app(None, database_url, data, schema).settings)
        try:
            await database.open(check=False, migrate_embedded=False)
            connection = await database.connect("migrate")
            try:
                applied = await apply_migrations(connection, database.schema)
            finally:
                await connection.close()
        finally:
            await database.close()
        version = newest(database.schema)
        if as_json:
            print_json({"version": version, "applied": [f"{one.version:04}_{one.name}" for one in applied]})
        elif applied:
            out.print(f"schema {database.schema}: now at version {version} ({len(applied)} applied)")
        else:
            out.print(f"schema {database.schema}: already at version {version}")

    polite(lambda: asyncio.run(work()))


async def _seen(metrics: Address, work: Callable[[MetricsServer | None], Coroutine[Any, Any, None]]) -> None:
    async with served(metrics) as server:
        await work(server)


async def _work(app: Hourhand, options: WorkerOptions, server: MetricsServer | None) -> None:
    database = Database(app.settings)
    await patiently(database.open)
    try:
        worker = Worker(database, app.settings, app.registry, options)
        watcher = asyncio.create_task(watch_parent(worker.ask_to_stop))
        try:
            await patiently(app._open)
            async with app, app.deployment.kept():  # handlers enqueue through it
                if server is not None:
                    server.show_worker(worker, [database, await app._database()])
                await worker.run(handle_signals=True)
        finally:
            watcher.cancel()
    finally:
        await database.close()
    if worker.executor.left_behind:
        # A loop that ends waits for each of its tasks, and these have shown that they do not end.
        flush_traces()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


async def _schedule(app: Hourhand, server: MetricsServer | None, *, deploy: bool) -> None:
    database = Database(app.settings)
    await patiently(database.open)
    try:
        one = Scheduler(database, app.settings, app.deployment.labels if deploy else {}, app.registry if deploy else None)
        if server is not None:
            server.show_scheduler(one, [database])
        watcher = asyncio.create_task(watch_parent(one.ask_to_stop))
        try:
            async with contextlib.AsyncExitStack() as stack:
                if deploy:
                    await patiently(app._open)
                    await stack.enter_async_context(app)
                    await stack.enter_async_context(app.deployment.kept())
                await one.run(handle_signals=True)
        finally:
            watcher.cancel()
    finally:
        await database.close()


async def _up(app: Hourhand, supervisor: Supervisor, address: tuple[str, int], *, demo: bool, console: bool) -> None:
    database = Database(app.settings)

    async def check() -> dict[str, Any]:
        try:
            nodes = await app.nodes.list()
        except HourhandError as error:
            return {"status": "unavailable", "reason": str(error)}
        workers = sum(one.kind == "worker" for one in nodes)
        schedulers = sum(one.kind == "scheduler" for one in nodes)
        return {"status": "ok" if workers and schedulers else "starting", "workers": workers, "schedulers": schedulers}

    try:
        server = _make_server(app, address, check)
        await database.open(check=False)
        if not database.embedded:
            connection = await database.connect("migrate")
            try:
                await apply_migrations(connection, database.schema)
            finally:
                await connection.close()
        async with app:
            await server.prepare()
            if console:
                _banner(app.settings, server.options.url, demo, is_open=server.is_open)
            if demo:
                from hourhand.demo import enqueue_samples

                await enqueue_samples(app)
            guard = asyncio.create_task(database.keep_embedded())
            serving = asyncio.create_task(server.serve())
            try:
                await supervisor.run()
            finally:
                guard.cancel()
                server.stop()
                await serving
    finally:
        await database.close()
    if console:
        err.print("stopped; other processes still use the embedded PostgreSQL" if database.shared else "stopped")


def _make_server(app: Hourhand, address: tuple[str, int], check: Any) -> Any:
    try:
        from hourhand.surfaces.rest.server import ApiServer, ServerOptions
    except ImportError as error:
        raise ConfigurationError(f"`up` brings the API, which is not installed ({error}): pip install 'hourhand[api]'") from None
    return ApiServer(app, ServerOptions(*address), check)


def _banner(settings: Settings, url: str, demo: bool, *, is_open: bool) -> None:
    where = (
        f"embedded PostgreSQL in {settings.data}" if settings.database_url is None else "the database of HOURHAND_DATABASE_URL"
    )
    err.print(f"[bold]Hourhand[/] is up: {where}")
    err.print(f"  see     {url}/    the dashboard", soft_wrap=True)
    err.print(
        f"  api     {url}/api/v1/jobs"
        + ("    open on this machine, until a key is made: hourhand keys create" if is_open else ""),
        soft_wrap=True,
    )
    err.print(f"  health  {url}/healthz    {url}/metrics", soft_wrap=True)
    prefix = "" if settings.database_url else _data_hint(settings)
    err.print(
        f"  look    hourhand jobs list{prefix}    hourhand runs list{prefix}    hourhand nodes list{prefix}", soft_wrap=True
    )
    if demo:
        err.print("  demo    a few sample jobs and runs; your own app: hourhand up --app module:name", soft_wrap=True)
    err.print("  stop    Ctrl-C\n")


def _data_hint(settings: Settings) -> str:
    return "" if settings.data is None or settings.data == default_data() else f" --data {settings.data}"


def _worker_command(
    app: str, settings: Settings, queues: str | None, concurrency: int, grace: float, log_format: LogFormat, level: LogLevel
) -> list[str]:
    return [
        sys.executable, "-m", "hourhand", "worker", "--app", app, "--concurrency", str(concurrency), "--grace", str(grace),
        "--log-format", log_format.value, "--log-level", level.value, *(["--queues", queues] if queues else []),
    ]  # fmt: skip


def _metrics_options(address: Address) -> list[str]:
    """Said in any case: the environment may name a port, and it is for one process."""
    return ["--metrics-port", str(address.port), "--metrics-host", address.host]


def _scheduler_command(log_format: LogFormat, level: LogLevel) -> list[str]:
    return [sys.executable, "-m", "hourhand", "scheduler", "--log-format", log_format.value, "--log-level", level.value]


def _calm_collector() -> None:
    """A worker makes objects by the thousand, none of them in circles: the garbage collector need not look for some after every few
    hundred, nor ever again at what has been imported by now. What the app has set stays."""
    gc.collect()
    gc.freeze()
    if gc.get_threshold() == _USUAL:
        gc.set_threshold(5_000, *_USUAL[1:])


def run_loop(work: Coroutine[Any, Any, None]) -> None:
    """On the fast loop where there is one."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)
