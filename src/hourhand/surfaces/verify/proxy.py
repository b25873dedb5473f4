"""A TCP proxy between one process and PostgreSQL: the network that process is cut off by."""

from __future__ import annotations

import asyncio
import ssl
import struct
from types import TracebackType
from urllib.parse import parse_qs, unquote, urlencode, urlsplit, urlunsplit

from hourhand.surfaces.verify.pair import PIECE, Pair, Streams, reset_connection
from hourhand.surfaces.verify.passage import Counters, Matching, Mode, Order, Passage
from hourhand.surfaces.verify.wire import SSL_REQUEST

_CONNECT_TIMEOUT = 10.0
_TLS_PLEASE = struct.pack("!II", 8, SSL_REQUEST)


class Proxy:
    """Listens on 127.0.0.1, on a port of its own. A host that starts with / is the directory of a Unix socket.

    The mode may be changed at any time; it holds for the connections that stand and for new ones. A new `upstream`
    holds for new connections only. With `tls`, the way to the server is encrypted and the way to the client is not.
    """

    def __init__(self, host: str, port: int = 5432, *, tls: ssl.SSLContext | None = None) -> None:
        self.upstream: tuple[str, int] = (host, port)
        self.port = 0
        self._tls = tls
        self._passage = Passage()
        self._pairs: set[Pair] = set()
        self._server: asyncio.Server | None = None

    @classmethod
    def to(cls, url: str) -> Proxy:
        """A proxy in front of the server that a database URL names, encrypted if the URL asks for it."""
        return cls(*address_of(url), tls=_encryption_of(url))

    def url(self, url: str) -> str:
        """The same database as `url`, through this proxy."""
        return reroute(url, "127.0.0.1", self.port)

    async def start(self) -> int:
        """Listen; the port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=PIECE)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self.port

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            pairs = list(self._pairs)
            self.reset()  # those, too, that are accepted but not served yet
            for pair in pairs:
                await pair.ended.wait()
            await self._server.wait_closed()
            self._server = None

    async def __aenter__(self) -> Proxy:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @property
    def mode(self) -> Mode:
        return self._passage.mode

    @property
    def counters(self) -> Counters:
        return self._passage.counters

    @property
    def standing(self) -> int:
        """How many connections stand now."""
        return len(self._pairs)

    def upstream_ports(self) -> list[int]:
        """The ports from which the server sees our connections come."""
        return [port for pair in self._pairs if (port := pair.upstream_port) is not None]

    def passing(self) -> None:
        """Heal. What a black hole held is delivered, late, as TCP would: a statement may reach the server long after
        its client has given up on it."""
        self._passage.switch(Mode.passing)

    def blackhole(self) -> None:
        """Nothing arrives, in either direction; connections stay, and new ones are accepted and hear nothing."""
        self._passage.switch(Mode.blackhole)

    def reset(self) -> None:
        """Every connection is reset now, and every new one at once."""
        self._passage.switch(Mode.reset)
        for pair in self._pairs:
            self.counters.dropped += 1
            pair.reset()

    def delay(self, seconds: float) -> None:
        """Everything arrives that much later, each way."""
        self._passage.switch(Mode.delay, delay=seconds)

    def cut_after_commit(self, times: int = 1, *, answered: bool = False, matching: Matching | None = None) -> None:
        """Let the next commits through and cut the connection instead of delivering the answer.

        `answered`: cut when the server has answered, so that it certainly has committed; a statement that fails is answered
        as usual and does not count. Otherwise: cut as soon as the commit is sent, while the server may still be at it.
        `matching` looks at each statement of the transaction. After that many times, the proxy passes everything again.
        """
        self._passage.switch(Mode.cut_after_commit, order=Order(times, answered, matching))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counters.connections += 1
        if self.mode is Mode.reset:
            self.counters.dropped += 1
            reset_connection(writer)
            return
        pair = Pair(self._passage, (reader, writer), self._connect)
        self._pairs.add(pair)
        try:
            await pair.run()
        finally:
            self._pairs.discard(pair)

    async def _connect(self) -> Streams:
        host, port = self.upstream
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            if host.startswith("/"):
                return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}", limit=PIECE)
            reader, writer = await asyncio.open_connection(host, port, limit=PIECE)
            if self._tls is not None:
                try:
                    writer.write(_TLS_PLEASE)
                    if await reader.readexactly(1) != b"S":
                        raise ConnectionError("the server does not offer TLS")
                    await writer.start_tls(self._tls, server_hostname=host)
                except BaseException:
                    writer.transport.abort()
                    raise
            return reader, writer


def address_of(url: str) -> tuple[str, int]:
    """Host and port of a database URL; of several, the first. The host may be a Unix socket's directory."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    first = parts.netloc.rpartition("@")[2].split(",")[0] or query.get("host", ["127.0.0.1"])[0].split(",")[0]
    named = urlsplit(f"//{first}") if not first.startswith("/") else None
    port = (named and named.port) or int(query.get("port", ["5432"])[0].split(",")[0])
    return (unquote(named.hostname or "127.0.0.1") if named else first), port


def reroute(url: str, host: str, port: int) -> str:
    """The same user and database somewhere else, and without encryption."""
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    kept = {
        name: values[-1]
        for name, values in parse_qs(parts.query).items()
        if name not in ("host", "port", "hostaddr") and not name.startswith("ssl")
    }
    return urlunsplit((parts.scheme, f"{user}{at}{host}:{port}", parts.path, urlencode(kept), ""))


def _encryption_of(url: str) -> ssl.SSLContext | None:
    query = parse_qs(urlsplit(url).query)
    mode = query.get("sslmode", query.get("ssl", ["prefer"]))[0]
    if mode not in ("require", "verify-ca", "verify-full", "true"):
        return None
    context = ssl.create_default_context(cafile=query.get("sslrootcert", [None])[0])
    context.check_hostname = mode == "verify-full"
    if not mode.startswith("verify"):
        context.verify_mode = ssl.CERT_NONE
    return context
