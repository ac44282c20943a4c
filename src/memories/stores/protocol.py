"""The store protocol, with all rules for backends.

A store keeps complete records and finds candidates. The layers above it make all decisions.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from memories.errors import (
    EmbedderMismatch,
    ErasureUnfinished,
    StoreError,
    describe_after_writes,
)
from memories.guard.validate import amount
from memories.stores.damage import Damaged, refusal
from memories.stores.records import (
    Candidate,
    Collection,
    Filter,
    Finding,
    Patch,
    Record,
    Ref,
    Space,
    StoreInfo,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.stores.claims import Claims
    from memories.stores.records import Matches, TurnQuery

# A check that a store runs before it treats missing data as an empty store. Its argument is a
# function that returns whether the data is missing. If it is, but a scratchpad still mirrors the
# store, the check raises `StoreDamaged`: the data was lost.
RefuseLost = Callable[[Callable[[], bool]], None]
_DEFAULT_MODEL = "all-MiniLM-L6-v2/"  # the embedder if EMBEDDER isn't set


def treat_as_new(_is_missing: Callable[[], bool]) -> None:
    """Do nothing: the `RefuseLost` for stores that have no scratchpads."""


class Store(Protocol):
    """Stores records in three collections: memories, conversations, and the audit log.

    Each collection is divided into namespaces. Records of the log (see `audit_log`) are read and
    scanned like others, but have no words and no vectors. Searches, statistics and changes of the
    embedding space leave them out.

    These rules hold for every backend. `tests/stores/contract/` checks them; docs/reliability.md
    lists the tests of crashes and power failures.

    - *Isolation.* Filters and refs name their namespaces, and nothing in any other namespace is
      read, counted, changed or revealed. No filter selects every namespace; only the method
      `namespaces` lists them all, for work on an entire store.
    - *Durability.* Once a writing method has returned, or the transaction around it has ended, no
      crash of the process or the machine and no power failure undoes it.
    - *Atomicity.* A writing method takes effect completely or not at all.
    - *Names* of namespaces, groups, labels and keys are equal only if they are identical, including
      case, accents and spaces at the end.
    - *Order.* Positions in a group are unique: the second writer of a position gets `Conflict`, and
      so does the writer of a second live record with the same key.
    - *Collections* don't affect each other: turns don't make the words of memories more common, or
      searches of memories slower.
    - *Scores.* A similarity is a cosine, within 0.01 of the exact one. A word score is the BM25 of
      `words.score`, computed from the tokens of `words`, and not a database's own full-text score.
      A larger score is better; it is 0 if no term matches. Its statistics cover the collection's
      live records in the filter's namespaces, regardless of the filter's other conditions; ended
      records have statistics of their own. A turn's words include the name of its speaker.
    - *Vectors* of different models are never compared: the store remembers the space of its first
      vector. Writes and searches in any other space raise `EmbedderMismatch`.
    - *Threads and processes* may share a store. The exception is a Qdrant folder, which
      admits only one process at a time.
    - *Opening* is cheap and writes nothing; a store that doesn't exist yet reads as empty.
    - *Damage* in one record doesn't affect others: a store that can detect damage leaves the record
      out of its results and notes it in `damaged`. `patch` refuses to change the record; `refs` and
      `remove` only need its address.
    - *Errors* come from `memories.errors`: `Conflict`, `StoreBusy`, `StoreDamaged`, `SchemaTooNew`,
      `EmbedderMismatch`, and `StoreError` for all others. No driver's exception reaches the caller.

    Vector search may be exact or approximate. The protocols `OnThisDisk`, `SharedByServers` and
    `Partitioned` below are optional.
    """

    damaged: Damaged

    def transaction(self) -> AbstractContextManager[None]:
        """Run the reads and writes inside the context as one step, with no other writer in between.

        The transaction commits completely or undoes everything. Transactions nest: only the
        outermost one commits, and a failed write undoes its own changes even if the error is
        caught. A backend without transactions documents its guarantees in its class docstring, as
        `documents.store.DocumentStore` does.

        Raises:
            StoreBusy: Another process kept the store locked for too long.
        """

    def append(self, records: Sequence[Record]) -> None:
        """Add new records with their words and vectors; copied records keep their `accesses`.

        Raises:
            Conflict: A position or a key is taken; nothing was added.
            EmbedderMismatch: The store's vectors are in a different space.
        """

    def patch(self, patches: Sequence[Patch]) -> None:
        """End records or make them live again, and set their fields; ignore missing records.

        Raises:
            Conflict: A record would become live again, but another record now has its key; nothing
                was changed.
        """

    def touch(self, refs: Sequence[Ref], batch: str = "") -> bool:
        """Count one access for each occurrence of a ref.

        The counts are only statistics, so no caller waits for them.

        Args:
            refs: The records; those that don't exist are ignored.
            batch: A name for these accesses. A store may ignore it, or store the name of the last
                batch with the counts, and not count that batch again.

        Returns:
            Whether the accesses were counted; a busy or read-only store doesn't count them.
        """

    def used(self, where: Filter) -> list[tuple[Ref, int]]:
        """Return the records that have been read and their access counts, highest count first.

        Records with the same count are ordered by group and namespace.
        """

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """Remove records so that the files contain no byte of their text, words or vectors.

        Not allowed inside a transaction, because it rewrites files. If a store can't reach every
        byte, for example in a server's write-ahead log, its class docstring and docs/stores.md say
        what remains.

        Returns:
            Other files that may still contain the records, such as snapshots taken before a
            migration.

        Raises:
            StoreError: The erasure failed. If the records had already been removed, no reader sees
                them, `info` reports `erasing`, and the next call, even one without refs, finishes
                the erasure. In that case, a `LoggedStore` raises `ErasureUnfinished`.
        """

    def scan(
        self,
        where: Filter,
        *,
        limit: int,
        after: tuple[str, int] | None = None,
        newest_first: bool = False,
    ) -> list[Record]:
        """Return records ordered by group, position and namespace.

        Memories are therefore in the order in which they were created.

        Args:
            where: Selects the records.
            limit: The maximum number of records.
            after: The group and position after which the scan continues, in its direction. If the
                group exists in several namespaces, this applies to all of them.
            newest_first: Scan backwards.
        """

    def groups(self, where: Filter, *, limit: int) -> list[tuple[str, str]]:
        """Return the distinct (namespace, group) pairs of records, at most `limit`.

        They are ordered by group and then by namespace.
        """

    def candidates(
        self, where: Filter, *, vector: "NDArray[np.float32] | None", terms: Sequence[str], k: int
    ) -> list[Candidate]:
        """Return the records that may answer a query: the best by vector and the best by words.

        Args:
            where: Selects the records.
            vector: The query, shape (dimension,), unit length; None to search by words only.
            terms: From `languages.text.query_terms`: words, phrases, and word prefixes, which
                end in `*`; one match is enough.
            k: How many records to return by vector, and how many by words; at most 2k in total.

        Returns:
            Each record with its similarity (even if it was found by words) and its word score, in
            no particular order.

        Raises:
            EmbedderMismatch: The store's vectors are in a different space.
        """

    def matches(self, where: Filter, query: "TurnQuery") -> "Matches":
        """Return a query's matches as columns, for ranking turns together with their neighbours.

        If the filter selects up to a few thousand records, a store should return all of them. If it
        selects more, the store returns at least the best records by vector and by words, the turns
        next to the very best of these in the same session, and turns from the days in the query.

        Args:
            where: Selects the records.
            query: The search.

        Raises:
            EmbedderMismatch: The store's vectors are in a different space.
        """

    def read(self, refs: Sequence[Ref]) -> list[Record]:
        """Return the records at these refs, in no particular order; missing ones are left out."""

    def values(self, collection: Collection, namespaces: Sequence[str], key: str) -> list[str]:
        """Return the sorted distinct values of a label in these namespaces.

        To make this fast even with many records, the result may include values that only ended
        records have.
        """

    def count(self, where: Filter, *, at_most: int | None = None) -> int:
        """Return the number of records that match a filter; counting stops at `at_most`."""

    def labels(self, where: Filter, key: str | None) -> Mapping[str, int]:
        """Return the number of records with each label key or, given a key, with each value."""

    def days(self, where: Filter) -> Mapping[int, int]:
        """Return the number of records written on each UTC day.

        The sorted keys are days since 1 January 1970.
        """

    def namespaces(self, collection: Collection) -> list[str]:
        """Return the sorted names of the namespaces that contain records, live or ended.

        Use this for moving or re-embedding an entire store, never for a search.
        """

    def vectors(self, refs: Sequence[Ref]) -> "dict[Ref, NDArray[np.float32]]":
        """Return each record's stored vectors: shape (windows, dimension), float32, unit length.

        These are the vectors in use, even if the store was opened with a different space. A store
        may keep vectors in a coarser form than it received. Even if they are then copied to another
        store and read back, a cosine stays within 0.01 of the exact one. Records without a vector,
        and refs that don't exist, are left out.
        """

    def unstaged(self, space: Space, collection: Collection, *, limit: int) -> list[Record]:
        """Return records that have no vectors in this space, staged or in use.

        The records come from all namespaces, in no particular order. They include ended records,
        and records that were added after others were staged.

        Args:
            space: The space in use, to complete its vectors, or a different one, to switch to it.
            collection: Memories or turns.
            limit: The maximum number of records. Staged records aren't returned again, so repeated
                calls make progress.
        """

    def stage(self, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """Store a space's vectors alongside those in use; searches ignore them until `switch`.

        Vectors in the space in use are searched immediately, as are the first vectors of a store
        that never had any. Only one other space can be staged: vectors staged in a different one
        are dropped. Refs that don't exist are ignored; if none exists, nothing changes. The vectors
        replace those that were staged earlier for the same records. They outlive `close`, and are
        removed with their record.

        Args:
            space: The vectors' space; not necessarily the one with which the store was opened.
            vectors: The vectors of each ref: shape (windows, dimension), unit length.
        """

    def switch(self, space: Space) -> None:
        """Search by the staged vectors in this space from now on, and remove the previous ones.

        The switch is atomic. From then on, a store opened with a different space raises
        `EmbedderMismatch`, and one opened with this space searches by its vectors. A store without
        records switches immediately. If this space is already in use, nothing changes. No record
        may be added unnoticed between the last call to `unstaged` and the switch. So both calls can
        be made in one transaction, and a backend without transactions looks for such records before
        and after the switch.

        Args:
            space: The space; not necessarily the one with which the store was opened.

        Raises:
            Conflict: Records lack vectors in this space (see `unstaged`); nothing was changed.
        """

    def use_space(self, space: Space) -> None:
        """Use this space for writes and searches, instead of the one the store was opened with.

        Stored vectors don't change. No other thread may use the store during the call.
        """

    def info(self, where: Filter) -> StoreInfo:
        """Return the store's status, read from disk, so a result proves that the store responds."""

    def refs(self, where: Filter) -> list[Ref]:
        """Return the addresses of records, ordered by group and position.

        The records' content isn't read, so damaged records are included. They can be removed by
        their address.
        """

    def check(self, *, deep: bool) -> Iterable[Finding]:
        """Return the store's problems; change nothing.

        Args:
            deep: Whether to check everything, however long it takes. If not, the check takes about
                ten milliseconds: it covers all of a small store, but only the most informative
                parts of a large one.
        """

    def repair(self) -> list[str]:
        """Rebuild incorrect parts that are derived from the records, in one transaction.

        Records stay unchanged.

        Returns:
            The rebuilt parts; empty if nothing was wrong.
        """

    def close(self) -> None:
        """Release all resources. The store must not be used afterwards."""


