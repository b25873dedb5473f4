"""The calendar of a job: what became of its firings, cell by cell, as a picture and as a table.

A cell has the colour of the worst that happened in it, and marks that can be told apart without colours: a cross for what failed, a bar for
what was skipped, a corner for what came late.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from itertools import pairwise

from markupsafe import Markup

from hourhand.surfaces.dashboard.words import plural, seconds_in_words
from hourhand.surfaces.job_insight import SCALES, Calendar

WEEKS = 13
_SIZES = {"day": 20, "hour": 15, "minute": 20}
_GAP = 3
_TOP = 18
_DAY = timedelta(days=1)
_QUARTER = timedelta(minutes=15)
_FAILED = ("dead", "lost")
Link = Callable[[datetime, datetime], str]
"""Where to read more about a period."""


@dataclass(slots=True)
class Cell:
    since: datetime
    until: datetime
    name: str
    column: int
    row: int
    runs: dict[str, int] = field(default_factory=dict)
    retried: int = 0
    late: int = 0
    latest: float = 0.0
    skipped: int = 0
    """How many were left out; -1: some of a longer row of them."""
    paused: bool = False
    known: bool = True
    """Otherwise there were too many runs to look that far back."""

    @property
    def failed(self) -> int:
        return sum(self.runs.get(one, 0) for one in _FAILED)

    @property
    def empty(self) -> bool:
        return not self.runs and not self.skipped and not self.paused and self.known

    @property
    def style(self) -> str:
        if not self.known:
            return "unknown"
        if self.failed:
            return "bad"
        if self.runs.get("expired"):
            return "warn"
        if self.runs.get("succeeded"):
            return "good"
        return "quiet" if self.runs else "paused" if self.paused else "none"

    @property
    def said(self) -> str:
        """What happened in it, in words."""
        words = [f"{many:,} {'dead letters' if state == 'dead' and many > 1 else 'dead letter' if state == 'dead' else state}"
                 for state, many in sorted(self.runs.items())]  # fmt: skip
        if self.retried:
            words.append(f"{self.retried:,} of them after a retry")
        if self.late:
            words.append(f"{self.late:,} late, by up to {seconds_in_words(self.latest)}")
        if self.skipped:
            words.append("some skipped" if self.skipped < 0 else f"{self.skipped:,} skipped")
        if self.paused:
            words.append("paused")
        if not self.known:
            words.append("too long ago for so many runs")
        return ", ".join(words) or "no firing"


@dataclass(frozen=True, slots=True)
class HeatMap:
    scale: str
    zone: str
    cells: list[Cell]
    columns: list[tuple[int, str]]
    """Words above the picture, each with its column."""
    rows: list[tuple[int, str]]
    known_since: datetime | None
    link: Link

    @property
    def told(self) -> list[Cell]:
        """What the table has: the newest first, without the cells in which nothing was."""
        return [one for one in sorted(self.cells, key=lambda cell: cell.since, reverse=True) if not one.empty and one.known]

    @property
    def summary(self) -> str:
        ran = sum(sum(one.runs.values()) for one in self.cells)
        failed, late = sum(one.failed for one in self.cells), sum(one.late for one in self.cells)
        skipped = sum(abs(one.skipped) for one in self.cells)
        return f"{plural(ran, 'run')}, {failed:,} failed, {late:,} late, {skipped:,} skipped"

    @property
    def svg(self) -> Markup:
        size = _SIZES[self.scale]
        step, margin = size + _GAP, 7 * max(len(words) for _, words in self.rows) + 8
        width = margin + step * (max(one.column for one in self.cells) + 1)
        height = _TOP + step * (max(one.row for one in self.cells) + 1)
        labels = Markup("").join(
            [Markup('<text x="{}" y="11">{}</text>').format(margin + place * step, words) for place, words in self.columns]
            + [Markup('<text x="0" y="{}">{}</text>').format(_TOP + place * step + size - 4, words) for place, words in self.rows]
        )
        cells = Markup("").join(self._drawn(one, margin + one.column * step, _TOP + one.row * step, size) for one in self.cells)
        # For the eye and the mouse; the table below it says the same to everybody else.
        return Markup('<svg class="heat" viewBox="0 0 {} {}" width="{}" height="{}" aria-hidden="true">{}{}</svg>').format(
            width, height, width, height, labels, cells
        )

    def _drawn(self, cell: Cell, x: int, y: int, size: int) -> Markup:
        shapes = Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}" rx="2"/>').format(cell.style, x, y, size, size)
        if cell.failed:
            arm = size - 8
            shapes += Markup('<path class="cross" d="M{} {}l{} {}m0 -{}l-{} {}"/>').format(x + 4, y + 4, arm, arm, arm, arm, arm)
        if cell.late:
            shapes += Markup('<path class="corner" d="M{} {}h8v8z"/>').format(x + size - 8, y)
        if cell.skipped:
            shapes += Markup('<rect class="skipped" x="{}" y="{}" width="{}" height="3"/>').format(x + 2, y + size - 5, size - 4)
        titled = Markup("<title>{}: {}</title>{}").format(cell.name, cell.said, shapes)
        if cell.empty or not cell.known:
            return Markup("<g>{}</g>").format(titled)
        return Markup('<a href="{}" tabindex="-1">{}</a>').format(self.link(cell.since, cell.until), titled)


def heat_map(calendar: Calendar, zone: tzinfo, name: str, link: Link) -> HeatMap:
    """Days, hours and quarters are those of the job's own zone."""
    now = calendar.present.astimezone(zone)
    draw = {"day": _days, "hour": _hours, "minute": _minutes}[calendar.scale]
    cells, columns, rows = draw(now, zone)
    _fill(cells, calendar)
    return HeatMap(calendar.scale, name, cells, columns, rows, calendar.known_since, link)


