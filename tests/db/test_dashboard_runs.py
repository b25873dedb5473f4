"""Lists of runs and dead letters over millions of others: whole, in order, each run once, and never more looked at than is said."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.client import AsyncClient
from hourhand.core import ids
from hourhand.core.actor import ACTOR, Actor
from hourhand.core.errors import InvalidOption, UnknownJob
from hourhand.core.fairness import lane_of
from hourhand.surfaces import dead_letters, letter_insight, run_search
from hourhand.surfaces.letter_insight import LetterInsight
from hourhand.surfaces.views import STATES, RunView
from tests.db.conftest import Served
from tests.db.test_claim import scans
from tests.db.test_worker import working
from tests.support.api import ADMIN, Client
from tests.support.fleet import until

pytestmark = pytest.mark.once

QUEUES = ("default", "mail", "books")
JOBS = ("daily", "hourly")
LIVE = ("ready", "delayed", "parked", "running")


@dataclass(frozen=True)
class Made:
    """A run as it was put into a table."""

    number: int
    state: str
    task: str
    queue: str
    tags: tuple[str, ...]
    key: str | None
    job: str | None
    node: int | None
    at: datetime


@dataclass
class World:
    app: Hourhand
    sql: asyncpg.Connection
    schema: str
    runs: list[Made]
    now: datetime

    def naive(self, **wanted: Any) -> list[str]:
        """What the list has to be, by looking at every run there is."""
        return [ids.run_id(one.number) for one in sorted(self.runs, key=lambda one: -one.number) if _fits(one, wanted)]


def _fits(one: Made, wanted: dict[str, Any]) -> bool:
    states = wanted.get("state")
    since = wanted.get("since")
    return (
        (states is None or one.state in ([states] if isinstance(states, str) else states))
        and all(wanted.get(name) in (None, getattr(one, name)) for name in ("task", "queue", "key", "job", "node"))
        and (wanted.get("tag") is None or wanted["tag"] in one.tags)
        and (since is None or one.at >= since)
    )


@pytest.fixture
async def world(app: Hourhand, sql: asyncpg.Connection, schema: str) -> World:
    """Some hundred runs in every table, in no order, over several days."""
    rng = Random(7)
    now = datetime.now(UTC)
    numbers = {name: await sql.fetchval(f"SELECT {schema}.queue_number($1)", name) for name in QUEUES}
    jobs = {}
    for name in JOBS:
        view = await app.jobs.add(name, task="a", schedule="0 0 1 1 *")
        jobs[name] = ids.parse_job_id(view.job_id)
    for back in range(2, 5):
        await sql.execute(f"SELECT {schema}.add_partition('runs', $1)", (now - timedelta(days=back)).date())
    nodes = [
        await sql.fetchval(
            f"INSERT INTO {schema}.nodes (kind, name, lease_until, session) VALUES ('worker', 'w', now() + '1 h', false) RETURNING id"
        )
        for _ in range(2)
    ]
    made = []
    await sql.execute("SET session_replication_role = replica")
    for number in rng.sample(range(1, 2_000), 420):
        state = rng.choices(STATES, (9, 6, 4, 5, 30, 8, 4, 2, 4, 4))[0]
        one = Made(
            number, state, rng.choices("abc", (5, 3, 1))[0], rng.choice(QUEUES), tuple(rng.sample(("red", "blue"), rng.randint(0, 2))),
            rng.choices((None, f"k{number % 9}"), (3, 1))[0], rng.choices((None, *JOBS), (4, 2, 1))[0],
            rng.choice(nodes) if state not in ("ready", "delayed", "parked") else None, now - timedelta(hours=rng.uniform(0, 110)),
        )  # fmt: skip
        made.append(one)
        await _put(sql, schema, one, numbers[one.queue], None if one.job is None else jobs[one.job], rng)
    await sql.execute(f"RESET session_replication_role; SELECT setval('{schema}.run_numbers', 100000)")
    return World(app, sql, schema, made, now)


async def _put(sql: asyncpg.Connection, schema: str, one: Made, queue: int, job: int | None, rng: Random) -> None:
    lane = lane_of(queue, rng.choice(("high", "normal", "low")))
    row: dict[str, Any] = {
        "run_id": one.number, "job_id": job, "scheduled_at": one.at, "lane": lane, "attempt": 1, "task": one.task, "payload": "{}",
        "key": one.key, "tags": list(one.tags) or None,
        "errors": json.dumps([{"type": "ValueError", "message": "no"}]) if one.state == "dead" else None,
    }  # fmt: skip
    table = one.state
    if one.state in ("ready", "parked", "running"):
        # Some have come back to the queue: their place is behind those that came after them.
        row["seq"] = one.number + (5_000 if rng.random() < 0.4 else 0)
    if one.state == "delayed":
        row["due_at"] = one.at + timedelta(days=9)
    elif one.state == "running":
        row |= {"worker_id": one.node, "token": one.number, "claimed_at": one.at, "attempt": 0, "crashes": 0}
    elif one.state == "dead" and rng.random() < 0.7:
        row |= {"worker_id": one.node, "died_at": one.at}
    elif one.state not in LIVE:
        table = "runs"
        row |= {"worker_id": one.node, "finished_at": one.at, "outcome": one.state}
    marks = ", ".join(f"${place}" for place in range(1, len(row) + 1))
    await sql.execute(f"INSERT INTO {schema}.{table} ({', '.join(row)}) VALUES ({marks})", *row.values())


def questions(world: World) -> Iterable[dict[str, Any]]:
    node = next(one.node for one in world.runs if one.node is not None)
    since = world.now - timedelta(hours=30)
    yield {}
    for state in STATES:
        yield {"state": state}
    yield from (
        {"state": ["dead", "lost"]}, {"state": ["dead", "ready", "expired"]}, {"state": ["ready", "succeeded"]}, {"state": ["succeeded", "dead", "delayed"]}, {"task": "c"}, {"queue": "mail"},
        {"tag": "red"}, {"key": "k3"}, {"job": "daily"}, {"job": "hourly"}, {"node": node}, {"since": since}, {"task": "nonesuch"},
        {"job": "daily", "state": "dead"}, {"job": "hourly", "since": since}, {"task": "a", "tag": "blue", "state": ["succeeded", "ready"]},
        {"node": node, "state": "running"}, {"state": ["cancelled", "expired"], "queue": "books"}, {"since": since, "state": "succeeded"},
        {"node": node, "state": "ready"}, {"key": "k3", "task": "a"}, {"state": "dead", "tag": "red", "since": since},
    )  # fmt: skip


async def paged(world: World, limit: int, effort: int, **wanted: Any) -> list[str]:
    """All pages, one after the other."""
    found: list[str] = []
    below = None
    while True:
        page = await world.app.runs.look(below=below, limit=limit, effort=effort, **wanted)
        assert len(page.runs) <= limit
        found += [one.run_id for one in page.runs]
        if page.below is None:
            return found
        assert below is None or ids.parse_run_id(page.below) < ids.parse_run_id(below), "no step down"
        below = page.below


@pytest.mark.parametrize("few", [2, 10_000])
async def test_every_list_of_runs_is_whole_and_in_order(world: World, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the pages are, and however little is looked at for each; a job with many runs as one with few."""
    monkeypatch.setattr(run_search, "_FEW", few)
    for wanted in questions(world):
        expected = world.naive(**wanted)
        assert [one.run_id for one in await world.app.runs.list(limit=1_000, **wanted)] == expected, wanted
        assert [one.run_id for one in await world.app.runs.list(limit=5, **wanted)] == expected[:5], wanted
        for limit, effort in ((7, 60), (50, 25)):
            assert await paged(world, limit, effort, **wanted) == expected, (wanted, limit, effort)


