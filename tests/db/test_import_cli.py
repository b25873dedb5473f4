"""`hourhand import`, called as a user calls it, on the files and databases of the others."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.cron import CronTrigger

from hourhand import Hourhand
from tests.db.test_cli import Command
from tests.db.test_cli import hourhand as hourhand_process
from tests.db.test_cli_jobs import hourhand, words

pytestmark = pytest.mark.once

__all__ = ["hourhand", "hourhand_process"]
CRONTAB = """\
MAILTO=ops@example.com
# Nightly backup
30 2 * * * /usr/local/bin/backup --full > /dev/null 2>&1
CRON_TZ=America/New_York
*/15 8-17 * * mon-fri cd /srv/shop && ./poll
"""
MANIFEST = """\
apiVersion: batch/v1
kind: CronJob
metadata: {name: report, namespace: shop}
spec:
  schedule: "30 7 * * 1"
  timeZone: Europe/Berlin
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 300
  jobTemplate:
    spec:
      backoffLimit: 2
      template: {spec: {containers: [{name: main, image: shop, command: [/bin/report]}]}}
---
kind: CronJob
metadata: {name: held}
spec:
  schedule: "@hourly"
  suspend: true
  jobTemplate: {spec: {template: {spec: {containers: [{name: main, command: [/bin/held]}]}}}}
"""
CELERY = """
from celery import Celery
from celery.schedules import crontab

app = Celery("shop", broker="memory://")
app.conf.timezone = "Europe/Berlin"
app.conf.beat_schedule = {
    "monday": {"task": "shop.tasks.report", "schedule": crontab(hour=7, minute=30, day_of_week="mon"), "kwargs": {"days": 7}},
    "add": {"task": "shop.tasks.add", "schedule": 30.0, "args": (16, 16)},
}

@app.on_after_finalize.connect
def more(sender, **_):
    sender.add_periodic_task(10.0, sender.signature("shop.tasks.hello"), name="say hello")
"""
# As the migrations of django-celery-beat 2.9 leave them in SQLite.
BEAT = """
CREATE TABLE "django_celery_beat_intervalschedule" ("id" integer PRIMARY KEY, "every" integer NOT NULL, "period" varchar(24) NOT NULL);
CREATE TABLE "django_celery_beat_solarschedule" ("id" integer PRIMARY KEY, "event" varchar(24) NOT NULL, "latitude" decimal NOT NULL,
    "longitude" decimal NOT NULL);
CREATE TABLE "django_celery_beat_clockedschedule" ("id" integer PRIMARY KEY, "clocked_time" datetime NOT NULL);
CREATE TABLE "django_celery_beat_crontabschedule" ("id" integer PRIMARY KEY, "minute" varchar(240) NOT NULL, "hour" varchar(96) NOT NULL,
    "day_of_week" varchar(64) NOT NULL, "day_of_month" varchar(124) NOT NULL, "month_of_year" varchar(64) NOT NULL,
    "timezone" varchar(63) NOT NULL);
CREATE TABLE "django_celery_beat_periodictask" ("id" integer PRIMARY KEY, "name" varchar(200) NOT NULL UNIQUE,
    "task" varchar(200) NOT NULL, "args" text NOT NULL, "kwargs" text NOT NULL, "queue" varchar(200) NULL, "exchange" varchar(200) NULL,
    "routing_key" varchar(200) NULL, "expires" datetime NULL, "enabled" bool NOT NULL, "last_run_at" datetime NULL,
    "total_run_count" integer unsigned NOT NULL CHECK ("total_run_count" >= 0), "date_changed" datetime NOT NULL,
    "description" text NOT NULL, "crontab_id" integer NULL, "interval_id" integer NULL, "solar_id" integer NULL, "one_off" bool NOT NULL,
    "start_time" datetime NULL, "priority" integer unsigned NULL CHECK ("priority" >= 0), "headers" text NOT NULL,
    "clocked_id" integer NULL, "expire_seconds" integer unsigned NULL CHECK ("expire_seconds" >= 0));
