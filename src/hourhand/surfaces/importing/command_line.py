"""A line that cron would give to a shell, as the program and the arguments it comes to, if no shell is needed for that.

Only what every shell reads alike is read here: words, quotes, backslashes, comments. Whatever a shell would have to do
something about (variables, patterns, pipes) is refused with its name, never guessed at.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from hourhand.surfaces.importing.translation import Untranslatable

_OPERATOR = re.compile(r"&>>|&>|&&|\|\||;;|<<<|<<-|<<|>>|>&|<&|>\||<>|[|&;<>()\n]")
_EXPANSION = re.compile(r"\$[A-Za-z0-9_{(@*#?$!'\"-]")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_BRACES = re.compile(r"\{[^{}\s]*(,|\.\.)[^{}\s]*\}")
_SILENT = "/dev/null"
# What is no program anywhere, or does nothing when it is run as one.
_OF_THE_SHELL = frozenset({
    ".", ":", "alias", "bg", "break", "case", "cd", "command", "continue", "declare", "do", "done", "elif", "else", "esac",
    "eval", "exec", "exit", "export", "fg", "fi", "for", "function", "getopts", "hash", "if", "jobs", "let", "local", "read",
    "readonly", "return", "select", "set", "shift", "source", "then", "times", "trap", "type", "typeset", "ulimit", "umask",
    "unalias", "unset", "until", "wait", "while", "{", "}", "!", "[[", "((",
})  # fmt: skip


class NeedsShell(Untranslatable):
    """What in the line only a shell can do."""


@dataclass(frozen=True, slots=True)
class Word:
    text: str
    bare: bool
    """Whether it was written without quotes and backslashes."""


@dataclass(frozen=True, slots=True)
class Operator:
    text: str
    of: str = ""
    """The number of the stream before a redirection."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    argv: list[str]
    cwd: str | None
    silenced: bool
    """Its output was thrown away."""
    lax: bool
    """It would also run if it could not change to its directory."""


def read_command(line: str) -> CommandLine:
    tokens, silenced = _without_silence(_tokens(line))
    cwd, lax = None, False
    match tokens:
        case [Word("cd", True), Word(place), Operator("&&" | ";" as joint), *rest] if place and not place.startswith("-"):
            tokens, cwd, lax = rest, posixpath.normpath(place), joint == ";"
    argv = [_only_words(one, tokens[place + 1 : place + 2]) for place, one in enumerate(tokens)]
    if not argv:
        raise Untranslatable("there is no command on the line")
    first = argv[0]
    if _ASSIGNMENT.match(first.text):
        name = first.text.partition("=")[0]
        raise NeedsShell(f"it sets {name} for this one command; give {name} a line of its own above it")
    if first.bare and first.text in _OF_THE_SHELL:
        raise NeedsShell(f"{first.text} is a word of the shell, not a program")
    if not first.text:
        raise Untranslatable("the name of the program is empty")
    return CommandLine([one.text for one in argv], cwd, silenced, lax)


def _only_words(token: Word | Operator, after: list[Word | Operator]) -> Word:
    if isinstance(token, Word):
        return token
    match token.text:
        case ">" | ">>" | ">|" | "&>" | "&>>":
            target = f" to {after[0].text}" if after and isinstance(after[0], Word) else ""
            raise NeedsShell(f"its output is redirected{target}")
        case "<" | "<<" | "<<-" | "<<<" | "<>":
            raise NeedsShell("its input is redirected")
        case "|":
            raise NeedsShell("it is a pipeline")
        case "&":
            raise NeedsShell("& leaves it running in the background")
        case "&&" | "||" | ";":
            raise NeedsShell(f"{token.text} joins several commands")
        case "(" | ")":
            raise NeedsShell("parentheses group commands")
        case _:
            raise NeedsShell(f"it contains {token.text.strip() or 'a line break'}")


