"""The list of runs and the page of one, as people use them."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import Browser, Page, expect

from hourhand.surfaces.views import RunView
from tests.browser.conftest import Site, check_accessible, read, watched
from tests.support.fleet import until

pytestmark = pytest.mark.asyncio(loop_scope="session")
SECRET = "hush-hush"


async def newest(site: Site, **filters: object) -> RunView:
    return (await site.app.runs.list(limit=1, **filters))[0]  # type: ignore[arg-type]


async def in_state(site: Site, run_id: str, state: str) -> RunView:
    async def there() -> RunView | None:
        run = await site.app.runs.show(run_id)
        return run if run.state == state else None

    found: RunView = await until(there, f"{run_id} to be {state}")
    return found


def rows(page: Page) -> object:
    return page.locator("#runs tbody tr")


async def ids(page: Page) -> list[str]:
    return await page.locator("#runs tbody tr td:nth-child(2) a").all_inner_texts()


async def token(page: Page) -> str:
    """What this browser's forms carry."""
    return str(await page.locator("input[name=csrf]").first.get_attribute("value"))


async def test_the_list_shows_runs_in_every_state(site: Site, page: Page) -> None:
    await in_state(site, (await newest(site, task="long_report", tag="slow")).run_id, "running")
    await site.app.enqueue("export", {"rows": 4}, delay=3600)
    await read(page, "/runs", "runs")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    for state in ("running", "delayed", "parked", "succeeded", "dead"):
        await page.goto(f"/runs?state={state}")
        assert set(await page.locator("#runs tbody tr td:first-child").all_inner_texts()) == {state}
        await expect(page.locator("#states a[aria-current]")).to_contain_text(state)
    await page.goto("/runs?state=dead&state=parked")
    assert set(await page.locator("#runs tbody tr td:first-child").all_inner_texts()) == {"dead", "parked"}
    await check_accessible(page)


async def test_what_a_row_says(site: Site, page: Page) -> None:
    dead = await newest(site, state="dead", task="charge_card")
    await page.goto("/runs?state=dead&task=charge_card")
    row = page.locator("#runs tbody tr", has_text=dead.run_id)
    await expect(row).to_contain_text("billing")
    await expect(row).to_contain_text("ConnectionError")
    await row.get_by_role("link", name=dead.run_id).click()
    await page.wait_for_url(f"**/runs/{dead.run_id}")
    await page.goto("/runs?job=heartbeat&state=succeeded")
    await page.locator("#runs tbody tr").first.get_by_role("link", name="heartbeat").click()
    await page.wait_for_url("**/jobs/heartbeat")


async def test_filters_are_addresses(site: Site, page: Page) -> None:
    key = f"order-{uuid.uuid4().hex[:6]}"
    mine = await site.app.enqueue("export", {"rows": 2}, key=key, tags=["filtered"])
    done = await mine.wait(30)
    other = await site.app.enqueue("charge_card", {"invoice": 4})
    await other.wait(30)
    job = (await newest(site, job="heartbeat")).run_id
    for query, found in {
        f"key={key}": [mine.id],
        "tag=filtered": [mine.id],
        f"task=export&tag=filtered&queue=reports&state=succeeded&node={done.node}&since=1h": [mine.id],
        "tag=filtered&queue=billing": [],
        "tag=filtered&task=charge_card": [],
        f"tag=filtered&node={(done.node or 0) + 1000}": [],
        f"tag=filtered&since={(datetime.now(UTC) + timedelta(days=1)).strftime('%Y-%m-%dT%H:%M:%SZ')}": [],
        "tag=filtered&job=heartbeat": [],
    }.items():
        await page.goto(f"/runs?{query}")
        assert await ids(page) == found, query
        if not found:
            await expect(page.locator("#runs")).to_contain_text("No run matches.")
    await page.goto("/runs?job=heartbeat&state=succeeded")
    assert job in await ids(page) or await ids(page)
    assert set(await page.locator("#runs tbody tr td:nth-child(3)").all_inner_texts()) == {"heartbeat export"}

    await page.goto("/runs")
    await page.get_by_label("Tag").fill("filtered")
    await page.get_by_label("Task", exact=True).fill("export")
    await page.get_by_role("button", name="Filter").click()
    await page.wait_for_url(re.compile("tag=filtered"))
    assert await ids(page) == [mine.id]
    await page.get_by_label("Scheduled within").select_option("1h")
    await page.wait_for_url(re.compile("since=1h"))
    assert await ids(page) == [mine.id]
    await page.locator("#states").get_by_role("link", name="cancelled").click()
    await expect(page.locator("#runs")).to_contain_text("No run matches.")
    assert "tag=filtered" in page.url
    await page.get_by_role("link", name="Clear").click()
    await page.wait_for_url("**/runs")


