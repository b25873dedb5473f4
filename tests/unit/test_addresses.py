"""Which addresses and which spellings HTTP jobs may call."""

from __future__ import annotations

import asyncio
import ipaddress
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourhand.core.errors import ConfigurationError, InvalidPayload
from hourhand.targets import addresses
from hourhand.targets.addresses import AddressRefused, Guard, PinningResolver, read_host, special

REFUSED = [
    ("0.0.0.0", "unspecified"), ("0.1.2.3", "unspecified"), ("::", "unspecified"),
    ("127.0.0.1", "loopback"), ("127.255.255.254", "loopback"), ("::1", "loopback"),
    ("10.0.0.1", "private"), ("172.16.0.1", "private"), ("172.31.255.255", "private"), ("192.168.1.1", "private"),
    ("fc00::1", "private"), ("fdff::1", "private"), ("fec0::1", "private"),
    ("100.64.0.1", "carrier-grade"), ("100.127.255.255", "carrier-grade"),
    ("169.254.1.1", "link-local"), ("fe80::1", "link-local"), ("febf::1", "link-local"),
    ("169.254.169.254", "metadata"), ("169.254.170.2", "metadata"), ("fd00:ec2::254", "metadata"),
    ("100.100.100.200", "metadata"), ("168.63.129.16", "metadata"), ("192.0.0.192", "metadata"),
    ("224.0.0.1", "multicast"), ("239.255.255.255", "multicast"), ("ff02::1", "multicast"),
    ("240.0.0.1", "reserved"), ("255.255.255.255", "reserved"), ("192.0.0.8", "reserved"), ("198.18.0.1", "reserved"),
    ("198.19.255.255", "reserved"), ("192.88.99.1", "reserved"), ("2001:10::1", "reserved"), ("4000::1", "reserved"),
    ("100::1", "reserved"), ("5f00::1", "reserved"),
    ("192.0.2.1", "documentation"), ("198.51.100.1", "documentation"), ("203.0.113.1", "documentation"),
    ("2001:db8::1", "documentation"), ("3fff::1", "documentation"),
    ("::ffff:127.0.0.1", "disguised"), ("::ffff:8.8.8.8", "disguised"), ("::127.0.0.1", "disguised"),
    ("2002:7f00:1::", "disguised"), ("2002:a00:1::1", "disguised"), ("2001:0:7f00:1::1", "disguised"),
    ("64:ff9b:1::7f00:1", "disguised"),
    ("64:ff9b::127.0.0.1", "loopback"), ("64:ff9b::10.1.2.3", "private"), ("64:ff9b::169.254.169.254", "metadata"),
]  # fmt: skip
PUBLIC = [
    "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0",
    "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.167.255.255", "192.169.0.0", "198.17.255.255",
    "198.20.0.0", "223.255.255.255", "2606:4700::1111", "2a00:1450:4001::200e", "2001:4860:4860::8888", "64:ff9b::8.8.8.8",
]  # fmt: skip
IPV4 = st.integers(0, 2**32 - 1).map(ipaddress.IPv4Address)
IPV6 = st.integers(0, 2**128 - 1).map(ipaddress.IPv6Address)


@pytest.mark.parametrize(("text", "kind"), REFUSED)
def test_what_is_not_public_is_refused(text: str, kind: str) -> None:
    objection = Guard("").objection("some.host", 443, ipaddress.ip_address(text))
    assert objection is not None
    assert kind in objection


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_called(text: str) -> None:
    assert Guard("").objection("some.host", 443, ipaddress.ip_address(text)) is None


@given(st.one_of(IPV4, IPV6))
def test_what_python_does_not_call_global_is_refused(address: addresses.Address) -> None:
    if not address.is_global or address.is_multicast or address.is_reserved:
        assert Guard("").objection("some.host", 443, address) is not None


