"""The account of a job: for every firing that was expected of it, what became of it and why.

Pure: what the database has on record goes in, one line for each expected instant comes out. An instant for
which nothing is on record that explains it is `unexplained`; that is what the audit looks for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from hourhand.core import ids
from hourhand.core.schedule import Schedule

MOMENT = timedelta(microseconds=1)
ON_TIME = timedelta(seconds=2)
UNEXPLAINED = "unexplained"
LONGEST_TRANSACTION = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Span:
    """How a job took part, from an instant until another; the last one is open."""

    since: datetime
    until: datetime | None
    schedule_id: int
    paused: bool
    schedule: Schedule
    start_at: datetime | None = None
    end_at: datetime | None = None

    def expected(self, since: datetime, until: datetime) -> Iterator[tuple[datetime, bool]]:
        """Every instant in [since, until), and whether the clock change swallows it."""
        low = max(one for one in (since, self.since, self.start_at) if one is not None)
        high = min(one for one in (until, self.until, self.end_at) if one is not None)
        if low >= high:
            return
        swallows = self.schedule.kind == "cron" and self.schedule.dst == "skip"
        wide = replace(self.schedule, dst="shift") if swallows else self.schedule
        real = self.schedule.next_after(low - MOMENT) if swallows else None
        for at in wide.firings(low - MOMENT, high - MOMENT):
            if not swallows or at == real:
                yield at, False
                real = self.schedule.next_after(at) if swallows else None
            else:
                yield at, True


@dataclass(frozen=True, slots=True)
class Trace:
    """A run, wherever it is."""

    run: int
    scheduled_at: datetime
    state: str
    started_at: datetime | None
    finished_at: datetime | None
    node: int | None
    reason: str | None
    due_at: datetime | None
    ahead: int | None
    by_hand: str | None
    """`triggered` or `backfilled`: no schedule asked for it."""


@dataclass(frozen=True, slots=True)
class Decision:
    scheduled_at: datetime
    until: datetime
    decided_at: datetime
    run: int | None
    count: int
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True)
class Firing:
    """A row of the ledger."""

    schedule_id: int
    scheduled_at: datetime
    until: datetime
    fired_at: datetime
    epoch: int
    count: int
    node: int
    runs: int
    late: bool
    node_name: str | None


@dataclass(frozen=True, slots=True)
class Line:
    """What became of one expected firing, or of a run that was made by hand."""

    scheduled_at: datetime
    outcome: str
    reason: str
    run_id: str | None = None
    fired_at: datetime | None = None
    late_seconds: float | None = None
    node: str | None = None
    by_hand: str | None = None
    """`triggered` or `backfilled`: no schedule asked for it."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is on record about a job in a period."""

    spans: Sequence[Span]
    traces: Sequence[Trace]
    decisions: Sequence[Decision]
    firings: Sequence[Firing]
    present: datetime
    next_run_at: datetime | None
    """Of the schedule it has now."""
    finished_after: datetime | None
    """The last firing of a job that has had all of its runs."""
    history_from: datetime
    """Before this, ended runs are no longer kept."""
    schedulers: int
    node_ends: dict[int, tuple[str, datetime | None, datetime | None]]
    first_known: dict[datetime, datetime | None]
    """For each span, by its beginning: the first instant of it that something is on record for."""


