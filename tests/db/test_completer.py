"""What a worker remembers of runs that have ended: until they are written, and no longer."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import pytest

from hourhand import BatchContext, Context, Hourhand, Retry
from hourhand.core.errors import DatabaseUnavailable, RunFailed
from hourhand.engine import completer as completer_module
from hourhand.engine.worker import Worker, WorkerOptions
from tests.db.test_worker import working
from tests.support.fleet import until
from tests.support.jobs import app as jobs

pytestmark = pytest.mark.once


@asynccontextmanager
async def unwritten(app: Hourhand, runs: int) -> AsyncIterator[Worker]:
    """A worker whose handlers have ended, and whose completer has not begun."""

    @app.task
    async def noop() -> None: ...

    await noop.enqueue_many([{}] * runs)
    worker = Worker(await app._database(), app.settings, app.registry, WorkerOptions())
    await worker.node.start()
    worker.completer.rebase(worker.node.id)
    try:
        await worker.claimer.run_once()
        worker.executor.start()
        while worker.completer.pending < runs:
            await asyncio.sleep(0)
        yield worker
    finally:
        await worker.executor.stop(lambda: 1.0)
        await worker.node.stop()
        await worker.claimer.close()
        await worker.completer.close()


@pytest.mark.parametrize("written", [False, True], ids=["it was not written", "only the answer was lost"])
async def test_a_success_is_known_until_it_is_written_and_counted_once(
    app: Hourhand, sql: asyncpg.Connection, schema: str, written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with unwritten(app, 3) as worker:
        completer, gateway = worker.completer, worker.completer._gateway
        runs = sorted(completer.known())
        assert len(runs) == 3
        finish = gateway.finish_plain

        async def cut_off(*given: Any) -> int:
            if written:
                await finish(*given)
            raise DatabaseUnavailable("cut off")

        with monkeypatch.context() as broken:
            broken.setattr(gateway, "finish_plain", cut_off)
            for _ in range(2):
                with pytest.raises(DatabaseUnavailable):
                    await completer.run_once()
                assert sorted(completer.known()) == runs
        await completer.run_once()
        assert completer.known() == []
        assert sorted(row[0] for row in await sql.fetch(f"SELECT run_id FROM {schema}.runs WHERE outcome = 'succeeded'")) == runs
        (measured,) = completer.measures
        assert (measured.first_successes, sum(measured.durations), sum(measured.lateness)) == (3, 3, 3)
        assert worker.executor.handlers["noop"].facts()[2] == 3
        assert (completer.refused, '"succeeded":3' in (completer.bulletin.take(1) or "")) == (0, True)


async def test_payloads_do_not_wait_for_a_slow_database(
    app: Hourhand, sql: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completer_module, "MOST_TOGETHER", 2)
    async with unwritten(app, 5) as worker:
        completer = worker.completer
        assert (len(completer._batch.successes), completer.pending, len(set(completer.known()))) == (1, 5, 5)
        await completer.run_once()
        assert await sql.fetchval(f"SELECT count(*) FROM {schema}.runs") == 5
        (measured,) = completer.measures
        assert measured.first_successes == 5


async def test_nothing_of_a_run_is_left_to_the_garbage_collector(url: str, schema: str) -> None:
    """A worker's comes seldom: what a handler had in its hands is gone with the run, however it ended."""
    app, once = Hourhand(url, schema=schema, poll=1.0, cancel_grace=0.05), Retry(max_attempts=1)

    @app.task(retry=once)
    async def fails(ctx: Context) -> None:
        raise ValueError("no")

    @app.task(retry=once)
    def fails_in_a_thread(ctx: Context) -> None:
        raise ValueError("no")

    @app.task
    async def speaks(ctx: Context) -> None:
        ctx.say("a line")
        ctx.log.info("and another")

    @app.task(batch=3, linger=0.2)
    async def together(ctx: BatchContext, items: list[dict[str, int]]) -> None: ...

    @app.task(batch=3, linger=0.2, retry=once)
    async def fails_together(ctx: BatchContext, items: list[dict[str, int]]) -> None:
        raise ValueError("no")

    @app.task(batch=3, retry=once)
    async def refused(ctx: BatchContext, items: list[dict[str, int]]) -> list[Exception]:
        return [ValueError("no")]

    @app.task(timeout=0.05, retry=once)
    async def ignores_its_timeout(ctx: Context) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.sleep(0.3)
        raise ValueError("no")

    @app.task(batch=2, timeout=0.05, retry=once)
    async def ignores_it_together(ctx: BatchContext, items: list[dict[str, int]]) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.sleep(0.3)
        raise ValueError("no")

    app.registry.tasks["isolated_error"] = jobs.registry.tasks["isolated_error"]
    expected = {
        "fails": False, "fails_in_a_thread": False, "speaks": True, "together": True, "fails_together": False,
        "refused": False, "ignores_its_timeout": False, "ignores_it_together": False,
        "isolated_error": False,
    }  # fmt: skip

    gc.collect()
    gc.disable()
    try:
        async with app, working(app, concurrency=4, reference="tests.support.jobs:app") as worker:
            for task, succeeds in expected.items():
                payload = {"kind": "key"} if task == "isolated_error" else {}
                options = {"timeout": 9} if task == "refused" else {}  # of its own: it is called alone
                for run in [await app.enqueue(task, payload, **options) for _ in range(2)]:
                    if succeeds:
                        await run.result(20)
                    else:
                        with pytest.raises(RunFailed):
                            await run.result(20)

            def left() -> Counter[str]:
                ours = worker.executor._support
                return Counter(one.task for one in gc.get_objects() if type(one) is Context and one._support is ours)

            async def gone() -> bool:
                return not left()

            await until(gone, lambda: f"everything to be let go: {left()}", 20)
    finally:
        gc.enable()
