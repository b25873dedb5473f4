"""The pages on dead letters, as people use them."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime

import asyncpg
import pytest
from playwright.async_api import Browser, Page, expect

from hourhand.core import ids as numbers
from tests.browser.conftest import Site, check_accessible, read, watched
from tests.browser.test_runs import in_state, token

pytestmark = pytest.mark.asyncio(loop_scope="session")
SECRET = "hush-hush"
WORD = "sotto-voce"
"""A secret that is part of a task's name."""


async def bury(
    site: Site,
    many: int = 1,
    *,
    task: str,
    error: str = "ValueError",
    key: str | None = None,
    payload: object = None,
    **row: object,
) -> list[str]:
    """Dead letters of a task of the test's own, as a worker leaves them: without the wait for their attempts."""
    sql = await asyncpg.connect(site.url)
    try:
        queue = await sql.fetchval(f"SELECT {site.schema}.queue_number($1)", row.get("queue", "reports"))
        errors = json.dumps(
            [
                {
                    "attempt": 1,
                    "at": datetime.now(UTC).isoformat(),
                    "node": "vm:1",
                    "type": error,
                    "message": f"it broke <b>{task}</b>",
                    "traceback": "Traceback\n  line 7",
                }
            ]
        )
        made = await sql.fetch(
            f"INSERT INTO {site.schema}.dead (died_at, run_id, scheduled_at, lane, attempt, task, payload, key, tags, options, errors, reason) "
            f"SELECT clock_timestamp() - make_interval(secs => $1 - n), nextval('{site.schema}.run_numbers'), now(), $2, 1, $3, $4::jsonb, $5, $6, $7::jsonb, $8::jsonb, 'gave up' "
            "FROM generate_series(1, $1) AS n RETURNING run_id",
            many, queue * 4 + 1, task, json.dumps(payload or {"rows": 1}), key, row.get("tags"), json.dumps(row["options"]) if "options" in row else None,
            errors if error else None,
        )  # fmt: skip
        return [numbers.run_id(one["run_id"]) for one in made]
    finally:
        await sql.close()


def own() -> str:
    return f"task-{uuid.uuid4().hex[:8]}"


async def listed(page: Page) -> set[str]:
    return set(await page.locator("#letters tbody td a.mono").all_inner_texts())


async def dead(site: Site, runs: Iterable[str]) -> set[str]:
    some = list(runs)
    return {one.run_id for one in await site.app.dead.list(*some, limit=1_000)}


async def test_letters_are_grouped_by_task_and_error(site: Site, page: Page) -> None:
    await read(page, "/dead", "dead")
    group = page.locator("#groups tr", has_text="charge_card")
    await expect(group).to_contain_text("ConnectionError")
    await expect(group).to_contain_text("the bank did not answer")
    await group.get_by_role("link", name="charge_card").click()
    await page.wait_for_url("**/dead/letters?task=charge_card&error=ConnectionError")
    await read(page, page.url.removeprefix(site.base), "letters")
    assert await listed(page) == {one.run_id for one in await site.app.dead.list(task="charge_card")}
    await page.locator("#letters tbody td a.mono").first.click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("dead")


async def test_filters_are_addresses(site: Site, page: Page) -> None:
    task, other = own(), own()
    await bury(site, 3, task=task, tags=["red"])
    await bury(site, 2, task=task, error="KeyError", queue="books")
    await bury(site, 1, task=other, error="")
    for query, found in {
        f"task={task}": {("ValueError", "3"), ("KeyError", "2")},
        f"task={task}&error=KeyError": {("KeyError", "2")},
        f"task={task}&queue=books": {("KeyError", "2")},
        f"task={task}&tag=red&since=1h": {("ValueError", "3")},
        f"task={other}": {("no error", "1")},
        f"task={other}&error=-": {("no error", "1")},
        f"task={task}&since=2099-01-01": set(),
    }.items():
        await page.goto(f"/dead?{query}")
        cells = await page.locator("#groups tbody tr").evaluate_all(
            "rows => rows.map(row => [row.cells[1].querySelector('a').innerText, row.cells[2].innerText])"
        )
        assert {tuple(one) for one in cells} == found, query
    await expect(page.locator("#groups")).to_contain_text("No dead letter matches.")
    await page.goto(f"/dead?task={other}")
    await page.get_by_role("link", name="no error").click()
    await page.wait_for_url(f"**/dead/letters?task={other}&error=-")
    assert len(await listed(page)) == 1
    await page.goto("/dead")
    await page.get_by_label("Task").fill(task)
    await page.get_by_label("Queue").select_option("books")
    await page.wait_for_url(re.compile(f"task={task}.*queue=books"))
    await expect(page.locator("#groups tbody tr")).to_have_count(1)
    await page.get_by_role("link", name="Clear").click()
    await page.wait_for_url("**/dead")


