"""Stored jobs as a file: what `hourhand plan` would find unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from hourhand.core.errors import ConfigurationError
from hourhand.core.fairness import PRIORITIES
from hourhand.core.job import JobOptions
from hourhand.core.registry import Registry
from hourhand.surfaces.plans.comparing import plain_options, same_value
from hourhand.surfaces.plans.documents import needs_quotes
from hourhand.surfaces.views import JobView

_SPANS = ("misfire_grace", "flexible_window", "timeout", "retry_base", "retry_cap")
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))


def export_jobs(owner: str, views: Iterable[JobView], registry: Registry) -> dict[str, Any]:
    return {"owner": owner, "jobs": {view.name: _said(view, registry) for view in views}}


def _said(view: JobView, registry: Registry) -> dict[str, Any]:
    return worth_saying(view.name, plain_options(view), registry) | ({"state": "paused"} if view.paused_at is not None else {})


def worth_saying(name: str, options: Mapping[str, Any], registry: Registry) -> dict[str, Any]:
    """Of everything about a job, what is not so by itself."""
    without = {**_unsaid(options["task"], registry), "task": name, "schedule": ""}
    # What a reader wants to know first comes first.
    ordered = {**dict.fromkeys(("schedule", "timezone", "task", "payload")), **options}
    return {key: _written(key, value) for key, value in ordered.items() if not same_value(value, without[key])}


def _unsaid(task: str, registry: Registry) -> dict[str, Any]:
    """What a job has if nothing is said about it; some of it is its task's to say, where the task is known."""
    known = registry.find(task)
    own = {
        "queue": known.queue if known else "default",
        "priority": known.priority if known else PRIORITIES[1],
        "secret": list(registry.marks_of(task)),
    }
    return {**asdict(JobOptions()), "payload": {}, "tags": [], "then": [], **own}


def _written(name: str, value: Any) -> Any:
    if name == "then" and len(value) == 1:
        return value[0]
    if name not in _SPANS or isinstance(value, str) or value is None:
        return value
    for size, unit in _UNITS:
        if value and value % size == 0:
            return f"{value / size:.0f}{unit}"
    return int(value) if value == int(value) else value


def as_json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def as_yaml(document: dict[str, Any]) -> str:
    try:
        import yaml
    except ImportError:
        raise ConfigurationError(
            "writing YAML needs PyYAML, which is not installed: pip install 'hourhand[yaml]', or write JSON with --json"
        ) from None

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            """The same value twice is written twice: people read this."""
            return True

    def text(dumper: Any, value: str) -> Any:
        style = "|" if "\n" in value else '"' if needs_quotes(value) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    parts = [{name: value} for name, value in document.items()]
    return "".join(yaml.dump(one, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120) for one in parts)
