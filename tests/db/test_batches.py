"""Handlers that are called once for many runs, by a worker in this process, on a real database."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from hourhand import BatchContext, Cancelled, Hourhand, PermanentFailure, Retry, RetryAfter
from hourhand.core.errors import InvalidPayload
from hourhand.engine.worker import Worker
from tests.db.test_worker import AT_ONCE, working
from tests.support.fleet import until, where

pytestmark = pytest.mark.once
ONCE = Retry(max_attempts=1)
FOREVER = 60.0
"""Nobody waits so long: a batch that is called was full, or was told to go."""


class Item(msgspec.Struct):
    n: int


class Login(msgspec.Struct):
    name: str
    password: str


class Gate:
    """Holds a handler until the test has done what it wants to do meanwhile."""

    def __init__(self) -> None:
        self.entered, self.open = asyncio.Event(), asyncio.Event()

    async def pass_through(self) -> None:
        self.entered.set()
        await self.open.wait()


async def states(app: Hourhand, runs: list[Any], seconds: float = 30) -> list[Any]:
    return [await one.wait(seconds) for one in runs]


async def collected(worker: Worker, count: int) -> None:
    """Until so many runs wait in a slot for more."""

    async def waiting() -> bool:
        return worker.executor.busy == 1 and worker.executor.stock == count

    await until(waiting, f"{count} runs to be collected")


# What is collected


async def test_one_slot_gets_full_batches_under_load(app: Hourhand) -> None:
    calls: list[list[int]] = []

    @app.task(batch=100, linger=FOREVER)
    async def index(items: list[Item]) -> None:
        calls.append([one.n for one in items])

    await index.enqueue_many({"n": n} for n in range(1000))
    async with working(app, concurrency=1) as worker:

        async def done() -> bool:
            return worker.completer.completed == 1000

        await until(done, lambda: f"all to end; the sizes are {[len(one) for one in calls]}")
    assert [len(one) for one in calls] == [100] * 10
    assert sorted(n for call in calls for n in call) == list(range(1000))


async def test_a_batch_waits_for_more_and_is_called_when_full(app: Hourhand) -> None:
    calls: list[int] = []

    @app.task(batch=3, linger=FOREVER)
    async def index(items: list[Item]) -> None:
        calls.append(len(items))

    async with working(app) as worker:
        runs = [await index.enqueue(n=0)]
        await collected(worker, 1)
        runs.append(await index.enqueue(n=1))
        await collected(worker, 2)
        assert calls == []
        runs.append(await index.enqueue(n=2))
        assert {one.state for one in await states(app, runs)} == {"succeeded"}
    assert calls == [3]


@pytest.mark.parametrize("linger", [0, 0.1])
async def test_a_batch_that_does_not_fill_is_called_all_the_same(app: Hourhand, linger: float) -> None:
    sizes: list[int] = []

    @app.task(batch=1000, linger=linger)
    async def index(items: list[Item]) -> None:
        sizes.append(len(items))

    runs = await index.enqueue_many({"n": n} for n in range(7))
    async with working(app) as worker:

        async def done() -> bool:
            return worker.completer.completed == len(runs)

        await until(done, "all to end")
    assert sizes == [7], "what was there was called together"


async def test_only_runs_of_the_same_task_share_a_call_and_others_do_not_wait(app: Hourhand) -> None:
    seen: list[tuple[str, list[int]]] = []

    @app.task(batch=3, linger=FOREVER)
    async def left(items: list[Item]) -> None:
        seen.append(("left", sorted(one.n for one in items)))

    @app.task(batch=3, linger=FOREVER)
    async def right(items: list[Item]) -> None:
        seen.append(("right", sorted(one.n for one in items)))

    @app.task
    async def plain(n: int) -> int:
        return n

    async with working(app, concurrency=3) as worker:
        first = [await left.enqueue(n=1), await right.enqueue(n=10)]

        async def both() -> bool:
            return worker.executor.busy == 2

        await until(both, "both to be collected")
        assert await (await plain.enqueue(n=5)).result(10) == 5
        runs = await left.enqueue_many([{"n": 2}, {"n": 3}])
        others = await right.enqueue_many([{"n": 20}, {"n": 30}])
        for one in first:
            await one.result(10)
        assert len(runs) == len(others) == 2
    assert sorted(seen) == [("left", [1, 2, 3]), ("right", [10, 20, 30])]


async def test_a_queue_is_not_emptied_for_a_task_that_is_rare_in_it(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    gate = Gate()

    @app.task(batch=1000, linger=FOREVER)
    async def rare(items: list[Item]) -> None: ...

    @app.task
    async def common(n: int) -> None:
        await gate.pass_through()

    await rare.enqueue(n=0)
    await common.enqueue_many({"n": n} for n in range(500))
    async with working(app, concurrency=2) as worker:
        await gate.entered.wait()

        async def settled() -> bool:
            return worker.claimer._want() <= 0

        await until(settled, "the worker to have enough")
        assert (await where(sql, schema))["running"] < 50, "a slot each, four for the one that waits, and what is held ahead"
        gate.open.set()


async def test_a_worker_that_stops_hands_back_what_it_collects(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    called = []

    @app.task(batch=10, linger=FOREVER)
    async def index(items: list[Item]) -> None:
        called.append(len(items))

    async with working(app) as worker:
        await index.enqueue_many({"n": n} for n in range(4))
        await collected(worker, 4)
    assert called == []
    assert (await where(sql, schema))["ready"] == 4
    assert await sql.fetchval(f"SELECT max(attempt) FROM {schema}.ready") == 0


# What becomes of each


async def test_each_item_has_its_own_result(app: Hourhand) -> None:
    @app.task(batch=50, linger=FOREVER)
    async def square(ctx: BatchContext, items: list[Item]) -> list[Any]:
        return [{"n": one.n * one.n, "run": each.run_id} for one, each in zip(items, ctx.items, strict=True)]

    async with working(app):
        runs = [await square.enqueue(n=n) for n in range(50)]
        for n, one in enumerate(runs):
            assert await one.result(20) == {"n": n * n, "run": one.id}


async def test_an_exception_in_the_list_fails_its_item_alone(app: Hourhand) -> None:
    seen: list[list[tuple[int, int]]] = []

    @app.task(batch=5, linger=FOREVER, retry=AT_ONCE)
    async def index(ctx: BatchContext, items: list[Item]) -> list[Any]:
        kinds = [None, PermanentFailure("never"), ValueError("again"), RetryAfter(0, "later"), "fine"]
        seen.append([(one.n, each.attempt) for one, each in zip(items, ctx.items, strict=True)])
        return [kinds[one.n] for one in items] if len(seen) == 1 else ["second"] * 5

    async with working(app) as worker:
        runs = [await index.enqueue(n=n) for n in range(5)]
        first = [(await runs[n].wait(20)) for n in (0, 1, 4)]
        await collected(worker, 2)
        late = [await index.enqueue(n=9) for _ in range(3)]
        second = await states(app, [*runs[2:4], *late])
    assert [(one.state, one.result, one.attempt) for one in first] == [
        ("succeeded", None, 1), ("dead", None, 1), ("succeeded", "fine", 1),
    ]  # fmt: skip
    assert first[1].errors[0]["type"] == "PermanentFailure"
    assert [(one.state, one.attempt, len(one.errors or ())) for one in second] == [("succeeded", 2, 1)] * 2 + [
        ("succeeded", 1, 0)
    ] * 3
    assert [one.errors[0]["message"] for one in second[:2]] == ["again", "later"]
    assert sorted(seen[1]) == [(2, 2), (3, 2), (9, 1), (9, 1), (9, 1)], "attempts are counted for each"


async def test_what_is_raised_fails_every_item_by_its_own_attempts(app: Hourhand) -> None:
    @app.task(batch=2, linger=FOREVER, retry=AT_ONCE)
    def index(items: list[Item]) -> None:
        raise LookupError(f"of {len(items)}")

    async with working(app) as worker:
        runs = [await index.enqueue(n=0), await index.options(max_attempts=1).enqueue(n=1)]
        for _ in range(2):
            await runs[-1].wait(20)
            await collected(worker, 1)
            runs.append(await index.options(max_attempts=1).enqueue(n=2))
        patient, *others = await states(app, runs)
    assert [(one.state, one.attempt, [error["attempt"] for error in one.errors]) for one in others] == [("dead", 1, [1])] * 3
    assert (patient.state, [error["attempt"] for error in patient.errors]) == ("dead", [1, 2, 3])
    assert "raise LookupError" in patient.errors[0]["traceback"]


@pytest.mark.parametrize("answer", [[1], [1, 2, 3], "ok", {"a": 1}])
async def test_an_answer_that_fits_no_item_fails_all(app: Hourhand, answer: Any) -> None:
    @app.task(batch=2, linger=FOREVER, retry=ONCE)
    async def index(items: list[Item]) -> Any:
        return answer

    async with working(app):
        ended = await states(app, [await index.enqueue(n=n) for n in range(2)])
    assert [(one.state, one.errors[0]["type"]) for one in ended] == [("dead", "BatchMismatch")] * 2
    assert "given 2 items" in ended[0].errors[0]["message"]


async def test_a_payload_that_does_not_fit_fails_alone(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    @app.task(batch=3, linger=FOREVER)
    async def index(items: list[Item]) -> list[int]:
        return [one.n for one in items]

    with pytest.raises(InvalidPayload, match="missing argument `n`"):
        await index.enqueue()
    with pytest.raises(InvalidPayload, match="it takes n"):
        await index.enqueue_many([{"n": 1}, {"m": 2}])
    assert (await where(sql, schema))["ready"] == 0
    runs = [await index.enqueue(n=n) for n in range(3)]
    await sql.execute(f"UPDATE {schema}.ready SET payload = $1 WHERE run_id = $2", '{"n": "one"}', runs[1]._number)
    async with working(app, concurrency=1):
        ended = await states(app, runs)
    assert [(one.state, one.result) for one in ended] == [("succeeded", 0), ("dead", None), ("succeeded", 2)]
    assert ended[1].errors[0]["type"] == "PayloadMismatch"


async def test_the_expired_and_those_without_attempts_are_left_out(app: Hourhand) -> None:
    calls: list[list[int]] = []

    @app.task(batch=4, linger=FOREVER)
    async def index(items: list[Item]) -> None:
        calls.append([one.n for one in items])

    async with working(app) as worker:
        runs = [await index.enqueue(n=n) for n in range(3)]
        await collected(worker, 3)
        first, second, third = sorted(worker.executor._healthy.claims(), key=lambda claim: claim.run_number)
        second.expires_at, third.attempt = first.scheduled_at, 5
        runs.append(await index.enqueue(n=3))
        ended = await states(app, runs)
    assert [one.state for one in ended] == ["succeeded", "expired", "dead", "succeeded"]
    assert [sorted(one) for one in calls] == [[0, 3]]


# How it is stopped


async def test_a_timeout_fails_every_item(app: Hourhand) -> None:
    @app.task(batch=2, linger=FOREVER, retry=ONCE, timeout=0.2)
    async def index(items: list[Item]) -> None:
        await asyncio.sleep(3600)

    async with working(app, concurrency=1):
        ended = await states(app, [await index.enqueue(n=n) for n in range(2)])
    assert [(one.state, one.errors[0]["type"]) for one in ended] == [("dead", "HandlerTimeout")] * 2


async def test_a_stubborn_call_is_left_behind_with_all_its_runs(url: str, schema: str) -> None:
    release = asyncio.Event()
    async with Hourhand(url, schema=schema, lease=3.0, grace=0.5, poll=1.0, cancel_grace=0.2) as app:

        @app.task(batch=2, linger=FOREVER, retry=ONCE, timeout=0.2)
        async def index(items: list[Item]) -> None:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue

        @app.task
        async def plain() -> str:
            return "fine"

        async with working(app, concurrency=1) as worker:
            ended = await states(app, [await index.enqueue(n=n) for n in range(2)])
            assert ["ignored its cancellation" in one.errors[0]["message"] for one in ended] == [True, True]
            assert (worker.executor.left_behind, worker.executor.busy) == (1, 0)
            assert await (await plain.enqueue()).result(20) == "fine", "another slot has taken its place"
            release.set()

            async def came_back() -> bool:
                return worker.executor.left_behind == 0

            await until(came_back, "the call to end")


async def test_a_run_that_is_cancelled_while_it_is_collected_is_left_out(app: Hourhand) -> None:
    calls: list[list[int]] = []

    @app.task(batch=3, linger=FOREVER)
    async def index(items: list[Item]) -> None:
        calls.append([one.n for one in items])

    async with working(app) as worker:
        runs = [await index.enqueue(n=n) for n in range(2)]
        await collected(worker, 2)
        await app.runs.cancel(runs[0].id, reason="not this one")
        ended = await runs[0].wait(20)
        assert (ended.state, ended.reason) == ("cancelled", "not this one")
        runs += [await index.enqueue(n=n) for n in range(2, 4)]
        assert {one.state for one in await states(app, runs[1:])} == {"succeeded"}
    assert [sorted(one) for one in calls] == [[1, 2, 3]]


async def told(worker: Worker, number: int) -> None:
    async def has_been() -> bool:
        return worker.executor.active[number].context.cancelled

    await until(has_been, "the run to be told")


@pytest.mark.parametrize(("answer", "states_after"), [
    ("done", ["succeeded", "succeeded", "succeeded"]),
    ("failed", ["succeeded", "cancelled", "succeeded"]),
    ("raised", ["dead", "cancelled", "dead"]),
])  # fmt: skip
async def test_a_run_that_is_cancelled_during_the_call_is_told_and_the_others_go_on(
    app: Hourhand, answer: str, states_after: list[str]
) -> None:
    gate = Gate()

    @app.task(batch=3, linger=FOREVER, retry=ONCE)
    async def index(ctx: BatchContext, items: list[Item]) -> list[Any]:
        await gate.pass_through()
        if answer == "raised":
            raise ValueError("all")
        return [ValueError("stopped") if one.cancelled and answer == "failed" else "done" for one in ctx.items]

    async with working(app) as worker:
        runs = [await index.enqueue(n=n) for n in range(3)]
        await gate.entered.wait()
        await app.runs.cancel(runs[1].id)
        await told(worker, runs[1]._number)
        gate.open.set()
        assert [one.state for one in await states(app, runs)] == states_after


async def test_cancelled_for_one_is_not_cancelled_for_all(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    gate, calls = Gate(), []

    @app.task(batch=3, linger=FOREVER)
    async def index(ctx: BatchContext, items: list[Item]) -> None:
        calls.append(sorted(one.n for one in items))
        if len(calls) == 1:
            await gate.pass_through()
            for one in ctx.items:
                one.check_cancelled()

    async with working(app) as worker:
        runs = [await index.enqueue(n=n) for n in range(3)]
        await gate.entered.wait()
        await app.runs.cancel(runs[1].id)
        await told(worker, runs[1]._number)
        gate.open.set()
        assert (await runs[1].wait(20)).state == "cancelled"
        await collected(worker, 2)
        await index.enqueue(n=7)
        ended = await states(app, [runs[0], runs[2]])
        assert [(one.state, one.attempt) for one in ended] == [("succeeded", 1)] * 2, "they were handed back, free of charge"
    assert calls == [[0, 1, 2], [0, 2, 7]]


async def test_when_all_are_cancelled_the_call_is_interrupted(app: Hourhand) -> None:
    gate = Gate()

    @app.task(batch=2, linger=FOREVER)
    async def index(items: list[Item]) -> None:
        await gate.pass_through()

    @app.task(batch=2, linger=FOREVER)
    def in_a_thread(ctx: BatchContext, items: list[Item]) -> None:
        entered.set()
        while True:
            ctx.check_cancelled()
            threading.Event().wait(0.01)

    entered = threading.Event()
    async with working(app):
        runs = [await index.enqueue(n=n) for n in range(2)]
        await gate.entered.wait()
        threads = [await in_a_thread.enqueue(n=n) for n in range(2)]
        await asyncio.to_thread(entered.wait)
        for one in (*runs, *threads):
            await app.runs.cancel(one.id)
        assert [one.state for one in await states(app, [*runs, *threads])] == ["cancelled"] * 4


async def test_a_handler_may_say_that_an_item_was_cancelled(app: Hourhand) -> None:
    @app.task(batch=2, linger=FOREVER)
    async def index(items: list[Item]) -> list[Any]:
        return [Cancelled("not needed") if one.n else "done" for one in items]

    async with working(app):
        assert [one.state for one in await states(app, [await index.enqueue(n=n) for n in range(2)])] == [
            "succeeded",
            "cancelled",
        ]


async def test_a_worker_that_stops_hands_back_all_of_a_call(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    gate = Gate()

    @app.task(batch=5, linger=FOREVER)
    async def index(items: list[Item]) -> None:
        await gate.pass_through()

    async with working(app, shutdown_grace=0) as worker:
        await index.enqueue_many({"n": n} for n in range(5))
        await gate.entered.wait()
        assert (len(worker.executor.active), worker.executor.busy) == (5, 1), "they share a slot"
    assert (await where(sql, schema))["ready"] == 5
    assert await sql.fetchval(f"SELECT max(attempt) FROM {schema}.ready") == 0


async def test_lost_claims_are_abandoned_collected_or_called(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    gate = Gate()
    called: list[int] = []

    @app.task(batch=2, linger=FOREVER)
    async def index(items: list[Item]) -> None:
        called.append(len(items))
        await gate.pass_through()

    async with working(app, concurrency=2) as worker:
        await index.enqueue_many({"n": n} for n in range(2))
        await gate.entered.wait()
        await index.enqueue(n=2)

        async def third() -> bool:
            return worker.executor.stock == 1

        await until(third, "the third to be collected")
        assert sorted(worker.executor.known()) == sorted(
            row["run_id"] for row in await sql.fetch(f"SELECT run_id FROM {schema}.running")
        )
        assert worker.executor.forsake() == 3

        async def idle() -> bool:
            return not worker.executor.active and not worker.executor.stock and worker.executor.busy == 0

        await until(idle, "everything to be dropped")
        assert worker.completer.known() == []
    assert called == [2]
    assert (await where(sql, schema))["running"] == 3, "nothing was written for them"


async def test_what_waits_for_a_paused_queue_is_given_back(app: Hourhand, sql: asyncpg.Connection, schema: str) -> None:
    @app.task(batch=5, linger=FOREVER, queue="slow")
    async def index(items: list[Item]) -> None: ...

    async with working(app) as worker:
        await index.enqueue_many({"n": n} for n in range(2))
        await collected(worker, 2)
        await app.queues.pause("slow")

        async def back() -> bool:
            return (await where(sql, schema))["ready"] == 2

        await until(back, "them to be handed back")
        await app.queues.resume("slow")
        await index.enqueue_many({"n": n} for n in range(3))

        async def done() -> bool:
            return worker.completer.completed == 5

        await until(done, "all of them to run")


# Alone


async def test_a_run_with_a_timeout_or_a_promise_of_its_own_is_called_alone(app: Hourhand) -> None:
    @app.task(batch=3, linger=FOREVER, retry=ONCE)
    async def index(ctx: BatchContext, items: list[Item]) -> list[int]:
        if items[0].n == 1:
            await asyncio.sleep(3600)
        return [len(items)] * len(items)

    async with working(app) as worker:
        waiting = [await index.enqueue(n=0) for _ in range(2)]
        await collected(worker, 2)
        slow = await index.options(timeout=0.1).enqueue(n=1)
        assert (await slow.wait(20)).errors[0]["type"] == "HandlerTimeout"
        careful = await index.options(delivery="at_most_once").enqueue(n=2)
        assert await careful.result(20) == 1
        waiting.append(await index.enqueue(n=0))
        assert [await one.result(20) for one in waiting] == [3, 3, 3]


# What is told


async def test_each_items_lines_progress_and_steps_are_its_runs_own(app: Hourhand) -> None:
    @app.task(batch=2, linger=FOREVER)
    async def index(ctx: BatchContext, items: list[Item]) -> list[Any]:
        for one, item in zip(ctx.items, items, strict=True):
            one.log.info("indexed", n=item.n)
            one.progress(message=f"item {item.n}")
        reported.update(workers[0].executor.scribe.progress)
        return [await one.once("step", lambda one=one: one.run_id) for one in ctx.items]

    workers: list[Worker] = []
    reported: dict[int, Any] = {}
    async with working(app) as worker:
        workers.append(worker)
        runs = [await index.enqueue(n=n) for n in range(2)]
        for n, one in enumerate(runs):
            assert await one.result(20) == one.id
            assert reported[one._number] == {"message": f"item {n}"}

            async def lines(one: Any = one) -> Any:
                return await app.runs.logs(one.id)

            (line,) = await until(lines, "its line")
            assert (line.text, line.fields) == ("indexed", {"n": n})


async def test_middleware_is_around_the_call(app: Hourhand) -> None:
    seen: list[Any] = []

    @app.middleware
    async def timed(ctx: Any, call_next: Any) -> Any:
        seen.append((ctx.task, len(ctx.items)))
        return await call_next()

    @app.task(batch=3, linger=FOREVER)
    async def index(items: list[Item]) -> list[int]:
        return [one.n for one in items]

    async with working(app):
        runs = [await index.enqueue(n=n) for n in range(3)]
        assert [await one.result(20) for one in runs] == [0, 1, 2]
    assert seen == [("index", 3)]


async def test_an_error_of_all_tells_nobodys_secrets(app: Hourhand) -> None:
    @app.task(batch=3, linger=FOREVER, retry=ONCE, secret=["password"])
    async def log_in(items: list[Login]) -> list[Any]:
        refused = PermissionError(f"refused: {sorted(one.password for one in items)}")
        if items[0].name == "raise":
            raise refused
        return [None if one.name == "fine" else refused for one in items]

    for first in ("raise", "return"):
        async with working(app, concurrency=1):
            names = [first, "other", "fine"]
            runs = [await log_in.enqueue(name=name, password=f"sesame-{place}-{first}") for place, name in enumerate(names)]
            ended = await states(app, runs)
        told = [error["message"] + error["traceback"] for one in ended for error in one.errors or ()]
        assert len(told) == (3 if first == "raise" else 2)
        assert all("PermissionError" in one for one in told)
        assert not any("sesame" in one for one in told)


async def test_each_item_counts_as_a_run(app: Hourhand) -> None:
    @app.task(batch=4, linger=FOREVER, retry=ONCE)
    async def index(items: list[Item]) -> list[Any]:
        return [ValueError("no") if one.n == 3 else None for one in items]

    async with working(app) as worker:
        await states(app, [await index.enqueue(n=n) for n in range(4)])
        (measured,) = [one for one in worker.completer.measures if one.task == "index"]
        assert {(status, count) for status, _, count in measured.statuses()} == {("succeeded", 3), ("dead", 1)}
        assert sum(measured.durations) == 4
        assert worker.executor.handlers["index"].runs == 3
        assert worker.executor.taken == 4


async def test_what_the_documentation_shows_works(app: Hourhand, project: Path) -> None:
    module, enqueueing = re.findall(r"```python\n(.*?)```", (project / "docs/batches.md").read_text(), re.S)
    names: dict[str, Any] = {"app": app}
    assert "app = Hourhand()\n" in module
    exec(module.replace("app = Hourhand()\n", ""), names)
    body = "".join(f"    {line}\n" for line in enqueueing.splitlines())
    exec(f"async def enqueue():\n{body}    return run, runs\n", names)
    run, runs = await names["enqueue"]()
    broken = await names["index"].enqueue(url="https://example.org/broken", words=-1)
    async with working(app):
        assert await run.result(20) == 120

        async def all_but_one() -> bool:
            return len(app.state.pages) == len(runs) + 1

        await until(all_but_one, "all to be indexed")

        async def failed() -> Any:
            return (await broken.show()).errors

        (error, *_) = await until(failed, "the broken one to fail")
        assert error["message"] == "https://example.org/broken has -1 words"
