"""JSON over HTTP to a document server: one lasting connection for each thread, and what can go wrong as one sentence.

It stands on the standard library: the clients of the servers, and other HTTP libraries, take 0.3 to 2 s to import.
"""

import http.client
import json
import os
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from memories.errors import StoreError, StoreUnreachable

_CONNECT_SECONDS = 10
_ANSWER_SECONDS = 120
_SAID = 200  # characters of what a server said, in a message
_STALE = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError, http.client.CannotSendRequest)


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
    """Sends requests to one server; many threads may use it."""

    def __init__(self, address: Address) -> None:
        """Prepare; nothing is connected yet."""
        self.address = address
        self._local = threading.local()
        self._lock = threading.Lock()
        self._opened: list[http.client.HTTPConnection] = []

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        """Send a request, and return the answer, whatever its status is.

        It is sent a second time if a connection that was kept from before turns out to be dead: the server may have
        been restarted. So only requests may be sent that do no harm when they are carried out twice.

        Raises:
            StoreError: There is no answer.
        """
        data = None if body is None else json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        connection = self._connection()
        kept = connection.sock is not None
        try:
            status, text = self._exchange(connection, method, path, data)
        except _STALE as exc:
            connection.close()
            if not kept:
                raise self._broken(exc) from exc
            try:
                status, text = self._exchange(connection, method, path, data)
            except _STALE as again:
                connection.close()
                raise self._broken(again) from again
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
        """Close the connections of all threads."""
        with self._lock:
            for connection in self._opened:
                connection.close()
            self._opened.clear()
        self._local = threading.local()

    def _connection(self) -> http.client.HTTPConnection:
        """Return this thread's connection; a forked process makes its own."""
        if getattr(self._local, "pid", None) != os.getpid():
            address = self.address
            kind = http.client.HTTPSConnection if address.tls else http.client.HTTPConnection
            self._local.connection = kind(address.host, address.port, timeout=_CONNECT_SECONDS)
            self._local.pid = os.getpid()
            with self._lock:
                self._opened.append(self._local.connection)
        connection: http.client.HTTPConnection = self._local.connection
        return connection

    def _exchange(
        self, connection: http.client.HTTPConnection, method: str, path: str, data: bytes | None
    ) -> tuple[int, bytes]:
        if connection.sock is None:
            try:
                connection.connect()
            except OSError as exc:
                connection.close()
                raise StoreUnreachable(f"Cannot connect to {self.address}. {self.address.hint}") from exc
            if connection.sock is not None:
                connection.sock.settimeout(_ANSWER_SECONDS)
        headers = {**self.address.headers, **({} if data is None else {"Content-Type": "application/json"})}
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except _STALE:
            raise
        except TimeoutError as exc:
            connection.close()
            raise StoreUnreachable(
                f"{self.address} did not answer within {_ANSWER_SECONDS} seconds; see whether it is overloaded"
            ) from exc
        except (OSError, http.client.HTTPException) as exc:
            connection.close()
            raise self._broken(exc) from exc

    def _broken(self, exc: Exception) -> StoreUnreachable:
        what = exc.strerror if isinstance(exc, OSError) and exc.strerror else type(exc).__name__
        return StoreUnreachable(
            f"the connection to {self.address} broke off ({what}); see whether it runs, and try again"
        )


def _value(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # not JSON: somebody else's page
        return text.decode("utf-8", "replace")
