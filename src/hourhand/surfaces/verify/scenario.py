"""The workload of a check, out of a seed: the same seed, the same jobs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any

from hourhand.surfaces.verify.oracle import Every, Job, Once, Rule, Seconds

NAMES = tuple(f"account-{n}" for n in range(20))
VAULTS = tuple(f"vault-{n}" for n in range(200))
"""Pairs of accounts for transfers that take long: they hold them, and nobody else is to wait for that."""
OPENING = 1_000
_ZONES = ("UTC", "Asia/Kolkata", "America/St_Johns", "Europe/Berlin", "Australia/Lord_Howe")
_PERIODS = (1, 2, 3, 5, 7, 10, 15, 20, 30)
_MOST_MISSED = 10_000


@dataclass(frozen=True, slots=True)
class Planned:
    """A job for the oracle, and what it is added with."""

    job: Job
    options: dict[str, Any]
    per_second: float


def plan_jobs(seed: int, since: datetime, until: datetime, rate: float) -> list[Planned]:
    """Jobs that fire about `rate` times a second between two instants (whole seconds)."""
    rng = Random(f"jobs {seed}")
    planned: list[Planned] = []
    sum_of_rates = 0.0
    while sum_of_rates < rate:
        one = _plan(rng, len(planned), since, until)
        if not one.job.rule.due(since, until):
            continue  # in a short check; a job that could never fire is refused
        planned.append(one)
        sum_of_rates += one.per_second
    return planned


def _plan(rng: Random, number: int, since: datetime, until: datetime) -> Planned:
    task, payload, delivery = _task(rng)
    overlap, work = "allow", payload.get("work", 0.0)
    rule, per_second = _rule(rng, since, until)
    missed, max_missed, grace = "RUN_ALL", _MOST_MISSED, 60.0
    if not isinstance(rule, Once) and rng.random() < 0.3:
        missed, max_missed, grace = rng.choice(("RUN_ONCE", "SKIP")), 100, 3.0
    if task == "tick" and isinstance(rule, Every) and 2 <= rule.seconds <= 5 and rng.random() < 0.5:
        # Half of them go on for longer than their period.
        overlap = rng.choice(("skip", "queue", "replace"))
        work = rule.seconds * (0.2 if overlap == "queue" else rng.choice((0.3, 1.3)))
        payload = {**payload, "work": round(work, 2)}
    max_runs = rng.randint(2, 12) if rng.random() < 0.05 and not isinstance(rule, Once) else None
    name = f"{task}-{number}"
    options: dict[str, Any] = {
        "name": name, "task": task, "schedule": rule.text(), "payload": payload, "overlap": overlap, "missed_window": missed,
        "max_missed": max_missed, "misfire_grace": grace, "max_runs": max_runs, "end_at": until,
    }  # fmt: skip
    if isinstance(rule, Every):
        options["anchor"] = rule.anchor
    if isinstance(rule, Seconds):
        options["timezone"] = rule.timezone
    if isinstance(rule, Once):
        del options["end_at"]
    else:
        options["start_at"] = since
    job = Job(
        name,
        task,
        rule,
        since,
        None,
        missed,
        max_missed,
        grace,
        overlap,
        delivery,
        options.get("start_at"),
        options.get("end_at"),
        max_runs,
    )
    return Planned(job, options, per_second)


def _task(rng: Random) -> tuple[str, dict[str, Any], str]:
    """A task, its payload, and its delivery."""
    dice = rng.random()
    if dice < 0.55:
        return "tick", {"work": rng.choice((0.0, 0.0, 0.0, 0.05, 0.5))}, "at_least_once"
    if dice < 0.65:
        return "flaky", {}, "at_least_once"
    if dice < 0.70:
        return "thread", {"work": rng.choice((0.0, 0.3))}, "at_least_once"
    if dice < 0.80:
        return "careful", {"work": rng.choice((0.0, 0.2))}, "at_most_once"
    if dice < 0.98:
        return "transfer", plan_transfer(rng), "exactly_once"
    return "doomed", {}, "at_least_once"


def plan_transfer(rng: Random) -> dict[str, Any]:
    source, target = rng.sample(NAMES, 2)
    return {"source": source, "target": target, "amount": rng.randint(1, 9), "work": rng.choice((0.0, 0.0, 0.0, 0.3))}


def _rule(rng: Random, since: datetime, until: datetime) -> tuple[Rule, float]:
    dice = rng.random()
    if dice < 0.45:
        period = rng.choice(_PERIODS)
        return Every(period, since - timedelta(seconds=rng.randint(0, 500))), 1 / period
    if dice < 0.85:
        chosen = frozenset(rng.sample(range(60), rng.randint(2, 30)))
        return Seconds(chosen, rng.choice(_ZONES)), len(chosen) / 60
    span = (until - since).total_seconds()
    return Once(since + timedelta(seconds=rng.randint(1, max(1, int(span) - 1)))), 1 / span