@given(IPV4)
def test_a_private_address_stays_private_in_every_disguise(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    for disguise in (number, 0xFFFF << 32 | number, 0x64FF9B << 96 | number, 0x2002 << 112 | number << 80):
        if special(address) is not None:
            assert Guard("").objection("some.host", 443, ipaddress.IPv6Address(disguise)) is not None


@pytest.mark.parametrize(
    "text",
    [
        "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "127.0.1", "1.2.3.4.5", "256.1.1.1", "1.2.3.04", "0x",
        "8.8.8.8.", "localhost.", "example.com.", "example..com", ".example.com", "-a.example", "a-.example", "a b", "a%2eb",
        "bücher.example", "１２７.0.0.1", "127。0。0。1", "ⓛocalhost", "", "a" * 64 + ".example", "a." * 127 + "ab", "a/b", "a,b",
        "fe80::1%eth0", "::g", "1::2::3", "::ffff:127.1",
    ],
)  # fmt: skip
def test_strange_spellings_of_hosts_are_refused(text: str) -> None:
    with pytest.raises(InvalidPayload):
        read_host(text)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("Example.COM", "example.com"), ("my_service", "my_service"), ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("8.8.8.8", "8.8.8.8"), ("0:0:0:0:0:0:0:1", "::1"), ("1e100.net", "1e100.net"), ("a1", "a1"), ("0xyz.io", "0xyz.io"),
    ],
)  # fmt: skip
def test_hosts_in_their_one_spelling(text: str, read: str) -> None:
    assert read_host(text) == read


@pytest.mark.parametrize(
    ("allow", "host", "port", "address", "allowed"),
    [
        ("10.0.0.0/8", "a.example", 80, "10.1.2.3", True),
        ("10.0.0.0/8", "a.example", 80, "192.168.0.1", False),
        ("10.0.0.0/8", "a.example", 80, "64:ff9b::10.1.2.3", True),
        ("10.1.2.3:8080", "a.example", 8080, "10.1.2.3", True),
        ("10.1.2.3:8080", "a.example", 8081, "10.1.2.3", False),
        ("10.0.0.0/8:8080", "a.example", 8080, "10.1.2.3", True),
        ("a.example", "a.example", 80, "10.1.2.3", True),
        ("A.Example:80", "a.example", 80, "127.0.0.1", True),
        ("a.example:81", "a.example", 80, "10.1.2.3", False),
        ("a.example", "b.example", 80, "10.1.2.3", False),
        ("a.example", "x.a.example", 80, "10.1.2.3", False),
        ("[::1]:80", "a.example", 80, "::1", True),
        ("::1", "a.example", 80, "::1", True),
        ("fd00::/8", "a.example", 80, "fd12::1", True),
        (" a.example , 10.0.0.0/8 ,", "b.example", 80, "10.0.0.1", True),
        ("169.254.0.0/16", "a.example", 80, "169.254.1.1", True),
        ("169.254.0.0/16", "a.example", 80, "169.254.169.254", False),
        ("0.0.0.0/0,::/0", "a.example", 80, "fd00:ec2::254", False),
        ("a.example", "a.example", 80, "169.254.169.254", False),
        ("169.254.169.254", "a.example", 80, "169.254.169.254", True),
    ],
)
def test_the_allow_list(allow: str, host: str, port: int, address: str, allowed: bool) -> None:
    assert (Guard(allow).objection(host, port, ipaddress.ip_address(address)) is None) == allowed


@pytest.mark.parametrize("allow", ["10.0.0.0/64", "a b", "http://a.example", "*.example", "a.example:http", "127.1"])
def test_an_allow_list_that_cannot_be_read_is_said_to_be_wrong(allow: str) -> None:
    with pytest.raises(ConfigurationError, match="HOURHAND_HTTP_ALLOW"):
        Guard(allow)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "a.localhost"])
def test_what_is_known_without_asking(host: str) -> None:
    with pytest.raises(AddressRefused, match="loopback address"):
        Guard("").check_host(host, 80)
    Guard("127.0.0.1,::1").check_host(host, 80)
    Guard("").check_host("a.example", 80)


