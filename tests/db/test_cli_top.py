"""`hourhand top`: the screen, driven by keys on a real database; an outage under it; a real terminal; paper."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from hourhand import Hourhand
from hourhand.core.errors import ConfigurationError, DatabaseUnavailable
from hourhand.storage.embedded import MAJOR
from hourhand.storage.migrate import migrate
from hourhand.surfaces.cli.live import rows, screen
from hourhand.surfaces.cli.live.dialogs import KEYS, Help, Question
from hourhand.surfaces.cli.live.screen import Rows, Top
from hourhand.surfaces.cli.live.survey import Survey, look
from hourhand.surfaces.cli.top import _screen
from hourhand.surfaces.views import NodeView, QueueView, RunView
from tests.db.test_cli import Cemetery, Command, cemetery, environment
from tests.db.test_cli_jobs import hourhand
from tests.support.fleet import until
from tests.support.servers import OwnServer

pytestmark = pytest.mark.once

__all__ = ["cemetery", "hourhand"]
NOW = datetime(2030, 1, 1, tzinfo=UTC)
NEVER = 3_600.0
"""Looks come when a test asks for one, and after keys that act."""


@asynccontextmanager
async def opened(verbs: Any, size: tuple[int, int] = (120, 40)) -> AsyncIterator[tuple[Top, Pilot[None]]]:
    top = Top(verbs, NEVER)
    async with top.run_test(size=size) as pilot:
        await top.look_once()
        await pilot.pause()
        yield top, pilot


def cells(top: Top, pane: str) -> dict[str, list[str]]:
    table: Rows = getattr(top, pane)
    return {row.key: [cell.plain for cell in row.cells] for row in table.shown}


def drawn(top: Top) -> str:
    """Everything that is on the screen, as text."""
    # The picture has no other spaces than those that do not break.
    picture = top.export_screenshot().replace("&#160;", " ")
    return " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", picture))


def text_of(widget: Static) -> str:
    lines = [widget.render_line(place) for place in range(widget.size.height)]
    return " ".join("".join(segment.text for segment in line).strip() for line in lines)


# The screen on a database


async def test_it_shows_queues_runs_and_nodes(app: Hourhand, cemetery: Cemetery) -> None:
    running, dead = await cemetery.start("slow"), await cemetery.bury("invoice", queue="billing")
    later = await app.enqueue("report", {}, delay=3600)
    await app.enqueue("mail", {}, queue="post")
    await app.queues.pause("post")
    async with opened(app) as (top, _):
        queues, runs, nodes = (cells(top, pane) for pane in ("queues", "runs", "nodes"))
        assert list(queues) == ["billing", "default", "post"]
        assert [queues["post"][place] for place in (1, 3, 4, 5, 6)] == ["1", "0", "0", "0", "0"]
        assert queues["post"][8].endswith("ago")
        assert [runs[one][1] for one in (running, dead, later.id)] == ["running", "dead", "delayed"]
        assert next(iter(runs)) == running
        assert not any("mail" in cell for row in runs.values() for cell in row)
        (node,) = nodes.values()
        assert node[1:6] == ["alive", "worker", "vm:1", "1/50 runs", "2%"]
        assert re.match(r"3 queues · 2 waiting \(\+0\.0/s\) · 1 running · 1 dead · 1 node ", text_of(top.headline))
        picture = drawn(top)
        for words in ("queues", "runs", "nodes", "invoice", "vm:1", "pause/resume", "gave up after 2 of 2 attempts"):
            assert words in picture
        await app.enqueue("mail", {}, queue="post")
        await top.look_once()
        queues = cells(top, "queues")
        assert queues["post"][1] == "2"
        assert re.fullmatch(r"\+[\d.]+/s", queues["post"][2])
        assert queues["default"][2] == "+0.0/s"


async def test_a_key_pauses_the_chosen_queue_and_resumes_it(app: Hourhand) -> None:
    await app.enqueue("mail", {}, queue="post")
    async with opened(app) as (top, pilot):
        await pilot.press("down", "p")

        async def paused(wanted: bool) -> bool:
            return bool(cells(top, "queues")["post"][8]) is wanted

        await until(lambda: paused(True), "the pause on the screen")
        assert {one.name: one.paused_at is not None for one in await app.queues.list()} == {"default": False, "post": True}
        assert text_of(top.said) == "post is paused"
        await pilot.press("p")
        await until(lambda: paused(False), "the resumption on the screen")
        assert text_of(top.said) == "post is open"


async def test_a_run_is_cancelled_and_run_again_after_a_question_that_names_it(app: Hourhand, cemetery: Cemetery) -> None:
    later, dead = await app.enqueue("report", {}, delay=3600), await cemetery.bury("invoice")
    async with opened(app) as (top, pilot):
        await pilot.press("tab")
        runs = top.runs
        assert (runs.has_focus, runs.chosen) == (True, dead)
        await pilot.press("c")
        assert text_of(top.said) == f"{dead} has ended already: dead"
        await pilot.press("down", "c")
        assert isinstance(top.screen, Question)
        assert f"Cancel {later.id} (report, delayed)?" in drawn(top)
        await pilot.press("n")
        assert (await app.runs.show(later.id)).state == "delayed"
        await pilot.press("c", "y")

        async def state(run_id: str, wanted: str) -> bool:
            return run_id in cells(top, "runs") and cells(top, "runs")[run_id][1] == wanted

        await until(lambda: state(later.id, "cancelled"), "the cancelled run on the screen")
        assert text_of(top.said) == f"{later.id} is cancelled"
        await pilot.press("up", "r", "y")

        async def gone() -> bool:
            return dead not in cells(top, "runs")

        await until(gone, "the replayed run to be off the list")
        assert (await app.runs.show(dead)).state == "ready"
        assert text_of(top.said) == f"{dead} runs again"


async def test_what_a_key_cannot_do_is_said(app: Hourhand, cemetery: Cemetery) -> None:
    dead = await cemetery.bury("invoice", key="k1")
    await app.enqueue("invoice", {}, key="k1")
    async with opened(app) as (top, pilot):
        await pilot.press("tab", "r", "y")

        async def refused() -> bool:
            return "another live run holds its key 'k1'" in text_of(top.said)

        await until(refused, "the refusal")
        assert (await app.runs.show(dead)).state == "dead"


async def test_the_chosen_row_stays_chosen_while_others_come_and_go(app: Hourhand, cemetery: Cemetery) -> None:
    first = await cemetery.bury("first")
    async with opened(app) as (top, pilot):
        await pilot.press("tab")
        runs = top.runs
        for _ in range(3):
            await cemetery.bury("other")
            await top.look_once()
            assert runs.chosen == first
        assert runs.cursor_row == 3
        await app.dead.purge(first)
        await app.dead.purge(task="other")
        await top.look_once()
        assert runs.chosen in cells(top, "runs")


async def test_the_filter_shows_rows_with_all_of_the_words(app: Hourhand, cemetery: Cemetery) -> None:
    invoice, report = await cemetery.bury("invoice"), await cemetery.bury("report")
    async with opened(app) as (top, pilot):
        await pilot.press("slash", *"dead", "space", *"INVO")
        assert list(cells(top, "runs")) == [invoice]
        assert "only: dead INVO" in text_of(top.headline)
        # A letter that is a key elsewhere is a letter here.
        await pilot.press("q", "backspace", "enter")
        assert top.runs.has_focus
        await top.look_once()
        assert list(cells(top, "runs")) == [invoice]
        await pilot.press("escape")
        assert set(cells(top, "runs")) == {invoice, report}


async def test_keys_that_come_too_quickly_do_no_harm(app: Hourhand) -> None:
    later = await app.enqueue("report", {}, delay=3600)
    async with opened(app) as (top, pilot):
        await pilot.press("tab", "c")
        question = top.screen
        assert isinstance(question, Question)
        question.action_answer(True)
        question.action_answer(True)

        async def cancelled() -> bool:
            return (await app.runs.show(later.id)).state == "cancelled"

        await until(cancelled, "the cancellation")


async def test_keys_for_the_interval_and_help(app: Hourhand) -> None:
    async with opened(app) as (top, pilot):
        await pilot.press("minus", "minus")
        assert top.interval == 30.0
        await pilot.press("plus")
        assert top.interval == 60.0
        assert "every 60 s" in text_of(top.headline)
        await pilot.press("question_mark")
        assert isinstance(top.screen, Help)
        picture = drawn(top)
        assert all(words in picture for words in KEYS.values())
        # What is below goes on meanwhile.
        await app.enqueue("mail", {}, queue="post")
        await top.look_once()
        assert "post" in cells(top, "queues")
        await pilot.press("x")
        assert not isinstance(top.screen, Help)
        await pilot.press("q")
    assert not top.is_running


async def test_an_outage_is_said_and_got_over(tmp_path: Path) -> None:
    server = OwnServer(tmp_path, MAJOR)
    with server as url:
        connection = await asyncpg.connect(url)
        await migrate(connection, "hourhand")
        await connection.close()
        async with Hourhand(url) as app:
            await app.enqueue("mail", {}, queue="post")
            async with opened(app) as (top, pilot):
                await asyncio.to_thread(server.halt)
                await top.look_once()
                await pilot.pause()
                assert "the database cannot be reached" in (top.error or "")
                assert "the database cannot be reached" in drawn(top)
                assert "post" in cells(top, "queues")
                await pilot.press("p")
                await asyncio.to_thread(server.again)

                async def back() -> bool:
                    await top.look_once()
                    return top.error is None

                await until(back, "the database to be read again")
                await pilot.pause()
                assert not top.trouble.display


# Without a database: whoever has the verbs will do


class Verbs:
    """The verbs that it uses, as a server has them; each look waits until it may end."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.looking = self.most = self.looks = 0
        self.queues = SimpleNamespace(list=self._list)
        self.runs = SimpleNamespace(list=self._nothing)
        self.nodes = SimpleNamespace(list=self._nothing)
        self.statistics = SimpleNamespace(queues=self._nothing)

    async def _list(self) -> list[QueueView]:
        self.looking += 1
        self.looks += 1
        self.most = max(self.most, self.looking)
        await self.may_end.wait()
        self.looking -= 1
        return [QueueView("far", None, 1, 0, 0, 0, 0, 5.0)]

    async def _nothing(self, **options: Any) -> list[Any]:
        return []


