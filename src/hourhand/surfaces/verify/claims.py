"""Did every run belong to one worker at a time, and was it taken from a worker only when that was gone?"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from itertools import pairwise

from hourhand.surfaces.verify.observations import Finding, Observations, stamp
from hourhand.surfaces.verify.sink import Event

_SLACK = 0.7
"""Seconds by which the clocks of a worker, as the database corrects it, and of the sink may disagree."""


def check_zombies(observations: Observations) -> list[Finding]:
    """Whoever had a run last has ended it. An earlier holder that ends it all the same is a zombie whose write was not refused:
    the record names it, or says that the run has succeeded while its last holder is still at it."""
    findings = []
    begins = _begins(observations)
    latest = {(event.run, event.fence): event.at for event in observations.events if event.kind in ("effect", "end")}
    for run in observations.runs:
        mine = begins.get(run.run_id, [])
        last = max(mine, key=lambda event: event.fence, default=None)
        if last is None or run.worker_id is None:
            continue
        if run.worker_id != last.worker and any(event.worker == run.worker_id for event in mine):
            words = f"it was ended by node {run.worker_id}, after node {last.worker} had begun it under fence {last.fence}"
            findings.append(Finding("zombies", run.run_id, words))
        late = latest.get((run.run_id, last.fence), 0.0) - run.finished_at.timestamp()
        if run.outcome == "succeeded" and late > observations.clock_tolerance + _SLACK:
            words = f"it was on record as succeeded {late:.1f} s before node {last.worker}, its last holder, was done with it"
            findings.append(Finding("zombies", run.run_id, words))
    return findings


def check_needless(observations: Observations) -> list[Finding]:
    """An attempt begins again only when the worker that had begun it is gone: dead by the record, or stopped."""
    findings = []
    for run_id, events in _begins(observations).items():
        tries: dict[int, list[Event]] = defaultdict(list)
        for event in events:
            tries[event.attempt].append(event)
        for attempt, several in tries.items():
            # In the order in which they were claimed: a zombie may begin late what others have had since.
            for before, after in pairwise(sorted(several, key=lambda event: event.fence)):
                ended = observations.node_ends.get(before.worker)
                if ended is None or ended > after.at + observations.clock_tolerance + 1:
                    gone = "is alive" if ended is None else "was alive until " + stamp(datetime.fromtimestamp(ended, UTC))
                    words = (
                        f"attempt {attempt} began again on node {after.worker}, though node {before.worker}, which had it, {gone}"
                    )
                    findings.append(Finding("needless", run_id, words))
    return findings


def _begins(observations: Observations) -> dict[str, list[Event]]:
    """In the order of the sink, of events that say who had the run."""
    found: dict[str, list[Event]] = defaultdict(list)
    for event in observations.events:
        if event.kind == "begin" and event.worker:
            found[event.run].append(event)
    return found


def check_innocents(observations: Observations) -> list[Finding]:
    """A run that does nothing wrong is charged nothing, whatever its neighbours do to their process; and a process ends only
    when somebody ends it."""
    findings = [
        Finding("innocents", run.run_id, f"{run.task} never fails, and was charged {run.attempt} attempts")
        for run in observations.runs
        if run.task in observations.steady and run.attempt > 1
    ]
    return findings + [Finding("innocents", name, "it ended by itself") for name in observations.ended_by_themselves]
