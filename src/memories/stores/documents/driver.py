"""The protocol for drivers of document servers, and an HTTP client for them."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol
from urllib.parse import parse_qsl

from memories.core.http import Address, JsonClient, NoAnswer, ServerResponse, TimedOut, Unusable
from memories.errors import ConfigError, StoreError, StoreUnreachable
from memories.stores.records import Collection

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.stores.words import Term

Value = str | int | list[str]

MAX_TEXT = 4_000_000  # maximum number of characters of text in one request

# The fields in a record's payload that conditions can test, and their types. All other fields are
# only returned.
FIELDS: Mapping[str, type] = {
    "group": str,
    "key": str,
    "by": str,
    "created": int,  # milliseconds since 1970; from the year 1 to 9999
    "ended": int,
    "labels": list,  # list of strings
    "spaces": list,
}


class Kind(StrEnum):
    """The kind of the points in a partition: records, windows of vectors, or labels of records."""

    RECORDS = "records"
    VECTORS = "vectors"
    LABELS = "labels"


class Partition(NamedTuple):
    """A set of points that is read and searched separately from all other points.

    If a server supports many collections, each partition should have its own. On other servers,
    several partitions share a collection, and every request is limited to one partition.

    Attributes:
        kind: The kind of its points.
        collection: Memories or turns.
        namespace: The namespace.
        space: For vectors, the id of their space; empty for other kinds. Spaces may have different
            dimensions.
    """

    kind: Kind
    collection: Collection
    namespace: str
    space: str = ""


class Point(NamedTuple):
    """A document on a server.

    Attributes:
        id: Its name in its partition: any string, up to a few thousand characters. If the server
            accepts only numbers or UUIDs as ids, the driver derives one from the partition and this
            name, and keeps the name in the payload.
        payload: Its content; never empty for records, empty for vectors and labels. In addition to
            `FIELDS`, it contains strings and integers whose names contain a dot. They must be
            returned unchanged.
        vector: For vectors, the unit vector of a window, shape (dimension,); None for other kinds.
        words: For records, the tokens of the text in order (see `words.tokens_of`). They are only
            searched, never returned.
    """

    id: str
    payload: Mapping[str, Value]
    vector: "NDArray[np.float32] | None" = None
    words: Sequence[str] | None = None


class Condition(NamedTuple):
    """A condition on a field in the payload. A point without the field never meets it.

    Attributes:
        field: One of `FIELDS`.
        relation: How the field compares to the value. With `has`, the field's list contains the
            value; with `in`, the field's string is one of the values.
        value: The value to compare with; a list of strings for `in`.
    """

    field: str
    relation: Literal["=", "<", "<=", ">", ">=", "has", "in"]
    value: Value


Where = Sequence[Condition]  # all must be met; without conditions, every point matches


class Driver(Protocol):
    """Sends requests about the partitions of one store to its server.

    Rules for every driver (`tests/stores/test_documents.py` contains a driver that keeps everything
    in memory):

    - *Reading* creates nothing: a partition or a store that doesn't exist reads as empty.
    - *Writing* creates the partition if it is missing. Once a call has returned, its writes survive
      a crash of the server, and every later request, from anywhere, sees them.
    - *One step.* With up to `max_batch` points and `MAX_TEXT` characters, `add` and `update` are
      done completely or not at all, even if this process or the server is killed. If a driver can't
      guarantee this, the docstring of its class says what may happen. If there are more points, the
      driver splits them into several requests, in order. Reads may be split as the server requires.
    - *Complete responses.* Without a limit, a response is complete, however long it is.
    - *Threads* may share a driver.
    - *Errors* are `StoreError` and `StoreDamaged` from `memories.errors`. Each is one sentence that
      names the server and says what to do, and never contains a password or a key.
    - *Repeating.* All of these methods can be called again after an error. A request that may have
      been carried out is sent again only if sending it twice does no harm.
    """

    @property
    def url(self) -> str:
        """The address of the store, without a password."""

    @property
    def collection(self) -> str:
        """The store's name on the server."""

    @property
    def remains(self) -> tuple[str, ...]:
        """Where the bytes of deleted points may remain, and until when; empty if nowhere."""

    @property
    def max_batch(self) -> int:
        """The maximum number of points that one `add` or `update` writes in one step."""

    def state(self) -> Mapping[str, str]:
        """Return the store's state; empty if the store doesn't exist yet.

        The state is one small document. Every search reads it, so this must be fast.

        Raises:
            StoreError: The name belongs to something other than a store of ours.
        """

    def set_missing_state(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """Create the store, set the values that are not set yet, and return the resulting state.

        If two clients do this at the same time, one wins, and both get the same state, as far as
        the server can guarantee that.
        """

    def set_state(self, values: Mapping[str, str]) -> None:
        """Replace the entire state in one step."""

    def parts(self) -> list[Partition]:
        """Return the partitions that exist; some may be empty."""

    def drop(self, part: Partition) -> None:
        """Remove a partition with all its points; do nothing if it doesn't exist."""

    def add(self, part: Partition, points: Sequence[Point]) -> None:
        """Add points, except those whose ids already exist, which are silently skipped.

        To find out which write added a point, read the point back: a record's payload contains the
        id of its write.
        """

    def update(self, part: Partition, changes: Mapping[str, Mapping[str, Value | None]]) -> None:
        """Set fields in the payloads of points; None removes a field.

        Ids of points that don't exist are ignored, and no points are created for them.
        """

    def delete(self, part: Partition, ids: Iterable[str]) -> None:
        """Remove points; ids that don't exist are ignored."""

    def get(self, part: Partition, ids: Sequence[str]) -> list[Point]:
        """Return the existing points with these ids, without vectors or words, in any order."""

    def find(self, part: Partition, where: Where, *, limit: int | None = None) -> list[Point]:
        """Return the points that meet the conditions, without vectors or words, in any order.

        With a limit, repeated calls return the same points.
        """

    def ids(self, part: Partition, where: Where) -> list[str]:
        """Return the ids of the points that meet the conditions, in any order; must be fast."""

    def count(self, part: Partition) -> int:
        """Return how many points a partition contains; the number may be slightly too high."""

    def holders(self, part: Partition, term: "Term") -> list[str]:
        """Return the ids of the records whose words include a term, and possibly a few others.

        If the term has several tokens, the records contain all of them, but perhaps in a different
        order or far apart. The caller checks this.
        """

    def nearest(
        self, part: Partition, vector: "NDArray[np.float32]", *, k: int
    ) -> list[tuple[str, float]]:
        """Return the ids and cosines of the `k` nearest windows; at least 99% must be correct.

        Args:
            part: The partition that contains the windows.
            vector: The query, shape (dimension,), unit length.
            k: The number of windows; fewer only if there are no more.
        """

    def vectors(self, part: Partition, ids: Sequence[str]) -> "dict[str, NDArray[np.float32]]":
        """Return the vectors of the existing windows with these ids, shape (dimension,)."""

    def close(self) -> None:
        """Release connections."""


_READ_SECONDS = 10  # timeout for connecting, and until a response begins
_WRITE_SECONDS = 120  # timeout for a write: it may be large, and the server may be busy
_SILENT_SECONDS = 10  # pause after a timeout before the server is asked again
_MAYBE_DONE = (408, 502, 504)  # with these statuses, the request may have been carried out
_TRY_LATER = (408, 425, 429, 502, 503, 504)  # the server or a proxy is starting or overloaded
_UNSURE = "the write may or may not be stored; check before you write it again"
_SWITCH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


class StoreClient:
    """Sends requests to one server; many threads and forked processes may share it."""

    def __init__(self, address: Address) -> None:
        """Initialize; nothing is connected yet."""
        self.address = address
        self._client = JsonClient(address)
        self._silent_until = 0.0

    def ask(
        self, method: str, path: str, body: Any = None, *, writes: bool = False
    ) -> ServerResponse:
        """Send a request and return the response, even if the server refuses the request.

        The request may be sent twice: see `JsonClient.ask`.

        Args:
            method: The HTTP method.
            path: The path and the query.
            body: Sent as JSON; None for no body.
            writes: Whether the request changes something. If so, it may take longer, and if the
                server doesn't respond, the error says that the change may have been made.

        Raises:
            StoreUnreachable: The server did not respond.
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
            if isinstance(exc, TimedOut):  # for a while, requests fail at once
                self._silent_until = time.monotonic() + _SILENT_SECONDS
            raise StoreUnreachable(self._explain(exc, writes=writes)) from exc
        self._silent_until = 0.0
        if writes and answer.status in _MAYBE_DONE:
            raise StoreUnreachable(
                f"{self.address} did not finish a write (status {answer.status}); {_UNSURE}"
            )
        return answer

    def refusal(self, answer: ServerResponse, action: str) -> StoreError:
        """Return the error for a refused request.

        Args:
            answer: The server's response.
            action: The purpose of the request, such as "adding records".
        """
        text = answer.value
        if not isinstance(text, str):
            text = json.dumps(text, ensure_ascii=False)
        reason = self.address.quoted(text) or "no reason given"
        if self.is_temporary(answer):
            return self.temporary_error(answer, reason)
        return StoreError(
            f"{self.address} refused a request ({action}) with status {answer.status}: {reason}"
        )

    def temporary_error(self, answer: ServerResponse, reason: str) -> StoreUnreachable:
        """Return the error for a response that asks the client to try again later."""
        return StoreUnreachable(
            f"{self.address} is not ready (status {answer.status}): {reason}; try again later"
        )

    @staticmethod
    def is_temporary(answer: ServerResponse) -> bool:
        """Return whether a response only asks the client to try again later."""
        return answer.status in _TRY_LATER

    def close(self) -> None:
        """Close the connections; one that is in use is closed after its response has arrived."""
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
        return f"the connection to {self.address} was lost ({exc}); {advice}"


def parse_tls(query: str, product: str) -> bool | None:
    """Return whether a store URL's query asks for TLS; None if it doesn't say.

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
    """Check that a key can be sent in a header, and return it.

    Args:
        key: The key, which may be empty.
        product: The server's product name, for the message.
        source: Where the key was set, for the message.

    Raises:
        ConfigError: The key contains characters other than printable ASCII.
    """
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"the key for {product} may contain only printable ASCII; check {source}")
    return key
