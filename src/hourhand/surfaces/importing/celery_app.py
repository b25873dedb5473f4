"""The user's own Celery app, imported because he asked for it by name, and asked for its schedule as beat does."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hourhand.core.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class BeatSchedule:
    entries: Mapping[str, Any]
    timezone: str | None
    """None: the app says none, and Celery takes UTC or the machine's own."""
    fallback: str
    deadline: float | None


def read_celery_app(reference: str) -> BeatSchedule:
    app = _load(reference)
    try:
        # As beat starts up: only then are those there that are added in signals and in modules of tasks.
        app.loader.import_default_modules()
        app.finalize()
        conf = app.conf
        timezone = str(conf.timezone) if conf.timezone else None
        deadline = conf.get("beat_cron_starting_deadline")
        return BeatSchedule(dict(conf.beat_schedule or {}), timezone, str(app.timezone), deadline)
    except Exception as error:
        raise _broken(reference, error) from None


def _load(reference: str) -> Any:
    module, _, attribute = reference.partition(":")
    if not module:
        raise ConfigurationError(f"--celery-app takes module:name, for example shop.celery:app, not {reference!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        raise _broken(module, error) from None
    for name in attribute.split(".") if attribute else ():
        found = getattr(found, name, None)
    if not attribute:
        found = next((one for one in (getattr(found, name, None) for name in ("app", "celery")) if _is_app(one)), None)
    if not _is_app(found):
        raise ConfigurationError(f"{reference} is no Celery app; name it as module:name, for example shop.celery:app")
    return found


def _is_app(one: Any) -> bool:
    return any(kind.__name__ == "Celery" and kind.__module__ == "celery.app.base" for kind in type(one).__mro__)


def _broken(name: str, error: Exception) -> ConfigurationError:
    """The user's own lines of the traceback."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if "importlib" not in one.filename]
    own = [one for one in frames if one.filename != __file__]
    where = "".join(traceback.format_list(own[-3:])) + "".join(traceback.format_exception_only(error))
    return ConfigurationError(f"{name} could not be imported:\n{where.rstrip()}")
