"""How a log line leaves the process."""

from __future__ import annotations

import logging
import sys

import pytest
import structlog

from hourhand.engine.logs import configure_logs


class Stream:
    """As another thread would find it between any two writes."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def write(self, text: str) -> None:
        self.written.append(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_line_is_one_write_whoever_says_it(monkeypatch: pytest.MonkeyPatch, style: str) -> None:
    """Else what a thread says through `logging` comes between a line and its end."""
    stream, before, root = Stream(), structlog.get_config(), logging.getLogger()
    monkeypatch.setenv("HOURHAND_LOG_STYLE", "")
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(root, "handlers", [])
    level = root.level
    try:
        configure_logs(style, capture=True)
        structlog.get_logger("shop").info("order.kept", number=7)
        logging.getLogger("shop").warning("sent to %s", "you")
    finally:
        structlog.configure(**before)
        root.setLevel(level)
    assert [(text.count("\n"), text[-1]) for text in stream.written if text] == [(1, "\n")] * 2
