"""Client of a document server: requests, time limits and errors."""

import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from memories.core.http import Address, Answer, JsonClient, NoAnswer, TimedOut, Unusable
from memories.errors import ConfigError, StoreError, StoreUnreachable

_ANSWER_SECONDS = 10  # to connect, and to begin the answer to a question
_WRITE_SECONDS = 120  # a large write on a busy server
_SILENT_SECONDS = 10  # a server that did not answer is not asked again for this long
_MAYBE_DONE = (408, 502, 504)  # whoever says so does not know what became of the request
_LATER = (
    408,
    425,
    429,
    502,
    503,
    504,
)  # it, or a proxy before it, is starting or has too much to do
_UNSURE = "what was written may be stored or not: read it before you write it again"
_SWITCH: Mapping[str, bool] = {
    "1": True,
    "true": True,
    "yes": True,
    "0": False,
    "false": False,
    "no": False,
}


class StoreClient:
    """Asks one server; many threads and forked processes may share it."""

    def __init__(self, address: Address) -> None:
        """Prepare; nothing is connected yet."""
        self.address = address
        self._client = JsonClient(address)
        self._silent_until = 0.0

    def ask(self, method: str, path: str, body: Any = None, *, writes: bool = False) -> Answer:
        """Send a request, and return the answer, whatever its status is.

        It may be sent twice: see `JsonClient.ask`.

        Args:
            method: As in HTTP.
            path: With the query.
            body: What is sent as JSON; None for nothing.
            writes: Whether it changes something: then it may take longer, and one that is not
                answered may be done.

        Raises:
            StoreUnreachable: There is no answer.
        """
        if time.monotonic() < self._silent_until:
            raise StoreUnreachable(
                f"{self.address} did not answer a moment ago; see whether it is overloaded, and try again in "
                f"{_SILENT_SECONDS} seconds"
            )
        try:
            seconds = _WRITE_SECONDS if writes else _ANSWER_SECONDS
            answer = self._client.ask(method, path, body, seconds=seconds)
        except NoAnswer as exc:
            if isinstance(exc, TimedOut):
                self._silent_until = (
                    time.monotonic() + _SILENT_SECONDS
                )  # the next ones need not wait for it
            raise StoreUnreachable(self._why(exc, writes=writes)) from exc
        self._silent_until = 0.0
        if writes and answer.status in _MAYBE_DONE:
            raise StoreUnreachable(
                f"{self.address} did not finish a write (status {answer.status}); {_UNSURE}"
            )
        return answer

    def refusal(self, answer: Answer, doing: str) -> StoreError:
        """Return the error for an answer that refuses a request.

        Args:
            answer: What the server said.
            doing: What it was asked for, as in "adding records".
        """
        said = (
            answer.value
            if isinstance(answer.value, str)
            else json.dumps(answer.value, ensure_ascii=False)
        )
        because = self.address.quoted(said) or "no reason given"
        if self.is_not_now(answer):
            return self.not_now(answer, because)
        return StoreError(f"{self.address} refused {doing} with status {answer.status}: {because}")

    def not_now(self, answer: Answer, because: str) -> StoreUnreachable:
        """Return the error for an answer that only asks to try again later."""
        return StoreUnreachable(
            f"{self.address} is not ready (status {answer.status}): {because}; try again later"
        )

    @staticmethod
    def is_not_now(answer: Answer) -> bool:
        """Return whether an answer only asks to try again later."""
        return answer.status in _LATER

    def close(self) -> None:
        """Close the connections; one that is in use is closed after its answer."""
        self._client.close()

    def _why(self, exc: NoAnswer, *, writes: bool) -> str:
        if isinstance(exc, Unusable):
            return f"{self.address} {exc}"
        if not exc.sent and not (writes and exc.sent_before):
            return f"Cannot connect to {self.address}. {self.address.hint}"
        if isinstance(exc, TimedOut):
            return f"{self.address} {exc}; {_UNSURE if writes else 'see whether it is overloaded'}"
        then = _UNSURE if writes else "see whether it runs, and try again"
        return f"the connection to {self.address} broke off ({exc}); {then}"


def tls_of(query: str, product: str) -> bool | None:
    """Return whether the query of a store's URL asks for TLS; None if it says nothing.

    Args:
        query: What stands after the `?`: `ssl` or `tls`.
        product: The name of the server, for the message.

    Raises:
        ConfigError: Something else stands there.
    """
    options = parse_qsl(query, keep_blank_values=True)
    wanted = {
        _SWITCH.get(value.lower()) if name in ("ssl", "tls") else None for name, value in options
    }
    if None in wanted or len(wanted) > 1 or (query and not options):
        raise ConfigError(
            f"after the ? of a {product} store only tls=1 or tls=0 may stand, or ssl=true or ssl=false"
        )
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
