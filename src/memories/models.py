"""The values that pass between modules: what a user sees (Memory, …) and what a store keeps (Record, Filter, …).

What only a search or a create returns is defined beside it, in `searching` and `writing`: every class costs each
command half a millisecond.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Moment = datetime | str

SHARED = "shared"
KNOWN_TAGS = ("agent", "personality", "project", "type", "global")
SPEAKER, ROLE = "speaker", "role"  # labels of turns
MAX_TURN_CHARACTERS = 100_000  # section 5.1 of the conversation specification
MAX_INDEX = 2**31 - 1  # that a turn may ask for; those behind it go on from there


class DecayPolicy(StrEnum):
    """How confidence ages: never, from when it was written, or from when it was last reinforced."""

    STABLE = "stable"
    CONTEXTUAL = "contextual"
    REINFORCEABLE = "reinforceable"


# --- what a user sees ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Memory:
    """A statement worth keeping, as its latest version says it.

    Attributes:
        id: A UUIDv7.
        namespace: The pool that it lives in.
        content: The statement.
        tags: Free `key=value` pairs; `agent`, `personality`, `project`, `type` and `global` are known ones.
        decay_policy: How its confidence ages.
        confidence: How current it is, 0 to 1, computed when asked.
        base_confidence: How sure its writer was, 0 to 1.
        created_at: When its first version was written.
        updated_at: When its latest version was written.
        last_reinforced_at: When it was last reinforced, if ever.
        version: The number of its latest version, which is also how many there are.
        key: The address under which it can be written again, if it has one.
        supersedes: The id of the memory that it replaced.
        superseded_by: The id of the memory that replaced it; it is then no longer found by a search.
        deleted: Whether it was deleted (it can be restored).
        access_count: How often it was read; approximate.
    """

    id: str
    namespace: str
    content: str
    tags: Mapping[str, str]
    decay_policy: DecayPolicy
    confidence: float
    base_confidence: float
    created_at: datetime
    updated_at: datetime
    last_reinforced_at: datetime | None
    version: int
    key: str | None
    supersedes: str | None
    superseded_by: str | None
    deleted: bool
    access_count: int


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a memory: what it said from `created_at` until `ended_at`.

    Attributes:
        operation: What wrote it: `create`, `update` or `restore`.
        ended_at: When it stopped being the current one, if it did.
        ended_by: What ended it: `update`, `delete` or `supersede`; the last two say so if they were undone.
    """

    version: int
    content: str
    tags: Mapping[str, str]
    operation: str
    created_at: datetime
    ended_at: datetime | None
    ended_by: str | None


@dataclass(frozen=True, slots=True)
class History:
    """Every version of a memory, oldest first, and the memories before and after it in its chain."""

    id: str
    versions: tuple[Version, ...]
    supersedes: str | None
    superseded_by: str | None


@dataclass(frozen=True, slots=True)
class Draft:
    """A memory to be written; see `Memories.create` for the fields."""

    content: str
    tags: Mapping[str, str] = field(default_factory=dict)
    decay: str | None = None
    key: str | None = None
    supersedes: str | None = None
    confidence: float | None = None
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a listing; pass `next_cursor` on to get the next one, None at the end."""

    memories: tuple[Memory, ...]
    next_cursor: str | None


class Forgotten(NamedTuple):
    """What was removed for good.

    Attributes:
        id: The memory, or the conversation.
        versions: How many versions or turns it had; 0 if they were gone and only their bytes were left.
        also_in: Files that may still hold it, such as snapshots taken before an upgrade.
    """

    id: str
    versions: int
    also_in: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """How the memory is: where it lies and what it holds, as far as the caller's namespaces reach."""

    store: str
    collection: str
    namespace: str
    namespaces_read: tuple[str, ...]
    memory_count: int
    turn_count: int
    deleted_count: int
    without_vector_count: int
    embedder: str
    store_model: str | None
    schema_version: int | None
    size_bytes: int | None
    erasing: bool


# --- what a store keeps --------------------------------------------------------------------------------------------


class Collection(StrEnum):
    """The two kinds of records: versions of memories, turns of conversations."""

    MEMORY = "memory"
    HISTORY = "history"


class Ref(NamedTuple):
    """The address of a record: its position (version or turn index) in its group (memory or conversation)."""

    collection: Collection
    namespace: str
    group: str
    position: int


