"""What runs say: kept in order, bounded, once each, whatever happens to the database; and `hourhand logs`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest
import structlog

from hourhand import Context, Hourhand, Retry
from hourhand.core.clock import Clock
from hourhand.core.context import Support
from hourhand.core.errors import DatabaseUnavailable, InvalidOption, StatementRefused, UnknownRun
from hourhand.core.lines import MAX_FIELDS, MAX_TEXT
from hourhand.engine import scribe as scribe_module
from hourhand.engine.scribe import Scribe
from hourhand.storage.queue import KeptLine, QueueGateway, queue_gateway
from hourhand.surfaces.views import LineView
from tests.db.test_cli import Cemetery, Command, cemetery, hourhand
from tests.db.test_worker import AT_ONCE, working
from tests.support.fleet import until
from tests.support.jobs import app as jobs

pytestmark = pytest.mark.once

__all__ = ["cemetery", "hourhand"]
NOTICE = "further lines are not kept"


async def said(app: Hourhand, run_id: str, count: int) -> list[LineView]:
    async def there() -> list[LineView] | None:
        lines = await app.runs.logs(run_id)
        return lines if len(lines) >= count else None

    lines: list[LineView] = await until(there, f"{count} lines of {run_id}")
    return lines


def line(run: int, at: datetime, text: str, **more: Any) -> KeptLine:
    kept = {"attempt": 1, "level": "info", "fields": None, "size": 100, **more}
    return KeptLine(run, datetime(2030, 1, 1, tzinfo=UTC), at, text=text, **kept)


async def test_lines_of_async_handlers_threads_and_child_processes(app: Hourhand) -> None:
    app.registry.tasks.update(jobs.registry.tasks)

    @app.task
    async def talk(ctx: Context) -> None:
        ctx.log.info("begun", rows=3, when=datetime(2030, 1, 1, tzinfo=UTC))
        ctx.log.bind(part="second").warning("nearly %s", "done")
        ctx.say("only here", level="stdout")
        try:
            raise KeyError("missing")
        except KeyError:
            ctx.log.exception("failed")

    @app.task
    def talk_in_thread(ctx: Context) -> None:
        ctx.log.error("from a thread", strange={1, 2} and object)

    with structlog.testing.capture_logs() as process:
        async with working(app, reference="tests.support.jobs:app"):
            handle = await talk.enqueue()
            lines = await said(app, handle.id, 4)
            thread = await said(app, (await talk_in_thread.enqueue()).id, 1)
            child = await said(app, (await app.enqueue("isolated_talk", {"count": 3})).id, 3)
    assert [(one.number, one.level, one.text, one.attempt) for one in lines] == [
        (1, "info", "begun", 1), (2, "warning", "nearly done", 1), (3, "stdout", "only here", 1), (4, "error", "failed", 1),
    ]  # fmt: skip
    assert lines[0].fields == {"rows": 3, "when": "2030-01-01T00:00:00Z"}
    assert lines[1].fields == {"part": "second"}
    assert lines[2].fields is None
    assert "KeyError: 'missing'" in (lines[3].fields or {})["exception"]
    assert all(abs(one.at - datetime.now(UTC)) < timedelta(minutes=5) for one in lines)
    assert [(one.level, one.text) for one in thread] == [("error", "from a thread")]
    assert [(one.number, one.text, one.fields) for one in child] == [(n + 1, "from a child", {"place": n}) for n in range(3)]
    # The log of the process has them too, with the names it always gave; but not what was only said.
    begun = next(one for one in process if one["event"] == "begun")
    assert (begun["run"], begun["task"], begun["attempt"], begun["rows"]) == (handle.id, "talk", 1, 3)
    assert not any(one["event"] == "only here" for one in process)


async def test_numbers_go_on_over_attempts_and_workers(app: Hourhand) -> None:
    gate = asyncio.Event()

    @app.task(retry=AT_ONCE)
    async def talk(ctx: Context) -> None:
        ctx.log.info("one")
        ctx.log.info("two")
        if ctx.attempt == 1:
            raise ValueError
        await gate.wait()

    async with working(app):
        handle = await talk.enqueue()
        await said(app, handle.id, 4)
    async with working(app):
        lines = await said(app, handle.id, 6)
        gate.set()
        await handle.wait(20)
    assert [one.number for one in lines] == [1, 2, 3, 4, 5, 6]
    assert [one.attempt for one in lines] == [1, 1, 2, 2, 2, 2], "handed back: the same attempt elsewhere"
    assert [one.text for one in lines] == ["one", "two"] * 3
    assert [one.number for one in await app.runs.logs(handle.id, after=2, limit=3)] == [3, 4, 5]
    assert [one.number for one in await app.runs.logs(handle.id, after=5)] == [6]


async def test_so_many_lines_of_a_run_over_all_its_attempts(url: str, schema: str) -> None:
    app = Hourhand(url, schema=schema, lease=3.0, grace=0.5, poll=1.0, log_lines=7)
    silent = Hourhand(url, schema=schema, lease=3.0, grace=0.5, poll=1.0, log_lines=0)

    @app.task(retry=Retry(max_attempts=3, base=0, cap=0))
    async def talk(ctx: Context) -> None:
        for place in range(5):
            ctx.log.info(f"{ctx.attempt}.{place}")
        raise ValueError

    @silent.task
    async def whisper(ctx: Context) -> None:
        ctx.log.info("nobody keeps this")

    async with app:
        async with working(app):
            run = await (await talk.enqueue()).wait(20)
        lines = await app.runs.logs(run.run_id)
    assert [one.text for one in lines] == ["1.0", "1.1", "1.2", "1.3", "1.4", "2.0", "2.1", NOTICE]
    assert [one.number for one in lines] == list(range(1, 9))
    assert lines[-1].level == "warning"
    async with silent:
        async with working(silent):
            run = await (await whisper.enqueue()).wait(20)
        assert await silent.runs.logs(run.run_id) == []


async def test_long_and_strange_lines_are_cut_and_kept(app: Hourhand) -> None:
    class Bad:
        def __repr__(self) -> str:
            raise RuntimeError

    endless: list[Any] = []
    endless.append(endless)

    @app.task
    async def talk(ctx: Context) -> None:
        ctx.log.info("ä" * 100_000, huge="x" * 100_000, many={str(n): "y" * 50 for n in range(1_000)}, last=1)
        ctx.log.info("a\0b\ud800c", text="\0\ud800", number=10**400, nan=float("nan"), bad=Bad(), endless=endless)
        ctx.log.info(Bad())
        ctx.log.info("fields", **{f"field_{n}": "z" * 500 for n in range(100)})

    with structlog.testing.capture_logs():
        async with working(app):
            lines = await said(app, (await talk.enqueue()).id, 4)
    assert len(lines[0].text.encode()) <= MAX_TEXT
    assert lines[0].text.endswith("ä…")
    assert (lines[0].fields or {})["last"] == 1
    for one in lines:
        assert len(json.dumps(one.fields, ensure_ascii=False, separators=(",", ":")).encode()) <= MAX_FIELDS
    assert lines[1].text.startswith("a")
    assert set(lines[1].fields or ()) == {"text", "number", "nan", "bad", "endless"}
    assert "RuntimeError" in lines[2].text
    assert "field_99" not in (lines[3].fields or {})
    assert (lines[3].fields or {})["left_out"].startswith("field_1")


async def test_debug_lines_only_where_the_process_logs_them(app: Hourhand) -> None:
    @app.task
    async def talk(ctx: Context) -> None:
        ctx.log.debug("details")
        ctx.log.info("the point")

    try:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
        async with working(app):
            lines = await said(app, (await talk.enqueue()).id, 1)
        assert [one.text for one in lines] == ["the point"], "kept, though the process logs warnings only"
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(10))
        async with working(app):
            lines = await said(app, (await talk.enqueue()).id, 2)
        assert [one.level for one in lines] == ["debug", "info"]
    finally:
        structlog.reset_defaults()


async def test_lines_are_there_soon_after_the_end_and_at_shutdown(app: Hourhand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scribe_module, "EVERY", 3_600.0)
    started = asyncio.Event()

    @app.task
    async def short(ctx: Context) -> None:
        ctx.log.info("that was it")

    @app.task
    async def long(ctx: Context) -> None:
        ctx.log.info("it goes on")
        started.set()
        await asyncio.sleep(3_600)

    async with working(app):
        await said(app, (await short.enqueue()).id, 1)
        handle = await long.enqueue()
        await started.wait()
    assert [one.text for one in await app.runs.logs(handle.id)] == ["it goes on"]


async def test_two_workers_that_write_lines_of_one_run_number_them_apart(
    app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    database = await app._database()
    gateways = [queue_gateway(database, f"writer {n}") for n in range(4)]
    begin = datetime(2030, 1, 1, tzinfo=UTC)

    async def write(which: int) -> None:
        for place in range(25):
            at = begin + timedelta(seconds=which, microseconds=place)
            written = False
            while not written:
                with contextlib.suppress(DatabaseUnavailable):  # too many collisions in a row: the scribe would try again, too
                    await gateways[which].keep_lines([line(7, at, f"{which}:{place}"), line(8, at, "x")], 1_000, again=False)
                    written = True

    await asyncio.gather(*(write(which) for which in range(4)))
    rows = await sql.fetch(f"SELECT number, text FROM {schema}.lines WHERE run_id = 7 ORDER BY number")
    assert [row["number"] for row in rows] == list(range(1, 101))
    for which in range(4):
        mine = [row["text"] for row in rows if row["text"].startswith(f"{which}:")]
        assert mine == [f"{which}:{place}" for place in range(25)]
    for one in gateways:
        await one.close()


class Unreliable:
    """A gateway whose answers get lost, before or after the database has done what it was asked."""

    def __init__(self, gateway: QueueGateway) -> None:
        self.gateway = gateway
        self.trouble: list[str] = []
        self.asked: list[bool] = []

    async def keep_lines(self, lines: Sequence[KeptLine], most: int, *, again: bool) -> None:
        self.asked.append(again)
        trouble = self.trouble.pop(0) if self.trouble else None
        if trouble == "before":
            raise DatabaseUnavailable("away")
        if trouble == "refused":
            raise StatementRefused("no")
        await self.gateway.keep_lines(lines, most, again=again)
        if trouble == "after":
            raise DatabaseUnavailable("the answer was lost")

    async def close(self) -> None:
        await self.gateway.close()


def speaker(run: int, scribe: Scribe) -> Context:
    claim = SimpleNamespace(run_number=run, task="talk", scheduled_at=datetime(2030, 1, 1, tzinfo=UTC), attempt=0)
    return Context(claim, Support(lambda run, data: None, give_pen=scribe.pen))


async def test_no_line_is_lost_or_doubled_when_the_database_is_away_for_a_moment(
    app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    gateway = Unreliable(queue_gateway(await app._database(), "scribe"))
    scribe = Scribe(gateway, Clock(), 1_000)  # type: ignore[arg-type]
    one, two = speaker(1, scribe), speaker(2, scribe)
    gateway.trouble = ["before", "after", "after"]
    for place in range(10):
        (one if place % 2 else two).say(str(place))
    for _ in range(3):
        with pytest.raises(DatabaseUnavailable):
            await scribe.run_once()
        one.say("meanwhile")
    await scribe.run_once()
    assert gateway.asked == [False, True, True, True, False]
    rows = await sql.fetch(f"SELECT run_id, number, text FROM {schema}.lines ORDER BY run_id, number")
    texts = {run: [row["text"] for row in rows if row["run_id"] == run] for run in (1, 2)}
    assert texts == {1: ["1", "3", "5", "7", "9", "meanwhile", "meanwhile", "meanwhile"], 2: ["0", "2", "4", "6", "8"]}
    gateway.trouble = ["refused"]
    one.say("after a refusal")
    await scribe.run_once()
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.lines WHERE text = 'after a refusal'") == 1
    await scribe.finish(5)


async def test_what_waits_for_the_database_is_bounded_and_says_so(
    app: Hourhand, sql: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scribe_module, "MOST_WAITING", 10_000)
    scribe = Scribe(queue_gateway(await app._database(), "scribe"), Clock(), 1_000)
    context = speaker(1, scribe)
    writers = [threading.Thread(target=lambda: [context.say("x" * 500) for _ in range(50)]) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    kept = len(scribe._waiting)
    assert kept == 10_000 // 700 + 1
    assert scribe.dropped == 200 - kept + 1
    await scribe.run_once()
    rows = await sql.fetch(f"SELECT number, text FROM {schema}.lines ORDER BY number")
    assert [row["number"] for row in rows] == list(range(1, kept + 1))
    assert rows[-1]["text"].startswith("lines are missing here")
    context.say("there is room again")
    await scribe.finish(5)
    assert await sql.fetchval(f"SELECT text FROM {schema}.lines ORDER BY number DESC LIMIT 1") == "there is room again"


async def test_logs_of_nobody(app: Hourhand) -> None:
    with pytest.raises(UnknownRun):
        await app.runs.logs("r_zzzz")
    for wrong in ({"limit": 0}, {"limit": 10_001}, {"after": -1}):
        with pytest.raises(InvalidOption):
            await app.runs.logs("r_zzzz", **wrong)


async def test_logs_on_the_command_line(hourhand: Command, app: Hourhand) -> None:
    @app.task(retry=Retry(max_attempts=2, base=0, cap=0))
    async def talk(ctx: Context) -> None:
        ctx.log.warning("a [red] \x1b[31mtrick", rows=[1, 2], who="me")
        raise ValueError

    async with working(app):
        run = await (await talk.enqueue()).wait(20)
        await said(app, run.run_id, 2)
        quiet = await app.enqueue("talk", queue="nobody", delay=3_600)
    done = await hourhand("logs", run.run_id)
    assert done.code == 0
    assert "\x1b" not in done.out
    head, first, second_head, second = done.out.splitlines()
    assert head.startswith("attempt 1, ")
    assert second_head.startswith("attempt 2, ")
    for shown in (first, second):
        assert "warning  a [red] �[31mtrick  who=me  rows=[1,2]" in shown
    done = await hourhand("logs", run.run_id, "--json", "--since-attempt", "2")
    (only,) = [json.loads(text) for text in done.out.splitlines()]
    assert (only["number"], only["attempt"], only["level"], only["fields"]) == (2, 2, "warning", {"rows": [1, 2], "who": "me"})
    assert (await hourhand("logs", "r_zzzz")).code == 3
    done = await hourhand("logs", quiet.id)
    assert (done.code, done.out) == (0, "")
    assert "said nothing" in done.err


async def test_following_ends_with_the_run_and_shows_every_line(hourhand: Command, app: Hourhand) -> None:
    go, waiting = asyncio.Event(), asyncio.Event()

    @app.task
    async def talk(ctx: Context) -> None:
        ctx.log.info("before")
        waiting.set()
        await go.wait()
        for place in range(1_500):
            ctx.say(f"line {place}")

    async with working(app):
        handle = await talk.enqueue()
        await waiting.wait()
        following = asyncio.create_task(hourhand("logs", handle.id, "-f", "--json"))
        await said(app, handle.id, 1)
        assert not following.done()
        go.set()
        await handle.wait(20)
        done = await following
    texts = [json.loads(text)["text"] for text in done.out.splitlines()]
    assert texts == ["before", *(f"line {place}" for place in range(999)), NOTICE]


async def test_following_a_run_that_has_ended(hourhand: Command, cemetery: Cemetery) -> None:
    done = await hourhand("logs", await cemetery.bury(), "--follow")
    assert (done.code, done.out) == (0, "")