async def test_a_large_group_comes_in_pages(site: Site, page: Page) -> None:
    task = own()
    made = await bury(site, 70, task=task)
    await page.goto(f"/dead/letters?task={task}&error=ValueError")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("70 letters")
    first = await listed(page)
    assert first == set(made[20:])
    await page.get_by_role("link", name="Older").click()
    await page.wait_for_url(re.compile("below="))
    assert await listed(page) == set(made[:20])
    await page.get_by_role("link", name="Latest").click()
    assert await listed(page) == first


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [("/dead?since=soon", 422, "since is a span"), ("/dead?queue=nowhere", 404, "there is no queue"), ("/dead/letters?below=x", 422, "this is no cursor"),
     ("/dead/r_zzzzz", 404, "not among the dead letters"), ("/dead/nonsense", 404, "is not a run id"), ("/dead?page=0", 422, "page")],
)  # fmt: skip
async def test_an_address_that_makes_no_sense_says_so(page: Page, path: str, status: int, words: str) -> None:
    answer = await page.goto(path)
    assert answer is not None
    assert answer.status == status
    await expect(page.locator("main")).to_contain_text(words)


async def test_a_letter_is_inspected(site: Site, page: Page) -> None:
    run = (await site.app.dead.list(task="charge_card", limit=1))[0]
    await read(page, f"/dead/{run.run_id}", "letter")
    await expect(page.locator(".timeline li")).to_have_count(3)
    await expect(page.get_by_role("textbox", name="Payload")).to_have_value(re.compile('"invoice": '))
    await page.locator(".timeline summary").first.click()
    await expect(page.locator(".timeline pre").first).to_contain_text("raise ConnectionError")
    await page.get_by_role("link", name="The run").click()
    await page.wait_for_url(f"**/runs/{run.run_id}")


async def test_a_payload_is_edited_and_its_secrets_stay(site: Site, page: Page) -> None:
    task = own()
    (run,) = await bury(
        site,
        task=task,
        payload={"rows": "many", "password": SECRET, "card": {"number": SECRET}},
        options={"secret": ["card.number"]},
    )
    await page.goto(f"/dead/{run}")
    assert SECRET not in await page.content()
    box = page.get_by_role("textbox", name="Payload")
    text = await box.input_value()
    assert json.loads(text) == {"rows": "many", "password": "[redacted]", "card": {"number": "[redacted]"}}

    for wrong, words in (
        ('{"rows": 1', "this is no JSON"),
        ("[1, 2]", "a payload is a JSON object"),
        ('{"rows": "[redacted]"}', "nothing is hidden there"),
    ):
        await box.fill(wrong)
        await page.get_by_role("button", name="Save", exact=True).click()
        await expect(page.get_by_role("alert")).to_contain_text(words)
        assert await box.input_value() == wrong, "what was written is kept"
        await check_accessible(page)
    assert (await site.app.dead.show(run)).payload["rows"] == "many"

    await box.fill(text.replace('"many"', "3"))
    await page.get_by_role("button", name="Save", exact=True).click()
    await expect(page.locator(".said")).to_contain_text("has its new payload")
    assert (await site.app.dead.show(run)).payload == {"rows": 3, "password": SECRET, "card": {"number": SECRET}}
    changes = await site.app.audit.list(subject=run)
    assert [one.action for one in changes] == ["dead.edit"]
    assert SECRET not in str(changes)


async def test_no_message_tells_a_secret_and_none_is_taken_for_html(site: Site, page: Page) -> None:
    task = f"{WORD}-{uuid.uuid4().hex[:6]}"
    (run,) = await bury(site, task=task, payload={"password": WORD})
    for path in ("/dead", f"/dead/letters?task={task}&error=ValueError", "/dead/letters"):
        await page.goto(path)
        told = page.locator("tr", has_text=task if path == "/dead" else run).locator(".message")
        await expect(told).to_have_text(re.compile(r"it broke <b>\[redacted\]-\w+</b>"))


