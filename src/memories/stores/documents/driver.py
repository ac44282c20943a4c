"""The protocol for drivers: the requests that the store for document servers needs."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from memories.stores.records import Collection

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.stores.words import Term

Value = str | int | list[str]

MAX_TEXT = 4_000_000  # characters of text in one request

# The fields in a record's payload that conditions can name, and their types. All other fields are
# only returned.
FIELDS: Mapping[str, type] = {
    "group": str,
    "key": str,
    "by": str,
    "created": int,  # milliseconds since 1970; from the year 1 to 9999
    "ended": int,
    "labels": list,  # list of texts
    "spaces": list,
}


class Kind(StrEnum):
    """The kind of the points in a part: records, windows of vectors, or labels that records had."""

    RECORDS = "records"
    VECTORS = "vectors"
    LABELS = "labels"


class Part(NamedTuple):
    """A set of points that is read and searched separately, isolated from all other parts.

    A server that supports many collections should have one for each part. Another server keeps
    several parts in one collection and limits every request to a part.

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
        id: Its name in its part: any text, up to some thousand characters. If a server takes only
            numbers or UUIDs, its driver derives one from part and name and keeps the name in the
            payload.
        payload: Its content; never empty for records, empty for vectors and labels. In addition to
            `FIELDS`, it contains texts and integers under names with a dot, which must be returned
            unchanged.
        vector: For vectors, a window of unit length, shape (dimension,); None for other kinds.
        words: For records, the tokens of the text in order (see `words.tokens_of`), for searches;
            write only.
    """

    id: str
    payload: Mapping[str, Value]
    vector: "NDArray[np.float32] | None" = None
    words: Sequence[str] | None = None


class Condition(NamedTuple):
    """A condition on a field in the payload; a missing field never meets it.

    Attributes:
        field: One of `FIELDS`.
        relation: How it compares to the value; `has`: the list contains this text; `in`: the text
            is one of these.
        value: The value to compare with; a list of texts for `in`.
    """

    field: str
    relation: Literal["=", "<", "<=", ">", ">=", "has", "in"]
    value: Value


Where = Sequence[Condition]  # all must be met; if empty, every point in the part matches


class Driver(Protocol):
    """Sends one server requests about the parts of one store.

    Rules for every driver; `tests/stores/test_documents.py` has one that keeps everything in
    memory:

    - *Reading* creates nothing: a part or a store that doesn't exist reads as empty.
    - *Writing* creates the part if it is missing. Once a call has returned, what it wrote survives
      a crash of the server, and every later request, from anywhere, sees it.
    - *One step.* `add` and `update` are done completely or not at all, up to `max_batch` points and
      `MAX_TEXT` characters, even if this process or the server is killed; a driver that can't
      guarantee this says in the docstring of its class what may happen. The driver splits more
      points into several requests, in their order; reads may be split as the server needs it.
    - *Complete answers.* Without a limit nothing is cut off, however long the answer is.
    - *Threads* may share it.
    - *Errors* are `StoreError` and `StoreDamaged` of `memories.errors`, each with one sentence that
      says which server and what to do, never a password or a key. A request that may have been
      carried out is sent again only if sending it twice does no harm; all of these methods can
      safely be repeated.
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

        It is one small document, which every search reads, so this must be fast.

        Raises:
            StoreError: Something with that name exists that is not one of our stores.
        """

    def claim(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """Create the store, set the values that are not set yet, and return the resulting state.

        If two clients do this at the same time, one wins, and both get the resulting state, as far
        as the server allows it.
        """

    def set_state(self, values: Mapping[str, str]) -> None:
        """Replace the complete state, in one step."""

    def parts(self) -> list[Part]:
        """Return the parts that exist; some may be empty."""

    def drop(self, part: Part) -> None:
        """Remove a part with all its points; no error if it doesn't exist."""

    def add(self, part: Part, points: Sequence[Point]) -> None:
        """Add points. A point whose id exists is silently skipped, and the existing one is kept.

        To find out whose point it is, read it back: a record's payload contains the id of the write
        that made it.
        """

    def update(self, part: Part, changes: Mapping[str, Mapping[str, Value | None]]) -> None:
        """Set fields of the payloads of points, by id; None removes a field.

        Ids that don't exist are ignored: this creates nothing.
        """

    def delete(self, part: Part, ids: Iterable[str]) -> None:
        """Remove points; ids that don't exist are ignored."""

    def get(self, part: Part, ids: Sequence[str]) -> list[Point]:
        """Return the existing points among these ids, without vectors and words, in any order."""

    def find(self, part: Part, where: Where, *, limit: int | None = None) -> list[Point]:
        """Return the points that meet the conditions, without vectors and words, in any order.

        With a limit, these are the same points each time.
        """

    def ids(self, part: Part, where: Where) -> list[str]:
        """Return the ids of all points that meet the conditions, in any order, quickly."""

    def count(self, part: Part) -> int:
        """Return how many points a part contains; the number may be slightly too high."""

    def holders(self, part: Part, term: "Term") -> list[str]:
        """Return the ids of the records whose words include a term, and possibly a few others.

        For a term of several tokens, return the records that contain all of them, in any order. The
        caller checks the records.
        """

    def nearest(
        self, part: Part, vector: "NDArray[np.float32]", *, k: int
    ) -> list[tuple[str, float]]:
        """Return the ids and cosines of the `k` nearest windows; 99 in 100 must be correct.

        Args:
            part: The part of the windows.
            vector: The query, shape (dimension,), unit length.
            k: The number of windows; fewer only if there are no more.
        """

    def vectors(self, part: Part, ids: Sequence[str]) -> "dict[str, NDArray[np.float32]]":
        """Return the vectors of the existing windows among these ids, shape (dimension,)."""

    def close(self) -> None:
        """Release connections."""
