"""Client for a document server: requests, time limits and errors."""

import json
import time
from typing import Any
from urllib.parse import parse_qsl

from memories.core.http import Address, Answer, JsonClient, NoAnswer, TimedOut, Unusable
from memories.errors import ConfigError, StoreError, StoreUnreachable

_READ_SECONDS = 10  # seconds to connect, and to begin the answer
_WRITE_SECONDS = 120  # seconds for a large write on a busy server
_SILENT_SECONDS = 10  # seconds after a timeout during which the server is not asked again
_MAYBE_DONE = (408, 502, 504)  # the sender of such a status doesn't know the outcome
_TRY_LATER = (408, 425, 429, 502, 503, 504)  # the server, or a proxy, is starting or overloaded
_UNSURE = "the write may or may not be stored; read it before you write it again"
_SWITCH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


class StoreClient:
    """Sends requests to one server; many threads and forked processes may share it."""

    def __init__(self, address: Address) -> None:
        """Initialize; nothing is connected yet."""
        self.address = address
        self._client = JsonClient(address)
        self._silent_until = 0.0

    def ask(self, method: str, path: str, body: Any = None, *, writes: bool = False) -> Answer:
        """Send a request and return the answer, whether the server accepts or refuses it.

        The request may be sent twice: see `JsonClient.ask`.

        Args:
            method: The HTTP method.
            path: The path and the query.
            body: Sent as JSON; None for no body.
            writes: Whether the request changes something. If so, it may take longer, and if the
                server doesn't answer, the error says that the change may have been made.

        Raises:
            StoreUnreachable: The server did not answer.
        """
        if time.monotonic() < self._silent_until:
            raise StoreUnreachable(
                f"{self.address} did not answer a moment ago; check whether it is overloaded, and "
                f"try again in {_SILENT_SECONDS} seconds"
            )
        try:
            seconds = _WRITE_SECONDS if writes else _READ_SECONDS
            answer = self._client.ask(method, path, body, seconds=seconds)
        except NoAnswer as exc:
            if isinstance(exc, TimedOut):  # the next requests don't have to wait
                self._silent_until = time.monotonic() + _SILENT_SECONDS
            raise StoreUnreachable(self._explain(exc, writes=writes)) from exc
        self._silent_until = 0.0
        if writes and answer.status in _MAYBE_DONE:
            raise StoreUnreachable(
                f"{self.address} did not finish a write (status {answer.status}); {_UNSURE}"
            )
        return answer

    def refusal(self, answer: Answer, action: str) -> StoreError:
        """Return the error for a refused request.

        Args:
            answer: The server's answer.
            action: The purpose of the request, such as "adding records".
        """
        text = answer.value
        if not isinstance(text, str):
            text = json.dumps(text, ensure_ascii=False)
        reason = self.address.quoted(text) or "no reason given"
        if self.is_temporary(answer):
            return self.temporary_error(answer, reason)
        return StoreError(f"{self.address} refused {action} with status {answer.status}: {reason}")

    def temporary_error(self, answer: Answer, reason: str) -> StoreUnreachable:
        """Return the error for an answer that asks the client to try again later."""
        return StoreUnreachable(
            f"{self.address} is not ready (status {answer.status}): {reason}; try again later"
        )

    @staticmethod
    def is_temporary(answer: Answer) -> bool:
        """Return whether an answer only asks the client to try again later."""
        return answer.status in _TRY_LATER

    def close(self) -> None:
        """Close the connections; a connection in use is closed after its answer."""
        self._client.close()

    def _explain(self, exc: NoAnswer, *, writes: bool) -> str:
        if isinstance(exc, Unusable):
            return f"{self.address} {exc}"
        if not exc.sent and not (writes and exc.sent_before):
            return f"Cannot connect to {self.address}. {self.address.hint}"
        if isinstance(exc, TimedOut):
            return (
                f"{self.address} {exc}; {(_UNSURE if writes else 'check whether it is overloaded')}"
            )
        advice = _UNSURE if writes else "check whether it is running, and try again"
        return f"the connection to {self.address} broke off ({exc}); {advice}"


def parse_tls(query: str, product: str) -> bool | None:
    """Return whether a store URL's query asks for TLS; None if it doesn't specify it.

    Args:
        query: The part of the URL after the `?`.
        product: The server's product name, for the message.

    Raises:
        ConfigError: The query contains other options.
    """
    options = parse_qsl(query, keep_blank_values=True)
    switches = {
        _SWITCH.get(value.lower()) if name in ("ssl", "tls") else None for name, value in options
    }
    if None in switches or len(switches) > 1 or (query and not options):
        raise ConfigError(
            f"the URL of a {product} store can have only tls=1 or tls=0, or ssl=true or ssl=false, "
            "after the ?"
        )
    return next(iter(switches), None)


def check_key(key: str, product: str, source: str) -> str:
    """Return a key if it can be sent.

    Args:
        key: The key, which may be empty.
        product: The server's product name, for the message.
        source: Where the key was set, for the message.

    Raises:
        ConfigError: The key contains characters that can't be in a key.
    """
    if not key.isascii() or not key.isprintable():
        raise ConfigError(
            f"the key of {product} contains characters that can't be in a key; check {source}"
        )
    return key
