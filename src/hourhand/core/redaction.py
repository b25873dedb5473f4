"""Secret fields: hidden where a payload is shown, and taken out of whatever else would tell them.

A field is secret by its place (`card.number`, where `*` is any key or any item; said by the task, the job or the enqueue) or,
at any depth, by its name alone. When in doubt a field is hidden: a path goes through lists by itself, `api-key` is
`API_KEY`, and a key with a dot in it is found by the path that reads the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus, urlsplit

import msgspec

from hourhand.core.errors import InvalidOption, InvalidPayload

REDACTED = "[redacted]"
MAX_MARKS = 100
LONGEST_MARK = 200
SHORTEST = 4
"""Characters or digits from which on a value is looked for in other text: shorter ones are found everywhere."""
_LINE = 8
_MOST_EFFORT = 200_000_000
"""Characters to look at, over all secrets: about a tenth of a second."""
_GONE = "\ufdd0"  # no text has this character, so what was taken out is not looked at again

Path = tuple[str, ...]
Clean = Callable[[str], str]


def check_marks(value: Any) -> tuple[str, ...]:
    marks = tuple(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)) else (None,)
    for one in marks:
        if not isinstance(one, str) or not 0 < len(one) <= LONGEST_MARK or not all(one.split(".")) or "\0" in one:
            raise InvalidOption(
                f"secret takes a list of fields such as password, card.number or items.*.token, each of at most "
                f"{LONGEST_MARK} characters, not {value!r}"
            )
    if len(marks) > MAX_MARKS:
        raise InvalidOption(f"secret takes at most {MAX_MARKS} fields, not {len(marks)}; a path hides all that is below it")
    return tuple(dict.fromkeys(marks))


def marks_in(options: Mapping[str, Any] | None) -> tuple[str, ...]:
    """What a stored run or job says is secret. Other languages write these too, so nothing is taken for granted."""
    given = options.get("secret") if options else None
    return tuple(one for one in given if isinstance(one, str)) if isinstance(given, (list, tuple)) else ()


def redact(payload: Any, marks: Sequence[str] = (), names: Sequence[str] = ()) -> Any:
    """The same with every secret value replaced by a word that says so."""
    return _replaced(payload, _paths(marks), _squeezed(tuple(names)), lambda _: REDACTED)


def restore(edited: Any, original: Any, marks: Sequence[str] = (), names: Sequence[str] = ()) -> Any:
    """What somebody made of a payload that he saw redacted: where the word still stands, the value is put back.

    The word means nothing where nothing was hidden, and of a list that was changed around it, it may not be clear what: both
    are errors, lest the word be stored in place of a secret, or one secret in place of another.
    """
    if not mentions(edited):
        return edited
    return _restored(edited, original, redact(original, marks, names), "")


def check_destination(task: str, original: Any, restored: Any) -> None:
    """A secret goes where it went before: whoever sends an HTTP job or a command elsewhere has to know it himself."""
    if not isinstance(original, Mapping) or not isinstance(restored, Mapping):
        return
    places = {"http": lambda payload: _site(payload.get("url")), "command": lambda payload: payload.get("argv")}
    place = places.get(task)
    if place is not None and place(original) != place(restored):
        raise InvalidPayload(f"this sends the run elsewhere: give the secret values again in place of {REDACTED}")


def _site(url: Any) -> Any:
    try:
        parts = urlsplit(str(url))
        return parts.scheme.lower(), parts.hostname, parts.port
    except ValueError:
        return url


def mentions(value: Any) -> bool:
    """Whether the word that stands for a secret is somewhere in it."""
    if isinstance(value, Mapping):
        return any(mentions(one) for one in value.values())
    if isinstance(value, (list, tuple)):
        return any(mentions(one) for one in value)
    return bool(value == REDACTED)


def scrub(text: str, payload: Any, marks: Sequence[str] = (), names: Sequence[str] = ()) -> str:
    """Other text, such as an error's, without the secret values of a payload."""
    clean = scrubber(payload, marks, names)
    return text if clean is None else clean(text)


def scrubber(payload: Any, marks: Sequence[str] = (), names: Sequence[str] = ()) -> Clean | None:
    """The same for many texts; None: the payload has nothing to look for."""
    found: list[Any] = []
    _replaced(payload, _paths(marks), _squeezed(tuple(names)), found.append)
    texts, numbers = _spellings(found)
    if not texts and not numbers:
        return None

    def clean(text: str) -> str:
        if (len(texts) + len(numbers)) * len(text) > _MOST_EFFORT:
            return REDACTED  # a worker has other things to do than to look for all of these in all of that
        for one in texts:
            if one in text:
                text = text.replace(one, _GONE)
        for one in numbers:
            if one in text:
                text = re.sub(rf"(?<!\d){re.escape(one)}(?!\d)", _GONE, text)
        return text.replace(_GONE, REDACTED)

    return clean


def cleaner(encoded: str, options: Mapping[str, Any] | None, marks: Sequence[str], names: Sequence[str]) -> Clean | None:
    """`scrubber` for a run as a worker has it: its payload as JSON text, its options, the marks of its task.

    Most payloads have no secret, which a look at the text tells without reading it.
    """
    every = (*marks_in(options), *marks)
    if not every and not _may_name(encoded, names):
        return None
    try:
        return scrubber(msgspec.json.decode(encoded), every, names)
    except (msgspec.DecodeError, RecursionError):
        return lambda _: REDACTED  # what cannot be read cannot be found either