Answers = dict[str, list[str]]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """What the names mean, instead of the machine's resolver."""
    known: Answers = {}

    async def lookup(host: str) -> list[addresses.Address]:
        if host not in known:
            raise OSError("no such name")
        return [ipaddress.ip_address(one) for one in known[host]]

    monkeypatch.setattr(addresses, "lookup", lookup)
    return known


async def test_vetting_a_name(names: Answers) -> None:
    names |= {"good.example": ["8.8.8.8"], "bad.example": ["10.0.0.1"], "mixed.example": ["8.8.8.8", "::1"]}
    guard = Guard("")
    await guard.vet("good.example", 80)
    await guard.vet("unknown.example", 80)
    for host, kind in {"bad.example": "private", "mixed.example": "loopback"}.items():
        with pytest.raises(AddressRefused, match=f"{host} leads to a {kind} address") as refused:
            await guard.vet(host, 80)
        assert "10.0.0.1" not in str(refused.value), "what a name means inside the network is not told"


async def test_a_name_that_was_fine_a_moment_ago_is_not_looked_up_again(names: Answers) -> None:
    names["good.example"] = ["8.8.8.8"]
    guard = Guard("")
    await guard.vet("good.example", 80)
    names["good.example"] = ["10.0.0.1"]
    await guard.vet("good.example", 80)
    with pytest.raises(AddressRefused):
        await guard.vet("good.example", 81)


async def test_the_resolver_gives_checked_addresses_only(names: Answers) -> None:
    names |= {"good.example": ["8.8.8.8", "2606:4700::1111"], "mixed.example": ["8.8.8.8", "10.0.0.1"]}
    resolver = PinningResolver(Guard(""))
    assert [one["host"] for one in await resolver.resolve("good.example", 443)] == ["8.8.8.8", "2606:4700::1111"]
    with pytest.raises(AddressRefused):
        await resolver.resolve("mixed.example", 443)
    with pytest.raises(OSError, match="no such name"):
        await resolver.resolve("unknown.example", 443)


async def test_many_who_want_a_name_ask_once_and_may_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer = [], asyncio.Event()

    async def lookup(host: str) -> list[addresses.Address]:
        asked.append(host)
        await answer.wait()
        return [ipaddress.ip_address("8.8.8.8")]

    monkeypatch.setattr(addresses, "lookup", lookup)
    resolver = PinningResolver(Guard(""))
    first, second = (asyncio.create_task(resolver.resolve("a.example", 443)) for _ in range(2))
    while not asked:
        await asyncio.sleep(0)
    first.cancel()
    answer.set()
    assert [one["host"] for one in await second] == ["8.8.8.8"]
    assert asked == ["a.example"]
    await asyncio.gather(first, return_exceptions=True)
    await resolver.resolve("a.example", 443)
    assert asked == ["a.example"] * 2, "an answer is not kept: the next connection is checked anew"


async def test_names_that_nobody_answers_keep_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def getaddrinfo(host: bytes, *_: object, **__: object) -> list[tuple[object, ...]]:
        if host.startswith(b"slow"):
            release.wait(60)
        return [(2, 1, 6, "", ("8.8.8.8", 0))]

    monkeypatch.setattr(addresses.socket, "getaddrinfo", getaddrinfo)
    slow = [asyncio.create_task(addresses.lookup(f"slow{n}.example")) for n in range(300)]
    try:
        assert await addresses.lookup("fast.example") == [ipaddress.ip_address("8.8.8.8")]
        assert not any(one.done() for one in slow)
    finally:
        release.set()
        await asyncio.gather(*slow)


async def test_a_name_that_cannot_be_asked_for_is_an_ordinary_error() -> None:
    with pytest.raises(OSError):  # noqa: PT011
        await addresses.lookup("does-not-exist.invalid")
