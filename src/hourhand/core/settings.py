"""Every setting, in one place: a field, what it means, its environment variable."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hourhand.core.encryption_keys import parse_keys
from hourhand.core.errors import ConfigurationError

LEAST_MEMORY = 64 * 2**20
"""Of a child process. With less, Python itself does not start."""


def _setting(default: Any, variable: str, meaning: str, *, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"variable": variable, "meaning": meaning})


@dataclass(frozen=True, slots=True)
class Settings:
    database_url: str | None = _setting(
        None, "HOURHAND_DATABASE_URL", "PostgreSQL 14 or newer; without it, the embedded server is used"
    )
    direct_url: str | None = _setting(
        None,
        "HOURHAND_DIRECT_URL",
        "a way to the same database around a pooler, for session locks and notifications",
    )
    data: Path | None = _setting(None, "HOURHAND_DATA", "directory of the embedded server; default: the user's data directory")
    schema: str = _setting("hourhand", "HOURHAND_SCHEMA", "the schema that holds everything")
    lease: float = _setting(15.0, "HOURHAND_LEASE", "seconds after which a silent process counts as dead")
    grace: float = _setting(1.5, "HOURHAND_GRACE", "seconds for which a lost session lock is taken for a reconnect")
    poll: float = _setting(5.0, "HOURHAND_POLL", "seconds between two looks when no notification comes")
    max_result: int = _setting(256 * 1024, "HOURHAND_MAX_RESULT", "bytes of JSON up to which a run's result is kept")

    transactions: int = _setting(
        10, "HOURHAND_TRANSACTIONS", "connections that a worker may hold at a time for its exactly-once runs"
    )
    loop_limit: float = _setting(
        10.0, "HOURHAND_LOOP_LIMIT", "seconds for which a handler may block the event loop of its worker before it is interrupted"
    )
    cancel_grace: float = _setting(
        10.0, "HOURHAND_CANCEL_GRACE", "seconds after which a handler that ignores its cancellation is left behind"
    )
    child_memory: int = _setting(
        0, "HOURHAND_CHILD_MEMORY", "bytes of address space for a child process whose task sets no max_memory; 0: no limit"
    )
    catch_up_rate: float = _setting(
        10.0,
        "HOURHAND_CATCH_UP_RATE",
        "runs a second at which each schedule makes up for what it missed, where RUN_ALL asks for it",
    )
    retention: float = _setting(90.0, "HOURHAND_RETENTION", "days for which the history and the ledger are kept")
    keep_finished: float = _setting(1.0, "HOURHAND_KEEP_FINISHED", "days for which a one-off job is kept after it has run")

    rebuild_indexes: int = _setting(
        2, "HOURHAND_REBUILD_INDEXES", "MiB above which an index that has outgrown its contents is rebuilt; 0: never"
    )

    http_allow: str = _setting(
        "",
        "HOURHAND_HTTP_ALLOW",
        "private addresses that HTTP jobs may call all the same: networks, host names or host:port, separated by commas",
    )
    http_concurrency: int = _setting(
        1_000, "HOURHAND_HTTP_CONCURRENCY", "calls that a worker has open at a time for HTTP jobs, besides its slots"
    )
    webhook_secret: str | None = _setting(
        None, "HOURHAND_WEBHOOK_SECRET", "secret with which HTTP jobs sign their calls, as whsec_ and base64", secret=True
    )
    allow_commands: str = _setting(
        "", "HOURHAND_ALLOW_COMMANDS", "programs that command jobs may start, separated by commas; none by default"
    )
    secret_fields: str = _setting(
        "password,passwd,secret,token,api_key,authorization,cookie,access_token,refresh_token,auth_token,client_secret,"
        "private_key,db_password,x_api_key,x_auth_token,proxy_authorization,set_cookie",
        "HOURHAND_SECRET_FIELDS",
        "names of payload fields that are never shown, at any depth, separated by commas",
    )
    encryption_keys: str | None = _setting(
        None,
        "HOURHAND_ENCRYPTION_KEYS",
        "keys for payloads at rest, as id:base64 of 32 bytes, separated by commas; the first one encrypts, all decrypt",
        secret=True,
    )
    alerts: Path | None = _setting(
        None,
        "HOURHAND_ALERTS",
        "file of the rules of the alerts, and of the channels that are told; without it, the default rules",
    )
    log_lines: int = _setting(1_000, "HOURHAND_LOG_LINES", "log lines that are kept with each run; 0: none")

    def __post_init__(self) -> None:
        for name, unit in (
            ("lease", "seconds"),
            ("grace", "seconds"),
            ("poll", "seconds"),
            ("retention", "days"),
            ("catch_up_rate", "runs"),
            ("loop_limit", "seconds"),
            ("cancel_grace", "seconds"),
            ("transactions", "connections"),
            ("http_concurrency", "calls"),
        ):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ConfigurationError(f"{name} must be a positive number of {unit}, not {value!r}")
        if not isinstance(self.keep_finished, (int, float)) or not 0 <= self.keep_finished < math.inf:
            raise ConfigurationError(f"keep_finished must be a number of days, not {self.keep_finished!r}")
        if not isinstance(self.log_lines, int) or not 0 <= self.log_lines <= 1_000_000:
            raise ConfigurationError(f"log_lines must be a number from 0 to 1000000, not {self.log_lines!r}")
        if not isinstance(self.rebuild_indexes, int) or self.rebuild_indexes < 0:
            raise ConfigurationError(f"rebuild_indexes must be a number of MiB, or 0, not {self.rebuild_indexes!r}")
        if not isinstance(self.max_result, int) or self.max_result < 0:
            raise ConfigurationError(f"max_result must be a number of bytes, not {self.max_result!r}")
        if not isinstance(self.child_memory, int) or (self.child_memory and self.child_memory < LEAST_MEMORY):
            raise ConfigurationError(f"child_memory must be 0 or a number of bytes of at least 64 MiB, not {self.child_memory!r}")
        parse_keys(self.encryption_keys)
        if self.grace * 2 > self.lease:
            raise ConfigurationError(f"lease ({self.lease:g} s) must be at least twice grace ({self.grace:g} s)")
        for name in ("database_url", "direct_url"):
            url = getattr(self, name)
            if url is not None and not url.startswith(("postgresql://", "postgres://")):
                # Not the URL itself: it may hold a password.
                scheme = f"; this one starts with {url.partition('://')[0]}://" if "://" in url else ""
                raise ConfigurationError(f"{name} must look like postgresql://user:password@host:port/database{scheme}")

    @property
    def heartbeat(self) -> float:
        return self.lease / 3

    @property
    def secret_names(self) -> tuple[str, ...]:
        return tuple(name for part in self.secret_fields.split(",") if (name := part.strip()))

    def environment(self) -> dict[str, str]:
        """These settings as the environment of a child process."""
        values = {one.metadata["variable"]: getattr(self, one.name) for one in fields(self)}
        return {variable: str(value) for variable, value in values.items() if value is not None}


def settings_from(environment: Mapping[str, str], **given: Any) -> Settings:
    """What is given in code or on the command line, then the environment, then the defaults."""
    values: dict[str, Any] = {}
    known = [one.name for one in fields(Settings)]
    for name in given:
        if name not in known:
            raise ConfigurationError(f"unknown setting {name!r}; the settings are {', '.join(known)}")
    for one in fields(Settings):
        if given.get(one.name) is not None:
            values[one.name] = given[one.name]
            continue
        text = environment.get(one.metadata["variable"], "").strip()
        if text:
            values[one.name] = _read(one.name, one.metadata["variable"], text, one.default)
    for name in ("data", "alerts"):
        if name in values:
            values[name] = Path(values[name]).expanduser()
    return Settings(**values)


def _read(name: str, variable: str, text: str, default: Any) -> Any:
    if not isinstance(default, (int, float)):
        return text
    try:
        return type(default)(text)
    except ValueError:
        raise ConfigurationError(f"{variable} ({name}) must be a number, not {text!r}") from None