@runtime_checkable
class OnThisDisk(Protocol):
    """A store that keeps its files on this machine, and can test whether a write would succeed."""

    def rehearse(self) -> None:
        """Test whether a write would succeed: make a small one, and roll it back.

        This doesn't wait for other writers: if one is writing, writes evidently succeed.

        Raises:
            StoreError: A write would fail with this error, for example because of a full disk or a
                read-only folder.
        """


class Listener(Protocol):
    """Reports the writes of all processes; see `SharedByServers.listen`.

    Attributes:
        hearing: Whether writes are reported now; if not, the caller must poll.
    """

    hearing: bool

    def close(self) -> None:
        """Stop reporting writes."""


@runtime_checkable
class SharedByServers(Protocol):
    """A store that servers on several machines can share.

    The servers claim requests in the store, and the store notifies them of each other's writes.
    With any other store, servers poll for writes, and keep their claims in a file. If a store can
    hold claims but can't notify, its listener's `hearing` stays False.
    """

    def claims(self) -> "Claims":
        """Return the claims on requests with an idempotency key; all servers share them."""

    def listen(self, callback: Callable[[], None]) -> Listener:
        """Call a function after each write to the log by any process, until the listener is closed.

        The function is also called whenever `hearing` changes.
        """


@runtime_checkable
class Partitioned(Protocol):
    """A store whose tables are divided into partitions."""

    def repartition(self, partitions: int) -> int:
        """Change the number of partitions while others read and write; return the previous number.

        Raises:
            ConfigError: The number is invalid.
            StoreError: The partitions can't be changed from here.
            StoreBusy: Another transaction kept using the tables.
        """