async def test_a_letter_is_edited_and_replayed_at_once(site: Site, page: Page) -> None:
    (run,) = await bury(site, task="export", payload={"rows": "many"})
    await page.goto(f"/dead/{run}")
    await page.get_by_role("textbox", name="Payload").fill('{"rows": 12}')
    await page.get_by_role("button", name="Save and replay").click()
    await page.wait_for_url(f"**/runs/{run}")
    done = await in_state(site, run, "succeeded")
    assert done.result == {"rows": 12}
    await expect(page.locator("#head .badge")).to_have_text("succeeded", timeout=15_000)
    await expect(page.locator("#timeline li", has_text="Payload changed")).to_contain_text("by key:HOURHAND_ADMIN_KEY")


async def test_one_letter_is_replayed(site: Site, page: Page) -> None:
    (run,) = await bury(site, task="export")
    await page.goto(f"/dead/{run}")
    await page.get_by_role("button", name="Replay", exact=True).click()
    await page.wait_for_url(f"**/runs/{run}")
    await expect(page.locator(".said")).to_contain_text(f"{run} runs again.")
    await in_state(site, run, "succeeded")


async def test_the_ticked_letters_are_replayed_and_blocked_ones_are_named(site: Site, page: Page) -> None:
    task, key = own(), f"key-{uuid.uuid4().hex[:6]}"
    runs = await bury(site, 3, task=task)
    (held,) = await bury(site, task=task, key=key)
    await site.app.enqueue(task, {"rows": 1}, key=key, delay=3600)
    await page.goto(f"/dead/letters?task={task}&error=ValueError")
    ticked = page.get_by_role("group", name="For the letters that are ticked")
    await ticked.get_by_role("button", name="Replay ticked").click()
    await expect(page.locator(".said.bad")).to_contain_text("Nothing was chosen")
    for one in (runs[0], runs[1], held):
        await page.get_by_role("checkbox", name=one).check()
    await expect(ticked).to_contain_text("3")
    await ticked.get_by_role("button", name="Replay ticked").click()
    await expect(page.locator(".said")).to_contain_text("2 dead letters sent back.")
    await expect(page.locator(".said")).to_contain_text(f"1 stays, blocked by another live run that holds the key: {held}.")
    assert await dead(site, [*runs, held]) == {runs[2], held}
    await page.get_by_role("checkbox", name="All letters of this page").check()
    await expect(page.get_by_role("checkbox", name=held)).to_be_checked()


async def test_a_group_is_replayed_after_a_question(site: Site, page: Page) -> None:
    task = own()
    runs = await bury(site, 4, task=task)
    others = await bury(site, 2, task=task, error="KeyError")
    await page.goto("/dead")
    row = page.locator("#groups tr", has_text=task).filter(has_text="ValueError")
    await row.get_by_role("button", name="Replay").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Replay 4 dead letters?")
    await check_accessible(page)
    late = await bury(site, 1, task=task)
    await page.get_by_role("button", name="Replay").click()
    await expect(page.locator(".said")).to_contain_text("4 dead letters sent back.")
    assert await dead(site, [*runs, *others, *late]) == {*others, *late}, "what died after the question was not meant"


async def test_a_group_is_replayed_at_a_rate(site: Site, page: Page) -> None:
    task = own()
    runs = await bury(site, 5, task=task)
    await page.goto(f"/dead/letters?task={task}&error=ValueError")
    orders = page.locator("form.orders")
    await orders.get_by_label("a second").fill("much")
    await orders.get_by_role("button", name="Replay all").click()
    await expect(page.locator(".said.bad")).to_contain_text("the rate is how many become due in a second")
    await page.goto(f"/dead/letters?task={task}&error=ValueError")
    await orders.get_by_label("a second").fill("0.01")
    await orders.get_by_role("button", name="Replay all").click()
    await expect(page.locator("main")).to_contain_text("the last is due in 7 min")
    await page.get_by_role("button", name="Replay").click()
    await expect(page.locator(".said")).to_contain_text("5 dead letters sent back; the last is due in 7 min.")
    found = sorted([await site.app.runs.show(one) for one in runs], key=lambda one: one.due_at or one.scheduled_at)
    # The first is due at once: it may have gone on already.
    assert [one.state for one in found[-4:]] == ["delayed"] * 4
    assert [one.run_id for one in found if one.state == "delayed"] == runs[-4:]
    gaps = {
        (later.due_at - sooner.due_at).total_seconds()
        for sooner, later in zip(found[-4:-1], found[-3:], strict=True)
        if later.due_at and sooner.due_at
    }
    assert gaps == {100.0}


