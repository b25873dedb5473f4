"""The dashboard in a real browser, on a real server with real data.

One fleet for all of these tests: an API, a scheduler, a worker, and the data that `furnish` makes. A page that logs an error,
breaks its Content-Security-Policy or asks for something that is not there fails its test.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio
from axe_playwright_python.sync_playwright import Axe
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright

from hourhand import Hourhand
from hourhand.storage.migrate import migrate
from tests.browser import shop
from tests.conftest import missing
from tests.support.api import ADMIN, ApiProcess, Client
from tests.support.fleet import Fleet, until

SCREENSHOTS = Path(os.environ.get("HOURHAND_SCREENSHOTS", "build/screenshots"))


@dataclass
class Site:
    base: str
    url: str
    schema: str
    app: Hourhand
    """On the same database, to make things happen and to see what came of a click."""
    admin: Client
    fleet: Fleet


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def site(embedded_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    schema, directory = f"t_browser_{uuid.uuid4().hex[:8]}", tmp_path_factory.mktemp("browser")
    sql = await asyncpg.connect(embedded_url)
    await migrate(sql, schema)
    fleet = Fleet(embedded_url, schema, directory)
    api = ApiProcess(embedded_url, schema, directory, HOURHAND_POLL="1")
    shop.app.configure(database_url=embedded_url, schema=schema)
    try:
        fleet.start("worker", "--app", "tests.browser.shop:app", "--concurrency", "8")
        fleet.start("scheduler")
        await fleet.alive(sql, 2)
        await api.started()
        async with shop.app, Client(api.base, ADMIN) as admin:
            await open_for_an_hour(sql, schema)
            await furnish(shop.app)
            yield Site(api.base, embedded_url, schema, shop.app, admin, fleet)
    finally:
        api.stop()
        fleet.close()
        await sql.execute(f"DROP SCHEMA {schema} CASCADE")
        await sql.close()


async def open_for_an_hour(sql: asyncpg.Connection, schema: str) -> None:
    """What the last hour would have left in the statistics: the charts have something to show."""
    queues = {name: await sql.fetchval(f"SELECT {schema}.queue_number($1)", name) for name in ("mail", "billing", "reports")}
    for place, queue in enumerate(queues.values()):
        await sql.execute(
            f"INSERT INTO {schema}.statistics (minute, queue, node, succeeded, failed, dead, seconds, latest, lateness)"
            f" SELECT date_trunc('minute', now()) - make_interval(mins => n), {queue}, 0, (900 + 500 * sin(n / 9.0 + {place}))::int,"
            f" CASE WHEN n % 7 = 0 THEN 40 ELSE 3 END, CASE WHEN n = 21 THEN 6 ELSE 0 END, 50, 0.4,"
            f" ARRAY[10, 60, 30 + n % 9, 20, 8, 4, 2 + n % 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]"
            f" FROM generate_series(2, 59) AS n"
        )
        await sql.execute(
            f"INSERT INTO {schema}.samples (minute, queue, taken_at, ready, delayed, parked, running, dead, oldest)"
            f" SELECT minute, {queue}, minute, (30 + 25 * sin(n / 7.0 + {place}))::int, 4, 0, (6 + 3 * sin(n / 5.0))::int,"
            f" CASE WHEN n > 21 THEN 1 ELSE 7 END, 0.4 + abs(sin(n / 6.0)) FROM ("
            f"   SELECT n, date_trunc('minute', now()) - make_interval(mins => n) AS minute FROM generate_series(2, 59) AS n) AS minutes"
        )


async def furnish(app: Hourhand) -> None:
    """Something of everything: jobs that fire, are paused, wait long; runs in every state; dead letters of two kinds."""
    await app.jobs.add(
        "newsletter",
        task="send_newsletter",
        schedule="0 9 * * MON",
        timezone="Europe/Berlin",
        payload={"subscribers": 2, "api_token": "hush-hush"},
        tags=["marketing"],
    )
    await app.jobs.add("nightly-export", task="export", schedule="30 2 * * *", then="publish")
    await app.jobs.add("heartbeat", task="export", schedule="every 1s")
    await app.jobs.add("old-report", task="export", schedule="0 0 1 * *")
    await app.jobs.pause("old-report")
    paid = [await app.enqueue("charge_card", {"invoice": 2 * number}) for number in range(5)]
    failed = [await app.enqueue("charge_card", {"invoice": 2 * number + 1}) for number in range(4)]
    broken = [await app.enqueue("audit_books", {"year": 2020 + number}) for number in range(3)]
    sent = await app.enqueue("send_newsletter", {"subscribers": 3, "api_token": "hush-hush"})
    chain = await app.enqueue("export", {"rows": 3}, then="publish")
    await app.enqueue("export", {"rows": 1}, delay=86_400)
    await app.enqueue("unheard_of", {"n": 1})
    await app.enqueue("long_report", tags=["slow"])
    for handle in (*paid, *failed, *broken, sent, chain):
        await handle.wait(60)

    async def reported() -> bool:
        return sum(one.succeeded for one in (await app.statistics.over("1h")).moments) >= 6 and bool(
            await app.statistics.totals()
        )

    await until(reported, "the worker's statistics")


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def browser() -> AsyncIterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        missing("no Chromium (apt install chromium)")
    async with async_playwright() as playwright:
        one = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield one
        await one.close()


Visit = Callable[..., Awaitable[Page]]


@asynccontextmanager
async def watched(browser: Browser, site: Site, key: str | None = ADMIN, **options: object) -> AsyncIterator[Page]:
    """A page whose every complaint is a failure. With a key, signed in."""
    context: BrowserContext = await browser.new_context(base_url=site.base, **options)  # type: ignore[arg-type]
    page, complaints = await context.new_page(), list[str]()

    def hear(message: ConsoleMessage) -> None:
        # A refused page is logged by the browser itself; the test that asks for one expects it.
        if message.type in ("error", "warning") and not re.search(r"status of 4\d\d", message.text):
            complaints.append(f"{message.type}: {message.text}")

    page.on("console", hear)
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("requestfailed", lambda request: complaints.append(f"failed: {request.url} {request.failure}")
            if "/events" not in request.url and request.failure != "net::ERR_ABORTED" else None)  # fmt: skip
    try:
        if key is not None:
            await page.goto("/login")
            await page.get_by_label("API key").fill(key)
            await page.get_by_role("button", name="Sign in").click()
            await page.wait_for_url("**/")
        yield page
        assert complaints == []
    finally:
        # What the test answers in the server's place may have been asked for again meanwhile.
        if not page.is_closed():
            await page.unroute_all(behavior="ignoreErrors")
        await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, site: Site) -> AsyncIterator[Page]:
    """Signed in as somebody who may do everything."""
    async with watched(browser, site) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="session")
async def viewer(browser: Browser, site: Site) -> AsyncIterator[Page]:
    """Signed in as somebody who may only look."""
    key = (await site.app.keys.create(f"viewer-{uuid.uuid4().hex[:6]}", role="viewer")).secret
    async with watched(browser, site, key) as one:
        yield one


_AXE = Axe().axe_script


async def check_accessible(page: Page) -> None:
    """Every rule of axe."""
    await page.evaluate(_AXE)
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']}).then(found => found.violations)")
    told = [f"{one['id']}: {one['help']}: {[node['html'][:160] for node in one['nodes'][:3]]}" for one in found]
    assert told == []


async def shoot(page: Page, name: str) -> None:
    """Kept with what CI builds; README shows some."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


async def read(page: Page, path: str, name: str | None = None) -> Page:
    """A page that anybody can use: loaded, without an error, accessible in light and dark, and on a phone not wider than that."""
    answer = await page.goto(path)
    assert answer is not None
    assert answer.status == 200, await page.inner_text("body")
    for scheme in ("dark", "light"):
        await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        await check_accessible(page)
    await page.set_viewport_size({"width": 390, "height": 844})
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "wider than a phone"
    await page.set_viewport_size({"width": 1280, "height": 800})
    if name is not None:
        await shoot(page, name)
    return page
