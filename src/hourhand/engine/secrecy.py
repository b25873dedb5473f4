"""What errors and log lines must not tell: the secret values of the run that they are about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

    def clean_all(self, claims: Iterable[Any], task: str) -> Clean | None:
        """The same for a text that several runs share: it may tell the secrets of any of them."""
        cleans = [one for one in (self.clean(claim, task) for claim in claims) if one is not None]
        if not cleans:
            return None

        def clean(text: str) -> str:
            for one in cleans:
                text = one(text)
            return text

        return clean
