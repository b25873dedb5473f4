"""`hourhand api`: the REST API as a process of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from hourhand.core.errors import ConfigurationError
from hourhand.engine.alerting import check_alerts
from hourhand.engine.exporting import exported
from hourhand.engine.logs import configure_logs
from hourhand.engine.supervisor import watch_parent
from hourhand.surfaces.cli.common import patiently, polite
from hourhand.surfaces.cli.connection import App, Data, Schema, Url, make_app
from hourhand.surfaces.cli.process import Alerts, Format, Level, LogFormat, LogLevel, run_loop

Host = Annotated[
    str, typer.Option("--host", help="The address to listen on. Beyond loopback it needs a key.", envvar="HOURHAND_HOST")
]
Port = Annotated[int, typer.Option("--port", min=1, max=65535, help="The port to listen on.", envvar="HOURHAND_PORT")]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host", metavar="NAME", help="A name that the server answers to; give it once for each.", show_default=False
    ),
]
Certificate = Annotated[
    Path | None,
    typer.Option("--tls-cert", help="The certificate, as PEM.", envvar="HOURHAND_TLS_CERT", exists=True, dir_okay=False),
]
Key = Annotated[
    Path | None,
    typer.Option("--tls-key", help="The certificate's key, as PEM.", envvar="HOURHAND_TLS_KEY", exists=True, dir_okay=False),
]


def api(
    host: Host = "127.0.0.1",
    port: Port = 8080,
    allowed_hosts: AllowedHosts = None,
    tls_cert: Certificate = None,
    tls_key: Key = None,
    app: App = None,
    alerts: Alerts = None,
    database_url: Url = None,
    data: Data = None,
    schema: Schema = None,
    log_format: Format = LogFormat.console,
    log_level: Level = LogLevel.info,
) -> None:
    """Serve the REST API: every verb over HTTP, under /api/v1.

    On loopback it is open until the first key is made; anywhere else it starts only with one. With --app, payloads are
    checked against the signatures of the app's tasks.

    Example: hourhand api --host 0.0.0.0 --port 8080
    """
    configure_logs(log_format.value, log_level.value)

    def serve() -> None:
        try:
            from hourhand.surfaces.rest.server import ApiServer, ServerOptions
        except ImportError as error:
            raise ConfigurationError(
                f"the API needs more than a worker does ({error}); install it with: pip install 'hourhand[api]'"
            ) from None

        loaded = make_app(app, database_url, data, schema)
        loaded.configure(alerts=alerts)
        check_alerts(loaded.settings)
        options = ServerOptions(host, port, tuple(allowed_hosts or ()), tls_cert, tls_key)

        async def whole() -> None:
            server = ApiServer(loaded, options)
            await patiently(loaded._open)
            async with loaded:
                await patiently(server.prepare)
                watcher = asyncio.create_task(watch_parent(server.stop))
                try:
                    await server.serve(handle_signals=True)
                finally:
                    watcher.cancel()

        with exported("api"):
            run_loop(whole())

    polite(serve)
