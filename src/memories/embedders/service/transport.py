"""One POST of JSON to a service, and its JSON answer, within a bounded time; tried again where that may help."""

import contextlib
import http.client
import json
import os
import random
import socket
import ssl
import threading
import time
import weakref
from base64 import b64encode
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from memories.embedders.protocol import EmbedderUnavailable
from memories.embedders.service.providers import Patience, Service, is_loopback
from memories.errors import EmbedderError
from memories.validate import shown

MAX_ANSWER_BYTES = 64 * 1_048_576
MAX_TRIES = 8
MAX_KNOCKS = 3  # where nobody listens
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 20.0
_IDLE = 4  # connections that are kept for the next request
_LEAST_KEY = 8  # characters; a shorter one is no key, and would be found in any sentence
_SAID = 200  # characters of what a service said, in a message
_STALE = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)

Value = TypeVar("Value")


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class _Failure(NamedTuple):
    """Why there is no answer.

    Attributes:
        message: One sentence.
        lasting: It is not the service that can't be had; asking later does not help.
        again: Trying again at once may help.
        after_seconds: How long the service asks to wait before.
        tries: How often it is tried at most.
    """

    message: str
    lasting: bool = False
    again: bool = False
    after_seconds: float | None = None
    tries: int = MAX_TRIES


