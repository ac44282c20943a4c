"""The values that stores take and return: records, refs, filters and search results.

The values that users see are in `models`.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from memories.core.times import to_millis
from memories.errors import StoreError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SPEAKER, ROLE = "speaker", "role"  # keys of a turn's labels
# The highest index that a caller may choose for a turn; the next turns are numbered from there.
MAX_INDEX = 2**31 - 1
BESIDE = 2  # `Store.matches` also returns this many turns before and after the best matches
_NONE: Mapping[str, Any] = {}


class Collection(StrEnum):
    """The kinds of records: versions of memories, conversation turns, and the audit log."""

    MEMORY = "memory"
    HISTORY = "history"
    LOG = "log"


SEARCHED = (Collection.MEMORY, Collection.HISTORY)  # they have indexes of words and vectors


class Ref(NamedTuple):
    """A record's address.

    The group is a memory or a conversation; the position in it is a version or a turn's index.
    """

    collection: Collection
    namespace: str
    group: str
    position: int


def by_namespace(refs: Iterable[Ref]) -> dict[tuple[Collection, str], list[Ref]]:
    """Group refs by collection and namespace."""
    groups: dict[tuple[Collection, str], list[Ref]] = {}
    for ref in refs:
        groups.setdefault(ref[:2], []).append(ref)
    return groups


class Record(NamedTuple):
    """A version of a memory, a turn in a conversation, or an entry in the audit log.

    Attributes:
        ref: Its address.
        text: Its content.
        created_at: When it was written.
        ended_at: When it ended; None for a live record.
        ended_by: The action that ended it, such as `update`, `delete` or `supersede`; `pending` for
            a version that awaits review, which is stored as ended.
        key: A name that is unique among the live records of a collection and namespace; it contains
            the project (`read.versions.scoped_key`).
        labels: Pairs that filters can select by and stores can count.
        fields: Other values, JSON scalars only; filters can't select by them.
        vectors: Shape (windows, dimension), float32, unit length; None if not embedded yet. Set
            only in records to be written; `Store.vectors` reads them.
        accesses: Approximately how often it was read.
        session: For a turn, the position at which its session begins; None outside sessions.
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
        """The role of a turn's speaker, one of `guard.validate.ROLES`; None for a memory."""
        if self.ref.collection is Collection.HISTORY:
            return self.labels.get(ROLE)
        return None

    def read_list(self, field: str) -> tuple[str, ...]:
        """Return the space-separated items of a field; empty if the field is missing."""
        return tuple(str(self.fields.get(field, "")).split())


