"""What a store takes and returns: records, refs, filters, answers. What users see is in
`models`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from memories.core.times import to_millis

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SPEAKER, ROLE = "speaker", "role"  # labels of turns
ROLES = ("user", "assistant", "system", "tool")
MAX_INDEX = 2**31 - 1  # the highest index that a turn may ask for; later turns continue from there
BESIDE = 2  # `Store.matches` also returns this many turns before and after one that matches
_NONE: Mapping[str, Any] = {}


class Collection(StrEnum):
    """The kinds of records: versions of memories, turns of conversations, and what the audit log
    keeps of both.
    """

    MEMORY = "memory"
    HISTORY = "history"
    LOG = "log"


SEARCHED = (
    Collection.MEMORY,
    Collection.HISTORY,
)  # those with words and vectors; the log has neither


class Ref(NamedTuple):
    """Identifies a record: its position (version or turn index) in its group (memory or
    conversation).
    """

    collection: Collection
    namespace: str
    group: str
    position: int


class Record(NamedTuple):
    """What a store keeps: a version of a memory, or a turn of a conversation.

    Attributes:
        ref: Where it is.
        text: Its content.
        created_at: When it was written.
        ended_at: When it stopped being current. None while it is live.
        ended_by: What ended it: `update`, `delete` or `supersede`.
        key: A name that only one live record of a collection and namespace has.
        labels: Pairs that can be filtered by and counted.
        fields: Other values, JSON scalars only; not filtered by.
        vectors: Shape (windows, dimension), float32, unit length; None if it has not been embedded.
            Write only: a store may keep them in a coarser form, and only `Store.vectors` returns
            them.
        accesses: How often it was read; approximate.
        session: For a turn, the position at which its session begins; None outside of sessions.
    """

    ref: Ref
    text: str
    created_at: datetime
    ended_at: datetime | None = None
    ended_by: str | None = None
    key: str | None = None
    labels: Mapping[str, str] = _NONE
    fields: Mapping[str, Any] = _NONE
    vectors: "NDArray[np.float32] | None" = None
    accesses: int = 0
    session: int | None = None

    @property
    def role(self) -> str | None:
        """Who said it, as one of `ROLES`; None for a memory, whose tags are free."""
        return self.labels.get(ROLE) if self.ref.collection is Collection.HISTORY else None

    def names(self, field: str) -> tuple[str, ...]:
        """Return the names that a field holds, which are written with a blank between them; none if
        it is not there.
        """
        return tuple(str(self.fields.get(field, "")).split())


class Filter(NamedTuple):
    """Selects records; all conditions must hold.

    Attributes:
        collection: Memories or turns.
        namespaces: At least one; records of no other are ever touched.
        labels: Pairs that a record must have.
        since: Written at this time or later.
        until: Written at this time or earlier.
        state: `live` records, `ended` ones, or `any`.
        ended_by: Only records that this ended.
        as_of: Records that were live at this time; `state` is then ignored.
        group: One memory or conversation, by its full name or, with `prefix`, by how its name
            begins.
        prefix: Whether `group` is only the beginning of a name.
        key: Only the live record with this key.
    """

    collection: Collection
    namespaces: tuple[str, ...]
    labels: Mapping[str, str] = _NONE
    since: datetime | None = None
    until: datetime | None = None
    state: Literal["live", "ended", "any"] = "live"
    ended_by: str | None = None
    as_of: datetime | None = None
    group: str | None = None
    prefix: bool = False
    key: str | None = None

    def fits(self, record: Record) -> bool:
        """Return whether a record matches."""
        ref, ended_at = record.ref, record.ended_at
        if self.as_of is not None:
            current = record.created_at <= self.as_of and (
                ended_at is None or ended_at > self.as_of
            )
        else:
            current = self.state == "any" or (self.state == "live") == (ended_at is None)
        return (
            current
            and ref.collection is self.collection
            and ref.namespace in self.namespaces
            and (self.key is None or (record.key == self.key and ended_at is None))
            and self.labels.items() <= record.labels.items()
            and (self.ended_by is None or record.ended_by == self.ended_by)
            and (self.since is None or record.created_at >= self.since)
            and (self.until is None or record.created_at <= self.until)
            and (
                ref.group.startswith(self.group or "")
                if self.prefix
                else self.group in (None, ref.group)
            )
        )


class Candidate(NamedTuple):
    """A record that may answer a query.

    Attributes:
        record: The record, without its vectors.
        similarity: The cosine of its best window and the query, -1 to 1; None if there was no query
            vector or the record has no vector.
        words: How well its words match, BM25, larger is better; 0.0 if no term matches, or, in some
            stores, if it is not among the best by words.
    """

    record: Record
    similarity: float | None
    words: float


class TurnQuery(NamedTuple):
    """A search of turns.

    Attributes:
        vector: Shape (dimension,), unit length; None to search by words alone.
        terms: See `Store.candidates`.
        k: How many of the best by vector, and how many of the best by words.
        days: Spans of time that the query asks about, each with its first and last moment.
    """

    vector: "NDArray[np.float32] | None"
    terms: Sequence[str]
    k: int
    days: Sequence[tuple[datetime, datetime]] = ()


class Matches(NamedTuple):
    """What matches a query, in columns: one row per record, shape (n,) unless stated otherwise.

    Attributes:
        groups: The different groups, each with its namespace.
        group: Which of `groups` the record is in.
        position: Its position in the group.
        session: The position at which its session begins; -1 outside of sessions.
        created_at: When it was written, in milliseconds since 1970.
        labels: The different sets of labels.
        label: Which of `labels` it has.
        words: BM25 of all terms, larger is better; 0.0 if none matches.
        similarity: The cosine of its best window and the query, -1 to 1; NaN if it has no vector.
        terms: The terms that were searched for; very common ones may be left out.
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
    """The status of a store.

    Attributes:
        schema_version: None if it has none yet.
        model: The model of its vectors; None if it has none.
        without_vector_count: How many records only words can find.
        size_bytes: Its size on disk; None if unknown.
        erasing: A removal was interrupted: bytes of removed records may still be in its files.
        collection: Its name on the server, if it has one.
        log_bytes: How much of it is in a log that is not yet moved into its file; None if it has
            none.
        missing_commits: How many commits were acknowledged and are gone, because a log was cut or
            removed, or an older copy was put in its place.
        read_only: It can be read and not written by who asks.
        compact: Its vectors take less room: see the setting `compact`.
    """

    url: str
    schema_version: int | None
    model: str | None
    size_bytes: int | None
    without_vector_count: int
    erasing: bool
    collection: str | None = None
    log_bytes: int | None = None
    missing_commits: int = 0
    read_only: bool = False
    compact: bool = False


