"""JSON over HTTP to a document server: connections that last, and what can go wrong as one sentence.

It stands on the standard library: the clients of the servers, and other HTTP libraries, take 0.3 to 2 s to import.
"""

import http.client
import json
import os
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from memories.errors import ConfigError, StoreError, StoreUnreachable

_ANSWER_SECONDS = 10  # to connect, and to begin the answer to a question
_WRITE_SECONDS = 120  # a large write on a busy server
_SILENT_SECONDS = 10  # after a server did not answer it is not asked again for so long
_SAID = 200  # characters of what a server said, in a message
_STALE = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError, http.client.CannotSendRequest)
_MAYBE_DONE = (408, 502, 504)  # who says so does not know what became of the request
_UNSURE = "what was written may be stored or not: read it before you write it again"
_SWITCH: Mapping[str, bool] = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


class Address(NamedTuple):
    """Where a server is.

    Attributes:
        product: Its name, for messages.
        host: Its name or number.
        port: Its port.
        tls: Whether it is spoken to by TLS.
        headers: Sent with each request, such as a key; never shown.
        hint: What may be wrong if it can't be reached: a sentence.
    """

    product: str
    host: str
    port: int
    tls: bool
    headers: Mapping[str, str]
    hint: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.product} at {host}:{self.port}"


class Answer(NamedTuple):
    """What a server said: the status, and the value if it was JSON, else the text."""

    status: int
    value: Any


