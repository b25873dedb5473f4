"""Changing a job and making one: every option, with a look at the firings it would have, and nothing lost by a mistake."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime

import asyncpg
import pytest
from playwright.async_api import Browser, Page, Route, expect

from tests.browser.conftest import Site, check_accessible, read, shoot, watched

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def press(page: Page, name: str) -> None:
    await page.get_by_role("button", name=name, exact=True).click()


async def firings(page: Page, place: int = 0) -> list[str]:
    return await page.locator("#preview table").nth(place).locator("tbody td:first-child").all_inner_texts()


async def test_the_form_has_everything_and_saving_it_untouched_changes_nothing(page: Page, site: Site) -> None:
    made = await site.app.jobs.add(
        "whole", task="export", schedule="*/20 6-8 * * *", timezone="Asia/Kolkata", payload={"rows": 3}, queue="reports", priority="low",
        dst="skip", missed_window="RUN_ALL", max_missed=7, misfire_grace=90, overlap="queue", flexible_window="2m",
        start_at="2026-01-01T00:00:00Z", end_at="2090-01-01T00:00:00Z", max_runs=1000, max_attempts=4, timeout=12.5,
        delivery="at_most_once", retry_backoff="fixed", retry_base=2, retry_cap="1h30m", idempotency_key_template="{{payload.rows}}",
        tags=["a", "b c"], secret=["rows"], then="publish",
    )  # fmt: skip
    await read(page, "/jobs/whole/edit")
    for label, value in (
        ("Schedule", "*/20 6-8 * * *"), ("Time zone", "Asia/Kolkata"), ("Not before", "2026-01-01 05:30:00+05:30"), ("Start within", "2m"),
        ("It counts as missed after", "90s"), ("Longest pause", "90m"), ("Time limit of an attempt", "12.5s"), ("Tags", "a, b c"), ("Then", "publish"),
        ("Attempts", "4"), ("Idempotency key", "{{payload.rows}}"),
    ):  # fmt: skip
        await expect(page.get_by_label(label, exact=True)).to_have_value(value)
    await press(page, "Save")
    await expect(page.locator(".said")).to_have_text("Nothing was changed.")
    assert await site.app.jobs.show("whole") == made.__class__(
        **{**made.to_dict(), "outcome": None, "next_run_at": (await site.app.jobs.show("whole")).next_run_at}
    )


async def test_every_option_can_be_changed(page: Page, site: Site) -> None:
    await site.app.jobs.add("changed", task="export", schedule="0 5 * * *")
    await page.goto("/jobs/changed/edit")
    for label, value in (
        ("Schedule", "15 4 * * *"), ("Time zone", "Europe/Berlin"), ("Not before", "2026-02-01 00:00"), ("Not from then on", "2080-01-01T00:00:00Z"),
        ("At most so many firings", "50"), ("Task", "long_report"), ("Queue", "mail"), ("Tags", "one, two"), ("Payload", '{"seconds": 1}'),
        ("Secret fields of the payload", "password"), ("Of it, at most", "9"), ("It counts as missed after", "2h"), ("Start within", "300"),
        ("Attempts", "2"), ("Time limit of an attempt", "1h"), ("First pause", "0.5"), ("Longest pause", "10m"), ("Idempotency key", "{{date}}"),
        ("Then", "publish"),
    ):  # fmt: skip
        await page.get_by_label(label, exact=True).fill(value)
    for label, value in (
        ("When clocks go forward", "skip"), ("Priority", "high"), ("What was missed", "RUN_ALL"), ("If the run before has not ended", "replace"),
        ("Delivery", "at_most_once"), ("Pauses between attempts", "exponential"),
    ):  # fmt: skip
        await page.get_by_label(label, exact=True).select_option(value)
    await press(page, "Save")
    await expect(page.locator(".said")).to_have_text("Saved.")
    view = await site.app.jobs.show("changed")
    assert (view.schedule, view.timezone, view.dst, view.max_runs) == ("15 4 * * *", "Europe/Berlin", "skip", 50)
    assert view.start_at == datetime(2026, 1, 31, 23, tzinfo=UTC)
    assert view.end_at == datetime(2080, 1, 1, tzinfo=UTC)
    assert (view.task, view.queue, view.priority, view.tags, view.payload) == (
        "long_report",
        "mail",
        "high",
        ("one", "two"),
        {"seconds": 1},
    )
    assert (view.secret, view.then, view.missed_window, view.max_missed) == (("password",), ("publish",), "RUN_ALL", 9)
    assert (view.misfire_grace, view.overlap, view.flexible_window) == (7200, "replace", 300)
    assert (view.max_attempts, view.timeout, view.delivery) == (2, 3600, "at_most_once")
    assert (view.retry_backoff, view.retry_base, view.retry_cap) == ("exponential", 0.5, 600)
    assert view.idempotency_key_template == "{{date}}"
    await page.goto("/jobs/changed/edit")
    for label in ("At most so many firings", "Attempts", "Tags", "Then", "Not before", "It counts as missed after"):
        await page.get_by_label(label, exact=True).fill("")
    await press(page, "Save")
    await expect(page.locator(".said")).to_have_text("Saved.")
    view = await site.app.jobs.show("changed")
    assert (view.max_runs, view.max_attempts, view.tags, view.then, view.start_at, view.misfire_grace) == (
        None,
        None,
        (),
        (),
        None,
        60,
    )


async def test_an_interval_keeps_its_beat_unless_it_is_told_otherwise(page: Page, site: Site) -> None:
    made = await site.app.jobs.add("beat", task="export", schedule="every 1h", anchor="2026-01-01T00:10:00Z")
    await page.goto("/jobs/beat/edit")
    await page.get_by_label("Tags").fill("steady")
    await press(page, "Save")
    await expect(page.locator(".said")).to_have_text("Saved.")
    assert (await site.app.jobs.show("beat")).anchor == made.anchor
    await page.goto("/jobs/beat/edit")
    await page.get_by_label("Intervals are counted from").fill("2026-01-01T00:20:00Z")
    await press(page, "Save")
    await expect(page.locator(".said")).to_have_text("Saved.")
    assert [at.minute for at in await site.app.jobs.next("beat", 2)] == [20, 20]


async def test_the_new_firings_are_shown_beside_those_it_has(page: Page, site: Site) -> None:
    await site.app.jobs.add("viewed", task="export", schedule="0 5 * * *", timezone="Europe/Berlin")
    await page.goto("/jobs/viewed/edit")
    now = await firings(page)
    assert len(now) == 10
    assert all(" 05:00:00 +0" in one for one in now)
    await page.get_by_label("Schedule", exact=True).fill("30 6 * * *")
    await expect(page.locator("#preview")).to_contain_text("At 06:30 every day (Europe/Berlin)")
    assert all(" 06:30:00 +0" in one for one in await firings(page))
    assert await firings(page, 1) == now
    await shoot(page, "job-edit")
    await check_accessible(page)
    await page.get_by_label("Schedule", exact=True).fill("30 66 * * *")
    await expect(page.locator("#preview .bad")).to_contain_text("is not a cron expression")
    await page.get_by_label("Schedule", exact=True).fill("@hourly")
    await page.get_by_label("Not before").fill("2080-06-01 00:00")
    await expect(page.locator("#preview table").first).to_contain_text("2080-06-01 00:00:00 +0")
    assert (await site.app.jobs.show("viewed")).version == 1


async def test_without_a_script_there_is_a_button_for_it(browser: Browser, site: Site) -> None:
    await site.app.jobs.add("buttoned", task="export", schedule="0 5 * * *")
    async with watched(browser, site, java_script_enabled=False) as page:
        await page.goto("/jobs/buttoned/edit")
        await page.get_by_label("Schedule", exact=True).fill("0 7 * * *")
        await page.keyboard.press("Enter")
        await expect(page.locator("#preview")).to_contain_text("At 07:00 every day")
        assert all(" 07:00:00 " in one for one in await firings(page))
        assert all(" 05:00:00 " in one for one in await firings(page, 1))
        await expect(page.get_by_label("Schedule", exact=True)).to_have_value("0 7 * * *")
        assert (await site.app.jobs.show("buttoned")).schedule == "0 5 * * *"
        await press(page, "Save")
        await expect(page.locator(".said")).to_have_text("Saved.")
    assert (await site.app.jobs.show("buttoned")).schedule == "0 7 * * *"


@pytest.mark.parametrize(
    ("label", "value", "said"),
    [
        ("Schedule", "every blue moon", "is not a duration"),
        ("Schedule", "0 0 30 2 *", "can never fire"),
        ("Time zone", "Europe/Atlantis", "no time zone"),
        ("Payload", "{", "no JSON"),
        ("Payload", "[1]", "JSON object"),
        ("At most so many firings", "many", "max_runs must be a whole number"),
        ("It counts as missed after", "soon", "'soon' is not a duration"),
        ("Not before", "later", "'later' is no instant"),
        ("Queue", "no queue", "queue"),
        ("Attempts", "0", "max_attempts must be"),
        ("Idempotency key", "{{nothing}}", "idempotency"),
    ],
)
async def test_a_mistake_is_said_at_its_field_and_nothing_that_was_typed_is_lost(
    page: Page, site: Site, label: str, value: str, said: str
) -> None:
    await site.app.jobs.add("mistaken", task="export", schedule="0 5 * * *")
    await page.goto("/jobs/mistaken/edit")
    await page.get_by_label("Tags", exact=True).fill("typed, and kept")
    await page.get_by_label(label, exact=True).fill(value)
    await press(page, "Save")
    await expect(page.get_by_role("alert")).to_contain_text(said)
    field = page.get_by_label(label, exact=True)
    await expect(field).to_have_value(value)
    await expect(field).to_have_attribute("aria-invalid", "true")
    await expect(page.get_by_label("Tags", exact=True)).to_have_value("typed, and kept")
    assert (await site.app.jobs.show("mistaken")).version == 1


async def test_what_somebody_else_changed_meanwhile_is_not_overwritten(page: Page, site: Site) -> None:
    await site.app.jobs.add("shared", task="export", schedule="0 5 * * *")
    await page.goto("/jobs/shared/edit")
    await page.get_by_label("Schedule", exact=True).fill("0 6 * * *")
    await site.app.jobs.update("shared", priority="high")
    await press(page, "Save")
    await expect(page.get_by_role("alert")).to_contain_text("has been changed since you opened this form")
    await expect(page.get_by_label("Schedule", exact=True)).to_have_value("0 6 * * *")
    await check_accessible(page)
    await press(page, "Save")
    await expect(page.get_by_role("alert")).to_contain_text("has been changed")
    view = await site.app.jobs.show("shared")
    assert (view.schedule, view.priority) == ("0 5 * * *", "high")
    await page.get_by_role("link", name="Start again").click()
    await page.get_by_label("Schedule", exact=True).fill("0 6 * * *")
    await press(page, "Save")
    await expect(page.locator(".said")).to_have_text("Saved.")
    view = await site.app.jobs.show("shared")
    assert (view.schedule, view.priority) == ("0 6 * * *", "high")


async def test_secrets_stay_hidden_and_as_they_are(page: Page, site: Site) -> None:
    await site.app.jobs.add(
        "secretive", task="send_newsletter", schedule="0 5 * * *", payload={"subscribers": 2, "api_token": "hush-hush"}
    )
    for address in ("/jobs/secretive", "/jobs/secretive/edit", "/jobs/secretive/changes", "/jobs/secretive/trigger"):
        await page.goto(address)
        assert "hush-hush" not in await page.content()
    await page.goto("/jobs/secretive/edit")
    field = page.get_by_label("Payload", exact=True)
    assert "[redacted]" in await field.input_value()
    await field.fill((await field.input_value()).replace("2", "3"))
    await press(page, "Save")
    await expect(page.locator(".said")).to_have_text("Saved.")
    assert (await site.app.jobs.show("secretive")).payload == {"subscribers": 3, "api_token": "hush-hush"}
    assert "hush-hush" not in await page.content()
    await page.goto("/jobs/secretive/edit")
    await field.fill('{"subscribers": 3, "api_token": "new"}')
    await press(page, "Save")
    await expect(page.locator(".said")).to_have_text("Saved.")
    assert (await site.app.jobs.show("secretive")).payload == {"subscribers": 3, "api_token": "new"}
    assert '"new"' not in await page.inner_text("main")


async def test_a_new_job(page: Page, site: Site) -> None:
    await read(page, "/jobs/new")
    await page.goto("/jobs")
    await page.get_by_role("link", name="New job").click()
    await page.get_by_label("Schedule", exact=True).fill("0 3 * * *")
    await expect(page.locator("#preview")).to_contain_text("At 03:00 every day (UTC)")
    await page.get_by_label("Name").fill("not a name")
    await page.get_by_label("Task").fill("export")
    await press(page, "Save")
    await expect(page.get_by_role("alert")).to_be_visible()
    await expect(page.get_by_label("Name")).to_have_attribute("aria-invalid", "true")
    await page.get_by_label("Name").fill("newsletter")
    await press(page, "Save")
    await expect(page.get_by_role("alert")).to_contain_text("There is a job of this name already")
    await page.get_by_label("Name").fill("brand-new")
    await press(page, "Save")
    await expect(page.locator(".said")).to_have_text("Added.")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("brand-new")
    view = await site.app.jobs.show("brand-new")
    assert (view.schedule, view.task, view.queue, view.payload) == ("0 3 * * *", "export", "default", {})
    log = (await site.app.audit.list(subject="brand-new", limit=1))[0]
    assert log.action == "job.add"
    assert re.match("api|dashboard", log.via)


async def test_what_is_written_before_the_script_has_come_is_tried_too(page: Page) -> None:
    come = asyncio.Event()

    async def slow(route: Route) -> None:
        await come.wait()
        await route.continue_()

    await page.route("**/static/hourhand.js*", slow)
    await page.goto("/jobs/new", wait_until="commit")
    await page.get_by_label("Schedule", exact=True).fill("0 3 * * *")
    come.set()
    await expect(page.locator("#preview")).to_contain_text("At 03:00 every day (UTC)")


async def test_a_job_that_is_declared_in_code_says_so(page: Page, site: Site) -> None:
    await site.app.jobs.add("declared", task="export", schedule="0 5 * * *")
    sql = await asyncpg.connect(site.url)
    await sql.execute(f"UPDATE {site.schema}.jobs SET declared_by = 'shop' WHERE name = 'declared'")
    await sql.close()
    for address in ("/jobs/declared", "/jobs/declared/edit"):
        await page.goto(address)
        await expect(page.get_by_text("Declared in the code of shop")).to_be_visible()
