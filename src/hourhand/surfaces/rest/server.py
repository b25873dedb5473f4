"""The API as a process: one socket, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import uvicorn

from hourhand.core.errors import ConfigurationError
from hourhand.engine.alerting import Alerting
from hourhand.surfaces.app import Hourhand
from hourhand.surfaces.rest.application import make_api
from hourhand.surfaces.rest.events import Hub
from hourhand.surfaces.rest.keyring import Keyring, check_admin_key, check_exposure, is_loopback
from hourhand.surfaces.rest.protocol import BoundedProtocol

log = structlog.get_logger("hourhand.api")
ADMIN_KEY = "HOURHAND_ADMIN_KEY"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    host: str = "127.0.0.1"
    port: int = 8080
    allowed_hosts: tuple[str, ...] = ()
    """Names that the server answers to; others are refused. Empty: any, once there is a key."""
    tls_certificate: Path | None = None
    tls_key: Path | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls_certificate else ''}://{host}:{self.port}"


class _Server(uvicorn.Server):
    """Signals belong to whoever runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ApiServer:
    def __init__(self, app: Hourhand, options: ServerOptions, health: Any = None) -> None:
        self.options = options
        self.is_open = False
        """Whether a request without a key is let in, as things were at the start."""
        self._app = app
        self._health = health
        self._hub = Hub(app)
        self._server: _Server | None = None
        self._alerting: Alerting | None = None
        self._socket = _listen(options)
        self._stopped = False

    async def prepare(self) -> None:
        """Refuses to start where it would be open to strangers."""
        options = self.options
        self._alerting = Alerting(await self._app._database(), self._app.settings, self._app.registry)
        admin_key = check_admin_key(os.environ.get(ADMIN_KEY))
        await check_exposure(self._app, options.host, admin_key)
        keyring = Keyring(self._app, admin_key=admin_key, loopback=is_loopback(options.host))
        await keyring.settle()
        self.is_open = await keyring.is_open()
        allowed = frozenset(one.lower() for one in options.allowed_hosts)
        api = make_api(self._app, keyring, self._hub, health=self._health, allowed_hosts=allowed)
        config = uvicorn.Config(
            api, log_config=None, access_log=False, server_header=False, lifespan="on", timeout_keep_alive=30,
            timeout_graceful_shutdown=5, backlog=2048,
            ssl_certfile=options.tls_certificate, ssl_keyfile=options.tls_key, proxy_headers=False, ws="none", http=BoundedProtocol,
        )  # fmt: skip
        self._server = _Server(config)

    async def serve(self, *, handle_signals: bool = False) -> None:
        """Until `stop`."""
        assert self._server is not None
        assert self._alerting is not None
        if handle_signals:
            loop = asyncio.get_running_loop()
            for one in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(one, self.stop)
        if self._stopped:
            return
        log.info("api.started", url=self.options.url, open=self.is_open)
        alerting = asyncio.create_task(self._alerting.run_alone(), name="hourhand-alerts")
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            alerting.cancel()
            await asyncio.gather(alerting, return_exceptions=True)
            self._socket.close()
            log.info("api.stopped", url=self.options.url)

    def stop(self) -> None:
        self._stopped = True
        self._hub.close()
        if self._server is not None:
            self._server.should_exit = True


def _listen(options: ServerOptions) -> socket.socket:
    """Taken before anything else is done: a port that is in use is said at once."""
    if (options.tls_certificate is None) != (options.tls_key is None):
        raise ConfigurationError("TLS takes a certificate and its key: give --tls-cert and --tls-key")
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host, options.port))
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"{options.host}:{options.port} cannot be used: {error.strerror}; choose another with --port"
        ) from error
    return listener
