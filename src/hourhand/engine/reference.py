"""Apps by name: `package.module:attribute`, or `path/to/file.py:attribute`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from hourhand.core.errors import ConfigurationError
from hourhand.core.registry import Registry
from hourhand.core.settings import Settings, settings_from


def load_app(reference: str) -> Any:
    """Import the app that a person named on the command line."""
    place, _, attribute = reference.rpartition(":")
    if not place or not attribute:
        raise ConfigurationError(f"--app takes module:name, for example shop.jobs:app, not {reference!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module = _load_file(Path(place)) if place.endswith(".py") else _import(place, reference)
    try:
        app = module
        for part in attribute.split("."):
            app = getattr(app, part)
    except AttributeError:
        raise ConfigurationError(f"module {place!r} has no {attribute!r}; --app names the Hourhand() object in it") from None
    if not isinstance(getattr(app, "registry", None), Registry):
        raise ConfigurationError(f"{reference} is a {type(app).__name__}, not a Hourhand app")
    return app


def load_registry(reference: str, environment: Mapping[str, str]) -> tuple[Registry, Settings]:
    """In a child process: the app as its parent has configured it."""
    app = load_app(reference)
    given = settings_from(environment)
    app.configure(database_url=given.database_url, data=given.data, schema=given.schema)
    return app.registry, given


def _import(name: str, reference: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(
                f"there is no module {error.name!r} to import for {reference!r}; the current directory ({os.getcwd()}) and "
                "installed packages are searched"
            ) from None
        raise _broken(name, error) from None
    except Exception as error:
        raise _broken(name, error) from None


def _broken(name: str, error: Exception) -> ConfigurationError:
    """The user's own lines of the traceback, not ours nor the import machinery's."""
    ours = (str(Path(__file__).parent.parent), "<frozen importlib")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(ours) and "importlib" not in frame.filename
    ]
    where = "".join(traceback.format_list(frames)) + "".join(traceback.format_exception_only(error))
    return ConfigurationError(f"{name} could not be imported:\n{where.rstrip()}")


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}")
    name = f"__hourhand_{path.stem}__"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent.absolute()) not in sys.path:
        sys.path.insert(0, str(path.parent.absolute()))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _broken(str(path), error) from None
    return module


def find_reference(registry: Registry) -> str | None:
    """How a child process can import the app that holds this registry, if it can."""
    for name, module in list(sys.modules.items()):
        if module is None or name.startswith("hourhand."):
            continue
        for attribute, value in list(vars(module).items()):
            # Only what the object itself holds: asking strangers for attributes can do anything.
            if isinstance(getattr(value, "__dict__", None), dict) and value.__dict__.get("registry") is registry:
                if name == "__main__":
                    spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
                    if spec is not None:
                        return f"{spec.name}:{attribute}"
                    return f"{os.path.abspath(file)}:{attribute}" if file else None
                return f"{name}:{attribute}"
    return None