class Filter(NamedTuple):
    """Selects the records that meet all of its conditions.

    Attributes:
        collection: Memories, turns or the log.
        namespaces: The records' namespaces, at least one. Others are never read or changed.
        labels: Pairs that a record must have.
        since: Only records written at this time or later.
        until: Only records written at this time or earlier.
        state: `live` records, `ended` records, or `any`.
        ended_by: Only records that this action ended.
        as_of: Only records that were live at this time; if it is set, `state` is ignored.
        group: One memory or conversation, by its full name or, with `prefix`, by the beginning of
            its name.
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
        """Return whether a record meets all conditions."""
        ref = record.ref
        if ref.collection is not self.collection or ref.namespace not in self.namespaces:
            return False
        if self.key is not None and (record.key != self.key or record.ended_at is not None):
            return False
        if self.ended_by is not None and record.ended_by != self.ended_by:
            return False
        is_late_enough = self.since is None or record.created_at >= self.since
        is_early_enough = self.until is None or record.created_at <= self.until
        if not is_late_enough or not is_early_enough:
            return False
        if not self._fits_state(record) or not self._fits_group(ref.group):
            return False
        return self.labels.items() <= record.labels.items()

    def _fits_state(self, record: Record) -> bool:
        ended_at = record.ended_at
        if self.as_of is not None:
            was_written = record.created_at <= self.as_of
            return was_written and (ended_at is None or ended_at > self.as_of)
        if self.state == "any":
            return True
        return (self.state == "live") == (ended_at is None)

    def _fits_group(self, group: str) -> bool:
        if self.group is None:
            return True
        if self.prefix:
            return group.startswith(self.group)
        return group == self.group


class Candidate(NamedTuple):
    """A record that may answer a query.

    Attributes:
        record: The record, without its vectors.
        similarity: The cosine between the query and the record's best window, -1 to 1; None if the
            query or the record has no vector.
        word_score: The record's BM25 score, larger is better; 0.0 if no term matches or, in some
            stores, if the record isn't among the best by words. `search.surroundings` scales it.
    """

    record: Record
    similarity: float | None
    word_score: float


class TurnQuery(NamedTuple):
    """A search whose matches are ranked with their neighbours; see `Store.matches`.

    Attributes:
        vector: Shape (dimension,), unit length; None to search by words only.
        terms: See `Store.candidates`.
        k: How many results to find by vector, and how many by words.
        days: The time spans that the query mentions, each as its first and last moment. They were
            widened by a few days, since people may mention an event before or after it happens.
    """

    vector: "NDArray[np.float32] | None"
    terms: Sequence[str]
    k: int
    days: Sequence[tuple[datetime, datetime]] = ()


class Matches(NamedTuple):
    """The records that `Store.matches` returns, as columns of shape (n,) unless stated otherwise.

    Attributes:
        groups: The distinct groups, each as (namespace, group).
        group: The index of the record's group in `groups`.
        position: The record's position in its group.
        session: The position at which the record's session begins; -1 outside sessions.
        created_at: When the record was written, in milliseconds since 1970.
        labels: The distinct sets of labels.
        label: The index of the record's label set in `labels`.
        word_score: BM25 of all terms, larger is better; 0.0 if none matches.
        similarity: The cosine between the query and the record's best window, -1 to 1; NaN if it
            has no vector.
        terms: The terms of the search; a store may leave out very common ones.
        holds: Whether a record contains a term, shape (len(terms), n), bool.
        searched: Approximately how many records were searched.
    """

    groups: Sequence[tuple[str, str]]
    group: "NDArray[np.int64]"
    position: "NDArray[np.int64]"
    session: "NDArray[np.int64]"
    created_at: "NDArray[np.int64]"
    labels: Sequence[Mapping[str, str]]
    label: "NDArray[np.int64]"
    word_score: "NDArray[np.float64]"
    similarity: "NDArray[np.float64]"
    terms: Sequence[str]
    holds: "NDArray[np.bool_]"
    searched: int


class Patch(NamedTuple):
    """A change to a record's metadata; its text, labels and vectors never change.

    Attributes:
        ref: The address of the record.
        ended_at: When it ended; None keeps it live or makes it live again.
        ended_by: The action that ended it.
        fields: Values to set; None removes a field.
    """

    ref: Ref
    ended_at: datetime | None
    ended_by: str | None
    fields: Mapping[str, Any]


class StoreInfo(NamedTuple):
    """A store's status.

    Attributes:
        schema_version: The version of its schema; None if the store doesn't exist yet.
        model: The model of its vectors; None without vectors.
        without_vector_count: How many records have no vector, so that only words can find them.
        size_bytes: Its size on disk; None if unknown.
        erasing: Whether a removal was interrupted: bytes of removed records may still be in
            its files.
        collection: Its name on the server, if it has one.
        log_bytes: The size of the write-ahead log on disk; None if the store has no such log.
        missing_commits: The number of acknowledged commits that were lost, because a log was
            truncated or removed, or because an older copy replaced the file.
        read_only: Whether the caller may only read it.
        compact: Whether its vectors are stored in the smaller form: see the setting `compact`.
        dimension: The length of its vectors; None if it is unknown.
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
    dimension: int | None = None


class Finding(NamedTuple):
    """A problem in a store.

    Attributes:
        what: The problem and its location, as part of a sentence.
        remedy: Advice to the user, such as a command to run.
        derived: Whether `Store.repair` can rebuild the damaged part from the records.
        ref: The damaged record's address, by which it can be forgotten; None if the problem isn't
            in a record.
        commits_missing: Whether acknowledged commits are missing, which `memory doctor --fix`
            accepts.
    """

    what: str
    remedy: str
    derived: bool = False
    ref: Ref | None = None
    commits_missing: bool = False


