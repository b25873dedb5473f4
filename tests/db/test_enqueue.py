"""Putting runs in: what is written, what is refused, and what happens when many come at once."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import msgspec
import pytest

from hourhand import (
    DatabaseUnavailable,
    Hourhand,
    HourhandError,
    InvalidOption,
    InvalidPayload,
    PermanentFailure,
    RetryAfter,
    RunFailed,
    RunHandle,
    RunNotFinished,
    Task,
    UnknownRun,
)
from hourhand.core.errors import StatementRefused
from hourhand.core.ids import parse_run_id
from hourhand.core.options import EnqueueOptions
from hourhand.core.sealing import sealer
from hourhand.storage import enqueue as enqueue_module
from hourhand.storage.enqueue import call_arguments
from tests.db.test_worker import working
from tests.support.fleet import until, where
from tests.support.outside import everything, lane_name, listening, row, script

FUTURE = datetime(2100, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
PAST = datetime(2001, 1, 31, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def send(app: Hourhand) -> Task[Any, Any]:
    @app.task(queue="billing", priority="high")
    async def send(n: int, note: str = "") -> None:
        if note == "dead":
            raise PermanentFailure("no more")
        if note == "delayed":
            raise RetryAfter(3600)

    return send


# Where a run lands


async def test_a_plain_run_waits_in_its_tasks_lane(send: Task[Any, Any], sql: asyncpg.Connection, schema: str) -> None:
    before = await sql.fetchval("SELECT clock_timestamp()")
    handle = await send.enqueue(7, note="☃")
    after = await sql.fetchval("SELECT clock_timestamp()")
    run = await row(sql, schema, handle.id)
    assert run["table"] == "ready"
    assert run["seq"] == run["run_id"]
    assert (run["task"], msgspec.json.decode(run["payload"])) == ("send", {"n": 7, "note": "☃"})
    assert await lane_name(sql, schema, run["lane"]) == ("billing", "high")
    assert before <= run["scheduled_at"] <= after
    assert (run["attempt"], run["crashes"]) == (0, 0)
    assert {run[name] for name in ("job_id", "expires_at", "key", "tags", "options", "errors")} == {None}
    assert not handle.duplicate


By = Callable[[Hourhand, Task[Any, Any], dict[str, Any]], Awaitable[RunHandle]]


async def by_task(app: Hourhand, send: Task[Any, Any], options: dict[str, Any]) -> RunHandle:
    return await send.options(**options).enqueue(n=7)


async def by_name(app: Hourhand, send: Task[Any, Any], options: dict[str, Any]) -> RunHandle:
    return await app.enqueue("send", {"n": 7}, **options)


async def without_a_loop(app: Hourhand, send: Task[Any, Any], options: dict[str, Any]) -> RunHandle:
    def call() -> RunHandle:
        try:
            return send.options(**options).enqueue_sync(n=7)
        finally:
            app.close()

    return await asyncio.to_thread(call)


async def as_one_of_many(app: Hourhand, send: Task[Any, Any], options: dict[str, Any]) -> RunHandle:
    (run,) = await send.options(**options).enqueue_many([{"n": 7}])
    return RunHandle(app, parse_run_id(run), False)


@pytest.mark.parametrize("by", [by_task, by_name, without_a_loop, as_one_of_many], ids=lambda one: one.__name__)
async def test_every_option_ends_in_its_column(
    app: Hourhand, send: Task[Any, Any], sql: asyncpg.Connection, schema: str, by: By
) -> None:
    async def landed(**options: Any) -> dict[str, Any]:
        return await row(sql, schema, (await by(app, send, options)).id)

    run = await landed(delay=HOUR)
    assert run["table"] == "delayed"
    assert run["due_at"] == run["scheduled_at"] == run["enqueued_at"] + HOUR

    run = await landed(at=FUTURE)
    assert run["table"] == "delayed"
    assert run["due_at"] == run["scheduled_at"] == FUTURE

    for due_now in ({"at": PAST}, {"delay": 0}):
        run = await landed(**due_now)
        assert run["table"] == "ready"
        assert "at" not in due_now or run["scheduled_at"] == PAST

    run = await landed(expires=HOUR)
    assert (run["table"], run["expires_at"]) == ("ready", run["scheduled_at"] + HOUR)
    run = await landed(expires=FUTURE)
    assert (run["table"], run["expires_at"]) == ("ready", FUTURE)
    run = await landed(expires=2 * HOUR, delay=HOUR)
    assert (run["table"], run["expires_at"]) == ("delayed", run["due_at"] + HOUR)

    run = await landed(queue="other", priority="low")
    assert await lane_name(sql, schema, run["lane"]) == ("other", "low")
    run = await landed(priority="normal", delay=HOUR)
    assert await lane_name(sql, schema, run["lane"]) == ("billing", "normal")

    run = await landed(tags=["a", "b"], max_attempts=3, timeout=2.5)
    assert (run["table"], run["tags"]) == ("ready", ["a", "b"])
    assert msgspec.json.decode(run["options"]) == {"max_attempts": 3, "timeout": 2.5}

    if by is not as_one_of_many:
        run = await landed(key="k", unique_for=60, delay=HOUR, tags=["a"])
        assert (run["table"], run["key"], run["tags"]) == ("delayed", "k", ["a"])
        assert msgspec.json.decode(run["options"]) == {"unique_for": 60.0}


async def test_a_name_without_code_here_is_enqueued_unchecked_and_a_known_one_is_checked(
    app: Hourhand, send: Task[Any, Any], sql: asyncpg.Connection, schema: str
) -> None:
    run = await row(sql, schema, (await app.enqueue("elsewhere.task", {"anything": [1, None]})).id)
    assert (run["task"], msgspec.json.decode(run["payload"])) == ("elsewhere.task", {"anything": [1, None]})
    assert await lane_name(sql, schema, run["lane"]) == ("default", "normal")
    run = await row(sql, schema, (await app.enqueue("send", {"n": 1})).id)
    assert await lane_name(sql, schema, run["lane"]) == ("billing", "high")
    with pytest.raises(InvalidPayload, match="Expected `int`"):
        await app.enqueue("send", {"n": "1"})


# What is refused writes nothing

REFUSED: dict[str, tuple[type[Exception], Callable[[Hourhand, Task[Any, Any]], Awaitable[Any]]]] = {
    "missing argument": (InvalidPayload, lambda app, send: send.enqueue()),
    "unknown argument": (InvalidPayload, lambda app, send: send.enqueue(n=1, m=2)),
    "wrong type": (InvalidPayload, lambda app, send: send.enqueue(n="1")),
    "too many arguments": (InvalidPayload, lambda app, send: send.enqueue(1, "a", 3)),
    "NUL": (InvalidPayload, lambda app, send: send.enqueue(n=1, note="a\0")),
    "not a number": (InvalidPayload, lambda app, send: app.enqueue("elsewhere", {"x": [math.nan]})),
    "naive datetime": (InvalidPayload, lambda app, send: app.enqueue("elsewhere", {"at": datetime(2030, 1, 1)})),
    "an object": (InvalidPayload, lambda app, send: app.enqueue("elsewhere", {"x": object()})),
    "too large": (InvalidPayload, lambda app, send: send.enqueue(n=1, note="x" * 1024 * 1024)),
    "no mapping": (InvalidPayload, lambda app, send: app.enqueue("send", [1])),  # type: ignore[arg-type]
    "bad task name": (InvalidOption, lambda app, send: app.enqueue("no such name!")),
    "unknown option": (InvalidOption, lambda app, send: app.enqueue("send", {"n": 1}, dealy=5)),
    "bad queue": (InvalidOption, lambda app, send: app.enqueue("send", {"n": 1}, queue="a b")),
    "bad priority": (InvalidOption, lambda app, send: app.enqueue("send", {"n": 1}, priority="urgent")),
    "naive at": (InvalidOption, lambda app, send: app.enqueue("send", {"n": 1}, at=datetime(2030, 1, 1))),
    "NUL in a tag": (InvalidOption, lambda app, send: app.enqueue("send", {"n": 1}, tags=["a\0"])),
    "surrogate in the key": (InvalidOption, lambda app, send: app.enqueue("send", {"n": 1}, key="\ud83d")),
    "many with a key": (InvalidOption, lambda app, send: send.options(key="k").enqueue_many([{"n": 1}])),
    "many with one bad": (InvalidPayload, lambda app, send: send.enqueue_many([{"n": 1}, {"n": "2"}, {"n": 3}])),
    "many of no mapping": (InvalidPayload, lambda app, send: send.enqueue_many([7])),  # type: ignore[list-item]
    "many, bad and delayed": (InvalidPayload, lambda app, send: send.options(delay=60).enqueue_many([{"n": 1}, {}])),
}


async def test_whatever_is_refused_writes_nothing(
    app: Hourhand, send: Task[Any, Any], sql: asyncpg.Connection, schema: str
) -> None:
    before = await everything(sql, schema)
    for what, (error, attempt) in REFUSED.items():
        try:
            await attempt(app, send)
        except error:
            pass
        else:
            pytest.fail(f"{what} was not refused")
        assert await everything(sql, schema) == before, what


# Keys


async def test_a_taken_key_returns_the_run_that_holds_it(
    send: Task[Any, Any], app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    first = await send.options(key="invoice-7").enqueue(n=1)
    again = await send.options(key="invoice-7", delay=60, queue="other").enqueue(n=2)
    assert (first.duplicate, again.duplicate, again.id) == (False, True, first.id)
    assert "duplicate" in repr(again)
    other_key = await send.options(key="invoice-8").enqueue(n=3)
    other_task = await app.enqueue("elsewhere", key="invoice-7")
    assert not other_key.duplicate
    assert not other_task.duplicate
    counts = await where(sql, schema)
    assert (counts["ready"], counts["delayed"]) == (3, 0)
    assert msgspec.json.decode((await row(sql, schema, first.id))["payload"]) == {"n": 1}


async def test_of_many_at_once_with_one_key_one_gets_it(
    send: Task[Any, Any], url: str, sql: asyncpg.Connection, schema: str
) -> None:
    connections = await asyncio.gather(*(asyncpg.connect(url) for _ in range(16)))
    try:
        for key in ("a", "b", "c"):
            handles = await asyncio.gather(
                *(send.options(key=key, connection=one).enqueue(n=place) for place, one in enumerate(connections)),
                *(send.options(key=key).enqueue(n=place) for place in range(8)),
            )
            assert len({handle.id for handle in handles}) == 1
            assert [handle.duplicate for handle in handles].count(False) == 1
    finally:
        await asyncio.gather(*(one.close() for one in connections))
    assert (await where(sql, schema))["ready"] == 3


async def end(app: Hourhand, handle: RunHandle, how: str) -> None:
    """Bring a waiting run to where `how` says; its note tells the handler."""
    if how == "cancelled":
        assert await app.runs.cancel(handle.id) == "cancelled"
        return

    async def arrived() -> bool:
        return (await handle.show()).state == how

    async with working(app):
        await until(arrived, f"the run to be {how}")


@pytest.mark.parametrize("how", ["succeeded", "dead", "cancelled"])
async def test_a_key_is_free_again_when_its_run_has_ended(
    app: Hourhand, send: Task[Any, Any], sql: asyncpg.Connection, schema: str, how: str
) -> None:
    first = await send.options(key="k").enqueue(n=1, note=how)
    await end(app, first, how)
    assert (await row(sql, schema, first.id))["table"] == ("dead" if how == "dead" else "runs")
    second = await send.options(key="k").enqueue(n=2)
    assert not second.duplicate
    assert second.id != first.id


async def test_a_key_stays_taken_while_its_run_waits_for_a_retry(
    app: Hourhand, send: Task[Any, Any], sql: asyncpg.Connection, schema: str
) -> None:
    first = await send.options(key="k").enqueue(n=1, note="delayed")
    await end(app, first, "delayed")
    assert (await row(sql, schema, first.id))["table"] == "delayed"
    again = await send.options(key="k").enqueue(n=2)
    assert (again.duplicate, again.id) == (True, first.id)


@pytest.mark.parametrize("how", ["succeeded", "dead", "cancelled"])
async def test_unique_for_keeps_the_key_that_long_after_the_end(
    app: Hourhand, send: Task[Any, Any], sql: asyncpg.Connection, schema: str, how: str
) -> None:
    keyed = send.options(key="k", unique_for=HOUR)
    first = await keyed.enqueue(n=1, note=how)
    assert await sql.fetchval(f"SELECT expires_at = 'infinity' FROM {schema}.keys")
    before = await sql.fetchval("SELECT clock_timestamp()")
    await end(app, first, how)
    assert (await sql.fetchval(f"SELECT expires_at FROM {schema}.keys")) >= before + HOUR
    again = await keyed.enqueue(n=2)
    assert (again.duplicate, again.id) == (True, first.id)
    await sql.execute(f"UPDATE {schema}.keys SET expires_at = clock_timestamp() - interval '1 second'")
    fresh = await keyed.enqueue(n=3)
    assert not fresh.duplicate
    assert await sql.fetchval(f"SELECT run_id = $1 AND expires_at = 'infinity' FROM {schema}.keys", parse_run_id(fresh.id))


# Many at once


async def test_a_hundred_at_once_arrive_once_each_under_their_own_id(
    send: Task[Any, Any], sql: asyncpg.Connection, schema: str
) -> None:
    handles = await asyncio.gather(*(send.enqueue(n=n) for n in range(100)))
    rows = await sql.fetch(f"SELECT run_id, payload FROM {schema}.ready")
    stored = {run["run_id"]: msgspec.json.decode(run["payload"])["n"] for run in rows}
    assert len(rows) == len(stored) == 100
    assert {parse_run_id(handle.id): n for n, handle in enumerate(handles)} == stored


async def test_a_run_the_database_refuses_takes_nobody_with_it(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    gateway = (await app._open()).gateway
    texts = ["{}", *['{"n": 1}'] * 10, "no json", *['{"n": 2}'] * 10]
    calls = [gateway.enqueue(call_arguments("t", text, "default", "normal", EnqueueOptions(), sealer(None))) for text in texts]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    refused = [text for text, outcome in zip(texts, outcomes, strict=True) if isinstance(outcome, BaseException)]
    assert refused == ["no json"]
    assert isinstance(outcomes[11], StatementRefused)
    assert (await where(sql, schema))["ready"] == 21


@pytest.mark.parametrize("which", [0, 5])
async def test_a_caller_that_is_cancelled_takes_nobody_with_it(
    send: Task[Any, Any], sql: asyncpg.Connection, schema: str, which: int
) -> None:
    await send.enqueue(n=-1)
    calls = [asyncio.create_task(send.enqueue(n=n)) for n in range(20)]
    await asyncio.sleep(0)
    calls[which].cancel()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    handles = [one for one in outcomes if isinstance(one, RunHandle)]
    assert len(handles) == 19
    assert isinstance(outcomes[which], asyncio.CancelledError)
    assert len({handle.id for handle in handles}) == 19
    for handle in handles:
        assert (await row(sql, schema, handle.id))["table"] == "ready"
    assert not (await send.enqueue(n=99)).duplicate


async def test_after_a_lost_connection_enqueueing_goes_on(send: Task[Any, Any], sql: asyncpg.Connection, schema: str) -> None:
    accepted = {(await send.enqueue(n=0)).id}
    ended = await sql.fetch(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE application_name = 'hourhand enqueuer' AND query LIKE '%' || $1 || '%'", schema,
    )  # fmt: skip
    assert len(ended) == 1

    async def again() -> bool:
        try:
            accepted.add((await send.enqueue(n=1)).id)
        except DatabaseUnavailable:
            return False
        return True

    await until(again, "an enqueue on a new connection")
    assert (await where(sql, schema))["ready"] == len(accepted) == 2


# enqueue_many


async def test_many_runs_keep_their_order_and_can_be_named(
    send: Task[Any, Any], sql: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueue_module, "COPY_CHUNK", 30)
    runs = await send.enqueue_many({"n": n} for n in range(100))
    rows = await sql.fetch(f"SELECT run_id, payload FROM {schema}.ready ORDER BY seq")
    assert [msgspec.json.decode(run["payload"])["n"] for run in rows] == list(range(100))
    assert [run["run_id"] for run in rows] == [parse_run_id(run) for run in runs]
    assert (len(runs), runs[-1], list(runs[:2])) == (100, list(runs)[-1], [runs[0], runs[1]])
    assert runs[0] in repr(runs)
    nothing = await send.enqueue_many(iter(()))
    assert (len(nothing), list(nothing), repr(nothing)) == (0, [], "<0 runs>")


@pytest.mark.parametrize("options", [{}, {"delay": 60}], ids=["now", "delayed"])
async def test_many_runs_are_written_all_or_not_at_all(
    send: Task[Any, Any], sql: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(enqueue_module, "COPY_CHUNK", 10)
    before = await everything(sql, schema)
    payloads = [{"n": n} for n in range(35)] + [{"n": "bad"}]
    with pytest.raises(InvalidPayload):
        await send.options(**options).enqueue_many(payloads)
    assert await everything(sql, schema) == before
    await send.options(**options).enqueue_many(payloads[:-1])
    assert (await where(sql, schema))["delayed" if options else "ready"] == 35


async def test_many_runs_wake_the_workers_for_where_they_are(
    send: Task[Any, Any], url: str, sql: asyncpg.Connection, schema: str
) -> None:
    async def said(**options: Any) -> tuple[list[str], int, int]:
        async with listening(url, schema) as words:
            runs = await send.options(**options).enqueue_many([{"n": 1}, {"n": 2}])

            async def heard() -> list[str]:
                return [word for word in await words.so_far() if word[0] in "rd"]

            await until(heard, "a word about the runs")
            return await heard(), (await row(sql, schema, runs[0]))["lane"], parse_run_id(runs[0])

    words, lane, first = await said()
    assert words == [f"r:{lane}:{first}"]
    words, lane, first = await said(at=PAST)
    assert words == [f"r:{lane}:{first}"]
    assert (await said(delay=1))[0] == ["d"]


# Other languages


async def test_the_sql_function_takes_every_option_by_name(sql: asyncpg.Connection, schema: str) -> None:
    least = await sql.fetchrow(f"SELECT * FROM {schema}.enqueue('report')")
    run = await row(sql, schema, least["run_id"])
    assert (run["table"], run["task"], run["payload"], least["duplicate"]) == ("ready", "report", "{}", False)
    assert await lane_name(sql, schema, least["lane"]) == ("default", "normal")

    call = f"""SELECT * FROM {schema}.enqueue(
        task => 'report', payload => '{{"a": 1}}', queue => 'q2', priority => 'low', delay => '1 hour', expires => '2 hours',
        key => 'k', tags => '{{x,y}}', options => '{{"timeout": 5, "max_attempts": 2, "unique_for": 60}}')"""
    most = await sql.fetchrow(call)
    run = await row(sql, schema, most["run_id"])
    assert (run["table"], run["key"], run["tags"]) == ("delayed", "k", ["x", "y"])
    assert run["due_at"] - run["enqueued_at"] == run["expires_at"] - run["due_at"] == HOUR
    assert msgspec.json.decode(run["options"]) == {"timeout": 5, "max_attempts": 2, "unique_for": 60}
    assert await lane_name(sql, schema, run["lane"]) == ("q2", "low")

    again = await sql.fetchrow(call)
    assert (again["run_id"], again["duplicate"]) == (most["run_id"], True)


REFUSED_BY_SQL = [
    ("task => NULL", "null cannot be the name of a task"),
    ("task => ''", "cannot be the name of a task"),
    ("task => 'a b'", "'a b' cannot be the name of a task"),
    ("task => E'a\\n'", "cannot be the name of a task"),
    ("task => 't', payload => '[1]'", "the payload of task t must be a JSON object"),
    ("task => 't', payload => 'null'", "must be a JSON object"),
    ("task => 't', payload => NULL", "must be a JSON object"),
    ("task => 't', payload => jsonb_build_object('x', (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 40000) n))",
     "over 1 MiB"),
    ("task => 't', priority => 'urgent'", "priority must be high, normal or low, not 'urgent'"),
    ("task => 't', priority => NULL", "priority must be high, normal or low, not null"),
    ("task => 't', queue => 'a b'", "queues_name_check"),
    ("task => 't', queue => NULL", "null value"),
    ("task => 't', options => '[]'", "options must be a JSON object"),
    ("task => 't', options => '{\"max_attempts\": \"many\"}'", "max_attempts"),
    ("task => 't', options => '{\"max_attempts\": 0}'", "max_attempts"),
    ("task => 't', options => '{\"max_attempts\": null}'", "max_attempts"),
    ("task => 't', options => '{\"timeout\": \"5 s\"}'", "timeout"),
    ("task => 't', options => '{\"timeout\": -1}'", "timeout"),
    ("task => 't', options => '{\"unique_for\": \"long\"}', key => 'k'", "unique_for"),
    ("task => 't', options => '{\"unique_for\": 1e300}', key => 'k'", "unique_for"),
]  # fmt: skip


async def test_the_sql_function_refuses_what_a_worker_could_not_take(sql: asyncpg.Connection, schema: str) -> None:
    before = await everything(sql, schema)
    for arguments, words in REFUSED_BY_SQL:
        with pytest.raises(asyncpg.PostgresError) as caught:
            await sql.fetch(f"SELECT * FROM {schema}.enqueue({arguments})")
        assert words in str(caught.value), arguments
    assert await everything(sql, schema) == before


async def test_a_payload_that_python_accepts_the_sql_function_accepts(
    app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    # jsonb writes ", " where JSON needs ",": this one is under 1 MiB as sent and over it as PostgreSQL prints it.
    payload = {"numbers": [1] * 400_000}
    for options in ({}, {"tags": ["large"]}):
        run = await app.enqueue("elsewhere", payload, **options)
        assert (await row(sql, schema, run.id))["table"] == "ready"


# Without an event loop


async def test_threads_share_the_synchronous_client(url: str, sql: asyncpg.Connection, schema: str) -> None:
    app = Hourhand(url, schema=schema)

    @app.task
    def record(n: int) -> None: ...

    together = threading.Barrier(8)

    def one(thread: int) -> list[str]:
        together.wait()
        return [record.enqueue_sync(n=100 * thread + n).id for n in range(20)] + list(
            record.enqueue_many_sync([{"n": 100 * thread + 20 + n} for n in range(5)])
        )

    def all_of_them() -> list[str]:
        try:
            with ThreadPoolExecutor(8) as pool:
                return [run for runs in pool.map(one, range(8)) for run in runs]
        finally:
            app.close()

    runs = await asyncio.to_thread(all_of_them)
    assert len(set(runs)) == 200
    rows = await sql.fetch(f"SELECT run_id, payload FROM {schema}.ready")
    assert {run["run_id"] for run in rows} == {parse_run_id(run) for run in runs}
    assert len({run["payload"] for run in rows}) == 200


FORKED = """
import gc, os, sys
from hourhand import Hourhand

