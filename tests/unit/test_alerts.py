"""The file of alerts: what it may say, what is wrong with it, and what is told of an incident."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourhand import Alert, ConfigurationError, Hourhand
from hourhand.core.alert_rules import Patterns, expression, rule_in_words
from hourhand.core.alerts import DEFAULTS, KINDS, default_alerts, parse_alerts
from hourhand.core.notice import (
    CLOSED,
    OPENED,
    REMINDER,
    address_cleaner,
    in_words,
    shown_address,
    slack_text,
    trial,
    without_addresses,
)
from hourhand.core.settings import settings_from
from hourhand.engine.alerting import check_alerts, read_alerts
from hourhand.engine.lookout import Finding
from hourhand.engine.watchman import OTHERS, admitted

HOOK = "https://hooks.slack.example/services/T0SECRET/B0SECRET/x1y2z3"
NOW = datetime(2027, 3, 1, 4, 4, 12, tzinfo=UTC)
FILE = f"""
link = "https://jobs.example.com/?rule={{rule}}&about={{subject}}"

[[channel]]
name = "ops"
slack = "{HOOK}"
at_least = "warning"

[[channel]]
name = "pager"
webhook_env = "PAGER_URL"
bearer_file = "token"
timeout = "3s"

[[channel]]
name = "mail"
url = "mailto://me:secret@mail.example.com?to=ops@example.com"

[[rule]]
name = "nightly"
kind = "job_silent"
jobs = ["nightly-*", "!nightly-test-*", "backup"]
after = "26h"
severity = "critical"
channels = ["ops", "pager"]
repeat = "4h"

[[rule]]
name = "queue_age"
threshold = "10m"
for = 90
queues = "billing"