async def test_states_and_reasons_are_those_of_the_tables(world: World) -> None:
    states = {ids.run_id(one.number): one.state for one in world.runs}
    found = await world.app.runs.list(limit=1_000)
    assert {one.run_id: one.state for one in found} == states
    looked = await world.app.runs.look(state="dead", limit=1_000)
    assert set(looked.errors.values()) == {"ValueError"}
    assert len(looked.errors) == len(looked.runs)


async def test_a_run_that_moves_between_two_pages_is_on_one_of_them(world: World) -> None:
    """Those below go to the history, or come back to their queue, while somebody reads."""
    found: list[str] = []
    below = None
    while True:
        page = await world.app.runs.look(below=below, limit=25, effort=60, since=world.now - timedelta(days=30))
        found += [one.run_id for one in page.runs]
        if page.below is None:
            break
        below = page.below
        await world.sql.execute(
            f"WITH gone AS (DELETE FROM {world.schema}.running RETURNING *) INSERT INTO {world.schema}.runs (run_id, job_id, scheduled_at, "
            "finished_at, lane, outcome, attempt, task) SELECT run_id, job_id, scheduled_at, now(), lane, 'succeeded', 1, task FROM gone"
        )
        await world.sql.execute(f"UPDATE {world.schema}.ready SET seq = seq + 10000 WHERE seq % 3 = 0")
    assert found == world.naive()