# --- writes that failed


@contextlib.contextmanager
def add_count_to_errors(count: Callable[[], int], verb: str) -> Iterator[None]:
    """Make a store's errors say how many records were written before the failure.

    Args:
        count: Returns that number.
        verb: What happened to them, such as `imported`.
    """
    try:
        yield
    except StoreError as exc:
        if not count():
            raise
        records = amount(count(), "record was", "records were")
        raise type(exc)(f"{records} {verb}, but {describe_after_writes(exc)}") from exc


# --- erasures that failed

GONE = "the forgotten content is gone, but some of its bytes may still be on the disk"
PARTLY_GONE = "only part of the content has been forgotten"
UNSURE = "the content may or may not have been forgotten"


@contextlib.contextmanager
def once_erased(state: str = GONE) -> Iterator[None]:
    """Turn a `StoreError` inside the context into `ErasureUnfinished`."""
    try:
        yield
    except ErasureUnfinished:
        raise
    except StoreError as exc:
        raise erasure_unfinished(state, exc) from exc


def erasure_unfinished(state: str, exc: StoreError) -> ErasureUnfinished:
    """Return the error for a failed erasure; it says how far the erasure got."""
    why = str(exc).partition(";")[0]  # leaves out "; nothing was written", which is false here
    return ErasureUnfinished(f"{state} ({why}); forget it again")