class Transport:
    """Speaks to one service; threads and forked processes may share it. Nothing is opened before the first request."""

    def __init__(
        self,
        service: Service,
        *,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Prepare it.

        Args:
            service: Where the requests go.
            pause: Waits for so many seconds.
            clock: Returns seconds that only ever grow.
            draw: Returns a number from 0 to 1, so that those who were refused together don't come back together.
        """
        self.service = service
        self._pause, self._clock, self._draw = pause, clock, draw
        self._idle: list[Line] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()
        weakref.finalize(self, _hang_up, self._idle)

    def post(self, body: Mapping[str, Any], patience: Patience, read: Callable[[Any], Value]) -> Value:
        """Post a request and return what its answer holds.

        Args:
            body: The request.
            patience: How long is waited; `total` is a bound for the whole call.
            read: Takes what is wanted out of the answer; raises LookupError, TypeError or ValueError if it isn't there.

        Raises:
            EmbedderUnavailable: The service can't be had now.
            EmbedderError: It refused the request, or answered with something else.
        """
        data = json.dumps(body).encode()
        until = self._clock() + patience.total
        tries = 0
        while True:
            tries += 1
            answer = self._within(data, min(patience.request, max(0.01, until - self._clock())))
            if isinstance(answer, _Answer):
                if len(answer.body) > MAX_ANSWER_BYTES:
                    raise EmbedderError(f"{self.service.shown} answered with more than {MAX_ANSWER_BYTES} bytes")
                if answer.status == http.HTTPStatus.OK:
                    return self._read(answer, read)
                answer = self._judge(answer)
            if answer.lasting:
                raise EmbedderError(answer.message)
            seconds = self._pause_before(tries, answer)
            if not answer.again or tries >= answer.tries or self._clock() + seconds >= until:
                raise EmbedderUnavailable(answer.message + _tried(tries, seconds, answer))
            self._pause(seconds)

    def _pause_before(self, tries: int, failure: _Failure) -> float:
        doubled: float = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (tries - 1))
        return max(failure.after_seconds or 0.0, doubled * (1 + self._draw()) / 2)

    def _within(self, data: bytes, seconds: float) -> _Answer | _Failure:
        """Ask once, for so many seconds.

        A name server, or a server that sends a byte a minute, would hold us for longer than the timeout of a socket. So
        it is asked in a thread, which is left behind when the time is over, and ends when its connection is cut.
        """
        asking = _Asking(self, data, seconds)
        asking.start()
        asking.join(seconds)
        if asking.is_alive() or isinstance(asking.failed, TimeoutError):
            asking.cut()
            return _Failure(f"{self.service.shown} did not answer within {seconds:.3g} seconds", again=True)
        if isinstance(asking.failed, ssl.SSLCertVerificationError):
            return _Failure(f"{self.service.shown} can't be trusted: {asking.failed.verify_message}", lasting=True)
        if isinstance(asking.failed, EmbedderError):
            raise asking.failed
        if asking.failed is not None:
            said = str(asking.failed) or type(asking.failed).__name__
            nobody = isinstance(asking.failed, ConnectionRefusedError | socket.gaierror)
            message = f"{self.service.shown} can't be reached: {self._quoted(said)}"
            return _Failure(message, again=True, tries=MAX_KNOCKS if nobody else MAX_TRIES)
        if asking.answer is None:
            raise EmbedderError(f"the request to {self.service.shown} failed; its error was printed")
        return asking.answer

    def take(self) -> "tuple[Line, bool]":
        """Return a line to the service, and whether it was in use before."""
        with self._lock:
            if self._pid != os.getpid():
                _hang_up(self._idle)  # the parent speaks there
                self._pid = os.getpid()
            if self._idle:
                return self._idle.pop(), True
        return _line(urlsplit(self.service.url)), False

    def give(self, line: "Line") -> None:
        """Keep a line, whose answer was read, for the next request."""
        with self._lock:
            if len(self._idle) < _IDLE:
                self._idle.append(line)
                return
        line.connection.close()

    def close(self) -> None:
        """Close the lines that are kept; they are opened again when they are needed."""
        with self._lock:
            _hang_up(self._idle)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request."""
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "memories"}
        key = self.service.key
        return headers | ({"Authorization": f"Bearer {key.reveal()}"} if key else {})

    def _read(self, answer: _Answer, read: Callable[[Any], Value]) -> Value:
        try:
            return read(json.loads(answer.body))
        except (LookupError, TypeError, ValueError, RecursionError):
            kind = answer.headers.get("content-type", "").partition(";")[0] or "something"
            said = self._said(answer.body)
            because = f" ({said})" if said else ""
            raise EmbedderError(
                f"{self.service.shown} answered with {shown(kind)} that holds no vectors{because}; check EMBEDDER_URL"
            ) from None

    def _judge(self, answer: _Answer) -> _Failure:
        """Return what an answer without vectors means."""
        name, status = self.service.shown, answer.status
        said = self._said(answer.body)
        because = f": {said}" if said else ""
        if status in (401, 403):
            what = "refused the key" if self.service.key else "wants a key"
            return _Failure(f"{name} {what} ({status}){because}; set {self.service.key_from}")
        if status == 404:
            message = f"{name} does not know the address or the model {self.service.model} ({status}){because}"
            return _Failure(f"{message}; check EMBEDDER and EMBEDDER_URL", lasting=True)
        if status == 429 and b"insufficient_quota" in answer.body:
            return _Failure(f"{name} says that the account has no credit left ({status}){because}")
        if status in (408, 425, 429) or status >= 500:
            what = "is asked too often" if status == 429 else "is unwell"
            after = _retry_after(answer.headers.get("retry-after", ""))
            return _Failure(f"{name} {what} ({status}){because}", again=True, after_seconds=after)
        if 300 <= status < 400:
            to = shown(answer.headers.get("location", "elsewhere"))
            message = f"{name} points to {to}, and a key is never sent on; set EMBEDDER_URL to where it is"
            return _Failure(message, lasting=True)
        return _Failure(f"{name} refused the request ({status}){because}", lasting=True)

    def _said(self, body: bytes) -> str:
        """Return what a service says of its refusal, short, in one line."""
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            return ""
        if not isinstance(answer, dict):
            return ""
        said = next((answer[name] for name in ("error", "message", "detail") if answer.get(name)), "")
        said = said.get("message", "") if isinstance(said, dict) else said
        return self._quoted(said) if isinstance(said, str) else ""

    def _quoted(self, said: str) -> str:
        """Return text of others for a message: without the key, on one line, short, without a full stop."""
        key = self.service.key.reveal() if self.service.key else ""
        line = " ".join((said.replace(key, "***") if len(key) >= _LEAST_KEY else said).split())
        line = "".join(sign for sign in line if sign.isprintable()).rstrip(".")
        return line if len(line) <= _SAID else f"{line[:_SAID]}…"


class Line(NamedTuple):
    """A connection, open or not, and what requests on it need if a proxy passes them on.

    Attributes:
        connection: To the service or the proxy.
        prefix: Stands before the path.
        headers: For the proxy.
    """

    connection: http.client.HTTPConnection
    prefix: str = ""
    headers: Mapping[str, str] = MappingProxyType({})