async def test_more_than_one_request_takes_is_asked_about_again(site: Site, page: Page) -> None:
    """Ten thousand go at a time; the next ones are due behind them."""
    task = own()
    await bury(site, 10_003, task=task)
    await page.goto(f"/dead/letters?task={task}&error=ValueError")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("more than 10,000 letters")
    orders = page.locator("form.orders")
    await orders.get_by_label("a second").fill("1")
    await orders.get_by_role("button", name="Replay all").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Replay more than 10,000 dead letters?")
    await page.get_by_role("button", name="Replay").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Go on with 3 dead letters?", timeout=30_000)
    await page.get_by_role("button", name="Go on").click()
    await expect(page.locator(".said")).to_contain_text("3 dead letters sent back; the last is due in 3 h.")
    assert await site.app.dead.count(task=task) == 0
    sql = await asyncpg.connect(site.url)
    try:
        assert (
            await sql.fetchval(
                f"SELECT count(*) FROM {site.schema}.delayed WHERE task = $1 AND due_at > now() + interval '9970 seconds'", task
            )
            > 3
        )
        await sql.execute(f"DELETE FROM {site.schema}.delayed WHERE task = $1", task)
    finally:
        await sql.close()


async def test_letters_are_purged_after_a_question_that_says_how_many(site: Site, page: Page) -> None:
    task = own()
    runs = await bury(site, 3, task=task)
    await page.goto(f"/dead/letters?task={task}&error=ValueError")
    await page.locator("form.orders").get_by_role("button", name="Purge all").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Purge 3 dead letters?")
    await expect(page.locator("main")).to_contain_text("gone for good")
    await page.get_by_role("link", name="No, go back").click()
    assert await dead(site, runs) == set(runs)
    await page.goto(f"/dead/{runs[0]}")
    await page.get_by_role("button", name="Purge").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Purge 1 dead letter?")
    await page.get_by_role("button", name="Purge").click()
    await expect(page.locator(".said, main")).to_contain_text(["1 dead letter purged."])
    await page.goto("/dead")
    await page.locator("#groups tr", has_text=task).get_by_role("button", name="Purge").click()
    await page.get_by_role("button", name="Purge").click()
    await expect(page.locator(".said")).to_contain_text("2 dead letters purged.")
    assert await dead(site, runs) == set()
    run = await site.app.runs.show(runs[0])
    assert (run.state, run.payload) == ("dead", None)


async def test_the_groups_change_as_letters_come(site: Site, page: Page) -> None:
    task = own()
    await page.goto(f"/dead?task={task}")
    await page.evaluate("window.untouched = true")
    await expect(page.locator("#groups")).to_contain_text("No dead letter matches.")
    await bury(site, 2, task=task)
    # A change that somebody orders is an event.
    await site.app.queues.pause("spare")
    await site.app.queues.resume("spare")
    await expect(page.locator("#groups tr", has_text=task)).to_contain_text("ValueError", timeout=20_000)
    assert await page.evaluate("window.untouched")


async def test_a_viewer_looks_and_orders_nothing(site: Site, viewer: Page) -> None:
    task = own()
    (run,) = await bury(site, task=task)
    for path in ("/dead", f"/dead/letters?task={task}&error=ValueError", f"/dead/{run}"):
        await read(viewer, path)
        for button in ("Replay", "Purge", "Save"):
            await expect(viewer.get_by_role("button", name=button)).to_have_count(0)
        await expect(viewer.get_by_role("checkbox")).to_have_count(0)
        await expect(viewer.get_by_role("textbox", name="Payload")).to_have_count(0)
    form = {"csrf": await token(viewer), "run": run, "confirmed": "yes"}
    for path, role in (("/dead/replay", "operator"), ("/dead/purge", "admin"), (f"/dead/{run}/edit", "admin")):
        forged = await viewer.request.post(path, form={**form, "payload": "{}"})
        assert forged.status == 403
        assert f"this is for the role {role}" in await forged.text()
    assert await dead(site, [run]) == {run}


