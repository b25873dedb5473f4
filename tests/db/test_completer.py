"""What a worker remembers of runs that have ended: until they are written, and no longer."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from hourhand import BatchContext, Context, Hourhand, Retry
from hourhand.core.errors import DatabaseUnavailable, RunFailed
from hourhand.engine import completer as completer_module
from hourhand.engine.worker import Worker, WorkerOptions
from tests.db.test_worker import working
from tests.support.fleet import until

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


async def test_nothing_of_a_run_is_left_to_the_garbage_collector(app: Hourhand) -> None:
    """A worker's comes seldom: what a handler had in its hands is gone with the run, however it ended."""
    seen: dict[str, list[Any]] = {"fails": [], "speaks": [], "together": [], "fails_together": []}

    @app.task(retry=Retry(max_attempts=1))
    async def fails(ctx: Context) -> None:
        seen["fails"].append(weakref.ref(ctx))
        raise ValueError("no")

    @app.task
    async def speaks(ctx: Context) -> None:
        seen["speaks"].append(weakref.ref(ctx))
        ctx.say("a line")
        ctx.log.info("and another")

    @app.task(batch=3, linger=0.2)
    async def together(ctx: BatchContext, items: list[dict[str, int]]) -> None:
        seen["together"] += [weakref.ref(one) for one in ctx.items]

    @app.task(batch=3, linger=0.2, retry=Retry(max_attempts=1))
    async def fails_together(ctx: BatchContext, items: list[dict[str, int]]) -> None:
        seen["fails_together"] += [weakref.ref(one) for one in ctx.items]
        raise ValueError("no")

    gc.disable()
    try:
        async with working(app, concurrency=4):
            for task in ("fails", "speaks", "together", "fails_together"):
                for run in [await app.enqueue(task, {}) for _ in range(2)]:
                    if task.startswith("fails"):
                        with pytest.raises(RunFailed):
                            await run.result(20)
                    else:
                        await run.result(20)
            assert {task: len(found) for task, found in seen.items()} == dict.fromkeys(seen, 2)

            def left() -> dict[str, int]:
                return {task: count for task, found in seen.items() if (count := sum(one() is not None for one in found))}

            async def gone() -> bool:
                return not left()

            await until(gone, lambda: f"everything to be let go: {left()}", 20)
    finally:
        gc.enable()
