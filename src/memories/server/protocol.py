"""uvicorn's HTTP protocol with bounds that it has not: on the size of a head, and on how long one may take.

It also refuses what only a proxy is sent: a request for an absolute URL, whose host would count and not the header's.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from memories.server.api.problems import TITLES, encoded

HEAD_SECONDS = 10.0
MAX_HEAD = 65_536
MAX_HEADERS = 100
MOST_REQUESTS = 256  # that have arrived whole and are being answered
MOST_CONNECTIONS = 512  # that are open; for one more, the oldest of those that wait for their client is closed
_MOST_JOINED = 65_536  # bytes


class _Joined:
    """A transport that sends at once what is written in one turn of the event loop: a head goes with its body.

    Each is a system call otherwise, and wakes the client.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._waiting: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send it at the end of this turn, or now if much waits, so that the transport can tell when it is too much."""
        if not self._waiting:
            self._loop.call_soon(self._send)
        self._waiting.append(data)
        self._size += len(data)
        if self._size > _MOST_JOINED:
            self._send()

    def close(self) -> None:
        """Send what was written, then close."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        data, self._waiting, self._size = b"".join(self._waiting), [], 0
        if data and not self._transport.is_closing():
            self._transport.write(data)


class Protocol(HttpToolsProtocol):
    """One connection; give it to uvicorn as `http`."""

    _opened_at = 0.0
    _timer: asyncio.TimerHandle | None = None
    _in_head, _refused, _fed = False, False, 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head."""
        super().connection_made(_Joined(transport, self.loop))  # type: ignore[arg-type]
        self._opened_at = self.loop.time()
        self._begin()
        if len(self.connections) > MOST_CONNECTIONS:
            min(self._waiting(), key=lambda each: each._opened_at).transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, and refuse a head without an end."""
        if self._refused:
            return
        begun = self._in_head
        self._fed += len(data)
        super().data_received(data)
        if begun and self._in_head and not self._refused and self._fed > MAX_HEAD:
            self._refuse(431, f"the head of the request has more than {MAX_HEAD} bytes")

    def on_message_begin(self) -> None:
        """Begin a head."""
        super().on_message_begin()
        if not self._in_head:
            self._begin()

    def on_headers_complete(self) -> None:
        """Judge a head, and pass it on."""
        self._stop()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            self._refuse(400, "this server speaks HTTP/1.1")
        elif not self.url.startswith(b"/"):
            self._refuse(400, "the request must name a path of this server, not a URL")
        elif size > MAX_HEAD or len(self.headers) > MAX_HEADERS:
            self._refuse(431, f"the head has more than {MAX_HEAD} bytes, or more than {MAX_HEADERS} headers")
        elif len(self.tasks) >= MOST_REQUESTS and self._is_full() and self.url != b"/health":
            self._refuse(503, f"{MOST_REQUESTS} requests are being answered; try again in a second")
        elif not self._refused:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass a piece of a body on."""
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Pass the end of a request on."""
        if not self._refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  # noqa: ARG002
        """Refuse what is not HTTP."""
        self._refuse(400, "the request is not HTTP/1.1")

    def _waiting(self) -> "list[Protocol]":
        """Return the connections whose clients have yet to send something: a head, a body, another request."""
        ours = (each for each in self.connections if isinstance(each, Protocol))
        return [each for each in ours if not each._is_busy or each.cycle.more_body]

    def _is_full(self) -> bool:
        return len(self.connections) - len(self._waiting()) >= MOST_REQUESTS

    @property
    def _is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _begin(self) -> None:
        self._in_head, self._fed = True, 0
        self._timer = self.loop.call_later(HEAD_SECONDS, self._refuse, 408, "the head did not arrive in time")

    def _stop(self) -> None:
        self._in_head = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: int, detail: str) -> None:
        self._stop()
        self._refused = True
        shape: dict[str, Any] = {"type": "about:blank", "title": TITLES[status], "status": status, "detail": detail}
        body = encoded(shape | {"error": detail})
        wait = b"retry-after: 1\r\n" if status == 503 else b""
        kind = b"content-type: application/problem+json\r\nconnection: close\r\n"
        head = b"%s%scontent-length: %d\r\n\r\n" % (kind, wait, len(body))
        if not self.transport.is_closing():
            if not self._is_busy:  # an answer that has begun can't be followed by another one
                self.transport.write(STATUS_LINE[status] + head + body)
            self.transport.close()