async def test_a_run_that_ends_while_the_tables_are_read_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that live are read first: what ends after that is among those that ended."""
    database = await world.app._database()
    fetch, over = database.fetch, []

    async def fetched(name: str, *arguments: Any) -> Any:
        rows = await fetch(name, *arguments)
        if name.startswith("list_") and not over:
            over.append(name)
            await world.sql.execute(
                f"WITH gone AS (DELETE FROM {world.schema}.running RETURNING *) INSERT INTO {world.schema}.runs (run_id, job_id, scheduled_at, "
                "finished_at, lane, outcome, attempt, task) SELECT run_id, job_id, scheduled_at, now(), lane, 'succeeded', 1, task FROM gone"
            )
        return rows

    monkeypatch.setattr(database, "fetch", fetched)
    found = await world.app.runs.look(limit=1_000)
    assert [one.run_id for one in found.runs] == world.naive()
    ended = {ids.run_id(one.number) for one in world.runs if one.state == "running"}
    assert {one.state for one in found.runs if one.run_id in ended} == {"succeeded"}


async def test_of_a_deleted_job_the_runs_are_found_by_its_id(world: World) -> None:
    expected = world.naive(job="daily")
    view = await world.app.jobs.show("daily")
    assert [one.run_id for one in await world.app.runs.list(job=view.job_id, limit=1_000)] == expected
    await world.app.jobs.delete("daily")
    assert [one.run_id for one in await world.app.runs.list(job=view.job_id, limit=1_000)] == expected
    for name in ("daily", "nobody", "a\0b"):
        with pytest.raises(UnknownJob, match="there is no job"):
            await world.app.runs.list(job=name)


async def test_whoever_sees_a_part_pages_through_that_part(world: World) -> None:
    for actor, wanted in (
        (Actor("mail", queues=("mail",)), {"queue": "mail"}),
        (Actor("daily", prefixes=("dai",)), {"job": "daily"}),
    ):
        token = ACTOR.set(actor)
        try:
            assert await paged(world, 9, 20) == world.naive(**wanted)
            with pytest.raises(UnknownJob):
                await world.app.runs.list(job="hourly")
        finally:
            ACTOR.reset(token)


@pytest.mark.parametrize("node", [0, -1, 2**31])
async def test_a_node_that_cannot_be_is_refused(app: Hourhand, node: int) -> None:
    with pytest.raises(InvalidOption, match="number of a node"):
        await app.runs.list(node=node)


# What is read


def rows_read(plan: Any) -> int:
    """Rows that the scans of tables gave or threw away."""
    total = 0
    if isinstance(plan, dict):
        if "Relation Name" in plan:
            total += (plan.get("Actual Rows", 0) + plan.get("Rows Removed by Filter", 0)) * plan.get("Actual Loops", 1)
        total += sum(rows_read(value) for value in plan.values())
    elif isinstance(plan, list):
        total += sum(rows_read(value) for value in plan)
    return round(total)


@pytest.fixture
async def crowd(app: Hourhand, sql: asyncpg.Connection, schema: str) -> Hourhand:
    """Many thousand runs that nobody looks for; without statistics, as after a rush."""
    await sql.execute(f"SET session_replication_role = replica; SELECT {schema}.queue_number('mail')")
    await sql.execute(
        f"INSERT INTO {schema}.runs (run_id, job_id, scheduled_at, finished_at, lane, outcome, attempt, task) SELECT n, n % 50, "
        f"now() - make_interval(secs => 40000 - n), now(), 5, (CASE WHEN n % 100 = 0 THEN 'lost' ELSE 'succeeded' END)::{schema}.outcome, 1, 'usual' "
        "FROM generate_series(1, 40000) AS n"
    )
    await sql.execute(
        f"INSERT INTO {schema}.ready (seq, run_id, scheduled_at, lane, task, payload) SELECT n, CASE WHEN n % 4 = 0 THEN n - 20001 ELSE n END, "
        "now(), 5 + n % 2 * 4, 'usual', '{}' FROM generate_series(60001, 90000) AS n"
    )
    await sql.execute(
        f"INSERT INTO {schema}.dead (died_at, run_id, scheduled_at, lane, attempt, task, payload, errors) SELECT now() - make_interval(secs => n), 95000 + n, "
        "now(), 5, 1, 'usual', '{}', jsonb_build_array(jsonb_build_object('type', 'E' || n % 3)) FROM generate_series(1, 20000) AS n"
    )
    await sql.execute(f"RESET session_replication_role; SELECT setval('{schema}.run_numbers', 200000)")
    return app


async def explained(app: Hourhand, monkeypatch: pytest.MonkeyPatch, *names: str) -> Counter[str]:
    """From now on, what these statements read; each by an index."""
    database = await app._database()
    read: Counter[str] = Counter()
    fetch = database.fetch

    async def look(name: str, *arguments: Any) -> Any:
        if name.startswith(names):
            connection = database.joined
            assert connection is not None
            plan = json.loads(await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {database.sql[name]}", *arguments))
            small = ("queues", "nodes", "jobs")
            assert [one for one in scans(plan) if one.startswith("Seq") and not one.endswith(small)] == [], name
            read[name] += rows_read(plan)
        return await fetch(name, *arguments)

    monkeypatch.setattr(database, "fetch", look)
    return read


async def test_a_page_reads_no_more_than_it_may(crowd: Hourhand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 90,000 runs never more than was said: here, 500 of each table."""
    read = await explained(crowd, monkeypatch, "list_", "floor_", "has_")
    cases: list[tuple[dict[str, Any], int]] = [
        ({}, 800), ({"state": "ready"}, 400), ({"state": "lost"}, 800), ({"state": "dead"}, 800), ({"task": "rare"}, 4_000), ({"job": "j_7"}, 5_000),
        ({"task": "rare", "state": "lost"}, 2_000), ({"node": 3}, 4_000), ({"since": datetime(2020, 1, 1, tzinfo=UTC)}, 4_000),
    ]  # fmt: skip
    for wanted, most in cases:
        below = None
        for _ in range(3):
            page = await crowd.runs.look(limit=50, below=below, effort=500, **wanted)
            assert sum(read.values()) <= most, (wanted, read)
            read.clear()
            below = page.below
            if below is None:
                break


