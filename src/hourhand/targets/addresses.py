"""Which addresses HTTP jobs may call, and names that are resolved once: what was checked is what is connected to.

Whoever may write a job may make this machine call a URL. It must not reach what only this machine can: its own services,
its neighbours, the cloud's metadata.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
import threading
from collections.abc import Iterable
from typing import Any

from hourhand.core.clock import Clock
from hourhand.core.errors import ConfigurationError, InvalidPayload, PermanentFailure

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

VETTING = 3.0
"""Seconds that a name gets to be resolved when a job is made of it."""
_REMEMBERED = 60.0
_MOST_REMEMBERED = 10_000
_MOST_LOOKUPS = 1_000
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_WITH_PORT = re.compile(r"(\[[^\]]+\]|[^:\[\]]+):([0-9]{1,5})")

# The special-purpose registries of IANA, written out: what Python's own table says differs from version to version.
_SPECIAL = [
    (ipaddress.ip_network(network), kind)
    for kind, networks in {
        "an unspecified": "0.0.0.0/8 ::/128",
        "a loopback": "127.0.0.0/8 ::1/128",
        "a private": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7 fec0::/10",
        "a shared (carrier-grade NAT)": "100.64.0.0/10",
        "a link-local": "169.254.0.0/16 fe80::/10",
        "a multicast": "224.0.0.0/4 ff00::/8",
        "a documentation": "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24 2001:db8::/32 3fff::/20",
        "a disguised IPv4": "::/96 ::ffff:0:0/96 64:ff9b:1::/48 2001::/32 2002::/16",
        "a reserved": "192.0.0.0/24 192.88.99.0/24 198.18.0.0/15 240.0.0.0/4 2001::/23",
    }.items()
    for network in networks.split()
]
_GLOBAL = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_METADATA = {
    ipaddress.ip_address(one)
    for one in (
        "169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16", "192.0.0.192",
        "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254",
    )
}  # fmt: skip
"""Where clouds tell a machine its secrets. One of them looks public."""


class AddressRefused(PermanentFailure):
    """The URL leads to an address that HTTP jobs must not call."""


def special(address: Address) -> str | None:
    """What keeps an address from being called, as in "a private address"; None: it is a public one."""
    if address in _METADATA:
        return "a metadata"
    for network, kind in _SPECIAL:
        if address in network:
            return kind
    return "a reserved" if address.version == 6 and address not in _GLOBAL else None


def read_host(text: str) -> str:
    """A host as it is written in a URL, in its one accepted spelling: who checks and who connects must mean the same."""
    if ":" in text:
        try:
            return str(ipaddress.IPv6Address(text if "%" not in text else ""))
        except ValueError:
            raise InvalidPayload(f"[{text}] is no IPv6 address") from None
    if not text.isascii():
        raise InvalidPayload(f"the host {text!r} has letters beyond ASCII: write it in its ASCII form, which starts with xn--")
    if text.endswith("."):
        raise InvalidPayload(f"the host {text!r} ends with a dot: write it without")
    if _NUMBER.fullmatch(text.rpartition(".")[2]):
        try:
            return str(ipaddress.IPv4Address(text))
        except ValueError:
            raise InvalidPayload(f"{text!r} is no way to write an IPv4 address: write it as four decimal numbers") from None
    if len(text) > 253 or not _NAME.fullmatch(text):
        raise InvalidPayload(f"{text[:300]!r} is no host name")
    return text.lower()


def literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


class Guard:
    """Says which hosts may be called: public ones, and what the setting `http_allow` names."""

    def __init__(self, allow: str) -> None:
        self.allow = allow
        self._networks: list[tuple[Network, int | None]] = []
        self._names: set[tuple[str, int | None]] = set()
        self._vetted: dict[str, float] = {}
        for entry in filter(None, (one.strip() for one in allow.split(","))):
            self._read(entry)

    def _read(self, entry: str) -> None:
        with_port = _WITH_PORT.fullmatch(entry)
        host, port = (with_port[1].strip("[]"), int(with_port[2])) if with_port else (entry.strip("[]"), None)
        try:
            self._networks.append((ipaddress.ip_network(host, strict=False), port))
            return
        except ValueError:
            pass
        try:
            self._names.add((read_host(host), port))
        except InvalidPayload as error:
            raise ConfigurationError(
                f"http_allow (HOURHAND_HTTP_ALLOW): {entry!r} is no network, host name or host:port ({error})"
            ) from None

    def knows(self, host: str, port: int) -> bool:
        """Whether the operator vouches for this name."""
        return (host, None) in self._names or (host, port) in self._names

    def objection(self, host: str, port: int, address: Address) -> str | None:
        if isinstance(address, ipaddress.IPv6Address) and address in _NAT64:
            # How a network without IPv4 reaches a server without IPv6: what counts is where it ends.
            address = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        kind = special(address)
        if kind is None:
            return None
        for network, only in self._networks:
            # An entry for a wide network is not meant for the metadata in it.
            exact = address not in _METADATA or network.num_addresses == 1
            if exact and address in network and only in (None, port):
                return None
        return None if address not in _METADATA and self.knows(host, port) else kind

    def check_host(self, host: str, port: int) -> None:
        """What can be said without asking anybody."""
        address = literal(host)
        if address is not None:
            self.check(host, port, [address])
        elif host == "localhost" or host.endswith(".localhost"):
            # Nobody needs to be asked what these mean.
            self.check(host, port, [ipaddress.IPv4Address("127.0.0.1")])

    def check(self, host: str, port: int, addresses: Iterable[Address]) -> None:
        """Refuse a host if one of its addresses is refused: a mixed answer is no mistake to build on."""
        for address in addresses:
            kind = self.objection(host, port, address)
            if kind is not None:
                raise _refused(host, kind)

    async def vet(self, host: str, port: int) -> None:
        """The same for a name, as it resolves now. One that does not may do so later: the connection is checked anyway."""
        now = Clock.monotonic()
        if literal(host) is not None or self._vetted.get(f"{host}:{port}", 0.0) > now:
            return
        try:
            addresses = await asyncio.wait_for(lookup(host), VETTING)
        except (OSError, asyncio.TimeoutError):
            return
        self.check(host, port, addresses)
        if len(self._vetted) >= _MOST_REMEMBERED:
            self._vetted.clear()
        self._vetted[f"{host}:{port}"] = now + _REMEMBERED


def _refused(host: str, kind: str) -> AddressRefused:
    # Which address a name has inside this network is not told: who writes jobs need not know it.
    what = "is" if literal(host) is not None else "leads to"
    return AddressRefused(
        f"{host} {what} {kind} address. HTTP jobs call public addresses; exceptions are named in HOURHAND_HTTP_ALLOW"
    )


_lookups = threading.BoundedSemaphore(_MOST_LOOKUPS)


async def lookup(host: str) -> list[Address]:
    """The addresses of a name, by the machine's own resolver.

    Each lookup has a thread of its own: in a pool, names whose servers do not answer would keep all others waiting.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Address]] = loop.create_future()

    def settle(addresses: list[Address], error: Exception | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(addresses)

    def ask() -> None:
        addresses: list[Address] = []
        failure: Exception | None = None
        try:
            # As bytes, so that Python does not rewrite the name on its way.
            found = socket.getaddrinfo(host.encode("ascii"), None, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(ipaddress.ip_address(one[4][0]) for one in found))
        except Exception as error:
            failure = error if isinstance(error, OSError) else OSError(f"{host} cannot be resolved: {error}")
        finally:
            _lookups.release()
        with contextlib.suppress(RuntimeError):  # the loop is gone, and whoever asked with it
            loop.call_soon_threadsafe(settle, addresses, failure)

    if not _lookups.acquire(blocking=False):
        raise OSError(f"{_MOST_LOOKUPS} names are being resolved already")
    try:
        threading.Thread(target=ask, name="hourhand-lookup", daemon=True).start()
    except RuntimeError as error:
        _lookups.release()
        raise OSError(f"no thread to resolve {host} in: {error}") from None
    return await answer


class PinningResolver:
    """What aiohttp asks for addresses. It connects to those it is given and asks nobody else, so that a name cannot lead
    somewhere else between the check and the connection."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._asking: dict[str, asyncio.Future[list[Address]]] = {}

    async def resolve(self, host: str, port: int = 0, family: int = socket.AF_UNSPEC) -> list[dict[str, Any]]:
        addresses = await asyncio.shield(self._ask(host))
        self._guard.check(host, port, addresses)
        return [
            {
                "hostname": host, "host": str(one), "port": port, "proto": 0, "flags": socket.AI_NUMERICHOST,
                "family": socket.AF_INET if one.version == 4 else socket.AF_INET6,
            }
            for one in addresses
        ]  # fmt: skip

    def _ask(self, host: str) -> asyncio.Future[list[Address]]:
        """A name that many runs want at once is looked up once."""
        asking = self._asking.get(host)
        if asking is None:
            asking = self._asking[host] = asyncio.ensure_future(lookup(host))
            asking.add_done_callback(lambda done: self._answered(host, done))
        return asking

    def _answered(self, host: str, done: asyncio.Future[list[Address]]) -> None:
        del self._asking[host]
        if not done.cancelled():
            done.exception()  # seen, even if everybody who asked has gone

    async def close(self) -> None:
        for asking in list(self._asking.values()):
            asking.cancel()
