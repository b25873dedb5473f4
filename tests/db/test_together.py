"""What is done together commits together: changes, their record, and what they enqueue."""

from __future__ import annotations

import asyncio
import contextvars

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.core.actor import ACTOR, Actor
from hourhand.core.errors import Forbidden, InvalidOption, PreconditionFailed, StatementRefused, UnknownJob, UnknownRun

pytestmark = pytest.mark.once


async def test_a_change_and_its_record_are_one_transaction(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    await app.jobs.add("kept", schedule="0 9 * * *")
    await sql.execute(f"ALTER TABLE {schema}.audit ADD CONSTRAINT refuse CHECK (action <> 'job.delete')")
    with pytest.raises(StatementRefused):
        await app.jobs.delete("kept")
    assert (await app.jobs.show("kept")).name == "kept"
    await sql.execute(f"ALTER TABLE {schema}.audit DROP CONSTRAINT refuse")
    await app.jobs.delete("kept")
    actions = [one.action for one in await app.audit.list(subject="kept")]
    assert actions == ["job.delete", "job.add"]


async def test_what_fails_leaves_nothing_of_it(app: Hourhand) -> None:
    database = await app._database()
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with database.together():
            await app.jobs.add("gone", schedule="0 9 * * *", queue="never-seen")
            run = await app.enqueue("work", {}, queue="never-seen-either")
            raise ZeroDivisionError
    with pytest.raises(UnknownJob):
        await app.jobs.show("gone")
    with pytest.raises(UnknownRun):
        await run.show()
    assert await app.audit.list() == []
    # The queue's number, which the app remembers, must be one that is there.
    again = await app.enqueue("work", {}, queue="never-seen-either")
    assert (await again.show()).queue == "never-seen-either"


async def test_one_inside_another_joins_it(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    database = await app._database()
    async with database.together():
        await app.jobs.add("one", schedule="0 9 * * *")
        await app.jobs.pause("one")
        assert await sql.fetchval(f"SELECT count(*) FROM {schema}.jobs") == 0
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.jobs WHERE paused_at IS NOT NULL") == 1


async def test_many_at_once_with_new_queues_do_not_wait_for_each_other(app: Hourhand) -> None:
    database = await app._database()

    async def one(number: int) -> None:
        async with database.together():
            await app.jobs.add(f"job-{number}", schedule="0 9 * * *", queue=f"queue-{number}")

    await asyncio.gather(*(one(number) for number in range(30)))
    assert len(await app.jobs.list(limit=100)) == 30


async def test_what_comes_from_elsewhere_meanwhile_does_not_join(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    database = await app._database()
    async with database.together():
        await app.jobs.add("mine", schedule="0 9 * * *")
        await asyncio.create_task(app.jobs.add("other", schedule="0 9 * * *"), context=contextvars.Context())
        assert await sql.fetchval(f"SELECT array_agg(name) FROM {schema}.jobs") == ["other"]
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.jobs") == 2


async def test_a_version_that_is_not_there_any_more_changes_nothing(app: Hourhand) -> None:
    first = await app.jobs.add("job", schedule="0 9 * * *")
    await app.jobs.update("job", schedule="0 10 * * *", version=first.version)
    with pytest.raises(PreconditionFailed, match="version 2, not 1"):
        await app.jobs.update("job", schedule="0 11 * * *", version=first.version)
    with pytest.raises(PreconditionFailed):
        await app.jobs.delete("job", version=first.version)
    await app.jobs.delete("job", version=2)


async def test_a_limited_actor_sees_and_touches_his_part(app: Hourhand) -> None:
    await app.jobs.add("billing.daily", schedule="0 9 * * *", queue="billing")
    await app.jobs.add("mail.daily", schedule="0 9 * * *", queue="mail")
    run = await app.enqueue("work", {}, queue="mail")
    token = ACTOR.set(Actor("limited", "api", "admin", queues=("billing",)))
    try:
        assert [one.name for one in await app.jobs.list()] == ["billing.daily"]
        assert await app.runs.list() == []
        with pytest.raises(UnknownJob):
            await app.jobs.pause("mail.daily")
        with pytest.raises(UnknownRun):
            await app.runs.cancel(run.id)
        with pytest.raises(Forbidden):
            await app.jobs.add("theirs", schedule="0 9 * * *", queue="mail")
        with pytest.raises(Forbidden):
            await app.jobs.update("billing.daily", queue="mail")
        with pytest.raises(Forbidden):
            await app.queues.pause("mail")
        with pytest.raises(Forbidden):
            await app.jobs.add_many([{"name": "x", "schedule": "0 9 * * *", "queue": "mail"}])
        await app.jobs.pause("billing.daily")
    finally:
        ACTOR.reset(token)
    assert [(one.actor, one.action, one.name) for one in await app.audit.list(limit=1)] == [
        ("limited", "job.pause", "billing.daily")
    ]


async def test_each_job_of_a_bulk_is_on_record(app: Hourhand) -> None:
    await app.jobs.add("old", schedule="0 9 * * *")
    await app.jobs.add("same", schedule="0 9 * * *")
    many = [{"name": name, "schedule": "0 10 * * *"} for name in ("old", "new")]
    await app.jobs.add_many([*many, {"name": "same", "schedule": "0 9 * * *"}], replace=True)
    (update,) = await app.audit.list(subject="old", action="job.update")
    assert (update.before["schedule"], update.after["schedule"]) == ("0 9 * * *", "0 10 * * *")
    (added,) = await app.audit.list(subject="new")
    assert (added.action, added.before, added.after["schedule"], added.queue) == ("job.add", None, "0 10 * * *", "default")
    assert [one.action for one in await app.audit.list(subject="same")] == ["job.add"]
    await app.jobs.add_many({"name": f"many-{number}", "schedule": "0 9 * * *"} for number in range(3))
    (bulk,) = await app.audit.list(action="jobs.add")
    assert bulk.after == {"added": 3, "replaced": 0, "unchanged": 0}


async def test_a_name_that_looks_like_an_id_is_refused_and_an_id_is_one(
    app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    first = await app.jobs.add("first", schedule="0 9 * * *")
    with pytest.raises(InvalidOption, match="looks like a job's id"):
        await app.jobs.add(first.job_id, schedule="0 9 * * *")
    # One that was there before such names were refused.
    await app.jobs.add("second", schedule="0 9 * * *")
    await sql.execute(f"UPDATE {schema}.jobs SET name = $1 WHERE name = 'second'", first.job_id)
    assert (await app.jobs.show(first.job_id)).name == "first"


async def test_what_is_said_about_keys_is_for_admins(app: Hourhand) -> None:
    await app.keys.create("ops", role="admin")
    await app.jobs.add("job", schedule="0 9 * * *")
    token = ACTOR.set(Actor("viewer", "api", "viewer"))
    try:
        assert [one.action for one in await app.audit.list()] == ["job.add"]
    finally:
        ACTOR.reset(token)
    assert [one.action for one in await app.audit.list()] == ["job.add", "key.create"]


async def test_the_log_can_only_be_added_to(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    await app.jobs.add("job", schedule="0 9 * * *")
    for statement in ("UPDATE {}.audit SET actor = 'somebody else'", "DELETE FROM {}.audit", "TRUNCATE {}.audit"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="only be added to"):
            await sql.execute(statement.format(schema))
    assert len(await app.audit.list()) == 1
