"""Charts for the documentation, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

if TYPE_CHECKING:
    from benchmarks.soak import Sample

OURS, OTHERS, HELD = "#0b7285", "#adb5bd", "#ffe8cc"
pyplot.rcParams.update({"svg.hashsalt": "hourhand", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False})


def save(figure: pyplot.Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def bars(title: str, unit: str, values: Sequence[tuple[str, float]], path: Path, *, best: str, logarithmic: bool = False) -> None:
    """One bar for each, the best one first."""
    ordered = sorted(values, key=lambda one: one[1], reverse=best == "least")
    figure, axes = pyplot.subplots(figsize=(7.2, 0.9 + 0.32 * len(ordered)))
    colours = [OURS if name == "Hourhand" else OTHERS for name, _ in ordered]
    drawn = axes.barh([name for name, _ in ordered], [value for _, value in ordered], color=colours)
    axes.bar_label(drawn, [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for _, value in ordered], padding=3)
    scale = [unit] if unit else []
    if logarithmic:
        scale.append("logarithmic")
        axes.set_xscale("log")
    axes.set_title(f"{title} ({', '.join(scale)})" if scale else title, loc="left")
    axes.margins(x=0.15)
    save(figure, path)


def soak(samples: Sequence[Sample], path: Path) -> None:
    minutes = [one.at / 60 for one in samples]
    figure, rows = pyplot.subplots(4, 1, figsize=(8, 8), sharex=True)
    series = (("runs ended, 1/s", "done"), ("a claim, ms", "claim"), ("hot tables, MiB", "size"), ("dead rows in them", "dead"))
    held = [one.at / 60 for one in samples if one.held]
    for axes, (title, name) in zip(rows, series, strict=True):
        if held:
            axes.axvspan(held[0], held[-1], color=HELD, label="a transaction is held open")
        axes.plot(minutes, [getattr(one, name) for one in samples], color=OURS, linewidth=1.2)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_ylim(bottom=0)
    rows[0].legend(loc="lower left", fontsize=8, frameon=False)
    rows[-1].set_xlabel("minutes")
    save(figure, path)