[[rule]]
name = "clock_skew"
enabled = false
"""


def alert(state: str = OPENED, **more: object) -> Alert:
    about = {
        "id": 7, "state": state, "rule": "nightly", "kind": "job_silent", "subject": "backup", "severity": "critical",
        "message": "job backup has not succeeded", "value": 1.0, "since": NOW,
    }  # fmt: skip
    return Alert(**{**about, **more})  # type: ignore[arg-type]


# What a file says


def test_without_a_file_there_is_a_rule_of_each_kind_that_needs_no_names() -> None:
    rules = {one.name: one for one in default_alerts().rules}
    assert set(rules) == set(DEFAULTS) == set(KINDS) - {"job_silent"}
    assert all(one.name == one.kind and one.enabled and one.hooks for one in rules.values())
    assert rules["dead_growth"].threshold == 10
    assert rules["dead_growth"].window == 900
    assert rules["overdue"].severity == "critical"
    assert default_alerts().channels == ()
    assert parse_alerts("defaults = false", "f").rules == ()
    assert all(rule_in_words(one) for one in rules.values())


def test_a_file_is_read_over_the_defaults() -> None:
    found = parse_alerts(FILE, "alerts.toml")
    nightly, age, skew = (found.find(name) for name in ("nightly", "queue_age", "clock_skew"))
    assert nightly is not None
    assert (nightly.threshold, nightly.severity, nightly.repeat, nightly.channels) == (
        93_600,
        "critical",
        14_400,
        ("ops", "pager"),
    )
    assert not nightly.hooks, "it names its channels, and functions are not among them"
    assert [name for name in ("nightly-a", "nightly-test-a", "backup", "backup2", "x") if nightly.jobs.fit(name)] == [
        "nightly-a",
        "backup",
    ]
    assert (nightly.jobs.exact, nightly.jobs.wild, nightly.jobs.unwanted) == (("backup",), ("nightly-*",), ("nightly-test-*",))
    assert nightly.link_to("a b&c") == "https://jobs.example.com/?rule=nightly&about=a%20b%26c"
    assert age is not None
    assert (age.threshold, age.held_for, age.queues.given, age.kind) == (600, 90, ("billing",), "queue_age")
    assert skew is not None
    assert not skew.enabled
    assert len(found.rules) == len(DEFAULTS) + 1
    ops, pager, mail = found.channels
    assert (ops.kind, pager.kind, mail.kind) == ("slack", "webhook", "url")
    assert ops.hears(nightly)
    assert not mail.hears(nightly)
    assert mail.hears(age)
    assert pager.address.env == "PAGER_URL"
    assert pager.bearer is not None
    assert pager.bearer.file == "token"
    assert (ops.timeout, pager.timeout, mail.timeout) == (10, 3, 30)
    quiet = parse_alerts(FILE + '[[rule]]\nname = "quiet"\nkind = "lost_runs"\nseverity = "info"', "f")
    rule = quiet.find("quiet")
    assert rule is not None
    assert not quiet.channels[0].hears(rule), "below what this channel wants to hear of"
    assert quiet.channels[1].hears(rule)


def test_addresses_are_not_in_what_is_printed_of_a_file() -> None:
    found = repr(parse_alerts(FILE, "f"))
    assert "SECRET" not in found
    assert "secret" not in found


RULE = '[[rule]]\nname = "r"\nkind = "queue_age"\n'
CHANNEL = f'[[channel]]\nname = "c"\nslack = "{HOOK}"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rule = 3", r"f: write each rule under \[\[rule\]\]"),
        ("[rule]\nname = 'x'", r"write each rule under \[\[rule\]\]"),
        ("rules = []", "f: 'rules' is not known; there are defaults, link, rule, channel"),
        ("[[rule]", "f: this is no TOML"),
        ("defaults = 1", "f: defaults must be true or false"),
        ("[[rule]]\nkind = 'queue_age'", "f: rule number 1: it needs a name"),
        ("[[rule]]\nname = 'a b'\nkind = 'queue_age'", "f: rule 'a b': it needs a name, of letters"),
        ("[[rule]]\nname = 'r'", "f: rule 'r': it needs a kind; there are dead_growth, queue_age"),
        ("[[rule]]\nname = 'r'\nkind = 'age'", "f: rule 'r': there is no kind 'age'; there are"),
        ("[[rule]]\nname = 'r'\nkind = ['queue_age']", "there is no kind"),
        ("[[rule]]\nname = 'overdue'\nkind = 'queue_age'", "rule 'overdue': this is the name of a default rule"),
        (RULE + RULE, "rule 'r': there are two of this name"),
        (RULE + "treshold = '5m'", "rule 'r': a rule of the kind queue_age: 'treshold' is not known; there are name, kind, enabled"),
        (RULE + "jobs = 'x'", "'jobs' is not known"),
        (RULE + "threshold = '5 parsecs'", "rule 'r': threshold must be a duration like"),
        (RULE + "threshold = true", "threshold must be a duration"),
        (RULE + "threshold = -5", "threshold must be from 1 seconds to ten years"),
        (RULE + "threshold = nan", "threshold must be from"),
        (RULE + "threshold = inf", "threshold must be from"),
        (RULE + "for = '1 hr -2'", "for must be a duration"),
        (RULE + "repeat = '1s'", "repeat must be from 60 seconds"),
        (RULE + "severity = 'fatal'", "severity must be one of info, warning, critical, not 'fatal'"),
        (RULE + "enabled = 'yes'", "enabled must be true or false"),
        (RULE + "queues = []", "queues must be a text or a list of texts"),
        (RULE + "queues = ['a b']", "queues 'a b' is no name, and no pattern"),
        (RULE + "limit = 0", "limit must be a whole number from 1 to 1000"),
        (RULE + "limit = 1.5", "limit must be a whole number"),
        (RULE + "link = 'javascript:alert(1)'", "link must be a URL that begins with"),
        (RULE + "link = 'https://x/{queue}'", r"link has \{queue\}; what can be put in is \{rule\}"),
        (RULE + "channels = ['opps']\n" + CHANNEL, "rule 'r': there is no channel 'opps'; there are c, python"),
        ("[[rule]]\nname='r'\nkind='dead_growth'\nthreshold = 200000", "threshold must be a whole number from 1 to 100000"),
        ("[[rule]]\nname='r'\nkind='lateness'\nquantile = 'p98'", "quantile must be one of p50, p90, p95, p99, max"),
        ("[[rule]]\nname='r'\nkind='job_silent'\nafter = '1h'", "rule 'r': a rule of the kind job_silent needs 'jobs'"),
        ("[[rule]]\nname='r'\nkind='job_silent'\njobs = 'x'", "needs 'after'"),
        ("[[channel]]\nslack = 'https://x/y'", "f: channel number 1: it needs a name"),
        ("[[channel]]\nname = 'python'\nslack = 'https://x/y'", "stands for the functions of the app"),
        ("[[channel]]\nname = 'python:x'\nslack = 'https://x/y'", "it needs a name"),
        (CHANNEL + CHANNEL, "channel 'c': there are two of this name"),
        ("[[channel]]\nname = 'c'", "channel 'c': it does not say where it leads; give one of url"),
        (CHANNEL + "webhook = 'https://x/y'", "slack and webhook both say where it leads"),
        (CHANNEL + "slack_env = 'X'", "slack and slack_env say the same"),
        ("[[channel]]\nname = 'c'\nslak = 'https://x/y'", "channel 'c': 'slak' is not known"),
        ("[[channel]]\nname = 'c'\nslack = 3", "slack must be a text"),
        ("[[channel]]\nname = 'c'\nslack = 'hooks.slack.com/secret'", "its slack must look like https://host/path"),
        ("[[channel]]\nname = 'c'\nwebhook = 'ftp://host/secret'", "its webhook must look like"),
        ("[[channel]]\nname = 'c'\nwebhook = 'https://host:99999/secret'", "its webhook must look like"),
        ("[[channel]]\nname = 'c'\nwebhook = 'https:///secret'", "its webhook must look like"),
        ("[[channel]]\nname = 'c'\nurl = 'https://host/secret'", "Apprise knows no https:// by itself"),
        ("[[channel]]\nname = 'c'\nurl = 'me@secret.example'", "its url must be one of Apprise's"),
        (CHANNEL + "bearer = 'secret'", "a bearer token is for a webhook"),
        (CHANNEL + "timeout = '2x'", "channel 'c': timeout must be a duration"),
        (CHANNEL + "timeout = '3m'", "channel 'c': timeout must be from 0.1 seconds to 2 min, not '3m'"),
        ("[[channel]]\nname = 'c'\nslack_env = 'https://host/secret'", "slack_env must be the name of an environment variable"),
        ("[[channel]]\nname = 'c'\nslack_env = 'xoxb-secret'", "slack_env must be the name of an environment variable"),
        ("[[channel]]\nname = 'c'\nslack_env = ['secret']", "slack_env must be a text"),
        ("[[channel]]\nname = 'c'\nurl_file = 'tgram://secret/x'", "url_file must be the path of a file, not an address"),
        ("[[rule]]\nname='r'\nkind='node_lost'\nnodes = 'api'", "rule 'r': nodes 'api' is no kind of node; there are worker, scheduler"),
        ("[[rule]]\nname='r'\nkind='node_lost'\nnodes = ['*', '!wroker']", "nodes '!wroker' is no kind of node"),
        (CHANNEL + "at_least = 'bad'", "at_least must be one of"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place_and_without_addresses(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        parse_alerts(text, "f")
    assert str(caught.value).startswith("f: ")
    assert "secret" not in str(caught.value).lower()


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"HOURHAND_ALERTS.*none\.toml cannot be read: No such file"):
        read_alerts(settings_from({"HOURHAND_ALERTS": str(tmp_path / "none.toml")}))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="it is no text"):
        read_alerts(settings_from({}, alerts=tmp_path / "bytes.toml"))


def test_secrets_that_are_not_there_are_missed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "alerts.toml"
    settings = settings_from({}, alerts=file)
    file.write_text("[[channel]]\nname = 'c'\nslack_env = 'NOT_SET_ANYWHERE'")
    with pytest.raises(
        ConfigurationError, match=r"alerts\.toml: channel 'c': slack_env names NOT_SET_ANYWHERE, which is not set"
    ):
        check_alerts(settings)
    monkeypatch.setenv("NOT_SET_ANYWHERE", "  not a url: hush ")
    with pytest.raises(ConfigurationError, match="its slack must look like") as caught:
        check_alerts(settings)
    assert "hush" not in str(caught.value)
    monkeypatch.setenv("NOT_SET_ANYWHERE", f" {HOOK}\n")
    check_alerts(settings)
    file.write_text("[[channel]]\nname = 'c'\nslack_file = 'secrets/hook'")
    with pytest.raises(ConfigurationError, match="slack_file names secrets/hook, which cannot be read: No such file"):
        check_alerts(settings)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "hook").write_text("\n")
    with pytest.raises(ConfigurationError, match="secrets/hook, which is empty"):
        check_alerts(settings)
    (tmp_path / "secrets" / "hook").write_text(HOOK + "\n")
    check_alerts(settings)
    file.write_text("[[channel]]\nname = 'c'\nurl = 'nothing://secret-token/x'")
    with pytest.raises(ConfigurationError, match="channel 'c': Apprise can do nothing with this nothing:// URL") as caught:
        check_alerts(settings)
    assert "secret-token" not in str(caught.value)
    file.write_text(f"[[channel]]\nname = 'c'\nwebhook = '{HOOK}'")
    with pytest.raises(ConfigurationError, match="HOURHAND_WEBHOOK_SECRET"):
        check_alerts(settings_from({}, alerts=file, webhook_secret="whsec_a"))


@pytest.mark.parametrize(("kind", "package"), [("url = 'json://host/x'", "apprise"), (f"slack = '{HOOK}'", "aiohttp")])
def test_a_package_that_is_missing_is_named(kind: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "alerts.toml"
    file.write_text(f"[[channel]]\nname = 'c'\n{kind}")
    monkeypatch.setattr("hourhand.targets.channels.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=rf"channel 'c' needs {package}, .*pip install 'hourhand\[alerts\]'"):
        check_alerts(settings_from({}, alerts=file))


# Names


@given(
    st.text(alphabet="ab.-_:", max_size=8), st.lists(st.text(alphabet="ab.*?", min_size=1, max_size=6), min_size=1, max_size=3)
)
def test_patterns_mean_what_they_mean_in_a_shell(name: str, patterns: list[str]) -> None:
    def matches(pattern: str, text: str) -> bool:
        if not pattern:
            return not text
        if pattern[0] == "*":
            return matches(pattern[1:], text) or (bool(text) and matches(pattern, text[1:]))
        return bool(text) and pattern[0] in ("?", text[0]) and matches(pattern[1:], text[1:])

    expected = any(matches(one, name) for one in patterns)
    assert Patterns(tuple(patterns)).fit(name) == expected
    assert (re.fullmatch(expression(tuple(patterns)), name) is not None) == expected


def test_no_pattern_is_everything_and_exceptions_alone_are_all_but_these() -> None:
    assert Patterns().fit("anything")
    assert Patterns().wild == ("*",)
    assert [name for name in ("a", "test-a") if Patterns(("!test-*",)).fit(name)] == ["a"]


# A storm


def found(*names: str) -> list[Finding]:
    return [Finding(name, f"{name} is bad", len(names) - place) for place, name in enumerate(names)]


def test_a_storm_is_told_in_a_few_words() -> None:
    many = found(*(f"j{number:03}" for number in range(100)))
    noted, beyond = admitted(many, set(), 3)
    assert [one.subject for one in noted] == ["j000", "j001", "j002", OTHERS]
    assert beyond
    assert "97 besides" in noted[-1].message
    assert "j003, j004, j005, j006, j007 and 92 more" in noted[-1].message
    standing = {one.subject for one in noted}
    noted, beyond = admitted(many[2:], standing, 3)
    assert [one.subject for one in noted] == ["j002", OTHERS], "one that ended brings no other out of the rest"
    assert noted[-1].value == 97
    noted, beyond = admitted(many[:1], standing, 3)
    assert [one.subject for one in noted] == ["j000"]
    assert not beyond
    noted, beyond = admitted(many[:3], {"j000"}, 3)
    assert len(noted) == 3
    assert not beyond


# What is told


def test_an_alert_in_words() -> None:
    assert alert().title == "[critical] nightly (backup)"
    assert alert().text == "job backup has not succeeded\nSince 2027-03-01 04:04:12 UTC."
    over = alert(CLOSED, until=NOW + timedelta(hours=3), message="job backup has succeeded", link="https://x/")
    assert over.title == "[critical] over: nightly (backup)"
    assert over.text == "job backup has succeeded\nOver since 2027-03-01 07:04:12 UTC, after 3 h.\nhttps://x/"
    late = alert(until=NOW + timedelta(minutes=5))
    assert "It was so from 2027-03-01 04:04:12 UTC to 2027-03-01 04:09:12 UTC." in late.text
    assert alert(REMINDER, reminder=2).title.startswith("[critical] still: ")
    assert "test" in trial(NOW).title
    assert [in_words(one) for one in (0.4, 9.94, 45, 119, 120, 7_200, 200_000)] == [
        "0.4 s",
        "9.9 s",
        "45 s",
        "119 s",
        "2 min",
        "2 h",
        "2 d",
    ]


def test_the_same_word_has_the_same_key_and_another_another() -> None:
    keys = [alert().key, alert(CLOSED).key, alert(REMINDER, reminder=1).key, alert(REMINDER, reminder=2).key, alert(id=8).key]
    assert len(set(keys)) == len(keys)
    assert alert().key == alert(message="other words").key


def test_what_means_something_to_slack_is_escaped() -> None:
    assert "&lt;!channel&gt; &amp; co" in slack_text(alert(message="<!channel> & co"))


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (HOOK, "https://hooks.slack.example/…"),
        ("mailto://me:secret@mail.example.com?to=x@y.z", "mailto://mail.example.com/…"),
        ("slack://TokenA/TokenB/TokenC/#general", "slack://…"),
        ("tgram://123456:token/chat", "tgram://…"),
    ],
)
def test_addresses_are_shown_without_what_is_secret_in_them(address: str, shown: str) -> None:
    assert shown_address(address) == shown
    clean = address_cleaner(address, "bearer-token")
    for part in (address, address.partition("://")[2], "bearer-token"):
        said = clean(f"cannot reach {part}")
        assert "[redacted]" in said
        for secret in ("T0SECRET", "x1y2z3", "secret@", "TokenA", "TokenC", "123456:token", "bearer-token"):
            assert secret not in said


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (f"404 for url: {HOOK}", "404 for url: https://hooks.slack.example/…"),
        ("no tgram://123:T0SECRET/x, no luck", "no tgram://… no luck"),
        ("HTTPSConnectionPool(host='h'): Max retries exceeded with url: /services/T0SECRET (why)",
         "HTTPSConnectionPool(host='h'): Max retries exceeded with url: [redacted] (why)"),
        ("url='https://[T0SECRET/x'", "url='[redacted]'"),
        ("the pager is off", "the pager is off"),
    ],
)  # fmt: skip
def test_addresses_are_taken_out_of_what_a_function_says(said: str, kept: str) -> None:
    assert without_addresses(said) == kept


def test_files_that_say_something_else_have_another_digest() -> None:
    assert parse_alerts(FILE, "a").digest == parse_alerts(FILE, "b").digest
    assert parse_alerts(FILE, "a").digest != parse_alerts(FILE + "#", "a").digest


def test_a_hook_that_could_not_be_called_is_refused_where_it_is_declared() -> None:
    app = Hourhand()
    with pytest.raises(ConfigurationError, match="a function of one argument"):
        app.on_alert(lambda: None)  # type: ignore[arg-type,misc]
    with pytest.raises(ConfigurationError, match="a function of one argument"):
        app.on_alert("page me")  # type: ignore[type-var]

    @app.on_alert
    def fine(alert: Alert) -> None: ...

    assert app.registry.alert_hooks == [fine]
