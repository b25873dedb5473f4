"""Crontabs: what each line comes to, and what it does not."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourhand import Hourhand
from hourhand.surfaces.importing.checking import Import, check
from hourhand.surfaces.importing.crontab import Crontab, is_system, split_input, translate_crontabs
from hourhand.surfaces.importing.translation import Translation, dressed

NOW = datetime(2027, 1, 1, tzinfo=UTC)


def translated(text: str, *, system: bool = False, **options: Any) -> Translation:
    return translate_crontabs([Crontab("c", text, system)], **options)


def checked(translation: Translation) -> Import:
    return check(translation, Hourhand("postgresql://nowhere/none").registry, NOW)


def only(text: str, **options: Any) -> dict[str, Any]:
    done = checked(translated(text, **options))
    assert done.untranslated == []
    (job,) = done.jobs
    return job.given


def reason(text: str, **options: Any) -> str:
    done = checked(translated(text, **options))
    assert done.jobs == []
    (one,) = done.untranslated
    assert one.where == f"c:{len(text.splitlines())}"
    assert one.what == " ".join(text.splitlines()[-1].split())
    return one.reason


def remarks(text: str, **options: Any) -> str:
    return "\n".join(one.text for one in translated(text, **options).notes)


# Lines


def test_a_line() -> None:
    job = only("30 2 * * * /usr/local/bin/backup --full '/srv/my shop'", timezone="Europe/Berlin")
    assert re.fullmatch(r"backup-[0-9a-f]{6}", job.pop("name"))
    assert job == {
        "task": "command", "schedule": "30 2 * * *", "timezone": "Europe/Berlin", "missed_window": "SKIP", "max_attempts": 1,
        "payload": {"argv": ["/usr/local/bin/backup", "--full", "/srv/my shop"]},
    }  # fmt: skip


def test_comments_blank_lines_and_line_ends() -> None:
    text = "# a\n\n   # b\n\t\r\n  */5\t* * * *   /bin/true   \r\n#0 0 * * * /bin/false\n"
    job = only(text)
    assert (job["schedule"], job["payload"]) == ("*/5 * * * *", {"argv": ["/bin/true"]})
    assert translated("") == Translation()
    assert translated("# nothing\nA=1\n").jobs == []


@pytest.mark.parametrize(
    "schedule",
    ["*/15 8-17 * * mon-fri", "0 0 1,15 * *", "5-55/10 0 1 jan,JUL sun", "0 0 * * 7", "0 0 * * 5-7", "@hourly", "@Daily", "@weekly",
     "@monthly", "@yearly", "@annually", "@midnight"],
)  # fmt: skip
def test_schedules_are_those_of_cron(schedule: str) -> None:
    assert only(f"{schedule} /bin/true")["schedule"] == schedule


def test_a_day_or_a_weekday_means_the_same_as_in_cron() -> None:
    (job,) = checked(translated("0 0 13 * fri /bin/true")).jobs
    firings = job.definition.schedule.firings(NOW, datetime(2027, 1, 31, tzinfo=UTC))
    assert [at.day for at in firings] == [8, 13, 15, 22, 29]
    (both,) = checked(translated("0 0 */2 * fri /bin/true")).jobs
    firings = both.definition.schedule.firings(NOW, datetime(2027, 1, 31, tzinfo=UTC))
    assert [at.day for at in firings] == [15, 29]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("@reboot /bin/start", "@reboot fires when a machine starts"),
        ("@fortnightly /bin/a", "'@fortnightly' is not known"),
        ("0 0 30 2 * /bin/a", "there is no such date"),
        ("0 0 * * 8 /bin/a", "not a cron expression"),
        ("61 * * * * /bin/a", "not a cron expression"),
        ("0 1~5 * * * /bin/a", "'~'"),
        ("30~10 1 * * * /bin/a", "is no range of minutes"),
        ("* * * * *", "there is no command"),
        ("@daily", "there is no command"),
        ("hello", "neither a setting nor five fields"),
        ("0 5 * *", "neither a setting nor five fields"),
        ("0 5 * * * -n -q /bin/a", "-n is a flag"),
        ("0 5 * * * %a", "there is no command"),
        ("0 5 * * * root /bin/a", "give --system"),
        ("0 5 * * * ./poll", "write the whole path"),
        ("0 5 * * * cd shop && ./poll", "write the whole path"),
        ("0 5 * * * a | b", "it is a pipeline: put the line into a script, or give --shell /bin/sh"),
        ("0 5 * * * A=1 /bin/a", "it sets A for this one command; give A a line of its own above it: put the line"),
        ("0 5 * * * echo 'x", "' is not closed"),
        ("CRON_TZ=Mars/Base\n0 5 * * * /bin/a", "there is no time zone 'Mars/Base'"),
        ("LD_PRELOAD=/x.so\n0 5 * * * /bin/a", "LD_PRELOAD in env decides what code a program loads"),
    ],
)
def test_what_cannot_be_translated_says_why(line: str, said: str) -> None:
    assert said in reason(line)


def test_one_bad_line_does_not_keep_the_others() -> None:
    done = checked(translated("@reboot /bin/a\n0 1 * * * /bin/b\n0 0 31 2 * /bin/c\n0 2 * * * /bin/d"))
    assert [one.given["payload"]["argv"] for one in done.jobs] == [["/bin/b"], ["/bin/d"]]
    assert [one.where for one in done.untranslated] == ["c:1", "c:3"]


# Settings


def test_settings_hold_from_their_line_on() -> None:
    text = '0 1 * * * /bin/a\nLANG=de\n0 2 * * * /bin/b\nLANG = \'fr FR\'\n"MORE"=" x "\nURL=http://x/?a=b\n0 3 * * * /bin/c'
    payloads = [one.given["payload"] for one in checked(translated(text)).jobs]
    assert [one.get("env") for one in payloads] == [
        None,
        {"LANG": "de"},
        {"LANG": "fr FR", "MORE": " x ", "URL": "http://x/?a=b"},
    ]


def test_what_speaks_to_cron_is_not_passed_on() -> None:
    text = 'SHELL=/bin/bash\nPATH=/opt/bin\nHOME=/srv\nMAILTO=ops@example.com\nTZ=Asia/Tokyo\n0 1 * * * /bin/a\nMAILTO=""\n0 2 * * * /bin/a'
    first, second = (one.given["payload"] for one in checked(translated(text)).jobs)
    assert first == second == {"argv": ["/bin/a"], "cwd": "/srv", "env": {"TZ": "Asia/Tokyo"}}
    notes = translated(text).notes
    assert sum("no mail is sent to ops@example.com" in one.text for one in notes) == 1
    assert sum("PATH is not passed on" in one.text for one in notes) == 2
    assert sum("has no part in when it starts" in one.text for one in notes) == 2


def test_the_zone() -> None:
    text = "0 1 * * * /bin/a\nCRON_TZ=America/New_York\n0 2 * * * /bin/b\nCRON_TZ=\n0 3 * * * /bin/c"
    zones = [one["timezone"] for one in translated(text).jobs]
    assert zones == ["UTC", "America/New_York", "UTC"]
    assert [one["timezone"] for one in translated(text, timezone="Asia/Tokyo").jobs] == [
        "Asia/Tokyo",
        "America/New_York",
        "Asia/Tokyo",
    ]
    assert "names no zone, and UTC is taken" in remarks("0 1 * * * /bin/a")
    assert "names no zone" not in remarks("0 1 * * * /bin/a", timezone="UTC")


def test_random_minutes_become_a_flexible_window() -> None:
    job = only("10~40 3 * * * /bin/a")
    assert (job["schedule"], job["flexible_window"]) == ("10 3 * * *", "30m")
    assert only("~ 3 * * * /bin/a")["flexible_window"] == "59m"
    assert only("RANDOM_DELAY=45\n0 3 * * * /bin/a")["flexible_window"] == "45m"
    assert "a place within it that stays the same" in remarks("~ 3 * * * /bin/a")


# Commands


def test_a_change_of_directory() -> None:
    assert only("0 1 * * * cd /srv/shop && ./bin/poll x")["payload"] == {"argv": ["/srv/shop/bin/poll", "x"], "cwd": "/srv/shop"}
    assert only("HOME=/home/me\n0 1 * * * cd shop && ./poll")["payload"] == {
        "argv": ["/home/me/shop/poll"],
        "cwd": "/home/me/shop",
    }
    assert only("HOME=/home/me\n0 1 * * * bin/poll")["payload"] == {"argv": ["/home/me/bin/poll"], "cwd": "/home/me"}
    assert "the run fails" in remarks("0 1 * * * cd /srv; ./poll")
    assert "here it starts in /" in remarks("0 1 * * * /bin/a")
    assert "here it starts in /" not in remarks("0 1 * * * cd / && /bin/a")


def test_output_is_kept_and_not_thrown_away() -> None:
    assert only("0 1 * * * /bin/a >/dev/null 2>&1")["payload"] == {"argv": ["/bin/a"]}
    assert "output is kept with the run" in remarks("0 1 * * * /bin/a >/dev/null 2>&1")


def test_a_shell_only_for_what_needs_one() -> None:
    text = "SHELL=/bin/bash\nHOME=/srv\n0 1 * * * pg_dump shop | gzip > /b/x-$(date +\\%F).gz\n0 2 * * * /bin/plain"
    piped, simple = checked(translated(text, shell="/bin/sh")).jobs
    assert piped.given["payload"] == {"argv": ["/bin/sh", "-c", "pg_dump shop | gzip > /b/x-$(date +%F).gz"], "cwd": "/srv"}
    assert piped.name.startswith("pg_dump-")
    assert simple.given["payload"] == {"argv": ["/bin/plain"], "cwd": "/srv"}
    assert "says SHELL=/bin/bash, and it is given to /bin/sh" in remarks(text, shell="/bin/sh")
    assert "SHELL=" not in remarks(text, shell="/usr/bin/bash")


@pytest.mark.parametrize(
    ("written", "command", "fed"),
    [
        ("a b", "a b", None),
        ("mail joe%Hello%%Bye%", "mail joe", "Hello\n\nBye\n"),
        ("a%b", "a", "b\n"),
        ("a%", "a", "\n"),
        (r"date +\%F", "date +%F", None),
        (r"a \%x%b\%c", "a %x", "b%c\n"),
        (r"a \\%b", r"a \\", "b\n"),
        (r"a \n%b\n", r"a \n", "b\\n\n"),
        ("a\\", "a\\", None),
    ],
)
def test_percent_signs(written: str, command: str, fed: str | None) -> None:
    assert split_input(written) == (command, fed)


def test_input_goes_with_the_command() -> None:
    assert only("0 1 * * * mail joe%Hello%Bye")["payload"] == {"argv": ["mail", "joe"], "stdin": "Hello\nBye\n"}


# System crontabs


def test_the_user_of_a_system_crontab() -> None:
    job = only("17 *\t* * *\troot    cd / && /usr/bin/run-parts --report /etc/cron.hourly", system=True)
    assert job["payload"] == {"argv": ["/usr/bin/run-parts", "--report", "/etc/cron.hourly"], "cwd": "/", "user": "root"}
    assert only("@daily www-data /bin/a", system=True)["payload"]["user"] == "www-data"
    assert "only a worker that runs as root can do" in remarks("@daily www-data /bin/a", system=True)
    assert "give --no-system" in reason("0 1 * * * /bin/a b", system=True)
    assert "there is no command" in reason("0 1 * * * root", system=True)


def test_which_files_are_system_crontabs() -> None:
    assert is_system("/etc/crontab")
    assert is_system("/etc/cron.d/php")
    assert is_system("backup/cron.d/php")
    assert not is_system("/home/me/crontab")
    assert not is_system("-")


# Names


@pytest.mark.parametrize(
    ("comment", "name"),
    [
        ("# Nightly backup", "nightly-backup"),
        ("#Reindex: the shop!", "reindex:-the-shop"),
        ("# 0 5 * * * old", None),
        ("# @daily old", None),
        ("# MAILTO=x", None),
        ("# m h dom mon dow command", None),
        ("# ----------", None),
        (f"# {'long ' * 20}", None),
        ("# one\n# two", None),
        ("# above\n", None),
        ("# above\nA=1", None),
    ],
)
def test_a_short_comment_right_above_is_the_name(comment: str, name: str | None) -> None:
    job = only(f"{comment}\n0 1 * * * /bin/a.sh")
    assert job["name"] == name or (name is None and re.fullmatch(r"a-[0-9a-f]{6}", job["name"]))


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/bin/php /var/www/cron.php", "cron"),
        ("python3 -m shop.report", "shop.report"),
        ("/usr/bin/python3 -u /srv/report.py", "report"),
        ("nice -n 19 /usr/local/bin/backup", "backup"),
        ("env -i /bin/ls", "ls"),
        ("/srv/Übung/ß", "command"),
    ],
)
def test_the_program_gives_the_name(command: str, name: str) -> None:
    assert only(f"0 1 * * * {command}")["name"].rpartition("-")[0] == name


def test_names_are_stable_and_unique() -> None:
    text = "# same\n0 1 * * * /bin/a\n# same\n0 2 * * * /bin/a\n0 3 * * * /bin/b\n0 3 * * * /bin/b\n"
    names = [one["name"] for one in translated(text).jobs]
    assert len(set(names)) == 4
    assert all(one.startswith("same-") for one in names[:2])
    assert names[3] == f"{names[2]}-2"
    # What is added elsewhere in the file moves none of them.
    assert [one["name"] for one in translated("0 9 * * * /bin/c\n" + text).jobs][1:] == names


def test_several_files_share_their_names() -> None:
    files = [Crontab("one", "# backup\n0 1 * * * /bin/a"), Crontab("two", "# backup\n0 2 * * * /bin/a")]
    names = [one["name"] for one in translate_crontabs(files).jobs]
    assert len(set(names)) == 2


def test_what_the_user_wants_for_all_of_them() -> None:
    done = dressed(translated("# backup\n0 1 * * * /bin/a"), prefix="web1-", queue="ops", tags=["cron", "cron"])
    (job,) = done.jobs
    assert (job["name"], job["queue"], job["tags"]) == ("web1-backup", "ops", ["cron"])
    assert {one.job for one in done.notes} == {None, "web1-backup"}
    assert done.origins == {"web1-backup": ("c:2", "0 1 * * * /bin/a")}


# Anything


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0\n\r"), max_size=20)
LINES = st.lists(
    st.one_of(
        WORDS,
        st.builds("{} {} {} {} {} {}".format, *[st.sampled_from(["*", "*/5", "1", "1-5", "0~9", "mon", "L", "x"])] * 5, WORDS),
        st.builds("{}={}".format, st.sampled_from(["A", "CRON_TZ", "HOME", "MAILTO", "SHELL", "PATH"]), WORDS),
        st.builds("@{} {}".format, st.sampled_from(["daily", "reboot", "x"]), WORDS),
        st.builds("# {}".format, WORDS),
    ),
    max_size=8,
)


@given(LINES, st.booleans(), st.sampled_from([None, "/bin/sh"]))
def test_every_line_is_translated_or_told(lines: list[str], system: bool, shell: str | None) -> None:
    """Nothing is lost, nothing breaks, and the same text gives the same names again."""
    text = "\n".join(lines)
    done = checked(translated(text, system=system, shell=shell))
    assert [one.given for one in done.jobs] == [one.given for one in checked(translated(text, system=system, shell=shell)).jobs]
    names = [one.name for one in done.jobs]
    assert len(set(names)) == len(names)
    setting = re.compile(r"""[ \t]*(?:"[^"=]+"|'[^'=]+'|[^\s="']+)[ \t]*=.*""", re.DOTALL)
    entries = [one for one in text.split("\n") if one.strip(" \t\r") and not one.strip(" \t\r").startswith("#")]
    assert len(done.jobs) + len(done.untranslated) == sum(not setting.fullmatch(one.strip(" \t\r")) for one in entries)


@given(
    st.tuples(*[st.sampled_from(["*", "*/7", "0", "1-5", "2,4"])] * 5),
    st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=10), max_size=4),
)
def test_what_is_quoted_comes_back(fields: tuple[str, ...], arguments: list[str]) -> None:
    quoted = ["'" + one.replace("'", "'\\''").replace("%", "\\%") + "'" for one in arguments]
    done = translated(" ".join([*fields, "/bin/a", *quoted]))
    (job,) = done.jobs
    assert (job["schedule"], job["payload"]) == (" ".join(fields), {"argv": ["/bin/a", *arguments]})
