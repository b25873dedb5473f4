"""The screen of `hourhand top`.

It outlives the database: what cannot be read is said, what was read last stays, and it tries again. It asks for one thing
at a time, and rests at least four times as long as an answer took, whatever interval it was given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, ClassVar

import asyncpg
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static

from hourhand.core.clock import Clock
from hourhand.core.errors import HourhandError
from hourhand.surfaces.cli.common import plain, span
from hourhand.surfaces.cli.live.dialogs import Help, Question
from hourhand.surfaces.cli.live.rows import NODES, QUEUES, RUNS, Pane, Row, headline, is_number
from hourhand.surfaces.cli.live.survey import Survey, look
from hourhand.surfaces.cli.suggestions import in_words
from hourhand.surfaces.views import RunView

INTERVALS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
RESTS = 4.0
SAID_FOR = 15.0
_TROUBLE = (HourhandError, asyncpg.PostgresError, OSError, TimeoutError)


def rest(interval: float, took: float) -> float:
    """How long to wait after a look that took so long."""
    return max(interval, RESTS * took)


class Rows(DataTable[Text]):
    """A pane. The chosen row stays chosen while the rows change around it."""

    def __init__(self, pane: Pane) -> None:
        super().__init__(id=pane.name, cursor_type="row", cursor_foreground_priority="renderable")
        self.pane = pane
        self.shown: list[Row] = []

    def on_mount(self) -> None:
        self.border_title = self.pane.name
        for name in self.pane.columns:
            self.add_column(Text(name, justify="right" if is_number(name) else "left"), key=name)

    @property
    def chosen(self) -> str | None:
        return self.shown[self.cursor_row].key if 0 <= self.cursor_row < len(self.shown) else None

    def fill(self, rows: list[Row]) -> None:
        rows = [Row(row.key, tuple(map(self._aligned, self.pane.columns, row.cells))) for row in rows]
        if [row.key for row in rows] == [row.key for row in self.shown]:
            # In place: nothing flickers, and nothing moves under the cursor.
            for row, before in zip(rows, self.shown, strict=True):
                for name, cell, old in zip(self.pane.columns, row.cells, before.cells, strict=True):
                    if cell != old:
                        self.update_cell(row.key, name, cell, update_width=True)
        else:
            self._replace(rows)
        self.shown = rows

    def _replace(self, rows: list[Row]) -> None:
        chosen, place, height = self.chosen, self.cursor_row, self.scroll_offset.y
        self.clear()
        for row in rows:
            self.add_row(*row.cells, key=row.key)
        keys = [row.key for row in rows]
        if keys:
            self.move_cursor(row=keys.index(chosen) if chosen in keys else min(place, len(keys) - 1), scroll=False)
            self.scroll_to(y=height, animate=False)

    @staticmethod
    def _aligned(name: str, cell: Text) -> Text:
        cell.justify = "right" if is_number(name) else "left"
        return cell


class QueueRows(Rows):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("p", "app.pause", "pause/resume")]


class RunRows(Rows):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("c", "app.cancel", "cancel"), Binding("r", "app.retry", "run again")]


class Top(App[None]):
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #headline { height: auto; padding: 0 1; text-style: bold; }
    #trouble { height: auto; padding: 0 1; color: $text-error; display: none; }
    #said { height: auto; padding: 0 1; display: none; }
    Rows { border: round $foreground 30%; border-title-color: $foreground; scrollbar-size-vertical: 1; background: $background; }
    Rows:focus { border: round $primary; }
    #queues { height: auto; min-height: 4; max-height: 35%; }
    #runs { height: 1fr; min-height: 4; }
    #nodes { height: auto; min-height: 4; max-height: 30%; }
    #filter { height: 3; display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("escape", "show_all", show=False),
        Binding("plus,equals_sign", "slower", "slower", key_display="+"),
        Binding("minus", "faster", "faster", key_display="-"),
        Binding("question_mark", "help", "help", key_display="?"),
    ]

    def __init__(self, verbs: Any, interval: float = 2.0) -> None:
        super().__init__()
        self.interval = interval
        self.survey: Survey | None = None
        self.error: str | None = None
        self.words = ""
        """Only rows with these are shown."""
        self._verbs = verbs
        self._looking = asyncio.Lock()
        self._hurry = asyncio.Event()
        self._said_at = 0.0

    def compose(self) -> ComposeResult:
        # Kept by name: a query would look among what a dialog shows while there is one.
        self.headline, self.trouble, self.said = Static("looking …", id="headline"), Static(id="trouble"), Static(id="said")
        self.queues, self.runs, self.nodes = QueueRows(QUEUES), RunRows(RUNS), Rows(NODES)
        self.filter = Input(placeholder="show only rows with these words", id="filter")
        yield from (self.headline, self.trouble, self.queues, self.runs, self.nodes, self.said, self.filter, Footer())

    def on_mount(self) -> None:
        self.queues.focus()
        self.run_worker(self._watch())
        # Shows how old all of it is; asks nobody.
        self.set_interval(1.0, self._tick)

    # Looking

    async def _watch(self) -> None:
        while True:
            began = Clock.monotonic()
            await self.look_once()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), rest(self.interval, Clock.monotonic() - began))
            self._hurry.clear()

    async def look_once(self) -> None:
        async with self._looking:
            try:
                self.survey = await look(self._verbs, self.survey)
                self.error = None
            except _TROUBLE as error:
                self.error = in_words(error) or type(error).__name__
        self._show()

    def _show(self) -> None:
        self.trouble.display = self.error is not None
        self.trouble.update(plain(self.error or ""))
        self._show_headline()
        if self.survey is not None:
            for table in (self.queues, self.runs, self.nodes):
                table.fill([row for row in table.pane.rows(self.survey) if row.has(self.words)])

    def _tick(self) -> None:
        self._show_headline()
        if Clock.monotonic() - self._said_at > SAID_FOR:
            self.said.display = False

    def _show_headline(self) -> None:
        words = Text() if self.survey is None else headline(self.survey)
        words.append(f"   every {self.interval:g} s", "dim")
        if self.words:
            words.append_text(plain(f"   only: {self.words}", "cyan"))
        if self.survey is not None:
            age = Clock.monotonic() - self.survey.monotonic
            if age > 2 * self.interval + 1:
                words.append(f"   {span(age)} old", "yellow")
        self.headline.update(words)

    # Acting

    def action_pause(self) -> None:
        name = self.queues.chosen
        if name is None or self.survey is None:
            return
        paused = any(one.name == name and one.paused_at is not None for one in self.survey.queues)
        if paused:
            self._act(lambda: self._verbs.queues.resume(name), lambda _: f"{name} is open")
        else:
            self._act(lambda: self._verbs.queues.pause(name), lambda _: f"{name} is paused")

    def action_cancel(self) -> None:
        def say(run_id: str, outcome: str) -> str:
            return f"{run_id} {'is cancelled' if outcome == 'cancelled' else 'is running and was asked to stop'}"

        one = self._chosen_run()
        if one is not None and one.finished:
            self._say(plain(f"{one.run_id} has ended already: {one.state}", "yellow"))
            return
        self._ask("Cancel", lambda run_id: self._verbs.runs.cancel(run_id), say)

    def action_retry(self) -> None:
        def say(run_id: str, again_as: str) -> str:
            return f"{run_id} runs again" + (f" as {again_as}" if again_as != run_id else "")

        self._ask("Run again", lambda run_id: self._verbs.runs.retry(run_id), say)

    def _ask(self, verb: str, work: Callable[[str], Awaitable[str]], say: Callable[[str, str], str]) -> None:
        """The question names the run: the one that was chosen when the key was pressed, wherever the rows move meanwhile."""
        one = self._chosen_run()
        if one is None:
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._act(lambda: work(one.run_id), lambda answer: say(one.run_id, answer))

        self.push_screen(Question(plain(f"{verb} {one.run_id} ({one.task}, {one.state})?")), answered)

    def _chosen_run(self) -> RunView | None:
        run_id = self.runs.chosen
        return next((one for one in self.survey.runs if one.run_id == run_id), None) if self.survey else None

    def _act(self, work: Callable[[], Awaitable[Any]], say: Callable[[Any], str]) -> None:
        async def whole() -> None:
            try:
                words = plain(say(await work()), "green")
            except _TROUBLE as error:
                words = plain(in_words(error) or type(error).__name__, "red")
            self._say(words)
            self._hurry.set()

        self.run_worker(whole())

    def _say(self, words: Text) -> None:
        self.said.display = True
        self.said.update(words)
        self._said_at = Clock.monotonic()

    # Choosing what is shown, and how often

    def action_filter(self) -> None:
        self.filter.display = True
        self.filter.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self.words = event.value
        self._show()

    def on_input_submitted(self) -> None:
        self._leave_filter()

    def action_show_all(self) -> None:
        self.filter.value = ""
        self._leave_filter()

    def _leave_filter(self) -> None:
        if self.filter.has_focus:
            self.runs.focus()
        self.filter.display = False

    def action_slower(self) -> None:
        self._set_interval(next((one for one in INTERVALS if one > self.interval), self.interval))

    def action_faster(self) -> None:
        self._set_interval(next((one for one in reversed(INTERVALS) if one < self.interval), self.interval))

    def _set_interval(self, seconds: float) -> None:
        self.interval = seconds
        self._show_headline()
        self._hurry.set()

    def action_help(self) -> None:
        self.push_screen(Help())