async def test_one_look_at_a_time_however_many_are_wanted() -> None:
    verbs = Verbs()
    top = Top(verbs, NEVER)
    async with top.run_test() as pilot:
        several = [asyncio.create_task(top.look_once()) for _ in range(5)]
        await pilot.press("plus", "minus", "plus")
        assert verbs.looks == 1
        verbs.may_end.set()
        await asyncio.gather(*several)
        assert (verbs.most, list(cells(top, "queues"))) == (1, ["far"])


async def test_trouble_at_the_first_look_is_said_too() -> None:
    async def broken() -> None:
        raise DatabaseUnavailable("the database cannot be reached: no [red] route")

    verbs = Verbs()
    verbs.queues.list = broken
    async with opened(verbs) as (top, _):
        assert "no [red] route" in drawn(top)


@pytest.mark.parametrize(("interval", "took", "wait"), [(2.0, 0.01, 2.0), (2.0, 3.0, 12.0), (0.5, 0.5, 2.0)])
def test_a_slow_database_is_asked_less_often(interval: float, took: float, wait: float) -> None:
    assert screen.rest(interval, took) == wait


async def test_a_run_that_ended_between_two_lists_is_there_once() -> None:
    going = RunView("r_1", "running", "slow", "default", "normal", 1, NOW, started_at=NOW)
    ended = RunView("r_1", "succeeded", "slow", "default", "normal", 1, NOW, started_at=NOW, finished_at=NOW)
    verbs = Verbs()
    verbs.may_end.set()

    async def runs(state: Any, limit: int) -> list[RunView]:
        return [going] if state == "running" else [ended]

    verbs.runs.list = runs
    assert (await look(verbs)).runs == [ended]


