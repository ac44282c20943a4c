"""JSON over HTTP: pooled connections, time limits, proxies, and retries.

Network stores and embedding services use it. Hooks never do, and neither do commands with a SQLite
store. Callers interpret the responses.
"""

import json
import random
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3

from memories.core.deadline import MemoryTimeout, run_once
from memories.core.disk import ForkGuard
from memories.core.urls import is_loopback
from memories.errors import ConfigError
from memories.languages import is_unseen

CONNECT_SECONDS = 10.0
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 20.0  # between attempts
_POOL_SIZE = 64  # maximum number of idle connections
_CHUNK_BYTES = 1_048_576
_MAX_QUOTE = 200  # maximum number of characters quoted from a server's message
_MIN_SECRET = 8  # minimum length of a key to mask; a shorter one may occur in any sentence
_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json",
    "User-Agent": "memories",
}

Value = TypeVar("Value")


class Address(NamedTuple):
    """A server's address.

    Attributes:
        product: The name of the program, for messages.
        host: Its name or IP address.
        port: Its port.
        tls: Whether the server uses TLS.
        headers: Headers for each request, such as a key; never shown.
        hint: A sentence that says what to check if the server can't be reached.
        proxies: Whether to use the proxies configured in the environment.
    """

    product: str
    host: str
    port: int
    tls: bool
    headers: Mapping[str, str] = MappingProxyType({})
    hint: str = ""
    proxies: bool = False

    def __str__(self) -> str:
        return f"{self.product} at {self.url_host}:{self.port}"

    @property
    def url_host(self) -> str:
        """The host in the form that URLs use: an IPv6 address is in brackets."""
        if ":" in self.host:
            return f"[{self.host}]"
        return self.host

    @property
    def url(self) -> str:
        """The server's base URL; a default port is omitted."""
        scheme, default_port = ("https", 443) if self.tls else ("http", 80)
        port = ""
        if self.port != default_port:
            port = f":{self.port}"
        return f"{scheme}://{self.url_host}{port}"

    def quoted(self, text: str) -> str:
        """Return a server's text as one short line for an error message, with our keys masked."""
        for value in self.headers.values():
            secret = value.rpartition(" ")[2]
            if len(secret) >= _MIN_SECRET:
                text = text.replace(secret, "***")
        line = " ".join(text.split())
        line = "".join(character for character in line if not is_unseen(character)).rstrip(".")
        if len(line) <= _MAX_QUOTE:
            return line
        return f"{line[:_MAX_QUOTE]}…"


class ServerResponse(NamedTuple):
    """A server's response.

    Attributes:
        status: The HTTP status code, which the caller must check.
        value: The JSON of the body, or its text if it isn't JSON.
        headers: The headers, keyed by name in lower case.
        sent_before: As in `NoAnswer`.
    """

    status: int
    value: Any
    headers: Mapping[str, str] = MappingProxyType({})
    sent_before: bool = False

    @property
    def retry_after(self) -> float:
        """The number of seconds that the server asks us to wait; 0 by default."""
        value = self.headers.get("retry-after", "").strip()
        if value.replace(".", "", 1).isdigit() and value.isascii():
            return float(value)
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
        except (ValueError, OverflowError):
            return 0.0