class Finding(NamedTuple):
    """Something wrong in a store.

    Attributes:
        what: What is wrong, and where: a part of a sentence.
        remedy: What to do about it: a sentence.
        derived: It can be made again from the records, so `Store.repair` mends it.
        ref: The damaged record, if it is one; by this address it can be forgotten.
    """

    what: str
    remedy: str
    derived: bool = False
    ref: Ref | None = None


class Space(NamedTuple):
    """What makes two vectors comparable: they have the same model and the same length.

    Attributes:
        model: Names the model, its revision and its quantization; vectors of two models are never
            compared.
        dimension: The length of a vector.
        noise_mean: With `noise_spread`, how similar the best of many memories is to a meaningless
            query: see `ranking.noise_floor`. Models differ in how far apart they hold strangers.
        noise_spread: See `noise_mean`.
        weight: How much similarity counts beside words in a score; it makes up for how narrow the
            model's range is.
        calibration: Slope and middle of the curve that turns a cosine into a similarity that means
            the same for every embedder: see `ranking.calibrated`.
        duplicate: The similarity from which two statements may say the same; measured for each
            model too.
        familiar_noise: Whether a query of words that the model knows may be noise. Not where a
            question in another language than its answer is no nearer to it than nonsense is.
        latin_only: Its model knows only languages in Latin script; its vectors for other scripts
            mean little.
    """

    model: str
    dimension: int
    noise_mean: float
    noise_spread: float
    weight: float
    duplicate: float
    calibration: tuple[float, float]
    latin_only: bool = False
    familiar_noise: bool = True


def plain_conditions(where: Filter) -> list[tuple[str, tuple[Any, ...]]]:
    """Return what a filter says about single columns of `record r`, each with the values of its
    question marks.

    The first condition is about the state of a record. Namespaces, groups and labels are left to
    each store.
    """
    current: tuple[str, tuple[Any, ...]]
    if where.as_of is not None:
        moment = to_millis(where.as_of)
        current = "r.created_at <= ? AND (r.ended_at IS NULL OR r.ended_at > ?)", (moment, moment)
    else:
        current = (
            {"live": "r.ended_at IS NULL", "ended": "r.ended_at IS NOT NULL", "any": "true"}[
                where.state
            ],
            (),
        )
    more = (
        ("r.ended_by = ?", where.ended_by),
        ("r.created_at >= ?", where.since and to_millis(where.since)),
        ("r.created_at <= ?", where.until and to_millis(where.until)),
        ("r.key = ? AND r.ended_at IS NULL", where.key),
    )
    return [current, *((sql, (value,)) for sql, value in more if value is not None)]