Grid = tuple[list[Cell], list[tuple[int, str]], list[tuple[int, str]]]


def _days(now: datetime, zone: tzinfo) -> Grid:
    """A column for each week, a row for each day of it."""
    monday = now.date() - timedelta(days=now.weekday() + 7 * (WEEKS - 1))
    days = [monday + timedelta(days=number) for number in range((now.date() - monday).days + 1)]
    cells = [
        Cell(_midnight(day, zone), _midnight(day + _DAY, zone), f"{day:%A, %d %B %Y}", place // 7, place % 7)
        for place, day in enumerate(days)
    ]
    months, last = [], -3
    for week in range(WEEKS):
        first = monday + timedelta(days=7 * week)
        # The first week, and each in which a month begins; words must not run into each other.
        if (week == 0 or first.day <= 7) and week - last >= 2:
            months.append((week, f"{first:%b}"))
            last = week
    return cells, months, [(0, "Mon"), (2, "Wed"), (4, "Fri"), (6, "Sun")]


def _hours(now: datetime, zone: tzinfo) -> Grid:
    """A row for each day of the last seven, a column for each hour on the clock: where one comes twice, the cell has both."""
    cells = list[Cell]()
    days = [now.date() - timedelta(days=back) for back in reversed(range(7))]
    for row, day in enumerate(days):
        starts = [*_hour_starts(day, zone), _midnight(day + _DAY, zone)]
        for since, until in pairwise(starts):
            hour = since.astimezone(zone).hour
            if since <= now:
                cells.append(Cell(since, until, f"{day:%a %d %b}, {hour:02}:00 to {hour + 1:02}:00", hour, row))
    return cells, [(hour, f"{hour:02}") for hour in range(0, 24, 3)], [(row, f"{day:%a %d}") for row, day in enumerate(days)]


def _minutes(now: datetime, zone: tzinfo) -> Grid:
    """A row for each quarter of an hour, a column for each of its minutes."""
    present = now.astimezone(UTC)
    last = present.replace(minute=present.minute // 15 * 15, second=0, microsecond=0)
    starts = [last - _QUARTER * back for back in reversed(range(int(SCALES["minute"][0] / _QUARTER)))]
    cells = []
    for row, start in enumerate(starts):
        for column in range(15):
            since = start + timedelta(minutes=column)
            if since <= present:
                cells.append(Cell(since, since + timedelta(minutes=1), f"{since.astimezone(zone):%H:%M}", column, row))
    columns = [(column, f":{column:02}") for column in (0, 5, 10)]
    return cells, columns, [(row, f"{start.astimezone(zone):%H:%M}") for row, start in enumerate(starts)]


def _midnight(day: date, zone: tzinfo) -> datetime:
    return datetime.combine(day, time(), zone).astimezone(UTC)


def _hour_starts(day: date, zone: tzinfo) -> Iterator[datetime]:
    """The beginnings of the hours of a local day, which has 23 to 25 of them, not all of them whole in every zone."""
    at, end, last = _midnight(day, zone), _midnight(day + _DAY, zone), None
    while at < end:
        local = at.astimezone(zone)
        if local.hour != last:
            yield at
        last, at = local.hour, at + _QUARTER


def _fill(cells: list[Cell], calendar: Calendar) -> None:
    places = _Places(cells)
    for tally in calendar.tallies:
        if (cell := places.at(tally.at)) is not None:
            cell.runs[tally.state] = cell.runs.get(tally.state, 0) + tally.runs
            cell.retried += tally.retried
            cell.late += tally.late
            cell.latest = max(cell.latest, tally.latest if tally.late else 0.0)
    for one in calendar.left_out:
        covered = list(places.between(one.since, one.until))
        for cell in covered:
            # Of a row of them that spans several cells, nobody has counted how many fell into which.
            cell.skipped = -1 if len(covered) > 1 or cell.skipped < 0 else cell.skipped + one.count
    for since, until in calendar.pauses:
        for cell in places.between(since, until):
            cell.paused = True
    if calendar.known_since is not None:
        for cell in cells:
            cell.known = cell.until > calendar.known_since


class _Places:
    """Which cell an instant falls into."""

    def __init__(self, cells: list[Cell]) -> None:
        self._cells = sorted(cells, key=lambda cell: cell.since)

    def at(self, instant: datetime) -> Cell | None:
        return next(self.between(instant, instant), None)

    def between(self, since: datetime, until: datetime) -> Iterator[Cell]:
        place = max(0, bisect_right(self._cells, since, key=lambda cell: cell.since) - 1)
        for cell in self._cells[place:]:
            if cell.since > until:
                return
            if cell.until > since:
                yield cell
