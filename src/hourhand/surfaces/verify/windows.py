"""Was every window of every job met, once? Asked twice: by the instant each run says it is for, and by the time it began."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from hourhand.surfaces.verify.observations import Decision, Finding, FinishedRun, Observations, stamp
from hourhand.surfaces.verify.oracle import Job, instants, limit

BY_KEY = "windows_by_key"
BY_TIME = "windows_by_time"


@dataclass(slots=True)
class WindowCount:
    """expected = matched + excused + missed."""

    expected: int = 0
    matched: int = 0
    excused: int = 0
    missed: int = 0
    extra: int = 0


@dataclass(slots=True)
class WindowCheck:
    count: WindowCount = field(default_factory=WindowCount)
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Excuses:
    """What the decisions on record say about the windows of a job, and what its policy lets pass of that."""

    admitted: frozenset[datetime]
    refused: dict[datetime, str]
    """Why a decision about a window does not count."""

    @staticmethod
    def of(job: Job, due: Sequence[datetime], decisions: Sequence[Decision], first_run: datetime | None) -> Excuses:
        admitted: set[datetime] = set()
        refused: dict[datetime, str] = {}
        for decision in decisions:
            covered = due[bisect_left(due, decision.scheduled_at) : bisect_right(due, decision.until)]
            # What was decided about something that is no window, a trigger for one, excuses nothing.
            if not covered:
                continue
            objection = _objection(job, due, decision, covered, first_run)
            if objection is None:
                admitted.update(covered)
            else:
                refused.update(dict.fromkeys(covered, f"on record as {decision.outcome}, but {objection}"))
        return Excuses(frozenset(admitted), {at: why for at, why in refused.items() if at not in admitted})


@dataclass(frozen=True, slots=True)
class Judged:
    """A job, or a part of its life: what is expected of it in view of what excuses it."""

    job: Job
    expected: list[datetime]
    excuses: Excuses


Runs = dict[datetime, list[FinishedRun]]


def check_windows(observations: Observations) -> tuple[WindowCheck, WindowCheck]:
    """By instant and by time."""
    runs = _runs_by_job(observations)
    decisions: dict[str, list[Decision]] = defaultdict(list)
    for decision in observations.decisions:
        if decision.outcome in ("skipped", "coalesced"):
            decisions[decision.job].append(decision)
    judged: dict[str, list[Judged]] = defaultdict(list)
    for job in observations.jobs:
        due, mine = instants(job, observations.until), runs.get(job.name, {})
        excuses = Excuses.of(job, due, decisions[job.name], min(mine, default=None))
        expected = limit(job, due, {at for at in excuses.admitted if at not in mine})
        judged[job.name].append(Judged(job, expected, excuses))
    return _check_by_key(judged, runs), _check_by_time(judged, observations)


def _check_by_key(jobs: Mapping[str, Sequence[Judged]], runs: Mapping[str, Runs]) -> WindowCheck:
    """Each expected window has exactly one run for its instant, or an excuse that the job's policy allows."""
    check = WindowCheck()
    for name, parts in jobs.items():
        mine, expected = runs.get(name, {}), set[datetime]()
        for part in parts:
            expected.update(part.expected)
            check.count.expected += len(part.expected)
            for at in part.expected:
                _settle(check, name, at, mine.get(at, []), part.excuses)
        for at in sorted(mine.keys() - expected):
            for run in mine[at]:
                _extra(check, name, at, f"run {run.run_id} is for an instant at which nothing is due")
    for name in runs.keys() - jobs.keys():
        for at, some in runs[name].items():
            for run in some:
                _extra(check, name, at, f"run {run.run_id} is of a job that nobody added")
    return check


def _check_by_time(jobs: Mapping[str, Sequence[Judged]], observations: Observations) -> WindowCheck:
    """As many runs began, by the sink's clock, as windows had opened; whatever instants they say they are for. Only of jobs
    that run every window: of the others it cannot be told from outside which were left out."""
    check = WindowCheck()
    began = _first_begins(observations)
    deadline = observations.ended_at.timestamp()
    for name, parts in jobs.items():
        if not all(runs_all(part.job) and not part.excuses.admitted for part in parts):
            continue
        due = sorted(at for part in parts for at in part.expected)
        points = began.get(name, [])
        pairs, missed, extra = match_by_deadline(
            [(at.timestamp() - observations.clock_tolerance, deadline) for at in due], [at for at, _ in points]
        )
        check.count.expected += len(due)
        check.count.matched += len(pairs)
        check.count.missed += len(missed)
        check.count.extra += len(extra)
        for place in missed:
            words = f"too few runs began: none is left for the window of {stamp(due[place])}"
            check.findings.append(Finding(BY_TIME, name, words))
        for place in extra:
            at, run = points[place]
            words = f"run {run} began at {stamp(datetime.fromtimestamp(at, UTC))}, when every window that was open had its run"
            check.findings.append(Finding(BY_TIME, name, words))
    return check


def runs_all(job: Job) -> bool:
    """Whether no window may be left out, unless more than `max_missed` of them were missed."""
    return job.missed_window == "RUN_ALL" and job.overlap in ("allow", "queue")


