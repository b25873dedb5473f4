"""YAML or JSON into plain values that remember their lines.

Nothing is constructed but texts, numbers, truth values, lists and mappings: of PyYAML only the safe loader's parser is used, and
its events are put together here, where depth, size and what aliases amount to are bounded as they come.

Plain words are read as YAML 1.2 reads them: dates and `12:30` are texts. What YAML 1.1 and 1.2 read differently is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hourhand.core.errors import ConfigurationError, InvalidOption

MOST_BYTES = 64 * 1024 * 1024
MOST_VALUES = 5_000_000
"""After aliases are followed: a small file can stand for more than any memory holds."""
DEEPEST = 50
_TAGS = {f"tag:yaml.org,2002:{kind}": kind for kind in ("str", "int", "float", "bool", "null", "map", "seq")}
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
_INT = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_ENDLESS = {f"{sign}.{word}": f"{sign}{word}" for sign in ("", "+", "-") for word in ("inf", "Inf", "INF")}
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+")
_TRUTHS = frozenset(form for word in ("yes", "no", "on", "off") for form in (word, word.title(), word.upper()))
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]|[^\s,:{}\[\]"]+|\n')


class Unreadable(InvalidOption):
    """A document that cannot be read, and on which line."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


class Located(dict[str, Any]):
    """A mapping that knows on which lines its keys are."""

    __slots__ = ("line", "lines")

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}


