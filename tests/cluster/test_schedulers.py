"""Three schedulers, five hundred jobs; one is killed every few seconds, one sleeps past its lease, clocks are wrong.

The oracle knows nothing of the product: it goes through every second and asks each job's own rule.
"""

from __future__ import annotations

import random
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.core import ring
from tests.support.fleet import Fleet, Process, until

SECOND = timedelta(seconds=1)
Rule = Callable[[datetime], bool]


@pytest.fixture
async def fleet(url: str, schema: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    one = Fleet(url, schema, tmp_path)
    yield one
    one.close()


def mixed_jobs(start: datetime, count: int) -> Iterator[tuple[str, dict[str, object], Rule]]:
    """Name, definition, and whether it is expected at a given second."""
    rng = random.Random(7)
    for n in range(count):
        kind = n % 5
        if kind == 0:
            span = rng.randint(1, 9)
            anchor = start + timedelta(seconds=rng.randint(-500, 0))
            yield f"every-{n}", {"schedule": f"every {span}s", "anchor": anchor}, _every(anchor, span)
        elif kind == 1:
            step, zone = rng.choice([2, 3, 5, 10]), rng.choice(["Asia/Kolkata", "America/St_Johns", "UTC"])
            yield f"step-{n}", {"schedule": f"*/{step} * * * * *", "timezone": zone}, _seconds(set(range(0, 60, step)))
        elif kind == 2:
            wanted = set(rng.sample(range(60), rng.randint(1, 6)))
            text = ",".join(map(str, sorted(wanted)))
            yield f"list-{n}", {"schedule": f"{text} * * * * *", "timezone": "Europe/Berlin"}, _seconds(wanted)
        elif kind == 3:
            at = start + timedelta(seconds=rng.randint(1, 25))
            yield f"once-{n}", {"schedule": at.isoformat()}, _exactly(at)
        else:
            begin, end = start + timedelta(seconds=rng.randint(0, 8)), start + timedelta(seconds=rng.randint(12, 20))
            options = {"schedule": "* * * * * *", "start_at": begin, "end_at": end}
            yield f"window-{n}", options, _between(begin, end)


def _every(anchor: datetime, span: int) -> Rule:
    return lambda at: (at - anchor).total_seconds() % span == 0


def _seconds(wanted: set[int]) -> Rule:
    return lambda at: at.second in wanted


def _exactly(moment: datetime) -> Rule:
    return lambda at: at == moment


def _between(begin: datetime, end: datetime) -> Rule:
    return lambda at: begin <= at < end


def scheduler(fleet: Fleet, bed: Path, skew: float) -> Process:
    return fleet.start("scheduler", module="tests.support.scheduler", TEST_SLEEP_AT=str(bed), TEST_SKEW=str(skew))


async def started(one: Process) -> None:
    async def says_so() -> bool:
        return "scheduler.started" in one.text()

    await until(says_so, lambda: f"the scheduler to start: {one.text()}")


async def seconds_fired(sql: asyncpg.Connection, schema: str, count: int) -> None:
    """Until so many more seconds of the schedule are in the ledger."""
    question = f"SELECT count(DISTINCT date_trunc('second', scheduled_at)) FROM {schema}.firings"
    before = await sql.fetchval(question)

    async def more() -> bool:
        return bool(await sql.fetchval(question) >= before + count)

    await until(more, f"{count} more seconds to be fired")


async def owners(sql: asyncpg.Connection, schema: str) -> dict[int, int]:
    return {row[0]: row[1] for row in await sql.fetch(f"SELECT shard, owner FROM {schema}.shards")}


async def watch_epochs(sql: asyncpg.Connection, schema: str) -> None:
    """Who had a shard under which epoch, and until when: written down by the database itself."""
    await sql.execute(
        f"CREATE TABLE {schema}.reigns (shard int, epoch bigint, owner int, at timestamptz);"
        f"CREATE FUNCTION {schema}.reign() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" INSERT INTO {schema}.reigns VALUES (NEW.shard, NEW.epoch, NEW.owner, clock_timestamp()); RETURN NULL; END $$;"
        f"CREATE TRIGGER reign AFTER UPDATE OF epoch ON {schema}.shards FOR EACH ROW EXECUTE FUNCTION {schema}.reign()"
    )


async def test_every_firing_once_through_kills_sleeps_and_wrong_clocks(
    fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str, tmp_path: Path
) -> None:
    await watch_epochs(sql, schema)
    start: datetime = await sql.fetchval("SELECT date_trunc('second', clock_timestamp()) + interval '6 seconds'")
    jobs = list(mixed_jobs(start, 500))
    # Nothing may be left out: whatever comes late fires all the same.
    options = {"task": "work", "missed_window": "RUN_ALL", "max_missed": 10_000, "misfire_grace": 3600}
    await app.jobs.add_many([{"name": name, **options, **given} for name, given, _ in jobs])
    registered: datetime = await sql.fetchval(f"SELECT max(active_since) FROM {schema}.jobs")
    assert registered < start
    skews = iter([40.0, -40.0, 0.0, 15.0, -15.0, 5.0])

    def another() -> tuple[Process, Path]:
        bed = tmp_path / f"bed-{len(fleet.processes)}"
        return scheduler(fleet, bed, next(skews)), bed

    three = [another() for _ in range(3)]
    await fleet.alive(sql, 3)
    for _ in range(3):
        await seconds_fired(sql, schema, 2)
        await sleep_past_the_lease(sql, schema, *three[0])
        await mislead(sql, schema)
        await seconds_fired(sql, schema, 1)
        three.pop(1)[0].kill()
        # The one that slept is alive again, under another name, and sleeps last.
        three = [three[1], three[0], another()]

    end: datetime = await sql.fetchval("SELECT date_trunc('second', clock_timestamp())")

    async def caught_up() -> bool:
        return not await sql.fetchval(f"SELECT count(*) FROM {schema}.schedules WHERE next_run_at <= $1", end)

    await until(caught_up, "everything up to the end to be fired")
    for one, _ in three:
        await started(one)
        one.send(signal.SIGTERM)
    for one, _ in three:
        assert await one.ended() == 0

    expected = {
        (name, at)
        for name, _, rule in jobs
        for at in (start + n * SECOND for n in range(-6, int((end - start).total_seconds()) + 1))
        if at > registered and rule(at)
    }
    rows = await sql.fetch(
        f"SELECT j.name, r.scheduled_at, r.enqueued_at FROM {schema}.ready r JOIN {schema}.jobs j ON j.id = r.job_id"
        " WHERE r.scheduled_at <= $1",
        end,
    )
    found = [(row["name"], row["scheduled_at"]) for row in rows]
    assert set(found) == expected, f"missed {sorted(expected - set(found))[:5]}, too many {sorted(set(found) - expected)[:5]}"
    assert len(found) == len(set(found)), "none twice"
    assert all(row["enqueued_at"] >= row["scheduled_at"] for row in rows), "none early, whatever the machine's clock says"
    await check_the_ledger(app, sql, schema, registered + SECOND, end + SECOND, [name for name, _, _ in jobs])
    refused = sum(
        int(count) for one in fleet.processes for count in re.findall(r"firing\.refused .*?schedules=(\d+)", one.text())
    )
    assert refused > 0, "a deposed owner tried, and was refused"
    assert not any("firing.twice" in one.text() for one in fleet.processes), "the second barrier was never needed"


async def mislead(sql: asyncpg.Connection, schema: str) -> None:
    """Hints that are wrong: schedules that are not due are said to be."""
    words = f"SELECT pg_notify('{schema}', format('s:%s:%s:%s', shard, id, extract(epoch FROM clock_timestamp())))"
    await sql.execute(f"{words} FROM {schema}.schedules WHERE next_run_at > clock_timestamp() + interval '2 seconds'")


async def sleep_past_the_lease(sql: asyncpg.Connection, schema: str, one: Process, bed: Path) -> None:
    """Asleep between plan and firing; others take its shards; it wakes up at that very moment and fires."""
    bed.touch()

    async def stopped() -> bool:
        return Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    await until(stopped, "the scheduler to fall asleep in the middle of a firing")
    node = await sql.fetchval(f"SELECT id FROM {schema}.nodes WHERE name LIKE '%:{one.pid}' ORDER BY id DESC LIMIT 1")

    async def deposed() -> bool:
        return node not in (await owners(sql, schema)).values()

    await until(deposed, "others to take its shards")
    one.send(signal.SIGCONT)


async def check_the_ledger(
    app: Hourhand, sql: asyncpg.Connection, schema: str, since: datetime, until_: datetime, names: list[str]
) -> None:
    """Every firing was made by who had the shard, under its epoch, while it had it; and every job's account is clean."""
    usurped = await sql.fetch(
        "SELECT f.schedule_id, f.scheduled_at, f.node, f.epoch, r.owner"
        f" FROM {schema}.firings f JOIN {schema}.schedules s ON s.id = f.schedule_id"
        f" LEFT JOIN {schema}.reigns r ON r.shard = s.shard AND r.epoch = f.epoch"
        f" LEFT JOIN {schema}.reigns after_ ON after_.shard = s.shard AND after_.epoch = f.epoch + 1"
        " WHERE r.owner IS DISTINCT FROM f.node OR f.fired_at > after_.at"
    )
    assert not usurped, f"fired by who no longer had the shard: {usurped[:3]}"
    for name in names:
        audit = await app.jobs.audit(name, since, until_)
        assert audit.clean, (name, audit)


async def test_a_killed_schedulers_shards_fire_again_within_seconds_and_no_others_move(
    fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    three = [fleet.start("scheduler") for _ in range(3)]
    await fleet.alive(sql, 3)

    nodes = [row[0] for row in await sql.fetch(f"SELECT id FROM {schema}.nodes")]

    async def settled() -> bool:
        # All of them: those that one of the three still owes another would move after the kill.
        return await owners(sql, schema) == {shard: ring.owner(shard, nodes) for shard in range(ring.SHARDS)}

    await until(settled, "the shards to be shared by three")
    before = await owners(sql, schema)
    lost = await sql.fetchval(f"SELECT id FROM {schema}.nodes WHERE name LIKE '%:{three[1].pid}'")
    three[1].kill()

    async def taken() -> bool:
        return lost not in (await owners(sql, schema)).values()

    await until(taken, "its shards to be taken")
    after = await owners(sql, schema)
    assert {shard for shard in before if before[shard] != after[shard]} == {shard for shard in before if before[shard] == lost}
    # In order: handed over, not waited for.
    second = await sql.fetchval(f"SELECT id FROM {schema}.nodes WHERE name LIKE '%:{three[0].pid}'")
    three[0].send(signal.SIGTERM)
    assert await three[0].ended() == 0
    assert second not in (await owners(sql, schema)).values(), "released before it ended"


def test_the_oracle_itself() -> None:
    start = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
    jobs = list(mixed_jobs(start, 500))
    assert len({name for name, _, _ in jobs}) == 500
    assert sum(rule(start + n * SECOND) for _, _, rule in jobs for n in range(30)) > 3000
