"""A job's page: when it fires, what became of its firings and why, who changed it; and holding, starting and deleting it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from playwright.async_api import Browser, Page, expect

from hourhand.core import ids
from tests.browser.conftest import Site, check_accessible, read, shoot, watched
from tests.browser.test_jobs import states, token
from tests.support.fleet import until

pytestmark = pytest.mark.asyncio(loop_scope="session")
YEARLY = {"task": "export", "schedule": "0 0 1 1 *"}


async def ran(site: Site, name: str, many: int = 1) -> None:
    """Started by hand, and ended."""
    runs = [(await site.app.jobs.trigger(name)).run_id for _ in range(many)]

    async def ended() -> bool:
        return all([(await site.app.runs.show(str(run))).finished for run in runs])

    await until(ended, "the runs")


async def make_past(site: Site, name: str, days: int) -> None:
    """As if it had fired at noon on each of so many days; some of it late, failed, or left out."""
    number = ids.parse_job_id((await site.app.jobs.show(name)).job_id)
    now = datetime.now(UTC)
    noon = now.replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=now.hour < 12)
    sql = await asyncpg.connect(site.url)
    await sql.execute(
        f"UPDATE {site.schema}.jobs SET active_since = $2, created_at = $2 WHERE id = $1", number, noon - timedelta(days=days)
    )
    for back in range(1, days):
        at = noon - timedelta(days=back - 1)
        late = timedelta(minutes=7) if back % 9 == 0 else timedelta(seconds=0.2)
        if back % 13 == 0:
            await sql.execute(
                f"INSERT INTO {site.schema}.decisions (job_id, scheduled_at, until, count, outcome, reason) "
                "VALUES ($1, $2, $2, 1, 'skipped', 'the run before it had not ended')", number, at,
            )  # fmt: skip
            continue
        await sql.execute(
            f"INSERT INTO {site.schema}.runs (run_id, job_id, scheduled_at, enqueued_at, started_at, finished_at, worker_id, lane, outcome,"
            f" attempt, task, payload) VALUES (nextval('{site.schema}.run_numbers'), $1, $2, $2, $3, $4, 1, 5, $5, 1, 'export', '{{}}')",
            number, at, at + late, at + late + timedelta(seconds=20 + back % 17), "lost" if back % 20 == 5 else "succeeded",
        )  # fmt: skip
    await sql.close()


async def test_the_page_of_a_job_with_a_past(page: Page, site: Site) -> None:
    await site.app.jobs.add(
        "invoices", task="export", schedule="0 12 * * *", overlap="skip", payload={"rows": 250}, tags=["finance"], timeout=60
    )
    await make_past(site, "invoices", 80)
    await site.app.jobs.update("invoices", priority="high")
    await read(page, "/jobs/invoices", "job")
    assert await page.locator("svg.heat .cross").count() == 3
    assert await page.locator("svg.heat .corner").count() == 8
    assert await page.locator("svg.heat rect.skipped").count() == 6
    await expect(page.locator("#calendar")).to_contain_text("73 runs, 3 failed, 8 late, 6 skipped; in UTC.")
    await expect(page.locator("#durations")).to_contain_text(re.compile(r"median \d\d s of 73 runs"))
    await page.get_by_text("As a table").click()
    table = page.get_by_role("region", name="The calendar as a table")
    await expect(table).to_contain_text("1 succeeded, 1 late, by up to 7 min")
    await expect(table).to_contain_text("1 skipped")
    await check_accessible(page)
    await table.get_by_role("row", name=re.compile("1 lost")).first.get_by_role("link").click()
    await page.wait_for_url("**#why")
    await expect(page.locator("#account")).to_contain_text("lost")
    await expect(page.locator("#account")).to_contain_text(re.compile("From .* 00:00:00 .* to .* 00:00:00"))
    facts = page.locator("dl.facts")
    await expect(facts).to_contain_text("a firing is left out while the run before has not ended")
    await expect(facts).to_contain_text("priority high")
    await expect(page.locator("#changes")).to_contain_text(re.compile("priority normal\\s+high"))
    await page.set_viewport_size({"width": 390, "height": 844})
    await shoot(page, "job-phone")


async def test_the_calendar_goes_by_days_hours_or_minutes_as_suits_the_job(page: Page, site: Site) -> None:
    await page.goto("/jobs/heartbeat")
    scale = page.get_by_role("navigation", name="Scale of the calendar")
    await expect(scale.locator("[aria-current]")).to_have_text("minutes")
    assert await page.locator("svg.heat rect.good").count() >= 1
    await scale.get_by_role("link", name="hours").click()
    await page.wait_for_url("**scale=hour*")
    assert await page.locator("svg.heat rect.good").count() >= 1
    await check_accessible(page)
    await page.goto("/jobs/newsletter")
    await expect(scale.locator("[aria-current]")).to_have_text("days")
    answer = await page.goto("/jobs/newsletter?scale=years")
    assert answer is not None
    assert answer.status == 422


async def test_the_next_firings_are_on_the_jobs_clock_and_on_the_viewers(browser: Browser, site: Site) -> None:
    await site.app.jobs.add("clocks", task="export", schedule="0 9 * * MON", timezone="Europe/Berlin")
    firings = await site.app.jobs.next("clocks")
    async with watched(browser, site, timezone_id="America/New_York") as page:
        await page.goto("/jobs/clocks")
        rows = page.locator("#firings tbody tr")
        await expect(rows).to_have_count(10)
        for row, at in zip(await rows.all(), firings, strict=True):
            there, here = (await row.locator("td").all_inner_texts())[:2]
            assert re.fullmatch(r"Mon \d{4}-\d\d-\d\d 09:00:00 \+0[12]:00", there)
            assert datetime.strptime(there[4:], "%Y-%m-%d %H:%M:%S %z") == at
            assert re.fullmatch(r"\d{4}-\d\d-\d\d 0[34]:00:00", here)


async def test_pausing_and_resuming(page: Page, site: Site) -> None:
    await site.app.jobs.add("held", **YEARLY)
    await page.goto("/jobs/held")
    await page.get_by_role("button", name="Pause").click()
    await expect(page.locator(".said")).to_contain_text("Paused")
    await expect(page.locator("#status .badge")).to_have_text("paused")
    assert await states(site, "held") == ["paused"]
    await check_accessible(page)
    await page.get_by_label("What was missed meanwhile").select_option("SKIP")
    await page.get_by_role("button", name="Resume").click()
    await expect(page.locator(".said")).to_have_text("Resumed.")
    assert await states(site, "held") == ["active"]
    await expect(page.locator("#changes")).to_contain_text("resumed")
    await page.get_by_role("link", name="All changes").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Who changed held")
    await expect(page.locator("#changes tbody tr")).to_have_count(3)
    await check_accessible(page)


async def test_starting_it_and_seeing_it_run_without_loading_again(page: Page, site: Site) -> None:
    await site.app.jobs.add("started", **YEARLY)
    await page.goto("/jobs/started")
    await expect(page.get_by_text("It has not run yet.")).to_be_visible()
    await page.get_by_role("button", name="Trigger now").click()
    await expect(page.locator(".said")).to_contain_text("Started: r_")
    await page.evaluate("window.here = true")
    await expect(page.locator("#runs .badge")).to_have_text("succeeded")
    await expect(page.locator("#account")).to_contain_text("triggered by hand")
    await site.app.jobs.pause("started")
    await expect(page.locator("#status .badge")).to_have_text("paused")
    await expect(page.locator("#changes")).to_contain_text("paused")
    assert await page.evaluate("window.here")


async def test_starting_it_with_another_payload(page: Page, site: Site) -> None:
    await page.goto("/jobs/newsletter")
    await page.get_by_role("link", name="Trigger with").click()
    await check_accessible(page)
    field = page.get_by_label("Payload")
    assert "[redacted]" in await field.input_value()
    await field.fill('{"subscribers":')
    await page.get_by_role("button", name="Trigger").click()
    await expect(page.get_by_role("alert")).to_contain_text("no JSON")
    assert await field.input_value() == '{"subscribers":'
    await field.fill('{"subscribers": 5, "api_token": "[redacted]"}')
    await page.get_by_role("button", name="Trigger").click()
    await expect(page.get_by_role("alert")).to_contain_text("give the value")
    await field.fill('{"subscribers": 5, "api_token": "other"}')
    await page.get_by_role("button", name="Trigger").click()
    await expect(page.locator(".said")).to_contain_text("Started: r_")
    latest = (await site.app.jobs.runs("newsletter", 1))[0]
    assert (await site.app.runs.show(latest.run_id)).payload == {"subscribers": 5, "api_token": "other"}
    await page.goto("/jobs/newsletter/trigger")
    await page.get_by_role("button", name="Trigger").click()
    await expect(page.locator(".said")).to_contain_text("Started: r_")
    latest = (await site.app.jobs.runs("newsletter", 1))[0]
    assert (await site.app.runs.show(latest.run_id)).payload == {"subscribers": 2, "api_token": "hush-hush"}


async def test_a_run_that_may_not_overlap_says_so(page: Page, site: Site) -> None:
    await site.app.jobs.add("slow-one", task="long_report", schedule="0 0 1 1 *", overlap="skip")
    await site.app.jobs.trigger("slow-one")
    await page.goto("/jobs/slow-one")
    await page.get_by_role("button", name="Trigger now").click()
    await expect(page.locator(".said")).to_contain_text("Not started")
    await page.get_by_role("link", name="Trigger with").click()
    await page.get_by_label("Even if the run before has not ended").check()
    await page.get_by_role("button", name="Trigger").click()
    await expect(page.locator(".said")).to_contain_text("Started: r_")
    await expect(page.locator("#calendar")).to_contain_text("1 skipped")
    for run in await site.app.jobs.runs("slow-one"):
        if not run.finished:
            await site.app.runs.cancel(run.run_id)


async def test_deleting_is_asked_about_and_only_what_was_seen_goes(page: Page, site: Site) -> None:
    await site.app.jobs.add("doomed", **YEARLY)
    await page.goto("/jobs/doomed")
    await page.get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Delete doomed?")
    await check_accessible(page)
    await page.get_by_role("link", name="No, go back").click()
    await page.wait_for_url("**/jobs/doomed")
    await page.get_by_role("button", name="Delete").click()
    await site.app.jobs.update("doomed", priority="low")
    await page.get_by_role("button", name="Delete it").click()
    await expect(page.locator(".said")).to_contain_text("has been changed")
    assert await states(site, "doomed") == ["active"]
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("button", name="Delete it").click()
    await expect(page.locator(".said")).to_have_text("doomed is deleted.")
    answer = await page.goto("/jobs/doomed")
    assert answer is not None
    assert answer.status == 404
    await expect(page.get_by_text("there is no job 'doomed'")).to_be_visible()


async def test_why(page: Page, site: Site) -> None:
    await page.goto("/jobs/heartbeat")
    await expect(page.locator("#account tbody tr").first).to_contain_text("fired by")
    await expect(page.locator("#account")).to_contain_text("expected")
    at = [one for one in await site.app.jobs.why("heartbeat") if one.outcome == "succeeded"][-1].scheduled_at
    await page.get_by_label("At (in UTC)").fill(at.strftime("%Y-%m-%dT%H:%M:%S"))
    await page.get_by_role("button", name="Ask").click()
    await page.wait_for_url("**at=*")
    await expect(page.locator("#account tbody tr")).to_have_count(1)
    await expect(page.locator("#account")).to_contain_text("succeeded")
    await check_accessible(page)
    await page.goto("/jobs/nightly-export?at=2026-01-01T03:00:00")
    await expect(page.get_by_role("alert")).to_contain_text("was not expected to fire")
    for nonsense in (
        "at=tomorrow",
        "since=x",
        "since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z",
        "at=0001-01-01T00:00:00%2B05:00",
    ):
        answer = await page.goto(f"/jobs/newsletter?{nonsense}")
        assert answer is not None
        assert answer.status == 200
        await expect(page.get_by_role("alert")).to_be_visible()


async def test_who_may_look_who_may_order_and_who_may_change(browser: Browser, viewer: Page, site: Site) -> None:
    await site.app.jobs.add("guarded", **YEARLY)
    await read(viewer, "/jobs/guarded")
    for name in ("Trigger now", "Trigger with…", "Pause", "Edit", "Delete"):
        assert await viewer.get_by_text(name, exact=True).count() == 0
    form = {
        "csrf": await token(viewer),
        "confirmed": "yes",
        "schedule": "every 1s",
        "name": "made-up",
        "version": "1",
        "do": "save",
    }
    for path in ("guarded/pause", "guarded/resume", "guarded/trigger", "guarded/delete", "guarded/edit", "new", "bulk"):
        assert (await viewer.request.post(f"/jobs/{path}", form=form)).status == 403, path
    for path in ("guarded/edit", "guarded/trigger", "new"):
        answer = await viewer.goto(f"/jobs/{path}")
        assert answer is not None
        assert answer.status == 403
    key = (await site.app.keys.create("an operator", role="operator")).secret
    async with watched(browser, site, key) as operator:
        await operator.goto("/jobs/guarded")
        await expect(operator.get_by_role("button", name="Pause")).to_be_visible()
        for name in ("Edit", "Delete"):
            assert await operator.get_by_text(name, exact=True).count() == 0
        form["csrf"] = await token(operator)
        for path in ("guarded/delete", "guarded/edit", "new"):
            assert (await operator.request.post(f"/jobs/{path}", form=form)).status == 403, path
    view = await site.app.jobs.show("guarded")
    assert (view.state, view.version, await site.app.jobs.runs("guarded")) == ("active", 1, [])


async def test_a_form_without_its_token_does_nothing(page: Page, site: Site) -> None:
    await site.app.jobs.add("tokens", **YEARLY)
    await page.goto("/jobs/tokens")
    for path in ("tokens/pause", "tokens/trigger", "tokens/delete", "tokens/edit", "new"):
        answer = await page.request.post(
            f"/jobs/{path}", form={"confirmed": "yes", "version": "1", "schedule": "every 1s", "name": "x"}
        )
        assert answer.status == 403, path
    assert (await site.app.jobs.show("tokens")).version == 1


async def test_a_job_that_is_named_as_a_page_is_reached_all_the_same(page: Page, site: Site) -> None:
    await site.app.jobs.add("new", **YEARLY)
    await page.goto("/jobs?q=new")
    await page.get_by_role("link", name="new", exact=True).click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("new")
    await page.get_by_role("button", name="Pause").click()
    await expect(page.locator("#status .badge")).to_have_text("paused")
    await site.app.jobs.delete("new")
