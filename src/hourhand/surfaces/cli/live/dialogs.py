"""What `hourhand top` shows above its screen: a question, and the keys."""

from __future__ import annotations

from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Static

KEYS = {
    "tab, shift+tab": "the next pane, the one before",
    "up, down": "choose a row",
    "p": "pause the chosen queue, or resume it",
    "c": "cancel the chosen run",
    "r": "run the chosen run again",
    "/": "show only rows with these words; Esc shows all again",
    "+, -": "look less often, more often",
    "?": "this",
    "q": "leave",
}
_LOOKS = """
{0} {{ align: center middle; }}
{0} > Static {{ width: auto; height: auto; max-width: 90%; padding: 1 2; border: round $primary; background: $surface; }}
"""


class Question(ModalScreen[bool]):
    """Yes or no; only `y` is yes."""

    DEFAULT_CSS = _LOOKS.format("Question")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)"),
        Binding("n,escape,q,ctrl+c", "answer(False)"),
    ]

    def __init__(self, text: Text) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        yield Static(Text.assemble(self._text, ("  y/n", "bold")))

    def action_answer(self, yes: bool) -> None:
        # The keys of somebody who types quickly are all handed to the screen that was there for the first of them.
        if self.is_current:
            self.dismiss(yes)


class Help(ModalScreen[None]):
    DEFAULT_CSS = _LOOKS.format("Help")

    def compose(self) -> ComposeResult:
        rows = Table.grid(padding=(0, 2))
        for key, what in KEYS.items():
            rows.add_row(Text(key, "bold"), what)
        yield Static(rows)

    def on_key(self, event: Key) -> None:
        event.stop()
        if self.is_current:
            self.dismiss()