async def test_a_page_of_dead_letters_reads_no_more_than_it_may(crowd: Hourhand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20,000: here, a hundred of each group, or 500 of all."""
    monkeypatch.setattr(letter_insight, "MOST_COUNTED", 100)
    monkeypatch.setattr(letter_insight, "_LOOKED", 500)
    read = await explained(crowd, monkeypatch, "dead_groups", "count_groups", "find_letters", "short_letters", "list_dead")
    for wanted in ({}, {"task": "usual"}, {"error": "E1"}, {"queue": "mail"}, {"tag": "rare"}, {"task": "usual", "error": "E2"}):
        assert [one.more for one in (await insight(crowd).groups(**wanted)).groups]
        assert sum(read.values()) <= 1_000, (wanted, read)
        read.clear()
        await insight(crowd).letters(**wanted)
        assert sum(read.values()) <= 1_500, (wanted, read)
        read.clear()
    await crowd.dead.show(95_007)
    assert read["list_dead"] <= 2


# Dead letters


async def bury_many(world_app: Hourhand, sql: asyncpg.Connection, rows: list[dict[str, Any]]) -> None:
    schema = world_app.settings.schema
    await sql.executemany(
        f"INSERT INTO {schema}.dead (died_at, run_id, job_id, scheduled_at, lane, attempt, task, payload, key, tags, errors, reason) "
        "VALUES ($1, $2, $3, now(), $4, 3, $5, $6, $7, $8, $9, 'gave up')",
        [(one["died_at"], one["run_id"], one.get("job_id"), one.get("lane", 5), one.get("task", "t"), one.get("payload", "{}"), one.get("key"),
          one.get("tags"), None if one.get("error") == "" else json.dumps([{"type": one.get("error", "ValueError"), "message": f"no {one['run_id']}"}]))
         for one in rows],
    )  # fmt: skip
    await sql.execute(f"SELECT setval('{schema}.run_numbers', 100000)")


def insight(app: Hourhand) -> LetterInsight:
    return LetterInsight(app._database, app.registry, app.name)


@pytest.fixture
async def letters(app: Hourhand, sql: asyncpg.Connection, schema: str) -> list[dict[str, Any]]:
    """Of several tasks and errors, in two queues; many died at the same instant."""
    rng, now = Random(3), datetime.now(UTC)
    mail = await sql.fetchval(f"SELECT {schema}.queue_number('mail')")
    made = [
        {"run_id": number, "died_at": now - timedelta(minutes=rng.randint(1, 40)), "task": rng.choice("abc"), "error": rng.choice(("", "KeyError", "ValueError")),
         "lane": rng.choice((5, mail * 4)), "tags": rng.choice((None, ["red"]))}
        for number in range(1, 201)
    ]  # fmt: skip
    await bury_many(app, sql, made)
    return made


def matching(letters: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    def fits(one: dict[str, Any]) -> bool:
        return (
            all(wanted.get(name) in (None, one[name]) for name in ("task", "error"))
            and (wanted.get("queue") is None or (one["lane"] != 5) == (wanted["queue"] == "mail"))
            and (wanted.get("tag") is None or one["tags"] == [wanted["tag"]])
            and (wanted.get("since") is None or one["died_at"] >= wanted["since"])
        )

    return sorted((one for one in letters if fits(one)), key=lambda one: (one["died_at"], one["run_id"]), reverse=True)


def letter_questions(letters: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    since = letters[17]["died_at"]
    yield from (
        {}, {"task": "a"}, {"error": "KeyError"}, {"task": "b", "error": ""}, {"task": "c", "error": "ValueError"}, {"queue": "mail"}, {"tag": "red"},
        {"since": since}, {"task": "a", "error": "KeyError", "queue": "mail", "tag": "red"}, {"task": "nonesuch"}, {"error": "KeyError", "since": since},
        {"task": "a", "error": "KeyError", "since": since},
    )  # fmt: skip


async def test_groups_of_dead_letters_are_those_of_a_full_count(app: Hourhand, letters: list[dict[str, Any]]) -> None:
    for wanted in letter_questions(letters):
        expected: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for one in matching(letters, **wanted):
            expected.setdefault((one["task"], one["error"]), []).append(one)
        found = await insight(app).groups(**wanted)
        counted = {(one.task, one.error): (one.letters, one.newest, one.oldest, one.more) for one in found.groups if one.letters}
        assert counted == {key: (len(some), some[0]["died_at"], some[-1]["died_at"], False) for key, some in expected.items()}, (
            wanted
        )
        for group in found.groups:
            if group.letters:
                latest = {some["run_id"] for some in expected[group.task, group.error] if some["died_at"] == group.newest}
                assert group.latest is not None
                assert ids.parse_run_id(group.latest.run_id) in latest
        if not wanted:
            newest = [group.newest for group in found.groups if group.newest]
            assert newest == sorted(newest, reverse=True)
            assert [
                one for skip in range(0, 9, 2) for one in (await insight(app).groups(skip=skip, limit=2)).groups
            ] == found.groups


async def test_a_group_is_counted_so_far_and_no_further(
    app: Hourhand, letters: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letter_insight, "MOST_COUNTED", 10)
    found = await insight(app).groups()
    assert {(one.letters, one.more) for one in found.groups} == {(10, True)}
    oldest = {(one.task, one.error): matching(letters, task=one.task, error=one.error)[-1]["died_at"] for one in found.groups}
    assert {(one.task, one.error): one.oldest for one in found.groups} == oldest
    assert await insight(app).up_to(task="a", most=20) == 21
    assert await insight(app).up_to(task="nonesuch", most=20) == 0


async def test_whoever_sees_a_part_sees_the_groups_and_the_latest_of_that_part(
    app: Hourhand, sql: asyncpg.Connection, schema: str, letters: list[dict[str, Any]]
) -> None:
    """Also where one of others died at the same instant."""
    mine = [one for one in letters if one["lane"] != 5]
    await sql.execute(
        f"UPDATE {schema}.dead SET died_at = now() WHERE run_id = ANY ($1)", [one["run_id"] for one in letters[:150]]
    )
    token = ACTOR.set(Actor("mail", queues=("mail",)))
    try:
        found = await insight(app).groups()
        assert sum(one.letters for one in found.groups) == len(mine)
        latest = {ids.parse_run_id(one.latest.run_id) for one in found.groups if one.latest}
        assert latest <= {one["run_id"] for one in mine}
        assert await insight(app).up_to() == len(mine)
        listed = await insight(app).letters(limit=1_000)
        assert {ids.parse_run_id(one.run_id) for one in listed.letters} == {one["run_id"] for one in mine}
    finally:
        ACTOR.reset(token)


async def test_lists_of_dead_letters_are_whole_and_in_order(
    app: Hourhand, letters: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for looked in (10_000, 12):
        monkeypatch.setattr(letter_insight, "_LOOKED", looked)
        for wanted in letter_questions(letters):
            found: list[RunView] = []
            below = None
            while True:
                page = await insight(app).letters(limit=7, below=below, **wanted)
                found += page.letters
                if page.below is None:
                    break
                assert not page.stopped or len(page.letters) < 7
                below = page.below
            assert [ids.parse_run_id(one.run_id) for one in found] == [one["run_id"] for one in matching(letters, **wanted)], (
                wanted,
                looked,
            )


async def test_a_long_payload_is_not_read_for_a_list(app: Hourhand, sql: asyncpg.Connection) -> None:
    long = json.dumps({"text": "".join(Random(1).choices("abcdefgh", k=60_000))})
    now = datetime.now(UTC)
    await bury_many(
        app, sql, [{"run_id": 1, "died_at": now, "payload": long}, {"run_id": 2, "died_at": now, "payload": '{"n": 1}'}]
    )
    found = await insight(app).letters()
    assert {one.run_id: one.payload for one in found.letters} == {"r_1": None, "r_2": {"n": 1}}


# Sent back at a rate


async def due(sql: asyncpg.Connection, schema: str) -> dict[int, datetime]:
    return {row["run_id"]: row["due_at"] for row in await sql.fetch(f"SELECT run_id, due_at FROM {schema}.delayed")}


async def test_at_a_rate_they_become_due_one_after_the_other_the_oldest_first(
    app: Hourhand, sql: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over several batches, as if it were one; whoever is blocked takes nobody's place."""
    monkeypatch.setattr(dead_letters, "BATCH", 3)
    now = datetime.now(UTC)
    await bury_many(
        app,
        sql,
        [
            {"run_id": number, "died_at": now - timedelta(minutes=number), "key": "held" if number == 8 else None}
            for number in range(1, 12)
        ],
    )
    holder = await app.enqueue("t", key="held", delay=3600)
    start = now + timedelta(hours=1)
    answer = await app.dead.replay(rate=4, start=start)
    assert len(answer.replayed) == 10
    assert answer.blocked == [ids.run_id(8)]
    found = await due(sql, schema)
    del found[ids.parse_run_id(holder.id)]
    order = [number for number in range(11, 0, -1) if number != 8]
    assert found == {number: start + timedelta(seconds=place / 4) for place, number in enumerate(order)}
    assert answer.until == max(found.values())
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.ready") == 0
    row = await sql.fetchrow(f"SELECT attempt, crashes, errors FROM {schema}.delayed WHERE run_id = 1")
    assert row is not None
    assert (row["attempt"], row["crashes"]) == (0, 0)
    assert json.loads(row["errors"])[0]["message"] == "no 1"
    changes = await app.audit.list(action="dead.replay")
    assert sum(one.after["count"] for one in changes) == 10
    assert {one.after["rate"] for one in changes} == {4}


async def test_what_is_sent_back_at_a_rate_runs_when_its_turn_comes(app: Hourhand, sql: asyncpg.Connection) -> None:
    """With nobody there who ordered it."""
    ran = []

    @app.task
    async def t() -> None:
        ran.append(datetime.now(UTC))

    await bury_many(
        app, sql, [{"run_id": number, "died_at": datetime.now(UTC) - timedelta(minutes=number)} for number in range(1, 5)]
    )
    answer = await app.dead.replay(rate=2)
    assert answer.until is not None
    async with working(app):

        async def all_ran() -> bool:
            return len(ran) == 4

        await until(all_ran, "all of them")
    assert ran[-1] >= answer.until - timedelta(seconds=0.1)
    assert await app.dead.count() == 0


async def test_a_start_that_has_passed_is_now(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    """Lest all that would have been due by now come at once."""
    now = datetime.now(UTC)
    await bury_many(app, sql, [{"run_id": number, "died_at": now - timedelta(minutes=number)} for number in (1, 2)])
    await app.dead.replay(rate=0.01, start=now - timedelta(hours=1))
    found = await due(sql, schema)
    assert found[2] >= now - timedelta(seconds=5)
    assert found[1] - found[2] == timedelta(seconds=100)


@pytest.mark.parametrize("rate", [0, -1, 0.0001, 1e9, float("nan"), float("inf"), True, "fast"])
async def test_a_rate_that_is_none_is_refused(app: Hourhand, rate: Any) -> None:
    with pytest.raises(InvalidOption, match="rate is how many become due in a second"):
        await app.dead.replay(rate=rate)


async def test_a_start_without_a_rate_is_refused(app: Hourhand) -> None:
    with pytest.raises(InvalidOption, match="give a rate"):
        await app.dead.replay(start=datetime.now(UTC))


@pytest.mark.once
async def test_a_rate_over_the_network(
    admin: Client, served: Served, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that asks several times goes on where it was."""
    monkeypatch.setattr("hourhand.surfaces.client.runs.BATCH", 2)
    now = datetime.now(UTC)
    async with Hourhand(served.url, schema=served.schema) as near, AsyncClient(served.api.base, ADMIN) as client:
        await bury_many(
            near,
            sql,
            [{"run_id": 50_000 + number, "died_at": now - timedelta(minutes=number), "task": "paced"} for number in range(5)],
        )
        start = (now + timedelta(hours=2)).replace(microsecond=0)
        answer = await client.dead.replay(task="paced", rate=0.5, start=start)
        assert (len(answer.replayed), answer.blocked, answer.until) == (5, [], start + timedelta(seconds=8))
        found = await due(sql, served.schema)
        assert sorted(found[50_000 + number] for number in range(5)) == [
            start + timedelta(seconds=2 * place) for place in range(5)
        ]
    for body in (
        {"task": "paced", "rate": 0},
        {"task": "paced", "rate": "fast"},
        {"task": "paced", "start": "2027-01-01T00:00:00Z"},
    ):
        assert (await admin.post("dead/replay", body)).status == 422
    await bury_many(near, sql, [{"run_id": 60_000, "died_at": now, "task": "paced"}])
    told = (await admin.post("dead/replay", {"task": "paced", "rate": 1})).ok()
    assert told["replayed"] == [ids.run_id(60_000)]
    assert told["until"]


@pytest.mark.once
async def test_runs_of_a_job_and_of_a_node_over_the_network(admin: Client, served: Served) -> None:
    (await admin.post("jobs", {"name": "watched", "task": "t", "schedule": "0 0 1 1 *"})).ok(201)
    run = (await admin.post("jobs/watched/trigger")).ok()["run_id"]
    assert [one["run_id"] for one in (await admin.get("runs?job=watched")).ok()] == [run]
    assert (await admin.get("runs?job=watched&node=7")).ok() == []
    assert (await admin.get("runs?job=nobody")).status == 404
    assert (await admin.get("runs?node=x")).status == 422
    async with AsyncClient(served.api.base, ADMIN) as client:
        assert [one.run_id for one in await client.runs.list(job="watched")] == [run]
        assert await client.runs.list(job="watched", node=7) == []
