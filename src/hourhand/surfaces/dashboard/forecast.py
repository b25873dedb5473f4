"""What the next day will bring, second by second."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from hourhand.surfaces.dashboard.charts import Chart, Series
from hourhand.surfaces.dashboard.pages import PageRoute, back, page
from hourhand.surfaces.forecasting import Almanac
from hourhand.surfaces.rest.route import roles

router = APIRouter(route_class=PageRoute, include_in_schema=False)
STEP = 600


@router.get("/forecast")
async def forecast(request: Request) -> Response:
    request.state.actor.need_everything("the forecast")
    almanac: Almanac = request.app.state.almanac
    found = await almanac.look()
    chart = None
    if found is not None:
        steps = found.steps(STEP)
        chart = Chart(
            "Runs a second, in steps of ten minutes", [at for at, _, _ in steps],
            [Series("hottest second", "warn", [peak for _, _, peak in steps]), Series("on average", "info", [mean for _, mean, _ in steps])],
            ahead=True,
        )  # fmt: skip
    return page(request, "forecast.html", forecast=found, chart=chart, almanac=almanac)


@router.post("/forecast", openapi_extra=roles("viewer"))
async def again(request: Request) -> Response:
    request.state.actor.need_everything("the forecast")
    await request.app.state.almanac.look(anew=True)
    return back("/forecast")