INSERT INTO django_celery_beat_crontabschedule VALUES (1, '*/5', '8-17', 'mon-fri', '*', '*', 'Europe/Berlin');
INSERT INTO django_celery_beat_intervalschedule VALUES (1, 10, 'minutes');
INSERT INTO django_celery_beat_solarschedule VALUES (1, 'sunset', 1.5, 2.5);
INSERT INTO django_celery_beat_clockedschedule VALUES (1, '2199-01-01 00:00:00');
INSERT INTO django_celery_beat_periodictask VALUES
    (1, 'office hours', 'shop.tasks.poll', '[]', '{"days": 7}', 'low', NULL, NULL, '2190-01-01 00:00:00', 1, NULL, 0,
     '2026-11-15 19:01:25.810437', '', 1, NULL, NULL, 0, NULL, NULL, '{}', NULL, NULL),
    (2, 'held', 'shop.tasks.poll', '[]', '{}', NULL, NULL, NULL, NULL, 0, '2026-11-15 19:01:25.810437', 3,
     '2026-11-15 19:01:25', '', NULL, 1, NULL, 0, NULL, 5, '{}', NULL, 60),
    (3, 'once', 'shop.tasks.poll', '[]', '{}', NULL, NULL, NULL, NULL, 1, NULL, 0, '2026-11-15 19:01:25', '', NULL, NULL, NULL, 1, NULL,
     NULL, '{}', 1, NULL),
    (4, 'dusk', 'shop.tasks.poll', '[]', '{}', NULL, NULL, NULL, NULL, 1, NULL, 0, '2026-11-15 19:01:25', '', NULL, NULL, 1, 0, NULL,
     NULL, '{}', NULL, NULL);
