"""What a store is: it keeps whole records and finds candidates; it decides nothing."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from memories.errors import EmbedderMismatch
from memories.stores.records import Candidate, Collection, Filter, Matches, Patch, Query, Record, Ref, Space, StoreInfo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Store(Protocol):
    """Keeps records in two collections, `memory` and `history`, each divided into namespaces.

    Rules for every backend; `tests/stores/contract.py` checks them:

    - *Isolation.* A filter and a ref name their namespaces, and nothing outside of these is read, counted, changed or
      hinted at. There is no "all"; only `namespaces`, for moving a whole store, tells which there are.
    - *Durability.* When a method that writes has returned, or the transaction around it has ended, a crash of the
      process, of the machine or of its power does not undo it.
    - *Atomicity.* A method that writes does all of it or nothing.
    - *Order.* Positions in a group are unique: the second writer of a position gets `Conflict`, and so does the
      second live record with one key.
    - *Collections* do not disturb each other: turns make no memory's words common, and no search of memories slower.
    - *Scores.* A similarity is a cosine, within 0.01 of the exact one. A word score is BM25 over the terms of
      `memories.text`, larger is better, 0 if no term matches. A turn's words include the name of its speaker.
    - *Vectors* of two models are never compared: the store remembers the space of its first vector and raises
      `EmbedderMismatch` for any other, on writes and on searches.
    - *Threads and processes* may use one store at once. A store that cannot bear that says so here: (none).
    - *Opening* costs little and writes nothing; a store that does not exist yet reads as empty.
    - *Errors* are those of `memories.errors`: `Conflict`, `StoreBusy`, `StoreDamaged`, `SchemaTooNew`,
      `EmbedderMismatch`, else `StoreError`. A driver's own exception never comes through.
    """

    def transaction(self) -> AbstractContextManager[None]:
        """Make what is read and written inside one step that no other writer comes between.

        It ends with success or undoes everything. Transactions nest; the outermost one counts, and a write that fails
        inside undoes its own part even where the failure is caught. A backend without
        transactions says so, and what it can't keep the service heals when it reads: see `RemoteStore`.

        Raises:
            StoreBusy: Another process held the store for too long.
        """
        ...

    def append(self, records: Sequence[Record]) -> None:
        """Add new records with their words and vectors, whole: a record that is moved keeps its `accesses`, too.

        Raises:
            Conflict: A position or a key is taken; nothing was added.
            EmbedderMismatch: The vectors are of another space than those in the store.
        """
        ...

    def patch(self, patches: Sequence[Patch]) -> None:
        """Change the end and the fields of records; refs that don't exist are left out.

        Raises:
            Conflict: A record would become live again whose key another one has now; nothing was changed.
        """
        ...

    def touch(self, refs: Sequence[Ref]) -> None:
        """Count one access for each record. A statistic: a store that is busy or read-only may leave it."""
        ...

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """Remove records for good: afterwards no byte of their text, words or vectors is in the store's files.

        Not inside a transaction: it rewrites files.

        Returns:
            Other files that may still hold them, such as snapshots taken before a migration.

        Raises:
            StoreBusy: A reader kept the old pages from being overwritten. The records are gone for every reader, `info`
                says `erasing`, and the next call, also one with no refs, finishes the erasure.
        """
        ...

    def scan(
        self, where: Filter, *, limit: int, after: tuple[str, int] | None = None, newest_first: bool = False
    ) -> list[Record]:
        """Return records in the order of group and position, which for memories is the order of creation.

        Args:
            where: Which records.
            limit: At most so many.
            after: Continue behind this group and position, in the direction of the scan; where namespaces share a
                group, behind the position in all of them.
            newest_first: Scan backwards.
        """
        ...

    def groups(self, where: Filter, *, limit: int) -> list[tuple[str, str]]:
        """Return the different (namespace, group) of the records, at most `limit`, in order."""
        ...

    def candidates(
        self, where: Filter, *, vector: "NDArray[np.float32] | None", terms: Sequence[str], k: int
    ) -> list[Candidate]:
        """Return the records that may answer a query: the best by vector together with the best by words.

        Args:
            where: Which records.
            vector: The query, shape (dimension,), unit length; None to go by words alone.
            terms: From `memories.text.query_terms`: words, phrases of several words, and beginnings of words, which
                end in `*`; any of them may match.
            k: So many of the best by vector and so many of the best by words, at most 2k in all.

        Returns:
            Each with its similarity (also those found by words) and its word score, in no order.

        Raises:
            EmbedderMismatch: The vector is of another space than those in the store.
        """
        ...

    def matches(self, where: Filter, query: Query) -> Matches:
        """Return what matches a query, term by term and without the records, so that turns can be seen in their places.

        For a few thousand records a store best returns all of them. Of more it returns at least the best by vector and
        by words, the turns beside the best of these in their sessions, and turns of the days that are meant.

        Args:
            where: Which records.
            query: What is looked for.

        Raises:
            EmbedderMismatch: The vector is of another space than those in the store.
        """
        ...

    def read(self, refs: Sequence[Ref]) -> list[Record]:
        """Return the records at these addresses, in no order; addresses that don't exist are left out."""
        ...

    def values(self, collection: Collection, namespaces: Sequence[str], key: str) -> list[str]:
        """Return the different values of a label in these namespaces, in order, fast however many records there are.

        Values that only ended records have may be among them.
        """
        ...

    def count(self, where: Filter, *, at_most: int | None = None) -> int:
        """Return how many records there are; with `at_most`, stop counting there."""
        ...

    def labels(self, where: Filter, key: str | None) -> Mapping[str, int]:
        """Return how many records have each label key, or, given a key, each of its values."""
        ...

    def namespaces(self, collection: Collection) -> list[str]:
        """Return the namespaces that have records, ended ones included, in order.

        It is for moving or re-embedding a whole store, never for a search.
        """
        ...

    def vectors(self, refs: Sequence[Ref]) -> "dict[Ref, NDArray[np.float32]]":
        """Return vectors as the store keeps them, each of shape (windows, dimension), float32 and of unit length.

        They are those in use, whatever space the store was opened with. A store may keep them in a coarser form than
        they were given in, so a cosine is within 0.01 of the exact one, also when they are appended to another store
        and read from there. Records without a vector, and addresses that don't exist, are left out.
        """
        ...

    def unstaged(self, space: Space, collection: Collection, *, limit: int) -> list[Record]:
        """Return records of any namespace, ended ones included, that have no vectors of this space, staged or in use.

        They come in no order. What was added after others were staged is among them.

        Args:
            space: The space in use, to complete it, or another one, to change over to it.
            collection: Memories or turns.
            limit: At most so many; what is staged no longer comes, so that asking again goes on.
        """
        ...

    def stage(self, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """Keep vectors of a space beside those in use; nothing is searched by them before `switch`.

        Vectors of the space in use are used at once, and so is the first space of a store that never had vectors. What
        was staged for a third space is dropped. Addresses that don't exist are left out; if none of them exists,
        nothing changes. Those that were staged before get these vectors instead. What is staged stays when the store is
        closed, and goes when its record is removed.

        Args:
            space: Their space; it need not be the one that the store was opened with.
            vectors: For each address, shape (windows, dimension), unit length.
        """
        ...

    def switch(self, space: Space) -> None:
        """Search by the staged vectors of this space from now on, in one step; those in use before are removed.

        Who has the store open with another space gets `EmbedderMismatch` from then on, and who opened it with this one
        searches by it. A store without records changes at once. For the space in use nothing changes. No record may be
        added unnoticed between the last `unstaged` and this: both may stand in one transaction, and a backend without
        transactions looks again before and after it changes.

        Args:
            space: The space; it need not be the one that the store was opened with.

        Raises:
            Conflict: Records have no vectors of this space yet (see `unstaged`); nothing was changed.
        """
        ...

    def info(self, where: Filter) -> StoreInfo:
        """Return what the store says about itself; it reads from the disk, so it also shows that the store answers."""
        ...

    def close(self) -> None:
        """Release what is held. The store must not be used afterwards."""
        ...


def refuse_other_model(store: Store, space: Space, where: Filter) -> None:
    """Raise if the vectors of a store are not of this space: where no vector could be made, nothing else tells.

    Raises:
        EmbedderMismatch: They are of another one.
    """
    model = store.info(where).model
    if model is not None and model != space.model:
        raise EmbedderMismatch(
            f"this store's vectors were made by {model} and the embedder is {space.model}; set EMBEDDER to the one it "
            "was made with, or run: memory reembed"
        )
