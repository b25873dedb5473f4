"""In and out, and what strangers see."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.conftest import Site, check_accessible, shoot, watched
from tests.support.api import ADMIN

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_stranger_is_asked_for_a_key_and_then_taken_where_he_wanted(browser: Browser, site: Site) -> None:
    async with watched(browser, site, None) as page:
        await page.goto("/jobs?q=news")
        assert "/login?next=" in page.url
        await check_accessible(page)
        await shoot(page, "login")
        await page.get_by_label("API key").fill("hh_wrong")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_contain_text("opens nothing")
        await page.get_by_label("API key").fill(ADMIN)
        await page.get_by_role("button", name="Sign in").click()
        await page.wait_for_url("**/jobs?q=news")
        await page.get_by_role("button", name="Sign out").click()
        await page.wait_for_url("**/login")
        await page.goto("/jobs")
        assert "/login" in page.url


async def test_nobody_is_sent_to_another_site(browser: Browser, site: Site) -> None:
    async with watched(browser, site, None) as page:
        await page.goto("/login?next=//evil.example/")
        await page.get_by_label("API key").fill(ADMIN)
        await page.get_by_role("button", name="Sign in").click()
        await page.wait_for_url(f"{site.base}/")


async def test_a_page_that_is_not_there(page: Page) -> None:
    answer = await page.goto("/nowhere")
    assert answer is not None
    assert answer.status == 404
    await expect(page.get_by_role("heading", level=1)).to_have_text("Not found")
    await check_accessible(page)
