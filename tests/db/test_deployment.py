"""Declared jobs: in force when the code is deployed, and only then."""

from __future__ import annotations

import asyncpg
import pytest

from hourhand import ConfigurationError, Hourhand, InvalidPayload, InvalidSchedule
from hourhand.core.errors import InvalidOption
from tests.db.test_worker import working
from tests.support.fleet import until

pytestmark = pytest.mark.once


def version(url: str, schema: str, *jobs: tuple[str, str], name: str = "shop") -> Hourhand:
    """An app whose code declares these jobs."""
    app = Hourhand(url, name=name, schema=schema, lease=3.0, grace=0.5, poll=1.0)

    @app.task
    async def work() -> None: ...

    for job, expression in jobs:
        app.cron(expression, name=job)(work)
    return app


async def test_declared_jobs_are_added_changed_and_removed(url: str, schema: str) -> None:
    one = version(url, schema, ("a", "0 * * * *"), ("b", "0 9 * * *"))
    two = version(url, schema, ("b", "0 10 * * *"), ("c", "0 1 * * *"))
    async with one, two:
        await one.jobs.add("dynamic", task="work", schedule="@daily")
        done = await one.deployment.apply()
        assert (done.added, done.changed, done.removed) == (("a", "b"), (), ())
        before = await one.jobs.show("b")
        again = await one.deployment.apply()
        assert (again.applied, again.reason) == (False, "in force already")
        done = await two.deployment.apply()
        assert (done.added, done.changed, done.removed) == (("c",), ("b",), ("a",))
        after = await two.jobs.show("b")
        assert (after.job_id, after.schedule, after.declared_by) == (before.job_id, "0 10 * * *", "shop")
        assert [job.name for job in await one.jobs.list()] == ["b", "c", "dynamic"]


async def test_a_version_that_leaves_the_schedule_alone_keeps_the_pending_firing(url: str, schema: str) -> None:
    one = Hourhand(url, name="shop", schema=schema)
    two = Hourhand(url, name="shop", schema=schema)

    @one.every("90s", payload={"n": 1})
    async def work(n: int) -> None: ...

    two.every(90, payload={"n": 2}, name="work")(two.task(name="work")(work.__wrapped__))
    async with one, two:
        await one.deployment.apply()
        before = await one.jobs.show("work")
        assert (await two.deployment.apply()).changed == ("work",)
        after = await two.jobs.show("work")
        assert (after.payload, after.anchor, after.next_run_at, after.active_since) == (
            {"n": 2}, before.anchor, before.next_run_at, before.active_since
        )  # fmt: skip


async def test_an_old_process_that_restarts_changes_nothing_and_a_rollback_works(
    url: str, sql: asyncpg.Connection, schema: str
) -> None:
    old = version(url, schema, ("a", "0 * * * *"))
    new = version(url, schema, ("a", "30 * * * *"), ("b", "0 9 * * *"))
    async with old, new:
        await old.deployment.apply()
        assert (await new.deployment.apply()).applied
        assert not (await old.deployment.apply()).applied, "deployed by command before its processes have come"
        async with working(new, labels=new.deployment.labels):
            assert (await new.deployment.apply()).reason == "in force already"
            refused = await old.deployment.apply()
            assert not refused.applied
            assert "newer version" in refused.reason
            assert (await old.jobs.show("a")).schedule == "30 * * * *"
            assert (await old.deployment.apply(force=True)).removed == ("b",), "unless it is forced"
            assert (await new.deployment.apply(force=True)).applied
            assert (await new.deployment.apply()).reason == "in force already"
        back = await old.deployment.apply()
        assert (back.changed, back.removed) == (("a",), ("b",)), "the new ones are gone: this is a rollback"


async def test_a_worker_brings_its_jobs_into_force(url: str, sql: asyncpg.Connection, schema: str) -> None:
    import asyncio

    app = version(url, schema, ("a", "0 * * * *"))
    async with app:
        work = asyncio.create_task(app.work(handle_signals=False))

        async def there() -> bool:
            return [job.name for job in await app.jobs.list()] == ["a"]

        await until(there, "the declared job")
        info = await sql.fetchval(f"SELECT info->>'app' FROM {schema}.nodes")
        assert info == "shop"
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def test_apps_do_not_touch_each_others_jobs(url: str, schema: str) -> None:
    shop = version(url, schema, ("a", "0 * * * *"))
    billing = version(url, schema, ("b", "0 * * * *"), ("mine", "0 * * * *"), name="billing")
    async with shop, billing:
        await shop.jobs.add("mine", task="work", schedule="@daily")
        await shop.deployment.apply()
        done = await billing.deployment.apply()
        assert (done.added, done.removed, done.refused) == (("b",), (), ("mine",))
        assert (await shop.jobs.show("mine")).schedule == "0 0 * * *", "a job that was added otherwise is not taken over"
        await shop.jobs.delete("mine")
        assert (await billing.deployment.apply()).added == ("mine",), "tried again until the name is free"
        nothing = version(url, schema, name="another")
        async with nothing:
            assert not (await nothing.deployment.apply()).applied


async def test_paused_jobs_stay_paused_over_a_deployment(url: str, schema: str) -> None:
    one, two = version(url, schema, ("a", "0 * * * *")), version(url, schema, ("a", "30 * * * *"))
    async with one, two:
        await one.deployment.apply()
        await one.jobs.pause("a")
        await two.deployment.apply()
        assert (await two.jobs.show("a")).state == "paused"


def test_declarations_are_checked_when_they_are_made(url: str) -> None:
    app = Hourhand(url)

    async def work(n: int) -> None: ...

    with pytest.raises(InvalidSchedule):
        app.cron("0 0 30 2 *")(work)
    with pytest.raises(InvalidPayload, match="missing argument"):
        app.cron("@daily")(work)
    with pytest.raises(InvalidOption, match="has no 'colour'"):
        app.cron("@daily", colour="red")(work)
    made = app.cron("@daily", payload={"n": 1}, task={"queue": "q", "timeout": 5})(work)
    assert app.registry.tasks["work"].queue == "q"
    app.every("5m", payload={"n": 2}, name="often")(made)
    assert set(app.registry.jobs) == {"work", "often"}
    with pytest.raises(ConfigurationError, match="two jobs are declared"):
        app.every("6m", payload={"n": 2}, name="often")(made)
    with pytest.raises(ConfigurationError, match="a task already"):
        app.cron("@daily", payload={"n": 1}, task={"queue": "q"}, name="x")(made)


def test_an_app_is_named_after_its_module(url: str) -> None:
    assert Hourhand(url).name == __name__
    assert Hourhand(url, name="other").name == "other"
    with pytest.raises(ConfigurationError, match="cannot be the name"):
        Hourhand(url, name="not a name")


async def test_a_declared_job_whose_end_is_past_stops_nobody(url: str, schema: str) -> None:
    app = version(url, schema, ("a", "0 * * * *"))
    app.cron("@daily", name="over", end_at="2020-01-01T00:00:00Z")(app.task(name="other")(_nothing))
    async with app:
        assert (await app.deployment.apply()).added == ("a",)
        assert (await app.deployment.apply()).reason == "in force already"


async def _nothing() -> None: ...
