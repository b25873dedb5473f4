"""Who is doing this, and what he may touch: known to every verb, on every surface."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass

from hourhand.core.errors import Forbidden

ROLES = ("viewer", "operator", "admin")
"""Each may do what the one before it may: look; order what there is about; change what there is, and keys."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Somebody, and the part of everything that is his. An empty scope is no part: None is everything."""

    name: str
    via: str = "python"
    """The surface: python, cli, api."""
    role: str = "admin"
    queues: tuple[str, ...] | None = None
    prefixes: tuple[str, ...] | None = None
    """Beginnings of the names of jobs."""
    key_id: str | None = None
    """The key that he came with."""

    @property
    def identity(self) -> str:
        """Who he is and nobody else: of two keys with the same name, one."""
        return self.key_id or self.name

    @property
    def scoped(self) -> bool:
        return self.queues is not None or self.prefixes is not None

    def has_role(self, role: str) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)

    def may_touch(self, queue: str | None, job: str | None) -> bool:
        """Whether what is in this queue, or belongs to the job of this name, is his. What has neither is nobody's part."""
        queue_fits = self.queues is None or queue in self.queues
        job_fits = self.prefixes is None or (job is not None and job.startswith(self.prefixes))
        return queue_fits and job_fits

    def need(self, queue: str | None, job: str | None, what: str) -> None:
        if not self.may_touch(queue, job):
            raise Forbidden(f"{what} is outside of what {self.name} may touch ({self.scope_in_words()})")

    def need_everything(self, what: str) -> None:
        """For what concerns all queues and jobs at once."""
        if self.scoped:
            raise Forbidden(f"{what} concerns everything, and {self.name} may touch only {self.scope_in_words()}")

    def scope_in_words(self) -> str:
        parts = [_words("queue", self.queues), _words("jobs named", self.prefixes, "…")]
        return " and ".join(part for part in parts if part) or "everything"


def _words(what: str, names: Iterable[str] | None, tail: str = "") -> str:
    if names is None:
        return ""
    return f"{what} {', '.join(f'{name}{tail}' for name in names) or '(none)'}"


NOBODY = Actor("")
"""Nobody has said who he is: the app stands in, by its name."""
ACTOR: ContextVar[Actor] = ContextVar("hourhand_actor", default=NOBODY)
