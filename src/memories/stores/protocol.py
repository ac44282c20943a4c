"""The protocol of a store, with every rule: it keeps whole records and finds candidates, and
decides nothing.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from memories.errors import EmbedderMismatch, ErasureUnfinished, StoreError
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

    from memories.stores.records import Matches, TurnQuery

_DEFAULT_MODEL = "all-MiniLM-L6-v2/"  # of the embedder where EMBEDDER is not set


class Store(Protocol):
    """Keeps records in collections, `memory` and `history`, each divided into namespaces.

    A third one, `log`, has the audit log: see `chain`. Its records are read and scanned like
        others. They have no words
    and no vectors, and no search, statistic or change of the space concerns them.

    Rules for every backend; `tests/stores/contract/` checks them:

    - *Isolation.* Filters and refs name their namespaces, and nothing outside of these is read,
      counted, changed or revealed. There is no "all"; only `namespaces`, for moving a whole store,
      lists them.
    - *Durability.* Once a method that writes has returned, or the transaction around it has ended,
      a crash of the process or the machine, or a power cut, does not undo it.
    - *Atomicity.* A method that writes does all of it or nothing.
    - *Order.* Positions in a group are unique: the second writer of a position gets `Conflict`, and
      so does the second live record with one key.
    - *Collections* do not disturb each other: turns make no memory's words common, and no search of
      memories slower.
    - *Scores.* A similarity is a cosine, within 0.01 of the exact one. A word score is BM25 over
      the terms of `memories.languages.text`, larger is better, 0 if no term matches. A turn's words
      include the name of its speaker.
    - *Vectors* of two models are never compared: the store remembers the space of its first vector
      and raises `EmbedderMismatch` for any other, on writes and on searches.
    - *Threads and processes* may share a store. A store that can't be shared says so here: (none).
    - *Opening* is cheap and writes nothing; a store that does not exist yet reads as empty.
    - *Damage.* One damaged record costs one record: a store that can tell leaves it out of what it
      returns, and notes it in `damaged`. `patch` refuses to change it; `refs` and `remove` need
      nothing of it but its address.
    - *Errors* are those of `memories.errors`: `Conflict`, `StoreBusy`, `StoreDamaged`,
      `SchemaTooNew`, `EmbedderMismatch`, else `StoreError`. No exception of a driver gets through.
    """

    damaged: Damaged

    def transaction(self) -> AbstractContextManager[None]:
        """Run what is read and written inside as one step, with no other writer in between.

        It commits as a whole or undoes everything. Transactions nest; the outermost one commits,
        and a write that fails inside undoes its own part even if the failure is caught. A backend
        without transactions says so, and the service repairs on reading what it can't guarantee:
        see `RemoteStore`.

        Raises:
            StoreBusy: Another process held the store for too long.
        """

    def append(self, records: Sequence[Record]) -> None:
        """Add new records with their words and vectors; a record that is moved keeps its
        `accesses`, too.

        Raises:
            Conflict: A position or a key is taken; nothing was added.
            EmbedderMismatch: The vectors are of another space than those in the store.
        """

    def patch(self, patches: Sequence[Patch]) -> None:
        """Change the end and the fields of records; refs that don't exist are ignored.

        Raises:
            Conflict: A record would become live again, and another one has its key now; nothing was
                changed.
        """

    def touch(self, refs: Sequence[Ref], batch: str = "") -> bool:
        """Count one access of each record, of one that is named twice two. Only a statistic: no
        caller waits for it.

        Args:
            refs: The records; those that don't exist are ignored.
            batch: A name for these accesses. A store that can keeps the last name with the counts,
                and does not count the same batch again.

        Returns:
            Whether they are counted; not by a store that is busy or read-only.
        """

    def used(self, where: Filter) -> list[tuple[Ref, int]]:
        """Return the records that were ever read, and how often each was; the most read ones
        first.
        """

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """Remove records for good: afterwards no byte of their text, words or vectors is in the
        store's files.

        Not allowed inside a transaction: it rewrites files.

        Returns:
            Other files that may still contain them, such as snapshots taken before a migration.

        Raises:
            StoreError: If it failed after the records were removed, no reader sees them any more,
                `info` says `erasing`, and the next call, even one without refs, finishes the
                erasure. Stores that `logged` returns raise `ErasureUnfinished` then.
        """

    def scan(
        self,
        where: Filter,
        *,
        limit: int,
        after: tuple[str, int] | None = None,
        newest_first: bool = False,
    ) -> list[Record]:
        """Return records in the order of group and position, which for memories is the order of
        creation.

        Args:
            where: Which records.
            limit: At most this many.
            after: Continue after this group and position, in the direction of the scan; where
                namespaces share a group, after that position in all of them.
            newest_first: Scan backwards.
        """

    def groups(self, where: Filter, *, limit: int) -> list[tuple[str, str]]:
        """Return the different (namespace, group) of the records, at most `limit`, in order."""

    def candidates(
        self, where: Filter, *, vector: "NDArray[np.float32] | None", terms: Sequence[str], k: int
    ) -> list[Candidate]:
        """Return the records that may answer a query: the best by vector and the best by words.

        Args:
            where: Which records.
            vector: The query, shape (dimension,), unit length; None to search by words alone.
            terms: From `languages.text.query_terms`: words, phrases of several words, and
                beginnings of words, which end in `*`; any of them may match.
            k: How many of the best by vector, and how many of the best by words: at most 2k in all.

        Returns:
            Each with its similarity (also if it was found by words) and its word score, in no
            particular order.

        Raises:
            EmbedderMismatch: The vector is of another space than those in the store.
        """

    def matches(self, where: Filter, query: "TurnQuery") -> "Matches":
        """Return what matches a query, term by term and without the records: turns are ranked with
        their neighbours.

        Of a few thousand records a store should return all. Of more it returns at least the best by
        vector and by words, the turns beside the best of these in their sessions, and turns of the
        days that the query asks about.

        Args:
            where: Which records.
            query: The search.

        Raises:
            EmbedderMismatch: The vector is of another space than those in the store.
        """

    def read(self, refs: Sequence[Ref]) -> list[Record]:
        """Return the records of these refs, in no particular order; refs that don't exist are left
        out.
        """

    def values(self, collection: Collection, namespaces: Sequence[str], key: str) -> list[str]:
        """Return the distinct values of a label in these namespaces, in order; fast, however many
        records there are.

        Values that only ended records have may be included.
        """

    def count(self, where: Filter, *, at_most: int | None = None) -> int:
        """Return how many records there are; with `at_most`, stop counting there."""

    def labels(self, where: Filter, key: str | None) -> Mapping[str, int]:
        """Return how many records have each label key or, given a key, each of its values."""

    def days(self, where: Filter) -> Mapping[int, int]:
        """Return how many records were written on each day: days of UTC since 1970, in order, those
        with any.
        """

    def namespaces(self, collection: Collection) -> list[str]:
        """Return the namespaces that have records, ended ones included, in order.

        For moving or re-embedding a whole store, never for a search.
        """

    def vectors(self, refs: Sequence[Ref]) -> "dict[Ref, NDArray[np.float32]]":
        """Return vectors as the store keeps them, each of shape (windows, dimension), float32 and
        of unit length.

        These are the vectors in use, whatever space the store was opened with. A store may keep
        them in a coarser form than it was given, so a cosine is within 0.01 of the exact one, also
        after they are appended to another store and read from there. Records without a vector, and
        refs that don't exist, are left out.
        """

    def unstaged(self, space: Space, collection: Collection, *, limit: int) -> list[Record]:
        """Return records of any namespace, ended ones included, that have no vectors of this space,
        staged or in use.

        They come in no particular order, and include what was added after others were staged.

        Args:
            space: The space in use, to complete it, or another one, to change over to it.
            collection: Memories or turns.
            limit: At most this many; what has been staged is not returned again, so repeated calls
                make progress.
        """

    def stage(self, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """Keep vectors of a space beside those in use; nothing is searched by them before `switch`.

        Vectors of the space in use are used at once, and so is the first space of a store that
        never had vectors. What was staged for a third space is dropped. Refs that don't exist are
        ignored; if none of them exists, nothing changes. Vectors staged before are replaced. What
        is staged stays when the store is closed, and goes when its record is removed.

        Args:
            space: Their space; not necessarily the one that the store was opened with.
            vectors: For each ref, shape (windows, dimension), unit length.
        """

    def switch(self, space: Space) -> None:
        """Search by the staged vectors of this space from now on, in one step; those in use before
        are removed.

        From then on a store opened with another space gets `EmbedderMismatch`, and one opened with
        this space searches by it. A store without records changes at once. For the space in use
        nothing changes. No record may be added unnoticed between the last `unstaged` and this: both
        may share a transaction, and a backend without transactions checks again before and after
        the change.

        Args:
            space: The space; not necessarily the one that the store was opened with.

        Raises:
            Conflict: Records have no vectors of this space yet (see `unstaged`); nothing was
                changed.
        """

    def info(self, where: Filter) -> StoreInfo:
        """Return the status of the store; it reads from the disk, so it also proves that the store
        answers.
        """

    def refs(self, where: Filter) -> list[Ref]:
        """Return the addresses of records in the order of group and position, without reading what
        they say.

        Damaged ones are among them: by its address a record can be removed whatever became of it.
        """

    def check(self, *, deep: bool) -> Iterable[Finding]:
        """Return what is wrong in the store; nothing is changed.

        Args:
            deep: Look at everything, however long it takes. Else take some ten milliseconds: look
                at everything in a small store, and in a large one at what tells most.
        """

    def repair(self) -> list[str]:
        """Make again what is derived from the records and wrong, in one transaction; records are
        left as they are.

        Returns:
            What was mended; empty if there was nothing to mend.
        """

    def close(self) -> None:
        """Release all resources. The store must not be used afterwards."""


@runtime_checkable
class OnThisDisk(Protocol):
    """A store that is written by this process, so that it can tell without a write whether one
    would succeed.
    """

    def rehearse(self) -> None:
        """Do what a small write does, up to its commit, and undo it; nothing that anybody reads is
        changed.

        It waits for no other writer: where one is at work, writes succeed.

        Raises:
            StoreError: As a write would raise it, such as for a full disk or a folder that can't be
                written.
        """


GONE = "what was forgotten is gone, but bytes of it may still be on the disk"
PARTLY_GONE = "only a part of it is forgotten"
UNSURE = "it may or may not be forgotten"


@contextlib.contextmanager
def once_erased(state: str = GONE) -> Iterator[None]:
    """Report a failure inside as one that comes after something was erased."""
    try:
        yield
    except ErasureUnfinished:
        raise
    except StoreError as exc:
        raise erasure_unfinished(state, exc) from exc


def erasure_unfinished(state: str, exc: StoreError) -> ErasureUnfinished:
    """Return the error for an erasure that failed, given what became of it."""
    why = str(exc).partition(";")[0]  # what follows is about writes that were undone
    return ErasureUnfinished(f"{state} ({why}); forget it again")


def required(space: Space | None) -> Space:
    """Return the space that a store was opened with.

    Raises:
        StoreError: It was opened in keyword-only mode.
    """
    if space is None:
        raise StoreError("this store was opened without an embedder and was given a vector")
    return space


def other_space(model: str, dimension: int, space: Space) -> EmbedderMismatch:
    """Return the error for vectors of a space that differs from the store's, which has this model
    and dimension.
    """
    return other_embedder(f"{model} ({dimension} dimensions)", f"{space.model} ({space.dimension})")


def refuse_damaged(store: Store, where: Filter, mark: int) -> None:
    """Refuse to take something for missing that is only damaged.

    Args:
        store: What was asked.
        where: What it was asked for, such as a key.
        mark: A moment before it was asked.

    Raises:
        StoreDamaged: It has a damaged record that matches.
    """
    noted = [finding for finding in store.damaged.since(mark) if finding.ref is not None]
    there = store.refs(where) if noted else ()
    for finding in noted:
        if finding.ref in there:
            raise refusal(finding)


def refuse_other_model(store: Store, space: Space, where: Filter) -> None:
    """Check the model of a store's vectors, for callers who have no vector to pass.

    Raises:
        EmbedderMismatch: The store's vectors were made by another model.
    """
    model = store.info(where).model
    if model is not None and model != space.model:
        raise other_embedder(model, space.model)


def other_embedder(stored: str, used: str) -> EmbedderMismatch:
    """Return the error for a store whose vectors another model made."""
    cure = (
        "unset EMBEDDER"
        if stored.startswith(_DEFAULT_MODEL)
        else "set EMBEDDER to the one it was made with"
    )
    return EmbedderMismatch(
        f"this store's vectors were made by {stored} and the embedder is {used}; {cure}, or change over to this one "
        "with: memory reembed"
    )


_PAGE = 1_000


def used_among(scan: Callable[..., Sequence[Record]], where: Filter) -> list[tuple[Ref, int]]:
    """Return the records that were ever read and how often, as `Store.used` does; `scan` is that of
    the store.
    """
    found: list[tuple[Ref, int]] = []
    after: tuple[str, int] | None = None
    while page := scan(where, limit=_PAGE, after=after):
        found += [(record.ref, record.accesses) for record in page if record.accesses]
        after = page[-1].ref.group, page[-1].ref.position
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))
