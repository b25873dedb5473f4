"""The first page: how it goes, and what needs attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from hourhand.core.actor import ACTOR
from hourhand.surfaces.app import Hourhand
from hourhand.surfaces.dashboard.attention import Facts, remarks
from hourhand.surfaces.dashboard.charts import Chart, Series
from hourhand.surfaces.dashboard.pages import PageRoute, page, unless_forbidden
from hourhand.surfaces.dashboard.words import number, seconds_in_words
from hourhand.surfaces.rest.route import app_of
from hourhand.surfaces.statistics import PERIODS, QueueFigures, Trend

router = APIRouter(route_class=PageRoute, include_in_schema=False)
HOUR = 3_600.0


@router.get("/")
async def overview(request: Request, period: Annotated[str, Query(max_length=10)] = "1h") -> Response:
    app = app_of(request)
    trend = await app.statistics.over(period)
    facts = await gather_facts(app, trend if period == "1h" else await app.statistics.over("1h"))
    return page(
        request, "overview.html", period=period, periods=list(PERIODS), charts=charts(trend), remarks=remarks(facts),
        tiles=tiles(facts), queues=sorted(facts.queues, key=_weight), nodes=facts.nodes, unowned=facts.unowned,
    )  # fmt: skip


async def gather_facts(app: Hourhand, hour: Trend) -> Facts:
    database = await app._database()
    everything = not ACTOR.get().scoped
    totals = await unless_forbidden(app.statistics.totals())
    return Facts(
        queues=await app.statistics.queues(),
        hour=hour,
        nodes=[dict(row) for row in await database.fetch("recent_nodes", HOUR)] if everything else None,
        unowned=await database.fetchval("unowned_shards") if everything else None,
        jobs=None if totals is None else totals.get("jobs", 0),
        parked=[dict(row) for row in await database.fetch("parked_names")] if everything else [],
        incidents=await app.alerts.list(limit=20) if everything else (),
        stuck=[dict(row) for row in await database.fetch("stuck_runs", 3)] if everything else [],
        now=await database.fetchval("present"),
        holds=await app.holds.list(),
    )


def charts(trend: Trend) -> list[Chart]:
    times, moments, step = [one.at for one in trend.moments], trend.moments, trend.step

    def rate(name: str) -> list[float]:
        return [getattr(one, name) / step for one in moments]

    def values(name: str) -> list[float | None]:
        return [getattr(one, name) for one in moments]

    stopped = [(one.cancelled + one.skipped + one.expired) / step for one in moments]
    failed = [(one.dead + one.lost) / step for one in moments]
    return [
        Chart("Throughput", times, [Series("succeeded", "good", rate("succeeded")), Series("gave up", "bad", failed),
                                    Series("stopped", "quiet", stopped)], "/s", stacked=True, link="/runs"),
        Chart("Failures", times, [Series("attempts failed", "warn", rate("failed")), Series("gave up", "bad", failed)], "/s", stacked=True,
              link="/runs?state=dead"),
        Chart("Start lateness", times, [Series("p99", "warn", values("lateness_p99")), Series("median", "info", values("lateness_p50"))], "s"),
        Chart("Waiting runs", times, [Series("ready", "info", values("ready")), Series("running", "good", values("running"))], link="/queues"),
        Chart("Oldest waiting run", times, [Series("waits", "warn", values("oldest_seconds"))], "s", link="/runs?state=ready"),
        Chart("Dead letters", times, [Series("letters", "bad", values("dead_letters"))], link="/dead"),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tile:
    name: str
    value: str
    to: str | None = None
    tone: str = ""


def tiles(facts: Facts) -> list[Tile]:
    """The numbers of the moment."""
    queues = facts.queues
    oldest = max((one.oldest_seconds or 0.0 for one in queues if one.paused_at is None), default=0.0)
    dead, failures = sum(one.dead for one in queues), sum(one.failed_per_second for one in queues)
    late = max((one.lateness_p99 or 0.0 for one in facts.hour.moments[-5:]), default=0.0)
    found = [
        Tile("runs a second", number(sum(one.ended_per_second for one in queues)), "/runs"),
        Tile("failures a second", number(failures), "/runs?state=dead", "warn" if failures else ""),
        Tile("start lateness, p99", seconds_in_words(late), None, "warn" if late > 5 else ""),
        Tile("waiting", number(sum(one.ready for one in queues)), "/queues"),
        Tile(
            "oldest waits",
            seconds_in_words(oldest),
            "/runs?state=ready",
            "bad" if oldest > 600 else "warn" if oldest > 60 else "",
        ),
        Tile("running", number(sum(one.running for one in queues)), "/runs?state=running"),
        Tile("dead letters", number(dead), "/dead", "bad" if dead else ""),
    ]
    if facts.jobs is not None:
        found.append(Tile("jobs", number(facts.jobs), "/jobs"))
    if facts.nodes is not None:
        alive = sum(one["state"] == "alive" for one in facts.nodes)
        found.append(Tile("processes alive", number(alive), "/nodes", "" if alive else "bad"))
    return found


def _weight(one: QueueFigures) -> tuple[float, str]:
    """What waits longest first."""
    return -(one.oldest_seconds or 0.0), one.name