def test_what_deserves_a_look_is_coloured() -> None:
    queue = QueueView("q[1]", NOW, 1_234, 0, 2, 0, 3, 61.0)
    info = {"concurrency": 50}
    node = NodeView(7, "worker", "vm:7", "late", NOW, NOW, False, -1.5, 25, 0, info, None, None)
    idle = NodeView(8, "scheduler", "vm:8", "alive", NOW, NOW, True, None, 0, 128, {}, None, None)
    survey = Survey(NOW + timedelta(seconds=90), 1.0, [queue], [], [node, idle], {"q[1]": -150.0})
    (shown,) = rows.QUEUES.rows(survey)
    assert [cell.plain for cell in shown.cells] == ["q[1]", "1,234", "-150/s", "0", "2", "0", "3", "61 s", "90 s ago"]
    assert [cell.style for cell in shown.cells] == ["", "", "", "", "yellow", "", "red", "yellow", "yellow"]
    late, fine = rows.NODES.rows(survey)
    assert [cell.plain for cell in late.cells[1:7]] == ["late", "worker", "vm:7", "25/50 runs", "50%", "-1,500 ms"]
    assert (late.cells[1].style, late.cells[6].style) == ("yellow", "yellow")
    assert [cell.plain for cell in fine.cells[4:7]] == ["128 shards", "", ""]
    assert rows.headline(survey).plain == "1 queue · 1,236 waiting (-150/s) · 0 running · 3 dead · 2 nodes, 1 late"
    busy = replace(survey, ended=1234.56, failed=0.25)
    assert rows.headline(busy).plain.endswith("2 nodes, 1 late · 1,234.6 runs/s, 0.2 failures/s")