class _Asking(threading.Thread):
    """One request; `answer` or `failed` is there when it has ended."""

    def __init__(self, transport: Transport, data: bytes, seconds: float) -> None:
        super().__init__(daemon=True, name="memories-embedder")
        self.answer: _Answer | None = None
        self.failed: OSError | http.client.HTTPException | ValueError | EmbedderError | None = None
        self._transport, self._data, self._seconds = transport, data, seconds
        self._connection: http.client.HTTPConnection | None = None
        self._left = False

    def run(self) -> None:
        """Ask; a second time if a kept connection turns out to be closed, which says nothing about the service."""
        try:
            line, reused = self._transport.take()
            try:
                self.answer = self._ask(line)
            except _STALE:
                if not reused:
                    raise
                self._transport.close()
                self.answer = self._ask(self._transport.take()[0])
        except (OSError, http.client.HTTPException, ValueError, EmbedderError) as exc:
            self.failed = exc

    def cut(self) -> None:
        """Cut the connection, under the thread that waits for it."""
        self._left = True
        sock = None if self._connection is None else self._connection.sock
        if sock is not None:
            with contextlib.suppress(OSError):  # it is closed already
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # TLS's own would wait for the other side

    def _ask(self, line: Line) -> _Answer:
        connection = self._connection = line.connection
        try:
            self._open(connection)
            url = urlsplit(self._transport.service.url)
            target = line.prefix + (f"{url.path}?{url.query}" if url.query else url.path)
            connection.request("POST", target, self._data, {**self._transport.headers, **line.headers})
            response = connection.getresponse()
            body = response.read(MAX_ANSWER_BYTES + 1)
            if response.length and len(body) <= MAX_ANSWER_BYTES:
                raise http.client.IncompleteRead(body, response.length)
        except BaseException:
            connection.close()
            raise
        if response.will_close or response.length:
            connection.close()
        else:
            self._transport.give(line)
        return _Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, body)

    def _open(self, connection: http.client.HTTPConnection) -> None:
        connection.timeout = self._seconds
        if connection.sock is None:
            connection.connect()
        else:
            connection.sock.settimeout(self._seconds)
        if self._left:
            raise TimeoutError  # nobody waits any more, so the text stays here


def _line(url: SplitResult) -> Line:
    """Return a line that is not open yet: to the service, or to the proxy that the environment names."""
    host = url.hostname or ""
    port = url.port or (443 if url.scheme == "https" else 80)
    proxy = _proxy(url.scheme, host)
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    if proxy is None:
        return Line(kind(host, port))
    connection = kind(proxy.hostname or "", proxy.port or 80)
    if url.scheme != "https":
        return Line(connection, f"http://{url.netloc}", _credentials(proxy))
    connection.set_tunnel(host, port, _credentials(proxy))
    return Line(connection)


def _hang_up(lines: list[Line]) -> None:
    while lines:
        lines.pop().connection.close()


def _proxy(scheme: str, host: str) -> SplitResult | None:
    if is_loopback(host):
        return None
    from urllib.request import getproxies, proxy_bypass

    given = getproxies().get(scheme)
    if not given or proxy_bypass(host):
        return None
    proxy = urlsplit(given if "://" in given else f"http://{given}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise EmbedderError(f"{scheme}_proxy must be http://host:port; an embedder knows no other proxies")
    return proxy


def _credentials(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {b64encode(pair).decode()}"}


def _retry_after(given: str) -> float | None:
    """Return how many seconds a service asks to wait: it says a number, or a date."""
    given = given.strip()
    if given.replace(".", "", 1).isdigit() and given.isascii():
        return float(given)
    try:
        return max(0.0, parsedate_to_datetime(given).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _tried(tries: int, seconds: float, failure: _Failure) -> str:
    """Return the end of a message: how often it was tried, and when to try again."""
    if not failure.again:
        return ""
    if failure.after_seconds and failure.after_seconds >= seconds:
        return f"; it asks to wait {failure.after_seconds:.0f} seconds"
    return f"; tried {tries} times, try again later" if tries > 1 else "; try again later"