url, schema = sys.argv[1:]
app = Hourhand(url, schema=schema)

@app.task
def record(who: str, n: int) -> None: ...

record.enqueue_sync(who="parent", n=0)
children = []
for child in ("exits at once", "exits in order", "does nothing"):
    pid = os.fork()
    if pid == 0:
        if child != "does nothing":
            for n in range(5):
                record.enqueue_sync(who=child, n=n)
        gc.collect()
        if child == "exits at once":
            os._exit(0)
        sys.exit(0)
    children.append(pid)
for n in range(1, 5):
    record.enqueue_sync(who="parent", n=n)
assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
for n in range(5, 10):
    record.enqueue_sync(who="parent", n=n)
app.close()
print("done")
"""


async def test_a_fork_gets_connections_of_its_own_and_leaves_its_parents_alone(
    url: str, sql: asyncpg.Connection, schema: str
) -> None:
    assert await script(FORKED, url, schema) == "done\n"
    rows = await sql.fetch(f"SELECT payload FROM {schema}.ready")
    found = sorted((one["who"], one["n"]) for one in (msgspec.json.decode(run["payload"]) for run in rows))
    assert found == sorted(
        [("parent", n) for n in range(10)] + [(child, n) for child in ("exits at once", "exits in order") for n in range(5)]
    )


async def test_a_synchronous_call_inside_a_running_loop_is_refused_clearly(
    app: Hourhand, send: Task[Any, Any], sql: asyncpg.Connection, schema: str
) -> None:
    for call in (
        lambda: app.sync(app.runs.list(limit=5)),
        lambda: send.enqueue_sync(n=1),
        lambda: app.enqueue_sync("send", {"n": 1}),
        lambda: send.enqueue_many_sync([{"n": 1}]),
    ):
        with pytest.raises(RuntimeError, match=r"this thread runs an event loop.*await the async form instead"):
            call()
    assert (await where(sql, schema))["ready"] == 0


async def test_an_app_serves_several_event_loops(url: str, sql: asyncpg.Connection, schema: str) -> None:
    app = Hourhand(url, schema=schema)

    async def one() -> str:
        async with app:
            return (await app.enqueue("elsewhere")).id

    runs = await asyncio.gather(*(asyncio.to_thread(asyncio.run, one()) for _ in range(3)), one())
    assert len(set(runs)) == 4
    assert (await where(sql, schema))["ready"] == 4


# Waiting for a run


async def test_waiting_runs_out_of_time_and_the_run_goes_on(send: Task[Any, Any], sql: asyncpg.Connection, schema: str) -> None:
    waiting, later = await send.enqueue(n=1), await send.options(delay=60).enqueue(n=2)
    with pytest.raises(RunNotFinished, match=f"{waiting.id} is still ready after 0.02 s; it goes on"):
        await waiting.wait(timeout=0.02)
    with pytest.raises(RunNotFinished, match="still delayed"):
        await later.result(timeout=0)
    with pytest.raises(TimeoutError):
        await waiting.result(timeout=0)
    assert (await row(sql, schema, waiting.id))["table"] == "ready"


@pytest.mark.parametrize("how", ["succeeded", "dead", "cancelled"])
async def test_an_ended_run_tells_how_it_ended(app: Hourhand, send: Task[Any, Any], how: str) -> None:
    handle = await send.enqueue(n=1, note=how)
    waiter = asyncio.create_task(handle.wait(30))
    await end(app, handle, how)
    run = await waiter
    assert (run.run_id, run.state, run.finished) == (handle.id, how, True)
    if how == "succeeded":
        assert await handle.result(0) is None
    else:
        with pytest.raises(RunFailed, match=f"{handle.id} ended as {how}"):
            await handle.result(0)


async def test_a_run_that_is_nowhere_is_unknown(app: Hourhand) -> None:
    with pytest.raises(UnknownRun, match="there is no run"):
        await RunHandle(app, 10**12, False).wait(0)
    with pytest.raises(HourhandError):
        await app.runs.show("nonsense")