async def test_a_run_is_found_by_its_id(site: Site, page: Page) -> None:
    run = await newest(site, task="send_newsletter")
    await page.goto("/runs")
    await page.keyboard.press("/")
    await page.keyboard.type(run.run_id.upper())
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/runs/{run.run_id}")
    await page.goto("/runs?q=audit_books")
    await page.wait_for_url("**/runs?task=audit_books")
    assert (await page.goto("/runs/r_zzzzzz")).status == 404  # type: ignore[union-attr]
    await expect(page.locator("main")).to_contain_text("there is no run r_zzzzzz")
    assert (await page.goto("/runs/nonsense")).status == 404  # type: ignore[union-attr]


async def test_many_runs_come_in_pages(site: Site, page: Page) -> None:
    made = list(await site.app.enqueue_many("export", [{"rows": 1}] * 60, tags=["paged"]))
    for one in made:
        await in_state(site, one, "succeeded")
    await page.goto("/runs?tag=paged")
    first = await ids(page)
    assert first == list(reversed(made))[:50]
    await page.get_by_role("link", name="Older").click()
    await page.wait_for_url(re.compile("below="))
    assert await ids(page) == list(reversed(made))[50:]
    await expect(page.get_by_role("link", name="Older")).to_have_count(0)
    await page.get_by_role("link", name="Newest").click()
    assert await ids(page) == first


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [("state=upside-down", 422, "is not a state"), ("node=seven", 422, "node is a number"), ("since=yesterday", 422, "since is a span"),
     ("job=nobody", 404, "there is no job 'nobody'"), ("queue=nowhere", 404, "there is no queue 'nowhere'"), ("below=x", 404, "is not a run id"),
     (f"task={'x' * 300}", 422, "at most 200 characters")],
)  # fmt: skip
async def test_an_address_that_makes_no_sense_says_so(page: Page, query: str, status: int, words: str) -> None:
    answer = await page.goto(f"/runs?{query}")
    assert answer is not None
    assert answer.status == status
    await expect(page.locator("main")).to_contain_text(words)


async def test_a_run_that_succeeded(site: Site, page: Page) -> None:
    run = (await site.app.runs.list(task="send_newsletter", state="succeeded", limit=1000))[-1]  # others start it by hand
    await read(page, f"/runs/{run.run_id}", "run")
    timeline = page.locator("#timeline li")
    await expect(timeline.first).to_contain_text("Enqueued")
    await expect(timeline.last).to_contain_text("Succeeded")
    await expect(page.get_by_role("region", name="Payload")).to_contain_text("[redacted]")
    await expect(page.get_by_role("region", name="Result")).to_contain_text('"sent": 3')
    await expect(page.locator("#lines")).to_contain_text("sent number=3")
    await expect(page.locator("#lines")).to_contain_text("Lines 1 to 3 of 3")
    assert SECRET not in await page.content()


async def test_a_run_that_failed_shows_every_attempt(site: Site, page: Page) -> None:
    run = await newest(site, task="charge_card", state="dead")
    await read(page, f"/runs/{run.run_id}", "run-failed")
    for attempt in (1, 2, 3):
        await expect(page.locator("#timeline li", has_text=f"Attempt {attempt} failed")).to_contain_text(
            "the bank did not answer"
        )
    await expect(page.locator("#timeline li").last).to_contain_text("Gave up")
    trace = page.locator("#timeline details").first
    await expect(trace.locator("pre")).to_be_hidden()
    await trace.locator("summary").click()
    await expect(trace.locator("pre")).to_contain_text("raise ConnectionError")
    await page.get_by_role("link", name="Dead letter", exact=True).click()
    await page.wait_for_url(f"**/dead/{run.run_id}")