@dataclass(frozen=True, slots=True)
class Record:
    """What a store keeps: a version of a memory, or a turn of a conversation.

    Attributes:
        ref: Where it stands.
        text: What it says.
        created_at: When it was written.
        ended_at: When it stopped being current. None while it is live.
        ended_by: What ended it: `update`, `delete` or `supersede`.
        key: A name that only one live record of a collection and namespace has.
        labels: Pairs that can be filtered by and counted.
        fields: Other values, JSON scalars only; not filtered by.
        vectors: Shape (windows, dimension), float32, unit length; None when it has not been embedded. Only written:
            a store keeps them in a coarser form and gives them back by `Store.vectors` only.
        accesses: How often it was read; approximate.
        session: For a turn, the position at which its session begins; None for what stands alone.
    """

    ref: Ref
    text: str
    created_at: datetime
    ended_at: datetime | None = None
    ended_by: str | None = None
    key: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    vectors: "NDArray[np.float32] | None" = None
    accesses: int = 0
    session: int | None = None


@dataclass(frozen=True, slots=True)
class Filter:
    """Which records are meant; all conditions hold together.

    Attributes:
        collection: Memories or turns.
        namespaces: At least one; records of no other are ever touched.
        labels: Pairs that a record must have.
        since: Written at this time or later.
        until: Written at this time or earlier.
        state: `live` records, `ended` ones, or `any`.
        ended_by: Only records that this ended.
        as_of: The records that were live at this time; `state` is then not looked at.
        group: One memory or conversation, by its full name or, with `prefix`, by how its name begins.
        prefix: Whether `group` is only the beginning of a name.
        key: The live record that has this key.
    """

    collection: Collection
    namespaces: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    since: datetime | None = None
    until: datetime | None = None
    state: Literal["live", "ended", "any"] = "live"
    ended_by: str | None = None
    as_of: datetime | None = None
    group: str | None = None
    prefix: bool = False
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A record that may answer a query.

    Attributes:
        record: The record, without its vectors.
        similarity: The cosine of its best window and the query, -1 to 1; None if there was no query vector or the
            record has no vector.
        words: How well its words match, BM25, larger is better; 0.0 if no term matches, or, in some stores, if it is
            not among the best by words.
    """

    record: Record
    similarity: float | None
    words: float


class Query(NamedTuple):
    """What is looked for among turns.

    Attributes:
        vector: Shape (dimension,), unit length; None to go by words alone.
        terms: See `Store.candidates`.
        k: So many of the best by vector, and so many of the best by words.
        days: Spans of time, the first moment and the last, that are asked about.
    """

    vector: "NDArray[np.float32] | None"
    terms: Sequence[str]
    k: int
    days: Sequence[tuple[datetime, datetime]] = ()


class Matches(NamedTuple):
    """What matches a query, in columns: one row for each record, shape (n,), where nothing else is said.

    Attributes:
        groups: The different groups, each with its namespace.
        group: Which of `groups` the record is in.
        position: Its position in the group.
        session: The position at which its session begins; -1 for what stands alone.
        created_at: When it was written, in milliseconds since 1970.
        labels: The different sets of labels.
        label: Which of `labels` it has.
        words: BM25 of all terms, larger is better; 0.0 if none matches.
        similarity: The cosine of its best window and the query, -1 to 1; NaN for what has no vector.
        terms: Terms that were looked for; ones that very many records have may be left out.
        holds: Which record has which term, shape (len(terms), n), bool.
        searched: How many records were searched, roughly.
    """

    groups: Sequence[tuple[str, str]]
    group: "NDArray[np.int64]"
    position: "NDArray[np.int64]"
    session: "NDArray[np.int64]"
    created_at: "NDArray[np.int64]"
    labels: Sequence[Mapping[str, str]]
    label: "NDArray[np.int64]"
    words: "NDArray[np.float64]"
    similarity: "NDArray[np.float64]"
    terms: Sequence[str]
    holds: "NDArray[np.bool_]"
    searched: int


class Patch(NamedTuple):
    """A change of a record's metadata; its text, labels and vectors never change.

    Attributes:
        ref: Which record.
        ended_at: Its new end; None leaves it or makes it live again.
        ended_by: What ended it.
        fields: Values to set; a value of None removes the field.
    """

    ref: Ref
    ended_at: datetime | None
    ended_by: str | None
    fields: Mapping[str, Any]


class StoreInfo(NamedTuple):
    """What a store says about itself.

    Attributes:
        schema_version: None where it has none yet.
        model: What made its vectors; None where it has none.
        without_vector_count: Records that only words can find.
        size_bytes: What it needs on the disk; None where it can't know.
        erasing: A removal was cut short: bytes of what was removed may still be in its files.
        collection: What its part of a server is called, where it has such a name.
    """

    url: str
    schema_version: int | None
    model: str | None
    size_bytes: int | None
    without_vector_count: int
    erasing: bool
    collection: str | None = None