# --- damaged records


def refuse_damaged(store: Store, where: Filter, mark: int) -> None:
    """Raise an error if a record that seems to be missing is only damaged.

    Args:
        store: The store in which a read found nothing.
        where: The filter of that read, such as a key.
        mark: A mark of `store.damaged`, taken before the read.

    Raises:
        StoreDamaged: A damaged record matches the filter.
    """
    findings = [finding for finding in store.damaged.since(mark) if finding.ref is not None]
    refs = store.refs(where) if findings else ()
    for finding in findings:
        if finding.ref in refs:
            raise refusal(finding)


# --- spaces of vectors


def refuse_other_model(store: Store, space: Space, where: Filter) -> None:
    """Check that a store's vectors come from an embedder's model, before anything is searched.

    Raises:
        EmbedderMismatch: The store's vectors come from another model or have another length.
    """
    stored, used = name_spaces(store.info(where), space)
    if stored is not None and stored != used:
        raise other_embedder(stored, used)


def name_spaces(info: StoreInfo, space: Space) -> tuple[str | None, str]:
    """Return the names of two models: the store's and the embedder's.

    If only the dimensions differ, the names include them.
    """
    if info.model != space.model or info.dimension in (None, space.dimension):
        return info.model, space.model
    return (
        f"{info.model} ({info.dimension} dimensions)",
        f"{space.model} ({space.dimension} dimensions)",
    )


def other_space(model: str, dimension: int, space: Space) -> EmbedderMismatch:
    """Return the error for a space that differs in model or dimension from the store's."""
    return other_embedder(
        f"{model} ({dimension} dimensions)", f"{space.model} ({space.dimension} dimensions)"
    )


def other_embedder(stored: str, used: str) -> EmbedderMismatch:
    """Return the error for a store whose vectors come from a different model."""
    remedy = "set EMBEDDER to the one that created them"
    if stored.startswith(_DEFAULT_MODEL):
        remedy = "unset EMBEDDER"
    return EmbedderMismatch(
        f"this store's vectors were created by {stored}, but the embedder is {used}; {remedy}, or "
        "switch to this embedder with: memory reembed"
    )


# --- reading with `Store.scan`

PAGE_SIZE = 500


def scan_pages(
    store: Store, where: Filter, *, newest_first: bool = False, size: int = PAGE_SIZE
) -> Iterator[list[Record]]:
    """Yield the records that match a filter, a page at a time."""
    after: tuple[str, int] | None = None
    while page := store.scan(where, limit=size, after=after, newest_first=newest_first):
        yield page
        last = page[-1].ref
        after = last.group, last.position


def find_first(store: Store, where: Filter, *, newest_first: bool = False) -> Record | None:
    """Return the first record that matches a filter, or the last one if `newest_first`."""
    return next(iter(store.scan(where, limit=1, newest_first=newest_first)), None)


def used_among(store: Store, where: Filter) -> list[tuple[Ref, int]]:
    """Implement `Store.used` by scanning the store."""
    counts: dict[Ref, int] = {}
    for page in scan_pages(store, where, size=1_000):
        for record in page:
            if record.accesses:
                counts[record.ref] = record.accesses
    return sorted(counts.items(), key=lambda entry: (-entry[1], entry[0].group, entry[0]))