class Space(NamedTuple):
    """An embedding space: vectors are comparable if they have the same model and dimension.

    Attributes:
        model: The model's name, revision and quantization. Vectors of two models are never
            compared.
        dimension: The length of a vector.
        noise_mean: With `noise_spread`, describes how similar a meaningless query is to the best of
            many memories: see `noise.noise_floor`. It depends on how far apart the model places
            unrelated texts.
        noise_spread: See `noise_mean`.
        weight: How much similarity counts in a score, relative to words. It compensates for a model
            whose similarities span a narrow range.
        calibration: Slope and midpoint of the curve that maps a cosine to a similarity with the
            same meaning for every embedder: see `relevance.calibrate`.
        duplicate: The similarity above which two statements may say the same thing, as
            measured for the model.
        familiar_noise: Whether a query may count as noise even if the model knows its words. False
            for a model that finds no similarity between a question and its answer in another
            language.
        latin_only: Whether the model knows only languages in Latin script; its vectors for other
            scripts mean little.
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


def require_space(space: Space | None) -> Space:
    """Return the space, or refuse to continue without one.

    Raises:
        StoreError: The store was opened in keyword-only mode.
    """
    if space is None:
        raise StoreError("this store was opened without an embedder, so it can't store a vector")
    return space


def plain_conditions(where: Filter) -> list[tuple[str, tuple[Any, ...]]]:
    """Return a filter's conditions on single columns of `record r`, each with its SQL values.

    The first condition is on the record's state. Each store adds its own conditions for
    namespaces, groups and labels. The placeholder is `?`, which a store replaces if its driver
    uses another one.
    """
    conditions: list[tuple[str, tuple[Any, ...]]] = [_state_condition(where)]
    if where.ended_by is not None:
        conditions.append(("r.ended_by = ?", (where.ended_by,)))
    if where.since is not None:
        conditions.append(("r.created_at >= ?", (to_millis(where.since),)))
    if where.until is not None:
        conditions.append(("r.created_at <= ?", (to_millis(where.until),)))
    if where.key is not None:
        conditions.append(("r.key = ? AND r.ended_at IS NULL", (where.key,)))
    return conditions


def _state_condition(where: Filter) -> tuple[str, tuple[Any, ...]]:
    if where.as_of is not None:
        moment = to_millis(where.as_of)
        return "r.created_at <= ? AND (r.ended_at IS NULL OR r.ended_at > ?)", (moment, moment)
    if where.state == "any":
        return "true", ()
    return "r.ended_at IS NULL" if where.state == "live" else "r.ended_at IS NOT NULL", ()


# --- comparing a record with its copy in another store


def immutable_parts(record: Record) -> tuple[Any, ...]:
    """Return the parts of a record that never change."""
    return (
        *record.ref,
        record.text,
        to_millis(record.created_at),
        record.key,
        record.session,
        sorted(record.labels.items()),
    )


def mutable_parts(record: Record) -> tuple[Any, ...]:
    """Return the parts of a record that may change.

    The access count is left out, because it is only a statistic.
    """
    ended_at = None
    if record.ended_at is not None:
        ended_at = to_millis(record.ended_at)
    fields = sorted((name, plain_number(value)) for name, value in record.fields.items())
    return ended_at, record.ended_by, fields


def plain_number(value: Any) -> Any:
    """Return a whole float as an int, because some stores have only floats.

    Other values are returned unchanged.
    """
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if is_whole else value


def patch_for_copy(record: Record, copy: Record) -> Patch | None:
    """Return the patch that makes a copy equal to the record; None if they are already equal."""
    if mutable_parts(record) == mutable_parts(copy):
        return None
    fields: dict[str, Any] = dict.fromkeys(copy.fields)
    fields.update(record.fields)
    return Patch(record.ref, record.ended_at, record.ended_by, fields)


def split_ends_first(patches: Sequence[Patch]) -> tuple[list[Patch], list[Patch]]:
    """Split patches into those that end records and those that don't, to be applied in this order.

    Ending a record frees its key, which another patch may need.
    """
    ends = [patch for patch in patches if patch.ended_at is not None]
    return ends, [patch for patch in patches if patch.ended_at is None]
