"""A dead letter's payload, from an option, a file, or the user's editor."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import typer

from hourhand.core.errors import ConfigurationError, HourhandError, InvalidOption, InvalidPayload, NotPossible
from hourhand.surfaces.cli.common import AnyApp, ask, discreet, err, polite, run, tell
from hourhand.surfaces.views import RunView


def read_payload(text: str | None, file: str | None) -> dict[str, Any]:
    if text is not None and file is not None:
        raise InvalidOption("--payload and --payload-file both give the payload; give one of them")
    if file is not None:
        try:
            text = sys.stdin.read() if file == "-" else Path(file).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidOption(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return parse_payload(text or "")


def parse_payload(text: str) -> dict[str, Any]:
    try:
        payload = json.loads(text)
    except ValueError as error:
        raise InvalidPayload(f"the payload is not JSON: {error}") from None
    if not isinstance(payload, dict):
        raise InvalidPayload('the payload must be a JSON object, for example {"invoice_id": 7}')
    return payload


def edit_payload(app: AnyApp, run_id: str) -> tuple[RunView, bool]:
    """Open the payload in the editor until it can be saved; returns the letter and whether it was changed."""
    letter = run(app, lambda app: app.dead.show(run_id))
    shown = discreet(app, letter).payload
    if isinstance(shown, str):
        raise typer.Exit(tell(NotPossible(f"the payload of {letter.run_id} cannot be edited here: {shown}")))
    editor = polite(_find_editor)
    descriptor, name = tempfile.mkstemp(prefix=f"{letter.run_id}-", suffix=".json")
    os.close(descriptor)
    path = Path(name)
    original = json.dumps(shown, indent=2, ensure_ascii=False) + "\n"
    path.write_text(original)
    try:
        while True:
            polite(lambda: _open_editor(editor, path))
            answer = run(app, lambda app: _save(app, letter, shown, path.read_text()))
            if isinstance(answer, RunView):
                path.unlink()
                return answer, answer is not letter
            code = tell(answer)
            if not (sys.stdin.isatty() and ask("Edit it again?", default=True)):
                raise typer.Exit(code)
    finally:
        if path.exists() and path.read_text() == original:
            path.unlink()
        if path.exists():
            err.print(f"nothing was saved; what you wrote is kept in {path}", soft_wrap=True)


async def _save(app: AnyApp, letter: RunView, shown: Any, text: str) -> RunView | InvalidPayload:
    if not text.strip():
        return letter
    try:
        payload = parse_payload(text)
        return letter if payload == shown else await app.dead.edit(letter.run_id, payload)
    except InvalidPayload as error:
        return error


def _find_editor() -> list[str]:
    for variable in ("VISUAL", "EDITOR"):
        if os.environ.get(variable, "").strip():
            return shlex.split(os.environ[variable])
    if sys.stdin.isatty():
        for program in ("sensible-editor", "nano", "vi"):
            if shutil.which(program):
                return [program]
    raise ConfigurationError("there is no editor to open: set EDITOR, or give the payload with --payload or --payload-file")


def _open_editor(editor: list[str], path: Path) -> None:
    try:
        code = subprocess.run([*editor, str(path)], check=False).returncode
    except OSError as error:
        raise ConfigurationError(f"the editor {editor[0]!r} cannot be started: {error.strerror}") from None
    if code:
        raise HourhandError(f"the editor ended with exit code {code}")
