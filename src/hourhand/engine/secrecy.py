"""What errors and log lines must not tell: the secret values of the run that they are about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hourhand.core.redaction import Clean, cleaner
from hourhand.core.registry import Registry


class Secrecy:
    def __init__(self, registry: Registry, names: Sequence[str]) -> None:
        self._registry = registry
        self._names = tuple(names)

    def clean(self, claim: Any, task: str) -> Clean | None:
        """What takes the secrets of a run out of a text; None: it has none."""
        return cleaner(claim.payload, claim.options, self._registry.marks_of(task), self._names)