async def test_a_chain_is_shown_as_one(site: Site, page: Page) -> None:
    first = await newest(site, task="export", state="succeeded")
    handle = await site.app.enqueue("export", {"rows": 5}, then="publish")
    first = await handle.wait(30)
    await page.goto(f"/runs/{first.run_id}")
    links = page.locator("#chain a")
    await expect(links).to_have_text(["export", "publish"])
    await expect(links.first).to_have_attribute("aria-current", "page")
    await links.last.click()
    await expect(page.locator("#chain a").last).to_have_attribute("aria-current", "page")
    waiting = await site.app.enqueue("export", {"rows": 5}, then="publish", delay=3600)
    await read(page, f"/runs/{waiting.id}")
    await expect(page.locator("#chain li").last).to_contain_text("publish to come")


async def test_a_run_that_goes_on_is_followed_until_it_is_stopped(site: Site, page: Page) -> None:
    handle = await site.app.enqueue("long_report", {"seconds": 600})
    await in_state(site, handle.id, "running")
    await page.goto(f"/runs/{handle.id}")
    await page.evaluate("window.untouched = true")
    await expect(page.get_by_role("progressbar")).to_have_attribute("value", "0.3", timeout=15_000)
    await expect(page.locator("#now")).to_contain_text("collecting")
    await check_accessible(page)
    await page.get_by_label("Why it is cancelled").fill("nobody needs it")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text(f"Stop run {handle.id}?")
    await check_accessible(page)
    assert (await site.app.runs.show(handle.id)).state == "running"
    await page.get_by_role("link", name="No, go back").click()
    await page.get_by_label("Why it is cancelled").fill("nobody needs it")
    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_role("button", name="Stop it").click()
    await expect(page.locator(".said")).to_contain_text("asked to stop")
    await page.evaluate("window.untouched = true")
    await expect(page.locator("#head .badge")).to_have_text("cancelled", timeout=15_000)
    await expect(page.locator("#timeline li").last).to_contain_text("nobody needs it")
    assert await page.evaluate("window.untouched"), "the page was loaded again"
    await expect(page.get_by_role("button", name="Cancel")).to_have_count(0)


async def test_what_a_run_says_appears_as_it_says_it(site: Site, page: Page) -> None:
    handle = await site.app.enqueue("narrate")
    await in_state(site, handle.id, "running")
    await page.goto(f"/runs/{handle.id}")
    await page.evaluate("window.untouched = true")

    async def last() -> int:
        found = re.findall(r"line number (\d+)", await page.locator("#lines").inner_text())
        return int(found[-1]) if found else 0

    async def more(than: int) -> int:
        return number if (number := await last()) > than else 0

    seen = await until(lambda: more(0), "the first lines")
    await until(lambda: more(seen), "further lines")
    assert await page.evaluate("window.untouched")
    await site.app.runs.cancel(handle.id)
    await expect(page.locator("#head .badge")).to_have_text("cancelled", timeout=15_000)


async def test_a_run_that_goes_on_is_looked_at_again_without_any_event(site: Site, page: Page) -> None:
    """What a run says and reports is no event; on the page's own clock it is asked for every two seconds, and no more once it has ended."""
    handle = await site.app.enqueue("long_report", {"seconds": 600})
    await in_state(site, handle.id, "running")
    begun = list[str]()
    page.on("request", lambda one: begun.append(one.url) if one.resource_type == "fetch" else None)
    await page.route(
        "**/api/v1/events", lambda route: route.fulfill(content_type="text/event-stream", body="retry: 99999999\n\n")
    )
    await page.clock.install()

    async def settled() -> bool:
        return not await page.evaluate("under")

    async def looks(seconds: int) -> int:
        before = len(begun)
        for _ in range(seconds):
            await page.clock.run_for(1_000)
            await until(settled, "the answers")
        return len(begun) - before

    await page.goto(f"/runs/{handle.id}")
    await looks(3)
    assert await looks(8) >= 3
    await site.app.runs.cancel(handle.id)
    await in_state(site, handle.id, "cancelled")
    await looks(4)
    await expect(page.locator("#head .badge")).to_have_text("cancelled")
    assert await looks(8) <= 1


