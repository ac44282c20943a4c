"""What a document server has to offer so that a store can be kept on it: the protocol of a driver."""

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

# The fields of a record's payload that conditions name, and what they hold; what else it has is only given back.
FIELDS: Mapping[str, type] = {
    "group": str,
    "key": str,
    "by": str,
    "created": int,  # milliseconds since 1970; from the year 1 to 9999
    "ended": int,
    "labels": list,  # of texts
    "spaces": list,
}


class Kind(StrEnum):
    """What the points of a part are: whole records, windows of vectors, or the labels that records have had."""

    RECORDS = "records"
    VECTORS = "vectors"
    LABELS = "labels"


class Part(NamedTuple):
    """A set of points that is read and searched by itself; nothing that is asked of one tells about another.

    A server that bears many collections best makes one of each part; one that does not keeps several in one collection
    and narrows every request by what the part says.

    Attributes:
        kind: What its points are.
        collection: Memories or turns.
        namespace: The pool.
        space: For vectors, the letters that stand for their space; empty for other kinds. Vectors of two spaces may
            differ in their dimension.
    """

    kind: Kind
    collection: Collection
    namespace: str
    space: str = ""


class Point(NamedTuple):
    """One document of a server.

    Attributes:
        id: Its name in its part: any text, up to some thousand characters. A server that takes only numbers or UUIDs
            derives one from part and name (UUIDv5), and keeps the name beside it.
        payload: What it holds; never empty for records, empty for vectors and labels. Besides `FIELDS` it has texts and
            whole numbers under names with a dot, which must come back as they were given.
        vector: For vectors, a window of unit length, shape (dimension,); None for other kinds.
        words: For records, the tokens of its text in order (see `bm25.tokens_of`), to be found by; only written.
    """

    id: str
    payload: Mapping[str, Value]
    vector: "NDArray[np.float32] | None" = None
    words: Sequence[str] | None = None


class Condition(NamedTuple):
    """A condition on a field of the payload; one that is missing fulfils none.

    Attributes:
        field: One of `FIELDS`.
        relation: How it stands to the value; `has`: the list has this text; `in`: the text is one of these.
        value: What it is compared with; a list of texts for `in`.
    """

    field: str
    relation: Literal["=", "<", "<=", ">", ">=", "has", "in"]
    value: Value


Where = Sequence[Condition]  # all hold together; none: every point of the part


class Driver(Protocol):
    """Speaks with one server about the parts of one store.

    Rules for every driver; `tests/stores/test_remote.py` has one that keeps everything in memory:

    - *Reading* makes nothing: a part that does not exist, and a store that does not exist, read as empty.
    - *Writing* makes the part where it is missing. When a call has returned, what it wrote survives a crash of the
      server, and every request that comes later, from anywhere, sees it.
    - *One step.* `add` and `update` are done wholly or not at all, up to `max_batch` points and `MAX_TEXT` characters,
      also when this process or the server is killed; a driver that can't keep this says so in the docstring of its
      class, and what is left open.
      More points than that are cut into several requests by the driver, in the order in which they were given; reads
      may be cut as the server needs it.
    - *Whole answers.* What is not limited is never cut off, however much it is.
    - *Threads* may use it at once.
    - *Errors* are `StoreError` and `StoreDamaged` of `memories.errors`, each with one sentence that says which server
      and what to do, never a password or a key. A request that may have been carried out is sent again only if sending
      it twice does no harm; all of these methods can be repeated without harm.
    """

    @property
    def url(self) -> str:
        """The address of the store, without a password."""
        ...

    @property
    def collection(self) -> str:
        """What the store is called on the server."""
        ...

    @property
    def remains(self) -> tuple[str, ...]:
        """What may still hold the bytes of points after `delete` has returned, and until when; nothing if none can."""
        ...

    @property
    def max_batch(self) -> int:
        """How many points one `add` or `update` takes in one step."""
        ...

    def state(self) -> Mapping[str, str]:
        """Return what the store remembers about itself; empty if it does not exist yet.

        It is one small document; a search reads it, so it has to be fast.

        Raises:
            StoreError: Something of that name exists that is no store of ours.
        """
        ...

    def claim(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """Set those of the values that are not set yet, and return the state that then stands; it makes the store.

        Of two that claim at once, one wins, and both are told what stands, as far as the server can tell.
        """
        ...

    def set_state(self, values: Mapping[str, str]) -> None:
        """Replace the whole state, in one step."""
        ...

    def parts(self) -> list[Part]:
        """Return the parts that exist; some may be empty."""
        ...

    def drop(self, part: Part) -> None:
        """Remove a part with all its points; no error if there is none."""
        ...

    def add(self, part: Part, points: Sequence[Point]) -> None:
        """Add points; one whose id is taken is left out silently, and what is there stays as it is.

        Who has to know whose point it is reads it back: a record's payload holds a word of its writer's.
        """
        ...

    def update(self, part: Part, changes: Mapping[str, Mapping[str, Value | None]]) -> None:
        """Set fields of the payloads of points, by id; None removes a field, and all others stay as they are.

        Ids that don't exist are left out: nothing is made by it.
        """
        ...

    def delete(self, part: Part, ids: Iterable[str]) -> None:
        """Remove points; ids that don't exist are left out."""
        ...

    def get(self, part: Part, ids: Sequence[str]) -> list[Point]:
        """Return the points with these ids, without vectors and words, in no order; what does not exist is left out."""
        ...

    def find(self, part: Part, where: Where, *, limit: int | None = None) -> list[Point]:
        """Return points that fulfil the conditions, without vectors and words; with a limit, the same ones each time.

        They come in no order.
        """
        ...

    def ids(self, part: Part, where: Where) -> list[str]:
        """Return the ids of all points that fulfil the conditions, in no order; as fast as the server can."""
        ...

    def count(self, part: Part) -> int:
        """Return how many points there are in a part, or a few more."""
        ...

    def holders(self, part: Part, term: "Term") -> list[str]:
        """Return the ids of the records whose words have a term; a few more may come, and are looked through later.

        Of a term of several tokens the records that have them all will do, in whatever order they are.
        """
        ...

    def nearest(self, part: Part, vector: "NDArray[np.float32]", *, k: int) -> list[tuple[str, float]]:
        """Return the ids of the `k` windows with the highest cosine, and its cosine; 99 in 100 are the right ones.

        Args:
            part: Where.
            vector: Shape (dimension,), unit length.
            k: How many; all there are if they are fewer, and fewer than `k` only then.
        """
        ...

    def vectors(self, part: Part, ids: Sequence[str]) -> "dict[str, NDArray[np.float32]]":
        """Return the vectors of windows by id, shape (dimension,); ids that don't exist are left out."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...