class NoAnswer(ConnectionError):
    """The server did not respond. The message says why, and `__cause__` is the original error.

    Attributes:
        sent: Whether the request may have arrived and been carried out.
        sent_before: The same for an earlier attempt, whose connection broke.
    """

    sent_before = False

    def __init__(self, reason: str, *, sent: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent


class TimedOut(NoAnswer):
    """The server did not respond in time."""


class Unusable(NoAnswer):
    """Retrying won't help: a certificate or proxy is wrong, or the response is too large."""


class JsonClient:
    """Sends requests to one server. Threads and forked processes may share it.

    Nothing is opened before the first request.
    """

    def __init__(self, address: Address, *, max_bytes: int | None = None) -> None:
        """Initialize a client.

        Args:
            address: The server.
            max_bytes: The maximum size of a response.

        Raises:
            ConfigError: The name of the host is invalid.
        """
        try:
            urllib3.util.parse_url(address.url)
        except urllib3.exceptions.LocationParseError as exc:
            raise ConfigError(
                f"the URL of {address.product} must contain a host name or an IP address, not "
                f'"{address.host}"'
            ) from exc
        self.address = address
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._guard = ForkGuard()
        self._pool: urllib3.PoolManager | None = None

    def ask(
        self, method: str, path: str, body: Any = None, *, seconds: float, whole: bool = False
    ) -> ServerResponse:
        """Send a request and return the response.

        If a connection kept from an earlier request is broken, for example because the server was
        restarted, the request is sent a second time. So send only idempotent requests.

        Args:
            method: The HTTP method.
            path: The path and the query.
            body: Sent as JSON; None for no body.
            seconds: The time limit for each part of the response, and for connecting, which is also
                limited by `CONNECT_SECONDS`.
            whole: Apply the limit to the whole request instead, including the connection.

        Raises:
            NoAnswer: The server did not respond.
        """
        data = None
        if body is not None:
            data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        if not whole:
            return self._send_twice(method, path, data, seconds)
        return _call_within(seconds, lambda: self._send_twice(method, path, data, seconds))

    def close(self) -> None:
        """Close the connections; a connection in use is closed after its response."""
        with self._lock:
            if self._pool is not None:
                self._pool.clear()

    def _send_twice(
        self, method: str, path: str, data: bytes | None, seconds: float
    ) -> ServerResponse:
        connection_count = self._count_connections()
        try:
            return self._send(method, path, data, seconds)
        except NoAnswer as exc:
            was_open = self._count_connections() == connection_count
            if not was_open or not isinstance(
                exc.__cause__, ConnectionResetError | BrokenPipeError
            ):
                raise
        try:
            return self._send(method, path, data, seconds)._replace(sent_before=True)
        except NoAnswer as exc:
            exc.sent_before = True
            raise

    def _send(self, method: str, path: str, data: bytes | None, seconds: float) -> ServerResponse:
        try:
            response = self._open_pool().urlopen(
                method,
                self.address.url + path,
                body=data,
                headers={**_HEADERS, **self.address.headers},
                timeout=urllib3.Timeout(connect=min(CONNECT_SECONDS, seconds), read=seconds),
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
            try:
                content = self._read(response)
            except BaseException:
                response.close()
                raise
            response.release_conn()
        except NoAnswer:
            raise
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as exc:
            raise _translate(exc, seconds) from _root_cause(exc)
        headers = {name.lower(): value for name, value in response.headers.items()}
        try:
            body = json.loads(content)
        except (ValueError, RecursionError):  # not JSON; perhaps the error page of a proxy
            body = content.decode("utf-8", "replace")
        return ServerResponse(response.status, body, headers)

    def _count_connections(self) -> int:
        return self._open_pool().connection_from_url(self.address.url).num_connections

    def _read(self, response: urllib3.BaseHTTPResponse) -> bytes:
        chunks: list[bytes] = []
        size = 0
        for chunk in response.stream(_CHUNK_BYTES):
            chunks.append(chunk)
            size += len(chunk)
            if self._max_bytes is not None and size > self._max_bytes:
                raise Unusable(f"answered with more than {self._max_bytes} bytes", sent=True)
        return b"".join(chunks)

    def _open_pool(self) -> urllib3.PoolManager:
        """Return this process's pool of connections; a forked process never uses its parent's."""
        with self._lock:
            if self._guard.forked:
                self._guard = ForkGuard()
                self._pool = None
            if self._pool is None:
                self._pool = _make_pool(self.address)
            return self._pool


class _Connection(urllib3.connection.HTTPConnection):
    def connect(self) -> None:
        _connect_in_time(self, super().connect)


class _TlsConnection(urllib3.connection.HTTPSConnection):
    def connect(self) -> None:
        _connect_in_time(self, super().connect)


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


def _connect_in_time(connection: _Connection | _TlsConnection, connect: Callable[[], None]) -> None:
    """Connect within the timeout, including the name lookup and the TLS handshake."""
    is_late = threading.Event()

    def connect_or_close() -> None:
        connect()
        if is_late.is_set():
            connection.close()

    try:
        _call_within(cast("float", connection.timeout), connect_or_close)
    except TimedOut as exc:
        is_late.set()
        raise urllib3.exceptions.ConnectTimeoutError(str(exc)) from TimeoutError()


def _make_pool(address: Address) -> urllib3.PoolManager:
    """Return a pool of connections to a server, or to the proxy configured in the environment."""
    options: dict[str, Any] = {"num_pools": 1, "maxsize": _POOL_SIZE}
    if address.tls:
        options["ssl_context"] = ssl.create_default_context()
    proxy = _find_proxy(address) if address.proxies else None
    if proxy is None:
        pool = urllib3.PoolManager(**options)
    else:
        headers = {}
        if proxy.username is not None:
            credentials = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
            headers["Proxy-Authorization"] = f"Basic {b64encode(credentials.encode()).decode()}"
        url = f"http://{proxy.netloc.rpartition('@')[2]}"
        pool = urllib3.ProxyManager(url, proxy_headers=headers, **options)
    pool.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
    return pool


def _find_proxy(address: Address) -> SplitResult | None:
    scheme = "https" if address.tls else "http"
    url = getproxies().get(scheme)
    if not url or is_loopback(address.host) or proxy_bypass(address.host):
        return None
    proxy = urlsplit(url if "://" in url else f"http://{url}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise Unusable(
            f"can't be reached: {scheme}_proxy must be http://host:port, "
            "the only kind that is supported"
        )
    return proxy


def _translate(exc: Exception, seconds: float) -> NoAnswer:
    """Return the `NoAnswer` to raise for an error from urllib3."""
    cause = _root_cause(exc)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Unusable(f"can't be trusted: {cause.verify_message}")
    sent = isinstance(exc, urllib3.exceptions.ProtocolError | urllib3.exceptions.ReadTimeoutError)
    if isinstance(exc, urllib3.exceptions.ConnectTimeoutError):
        seconds = min(CONNECT_SECONDS, seconds)
    if isinstance(exc, urllib3.exceptions.ReadTimeoutError) or isinstance(cause, TimeoutError):
        return TimedOut(f"did not answer within {seconds:.3g} seconds", sent=sent)
    reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return NoAnswer(reason, sent=sent)


def _root_cause(exc: BaseException) -> BaseException:
    """Return the error that urllib3 wrapped."""
    while (inner := exc.__cause__ or exc.__context__) is not None:
        exc = inner
    return exc


def _call_within(seconds: float, call: Callable[[], Value]) -> Value:
    """Return the result of a call; raise `TimedOut` after a number of seconds.

    Socket timeouts limit neither a slow name server nor a server that sends a byte now and then. So
    the call runs in a thread, which is abandoned when the time is up.
    """
    try:
        return run_once(seconds, call)
    except MemoryTimeout:
        raise TimedOut(f"did not answer within {seconds:.3g} seconds", sent=True) from None


class Failed(Exception):
    """An attempt failed, but another one may succeed.

    Attributes:
        tries: The number of attempts that are worthwhile, including those already made.
        after_seconds: The pause that the server asks for.
        quoted: The part of the reason that the server wrote.
    """

    def __init__(
        self, reason: str, *, tries: int = 1, after_seconds: float = 0.0, quoted: str = ""
    ) -> None:
        super().__init__(reason)
        self.tries, self.after_seconds, self.quoted = tries, after_seconds, quoted


class Retry(NamedTuple):
    """Retries failed attempts, doubling the pause each time.

    Pauses vary randomly, so that clients don't all retry at once.
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
        """Return the result of the first attempt that succeeds.

        Args:
            attempt: Called with its time limit; raises `Failed` if it may be repeated.
            seconds: The time limit of one attempt.
            total_seconds: The time limit of all attempts, including the pauses.
            tries: The maximum number of attempts; by default `Failed.tries`.

        Raises:
            Failed: The last attempt failed; the message gives the number of attempts and when to
                retry.
        """
        deadline = self.clock() + total_seconds
        count = 0
        while True:
            count += 1
            try:
                return attempt(min(seconds, max(0.01, deadline - self.clock())))
            except Failed as exc:
                backoff = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (count - 1))
                wait = max(exc.after_seconds, backoff * (1 + self.draw()) / 2)
                is_last = count >= min(exc.tries, tries or exc.tries)
                if is_last or self.clock() + wait >= deadline:
                    raise _give_up(exc, count, wait) from exc
            self.pause(wait)


def _give_up(exc: Failed, count: int, wait: float) -> Failed:
    """Return the error to raise after the last attempt."""
    advice = ""
    if exc.tries > 1:
        advice = "; try again later"
        if count > 1:
            advice = f"; tried {count} times, try again later"
        if 0 < exc.after_seconds == wait:
            advice = f"; retry in {wait:.0f} seconds"
    return Failed(f"{exc}{advice}", after_seconds=exc.after_seconds, quoted=exc.quoted)
