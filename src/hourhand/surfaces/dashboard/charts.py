"""Charts as SVG, made on the server: readable without a script, and small enough to be sent again every few seconds.

Only shapes are in the picture, so that it can be stretched; words and numbers stand around it as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from markupsafe import Markup, escape

from hourhand.surfaces.dashboard.words import number, seconds_in_words

WIDTH, HEIGHT = 600.0, 100.0


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    style: str
    """A class of the style sheet: good, bad, warn, info, quiet."""
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    times: Sequence[datetime]
    series: Sequence[Series]
    unit: str = ""
    """`s` for seconds, `/s` for rates, nothing for numbers of things."""
    stacked: bool = False
    link: str | None = None
    ahead: bool = False
    """About what is to come: it begins now."""

    @property
    def most(self) -> float:
        if self.stacked:
            return max((sum(one.values[place] or 0 for one in self.series) for place in range(len(self.times))), default=0.0)
        return max((value for one in self.series for value in one.values if value is not None), default=0.0)

    @property
    def empty(self) -> bool:
        return not any(value is not None for one in self.series for value in one.values)

    def say(self, value: float | None) -> str:
        if value is None:
            return "–"
        return seconds_in_words(value) if self.unit == "s" else f"{number(value)}{self.unit}"

    @property
    def newest(self) -> list[tuple[Series, str]]:
        """What each series says last: of rates, in the last step that is over; of what is to come, at most."""
        if self.ahead:
            return [
                (one, self.say(max((value for value in one.values if value is not None), default=None))) for one in self.series
            ]
        return [
            (
                one,
                self.say(
                    next(
                        (value for value in reversed(one.values[: -1 if self.unit == "/s" else None]) if value is not None), None
                    )
                ),
            )
            for one in self.series
        ]

    @property
    def svg(self) -> Markup:
        top = self.most or 1.0
        drawn = self._bars(top) if self.stacked else self._lines(top)
        return Markup(
            '<svg class="chart" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}{}</svg>'
        ).format(int(WIDTH), int(HEIGHT), self._summary(), drawn, self._hints())

    def _summary(self) -> str:
        return (
            f"{self.title}: " + ", ".join(f"{one.name} {said}" for one, said in self.newest) + f", at most {self.say(self.most)}"
        )

    def _bars(self, top: float) -> Markup:
        step, bars = WIDTH / max(1, len(self.times)), []
        for place in range(len(self.times)):
            floor = HEIGHT
            for one in self.series:
                height = (one.values[place] or 0) / top * HEIGHT
                if height <= 0:
                    continue
                height = max(height, 1.5)  # a single failure among thousands can be seen
                floor -= height
                bars.append(
                    f'<rect class="{escape(one.style)}" x="{place * step:.2f}" y="{max(floor, 0):.2f}" '
                    f'width="{max(step - 0.8, 0.8):.2f}" height="{height:.2f}"/>'
                )
        return Markup("".join(bars))

    def _lines(self, top: float) -> Markup:
        step, lines = WIDTH / max(1, len(self.times) - 1), []
        for one in self.series:
            pen, path = "M", []
            for place, value in enumerate(one.values):
                if value is None:
                    pen = "M"
                    continue
                path.append(f"{pen}{place * step:.2f} {HEIGHT - value / top * (HEIGHT - 3) - 1:.2f}")
                pen = "L"
            if path:
                lines.append(f'<path class="{escape(one.style)}" d="{"".join(path)}" vector-effect="non-scaling-stroke"/>')
        return Markup("".join(lines))

    def _hints(self) -> Markup:
        """What each step says, for whoever points at it."""
        step, hints = WIDTH / max(1, len(self.times)), []
        for place, at in enumerate(self.times):
            said = [f"{one.name} {self.say(one.values[place])}" for one in self.series if one.values[place]]
            if said:
                words = escape(f"{at:%b %d %H:%M} UTC\n" + "\n".join(said))
                hints.append(
                    f'<rect class="hint" x="{place * step:.2f}" y="0" width="{step:.2f}" height="{HEIGHT:g}"><title>{words}</title></rect>'
                )
        return Markup("".join(hints))
