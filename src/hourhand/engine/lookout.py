"""What each kind of rule sees when it looks.

Everything here looks at what is small or indexed: heads of queues, counted minutes, live nodes. Only `job_silent` may be about
very many; it goes through them in turns, a bounded part at each look.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog

from hourhand.core import ids
from hourhand.core.alert_rules import QUANTILES, Rule, expression
from hourhand.core.clock import Clock
from hourhand.core.histogram import quantile
from hourhand.core.notice import in_words
from hourhand.engine.paced import Paced
from hourhand.storage.alerts import AlertGateway, Beginning

log = structlog.get_logger("hourhand.alerts")
LETTERS = 20_000
"""Dead letters that are looked at, the latest first, unless the threshold is higher."""
STUCK = 1_000
STUCK_EVERY = 30.0
"""Nothing is called stuck before it has gone on for a minute."""
MOST_BLIND = 60.0
"""Seconds for which a walk that takes long is put off at most: an alert that comes later than that is of little use."""
NAMES = 5_000
"""Names of jobs that are gone through at once."""
JUDGED = 1_000
BUDGET = 0.3
"""Seconds that one rule may spend on jobs at one look."""
MANY = 20_000
MARKS = 10_000
_THRESHOLDS = ("overdue", "clock_skew")
"""Kinds of rules of which the lowest threshold says where to look; of the others it is the longest window."""


@dataclass(frozen=True, slots=True)
class Finding:
    subject: str
    message: str
    value: float


@dataclass(slots=True)
class Turn:
    """How far a rule that is about very many jobs has come."""

    after: str = ""
    silent: dict[str, Finding] = field(default_factory=dict)
    seen: dict[str, Finding] = field(default_factory=dict)
    """Of these, what this turn has found."""
    matched: int = 0
    complete: bool = False
    """Whether there has been a whole one."""
    warned: bool = False
    unknown: set[str] = field(default_factory=set)
    """Jobs that are named and that there are not."""


class Lookout:
    def __init__(self, gateway: AlertGateway) -> None:
        self._gateway = gateway
        self._turns: dict[str, Turn] = {}
        self._places: deque[int] = deque(maxlen=MARKS)
        self._times: deque[datetime] = deque(maxlen=MARKS)
        self._kinds: frozenset[str] = frozenset()
        self._waiting: Paced[Sequence[Any]] = Paced(gateway.waiting_runs, most=MOST_BLIND)
        self._nothing_waited: datetime | None = None
        self._stuck: Paced[Sequence[Any]] = Paced(lambda: gateway.stuck_runs(STUCK), STUCK_EVERY, MOST_BLIND)

    async def begin(self, rules: Iterable[Rule]) -> Beginning:
        """One question instead of one for each rule: most of the time there is nothing to find."""
        bounds: dict[str, float] = {}
        for rule in rules:
            if rule.kind in _THRESHOLDS:
                bounds[rule.kind] = min(bounds.get(rule.kind, rule.threshold), rule.threshold)
            else:
                bounds[rule.kind] = max(bounds.get(rule.kind, 0.0), rule.window)
        beginning = await self._gateway.begin_look(bounds)
        self._kinds = beginning.kinds
        self._mark(beginning.place, beginning.at)
        return beginning

    async def find(self, rule: Rule, standing: Iterable[str]) -> tuple[list[Finding], bool] | None:
        """What is wrong by this rule, and whether that is all. `standing` is what was wrong before: that is looked at anew. None:
        it was not looked, and all is as it was."""
        if rule.kind not in self._kinds:
            return [], True
        if rule.kind == "job_silent":
            return await self._job_silent(rule, standing)
        found: list[Finding] | None = await getattr(self, f"_{rule.kind}")(rule)
        return None if found is None else (found, True)

    async def endings(self, rule: Rule, subjects: Iterable[str]) -> dict[str, str]:
        """What is said of what is not so any more."""
        names = list(subjects)
        if rule.kind == "job_silent":
            return await self._spoken(rule, names)
        most, span = f"{rule.threshold:g}", in_words(rule.window)
        words = {
            "dead_growth": f"queue {{}}: fewer than {most} dead letters in {span}",
            "queue_age": f"queue {{}}: nothing waits for longer than {in_words(rule.threshold)}, or it was paused",
            "lateness": f"queue {{}}: {_quantile(rule)} is not above {in_words(rule.threshold)} any more",
            "overdue": "what is due is being fired",
            "catch_up": f"fewer than {most} firings were made up for within {span}",
            "node_lost": f"{{}}: as many of its kind are alive as before, or it is {span} ago",
            "clock_skew": "{}: its clock is right again, or it is gone",
            "stuck_runs": f"task {{}}: fewer than {most} of its runs are stuck",
            "lost_runs": f"queue {{}}: fewer than {most} runs were lost within {span}",
        }[rule.kind]  # fmt: skip
        return {one: words.format(one) for one in names}

    # Queues

    async def _dead_growth(self, rule: Rule) -> list[Finding]:
        enough = max(LETTERS, int(rule.threshold))
        rows = await self._gateway.growing_dead(rule.window, enough)
        least = "at least " if sum(row["letters"] for row in rows) >= enough else ""
        return [
            Finding(
                row["queue"],
                f"queue {row['queue']}: {least}{row['letters']} dead letters in {in_words(rule.window)}, most of task {row['task']}",
                row["letters"],
            )
            for row in rows
            if row["letters"] >= rule.threshold and rule.queues.fit(row["queue"])
        ]

    def _mark(self, place: int, now: datetime) -> None:
        """Remember the newest place in the queues. What has a later one came later, whatever its dates say: a letter that died
        last week and is replayed now has not waited for a week."""
        if not self._places or place > self._places[-1]:
            self._places.append(place)
            self._times.append(now)
        else:
            # Nothing new since: what comes next comes after this moment.
            self._times[-1] = now

    async def _queue_age(self, rule: Rule) -> list[Finding] | None:
        now = self._times[-1]
        if self._nothing_waited is not None and (now - self._nothing_waited).total_seconds() < rule.threshold:
            return []  # whatever waits now came after that
        rows = await self._waiting.ask(now)
        if rows is None:
            return None
        self._nothing_waited = None if rows else now
        worst: dict[str, Finding] = {}
        for row in rows:
            queue, since = row["queue"], row["since"]
            if row["seq"] is not None:
                before = bisect_left(self._places, row["seq"]) - 1
                since = max(since, self._times[before]) if before >= 0 else since
            age = (now - since).total_seconds()
            if age < rule.threshold or (row["paused"] and not rule.paused) or not rule.queues.fit(queue):
                continue
            if queue not in worst or worst[queue].value < age:
                worst[queue] = Finding(queue, f"queue {queue}: a run of task {row['task']} {_waits(row['state'], age)}", age)
        return list(worst.values())

    async def _lateness(self, rule: Rule) -> list[Finding]:
        found = []
        for row in await self._gateway.late_starts(rule.window):
            starts, latest = sum(row["lateness"]), row["latest"]
            late = latest if rule.quantile == "max" else quantile(row["lateness"], QUANTILES[rule.quantile], latest)
            if starts < rule.starts or late is None or late <= rule.threshold or not rule.queues.fit(row["queue"]):
                continue
            message = (
                f"queue {row['queue']}: {_quantile(rule)} is {in_words(late)} over {in_words(rule.window)} "
                f"({starts} starts, the worst {in_words(latest)} late)"
            )
            found.append(Finding(row["queue"], message, late))
        return found

    async def _lost_runs(self, rule: Rule) -> list[Finding]:
        return [
            Finding(
                row["queue"],
                f"queue {row['queue']}: {row['runs']} at-most-once runs lost in {in_words(rule.window)}: their worker died after they "
                "had begun, and they are not tried again",
                row["runs"],
            )
            for row in await self._gateway.lost_by_queue(rule.window)
            if row["runs"] >= rule.threshold and rule.queues.fit(row["queue"])
        ]

    async def _stuck_runs(self, rule: Rule) -> list[Finding] | None:
        found = await self._stuck.ask(self._times[-1])
        if found is None:
            return None
        rows = [row for row in found if rule.tasks.fit(row["task"])]
        counts = Counter(row["task"] for row in rows)
        longest = {row["task"]: row for row in reversed(rows)}
        return [
            Finding(
                task,
                f"task {task}: {count} runs go on far beyond their timeout or their usual time, {ids.run_id(longest[task]['run_id'])} "
                f"for {in_words(longest[task]['seconds'])}",
                count,
            )
            for task, count in counts.items()
            if count >= rule.threshold
        ]

    # Schedules

    async def _overdue(self, rule: Rule) -> list[Finding]:
        row = await self._gateway.overdue_schedules(rule.threshold)
        if not row["schedules"]:
            return []
        count = "1000 or more" if row["schedules"] >= 1_000 else str(row["schedules"])
        why = "" if row["alive"] else "; no scheduler is alive"
        return [
            Finding("", f"{count} schedules are due and not fired, the first for {in_words(row['seconds'])}{why}", row["seconds"])
        ]

    async def _catch_up(self, rule: Rule) -> list[Finding]:
        runs, left_out = await self._gateway.caught_up(rule.window, int(rule.threshold))
        if runs + left_out < rule.threshold:
            return []
        message = (
            f"at least {runs + left_out} firings came late in {in_words(rule.window)}: {runs} runs were made for them, {left_out} "
            "were left out by the jobs' missed-window policies"
        )
        return [Finding("", message, runs + left_out)]

    # Nodes

    async def _node_lost(self, rule: Rule) -> list[Finding]:
        return [
            Finding(
                f"{row['kind']} {row['name']} #{row['id']}",
                f"{row['kind']} {row['name']} (node {row['id']}) is dead since {row['died_at']:%Y-%m-%d %H:%M:%S} UTC; "
                f"of {row['before']} {row['kind']}s, {row['alive']} are alive",
                row["before"] - row["alive"],
            )
            for row in await self._gateway.lost_nodes(rule.window)
            if rule.nodes.fit(row["kind"])
        ]

    async def _clock_skew(self, rule: Rule) -> list[Finding]:
        return [
            Finding(
                f"{row['kind']} {row['name']}",
                f"{row['kind']} {row['name']}: its clock is {in_words(abs(row['skew']))} {'ahead of' if row['skew'] > 0 else 'behind'} "
                "the database's",
                row["skew"],
            )
            for row in await self._gateway.skewed_nodes(rule.threshold)
        ]

    # Jobs

    async def _job_silent(self, rule: Rule, standing: Iterable[str]) -> tuple[list[Finding], bool]:
        turn = self._turns.setdefault(rule.name, Turn())
        again = {*rule.jobs.exact, *standing}
        await self._judge(rule, turn, sorted(one for one in again if rule.jobs.fit(one)))
        await self._miss(rule, turn)
        if not rule.jobs.wild:
            return list(turn.silent.values()), True
        began = Clock.monotonic()
        while not await self._go_on(rule, turn):
            if Clock.monotonic() - began > BUDGET:
                break
        return list(turn.silent.values()), turn.complete

    async def _miss(self, rule: Rule, turn: Turn) -> None:
        """A name that is misspelt would never be missed by anybody."""
        names = [one for one in rule.jobs.exact if rule.jobs.fit(one)]
        unknown = set(await self._gateway.unknown_jobs(names)) if names else set()
        for name in sorted(unknown - turn.unknown):
            log.warning("alert.job_unknown", rule=rule.name, job=name, meaning="there is no such job: the rule does not watch it")
        turn.unknown = unknown

    async def _go_on(self, rule: Rule, turn: Turn) -> bool:
        """A part of all names; True: this was the last one."""
        unfit = expression(rule.jobs.unwanted) if rule.jobs.unwanted else None
        last, looked, names = await self._gateway.names_of_jobs(turn.after, NAMES, expression(rule.jobs.wild), unfit)
        turn.matched += len(names)
        for begin in range(0, len(names), JUDGED):
            await self._judge(rule, turn, names[begin : begin + JUDGED])
        if last is not None and looked == NAMES:
            turn.after = last
            return False
        if turn.matched > MANY and not turn.warned:
            turn.warned = True
            log.warning("alert.many_jobs", rule=rule.name, jobs=turn.matched,
                        meaning="so many are gone through in turns: a silent one is found later than it could be")  # fmt: skip
        # What this turn has not met is gone.
        kept = set(rule.jobs.exact)
        turn.silent = {**{name: one for name, one in turn.silent.items() if name in kept}, **turn.seen}
        turn.after, turn.seen, turn.matched, turn.complete = "", {}, 0, True
        return True

    async def _judge(self, rule: Rule, turn: Turn, names: list[str]) -> None:
        rows = await self._gateway.silent_jobs(names, rule.threshold) if names else []
        for name in names:
            turn.silent.pop(name, None)
            turn.seen.pop(name, None)
        for row in rows:
            last: datetime | None = row["succeeded_at"]
            before = (
                f"at {last:%Y-%m-%d %H:%M:%S} UTC" if last else f"more than {in_words(2 * rule.threshold + 86_400)} ago, or never"
            )
            message = f"job {row['name']} has not succeeded within {in_words(rule.threshold)}; the last time was {before}"
            turn.silent[row["name"]] = turn.seen[row["name"]] = Finding(row["name"], message, rule.threshold)

    async def _spoken(self, rule: Rule, names: list[str]) -> dict[str, str]:
        found = {one: f"job {one} is gone, or nothing is ahead of it" for one in names}
        for row in await self._gateway.jobs_that_spoke(names, rule.threshold):
            name = row["name"]
            if row["paused"]:
                found[name] = f"job {name} is paused"
            elif row["succeeded_at"] is not None:
                found[name] = f"job {name} has succeeded at {row['succeeded_at']:%Y-%m-%d %H:%M:%S} UTC"
        return found


def _waits(state: str, age: float) -> str:
    if state == "parked":
        return f"has been set apart for {in_words(age)}: no worker that serves the queue can run it"
    return f"has been {'ready' if state == 'ready' else 'due, and not promoted,'} for {in_words(age)}"


def _quantile(rule: Rule) -> str:
    return "the worst lateness" if rule.quantile == "max" else f"the {rule.quantile} lateness"
