"""Did every run end, once, within its limits, and as its delivery promises?"""

from __future__ import annotations

from collections import Counter, defaultdict

from hourhand.surfaces.verify.observations import OUTCOMES, Finding, Observations, stamp


def check_outcomes(observations: Observations) -> list[Finding]:
    """What was accepted ended, once; nothing is left over; nothing ran that nobody asked for."""
    ended = Counter(run.run_id for run in observations.runs)
    seen = dict.fromkeys(event.run for event in observations.events)
    wrong = [
        (run_id, "lost: it was accepted, and nothing says how it ended") for run_id in observations.accepted if not ended[run_id]
    ]
    wrong += [(run_id, "the sink saw it run, and nothing says how it ended") for run_id in seen if not ended[run_id]]
    wrong += [(run_id, f"it ended {count} times") for run_id, count in ended.items() if count > 1]
    wrong += [(run.run_id, f"{run.outcome!r} is no way to end") for run in observations.runs if run.outcome not in OUTCOMES]
    wrong += [
        (run.run_id, f"nobody enqueued this run of {run.task}")
        for run in observations.runs
        if run.job is None and run.run_id not in observations.accepted and run.key not in observations.unknown
    ]
    wrong += [(table, f"{count:,} left over") for table, count in observations.leftovers.items() if count]
    return [Finding("outcomes", subject, words) for subject, words in wrong]


def check_unknown_enqueues(observations: Observations) -> list[Finding]:
    """An enqueue whose answer was lost has made one run or none."""
    runs: dict[str, set[str]] = defaultdict(set)
    for run in observations.runs:
        if run.key in observations.unknown:
            runs[run.key].add(run.run_id)
    return [
        Finding("unknown_enqueues", key, f"one enqueue made {len(several)} runs: {', '.join(sorted(several))}")
        for key, several in runs.items()
        if len(several) > 1
    ]


def check_terminal_states(observations: Observations) -> list[Finding]:
    """A run that was seen to have ended has ended like that for good."""
    final: dict[str, str | None] = {run.run_id: run.outcome for run in observations.runs}
    findings = []
    known: dict[str, str] = {}
    for at, run_id, outcome in sorted(observations.terminal_sightings):
        before = known.setdefault(run_id, outcome)
        if before != outcome:
            findings.append(Finding("terminal_states", run_id, f"it was {before}, and {outcome} at {stamp(at)}"))
            known[run_id] = outcome
    for run_id, outcome in known.items():
        if final.get(run_id) != outcome:
            words = f"it was {outcome} while the workload ran, and is {final.get(run_id) or 'gone'} now"
            findings.append(Finding("terminal_states", run_id, words))
    return findings


def check_dead_letters(observations: Observations) -> list[Finding]:
    """Each dead run is among the dead letters, once, and no other run is."""
    dead = {run.run_id for run in observations.runs if run.outcome == "dead"}
    rows = observations.dead_rows
    wrong = [
        (run_id, f"it is dead, and {rows[run_id]} times among the dead letters") for run_id in sorted(dead) if rows[run_id] != 1
    ]
    wrong += [(run_id, "it is among the dead letters, and did not end as dead") for run_id in sorted(rows.keys() - dead)]
    return [Finding("dead_letters", run_id, words) for run_id, words in wrong]


def check_attempts(observations: Observations) -> list[Finding]:
    """No run was tried more often than it may be, by its record and by the sink's."""
    most = {run.run_id: run.max_attempts for run in observations.runs}
    wrong = [
        (run.run_id, f"{run.attempt} attempts on record, of {run.max_attempts}")
        for run in observations.runs
        if run.attempt > run.max_attempts
    ]
    wrong += [
        (event.run, f"attempt {event.attempt} began, of {most[event.run]}")
        for event in observations.events
        if event.kind == "begin" and event.attempt > most.get(event.run, event.attempt)
    ]
    return [Finding("attempts", run_id, words) for run_id, words in wrong]


def check_at_most_once(observations: Observations) -> list[Finding]:
    """No at-most-once run began twice."""
    mine = {run_id for run_id, delivery in observations.deliveries().items() if delivery == "at_most_once"}
    begun = Counter(event.run for event in observations.events if event.kind == "begin" and event.run in mine)
    return [Finding("at_most_once", run_id, f"it began {count} times") for run_id, count in begun.items() if count > 1]


def check_at_least_once(observations: Observations) -> list[Finding]:
    """A run that succeeded went through to its end, as the sink saw it; only an at-most-once run is ever given up as lost."""
    deliveries = observations.deliveries()
    seen = {event.run for event in observations.events if event.kind == "end"}
    findings = []
    for run in observations.runs:
        delivery = deliveries.get(run.run_id)
        if run.outcome == "succeeded" and run.run_id not in seen and delivery in ("at_least_once", "at_most_once"):
            findings.append(Finding("at_least_once", run.run_id, "it succeeded, and the sink never saw its end"))
        if run.outcome == "lost" and delivery in ("at_least_once", "exactly_once"):
            findings.append(Finding("at_least_once", run.run_id, f"it was given up as lost, and is delivered {delivery}"))
    return findings


def check_epochs(observations: Observations) -> list[Finding]:
    """Once a shard has been fired under a later epoch, never again under an earlier one; an epoch is one node's."""
    findings = []
    latest: dict[int, int] = {}
    owners: dict[tuple[int, int], int] = {}
    for one in sorted(observations.firings, key=lambda one: (one.fired_at, one.epoch)):
        subject = f"shard {one.shard}"
        if one.epoch < latest.get(one.shard, one.epoch):
            words = f"node {one.node} fired schedule {one.schedule_id} at {stamp(one.fired_at)} under epoch {one.epoch}, after {latest[one.shard]}"
            findings.append(Finding("epochs", subject, words))
        latest[one.shard] = max(one.epoch, latest.get(one.shard, one.epoch))
        owner = owners.setdefault((one.shard, one.epoch), one.node)
        if owner != one.node:
            findings.append(Finding("epochs", subject, f"nodes {owner} and {one.node} both fired under epoch {one.epoch}"))
    return findings
