"""What becomes of a run whose handler has ended, or was given up: its outcome, for the completer to write."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import structlog

from hourhand.core import failure
from hourhand.core.backoff import Retry
from hourhand.core.errors import Cancelled, HandlerTimeout, LoopBlocked, PermanentFailure, ProcessDied
from hourhand.core.payload import encode_result
from hourhand.core.settings import Settings
from hourhand.core.task import TaskDefinition
from hourhand.engine.caller import Active
from hourhand.engine.completer import Completer
from hourhand.engine.delivery import RECORDED, Recorded, passes_on
from hourhand.engine.logs import about, ended, is_chatty
from hourhand.engine.node import Node
from hourhand.engine.secrecy import Secrecy
from hourhand.engine.tracing import Tracing
from hourhand.storage.queue import Claim

log = structlog.get_logger("hourhand.executor")
_MISHAP_DELAY = 30.0


class Settler:
    def __init__(self, node: Node, completer: Completer, settings: Settings, secrecy: Secrecy) -> None:
        self._node = node
        self._secrecy = secrecy
        self._completer = completer
        self._settings = settings
        self._rng = Random()
        self._chatty = is_chatty()
        self.tracing: Tracing | None = None

    def settle(self, active: Active, result: Any, error: BaseException | None) -> None:
        """Why it was stopped, if it was, outweighs how it ended."""
        claim, cause = active.claim, active.cause
        if cause == "lost":
            log.warning("run.abandoned", **self._end(active, "abandoned"), meaning="its claim was lost")
            self._told(active, "abandoned")
        elif error is None:
            self._succeeded(active, result)
            if active.attempt is not None:
                self._told(active, "succeeded")
        elif cause == "shutdown":
            self.hand_back(active, "its worker was stopped before it ended")
        elif cause == "timeout":
            self._timed_out(active)
        elif cause == "cancelled" or isinstance(error, Cancelled):
            self._completer.end(
                claim, "cancelled", self._node.clock.now(), started=active.started, errors=claim.errors,
                reason=active.reason or "cancelled",
            )  # fmt: skip
            self._told(active, "cancelled")
            log.info("run.cancelled", **self._end(active, "cancelled"), reason=active.reason or "cancelled")
        elif isinstance(error, (SystemExit, KeyboardInterrupt)):
            self._failed(active, RuntimeError(f"the handler raised {error!r}"))
        else:
            self._failed(active, error)

    def hand_back(self, active: Active, why: str) -> None:
        """To others, with no attempt charged; but what has begun and must not begin again is lost."""
        if active.begun:
            self._lose(active, active.claim.errors, why)
        else:
            self._completer.hand_back(active.claim)
            self._told(active, "handed_back")
            if self._chatty:
                log.debug("run.handed_back", **self._end(active, "handed_back"), reason=why)

    def mishap(self, claim: Claim, error: Exception, active: Active | None) -> None:
        """A fault of our own around a run. It is tried again later, and not for ever."""
        errors = self._with(claim, error, claim.attempt + 1, active)
        if active is not None and active.begun:
            self._lose(active, errors, "a fault around it after it had begun")
        else:
            self._completer.retry(claim, _MISHAP_DELAY, self._node.clock.now(), errors)
            self._told(active, "failed", errors)
        with contextlib.suppress(Exception):
            began = None if active is None else active.started
            log.error("run.mishap", **ended(claim, "failed", began, self._node.clock.now()), error=_words(errors))

    def describe(self, error: BaseException, claims: Sequence[Claim]) -> dict[str, Any]:
        """An error that several runs of a task have: put into words once, without what is secret in any of them."""
        at, clean = self._node.clock.instant().isoformat(), self._secrecy.clean_all(claims, claims[0].task)
        return failure.describe(error, 0, at, self._node.name, clean)

    def _told(self, active: Active | None, status: str, errors: list[dict[str, Any]] | None = None) -> None:
        """What an attempt came to, to whoever looks at its trace."""
        if self.tracing is not None and active is not None:
            self.tracing.end(active, status, None if errors is None else errors[-1])

    def _end(self, active: Active, status: str) -> dict[str, Any]:
        """The run that a line is about, and what this attempt came to."""
        return ended(active.claim, status, active.started, self._node.clock.now())

    def _with(self, claim: Claim, error: BaseException, attempt: int, active: Active | None) -> list[dict[str, Any]]:
        """The run's errors and this one, without what is secret in its payload."""
        described = getattr(active, "described", None)
        if described is not None:
            one = {**described, "attempt": attempt}
        else:
            at, clean = self._node.clock.instant().isoformat(), self._secrecy.clean(claim, claim.task)
            one = failure.describe(error, attempt, at, self._node.name, clean)
        if active is not None and active.attempt is not None:
            one["trace"] = active.attempt.place.stored  # the next attempt refers to it
        return failure.append(claim.errors, one)

    def _succeeded(self, active: Active, result: Any) -> None:
        claim, now = active.claim, self._node.clock.now()
        if result is RECORDED:
            self._completer.completed += 1
            self._completer.bulletin.note(claim, "succeeded")
            self._completer.measures.ended(claim, "succeeded", active.started, now)
            active.handler.took([now - active.started])
            if claim.gates:
                self._completer.on_freed(set(claim.gates))
            if self._chatty:
                log.debug("run.succeeded", **ended(claim, "succeeded", active.started, now))
            return
        if isinstance(result, Recorded):
            self._completer.end(
                claim, "succeeded", now, result=result.result, reason=result.reason, errors=claim.errors, onward=active.onward
            )
            log.info("run.had_its_effect", **ended(claim, "succeeded", active.started, now), meaning=result.reason)
            return
        text, remark = None, None
        if result is not None:
            text, remark = encode_result(result, self._settings.max_result)
        if remark is not None:
            # It may quote what could not be stored.
            clean = self._secrecy.clean(claim, claim.task)
            remark = remark if clean is None else clean(remark)
            log.warning("run.result_not_kept", **ended(claim, "succeeded", active.started, now), reason=remark)
            if passes_on(claim.options):
                error = PermanentFailure(f"the next step of its chain takes the result, and that cannot be: {remark}")
                self._failed(active, error)
                return
        if self._chatty:
            log.debug("run.succeeded", **ended(claim, "succeeded", active.started, now))
        if remark is None and claim.errors is None and (active.attempt is None or active.onward is None):
            self._completer.succeed(active, now, text)
        else:
            active.handler.took([now - active.started])
            self._completer.end(
                claim, "succeeded", now, started=active.started, result=text, reason=remark, errors=claim.errors,
                onward=active.onward,
            )  # fmt: skip

    def _timed_out(self, active: Active) -> None:
        message = f"ran longer than its timeout of {active.timeout:g} s"
        if active.in_thread:
            message += "; the thread cannot be killed and was left behind"
            log.warning("run.thread_abandoned", **self._end(active, "failed"), timeout=active.timeout)
        elif active.left_behind:
            message += "; it ignored its cancellation and was left behind"
        self._failed(active, HandlerTimeout(message))

    def _failed(self, active: Active, error: BaseException) -> None:
        claim, attempt, definition = active.claim, active.context.attempt, active.handler.definition
        errors = self._with(claim, error, attempt, active)
        if active.begun:
            self._failed_for_good(active, error, errors)
            return
        limit = max_attempts(claim, definition)
        try:
            delay = retry_policy(claim, definition).next_delay(error, attempt, self._rng, limit)
        except Exception as bad:  # the user's own backoff function
            words = _words(self._with(claim, bad, attempt, None))
            log.error("retry.backoff_failed", **about(claim), error=words, meaning="waiting the cap instead")
            delay = definition.retry.cap
        if delay is None:
            reason = f"gave up after {attempt} of {limit} attempts" if attempt >= limit else "not worth another attempt"
            self._completer.bury(claim, active.started, errors, f"{reason}: {errors[-1]['type']}")
            self._told(active, "dead", errors)
            log.error("run.dead", **self._end(active, "dead"), **_what(errors), reason=reason)
        else:
            self._completer.retry(claim, delay, active.started, errors)
            self._told(active, "failed", errors)
            log.warning("run.failed", **self._end(active, "failed"), **_what(errors), retry_in=round(delay, 2))

    def _failed_for_good(self, active: Active, error: BaseException, errors: list[dict[str, Any]]) -> None:
        """At most once: no second try. Who raised an error is dead; who was cut off is lost, since nobody knows how far it came."""
        if isinstance(error, (ProcessDied, LoopBlocked)):
            self._told(active, "lost", errors)
            self._lose(active, errors, str(error))
            return
        self._completer.bury(active.claim, active.started, errors, f"at most once, so not tried again: {errors[-1]['type']}")
        self._told(active, "dead", errors)
        log.error("run.dead", **self._end(active, "dead"), **_what(errors), reason="at most once, so not tried again")

    def _lose(self, active: Active, errors: Any, why: str) -> None:
        self._completer.end(
            active.claim, "lost", self._node.clock.now(), started=active.started, errors=errors,
            reason=f"{why}; how far it came is not known",
        )  # fmt: skip
        self._told(active, "lost")
        log.error("run.lost", **self._end(active, "lost"), reason=why)


def _what(errors: list[dict[str, Any]]) -> dict[str, Any]:
    return {"error": errors[-1]["type"], "message": errors[-1]["message"]}


def _words(errors: list[dict[str, Any]]) -> str:
    return f"{errors[-1]['type']}: {errors[-1]['message']}"


def retry_policy(claim: Claim, definition: TaskDefinition) -> Retry:
    """The task's, with what the job or the enqueue said over it."""
    given = (claim.options or {}).get("retry")
    return definition.retry if given is None else replace(definition.retry, **given)


def max_attempts(claim: Claim, definition: TaskDefinition) -> int:
    if claim.options is not None and "max_attempts" in claim.options:
        return int(claim.options["max_attempts"])
    return definition.retry.max_attempts
