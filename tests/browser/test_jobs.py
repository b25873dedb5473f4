"""The list of jobs: searched, filtered, sorted, gone through, and several of them acted on at once."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, Page, Route, expect

from tests.browser.conftest import Site, check_accessible, read, watched
from tests.support.fleet import until

pytestmark = pytest.mark.asyncio(loop_scope="session")
expect.set_options(timeout=20_000)


async def states(site: Site, *names: str) -> list[str]:
    return [(await site.app.jobs.show(name)).state for name in names]


async def listed(page: Page) -> list[str]:
    return await page.locator("table.jobs tbody b").all_inner_texts()


async def follow(page: Page, link: str) -> None:
    """Until all of the other page is there."""
    before = page.url
    await page.get_by_role("link", name=link).click()
    await page.wait_for_url(lambda url: url != before)


async def tick(page: Page, *names: str) -> None:
    for name in names:
        await page.get_by_label(name, exact=True).check()


async def token(page: Page) -> str:
    return await page.locator('input[name="csrf"]').first.input_value()


async def test_the_page_says_of_each_job_when_it_fires_and_how_it_went(page: Page, site: Site) -> None:
    handle = await site.app.jobs.trigger("newsletter")
    assert handle.run_id is not None

    async def ended() -> bool:
        return (await site.app.runs.show(str(handle.run_id))).finished

    await until(ended, "the run")
    await read(page, "/jobs", "jobs")
    row = page.locator("tr", has=page.get_by_role("link", name="newsletter", exact=True))
    await expect(row).to_contain_text("At 09:00 on Monday (Europe/Berlin)")
    await expect(row).to_contain_text("0 9 * * MON")
    await expect(row.get_by_text("active")).to_be_visible()
    await expect(row.locator("time")).to_contain_text(re.compile("^in |^now"))
    cell = row.get_by_role("link", name=re.compile(r"succeeded .*(ago|now)")).last
    assert await cell.get_attribute("href") == f"/runs/{handle.run_id}"
    await expect(page.locator("tr", has_text="old-report").get_by_text("paused")).to_be_visible()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("about")


async def test_searching_filtering_and_sorting_are_addresses(page: Page, site: Site) -> None:
    await site.app.jobs.add("filter-one", task="export", schedule="0 0 1 1 *", queue="reports", tags=["quarterly"])
    await site.app.jobs.add("filter-two", task="unheard_of", schedule="0 0 2 1 *", queue="mail")
    await site.app.jobs.add("Filter-three", task="unheard_of", schedule="every 10d", queue="mail")
    await site.app.jobs.pause("filter-two")
    await page.goto("/jobs")
    await page.keyboard.press("/")
    await page.keyboard.type("FILTER-")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/jobs?q=FILTER-*")
    assert sorted(await listed(page)) == ["Filter-three", "filter-one", "filter-two"]
    await page.get_by_label("Queue").select_option("mail")
    await page.wait_for_url("**queue=mail*")
    assert sorted(await listed(page)) == ["Filter-three", "filter-two"]
    await page.get_by_label("State").select_option("paused")
    await page.wait_for_url("**state=paused*")
    assert await listed(page) == ["filter-two"]
    await page.get_by_role("link", name="Clear").click()
    assert "newsletter" in await listed(page)
    await page.goto("/jobs?q=filter-")
    await page.get_by_role("link", name="quarterly").click()
    assert await listed(page) == ["filter-one"]
    await page.goto("/jobs?task=unheard_of&q=filter-")
    assert sorted(await listed(page)) == ["Filter-three", "filter-two"]
    await page.goto("/jobs?q=filter-")
    await page.get_by_role("link", name="Newest").click()
    await page.wait_for_url("**sort=newest*")
    assert await listed(page) == ["Filter-three", "filter-two", "filter-one"]
    await page.get_by_role("link", name="Next firing").click()
    await page.wait_for_url("**sort=next*")
    found = await listed(page)
    assert sorted(found) == ["Filter-three", "filter-one"]
    instants = [(await site.app.jobs.show(name)).next_run_at for name in found]
    assert instants == sorted(instants, key=lambda at: str(at))
    await expect(page.get_by_text("are left out")).to_be_visible()
    await page.goto("/jobs?q=nothing-is-called-so")
    await expect(page.get_by_text("No job matches.")).to_be_visible()


async def test_pages_follow_each_other(page: Page, site: Site) -> None:
    await site.app.jobs.add_many(
        [{"name": f"many-{number:03}", "task": "export", "schedule": "0 0 1 1 *"} for number in range(120)]
    )
    for sort in ("name", "newest", "next"):
        await page.goto(f"/jobs?q=many-&sort={sort}")
        seen = await listed(page)
        while await page.get_by_role("link", name="Next page").count():
            await follow(page, "Next page")
            seen += await listed(page)
            if len(seen) == 120:
                break
        assert sorted(seen) == [f"many-{number:03}" for number in range(120)]
    await follow(page, "First page")
    assert len(await listed(page)) == 50


async def test_a_search_that_has_found_nothing_so_far_goes_on_by_itself(page: Page) -> None:
    async def tire(route: Route) -> None:
        """As if time had been up before anything was found."""
        answer = await route.fetch()
        link = '<a data-onward href="/jobs?q=newsletter">Go on looking</a>'
        body = re.sub(r'(<p id="pager"[^>]*>)', rf"\1{link}", await answer.text())
        assert link in body
        await route.fulfill(response=answer, body=body)

    await page.route("**/jobs?q=not-yet", tire)
    await page.goto("/jobs?q=not-yet")
    await expect(page.get_by_role("link", name="newsletter", exact=True)).to_be_visible()
    await page.wait_for_url("**/jobs?q=newsletter")
    assert await page.get_by_text("Go on looking").count() == 0
    await tick(page, "newsletter")


async def test_several_at_once(page: Page, site: Site) -> None:
    for number in range(4):
        await site.app.jobs.add(f"bulk-{number}", task="export", schedule="0 0 1 1 *")
    await site.app.jobs.pause("bulk-3")
    await page.goto("/jobs?q=bulk-")
    await page.get_by_label("All jobs of this page").check()
    await expect(page.locator("[data-chosen]")).to_have_text("4")
    await page.get_by_role("button", name="Pause").click()
    await expect(page.get_by_role("status").filter(has_text="paused")).to_have_text("3 paused, 1 was paused already.")
    assert page.url.endswith("/jobs?q=bulk-")
    assert await states(site, "bulk-0", "bulk-1", "bulk-2", "bulk-3") == ["paused"] * 4
    await tick(page, "bulk-0", "bulk-1")
    await page.get_by_role("button", name="Resume").click()
    await expect(page.get_by_role("status").filter(has_text="resumed")).to_have_text("2 resumed.")
    assert await states(site, "bulk-0", "bulk-1", "bulk-2") == ["active", "active", "paused"]
    await tick(page, "bulk-0", "bulk-2")
    await page.get_by_role("button", name="Trigger now").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Start 2 jobs now?")
    await check_accessible(page)
    assert await site.app.jobs.runs("bulk-0") == []
    await page.get_by_role("button", name="Start 2").click()
    await expect(page.get_by_role("status").filter(has_text="started")).to_have_text("2 started.")
    assert len(await site.app.jobs.runs("bulk-0")) == len(await site.app.jobs.runs("bulk-2")) == 1
    await tick(page, "bulk-1")
    await page.get_by_role("button", name="Trigger now").click()
    await expect(page.get_by_role("status").filter(has_text="started")).to_have_text("1 started.")


async def test_nothing_chosen_and_a_job_that_has_gone_meanwhile(page: Page, site: Site) -> None:
    await site.app.jobs.add("gone-1", task="export", schedule="0 0 1 1 *")
    await site.app.jobs.add("gone-2", task="export", schedule="0 0 1 1 *")
    await page.goto("/jobs?q=gone-")
    await page.get_by_role("button", name="Pause").click()
    await expect(page.get_by_text("Nothing was chosen")).to_be_visible()
    await tick(page, "gone-1", "gone-2")
    await site.app.jobs.delete("gone-2")
    await page.get_by_role("button", name="Pause").click()
    said = page.locator(".said")
    await expect(said).to_contain_text("1 paused, 1 could not be paused (j_")
    await expect(said).to_contain_text("there is no job")


async def test_the_list_shows_what_happens_without_being_loaded_again(page: Page, site: Site) -> None:
    await site.app.jobs.add("live-1", task="export", schedule="0 0 1 1 *")
    await page.goto("/jobs?q=live-")
    await expect(page.locator("#live")).to_have_text("live")
    await page.evaluate("window.here = true")
    row = page.locator("tr", has_text="live-1")
    await expect(row.locator(".badge")).to_have_text("active")
    await site.app.jobs.pause("live-1")
    await expect(row.locator(".badge")).to_have_text("paused")
    await site.app.jobs.trigger("live-1")
    await expect(row.get_by_role("link", name=re.compile("succeeded"))).to_be_visible()
    assert await page.evaluate("window.here")


async def test_who_may_only_look_finds_nothing_to_press_and_is_refused(viewer: Page, site: Site) -> None:
    await site.app.jobs.add("looked-at", task="export", schedule="0 0 1 1 *")
    await read(viewer, "/jobs?q=looked-at")
    assert await viewer.get_by_role("checkbox").count() == 0
    for name in ("Pause", "Resume", "Trigger now", "New job"):
        assert await viewer.get_by_text(name, exact=True).count() == 0
    form = {"csrf": await token(viewer), "do": "pause", "job": "looked-at", "back": "/jobs"}
    answer = await viewer.request.post("/jobs/bulk", form=form)
    assert answer.status == 403
    assert await states(site, "looked-at") == ["active"]


async def test_a_form_without_its_token_is_refused(page: Page, site: Site) -> None:
    await site.app.jobs.add("forged", task="export", schedule="0 0 1 1 *")
    await page.goto("/jobs")
    for form in ({"do": "pause", "job": "forged"}, {"do": "pause", "job": "forged", "csrf": "x" * 43}):
        assert (await page.request.post("/jobs/bulk", form=form)).status == 403
    assert await states(site, "forged") == ["active"]


async def test_a_limited_key_sees_its_own_jobs_only(browser: Browser, site: Site) -> None:
    await site.app.jobs.add("mine-1", task="export", schedule="0 0 1 1 *", queue="reports")
    await site.app.jobs.add("theirs-1", task="export", schedule="0 0 1 1 *", queue="billing")
    key = (await site.app.keys.create("limited", role="operator", prefixes=["mine-"])).secret
    async with watched(browser, site, key) as page:
        await page.goto("/jobs")
        assert await listed(page) == ["mine-1"]
        assert "about" not in await page.inner_text("h1")
        await page.goto("/jobs?queue=billing")
        assert await listed(page) == []
        answer = await page.goto("/jobs/theirs-1")
        assert answer is not None
        assert answer.status == 404
        sent = await page.request.post("/jobs/bulk", form={"csrf": await token(page), "do": "pause", "job": "theirs-1"})
        assert "there is no job" in await sent.text()
    assert await states(site, "theirs-1") == ["active"]


async def test_without_a_script_everything_can_be_read_and_done(browser: Browser, site: Site) -> None:
    await site.app.jobs.add("plain-1", task="export", schedule="0 0 1 1 *", timezone="Europe/Berlin")
    async with watched(browser, site, java_script_enabled=False) as page:
        await page.goto("/jobs")
        await page.get_by_label("Part of a name").fill("plain-")
        await page.get_by_role("button", name="Search").click()
        assert await listed(page) == ["plain-1"]
        await page.get_by_label("plain-1").check()
        await page.get_by_role("button", name="Pause").click()
        await expect(page.locator(".said")).to_have_text("1 paused.")
        await page.get_by_role("link", name="plain-1").click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("plain-1")
        await expect(page.get_by_text("None while it is paused.")).to_be_visible()


async def test_addresses_that_mean_nothing(page: Page) -> None:
    for address in (
        "/jobs?sort=size",
        "/jobs?state=asleep",
        "/jobs?sort=newest&after=nobody",
        "/jobs?queue=no-such-queue",
        "/jobs?looked=x",
    ):
        answer = await page.goto(address)
        assert answer is not None
        assert answer.status in (404, 422), address
        await check_accessible(page)
    answer = await page.goto("/jobs?q=%00")
    assert answer is not None
    assert answer.status < 500
