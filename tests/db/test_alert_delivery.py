"""Telling of incidents: over real sockets, once, in order, until it is heard; and never where the way leads."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest
import structlog
from aiohttp import web
from aiosmtpd.controller import Controller
from standardwebhooks import Webhook as Verifier

from hourhand import Alert, ConfigurationError, Hourhand, InvalidOption
from hourhand.core.errors import DatabaseUnavailable
from hourhand.core.notice import trial
from hourhand.core.settings import settings_from
from hourhand.engine import alerting as alerting_module
from hourhand.engine import maintainer as maintainer_module
from hourhand.engine.alerting import Alerting, open_channels, read_alerts
from hourhand.engine.herald import Herald
from hourhand.engine.metrics_server import Address, MetricsServer
from hourhand.engine.watchman import Watchman
from hourhand.storage.alerts import AlertGateway
from hourhand.targets.channels import NotDelivered, Sender, hooks_of
from tests.db.test_alerts import make_node
from tests.db.test_cli import Command, hourhand
from tests.db.test_worker import working
from tests.support.api import ADMIN, ApiProcess, Client
from tests.support.endpoints import Endpoint, answering, silent
from tests.support.fleet import until
from tests.support.servers import free_port

__all__ = ["hourhand"]
pytestmark = pytest.mark.once
SKEW = 'defaults = false\n[[rule]]\nname = "skew"\nkind = "clock_skew"\nfor = 0\nclear = 0\n'
SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"


class Desk:
    """A file of alerts, whoever looks by it, and whoever tells."""

    def __init__(self, app: Hourhand, sql: asyncpg.Connection, schema: str, directory: Path) -> None:
        self.app, self.sql, self.schema, self.file = app, sql, schema, directory / "alerts.toml"
        self.senders: dict[str, Sender] = {}

    async def write(self, text: str, **settings: Any) -> None:
        self.file.write_text(SKEW + text)
        self.settings = settings_from({}, alerts=self.file, **settings)
        self.gateway = AlertGateway(await self.app._database())
        found = read_alerts(self.settings)
        self.watchman = Watchman(self.gateway, found, whole=True)
        self.senders = {one.name: one for one in open_channels(found, self.settings)}

    async def skew(self, *seconds: float) -> None:
        """So many clocks that are off by so much; and a look at them."""
        await self.sql.execute(f"DELETE FROM {self.schema}.nodes")
        for number, one in enumerate(seconds):
            await make_node(self.sql, self.schema, f"n{number}", skew=str(one))
        await self.watchman.run_once()

    async def tell(self, channel: str) -> bool:
        return await Herald(self.gateway).run_once(self.senders[channel])

    async def tell_all(self, channel: str) -> int:
        count = 0
        while await self.tell(channel):
            count += 1
        return count

    async def later(self) -> None:
        """What was put off or is held is free again."""
        await self.sql.execute(f"UPDATE {self.schema}.notices SET until = now() - interval '1 second' WHERE until > now()")


@pytest.fixture
async def desk(app: Hourhand, sql: asyncpg.Connection, schema: str, tmp_path: Path) -> Desk:
    return Desk(app, sql, schema, tmp_path)


def channel(endpoint: Endpoint, kind: str = "webhook", path: str = "/hook/s3cr3tpath", **options: Any) -> str:
    more = "\n".join(f"{name} = {value!r}" for name, value in options.items())
    return f'[[channel]]\nname = "c"\n{kind} = "{endpoint.url(path)}"\n{more}\n'


def states(endpoint: Endpoint) -> list[str]:
    return [json.loads(one.body)["state"] for one in endpoint.requests]


# Channels


async def test_a_webhook_is_told_when_it_is_so_and_when_it_is_over(desk: Desk) -> None:
    async with answering() as endpoint:
        await desk.write(
            'link = "https://jobs.example.com/{kind}?about={subject}"\n' + channel(endpoint, bearer="t0k3n"),
            webhook_secret=SECRET,
        )
        await desk.skew(5)
        assert await desk.tell_all("c") == 1
        assert await desk.tell_all("c") == 0, "told is told"
        await desk.skew(6)
        assert await desk.tell_all("c") == 0, "worse, but the same incident"
        await desk.skew()
        assert await desk.tell_all("c") == 1
        assert await desk.tell_all("c") == 0
        opened, closed = endpoint.requests
    body = json.loads(opened.body)
    assert body["state"] == "opened"
    assert (body["rule"], body["kind"], body["subject"], body["severity"]) == ("skew", "clock_skew", "worker n0", "warning")
    assert body["message"] == "worker n0: its clock is 5.0 s ahead of the database's"
    assert (body["value"], body["until"]) == (5.0, None)
    assert body["link"] == "https://jobs.example.com/clock_skew?about=worker%20n0"
    over = json.loads(closed.body)
    assert (over["state"], over["id"], over["since"]) == ("closed", body["id"], body["since"])
    assert over["until"] > over["since"]
    assert "right again" in over["message"]
    assert opened.path == "/hook/s3cr3tpath"
    assert opened.headers["Authorization"] == "Bearer t0k3n"
    assert opened.headers["webhook-id"] != closed.headers["webhook-id"]
    for one in (opened, closed):
        Verifier(SECRET).verify(one.body, {name.lower(): value for name, value in one.headers.items()})


async def test_a_slack_compatible_url(desk: Desk) -> None:
    async with answering() as endpoint:
        await desk.write(channel(endpoint, "slack"))
        await desk.skew(5)
        await desk.skew()
        assert await desk.tell_all("c") == 2
        first, second = (json.loads(one.body) for one in endpoint.requests)
    assert list(first) == ["text"]
    assert first["text"].startswith("*[warning] skew (worker n0)*\nworker n0: its clock is 5.0 s ahead")
    assert second["text"].startswith("*[warning] over: skew (worker n0)*\n")


class Post:
    def __init__(self) -> None:
        self.letters: list[Any] = []

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        self.letters.append(envelope)
        return "250 OK"


@contextmanager
def post_office() -> Iterator[tuple[Post, int]]:
    """A real SMTP server."""
    post, port = Post(), free_port()
    controller = Controller(post, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield post, port
    finally:
        controller.stop()


async def test_mail(desk: Desk) -> None:
    with post_office() as (post, port):
        await desk.write(
            f'[[channel]]\nname = "mail"\nurl = "mailto://127.0.0.1:{port}?from=hourhand@example.com&to=ops@example.com&mode=insecure"'
        )
        await desk.skew(5)
        await desk.skew()
        assert await desk.tell_all("mail") == 2
    first, second = post.letters
    assert first.rcpt_tos == ["ops@example.com"]
    assert b"Subject: [warning] skew (worker n0)" in first.content
    assert b"its clock is 5.0 s ahead" in first.content
    assert b"over: skew" in second.content


async def test_whatever_apprise_speaks_to(desk: Desk) -> None:
    async with answering() as endpoint:
        await desk.write(f'[[channel]]\nname = "any"\nurl = "json://127.0.0.1:{endpoint.port}/some/where"\n')
        await desk.skew(5)
        assert await desk.tell_all("any") == 1
        [one] = endpoint.requests
    assert json.loads(one.body)["title"] == "[warning] skew (worker n0)"
    assert json.loads(one.body)["type"] == "warning"


async def test_functions_of_the_app_with_await_and_without(desk: Desk) -> None:
    seen: list[tuple[str, Alert, bool]] = []
    here = threading.get_ident()

    @desk.app.on_alert
    async def awaited(alert: Alert) -> None:
        seen.append(("awaited", alert, threading.get_ident() == here))

    @desk.app.on_alert
    def plain(alert: Alert) -> None:
        seen.append(("plain", alert, threading.get_ident() == here))

    @desk.app.on_alert
    def broken(alert: Alert) -> None:
        raise RuntimeError("no pager")

    await desk.write("")
    hooks = hooks_of(desk.app.registry.alert_hooks)
    desk.senders = {one.name.rpartition(".")[2]: one for one in hooks}
    await desk.skew(5)
    for _ in range(2):
        await desk.gateway.add_hook_notices([one.name for one in hooks])
    assert [await desk.tell_all(name) for name in ("awaited", "plain", "broken")] == [1, 1, 0]
    await desk.skew()
    assert [await desk.tell_all(name) for name in ("awaited", "plain")] == [1, 1]
    assert [(who, one.state, loop) for who, one, loop in seen] == [
        ("awaited", "opened", True), ("plain", "opened", False), ("awaited", "closed", True), ("plain", "closed", False)
    ]  # fmt: skip
    assert seen[0][1].subject == "worker n0"
    told = {one.channel.rpartition(".")[2]: one for one in (await desk.app.alerts.list(open=False))[0].told}
    assert told["broken"].error == "RuntimeError: no pager"
    assert told["plain"].closed_at is not None


def test_functions_of_the_same_name_are_told_apart() -> None:
    class Pager:
        async def __call__(self, alert: Alert) -> None: ...

    app = Hourhand()
    for _ in range(2):
        app.on_alert(lambda alert: None)
        app.on_alert(Pager())
    names = [one.name for one in hooks_of(app.registry.alert_hooks)]
    assert len(set(names)) == 4
    assert all(name.startswith("python:tests.db.test_alert_delivery.") for name in names)


async def test_a_rule_that_names_its_channels_tells_no_function_unless_it_names_them(desk: Desk) -> None:
    async with answering() as endpoint:
        await desk.write("channels = ['c']\n" + channel(endpoint))
        await desk.skew(5)
        await desk.gateway.add_hook_notices(["python:app.hook"])
        assert [one.channel for one in (await desk.app.alerts.list())[0].told] == ["c"]
        await desk.write("channels = ['python']\n" + channel(endpoint))
        await desk.skew()
        await desk.skew(5)
        await desk.gateway.add_hook_notices(["python:app.hook"])
        assert [one.channel for one in (await desk.app.alerts.list())[0].told] == ["python:app.hook"]


async def test_a_function_that_hangs_takes_no_thread_from_others_and_is_not_called_again(desk: Desk) -> None:
    go, calls = threading.Event(), []

    def hang(alert: Alert) -> None:
        calls.append(threading.current_thread().daemon)
        go.wait(60)

    hooks = hooks_of([hang] * 50)
    for one in hooks:
        one.timeout = 0.05
    alert = trial(datetime.now(UTC))
    try:
        failed = await asyncio.gather(*(one.send(alert) for one in hooks), return_exceptions=True)
        assert {str(one) for one in failed} == {"the function had not returned after 0.05 s"}
        shared = asyncio.ensure_future(asyncio.to_thread(lambda: 7))

        async def served() -> bool:
            return shared.done()

        await until(served, "one of the threads that all share, of which there are fewer")
        with pytest.raises(NotDelivered, match="its last call is still running"):
            await hooks[0].send(alert)

        async def all_called() -> bool:
            return len(calls) == 50

        await until(all_called, "each to have begun")
        assert all(calls), "they do not keep the process from ending"
    finally:
        go.set()
    hooks[0].timeout = 30.0

    async def free() -> bool:
        try:
            await hooks[0].send(alert)
        except NotDelivered:
            return False
        return True

    await until(free, "the call to return")
    assert len(calls) == 51


async def test_metrics_are_there_though_all_shared_threads_hang() -> None:
    go = threading.Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    hanging = asyncio.ensure_future(asyncio.to_thread(go.wait, 60))
    try:
        async with MetricsServer(Address(port=free_port())) as server, aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{server.address.port}/metrics") as answer:
                assert answer.status == 200
                assert "hourhand_build_info" in await answer.text()
            assert not hanging.done()
    finally:
        go.set()
        await hanging


async def test_apprise_that_hangs_is_not_called_again(desk: Desk) -> None:
    async with silent() as endpoint:
        await desk.write(f'[[channel]]\nname = "c"\nurl = "json://127.0.0.1:{endpoint.port}/x?rto=60&cto=60"\ntimeout = "0.5s"')
        await desk.skew(5)
        assert not await desk.tell("c")
        await desk.later()
        assert not await desk.tell("c")
        [told] = (await desk.app.alerts.list())[0].told
        assert (told.attempts, told.error) == (2, "its last call is still running")


async def test_a_function_that_would_end_the_process_does_not() -> None:
    def leave(alert: Alert) -> None:
        raise SystemExit(3)

    def stop(alert: Alert) -> None:
        raise StopIteration

    def leak(alert: Alert) -> None:
        raise ValueError("no answer from https://host/s3cr3tpath")

    for hook, says in zip(
        hooks_of([leave, stop, leak]), ("SystemExit: 3", "StopIteration", "ValueError: no .*host/…$"), strict=True
    ):
        with pytest.raises(NotDelivered, match=says):
            await hook.send(trial(datetime.now(UTC)))


# Once, and in order


async def test_two_who_tell_do_not_both_send(desk: Desk) -> None:
    arrived, answer = asyncio.Event(), asyncio.Event()

    async def slow(_: web.Request) -> web.Response:
        arrived.set()
        await answer.wait()
        return web.Response()

    async with answering(slow) as endpoint:
        await desk.write(channel(endpoint))
        await desk.skew(5)
        first = asyncio.create_task(desk.tell("c"))
        await arrived.wait()
        assert await asyncio.gather(*(desk.tell("c") for _ in range(5))) == [False] * 5, "it is being told"
        answer.set()
        assert await first
        assert not await desk.tell("c")
    assert states(endpoint) == ["opened"]


async def test_many_who_tell_at_once_tell_each_thing_once(desk: Desk) -> None:
    async with answering() as endpoint:
        await desk.write(channel(endpoint))
        await desk.skew(*[5] * 12)
        await asyncio.gather(*(desk.tell_all("c") for _ in range(5)))
        subjects = [json.loads(one.body)["subject"] for one in endpoint.requests]
    assert sorted(subjects) == sorted({*subjects})
    assert len(subjects) == 12


async def test_a_database_that_is_away_for_a_moment_makes_nobody_hear_it_twice(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, lost = desk.app, DatabaseUnavailable("the database cannot be reached")
    up, tries = False, 0

    async def sometimes(_: web.Request) -> web.Response:
        return web.Response(status=200 if up else 503)

    async with answering(sometimes) as endpoint:
        await desk.write(channel(endpoint))
        gateway = desk.gateway

        def shaky(recorded: bool, name: str) -> None:
            """Away at the first try, before it is recorded or after."""
            work = getattr(AlertGateway, name)

            async def once(*args: Any) -> Any:
                nonlocal tries
                tries += 1
                if tries % 2:
                    if recorded:
                        await work(gateway, *args)
                    raise lost
                return await work(gateway, *args)

            monkeypatch.setattr(gateway, name, once)

        shaky(False, "notice_untold")
        await desk.skew(5, 6)
        assert not await desk.tell("c")
        assert "it answered 503 Service Unavailable" in [told.error for one in await real.alerts.list() for told in one.told]
        up = True
        await desk.later()
        with structlog.testing.capture_logs() as logs:
            for recorded in (False, True):
                shaky(recorded, "notice_told")
                assert await desk.tell("c")
        await desk.later()
        assert not await desk.tell("c")
    assert tries == 6
    assert states(endpoint) == ["opened"] * 3
    assert [one["event"] for one in logs] == ["alert.told"] * 2


async def test_what_cannot_be_recorded_is_left_when_the_lease_is_over(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: Any) -> bool:
        raise DatabaseUnavailable("the database cannot be reached")

    async with answering() as endpoint:
        await desk.write(channel(endpoint))
        await desk.skew(5)
        monkeypatch.setattr(desk.gateway, "notice_told", never)
        desk.senders["c"].timeout = -9.9  # its lease is twice that and 20 seconds
        monkeypatch.setattr("hourhand.targets.channels._Addressed.send", never_fails)
        with pytest.raises(DatabaseUnavailable):
            await desk.tell("c")


async def never_fails(*_: Any) -> None: ...


async def test_what_a_killed_one_held_is_told_by_another_and_its_late_word_counts_for_nothing(desk: Desk) -> None:
    async with answering() as endpoint:
        await desk.write(channel(endpoint))
        await desk.skew(5)
        lost = await desk.gateway.claim_notice("c", 40)
        assert lost is not None
        assert not await desk.tell("c"), "as long as its lease holds"
        await desk.later()
        assert await desk.tell("c")
        assert not await desk.gateway.notice_told("c", lost)
        assert states(endpoint) == ["opened"]
        await desk.skew()
        mine = await desk.gateway.claim_notice("c", 40)
        assert mine is not None
        assert mine.alert.state == "closed"
        assert not await desk.gateway.notice_told("c", lost), "nor for what comes after it"
        assert not await desk.gateway.notice_untold("c", lost, 0.0, "late")
        assert await desk.gateway.notice_told("c", mine)
        [told] = (await desk.app.alerts.list(open=False))[0].told
        assert (told.opened_at is not None, told.closed_at is not None, told.error) == (True, True, None)


async def test_a_channel_that_is_down_is_told_when_it_is_up_again_first_the_beginning_then_the_end(desk: Desk) -> None:
    up = False

    async def sometimes(_: web.Request) -> web.Response:
        return web.Response(status=200 if up else 503)

    async with answering(sometimes) as endpoint:
        await desk.write(channel(endpoint))
        await desk.skew(5)
        with structlog.testing.capture_logs() as logs:
            assert not await desk.tell("c")
        assert not await desk.tell("c"), "put off"
        assert len(endpoint.requests) == 1
        [told] = (await desk.app.alerts.list())[0].told
        assert (told.opened_at, told.attempts, told.error) == (None, 1, "it answered 503 Service Unavailable")
        [line] = [one for one in logs if one["event"] == "alert.undelivered"]
        assert (line["channel"], line["attempt"], line["log_level"]) == ("c", 1, "warning")
        await desk.later()
        assert not await desk.tell("c")
        await desk.skew()
        up = True
        await desk.later()
        assert await desk.tell_all("c") == 2
    assert states(endpoint) == ["opened"] * 3 + ["closed"]
    last_but_one, last = (json.loads(one.body) for one in endpoint.requests[-2:])
    assert last_but_one["until"] is not None, "it says that it is over already"
    assert last["message"] != last_but_one["message"]
    assert len({one.headers["webhook-id"] for one in endpoint.requests[:3]}) == 1, "by it the receiver knows a repetition"


async def test_pauses_grow_and_stay_bounded() -> None:
    herald = Herald(None)  # type: ignore[arg-type]
    pauses = [herald.pause(attempt) for attempt in range(1, 40)]
    assert 4 <= pauses[0] <= 5
    assert 16 <= pauses[2] <= 20
    assert max(pauses) <= 300
    assert pauses[-1] >= 240


async def test_what_nobody_wants_to_hear_is_given_up_a_day_after_it_was_over(desk: Desk) -> None:
    async def never(_: web.Request) -> web.Response:
        return web.Response(status=410)

    async with answering(never) as endpoint:
        await desk.write(channel(endpoint))
        await desk.skew(5)
        await desk.skew()
        assert not await desk.tell("c")
        await desk.sql.execute(f"UPDATE {desk.schema}.incidents SET closed_at = now() - interval '25 hours'")
        await desk.later()
        with structlog.testing.capture_logs() as logs:
            assert not await desk.tell("c")
        assert [(one["event"], one["log_level"]) for one in logs] == [("alert.undelivered", "error")]
        await desk.later()
        assert not await desk.tell("c")
        assert len(endpoint.requests) == 2


async def test_reminders_where_they_are_asked_for(desk: Desk) -> None:
    async with answering() as endpoint:
        await desk.write('repeat = "1h"\n' + channel(endpoint))
        await desk.skew(5)
        assert await desk.tell_all("c") == 1
        for _ in range(2):
            assert await desk.tell_all("c") == 0
            await desk.sql.execute(f"UPDATE {desk.schema}.notices SET told_at = told_at - interval '61 minutes'")
            assert await desk.tell_all("c") == 1
        await desk.skew()
        await desk.sql.execute(f"UPDATE {desk.schema}.notices SET told_at = told_at - interval '61 minutes'")
        assert await desk.tell_all("c") == 1
        assert await desk.tell_all("c") == 0
    assert states(endpoint) == ["opened", "reminder", "reminder", "closed"]
    assert len({one.headers["webhook-id"] for one in endpoint.requests}) == 4


async def test_a_channel_that_comes_later_hears_of_what_is_open_and_not_of_what_was(desk: Desk) -> None:
    async with answering() as endpoint:
        await desk.write("")
        await desk.skew(5, 6)
        await desk.sql.execute(f"DELETE FROM {desk.schema}.nodes WHERE name = 'n1'")
        await desk.watchman.run_once()
        await desk.sql.execute(f"UPDATE {desk.schema}.incidents SET closed_at = closed_at - interval '6 minutes'")
        await desk.write(channel(endpoint))
        await desk.watchman.run_once()
        await desk.tell_all("c")
        assert [json.loads(one.body)["subject"] for one in endpoint.requests] == ["worker n0"]


async def test_a_channel_hears_nothing_below_what_it_wants_to_hear_of(desk: Desk) -> None:
    async with answering() as endpoint:
        await desk.write(channel(endpoint, at_least="critical"))
        await desk.skew(5)
        assert await desk.tell_all("c") == 0
        await desk.skew()
        await desk.sql.execute(f"DELETE FROM {desk.schema}.incidents")
        await desk.write('severity = "critical"\n' + channel(endpoint, at_least="critical"))
        await desk.skew(5)
        assert await desk.tell_all("c") == 1


# What must not be seen


@pytest.mark.parametrize(
    "text",
    [
        "webhook = 'http://user:p4ssw0rd@127.0.0.1:1/hook/s3cr3tpath?key=q9w8e7'",
        "slack = 'http://127.0.0.1:1/services/s3cr3tpath'",
        "url = 'json://user:p4ssw0rd@127.0.0.1:1/s3cr3tpath/?+X-Key=q9w8e7'",
        "url = 'mailto://user:p4ssw0rd@127.0.0.1:1?to=s3cr3tpath@q9w8e7.example&from=a@b.example&mode=insecure'",
    ],
)
async def test_where_a_channel_leads_is_told_nowhere(
    desk: Desk, text: str, hourhand: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    await desk.write(f'[[channel]]\nname = "c"\n{text}\ntimeout = "20s"')
    await desk.skew(5)
    with structlog.testing.capture_logs() as logs:
        assert not await desk.tell("c")
    [tested] = await _app(desk).alerts.test()
    assert not tested.delivered
    assert tested.error
    shown = await hourhand("alerts", "test", "--alerts", str(desk.file))
    assert shown.code == 1
    as_json = await hourhand("alerts", "test", "--alerts", str(desk.file), "--json")
    assert as_json.json[0]["delivered"] is False
    listed = await hourhand("alerts", "list", "--json")
    assert listed.json[0]["told"][0]["error"]
    checked = await hourhand("alerts", "check", str(desk.file), "--json")
    rules = await hourhand("alerts", "rules", "--alerts", str(desk.file))
    kept = await desk.sql.fetchval(f"SELECT error FROM {desk.schema}.notices")
    seen = [repr(logs), repr(tested), kept, *capfd.readouterr()]
    for one in (*seen, *(done.out + done.err for done in (shown, as_json, listed, checked, rules))):
        for hidden in ("p4ssw0rd", "s3cr3tpath", "q9w8e7"):
            assert hidden not in one, one


async def test_what_apprise_logs_for_us_goes_nowhere_and_what_it_logs_for_others_does(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with answering() as endpoint:
        await desk.write(f'[[channel]]\nname = "c"\nurl = "json://user:p4ssw0rd@127.0.0.1:{endpoint.port}/s3cr3tpath"')
        await desk.skew(5)
        caplog.clear()
        assert await desk.tell("c")
    assert "s3cr3tpath" not in "".join(one.getMessage() for one in caplog.records if one.name != "aiohttp.access")
    assert [one for one in caplog.records if one.name.startswith(("apprise", "urllib3"))] == []
    logging.getLogger("apprise").warning("somebody else's")
    assert "somebody else's" in caplog.text


def _app(desk: Desk) -> Hourhand:
    return Hourhand(desk.app.settings.database_url, schema=desk.schema, alerts=desk.file)


async def test_a_new_address_in_a_file_is_used_at_once(desk: Desk, tmp_path: Path) -> None:
    async with answering() as old, answering() as new:
        (tmp_path / "hook").write_text(old.url("/a"))
        await desk.write('[[channel]]\nname = "c"\nwebhook_file = "hook"')
        await desk.skew(5)
        await desk.tell("c")
        (tmp_path / "hook").write_text(new.url("/b"))
        await desk.skew()
        await desk.tell("c")
        (tmp_path / "hook").unlink()
        with pytest.raises(NotDelivered, match="webhook_file names hook, which cannot be read"):
            await desk.senders["c"].send(Alert(1, "opened", "r", "k", "s", "info", "m", None, (await _alert(desk)).since))
    assert (states(old), states(new)) == (["opened"], ["closed"])


async def _alert(desk: Desk) -> Any:
    return (await desk.app.alerts.list(open=False))[0]


async def test_an_answer_that_never_comes_is_not_waited_for(desk: Desk) -> None:
    async with silent() as endpoint:
        await desk.write(f'[[channel]]\nname = "c"\nwebhook = "{endpoint.url()}"\ntimeout = "0.2s"')
        await desk.skew(5)
        assert not await desk.tell("c")
        [told] = (await desk.app.alerts.list())[0].told
        assert told.error == "no answer within 0.2 s"


async def test_an_answer_that_is_no_http_does_not_give_the_address_away(desk: Desk) -> None:
    async def garble(writer: asyncio.StreamWriter) -> None:
        writer.write(b"what?\r\n\r\n")
        await writer.drain()

    async with silent(garble) as endpoint:
        await desk.write(f'[[channel]]\nname = "c"\nwebhook = "{endpoint.url()}hook/s3cr3tpath"')
        await desk.skew(5)
        assert not await desk.tell("c")
        [told] = (await desk.app.alerts.list())[0].told
        assert told.error is not None
        assert told.error.startswith("ClientResponseError: ")
        assert "[redacted]" in told.error
        assert "s3cr3tpath" not in told.error


async def test_a_redirect_is_not_followed(desk: Desk) -> None:
    async def elsewhere(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect("/elsewhere")

    async with answering(elsewhere) as endpoint:
        await desk.write(channel(endpoint))
        await desk.skew(5)
        assert not await desk.tell("c")
        assert [one.path for one in endpoint.requests] == ["/hook/s3cr3tpath"]


# The whole of it


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerting_module, "LOOK_EVERY", 0.1)
    monkeypatch.setattr(alerting_module, "TELL_EVERY", 0.1)
    monkeypatch.setattr(alerting_module, "ASK_EVERY", 0.1)
    monkeypatch.setattr(maintainer_module, "TICK", 0.1)


async def test_a_worker_looks_and_tells_and_leaves_the_duty_behind(
    desk: Desk, hasty: None, url: str, schema: str, sql: asyncpg.Connection
) -> None:
    heard: list[str] = []
    async with answering() as endpoint:
        await desk.write(channel(endpoint))
        app = Hourhand(url, schema=schema, alerts=desk.file, lease=3.0, grace=0.5)

        @app.on_alert
        async def hook(alert: Alert) -> None:
            heard.append(alert.state)

        async with app, working(app) as worker:
            node = await make_node(sql, schema, "off", skew="5")

            async def told(count: int) -> bool:
                return len(endpoint.requests) == len(heard) == count

            await until(lambda: told(1), "both to be told")
            assert await sql.fetchval(f"SELECT node FROM {schema}.duties WHERE name = 'alerts'") == worker.node.id
            await sql.execute(f"UPDATE {schema}.nodes SET skew = 0 WHERE id = $1", node)
            await until(lambda: told(2), "both to be told that it is over")
        assert await sql.fetchval(f"SELECT count(*) FROM {schema}.duties WHERE name LIKE 'alerts%'") == 0
    assert states(endpoint) == heard == ["opened", "closed"]


async def test_who_has_a_file_takes_the_duty_from_who_has_none(
    desk: Desk, hasty: None, url: str, schema: str, sql: asyncpg.Connection
) -> None:
    async with answering() as endpoint:
        await desk.write(channel(endpoint))
        bare = Hourhand(url, schema=schema, lease=3.0, grace=0.5)
        async with bare, working(bare) as first:

            async def holds() -> int | None:
                holder = await sql.fetchval(f"SELECT node FROM {schema}.duties WHERE name = 'alerts'")
                return None if holder is None else int(holder)

            await until(holds, "somebody to have the duty")
            assert await holds() == first.node.id
            await make_node(sql, schema, "off", skew="5")

            async def opened() -> bool:
                # By the default rule it must be so for half a minute.
                await sql.execute(
                    f"UPDATE {schema}.incidents SET since = since - interval '40 seconds' WHERE kind = 'clock_skew'"
                )
                return bool(await bare.alerts.list())

            await until(opened, "the bare one to open it by the default rule")
            app = Hourhand(url, schema=schema, alerts=desk.file, lease=3.0, grace=0.5)
            async with app, working(app) as second:

                async def moved() -> bool:
                    return await holds() == second.node.id

                await until(moved, "the duty to move")

                async def told() -> bool:
                    return "opened" in states(endpoint)

                await until(told, "the channel to hear of it")


async def test_two_processes_with_the_same_functions_call_them_once(
    desk: Desk, hasty: None, url: str, schema: str, sql: asyncpg.Connection
) -> None:
    heard: list[tuple[int, str]] = []

    async def hook(alert: Alert) -> None:
        heard.append((alert.id, alert.state))

    await desk.write("")
    apps = [Hourhand(url, schema=schema, alerts=desk.file, lease=3.0, grace=0.5) for _ in range(2)]
    for one in apps:
        one.on_alert(hook)
    async with apps[0], apps[1], working(apps[0]), working(apps[1]):
        nodes = [await make_node(sql, schema, f"off{number}", skew="5") for number in range(5)]

        async def all_opened() -> bool:
            return len(heard) >= 5

        await until(all_opened, "five calls")
        await sql.execute(f"UPDATE {schema}.nodes SET skew = 0 WHERE id = ANY ($1)", nodes)

        async def all_closed() -> bool:
            return await sql.fetchval(f"SELECT bool_and(done) FROM {schema}.notices") or False

        await until(all_closed, "five more")
    assert sorted(state for _, state in heard) == ["closed"] * 5 + ["opened"] * 5
    assert len(set(heard)) == 10


async def test_without_its_database_it_waits_and_goes_on(desk: Desk, hasty: None) -> None:
    """A process that is no node asks for the duty by itself."""
    async with answering() as endpoint:
        await desk.write(channel(endpoint))
        alerting = Alerting(await desk.app._database(), desk.settings)
        stack = ExitStack()
        logs = stack.enter_context(structlog.testing.capture_logs())
        running = asyncio.create_task(alerting.run_alone())
        await make_node(desk.sql, desk.schema, "off", skew="5")
        await desk.sql.execute(f"ALTER TABLE {desk.schema}.duties RENAME TO gone")

        async def asked_in_vain() -> bool:
            return not alerting.duties[0].held

        await until(asked_in_vain, "it to be refused")
        await desk.sql.execute(f"ALTER TABLE {desk.schema}.gone RENAME TO duties")

        async def told() -> bool:
            return states(endpoint) == ["opened"]

        await until(told, "it to go on")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        stack.close()
        watching = [one for one in logs if one["event"] == "alert.watching"]
        assert {(one["file"], one["digest"]) for one in watching} == {(str(desk.file), read_alerts(desk.settings).digest)}
        assert await desk.sql.fetchval(f"SELECT count(*) FROM {desk.schema}.duties") == 0


# `alerts test`, and the rest of the verbs


async def test_each_channel_is_tested_and_what_came_of_it_told(desk: Desk, hourhand: Command, tmp_path: Path) -> None:
    async def down(_: web.Request) -> web.Response:
        return web.Response(status=500)

    async with answering() as good, answering(down) as bad:
        await desk.write(channel(good) + channel(bad, "slack").replace('"c"', '"d"'))
        app = _app(desk)

        @app.on_alert
        def hook(alert: Alert) -> None:
            assert alert.state == "test"

        found = {one.channel.rpartition(".")[2]: one for one in await app.alerts.test()}
        assert {name: one.delivered for name, one in found.items()} == {"c": True, "d": False, "hook": True}
        assert found["d"].error == "it answered 500 Internal Server Error"
        assert found["c"].address == "http://127.0.0.1/…"
        assert [one.channel for one in await app.alerts.test("c")] == ["c"]
        with pytest.raises(InvalidOption, match=r"no channel 'x'; there are c, d, python:"):
            await app.alerts.test("x")
        done = await hourhand("alerts", "test", "--alerts", str(desk.file), COLUMNS="200")
        assert done.code == 1
        assert "delivered" in done.out
        assert "it answered 500" in done.out
        one = await hourhand("alerts", "test", "c", HOURHAND_ALERTS=str(desk.file))
        assert one.code == 0
        assert states(good) == ["test"] * 4
    none = await hourhand("alerts", "test")
    assert none.code == 1
    assert "no channel to test" in none.err


async def test_files_are_checked(hourhand: Command, tmp_path: Path) -> None:
    file = tmp_path / "alerts.toml"
    file.write_text("[[channel]]\nname = 'c'\nslack_env = 'NOWHERE_SET'\n" + SKEW.replace("defaults = false", ""))
    done = await hourhand("alerts", "check", str(file))
    assert done.code == 2
    assert "slack_env names NOWHERE_SET, which is not set" in done.err
    done = await hourhand("alerts", "check", str(file), "--without-secrets")
    assert done.code == 0
    assert "10 rules, 1 of them besides the default ones, and 1 channel" in " ".join(done.out.split())
    file.write_text(SKEW + "treshold = 3")
    for arguments in (("alerts", "check", str(file)), ("alerts", "rules", "--alerts", str(file)), ("worker", "--alerts", str(file)),
                      ("scheduler", "--alerts", str(file)), ("api", "--alerts", str(file)),
                      ("worker", "--alerts", str(file), "--processes", "2")):  # fmt: skip
        done = await hourhand(*arguments)
        assert done.code == 2, arguments
        assert "rule 'skew'" in done.err
        assert "'treshold' is not known" in done.err
    done = await hourhand("alerts", "check")
    assert done.code == 2
    assert "which file?" in done.err


async def test_the_commands_show_what_is_wrong_and_by_which_rules(desk: Desk, hourhand: Command) -> None:
    nothing = await hourhand("alerts", "list")
    assert nothing.out == "nothing is wrong\n"
    async with answering() as endpoint:
        await desk.write(channel(endpoint))
        await desk.skew(5, 6)
        await desk.tell("c")
    shown = await hourhand("alerts", "list", COLUMNS="200")
    assert "worker n1: its clock is 6.0 s ahead" in shown.out
    assert "c: not yet" in shown.out
    # A reminder that failed, while it is open.
    await desk.sql.execute(f"UPDATE {desk.schema}.notices SET opened_at = now(), error = 'busy'")
    assert "c: not reminded (busy)" in (await hourhand("alerts", "list", COLUMNS="200")).out
    await desk.skew()
    over = await hourhand("alerts", "list", "--all", COLUMNS="250")
    assert "not that it is over" in " ".join(over.out.split())
    assert (await hourhand("alerts", "list")).out == "nothing is wrong\n"
    everything = await hourhand("alerts", "list", "--all", "--json")
    assert [one["state"] for one in everything.json] == ["closed", "closed"]
    assert len((await hourhand("alerts", "list", "--since", "1h", "--json")).json) == 2
    assert (await hourhand("alerts", "list", "--all", "--rule", "other")).out == "no alerts match\n"
    rules = await hourhand("alerts", "rules", "--alerts", str(desk.file), COLUMNS="200")
    assert "a node's clock is off by 1.0 s" in rules.out
    default = await hourhand("alerts", "rules", "--json")
    assert {one["name"] for one in default.json} >= {"dead_growth", "queue_age", "node_lost"}
    assert all(one["channels"] == [] for one in default.json)


async def test_the_api_looks_tells_and_shows(desk: Desk, url: str, schema: str, tmp_path: Path, hourhand: Command) -> None:
    """With no other process there, it is the one who notices that they are gone."""
    async with answering() as endpoint:
        await desk.write('[[rule]]\nname = "lost"\nkind = "node_lost"\n' + channel(endpoint))
        await make_node(desk.sql, schema, "gone", lease_until="now() - interval '30 seconds'")
        api = await ApiProcess(url, schema, tmp_path, "--alerts", str(desk.file)).started()
        try:
            async with Client(api.base, ADMIN) as admin:

                async def told() -> bool:
                    return states(endpoint) == ["opened"]

                await until(told, lambda: f"the API to tell it; its log:\n{api.process.text()}")
                [alert] = (await admin.get("alerts")).ok()
                assert alert["subject"].startswith("worker gone #")
                assert [one["channel"] for one in alert["told"]] == ["c"]
                assert (await admin.get("alerts?rule=other")).ok() == []
                assert [one["name"] for one in (await admin.get("alerts/rules")).ok()] == ["skew", "lost"]
                viewer = await admin.make_key("looks", "viewer")
                assert len((await viewer.get("alerts")).ok()) == 1
                assert (await viewer.post("alerts/test")).status == 403
                operator = await admin.make_key("acts", "operator")
                assert (await operator.post("alerts/test")).status == 403
                part = await admin.make_key("part", "admin", queues=["mine"])
                for method, path in (("GET", "alerts"), ("GET", "alerts/rules"), ("POST", "alerts/test")):
                    assert (await part.call(method, path)).status == 403
                assert [one["delivered"] for one in (await admin.post("alerts/test")).ok()] == [True]
                assert states(endpoint) == ["opened", "test"]
                assert (await admin.post("alerts/test?channel=x")).status == 422
                done = await hourhand("alerts", "test", "--json", HOURHAND_SERVER=api.base, HOURHAND_API_KEY=ADMIN)
                assert [one["delivered"] for one in done.json] == [True]
                listed = await hourhand("alerts", "list", "--json", HOURHAND_SERVER=api.base, HOURHAND_API_KEY=ADMIN)
                assert [one["rule"] for one in listed.json] == ["lost"]
                theirs = await hourhand("alerts", "rules", "--json", HOURHAND_SERVER=api.base, HOURHAND_API_KEY=ADMIN)
                assert [(one["name"], one["channels"]) for one in theirs.json] == [("skew", ["c"]), ("lost", ["c"])]
                both = await hourhand("alerts", "test", "--server", api.base, "--alerts", str(desk.file))
                assert both.code == 2
                assert "a server has rules and channels of its own" in both.err
            assert "s3cr3tpath" not in api.process.text()
        finally:
            api.stop()
        assert await desk.sql.fetchval(f"SELECT count(*) FROM {schema}.duties WHERE name = 'alerts'") == 0
        assert "Traceback" not in api.process.text()


async def test_a_file_that_is_wrong_is_refused_by_an_app_that_works(app: Hourhand, tmp_path: Path, url: str, schema: str) -> None:
    file = tmp_path / "alerts.toml"
    file.write_text("nonsense")
    other = Hourhand(url, schema=schema, alerts=file)
    async with other:
        with pytest.raises(ConfigurationError, match="this is no TOML"):
            await other.work(handle_signals=False)
        with pytest.raises(ConfigurationError, match="this is no TOML"):
            await other.alerts.rules()
