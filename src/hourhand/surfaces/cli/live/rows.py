"""What is shown of a survey, cell by cell: the same on the screen and on paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from rich.text import Text

from hourhand.surfaces.cli.common import ago, counted, plain, span
from hourhand.surfaces.cli.live.survey import Survey
from hourhand.surfaces.cli.runs import colour
from hourhand.surfaces.views import NodeView, QueueView, RunView

LONG_WAIT = 60.0
WORST_SKEW = 1.0
_NODE_STYLES = {"alive": "green", "late": "yellow", "dead": "red"}
_NUMBERS = ("ready", "change", "delayed", "parked", "running", "dead", "oldest", "attempt", "took", "does", "load", "skew")


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    cells: tuple[Text, ...]

    def has(self, words: str) -> bool:
        """Whether every one of the words is somewhere in it."""
        text = " ".join(cell.plain for cell in self.cells).lower()
        return all(word in text for word in words.lower().split())


@dataclass(frozen=True, slots=True)
class Pane:
    name: str
    columns: tuple[str, ...]
    rows: Callable[[Survey], Iterable[Row]]


def headline(survey: Survey) -> Text:
    change = sum(survey.rates.values())
    late = sum(one.state != "alive" for one in survey.nodes)
    parts: list[Text | tuple[str, str] | str] = [
        counted(len(survey.queues), "queue"), f" · {survey.waiting:,} waiting",
        f" ({_rate(change)})" if survey.rates else "", f" · {survey.running:,} running · ",
        (f"{survey.dead:,} dead", "red" if survey.dead else ""), f" · {counted(len(survey.nodes), 'node')}",
        (f", {late} late", "yellow") if late else "", "" if survey.ended is None else f" · {survey.ended:,.1f} runs/s",
        (f", {survey.failed:,.1f} failures/s", "yellow") if survey.failed else "",
    ]  # fmt: skip
    return Text.assemble(*parts)


def _queues(survey: Survey) -> Iterable[Row]:
    for one in survey.queues:
        yield Row(one.name, tuple(map(_text, _queue(one, survey))))


def _queue(one: QueueView, survey: Survey) -> tuple[str | Text, ...]:
    waits = span(one.oldest_seconds)
    return (
        plain(one.name), f"{one.ready:,}", _rate(survey.rates[one.name]) if one.name in survey.rates else "",
        f"{one.delayed:,}", Text(f"{one.parked:,}", "yellow" if one.parked else ""), f"{one.running:,}",
        Text(f"{one.dead:,}", "red" if one.dead else ""), Text(waits, "yellow" if (one.oldest_seconds or 0) > LONG_WAIT else ""),
        Text(ago(one.paused_at, survey.at), "yellow"),
    )  # fmt: skip


def _runs(survey: Survey) -> Iterable[Row]:
    for one in survey.runs:
        yield Row(one.run_id, tuple(map(_text, _run(one, survey.at))))


def _run(one: RunView, now: datetime) -> tuple[str | Text, ...]:
    moment = one.finished_at or one.started_at or one.due_at or one.scheduled_at
    end = one.finished_at or (now if one.state == "running" else None)
    took = max(0.0, (end - one.started_at).total_seconds()) if end and one.started_at else None
    return (
        one.run_id, colour(one.state), plain(one.task), plain(one.queue), str(one.attempt),
        "" if one.node is None else str(one.node), span(took), ago(moment, now), plain(one.reason or ""),
    )  # fmt: skip


def _nodes(survey: Survey) -> Iterable[Row]:
    for one in survey.nodes:
        yield Row(str(one.node), tuple(map(_text, _node(one, survey.at))))


def _node(one: NodeView, now: datetime) -> tuple[str | Text, ...]:
    slots = one.info.get("concurrency") or 0
    does = f"{one.shards} shards" if one.kind == "scheduler" else f"{one.running:,}/{slots:,} runs"
    skew = "" if one.skew is None else f"{one.skew * 1000:+,.0f} ms"
    return (
        str(one.node), Text(one.state, _NODE_STYLES.get(one.state, "")), one.kind, plain(one.name), does,
        f"{one.running / slots:.0%}" if slots else "", Text(skew, "yellow" if abs(one.skew or 0) > WORST_SKEW else ""),
        ago(one.started_at, now),
    )  # fmt: skip


def _rate(change: float) -> str:
    return f"{change:+,.1f}/s" if abs(change) < 100 else f"{change:+,.0f}/s"


def _text(cell: str | Text) -> Text:
    return cell if isinstance(cell, Text) else Text(cell)


def is_number(column: str) -> bool:
    return column in _NUMBERS


QUEUES = Pane("queues", ("queue", "ready", "change", "delayed", "parked", "running", "dead", "oldest", "paused"), _queues)
RUNS = Pane("runs", ("run", "state", "task", "queue", "attempt", "node", "took", "when", "reason"), _runs)
NODES = Pane("nodes", ("node", "state", "kind", "name", "does", "load", "skew", "started"), _nodes)
PANES = (QUEUES, RUNS, NODES)
