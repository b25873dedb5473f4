"""HTTP as uvicorn speaks it, with limits on what a caller may say, and for how long, before anybody knows who he is."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hourhand.surfaces.rest.problems import problem

LARGEST_HEAD = 64 * 1024
"""Bytes that may come without making a request's headers whole, or its body longer."""
MOST_HEADERS = 200
PATIENCE = 30.0
"""Seconds in which that has to happen."""


class BoundedProtocol(HttpToolsProtocol):
    """The parser itself takes headers of any size and any number, and waits for them for ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._taken = 0
        self._moved = False
        self._timer: asyncio.TimerHandle | None = self.loop.call_later(PATIENCE, self._refuse, "This takes too long.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._calm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._moved = False
        super().data_received(data)
        if self._moved:
            self._taken = 0
            self._calm()
            return
        self._taken += len(data)
        if self._taken > LARGEST_HEAD:
            self._refuse("The headers are too large.")
        elif self._timer is None:
            self._timer = self.loop.call_later(PATIENCE, self._refuse, "This takes too long.")

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MOST_HEADERS:
            raise ValueError(f"more than {MOST_HEADERS} headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._moved = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._moved = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._moved = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        answer = problem(400, msg, headers={"Connection": "close"})
        head = b"".join(b"%s: %s\r\n" % pair for pair in answer.raw_headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head + b"\r\n" + bytes(answer.body))
        self.transport.close()

    def _refuse(self, why: str) -> None:
        self._calm()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            self.send_400_response(why)
        else:
            self.transport.close()  # in the middle of another answer there is no room for one

    def _calm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