def match_by_deadline(
    windows: Sequence[tuple[float, float]], points: Sequence[float]
) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Give each point a window, from its begin to its deadline, both included; no window twice. In the order of time, each
    point takes the open window whose deadline is nearest: that leaves the fewest without.

    Returns pairs of places (window, point), the windows left without a point, and the points left without a window.
    """
    order = sorted(range(len(windows)), key=lambda place: windows[place])
    ahead = 0
    open_: list[tuple[float, int]] = []
    pairs, missed, extra = list[tuple[int, int]](), list[int](), list[int]()
    for point in sorted(range(len(points)), key=lambda place: points[place]):
        at = points[point]
        while ahead < len(order) and windows[order[ahead]][0] <= at:
            heapq.heappush(open_, (windows[order[ahead]][1], order[ahead]))
            ahead += 1
        while open_ and open_[0][0] < at:
            missed.append(heapq.heappop(open_)[1])
        if open_:
            pairs.append((heapq.heappop(open_)[1], point))
        else:
            extra.append(point)
    missed += [place for _, place in open_] + order[ahead:]
    return pairs, sorted(missed), extra


def _runs_by_job(observations: Observations) -> dict[str, Runs]:
    runs: dict[str, Runs] = defaultdict(lambda: defaultdict(list))
    seen: set[str] = set()
    for run in observations.runs:
        # A run with two outcomes is not two runs: the accounting has it.
        if run.job is not None and not run.by_hand and run.run_id not in seen:
            seen.add(run.run_id)
            runs[run.job][run.scheduled_at].append(run)
    return runs


def _settle(check: WindowCheck, job: str, at: datetime, runs: Sequence[FinishedRun], excuses: Excuses) -> None:
    """What became of one expected window."""
    if not runs and at in excuses.admitted:
        check.count.excused += 1
    elif not runs:
        check.count.missed += 1
        why = f": {excuses.refused[at]}" if at in excuses.refused else ""
        check.findings.append(Finding(BY_KEY, _window(job, at), f"missed: there is no run for it{why}"))
    else:
        check.count.matched += 1
        for run in runs[1:]:
            _extra(check, job, at, f"run {run.run_id} is a second one, beside {runs[0].run_id}")
        if at in excuses.admitted or at in excuses.refused:
            _extra(check, job, at, f"run {runs[0].run_id} ran, although it is on record that this window was left out")


def _extra(check: WindowCheck, job: str, at: datetime, words: str) -> None:
    check.count.extra += 1
    check.findings.append(Finding(BY_KEY, _window(job, at), f"extra: {words}"))


def _window(job: str, at: datetime) -> str:
    return f"{job} {stamp(at)}"


def _objection(
    job: Job, due: Sequence[datetime], decision: Decision, covered: Sequence[datetime], first_run: datetime | None
) -> str | None:
    """Why this decision excuses nothing; None if it does."""
    if decision.count != len(covered):
        return f"as {decision.count} windows, where there are {len(covered)}"
    if decision.outcome == "coalesced":
        return (
            _not_missed(job, decision) if job.missed_window == "RUN_ONCE" else f"the job's missed_window is {job.missed_window}"
        )
    # Whether the run before it had really not ended cannot be told: what a worker says about that may reach the database
    # late. But there must have been one.
    if job.overlap == "skip" and len(covered) == 1 and first_run is not None and first_run < covered[0]:
        return None
    if job.missed_window == "SKIP":
        return _not_missed(job, decision)
    if job.missed_window == "RUN_ALL":
        made_up = bisect_right(due, _missed_until(job, decision) or due[-1]) - bisect_right(due, decision.until)
        if made_up >= job.max_missed:
            return None
        return f"only {max(0, made_up)} later ones were missed with it, and max_missed is {job.max_missed}"
    return f"the job's overlap is {job.overlap} and its missed_window {job.missed_window}"


def _missed_until(job: Job, decision: Decision) -> datetime | None:
    """What was due later than this was within the job's grace when the decision was taken; None if that is not known."""
    return None if decision.decided_at is None else decision.decided_at - timedelta(seconds=job.misfire_grace)


def _not_missed(job: Job, decision: Decision) -> str | None:
    latest = _missed_until(job, decision)
    if latest is not None and decision.until > latest:
        return f"it was not late by more than the grace of {job.misfire_grace:g} s"
    return None


def _first_begins(observations: Observations) -> dict[str, list[tuple[float, str]]]:
    """For each job, when each of its runs first began, and which run that was. One that ended otherwise than in success
    without ever beginning (cancelled while it waited, lost with its worker) counts by its end."""
    by_hand = {run.run_id for run in observations.runs if run.by_hand}
    first: dict[str, tuple[str, float]] = {}
    for event in observations.events:
        if event.kind == "begin" and event.job is not None and event.run not in by_hand:
            known = first.get(event.run)
            if known is None or event.at < known[1]:
                first[event.run] = (event.job, event.at)
    for run in observations.runs:
        if run.job is not None and not run.by_hand and run.outcome != "succeeded" and run.run_id not in first:
            first[run.run_id] = (run.job, run.finished_at.timestamp())
    found: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for run_id, (job, at) in first.items():
        found[job].append((at, run_id))
    return found