class Account:
    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._traces: dict[datetime, list[Trace]] = defaultdict(list)
        self._extra: list[Trace] = []
        for trace in facts.traces:
            if trace.by_hand:
                self._extra.append(trace)
            else:
                self._traces[trace.scheduled_at].append(trace)
        left_out = [one for one in facts.decisions if one.outcome in ("skipped", "coalesced", "finished")]
        self._left_out = {one.scheduled_at: one for one in left_out if one.scheduled_at == one.until}
        self._ranges = [one for one in left_out if one.scheduled_at < one.until]
        self._firings: dict[int, list[Firing]] = defaultdict(list)
        for firing in facts.firings:
            self._firings[firing.schedule_id].append(firing)
        self.doubles: list[datetime] = [at for at, runs in self._traces.items() if len(runs) > 1]

    def lines(self, since: datetime, until: datetime) -> Iterator[Line]:
        """In the order of time; [since, until)."""
        for span in self._facts.spans:
            for at, swallowed in span.expected(since, until):
                yield self._line(span, at, swallowed)

    def besides(self) -> list[Line]:
        """What is on record beyond the expected: runs that no schedule asked for, firings that new time zone rules moved."""
        by_hand = [
            Line(
                one.scheduled_at, one.state, f"{one.by_hand} by hand; {one.reason or one.state}", ids.run_id(one.run),
                by_hand=one.by_hand,
            )
            for one in self._extra
        ]  # fmt: skip
        moved = [Line(one.scheduled_at, "moved", one.reason) for one in self._facts.decisions if one.outcome == "moved"]
        return by_hand + moved

    def _unregistered(self, span: Span, at: datetime, firing: Firing) -> bool:
        """Whether the schedule was fired before the transaction that made this span had committed: then nothing of the job is
        on record up to this instant. Nothing says when it committed; what nobody ever saw is believed for a while only."""
        first = self._facts.first_known.get(span.since)
        return at < first if first is not None else firing.fired_at < span.since + LONGEST_TRANSACTION

    def _line(self, span: Span, at: datetime, swallowed: bool) -> Line:
        facts = self._facts
        traces = self._traces.get(at)
        firing = self._firing(span.schedule_id, at)
        if traces:
            return self._ran(at, traces[-1], firing)
        if swallowed:
            return Line(at, "dst_gap", "its local time does not exist that day, and dst is skip")
        decision = self._decision(at)
        if decision is not None:
            return self._fired(Line(at, decision.outcome, _told(decision)), firing)
        if span.paused:
            return Line(at, "paused", "the job was paused")
        if facts.finished_after is not None and at > facts.finished_after:
            return Line(at, "finished", "the job has had all of its max_runs")
        if firing is not None and at < facts.history_from:
            return self._fired(Line(at, "fired", "its run is no longer in the history"), firing)
        if firing is not None and self._unregistered(span, at, firing):
            return self._fired(Line(at, "unregistered", "the job, as it is now, was committed after this was fired"), firing)
        if firing is None and span.until is None and facts.next_run_at is not None and facts.next_run_at <= at:
            if at > facts.present:
                return Line(at, "expected", "still to come")
            late = (facts.present - at).total_seconds()
            why = "its scheduler has not come to it yet, or somebody's open transaction is in its way"
            if not facts.schedulers:
                why = "no scheduler is alive"
            return Line(at, "due", f"not fired yet, {late:.1f} s late: {why}", late_seconds=late)
        if firing is None and at < facts.history_from:
            return Line(at, "unknown", "older than what is kept on record")
        return Line(at, UNEXPLAINED, "nothing on record says what became of it")

    def _ran(self, at: datetime, trace: Trace, firing: Firing | None) -> Line:
        state = trace.state
        if state == "ready":
            ahead = trace.ahead or 0
            reason = f"queued behind {'more than ' if ahead >= 1000 else ''}{ahead} runs" if ahead else "first in its lane"
        elif state == "delayed" and trace.due_at is not None:
            reason = f"starts at {_text(trace.due_at)}"
        elif state == "running":
            reason = f"running on node {trace.node}"
        else:
            reason = trace.reason or (f"ran on node {trace.node}" if trace.node else state)
        return self._fired(Line(at, state, reason, ids.run_id(trace.run)), firing)

    def _fired(self, line: Line, firing: Firing | None) -> Line:
        """With who fired it, how late, and why."""
        if firing is None:
            return line
        late = max(0.0, (firing.fired_at - line.scheduled_at).total_seconds())
        reason = line.reason
        if timedelta(seconds=late) > ON_TIME and line.outcome not in ("skipped", "coalesced"):
            reason = f"{reason}; fired {late:.1f} s late: {self._why_late(firing)}"
        name = firing.node_name or f"node {firing.node}"
        return replace(line, reason=reason, fired_at=firing.fired_at, late_seconds=round(late, 3), node=name)

    def _why_late(self, firing: Firing) -> str:
        rows = self._firings[firing.schedule_id]
        place = _place(rows, firing.scheduled_at)
        before = rows[place - 1] if place else None
        if before is None:
            return "its scheduler had only then taken it up" if firing.late else "its scheduler was behind"
        if before.epoch == firing.epoch:
            return "its scheduler was behind, could not reach the database, or waited for somebody's open transaction"
        _, stopped, died = self._facts.node_ends.get(before.node, ("", None, None))
        old = before.node_name or f"node {before.node}"
        if died is not None:
            return f"{old} died, noticed at {_text(died)}, and {firing.node_name or firing.node} took over"
        if stopped is not None:
            return f"{old} was stopped at {_text(stopped)}, and {firing.node_name or firing.node} took over later"
        return f"its shard passed from {old} to {firing.node_name or firing.node}"

    def _firing(self, schedule: int, at: datetime) -> Firing | None:
        rows = self._firings[schedule]
        place = _place(rows, at)
        return rows[place] if place >= 0 and at <= rows[place].until else None

    def _decision(self, at: datetime) -> Decision | None:
        """What was decided for this instant alone, or for a range that it lies in."""
        return self._left_out.get(at) or next((one for one in self._ranges if one.scheduled_at <= at <= one.until), None)


def _place(rows: Sequence[Firing], at: datetime) -> int:
    """Where the last firing up to this instant stands; -1 if there is none."""
    return bisect_right(rows, at, key=lambda one: one.scheduled_at) - 1


def _told(one: Decision) -> str:
    run = f" ({ids.run_id(one.run)})" if one.run is not None else ""
    many = f"; {one.count} from {_text(one.scheduled_at)} to {_text(one.until)}" if one.count > 1 else ""
    return f"{one.reason}{run}{many}"


def _text(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")