def test_without_textual_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.delitem(sys.modules, "hourhand.surfaces.cli.live.screen")
    for name in [one for one in sys.modules if one.startswith("textual.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "hourhand.surfaces.cli.live.dialogs")
    with pytest.raises(ConfigurationError, match=r"pip install 'hourhand\[top\]'.*--once"):
        _screen()


# On paper


async def test_once_prints_what_there_is(hourhand: Command, app: Hourhand, cemetery: Cemetery) -> None:
    await cemetery.bury("invoice")
    await cemetery.start("slow")
    for arguments in (("--once",), ()):
        done = await hourhand("top", *arguments)
        assert (done.code, done.err) == (0, "")
        lines = [" ".join(line.split()) for line in done.out.splitlines()]
        assert lines[0] == "1 queue · 0 waiting · 1 running · 1 dead · 1 node · 0.0 runs/s"
        assert "default 0 0 0 1 1" in lines
        assert any(line.startswith("1 alive worker vm:1 1/50 runs 2%") for line in lines)
        assert max(len(line) for line in done.out.splitlines()) <= 80
    wide = await hourhand("top", "--once", COLUMNS="140")
    assert "gave up after 2 of 2 attempts" in wide.out
    whole = (await hourhand("top", "--json")).json
    assert (whole["running"], whole["dead"], whole["queues"][0]["name"], len(whole["runs"])) == (1, 1, "default", 2)
    assert (await hourhand("top", "--interval", "0")).code == 2


async def test_once_without_a_database_ends_with_5(hourhand: Command) -> None:
    done = await hourhand("top", "--once", HOURHAND_DATABASE_URL="postgresql://me:s3cret@127.0.0.1:1/db")
    assert (done.code, done.out) == (5, "")
    assert "hourhand doctor" in done.err
    assert "s3cret" not in done.err


# In a real terminal


@pytest.mark.parametrize("leave", [b"q", b"\x03"])
async def test_in_a_terminal_it_comes_and_goes(url: str, app: Hourhand, cemetery: Cemetery, leave: bytes) -> None:
    await cemetery.bury("invoice")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    # A Ctrl-C that comes when the terminal is itself again makes it throw away what it has not shown yet.
    modes = termios.tcgetattr(theirs)
    modes[3] |= termios.NOFLSH
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    settings = {**environment(url, app.settings.schema), "TERM": "xterm-256color"}
    settings.pop("COLUMNS")
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "hourhand", "top", "--interval", "0.5"],
        stdin=theirs, stdout=theirs, stderr=theirs, env=settings, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    seen = bytearray()

    def read() -> None:
        while True:
            try:
                part = os.read(ours, 65_536)
            except OSError:
                return
            if not part:
                return
            seen.extend(part)

    reader = asyncio.create_task(asyncio.to_thread(read))
    try:

        async def shown(words: bytes) -> bool:
            return words in seen or process.poll() is not None

        await until(lambda: shown(b"invoice"), lambda: f"the screen; seen: {bytes(seen)!r}")
        os.write(ours, b"?")
        await until(lambda: shown(b"look less often"), "the help")

        async def ended() -> bool:
            # More than once: the help takes the first keys for itself.
            if process.poll() is None:
                os.write(ours, leave)
            return process.poll() is not None

        await until(ended, "its end")
        await reader
        assert process.returncode == 0, bytes(seen)
        # The terminal is as it was: the other screen is left, and the cursor is there.
        assert seen.rindex(b"\x1b[?1049l") > seen.rindex(b"\x1b[?1049h")
        assert b"\x1b[?25h" in seen[seen.rindex(b"\x1b[?1049l") - 100 :]
        assert b"Traceback" not in seen
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        await reader
        os.close(ours)
