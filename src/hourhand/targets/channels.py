"""How somebody is told: a webhook, a Slack-compatible URL, everything that Apprise speaks to, a function of the app.

What is said of a failure never holds the address: whoever has it can write there.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import msgspec

from hourhand.core.alert_rules import PYTHON, Channel, Secret
from hourhand.core.alerts import check_address
from hourhand.core.errors import ConfigurationError, HourhandError
from hourhand.core.notice import CLOSED, TEST, Alert, address_cleaner, shown_address, slack_text, without_addresses
from hourhand.core.settings import Settings
from hourhand.targets.aside import Aside, StillBusy
from hourhand.targets.http import signature

_LONGEST = 500
_MISSING = "channel {name!r} needs {package}, which is not installed here: pip install 'hourhand[alerts]'"


class NotDelivered(HourhandError):
    """A channel could not be told."""


class Sender(Protocol):
    name: str
    kind: str
    timeout: float

    @property
    def address(self) -> str:
        """As it may be shown."""

    async def send(self, alert: Alert) -> None:
        """Returns when whoever is at the other end has it; raises NotDelivered."""


def open_channel(channel: Channel, base: Path, settings: Settings) -> Sender:
    """Refuses at once what could not be told later: a variable that is not set, a file that is not there, a package."""
    sender = _KINDS[channel.kind](channel, base, settings)
    sender.check()
    return sender


class _Addressed:
    package = "aiohttp"

    def __init__(self, channel: Channel, base: Path, settings: Settings) -> None:
        self.name, self.kind, self.timeout = channel.name, channel.kind, channel.timeout
        self._channel, self._base, self._settings = channel, base, settings

    @property
    def _where(self) -> str:
        return f"channel {self.name!r}"

    @property
    def address(self) -> str:
        return shown_address(self._resolve(self._channel.address, self.kind))

    def check(self) -> None:
        check_address(self.kind, self._resolve(self._channel.address, self.kind), self._where)
        if self._channel.bearer is not None:
            self._resolve(self._channel.bearer, "bearer")
        if find_spec(self.package) is None:
            raise ConfigurationError(_MISSING.format(name=self.name, package=self.package))

    def _resolve(self, secret: Secret, what: str) -> str:
        """Looked up each time: a file may have got a new one."""
        found = secret.value
        if secret.env is not None:
            found = os.environ.get(secret.env, "").strip()
            if not found:
                raise ConfigurationError(f"{self._where}: {what}_env names {secret.env}, which is not set")
        elif secret.file is not None:
            try:
                found = (self._base / secret.file).read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is no text"
                raise ConfigurationError(
                    f"{self._where}: {what}_file names {secret.file}, which cannot be read: {reason}"
                ) from None
            if not found:
                raise ConfigurationError(f"{self._where}: {what}_file names {secret.file}, which is empty")
        assert found is not None
        return found

    async def send(self, alert: Alert) -> None:
        secrets: list[str] = []
        try:
            address = self._resolve(self._channel.address, self.kind)
            secrets.append(address)
            bearer = None if self._channel.bearer is None else self._resolve(self._channel.bearer, "bearer")
            secrets += [bearer] if bearer else []
            check_address(self.kind, address, self._where)
            async with asyncio.timeout(self.timeout):
                await self._deliver(address, bearer, alert)
        except TimeoutError:
            raise NotDelivered(f"no answer within {self.timeout:g} s") from None
        except HourhandError as error:
            raise NotDelivered(address_cleaner(*secrets)(str(error))[:_LONGEST]) from None

    async def _deliver(self, address: str, bearer: str | None, alert: Alert) -> None:
        raise NotImplementedError


class _Posted(_Addressed):
    """One POST, as JSON."""

    def _message(self, alert: Alert) -> Any:
        raise NotImplementedError

    def _signed(self, alert: Alert, body: str) -> dict[str, str]:
        return {}

    async def _deliver(self, address: str, bearer: str | None, alert: Alert) -> None:
        import aiohttp

        body = msgspec.json.encode(self._message(alert))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"hourhand/{_version()}",
            **self._signed(alert, body.decode()),
        }
        if bearer is not None:
            headers["Authorization"] = f"Bearer {bearer}"
        try:
            # Told seldom: no connection is kept for it.
            async with (
                aiohttp.ClientSession(trust_env=True, cookie_jar=aiohttp.DummyCookieJar()) as session,
                session.post(address, data=body, headers=headers, allow_redirects=False) as response,
            ):
                if not 200 <= response.status < 300:
                    raise NotDelivered(f"it answered {response.status} {response.reason or ''}".rstrip())
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise NotDelivered(f"{type(error).__name__}: {error}") from None


class Webhook(_Posted):
    def _message(self, alert: Alert) -> Any:
        return alert.to_dict()

    def _signed(self, alert: Alert, body: str) -> dict[str, str]:
        secret = self._settings.webhook_secret
        return signature(alert.key, secret, body) if secret else {"webhook-id": alert.key}

    def check(self) -> None:
        super().check()
        if self._settings.webhook_secret:
            signature("check", self._settings.webhook_secret, "")


class Slack(_Posted):
    def _message(self, alert: Alert) -> Any:
        return {"text": slack_text(alert)}


class ByApprise(_Addressed):
    package = "apprise"

    def __init__(self, channel: Channel, base: Path, settings: Settings) -> None:
        super().__init__(channel, base, settings)
        self._aside = Aside("apprise")

    def check(self) -> None:
        super().check()
        self._service(self._resolve(self._channel.address, self.kind))

    def _service(self, address: str) -> Any:
        apprise = _apprise()
        heard: list[str] = []
        token = _HEARD.set(heard)
        try:
            service, one = apprise.Apprise.instantiate(address), apprise.Apprise()
        finally:
            _HEARD.reset(token)
        if service is None:
            scheme = address.partition("://")[0]
            said = f": {address_cleaner(address)(heard[0])}" if heard else ""
            raise ConfigurationError(f"{self._where}: Apprise can do nothing with this {scheme}:// URL{said}")
        one.add(service)
        return one

    async def _deliver(self, address: str, bearer: str | None, alert: Alert) -> None:
        apprise = _apprise()
        heard: list[str] = []
        service = self._service(address)
        kinds = {"critical": apprise.NotifyType.FAILURE, "warning": apprise.NotifyType.WARNING}
        kind = apprise.NotifyType.SUCCESS if alert.state == CLOSED else kinds.get(alert.severity, apprise.NotifyType.INFO)

        def notify() -> bool:
            _HEARD.set(heard)  # in this thread's context, and in those it passes it on to
            return bool(
                service.notify(body=alert.text, title=alert.title, notify_type=kind, body_format=apprise.NotifyFormat.TEXT)
            )

        # A thread that is not waited for any more may still deliver it: then it is told twice.
        if not await self._aside.call(notify):
            raise NotDelivered("; ".join(heard) or "the service did not take it")


_HEARD: ContextVar[list[str] | None] = ContextVar("hourhand_apprise", default=None)


class _Discreet(logging.Filter):
    """What Apprise and what it calls log while they work for us is kept, to be told without the address, and goes nowhere else."""

    def filter(self, record: logging.LogRecord) -> bool:
        heard = _HEARD.get()
        if heard is None:
            return True
        if record.levelno >= logging.WARNING:
            heard.append(record.getMessage())
        return False


@lru_cache(maxsize=1)
def _apprise() -> Any:
    with warnings.catch_warnings():
        # It loads all that it speaks to at its first use, and some of that needs what Python will not have for ever.
        warnings.simplefilter("ignore", DeprecationWarning)
        import apprise

        apprise.Apprise.instantiate("json://localhost")
    for name in ("apprise", "urllib3.connectionpool"):
        logging.getLogger(name).addFilter(_Discreet())
    return apprise


_KINDS: dict[str, type[_Addressed]] = {"webhook": Webhook, "slack": Slack, "url": ByApprise}


class Hook:
    """A function of the app. It runs in one of the processes that have the app."""

    kind = PYTHON
    timeout = 30.0

    def __init__(self, function: Callable[[Alert], Any], name: str) -> None:
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
        self.name = name
        self._aside = Aside("hook")

    @property
    def address(self) -> str:
        return ""

    async def send(self, alert: Alert) -> None:
        try:
            async with asyncio.timeout(self.timeout):
                if self._is_async:
                    await self._function(alert)
                else:
                    await self._aside.call(self._function, alert)
        except TimeoutError:
            raise NotDelivered(f"the function had not returned after {self.timeout:g} s") from None
        except StillBusy as error:
            raise NotDelivered(str(error)) from None
        except Exception as error:
            # It is kept and shown, and where the function leads is in the texts of many libraries.
            raise NotDelivered(without_addresses(f"{type(error).__name__}: {error}")[:_LONGEST]) from error


def hooks_of(functions: Iterable[Callable[[Alert], Any]]) -> list[Hook]:
    """Each under a name of its own, which is the same in every process that has the app."""
    names: Counter[str] = Counter()
    hooks = []
    for one in functions:
        where = one if hasattr(one, "__qualname__") else type(one)
        name = f"{PYTHON}:{where.__module__}.{where.__qualname__}"
        names[name] += 1
        hooks.append(Hook(one, name if names[name] == 1 else f"{name}-{names[name]}"))
    return hooks


def check_hook(function: Any) -> None:
    """While the module is being imported, not when something is wrong already."""
    try:
        inspect.signature(function).bind(TEST)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{function!r} must be a function of one argument, the alert, for @app.on_alert") from None


@lru_cache(maxsize=1)
def _version() -> str:
    return version("hourhand")