"""


@pytest.fixture
def crontab(tmp_path: Path) -> Path:
    file = tmp_path / "crontab"
    file.write_text(CRONTAB)
    return file


# What all sources share


async def test_a_dry_run_shows_and_changes_nothing(hourhand: Command, app: Hourhand, crontab: Path) -> None:
    done = await hourhand("import", "crontab", str(crontab), COLUMNS="120")
    assert (done.code, done.err) == (0, "")
    said = words(done.out)
    for part in (
        "nightly-backup",
        "30 2 * * *",
        "At 02:30 every day",
        "/usr/local/bin/backup --full",
        "/srv/shop/poll",
        "in /srv/shop",
        "America/New_York",
        "no mail is sent to ops@example.com",
        "HOURHAND_ALLOW_COMMANDS=/srv/shop/poll,/usr/local/bin/backup",
        "a dry run: 2 to add; nothing was changed",
    ):
        assert part in said
    assert await app.jobs.list() == []
    narrow = await hourhand("import", "crontab", str(crontab))
    assert max(len(line) for line in narrow.out.splitlines()) <= 80


async def test_applied_twice_it_changes_nothing(hourhand: Command, app: Hourhand, crontab: Path) -> None:
    given = (
        "import",
        "crontab",
        str(crontab),
        "--tz",
        "Europe/Berlin",
        "--prefix",
        "web1-",
        "--queue",
        "ops",
        "--tag",
        "cron",
        "--tag",
        "web1",
    )
    first = await hourhand(*given, "--apply")
    assert (first.code, first.err) == (0, "")
    assert first.out.rstrip().endswith("2 added")
    job = await app.jobs.show("web1-nightly-backup")
    assert (job.task, job.schedule, job.timezone, job.queue, job.tags) == (
        "command",
        "30 2 * * *",
        "Europe/Berlin",
        "ops",
        ("cron", "web1"),
    )
    assert (job.payload, job.missed_window, job.max_attempts) == ({"argv": ["/usr/local/bin/backup", "--full"]}, "SKIP", 1)
    again = await hourhand(*given)
    assert again.code == 0
    assert "everything is there already; nothing would change" in again.out
    assert (await hourhand(*given, "--apply")).out.rstrip().endswith("0 added, 2 unchanged")
    assert (await app.jobs.show("web1-nightly-backup")).version == job.version
    assert (await hourhand(*given, "--apply", "--json")).json["unchanged"] == 2


async def test_names_that_are_taken_by_others_are_told_before_and_refused(
    hourhand: Command, app: Hourhand, crontab: Path
) -> None:
    await app.jobs.add("nightly-backup", task="mine", schedule="@daily")
    dry = await hourhand("import", "crontab", str(crontab))
    assert dry.code == 4
    assert "there already, with another definition: nightly-backup; --replace" in words(dry.err)
    refused = await hourhand("import", "crontab", str(crontab), "--apply")
    assert (refused.code, refused.out) == (4, "")
    assert "nothing was added: nightly-backup is there already" in words(refused.err)
    assert [one.name for one in await app.jobs.list()] == ["nightly-backup"]
    would = await hourhand("import", "crontab", str(crontab), "--replace")
    assert (would.code, would.err) == (0, "")
    assert "1 to add, 1 to change; nothing was changed" in would.out
    done = await hourhand("import", "crontab", str(crontab), "--apply", "--replace", "--json")
    assert done.code == 0
    assert {name: done.json[name] for name in ("applied", "added", "replaced")} == {"applied": True, "added": 1, "replaced": 1}
    assert (await app.jobs.show("nightly-backup")).task == "command"


async def test_what_cannot_be_translated_is_listed_and_the_rest_added(hourhand: Command, app: Hourhand) -> None:
    text = "@reboot /bin/a\n# fine\n0 1 * * * /bin/b\n0 2 * * * a | b\n0 0 30 2 * /bin/never\n"
    done = await hourhand("import", "crontab", "-", "--apply", stdin=text)
    assert (done.code, done.err) == (0, "")
    said = words(done.out)
    assert "3 entries not translated" in said
    for part in (
        "-:1 @reboot /bin/a",
        "-:4 0 2 * * * a | b",
        "it is a pipeline",
        "-:5 0 0 30 2 * /bin/never",
        "there is no such date",
        "1 added",
    ):
        assert part in said
    assert [one.name for one in await app.jobs.list()] == ["fine"]
    strict = await hourhand("import", "crontab", "-", "--strict", "--json", stdin=text)
    assert (strict.code, strict.err) == (4, "")
    assert [one["where"] for one in strict.json["untranslated"]] == ["-:1", "-:4", "-:5"]
    assert strict.json["jobs"][0]["state"] == "unchanged"
    shell = await hourhand("import", "crontab", "-", "--shell", "/bin/sh", "--json", stdin="0 2 * * * a | b")
    assert shell.json["jobs"][0]["payload"]["argv"] == ["/bin/sh", "-c", "a | b"]
    assert (await hourhand("import", "crontab", "-", "--strict", stdin="0 1 * * * /bin/a")).code == 0


async def test_what_is_no_text_is_refused(hourhand: Command, app: Hourhand, tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.write_text("0 1 * * * /bin/a\n")
    for data, said in ((b"\0\1\2", "is binary"), (b"\xff\xfe0", "not UTF-8"), (b"#" * (5 * 1024 * 1024), "larger than 4 MiB")):
        file = tmp_path / "file"
        file.write_bytes(data)
        for source in ("crontab", "kubernetes"):
            done = await hourhand("import", source, str(good), str(file), "--apply")
            assert (done.code, done.out) == (2, "")
            assert said in words(done.err)
    assert (await hourhand("import", "crontab", str(tmp_path / "none"))).code == 2
    assert (await hourhand("import", "crontab", str(good), "--tz", "Mars/Base")).code == 2
    assert await app.jobs.list() == []
    empty = await hourhand("import", "crontab", "-")
    assert (empty.code, empty.out.strip()) == (0, "nothing was found that could be a job")


async def test_a_dry_run_needs_no_database(hourhand: Command, crontab: Path) -> None:
    away = "postgresql://postgres@127.0.0.1:1/none"
    done = await hourhand("import", "crontab", str(crontab), HOURHAND_DATABASE_URL=away)
    assert done.code == 0
    assert "2 to add" in done.out
    assert "not compared with what is there" in done.err
    assert (await hourhand("import", "crontab", str(crontab), "--apply", HOURHAND_DATABASE_URL=away)).code == 5


async def test_with_an_app_arguments_are_checked(hourhand: Command, tmp_path: Path) -> None:
    source = tmp_path / "imports_shop.py"
    source.write_text(
        "from hourhand import Hourhand\napp = Hourhand()\n\n@app.task(name='shop:report')\ndef report(days: int) -> None: ...\n"
    )
    store = tmp_path / "store.sqlite"
    with scheduler(store) as other:
        for name, func, kwargs in (
            ("good", "shop:report", {"days": 1}),
            ("bad", "shop:report", {"days": "x"}),
            ("new", "shop:other", {}),
        ):
            add(other, CronTrigger(hour=1, timezone=UTC), name, func, kwargs)
    done = await hourhand("import", "apscheduler", "--from-database", f"sqlite:///{store}", "--app", f"{source}:app", "--json")
    assert [one["name"] for one in done.json["jobs"]] == ["good", "new"]
    assert "Expected `int`" in done.json["untranslated"][0]["reason"]
    assert [one["job"] for one in done.json["notes"] if "the app has no task shop:other" in one["text"]] == ["new"]


# Kubernetes


async def test_kubernetes(hourhand: Command, app: Hourhand, tmp_path: Path) -> None:
    (tmp_path / "cron.yaml").write_text(MANIFEST)
    done = await hourhand("import", "kubernetes", str(tmp_path), "--apply", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json["added"] == 2
    report, held = await app.jobs.show("shop.report"), await app.jobs.show("held")
    assert (report.state, report.schedule, report.timezone, report.overlap) == ("active", "30 7 * * 1", "Europe/Berlin", "skip")
    assert (report.misfire_grace, report.missed_window, report.max_attempts) == (300.0, "SKIP", 3)
    assert report.payload == {"argv": ["/bin/report"]}
    assert held.state == "paused"
    # Whoever resumes it does not have it held by the next import.
    await app.jobs.resume("held")
    again = await hourhand("import", "kubernetes", "-", "--apply", stdin=MANIFEST)
    assert again.out.rstrip().endswith("0 added, 2 unchanged")
    assert (await app.jobs.show("held")).state == "active"
    broken = await hourhand("import", "kubernetes", "-", stdin="a: [\n")
    assert broken.code == 2
    assert "line 2: not YAML" in broken.err


# Celery


@pytest.fixture
def beat(tmp_path: Path) -> str:
    file = tmp_path / "beat.sqlite"
    with sqlite3.connect(file) as connection:
        connection.executescript(BEAT)
    connection.close()
    return f"sqlite:///{file}"


async def test_an_app_of_celery(hourhand_process: Command, app: Hourhand, tmp_path: Path) -> None:
    """In a process of its own: the app is imported."""
    (tmp_path / "imports_celery.py").write_text(CELERY)
    (tmp_path / "imports_broken.py").write_text("import celery\n\nraise OSError('no disk')\n")
    call, at = hourhand_process, {"PYTHONPATH": str(tmp_path)}
    done = await call("import", "celery-beat", "--celery-app", "imports_celery:app", "--apply", "--json", **at)
    assert (done.code, done.err) == (0, "")
    assert {one["name"]: one["schedule"] for one in done.json["jobs"]} == {"monday": "30 7 * * 1", "say-hello": "every 10s"}
    assert [(one["what"], "positional" in one["reason"]) for one in done.json["untranslated"]] == [("add", True)]
    monday = await app.jobs.show("monday")
    assert (monday.task, monday.timezone, monday.payload) == ("shop.tasks.report", "Europe/Berlin", {"days": 7})
    again = await call("import", "celery-beat", "--celery-app", "imports_celery", "--apply", **at)
    assert again.out.rstrip().endswith("0 added, 2 unchanged")
    broken = await call("import", "celery-beat", "--celery-app", "imports_broken:app", **at)
    assert broken.code == 2
    assert "OSError: no disk" in broken.err


async def test_tables_of_django_celery_beat(hourhand: Command, app: Hourhand, beat: str, tmp_path: Path) -> None:
    done = await hourhand("import", "celery-beat", "--from-database", beat, "--apply", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json["added"] == 3
    hours, held, once = [await app.jobs.show(name) for name in ("office-hours", "held", "once")]
    assert (hours.schedule, hours.timezone, hours.queue) == ("*/5 8-17 * * 1-5", "Europe/Berlin", "low")
    assert (hours.payload, hours.end_at) == ({"days": 7}, datetime(2190, 1, 1, tzinfo=UTC))
    assert (held.state, held.schedule) == ("paused", "every 600s")
    assert once.schedule == "2199-01-01T00:00:00Z"
    assert [one["what"] for one in done.json["untranslated"]] == ["dusk"]
    assert (
        (await hourhand("import", "celery-beat", "--from-database", beat, "--apply"))
        .out.rstrip()
        .endswith("0 added, 3 unchanged")
    )

    for options, said in (
        ((), "give either --celery-app or --from-database"),
        (("--celery-app", "x:y", "--from-database", beat), "give either"),
        (("--celery-app", "no_such_module:app"), "no_such_module"),
        (("--celery-app", "json:loads"), "is no Celery app"),
        (("--from-database", f"sqlite:///{tmp_path}/none.sqlite"), "there is no file"),
        (("--from-database", "nonsense"), "takes the URL of a database"),
        (("--from-database", "mysql+nodriver://me:secret@host/x"), "--from-database"),
        (("--from-database", "sqlite://"), "has no table django_celery_beat_periodictask"),
    ):
        refused = await hourhand("import", "celery-beat", *options)
        assert (refused.code, refused.out) == (2, "")
        assert said in words(refused.err)
        assert "secret" not in refused.err
    assert not (tmp_path / "none.sqlite").exists()


# APScheduler


@contextmanager
def scheduler(file: Path) -> Iterator[BackgroundScheduler]:
    """One that is stopped before it fires anything."""
    store = SQLAlchemyJobStore(f"sqlite:///{file}")
    one = BackgroundScheduler(jobstores={"default": store}, timezone=ZoneInfo("Europe/Berlin"))
    one.start(paused=True)
    yield one
    one.shutdown()


def add(other: BackgroundScheduler, trigger: Any, name: str, func: str, kwargs: dict[str, Any], *, paused: bool = False) -> None:
    """By a function that can be imported, which is then called something else: the tasks of users are not here."""
    job = other.add_job("os:getcwd", trigger, id=name, kwargs={})
    job.func_ref, job.kwargs = func, kwargs
    if paused:
        job.next_run_time = None
    other._lookup_jobstore("default").update_job(job)


@pytest.fixture
def jobs_of_apscheduler(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "aps.sqlite"
    with scheduler(file) as other:
        add(
            other,
            CronTrigger(hour="8-17", minute="*/5", day_of_week="mon-fri", timezone="Europe/Berlin"),
            "report",
            "shop:report",
            {"days": 7},
        )
        add(other, "interval", "poll", "shop:poll", {}, paused=True)
        add(other, CronTrigger(year=2030, timezone=UTC), "year", "shop:poll", {})
    with sqlite3.connect(file) as connection:
        connection.execute(
            "INSERT INTO apscheduler_jobs VALUES ('evil', 0, ?)", (b"cos\nsystem\n(S'touch " + bytes(tmp_path) + b"/evil'\ntR.",)
        )
    connection.close()
    yield file
    assert not (tmp_path / "evil").exists()


async def test_a_store_of_apscheduler(hourhand: Command, app: Hourhand, jobs_of_apscheduler: Path) -> None:
    given = ("import", "apscheduler", "--from-database", f"sqlite:///{jobs_of_apscheduler}", "--apply")
    done = await hourhand(*given, "--json")
    assert (done.code, done.err) == (0, "")
    report, poll = await app.jobs.show("report"), await app.jobs.show("poll")
    assert (report.task, report.schedule, report.timezone) == ("shop:report", "*/5 8-17 * * 1-5", "Europe/Berlin")
    assert (report.payload, report.overlap, report.missed_window) == ({"days": 7}, "skip", "SKIP")
    assert (poll.state, poll.schedule) == ("paused", "every 1s")
    assert {one["what"] for one in done.json["untranslated"]} == {"year", "evil"}
    assert (await hourhand(*given)).out.rstrip().endswith("0 added, 2 unchanged")
    other = await hourhand(*given, "--table", "main.apscheduler_jobs")
    assert other.out.rstrip().endswith("0 added, 2 unchanged")
    assert (await hourhand(*given, "--table", "elsewhere")).code == 2
    assert (await hourhand("import", "apscheduler")).code == 2
