"""The first page, queues, nodes, shards and the forecast."""

from __future__ import annotations

import re
import uuid

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.conftest import Site, check_accessible, read, shoot, watched
from tests.support.fleet import until

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_overview_says_what_needs_attention_and_shows_how_it_goes(page: Page) -> None:
    await read(page, "/", "overview")
    attention = page.locator("#attention")
    await expect(attention).to_contain_text("gave up within the last hour")
    await expect(attention).to_contain_text("Task unheard_of in queue default: no worker knows it")
    await expect(page.locator("#charts figure")).to_have_count(6)
    await expect(page.locator("#glance")).to_contain_text("billing")
    await expect(page.locator("#glance")).to_contain_text("All 256 shards have a scheduler")
    for period in ("24h", "7d"):
        await page.get_by_role("link", name=period, exact=True).click()
        await expect(page.get_by_role("link", name=period, exact=True)).to_have_attribute("aria-current", "page")
        await expect(page.locator("#charts figure")).to_have_count(6)


async def test_it_is_alive(page: Page, site: Site) -> None:
    await page.goto("/")
    await expect(page.locator("#live")).to_have_text("live")
    await expect(page.locator("#attention")).not_to_contain_text("is paused")
    await site.app.queues.pause("reports")
    await site.app.enqueue("export", {"rows": 1})
    try:
        # Not by loading the page again: the mark would be gone.
        await page.evaluate("document.body.dataset.mark = 'here'")
        await expect(page.locator("#glance")).to_contain_text("paused", timeout=30_000)
        assert await page.evaluate("document.body.dataset.mark") == "here"
    finally:
        await site.app.queues.resume("reports")


async def test_a_queue_is_paused_and_goes_on(page: Page, site: Site) -> None:
    await read(page, "/queues", "queues")
    row = page.locator("tr#mail")
    await row.get_by_role("button", name="Pause").click()
    await expect(page.get_by_role("status").filter(has_text="mail")).to_contain_text("is paused")
    assert {one.name for one in await site.app.queues.list() if one.paused_at} == {"mail"}
    await row.get_by_role("button", name="Resume").click()
    await expect(page.get_by_role("status").filter(has_text="mail")).to_contain_text("goes on")
    assert not [one.name for one in await site.app.queues.list() if one.paused_at]
    changes = await site.app.audit.list(subject="mail", limit=2)
    assert [one.action for one in changes] == ["queue.resume", "queue.pause"]
    assert changes[0].actor == "key:HOURHAND_ADMIN_KEY"


async def test_runs_are_held_back_and_go_on(page: Page, site: Site) -> None:
    await site.app.limits.set("queue", "reports", concurrency=4, rate="600/minute")
    try:
        await page.goto("/queues")
        await page.get_by_text("Hold runs back").click()
        await check_accessible(page)
        await shoot(page, "hold-form")
        await page.get_by_label("Task", exact=True).fill("charge_card")
        await page.get_by_label("Field of the payload").fill("invoice")
        await page.get_by_label("Its value").fill("4242")
        await page.get_by_label("Reason").fill("their bank is closed")
        await page.get_by_role("button", name="Hold", exact=True).click()
        (hold,) = await site.app.holds.list()
        said = f"Hold {hold.id}: no more runs with task charge_card, invoice = 4242 are started."
        await expect(page.get_by_role("status").filter(has_text="Hold")).to_contain_text(said)
        run = await site.app.enqueue("charge_card", {"invoice": 4242})

        async def held() -> bool:
            return (await run.show()).state == "parked"

        await until(held, "it to be held back")
        await read(page, f"/runs/{run.id}", "run-held")
        await expect(page.locator("body")).to_contain_text(f"It is held back by hold {hold.id}: their bank is closed.")
        await page.goto("/")
        await expect(page.locator("#attention")).not_to_contain_text("charge_card in queue")
        await read(page, "/queues", "queues-held")
        await expect(page.locator(f"tr#hold-{hold.id}")).to_contain_text("their bank is closed")
        await expect(page.locator("main")).to_contain_text("4 at once; 600/minute, bursts of 600")
        await page.locator(f"tr#hold-{hold.id}").get_by_role("button", name="Release").click()
        await expect(page.get_by_role("status").filter(has_text="Hold")).to_contain_text("is released: 1 run goes on")
        assert (await run.wait(30)).state == "succeeded"
        await page.get_by_text("Hold runs back").click()
        await page.get_by_role("button", name="Hold", exact=True).click()
        await expect(page.get_by_role("status").filter(has_text="hold")).to_contain_text("a hold needs a task")
    finally:
        await site.app.limits.clear("queue", "reports")
        for one in await site.app.holds.list():
            await site.app.holds.release(one.id)


