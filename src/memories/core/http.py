"""JSON over HTTP: pooled connections, deadlines, proxies, and another try where it may help.

It stands on the standard library: other HTTP libraries, and the servers' own clients, take 0.3 to 2
s to import. What a server's answers mean is for those who ask it.
"""

import contextlib
import http.client
import json
import random
import socket
import ssl
import threading
import time
import weakref
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from memories.core.disk import ForkGuard
from memories.core.urls import is_loopback
from memories.languages.unseen import is_unseen

CONNECT_SECONDS = 10.0
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 20.0  # between tries
_IDLE = 16  # connections that are kept for the next request
_QUOTED = 200  # characters of what a server said, in a message
_LEAST_SECRET = 8  # characters; a shorter one is no key, and would be found in any sentence
_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json",
    "User-Agent": "memories",
}
_STALE = (
    http.client.RemoteDisconnected,
    ConnectionResetError,
    BrokenPipeError,
    http.client.CannotSendRequest,
)

Value = TypeVar("Value")


class Address(NamedTuple):
    """Where a server is.

    Attributes:
        product: The name of the program, for messages.
        host: Its name or IP address.
        port: Its port.
        tls: Whether it speaks TLS.
        headers: Sent with each request, such as a key; never shown.
        hint: What may be wrong if it can't be reached: a sentence.
        proxies: Whether the proxies that the environment names are used.
    """

    product: str
    host: str
    port: int
    tls: bool
    headers: Mapping[str, str] = MappingProxyType({})
    hint: str = ""
    proxies: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.product} at {host}:{self.port}"

    def quoted(self, said: str) -> str:
        """Return what the server said, for a message: on one line, short, without a key of ours or
        a full stop.
        """
        for value in self.headers.values():
            secret = value.rpartition(" ")[2]
            if len(secret) >= _LEAST_SECRET:
                said = said.replace(secret, "***")
        line = "".join(sign for sign in " ".join(said.split()) if not is_unseen(sign)).rstrip(".")
        return line if len(line) <= _QUOTED else f"{line[:_QUOTED]}…"


class Answer(NamedTuple):
    """What a server answered.

    Attributes:
        status: Whatever it is.
        value: The JSON of the body, or its text if it is something else.
        headers: By their names in lower case.
    """

    status: int
    value: Any
    headers: Mapping[str, str] = MappingProxyType({})

    @property
    def retry_after(self) -> float:
        """How many seconds the server asks to wait; 0 if it does not say."""
        given = self.headers.get("retry-after", "").strip()
        if given.replace(".", "", 1).isdigit() and given.isascii():
            return float(given)
        try:
            return max(0.0, parsedate_to_datetime(given).timestamp() - time.time())
        except (ValueError, OverflowError):
            return 0.0