class JsonClient:
    """Sends requests to one server; many threads may use it, each request takes a connection for itself."""

    def __init__(self, address: Address) -> None:
        """Prepare; nothing is connected yet."""
        self.address = address
        self._lock = threading.Lock()
        self._free: list[http.client.HTTPConnection] = []
        self._process = os.getpid()
        self._closed = False
        self._silent_until = 0.0

    def ask(self, method: str, path: str, body: Any = None, *, writes: bool = False) -> Answer:
        """Send a request, and return the answer, whatever its status is.

        It is sent a second time if a connection that was kept from before turns out to be dead: the server may have
        been restarted. So only requests may be sent that do no harm when they are carried out twice.

        Args:
            method: As in HTTP.
            path: With the query.
            body: What is sent as JSON; None for nothing.
            writes: Whether it changes something: then it may take longer, and one that is not answered may be done.

        Raises:
            StoreUnreachable: There is no answer.
        """
        data = None if body is None else json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        if time.monotonic() < self._silent_until:
            raise StoreUnreachable(
                f"{self.address} did not answer a moment ago; see whether it is overloaded, and try again in "
                f"{_SILENT_SECONDS} seconds"
            )
        connection = self._taken()
        try:
            status, text = self._sent(connection, method, path, data, writes=writes)
        except BaseException:
            connection.close()
            raise
        self._silent_until = 0.0
        self._give_back(connection)
        if writes and status in _MAYBE_DONE:
            raise StoreUnreachable(f"{self.address} did not finish a write (status {status}); {_UNSURE}")
        return Answer(status, _value(text))

    def refusal(self, answer: Answer, doing: str) -> StoreError:
        """Return the error for an answer that is none.

        Args:
            answer: What the server said.
            doing: What it was asked for, as in "adding records".
        """
        said = answer.value if isinstance(answer.value, str) else json.dumps(answer.value, ensure_ascii=False)
        said = " ".join(said.split())[:_SAID]
        return StoreError(f"{self.address} refused {doing} with status {answer.status}: {said or 'no reason given'}")

    def close(self) -> None:
        """Close the connections; one that is in use is closed after its answer."""
        with self._lock:
            self._closed = True
            for connection in self._free:
                connection.close()
            self._free.clear()

    def _taken(self) -> http.client.HTTPConnection:
        """Return a connection that nobody else uses; a forked process makes its own."""
        with self._lock:
            if self._process != os.getpid():
                self._process = os.getpid()
                for parents in self._free:
                    parents.close()  # this process's hold on it; the parent goes on using it
                self._free.clear()
            if self._free:
                return self._free.pop()
        kind = http.client.HTTPSConnection if self.address.tls else http.client.HTTPConnection
        return kind(self.address.host, self.address.port, timeout=_ANSWER_SECONDS)

    def _give_back(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if self._closed or connection.sock is None:
                connection.close()
            else:
                self._free.append(connection)

    def _sent(
        self, connection: http.client.HTTPConnection, method: str, path: str, data: bytes | None, *, writes: bool
    ) -> tuple[int, bytes]:
        """Return status and text of the answer; a connection that was kept may turn out to be dead once."""
        kept = connection.sock is not None
        try:
            return self._exchange(connection, method, path, data, writes=writes)
        except _STALE as exc:
            connection.close()
            if not kept:
                raise self._broken(exc, writes=writes) from exc
        try:
            return self._exchange(connection, method, path, data, writes=writes)
        except _STALE as exc:
            raise self._broken(exc, writes=writes) from exc
        except _NotConnected as exc:
            if writes:  # the first time it may have arrived
                raise self._broken(exc, writes=True) from exc
            raise

    def _exchange(
        self, connection: http.client.HTTPConnection, method: str, path: str, data: bytes | None, *, writes: bool
    ) -> tuple[int, bytes]:
        if connection.sock is None:
            try:
                connection.connect()
            except OSError as exc:
                self._note(exc)
                raise _NotConnected(f"Cannot connect to {self.address}. {self.address.hint}") from exc
        seconds = _WRITE_SECONDS if writes else _ANSWER_SECONDS
        if connection.sock is not None:
            connection.sock.settimeout(seconds)
        headers = {**self.address.headers, **({} if data is None else {"Content-Type": "application/json"})}
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except _STALE:
            raise
        except TimeoutError as exc:
            self._note(exc)
            then = _UNSURE if writes else "see whether it is overloaded"
            raise StoreUnreachable(f"{self.address} did not answer within {seconds} seconds; {then}") from exc
        except (OSError, http.client.HTTPException) as exc:
            raise self._broken(exc, writes=writes) from exc

    def _note(self, exc: OSError) -> None:
        """Remember that the server does not answer, so that those who ask next need not wait for it."""
        if isinstance(exc, TimeoutError):
            self._silent_until = time.monotonic() + _SILENT_SECONDS

    def _broken(self, exc: Exception, *, writes: bool) -> StoreUnreachable:
        what = exc.strerror if isinstance(exc, OSError) and exc.strerror else type(exc).__name__.lstrip("_")
        then = _UNSURE if writes else "see whether it runs, and try again"
        return StoreUnreachable(f"the connection to {self.address} broke off ({what}); {then}")


class _NotConnected(StoreUnreachable):
    """No request was sent."""


def tls_of(query: str, product: str) -> bool | None:
    """Return whether the query of a store's URL asks for TLS; None if it says nothing.

    Args:
        query: What stands after the `?`: `ssl` or `tls`.
        product: The name of the server, for the message.

    Raises:
        ConfigError: Something else stands there.
    """
    options = parse_qsl(query, keep_blank_values=True)
    wanted = {_SWITCH.get(value.lower()) if name in ("ssl", "tls") else None for name, value in options}
    if None in wanted or len(wanted) > 1 or (query and not options):
        raise ConfigError(f"after the ? of a {product} store only tls=1 or tls=0 may stand, or ssl=true or ssl=false")
    return next(iter(wanted), None)


def checked(key: str, product: str, where: str) -> str:
    """Return a key that can be sent.

    Args:
        key: The key, or nothing.
        product: The name of the server, for the message.
        where: Where the key stands, for the message.

    Raises:
        ConfigError: It has characters that no key has.
    """
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"the key of {product} has characters that no key has; check {where}")
    return key


def _value(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # not JSON: somebody else's page
        return text.decode("utf-8", "replace")
