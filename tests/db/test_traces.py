"""Traces on a real database, with real workers: one from whoever orders a run to its end, however many attempts that takes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import asyncpg
import msgspec
import psycopg
import pytest
from aiohttp import web
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler, SamplingResult, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode

from hourhand import Context, Hourhand, PermanentFailure, Retry
from hourhand.core import ids
from hourhand.core.options import EnqueueOptions
from hourhand.core.tracing import read
from hourhand.engine.tracing import find_tracing
from hourhand.storage.migrate import migrate
from hourhand.surfaces.handle import RunHandle
from hourhand.surfaces.views import RunView
from tests.db.test_scheduler import scheduling
from tests.db.test_worker import AT_ONCE, working
from tests.support.endpoints import answering
from tests.support.fleet import until
from tests.support.outside import TABLES, row
from tests.support.traces import Seen, declare, linked, of, parent, stored, traced

pytestmark = pytest.mark.once

OUTSIDE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def seen() -> Iterator[Seen]:
    with traced() as one:
        yield one


@pytest.fixture
async def caller(url: str, schema: str) -> AsyncIterator[Hourhand]:
    """May call this machine."""
    async with Hourhand(url, schema=schema, lease=3.0, grace=0.5, poll=1.0, http_allow="127.0.0.1") as one:
        one.registry.targets["http"] = replace(one.registry.targets["http"], retry=Retry(max_attempts=2, base=0, cap=0))
        yield one


async def ended(seen: Seen, name: str, count: int = 1) -> None:
    """A run is on record a moment before or after its span has ended."""

    async def there() -> bool:
        return len(seen.named(name)) >= count

    await until(there, lambda: f"{count} of {name!r}; there are {[one.name for one in seen.spans]}")


async def run_of(sql: asyncpg.Connection, schema: str, task: str) -> str:
    """The first run of a task, as soon as there is one."""

    async def found() -> str | None:
        for table in TABLES:
            number = await sql.fetchval(f"SELECT min(run_id) FROM {schema}.{table} WHERE task = $1", task)
            if number is not None:
                return ids.run_id(number)
        return None

    return str(await until(found, f"a run of {task}"))


async def waited(app: Hourhand, run: str) -> RunView:
    return await RunHandle(app, ids.parse_run_id(run), False).wait(30)


async def options(sql: asyncpg.Connection, schema: str, run: str) -> Any:
    found = (await row(sql, schema, run))["options"]
    return None if found is None else json.loads(found)


# From the one who enqueues


async def test_one_trace_from_the_enqueue_through_every_attempt_to_the_end(app: Hourhand, seen: Seen) -> None:
    @app.task(retry=AT_ONCE, queue="mail")
    async def send(ctx: Context) -> str:
        if ctx.attempt < 3:
            raise ValueError(f"attempt {ctx.attempt}")
        return "sent"

    async with working(app) as worker:
        with seen.tracer.start_as_current_span("the user's"):
            handle = await send.enqueue()
        assert await handle.result(30) == "sent"
        await ended(seen, "run send", 3)
        node = worker.node.name
    enqueue, attempts = seen.one("enqueue send"), seen.named("run send")
    assert len(seen.traces) == 1
    assert len(seen.spans) == 5
    assert parent(enqueue) == of(seen.one("the user's")).span_id
    assert enqueue.kind is SpanKind.PRODUCER
    assert dict(enqueue.attributes or {}) == {
        "messaging.system": "hourhand", "messaging.operation.type": "send", "messaging.operation.name": "enqueue",
        "messaging.destination.name": "mail", "messaging.message.id": handle.id,
        "hourhand.queue": "mail", "hourhand.task": "send", "hourhand.run_id": handle.id,
    }  # fmt: skip
    assert [parent(one) for one in attempts] == [of(enqueue).span_id] * 3
    assert [linked(one) for one in attempts] == [
        [], [(of(attempts[0]).span_id, "attempt")], [(of(attempts[1]).span_id, "attempt")]
    ]  # fmt: skip
    assert {one.kind for one in attempts} == {SpanKind.CONSUMER}
    assert [dict(one.attributes or {}) for one in attempts] == [
        {
            "messaging.system": "hourhand", "messaging.operation.type": "process", "messaging.operation.name": "run",
            "messaging.destination.name": "mail", "messaging.message.id": handle.id, "hourhand.queue": "mail",
            "hourhand.task": "send", "hourhand.run_id": handle.id, "hourhand.attempt": number, "hourhand.node": node,
            "hourhand.status": status, **({"error.type": "ValueError"} if status == "failed" else {}),
        }
        for number, status in ((1, "failed"), (2, "failed"), (3, "succeeded"))
    ]  # fmt: skip
    assert [one.status.status_code for one in attempts] == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    (event,) = attempts[0].events
    assert event.name == "exception"
    assert event.attributes is not None
    assert event.attributes["exception.message"] == "attempt 1"
    assert "ValueError" in str(event.attributes["exception.stacktrace"])
    assert not attempts[2].events
    # What is kept with the run says which attempt of the trace it was.
    assert [error["trace"] for error in (await app.runs.show(handle.id)).errors] == [stored(one) for one in attempts[:2]]


async def test_without_a_span_of_the_callers_nothing_is_stored(
    app: Hourhand, seen: Seen, sql: asyncpg.Connection, schema: str
) -> None:
    handle = await app.enqueue("somewhere")
    assert await options(sql, schema, handle.id) is None
    assert not seen.spans


async def test_every_way_to_enqueue_carries_the_trace(
    app: Hourhand, seen: Seen, sql: asyncpg.Connection, schema: str, url: str
) -> None:
    @app.task
    async def plain(n: int = 0) -> None: ...

    def blocking() -> list[str]:
        with psycopg.connect(url) as connection, connection.transaction():
            inside = plain.options(connection=connection).enqueue_sync().id
        return [plain.enqueue_sync().id, inside, *plain.enqueue_many_sync([{"n": 1}, {"n": 2}])]

    with seen.tracer.start_as_current_span("the user's"):
        runs = [
            (await plain.enqueue()).id,
            (await app.enqueue("plain")).id,
            (await plain.options(key="k", max_attempts=2, delay=60).enqueue()).id,
            *await plain.enqueue_many([{"n": 1}, {"n": 2}]),
            *await app.enqueue_many("plain", [{"n": 3}], tags=["many"], max_attempts=3),
            *[one.id for one in await asyncio.gather(*(plain.enqueue() for _ in range(5)))],
            *await asyncio.to_thread(blocking),
        ]
        again = await plain.options(key="k").enqueue()
    sent = {stored(one): one for one in seen.named("enqueue plain")}
    counts: dict[str, int] = {}
    for run in runs:
        kept = await options(sql, schema, run)
        counts[kept["trace"]] = counts.get(kept["trace"], 0) + 1
        attributes = sent[kept["trace"]].attributes or {}
        assert attributes.get("hourhand.run_id", run) == run
    assert (await options(sql, schema, runs[2]))["max_attempts"] == 2
    assert sorted(counts.values()) == [1] * 11 + [2, 2], "one span for each enqueue, and one for each bulk"
    bulks = [(one.attributes or {}).get("messaging.batch.message_count") for one in sent.values()]
    assert sorted(one for one in bulks if one) == [1, 2, 2]
    assert len(seen.traces) == 1
    assert again.duplicate
    (duplicate,) = [one for one in sent.values() if (one.attributes or {}).get("hourhand.duplicate")]
    assert (duplicate.attributes or {})["hourhand.run_id"] == runs[2]


async def test_in_a_transaction_the_trace_goes_with_the_run(
    app: Hourhand, seen: Seen, sql: asyncpg.Connection, schema: str, url: str
) -> None:
    @app.task
    async def booked() -> str:
        return format(trace.get_current_span().get_span_context().trace_id, "032x")

    connection = await asyncpg.connect(url)
    with seen.tracer.start_as_current_span("order"):
        async with connection.transaction():
            handle = await booked.options(connection=connection).enqueue()
            (many,) = await booked.options(connection=connection).enqueue_many([{}])
    await connection.close()
    enqueues = {stored(one) for one in seen.named("enqueue booked")}
    assert {(await options(sql, schema, run))["trace"] for run in (handle.id, many)} == enqueues
    async with working(app):
        assert await handle.result(20) == format(of(seen.one("order")).trace_id, "032x")
    assert len(seen.traces) == 1


async def test_what_could_not_be_enqueued_is_seen_without_its_words(app: Hourhand, seen: Seen) -> None:
    with seen.tracer.start_as_current_span("the user's"), pytest.raises(Exception, match="secret word"):
        await app._enqueue(
            ("a secret word", "{}", "default", "normal", None, None, None, None, "k", None, None), EnqueueOptions()
        )
    failed = seen.one("enqueue a secret word")
    assert failed.status.status_code is StatusCode.ERROR
    assert "secret" not in f"{failed.status.description}{failed.events}"


async def test_the_sql_function_carries_a_trace_and_refuses_what_is_none(
    app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    statement = f"SELECT run_id FROM {schema}.enqueue('foreign', options => $1::text::jsonb)"
    for fine in (OUTSIDE, f"{OUTSIDE} vendor=a b,other=c"):
        run = await sql.fetchval(statement, json.dumps({"trace": fine}))
        assert await options(sql, schema, run) == {"trace": fine}
        place = read(fine)
        assert place is not None
        assert place.stored == fine
    long, broken = f"{OUTSIDE} {'x' * 600}", f"{OUTSIDE} a\nb"
    for bad in ("", "x", OUTSIDE[:-1], OUTSIDE.upper(), f"{OUTSIDE}-00", long, broken, 1, None, {}):
        with pytest.raises(asyncpg.InvalidParameterValueError, match="trace must be a W3C traceparent"):
            await sql.fetchval(statement, json.dumps({"trace": bad}))


# What handlers see


async def test_what_a_handler_does_belongs_to_its_attempt(
    app: Hourhand, seen: Seen, sql: asyncpg.Connection, schema: str
) -> None:
    declare(app)

    @app.task
    async def on_the_loop() -> Any:
        with seen.tracer.start_as_current_span("inside on_the_loop"):
            await asyncio.sleep(0)
        return (await app.enqueue("later", queue="later")).id

    @app.task
    def in_a_thread() -> Any:
        with seen.tracer.start_as_current_span("inside in_a_thread"):
            return app.enqueue_sync("later", queue="later").id

    @app.task(delivery="exactly_once")
    async def exactly() -> Any:
        with seen.tracer.start_as_current_span("inside exactly"):
            return (await app.enqueue("later", queue="later")).id

    async with working(app, queues=["default"], reference="tests.support.traces:app", concurrency=1):
        for task in (on_the_loop, in_a_thread, exactly):
            run = await (await task.enqueue()).result(30)
            await ended(seen, f"run {task.name}")
            attempt, inside = seen.one(f"run {task.name}"), seen.one(f"inside {task.name}")
            assert parent(inside) == of(attempt).span_id
            enqueue = next(one for one in seen.named("enqueue later") if (one.attributes or {})["hourhand.run_id"] == run)
            assert of(enqueue).trace_id == of(attempt).trace_id
            assert (await options(sql, schema, run))["trace"] == stored(enqueue)
        number, span, run = await (await app.enqueue("apart")).result(60)
        await ended(seen, "run apart")
        attempt = seen.one("run apart")
        assert (number, span) == (of(attempt).trace_id, of(attempt).span_id), "a child process goes on where its parent stands"
        # It has no provider of its own: what it enqueues is in the name of the attempt.
        assert (await options(sql, schema, run))["trace"] == stored(attempt)
    assert len(seen.traces) == 4, "the next run of a slot has nothing to do with the one before"


async def test_how_an_attempt_can_end(app: Hourhand, seen: Seen) -> None:
    started = asyncio.Event()

    @app.task(retry=AT_ONCE)
    async def gives_up() -> None:
        raise PermanentFailure("no")

    @app.task(retry=Retry(max_attempts=1), timeout=0.05)
    async def slow() -> None:
        await asyncio.sleep(60)

    @app.task(retry=AT_ONCE)
    async def waits() -> None:
        started.set()
        await asyncio.sleep(60)

    @app.task(retry=AT_ONCE, delivery="at_most_once")
    async def careful() -> None:
        started.set()
        await asyncio.sleep(60)

    def told() -> list[tuple[Any, StatusCode]]:
        return [
            ((one.attributes or {})["hourhand.status"], one.status.status_code) for one in seen.spans if one.name[:3] == "run"
        ]

    async with working(app):
        for task in (gives_up, slow):
            await (await task.enqueue()).wait(20)
            await ended(seen, f"run {task.name}")
        assert told() == [("dead", StatusCode.ERROR)] * 2
        assert "HandlerTimeout" in str(seen.one("run slow").status.description)
        handle = await waits.enqueue()
        await started.wait()
        await app.runs.cancel(handle.id)
        await handle.wait(20)
        await ended(seen, "run waits")
        assert told()[2:] == [("cancelled", StatusCode.UNSET)]
        started.clear()
        back = await waits.enqueue()
        await started.wait()
    assert told()[3:] == [("handed_back", StatusCode.UNSET)]
    first = of(seen.named("run waits")[1])
    assert not [one for one in seen.spans if one.name == "enqueue waits" and of(one).trace_id == first.trace_id]
    started.clear()
    async with working(app):
        await started.wait()
        await app.runs.cancel(back.id)
        await back.wait(20)
        await ended(seen, "run waits", 3)
        (root,) = [one for one in seen.spans if one.name == "enqueue waits" and of(one).trace_id == first.trace_id]
        assert [parent(one) for one in seen.named("run waits")[1:]] == [of(root).span_id] * 2
        started.clear()
        await careful.enqueue()
        await started.wait()
    assert told()[-1] == ("lost", StatusCode.ERROR)


async def test_no_span_tells_what_is_secret(app: Hourhand, seen: Seen) -> None:
    @app.task(retry=Retry(max_attempts=1), secret=["pin"])
    async def tell(pin: str) -> None:
        raise ValueError(f"{pin} is wrong")

    async with working(app):
        with seen.tracer.start_as_current_span("the user's"):
            handle = await tell.enqueue(pin="hunter-hunter")
        await handle.wait(20)
        await ended(seen, "run tell")
    assert "is wrong" in seen.one("run tell").to_json()
    assert not [one.name for one in seen.spans if "hunter" in one.to_json()]


async def test_a_dead_run_that_is_replayed_goes_on_in_its_trace(app: Hourhand, seen: Seen) -> None:
    well = False

    @app.task(retry=Retry(max_attempts=1))
    async def fails() -> None:
        if not well:
            raise ValueError("not yet")

    async with working(app):
        handle = await fails.enqueue()
        assert (await handle.wait(20)).state == "dead"
        well = True
        await app.dead.replay(handle.id)
        await handle.result(20)
        await ended(seen, "run fails", 2)
    first, second = seen.named("run fails")
    assert len(seen.traces) == 1
    assert linked(second) == [(of(first).span_id, "attempt")]
    assert of(seen.one("enqueue fails")).span_id == parent(first) == parent(second), "and begins once"


async def test_a_run_that_is_repeated_stays_in_the_trace(app: Hourhand, seen: Seen, sql: asyncpg.Connection, schema: str) -> None:
    @app.task
    async def fine() -> None: ...

    async with working(app):
        with seen.tracer.start_as_current_span("the user's"):
            handle = await fine.enqueue()
        await handle.wait(20)
        kept = await options(sql, schema, handle.id)
        again = await app.runs.retry(handle.id)
        assert again != handle.id
        await ended(seen, "run fine", 2)
    assert await options(sql, schema, again) == kept == {"trace": stored(seen.one("enqueue fine"))}
    assert len(seen.traces) == 1


# From a schedule


async def fired(app: Hourhand, sql: asyncpg.Connection, schema: str, task: str, **how: Any) -> str:
    """The run of a job that fires in a second."""
    await app.jobs.add("soon", task=task, schedule="every 1s", max_runs=1, **how)
    async with scheduling(app):
        return await run_of(sql, schema, task)


async def test_a_firing_begins_a_trace_that_every_worker_finds(
    app: Hourhand, seen: Seen, sql: asyncpg.Connection, schema: str
) -> None:
    @app.task(retry=Retry(max_attempts=2, base=3600, cap=3600, jitter=False), queue="reports")
    async def report(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("the first time")

    run = await fired(app, sql, schema, "report")
    assert "trace" not in (await options(sql, schema, run) or {})
    async with working(app):
        await ended(seen, "run report")
    async with working(app) as second:
        await app.runs.retry(run)
        await ended(seen, "run report", 2)
        tracing = await find_tracing(await app._database(), "another worker")
    assert tracing is not None
    fire, (first, last) = seen.one("fire report"), seen.named("run report")
    assert len(seen.traces) == 1
    assert parent(fire) is None
    assert parent(first) == parent(last) == of(fire).span_id
    assert linked(last) == [(of(first).span_id, "attempt")]
    view = await app.runs.show(run)
    assert (fire.start_time, fire.end_time) == (int(view.scheduled_at.timestamp() * 1e9), first.start_time)
    assert dict(fire.attributes or {}) == {
        "messaging.system": "hourhand", "messaging.operation.type": "send", "messaging.operation.name": "fire",
        "messaging.destination.name": "reports", "messaging.message.id": run, "hourhand.queue": "reports",
        "hourhand.task": "report", "hourhand.run_id": run, "hourhand.job": view.job_id,
        "hourhand.scheduled_at": view.scheduled_at.isoformat(),
    }  # fmt: skip
    assert (last.attributes or {})["hourhand.job"] == view.job_id
    assert (last.attributes or {})["hourhand.node"] == second.node.name
    # Computed by the run's number, so that nothing had to be stored.
    claim: Any = _Claim(ids.parse_run_id(run), "report", view.job_id)
    assert tracing.first(claim)[:2] == (of(fire).trace_id, of(fire).span_id)
    assert tracing.first(_Claim(claim.run_number + 1, "report", None)).trace != of(fire).trace_id  # type: ignore[arg-type]


class _Claim:
    def __init__(self, number: int, task: str, job: Any) -> None:
        self.run_number, self.task, self.job_number, self.queue = number, task, job and 1, "default"


async def test_two_installations_do_not_share_traces(app: Hourhand, seen: Seen, url: str, sql: asyncpg.Connection) -> None:
    other = app.settings.schema + "_b"
    await migrate(sql, other)
    try:
        async with Hourhand(url, schema=other) as twin:
            places = []
            for one in (app, twin):
                tracing = await find_tracing(await one._database(), "here")
                assert tracing is not None
                places.append(tracing.first(_Claim(1, "x", None)))  # type: ignore[arg-type]
        assert len({one.trace for one in places}) == len({one.span for one in places}) == 2
    finally:
        await sql.execute(f"DROP SCHEMA {other} CASCADE")


async def test_a_run_for_a_time_long_past_has_no_span_of_years(app: Hourhand, seen: Seen) -> None:
    @app.task
    async def yearly() -> None: ...

    await app.jobs.add("yearly", task="yearly", schedule="0 0 1 1 *", start_at=datetime(2019, 6, 1, tzinfo=UTC))
    async with working(app):
        await app.jobs.backfill("yearly", datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 2, tzinfo=UTC))
        await ended(seen, "fire yearly")
    fire = seen.one("fire yearly")
    assert fire.start_time == fire.end_time == seen.one("run yearly").start_time
    assert (fire.attributes or {})["hourhand.scheduled_at"] == "2020-01-01T00:00:00+00:00"


# Chains


async def chained(app: Hourhand) -> Any:
    @app.task(delivery="exactly_once")
    async def third(result: int) -> int:
        return result + 1

    @app.task(retry=AT_ONCE)
    async def second(ctx: Context, result: int) -> int:
        if ctx.attempt == 1:
            raise ValueError("the first time")
        return result + 1

    @app.task
    async def first() -> int:
        return 1

    return first.options(then=second.options(then=third.options(then="last")))


def check_chain(seen: Seen, root: str) -> None:
    above = of(seen.one(root)).span_id
    steps = [*seen.named("run first"), *seen.named("run second"), *seen.named("run third"), *seen.named("run last")]
    assert [(one.attributes or {})["hourhand.status"] for one in steps] == ["succeeded", "failed", *["succeeded"] * 3]
    assert [parent(one) for one in steps] == [above] * 5
    before = [of(one).span_id for one in steps]
    assert [linked(one) for one in steps] == [
        [], [(before[0], "step")], [(before[1], "attempt")], [(before[2], "step")], [(before[3], "step")]
    ]  # fmt: skip
    assert len(seen.traces) == 1


async def test_a_chain_is_one_trace_with_a_link_from_step_to_step(app: Hourhand, seen: Seen) -> None:
    first = await chained(app)

    @app.task
    async def last(result: int) -> None: ...

    async with working(app):
        with seen.tracer.start_as_current_span("the user's"):
            await first.enqueue()
        await ended(seen, "run last")
    check_chain(seen, "enqueue first")


async def test_a_chain_that_a_schedule_began_is_one_trace(
    app: Hourhand, seen: Seen, sql: asyncpg.Connection, schema: str
) -> None:
    first = await chained(app)

    @app.task
    async def last(result: int) -> None: ...

    run = await fired(app, sql, schema, "first", then=first._options.then)
    async with working(app):
        await ended(seen, "run last")
        # A step of its own would have begun one of its own.
        await ended(seen, "fire first")
    check_chain(seen, "fire first")
    assert not [one for one in seen.spans if one.name.startswith("enqueue")]
    kept = await options(sql, schema, run)
    assert (kept["trace"], kept["after"]) == (stored(seen.one("fire first")), stored(seen.one("run first")))


async def test_a_worker_that_traces_nothing_passes_the_trace_on(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    first = await chained(app)
    with traced() as before, before.tracer.start_as_current_span("the user's"):
        await first.enqueue()
    async with working(app) as worker:
        assert worker.executor.tracing is None
        run = await run_of(sql, schema, "last")
    assert await options(sql, schema, run) == {"trace": stored(before.one("enqueue first"))}


async def test_a_step_that_cannot_be_enqueued_dies_in_its_trace(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    kept = json.dumps({"then": {"task": "second", "priority": "urgent"}, "trace": OUTSIDE, "after": OUTSIDE})
    await sql.execute(
        f"INSERT INTO {schema}.runs (run_id, scheduled_at, started_at, finished_at, lane, outcome, attempt, task, payload, options)"
        f" VALUES (1, now(), now(), now(), 5, 'succeeded', 1, 'first', '{{}}', '{kept}')"
    )
    assert (await app.dead.list())[0].options == {"trace": OUTSIDE, "after": OUTSIDE}


# Calls


async def test_an_http_job_sends_the_headers_of_its_attempt(caller: Hourhand, seen: Seen) -> None:
    async def moody(request: web.Request) -> web.Response:
        return web.Response(status=200 if len(endpoint.requests) > 1 else 503)

    async with answering(moody) as endpoint, working(caller):
        with seen.tracer.start_as_current_span("the user's"):
            handle = await caller.enqueue("http", {"url": endpoint.url("/hunter?token=1"), "method": "PUT"})
        assert (await handle.result(30))["status"] == 200
        await ended(seen, "run http", 2)
    calls, attempts = seen.named("PUT"), seen.named("run http")
    assert [request.headers["traceparent"] for request in endpoint.requests] == [stored(one) for one in calls]
    assert [parent(one) for one in calls] == [of(one).span_id for one in attempts]
    assert {one.kind for one in calls} == {SpanKind.CLIENT}
    assert [one.status.status_code for one in calls] == [StatusCode.ERROR, StatusCode.UNSET]
    assert [dict(one.attributes or {}) for one in calls] == [
        {
            "http.request.method": "PUT", "server.address": "127.0.0.1", "server.port": endpoint.port, "url.scheme": "http",
            "http.response.status_code": status, **more,
        }
        for status, more in ((503, {"error.type": "503"}), (200, {}))
    ]  # fmt: skip
    assert len(seen.traces) == 1
    assert "tracestate" not in endpoint.requests[0].headers
    assert not [one.name for one in seen.spans if "hunter" in one.to_json()]


async def test_the_jobs_own_headers_stand(caller: Hourhand, seen: Seen) -> None:
    async with answering() as endpoint, working(caller):
        with seen.tracer.start_as_current_span("the user's"):
            for name in ("TraceParent", "tracestate"):
                handle = await caller.enqueue("http", {"url": endpoint.url(), "headers": {name: OUTSIDE}})
                await handle.result(30)
    own, state = ({name.lower(): value for name, value in request.headers.items()} for request in endpoint.requests)
    assert own["traceparent"] == OUTSIDE
    assert "tracestate" not in own
    assert "traceparent" not in state


async def test_a_call_that_fails_is_seen(caller: Hourhand, seen: Seen) -> None:
    async with answering() as endpoint:
        port = endpoint.port
    async with working(caller):
        handle = await caller.enqueue("http", {"url": f"http://127.0.0.1:{port}/"}, max_attempts=1)
        assert (await handle.wait(30)).state == "dead"
        await ended(seen, "run http")
    assert seen.one("POST").status.status_code is StatusCode.ERROR
    assert "Error" in str((seen.one("POST").attributes or {})["error.type"])


async def test_a_worker_that_traces_nothing_passes_the_headers_on(caller: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    async with answering() as endpoint, working(caller):
        payload = json.dumps({"url": endpoint.url()})
        await sql.fetchval(
            f"SELECT run_id FROM {schema}.enqueue('http', $1::text::jsonb, options => $2::text::jsonb)",
            payload, json.dumps({"trace": f"{OUTSIDE} vendor=a"}),
        )  # fmt: skip

        async def called() -> bool:
            return bool(endpoint.requests)

        await until(called, "the call")
        await (await caller.enqueue("http", {"url": endpoint.url()})).result(30)
    passed, alone = (request.headers for request in endpoint.requests)
    assert (passed["traceparent"], passed["tracestate"]) == (OUTSIDE, "vendor=a")
    assert "traceparent" not in alone


# Sampling


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, ParentBased(ALWAYS_OFF)])
async def test_what_is_not_sampled_is_not_recorded_and_runs_all_the_same(
    app: Hourhand, sql: asyncpg.Connection, schema: str, sampler: Sampler
) -> None:
    first = await chained(app)

    @app.task
    async def last(result: int) -> int:
        return int(trace.get_current_span().get_span_context().trace_flags)

    with traced(sampler) as seen:
        async with working(app):
            with seen.tracer.start_as_current_span("the user's") as span:
                await first.enqueue()
            run = await run_of(sql, schema, "last")
            view = await waited(app, run)
            again = await (await first.options(then=None).enqueue()).wait(20)
    assert not seen.spans
    assert again.state == "succeeded"
    place = read((await options(sql, schema, run))["trace"])
    assert place is not None
    assert (place.trace, place.flags & 1) == (span.get_span_context().trace_id, 0), "whoever comes next is told not to sample"
    assert not view.result & 1


async def test_all_attempts_of_a_run_are_sampled_or_none(app: Hourhand) -> None:
    @app.task(retry=AT_ONCE)
    async def flaky(ctx: Context) -> None:
        if ctx.attempt < 3:
            raise ValueError("no")

    with traced(ParentBased(TraceIdRatioBased(0.5))) as seen:
        async with working(app):
            runs = await flaky.enqueue_many([{}] * 40)
            for run in runs:
                await waited(app, run)
    by_trace: dict[int, list[str]] = {}
    for one in seen.spans:
        by_trace.setdefault(of(one).trace_id, []).append(one.name)
    assert 0 < len(by_trace) < len(runs)
    assert {tuple(sorted(names)) for names in by_trace.values()} == {("enqueue flaky", "run flaky", "run flaky", "run flaky")}


async def test_a_sampler_that_changes_its_mind_is_asked_once(app: Hourhand) -> None:
    asked = []

    class Fickle(Sampler):
        def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
            asked.append(args)
            return TraceIdRatioBased(1.0 if len(asked) == 1 else 0.0).should_sample(*args, **kwargs)

        def get_description(self) -> str:
            return "fickle"

    @app.task(retry=AT_ONCE)
    async def flaky(ctx: Context) -> None:
        if ctx.attempt < 3:
            raise ValueError("no")

    with traced(ParentBased(Fickle())) as seen:
        async with working(app):
            await (await flaky.enqueue()).result(20)
            await ended(seen, "run flaky", 3)
    assert len(seen.spans) == 4
    assert len(asked) == 1


async def test_a_provider_that_breaks_does_not_break_runs(app: Hourhand, seen: Seen) -> None:
    class Broken(SpanProcessor):
        def on_start(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("out of order")

    @app.task
    async def fine() -> int:
        return 1

    with seen.tracer.start_as_current_span("the user's") as span:
        seen.provider.add_span_processor(Broken())
        async with working(app):
            handle = await fine.enqueue()
            assert await handle.result(20) == 1
            view = await app.runs.show(handle.id)
    place = read((view.options or {})["trace"])
    assert place is not None
    assert (place.trace, place.span) == (span.get_span_context().trace_id, span.get_span_context().span_id)


# Batches


class Page(msgspec.Struct):
    n: int


async def test_each_run_of_a_batch_has_its_span_and_the_call_has_one_of_its_own(app: Hourhand, seen: Seen) -> None:
    @app.task(batch=3, linger=60, retry=Retry(max_attempts=1))
    async def index(items: list[Page]) -> list[Any]:
        with seen.tracer.start_as_current_span("inside"):
            return [ValueError("no") if one.n == 1 else None for one in items]

    async with working(app, concurrency=1):
        runs = [await index.enqueue(n=n) for n in range(3)]
        for one in runs:
            await one.wait(20)
        await ended(seen, "call index")
    call, spans = seen.one("call index"), seen.named("run index")
    assert (call.attributes or {})["messaging.batch.message_count"] == 3
    assert parent(seen.one("inside")) == of(call).span_id
    assert {(one.attributes or {})["hourhand.run_id"] for one in spans} == {one.id for one in runs}
    assert sorted((one.attributes or {})["hourhand.status"] for one in spans) == ["dead", "succeeded", "succeeded"]
    assert len({of(one).trace_id for one in spans} | {of(call).trace_id}) == 4, "a trace for each run, and one for the call"
    for one in spans:
        (link,) = one.links
        assert (link.context.span_id, (link.attributes or {})["hourhand.link"]) == (of(call).span_id, "batch")