class NoAnswer(ConnectionError):
    """A server did not answer; the message says why, and the cause is the original error.

    Attributes:
        sent: Whether the request may have arrived and been carried out.
        sent_before: Whether that holds for an earlier try, on a connection that was kept.
    """

    sent_before = False

    def __init__(self, reason: str, *, sent: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent


class TimedOut(NoAnswer):
    """The time was over."""


class Unusable(NoAnswer):
    """The certificate, the proxy or an endless answer can't be used; trying again does not help."""


class JsonClient:
    """Sends requests to one server. Threads and forked processes may share it; nothing is opened
    before a request.
    """

    def __init__(self, address: Address, *, max_bytes: int | None = None) -> None:
        """Prepare.

        Args:
            address: Where requests go.
            max_bytes: How large an answer may be.
        """
        self.address = address
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._guard = ForkGuard()
        self._idle: list[_Line] = []
        self._closed = False
        weakref.finalize(self, _hang_up, self._idle)

    def ask(
        self, method: str, path: str, body: Any = None, *, seconds: float, whole: bool = False
    ) -> Answer:
        """Send a request and return the answer.

        It is sent a second time if a connection that was kept turns out to be dead, as after a
        restart of the server. So send only what does no harm when it is done twice.

        Args:
            method: As in HTTP.
            path: With the query.
            body: What is sent as JSON; None for nothing.
            seconds: How long to wait for each piece of the answer.
            whole: Whether that is instead for the whole answer, connecting included.

        Raises:
            NoAnswer: There is none.
        """
        data = (
            None
            if body is None
            else json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        )
        until = time.monotonic() + seconds if whole else None
        line = self._take()
        kept = line.connection.sock is not None
        try:
            try:
                answer = self._exchange(line, method, path, data, seconds, until)
            except NoAnswer as exc:
                if not kept or isinstance(exc, TimedOut) or not isinstance(exc.__cause__, _STALE):
                    raise
                line.connection.close()
                self._drop_idle()  # they are as old
                try:
                    answer = self._exchange(line, method, path, data, seconds, until)
                except NoAnswer as again:
                    again.sent_before = True
                    raise
        except BaseException:
            line.connection.close()
            raise
        with self._lock:
            keep = not self._closed and line.connection.sock is not None and len(self._idle) < _IDLE
            if keep:
                self._idle.append(line)
        if not keep:
            line.connection.close()
        return answer

    def close(self) -> None:
        """Close the connections; one in use is closed after its answer."""
        self._closed = True
        self._drop_idle()

    def _take(self) -> "_Line":
        """Return a connection that nobody else uses; a forked process never uses its parent's."""
        with self._lock:
            if self._guard.forked:
                self._guard = ForkGuard()
                _hang_up(self._idle)  # this process's hold on them; the parent goes on using them
            if self._idle:
                return self._idle.pop()
        return _line(self.address)

    def _drop_idle(self) -> None:
        with self._lock:
            _hang_up(self._idle)

    def _exchange(
        self,
        line: "_Line",
        method: str,
        path: str,
        data: bytes | None,
        seconds: float,
        until: float | None,
    ) -> Answer:
        connection, sent = line.connection, False
        left = seconds if until is None else max(0.001, until - time.monotonic())
        try:
            if connection.sock is None:
                _connect(connection, left if until is not None else min(CONNECT_SECONDS, left))
            connection.sock.settimeout(left)
            sent = True
            with contextlib.nullcontext() if until is None else _cut_off(connection.sock, left):
                headers = {**_HEADERS, **self.address.headers, **line.headers}
                connection.request(method, line.prefix + path, data, headers)
                response = connection.getresponse()
                body = response.read(None if self._max_bytes is None else self._max_bytes + 1)
            if self._max_bytes is not None and len(body) > self._max_bytes:
                raise Unusable(f"answered with more than {self._max_bytes} bytes", sent=True)
            if response.length:
                raise http.client.IncompleteRead(body, response.length)
        except NoAnswer:
            raise
        except ssl.SSLCertVerificationError as exc:
            raise Unusable(f"can't be trusted: {exc.verify_message}") from exc
        except (OSError, http.client.HTTPException, ValueError) as exc:
            if isinstance(exc, TimeoutError) or (until is not None and time.monotonic() >= until):
                raise TimedOut(f"did not answer within {seconds:.3g} seconds", sent=sent) from exc
            raise NoAnswer(
                getattr(exc, "strerror", None) or str(exc) or type(exc).__name__, sent=sent
            ) from exc
        if response.will_close:
            connection.close()
        return Answer(
            response.status,
            _value(body),
            {name.lower(): value for name, value in response.getheaders()},
        )


class _Line(NamedTuple):
    """A connection, open or not; a prefix of paths, and headers, for a proxy that passes requests
    on.
    """

    connection: http.client.HTTPConnection
    prefix: str = ""
    headers: Mapping[str, str] = MappingProxyType({})


def _line(address: Address) -> _Line:
    """Return a connection that is not open yet: to the server, or to the proxy that the environment
    names.
    """
    kind = http.client.HTTPSConnection if address.tls else http.client.HTTPConnection
    proxy = _proxy(address) if address.proxies else None
    if proxy is None:
        return _Line(kind(address.host, address.port))
    connection = kind(proxy.hostname or "", proxy.port or 80)
    credentials = {}
    if proxy.username is not None:
        pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
        credentials["Proxy-Authorization"] = f"Basic {b64encode(pair).decode()}"
    if not address.tls:
        port = "" if address.port == 80 else f":{address.port}"
        return _Line(connection, f"http://{address.host}{port}", credentials)
    connection.set_tunnel(address.host, address.port, credentials)
    return _Line(connection)


def _proxy(address: Address) -> SplitResult | None:
    from urllib.request import getproxies, proxy_bypass

    scheme = "https" if address.tls else "http"
    given = getproxies().get(scheme)
    if not given or is_loopback(address.host) or proxy_bypass(address.host):
        return None
    proxy = urlsplit(given if "://" in given else f"http://{given}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise Unusable(
            f"can't be reached: {scheme}_proxy must be http://host:port, the only kind that is supported"
        )
    return proxy


def _connect(connection: http.client.HTTPConnection, seconds: float) -> None:
    """Connect within a time.

    The timeout of a socket bounds neither name servers nor what a server sends byte by byte. So
    this is done in a thread, which is left behind when the time is over.
    """
    failed: list[Exception] = []
    left_behind = threading.Event()

    def connect() -> None:
        try:
            connection.connect()
        except Exception as exc:  # noqa: BLE001 - raised below
            failed.append(exc)
        if left_behind.is_set():
            connection.close()

    connection.timeout = seconds
    thread = threading.Thread(target=connect, daemon=True, name="memories-connect")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        left_behind.set()
        raise TimeoutError
    if failed:
        raise failed[0]


@contextlib.contextmanager
def _cut_off(sock: socket.socket, seconds: float) -> Iterator[None]:
    """Cut a connection off when the time is over: one that brings a byte now and then never times
    out.
    """

    over = threading.Event()

    def cut() -> None:
        over.set()
        with contextlib.suppress(OSError):  # it is closed already
            socket.socket.shutdown(
                sock, socket.SHUT_RDWR
            )  # TLS's own would wait for the other side

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    if over.is_set():
        raise TimeoutError  # headers that were cut off look like an answer without a body


def _value(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):  # somebody else's page
        return body.decode("utf-8", "replace")


def _hang_up(lines: list[_Line]) -> None:
    while lines:
        lines.pop().connection.close()


# --- trying again
# -----------------------------------------------------------------------------------------------------


class Failed(Exception):
    """A try failed, and another one may help.

    Attributes:
        tries: How often it is worth trying, in all.
        after_seconds: How long the server asks to wait before.
        quoted: The part of the reason that the server wrote.
    """

    def __init__(
        self, reason: str, *, tries: int = 1, after_seconds: float = 0.0, quoted: str = ""
    ) -> None:
        super().__init__(reason)
        self.tries, self.after_seconds, self.quoted = tries, after_seconds, quoted


class Retry(NamedTuple):
    """Tries again after pauses that double; chance sets them apart, so that clients don't all
    return at once.
    """

    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    draw: Callable[[], float] = random.random

    def run(
        self,
        attempt: Callable[[float], Value],
        seconds: float,
        total_seconds: float,
        *,
        tries: int | None = None,
    ) -> Value:
        """Return what an attempt returns, which is told how many seconds it has.

        Args:
            attempt: Raises `Failed` if it may be made again.
            seconds: For one attempt.
            total_seconds: For all of them, and the pauses between them.
            tries: How many at most. [default: as many as may help]

        Raises:
            Failed: The last one failed; the message says how often it was tried, and when to try
                again.
        """
        until = self.clock() + total_seconds
        made = 0
        while True:
            made += 1
            try:
                return attempt(min(seconds, max(0.01, until - self.clock())))
            except Failed as exc:
                doubled = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (made - 1))
                wait = max(exc.after_seconds, doubled * (1 + self.draw()) / 2)
                if made >= min(exc.tries, tries or exc.tries) or self.clock() + wait >= until:
                    then = (
                        f"; tried {made} times, try again later"
                        if made > 1
                        else "; try again later"
                    )
                    if 0 < exc.after_seconds == wait:
                        then = f"; it asks to wait {wait:.0f} seconds"
                    said = f"{exc}{then if exc.tries > 1 else ''}"
                    raise Failed(said, after_seconds=exc.after_seconds, quoted=exc.quoted) from exc
            self.pause(wait)