class _Token(NamedTuple):
    kind: str
    """One of { [ } ] value alias."""
    line: int
    value: Any = None
    text: str | None = None
    """Of a scalar: as it is written, for keys are always text."""
    anchor: str | None = None
    bare: bool = False
    """Without quotes."""


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end has not come yet."""

    node: Located | list[Any]
    line: int
    anchor: str | None
    key: str | None = None
    merging: bool = False
    merged: list[Located] = field(default_factory=list)
    size: int = 1


def read_document(text: str, *, as_json: bool) -> Any:
    """The one document of a text; mappings in it are `Located`."""
    if len(text) > MOST_BYTES:
        raise Unreadable(1, f"longer than {MOST_BYTES // 1024**2} MiB; split it")
    return _Builder().build(_json_tokens(text) if as_json else _yaml_tokens(text))


class _Builder:
    def __init__(self) -> None:
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._values = 0
        self._found: list[Any] = []

    def build(self, tokens: Iterator[_Token]) -> Any:
        for token in tokens:
            if token.kind in "{[":
                if len(self._open) >= DEEPEST:
                    raise Unreadable(token.line, f"nested more than {DEEPEST} deep")
                self._expect_value(token)
                node: Located | list[Any] = Located(token.line) if token.kind == "{" else []
                self._values += 1
                self._open.append(_Open(node, token.line, token.anchor))
            elif token.kind in "}]":
                self._close()
            else:
                self._scalar(token)
        if not self._found:
            raise Unreadable(1, "there is nothing in it")
        return self._found[0]

    def _scalar(self, token: _Token) -> None:
        top = self._open[-1] if self._open else None
        if top is not None and isinstance(top.node, Located) and top.key is None and not top.merging:
            self._key(top, top.node, token)
        elif token.kind == "alias":
            if token.value not in self._anchors:
                raise Unreadable(token.line, f"*{token.value} stands for nothing that is complete before it")
            value, size = self._anchors[token.value]
            self._put(value, size, token.line)
        else:
            if token.anchor is not None:
                self._anchors[token.anchor] = (token.value, 1)
            self._put(token.value, 1, token.line)

    def _key(self, top: _Open, node: Located, token: _Token) -> None:
        if token.text is None:
            raise Unreadable(token.line, "a key must be a text")
        if token.bare and token.text == "<<":
            top.merging = True
            return
        if token.text in node:
            raise Unreadable(token.line, f"{token.text!r} comes twice, first on line {node.lines[token.text]}")
        top.key = token.text
        node.lines[token.text] = token.line

    def _expect_value(self, token: _Token) -> None:
        top = self._open[-1] if self._open else None
        if top is not None and isinstance(top.node, Located) and top.key is None and not top.merging:
            raise Unreadable(token.line, "a key must be a text")

    def _close(self) -> None:
        done = self._open.pop()
        if isinstance(done.node, Located):
            for other in done.merged:
                for key, value in other.items():
                    if key not in done.node:
                        done.node[key] = value
                        done.node.lines[key] = other.lines[key]
        if done.anchor is not None:
            self._anchors[done.anchor] = (done.node, done.size)
        # What is inside has been counted as it came.
        self._values -= done.size
        self._put(done.node, done.size, done.line)

    def _put(self, value: Any, size: int, line: int) -> None:
        self._values += size
        if self._values > MOST_VALUES:
            raise Unreadable(line, f"with its aliases it stands for more than {MOST_VALUES:,} values")
        if not self._open:
            self._found.append(value)
            return
        top = self._open[-1]
        top.size += size
        if isinstance(top.node, list):
            top.node.append(value)
        elif top.merging:
            others = value if isinstance(value, list) else [value]
            if not all(isinstance(one, Located) for one in others):
                raise Unreadable(line, "<< takes a mapping, or a list of them")
            top.merged += others
            top.merging = False
        else:
            assert top.key is not None
            top.node[top.key] = value
            top.key = None


def _yaml_tokens(text: str) -> Iterator[_Token]:
    try:
        import yaml
    except ImportError:
        raise ConfigurationError(
            "reading YAML needs PyYAML, which is not installed: pip install 'hourhand[yaml]', or write the file as JSON"
        ) from None
    # The one in C reads ten times as fast, and both hand out the same events.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    documents = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            assert event.start_mark is not None  # only an event that is made by hand has none
            line = event.start_mark.line + 1
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise Unreadable(line, "a second document begins here; write it into a file of its own")
            elif isinstance(event, yaml.AliasEvent):
                yield _Token("alias", line, event.anchor)
            elif isinstance(event, yaml.ScalarEvent):
                value = _scalar(event.value, _kind(event.tag, line), bool(event.implicit[0]), line)
                yield _Token("value", line, value, event.value, event.anchor, bool(event.implicit[0]))
            elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                _kind(event.tag, line)
                yield _Token("{" if isinstance(event, yaml.MappingStartEvent) else "[", line, anchor=event.anchor)
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                yield _Token("}", line)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = ", ".join(part for part in (error.context, error.problem) if part)
        raise Unreadable(mark.line + 1 if mark else 1, f"not YAML: {words}") from None
    except yaml.YAMLError as error:
        raise Unreadable(1, f"not YAML: {str(error).splitlines()[0]}") from None


def needs_quotes(text: str) -> bool:
    """Whether a reader of YAML, of whichever version, could take this word for something else than a text."""
    if len(text) > 400 or text in _TRUTHS or _LEADING_ZERO.fullmatch(text):
        return True
    return not isinstance(_plain(text, 0), str)


def _kind(tag: str | None, line: int) -> str | None:
    if tag is None or tag == "!":
        return None
    if tag not in _TAGS:
        raise Unreadable(line, f"the tag {tag!r} is not for here: only texts, numbers, truth values, lists and mappings are")
    return _TAGS[tag]


def _scalar(text: str, kind: str | None, bare: bool, line: int) -> Any:
    if kind == "str" or (kind is None and not bare):
        return text
    if kind is None:
        if text in _TRUTHS:
            raise Unreadable(
                line, f"{text} is true or false to some readers of YAML and a text to others: write true, false or {text!r}"
            )
        if _LEADING_ZERO.fullmatch(text):
            raise Unreadable(
                line, f"{text} is another number to some readers of YAML than to others: quote it, or leave out the zero"
            )
    return _plain(text, line)


def _plain(text: str, line: int) -> Any:
    """A word without quotes, by the core schema of YAML 1.2."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    try:
        if _INT.fullmatch(text):
            return int(text)
    except ValueError:
        raise Unreadable(line, "a number with too many digits") from None
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    return float(_ENDLESS[text]) if text in _ENDLESS else text


def _json_tokens(text: str) -> Iterator[_Token]:
    """What `json` has found to be in order, once more with the lines."""
    try:
        json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise Unreadable(error.lineno, f"not JSON: {error.msg.lower()} (column {error.colno})") from None
    except RecursionError:
        raise Unreadable(1, f"nested more than {DEEPEST} deep") from None
    except ValueError as error:
        raise Unreadable(1, f"not JSON: {error}") from None
    line = 1
    for match in _JSON_TOKEN.finditer(text):
        word = match[0]
        if word == "\n":
            line += 1
        elif word in "{[}]":
            yield _Token(word, line)
        else:
            value = json.loads(word)
            if "\\u" in word and isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
                raise Unreadable(line, f"{word} has half of a surrogate pair, which is no text")
            yield _Token("value", line, value, value if isinstance(value, str) else None)


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")
