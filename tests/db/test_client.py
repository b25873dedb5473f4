"""Both clients against a real `hourhand api`: every verb, and what it answers is what the app answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from hourhand import Context, Hourhand, Limit, QueueFull, Rate, Retry, Step
from hourhand.client import (
    AsyncClient,
    Client,
    Forbidden,
    InvalidOption,
    InvalidPayload,
    InvalidSchedule,
    JobConflict,
    NotPossible,
    PreconditionFailed,
    RunFailed,
    RunNotFinished,
    Unauthorized,
    UnknownHold,
    UnknownJob,
    UnknownKey,
    UnknownQueue,
    UnknownRun,
)
from hourhand.core import ids
from hourhand.surfaces.client import batches
from hourhand.surfaces.client import jobs as remote_jobs
from hourhand.surfaces.client import runs as remote_runs
from hourhand.surfaces.statistics import Moment
from tests.db.conftest import Served
from tests.db.test_cli import Cemetery
from tests.db.test_worker import working
from tests.support.fleet import until
from tests.support.served import blocking, client, near

pytestmark = pytest.mark.once

__all__ = ["blocking", "client", "near"]
NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)
WEEKLY: dict[str, Any] = {"schedule": "0 9 * * 1", "timezone": "America/New_York", "payload": {"days": 7}}


@pytest.fixture
def cemetery(sql: asyncpg.Connection, served: Served) -> Cemetery:
    return Cemetery(sql, served.schema)


# Jobs


async def test_a_job_from_its_beginning_to_its_end(client: AsyncClient, near: Hourhand) -> None:
    added = await client.jobs.add("weekly", **WEEKLY, misfire_grace="5m", max_attempts=3, tags=["eu"], then="cleanup")
    assert added.outcome == "added"
    assert replace(added, outcome=None) == await near.jobs.show("weekly") == await client.jobs.show(added.job_id)
    same = await client.jobs.add("weekly", **WEEKLY, misfire_grace=300, max_attempts=3, tags=["eu"], then="cleanup")
    assert (same.outcome, same.version) == ("unchanged", 1)
    with pytest.raises(JobConflict):
        await client.jobs.add("weekly", **WEEKLY)
    replaced = await client.jobs.add("weekly", **WEEKLY, replace=True)
    assert (replaced.outcome, replaced.tags, replaced.then) == ("replaced", (), ())

    changed = await client.jobs.update("weekly", version=replaced.version, timeout=timedelta(seconds=30), end_at=NOW + 90 * DAY)
    assert (changed.outcome, changed.timeout, changed.end_at) == ("replaced", 30, NOW + 90 * DAY)
    assert (await client.jobs.update("weekly", timeout=30)).outcome == "unchanged"
    cleared = await client.jobs.update("weekly", timeout=None, end_at=None)
    assert (cleared.timeout, cleared.end_at) == (None, None)
    with pytest.raises(PreconditionFailed):
        await client.jobs.update("weekly", version=1, timeout=7)
    with pytest.raises(PreconditionFailed):
        await client.jobs.delete("weekly", version=1)
    await client.jobs.delete("weekly", version=cleared.version)
    with pytest.raises(UnknownJob, match="there is no job 'weekly'"):
        await client.jobs.show("weekly")
    with pytest.raises(UnknownJob):
        await client.jobs.delete("weekly")


async def test_a_chain_is_stored_as_the_app_stores_it(client: AsyncClient, near: Hourhand, sql: asyncpg.Connection) -> None:
    last = Step("third", {"n": 1}, result=None, options={"retry": {"backoff": "fixed", "base": 1.0}, "secret": ["card"]})
    chain = Step("second", queue="billing", delay=2.0, tags=("a",), options={"max_attempts": 2, "then": last.plain()})
    for verbs, name in ((client, "chain-there"), (near, "chain-here")):
        await verbs.jobs.add(name, **WEEKLY, then=chain, secret=["days"])
    there, here = [
        await sql.fetchval(f"SELECT options FROM {near.settings.schema}.jobs WHERE name = $1", name)
        for name in ("chain-there", "chain-here")
    ]
    assert there == here
    assert (await client.jobs.show("chain-there")).then == ("second", "third")


async def test_what_is_secret_is_not_told_and_survives_a_change(client: AsyncClient, near: Hourhand) -> None:
    await client.jobs.add("discreet", schedule="0 9 * * 1", payload={"card": 7, "password": "x", "n": 1}, secret=["card"])
    shown = await client.jobs.show("discreet")
    assert (shown.secret, shown.payload["n"]) == (("card",), 1)
    assert {shown.payload["card"], shown.payload["password"]} == {"[redacted]"}
    await client.jobs.update("discreet", payload={**shown.payload, "n": 2})
    assert (await near.jobs.show("discreet")).payload == {"card": 7, "password": "x", "n": 2}


async def test_holding_and_starting(client: AsyncClient, near: Hourhand) -> None:
    await client.jobs.add("held", schedule="every 1h", overlap="skip")
    paused = await client.jobs.pause("held")
    assert (paused.state, paused.next_run_at) == ("paused", None)
    assert paused == await near.jobs.show("held")
    assert await client.jobs.next("held") == []
    resumed = await client.jobs.resume("held", missed="SKIP")
    assert (resumed.job.state, resumed.started, resumed.left_out) == ("active", 0, 0)
    assert await client.jobs.next("held", 3) == await near.jobs.next("held", 3)
    first = await client.jobs.trigger("held", payload={"n": 1})
    assert first.outcome == "started"
    assert first.run_id is not None
    assert (await near.runs.show(first.run_id)).payload == {"n": 1}
    assert (await client.jobs.trigger("held")).outcome == "skipped"
    assert (await client.jobs.trigger("held", force=True)).outcome == "started"
    assert await client.jobs.runs("held") == await near.jobs.runs("held")
    with pytest.raises(InvalidOption, match="missed must be one of"):
        await client.jobs.resume("held", missed="NEVER")


async def test_backfill_is_followed_and_called_off(client: AsyncClient, near: Hourhand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_jobs, "FOLLOWED", 2)
    await client.jobs.add("daily", schedule="0 0 * * *")
    period = ("daily", NOW - 5 * DAY, NOW)
    planned = await client.jobs.backfill(*period, dry_run=True)
    assert (planned.dry_run, len(planned.instants), planned.runs) == (True, 5, [])
    told: list[int] = []
    filled = await client.jobs.backfill(*period, order="newest", progress=lambda one: told.append(len(one.runs)))
    assert told == [5]
    assert filled.instants == sorted(planned.instants, reverse=True)
    assert [at for _, at in filled.runs] == filled.instants
    again = await client.jobs.backfill(*period)
    assert (again.asked_already, again.runs) == (5, [])
    async for one in client.jobs.follow(filled):
        assert one.ended == 0
        assert await client.jobs.cancel_backfill(*period) == 5
        break
    assert [one.ended async for one in client.jobs.follow(filled)] == [5]
    assert filled.succeeded == 0
    with pytest.raises(InvalidOption, match="more than 2 firings"):
        await client.jobs.backfill(*period, cap=2)


async def test_whoever_gives_up_on_a_backfill_learns_when_its_runs_are_there(
    client: AsyncClient, near: Hourhand, sql: asyncpg.Connection
) -> None:
    await client.jobs.add("given-up", schedule="0 0 * * *")
    period = ("given-up", NOW - 3 * DAY, NOW)
    schema = near.settings.schema
    transaction = sql.transaction()
    await transaction.start()
    await sql.execute(f"LOCK TABLE {schema}.decisions IN SHARE MODE")
    told: list[int] = []
    filling = asyncio.create_task(client.jobs.backfill(*period, progress=lambda one: told.append(len(one.runs))))
    table = f"'{schema}.decisions'::regclass"
    await until(
        lambda: sql.fetchval(f"SELECT EXISTS (SELECT FROM pg_locks WHERE relation = {table} AND NOT granted)"),
        "the server to wait",
    )
    filling.cancel()
    assert await client.health() == {"status": "ok"}
    assert not filling.done()
    await transaction.rollback()
    with pytest.raises(asyncio.CancelledError):
        await filling
    assert told == [3]
    assert await client.jobs.cancel_backfill(*period) == 3


async def test_why_is_told_page_by_page_as_the_app_tells_it(client: AsyncClient, near: Hourhand, sql: asyncpg.Connection) -> None:
    view = await client.jobs.add("minutely", schedule="* * * * *")
    schema, number = near.settings.schema, ids.parse_job_id(view.job_id)
    await sql.execute(f"UPDATE {schema}.jobs SET active_since = now() - interval '3 days' WHERE id = $1", number)
    # Lines for one instant, on both sides of where a page ends.
    since, end = NOW - timedelta(minutes=2_400), NOW
    for _ in range(3):
        await near.jobs.backfill("minutely", NOW - timedelta(minutes=1_003), NOW - timedelta(minutes=990), again=True)
    here = await near.jobs.why("minutely", since=since, until=end)
    assert len(here) > 2_400
    assert await client.jobs.why("minutely", since=since, until=end) == here
    one = here[5]
    assert await client.jobs.why("minutely", at=one.scheduled_at) == await near.jobs.why("minutely", at=one.scheduled_at)
    with pytest.raises(NotPossible, match="was not expected to fire"):
        await client.jobs.why("minutely", at=one.scheduled_at + timedelta(seconds=7))
    proof = await client.jobs.audit("minutely", since, end)
    assert proof == await near.jobs.audit("minutely", since, end)
    assert await client.jobs.next("minutely", 2_500) == await near.jobs.next("minutely", 2_500)


async def test_two_and_a_half_thousand_jobs(client: AsyncClient, near: Hourhand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MOST_LINES", 1_000)
    jobs = [
        {"name": f"many-{n:04}", "schedule": f"{n % 60} 3 * * *", "payload": {"n": n}, "misfire_grace": "2m"}
        for n in range(2_500)
    ]
    told: list[int] = []
    added = await client.jobs.add_many(iter(jobs), progress=told.append)
    assert (added.added, added.replaced, added.unchanged) == (2_500, 0, 0)
    assert told == [1_000, 1_000, 500]
    found = await client.jobs.list(search="many-", limit=10_000)
    assert [one.name for one in found] == [str(one["name"]) for one in jobs]
    assert found == await near.jobs.list(search="many-", limit=10_000)
    assert [one.name for one in await client.jobs.list(search="many-", after="many-1234", limit=2)] == ["many-1235", "many-1236"]
    assert (await client.jobs.add_many(jobs[:10], replace=True)).unchanged == 10


async def test_of_many_jobs_it_is_said_which_cannot_be_and_what_is_in(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "MOST_LINES", 2)
    good = [{"name": f"some-{n}", "schedule": "0 3 * * *"} for n in range(4)]
    with pytest.raises(InvalidOption, match=r"^job number 2: .*Nothing was added$"):
        await client.jobs.add_many([good[0], {"name": "bad", "schedule": "never"}])
    with pytest.raises(InvalidOption, match=r"^job number 4: .*\. The first 2 jobs are in, the others are not$"):
        await client.jobs.add_many([*good[:3], {"name": "bad", "schedule": "never"}])
    with pytest.raises(InvalidOption, match=r"^job number 3: a job has no 'colour'.*\. The first 2 jobs are in"):
        await client.jobs.add_many([*good[:2], {"name": "bad", "colour": "red"}], replace=True)
    assert [one.name for one in await client.jobs.list(search="some-")] == ["some-0", "some-1"]
    with pytest.raises(JobConflict):
        await client.jobs.add_many([{"name": "some-0", "schedule": "0 4 * * *"}])


# Runs


async def test_runs_as_the_app_shows_them(client: AsyncClient, near: Hourhand) -> None:
    handle = await client.enqueue("mail", {"to": "you"}, queue="post", key="k1", tags=["eu"], delay=3600, max_attempts=2)
    assert not handle.duplicate
    assert await handle.show() == await near.runs.show(handle.id) == await client.runs.show(ids.parse_run_id(handle.id))
    twice = await client.enqueue("mail", {}, key="k1")
    assert (twice.id, twice.duplicate) == (handle.id, True)
    by = {"task": "mail", "queue": "post", "tag": "eu", "key": "k1", "state": ["delayed", "ready"], "since": NOW - DAY}
    assert await client.runs.list(**by) == await near.runs.list(**by)  # type: ignore[arg-type]
    with pytest.raises(RunNotFinished):
        await handle.wait(timeout=0)
    assert await client.runs.retry(handle.id) == handle.id
    assert await client.runs.cancel(handle.id, "wrong customer") == "cancelled"
    ended = await handle.wait()
    assert (ended.state, ended.reason) == ("cancelled", "wrong customer")
    with pytest.raises(RunFailed, match="cancelled"):
        await handle.result()
    again = await client.runs.retry(handle.id)
    assert again != handle.id
    with pytest.raises(NotPossible, match="has ended already"):
        await client.runs.cancel(handle.id)
    with pytest.raises(UnknownRun):
        await client.runs.show("r_zzzz")
    with pytest.raises(UnknownRun):
        await client.runs.show("../jobs")


async def test_many_runs_and_their_pages(client: AsyncClient, near: Hourhand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MOST_LINES", 700)
    made = await client.enqueue_many("count", ({"n": n} for n in range(1_500)), queue="counting")
    assert len(made) == len(set(made)) == 1_500
    found = await client.runs.list(task="count", limit=2_000)
    assert found == await near.runs.list(task="count", limit=2_000)
    assert {one.run_id for one in found} == set(made)
    below = await client.runs.list(task="count", below=found[9].run_id, limit=2)
    assert below == found[10:12]
    with pytest.raises(InvalidOption, match="leave it out"):
        await client.enqueue_many("count", [{}], key="k")
    with pytest.raises(InvalidPayload):
        await client.enqueue_many("count", [{"what": object()}])


async def test_a_stream_into_a_full_queue(client: AsyncClient, near: Hourhand) -> None:
    async def source() -> AsyncIterator[dict[str, int]]:
        for n in range(30):
            yield {"n": n}

    await near.limits.set("queue", "shallow", max_depth=25)
    with pytest.raises(QueueFull, match=r"queue shallow is full: 20 wait in it.*The first 20 runs are in") as full:
        await client.enqueue_many("count", source(), commit_every=10, queue="shallow")
    assert len(full.value.enqueued) == 20
    with pytest.raises(QueueFull):
        await client.enqueue_many("count", [{}] * 6, queue="shallow")
    await client.enqueue("count", {"n": 1}, queue="shallow")
    await near.limits.clear("queue", "shallow")
    assert len(await client.enqueue_many("count", source(), commit_every=10, wait=5, queue="shallow")) == 30


async def test_a_run_is_waited_for_and_says_what_it_has_to_say(client: AsyncClient, near: Hourhand) -> None:
    @near.task(retry=Retry(max_attempts=1), queue="talking")
    async def talk(ctx: Context, lines: int) -> dict[str, int]:
        for n in range(lines):
            ctx.log.info("said", n=n)
        return {"said": lines}

    async with working(near, queues=["talking"]):
        handle = await client.enqueue("talk", {"lines": 1_200}, queue="talking")
        assert await handle.result(60) == {"said": 1_200}
        await until(lambda: near.runs.logs(handle.id, after=1_000), "its last line")
    lines = await client.runs.logs(handle.id, limit=5_000)
    assert lines == await near.runs.logs(handle.id, limit=5_000)
    assert len(lines) == 1_001
    assert await client.runs.logs(handle.id, after=lines[9].number, limit=2) == lines[10:12]


# Dead letters


async def test_dead_letters(client: AsyncClient, near: Hourhand, cemetery: Cemetery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_runs, "ASKED_AT_ONCE", 2)
    monkeypatch.setattr(remote_runs, "BATCH", 2)
    await near.enqueue("invoice", {}, key="taken")
    free = [await cemetery.bury(age=timedelta(minutes=n), queue="graves", tags=["eu"]) for n in range(5)]
    held = await cemetery.bury(age=timedelta(hours=2), queue="graves", key="taken", error="OSError")
    every = [*free, held]
    assert [one.run_id for one in await client.dead.list(queue="graves")] == every
    assert await client.dead.list(*reversed(every)) == await near.dead.list(*every)
    assert [one.run_id for one in await client.dead.list(*every, limit=3)] == every[:3]
    first = (await client.dead.list(limit=1, queue="graves"))[0]
    assert first.finished_at is not None
    assert (await client.dead.list(below=(first.finished_at, first.run_id), queue="graves", limit=1))[0].run_id == every[1]
    assert await client.dead.count(queue="graves", tag="eu") == 5
    assert await client.dead.count(*every, error="OSError") == 1
    assert await client.dead.show(held) == await near.dead.show(held)
    with pytest.raises(InvalidOption, match="unknown filter"):
        await client.dead.count(colour="red")

    edited = await client.dead.edit(free[0], {"invoice_id": 8})
    assert edited.payload == {"invoice_id": 8} == (await near.dead.show(free[0])).payload
    with pytest.raises(InvalidPayload):
        await client.dead.edit(free[0], {"what": object()})

    told: list[int] = []
    done = await client.dead.replay(queue="graves", progress=told.append)
    assert (sorted(done.replayed), done.blocked) == (sorted(free), [held])
    assert told[-1] == 5
    assert (await near.runs.show(free[0])).state == "ready"
    with pytest.raises(UnknownRun, match="not among the dead letters"):
        await client.dead.replay(*free)
    assert await client.dead.replay(queue="graves", before=NOW - 9 * DAY) == await near.dead.replay(
        queue="graves", before=NOW - 9 * DAY
    )

    buried = [await cemetery.bury(queue="graves") for _ in range(5)]
    assert await client.dead.purge(queue="graves", limit=2) == 2
    assert await client.dead.purge(*buried, held, progress=told.append) == 4
    with pytest.raises(UnknownRun):
        await client.dead.purge(held)
    assert await client.dead.purge(queue="graves") == 0


# The rest


async def test_queues_nodes_and_shards(client: AsyncClient, near: Hourhand, cemetery: Cemetery) -> None:
    await cemetery.node("vm:7")
    await cemetery.node("vm:8", died=True)
    assert await client.nodes.list() == await near.nodes.list()
    assert len(await client.nodes.list(gone=True)) == len(await near.nodes.list(gone=True)) > len(await near.nodes.list())
    assert await client.shards.list() == await near.shards.list()
    assert not await client.queues.exists("fresh")
    paused = await client.queues.pause("fresh")
    assert await client.queues.exists("fresh")
    (fresh,) = [one for one in await client.queues.list() if one.name == "fresh"]
    assert fresh.paused_at == paused
    await client.queues.resume("fresh")
    for name in ("nowhere", "../jobs", ""):
        with pytest.raises(UnknownQueue):
            await client.queues.resume(name)


async def test_holds_and_limits(client: AsyncClient, near: Hourhand) -> None:
    hold = await client.holds.add(field="order.customer", value=42, reason="slow")
    assert (hold.value, hold.held_by) == ("42", "key:HOURHAND_ADMIN_KEY")
    assert await client.holds.list() == await near.holds.list() == [hold]
    assert await client.holds.release(hold.id) == hold
    for number in (hold.id, "../jobs", 0):
        with pytest.raises(UnknownHold):
            await client.holds.release(number)  # type: ignore[arg-type]
    for wrong in ({"task": "t", "value": 1}, {"field": "password", "value": "x"}):
        with pytest.raises(InvalidOption):
            await client.holds.add(**wrong)  # type: ignore[arg-type]
    rules: dict[str, Any] = {
        "concurrency": iter([Limit(10), Limit(2, key="customer")]), "rate": Rate("100/minute", burst=5), "order": "deadline", "max_depth": 50,
    }  # fmt: skip
    ruled = await client.limits.set("queue", "ruled", **rules)
    assert ruled.in_words == (
        "10 at once", "100/minute, bursts of 5", "2 at once for each customer", "earliest deadline first",
        "at most 50 wait, then more are refused",
    )  # fmt: skip
    assert await client.limits.list() == await near.limits.list() == [ruled]
    lifted = await client.limits.set("queue", "ruled", concurrency=None, order=None, overflow="drop_oldest")
    assert lifted.in_words == ("at most 50 wait, then the oldest are dropped",)
    assert (await client.limits.clear("queue", "ruled")).rule == {}
    for scope, name, wrong in (
        ("queue", "ruled", {}), ("table", "ruled", {"concurrency": 1}), ("queue", "ruled", {"concurrency": 0}),
        ("queue", "ruled", {"rate": "fast"}), ("task", "ruled", {"max_depth": 5}), ("queue", "ruled", {"overflow": "reject"}),
    ):  # fmt: skip
        with pytest.raises(InvalidOption):
            await client.limits.set(scope, name, **wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidOption):
            await near.limits.set(scope, name, **wrong)  # type: ignore[arg-type]
    with pytest.raises(NotPossible):
        await client.limits.clear("queue", "ruled")


async def test_statistics(client: AsyncClient, near: Hourhand) -> None:
    await near.enqueue("count", {}, queue="counted")
    near_by = await near.statistics.over("1h", queue="counted")
    far = await client.statistics.over("1h", queue="counted")
    assert (far.period, far.step, len(far.moments)) == (near_by.period, near_by.step, len(near_by.moments)) == ("1h", 60, 60)
    assert {type(one) for one in far.moments} == {Moment}
    assert [one.name for one in await client.statistics.queues()] == [one.name for one in await near.statistics.queues()]
    assert await client.statistics.totals() == await near.statistics.totals()
    with pytest.raises(InvalidOption, match="1h, 24h, 7d"):
        await client.statistics.over("2h")
    for name in ("nowhere", "../jobs", ""):
        with pytest.raises(UnknownQueue):
            await client.statistics.over(queue=name)


async def test_keys_and_what_they_open(client: AsyncClient, served: Served) -> None:
    made = await client.keys.create("reporting", role="operator", queues=["billing"], expires=timedelta(days=9))
    assert (made.key.role, made.key.queues, made.key.state) == ("operator", ("billing",), "active")
    assert made.key in await client.keys.list()
    async with AsyncClient(served.api.base, made.secret) as other:
        me = await other.whoami()
        assert (me.name, me.role, me.queues, me.via) == ("key:reporting", "operator", ("billing",), "api")
        await other.enqueue("bill", queue="billing")
        with pytest.raises(Forbidden, match="outside of what"):
            await other.enqueue("bill", queue="post")
        with pytest.raises(Forbidden, match="for the role admin"):
            await other.keys.list()
    assert (await client.keys.revoke(made.secret)).state == "revoked"
    with pytest.raises(NotPossible):
        await client.keys.revoke(made.key.key_id)
    for unknown in ("nobody", "../jobs", ""):
        with pytest.raises(UnknownKey):
            await client.keys.revoke(unknown)
    assert made.key.key_id in [one.key_id for one in await client.keys.list(revoked=True)]
    changes = await client.audit.list(subject=made.key.key_id)
    assert [one.action for one in changes] == ["key.revoke", "key.create"]
    assert await client.audit.list(subject=made.key.key_id, below=changes[0].id) == changes[1:]


async def test_the_rest(client: AsyncClient) -> None:
    assert await client.health() == {"status": "ok"}
    seen = await client.preview("0 9 * * 1", timezone="Europe/Berlin", after=datetime(2027, 3, 1, tzinfo=UTC), count=2)
    assert seen.firings == (datetime(2027, 3, 1, 8, tzinfo=UTC), datetime(2027, 3, 8, 8, tzinfo=UTC))
    assert "Monday" in seen.in_words
    with pytest.raises(InvalidSchedule, match="cron has five"):
        await client.preview("nonsense")


async def test_whatever_a_name_is_it_leads_nowhere_else(client: AsyncClient) -> None:
    for name in ("", ".", "..", "../runs", "a/b", "a?b", "a b", "ü", "x" * 101, "batch", "%2e%2e"):
        with pytest.raises(UnknownJob):
            await client.jobs.show(name)
    with pytest.raises(InvalidOption, match="cannot be the name of a job"):
        await client.jobs.add("a/b", schedule="0 9 * * 1")
    with pytest.raises(InvalidOption, match="cannot be the name of a task"):
        await client.enqueue("a/b")


# Without an event loop


def test_the_blocking_client_does_the_same(blocking: Client) -> None:
    added = blocking.jobs.add("waited-for", schedule="0 0 * * *", payload={"n": 1})
    assert replace(added, outcome=None) == blocking.jobs.show("waited-for")
    assert [one.name for one in blocking.jobs.list(search="waited-for")] == ["waited-for"]
    assert blocking.jobs.update("waited-for", timeout=5).timeout == 5
    assert blocking.jobs.pause("waited-for").state == "paused"
    assert blocking.jobs.resume("waited-for").job.state == "active"
    assert len(blocking.jobs.next("waited-for", 3)) == 3
    assert blocking.jobs.trigger("waited-for").outcome == "started"
    assert len(blocking.jobs.runs("waited-for")) == 1
    filled = blocking.jobs.backfill("waited-for", NOW - 3 * DAY, NOW)
    looks = blocking.jobs.follow(filled)
    assert next(looks).ended == 0
    assert blocking.jobs.cancel_backfill("waited-for", NOW - 3 * DAY, NOW) == 3
    assert [one.ended for one in looks] == [3]
    assert [one.by_hand for one in blocking.jobs.why("waited-for")].count("triggered") == 1
    assert blocking.jobs.audit("waited-for", NOW - DAY, NOW).clean
    assert blocking.jobs.add_many([{"name": "waited-for-2", "schedule": "0 0 * * *"}]).added == 1
    blocking.jobs.delete("waited-for")
    with pytest.raises(UnknownJob):
        blocking.jobs.show("waited-for")
    handle = blocking.enqueue("mail", {"to": "you"}, delay=60)
    assert handle.show().state == "delayed"
    assert blocking.runs.cancel(handle.id) == "cancelled"
    assert handle.wait(60).state == "cancelled"
    with pytest.raises(RunFailed):
        handle.result()
    assert handle.id in repr(handle)
    assert not handle.duplicate
    assert len(blocking.enqueue_many("mail", [{}, {}])) == 2
    assert blocking.runs.list(limit=1)
    assert blocking.runs.logs(handle.id) == []
    assert blocking.dead.count() == len(blocking.dead.list())
    assert blocking.queues.exists("default")
    assert blocking.holds.release(blocking.holds.add(task="waited-for").id).task == "waited-for"
    assert blocking.holds.list() == []
    assert blocking.limits.set("task", "waited-for", concurrency=3).slots == 3
    assert [one.name for one in blocking.limits.list()] == ["waited-for"]
    assert blocking.limits.clear("task", "waited-for").slots is None
    assert blocking.preview("0 9 * * 1").firings
    assert blocking.whoami().role == "admin"
    assert blocking.health() == {"status": "ok"}
    made = blocking.keys.create("waited-for")
    assert blocking.keys.revoke(made.key.key_id).state == "revoked"
    assert blocking.audit.list(limit=1)[0].action == "key.revoke"


def test_the_blocking_client_serves_threads_and_can_be_used_after_it_was_closed(blocking: Client) -> None:
    with pytest.raises(Unauthorized, match="wants a key"), Client(blocking.url, retries=0) as stranger:
        stranger.whoami()
    blocking.close()
    assert blocking.whoami().name == "key:HOURHAND_ADMIN_KEY"


async def test_the_blocking_client_does_not_block_an_event_loop(blocking: Client) -> None:
    with pytest.raises(RuntimeError, match="await the async form"):
        blocking.whoami()