def scrub_values(value: Any, clean: Clean | None) -> Any:
    """A result, a report, an error: every text and number in it scrubbed."""
    if clean is None:
        return value
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {name: scrub_values(one, clean) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub_values(one, clean) for one in value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value if clean(repr(value)) == repr(value) else REDACTED
    return value


def _paths(marks: Sequence[str]) -> list[Path]:
    return [tuple(mark.split(".")) for mark in marks]


@lru_cache(maxsize=64)
def is_secret(path: str, names: Sequence[str]) -> bool:
    """Whether a field is secret by a name, its own or that of what it is in."""
    return any(_squeeze(part) in _squeezed(tuple(names)) for part in path.split("."))


def _squeezed(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(_squeeze(name) for name in names) - {""}


def _squeeze(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "")


def _may_name(encoded: str, names: Sequence[str]) -> bool:
    squeezed = _squeeze(encoded)
    return any(name in squeezed for name in _squeezed(tuple(names)))


def _replaced(value: Any, paths: list[Path], names: frozenset[str], swap: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        made = {}
        for key, item in value.items():
            below = list(_below(str(key), paths))
            hit = () in below or _squeeze(str(key)) in names
            made[key] = swap(item) if hit else _replaced(item, below, names, swap)
        return made
    if isinstance(value, (list, tuple)):
        items = []
        for index, item in enumerate(value):
            below = list(_below_item(index, paths))
            items.append(swap(item) if () in below else _replaced(item, below, names, swap))
        return items
    return value


def _below(key: str, paths: list[Path]) -> Iterator[Path]:
    """What is left of these paths behind a key; nothing left: the key's value is meant."""
    for path in paths:
        if path[0] == "*":
            yield path[1:]
        for size in range(1, len(path) + 1):
            if ".".join(path[:size]) == key:
                yield path[size:]


def _below_item(index: int, paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if path[0] == "*" or path[0] == str(index):
            yield path[1:]
        elif not path[0].isdigit():
            yield path


def _restored(edited: Any, original: Any, shown: Any, place: str) -> Any:
    """`shown` is the original as he saw it."""
    if isinstance(edited, str) and edited == REDACTED:
        if shown != REDACTED:
            raise InvalidPayload(f"{place or 'the payload'} is {REDACTED}, but nothing is hidden there: write the value itself")
        return original
    if not mentions(edited):
        return edited
    if isinstance(edited, Mapping):
        was: Any = original if isinstance(original, Mapping) else {}
        saw: Any = shown if isinstance(shown, Mapping) else {}
        return {
            key: _restored(item, was.get(key), saw.get(key), f"{place}.{key}" if place else str(key))
            for key, item in edited.items()
        }
    was = original if isinstance(original, (list, tuple)) else []
    saw = shown if isinstance(shown, (list, tuple)) else []
    return [_restored_item(index, item, edited, was, saw, f"{place}[{index}]") for index, item in enumerate(edited)]


def _restored_item(index: int, item: Any, edited: Sequence[Any], was: Sequence[Any], saw: Sequence[Any], place: str) -> Any:
    """An item of a list may have been moved, or others removed: then it is known by what is visible of it."""
    if not mentions(item):
        return item
    same_size = len(edited) == len(was)
    if same_size and item == saw[index]:
        return was[index]
    alike = [was[place] for place, one in enumerate(saw) if one == item]
    if alike and all(one == alike[0] for one in alike):
        return alike[0]
    if same_size and not alike:
        return _restored(item, was[index], saw[index], place)
    raise InvalidPayload(
        f"{place} has {REDACTED}, and it is not clear which value that was, since the list has changed: write the values themselves"
    )


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, Mapping):
            yield from _leaves(value.values())
        elif isinstance(value, (list, tuple)):
            yield from _leaves(value)
        else:
            yield value


def _spellings(values: Iterable[Any]) -> tuple[list[str], list[str]]:
    """As the values may be written in other text, the longest first: what is a part of another must not break it up."""
    texts: set[str] = set()
    numbers: set[str] = set()
    for value in _leaves(values):
        if isinstance(value, str) and len(value) >= SHORTEST:
            texts |= _written(value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            word = repr(value)
            if sum(letter.isdigit() for letter in word) >= SHORTEST:
                numbers.add(word)
    return sorted(texts, key=len, reverse=True), sorted(numbers, key=len, reverse=True)


def _written(value: str) -> set[str]:
    """A text as it is, as a program shows it, as JSON, in a URL; and of a long one, such as a private key, each line."""
    lines = (part.strip() for part in value.splitlines())
    forms = {value, repr(value)[1:-1], *(line for line in lines if len(line) >= _LINE)}
    with suppress(UnicodeEncodeError):  # half of a surrogate pair is no JSON and fits into no URL
        forms |= {msgspec.json.encode(value).decode()[1:-1], quote(value, safe=""), quote_plus(value)}
    return forms
