"""What the payload of an HTTP run may say, and what an answer means for the run."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourhand import PermanentFailure, RetryAfter
from hourhand.core.errors import InvalidPayload, PayloadMismatch
from hourhand.core.settings import Settings
from hourhand.targets.addresses import Guard
from hourhand.targets.http import LONGEST_DELAY, Answer, UnexpectedStatus, _unpack, failure_of, http_task, retry_after
from hourhand.targets.http_payload import Call, HttpCodec, read_url

URL = "https://a.example/path"
CODEC = HttpCodec(lambda: Guard(""))
NOW = 1_800_000_000.0


def read(**payload: Any) -> Call:
    return CODEC.read({"url": URL, **payload})


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("https://a.example", ("https", "a.example", 443, "/", "")),
        ("HTTP://A.Example:8080/x%2Fy/../z?q=%41&r=+#part", ("http", "a.example", 8080, "/x%2Fy/../z", "q=%41&r=+")),
        ("http://[2606:4700:0::1111]/", ("http", "2606:4700::1111", 80, "/", "")),
        ("https://a.example/ü?ü", ("https", "a.example", 443, "/%C3%BC", "%C3%BC")),
    ],
)
def test_a_url_is_taken_apart(text: str, parts: tuple[object, ...]) -> None:
    assert read_url(text) == parts


@pytest.mark.parametrize(
    "text",
    [
        "ftp://a.example/", "file:///etc/passwd", "a.example", "//a.example/", "https://", "https:///path", "https://:443/",
        "https://user@a.example/", "https://user:password@a.example/", "https://a.example@b.example/", "https://@a.example/",
        "https://a.example:0/", "https://a.example:65536/", "https://a.example:x/", "https://a.example/a b", " https://a.example",
        "https://a.example/\r\nX: y", "https://a.example\\@b.example/", "https://a.ex\tample/", "https://[::1/", "https://[::1%25lo]/",
        "https://a.example/" + "x" * 8_000, "https://127.1/", "https://a.example./",
    ],
)  # fmt: skip
def test_urls_that_are_refused(text: str) -> None:
    with pytest.raises(InvalidPayload):
        read_url(text)


@given(st.text(max_size=40))
def test_whatever_is_written_the_host_is_the_one_that_was_checked(text: str) -> None:
    try:
        call = read(url=f"https://{text}")
    except InvalidPayload:
        return
    from yarl import URL as Url

    url = Url(f"{call.origin}{call.path}" + (f"?{call.query}" if call.query else ""), encoded=True)
    assert (url.host, url.port, url.user, url.scheme) == (call.host, call.port, None, "https")


@pytest.mark.parametrize(
    "payload",
    [
        {"method": "CONNECT"}, {"method": "GE T"}, {"timeout": 0}, {"timeout": -1}, {"timeout": 3_601}, {"excerpt": -1},
        {"excerpt": 65_537}, {"body": "x", "json": {}}, {"method": "GET", "body": "x"}, {"method": "HEAD", "json": 1},
        {"expected_status": []}, {"expected_status": ["6xx"]}, {"expected_status": ["200"]}, {"expected_status": [99]},
        {"expected_status": [True]}, {"permanent_status": [600]}, {"unknown": 1}, {"headers": {"a": 1}}, {"tls": {"unknown": 1}},
        {"tls": {"ca": "no pem"}}, {"tls": {"client_key": "-----BEGIN KEY"}}, {"tls": {"server_name": "a b"}},
        {"url": "http://a.example", "tls": {}}, {"url": 5}, {"url": "https://10.0.0.1/"}, {"url": "https://localhost/"},
        {"url": "http://169.254.169.254/latest/meta-data"}, {"url": "http://[::ffff:10.0.0.1]/"},
    ],
)  # fmt: skip
def test_payloads_that_are_refused(payload: dict[str, Any]) -> None:
    with pytest.raises(InvalidPayload, match="task 'http'"):
        read(**payload)


def test_what_the_worker_cannot_take_is_not_tried_again() -> None:
    with pytest.raises(PayloadMismatch, match="private address"):
        CODEC.decode('{"url": "http://10.0.0.1/"}')


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X", "a\r\nInjected: 1"), ("X", "a\nb"), ("X", "a\x00b"), ("X\r\nY", "a"), ("X Y", "a"), ("", "a"), ("X:", "a"), ("Ü", "a"),
        ("Host", "b.example"), ("content-length", "5"), ("Transfer-Encoding", "chunked"), ("CONNECTION", "close"), ("Upgrade", "h2c"),
        ("Webhook-Id", "mine"), ("webhook-signature", "v1,x"), ("Proxy-Authorization", "x"), ("Expect", "100-continue"),
        ("X", "x" * 16_400),
    ],
)  # fmt: skip
def test_headers_that_are_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidPayload):
        read(headers={name: value})


def test_defaults_and_bodies() -> None:
    call = read()
    assert (call.method, call.body, call.expected, call.timeout, call.sign, call.excerpt) == (
        "POST",
        None,
        ("2xx",),
        30,
        True,
        2048,
    )
    assert read(method="put", json={"a": [1]}).body == b'{"a":[1]}'
    assert read(body="ü").body == "ü".encode()
    assert read(body="").body == b""


def answer(status: int, **headers: str) -> Answer:
    return Answer(status, "Word", {name.replace("_", "-"): value for name, value in headers.items()}, "what it said", False)


@pytest.mark.parametrize(
    ("payload", "status", "kind"),
    [
        ({}, 400, PermanentFailure), ({}, 404, PermanentFailure), ({}, 499, PermanentFailure), ({}, 408, UnexpectedStatus),
        ({}, 425, UnexpectedStatus), ({}, 429, UnexpectedStatus), ({}, 500, UnexpectedStatus), ({}, 503, UnexpectedStatus),
        ({}, 301, PermanentFailure), ({"permanent_status": []}, 302, PermanentFailure), ({"expected_status": [200]}, 204, UnexpectedStatus),
        ({"permanent_status": [500]}, 500, PermanentFailure), ({"permanent_status": [500]}, 404, UnexpectedStatus),
        ({"permanent_status": ["5xx"]}, 599, PermanentFailure), ({"permanent_status": [429]}, 429, PermanentFailure),
    ],
)  # fmt: skip
def test_which_answers_are_tried_again(payload: dict[str, Any], status: int, kind: type[Exception]) -> None:
    call = read(**payload)
    assert not call.expects(status)
    failure = failure_of(call, answer(status), NOW)
    assert type(failure) is kind
    assert f"answered {status} Word: what it said" in str(failure)
    assert "path" not in str(failure), "the path of a URL may be a secret"


def test_expected_statuses() -> None:
    assert read(expected_status=[404, "3XX"]).expects(404)
    assert read(expected_status=[404, "3XX"]).expects(302)
    assert not read(expected_status=[404, "3XX"]).expects(200)


@pytest.mark.parametrize(
    ("text", "delay"),
    [
        ("0", 0.0), (" 120 ", 120.0), ("999999999", LONGEST_DELAY), ("9" * 400, LONGEST_DELAY), ("Fri, 15 Jan 2027 08:01:40 GMT", 100.0),
        ("Fri, 15 Jan 2027 08:01:40", 100.0), ("Fri, 15 Jan 2020 08:01:40 GMT", 0.0), ("Fri, 15 Jan 2077 08:00:00 GMT", LONGEST_DELAY),
        ("-5", None), ("soon", None), ("", None), ("1.5", None), ("٣", None), (None, None), ("Fri, 99 Jan 2027 08:01:40 GMT", None),
    ],
)  # fmt: skip
def test_retry_after(text: str | None, delay: float | None) -> None:
    assert retry_after(text, NOW) == delay


def test_retry_after_counts_where_another_attempt_is_made() -> None:
    failure = failure_of(read(), answer(503, retry_after="7"), NOW)
    assert isinstance(failure, RetryAfter)
    assert failure.delay == 7
    assert isinstance(failure_of(read(), answer(404, retry_after="7"), NOW), PermanentFailure)


def test_a_redirect_says_where_it_points() -> None:
    failure = failure_of(read(), answer(302, location="http://10.0.0.1/there?secret=1"), NOW)
    assert isinstance(failure, PermanentFailure)
    assert "a redirect to http://10.0.0.1/there;" in str(failure)


def test_what_is_packed_comes_out_in_part() -> None:
    packed = zlib.compress(b"0" * 10_000_000, 9)
    assert _unpack(packed, 100) == (b"0" * 100, True)
    assert _unpack(zlib.compress(b"short"), 100) == (b"short", False)
    assert _unpack(b"not packed", 100) == (b"not packed", False)


def test_it_takes_no_slot_and_is_vetted() -> None:
    task = http_task(Settings)
    assert task.light
    assert task.vet is not None
    assert task.is_async
