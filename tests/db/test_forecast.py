"""The forecast, from the jobs in the database: by hand, on the command line, and kept by a server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.core.actor import ACTOR, Actor
from hourhand.core.errors import Forbidden
from hourhand.storage.nodes import MaintenanceGateway
from hourhand.surfaces.forecasting import Almanac, make_forecast, summary
from tests.db.test_cli import Command, hourhand  # noqa: F401
from tests.support.fleet import until

SOON = timedelta(hours=1)


async def furnish(app: Hourhand) -> None:
    await app.jobs.add_many(
        {"name": f"hour-{number}", "task": "noop", "schedule": "0 * * * *", "timezone": zone}
        for number, zone in enumerate(["UTC", "Europe/Berlin", "Asia/Tokyo"] * 20)
    )
    await app.jobs.add("flexible", task="noop", schedule="30 * * * *", flexible_window=600)
    await app.jobs.add("often", task="noop", schedule="every 10s")
    await app.jobs.add("once", task="noop", schedule=(datetime.now(UTC) + SOON).isoformat())
    await app.jobs.add("later", task="noop", schedule="0 * * * *", start_at=datetime.now(UTC) + timedelta(days=2))
    await app.jobs.add("held", task="noop", schedule="0 * * * *")
    await app.jobs.pause("held")


async def test_it_has_what_every_job_will_do(app: Hourhand) -> None:
    await furnish(app)
    steps: list[tuple[int, int]] = []
    found = await make_forecast(app, progress=lambda done, of: steps.append((done, of)))
    assert steps[-1] == (256, 256)
    assert found.jobs == 63
    # Every ten seconds is 8,640 or one less; sixty hourly ones in three zones; the flexible one; the one-off.
    assert found.firings in (8_639 + 60 * 24 + 24 + 1, 8_640 + 60 * 24 + 24 + 1)
    assert found.hot[0].rigid >= 60
    assert {jobs for words, jobs in found.hot[0].schedules if words.startswith("0 * * * *")} == {20}
    assert len(summary(found)["steps"]) == 144


async def test_it_is_for_those_who_may_see_everything(app: Hourhand) -> None:
    token = ACTOR.set(Actor("somebody", queues=("mail",)))
    try:
        with pytest.raises(Forbidden, match="the forecast"):
            await make_forecast(app)
    finally:
        ACTOR.reset(token)


@pytest.mark.once
async def test_on_the_command_line(app: Hourhand, hourhand: Command) -> None:  # noqa: F811
    await furnish(app)
    told = (await hourhand("forecast", "--json", "--hours", "2")).json
    assert told["seconds"] == 7_200
    assert told["jobs"] == 63
    assert told["hot"][0]["window"] >= 10
    shown = (await hourhand("forecast", COLUMNS="160")).out
    assert "0 * * * * (UTC)" in shown
    assert "flexible window" in shown


@pytest.mark.once
async def test_a_server_has_a_large_one_made_in_a_process_of_its_own(
    app: Hourhand, sql: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await furnish(app)
    gateway = MaintenanceGateway((await app._database()).link("maintainer"))
    await gateway.take_sample()
    await gateway.close()
    almanac = Almanac(app)
    here = await almanac.look()
    assert here is not None
    monkeypatch.setattr("hourhand.surfaces.forecasting._SMALL", 0)
    apart = Almanac(app)
    assert await apart.look() is None

    async def made() -> bool:
        assert apart.error is None
        return await apart.look() is not None

    try:
        await until(made, "the forecast")
        assert apart.progress == 100
        assert apart.forecast is not None
        assert abs(apart.forecast.firings - here.firings) <= 1
        assert apart.forecast.hot[0].schedules == here.hot[0].schedules
    finally:
        await apart.close()


@pytest.mark.once
async def test_one_that_cannot_be_made_says_why(app: Hourhand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hourhand.surfaces.forecasting._SMALL", -1)
    monkeypatch.setattr("hourhand.surfaces.forecasting.sys.executable", "/bin/false")
    almanac = Almanac(app)

    async def failed() -> bool:
        await almanac.look()
        return almanac.error is not None

    await until(failed, "the error")
    assert "could not be made" in str(almanac.error)
    await almanac.close()
