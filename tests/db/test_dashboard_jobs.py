"""Pages of jobs, and what a page about one job reads: all of it found, each once, within what the caller may see, by a bounded look."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.core import ids
from hourhand.core.actor import ACTOR, Actor
from hourhand.core.errors import InvalidOption, UnknownQueue
from hourhand.storage.migrate import migrate
from hourhand.surfaces.job_lists import JobPage

pytestmark = pytest.mark.once

MANY = 3_000
SOON = datetime(2090, 1, 1, tzinfo=UTC)


def definition(number: int) -> dict[str, Any]:
    """Every seventh shares a schedule with all of its kind; of the others, each has one that few have."""
    schedule = "0 5 * * *" if number % 7 == 0 else f"{number % 60} {number // 60 % 24} * * *"
    return {
        "name": f"{('alpha', 'Beta', 'gamma')[number % 3]}-{number * 7919 % 100_000:05}", "schedule": schedule,
        "task": f"task_{number % 10}", "queue": f"queue-{number % 4}", "tags": ["rare"] if number % 500 == 0 else [],
    }  # fmt: skip


JOBS = [definition(number) for number in range(MANY)]
PAUSED = [job["name"] for job in JOBS[::100]]


@pytest.fixture(scope="module")
def filled(url: str) -> Iterator[str]:
    """A schema with jobs that no test changes."""
    schema = "t_pages_of_jobs"

    async def prepare() -> None:
        sql = await asyncpg.connect(url)
        await sql.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        await migrate(sql, schema)
        async with Hourhand(url, schema=schema) as app:
            await app.jobs.add_many(JOBS)
            for name in PAUSED:
                await app.jobs.pause(name)
            await app.jobs.add(
                "over", schedule=(datetime.now(UTC) + timedelta(hours=1)).isoformat(), task="task_0", queue="queue-0"
            )
        await sql.execute(f"UPDATE {schema}.schedules SET next_run_at = NULL WHERE kind = 'once'")
        await sql.close()

    async def drop() -> None:
        sql = await asyncpg.connect(url)
        await sql.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        await sql.close()

    asyncio.run(prepare())
    yield schema
    asyncio.run(drop())


@pytest.fixture
async def app(url: str, filled: str) -> AsyncIterator[Hourhand]:
    async with Hourhand(url, schema=filled) as one:
        yield one


@contextmanager
def acting(**scope: Any) -> Iterator[None]:
    token = ACTOR.set(Actor("somebody", "api", "viewer", **scope))
    try:
        yield
    finally:
        ACTOR.reset(token)


async def pages(app: Hourhand, **asked: Any) -> list[JobPage]:
    found, after = [], None
    while True:
        page = await app.jobs.page(after=after, **asked)
        found.append(page)
        if page.after is None:
            return found
        assert page.after != after, "it does not get on"
        after = page.after


async def names(app: Hourhand, **asked: Any) -> list[str]:
    return [job.name for page in await pages(app, **asked) for job in page.jobs]


FILTERS: list[tuple[dict[str, str], Any]] = [
    ({}, lambda job: True),
    ({"search": "BETA-0"}, lambda job: "beta-0" in job["name"].lower()),
    ({"search": "nowhere"}, lambda job: False),
    ({"tag": "rare"}, lambda job: "rare" in job["tags"]),
    ({"task": "task_3"}, lambda job: job["task"] == "task_3"),
    ({"queue": "queue-2", "search": "9"}, lambda job: job["queue"] == "queue-2" and "9" in job["name"]),
    ({"state": "paused"}, lambda job: job["name"] in PAUSED),
    ({"state": "paused", "search": "alpha"}, lambda job: job["name"] in PAUSED and "alpha" in job["name"]),
]


@pytest.mark.parametrize("patience", [0.0, 60.0])
@pytest.mark.parametrize("sort", ["name", "newest", "next"])
@pytest.mark.parametrize(("asked", "fits"), FILTERS, ids=[str(one[0]) for one in FILTERS])
async def test_pages_have_all_that_match_once_and_in_order(
    app: Hourhand, asked: dict[str, str], fits: Any, sort: str, patience: float
) -> None:
    over = {"name": "over", "task": "task_0", "queue": "queue-0", "tags": []}
    wanted = {job["name"] for job in [*JOBS, over] if fits(job)}
    if sort == "next" and "state" not in asked:
        wanted -= {*PAUSED, "over"}
    views = [job for page in await pages(app, sort=sort, patience=patience, **asked) for job in page.jobs]
    assert len(views) == len(wanted)
    assert {job.name for job in views} == wanted
    if sort == "newest":
        numbers = [ids.parse_job_id(job.job_id) or 0 for job in views]
        assert numbers == sorted(numbers, reverse=True)
    elif sort == "next" and "state" not in asked:
        instants = [job.next_run_at or SOON for job in views]
        assert instants == sorted(instants)


async def test_jobs_of_a_state_are_those_that_say_so(app: Hourhand) -> None:
    for state, many in (("active", MANY - len(PAUSED)), ("finished", 1)):
        views = [job for page in await pages(app, state=state) for job in page.jobs]
        assert len(views) == many
        assert {job.state for job in views} == {state}


async def test_a_page_that_is_not_full_says_how_far_it_looked_and_the_next_goes_on_there(app: Hourhand) -> None:
    first = await app.jobs.page(search="nowhere", patience=0.0)
    assert (first.jobs, first.full, first.looked) == ([], False, 2_000)
    found = await pages(app, search="nowhere", patience=0.0)
    assert sum(page.looked for page in found) == MANY + 1
    assert not any(page.full for page in found)


async def test_a_full_page_ends_where_the_next_begins(app: Hourhand) -> None:
    page = await app.jobs.page(limit=10)
    assert page.full
    assert len(page.jobs) == 10
    following = await app.jobs.page(limit=10, after=page.after)
    assert [job.name for job in (await app.jobs.page(limit=20)).jobs] == [job.name for job in (*page.jobs, *following.jobs)]


@pytest.mark.parametrize("sort", ["name", "newest", "next"])
@pytest.mark.parametrize(
    ("scope", "fits"),
    [
        ({"queues": ("queue-1",)}, lambda job: job["queue"] == "queue-1"),
        ({"prefixes": ("gamma-",)}, lambda job: job["name"].startswith("gamma-")),
        ({"queues": ("queue-1",), "prefixes": ("gamma-", "alpha-1")}, lambda job: job["queue"] == "queue-1" and job["name"].startswith(("gamma-", "alpha-1"))),
        ({"queues": ()}, lambda job: False),
    ],
)  # fmt: skip
async def test_a_limited_key_pages_through_its_own_jobs_and_reads_no_other_name(
    app: Hourhand, scope: dict[str, Any], fits: Any, sort: str
) -> None:
    mine = {job["name"] for job in JOBS if fits(job)}
    with acting(**scope):
        found = await pages(app, sort=sort, patience=0.0)
        assert sorted(job.name for page in found for job in page.jobs) == sorted(mine - set(PAUSED) if sort == "next" else mine)
        others = {job["name"] for job in JOBS} - mine
        assert not others & {page.after for page in found}
        assert await app.jobs.queue_names() == ([] if "prefixes" in scope else sorted(scope["queues"]))
        if "queues" in scope:
            with pytest.raises(UnknownQueue):
                await app.jobs.page(queue="queue-3")


async def test_who_may_see_everything_sees_every_queue(app: Hourhand) -> None:
    assert await app.jobs.queue_names() == ["default", *(f"queue-{number}" for number in range(4))]


async def test_places_that_are_none(app: Hourhand) -> None:
    for asked in (
        {"sort": "newest", "after": "nobody"},
        {"sort": "next", "after": "2030-01-01_1_1"},
        {"sort": "next", "after": "x"},
        {"after": "j_zzzzzzz"},
    ):
        with pytest.raises(InvalidOption, match="begin at its start"):
            await app.jobs.page(**asked)
    for asked in ({"sort": "size"}, {"state": "asleep"}):
        with pytest.raises(InvalidOption):
            await app.jobs.page(**asked)