def _without_silence(tokens: list[Word | Operator]) -> tuple[list[Word | Operator], bool]:
    """Without what throws output away or joins the two streams: here the output is kept with the run, and none is sent."""
    kept: list[Word | Operator] = []
    silenced = False
    place = 0
    while place < len(tokens):
        one, after = tokens[place], tokens[place + 1] if place + 1 < len(tokens) else None
        if isinstance(one, Operator) and isinstance(after, Word) and _is_silence(one, after.text):
            silenced = silenced or after.text == _SILENT
            place += 2
        else:
            kept.append(one)
            place += 1
    return kept, silenced


def _is_silence(one: Operator, target: str) -> bool:
    if one.text in (">", ">>", ">|", "&>", "&>>", ">&") and target == _SILENT:
        return one.of in ("", "1", "2")
    if one.text == ">&":
        return one.of in ("", "1", "2") and target in ("1", "2")
    return one.text == "<" and target == _SILENT and one.of in ("", "0")


class _Reader:
    """Goes through the line once; a word is what has gathered since the last blank or operator."""

    def __init__(self, line: str) -> None:
        self.line = line
        self.at = 0
        self.tokens: list[Word | Operator] = []
        self.text: str | None = None
        self.bare = True

    def add(self, text: str, length: int, *, bare: bool = True) -> None:
        self.text = (self.text or "") + text
        self.bare = self.bare and bare
        self.at += length

    def end_word(self) -> None:
        if self.text is not None:
            if self.bare and _BRACES.search(self.text):
                raise NeedsShell("braces stand for several words")
            self.tokens.append(Word(self.text, self.bare))
        self.text, self.bare = None, True


def _tokens(line: str) -> list[Word | Operator]:
    one = _Reader(line)
    while one.at < len(line):
        character = line[one.at]
        if character in " \t\r":
            one.end_word()
            one.at += 1
        elif character == "#" and one.text is None:
            break
        elif character == "'":
            _single(one)
        elif character == '"':
            _double(one)
        elif character == "\\":
            escaped = line[one.at + 1 : one.at + 2]
            one.add(escaped or "\\", 2, bare=False)
        elif (operator := _OPERATOR.match(line, one.at)) is not None:
            _operator(one, operator[0])
        else:
            _refuse_expansion(one, character)
            one.add(character, 1)
    one.end_word()
    return one.tokens


def _operator(one: _Reader, text: str) -> None:
    of = ""
    if text[0] in "<>" and one.text is not None and one.bare and one.text.isdigit():
        # A number right before a redirection is the stream it is about.
        of, one.text = one.text, None
    one.end_word()
    one.tokens.append(Operator(text, of))
    one.at += len(text)


def _single(one: _Reader) -> None:
    end = one.line.find("'", one.at + 1)
    if end < 0:
        raise Untranslatable("a ' is not closed: the shell of cron refuses the line as well")
    one.add(one.line[one.at + 1 : end], end + 1 - one.at, bare=False)


def _double(one: _Reader) -> None:
    one.add("", 1, bare=False)
    while one.at < len(one.line):
        character = one.line[one.at]
        if character == '"':
            one.add("", 1)
            return
        after = one.line[one.at + 1 : one.at + 2]
        if character == "\\" and after and after in '$`"\\':
            one.add(after, 2)
        else:
            if character in "$`":
                _refuse_expansion(one, character, quoted=True)
            one.add(character, 1)
    raise Untranslatable('a " is not closed: the shell of cron refuses the line as well')


def _refuse_expansion(one: _Reader, character: str, *, quoted: bool = False) -> None:
    if character == "`":
        raise NeedsShell("backquotes run another command")
    if character == "$" and (found := _EXPANSION.match(one.line, one.at)):
        # At the end of quotes, and before them within quotes, it is a dollar sign.
        if quoted and found[0][1] in "'\"":
            return
        variable = re.match(r"\$\{?[A-Za-z0-9_]+\}?", one.line[one.at :])
        raise NeedsShell(f"{variable[0] if variable else found[0]} is replaced by the shell")
    if quoted:
        return
    alone = one.text is None and one.line[one.at + 1 : one.at + 2] in ("", " ", "\t")
    if character in "*?" or (character == "[" and not alone):
        raise NeedsShell(f"{character} is a pattern for names of files")
    if character == "~" and (one.text is None or one.text.endswith(("=", ":"))):
        raise NeedsShell("~ stands for a home directory")
