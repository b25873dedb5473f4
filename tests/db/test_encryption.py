"""Encrypted payloads on a real database: nothing can be read in any table, everything runs, and keys can be changed."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from hourhand import ConfigurationError, Context, Hourhand, JobConflict, NotPossible
from hourhand.core import ids
from hourhand.core.chain import Step
from hourhand.core.payload import MAX_PAYLOAD
from hourhand.core.sealing import Sealer, kid_of
from tests.db.test_cli import Command, hourhand
from tests.db.test_worker import working
from tests.support.api import ADMIN, ApiProcess, Client
from tests.support.confidential import ONCE, declare, traces
from tests.support.fleet import until
from tests.support.outside import row

pytestmark = pytest.mark.once

__all__ = ["hourhand"]
K1, K2 = f"k1:{base64.b64encode(b'1' * 32).decode()}", f"k2:{base64.b64encode(b'2' * 32).decode()}"
BOTH = f"{K2},{K1}"
WORD = "unforgettable"
YEARLY = "0 0 1 1 *"


@asynccontextmanager
async def holding(url: str, schema: str, keys: str | None, **settings: Any) -> AsyncIterator[Hourhand]:
    """An app that has these keys."""
    app = Hourhand(url, schema=schema, encryption_keys=keys, lease=3.0, grace=0.5, poll=1.0, **settings)

    @app.task(name="keep", retry=ONCE)
    async def keep(word: str, result: Any = None) -> int:
        assert word.startswith(WORD)
        return len(word)

    async with app:
        yield app


async def kids(sql: asyncpg.Connection, schema: str, table: str) -> list[str | None]:
    return [kid_of(json.loads(one["payload"])) for one in await sql.fetch(f"SELECT payload FROM {schema}.{table} ORDER BY 1")]


def keep(app: Hourhand, **options: Any) -> Any:
    from hourhand import Task
    from hourhand.core.options import EnqueueOptions

    definition = app.registry.find("keep")
    assert definition is not None
    return Task(app, definition, EnqueueOptions()).options(**options)


# Every way in


async def test_whatever_is_written_is_sealed(url: str, schema: str, sql: asyncpg.Connection) -> None:
    async with holding(url, schema, BOTH) as app:
        await keep(app).enqueue(word=WORD)
        await keep(app, key="k", tags=["t"]).enqueue(word=WORD)
        await keep(app, delay=3600).enqueue(word=WORD)
        await app.enqueue(
            "elsewhere",
            {"word": WORD},
            then=Step("elsewhere", {"word": WORD}, options={"then": Step("x", {"word": WORD}).plain()}),
        )
        await keep(app, then=keep(app).step(word=WORD)).enqueue_many([{"word": WORD}] * 3)
        await asyncio.to_thread(keep(app).enqueue_sync, word=WORD)
        connection = await asyncpg.connect(url)
        async with connection.transaction():
            await keep(app, connection=connection).enqueue(word=WORD)
            await keep(app, connection=connection).enqueue_many([{"word": WORD}])
            await app.jobs.add("in-a-transaction", task="keep", schedule=YEARLY, payload={"word": WORD}, connection=connection)
        await connection.close()

        def others() -> None:
            with psycopg.connect(url) as other:
                keep(app, connection=other).enqueue_sync(word=WORD)
                app.jobs.add_sync("by-psycopg", task="keep", schedule=YEARLY, payload={"word": WORD}, connection=other)
                app.jobs.trigger_sync("by-psycopg", payload={"word": WORD}, connection=other)

        await asyncio.to_thread(others)
        await app.jobs.add("one", task="keep", schedule=YEARLY, payload={"word": WORD}, then=keep(app).step(word=WORD))
        await app.jobs.update("one", payload={"word": f"{WORD} too"})
        bulk = [
            {"name": name, "task": "keep", "schedule": YEARLY, "payload": {"word": f"{WORD} {name}"}, "then": "x"}
            for name in ("one", "two")
        ]
        assert (await app.jobs.add_many(bulk, replace=True)).replaced == 1
        app.every("1h", name="declared", payload={"word": WORD})(keep(app))
        assert (await app.deployment.apply()).added == ("declared",)
        await app.jobs.trigger("one", payload={"word": WORD})
        await app.jobs.trigger("two")
        past = datetime.now(UTC) - timedelta(days=800)
        assert len((await app.jobs.backfill("two", past, datetime.now(UTC))).runs) == 2
        assert await traces(sql, schema, WORD) == set()
        for table in ("ready", "delayed", "jobs"):
            assert set(await kids(sql, schema, table)) == {"k2"}
        assert (await app.jobs.show("two")).payload == {"word": f"{WORD} two"}
        assert (await app.jobs.show("one")).then == ("x",)


async def test_what_was_sealed_runs_and_nothing_is_left_in_the_open(url: str, schema: str, sql: asyncpg.Connection) -> None:
    async with holding(url, schema, K1) as app:
        keys: list[str] = []

        @app.task(delivery="exactly_once")
        async def once(ctx: Context, word: str) -> None:
            keys.append(ctx.idempotency_key)
            await keep(app).enqueue(word=word)

        declare(app)
        async with working(app, reference="tests.support.confidential:app"):
            assert await (await keep(app).enqueue(word=WORD)).result(20) == len(WORD)
            await app.jobs.add(
                "templated", task="once", schedule=YEARLY, payload={"word": WORD}, idempotency_key_template="x-{{payload.word}}"
            )
            await app.jobs.trigger("templated")
            apart = await (await app.enqueue("tell_apart", {"card": {"number": f"4{WORD}"}, "password": WORD})).wait(30)
            thread = await (await app.enqueue("tell_in_a_thread", {"card": {"number": f"4{WORD}"}, "password": WORD})).wait(30)

            async def done() -> bool:
                return await sql.fetchval(f"SELECT count(*) FROM {schema}.runs WHERE outcome = 'succeeded'") == 3

            await until(done, "three successes")
        assert keys == [f"x-{WORD}"]
        assert (apart.state, thread.state) == ("dead", "dead")
        assert "[redacted]" in apart.errors[0]["traceback"]
        edited = await app.dead.edit(apart.run_id, {"card": {"number": "[redacted]", "name": WORD}, "password": "[redacted]"})
        assert edited.payload == {"card": {"number": f"4{WORD}", "name": WORD}, "password": WORD}
        assert await traces(sql, schema, WORD) == set()
        assert (await app.audit.list(action="dead.edit"))[0].after == {"payload": "[encrypted]"}
        (added,) = await app.audit.list(action="job.add")
        assert added.after["payload"] == "[encrypted]"


async def test_a_chain_passes_its_result_beside_the_seal(url: str, schema: str, sql: asyncpg.Connection) -> None:
    got: list[Any] = []
    async with holding(url, schema, K1) as app:

        @app.task
        async def last(result: int, word: str) -> None:
            got.append((result, len(word)))

        large = WORD + "x" * (MAX_PAYLOAD - 500)
        chain = keep(app, then=keep(app, then=last.step(word=large)).step(word=large))
        async with working(app):
            await chain.enqueue(word=WORD)

            async def done() -> bool:
                return bool(got)

            await until(done, "the last step")
        assert got == [(len(large), len(large))]
        assert await traces(sql, schema, WORD) == set()
        newest = (await app.runs.list(task="last"))[0]
        assert (await app.runs.show(newest.run_id)).payload == {"word": large, "result": len(large)}


async def test_plain_payloads_of_others_run_as_well(url: str, schema: str, sql: asyncpg.Connection) -> None:
    async with holding(url, schema, K1) as app, working(app):
        number = await sql.fetchval(f"SELECT run_id FROM {schema}.enqueue('keep', $1)", json.dumps({"word": WORD}))

        async def done() -> bool:
            return (await app.runs.show(number)).state == "succeeded"

        await until(done, "its success")


# What does not open


async def test_without_the_key_a_run_waits_among_the_dead_until_the_key_is_there(
    url: str, schema: str, sql: asyncpg.Connection
) -> None:
    async with holding(url, schema, K2) as app:
        handles = [await keep(app).enqueue(word=WORD), await keep(app, delivery="at_most_once").enqueue(word=WORD)]
    for keys in (K1, None):
        async with holding(url, schema, keys) as app, working(app):
            for handle in handles:

                async def dead(run_id: str = handle.id, app: Hourhand = app) -> bool:
                    return (await app.runs.show(run_id)).state == "dead"

                await until(dead, "its death")
                run = await app.dead.show(handle.id)
                assert run.reason == "not worth another attempt: PayloadUnreadable" or "of 1 attempts" in str(run.reason)
                assert "encrypted with key 'k2', which this process does not have" in run.errors[-1]["message"]
                assert run.payload == "[encrypted with key k2]"
        await sql.execute(f"UPDATE {schema}.dead SET died_at = died_at - interval '1 second'")
        if keys:
            async with holding(url, schema, keys) as app:
                await app.dead.replay(*(handle.id for handle in handles))
    async with holding(url, schema, BOTH) as app, working(app):
        assert len((await app.dead.replay()).replayed) == 2
        for handle in handles:

            async def done(run_id: str = handle.id, app: Hourhand = app) -> bool:
                return (await app.runs.show(run_id)).state == "succeeded"

            await until(done, "its success")


@pytest.mark.parametrize("how", ["another task", "a changed seal", "a field beside it"])
async def test_what_was_tampered_with_does_not_run(url: str, schema: str, sql: asyncpg.Connection, how: str) -> None:
    ran: list[str] = []
    async with holding(url, schema, K1) as app:

        @app.task
        async def other(word: str) -> None:
            ran.append(word)

        run = await keep(app).enqueue(word=WORD)
        change = {
            "another task": "task = 'other'",
            "a changed seal": """payload = jsonb_set(payload, '{$sealed,data}',
                    to_jsonb(CASE WHEN payload->'$sealed'->>'data' ^@ 'A' THEN 'B' ELSE 'A' END || substr(payload->'$sealed'->>'data', 2)))""",
            "a field beside it": """payload = payload || '{"word": "mine"}'""",
        }[how]
        await sql.execute(f"UPDATE {schema}.ready SET {change}")
        async with working(app):

            async def dead() -> bool:
                return (await app.runs.show(run.id)).state == "dead"

            await until(dead, "its death")
        letter = await app.dead.show(run.id)
        assert letter.errors[0]["type"] == "PayloadUnreadable"
        assert "changed" in letter.errors[0]["message"]
        assert "does not open" in str(letter.payload)
    assert ran == []


async def test_a_job_can_be_run_without_its_key_but_not_changed(url: str, schema: str, sql: asyncpg.Connection) -> None:
    async with holding(url, schema, K2) as app:
        await app.jobs.add("one", task="keep", schedule=YEARLY, payload={"word": WORD}, then=keep(app).step(word=WORD))
    async with holding(url, schema, None) as app:
        assert (await app.jobs.show("one")).payload == "[encrypted with key k2]"
        await app.jobs.pause("one")
        await app.jobs.resume("one")
        assert (await app.jobs.trigger("one")).outcome == "started"
        with pytest.raises(NotPossible, match="encrypted with key 'k2', which this process does not have"):
            await app.jobs.update("one", schedule="0 0 2 1 *")
        assert (await app.jobs.update("one", payload={"word": f"{WORD} in the open"})).payload == {"word": f"{WORD} in the open"}
        options = await sql.fetchval(f"SELECT options FROM {schema}.jobs")
        assert kid_of(json.loads(options)["then"]["payload"]) == "k2"
    async with holding(url, schema, BOTH) as app:
        await app.jobs.update("one", schedule="0 0 2 1 *")
        assert await kids(sql, schema, "jobs") == ["k2"]


# The same definition


@pytest.mark.parametrize("before", [None, K1, BOTH], ids=["plain", "an older key", "the same key"])
async def test_the_same_job_again_changes_nothing_whatever_it_was_sealed_with(
    url: str, schema: str, sql: asyncpg.Connection, before: str | None
) -> None:
    about: dict[str, Any] = {"task": "keep", "schedule": YEARLY, "payload": {"word": WORD, "result": 1.5}}
    async with holding(url, schema, before) as app:
        await app.jobs.add("one", **about, then=keep(app).step(word=WORD))
        app.every("1h", name="declared", payload={"word": WORD})(keep(app))
        await app.deployment.apply()
    was = await sql.fetch(f"SELECT * FROM {schema}.jobs ORDER BY id")
    async with holding(url, schema, BOTH) as app:
        about["then"] = keep(app).step(word=WORD)
        for replace in (False, True):
            assert (await app.jobs.add("one", **about, replace=replace)).outcome == "unchanged"
        assert (await app.jobs.update("one", payload=about["payload"])).outcome == "unchanged"
        assert (await app.jobs.add_many([{"name": "one", **about}])).unchanged == 1
        app.every("1h", name="declared", payload={"word": WORD})(keep(app))
        assert (await app.deployment.apply()).reason == "in force already"
        forced = await app.deployment.apply(force=True)
        assert (forced.added, forced.changed) == ((), ())
        assert await sql.fetch(f"SELECT * FROM {schema}.jobs ORDER BY id") == was
        for other in (
            {**about, "payload": {"word": f"{WORD}!"}},
            {**about, "then": keep(app).step(word=f"{WORD}!")},
            {**about, "tags": ["x"]},
        ):
            with pytest.raises(JobConflict):
                await app.jobs.add("one", **other)
            assert (await app.jobs.add("one", **other, replace=True)).outcome == "replaced"
        assert set(await kids(sql, schema, "jobs")) <= {"k2", before and before[:2]}
        assert (await app.jobs.show("one")).payload == about["payload"]


async def test_who_only_opens_finds_the_same_job_too(url: str, schema: str, sql: asyncpg.Connection) -> None:
    async with holding(url, schema, K1) as app:
        await app.jobs.add("one", task="keep", schedule=YEARLY, payload={"word": WORD})
        run = await keep(app, delay=3600).enqueue(word=WORD)
    async with holding(url, schema, f"plain,{K1}") as app:
        assert (await app.jobs.add("one", task="keep", schedule=YEARLY, payload={"word": WORD})).outcome == "unchanged"
        assert await kids(sql, schema, "jobs") == ["k1"]
        assert (await app.runs.show(run.id)).payload == {"word": WORD}
        assert (await app.jobs.update("one", schedule="0 0 2 1 *")).payload == {"word": WORD}
        assert await kids(sql, schema, "jobs") == [None]


async def test_many_who_add_the_same_job_at_once_all_find_it_there(url: str, schema: str) -> None:
    async with holding(url, schema, K1) as app:
        adding = [app.jobs.add("one", task="keep", schedule=YEARLY, payload={"word": WORD}) for _ in range(12)]
        outcomes = [view.outcome for view in await asyncio.gather(*adding)]
    assert sorted(map(str, outcomes)) == ["added", *["unchanged"] * 11]


# Changing the key


async def everywhere(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    """A sealed payload, and a chain, in every table."""
    chained = keep(app, then=keep(app).step(word=WORD))
    await app.jobs.add("one", task="keep", schedule=YEARLY, payload={"word": WORD}, then=keep(app).step(word=WORD))
    for queue in ("ready", "ready-2", "dead", "runs", "parked", "running"):
        await chained.options(queue=queue).enqueue(word=WORD)
    await chained.options(delay=3600).enqueue(word=WORD)
    lane = f"(SELECT id * 4 + 1 FROM {schema}.queues WHERE name = '%s')"
    columns = "run_id, scheduled_at, lane, attempt, task, payload, options"
    for table, more, values in (
        ("dead", "died_at", "now()"), ("runs", "finished_at, outcome", "now(), 'cancelled'"), ("parked", "seq", "seq"),
        ("running", "worker_id, token, claimed_at, seq, crashes", "999, 1, now(), seq, 0"),
    ):  # fmt: skip
        await sql.execute(
            f"""WITH gone AS (DELETE FROM {schema}.ready WHERE lane = {lane % table} RETURNING *)
                INSERT INTO {schema}.{table} ({more}, {columns}) SELECT {values}, {columns} FROM gone"""
        )


async def places(app: Hourhand, history: bool = True) -> dict[str, dict[str | None, int]]:
    found: dict[str, dict[str | None, int]] = {}
    for one in await app.encryption.status(history=history):
        found.setdefault(one.place, {})[one.kid] = one.payloads
    return found


@pytest.mark.parametrize("before", [None, K1], ids=["plain", "an older key"])
async def test_rotation_seals_everything_with_the_newest_key(
    url: str, schema: str, sql: asyncpg.Connection, before: str | None
) -> None:
    old = None if before is None else "k1"
    async with holding(url, schema, before) as app:
        await everywhere(app, sql, schema)
        every = {"jobs": 2, "ready": 4, "delayed": 2, "parked": 2, "dead": 2, "history": 2, "running": 2}
        assert await places(app) == {place: {old: count} for place, count in every.items()}
    async with holding(url, schema, BOTH) as app:
        told: list[int] = []
        kept = await app.encryption.rotate(history=False, progress=told.append)
        assert (kept.key, kept.resealed, kept.unreadable, told[-1]) == ("k2", 6, 0, 6)
        assert (await places(app))["history"] == {old: 2}
        done = await app.encryption.rotate()
        assert (done.resealed, [(one.place, one.kid, one.payloads) for one in done.left]) == (1, [("running", old, 2)])
        assert await places(app) == {place: {old if place == "running" else "k2": count} for place, count in every.items()}
        assert (await app.encryption.rotate()).resealed == 0
    async with holding(url, schema, K2) as app:
        assert (await app.jobs.show("one")).payload == {"word": WORD}
        for one in await app.runs.list(state=["ready", "delayed", "parked", "dead", "cancelled"], limit=100):
            run = await app.runs.show(one.run_id)
            assert run.payload == {"word": WORD}
            assert run.options is not None
            assert run.options["then"]["payload"] == {"word": WORD}
        async with working(app):

            async def done_all() -> bool:
                return await sql.fetchval(f"SELECT count(*) FROM {schema}.runs WHERE outcome = 'succeeded'") == 6

            await until(done_all, "three chains of two")


async def test_what_is_locked_or_cannot_be_opened_is_left_and_said(url: str, schema: str, sql: asyncpg.Connection) -> None:
    async with holding(url, schema, K1) as app:
        await keep(app, delay=3600).enqueue(word=WORD)
        await keep(app, delay=3600).enqueue(word=WORD)
    other = f"k3:{base64.b64encode(b'3' * 32).decode()}"
    async with holding(url, schema, other) as app:
        await keep(app, delay=3600).enqueue(word=WORD)
    async with holding(url, schema, BOTH) as app:
        async with sql.transaction():
            await sql.execute(f"SELECT FROM {schema}.delayed WHERE payload->'$sealed'->>'kid' = 'k1' LIMIT 1 FOR UPDATE")
            done = await app.encryption.rotate()
            assert (done.resealed, done.unreadable) == (1, 1)
            assert [(one.kid, one.payloads) for one in done.left] == [("k1", 1), ("k3", 1)]
        assert (await app.encryption.rotate()).resealed == 1
    async with holding(url, schema, None) as app:
        with pytest.raises(ConfigurationError, match="no key to encrypt with"):
            await app.encryption.rotate()


async def test_rotation_walks_over_many_windows(url: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hourhand.storage.sealing.WINDOW", 7)
    async with holding(url, schema, K1) as app:
        await keep(app).enqueue_many([{"word": WORD}] * 40)
        await keep(app, queue="other").enqueue_many([{"word": WORD}] * 3)
        await keep(app, delay=3600).enqueue_many([{"word": WORD}] * 15)
    async with holding(url, schema, BOTH) as app:
        done = await app.encryption.rotate()
        assert (done.resealed, done.left) == (58, ())


async def test_rotation_beside_workers_loses_nothing(url: str, schema: str, sql: asyncpg.Connection) -> None:
    async with holding(url, schema, K1) as app:
        await keep(app).enqueue_many([{"word": WORD}] * 3_000)
    async with holding(url, schema, BOTH) as app:
        async with working(app):
            while await sql.fetchval(f"SELECT count(*) FROM {schema}.runs") < 3_000:
                await app.encryption.rotate()
        assert await sql.fetchval(f"SELECT count(*) FROM {schema}.runs WHERE outcome = 'succeeded'") == 3_000
        await app.encryption.rotate()
        assert await places(app) == {"history": {"k2": 3_000}}


# Commands


async def test_the_commands(hourhand: Command, url: str, schema: str, sql: asyncpg.Connection, tmp_path: Path) -> None:
    made = await hourhand("encryption", "new-key", "--id", "k9")
    assert made.code == 0
    key = made.out.strip()
    assert Sealer(key).kid == "k9"
    assert (await hourhand("encryption", "new-key")).out != (await hourhand("encryption", "new-key")).out
    async with holding(url, schema, K1) as app:
        await everywhere(app, sql, schema)
        run_id = (await app.dead.list())[0].run_id
    status = await hourhand("encryption", "status")
    assert "delayed      k1" in status.out
    shown = await hourhand("runs", "show", run_id, "--json")
    assert shown.json["payload"] == "[encrypted with key k1]"
    assert "[encrypted with key k1]" in (await hourhand("jobs", "show", "one")).out
    assert (await hourhand("jobs", "update", "one", "--schedule", "0 0 3 1 *")).code == 4
    assert (await hourhand("dead", "edit", run_id, EDITOR="true")).code == 4
    none = await hourhand("encryption", "rotate")
    assert (none.code, none.out) == (2, "")
    keys = f"{key},{K1}"
    rotated = await hourhand("encryption", "rotate", HOURHAND_ENCRYPTION_KEYS=keys)
    assert (rotated.code, rotated.out) == (4, "7 rows encrypted with k9\n")
    assert "2 of running (k1)" in rotated.err
    await sql.execute(f"DELETE FROM {schema}.running")
    again = await hourhand("encryption", "rotate", "--json", HOURHAND_ENCRYPTION_KEYS=keys)
    assert (again.code, again.json) == (0, {"key": "k9", "resealed": 0, "left": [], "unreadable": 0})
    counts = (await hourhand("encryption", "status", "--json", HOURHAND_ENCRYPTION_KEYS=key)).json
    assert counts["key"] == "k9"
    assert {one["kid"] for one in counts["payloads"]} == {"k9"}
    opened = await hourhand("runs", "show", run_id, "--json", HOURHAND_ENCRYPTION_KEYS=key)
    assert opened.json["payload"] == {"word": WORD}
    bad = await hourhand("runs", "list", HOURHAND_ENCRYPTION_KEYS="k1:c2hvcnQ=")
    assert (bad.code, "c2hvcnQ" in bad.err) == (2, False)
    assert ids.parse_run_id(run_id) == (await row(sql, schema, run_id))["run_id"]


# The API


async def test_the_api_leaves_nothing_in_the_open_either(url: str, schema: str, sql: asyncpg.Connection, tmp_path: Path) -> None:
    api = await ApiProcess(url, schema, tmp_path, HOURHAND_ENCRYPTION_KEYS=K1).started()
    try:
        async with Client(api.base, ADMIN) as client:
            once = {"Idempotency-Key": "one"}
            job = {"name": "one", "task": "keep", "schedule": YEARLY, "payload": {"word": WORD, "password": "hunter22"}}
            first, again = [await client.post("jobs", job, headers=once) for _ in range(2)]
            assert first.ok(201)["payload"] == {"word": WORD, "password": "[redacted]"}
            assert (again.body, again.headers["Idempotency-Replayed"]) == (first.body, "true")
            run = (await client.post("runs", {"task": "keep", "payload": job["payload"], "delay_seconds": 3600})).ok(201)
            shown = (await client.get(f"runs/{run['run_id']}")).ok()
            assert shown["payload"] == {"word": WORD, "password": "[redacted]"}
        assert await traces(sql, schema, WORD) == set()
        # A bytea is shown in hexadecimal.
        assert await traces(sql, schema, WORD.encode().hex()) == set()
        assert await traces(sql, schema, b"kid".hex()) == {"requests.body"}
    finally:
        print(api.news())
        api.stop()