async def test_who_may_only_look_is_offered_nothing_and_forges_nothing(viewer: Page, site: Site) -> None:
    await viewer.goto("/queues")
    await expect(viewer.locator("tr#mail")).to_be_visible()
    await expect(viewer.get_by_role("button", name="Pause")).to_have_count(0)
    answer = await viewer.request.post(
        "/queues/mail/pause", form={"csrf": await viewer.locator("input[name=csrf]").first.input_value()}
    )
    assert answer.status == 403
    assert not [one.name for one in await site.app.queues.list() if one.paused_at]


async def test_a_form_without_its_sessions_token_is_refused(page: Page, site: Site) -> None:
    await page.goto("/queues")
    for token in ("", "wrong"):
        answer = await page.request.post("/queues/mail/pause", form={"csrf": token, "back": "/queues"})
        assert answer.status == 403
    answer = await page.request.post(
        "/queues/mail/pause",
        form={"csrf": await page.locator("input[name=csrf]").first.input_value()},
        headers={"Origin": "http://evil.example"},
    )
    assert answer.status == 403
    assert not [one.name for one in await site.app.queues.list() if one.paused_at]


async def test_nodes_and_shards(page: Page) -> None:
    await read(page, "/nodes", "nodes")
    await expect(page.locator("#nodes")).to_contain_text("worker")
    await expect(page.locator("#nodes")).to_contain_text("of 8")
    await expect(page.locator("#nodes .badge.good")).to_have_count(2)
    await page.get_by_role("link", name="last 30 days").click()
    await expect(page.locator("#nodes .badge.good")).to_have_count(2)
    await read(page, "/shards", "shards")
    await expect(page.locator(".mosaic .cell.owner-0")).to_have_count(256)


async def test_the_forecast(page: Page, site: Site) -> None:
    await read(page, "/forecast", "forecast")
    await expect(page.locator("#forecast")).to_contain_text("runs")
    await expect(page.locator("#forecast")).to_contain_text("No second stands out")
    for number in range(300):
        await site.app.jobs.add(f"midnight-{number}", task="export", schedule="0 0 * * *")
    try:
        await page.get_by_role("button", name="Work it out again").click()
        await expect(page.locator("#forecast")).to_contain_text("0 0 * * * (UTC)", timeout=30_000)
        await expect(page.locator("#forecast tbody tr").first).to_contain_text("flexible_window=")
        await read(page, "/forecast", "forecast-hot")
    finally:
        for number in range(300):
            await site.app.jobs.delete(f"midnight-{number}")


async def test_everything_can_be_read_without_a_script(browser: Browser, site: Site) -> None:
    async with watched(browser, site, java_script_enabled=False) as page:
        for path, words in (
            ("/", "Needs attention"),
            ("/queues", "billing"),
            ("/nodes", "worker"),
            ("/shards", "Who owns what"),
            ("/forecast", "runs"),
        ):
            await page.goto(path)
            await expect(page.locator("main")).to_contain_text(words)
        await page.goto("/queues")
        await page.locator("tr#mail").get_by_role("button", name="Pause").click()
        await expect(page.locator("tr#mail")).to_contain_text("paused")
        await page.locator("tr#mail").get_by_role("button", name="Resume").click()
        await expect(page.locator("tr#mail")).not_to_contain_text("paused")


async def test_a_key_for_a_part_sees_its_part(browser: Browser, site: Site) -> None:
    key = (await site.app.keys.create(f"mail-{uuid.uuid4().hex[:6]}", role="operator", queues=["mail"])).secret
    async with watched(browser, site, key) as page:
        await page.goto("/")
        await expect(page.locator("#glance")).to_contain_text("mail")
        await expect(page.locator("main")).not_to_contain_text("billing")
        await page.goto("/queues")
        await expect(page.locator("tr#mail")).to_be_visible()
        await expect(page.locator("tr#billing")).to_have_count(0)
        for path in ("/nodes", "/shards", "/forecast"):
            answer = await page.goto(path)
            assert answer is not None
            assert answer.status == 403
            await expect(page.get_by_role("heading", level=1)).to_have_text("Not allowed")


async def test_keys_and_themes(page: Page) -> None:
    await page.goto("/")
    await page.keyboard.press("g")
    await page.keyboard.press("q")
    await page.wait_for_url("**/queues")
    await page.get_by_role("button", name="Light or dark").click()
    theme = await page.evaluate("document.documentElement.dataset.theme")
    await page.goto("/nodes")
    assert await page.evaluate("document.documentElement.dataset.theme") == theme
    assert re.fullmatch("light|dark", theme)


async def refreshed(page: Page) -> None:
    async def seen() -> bool:
        return bool(await page.evaluate("document.documentElement.dataset.refreshed"))

    await until(seen, "a refresh")