async def test_an_operator_replays_and_changes_nothing_else(site: Site, browser: Browser) -> None:
    key = (await site.app.keys.create(f"operator-{uuid.uuid4().hex[:6]}", role="operator")).secret
    (run,) = await bury(site, task="export")
    async with watched(browser, site, key) as page:
        await page.goto(f"/dead/{run}")
        await expect(page.get_by_role("button", name="Purge")).to_have_count(0)
        await expect(page.get_by_role("textbox", name="Payload")).to_have_count(0)
        form: dict[str, str | float | bool] = {"csrf": await token(page), "run": run, "confirmed": "yes", "payload": "{}"}
        for path in ("/dead/purge", f"/dead/{run}/edit"):
            assert (await page.request.post(path, form=form)).status == 403
        await page.get_by_role("button", name="Replay").click()
        await page.wait_for_url(f"**/runs/{run}")
    await in_state(site, run, "succeeded")


async def test_an_order_needs_the_sessions_token_and_says_what_is_meant(site: Site, page: Page) -> None:
    task = own()
    (run,) = await bury(site, task=task)
    assert (await page.request.post("/dead/purge", form={"run": run, "confirmed": "yes"})).status == 403
    await page.goto("/dead")
    csrf = await token(page)
    await page.goto("about:blank")  # a page that looks again by itself could be told in its place
    for path in ("/dead/purge", "/dead/replay"):
        answer = await page.request.post(path, form={"csrf": csrf, "confirmed": "yes", "back": "/dead"})
        assert "does not say which dead letters are meant" in await answer.text()
    assert await dead(site, [run]) == {run}


async def test_a_key_for_one_queue_meets_the_letters_of_that_queue(site: Site, browser: Browser) -> None:
    task = own()
    (mine,) = await bury(site, task=task, queue="books")
    (other,) = await bury(site, task=task, queue="mail")
    key = (await site.app.keys.create(f"books-{uuid.uuid4().hex[:6]}", role="admin", queues=["books"])).secret
    async with watched(browser, site, key) as page:
        await page.goto(f"/dead?task={task}")
        await expect(page.locator("#groups tbody tr td:nth-child(3)")).to_have_text("1")
        await page.goto(f"/dead/letters?task={task}&error=ValueError")
        assert await listed(page) == {mine}
        for path in (f"/dead/{mine}", f"/runs/{mine}"):
            await page.goto(path)
            await expect(page.locator(".timeline")).to_contain_text("Attempt 1 failed")
            assert "vm:1" not in await page.content(), "nodes serve others as well"
        answer = await page.goto(f"/dead/{other}")
        assert answer is not None
        assert answer.status == 404
        await page.goto(f"/dead?task={task}")
        await page.locator("form.orders").get_by_role("button", name="Purge all").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Purge 1 dead letter?")
        await page.get_by_role("button", name="Purge").click()
    assert await dead(site, [mine, other]) == {other}


async def test_everything_can_be_done_without_a_script(site: Site, browser: Browser) -> None:
    task = own()
    runs = await bury(site, 3, task=task)
    async with watched(browser, site, java_script_enabled=False) as page:
        await page.goto("/dead")
        await page.locator("#groups tr", has_text=task).get_by_role("link", name=task).click()
        await page.get_by_role("checkbox", name=runs[0]).check()
        await page.get_by_role("group", name="For the letters that are ticked").get_by_role("button", name="Purge ticked").click()
        await page.get_by_role("button", name="Purge").click()
        await expect(page.locator(".said")).to_contain_text("1 dead letter purged.")
        await page.goto(f"/dead/{runs[1]}")
        await page.get_by_role("textbox", name="Payload").fill('{"rows": 9}')
        await page.get_by_role("button", name="Save", exact=True).click()
        await expect(page.locator(".said")).to_contain_text("has its new payload")
    assert (await site.app.dead.show(runs[1])).payload == {"rows": 9}
