"""Just enough of PostgreSQL's protocol to know when a commit is on its way, and when it is answered.

Bytes are watched as they pass, never changed. Both readers take whatever pieces the network cuts the stream into and
say where, in the piece at hand, a message of interest ends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

SSL_REQUEST = 80877103
GSS_REQUEST = 80877104
CANCEL_REQUEST = 80877102
_PREFIX = 4
_HEADER = 5
_LONGEST_OPENING = 10_000
"""The server refuses a longer one; whatever it is, it is for the server to refuse."""

_OPENS = re.compile(r"\s*(BEGIN|START\s+TRANSACTION)\b", re.IGNORECASE)
_CLOSES = re.compile(r"(^|;)\s*(COMMIT|END)(\s+(WORK|TRANSACTION))?\s*;?\s*$", re.IGNORECASE)
_COPY_IN = re.compile(r"\s*COPY\b.*\bFROM\s+STDIN\b", re.IGNORECASE | re.DOTALL)
_COPY = re.compile(r"\s*COPY\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Commit:
    """The message that ends at `end` makes the server commit these statements; its answer is the `answer`th."""

    end: int
    texts: tuple[str, ...]
    answer: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The server is ready again: everything up to `end` answers the `number`th request."""

    end: int
    number: int
    committed: bool


@dataclass(slots=True)
class Session:
    """What the two directions know of each other."""

    requests: int = 0
    """Messages sent, each of which the server ends its answer to with ReadyForQuery."""
    answers: int = 0
    state: str = "I"
    """The server's last word: idle, in a Transaction, or in one that has met an Error and cannot commit any more."""


@dataclass(slots=True)
class Opening:
    """The first message of a connection: no type, and perhaps a question about encryption before it."""

    _buffer: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> tuple[int, bytes] | None:
        """The code and all bytes since the last one, once the message is complete."""
        self._buffer += data
        if len(self._buffer) < 2 * _PREFIX:
            return None
        length = int.from_bytes(self._buffer[:_PREFIX], "big")
        if len(self._buffer) < length <= _LONGEST_OPENING:
            return None
        code = int.from_bytes(self._buffer[_PREFIX : 2 * _PREFIX], "big")
        everything, self._buffer = bytes(self._buffer), bytearray()
        return code, everything


class _Messages:
    """Cuts a stream into typed messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def _split(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """Each message that is complete now: where it ends in `data`, its type, its body."""
        before = len(self._buffer)
        self._buffer += data
        found, position = [], 0
        while len(self._buffer) - position >= _HEADER:
            end = position + 1 + int.from_bytes(self._buffer[position + 1 : position + _HEADER], "big")
            if len(self._buffer) < end:
                break
            found.append((end - before, self._buffer[position], bytes(self._buffer[position + _HEADER : end])))
            position = end
        del self._buffer[:position]
        return found


class FrontendReader(_Messages):
    """What the client sends. It remembers the texts of prepared statements from the start of the connection."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._statements: dict[str, str] = {}
        self._portals: dict[str, str] = {}
        self._executed: list[str] = []
        self._transaction: list[str] = []
        self._copying: list[str] = []

    def feed(self, data: bytes) -> list[Commit]:
        commits = []
        for end, kind, body in self._split(data):
            texts = self._take(kind, body)
            if texts is not None:
                commits.append(Commit(end, tuple(texts), self._session.requests))
        return commits

    def _take(self, kind: int, body: bytes) -> list[str] | None:
        """The statements that this message makes the server commit, if it does."""
        match chr(kind):
            case "P":
                name, text, *_ = body.split(b"\0", 2)
                self._statements[_text(name)] = _text(text)
            case "B":
                portal, name, *_ = body.split(b"\0", 2)
                self._portals[_text(portal)] = self._statements.get(_text(name), "")
            case "E":
                self._executed.append(self._portals.get(_text(body.split(b"\0", 1)[0]), ""))
            case "C" if body[:1] == b"S":
                self._statements.pop(_text(body[1:].rstrip(b"\0")), None)
            case "Q":
                self._session.requests += 1
                self._executed = [_text(body.rstrip(b"\0"))]
                return self._end_of_request()
            case "S":
                self._session.requests += 1
                return self._end_of_request()
            case "F":
                self._session.requests += 1
            case "c" if self._copying:
                texts, self._copying = self._copying, []
                return texts
        return None

    def _end_of_request(self) -> list[str] | None:
        texts, self._executed = self._executed, []
        if not texts:
            return None
        if self._session.state != "I":
            self._transaction += texts
            return self._transaction if self._session.state == "T" and _CLOSES.search(texts[-1]) else None
        self._transaction = []
        if _OPENS.match(texts[0]) and not _CLOSES.search(texts[-1]):
            self._transaction = texts
            return None
        if _COPY.match(texts[-1]):
            # Its data are still to come; it is committed when the client says that they are complete.
            self._copying = texts if _COPY_IN.match(texts[-1]) else []
            return None
        return texts


class BackendReader(_Messages):
    """What the server answers."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._failed = False

    def feed(self, data: bytes) -> list[Answer]:
        answers = []
        for end, kind, body in self._split(data):
            if kind == ord("E"):
                self._failed = True
            elif kind == ord("Z"):
                self._session.answers += 1
                self._session.state = _text(body)
                answers.append(Answer(end, self._session.answers, body == b"I" and not self._failed))
                self._failed = False
        return answers


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