async def test_a_list_shows_what_ends_meanwhile(site: Site, page: Page) -> None:
    handle = await site.app.enqueue("long_report", {"seconds": 600}, tags=["followed"])
    await in_state(site, handle.id, "running")
    await page.goto("/runs?tag=followed")
    await page.evaluate("window.untouched = true")
    await expect(page.locator("#runs .badge")).to_have_text("running")
    await site.app.runs.cancel(handle.id)
    await expect(page.locator("#runs .badge")).to_have_text("cancelled", timeout=20_000)
    assert await page.evaluate("window.untouched")


async def test_many_lines_come_in_parts(site: Site, page: Page) -> None:
    handle = await site.app.enqueue("send_newsletter", {"subscribers": 450})
    await handle.wait(30)
    await page.goto(f"/runs/{handle.id}")
    await expect(page.locator("#lines")).to_contain_text("Lines 251 to 450 of 450")
    await page.get_by_role("link", name="Earlier lines").click()
    await expect(page.locator("#lines")).to_contain_text("Lines 51 to 250 of 450")
    await page.get_by_role("link", name="Earlier lines").click()
    await expect(page.locator("#lines")).to_contain_text("Lines 1 to 200 of 450")
    await page.get_by_role("link", name="Later lines").click()
    await expect(page.locator("#lines")).to_contain_text("Lines 201 to 400 of 450")
    await page.get_by_role("link", name="Later lines").click()
    await expect(page.locator("#lines")).to_contain_text("Lines 251 to 450 of 450")


async def test_a_run_that_waits_is_cancelled_at_once(site: Site, page: Page) -> None:
    handle = await site.app.enqueue("export", {"rows": 1}, delay=3600)
    await page.goto(f"/runs/{handle.id}")
    await expect(page.locator("#now")).to_contain_text("It is not due yet.")
    await page.get_by_label("Why it is cancelled").fill("wrong day")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.locator(".said")).to_contain_text(f"{handle.id} is cancelled.")
    assert (await site.app.runs.show(handle.id)).reason == "wrong day"


async def test_a_run_that_is_not_due_is_run_now(site: Site, page: Page) -> None:
    handle = await site.app.enqueue("export", {"rows": 1}, delay=3600)
    await page.goto(f"/runs/{handle.id}")
    await page.get_by_role("button", name="Run now").click()
    await expect(page.locator(".said")).to_contain_text(f"{handle.id} runs again.")
    await in_state(site, handle.id, "succeeded")
    await expect(page.locator("#head .badge")).to_have_text("succeeded", timeout=15_000)
    await page.get_by_role("button", name="Run again").click()
    await page.wait_for_url(lambda url: "/runs/r_" in url and handle.id not in url)
    await expect(page.locator(".said")).to_contain_text(f"is a new run with the payload and options of {handle.id}")


async def test_it_says_why_a_run_waits(site: Site, page: Page) -> None:
    parked = await newest(site, task="unheard_of", state="parked")
    await read(page, f"/runs/{parked.run_id}")
    await expect(page.locator("#now")).to_contain_text("no worker that serves its queue knows this task")
    await site.app.queues.pause("held-back")
    first = await site.app.enqueue("export", {"rows": 1}, queue="held-back")
    try:
        await page.goto(f"/runs/{first.id}")
        await expect(page.locator("#now")).to_contain_text("Queue held-back is paused")
        await expect(page.locator("#timeline li").last).to_contain_text("Waits for a worker")
    finally:
        await site.app.queues.resume("held-back")
    await expect(page.locator("#head .badge")).to_have_text("succeeded", timeout=15_000)
    await expect(page.locator("#now")).not_to_contain_text("Why is it waiting?")


