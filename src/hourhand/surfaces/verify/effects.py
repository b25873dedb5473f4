"""Did every exactly-once run have its effect exactly once, and no stale claim any?"""

from __future__ import annotations

from collections import Counter, defaultdict

from hourhand.surfaces.verify.observations import EffectRow, Finding, Observations, Transfer


def check_exactly_once(observations: Observations) -> list[Finding]:
    """An exactly-once run that succeeded has one row in the product's table and one in the user's, under the same token; no
    other run has any."""
    findings = []
    deliveries = observations.deliveries()
    effects: dict[str, list[EffectRow]] = defaultdict(list)
    for effect in observations.effects:
        effects[effect.run_id].append(effect)
    transfers: dict[str, list[Transfer]] = defaultdict(list)
    for transfer in observations.transfers:
        transfers[transfer.run_id].append(transfer)
    due = {run.run_id for run in observations.runs if run.outcome == "succeeded" and deliveries.get(run.run_id) == "exactly_once"}
    for run_id in sorted(due):
        mine, moved = effects.get(run_id, []), transfers.get(run_id, [])
        if len(mine) != 1:
            findings.append(Finding("exactly_once", run_id, f"it succeeded, with {len(mine)} rows of effects"))
        if len(moved) != 1:
            findings.append(Finding("exactly_once", run_id, f"it succeeded, with {len(moved)} transfers"))
        if len(mine) == len(moved) == 1 and mine[0].token != moved[0].token:
            findings.append(Finding("exactly_once", run_id, "its effect and its transfer have different tokens"))
    for name, strangers in (("row of effects", effects.keys() - due), ("transfer", transfers.keys() - due)):
        words = f"it has a {name}, and is no exactly-once run that succeeded"
        findings += [Finding("exactly_once", run_id, words) for run_id in sorted(strangers)]
    tokens = Counter(effect.token for effect in observations.effects)
    findings += [
        Finding("exactly_once", token, f"{count} effects under one token") for token, count in tokens.items() if count > 1
    ]
    return findings


def check_balances(observations: Observations) -> list[Finding]:
    """Money is neither made nor lost, and every account is what its transfers say."""
    expected = Counter(observations.initial_balances)
    for one in observations.transfers:
        expected[one.source] -= one.amount
        expected[one.target] += one.amount
    findings = [
        Finding("balances", account, f"{observations.balances.get(account, 0):,}, where its transfers make {expected[account]:,}")
        for account in sorted(expected.keys() | observations.balances.keys())
        if observations.balances.get(account, 0) != expected[account]
    ]
    total = sum(observations.balances.values())
    if total != observations.initial_total:
        findings.append(Finding("balances", "total", f"{total:,}, where there were {observations.initial_total:,} to begin with"))
    return findings


def check_fences(observations: Observations) -> list[Finding]:
    """Of the effects that the sink took, none came from an earlier claim of its run than the one before."""
    findings = []
    highest: dict[str, int] = {}
    for event in sorted(observations.events, key=lambda event: event.n):
        if event.kind != "effect":
            continue
        known = highest.setdefault(event.run, event.fence)
        if event.fence < known:
            words = f"an effect under fence {event.fence} came after one under {known}, on record as {event.n}"
            findings.append(Finding("fences", event.run, words))
        highest[event.run] = max(known, event.fence)
    return findings
