"""Fields of cron expressions, where another system means something else by them than cron does.

Celery and APScheduler fire when the day of the month *and* the weekday match. Cron fires when either does, unless one of the
two starts with `*`: then both must. So some pairs have an equal in cron and others have none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from hourhand.surfaces.importing.translation import Untranslatable

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_PART = re.compile(r"(?P<all>\*)(?:/(?P<steps>\d{1,3}))?|(?P<first>\w+)(?:-(?P<last>\w+)(?:/(?P<step>\d{1,3}))?)?")
_PLAIN = re.compile(r"[\d*,/-]+")


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    lowest: int
    highest: int
    names: tuple[str, ...] = ()

    @property
    def all(self) -> range:
        return range(self.lowest, self.highest + 1)


SECOND = Kind("second", 0, 59)
MINUTE = Kind("minute", 0, 59)
HOUR = Kind("hour", 0, 23)
DAY = Kind("day of the month", 1, 31)
MONTH = Kind("month", 1, 12, _MONTHS)
WEEKDAY = Kind("weekday", 0, 6, _WEEKDAYS)
"""Sunday is 0."""


def read_field(text: str, kind: Kind) -> set[int]:
    """A field as Celery reads it: names in full or short, ranges that may go round the end, steps."""
    values: set[int] = set()
    for part in text.replace(" ", "").split(","):
        found = _PART.fullmatch(part)
        if found is None:
            raise Untranslatable(f"{part!r} is not understood as a {kind.name}")
        if found["all"]:
            values.update(kind.all[:: _step(found["steps"], kind)])
            continue
        first = _number(found["first"], kind)
        last = first if found["last"] is None else _number(found["last"], kind)
        chosen = [*range(first, last + 1)] if first <= last else [*range(first, kind.highest + 1), *range(kind.lowest, last + 1)]
        values.update(chosen[:: _step(found["step"], kind)])
    return values


def _step(text: str | None, kind: Kind) -> int:
    if text is not None and int(text) == 0:
        raise Untranslatable(f"a {kind.name} in steps of 0 never comes")
    return 1 if text is None else int(text)


def _number(word: str, kind: Kind) -> int:
    short = word[:3].lower()
    if short in kind.names:
        return kind.names.index(short) + kind.lowest
    if not word.isascii() or not word.isdigit() or int(word[:5]) not in kind.all:
        raise Untranslatable(f"{word!r} is no {kind.name}")
    return int(word)


def write_field(values: Iterable[int], kind: Kind) -> str:
    """The shortest usual way to write it."""
    chosen = sorted(set(values))
    if not chosen or chosen[0] < kind.lowest or chosen[-1] > kind.highest:
        raise Untranslatable(f"{chosen or 'nothing'} is not a choice of a {kind.name}")
    stepped = _in_steps(chosen, kind)
    if stepped is not None and (stepped == "*" or len(chosen) > 2):
        return stepped
    parts: list[str] = []
    while chosen:
        run = 1
        while run < len(chosen) and chosen[run] == chosen[0] + run:
            run += 1
        if run > 2:
            parts.append(f"{chosen[0]}-{chosen[run - 1]}")
        else:
            parts += [str(one) for one in chosen[:run]]
        chosen = chosen[run:]
    return ",".join(parts)


def kept_field(text: str, kind: Kind) -> str:
    """As it was written, where cron understands the same by it: people recognise what they wrote."""
    values = read_field(text, kind)
    written = text.replace(" ", "")
    round_the_end = any(int(first) > int(last) for first, last in re.findall(r"(\d+)-(\d+)", written))
    return written if _PLAIN.fullmatch(written) and not round_the_end else write_field(values, kind)


def _in_steps(chosen: list[int], kind: Kind) -> str | None:
    """`*` or `*/n`, if it is that."""
    if chosen == list(kind.all):
        return "*"
    step = chosen[1] - chosen[0] if len(chosen) > 1 else kind.highest - kind.lowest + 1
    return f"*/{step}" if chosen == list(kind.all[::step]) else None


def both_days(days: Collection[int], weekdays: Collection[int]) -> tuple[str, str]:
    """Day of the month and weekday, both of which must match, as the two fields of a cron expression."""
    days_text, weekdays_text = write_field(days, DAY), write_field(weekdays, WEEKDAY)
    if "*" in (days_text, weekdays_text):
        return days_text, weekdays_text
    # A field that starts with * asks for both, however little it lets through.
    if (stepped := _in_steps(sorted(set(days)), DAY)) is not None:
        return stepped, weekdays_text
    if (stepped := _in_steps(sorted(set(weekdays)), WEEKDAY)) is not None:
        return days_text, stepped
    for week in range(1, 6):
        if set(days) == set(range(7 * week - 6, min(7 * week, 31) + 1)):
            return "*", ",".join(f"{one}#{week}" for one in sorted(set(weekdays)))
    raise Untranslatable(
        f"it asks for a day of the month ({days_text}) and a weekday ({weekdays_text}) at once, and cron here takes either; "
        "schedule one of the two and look at the other in the task"
    )