async def test_a_viewer_looks_and_orders_nothing(site: Site, viewer: Page) -> None:
    handle = await site.app.enqueue("export", {"rows": 1}, delay=3600)
    await read(viewer, f"/runs/{handle.id}")
    for button in ("Cancel", "Run now", "Run again", "Replay"):
        await expect(viewer.get_by_role("button", name=button)).to_have_count(0)
    for order in ("cancel", "retry"):
        forged = await viewer.request.post(f"/runs/{handle.id}/{order}", form={"csrf": await token(viewer)})
        assert forged.status == 403
        assert "this is for the role operator" in await forged.text()
    assert (await site.app.runs.show(handle.id)).state == "delayed"


async def test_an_order_needs_the_sessions_token(site: Site, page: Page) -> None:
    handle = await site.app.enqueue("export", {"rows": 1}, delay=3600)
    for guessed in ("", "guessed"):
        assert (await page.request.post(f"/runs/{handle.id}/cancel", form={"csrf": guessed})).status == 403
    assert (await site.app.runs.show(handle.id)).state == "delayed"


async def test_an_order_that_comes_too_late_says_so(site: Site, page: Page) -> None:
    handle = await site.app.enqueue("export", {"rows": 1}, delay=3600)
    await page.goto(f"/runs/{handle.id}")
    await page.evaluate("document.querySelector('#head').removeAttribute('data-live')")
    await site.app.runs.cancel(handle.id, "by another")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.locator(".said.bad")).to_contain_text(f"{handle.id} has ended already: cancelled")


async def test_a_key_for_one_queue_sees_the_runs_of_that_queue(site: Site, browser: Browser) -> None:
    key = (await site.app.keys.create(f"billing-{uuid.uuid4().hex[:6]}", role="operator", queues=["billing"])).secret
    mine, other = await newest(site, queue="billing"), await newest(site, queue="mail")
    async with watched(browser, site, key) as page:
        await read(page, "/runs")
        assert set(await page.locator("#runs tbody tr td:nth-child(4)").all_inner_texts()) == {"billing"}
        await read(page, f"/runs/{mine.run_id}")
        answer = await page.goto(f"/runs/{other.run_id}")
        assert answer is not None
        assert answer.status == 404
        assert (await page.request.post(f"/runs/{other.run_id}/retry", form={"csrf": await token(page)})).url.endswith("/")


async def test_everything_can_be_read_and_ordered_without_a_script(site: Site, browser: Browser) -> None:
    handle = await site.app.enqueue("export", {"rows": 1}, delay=3600)
    async with watched(browser, site, java_script_enabled=False) as page:
        await page.goto("/runs?state=delayed")
        await expect(page.locator("#runs tbody tr", has_text=handle.id)).to_contain_text("UTC" if False else "in ")
        await page.get_by_role("link", name=handle.id).click()
        await expect(page.locator("#timeline li").last).to_contain_text("UTC")
        await page.get_by_role("button", name="Cancel").click()
        await expect(page.locator(".said")).to_contain_text(f"{handle.id} is cancelled.")
        failed = await newest(site, task="charge_card", state="dead")
        await page.goto(f"/runs/{failed.run_id}")
        await page.locator("#timeline summary").first.click()
        await expect(page.locator("#timeline pre").first).to_contain_text("raise ConnectionError")


async def test_secrets_are_on_no_page(site: Site, page: Page) -> None:
    handle = await site.app.enqueue("sync_ledger", {"account": "main", "password": SECRET})
    run = await handle.wait(30)
    assert run.state == "dead"
    sent = await newest(site, task="send_newsletter", state="succeeded")
    for path in ("/runs", "/runs?task=sync_ledger", f"/runs/{run.run_id}", f"/runs/{sent.run_id}", "/dead", "/dead/letters?task=sync_ledger",
                 "/dead/letters?task=sync_ledger&error=PermanentFailure", f"/dead/{run.run_id}"):  # fmt: skip
        await page.goto(path)
        assert SECRET not in await page.content(), path
    await page.goto(f"/runs/{run.run_id}")
    await expect(page.locator("#timeline")).to_contain_text("main is refused with [redacted]")