async def test_a_page_comes_back_when_the_connection_does(page: Page, site: Site) -> None:
    await page.goto("/")
    await expect(page.locator("#live")).to_have_text("live")
    await refreshed(page)


async def test_the_keyboards_place_survives_a_refresh(page: Page, site: Site) -> None:
    await page.goto("/queues")
    await expect(page.locator("#live")).to_have_text("live")
    stop = page.locator("tr#mail").get_by_role("button", name="Pause")
    await stop.focus()
    await page.evaluate("document.querySelector('#queues tbody').dataset.old = 'yes'")
    await site.app.enqueue("export", {"rows": 1})
    await expect(page.locator("#queues tbody[data-old]")).to_have_count(0, timeout=30_000)
    await expect(stop).to_be_focused()


async def test_a_click_survives_a_refresh_and_does_not_end_them(page: Page, site: Site) -> None:
    await page.goto("/queues")
    await expect(page.locator("#live")).to_have_text("live")
    await page.locator("tr#mail td").nth(2).click()
    await page.evaluate("document.querySelector('#queues tbody').dataset.old = 'yes'")
    await site.app.enqueue("export", {"rows": 1})
    await expect(page.locator("#queues tbody[data-old]")).to_have_count(0, timeout=30_000)
    link = page.locator("tr#mail").get_by_role("link").first
    to = await link.get_attribute("href")
    await link.hover()
    await page.mouse.down()
    await page.evaluate("document.querySelector('#queues tbody').dataset.old = 'yes'")
    await page.evaluate("delete document.documentElement.dataset.refreshed")
    await site.app.enqueue("export", {"rows": 1})
    await refreshed(page)
    await page.mouse.up()
    await page.wait_for_url(f"**{to}")


@pytest.mark.parametrize("press", ["right", "left behind"])
async def test_a_press_that_is_not_released_here_does_not_end_the_refreshes(page: Page, site: Site, press: str) -> None:
    """A menu or another window takes the mouse, and some systems tell nobody."""
    await page.goto("/queues")
    await expect(page.locator("#live")).to_have_text("live")
    body = page.locator("#queues tbody")
    await body.evaluate("one => { one.dataset.old = 'yes'; }")
    await body.dispatch_event("pointerdown", {"button": 2 if press == "right" else 0, "bubbles": True})
    if press == "left behind":
        await page.evaluate("window.dispatchEvent(new Event('blur'))")
    await site.app.enqueue("export", {"rows": 1})
    await expect(page.locator("#queues tbody[data-old]")).to_have_count(0, timeout=30_000)


async def test_many_tabs_share_one_stream(page: Page, site: Site) -> None:
    """A browser has six connections to a server: were each tab to keep one, the seventh page would never come."""
    await page.goto("/nodes")
    await expect(page.locator("#live")).to_have_text("live")
    others = [await page.context.new_page() for _ in range(8)]
    for one in others:
        await one.goto("/queues")
        await expect(one.locator("#live")).to_have_text("live")
    await page.close()
    # The one that listened is gone: another listens for all.
    await others[0].evaluate("delete document.documentElement.dataset.refreshed")
    await site.app.enqueue("export", {"rows": 1})
    await refreshed(others[0])
    await expect(others[-1].locator("#live")).to_have_text("live")


async def test_who_is_signed_out_elsewhere_is_asked_to_sign_in(page: Page) -> None:
    await page.goto("/queues")
    await expect(page.locator("#live")).to_have_text("live")
    other = await page.context.new_page()
    await other.goto("/")
    await other.get_by_role("button", name="Sign out").click()
    await page.wait_for_url("**/login**", timeout=30_000)


async def test_alerts(page: Page, viewer: Page) -> None:
    await read(page, "/alerts", "alerts")
    await expect(page.locator("#alerts")).to_contain_text("Rules")
    await expect(page.locator("#alerts")).to_contain_text("shown here only")
    await page.get_by_role("button", name="Send a test through every channel").click()
    await expect(page.get_by_role("status").filter(has_text="channel")).to_contain_text("There is no channel")
    await viewer.goto("/alerts")
    await expect(viewer.locator("#alerts")).to_contain_text("Rules")
    await expect(viewer.get_by_role("button", name="Send a test")).to_have_count(0)


async def test_a_form_is_refused_in_words(page: Page, site: Site) -> None:
    await page.goto("/queues")
    token = await page.locator("input[name=csrf]").first.input_value()
    answer = await page.request.post("/queues/nowhere/pause", form={"csrf": token, "back": "/queues"}, max_redirects=0)
    assert answer.status == 303
    assert not await site.app.queues.exists("nowhere")
    answer = await page.request.post("/runs/r_1/cancel", form={"csrf": token, "reason": "\0"}, max_redirects=0)
    assert answer.status == 400
